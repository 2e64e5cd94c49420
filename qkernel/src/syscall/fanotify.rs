//! fanotify_init(2), fanotify_mark(2). The rules are those of Linux 6.1.

use alloc::sync::Arc;

use linux_raw_sys::general::{
    AT_SYMLINK_NOFOLLOW, CAP_SYS_ADMIN, O_ACCMODE, O_APPEND, O_CLOEXEC, O_DSYNC, O_LARGEFILE,
    O_NOATIME, O_NONBLOCK, O_RDWR, O_SYNC,
};
use qlib::Va;

use super::install;
use super::open::path_at;
use crate::errno::{Errno, Result};
use crate::fs::{self, Fd, Location, OpenFile, perm};
use crate::ipc::fanotify::Group;
use crate::ipc::fanotify::abi::*;
use crate::task::Thread;

/// The O_* flags that descriptors of events can have.
const EVENT_F_FLAGS: u32 =
    O_ACCMODE | O_APPEND | O_NONBLOCK | O_SYNC | O_DSYNC | O_CLOEXEC | O_LARGEFILE | O_NOATIME;

/// fanotify_init(2).
pub fn fanotify_init(thread: &Arc<Thread>, flags: u32, event_f_flags: u32) -> Result<usize> {
    let is_unprivileged = !thread.creds().capable(CAP_SYS_ADMIN);
    if is_unprivileged && (flags & ADMIN != 0 || flags & FID == 0) {
        return Err(Errno::EPERM);
    }
    let has = |flag: u32| flags & flag == flag;
    let (tid, pidfd) = (has(FAN_REPORT_TID), has(FAN_REPORT_PIDFD));
    if flags & !INIT != 0
        || tid && pidfd
        || event_f_flags & !EVENT_F_FLAGS != 0
        || event_f_flags & O_ACCMODE == O_ACCMODE
        || flags & FID != 0 && flags & CLASS != 0
        || has(FAN_REPORT_NAME) && !has(FAN_REPORT_DIR_FID)
        || has(FAN_REPORT_TARGET_FID) && !has(FAN_REPORT_NAME | FAN_REPORT_FID)
        || flags & CLASS == CLASS
    {
        return Err(Errno::EINVAL);
    }
    let group = Group::new(thread.creds().uid, flags, event_f_flags, is_unprivileged)?;
    let status = O_RDWR | if has(FAN_NONBLOCK) { O_NONBLOCK } else { 0 };
    install::one(thread, OpenFile::new(group, status), has(FAN_CLOEXEC))
}

/// What a mark is to be on: EACCES if it may not be read.
fn marked(thread: &Arc<Thread>, dirfd: Fd, path: Va, flags: u32) -> Result<Location> {
    let wants_dir = flags & FAN_MARK_ONLYDIR != 0;
    let place = if path.0 == 0 {
        thread.files().opened(dirfd)?.path.clone().ok_or(Errno::EINVAL)?
    } else {
        let path = path_at(thread, path)?;
        let at_flags = if flags & FAN_MARK_DONT_FOLLOW != 0 { AT_SYMLINK_NOFOLLOW } else { 0 };
        fs::lookup(thread, dirfd, &path, at_flags)?
    };
    if wants_dir && !place.inode().is_dir() {
        return Err(Errno::ENOTDIR);
    }
    perm::check(&thread.creds(), &place.attributes()?, perm::READ)?;
    Ok(place)
}

/// What is wrong with the numbers alone.
fn check_numbers(flags: u32, mask: u64) -> Result<u32> {
    let mask = u32::try_from(mask).map_err(|_| Errno::EINVAL)?;
    let is_flush = flags & FAN_MARK_FLUSH != 0;
    if flags & !MARK != 0
        || flags & MARK_TYPE == MARK_TYPE
        || !(flags & MARK_COMMAND).is_power_of_two()
        || is_flush && flags & !(MARK_TYPE | FAN_MARK_FLUSH) != 0
        || !is_flush && mask == 0
        || mask & !(EVENTS | EVENT_FLAGS) != 0
        || flags & MARK_IGNORES == MARK_IGNORES
    {
        return Err(Errno::EINVAL);
    }
    Ok(mask)
}

