//! Files: what moves bytes between them and guest memory, and what no library wraps.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::range::{GuestRange, iovecs};
use super::{check, check_int};

/// Frees the storage of `[offset, offset+len)` of a file without changing its size.
pub fn punch_hole(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    use rustix::fs::FallocateFlags as F;
    rustix::fs::fallocate(fd, F::PUNCH_HOLE | F::KEEP_SIZE, offset, len)
}

/// True if two paths lead to the same file.
///
/// # Errors
/// Those of stat(2), with the path.
pub fn is_same_file(a: &Path, b: &Path) -> io::Result<bool> {
    let identity = |path: &Path| {
        let found = std::fs::metadata(path).map(|m| (m.dev(), m.ino()));
        found.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
    };
    Ok(identity(a)? == identity(b)?)
}

/// Which of `wanted`, or of the error conditions, holds now.
pub fn poll_now(fd: impl AsFd, wanted: PollFlags) -> Result<PollFlags, Errno> {
    let mut fds = [PollFd::new(&fd, wanted)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(fds[0].revents())
}

/// Writes on standard error as far as there is room: who ends a sandbox waits for nobody that reads
/// what it says. Takes no lock and no memory.
pub fn say_without_waiting(text: &[u8]) {
    /// What is writable at all takes this much, be it a terminal.
    const PIECE: usize = 128;
    let stderr = rustix::stdio::stderr();
    for piece in text.chunks(PIECE) {
        let has_room = poll_now(stderr, PollFlags::OUT).is_ok_and(|f| f.contains(PollFlags::OUT));
        if !has_room || rustix::io::write(stderr, piece).is_err() {
            return;
        }
    }
}

/// The first offset at or after `from` that has data; `None` when there is none.
pub fn seek_data(fd: BorrowedFd<'_>, from: u64) -> Result<Option<u64>, Errno> {
    match rustix::fs::seek(fd, rustix::fs::SeekFrom::Data(from)) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The first offset at or after `from` that has no data.
pub fn seek_hole(fd: BorrowedFd<'_>, from: u64) -> Result<u64, Errno> {
    rustix::fs::seek(fd, rustix::fs::SeekFrom::Hole(from))
}

/// Where a file has data, piece by piece: each from its first byte to the one after its last.
pub fn extents(fd: BorrowedFd<'_>) -> impl Iterator<Item = Result<(u64, u64), Errno>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let next = seek_data(fd, at)
            .and_then(|start| start.map(|start| Ok((start, seek_hole(fd, start)?))).transpose());
        if let Ok(Some((_, end))) = next {
            at = end;
        }
        next.transpose()
    })
}

/// preadv2(2) at `offset`, or readv at the file's own position without one; `flags` are RWF_*.
pub fn read(
    fd: BorrowedFd<'_>,
    to: &[GuestRange<'_>],
    offset: Option<u64>,
    flags: c_int,
) -> Result<usize, Errno> {
    let iov = iovecs(to)?;
    let offset = offset_arg(offset)?;
    // SAFETY: the vectors name guest memory, which the host kernel checks as it writes.
    check(unsafe { libc::preadv2(fd.as_raw_fd(), iov.as_ptr(), iov.len() as c_int, offset, flags) })
}

/// pwritev2(2), as [`read`].
pub fn write(
    fd: BorrowedFd<'_>,
    from: &[GuestRange<'_>],
    offset: Option<u64>,
    flags: c_int,
) -> Result<usize, Errno> {
    let iov = iovecs(from)?;
    let offset = offset_arg(offset)?;
    // SAFETY: the vectors name guest memory, which the host kernel only reads.
    check(unsafe {
        libc::pwritev2(fd.as_raw_fd(), iov.as_ptr(), iov.len() as c_int, offset, flags)
    })
}

fn offset_arg(offset: Option<u64>) -> Result<i64, Errno> {
    offset.map_or(Ok(-1), |o| i64::try_from(o).map_err(|_| Errno::INVAL))
}

/// getdents64(2) straight into guest memory.
pub fn getdents(fd: BorrowedFd<'_>, to: GuestRange<'_>) -> Result<usize, Errno> {
    // SAFETY: the buffer is guest memory of that length.
    check(unsafe { libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), to.addr(), to.len()) }
        as isize)
}

