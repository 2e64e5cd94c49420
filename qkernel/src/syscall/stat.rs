//! stat(2), statx(2), access(2), statfs(2), ustat(2), readlink(2).

use alloc::sync::Arc;

use linux_raw_sys::general::{
    AT_EACCESS, AT_EMPTY_PATH, AT_FDCWD, AT_NO_AUTOMOUNT, AT_STATX_DONT_SYNC, AT_STATX_FORCE_SYNC,
    AT_SYMLINK_NOFOLLOW, STATX_MNT_ID_UNIQUE,
};
use qlib::Va;

use super::open::{path_at, path_or_null};
use crate::abi::abi_struct;
use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, MountNumber, StatFs, device_to_user};
use crate::fs::inode::Link;
use crate::fs::mount::{self, Mount, ST_VALID};
use crate::fs::open::{walk, walk_as, walk_flags};
use crate::fs::walk::WalkFlags;
use crate::fs::{self, Fd, perm};
use crate::task::Thread;

/// Attributes of what `path` leads to; an empty path with AT_EMPTY_PATH is the open file itself.
fn attributes_at(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: &[u8],
    at_flags: u32,
) -> Result<(Attributes, u32)> {
    if path.is_empty() && at_flags & AT_EMPTY_PATH != 0 && dirfd != AT_FDCWD {
        let file = thread.files().get(dirfd)?;
        let mount = file.path.as_ref().map_or(0, |p| p.mount.id);
        return Ok((file.attributes()?, mount));
    }
    let place = fs::lookup(thread, dirfd, path, at_flags)?;
    Ok((place.attributes()?, place.mount.id))
}

/// As `thread` sees them: with the ids of its user namespace.
fn shown(thread: &Thread, attributes: &Attributes) -> Attributes {
    let creds = thread.creds();
    let (uid, gid) = (creds.uid_shown(attributes.uid), creds.gid_shown(attributes.gid));
    Attributes { uid, gid, ..*attributes }
}

fn put_stat(thread: &Arc<Thread>, attributes: &Attributes, out: Va) -> Result<usize> {
    thread.mm().write(out, &shown(thread, attributes).to_stat())?;
    Ok(0)
}

/// stat(2).
pub fn stat(thread: &Arc<Thread>, path: Va, out: Va) -> Result<usize> {
    newfstatat(thread, AT_FDCWD, path, out, 0)
}

/// lstat(2).
pub fn lstat(thread: &Arc<Thread>, path: Va, out: Va) -> Result<usize> {
    newfstatat(thread, AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW)
}

/// fstat(2).
pub fn fstat(thread: &Arc<Thread>, fd: Fd, out: Va) -> Result<usize> {
    let attributes = thread.files().get(fd)?.attributes()?;
    put_stat(thread, &attributes, out)
}

/// newfstatat(2).
pub fn newfstatat(thread: &Arc<Thread>, dirfd: Fd, path: Va, out: Va, flags: u32) -> Result<usize> {
    if flags & !(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH | AT_NO_AUTOMOUNT) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = path_or_null(thread, path, flags & AT_EMPTY_PATH != 0)?;
    let (attributes, _) = attributes_at(thread, dirfd, &path, flags)?;
    put_stat(thread, &attributes, out)
}

/// statx(2).
pub fn statx(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: Va,
    flags: u32,
    mask: u32,
    out: Va,
) -> Result<usize> {
    let known = AT_SYMLINK_NOFOLLOW
        | AT_EMPTY_PATH
        | AT_NO_AUTOMOUNT
        | AT_STATX_FORCE_SYNC
        | AT_STATX_DONT_SYNC;
    let both = AT_STATX_FORCE_SYNC | AT_STATX_DONT_SYNC;
    if flags & !known != 0 || flags & both == both || mask & 1 << 31 != 0 {
        return Err(Errno::EINVAL);
    }
    let path = path_or_null(thread, path, flags & AT_EMPTY_PATH != 0)?;
    let (attributes, mount) = attributes_at(thread, dirfd, &path, flags)?;
    let number = match mask & STATX_MNT_ID_UNIQUE {
        0 => MountNumber::Plain(u64::from(mount)),
        _ => MountNumber::Unique(mount::unique_id(mount)),
    };
    thread.mm().write(out, &shown(thread, &attributes).to_statx(number))?;
    Ok(0)
}

/// access(2).
pub fn access(thread: &Arc<Thread>, path: Va, mode: u32) -> Result<usize> {
    faccessat2(thread, AT_FDCWD, path, mode, 0)
}

