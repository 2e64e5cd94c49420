//! Detached mounts: fsmount(2), open_tree(2) and mount_setattr(2).
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

/// A mount of a new file system, at no path, from which nothing can be written or executed. Needs
/// CAP_SYS_ADMIN.
///
/// # Errors
/// Those of fsopen(2), fsconfig(2) and fsmount(2).
pub fn new_mount(file_system: &str, options: &[(&str, &str)]) -> Result<OwnedFd, Errno> {
    let context = fsopen(file_system, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(&context, *key, *value)?;
    }
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

/// Has the files of a detached mount tree belong to the users that a user namespace maps their
/// owners' ids to (MOUNT_ATTR_IDMAP).
///
/// # Errors
/// EINVAL where one of its file systems cannot be mapped; others of mount_setattr(2).
pub fn map_mount(mount: &OwnedFd, namespace: &OwnedFd) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        userns_fd: namespace.as_raw_fd() as u64,
        ..NO_CHANGE
    };
    set_mount(mount, libc::AT_RECURSIVE as u32, &attr)
}

/// Has a detached mount tree hear nothing of what is mounted elsewhere, when it is attached
/// (mount_namespaces(7)).
///
/// # Errors
/// Those of mount_setattr(2).
pub fn make_private(mount: &OwnedFd) -> io::Result<()> {
    let attr = libc::mount_attr { propagation: libc::MS_PRIVATE, ..NO_CHANGE };
    set_mount(mount, libc::AT_RECURSIVE as u32, &attr)
}

/// A detached copy of the mount at `path`, without what is mounted below, which can be written if
/// its file system can. Needs CAP_SYS_ADMIN.
///
/// # Errors
/// Those of open_tree(2) and mount_setattr(2).
pub fn writable_copy(path: &Path) -> io::Result<OwnedFd> {
    let copy = clone_mount(path, false, false)?;
    let attr = libc::mount_attr { attr_clr: libc::MOUNT_ATTR_RDONLY, ..NO_CHANGE };
    set_mount(&copy, 0, &attr)?;
    Ok(copy)
}

/// Changes nothing.
const NO_CHANGE: libc::mount_attr =
    libc::mount_attr { attr_set: 0, attr_clr: 0, propagation: 0, userns_fd: 0 };

fn set_mount(mount: &OwnedFd, flags: u32, attr: &libc::mount_attr) -> io::Result<()> {
    // SAFETY: an empty path with AT_EMPTY_PATH names the descriptor; `attr` has the size that is
    // given.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH as u32 | flags,
            &raw const *attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A detached copy of the mount tree at `path`, without device files and optionally without write
/// access. Needs CAP_SYS_ADMIN.
///
/// # Errors
/// Those of open_tree(2) and mount_setattr(2).
pub fn clone_mount(path: &Path, recursive: bool, readonly: bool) -> io::Result<OwnedFd> {
    use std::os::unix::ffi::OsStrExt;
    let path =
        CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let all = if recursive { libc::AT_RECURSIVE as u32 } else { 0 };
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | all;
    // SAFETY: the path is a NUL-terminated string that outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: open_tree just made this descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    // The guest has devices of its own: those of the host behind device files are out of its reach,
    // and files can be opened without first looking what they are.
    let attr_set = libc::MOUNT_ATTR_NODEV | if readonly { libc::MOUNT_ATTR_RDONLY } else { 0 };
    set_mount(&fd, all, &libc::mount_attr { attr_set, ..NO_CHANGE })?;
    Ok(fd)
}
