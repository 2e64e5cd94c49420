//! Names: unlink(2), rename(2), link(2), symlink(2), mknod(2).

use alloc::sync::Arc;

use linux_raw_sys::general::{
    AT_EMPTY_PATH, AT_FDCWD, AT_REMOVEDIR, AT_SYMLINK_FOLLOW, CAP_DAC_READ_SEARCH, RENAME_EXCHANGE,
    RENAME_NOREPLACE, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK,
};
use qlib::Va;

use super::open::path_at;
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::fs::attr::device_from_user;
use crate::fs::dentry::Dentry;
use crate::fs::inode::Rename;
use crate::fs::landlock::Move;
use crate::fs::open::{check_may_change, make_node, new_node, walk};
use crate::fs::remove::{check_may_remove, remove};
use crate::fs::walk::{NameTarget, WalkFlags};
use crate::fs::{Fd, Location, landlock, mount, notify, perm};
use crate::task::Thread;

/// unlink(2).
pub fn unlink(thread: &Arc<Thread>, path: Va) -> Result<usize> {
    let path = path_at(thread, path)?;
    remove(thread, AT_FDCWD, &path, false).map(|()| 0)
}

/// unlinkat(2).
pub fn unlinkat(thread: &Arc<Thread>, dirfd: Fd, path: Va, flags: u32) -> Result<usize> {
    if flags & !AT_REMOVEDIR != 0 {
        return Err(Errno::EINVAL);
    }
    let path = path_at(thread, path)?;
    remove(thread, dirfd, &path, flags & AT_REMOVEDIR != 0).map(|()| 0)
}

/// rename(2).
pub fn rename(thread: &Arc<Thread>, old: Va, new: Va) -> Result<usize> {
    renameat2(thread, AT_FDCWD, old, AT_FDCWD, new, 0)
}

/// renameat(2).
pub fn renameat(thread: &Arc<Thread>, old_dir: Fd, old: Va, new_dir: Fd, new: Va) -> Result<usize> {
    renameat2(thread, old_dir, old, new_dir, new, 0)
}

/// renameat2(2).
pub fn renameat2(
    thread: &Arc<Thread>,
    old_dir: Fd,
    old: Va,
    new_dir: Fd,
    new: Va,
    flags: u32,
) -> Result<usize> {
    if flags & !(RENAME_NOREPLACE | RENAME_EXCHANGE) != 0
        || flags == RENAME_NOREPLACE | RENAME_EXCHANGE
    {
        return Err(Errno::EINVAL);
    }
    let (old, new) = (path_at(thread, old)?, path_at(thread, new)?);
    let exchange = flags & RENAME_EXCHANGE != 0;
    let from = walk(thread, old_dir, &old, WalkFlags::NAME)?.name(Errno::EBUSY)?;
    let flags_of_new = WalkFlags::NAME | WalkFlags::NEVER_MADE;
    let to = walk(thread, new_dir, &new, flags_of_new)?.name(Errno::EBUSY)?;
    if !Arc::ptr_eq(&from.parent.mount, &to.parent.mount) {
        return Err(Errno::EXDEV);
    }
    let child = from.found.ok_or(Errno::ENOENT)?;
    let is_dir = child.inode().is_dir();
    if !is_dir && (from.wants_dir || !exchange && to.wants_dir) {
        return Err(Errno::ENOTDIR);
    }
    if to.found.is_some() && flags & RENAME_NOREPLACE != 0 {
        return Err(Errno::EEXIST);
    }
    if to.found.is_none() && exchange {
        return Err(Errno::ENOENT);
    }
    if is_dir && child.dentry.is_above(&to.parent.dentry) {
        return Err(Errno::EINVAL);
    }
    let creds = thread.creds();
    check_may_remove(&creds, &from.parent, &child)?;
    match &to.found {
        None => {
            check_may_change(&creds, &to.parent)?;
        }
        Some(replaced) => {
            check_may_remove(&creds, &to.parent, replaced)?;
            if Arc::ptr_eq(&replaced.dentry, &child.dentry) || is_same_file(&child, replaced)? {
                return Ok(0);
            }
            let replaced_is_dir = replaced.inode().is_dir();
            if replaced_is_dir && replaced.dentry.is_above(&from.parent.dentry) {
                return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
            }
            match (is_dir, replaced_is_dir) {
                _ if exchange => {}
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                _ => {}
            }
        }
    }
    let names = Move {
        child: &child,
        from: &from.parent,
        to: &to.parent,
        replaced: to.found.as_ref(),
        is_link: false,
        exchanges: exchange,
    };
    landlock::check_move(&creds, &names)?;
    let replaced = to.found.as_ref().map(|l| l.inode().clone());
    let rename = Rename {
        child: child.inode(),
        to: to.parent.inode(),
        to_name: &to.name,
        replaced: replaced.as_ref(),
        flags,
    };
    from.parent.inode().rename(&from.name, &rename)?;
    match &to.found {
        Some(replaced) if exchange => Dentry::exchange(&child.dentry, &replaced.dentry),
        other => {
            if let Some(replaced) = other {
                to.parent.dentry.forget(&replaced.dentry);
            }
            from.parent.dentry.rename_child(&child.dentry, &to.parent.dentry, &to.name);
        }
    }
    notify::moved((&from.parent, &from.name), (&to.parent, &to.name), &child);
    if let Some(replaced) = to.found.as_ref().filter(|_| !exchange) {
        mount::detach_from(&replaced.dentry);
        if !replaced.inode().is_dir() {
            notify::links_changed(replaced);
        }
        notify::is_gone(replaced);
    }
    Ok(0)
}

