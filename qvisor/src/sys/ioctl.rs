//! ioctl(2): the few commands that may be made for the guest are enumerated.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::check_int;

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

/// The ioctl commands that may be made, with the size of their argument in bytes. None has a
/// pointer inside.
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
    // What changes interfaces.
    (libc::SIOCSIFFLAGS, 40, Direction::In),
    (libc::SIOCSIFADDR, 40, Direction::In),
    (libc::SIOCSIFDSTADDR, 40, Direction::In),
    (libc::SIOCSIFBRDADDR, 40, Direction::In),
    (libc::SIOCSIFNETMASK, 40, Direction::In),
    (libc::SIOCSIFMETRIC, 40, Direction::In),
    (libc::SIOCSIFMTU, 40, Direction::In),
    (libc::SIOCSIFHWADDR, 40, Direction::In),
    (SIOCSIFTXQLEN, 40, Direction::In),
];

const SIOCGIFTXQLEN: u64 = 0x8942;
const SIOCSIFTXQLEN: u64 = 0x8943;

/// Asks if the next byte is out of band.
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
