//! User and group ids and capabilities (credentials(7), capabilities(7)). Programs give and get the
//! ids of their user namespace (user_namespaces(7)); those that it does not have are EINVAL.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    _LINUX_CAPABILITY_VERSION_1, _LINUX_CAPABILITY_VERSION_2, _LINUX_CAPABILITY_VERSION_3,
    CAP_SETGID, CAP_SETPCAP, CAP_SETUID,
};
use qlib::Va;

use super::ids::process_or_self;
use super::prctl::LAST_CAP;
use crate::abi::abi_struct;
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::task::Thread;

/// Further groups a process may have (NGROUPS_MAX).
const MAX_GROUPS: usize = 65536;
/// "Leave it as it is".
const SAME: u32 = u32::MAX;

/// getuid(2).
pub fn getuid(thread: &Arc<Thread>) -> Result<usize> {
    let creds = thread.creds();
    Ok(creds.uid_shown(creds.uid) as usize)
}

/// geteuid(2).
pub fn geteuid(thread: &Arc<Thread>) -> Result<usize> {
    let creds = thread.creds();
    Ok(creds.uid_shown(creds.euid) as usize)
}

/// getgid(2).
pub fn getgid(thread: &Arc<Thread>) -> Result<usize> {
    let creds = thread.creds();
    Ok(creds.gid_shown(creds.gid) as usize)
}

/// getegid(2).
pub fn getegid(thread: &Arc<Thread>) -> Result<usize> {
    let creds = thread.creds();
    Ok(creds.gid_shown(creds.egid) as usize)
}

/// The kernel id of a user that a program names, or [`SAME`].
fn user(creds: &Creds, uid: u32) -> Result<u32> {
    if uid == SAME { Ok(SAME) } else { creds.user.uid_of(uid) }
}

/// As [`user`], of a group.
fn group(creds: &Creds, gid: u32) -> Result<u32> {
    if gid == SAME { Ok(SAME) } else { creds.user.gid_of(gid) }
}

fn change(thread: &Thread, change: impl FnOnce(&mut Creds) -> Result) -> Result<usize> {
    let old = thread.creds();
    let mut new = Creds::clone(&old);
    change(&mut new)?;
    new.adjust_caps(&old);
    thread.set_creds(new);
    Ok(0)
}

/// setuid(2).
pub fn setuid(thread: &Arc<Thread>, uid: u32) -> Result<usize> {
    change(thread, |c| {
        let uid = c.user.uid_of(uid)?;
        if c.capable_here(CAP_SETUID) {
            (c.uid, c.suid) = (uid, uid);
        } else if uid != c.uid && uid != c.suid {
            return Err(Errno::EPERM);
        }
        (c.euid, c.fsuid) = (uid, uid);
        Ok(())
    })
}

/// setgid(2).
pub fn setgid(thread: &Arc<Thread>, gid: u32) -> Result<usize> {
    change(thread, |c| {
        let gid = c.user.gid_of(gid)?;
        if c.capable_here(CAP_SETGID) {
            (c.gid, c.sgid) = (gid, gid);
        } else if gid != c.gid && gid != c.sgid {
            return Err(Errno::EPERM);
        }
        (c.egid, c.fsgid) = (gid, gid);
        Ok(())
    })
}

/// setreuid(2).
pub fn setreuid(thread: &Arc<Thread>, ruid: u32, euid: u32) -> Result<usize> {
    change(thread, |c| {
        let (ruid, euid) = (user(c, ruid)?, user(c, euid)?);
        let all = c.capable_here(CAP_SETUID);
        let (old_uid, old_euid, old_suid) = (c.uid, c.euid, c.suid);
        if ruid != SAME {
            if !all && ruid != old_uid && ruid != old_euid {
                return Err(Errno::EPERM);
            }
            c.uid = ruid;
        }
        if euid != SAME {
            if !all && euid != old_uid && euid != old_euid && euid != old_suid {
                return Err(Errno::EPERM);
            }
            c.euid = euid;
        }
        if ruid != SAME || (euid != SAME && euid != old_uid) {
            c.suid = c.euid;
        }
        c.fsuid = c.euid;
        Ok(())
    })
}

