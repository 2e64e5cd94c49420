//! open(2), openat(2), openat2(2), creat(2), close(2), close_range(2).

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    AT_FDCWD, O_CLOEXEC, O_CREAT, O_NONBLOCK, O_TMPFILE, O_TRUNC, O_WRONLY, RESOLVE_BENEATH,
    RESOLVE_CACHED, RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV,
    RLIMIT_NOFILE,
};
use qlib::Va;

use crate::abi::abi_struct;
use crate::errno::{Errno, Result};
use crate::fs::ask::Inquiry;
use crate::fs::open::OpenHow;
use crate::fs::walk::{PATH_MAX, WalkFlags};
use crate::fs::{self, Fd, OpenFile, lease};
use crate::ipc::pipe;
use crate::task::Thread;

/// CLOSE_RANGE_UNSHARE and CLOSE_RANGE_CLOEXEC (linux/close_range.h).
const CLOSE_RANGE_UNSHARE: u32 = 2;
const CLOSE_RANGE_CLOEXEC: u32 = 4;

abi_struct! {
    /// struct open_how.
    pub struct UserOpenHow { pub flags: u64, pub mode: u64, pub resolve: u64, }
}

/// A path argument.
pub(super) fn path_at(thread: &Arc<Thread>, path: Va) -> Result<Vec<u8>> {
    thread.mm().read_cstr(path, PATH_MAX)
}

/// A path argument for which a null pointer means an empty path, if `or_null`.
pub(super) fn path_or_null(thread: &Arc<Thread>, path: Va, or_null: bool) -> Result<Vec<u8>> {
    if or_null && path.0 == 0 { Ok(Vec::new()) } else { path_at(thread, path) }
}

/// Gives `file` the lowest free descriptor.
pub fn install(thread: &Arc<Thread>, file: Arc<OpenFile>, close_on_exec: bool) -> Result<usize> {
    let limit = thread.process.rlimit(RLIMIT_NOFILE);
    thread.files().insert(file, close_on_exec, 0, limit).map(|fd| fd as usize)
}

async fn open_how(thread: &Arc<Thread>, dirfd: Fd, path: Va, how: OpenHow) -> Result<usize> {
    let file = opened(thread, dirfd, path, &how).await?;
    install(thread, file, how.flags & O_CLOEXEC != 0)
}

/// Opens a file, and waits as opening it may have to.
pub(super) async fn opened(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: Va,
    how: &OpenHow,
) -> Result<Arc<OpenFile>> {
    let path = path_at(thread, path)?;
    let inquiry = Inquiry::begin();
    let open = || inquiry.attempt(|| fs::open(thread, dirfd, &path, how));
    let file = loop {
        match lease::when_broken(thread, how.flags & O_NONBLOCK != 0, open).await {
            Err(Errno::EASKED) => inquiry.answered(thread).await?,
            opened => break opened?,
        }
    };
    inquiry.finish(thread).await?;
    pipe::finish_open(thread, &file).await?;
    Ok(file)
}

/// How openat(2) opens with these flags.
pub(super) fn plain_how(flags: u32, mode: u32) -> OpenHow {
    let makes = flags & O_CREAT != 0 || flags & O_TMPFILE == O_TMPFILE;
    let mode = if makes { mode & 0o7777 } else { 0 };
    OpenHow { flags, mode, resolve: WalkFlags::empty() }
}

/// openat(2).
pub async fn openat(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: Va,
    flags: u32,
    mode: u32,
) -> Result<usize> {
    open_how(thread, dirfd, path, plain_how(flags, mode)).await
}

/// open(2).
pub async fn open(thread: &Arc<Thread>, path: Va, flags: u32, mode: u32) -> Result<usize> {
    openat(thread, AT_FDCWD, path, flags, mode).await
}

/// creat(2).
pub async fn creat(thread: &Arc<Thread>, path: Va, mode: u32) -> Result<usize> {
    openat(thread, AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode).await
}

/// openat2(2).
pub async fn openat2(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: Va,
    how: Va,
    size: usize,
) -> Result<usize> {
    open_how(thread, dirfd, path, read_how(thread, how, size)?).await
}

/// How openat2(2) is to open.
pub(super) fn read_how(thread: &Thread, how: Va, size: usize) -> Result<OpenHow> {
    let user: UserOpenHow = thread.mm().read_sized(how, size, size_of::<UserOpenHow>())?;
    let flags = u32::try_from(user.flags).map_err(|_| Errno::EINVAL)?;
    let makes = flags & O_CREAT != 0 || flags & O_TMPFILE == O_TMPFILE;
    if user.mode & !0o7777 != 0 || !makes && user.mode != 0 {
        return Err(Errno::EINVAL);
    }
    let mut resolve = WalkFlags::empty();
    let mut left = user.resolve;
    for (bit, flag) in [
        (RESOLVE_NO_XDEV, WalkFlags::NO_XDEV),
        (RESOLVE_NO_MAGICLINKS, WalkFlags::NO_MAGICLINKS),
        (RESOLVE_NO_SYMLINKS, WalkFlags::NO_SYMLINKS),
        (RESOLVE_BENEATH, WalkFlags::BENEATH),
        (RESOLVE_IN_ROOT, WalkFlags::IN_ROOT),
    ] {
        resolve.set(flag, left & u64::from(bit) != 0);
        left &= !u64::from(bit);
    }
    if left == u64::from(RESOLVE_CACHED) {
        return Err(Errno::EAGAIN);
    }
    if left != 0 || resolve.contains(WalkFlags::BENEATH | WalkFlags::IN_ROOT) {
        return Err(Errno::EINVAL);
    }
    Ok(OpenHow { flags, mode: user.mode as u32, resolve })
}

/// A descriptor of `file` was closed by `thread`.
pub fn closed(thread: &Arc<Thread>, file: &Arc<OpenFile>) {
    fs::open::closed(thread, file);
}

/// close(2).
pub fn close(thread: &Arc<Thread>, fd: Fd) -> Result<usize> {
    let file = thread.files().remove(fd)?;
    closed(thread, &file);
    Ok(0)
}

/// close_range(2).
pub fn close_range(thread: &Arc<Thread>, first: u32, last: u32, flags: u32) -> Result<usize> {
    if flags & !(CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE) != 0 || first > last {
        return Err(Errno::EINVAL);
    }
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        let own = thread.files().duplicate()?;
        thread.set_files(own);
    }
    let files = thread.files();
    let (first, last) = (first.min(Fd::MAX as u32) as Fd, last.min(Fd::MAX as u32) as Fd);
    if flags & CLOSE_RANGE_CLOEXEC != 0 {
        files.set_close_on_exec_range(first, last);
        return Ok(0);
    }
    files.drain(first, last, |_| true, |file| closed(thread, &file));
    Ok(0)
}
