//! Keys and keyrings (keyrings(7)): what they are, who owns them and what their owners may have.
//! A key lives as long as a keyring, or somebody's credentials, refer to it; what is asked of keys
//! by system calls is in `syscall/keys.rs`.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt;
use core::ops::Bound::{Excluded, Unbounded};

use crate::account::{self, Lasting};
use crate::errno::{Errno, Result};
use crate::sync::{Mutex, mutex};

/// kernel.keys.maxkeys and maxbytes: what a user may have.
const USER_QUOTA: Used = Used { keys: 200, bytes: 20_000 };
/// kernel.keys.root_maxkeys and root_maxbytes: the same of the container's root. Bytes stay below
/// what Linux gives, as each link takes more of kernel memory than is counted.
const ROOT_QUOTA: Used = Used { keys: 1_000_000, bytes: 4_000_000 };
/// What a link takes of the quota of a keyring's owner (KEYQUOTA_LINK_BYTES).
const LINK_BYTES: usize = 4;
/// The most links of one keyring.
const MOST_LINKS: usize = 32_768;
/// What a key takes of kernel memory, in bytes, with its place in the table.
const KEY_BYTES: usize = 320;

/// A type of keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Holds links to others.
    Keyring,
    /// Holds bytes of a program.
    User,
    /// Holds bytes that no program reads again.
    Logon,
}

/// What a user has, or may have.
#[derive(Clone, Copy, Default)]
struct Used {
    keys: usize,
    bytes: usize,
}

/// What can change of a key.
pub struct KeyState {
    /// Its owner, by the kernel id.
    pub uid: u32,
    /// Its group, by the kernel id.
    pub gid: u32,
    /// KEY_POS_*, KEY_USR_*, KEY_GRP_* and KEY_OTH_* of keyctl(2).
    pub perm: u32,
    /// CLOCK_REALTIME in ns from which on it has expired.
    pub expires_ns: Option<u64>,
    /// It was revoked.
    pub is_revoked: bool,
    /// It was invalidated: no keyring shows it any more.
    pub is_invalid: bool,
    payload: Vec<u8>,
    links: Vec<Arc<Key>>,
    /// What of its owner's bytes it takes.
    charged: usize,
    /// The memory that its payload takes.
    payload_memory: Lasting,
}

/// A key.
pub struct Key {
    /// Its number.
    pub serial: i32,
    /// Its type.
    pub kind: Kind,
    /// Its description, without the final NUL.
    pub description: Vec<u8>,
    /// The number of the user namespace that it was made in, where keyrings have their names.
    pub namespace: u64,
    state: Mutex<KeyState>,
    /// The memory that it takes without what it holds.
    _memory: Lasting,
}

/// All keys, by number.
static KEYS: Mutex<BTreeMap<i32, Weak<Key>>> = mutex(BTreeMap::new());
/// What each user has, by the kernel id: the same user of another namespace has another one.
static USED: Mutex<BTreeMap<u32, Used>> = mutex(BTreeMap::new());

/// Memory for what outlives processes. EDQUOT if that has come to its limit.
fn lasting(bytes: usize) -> Result<Lasting> {
    Lasting::take(bytes as u64).map_err(|_| Errno::EDQUOT)
}

/// Moves `uid`'s use by these. EDQUOT.
fn charge(uid: u32, keys: usize, bytes: usize) -> Result {
    let most = if uid == 0 { ROOT_QUOTA } else { USER_QUOTA };
    let mut all = USED.lock();
    let used = all.get(&uid).copied().unwrap_or_default();
    let new = Used { keys: used.keys + keys, bytes: used.bytes.saturating_add(bytes) };
    if new.keys > most.keys || new.bytes > most.bytes {
        return Err(Errno::EDQUOT);
    }
    all.insert(uid, new);
    Ok(())
}

fn release(uid: u32, keys: usize, bytes: usize) {
    let mut all = USED.lock();
    if let Some(used) = all.get_mut(&uid) {
        used.keys = used.keys.saturating_sub(keys);
        used.bytes = used.bytes.saturating_sub(bytes);
        if used.keys == 0 {
            all.remove(&uid);
        }
    }
}

/// /proc/key-users: a line for each user that has keys, under the numbers that `shown` gives.
pub fn users(shown: impl Fn(u32) -> u32) -> String {
    let used: Vec<(u32, Used)> = USED.lock().iter().map(|(uid, used)| (*uid, *used)).collect();
    let mut text = String::new();
    for (uid, Used { keys, bytes }) in used {
        let most = if uid == 0 { ROOT_QUOTA } else { USER_QUOTA };
        let uid = shown(uid);
        text += &format!(
            "{uid:5}: {keys:5} {keys}/{keys} {keys}/{} {bytes}/{}\n",
            most.keys, most.bytes
        );
    }
    text
}

impl Key {
    /// A new key of an owner, made in a user namespace. EDQUOT.
    pub fn new(
        kind: Kind,
        description: &[u8],
        payload: Vec<u8>,
        ((uid, gid), namespace): ((u32, u32), u64),
        perm: u32,
    ) -> Result<Arc<Key>> {
        static LAST: Mutex<i32> = mutex(0x0fff_ffff);
        let memory = lasting(KEY_BYTES + description.len())?;
        let payload_memory = lasting(payload.len())?;
        let charged = description.len() + 1 + payload.len();
        charge(uid, 1, charged)?;
        let mut keys = KEYS.lock();
        let mut last = LAST.lock();
        loop {
            *last = if *last == i32::MAX { 3 } else { *last + 1 };
            if !keys.contains_key(&*last) {
                break;
            }
        }
        let state = KeyState {
            uid,
            gid,
            perm,
            expires_ns: None,
            is_revoked: false,
            is_invalid: false,
            payload,
            links: Vec::new(),
            charged,
            payload_memory,
        };
        let description = description.to_vec();
        let (serial, state) = (*last, Mutex::new(state));
        let key = Arc::new(Key { serial, kind, description, namespace, state, _memory: memory });
        keys.insert(*last, Arc::downgrade(&key));
        Ok(key)
    }