/// setregid(2).
pub fn setregid(thread: &Arc<Thread>, rgid: u32, egid: u32) -> Result<usize> {
    change(thread, |c| {
        let (rgid, egid) = (group(c, rgid)?, group(c, egid)?);
        let all = c.capable_here(CAP_SETGID);
        let (old_gid, old_egid, old_sgid) = (c.gid, c.egid, c.sgid);
        if rgid != SAME {
            if !all && rgid != old_gid && rgid != old_egid {
                return Err(Errno::EPERM);
            }
            c.gid = rgid;
        }
        if egid != SAME {
            if !all && egid != old_gid && egid != old_egid && egid != old_sgid {
                return Err(Errno::EPERM);
            }
            c.egid = egid;
        }
        if rgid != SAME || (egid != SAME && egid != old_gid) {
            c.sgid = c.egid;
        }
        c.fsgid = c.egid;
        Ok(())
    })
}

/// Sets each of `ids` that is asked for, if privileged or to one of the present ones.
fn set_three(ids: [&mut u32; 3], wanted: [u32; 3], privileged: bool) -> Result {
    let present = [*ids[0], *ids[1], *ids[2]];
    if !privileged && wanted.iter().any(|w| *w != SAME && !present.contains(w)) {
        return Err(Errno::EPERM);
    }
    for (id, wanted) in ids.into_iter().zip(wanted) {
        if wanted != SAME {
            *id = wanted;
        }
    }
    Ok(())
}

/// setresuid(2).
pub fn setresuid(thread: &Arc<Thread>, ruid: u32, euid: u32, suid: u32) -> Result<usize> {
    change(thread, |c| {
        let all = c.capable_here(CAP_SETUID);
        let wanted = [user(c, ruid)?, user(c, euid)?, user(c, suid)?];
        set_three([&mut c.uid, &mut c.euid, &mut c.suid], wanted, all)?;
        c.fsuid = c.euid;
        Ok(())
    })
}

/// setresgid(2).
pub fn setresgid(thread: &Arc<Thread>, rgid: u32, egid: u32, sgid: u32) -> Result<usize> {
    change(thread, |c| {
        let all = c.capable_here(CAP_SETGID);
        let wanted = [group(c, rgid)?, group(c, egid)?, group(c, sgid)?];
        set_three([&mut c.gid, &mut c.egid, &mut c.sgid], wanted, all)?;
        c.fsgid = c.egid;
        Ok(())
    })
}

fn store_three(thread: &Thread, at: [Va; 3], ids: [u32; 3]) -> Result<usize> {
    let mm = thread.mm();
    for (at, id) in at.into_iter().zip(ids) {
        mm.write(at, &id)?;
    }
    Ok(0)
}

/// getresuid(2).
pub fn getresuid(thread: &Arc<Thread>, ruid: Va, euid: Va, suid: Va) -> Result<usize> {
    let c = thread.creds();
    store_three(thread, [ruid, euid, suid], [c.uid, c.euid, c.suid].map(|id| c.uid_shown(id)))
}

/// getresgid(2).
pub fn getresgid(thread: &Arc<Thread>, rgid: Va, egid: Va, sgid: Va) -> Result<usize> {
    let c = thread.creds();
    store_three(thread, [rgid, egid, sgid], [c.gid, c.egid, c.sgid].map(|id| c.gid_shown(id)))
}

/// setfsuid(2): the old value, whether or not it changed.
pub fn setfsuid(thread: &Arc<Thread>, fsuid: u32) -> Result<usize> {
    let creds = thread.creds();
    let old = creds.uid_shown(creds.fsuid);
    // Without the right to, nothing changes and nothing is said, as on Linux.
    let _ = change(thread, |c| {
        let fsuid = c.user.uid_of(fsuid)?;
        let own = [c.uid, c.euid, c.suid, c.fsuid].contains(&fsuid);
        if own || c.capable_here(CAP_SETUID) {
            c.fsuid = fsuid;
        }
        Ok(())
    });
    Ok(old as usize)
}

/// setfsgid(2).
pub fn setfsgid(thread: &Arc<Thread>, fsgid: u32) -> Result<usize> {
    let creds = thread.creds();
    let old = creds.gid_shown(creds.fsgid);
    let _ = change(thread, |c| {
        let fsgid = c.user.gid_of(fsgid)?;
        let own = [c.gid, c.egid, c.sgid, c.fsgid].contains(&fsgid);
        if own || c.capable_here(CAP_SETGID) {
            c.fsgid = fsgid;
        }
        Ok(())
    });
    Ok(old as usize)
}

/// getgroups(2).
pub fn getgroups(thread: &Arc<Thread>, size: i32, list: Va) -> Result<usize> {
    let size = usize::try_from(size).map_err(|_| Errno::EINVAL)?;
    let creds = thread.creds();
    if size != 0 {
        if size < creds.groups.len() {
            return Err(Errno::EINVAL);
        }
        let shown: Vec<u32> = creds.groups.iter().map(|gid| creds.gid_shown(*gid)).collect();
        thread.mm().write_bytes(list, zerocopy::IntoBytes::as_bytes(shown.as_slice()))?;
    }
    Ok(creds.groups.len())
}

