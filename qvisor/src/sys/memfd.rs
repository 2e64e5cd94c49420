//! memfd_create(2).

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// A new memory file of `len` bytes that can be sealed.
///
/// # Errors
/// Those of memfd_create(2) and ftruncate(2).
pub fn memfd(name: &CStr, len: u64, executable: bool) -> io::Result<OwnedFd> {
    let kind = if executable { MemfdFlags::EXEC } else { MemfdFlags::NOEXEC_SEAL };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Before Linux 6.3 neither kind is known.
    let fd = memfd_create(name, flags | kind).or_else(|_| memfd_create(name, flags))?;
    ftruncate(&fd, len)?;
    Ok(fd)
}

/// A new memory file of `len` bytes that nobody can seal, for guest RAM.
///
/// # Errors
/// As [`memfd`].
pub fn memfd_unsealable(name: &CStr, len: u64) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC)?;
    ftruncate(&fd, len)?;
    Ok(fd)
}
