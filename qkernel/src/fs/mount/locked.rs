//! What the root of a user namespace may not do to mounts that it has of others
//! (mount_namespaces(7), "Restrictions on mount namespaces"): those that come from a mount
//! namespace of a more privileged user namespace stay where they are, together, with their
//! restrictions. What is below them was hidden from it, or was to be read only.

use alloc::sync::Arc;
use core::any::Any;
use core::sync::atomic::Ordering;

use bitflags::bitflags;
use linux_raw_sys::general::{S_IFDIR, TMPFS_MAGIC};

use super::{Children, Mount, MountFlags, key};
use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, StatFs};
use crate::fs::dentry::Dentry;
use crate::fs::inode::{FileSystem, Inode, simple_statfs};
use crate::fs::{Caller, FileOps, Location};
use crate::sync::Once;
use crate::user_namespace::UserNs;

bitflags! {
    /// What of a mount is locked.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Locks: u32 {
        /// It stays where it is (MNT_LOCKED).
        const PLACE = 1;
        /// It stays read-only.
        const RDONLY = 1 << 1;
        /// It stays nosuid.
        const NOSUID = 1 << 2;
        /// It stays nodev.
        const NODEV = 1 << 3;
        /// It stays noexec.
        const NOEXEC = 1 << 4;
        /// It keeps the times of access that it keeps.
        const ATIME = 1 << 5;
    }
}

/// Which locks keep which flags.
const KEPT: [(Locks, MountFlags); 4] = [
    (Locks::RDONLY, MountFlags::RDONLY),
    (Locks::NOSUID, MountFlags::NOSUID),
    (Locks::NODEV, MountFlags::NODEV),
    (Locks::NOEXEC, MountFlags::NOEXEC),
];

impl Mount {
    /// The user namespace that its file system was mounted in: the container's own, or one whose
    /// root has mounted it.
    pub fn user(&self) -> &UserNs {
        &self.superblock.user
    }

    /// True if device nodes on it stand for devices: not with nodev, nor those that the root of a
    /// user namespace could have put there. (A devpts has none but its own.)
    pub fn opens_devices(&self) -> bool {
        let may_have = self.user().is_initial() || self.fs.type_name() == "devpts";
        may_have && !self.flags().contains(MountFlags::NODEV)
    }

    /// What of it is locked.
    pub fn locks(&self) -> Locks {
        Locks::from_bits_truncate(self.locks.load(Ordering::Relaxed))
    }

    /// Sets that.
    pub fn set_locks(&self, locks: Locks) {
        self.locks.store(locks.bits(), Ordering::Relaxed);
    }

    /// True if it must stay where it is.
    pub fn is_locked(&self) -> bool {
        self.locks().contains(Locks::PLACE)
    }

    /// It may be taken away.
    pub(super) fn unlock_place(&self) {
        self.set_locks(self.locks() - Locks::PLACE);
    }

    /// It and what lies on it are of a more privileged user namespace than the one where they are
    /// now: they stay as they are.
    pub(super) fn lock_tree(self: &Arc<Self>) {
        for mount in self.tree() {
            let flags = mount.flags();
            let kept = KEPT.into_iter().filter(|(_, flag)| flags.contains(*flag));
            let kept = kept.fold(Locks::empty(), |all, (lock, _)| all | lock);
            mount.set_locks(mount.locks() | kept | Locks::ATIME | Locks::PLACE);
        }
    }

