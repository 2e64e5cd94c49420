//! execve(2) and execveat(2).

use alloc::sync::Arc;

use linux_raw_sys::general::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};
use qlib::Va;

use crate::errno::{Errno, Result};
use crate::fs::Fd;
use crate::task::outcome::RegistersReplaced;
use crate::task::{Thread, exec};

/// execve(2).
pub async fn execve(
    thread: &Arc<Thread>,
    pathname: Va,
    argv: Va,
    envp: Va,
) -> Result<RegistersReplaced> {
    exec::execve(thread, AT_FDCWD, pathname, argv, envp, 0).await
}

/// execveat(2).
pub async fn execveat(
    thread: &Arc<Thread>,
    dirfd: Fd,
    pathname: Va,
    argv: Va,
    envp: Va,
    flags: u32,
) -> Result<RegistersReplaced> {
    if flags & !(AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0 {
        return Err(Errno::EINVAL);
    }
    exec::execve(thread, dirfd, pathname, argv, envp, flags).await
}
