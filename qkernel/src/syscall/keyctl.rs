//! keyctl(2).

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::CAP_SYS_ADMIN;
use qlib::Va;

use super::keys::{
    KeyRef, LINK, MOST_GIVEN, READ, SEARCH, SETATTR, VIEW, WRITE, check_payload, check_state,
    kind_of, link, lookup, lookup_any, new_ring, read_description, ring_of, search, set_session,
};
use crate::creds::keys::{Key, Kind};
use crate::errno::{Errno, Result};
use crate::task::Thread;
use crate::time::realtime_ns;

/// KEYCTL_MOVE_EXCL.
const MOVE_EXCL: u64 = 1;
/// KEYCTL_CAPS0_CAPABILITIES, _INVALIDATE and KEYCTL_CAPS0_MOVE of linux/keyctl.h.
const CAPABILITIES: [u8; 2] = [0x01 | 0x20 | 0x80, 0];

/// The operations (linux/keyctl.h), KEYCTL_* there.
mod op {
    pub const GET_KEYRING_ID: i32 = 0;
    pub const JOIN_SESSION_KEYRING: i32 = 1;
    pub const UPDATE: i32 = 2;
    pub const REVOKE: i32 = 3;
    pub const CHOWN: i32 = 4;
    pub const SETPERM: i32 = 5;
    pub const DESCRIBE: i32 = 6;
    pub const CLEAR: i32 = 7;
    pub const LINK: i32 = 8;
    pub const UNLINK: i32 = 9;
    pub const SEARCH: i32 = 10;
    pub const READ: i32 = 11;
    pub const SET_TIMEOUT: i32 = 15;
    pub const INVALIDATE: i32 = 21;
    pub const MOVE: i32 = 30;
    pub const CAPABILITIES: i32 = 31;
}