/// setgroups(2).
pub fn setgroups(thread: &Arc<Thread>, size: i32, list: Va) -> Result<usize> {
    let creds = thread.creds();
    if !creds.capable_here(CAP_SETGID) || !creds.user.allows_setgroups() {
        return Err(Errno::EPERM);
    }
    let size = usize::try_from(size).ok().filter(|s| *s <= MAX_GROUPS).ok_or(Errno::EINVAL)?;
    let named = thread.mm().read_array::<u32>(list, size)?;
    let kernel = named.into_iter().map(|gid| creds.user.gid_of(gid));
    let mut groups = kernel.collect::<Result<Vec<u32>>>()?;
    groups.sort_unstable();
    change(thread, |c| {
        c.groups = groups;
        Ok(())
    })
}

abi_struct! {
    /// struct __user_cap_header_struct.
    pub struct CapHeader { pub version: u32, pub pid: i32, }
}
abi_struct! {
    /// struct __user_cap_data_struct.
    pub struct CapData { pub effective: u32, pub permitted: u32, pub inheritable: u32, }
}

/// Reads the header: the pid, and how many words a set has. With an unknown version our own is
/// stored in it, and EINVAL given.
fn read_header(thread: &Thread, at: Va) -> Result<(i32, usize)> {
    let mm = thread.mm();
    let header: CapHeader = mm.read(at)?;
    match header.version {
        _LINUX_CAPABILITY_VERSION_1 => Ok((header.pid, 1)),
        _LINUX_CAPABILITY_VERSION_2 | _LINUX_CAPABILITY_VERSION_3 => Ok((header.pid, 2)),
        _ => {
            mm.write(at, &_LINUX_CAPABILITY_VERSION_3)?;
            Err(Errno::EINVAL)
        }
    }
}

/// capget(2).
pub fn capget(thread: &Arc<Thread>, hdrp: Va, datap: Va) -> Result<usize> {
    let (pid, words) = match read_header(thread, hdrp) {
        // Asking only for the version is no error.
        Err(Errno::EINVAL) if datap.0 == 0 => return Ok(0),
        header => header?,
    };
    if pid < 0 {
        return Err(Errno::EINVAL);
    }
    let target = process_or_self(thread, pid)?;
    let creds =
        if pid == 0 { thread.creds() } else { target.first_thread().ok_or(Errno::ESRCH)?.creds() };
    let data = [0, 32].map(|shift| CapData {
        effective: (creds.cap_effective >> shift) as u32,
        permitted: (creds.cap_permitted >> shift) as u32,
        inheritable: (creds.cap_inheritable >> shift) as u32,
    });
    thread.mm().write_bytes(datap, zerocopy::IntoBytes::as_bytes(&data[..words]))?;
    Ok(0)
}

/// capset(2).
pub fn capset(thread: &Arc<Thread>, hdrp: Va, datap: Va) -> Result<usize> {
    let (pid, words) = read_header(thread, hdrp)?;
    let is_own = |own| pid == thread.number_of(own) as i32;
    if pid != 0 && !is_own(thread.tid()) && !is_own(thread.process.pid) {
        return Err(Errno::EPERM);
    }
    let data = thread.mm().read_array::<CapData>(datap, words)?;
    let join = |word: fn(&CapData) -> u32| {
        let all = data.iter().rev().fold(0u64, |set, d| set << 32 | u64::from(word(d)));
        all & ((1 << (LAST_CAP + 1)) - 1)
    };
    let (effective, permitted, inheritable) =
        (join(|d| d.effective), join(|d| d.permitted), join(|d| d.inheritable));
    let mut creds = Creds::clone(&thread.creds());
    let may_inherit = creds.cap_inheritable | creds.cap_permitted;
    if inheritable & !may_inherit != 0 && !creds.capable_here(CAP_SETPCAP)
        || inheritable & !(creds.cap_inheritable | creds.cap_bounding) != 0
        || permitted & !creds.cap_permitted != 0
        || effective & !permitted != 0
    {
        return Err(Errno::EPERM);
    }
    creds.cap_effective = effective;
    creds.cap_permitted = permitted;
    creds.cap_inheritable = inheritable;
    creds.cap_ambient &= permitted & inheritable;
    thread.set_creds(creds);
    Ok(0)
}
