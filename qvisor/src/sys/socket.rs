//! Sockets of the guest: addresses and options are plain bytes, data is guest memory. Descriptors
//! do not travel here; see [`super::scm_rights`].
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::range::{GuestRange, iovecs};
use super::{check, check_int};

/// socket(2), non-blocking and close-on-exec.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Result<OwnedFd, Errno> {
    // SAFETY: no pointers.
    let fd =
        unsafe { libc::socket(domain, kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, protocol) };
    check_int(fd)?;
    // SAFETY: the descriptor was just made and is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// bind(2) to a raw address.
pub fn bind(fd: BorrowedFd<'_>, addr: &[u8]) -> Result<(), Errno> {
    // SAFETY: the kernel copies `addr.len()` bytes.
    check_int(unsafe { libc::bind(fd.as_raw_fd(), addr.as_ptr().cast(), addr.len() as u32) })
        .map(drop)
}

/// connect(2) to a raw address.
pub fn connect(fd: BorrowedFd<'_>, addr: &[u8]) -> Result<(), Errno> {
    // SAFETY: the kernel copies `addr.len()` bytes.
    check_int(unsafe { libc::connect(fd.as_raw_fd(), addr.as_ptr().cast(), addr.len() as u32) })
        .map(drop)
}

/// accept4(2), non-blocking and close-on-exec: the connection and the length of the address put
/// into `addr`.
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

/// getsockopt(2): the length put into `value`. Callers must not pass an option whose value holds
/// pointers.
pub fn getsockopt(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &mut [u8],
) -> Result<usize, Errno> {
    let mut len = value.len() as u32;
    // SAFETY: `len` says how much of `value` may be written.
    check_int(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &mut len)
    })?;
    Ok((len as usize).min(value.len()))
}

/// setsockopt(2). Callers must not pass an option whose value holds pointers.
pub fn setsockopt(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &[u8],
) -> Result<(), Errno> {
    // SAFETY: the kernel copies `value.len()` bytes.
    check_int(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), value.len() as u32)
    })
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
pub struct ReceivedMessage {
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
) -> Result<ReceivedMessage, Errno> {
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
    // SAFETY: every pointer of `msg` is valid for its length; MSG_CMSG_CLOEXEC is implied by the
    // caller's flags or moot, as no descriptor can arrive on the socket kinds that exist here.
    let bytes = check(unsafe { libc::recvmsg(fd.as_raw_fd(), &mut msg, flags) })?;
    Ok(ReceivedMessage {
        bytes,
        addr_len: (msg.msg_namelen as usize).min(addr.len()),
        control_len: msg.msg_controllen.min(control.len()),
        flags: msg.msg_flags,
    })
}