    /// EPERM if it may not have these flags instead of its own.
    pub fn check_locks(&self, new: MountFlags) -> Result {
        let locks = self.locks();
        let loses = KEPT.iter().any(|(lock, flag)| locks.contains(*lock) && !new.contains(*flag));
        let changes = locks.contains(Locks::ATIME) && self.flags().times() != new.times();
        if loses || changes { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// True if something locked is mounted on what lies at `root` in it: without that nobody may
    /// have it elsewhere.
    pub(super) fn hides_below(&self, root: &Arc<Dentry>) -> bool {
        let mut id = 0;
        while let Some(child) = self.child_after(id) {
            id = child.id;
            let is_there = || child.point().is_some_and(|point| root.is_above(&point.dentry));
            if child.is_locked() && is_there() {
                return true;
            }
        }
        false
    }

    /// What a file system of this type has to be mounted with in a mount namespace of a user
    /// namespace (proc(5) and sysfs show what some of it may be hidden of): `Some` if all of such a
    /// one is seen here, with restrictions that are not more than those of `new`.
    fn shows_all(&self, new: MountFlags) -> Option<Locks> {
        let mut locks = self.locks() & (Locks::RDONLY | Locks::ATIME);
        if self.is_fs_readonly() {
            locks |= Locks::RDONLY;
        }
        let is_less = locks.contains(Locks::RDONLY) && !new.contains(MountFlags::RDONLY)
            || locks.contains(Locks::ATIME) && self.flags().times() != new.times();
        let mut id = 0;
        let mut hides = is_less || self.root.parent().is_some();
        while let Some(child) = self.child_after(id).filter(|_| !hides) {
            id = child.id;
            let covers = || child.point().is_some_and(|p| !p.inode().is_always_empty());
            hides = child.is_locked() && covers();
        }
        (!hides).then_some(locks)
    }

    /// Something locked was mounted at `dentry` of this mount, which lies nowhere any more: whoever
    /// is still on it does not come to see what is below. There is an empty directory.
    pub(super) fn bar(&self, dentry: &Arc<Dentry>) {
        dentry.mounts.fetch_add(1, Ordering::Relaxed);
        let nowhere = nowhere();
        let mut children = self.children.lock();
        children.at.insert(key(dentry), nowhere);
        children.barred.insert(key(dentry), dentry.clone());
    }
}

impl Children {
    /// What was [`Mount::bar`]red is gone with the mount.
    pub(super) fn forget_barred(&mut self) {
        for dentry in self.barred.values() {
            dentry.mounts.fetch_sub(1, Ordering::Relaxed);
        }
        self.barred.clear();
    }
}

/// EPERM if a new mount of file system type `type_name` with these flags, in the mount namespace
/// with this number, would show what is hidden there; else what of it is locked.
pub fn check_revealing(namespace: u64, type_name: &str, flags: MountFlags) -> Result<Locks> {
    let mut id = 0;
    while let Some(mount) = super::in_namespace_after(namespace, id) {
        id = mount.id;
        if mount.fs.type_name() == type_name
            && let Some(locks) = mount.shows_all(flags)
        {
            return Ok(locks);
        }
    }
    Err(Errno::EPERM)
}

/// The empty directory.
fn nowhere() -> Arc<Mount> {
    static NOWHERE: Once<Arc<Mount>> = Once::new();
    NOWHERE.get_or_set(|| Mount::hidden(Arc::new(NoFs), MountFlags::RDONLY)).clone()
}

struct NoFs;

impl FileSystem for NoFs {
    fn type_name(&self) -> &'static str {
        "tmpfs"
    }

    fn has_fixed_names(&self) -> bool {
        true
    }

    fn root(&self) -> Arc<dyn Inode> {
        Arc::new(NoDir)
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(simple_statfs(TMPFS_MAGIC))
    }
}

struct NoDir;

impl Inode for NoDir {
    fn kind(&self) -> u32 {
        S_IFDIR
    }

    fn attributes(&self) -> Result<Attributes> {
        Ok(Attributes {
            mode: S_IFDIR | 0o555,
            nlink: 2,
            ino: 1,
            block_size: 4096,
            ..Attributes::default()
        })
    }

    fn lookup(self: Arc<Self>, _name: &[u8]) -> Result<Arc<dyn Inode>> {
        Err(Errno::ENOENT)
    }

    fn open(self: Arc<Self>, _caller: &dyn Caller, _flags: u32) -> Result<Arc<dyn FileOps>> {
        Err(Errno::EACCES)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Takes a mount from its place, which went: where that was. What was locked there stays hidden.
pub(super) fn took_off(mount: &Mount, point: Option<&Location>) {
    if let Some(point) = point.filter(|_| mount.is_locked()) {
        point.mount.bar(&point.dentry);
    }
}
