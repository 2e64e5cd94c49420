//! Writing files to the disk: fsync(2), fdatasync(2), sync(2), syncfs(2), sync_file_range(2).

use alloc::sync::Arc;

use linux_raw_sys::general::O_PATH;

use crate::errno::{Errno, Result};
use crate::fs::disk::finished;
use crate::fs::{self, Fd};
use crate::task::Thread;

async fn sync_file(thread: &Arc<Thread>, fd: Fd, data_only: bool) -> Result<usize> {
    let file = thread.files().get(fd)?;
    if file.flags() & O_PATH != 0 {
        return Err(Errno::EBADF);
    }
    finished(thread, file.ops.sync(&file, data_only)?).await?;
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
    let file = thread.files().get(fd)?;
    if file.flags() & O_PATH != 0 {
        return Err(Errno::EBADF);
    }
    finished(thread, file.ops.sync_fs(&file)?).await?;
    Ok(0)
}

/// sync_file_range(2): as fdatasync(2), which does at least that much.
pub async fn sync_file_range(
    thread: &Arc<Thread>,
    fd: Fd,
    offset: i64,
    len: i64,
    flags: u32,
) -> Result<usize> {
    if offset < 0 || len < 0 || flags & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    let file = thread.files().get(fd)?;
    if !file.ops.is_seekable() {
        return Err(Errno::ESPIPE);
    }
    sync_file(thread, fd, true).await
}
