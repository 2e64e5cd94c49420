//! Directories: getdents64(2), chdir(2), getcwd(2), chroot(2), mkdir(2), rmdir(2).

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{AT_FDCWD, CAP_SYS_CHROOT, IN_ACCESS, S_IFDIR};
use qlib::Va;

use super::open::path_at;
use crate::errno::{Errno, Result};
use crate::fs::file::DirEntry;
use crate::fs::inode::Caching;
use crate::fs::open::{check_may_change, new_node, walk};
use crate::fs::remove::remove;
use crate::fs::walk::{NameTarget, PATH_MAX, WalkFlags};
use crate::fs::{self, Fd, Location, OpenFile, ask, landlock, notify, perm};
use crate::task::Thread;

/// True if it is a directory that was removed, of a file system that changes only here: elsewhere a
/// name that is gone may mean another one, and whoever keeps the directory says so itself.
fn is_removed_dir(place: &Location) -> bool {
    let inode = place.inode();
    place.dentry.is_unlinked() && inode.is_dir() && inode.caching() == Caching::Keep
}

/// A directory that is about to be listed, in the form that `put` writes.
pub struct List<'a> {
    thread: &'a Arc<Thread>,
    file: Arc<OpenFile>,
    out: Va,
    count: usize,
    put: fn(&mut Vec<u8>, &DirEntry<'_>),
}

impl List<'_> {
    /// Lists it if nobody may have to be asked; `None`: nothing has been done.
    pub fn attempt(self) -> Option<Result<usize>> {
        if ask::guards(&self.file) { None } else { Some(self.list()) }
    }

    /// Lists it, if that is allowed.
    pub async fn complete(self) -> Result<usize> {
        ask::before_reading(self.thread, &self.file).await?;
        self.list()
    }

    fn list(&self) -> Result<usize> {
        list(self.thread, &self.file, self.out, self.count, self.put)
    }
}

fn list(
    thread: &Arc<Thread>,
    file: &OpenFile,
    out: Va,
    count: usize,
    put: fn(&mut Vec<u8>, &DirEntry<'_>),
) -> Result<usize> {
    if file.path.as_ref().is_some_and(is_removed_dir) {
        return Err(Errno::ENOENT);
    }
    let capacity = count.min(64 << 10);
    let mut bytes: Vec<u8> = Vec::with_capacity(capacity.min(32 << 10));
    let mut too_small = false;
    let position = *file.position.lock();
    let position = file.ops.read_dir(file, position, &mut |entry| {
        let before = bytes.len();
        put(&mut bytes, &entry);
        if bytes.len() > capacity {
            bytes.truncate(before);
            too_small = before == 0;
            return false;
        }
        true
    })?;
    if too_small {
        return Err(Errno::EINVAL);
    }
    notify::file_event(file, IN_ACCESS);
    thread.mm().write_bytes(out, &bytes)?;
    *file.position.lock() = position;
    Ok(bytes.len())
}

fn put_dirent64(bytes: &mut Vec<u8>, entry: &DirEntry<'_>) {
    let len = (19 + entry.name.len() + 1).next_multiple_of(8);
    let end = bytes.len() + len;
    bytes.extend_from_slice(&entry.ino.to_le_bytes());
    bytes.extend_from_slice(&entry.next.to_le_bytes());
    bytes.extend_from_slice(&(len as u16).to_le_bytes());
    bytes.push(entry.kind);
    bytes.extend_from_slice(entry.name);
    bytes.resize(end, 0);
}

fn put_dirent(bytes: &mut Vec<u8>, entry: &DirEntry<'_>) {
    let len = (18 + entry.name.len() + 2).next_multiple_of(8);
    let end = bytes.len() + len;
    bytes.extend_from_slice(&entry.ino.to_le_bytes());
    bytes.extend_from_slice(&entry.next.to_le_bytes());
    bytes.extend_from_slice(&(len as u16).to_le_bytes());
    bytes.extend_from_slice(entry.name);
    bytes.resize(end - 1, 0);
    bytes.push(entry.kind);
}

/// getdents64(2).
pub fn getdents64(thread: &Arc<Thread>, fd: Fd, out: Va, count: u32) -> Result<List<'_>> {
    let file = thread.files().opened(fd)?;
    Ok(List { thread, file, out, count: count as usize, put: put_dirent64 })
}