/// True if both are names of one file: rename(2) does nothing then.
fn is_same_file(a: &Location, b: &Location) -> Result<bool> {
    if a.inode().kind() != b.inode().kind() || a.inode().is_dir() {
        return Ok(false);
    }
    Ok(a.attributes()?.id() == b.attributes()?.id())
}

/// link(2).
pub fn link(thread: &Arc<Thread>, old: Va, new: Va) -> Result<usize> {
    linkat(thread, AT_FDCWD, old, AT_FDCWD, new, 0)
}

/// linkat(2).
pub fn linkat(
    thread: &Arc<Thread>,
    old_dir: Fd,
    old: Va,
    new_dir: Fd,
    new: Va,
    flags: u32,
) -> Result<usize> {
    if flags & !(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let (old, new) = (path_at(thread, old)?, path_at(thread, new)?);
    let mut walk_flags = WalkFlags::empty();
    walk_flags.set(WalkFlags::FOLLOW, flags & AT_SYMLINK_FOLLOW != 0);
    walk_flags.set(WalkFlags::EMPTY, flags & AT_EMPTY_PATH != 0);
    if old.is_empty() && flags & AT_EMPTY_PATH != 0 && !thread.creds().capable(CAP_DAC_READ_SEARCH)
    {
        // A descriptor that somebody handed over is no way to the file's name.
        return Err(Errno::ENOENT);
    }
    let source = walk(thread, old_dir, &old, walk_flags)?.existing()?;
    let NameTarget { parent, name, found, wants_dir } =
        walk(thread, new_dir, &new, WalkFlags::NAME)?.name(Errno::EEXIST)?;
    if found.is_some() {
        return Err(Errno::EEXIST);
    }
    if wants_dir {
        return Err(Errno::ENOENT);
    }
    if !Arc::ptr_eq(&source.mount, &parent.mount) {
        return Err(Errno::EXDEV);
    }
    if source.inode().is_dir() {
        return Err(Errno::EPERM);
    }
    let creds = thread.creds();
    check_may_change(&creds, &parent)?;
    check_protected_link(&creds, &source)?;
    check_link(&creds, &source, &parent)?;
    let inode = parent.inode().clone().link(&name, source.inode())?;
    let made = parent.dentry.insert(&name, inode);
    notify::links_changed(&source);
    notify::created(&parent, &name, &made);
    Ok(0)
}

/// Checks a link by the rules of landlock(7).
fn check_link(creds: &Creds, source: &Location, to: &Location) -> Result {
    if creds.domain.is_free() {
        return Ok(());
    }
    let (child, from) = (source, &landlock::parent(source));
    let names = Move { child, from, to, replaced: None, is_link: true, exchanges: false };
    landlock::check_move(creds, &names)
}

/// fs.protected_hardlinks (proc(5)): only one's own files, or plain ones that one may read and
/// write, get further names.
fn check_protected_link(creds: &Creds, source: &Location) -> Result {
    use linux_raw_sys::general::{S_ISGID, S_ISUID, S_IXGRP};
    let file = source.attributes()?;
    if perm::check_owner(creds, &file).is_ok() {
        return Ok(());
    }
    let elevated = file.mode & S_ISUID != 0 || file.mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP;
    if file.is_regular() && !elevated && perm::check(creds, &file, perm::READ | perm::WRITE).is_ok()
    {
        return Ok(());
    }
    Err(Errno::EPERM)
}

/// symlink(2).
pub fn symlink(thread: &Arc<Thread>, target: Va, path: Va) -> Result<usize> {
    symlinkat(thread, target, AT_FDCWD, path)
}

/// symlinkat(2).
pub fn symlinkat(thread: &Arc<Thread>, target: Va, dirfd: Fd, path: Va) -> Result<usize> {
    let (target, path) = (path_at(thread, target)?, path_at(thread, path)?);
    if target.is_empty() {
        return Err(Errno::ENOENT);
    }
    let NameTarget { parent, name, found, wants_dir } =
        walk(thread, dirfd, &path, WalkFlags::NAME)?.name(Errno::EEXIST)?;
    if found.is_some() {
        return Err(Errno::EEXIST);
    }
    if wants_dir {
        return Err(Errno::ENOENT);
    }
    let creds = thread.creds();
    let directory = check_may_change(&creds, &parent)?;
    landlock::check_make(&creds, &parent, S_IFLNK)?;
    let new = new_node(thread, &creds, &directory, S_IFLNK | 0o777, 0);
    let inode = parent.inode().clone().make_symlink(&name, &target, &new)?;
    let made = parent.dentry.insert(&name, inode);
    notify::created(&parent, &name, &made);
    Ok(0)
}

/// mknod(2).
pub fn mknod(thread: &Arc<Thread>, path: Va, mode: u32, device: u64) -> Result<usize> {
    mknodat(thread, AT_FDCWD, path, mode, device)
}

/// mknodat(2).
pub fn mknodat(thread: &Arc<Thread>, dirfd: Fd, path: Va, mode: u32, device: u64) -> Result<usize> {
    let path = path_at(thread, path)?;
    let kind = match mode & S_IFMT {
        0 | S_IFREG => S_IFREG,
        kind @ (S_IFIFO | S_IFSOCK | S_IFCHR | S_IFBLK) => kind,
        S_IFDIR => return Err(Errno::EPERM),
        _ => return Err(Errno::EINVAL),
    };
    make_node(thread, dirfd, &path, kind | mode & 0o7777, device_from_user(device)).map(|_| 0)
}
