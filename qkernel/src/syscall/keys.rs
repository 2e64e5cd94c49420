//! add_key(2), request_key(2), and what both and keyctl(2) ask of keys: which one a number names,
//! who may do what with it, and how it is found (keyrings(7)).

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use qlib::Va;

use crate::creds::Creds;
use crate::creds::keys::{Key, Kind, Rings};
use crate::errno::{Errno, Result};
use crate::task::Thread;
use crate::time::realtime_ns;

/// The right to see a key's type, description, owner and permissions.
pub const VIEW: u32 = 0x01;
/// The right to read what it holds.
pub const READ: u32 = 0x02;
/// The right to change what it holds, or its links.
pub const WRITE: u32 = 0x04;
/// The right to find it, and to search in it.
pub const SEARCH: u32 = 0x08;
/// The right to link to it.
pub const LINK: u32 = 0x10;
/// The right to change its owner and permissions.
pub const SETATTR: u32 = 0x20;
/// The most that a description has, with its NUL (KEY_MAX_DESC_SIZE).
const MOST_DESCRIPTION: usize = 4096;
/// The most that the key of a program holds.
const MOST_PAYLOAD: usize = 32767;
/// The most that add_key(2) looks at.
pub const MOST_GIVEN: usize = 1024 * 1024 - 1;
/// How many keyrings below one are searched (KEYRING_SEARCH_MAX_DEPTH).
const MOST_DEPTH: usize = 6;
/// The most keyrings that one search looks into.
const MOST_SEARCHED: usize = 4096;

/// A key, and whether who asks possesses it.
#[derive(Clone)]
pub struct KeyRef {
    /// It.
    pub key: Arc<Key>,
    /// It was found from a keyring of the thread.
    pub is_possessed: bool,
}

impl KeyRef {
    /// EACCES if `creds` do not have this right.
    pub fn check(&self, creds: &Creds, right: u32) -> Result {
        let (uid, gid, perm) = self.key.with(|state| (state.uid, state.gid, state.perm));
        let mut rights = if uid == creds.fsuid {
            perm >> 16
        } else if perm & 0x3f00 != 0 && creds.in_group(gid) {
            perm >> 8
        } else {
            perm
        };
        if self.is_possessed {
            rights |= perm >> 24;
        }
        if rights & right == right { Ok(()) } else { Err(Errno::EACCES) }
    }
}

/// ENOKEY, EKEYREVOKED or EKEYEXPIRED if a key is of no use any more.
pub fn check_state(key: &Key) -> Result {
    key.with(|state| match state.expires_ns {
        _ if state.is_invalid => Err(Errno::ENOKEY),
        _ if state.is_revoked => Err(Errno::EKEYREVOKED),
        Some(end) if realtime_ns() >= end => Err(Errno::EKEYEXPIRED),
        _ => Ok(()),
    })
}

/// Whose a new key is, and the user namespace that it is made in.
fn owner_of(creds: &Creds) -> ((u32, u32), u64) {
    ((creds.fsuid, creds.fsgid), creds.user.number)
}

/// ENOTDIR if it is not a keyring.
pub fn ring_of(it: KeyRef) -> Result<KeyRef> {
    if it.key.kind == Kind::Keyring { Ok(it) } else { Err(Errno::ENOTDIR) }
}

/// A new keyring of the thread's user.
pub fn new_ring(creds: &Creds, name: &[u8], perm: u32) -> Result<Arc<Key>> {
    Key::new(Kind::Keyring, name, Vec::new(), owner_of(creds), perm)
}

/// Has the thread have these keyrings.
fn set_rings(thread: &Thread, change: impl FnOnce(&mut Rings)) {
    let mut creds = Creds::clone(&thread.creds());
    change(&mut creds.rings);
    thread.set_creds(creds);
}

/// A user keyring and a user session keyring.
type UserRings = (Arc<Key>, Arc<Key>);

/// Those of the real user, if they have been made.
fn known_user_rings(creds: &Creds) -> Option<UserRings> {
    let known = creds.user.user_rings.lock().get(&creds.uid).cloned();
    known?.downcast_ref::<UserRings>().cloned()
}

/// The user keyring and the user session keyring of the real user, which are made if need be.
fn user_rings(creds: &Creds) -> Result<UserRings> {
    if let Some(pair) = known_user_rings(creds)
        && [&pair.0, &pair.1].into_iter().all(|ring| check_state(ring).is_ok())
    {
        return Ok(pair);
    }
    let shown = creds.uid_shown(creds.uid);
    let make = |name: alloc::string::String| {
        let owner = ((creds.uid, creds.gid), creds.user.number);
        Key::new(Kind::Keyring, name.as_bytes(), Vec::new(), owner, 0x1f3f_0000)
    };
    let pair = (make(format!("_uid.{shown}"))?, make(format!("_uid_ses.{shown}"))?);
    pair.1.link(&pair.0)?;
    let old = creds.user.user_rings.lock().insert(creds.uid, Arc::new(pair.clone()));
    drop(old);
    Ok(pair)
}

/// Has the thread's session have this keyring from now on.
pub fn set_session(thread: &Thread, ring: &Arc<Key>) {
    set_rings(thread, |rings| rings.session = Some(ring.clone()));
}