/// getrandom(2) straight into guest memory.
pub fn getrandom(to: GuestRange<'_>) -> Result<usize, Errno> {
    // SAFETY: the buffer is guest memory of that length.
    check(unsafe { libc::getrandom(to.addr() as *mut c_void, to.len(), 0) })
}

/// `struct statx` as bytes.
pub type StatxBytes = [u8; size_of::<libc::statx>()];

/// `struct statfs` as bytes.
pub type StatfsBytes = [u8; size_of::<libc::statfs>()];

/// statx(2) of `path` below `dir` with `flags` AT_*; everything the basic and birth-time masks ask
/// for.
pub fn statx(dir: BorrowedFd<'_>, path: &CStr, flags: c_int) -> Result<StatxBytes, Errno> {
    let mut out: StatxBytes = [0; size_of::<libc::statx>()];
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME | libc::STATX_MNT_ID;
    // SAFETY: `out` has the size of the structure, and every bit pattern of it is plain bytes;
    // statx has no alignment need of its own in the kernel, which copies to user memory.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_statx,
            dir.as_raw_fd(),
            path.as_ptr(),
            flags,
            mask,
            out.as_mut_ptr(),
        )
    };
    check(ret as isize)?;
    Ok(out)
}

/// fstatfs(2).
pub fn fstatfs(fd: BorrowedFd<'_>) -> Result<StatfsBytes, Errno> {
    let mut out: StatfsBytes = [0; size_of::<libc::statfs>()];
    // SAFETY: `out` has the size of the kernel's structure.
    check(unsafe { libc::syscall(libc::SYS_fstatfs, fd.as_raw_fd(), out.as_mut_ptr()) } as isize)?;
    Ok(out)
}

/// fchmodat2(2) of the object behind `fd` itself (which may be an O_PATH descriptor). ENOSYS before
/// Linux 6.6.
pub fn chmod_fd(fd: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    const SYS_FCHMODAT2: libc::c_long = 452;
    // SAFETY: the path is an empty C string.
    let ret = unsafe {
        libc::syscall(SYS_FCHMODAT2, fd.as_raw_fd(), c"".as_ptr(), mode, libc::AT_EMPTY_PATH)
    };
    check(ret as isize).map(drop)
}

/// fchownat(2) of the object behind `fd` itself; `u32::MAX` leaves an id as it is.
pub fn chown_fd(fd: BorrowedFd<'_>, uid: u32, gid: u32) -> Result<(), Errno> {
    // SAFETY: the path is an empty C string.
    check_int(unsafe {
        libc::fchownat(fd.as_raw_fd(), c"".as_ptr(), uid, gid, libc::AT_EMPTY_PATH)
    })
    .map(drop)
}

/// fchownat(2) of a name in a directory, not following it.
pub fn chown_at(dir: BorrowedFd<'_>, name: &CStr, uid: u32, gid: u32) -> Result<(), Errno> {
    // SAFETY: `name` is a C string.
    check_int(unsafe {
        libc::fchownat(dir.as_raw_fd(), name.as_ptr(), uid, gid, libc::AT_SYMLINK_NOFOLLOW)
    })
    .map(drop)
}

/// sync_file_range(2): begins to write dirty pages of a range to the disk; with `wait`, waits until
/// they are there and reports errors of writing them.
pub fn sync_range(file: BorrowedFd<'_>, offset: u64, len: u64, wait: bool) -> io::Result<()> {
    let mut flags = libc::SYNC_FILE_RANGE_WRITE;
    if wait {
        flags |= libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    }
    sync_file_range(file, offset, len, flags).map_err(io::Error::from)
}

/// sync_file_range(2), with SYNC_FILE_RANGE_* as they are.
pub fn sync_file_range(
    file: BorrowedFd<'_>,
    offset: u64,
    len: u64,
    flags: u32,
) -> Result<(), Errno> {
    // SAFETY: no pointers.
    check_int(unsafe { libc::sync_file_range(file.as_raw_fd(), offset as i64, len as i64, flags) })
        .map(drop)
}
