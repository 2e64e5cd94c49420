//! The host's system calls that take pointers into guest memory or into plain byte buffers. Safe to call with any
//! numbers: buffers are checked types, and the few commands whose argument has a size of its own are enumerated.

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;
use smallvec::SmallVec;

use super::{GuestRange, Protection};

/// `struct statx` as bytes.
pub type StatxBytes = [u8; size_of::<libc::statx>()];
/// `struct statfs` as bytes.
pub type StatfsBytes = [u8; size_of::<libc::statfs>()];

/// Checks the result of a call that gives -1 and errno.
fn check(ret: isize) -> Result<usize, Errno> {
    usize::try_from(ret).map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

fn check_int(ret: c_int) -> Result<usize, Errno> {
    check(ret as isize)
}

/// A sparse memory file of `bytes` bytes.
pub fn memfd(name: &CStr, bytes: u64) -> io::Result<OwnedFd> {
    // SAFETY: `name` is a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and is nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::fs::ftruncate(&fd, bytes)?;
    Ok(fd)
}

/// Replaces `len` bytes of the process' memory at `addr` by a private, read-only view of a file.
///
/// # Safety
/// The range must be a mapping that the caller may replace, without Rust references into it.
pub unsafe fn map_file(addr: usize, len: usize, executable: bool, fd: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
    let protection = if executable { libc::PROT_READ | libc::PROT_EXEC } else { libc::PROT_READ };
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    // SAFETY: as the caller promises.
    let p = unsafe { libc::mmap(addr as *mut c_void, len, protection, flags, fd.as_raw_fd(), offset as libc::off_t) };
    if p == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Puts a copy of `len` bytes of the process' memory at `addr` in their place, in memory of the process' own.
///
/// # Safety
/// As [`map_file`]; the range must be readable whole pages, and not change meanwhile.
pub unsafe fn map_copy(addr: usize, len: usize, protection: Protection) -> Result<(), Errno> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at a place the host chooses.
    let fresh = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) };
    if fresh == libc::MAP_FAILED {
        return check(-1).map(drop);
    }
    // SAFETY: the caller says that the source is readable; the target is new and ours alone.
    unsafe { ptr::copy_nonoverlapping(addr as *const u8, fresh.cast(), len) };
    // SAFETY: as above; then the caller lets us replace the range.
    let result = unsafe { protect(fresh as usize, len, protection) }.and_then(|()| {
        let to = addr as *mut c_void;
        // SAFETY: as above.
        let moved = unsafe { libc::mremap(fresh, len, len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, to) };
        if moved == libc::MAP_FAILED { check(-1).map(drop) } else { Ok(()) }
    });
    if result.is_err() {
        // SAFETY: the mapping made above, which nobody knows of.
        unsafe { unmap(fresh as usize, len) };
    }
    result
}

/// mseal(2): the host refuses from now on to unmap, move, replace or unprotect the range. ENOSYS before Linux 6.10.
pub fn seal(addr: usize, len: usize) -> Result<(), Errno> {
    const SYS_MSEAL: libc::c_long = 462;
    // SAFETY: it changes no memory.
    check(unsafe { libc::syscall(SYS_MSEAL, addr, len, 0usize) } as isize).map(drop)
}

/// Reserves `len` bytes of address space, inaccessible, at `base` or, without one, anywhere at a multiple of `align`.
pub fn reserve(base: Option<u64>, len: usize, align: usize) -> io::Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let Some(base) = base else {
        let size = len.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping at a place the host chooses.
        let p = unsafe { libc::mmap(ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0) };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = (p as usize).next_multiple_of(align);
        let (head, tail) = (start - p as usize, p as usize + size - (start + len));
        for (addr, n) in [(p as usize, head), (start + len, tail)] {
            if n > 0 {
                // SAFETY: the ends of the mapping just made, which nobody knows of.
                unsafe { unmap(addr, n) };
            }
        }
        return Ok(start);
    };
    // SAFETY: MAP_FIXED_NOREPLACE replaces nothing.
    let p = unsafe { libc::mmap(base as *mut c_void, len, libc::PROT_NONE, flags | libc::MAP_FIXED_NOREPLACE, -1, 0) };
    if p == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if p as u64 != base {
        // A kernel older than MAP_FIXED_NOREPLACE took it for a hint.
        // SAFETY: the mapping just made, which nobody knows of.
        unsafe { unmap(p as usize, len) };
        return Err(io::ErrorKind::AddrInUse.into());
    }
    Ok(p as usize)
}