    /// The key with this number.
    pub fn find(serial: i32) -> Option<Arc<Key>> {
        KEYS.lock().get(&serial)?.upgrade()
    }

    /// All keyrings of this name in a user namespace, one after the other: a list of them might
    /// need much memory.
    pub fn rings_named(name: &[u8], namespace: u64) -> impl Iterator<Item = Arc<Key>> {
        let mut last = i32::MIN;
        core::iter::from_fn(move || {
            loop {
                let (serial, key) = {
                    let keys = KEYS.lock();
                    let mut later = keys.range((Excluded(last), Unbounded));
                    later.find_map(|(serial, key)| Some((*serial, key.upgrade()?)))?
                };
                last = serial;
                if key.namespace == namespace && key.is_called(Kind::Keyring, name) {
                    return Some(key);
                }
            }
        })
    }

    /// True if it is the one of this type that is called so.
    pub fn is_called(&self, kind: Kind, name: &[u8]) -> bool {
        self.kind == kind && self.description == name
    }

    /// Looks at what can change, or changes it.
    pub fn with<R>(&self, look: impl FnOnce(&mut KeyState) -> R) -> R {
        look(&mut self.state.lock())
    }

    /// A copy of what it holds.
    pub fn payload(&self) -> Result<Vec<u8>> {
        let state = self.state.lock();
        let mut copy = account::vec_for(state.payload.len())?;
        copy.extend_from_slice(&state.payload);
        Ok(copy)
    }

    /// Has it hold something else. EDQUOT.
    pub fn set_payload(&self, payload: Vec<u8>) -> Result {
        let memory = lasting(payload.len())?;
        let old = {
            let mut state = self.state.lock();
            let (before, after) = (state.payload.len(), payload.len());
            charge(state.uid, 0, after.saturating_sub(before))?;
            release(state.uid, 0, before.saturating_sub(after));
            state.charged = state.charged + after - before;
            state.payload_memory = memory;
            core::mem::replace(&mut state.payload, payload)
        };
        drop(old);
        Ok(())
    }

    /// Gives it to another owner, who has it in the quota. EDQUOT.
    pub fn set_owner(&self, uid: u32) -> Result {
        let mut state = self.state.lock();
        if state.uid != uid {
            charge(uid, 1, state.charged)?;
            release(state.uid, 1, state.charged);
            state.uid = uid;
        }
        Ok(())
    }

    /// What the keyring has links to.
    pub fn links(&self) -> Vec<Arc<Key>> {
        let all = self.state.lock().links.clone();
        all.into_iter().filter(|key| !key.with(|state| state.is_invalid)).collect()
    }

    /// Keeps those links for which `keep` holds: true if others went.
    pub fn keep_links(&self, keep: impl Fn(&Key) -> bool) -> bool {
        let gone: Vec<Arc<Key>> = {
            let mut state = self.state.lock();
            let links = core::mem::take(&mut state.links);
            let (kept, gone) = links.into_iter().partition(|key| keep(key));
            state.links = kept;
            let bytes = gone.len() * LINK_BYTES;
            state.charged -= bytes;
            release(state.uid, 0, bytes);
            gone
        };
        !gone.is_empty()
    }

    /// Has the keyring link to `key`, in place of what has its type and name. EDQUOT, ENFILE.
    pub fn link(&self, key: &Arc<Key>) -> Result {
        self.keep_links(|old| !old.with(|state| state.is_invalid));
        let replaced = {
            let mut state = self.state.lock();
            let same = |old: &Arc<Key>| old.is_called(key.kind, &key.description);
            match state.links.iter().position(same) {
                Some(at) => Some(core::mem::replace(&mut state.links[at], key.clone())),
                None if state.links.len() == MOST_LINKS => return Err(Errno::ENFILE),
                None => {
                    account::room_in(&mut state.links)?;
                    charge(state.uid, 0, LINK_BYTES)?;
                    state.charged += LINK_BYTES;
                    state.links.push(key.clone());
                    None
                }
            }
        };
        drop(replaced);
        Ok(())
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        KEYS.lock().remove(&self.serial);
        let mut rest = {
            let mut state = self.state.lock();
            release(state.uid, 1, state.charged);
            core::mem::take(&mut state.links)
        };
        // One after the other: a chain of keyrings may be longer than the stack is deep.
        while let Some(key) = rest.pop() {
            if let Some(last) = Arc::into_inner(key) {
                rest.append(&mut last.state.lock().links);
            }
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.serial == other.serial
    }
}

impl Eq for Key {}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key:{:08x}", self.serial)
    }
}

/// The keyrings that credentials refer to.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct Rings {
    /// The thread's own.
    pub thread: Option<Arc<Key>>,
    /// That of its process.
    pub process: Option<Arc<Key>>,
    /// That of its session, which its children have too.
    pub session: Option<Arc<Key>>,
}

impl Rings {
    /// Those that a new thread of the same process has, or a new process.
    pub fn inherited(&self, same_process: bool) -> Rings {
        let process = self.process.clone().filter(|_| same_process);
        Rings { thread: None, process, session: self.session.clone() }
    }

    /// True if a child has the same ones.
    pub fn are_inherited(&self, same_process: bool) -> bool {
        self.thread.is_none() && (same_process || self.process.is_none())
    }
}