/// getdents(2).
pub fn getdents(thread: &Arc<Thread>, fd: Fd, out: Va, count: u32) -> Result<List<'_>> {
    let file = thread.files().opened(fd)?;
    Ok(List { thread, file, out, count: count as usize, put: put_dirent })
}

/// getcwd(2).
pub fn getcwd(thread: &Arc<Thread>, out: Va, size: usize) -> Result<usize> {
    let context = thread.fs();
    if context.cwd.dentry.is_unlinked() {
        return Err(Errno::ENOENT);
    }
    let (path, reachable) = context.cwd.path_and_reach(&context.root);
    let mut bytes = if reachable { Vec::new() } else { b"(unreachable)".to_vec() };
    bytes.extend_from_slice(&path);
    bytes.push(0);
    if bytes.len() > PATH_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if bytes.len() > size {
        return Err(Errno::ERANGE);
    }
    thread.mm().write_bytes(out, &bytes)?;
    Ok(bytes.len())
}

/// A directory that the thread may enter.
fn enterable(thread: &Arc<Thread>, place: Location) -> Result<Location> {
    if !place.inode().is_dir() {
        return Err(Errno::ENOTDIR);
    }
    perm::check(&thread.creds(), &place.attributes()?, perm::EXEC)?;
    Ok(place)
}

/// chdir(2).
pub fn chdir(thread: &Arc<Thread>, path: Va) -> Result<usize> {
    let path = path_at(thread, path)?;
    let place = enterable(thread, fs::lookup(thread, AT_FDCWD, &path, 0)?)?;
    set_cwd(thread, place);
    Ok(0)
}

/// fchdir(2).
pub fn fchdir(thread: &Arc<Thread>, fd: Fd) -> Result<usize> {
    let file = thread.files().get(fd)?;
    let place = enterable(thread, file.path.clone().ok_or(Errno::ENOTDIR)?)?;
    set_cwd(thread, place);
    Ok(0)
}

fn set_cwd(thread: &Arc<Thread>, mut place: Location) {
    thread.update_fs(|fs| core::mem::swap(&mut fs.cwd, &mut place));
    // The old directory is let go of here, outside the lock.
    drop(place);
}

/// chroot(2).
pub fn chroot(thread: &Arc<Thread>, path: Va) -> Result<usize> {
    let path = path_at(thread, path)?;
    let mut place = enterable(thread, fs::lookup(thread, AT_FDCWD, &path, 0)?)?;
    if !thread.creds().capable_here(CAP_SYS_CHROOT) {
        return Err(Errno::EPERM);
    }
    thread.update_fs(|fs| core::mem::swap(&mut fs.root, &mut place));
    drop(place);
    Ok(0)
}

/// umask(2).
pub fn umask(thread: &Arc<Thread>, mask: u32) -> Result<usize> {
    let mut old = 0;
    thread.update_fs(|fs| old = core::mem::replace(&mut fs.umask, mask & 0o777));
    Ok(old as usize)
}

/// mkdir(2).
pub fn mkdir(thread: &Arc<Thread>, path: Va, mode: u32) -> Result<usize> {
    mkdirat(thread, AT_FDCWD, path, mode)
}

/// mkdirat(2).
pub fn mkdirat(thread: &Arc<Thread>, dirfd: Fd, path: Va, mode: u32) -> Result<usize> {
    let path = path_at(thread, path)?;
    let NameTarget { parent, name, found, .. } =
        walk(thread, dirfd, &path, WalkFlags::NAME)?.name(Errno::EEXIST)?;
    if found.is_some() {
        return Err(Errno::EEXIST);
    }
    let creds = thread.creds();
    let directory = check_may_change(&creds, &parent)?;
    landlock::check_make(&creds, &parent, S_IFDIR)?;
    let new = new_node(thread, &creds, &directory, S_IFDIR | mode & 0o1777, 0);
    let inode = parent.inode().clone().make_dir(&name, &new)?;
    let made = parent.dentry.insert(&name, inode);
    notify::created(&parent, &name, &made);
    Ok(0)
}

/// rmdir(2).
pub fn rmdir(thread: &Arc<Thread>, path: Va) -> Result<usize> {
    let path = path_at(thread, path)?;
    remove(thread, AT_FDCWD, &path, true).map(|()| 0)
}