/// Maps `fd` shared at `[addr, addr+len)`, in place of what is there.
///
/// # Safety
/// The range must be the caller's, and no reference may point into it.
pub unsafe fn map_fixed(addr: usize, len: usize, writable: bool, fd: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
    let prot = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: as the caller promises.
    let p = unsafe { libc::mmap(addr as *mut c_void, len, prot, flags, fd.as_raw_fd(), offset as i64) };
    if p == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes `[addr, addr+len)` inaccessible again.
///
/// # Safety
/// As [`map_fixed`].
pub unsafe fn unmap_fixed(addr: usize, len: usize) -> Result<(), Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: as the caller promises.
    let p = unsafe { libc::mmap(addr as *mut c_void, len, libc::PROT_NONE, flags, -1, 0) };
    if p == libc::MAP_FAILED { check(-1).map(drop) } else { Ok(()) }
}

/// Removes a mapping.
///
/// # Safety
/// As [`map_fixed`].
pub unsafe fn unmap(addr: usize, len: usize) {
    // SAFETY: as the caller promises. A failure leaves the range mapped, which harms nobody.
    unsafe { libc::munmap(addr as *mut c_void, len) };
}

/// Sets the protection of a range.
///
/// # Safety
/// The range must be the caller's, and no reference may point into it.
pub unsafe fn protect(addr: usize, len: usize, protection: Protection) -> Result<(), Errno> {
    let prot = match protection {
        Protection::Read => libc::PROT_READ,
        Protection::ReadExec => libc::PROT_READ | libc::PROT_EXEC,
        Protection::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
    };
    // SAFETY: as the caller promises.
    check_int(unsafe { libc::mprotect(addr as *mut c_void, len, prot) }).map(drop)
}

/// Frees the storage of `[offset, offset+len)` of a file without changing its size.
pub fn punch_hole(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    use rustix::fs::FallocateFlags as F;
    rustix::fs::fallocate(fd, F::PUNCH_HOLE | F::KEEP_SIZE, offset, len)
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

type IoVecs = SmallVec<[libc::iovec; 8]>;

fn iovecs(ranges: &[GuestRange<'_>]) -> Result<IoVecs, Errno> {
    if ranges.len() > libc::UIO_MAXIOV as usize {
        return Err(Errno::INVAL);
    }
    Ok(ranges.iter().map(|r| libc::iovec { iov_base: r.addr as *mut c_void, iov_len: r.len }).collect())
}

/// preadv2(2) at `offset`, or readv at the file's own position without one; `flags` are RWF_*.
pub fn read(fd: BorrowedFd<'_>, to: &[GuestRange<'_>], offset: Option<u64>, flags: c_int) -> Result<usize, Errno> {
    let iov = iovecs(to)?;
    let offset = offset_arg(offset)?;
    // SAFETY: the vectors name guest memory, which the host kernel checks as it writes.
    check(unsafe { libc::preadv2(fd.as_raw_fd(), iov.as_ptr(), iov.len() as c_int, offset, flags) })
}

/// pwritev2(2), as [`read`].
pub fn write(fd: BorrowedFd<'_>, from: &[GuestRange<'_>], offset: Option<u64>, flags: c_int) -> Result<usize, Errno> {
    let iov = iovecs(from)?;
    let offset = offset_arg(offset)?;
    // SAFETY: the vectors name guest memory, which the host kernel only reads.
    check(unsafe { libc::pwritev2(fd.as_raw_fd(), iov.as_ptr(), iov.len() as c_int, offset, flags) })
}

