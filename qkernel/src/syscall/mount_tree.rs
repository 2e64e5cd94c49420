//! open_tree(2), move_mount(2), mount_setattr(2): mounts by descriptors.

use alloc::sync::Arc;

use linux_raw_sys::general::{
    AT_EMPTY_PATH, AT_NO_AUTOMOUNT, AT_RECURSIVE, AT_SYMLINK_NOFOLLOW, MOUNT_ATTR__ATIME,
    MOUNT_ATTR_SIZE_VER0, MOVE_MOUNT__MASK, MOVE_MOUNT_BENEATH, MOVE_MOUNT_F_EMPTY_PATH,
    MOVE_MOUNT_F_SYMLINKS, MOVE_MOUNT_SET_GROUP, MOVE_MOUNT_T_EMPTY_PATH, MOVE_MOUNT_T_SYMLINKS,
    MS_REC, O_CLOEXEC, O_PATH, OPEN_TREE_CLOEXEC, OPEN_TREE_CLONE,
};
use qlib::Va;

use super::install;
use super::mount::{
    PROPAGATION, change_propagation, check_admin, check_own, check_source, check_younger,
};
use super::open::path_at;
use crate::abi::abi_struct;
use crate::errno::{Errno, Result};
use crate::fs::mount::{Mount, MountFlags, detached};
use crate::fs::open::open_place;
use crate::fs::{self, Fd, Location};
use crate::task::Thread;

abi_struct! {
    /// struct mount_attr.
    pub struct MountAttr {
        pub attr_set: u64, pub attr_clr: u64, pub propagation: u64, pub userns_fd: u64,
    }
}

/// open_tree(2).
pub fn open_tree(thread: &Arc<Thread>, dirfd: Fd, path: Va, flags: u32) -> Result<usize> {
    let known = AT_EMPTY_PATH
        | AT_NO_AUTOMOUNT
        | AT_RECURSIVE
        | AT_SYMLINK_NOFOLLOW
        | OPEN_TREE_CLOEXEC
        | OPEN_TREE_CLONE;
    let (clones, recursive) = (flags & OPEN_TREE_CLONE != 0, flags & AT_RECURSIVE != 0);
    if flags & !known != 0 || recursive && !clones {
        return Err(Errno::EINVAL);
    }
    if clones {
        check_admin(thread)?;
    }
    let place = fs::lookup(thread, dirfd, &path_at(thread, path)?, flags)?;
    let file = if clones {
        let own = thread.namespaces().mnt.clone();
        check_younger(&own, &place)?;
        check_source(&own, &place)?;
        let recursive = recursive && own.check_in(&place.mount).is_ok();
        let copy = Mount::cloned(&place, recursive, own.user.number)?;
        detached::file(&copy, &own.user)
    } else {
        open_place(thread, &thread.creds(), place, O_PATH, false)?
    };
    install::one(thread, file, flags & O_CLOEXEC != 0)
}

/// move_mount(2).
pub fn move_mount(
    thread: &Arc<Thread>,
    from_dirfd: Fd,
    from_path: Va,
    to_dirfd: Fd,
    to_path: Va,
    flags: u32,
) -> Result<usize> {
    check_admin(thread)?;
    // As on Linux before 6.5 nothing goes beneath what is there.
    if flags & !MOVE_MOUNT__MASK != 0 || flags & MOVE_MOUNT_BENEATH != 0 {
        return Err(Errno::EINVAL);
    }
    let at_flags = |symlinks: u32, empty_path: u32| {
        let follow = if flags & symlinks != 0 { 0 } else { AT_SYMLINK_NOFOLLOW };
        follow | if flags & empty_path != 0 { AT_EMPTY_PATH } else { 0 }
    };
    let from_flags = at_flags(MOVE_MOUNT_F_SYMLINKS, MOVE_MOUNT_F_EMPTY_PATH);
    let to_flags = at_flags(MOVE_MOUNT_T_SYMLINKS, MOVE_MOUNT_T_EMPTY_PATH);
    let from = fs::lookup(thread, from_dirfd, &path_at(thread, from_path)?, from_flags)?;
    let to = fs::lookup(thread, to_dirfd, &path_at(thread, to_path)?, to_flags)?;
    if flags & MOVE_MOUNT_SET_GROUP != 0 {
        return set_group(thread, &from, &to);
    }
    check_own(thread, &to.mount)?;
    let is_detached = check_own_or_detached(thread, &from.mount)?;
    if to.dentry.is_unlinked() {
        return Err(Errno::ENOENT);
    }
    if !from.is_mount_root() || from.inode().is_dir() != to.inode().is_dir() {
        return Err(Errno::EINVAL);
    }
    if !is_detached {
        from.mount.move_to(to)?;
        return Ok(0);
    }
    let own = thread.namespaces().mnt.clone();
    for mount in from.mount.tree() {
        check_younger(&own, &mount.location()).map_err(|_| Errno::ELOOP)?;
    }
    from.mount.put_in_tree(to)?;
    Ok(0)
}