/// Where a search begins: the thread's keyrings.
fn own_rings(creds: &Creds) -> Vec<Arc<Key>> {
    let Rings { thread, process, session } = &creds.rings;
    let mut all: Vec<_> = [thread, process].into_iter().flatten().cloned().collect();
    match session {
        Some(session) => all.push(session.clone()),
        // It is there if the user's have been made.
        None => all.extend(known_user_rings(creds).map(|pair| pair.1)),
    }
    all
}

/// The keyring of its own that a thread has in this place, which is made with `create`. ENOKEY.
fn own_ring(
    thread: &Thread,
    place: impl Fn(&mut Rings) -> &mut Option<Arc<Key>>,
    name: &[u8],
    create: bool,
) -> Result<Arc<Key>> {
    let creds = thread.creds();
    match place(&mut creds.rings.clone()) {
        Some(ring) => Ok(ring.clone()),
        None if !create => Err(Errno::ENOKEY),
        None => {
            let ring = new_ring(&creds, name, 0x3f01_0000)?;
            set_rings(thread, |rings| *place(rings) = Some(ring.clone()));
            Ok(ring)
        }
    }
}

/// The key that `id` names (KEY_SPEC_* too), with these rights; a special keyring that is missing
/// is made with `create`. EINVAL, ENOKEY, EKEYREVOKED, EKEYEXPIRED, EACCES.
pub fn lookup(thread: &Thread, id: i32, create: bool, right: u32) -> Result<KeyRef> {
    let found = lookup_any(thread, id, create)?;
    check_state(&found.key)?;
    found.check(&thread.creds(), right)?;
    Ok(found)
}

/// The same whatever state it is in, and without rights.
pub fn lookup_any(thread: &Thread, id: i32, create: bool) -> Result<KeyRef> {
    let creds = thread.creds();
    let rings = &creds.rings;
    let key = match id {
        -1 => own_ring(thread, |rings| &mut rings.thread, b"_tid", create)?,
        -2 => own_ring(thread, |rings| &mut rings.process, b"_pid", create)?,
        -3 => match &rings.session {
            Some(ring) if !(create && is_user_session(&creds, ring)) => ring.clone(),
            _ => {
                let ring = match create {
                    true => new_ring(&creds, b"_ses", 0x3f03_0000)?,
                    false => user_rings(&creds)?.1,
                };
                set_session(thread, &ring);
                ring
            }
        },
        -4 => user_rings(&creds)?.0,
        -5 => user_rings(&creds)?.1,
        -8 | -7 => return Err(Errno::ENOKEY),
        ..=0 => return Err(Errno::EINVAL),
        _ => {
            let key = Key::find(id).ok_or(Errno::ENOKEY)?;
            let is_it = |other: &Arc<Key>| other.serial == id;
            let is_possessed = search_from(&creds, own_rings(&creds), true, is_it, false).is_ok();
            return Ok(KeyRef { key, is_possessed });
        }
    };
    Ok(KeyRef { key, is_possessed: true })
}

fn is_user_session(creds: &Creds, ring: &Arc<Key>) -> bool {
    user_rings(creds).is_ok_and(|pair| pair.1 == *ring)
}

/// Searches keyrings that the thread possesses or not, and those below them: the first key that
/// matches and may be found, and (`checks`) lasts. ENOKEY, or what stood in the way.
fn search_from(
    creds: &Creds,
    roots: Vec<Arc<Key>>,
    is_possessed: bool,
    matches: impl Fn(&Arc<Key>) -> bool,
    checks: bool,
) -> Result<Arc<Key>> {
    let mut error = Errno::ENOKEY;
    // Links may lead to the same one by many ways.
    let mut searched = BTreeSet::new();
    for root in roots {
        let mut level = alloc::vec![root];
        for depth in 0..=MOST_DEPTH + 1 {
            let mut below = Vec::new();
            for key in level {
                let it = KeyRef { key, is_possessed };
                if matches(&it.key) {
                    let state = if checks { check_state(&it.key) } else { Ok(()) };
                    match state.and_then(|()| it.check(creds, SEARCH)) {
                        Ok(()) => return Ok(it.key),
                        Err(found) => error = found,
                    }
                    continue;
                }
                let is_open = it.key.kind == Kind::Keyring
                    && depth <= MOST_DEPTH
                    && searched.len() < MOST_SEARCHED
                    && check_state(&it.key).is_ok()
                    && it.check(creds, SEARCH).is_ok();
                if is_open && searched.insert(it.key.serial) {
                    below.extend(it.key.links());
                }
            }
            level = below;
        }
    }
    Err(error)
}

/// Searches one keyring for a key of this type and name.
pub fn search(creds: &Creds, ring: &KeyRef, kind: Kind, name: &[u8]) -> Result<Arc<Key>> {
    let is_it = |key: &Arc<Key>| key.is_called(kind, name);
    search_from(creds, alloc::vec![ring.key.clone()], ring.is_possessed, is_it, true)
}