fn offset_arg(offset: Option<u64>) -> Result<i64, Errno> {
    offset.map_or(Ok(-1), |o| i64::try_from(o).map_err(|_| Errno::INVAL))
}

/// getdents64(2) straight into guest memory.
pub fn getdents(fd: BorrowedFd<'_>, to: GuestRange<'_>) -> Result<usize, Errno> {
    // SAFETY: the buffer is guest memory of that length.
    check(unsafe { libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), to.addr, to.len) } as isize)
}

/// getrandom(2) straight into guest memory.
pub fn getrandom(to: GuestRange<'_>) -> Result<usize, Errno> {
    // SAFETY: the buffer is guest memory of that length.
    check(unsafe { libc::getrandom(to.addr as *mut c_void, to.len, 0) })
}

/// statx(2) of `path` below `dir` with `flags` AT_*; everything the basic and birth-time masks ask for.
pub fn statx(dir: BorrowedFd<'_>, path: &CStr, flags: c_int) -> Result<StatxBytes, Errno> {
    let mut out: StatxBytes = [0; size_of::<libc::statx>()];
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME | libc::STATX_MNT_ID;
    // SAFETY: `out` has the size of the structure, and every bit pattern of it is plain bytes; statx has no alignment
    // need of its own in the kernel, which copies to user memory.
    let ret = unsafe { libc::syscall(libc::SYS_statx, dir.as_raw_fd(), path.as_ptr(), flags, mask, out.as_mut_ptr()) };
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

/// fchmodat2(2) of the object behind `fd` itself (which may be an O_PATH descriptor). ENOSYS before Linux 6.6.
pub fn chmod_fd(fd: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    const SYS_FCHMODAT2: libc::c_long = 452;
    // SAFETY: the path is an empty C string.
    let ret = unsafe { libc::syscall(SYS_FCHMODAT2, fd.as_raw_fd(), c"".as_ptr(), mode, libc::AT_EMPTY_PATH) };
    check(ret as isize).map(drop)
}

/// fchownat(2) of the object behind `fd` itself; `u32::MAX` leaves an id as it is.
pub fn chown_fd(fd: BorrowedFd<'_>, uid: u32, gid: u32) -> Result<(), Errno> {
    // SAFETY: the path is an empty C string.
    check_int(unsafe { libc::fchownat(fd.as_raw_fd(), c"".as_ptr(), uid, gid, libc::AT_EMPTY_PATH) }).map(drop)
}

/// fchownat(2) of a name in a directory, not following it.
pub fn chown_at(dir: BorrowedFd<'_>, name: &CStr, uid: u32, gid: u32) -> Result<(), Errno> {
    // SAFETY: `name` is a C string.
    check_int(unsafe { libc::fchownat(dir.as_raw_fd(), name.as_ptr(), uid, gid, libc::AT_SYMLINK_NOFOLLOW) }).map(drop)
}

// ---- sockets --------------------------------------------------------------------------------------------------------

/// socket(2), non-blocking and close-on-exec.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Result<OwnedFd, Errno> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(domain, kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, protocol) };
    check_int(fd)?;
    // SAFETY: the descriptor was just made and is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// bind(2) to a raw address.
pub fn bind(fd: BorrowedFd<'_>, addr: &[u8]) -> Result<(), Errno> {
    // SAFETY: the kernel copies `addr.len()` bytes.
    check_int(unsafe { libc::bind(fd.as_raw_fd(), addr.as_ptr().cast(), addr.len() as u32) }).map(drop)
}

/// connect(2) to a raw address.
pub fn connect(fd: BorrowedFd<'_>, addr: &[u8]) -> Result<(), Errno> {
    // SAFETY: the kernel copies `addr.len()` bytes.
    check_int(unsafe { libc::connect(fd.as_raw_fd(), addr.as_ptr().cast(), addr.len() as u32) }).map(drop)
}

/// accept4(2), non-blocking and close-on-exec: the connection and the length of the address put into `addr`.
pub fn accept(fd: BorrowedFd<'_>, addr: &mut [u8]) -> Result<(OwnedFd, usize), Errno> {
    let mut len = addr.len() as u32;
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: `len` says how much of `addr` may be written.
    let new = unsafe { libc::accept4(fd.as_raw_fd(), addr.as_mut_ptr().cast(), &mut len, flags) };
    check_int(new)?;
    // SAFETY: the descriptor was just made and is nobody else's.
    Ok((unsafe { OwnedFd::from_raw_fd(new) }, (len as usize).min(addr.len())))
}

/// getsockname(2), or getpeername(2) if `peer`: the length of the address put into `addr`.
pub fn socket_name(fd: BorrowedFd<'_>, peer: bool, addr: &mut [u8]) -> Result<usize, Errno> {
    let mut len = addr.len() as u32;
    let call = if peer { libc::getpeername } else { libc::getsockname };
    // SAFETY: `len` says how much of `addr` may be written.
    check_int(unsafe { call(fd.as_raw_fd(), addr.as_mut_ptr().cast(), &mut len) })?;
    Ok((len as usize).min(addr.len()))
}

/// getsockopt(2): the length put into `value`. Callers must not pass an option whose value holds pointers.
pub fn getsockopt(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &mut [u8]) -> Result<usize, Errno> {
    let mut len = value.len() as u32;
    // SAFETY: `len` says how much of `value` may be written.
    check_int(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &mut len) })?;
    Ok((len as usize).min(value.len()))
}

