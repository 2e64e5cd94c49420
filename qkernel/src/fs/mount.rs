//! Mounts: which file system lies where (mount(2)). All processes of a container share one mount
//! namespace.
//!
//! How deep mounts lie in each other is the guest's choice: nothing here follows them by recursion.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bitflags::bitflags;
use linux_raw_sys::general::{
    MS_NOATIME, MS_NODEV, MS_NODIRATIME, MS_NOEXEC, MS_NOSUID, MS_NOSYMFOLLOW, MS_RDONLY,
    MS_RELATIME, MS_STRICTATIME,
};

use super::Location;
use super::dentry::{self, Dentry};
use super::inode::FileSystem;
use crate::account;
use crate::errno::{Errno, Result};
use crate::sync::{Mutex, mutex};

bitflags! {
    /// Flags of one mount, with the bit values of mount(2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MountFlags: u32 {
        /// MS_RDONLY.
        const RDONLY = MS_RDONLY;
        /// MS_NOSUID.
        const NOSUID = MS_NOSUID;
        /// MS_NODEV.
        const NODEV = MS_NODEV;
        /// MS_NOEXEC.
        const NOEXEC = MS_NOEXEC;
        /// MS_NOSYMFOLLOW.
        const NOSYMFOLLOW = MS_NOSYMFOLLOW;
        /// MS_NOATIME.
        const NOATIME = MS_NOATIME;
        /// MS_NODIRATIME.
        const NODIRATIME = MS_NODIRATIME;
        /// MS_RELATIME.
        const RELATIME = MS_RELATIME;
        /// MS_STRICTATIME.
        const STRICTATIME = MS_STRICTATIME;
    }
}

/// ST_VALID (linux/statfs.h).
pub const ST_VALID: u32 = 0x20;

/// What times of access a mount keeps.
const ATIME: MountFlags =
    MountFlags::NOATIME.union(MountFlags::NODIRATIME).union(MountFlags::RELATIME);

impl MountFlags {
    /// What a mount has that is made with flags of mount(2), or changed with them from `before`, as
    /// on Linux: RELATIME unless they say otherwise, and what it had of such before.
    pub fn settle(self, before: Option<MountFlags>) -> MountFlags {
        let says = self & (ATIME | MountFlags::STRICTATIME);
        let times = match before {
            Some(before) if says.is_empty() => before & ATIME,
            _ if says.contains(MountFlags::STRICTATIME) => says & MountFlags::NODIRATIME,
            _ if says.contains(MountFlags::NOATIME) => says - MountFlags::RELATIME,
            _ => says & ATIME | MountFlags::RELATIME,
        };
        (self - ATIME - MountFlags::STRICTATIME) | times
    }
}

/// The most mounts there may be (Linux's fs.mount-max).
const MOUNT_MAX: u64 = 100_000;
/// Bytes of guest memory for each: a mount, its names and a small file system take about a kilobyte
/// of kernel memory.
const BYTES_OF_MEMORY_EACH: u64 = 32 << 10;

/// The most mounts there may be in this sandbox: as many as Linux allows, fewer where memory is
/// small.
pub fn most() -> u64 {
    MOUNT_MAX.min(account::memory_bytes() / BYTES_OF_MEMORY_EACH)
}

/// Mounts on one mount by the place that they lie on, the last made on top.
type Children = BTreeMap<usize, Vec<Arc<Mount>>>;

/// One mount.
pub struct Mount {
    /// Its number in /proc/PID/mountinfo.
    pub id: u32,
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
    /// What of the file system is mounted: its root, or for a bind mount any place in it.
    pub root: Arc<Dentry>,
    /// What /proc/mounts shows as the source.
    pub source: Vec<u8>,
    flags: AtomicU32,
    /// The file system may not be written, through whichever of its mounts.
    fs_readonly: Arc<AtomicBool>,
    /// MS_UNBINDABLE.
    unbindable: AtomicBool,
    /// Regular files that are open for writing on it.
    writers: AtomicU32,
    /// It is the root mount, or lies on one that is in the tree.
    in_tree: AtomicBool,
    /// Where it is mounted; `None` for the root mount and after umount(2).
    point: Mutex<Option<Location>>,
    children: Mutex<Children>,
}

/// All mounts in the order they were made, for /proc. None is dropped while this is locked.
static ALL: Mutex<BTreeMap<u32, Weak<Mount>>> = mutex(BTreeMap::new());

