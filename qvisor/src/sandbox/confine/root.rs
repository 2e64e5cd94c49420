//! An empty root directory. Files are reached by descriptors of detached mounts from then on.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};

use crate::sys;

/// Makes an empty file system, which cannot be written, the root and working directory of this
/// process, and drops all other mounts of its mount namespace, which must be its own and not shared
/// with another. `is_shared`: others, with privileges, may make mount points in it. Needs
/// CAP_SYS_ADMIN.
pub fn leave(is_shared: bool) -> Result<(), Errno> {
    let nodes = if is_shared { "16384" } else { "1" };
    let options = [("mode", "0555"), ("size", "4k"), ("nr_inodes", nodes)];
    let empty = sys::new_mount("tmpfs", &options)?;
    move_mount(&empty, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    rustix::process::fchdir(&empty)?;
    match rustix::process::pivot_root(".", ".") {
        // The old root lies over the new one now.
        Ok(()) => unmount(".", UnmountFlags::DETACH),
        // The root that the host was booted with cannot be exchanged. It stays below, where no path
        // leads from here; to get there by chroot(2) or a mount takes capabilities that are given
        // up next.
        Err(Errno::INVAL) => rustix::process::chroot("."),
        Err(e) => Err(e),
    }
}

/// The root directory.
pub fn open() -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open("/", flags, Mode::empty())
}
