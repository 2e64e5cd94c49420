//! The host's system calls that no library wraps as they are needed here: the one room for them,
//! below all others of this crate. A file for each subject; names are given flat, as in libc.
//!
//! Safe functions may be called with any numbers: buffers are checked types, and the few commands
//! whose argument has a size of its own are enumerated.

mod features;
mod file;
mod futex;
mod ioctl;
mod mapping;
mod memfd;
mod mount;
pub mod ordered;
mod process;
mod processors;
pub mod procfs;
mod range;
mod scm_rights;
mod seccomp;
mod socket;
mod spawn;
mod tasks;
pub mod utc;

use std::ffi::c_int;
use std::io;

use rustix::io::Errno;

pub use features::*;
pub use file::*;
pub use futex::*;
pub use ioctl::*;
pub use mapping::*;
pub use memfd::*;
pub use mount::*;
pub use process::*;
pub use processors::*;
pub use range::GuestRange;
pub use scm_rights::*;
pub use seccomp::*;
pub use socket::*;
pub use spawn::*;
pub use tasks::*;

/// Checks the result of a call that gives -1 and errno.
fn check(ret: isize) -> Result<usize, Errno> {
    usize::try_from(ret)
        .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

fn check_int(ret: c_int) -> Result<usize, Errno> {
    check(ret as isize)
}