/// setsockopt(2). Callers must not pass an option whose value holds pointers.
pub fn setsockopt(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &[u8]) -> Result<(), Errno> {
    // SAFETY: the kernel copies `value.len()` bytes.
    check_int(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), value.len() as u32) })
        .map(drop)
}

/// sendmsg(2) of guest memory.
pub fn sendmsg(
    fd: BorrowedFd<'_>,
    addr: &[u8],
    control: &[u8],
    data: &[GuestRange<'_>],
    flags: c_int,
) -> Result<usize, Errno> {
    let mut iov = iovecs(data)?;
    // SAFETY: all-zero is a valid msghdr.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    if !addr.is_empty() {
        msg.msg_name = addr.as_ptr() as *mut c_void;
        msg.msg_namelen = addr.len() as u32;
    }
    if !control.is_empty() {
        msg.msg_control = control.as_ptr() as *mut c_void;
        msg.msg_controllen = control.len();
    }
    msg.msg_iov = iov.as_mut_ptr();
    msg.msg_iovlen = iov.len();
    // SAFETY: every pointer of `msg` is valid for its length and only read.
    check(unsafe { libc::sendmsg(fd.as_raw_fd(), &msg, flags) })
}

/// What [`recvmsg`] gives.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Bytes of data.
    pub bytes: usize,
    /// Length of the address.
    pub addr_len: usize,
    /// Length of the control data.
    pub control_len: usize,
    /// MSG_* flags of the message.
    pub flags: c_int,
}

/// recvmsg(2) into guest memory.
pub fn recvmsg(
    fd: BorrowedFd<'_>,
    addr: &mut [u8],
    control: &mut [u8],
    data: &[GuestRange<'_>],
    flags: c_int,
) -> Result<Received, Errno> {
    let mut iov = iovecs(data)?;
    // SAFETY: all-zero is a valid msghdr.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    if !addr.is_empty() {
        msg.msg_name = addr.as_mut_ptr().cast();
        msg.msg_namelen = addr.len() as u32;
    }
    if !control.is_empty() {
        msg.msg_control = control.as_mut_ptr().cast();
        msg.msg_controllen = control.len();
    }
    msg.msg_iov = iov.as_mut_ptr();
    msg.msg_iovlen = iov.len();
    // SAFETY: every pointer of `msg` is valid for its length; MSG_CMSG_CLOEXEC is implied by the caller's flags or moot,
    // as no descriptor can arrive on the socket kinds that exist here.
    let bytes = check(unsafe { libc::recvmsg(fd.as_raw_fd(), &mut msg, flags) })?;
    Ok(Received {
        bytes,
        addr_len: (msg.msg_namelen as usize).min(addr.len()),
        control_len: msg.msg_controllen.min(control.len()),
        flags: msg.msg_flags,
    })
}

