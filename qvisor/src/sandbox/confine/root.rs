//! An empty root directory. Files are reached by descriptors of detached mounts from then on.

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};

use crate::sys;

/// Makes an empty file system, which cannot be written, the root and working directory of this
/// process, and drops all other mounts of its mount namespace, which must be its own and not shared
/// with another. Needs CAP_SYS_ADMIN.
pub fn leave() -> Result<(), Errno> {
    let options = [("mode", "0555"), ("size", "4k"), ("nr_inodes", "1")];
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