/// faccessat(2).
pub fn faccessat(thread: &Arc<Thread>, dirfd: Fd, path: Va, mode: u32) -> Result<usize> {
    faccessat2(thread, dirfd, path, mode, 0)
}

/// faccessat2(2).
pub fn faccessat2(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: Va,
    mode: u32,
    flags: u32,
) -> Result<usize> {
    if mode & !7 != 0 || flags & !(AT_EACCESS | AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let mut creds = (*thread.creds()).clone();
    if flags & AT_EACCESS == 0 {
        (creds.fsuid, creds.fsgid) = (creds.uid, creds.gid);
        if !creds.user.is_root(creds.uid) {
            creds.cap_effective = 0;
        } else {
            creds.cap_effective = creds.cap_permitted;
        }
    }
    let path = path_or_null(thread, path, flags & AT_EMPTY_PATH != 0)?;
    let place = walk_as(thread, &creds, dirfd, &path, walk_flags(flags))?.existing()?;
    let attributes = place.attributes()?;
    if mode == 0 {
        return Ok(0);
    }
    perm::check(&creds, &attributes, mode)?;
    if mode & perm::WRITE != 0
        && (attributes.is_regular() || attributes.is_dir() || attributes.is_symlink())
    {
        place.mount.check_writable()?;
    }
    if mode & perm::EXEC != 0
        && attributes.is_regular()
        && place.mount.flags().contains(fs::mount::MountFlags::NOEXEC)
    {
        return Err(Errno::EACCES);
    }
    Ok(0)
}

/// readlink(2).
pub fn readlink(thread: &Arc<Thread>, path: Va, buffer: Va, size: i32) -> Result<usize> {
    readlinkat(thread, AT_FDCWD, path, buffer, size)
}

/// readlinkat(2).
pub fn readlinkat(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: Va,
    buffer: Va,
    size: i32,
) -> Result<usize> {
    let size = usize::try_from(size).ok().filter(|s| *s > 0).ok_or(Errno::EINVAL)?;
    let path = path_at(thread, path)?;
    let was_empty = path.is_empty();
    let place = walk(thread, dirfd, &path, WalkFlags::EMPTY)?.existing()?;
    if !place.inode().is_symlink() {
        return Err(if was_empty { Errno::ENOENT } else { Errno::EINVAL });
    }
    let target = match place.inode().read_link(Some(thread))? {
        Link::Path(path) => path,
        Link::Place(target) => fs::open::path_of(thread, &target),
    };
    let len = target.len().min(size);
    thread.mm().write_bytes(buffer, &target[..len])?;
    Ok(len)
}

abi_struct! {
    /// struct ustat, with the room at its end.
    pub struct UStat { pub tfree: i32, pub pad: u32, pub tinode: u64, pub names: [u8; 16], }
}

/// ustat(2): of the file system with this device number, as 32 bits.
pub fn ustat(thread: &Arc<Thread>, dev: u32, out: Va) -> Result<usize> {
    let namespace = thread.namespaces().mnt.number;
    let has_number = |mount: &Arc<Mount>| {
        let number = mount.fs.root().attributes().map(|root| device_to_user(root.dev));
        mount.namespace() == namespace && number == Ok(u64::from(dev))
    };
    let found = mount::all().find(has_number).ok_or(Errno::EINVAL)?;
    let free = found.fs.statfs()?;
    let out_of = UStat { tfree: free.bfree as i32, tinode: free.ffree, ..UStat::default() };
    thread.mm().write(out, &out_of)?;
    Ok(0)
}

fn put_statfs(thread: &Arc<Thread>, mut answer: StatFs, flags: u32, out: Va) -> Result<usize> {
    answer.flags = i64::from(flags);
    thread.mm().write(out, &answer)?;
    Ok(0)
}

/// statfs(2).
pub fn statfs(thread: &Arc<Thread>, path: Va, out: Va) -> Result<usize> {
    let path = path_at(thread, path)?;
    let place = fs::lookup(thread, AT_FDCWD, &path, 0)?;
    put_statfs(thread, place.dentry.fs.statfs()?, place.mount.st_flags(), out)
}

/// fstatfs(2).
pub fn fstatfs(thread: &Arc<Thread>, fd: Fd, out: Va) -> Result<usize> {
    let file = thread.files().get(fd)?;
    let flags = file.path.as_ref().map_or(ST_VALID, |p| p.mount.st_flags());
    put_statfs(thread, file.ops.statfs(&file)?, flags, out)
}