// ---- ioctl ----------------------------------------------------------------------------------------------------------

/// What an ioctl does with its argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The kernel fills it in.
    Out,
    /// The kernel reads it.
    In,
    /// Both.
    InOut,
}

/// The ioctl commands that may be made, with the size of their argument in bytes. None has a pointer inside.
pub const IOCTLS: &[(u64, usize, Direction)] = &[
    // Terminals: struct termios (kernel's, 36 bytes), termios2 (44), winsize (8), int.
    (libc::TCGETS, 36, Direction::Out),
    (libc::TCSETS, 36, Direction::In),
    (libc::TCSETSW, 36, Direction::In),
    (libc::TCSETSF, 36, Direction::In),
    (libc::TCGETS2, 44, Direction::Out),
    (libc::TCSETS2, 44, Direction::In),
    (libc::TCSETSW2, 44, Direction::In),
    (libc::TCSETSF2, 44, Direction::In),
    (libc::TIOCGWINSZ, 8, Direction::Out),
    (libc::TIOCSWINSZ, 8, Direction::In),
    (libc::TIOCOUTQ, 4, Direction::Out),
    (libc::FIONREAD, 4, Direction::Out),
    // Sockets: struct ifreq (40 bytes), int.
    (libc::SIOCGIFNAME, 40, Direction::InOut),
    (libc::SIOCGIFFLAGS, 40, Direction::InOut),
    (libc::SIOCGIFADDR, 40, Direction::InOut),
    (libc::SIOCGIFDSTADDR, 40, Direction::InOut),
    (libc::SIOCGIFBRDADDR, 40, Direction::InOut),
    (libc::SIOCGIFNETMASK, 40, Direction::InOut),
    (libc::SIOCGIFMETRIC, 40, Direction::InOut),
    (libc::SIOCGIFMTU, 40, Direction::InOut),
    (libc::SIOCGIFHWADDR, 40, Direction::InOut),
    (libc::SIOCGIFINDEX, 40, Direction::InOut),
    (SIOCGIFTXQLEN, 40, Direction::InOut),
    (SIOCATMARK, 4, Direction::Out),
];
const SIOCGIFTXQLEN: u64 = 0x8942;
/// Whether the next byte is out of band.
pub const SIOCATMARK: u64 = 0x8905;

/// An ioctl of [`IOCTLS`] with an argument of exactly its size; ENOTTY for every other.
pub fn ioctl(fd: BorrowedFd<'_>, command: u64, argument: &mut [u8]) -> Result<usize, Errno> {
    let (_, size, _) = IOCTLS.iter().find(|(c, ..)| *c == command).ok_or(Errno::NOTTY)?;
    if argument.len() != *size {
        return Err(Errno::INVAL);
    }
    // SAFETY: the command is known to touch at most `size` bytes at its argument.
    check_int(unsafe { libc::ioctl(fd.as_raw_fd(), command, argument.as_mut_ptr()) })
}

/// SIOCGIFCONF: fills `out` with `struct ifreq`s; how many bytes.
pub fn interface_list(fd: BorrowedFd<'_>, out: &mut [u8]) -> Result<usize, Errno> {
    #[repr(C)]
    struct IfConf {
        len: c_int,
        buf: *mut u8,
    }
    let len = c_int::try_from(out.len()).map_err(|_| Errno::INVAL)?;
    let mut conf = IfConf { len, buf: out.as_mut_ptr() };
    // SAFETY: the kernel writes at most `len` bytes at `buf` and updates `len`.
    check_int(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFCONF, &mut conf) })?;
    Ok((conf.len.max(0) as usize).min(out.len()))
}
