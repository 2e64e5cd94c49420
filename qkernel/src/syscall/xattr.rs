//! Extended attributes (xattr(7)).

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW, CAP_SETFCAP, CAP_SYS_ADMIN, IN_ATTRIB, S_ISVTX,
    XATTR_CREATE, XATTR_LIST_MAX, XATTR_NAME_MAX, XATTR_REPLACE, XATTR_SIZE_MAX,
};
use qlib::Va;

use super::open::{path_at, path_or_null};
use crate::abi::abi_struct;
use crate::creds::FileCaps;
use crate::errno::{Errno, Result};
use crate::fs::{self, Fd, Location, notify, perm};
use crate::task::Thread;

abi_struct! {
    /// struct xattr_args.
    pub struct XattrArgs { pub value: u64, pub size: u32, pub flags: u32, }
}

fn at_path(thread: &Arc<Thread>, path: Va, at_flags: u32) -> Result<Location> {
    fs::lookup(thread, AT_FDCWD, &path_at(thread, path)?, at_flags)
}

fn at_fd(thread: &Arc<Thread>, fd: Fd) -> Result<Location> {
    let file = thread.files().opened(fd)?;
    let place = file.path.clone();
    Ok(place.unwrap_or_else(|| fs::proc::place_of(&file, &thread.fs().root)))
}