/// keyctl(2).
pub fn keyctl(
    thread: &Arc<Thread>,
    operation: i32,
    arg2: u64,
    arg3: u64,
    arg4: u64,
    arg5: u64,
) -> Result<usize> {
    let id = arg2 as i32;
    match operation {
        op::GET_KEYRING_ID => {
            lookup(thread, id, arg3 as i32 != 0, SEARCH).map(|it| it.key.serial as usize)
        }
        op::JOIN_SESSION_KEYRING => join_session(thread, Va(arg2)),
        op::UPDATE => update(thread, id, Va(arg3), arg4 as usize),
        op::REVOKE => revoke(thread, id),
        op::CHOWN => chown(thread, id, arg3 as u32, arg4 as u32),
        op::SETPERM => set_perm(thread, id, arg3 as u32),
        op::DESCRIBE => describe(thread, id, Va(arg3), arg4 as usize),
        op::CLEAR => clear(thread, id),
        op::LINK => {
            let ring = ring_of(lookup(thread, arg3 as i32, true, WRITE)?);
            let key = lookup(thread, id, true, LINK)?.key;
            link(&ring?.key, &key).map(|()| 0)
        }
        op::UNLINK => unlink(thread, id, arg3 as i32),
        op::SEARCH => find(thread, id, Va(arg3), Va(arg4), arg5 as i32),
        op::READ => read(thread, id, Va(arg3), arg4 as usize),
        op::SET_TIMEOUT => set_timeout(thread, id, arg3 as u32),
        op::INVALIDATE => invalidate(thread, id),
        op::MOVE => move_key(thread, id, (arg3 as i32, arg4 as i32), arg5),
        op::CAPABILITIES => capabilities(thread, Va(arg2), arg3 as usize),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// KEYCTL_JOIN_SESSION_KEYRING.
fn join_session(thread: &Thread, name: Va) -> Result<usize> {
    let creds = thread.creds();
    let ring = match name {
        Va(0) => new_ring(&creds, b"_ses", 0x3f03_0000)?,
        name => {
            let name = read_description(thread, name)?;
            match name.first() {
                None => return Err(Errno::EINVAL),
                Some(b'.') => return Err(Errno::EPERM),
                _ => {}
            }
            let may_join = |key: &Arc<Key>| {
                let it = KeyRef { key: key.clone(), is_possessed: false };
                check_state(key).is_ok() && it.check(&creds, SEARCH).is_ok()
            };
            match Key::rings_named(&name, creds.user.number).find(may_join) {
                Some(ring) => ring,
                None => new_ring(&creds, &name, 0x3f13_0000)?,
            }
        }
    };
    if creds.rings.session.as_ref() == Some(&ring) {
        return Ok(0);
    }
    set_session(thread, &ring);
    Ok(ring.serial as usize)
}

/// KEYCTL_UPDATE.
fn update(thread: &Thread, id: i32, payload: Va, len: usize) -> Result<usize> {
    if len > 4096 {
        // As Linux: a page, which is less than add_key(2) takes.
        return Err(Errno::EINVAL);
    }
    let payload = thread.mm().read_array(payload, len)?;
    let key = lookup(thread, id, false, WRITE)?.key;
    if key.kind == Kind::Keyring {
        return Err(Errno::EOPNOTSUPP);
    }
    check_payload(key.kind, len)?;
    key.set_payload(payload)?;
    key.with(|state| state.expires_ns = None);
    Ok(0)
}

/// Lets go of what a key holds.
fn empty(key: &Key) {
    // Less is never too much.
    let _ = key.set_payload(Vec::new());
    key.keep_links(|_| false);
}

/// KEYCTL_REVOKE.
fn revoke(thread: &Thread, id: i32) -> Result<usize> {
    let key = match lookup(thread, id, false, WRITE) {
        Err(Errno::EACCES) => lookup(thread, id, false, SETATTR)?,
        found => found?,
    };
    key.key.with(|state| state.is_revoked = true);
    empty(&key.key);
    Ok(0)
}

/// KEYCTL_INVALIDATE.
fn invalidate(thread: &Thread, id: i32) -> Result<usize> {
    let it = lookup(thread, id, false, SEARCH)?;
    it.key.with(|state| state.is_invalid = true);
    empty(&it.key);
    Ok(0)
}

/// True if the thread may administrate what others own.
fn is_admin(thread: &Thread) -> bool {
    thread.creds().capable(CAP_SYS_ADMIN)
}

/// KEYCTL_CHOWN.
fn chown(thread: &Thread, id: i32, uid: u32, gid: u32) -> Result<usize> {
    let creds = thread.creds();
    let uid = if uid == u32::MAX { None } else { Some(creds.user.uid_of(uid)?) };
    let gid = if gid == u32::MAX { None } else { Some(creds.user.gid_of(gid)?) };
    if uid.is_none() && gid.is_none() {
        return Ok(0);
    }
    let found = lookup(thread, id, true, SETATTR)?;
    let key = found.key;
    let (old_uid, old_gid) = key.with(|state| (state.uid, state.gid));
    let is_others = uid.is_some_and(|uid| uid != old_uid)
        || gid.is_some_and(|gid| gid != old_gid && !creds.in_group(gid));
    if is_others && !is_admin(thread) {
        return Err(Errno::EACCES);
    }
    if let Some(uid) = uid {
        key.set_owner(uid)?;
    }
    if let Some(gid) = gid {
        key.with(|state| state.gid = gid);
    }
    Ok(0)
}

/// KEYCTL_SETPERM.
fn set_perm(thread: &Thread, id: i32, perm: u32) -> Result<usize> {
    if perm & !0x3f3f_3f3f != 0 {
        return Err(Errno::EINVAL);
    }
    let creds = thread.creds();
    let found = lookup(thread, id, true, SETATTR)?;
    if !is_admin(thread) && found.key.with(|state| state.uid) != creds.fsuid {
        return Err(Errno::EACCES);
    }
    found.key.with(|state| state.perm = perm);
    Ok(0)
}

/// Writes all of it if there is room: how much it is.
fn give(thread: &Thread, bytes: &[u8], buffer: Va, len: usize) -> Result<usize> {
    if buffer != Va(0) && len >= bytes.len() {
        thread.mm().write_bytes(buffer, bytes)?;
    }
    Ok(bytes.len())
}

/// KEYCTL_DESCRIBE.
fn describe(thread: &Thread, id: i32, buffer: Va, len: usize) -> Result<usize> {
    let creds = thread.creds();
    let found = lookup(thread, id, false, VIEW)?;
    let key = found.key;
    let kind = match key.kind {
        Kind::Keyring => "keyring",
        Kind::User => "user",
        Kind::Logon => "logon",
    };
    let (uid, gid, perm) = key.with(|state| (state.uid, state.gid, state.perm));
    let (uid, gid) = (creds.uid_shown(uid), creds.gid_shown(gid));
    let mut text = format!("{kind};{uid};{gid};{perm:08x};").into_bytes();
    text.extend_from_slice(&key.description);
    text.push(0);
    give(thread, &text, buffer, len)
}

/// KEYCTL_CLEAR.
fn clear(thread: &Thread, id: i32) -> Result<usize> {
    let ring = ring_of(lookup(thread, id, true, WRITE)?)?;
    ring.key.keep_links(|_| false);
    Ok(0)
}

/// KEYCTL_UNLINK.
fn unlink(thread: &Thread, id: i32, ring: i32) -> Result<usize> {
    let ring = lookup(thread, ring, false, WRITE)?;
    let key = lookup_any(thread, id, false)?.key;
    let ring = ring_of(ring)?;
    match ring.key.keep_links(|other| *other != *key) {
        true => Ok(0),
        false => Err(Errno::ENOENT),
    }
}

/// KEYCTL_SEARCH.
fn find(thread: &Thread, ring: i32, kind: Va, name: Va, destination: i32) -> Result<usize> {
    let kind = kind_of(thread, kind)?;
    let name = read_description(thread, name)?;
    let ring = lookup(thread, ring, false, SEARCH)?;
    let destination = match destination {
        0 => None,
        id => Some(lookup(thread, id, true, WRITE)?),
    };
    let kind = kind.map_err(|_| Errno::ENOKEY)?;
    let creds = thread.creds();
    let ring = ring_of(ring)?;
    let key = search(&creds, &ring, kind, &name)?;
    if let Some(destination) = destination {
        KeyRef { key: key.clone(), is_possessed: ring.is_possessed }.check(&creds, LINK)?;
        link(&ring_of(destination)?.key, &key)?;
    }
    Ok(key.serial as usize)
}

/// KEYCTL_READ: what can be searched for is readable for who possesses it.
fn read(thread: &Thread, id: i32, buffer: Va, len: usize) -> Result<usize> {
    let found = lookup_any(thread, id, false).map_err(|_| Errno::ENOKEY)?;
    check_state(&found.key)?;
    found.check(&thread.creds(), READ).or_else(|e| match found.is_possessed {
        true => Ok(()),
        false => Err(e),
    })?;
    match found.key.kind {
        Kind::Logon => Err(Errno::EOPNOTSUPP),
        Kind::User => give(thread, &found.key.payload()?, buffer, len),
        Kind::Keyring => {
            let links = found.key.links();
            let bytes: Vec<u8> = links.iter().flat_map(|key| key.serial.to_le_bytes()).collect();
            give(thread, &bytes, buffer, len)
        }
    }
}

/// KEYCTL_SET_TIMEOUT, in seconds from now; 0: none.
fn set_timeout(thread: &Thread, id: i32, timeout_s: u32) -> Result<usize> {
    let found = lookup(thread, id, true, SETATTR)?;
    let end = realtime_ns().saturating_add(u64::from(timeout_s) * 1_000_000_000);
    found.key.with(|state| state.expires_ns = Some(end).filter(|_| timeout_s > 0));
    Ok(0)
}

/// KEYCTL_MOVE.
fn move_key(thread: &Thread, id: i32, (from, to): (i32, i32), flags: u64) -> Result<usize> {
    if flags as u32 as u64 & !MOVE_EXCL != 0 {
        return Err(Errno::EINVAL);
    }
    let key = lookup(thread, id, true, LINK)?.key;
    let from = lookup(thread, from, false, WRITE)?;
    let to = lookup(thread, to, true, WRITE)?;
    let (from, to) = (ring_of(from)?.key, ring_of(to)?.key);
    if from == to {
        return Ok(0);
    }
    if !from.links().contains(&key) {
        return Err(Errno::ENOENT);
    }
    let same = |other: &Arc<Key>| other.is_called(key.kind, &key.description);
    if flags & MOVE_EXCL != 0 && to.links().iter().any(same) {
        return Err(Errno::EEXIST);
    }
    link(&to, &key)?;
    from.keep_links(|other| *other != *key);
    Ok(0)
}

/// KEYCTL_CAPABILITIES.
fn capabilities(thread: &Thread, buffer: Va, len: usize) -> Result<usize> {
    let mm = thread.mm();
    let known = len.min(CAPABILITIES.len());
    if len > MOST_GIVEN {
        return Err(Errno::EINVAL);
    }
    mm.write_bytes(buffer, &CAPABILITIES[..known])?;
    if len > known {
        mm.write_zeros(Va(buffer.0.wrapping_add(known as u64)), len - known)?;
    }
    Ok(CAPABILITIES.len())
}
