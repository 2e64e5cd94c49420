//! Guest memory as the host's system calls take it.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::marker::PhantomData;

use rustix::io::Errno;
use smallvec::SmallVec;

/// A checked range of guest memory in this process' address space. Its bytes change under our feet,
/// and those of a window may be missing: they are only reached through
/// [`crate::sandbox::memory::copy`] or by the host kernel.
#[derive(Clone, Copy, Debug)]
pub struct GuestRange<'m> {
    addr: usize,
    len: usize,
    memory: PhantomData<&'m ()>,
}

impl<'m> GuestRange<'m> {
    /// The range `[addr, addr+len)`.
    ///
    /// # Safety
    /// For `'m` it must be guest memory, or reserved for it, and no reference may point into it.
    pub(crate) unsafe fn new(addr: usize, len: usize) -> GuestRange<'m> {
        GuestRange { addr, len, memory: PhantomData }
    }

    /// Where it begins in this process.
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `len` bytes of it, or all if it is shorter.
    pub fn truncated(self, len: usize) -> GuestRange<'m> {
        GuestRange { len: self.len.min(len), ..self }
    }
}

pub(super) type IoVecs = SmallVec<[libc::iovec; 8]>;

/// The ranges as readv(2) takes them; EINVAL when there are too many.
pub(super) fn iovecs(ranges: &[GuestRange<'_>]) -> Result<IoVecs, Errno> {
    if ranges.len() > libc::UIO_MAXIOV as usize {
        return Err(Errno::INVAL);
    }
    Ok(ranges
        .iter()
        .map(|r| libc::iovec { iov_base: r.addr as *mut c_void, iov_len: r.len })
        .collect())
}
