//! Mappings of this process' memory.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;

use super::{check, check_int};

/// Memory protection of a range of this process' own mapping of RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Readable.
    Read,
    /// Readable and executable.
    ReadExec,
    /// Readable and writable.
    ReadWrite,
}

/// Replaces `len` bytes of the process' memory at `addr` by a private, read-only view of a file.
///
/// # Safety
/// The range must be a mapping that the caller may replace, without Rust references into it.
pub unsafe fn map_file(
    addr: usize,
    len: usize,
    executable: bool,
    fd: BorrowedFd<'_>,
    offset: u64,
) -> io::Result<()> {
    let protection = if executable { libc::PROT_READ | libc::PROT_EXEC } else { libc::PROT_READ };
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    // SAFETY: as the caller promises.
    let p = unsafe {
        libc::mmap(
            addr as *mut c_void,
            len,
            protection,
            flags,
            fd.as_raw_fd(),
            offset as libc::off_t,
        )
    };
    if p == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Puts `bytes`, and zeros behind them up to `len` bytes, at `addr`, in memory of the process' own.
///
/// # Safety
/// As [`map_file`]; `len` is whole pages.
pub unsafe fn map_bytes(
    addr: usize,
    len: usize,
    bytes: &[u8],
    protection: Protection,
) -> Result<(), Errno> {
    if bytes.len() > len {
        return Err(Errno::INVAL);
    }
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at a place the host chooses.
    let fresh = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) };
    if fresh == libc::MAP_FAILED {
        return check(-1).map(drop);
    }
    // SAFETY: the target is new, ours alone, and as long.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), fresh.cast(), bytes.len()) };
    // SAFETY: as above; then the caller lets us replace the range.
    let result = unsafe { protect(fresh as usize, len, protection) }.and_then(|()| {
        let to = addr as *mut c_void;
        // SAFETY: as above.
        let moved =
            unsafe { libc::mremap(fresh, len, len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, to) };
        if moved == libc::MAP_FAILED { check(-1).map(drop) } else { Ok(()) }
    });
    if result.is_err() {
        // SAFETY: the mapping made above, which nobody knows of.
        unsafe { unmap(fresh as usize, len) };
    }
    result
}

/// mseal(2): the host refuses from now on to unmap, move, replace or unprotect the range. ENOSYS
/// before Linux 6.10.
pub fn seal(addr: usize, len: usize) -> Result<(), Errno> {
    const SYS_MSEAL: libc::c_long = 462;
    // SAFETY: it changes no memory.
    check(unsafe { libc::syscall(SYS_MSEAL, addr, len, 0usize) } as isize).map(drop)
}

/// Reserves `len` bytes of address space, inaccessible, at `base` or, without one, anywhere at a
/// multiple of `align`.
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
    let p = unsafe {
        libc::mmap(
            base as *mut c_void,
            len,
            libc::PROT_NONE,
            flags | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
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
pub unsafe fn map_fixed(
    addr: usize,
    len: usize,
    writable: bool,
    fd: BorrowedFd<'_>,
    offset: u64,
) -> io::Result<()> {
    let prot = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: as the caller promises.
    let p =
        unsafe { libc::mmap(addr as *mut c_void, len, prot, flags, fd.as_raw_fd(), offset as i64) };
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

/// Commits memory behind a range, as writing there would: MADV_POPULATE_WRITE (Linux 5.14).
pub fn populate(addr: usize, len: usize) -> io::Result<()> {
    advise(addr, len, libc::MADV_POPULATE_WRITE)
}

/// Has huge pages lie behind a range of which each huge page has some memory already:
/// MADV_COLLAPSE (Linux 6.1).
pub fn collapse(addr: usize, len: usize) -> io::Result<()> {
    advise(addr, len, libc::MADV_COLLAPSE)
}

/// `advice` must be of the kind that changes no byte of any mapping.
fn advise(addr: usize, len: usize, advice: libc::c_int) -> io::Result<()> {
    // SAFETY: both kinds of advice only commit memory; no byte of any mapping changes, whatever
    // lies there.
    let ret = unsafe { libc::madvise(ptr::with_exposed_provenance_mut(addr), len, advice) };
    if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