fn key(dentry: &Arc<Dentry>) -> usize {
    Arc::as_ptr(dentry) as usize
}

impl Mount {
    /// A further mount of its file system, of what lies at `root` there; not placed anywhere yet.
    pub fn of_same(&self, root: Arc<Dentry>, flags: MountFlags) -> Arc<Self> {
        let (fs, source) = (self.fs.clone(), self.source.clone());
        Self::listed(fs, root, source, flags, self.fs_readonly.clone())
    }

    fn listed(
        fs: Arc<dyn FileSystem>,
        root: Arc<Dentry>,
        source: Vec<u8>,
        flags: MountFlags,
        fs_readonly: Arc<AtomicBool>,
    ) -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(20);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let mount = Self::make(id, fs, root, source, flags, fs_readonly);
        ALL.lock().insert(mount.id, Arc::downgrade(&mount));
        mount
    }

    fn make(
        id: u32,
        fs: Arc<dyn FileSystem>,
        root: Arc<Dentry>,
        source: Vec<u8>,
        flags: MountFlags,
        fs_readonly: Arc<AtomicBool>,
    ) -> Arc<Self> {
        Arc::new(Mount {
            id,
            fs,
            root,
            source,
            flags: AtomicU32::new(flags.bits()),
            fs_readonly,
            unbindable: AtomicBool::new(false),
            writers: AtomicU32::new(0),
            in_tree: AtomicBool::new(false),
            point: Mutex::new(None),
            children: Mutex::default(),
        })
    }

    /// A mount that /proc does not list, for files without a place in the tree.
    pub fn hidden(fs: Arc<dyn FileSystem>, flags: MountFlags) -> Arc<Self> {
        let root = Dentry::root(fs.clone());
        Self::make(0, fs, root, Vec::new(), flags, Arc::default())
    }

    /// A mount of the whole of `fs`, which has no other; not placed anywhere yet.
    pub fn whole(fs: Arc<dyn FileSystem>, source: &[u8], flags: MountFlags) -> Arc<Self> {
        let root = Dentry::root(fs.clone());
        Self::listed(fs, root, source.to_vec(), flags, Arc::default())
    }

    /// Its flags.
    pub fn flags(&self) -> MountFlags {
        MountFlags::from_bits_truncate(self.flags.load(Ordering::Relaxed))
    }

    /// Replaces its flags (MS_REMOUNT).
    pub fn set_flags(&self, flags: MountFlags) {
        self.flags.store(flags.bits(), Ordering::Relaxed);
    }

    /// True if it may not be bound elsewhere (MS_UNBINDABLE).
    pub fn is_unbindable(&self) -> bool {
        self.unbindable.load(Ordering::Relaxed)
    }

    /// MS_UNBINDABLE, or one of its opposites.
    pub fn set_unbindable(&self, on: bool) {
        self.unbindable.store(on, Ordering::Relaxed);
    }

    /// True if its file system may not be written, through whichever mount.
    pub fn is_fs_readonly(&self) -> bool {
        self.fs_readonly.load(Ordering::Relaxed)
    }

    /// Lets nobody write to its file system, or those whose mounts allow it.
    pub fn set_fs_readonly(&self, on: bool) {
        self.fs_readonly.store(on, Ordering::Relaxed);
    }

    /// EROFS if nothing may be changed through it.
    pub fn check_writable(&self) -> Result {
        let is_readonly = self.flags().contains(MountFlags::RDONLY) || self.is_fs_readonly();
        if is_readonly { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// The ST_* flags of statfs(2).
    pub fn st_flags(&self) -> u32 {
        /// ST_RELATIME and ST_NOSYMFOLLOW (linux/statfs.h); the others are those of mount(2).
        const RELATIME: u32 = 0x1000;
        const NOSYMFOLLOW: u32 = 0x2000;
        let flags = self.flags();
        let mut st = (flags - MountFlags::RELATIME - MountFlags::NOSYMFOLLOW).bits() | ST_VALID;
        for (on, bit) in [
            (flags.contains(MountFlags::RELATIME), RELATIME),
            (flags.contains(MountFlags::NOSYMFOLLOW), NOSYMFOLLOW),
            (self.check_writable().is_err(), MS_RDONLY),
        ] {
            st |= if on { bit } else { 0 };
        }
        st
    }

    /// Where it is mounted.
    pub fn point(&self) -> Option<Location> {
        self.point.lock().clone()
    }

    /// True if a path leads to it. Others are there only for the files that are open on them:
    /// nothing is mounted on them.
    pub fn is_in_tree(&self) -> bool {
        self.in_tree.load(Ordering::Relaxed)
    }

    /// Makes it the root of the tree.
    pub fn become_root(&self) {
        self.in_tree.store(true, Ordering::Relaxed);
    }

    /// True if `self` is `other`, or `other` lies somewhere on it.
    pub fn is_above(self: &Arc<Self>, other: &Arc<Mount>) -> bool {
        let mut at = other.clone();
        loop {
            if Arc::ptr_eq(self, &at) {
                return true;
            }
            let Some(point) = at.point() else { return false };
            at = point.mount;
        }
    }

    /// The mount on `dentry` of this mount.
    pub fn mounted_at(&self, dentry: &Arc<Dentry>) -> Option<Arc<Mount>> {
        if dentry.mounts.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.children.lock().get(&key(dentry)).and_then(|there| there.last()).cloned()
    }

    /// The root of this mount as a place.
    pub fn location(self: &Arc<Self>) -> Location {
        Location { mount: self.clone(), dentry: self.root.clone() }
    }

    /// Mounts `self` on `point`.
    pub fn attach(self: &Arc<Self>, point: Location) {
        point.dentry.mounts.fetch_add(1, Ordering::Relaxed);
        self.in_tree.store(point.mount.is_in_tree(), Ordering::Relaxed);
        let (parent, place) = (point.mount.clone(), key(&point.dentry));
        *self.point.lock() = Some(point);
        parent.children.lock().entry(place).or_default().push(self.clone());
    }

    /// Takes it from its place: where that was. What lies on it stays on it.
    fn take_off(self: &Arc<Self>) -> Option<Location> {
        let point = self.point.lock().take()?;
        point.dentry.mounts.fetch_sub(1, Ordering::Relaxed);
        let mut children = point.mount.children.lock();
        if let Some(there) = children.get_mut(&key(&point.dentry)) {
            there.retain(|m| !Arc::ptr_eq(m, self));
            if there.is_empty() {
                children.remove(&key(&point.dentry));
            }
        }
        drop(children);
        Some(point)
    }

    /// MS_MOVE: from where it is to `point`, which does not lie on it. The mount is not the root.
    pub fn move_to(self: &Arc<Self>, point: Location) {
        let old = self.take_off();
        self.attach(point);
        drop(old);
    }

    /// True if somebody has a place on it: an open or mapped file, a directory to work in, a
    /// program. The caller has one too, and so has what it is mounted on.
    fn is_held(self: &Arc<Self>) -> bool {
        const CALLER_AND_PARENT: usize = 2;
        Arc::strong_count(self) > CALLER_AND_PARENT
    }

    /// A file on it is opened for writing.
    pub fn begin_writing(&self) {
        self.writers.fetch_add(1, Ordering::Relaxed);
    }

    /// Such a file is no longer open, nor mapped.
    pub fn end_writing(&self) {
        self.writers.fetch_sub(1, Ordering::Relaxed);
    }

    /// EBUSY if a file is open for writing on it, or (`any`) on another mount of its file system:
    /// who makes that read-only would break a promise.
    pub fn check_no_writers(&self, any: bool) -> Result {
        let writes = |mount: &Mount| mount.writers.load(Ordering::Relaxed) > 0;
        let is_written = match any {
            false => writes(self),
            true => all().iter().any(|m| identity(&m.fs) == identity(&self.fs) && writes(m)),
        };
        if is_written { Err(Errno::EBUSY) } else { Ok(()) }
    }

    /// umount2(2): takes it from its place, and (`lazy`) all that lies on it from theirs, each for
    /// itself. EBUSY when somebody has a place on it, or something is mounted on it, and it is not
    /// to be lazy, EINVAL for the root and what is in no tree.
    pub fn detach(self: &Arc<Self>, lazy: bool) -> Result {
        if !self.is_in_tree() || self.point.lock().is_none() {
            return Err(Errno::EINVAL);
        }
        if !lazy && (self.is_held() || !self.children.lock().is_empty()) {
            return Err(Errno::EBUSY);
        }
        let tree = self.tree(|_, _| true);
        let mut points = Vec::new();
        let mut file_systems: BTreeMap<usize, Arc<dyn FileSystem>> = BTreeMap::new();
        // From the ends: each is off before what it lies on.
        for mount in tree.iter().rev() {
            points.push(mount.take_off());
            mount.in_tree.store(false, Ordering::Relaxed);
            file_systems.insert(identity(&mount.fs), mount.fs.clone());
        }
        let gone: BTreeSet<u32> = tree.iter().map(|m| m.id).collect();
        for mount in all().iter().filter(|m| !gone.contains(&m.id)) {
            file_systems.remove(&identity(&mount.fs));
        }
        for fs in file_systems.values() {
            dentry::shrink(Some(fs));
            fs.unmounted();
        }
        Ok(())
    }

    /// This mount and those on it, and so on, each after what it lies on; `take` says of a mount
    /// and where it lies whether it and what lies on it belong to them.
    pub fn tree(
        self: &Arc<Self>,
        mut take: impl FnMut(&Arc<Mount>, &Location) -> bool,
    ) -> Vec<Arc<Mount>> {
        let mut found = alloc::vec![self.clone()];
        let mut next = 0;
        while let Some(mount) = found.get(next).cloned() {
            next += 1;
            for child in mount.children() {
                if child.point().is_some_and(|point| take(&child, &point)) {
                    found.push(child);
                }
            }
        }
        found
    }

    /// Mounts placed on this one, in the order they were made.
    pub fn children(&self) -> Vec<Arc<Mount>> {
        let mut children: Vec<Arc<Mount>> =
            self.children.lock().values().flatten().cloned().collect();
        children.sort_unstable_by_key(|m| m.id);
        children
    }

    /// mount(2) with MS_BIND: mounts what lies at `from`, and (`recursive`) what is mounted there,
    /// on `place`. EINVAL for what is in no tree or must not be bound, ENOSPC when there would be
    /// too many mounts.
    pub fn bind(from: &Location, place: Location, recursive: bool) -> Result {
        if !from.mount.is_in_tree() || !place.mount.is_in_tree() || from.mount.is_unbindable() {
            return Err(Errno::EINVAL);
        }
        // What is there now: the copies themselves are never copied, wherever they come to lie.
        let originals = match recursive {
            true => from.mount.tree(|mount, point| {
                let outside =
                    Arc::ptr_eq(&point.mount, &from.mount) && !from.dentry.is_above(&point.dentry);
                !outside && !mount.is_unbindable()
            }),
            false => alloc::vec![from.mount.clone()],
        };
        check_room(originals.len())?;
        let mut copies: BTreeMap<u32, Arc<Mount>> = BTreeMap::new();
        let mut first = None;
        for original in &originals {
            let root = if first.is_none() { from.dentry.clone() } else { original.root.clone() };
            let copy = original.of_same(root, original.flags());
            copy.set_unbindable(original.is_unbindable());
            if first.is_none() {
                // Placed last, when the copy is whole; it belongs to the tree from now on as to
                // what is placed on it.
                copy.become_root();
                first = Some(copy.clone());
            } else if let Some(point) = original.point()
                && let Some(parent) = copies.get(&point.mount.id)
            {
                copy.attach(Location { mount: parent.clone(), dentry: point.dentry });
            }
            copies.insert(original.id, copy);
        }
        if let Some(first) = first {
            first.attach(place);
        }
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        ALL.lock().remove(&self.id);
    }
}

/// ENOSPC if `more` mounts were too many.
pub fn check_room(more: usize) -> Result {
    if (ALL.lock().len() + more) as u64 > most() { Err(Errno::ENOSPC) } else { Ok(()) }
}

fn identity(fs: &Arc<dyn FileSystem>) -> usize {
    Arc::as_ptr(fs).cast::<u8>() as usize
}

/// All mounts, in the order they were made.
pub fn all() -> Vec<Arc<Mount>> {
    ALL.lock().values().filter_map(Weak::upgrade).collect()
}

/// All mounted file systems.
pub fn file_systems() -> Vec<Arc<dyn FileSystem>> {
    let all: BTreeMap<usize, Arc<dyn FileSystem>> =
        all().iter().map(|m| (identity(&m.fs), m.fs.clone())).collect();
    all.into_values().collect()
}
