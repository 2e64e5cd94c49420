//! cachestat(2) (mm/filemap.c of Linux, since 6.5): what of a file is in
//! memory.

use alloc::sync::Arc;

use qlib::{PAGE_SHIFT, Va};

use crate::abi::abi_struct;
use crate::errno::{Errno, Result};
use crate::fs::{Fd, OpenFile, perm};
use crate::task::Thread;

abi_struct! {
    /// struct cachestat_range.
    pub struct CacheStatRange { pub off: u64, pub len: u64, }
}
abi_struct! {
    /// struct cachestat, in pages.
    pub struct CacheStat {
        pub cached: u64, pub dirty: u64, pub writeback: u64, pub evicted: u64,
        pub recently_evicted: u64,
    }
}

/// EPERM for who may not write to the file: since Linux 6.13 it would tell too much of others.
fn check_may_know(thread: &Thread, file: &OpenFile) -> Result {
    if file.is_writable() {
        return Ok(());
    }
    let (creds, attributes) = (thread.creds(), file.attributes()?);
    let is_allowed = perm::check_owner(&creds, &attributes).is_ok()
        || perm::check(&creds, &attributes, perm::WRITE).is_ok();
    if is_allowed { Ok(()) } else { Err(Errno::EPERM) }
}

/// cachestat(2).
pub fn cachestat(thread: &Arc<Thread>, fd: Fd, range: Va, told: Va, flags: u32) -> Result<usize> {
    let file = thread.files().opened(fd)?;
    let range: CacheStatRange = thread.mm().read(range)?;
    check_may_know(thread, &file)?;
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let first = range.off >> PAGE_SHIFT;
    // As on Linux, a sum that is too large counts from 0 again.
    let last = match range.len {
        0 => u64::MAX,
        len => range.off.wrapping_add(len).wrapping_sub(1) >> PAGE_SHIFT,
    };
    let mut stat = CacheStat::default();
    match file.ops.mapping(&file, false) {
        // Its pages are never behind any other storage, so none is dirty.
        Ok(mapping) => {
            (stat.cached, stat.evicted) =
                mapping.residency(first, last).ok_or(Errno::EOPNOTSUPP)?;
        }
        // It has no pages: a pipe, a socket, a directory.
        Err(Errno::ENODEV) => {}
        Err(error) => return Err(error),
    }
    thread.mm().write(told, &stat)?;
    Ok(0)
}
