//! Writing files to the disk: fsync(2), fdatasync(2), sync(2), syncfs(2), sync_file_range(2).

use alloc::sync::Arc;

use crate::errno::{Errno, Result};
use crate::fs::disk::finished;
use crate::fs::{self, Fd, OpenFile};
use crate::task::Thread;

async fn sync_file(thread: &Arc<Thread>, fd: Fd, data_only: bool) -> Result<usize> {
    sync_open(thread, &*thread.files().opened(fd)?, data_only).await
}

/// fsync(2), or fdatasync(2), of an open file.
pub(super) async fn sync_open(
    thread: &Arc<Thread>,
    file: &OpenFile,
    data_only: bool,
) -> Result<usize> {
    finished(thread, file.ops.sync(file, data_only)?).await?;
    Ok(0)
}

/// fsync(2).
pub async fn fsync(thread: &Arc<Thread>, fd: Fd) -> Result<usize> {
    sync_file(thread, fd, false).await
}

/// fdatasync(2).
pub async fn fdatasync(thread: &Arc<Thread>, fd: Fd) -> Result<usize> {
    sync_file(thread, fd, true).await
}

/// sync(2): every mounted file system.
pub async fn sync(thread: &Arc<Thread>) -> Result<usize> {
    for mounted in fs::mount::file_systems() {
        let Ok(begun) = mounted.sync() else { continue };
        // As on Linux, sync(2) reports no errors.
        if let Err(Errno::ERESTARTSYS) = finished(thread, begun).await {
            return Err(Errno::ERESTARTSYS);
        }
    }
    Ok(0)
}

/// syncfs(2).
pub async fn syncfs(thread: &Arc<Thread>, fd: Fd) -> Result<usize> {
    let file = thread.files().opened(fd)?;
    finished(thread, file.ops.sync_fs(&file)?).await?;
    Ok(0)
}

/// sync_file_range(2): as the file system that it lies in does it; without flags it only looks at
/// its arguments.
pub async fn sync_file_range(
    thread: &Arc<Thread>,
    fd: Fd,
    offset: i64,
    len: i64,
    flags: u32,
) -> Result<usize> {
    sync_range(thread, &*thread.files().opened(fd)?, (offset, len), flags).await
}

/// The same of an open file.
pub(super) async fn sync_range(
    thread: &Arc<Thread>,
    file: &OpenFile,
    (offset, len): (i64, i64),
    flags: u32,
) -> Result<usize> {
    if offset < 0 || len < 0 || offset.checked_add(len).is_none() || flags & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    if !file.ops.is_seekable() {
        return Err(Errno::ESPIPE);
    }
    if flags != 0 {
        let begun = file.ops.sync_range(file, offset as u64, len as u64, flags)?;
        finished(thread, begun).await?;
    }
    Ok(0)
}
