//! Files that are registered with a ring.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::RLIMIT_NOFILE;
use qlib::Va;

use crate::account;
use crate::errno::{Errno, Result};
use crate::fs::{Fd, OpenFile};
use crate::ipc::uring::{Ring, abi};
use crate::task::Thread;

/// The most of them.
const MOST_FILES: u32 = 1 << 20;

/// The file of a descriptor for the table; `None` for -1. EBADF, also for rings themselves, which
/// could keep each other alive for ever.
fn file_of(thread: &Thread, fd: Fd) -> Result<Option<Arc<OpenFile>>> {
    if fd == -1 {
        return Ok(None);
    }
    let file = thread.files().opened(fd)?;
    if file.downcast::<Ring>().is_some() {
        return Err(Errno::EBADF);
    }
    Ok(Some(file))
}

/// Registers the files of a list of descriptors; without one all places are empty. EBUSY, EMFILE.
pub(super) fn register_files(
    thread: &Arc<Thread>,
    ring: &Ring,
    arg: Va,
    count: u32,
) -> Result<usize> {
    if ring.files.lock().is_some() {
        return Err(Errno::EBUSY);
    }
    if count == 0 {
        return Err(Errno::EINVAL);
    }
    if count > MOST_FILES || u64::from(count) > thread.process.rlimit(RLIMIT_NOFILE) {
        return Err(Errno::EMFILE);
    }
    let mut list: Vec<Option<Arc<OpenFile>>> = account::vec_for(count as usize)?;
    if arg.0 == 0 {
        list.resize(count as usize, None);
    } else {
        for fd in thread.mm().read_array::<i32>(arg, count as usize)? {
            list.push(file_of(thread, fd)?);
        }
    }
    *ring.files.lock() = Some(list);
    Ok(0)
}

/// Replaces a file of the table. ENXIO, EINVAL; EBADF when there was none to be removed.
pub(super) fn set_file(ring: &Ring, index: u32, file: Option<Arc<OpenFile>>) -> Result {
    let old = {
        let is_removed = file.is_none();
        let mut files = ring.files.lock();
        let list = files.as_mut().ok_or(Errno::ENXIO)?;
        let place = list.get_mut(index as usize).ok_or(Errno::EINVAL)?;
        let old = core::mem::replace(place, file);
        if is_removed && old.is_none() {
            return Err(Errno::EBADF);
        }
        old
    };
    drop(old);
    Ok(())
}

/// Replaces files of the table from `first` on: how many.
pub(super) fn update_files(
    thread: &Arc<Thread>,
    ring: &Ring,
    first: u32,
    fds: Va,
    count: u32,
) -> Result<usize> {
    let places = ring.files.lock().as_ref().map(Vec::len).ok_or(Errno::ENXIO)?;
    let end = first.checked_add(count).ok_or(Errno::EOVERFLOW)?;
    if count == 0 || end as usize > places {
        return Err(Errno::EINVAL);
    }
    let fds: Vec<i32> = thread.mm().read_array(fds, count as usize)?;
    for (index, fd) in (first..).zip(&fds) {
        let replaced = match *fd {
            abi::FILES_SKIP => Ok(()),
            fd => file_of(thread, fd).and_then(|file| match set_file(ring, index, file) {
                // The place was empty before.
                Err(Errno::EBADF) => Ok(()),
                result => result,
            }),
        };
        match replaced {
            Err(error) if index == first => return Err(error),
            Err(_) => return Ok((index - first) as usize),
            Ok(()) => {}
        }
    }
    Ok(fds.len())
}
