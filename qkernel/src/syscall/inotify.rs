//! inotify(7).

use alloc::sync::Arc;

use linux_raw_sys::general::{
    AT_FDCWD, AT_SYMLINK_NOFOLLOW, IN_ALL_EVENTS, IN_CLOEXEC, IN_DONT_FOLLOW, IN_MASK_ADD,
    IN_MASK_CREATE, IN_NONBLOCK, IN_ONLYDIR, O_NONBLOCK, O_RDONLY,
};
use qlib::Va;

use super::open::{install, path_at};
use crate::errno::{Errno, Result};
use crate::fs::inotify::{ADD_FLAGS, Inotify};
use crate::fs::{self, Fd, OpenFile, perm};
use crate::task::Thread;

/// inotify_init(2).
pub fn inotify_init(thread: &Arc<Thread>) -> Result<usize> {
    inotify_init1(thread, 0)
}

/// inotify_init1(2).
pub fn inotify_init1(thread: &Arc<Thread>, flags: u32) -> Result<usize> {
    if flags & !(IN_CLOEXEC | IN_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let status = O_RDONLY | if flags & IN_NONBLOCK != 0 { O_NONBLOCK } else { 0 };
    install(
        thread,
        OpenFile::new(Inotify::new(thread.creds().uid)?, status),
        flags & IN_CLOEXEC != 0,
    )
}

/// inotify_add_watch(2).
pub fn inotify_add_watch(thread: &Arc<Thread>, fd: Fd, path: Va, mask: u32) -> Result<usize> {
    let both = IN_MASK_ADD | IN_MASK_CREATE;
    if mask & IN_ALL_EVENTS == 0 || mask & !ADD_FLAGS != 0 || mask & both == both {
        return Err(Errno::EINVAL);
    }
    let file = thread.files().get(fd)?;
    let instance = file.downcast::<Inotify>().ok_or(Errno::EINVAL)?;
    let path = path_at(thread, path)?;
    let at_flags = if mask & IN_DONT_FOLLOW != 0 { AT_SYMLINK_NOFOLLOW } else { 0 };
    let place = fs::lookup(thread, AT_FDCWD, &path, at_flags)?;
    if mask & IN_ONLYDIR != 0 && !place.inode().is_dir() {
        return Err(Errno::ENOTDIR);
    }
    perm::check(&thread.creds(), &place.attributes()?, perm::READ)?;
    instance.add(&place, mask).map(|wd| wd as usize)
}

/// inotify_rm_watch(2).
pub fn inotify_rm_watch(thread: &Arc<Thread>, fd: Fd, wd: i32) -> Result<usize> {
    let file = thread.files().get(fd)?;
    file.downcast::<Inotify>().ok_or(Errno::EINVAL)?.remove(wd)?;
    Ok(0)
}