/// Links `key` into `ring`. EDEADLK, ELOOP, EDQUOT.
pub fn link(ring: &Arc<Key>, key: &Arc<Key>) -> Result {
    if key.kind == Kind::Keyring {
        check_below(ring, key)?;
    }
    ring.link(key)
}

/// EDEADLK if `ring` lies in `key` or is it, ELOOP if there are too many keyrings below `key`.
fn check_below(ring: &Arc<Key>, key: &Arc<Key>) -> Result {
    let mut level = alloc::vec![key.clone()];
    let mut looked_at = BTreeSet::new();
    for _ in 0..=MOST_DEPTH {
        let mut below = Vec::new();
        for key in level {
            if key == *ring {
                return Err(Errno::EDEADLK);
            }
            if !looked_at.insert(key.serial) {
                continue;
            }
            if looked_at.len() > MOST_SEARCHED {
                return Err(Errno::ELOOP);
            }
            below.extend(key.links().into_iter().filter(|key| key.kind == Kind::Keyring));
        }
        if below.is_empty() {
            return Ok(());
        }
        level = below;
    }
    Err(Errno::ELOOP)
}

/// The type that a program names. EPERM for those of the kernel.
pub fn kind_of(thread: &Thread, name: Va) -> Result<Result<Kind>> {
    let name = thread.mm().read_short_cstr(name, 32)?;
    match &name[..] {
        b"" => Err(Errno::EINVAL),
        [b'.', ..] => Err(Errno::EPERM),
        b"keyring" => Ok(Ok(Kind::Keyring)),
        b"user" => Ok(Ok(Kind::User)),
        b"logon" => Ok(Ok(Kind::Logon)),
        // Told after what else is wrong.
        _ => Ok(Err(Errno::ENODEV)),
    }
}

/// A description.
pub fn read_description(thread: &Thread, name: Va) -> Result<Vec<u8>> {
    thread.mm().read_short_cstr(name, MOST_DESCRIPTION)
}

/// EINVAL if a key of this type cannot hold so much.
pub fn check_payload(kind: Kind, len: usize) -> Result {
    let fits = match kind {
        Kind::Keyring => len == 0,
        Kind::User | Kind::Logon => (1..=MOST_PAYLOAD).contains(&len),
    };
    if fits { Ok(()) } else { Err(Errno::EINVAL) }
}

/// add_key(2).
pub fn add_key(
    thread: &Arc<Thread>,
    kind: Va,
    description: Va,
    payload: Va,
    plen: usize,
    keyring: i32,
) -> Result<usize> {
    if plen > MOST_GIVEN {
        return Err(Errno::EINVAL);
    }
    let kind = kind_of(thread, kind)?;
    let name = match description {
        Va(0) => Vec::new(),
        description => read_description(thread, description)?,
    };
    if kind == Ok(Kind::Keyring) && name.first() == Some(&b'.') {
        return Err(Errno::EPERM);
    }
    let payload = thread.mm().read_array(payload, plen)?;
    let ring = lookup(thread, keyring, true, WRITE)?;
    let kind = kind?;
    let ring = ring_of(ring)?;
    let has_prefix = || name.iter().position(|byte| *byte == b':').is_some_and(|at| at > 0);
    if name.is_empty() || kind == Kind::Logon && !has_prefix() {
        return Err(Errno::EINVAL);
    }
    check_payload(kind, plen)?;
    let creds = thread.creds();
    if kind != Kind::Keyring {
        let same = |key: &&Arc<Key>| key.is_called(kind, &name);
        let links = ring.key.links();
        if let Some(key) = links.iter().find(same).filter(|key| check_state(key).is_ok()) {
            let known = KeyRef { key: key.clone(), is_possessed: ring.is_possessed };
            known.check(&creds, WRITE)?;
            key.set_payload(payload)?;
            key.with(|state| state.expires_ns = None);
            return Ok(key.serial as usize);
        }
    }
    let perm = if kind == Kind::Logon { 0x3d01_0000 } else { 0x3f01_0000 };
    let key = Key::new(kind, &name, payload, owner_of(&creds), perm)?;
    link(&ring.key, &key)?;
    Ok(key.serial as usize)
}

/// request_key(2). No program makes keys that are missing.
pub fn request_key(
    thread: &Arc<Thread>,
    kind: Va,
    description: Va,
    callout_info: Va,
    dest_keyring: i32,
) -> Result<usize> {
    let kind = kind_of(thread, kind)?;
    let name = read_description(thread, description)?;
    if callout_info != Va(0) {
        thread.mm().read_short_cstr(callout_info, 4096)?;
    }
    let ring = match dest_keyring {
        0 => None,
        id => Some(lookup(thread, id, true, WRITE)?),
    };
    let kind = kind.map_err(|_| Errno::ENOKEY)?;
    let creds = thread.creds();
    let is_it = |key: &Arc<Key>| key.is_called(kind, &name);
    let key = search_from(&creds, own_rings(&creds), true, is_it, true)?;
    if let Some(ring) = ring {
        let ring = ring_of(ring)?;
        KeyRef { key: key.clone(), is_possessed: true }.check(&creds, LINK)?;
        link(&ring.key, &key)?;
    }
    Ok(key.serial as usize)
}