/// True if a mount is the root of a tree that lies nowhere. EINVAL if it is in another mount
/// namespace.
fn check_own_or_detached(thread: &Arc<Thread>, mount: &Mount) -> Result<bool> {
    let is_detached = mount.is_detached();
    if !is_detached {
        check_own(thread, mount)?;
    }
    Ok(is_detached)
}

/// MOVE_MOUNT_SET_GROUP.
fn set_group(thread: &Arc<Thread>, from: &Location, to: &Location) -> Result<usize> {
    check_own(thread, &from.mount)?;
    check_own(thread, &to.mount)?;
    if !from.is_mount_root() || !to.is_mount_root() {
        return Err(Errno::EINVAL);
    }
    to.mount.join_group_of(&from.mount)?;
    Ok(0)
}

/// mount_setattr(2).
pub fn mount_setattr(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: Va,
    flags: u32,
    attr: Va,
    size: usize,
) -> Result<usize> {
    let known = AT_EMPTY_PATH | AT_RECURSIVE | AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT;
    if flags & !known != 0 {
        return Err(Errno::EINVAL);
    }
    let least = MOUNT_ATTR_SIZE_VER0 as usize;
    let attr: MountAttr = thread.mm().read_sized(attr, size, least)?;
    check_admin(thread)?;
    let MountAttr { attr_set, attr_clr, propagation, .. } = attr;
    if attr_set == 0 && attr_clr == 0 && propagation == 0 {
        return Ok(0);
    }
    let propagation = u32::try_from(propagation).map_err(|_| Errno::EINVAL)?;
    if propagation & !PROPAGATION != 0 || propagation.count_ones() > 1 {
        return Err(Errno::EINVAL);
    }
    let (set, clear) = change_of(attr_set, attr_clr)?;
    let place = fs::lookup(thread, dirfd, &path_at(thread, path)?, flags)?;
    if !place.is_mount_root() {
        return Err(Errno::EINVAL);
    }
    check_own_or_detached(thread, &place.mount)?;
    let recursive = flags & AT_RECURSIVE != 0;
    let all = || place.mount.tree().take(if recursive { usize::MAX } else { 1 });
    let changed = |mount: &Mount| (mount.flags() - clear) | set;
    // All or none.
    for mount in all() {
        mount.check_locks(changed(&mount))?;
        if set.contains(MountFlags::RDONLY) && !mount.flags().contains(MountFlags::RDONLY) {
            mount.check_no_writers(false)?;
        }
    }
    all().for_each(|mount| mount.set_flags(changed(&mount)));
    if propagation != 0 {
        change_propagation(&place, propagation | if recursive { MS_REC } else { 0 })?;
    }
    Ok(0)
}

/// Which flags are set, and which are cleared before. Times of access are one number, which is set
/// only when it is cleared.
fn change_of(attr_set: u64, attr_clr: u64) -> Result<(MountFlags, MountFlags)> {
    let times = u64::from(MOUNT_ATTR__ATIME);
    if attr_clr & times == 0 {
        return Ok((MountFlags::from_single(attr_set)?, MountFlags::from_single(attr_clr)?));
    }
    if attr_clr & times != times {
        return Err(Errno::EINVAL);
    }
    let all_times = MountFlags::NOATIME | MountFlags::RELATIME;
    let clear = MountFlags::from_single(attr_clr & !times)? | all_times;
    Ok((MountFlags::from_attributes(attr_set)?, clear))
}
