//! An empty root directory. Files are reached by descriptors of detached mounts from then on.

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};

/// Makes an empty file system, which cannot be written, the root and working directory of this
/// process, and drops all other mounts of its mount namespace, which must be its own and not shared
/// with another. Needs CAP_SYS_ADMIN.
pub fn leave() -> Result<(), Errno> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [("mode", "0555"), ("size", "4k"), ("nr_inodes", "1")] {
        fsconfig_set_string(&context, key, value)?;
    }
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let empty = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
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