/// What is wrong for this group.
fn check_for(thread: &Arc<Thread>, group: &Group, flags: u32, mask: u32) -> Result {
    let (kind, fid) = (flags & MARK_TYPE, group.flags() & FID);
    let is_free = thread.creds().capable(CAP_SYS_ADMIN) && !group.is_unprivileged();
    if !is_free && kind != 0 {
        return Err(Errno::EPERM);
    }
    if mask & PERM != 0 && group.flags() & CLASS == 0
        || flags & FAN_MARK_EVICTABLE != 0 && kind != 0
        || mask & !(OF_OPEN | PERM | EVENT_FLAGS) != 0 && (fid == 0 || kind == FAN_MARK_MOUNT)
        || mask & FAN_RENAME != 0 && fid & FAN_REPORT_NAME == 0
    {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// What is wrong with this place for a mark of a group.
fn check_place(group: &Group, place: &Location, flags: u32, mask: u32) -> Result {
    const OF_DIRECTORIES: u32 = DIRENT | EVENT_FLAGS;
    let (kind, is_dir) = (flags & MARK_TYPE, place.inode().is_dir());
    if flags & FAN_MARK_ADD != 0 {
        if mask & PERM != 0 && matches!(place.dentry.fs.type_name(), "proc" | "sysfs")
            || kind != 0 && place.mount.is_hidden()
        {
            return Err(Errno::EINVAL);
        }
        let is_strict = group.flags() & FAN_REPORT_TARGET_FID != 0
            || mask & FAN_RENAME != 0
            || flags & FAN_MARK_IGNORE != 0;
        if is_strict && kind == 0 && !is_dir && mask & OF_DIRECTORIES != 0 {
            return Err(Errno::ENOTDIR);
        }
    }
    if group.flags() & FID != 0 && !place.dentry.fs.has_handles() {
        return Err(Errno::EOPNOTSUPP);
    }
    let is_lasting = flags & FAN_MARK_IGNORED_SURV_MODIFY != 0;
    if flags & (FAN_MARK_ADD | FAN_MARK_IGNORE) == FAN_MARK_ADD | FAN_MARK_IGNORE
        && (kind != 0 || is_dir)
        && !is_lasting
    {
        return Err(if kind != 0 { Errno::EINVAL } else { Errno::EISDIR });
    }
    Ok(())
}

/// fanotify_mark(2).
pub fn fanotify_mark(
    thread: &Arc<Thread>,
    fanotify_fd: Fd,
    flags: u32,
    mask: u64,
    dirfd: Fd,
    pathname: Va,
) -> Result<usize> {
    let mut mask = check_numbers(flags, mask)?;
    // What of a mark does not count when it is asked whether anything is left of it.
    let mut uncounted = 0;
    if flags & MARK_IGNORES == FAN_MARK_IGNORED_MASK {
        mask &= !EVENT_FLAGS;
        uncounted = EVENT_FLAGS;
    }
    let file = thread.files().opened(fanotify_fd)?;
    let group = file.downcast::<Group>().ok_or(Errno::EINVAL)?;
    check_for(thread, group, flags, mask)?;
    let kind = flags & MARK_TYPE;
    if flags & FAN_MARK_FLUSH != 0 {
        group.flush_marks(kind);
        return Ok(0);
    }
    let place = marked(thread, dirfd, pathname, flags)?;
    check_place(group, &place, flags, mask)?;
    if kind != 0 || !place.inode().is_dir() {
        mask &= !FAN_EVENT_ON_CHILD;
        uncounted |= FAN_EVENT_ON_CHILD;
    }
    match flags & FAN_MARK_ADD {
        0 => group.remove_mark(&place, mask, flags, uncounted)?,
        _ => group.add_mark(&place, mask, flags)?,
    }
    Ok(0)
}