/// What the calls of Linux 6.13 are about.
fn at(thread: &Arc<Thread>, dirfd: Fd, path: Va, at_flags: u32) -> Result<Location> {
    if at_flags & !(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = path_or_null(thread, path, at_flags & AT_EMPTY_PATH != 0)?;
    if path.is_empty() && at_flags & AT_EMPTY_PATH != 0 && dirfd >= 0 {
        return at_fd(thread, dirfd);
    }
    fs::lookup(thread, dirfd, &path, at_flags)
}

fn name_at(thread: &Arc<Thread>, name: Va) -> Result<Vec<u8>> {
    let name = thread.mm().read_cstr(name, XATTR_NAME_MAX as usize + 1).map_err(|e| match e {
        Errno::ENAMETOOLONG => Errno::ERANGE,
        other => other,
    })?;
    if name.is_empty() { Err(Errno::ERANGE) } else { Ok(name) }
}

/// Where capabilities of files lie.
const CAPABILITY: &[u8] = FileCaps::ATTRIBUTE;

/// EINVAL for what is no struct vfs_cap_data of version 2 or 3 (linux/capability.h).
fn check_capability(value: &[u8]) -> Result {
    const VERSION_2: (usize, u8) = (20, 2);
    const VERSION_3: (usize, u8) = (24, 3);
    // The version is the highest byte of the first word.
    let version = value.get(3).map(|version| (value.len(), *version));
    let is_known = version == Some(VERSION_2) || version == Some(VERSION_3);
    if is_known { Ok(()) } else { Err(Errno::EINVAL) }
}

/// True if the thread may use attributes of this name (xattr(7), "Extended attribute namespaces").
fn check_name(thread: &Arc<Thread>, place: &Location, name: &[u8], want: u32) -> Result {
    let creds = thread.creds();
    let attributes = place.attributes()?;
    let writes = want & perm::WRITE != 0;
    if writes {
        place.mount.check_writable()?;
    }
    if name.starts_with(b"user.") {
        if !attributes.is_regular() && !attributes.is_dir() {
            return Err(if writes { Errno::EPERM } else { Errno::ENODATA });
        }
        if writes && attributes.is_dir() && attributes.mode & S_ISVTX != 0 {
            // All may make files in such a directory, and it is not theirs.
            perm::check_owner(&creds, &attributes)?;
        }
        return perm::check(&creds, &attributes, want);
    }
    if name.starts_with(b"trusted.") {
        let denied = if writes { Errno::EPERM } else { Errno::ENODATA };
        return if creds.capable(CAP_SYS_ADMIN) { Ok(()) } else { Err(denied) };
    }
    if name.starts_with(b"security.") {
        let may = match name {
            CAPABILITY => creds.capable_over(attributes.owner(), CAP_SETFCAP),
            _ => creds.capable(CAP_SYS_ADMIN),
        };
        return if !writes || may { Ok(()) } else { Err(Errno::EPERM) };
    }
    if name.starts_with(b"system.") {
        return if writes { perm::check_owner(&creds, &attributes) } else { Ok(()) };
    }
    Err(Errno::EOPNOTSUPP)
}

/// Stores `bytes` as far as the caller's buffer is meant to take them: their length.
fn give(thread: &Arc<Thread>, bytes: &[u8], out: Va, size: usize) -> Result<usize> {
    if size > 0 {
        if bytes.len() > size {
            return Err(Errno::ERANGE);
        }
        thread.mm().write_bytes(out, bytes)?;
    }
    Ok(bytes.len())
}

fn get(thread: &Arc<Thread>, place: Location, name: Va, value: Va, size: usize) -> Result<usize> {
    let name = name_at(thread, name)?;
    check_name(thread, &place, &name, perm::READ)?;
    let mut bytes = place.inode().get_xattr(&name)?;
    let user = &thread.creds().user;
    if name == CAPABILITY && !user.is_initial() {
        bytes = FileCaps::to_user(&bytes, user)?;
    }
    give(thread, &bytes, value, size)
}

/// getxattr(2).
pub fn getxattr(thread: &Arc<Thread>, path: Va, name: Va, value: Va, size: usize) -> Result<usize> {
    get(thread, at_path(thread, path, 0)?, name, value, size)
}

/// lgetxattr(2).
pub fn lgetxattr(
    thread: &Arc<Thread>,
    path: Va,
    name: Va,
    value: Va,
    size: usize,
) -> Result<usize> {
    get(thread, at_path(thread, path, AT_SYMLINK_NOFOLLOW)?, name, value, size)
}

/// fgetxattr(2).
pub fn fgetxattr(thread: &Arc<Thread>, fd: Fd, name: Va, value: Va, size: usize) -> Result<usize> {
    get(thread, at_fd(thread, fd)?, name, value, size)
}

/// getxattrat(2).
pub fn getxattrat(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: Va,
    at_flags: u32,
    name: Va,
    args: Va,
    size: usize,
) -> Result<usize> {
    let args: XattrArgs = thread.mm().read_sized(args, size, size_of::<XattrArgs>())?;
    if args.flags != 0 {
        return Err(Errno::EINVAL);
    }
    get(thread, at(thread, dirfd, path, at_flags)?, name, Va(args.value), args.size as usize)
}

fn set(
    thread: &Arc<Thread>,
    place: Location,
    name: Va,
    value: Va,
    size: usize,
    flags: u32,
) -> Result<usize> {
    if flags & !(XATTR_CREATE | XATTR_REPLACE) != 0 {
        return Err(Errno::EINVAL);
    }
    let name = name_at(thread, name)?;
    if size > XATTR_SIZE_MAX as usize {
        return Err(Errno::E2BIG);
    }
    let mut bytes = alloc::vec![0; size];
    thread.mm().read_bytes(value, &mut bytes)?;
    check_name(thread, &place, &name, perm::WRITE)?;
    if name == CAPABILITY && size > 0 {
        check_capability(&bytes)?;
        let user = &thread.creds().user;
        if !user.is_initial() {
            bytes = FileCaps::from_user(&bytes, user)?;
        }
    }
    place.inode().set_xattr(&name, &bytes, flags)?;
    notify::event(&place, IN_ATTRIB);
    Ok(0)
}

/// setxattr(2).
pub fn setxattr(
    thread: &Arc<Thread>,
    path: Va,
    name: Va,
    value: Va,
    size: usize,
    flags: u32,
) -> Result<usize> {
    set(thread, at_path(thread, path, 0)?, name, value, size, flags)
}

/// lsetxattr(2).
pub fn lsetxattr(
    thread: &Arc<Thread>,
    path: Va,
    name: Va,
    value: Va,
    size: usize,
    flags: u32,
) -> Result<usize> {
    set(thread, at_path(thread, path, AT_SYMLINK_NOFOLLOW)?, name, value, size, flags)
}

/// fsetxattr(2).
pub fn fsetxattr(
    thread: &Arc<Thread>,
    fd: Fd,
    name: Va,
    value: Va,
    size: usize,
    flags: u32,
) -> Result<usize> {
    set(thread, at_fd(thread, fd)?, name, value, size, flags)
}

/// setxattrat(2).
pub fn setxattrat(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: Va,
    at_flags: u32,
    name: Va,
    args: Va,
    size: usize,
) -> Result<usize> {
    let args: XattrArgs = thread.mm().read_sized(args, size, size_of::<XattrArgs>())?;
    let XattrArgs { value, size, flags } = args;
    set(thread, at(thread, dirfd, path, at_flags)?, name, Va(value), size as usize, flags)
}

fn list(thread: &Arc<Thread>, place: Location, out: Va, size: usize) -> Result<usize> {
    let mut names = place.inode().list_xattr()?;
    if !thread.creds().capable(CAP_SYS_ADMIN) {
        let visible = names.split_inclusive(|b| *b == 0).filter(|n| !n.starts_with(b"trusted."));
        names = visible.flatten().copied().collect();
    }
    if names.len() > XATTR_LIST_MAX as usize {
        return Err(Errno::E2BIG);
    }
    give(thread, &names, out, size)
}

/// listxattr(2).
pub fn listxattr(thread: &Arc<Thread>, path: Va, out: Va, size: usize) -> Result<usize> {
    list(thread, at_path(thread, path, 0)?, out, size)
}

/// llistxattr(2).
pub fn llistxattr(thread: &Arc<Thread>, path: Va, out: Va, size: usize) -> Result<usize> {
    list(thread, at_path(thread, path, AT_SYMLINK_NOFOLLOW)?, out, size)
}

/// flistxattr(2).
pub fn flistxattr(thread: &Arc<Thread>, fd: Fd, out: Va, size: usize) -> Result<usize> {
    list(thread, at_fd(thread, fd)?, out, size)
}

/// listxattrat(2).
pub fn listxattrat(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: Va,
    at_flags: u32,
    out: Va,
    size: usize,
) -> Result<usize> {
    list(thread, at(thread, dirfd, path, at_flags)?, out, size)
}

fn remove(thread: &Arc<Thread>, place: Location, name: Va) -> Result<usize> {
    let name = name_at(thread, name)?;
    check_name(thread, &place, &name, perm::WRITE)?;
    place.inode().remove_xattr(&name)?;
    notify::event(&place, IN_ATTRIB);
    Ok(0)
}

/// removexattr(2).
pub fn removexattr(thread: &Arc<Thread>, path: Va, name: Va) -> Result<usize> {
    remove(thread, at_path(thread, path, 0)?, name)
}

/// lremovexattr(2).
pub fn lremovexattr(thread: &Arc<Thread>, path: Va, name: Va) -> Result<usize> {
    remove(thread, at_path(thread, path, AT_SYMLINK_NOFOLLOW)?, name)
}

/// fremovexattr(2).
pub fn fremovexattr(thread: &Arc<Thread>, fd: Fd, name: Va) -> Result<usize> {
    remove(thread, at_fd(thread, fd)?, name)
}

/// removexattrat(2).
pub fn removexattrat(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: Va,
    at_flags: u32,
    name: Va,
) -> Result<usize> {
    remove(thread, at(thread, dirfd, path, at_flags)?, name)
}
