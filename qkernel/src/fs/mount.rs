//! Mounts: which file system lies where (mount(2)).
//!
//! Each mount that a path leads to belongs to one mount namespace. How deep mounts lie in each
//! other is the guest's choice: nothing here follows them by recursion.

mod copy;
pub mod detached;
mod flags;
mod gather;
pub mod locked;
pub mod namespace;
pub mod peers;
mod propagate;
mod umount;

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::ops::Bound::{Excluded, Unbounded};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use linux_raw_sys::general::MS_RDONLY;

pub use self::flags::{MountFlags, ST_VALID};
use self::peers::{Peer, PeerGroup, Propagation};
pub use self::umount::detach_from;
use super::Location;
use super::dentry::Dentry;
use super::inode::FileSystem;
use crate::account;
use crate::errno::{Errno, Result};
use crate::namespace::INITIAL_USER;
use crate::sync::{Mutex, mutex};
use crate::user_namespace::UserNs;

/// The most mounts there may be (Linux's fs.mount-max).
const MOUNT_MAX: u64 = 100_000;
/// Bytes of guest memory for each: a mount, its names and a small file system take about a kilobyte
/// of kernel memory.
const BYTES_OF_MEMORY_EACH: u64 = 32 << 10;

/// Numbers up to it are none that [`unique_id`] gives.
pub const UNIQUE_OFFSET: u64 = 1 << 31;

/// The most mounts there may be in this sandbox: as many as Linux allows, fewer where memory is
/// small.
pub fn most() -> u64 {
    MOUNT_MAX.min(account::memory_bytes() / BYTES_OF_MEMORY_EACH)
}

/// A number of a mount that none has had before, of its number (STATX_MNT_ID_UNIQUE): no number is
/// given twice. Like Linux's they are larger than those of old.
pub fn unique_id(id: u32) -> u64 {
    UNIQUE_OFFSET + u64::from(id)
}

/// The mount with that number in the mount namespace with the number `namespace`.
pub fn by_unique_id(namespace: u64, unique: u64) -> Option<Arc<Mount>> {
    let id = u32::try_from(unique.checked_sub(UNIQUE_OFFSET)?).ok()?;
    let mount = ALL.lock().get(&id).and_then(Weak::upgrade);
    mount.filter(|mount| mount.namespace() == namespace)
}

/// What all mounts share that were made of one.
#[derive(Default)]
struct SuperBlock {
    /// The user namespace that it was mounted in.
    user: UserNs,
    /// The file system may not be written, through whichever of its mounts.
    is_readonly: AtomicBool,
    /// Those that have not been unmounted.
    mounts: AtomicU32,
}

/// Mounts on one mount. There is at most one on each place: a further one lies on the root of that.
#[derive(Default)]
struct Children {
    /// By the place that they lie on.
    at: BTreeMap<usize, Arc<Mount>>,
    /// The places, by the numbers of the mounts.
    places: BTreeMap<u32, usize>,
    /// Places that nobody sees any more ([`locked`]): they have nothing mounted that has a number.
    barred: BTreeMap<usize, Arc<Dentry>>,
}

/// One mount.
pub struct Mount {
    /// Its number in /proc/PID/mountinfo.
    pub id: u32,
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
    /// What of the file system is mounted: its root, or for a bind mount any place in it.
    pub root: Arc<Dentry>,
    /// What /proc/mounts shows as the source.
    pub source: Arc<[u8]>,
    flags: AtomicU32,
    /// [`locked::Locks`].
    locks: AtomicU32,
    superblock: Arc<SuperBlock>,
    propagation: Mutex<Propagation<Mount>>,
    /// Regular files that are open for writing on it.
    writers: AtomicU32,
    /// The number of the mount namespace that it is in, 0: none.
    namespace: AtomicU64,
    /// The number of the user namespace that this belongs to.
    owner: AtomicU64,
    /// What umount2(2) thinks of it ([`umount`]).
    marks: AtomicU8,
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
    /// A further mount of its file system, of what lies at `root` there; private, and not placed
    /// anywhere yet.
    pub fn of_same(&self, root: Arc<Dentry>, flags: MountFlags) -> Arc<Self> {
        let (fs, source) = (self.fs.clone(), self.source.clone());
        Self::listed(fs, root, source, flags, self.superblock.clone())
    }

    fn listed(
        fs: Arc<dyn FileSystem>,
        root: Arc<Dentry>,
        source: Arc<[u8]>,
        flags: MountFlags,
        superblock: Arc<SuperBlock>,
    ) -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(20);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let mount = Self::make(id, fs, root, source, flags, superblock);
        ALL.lock().insert(mount.id, Arc::downgrade(&mount));
        mount
    }

    fn make(
        id: u32,
        fs: Arc<dyn FileSystem>,
        root: Arc<Dentry>,
        source: Arc<[u8]>,
        flags: MountFlags,
        superblock: Arc<SuperBlock>,
    ) -> Arc<Self> {
        superblock.mounts.fetch_add(1, Ordering::Relaxed);
        Arc::new(Mount {
            id,
            fs,
            root,
            source,
            flags: AtomicU32::new(flags.bits()),
            locks: AtomicU32::new(0),
            superblock,
            propagation: Mutex::default(),
            writers: AtomicU32::new(0),
            namespace: AtomicU64::new(0),
            owner: AtomicU64::new(INITIAL_USER),
            marks: AtomicU8::new(0),
            point: Mutex::new(None),
            children: Mutex::default(),
        })
    }

    /// A mount that /proc does not list, for files without a place in the tree.
    pub fn hidden(fs: Arc<dyn FileSystem>, flags: MountFlags) -> Arc<Self> {
        let (root, source) = (Dentry::root(fs.clone()), fs.type_name().as_bytes().into());
        Self::make(0, fs, root, source, flags, Arc::default())
    }

    /// True if it is such a mount.
    pub fn is_hidden(&self) -> bool {
        self.id == 0
    }

    /// A mount of the whole of `fs`, which has no other; not placed anywhere yet.
    pub fn whole(fs: Arc<dyn FileSystem>, source: &[u8], flags: MountFlags) -> Arc<Self> {
        Self::whole_in(fs, source, flags, UserNs::default())
    }

    /// As [`Self::whole`], as the root of this user namespace mounts it.
    pub fn whole_in(
        fs: Arc<dyn FileSystem>,
        source: &[u8],
        flags: MountFlags,
        user: UserNs,
    ) -> Arc<Self> {
        let root = Dentry::root(fs.clone());
        let superblock = SuperBlock { user, ..SuperBlock::default() };
        Self::listed(fs, root, source.into(), flags, Arc::new(superblock))
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
        matches!(&*self.propagation.lock(), Propagation::Unbindable)
    }

    /// The peer group that it is in (MS_SHARED).
    pub fn peer_group(&self) -> Option<Arc<PeerGroup<Mount>>> {
        peers::group_of(self)
    }

    /// True if its file system may not be written, through whichever mount.
    pub fn is_fs_readonly(&self) -> bool {
        self.superblock.is_readonly.load(Ordering::Relaxed)
    }

    /// Lets nobody write to its file system, or those whose mounts allow it.
    pub fn set_fs_readonly(&self, on: bool) {
        self.superblock.is_readonly.store(on, Ordering::Relaxed);
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

    /// The number of the mount namespace in which a path leads to it, 0 if there is none: it is
    /// there only for the files that are open on it, and nothing is mounted on it.
    pub fn namespace(&self) -> u64 {
        self.namespace.load(Ordering::Relaxed)
    }

    /// The number of the user namespace to which the mount namespace belongs that it is in, or was.
    pub fn owner(&self) -> u64 {
        self.owner.load(Ordering::Relaxed)
    }

    /// True if a path leads to it, in whichever mount namespace.
    pub fn is_in_tree(&self) -> bool {
        self.namespace() != 0
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
        self.children.lock().at.get(&key(dentry)).cloned()
    }

    /// True if it is mounted on this name.
    fn lies_on(&self, dentry: &Arc<Dentry>) -> bool {
        self.point.lock().as_ref().is_some_and(|point| Arc::ptr_eq(&point.dentry, dentry))
    }

    /// The mount that hides all of it.
    fn cover(&self) -> Option<Arc<Mount>> {
        self.mounted_at(&self.root)
    }

    /// The root of this mount as a place.
    pub fn location(self: &Arc<Self>) -> Location {
        Location { mount: self.clone(), dentry: self.root.clone() }
    }

    /// Mounts `self`, and what lies on it, on `point`. What is mounted there already lies on it
    /// then.
    pub fn attach(self: &Arc<Self>, point: Location) {
        let namespace = point.mount.namespace();
        if self.namespace() != namespace {
            self.adopt(namespace, point.mount.owner());
        }
        let covered = point.mount.mounted_at(&point.dentry);
        if let Some(above) = &covered {
            above.take_off();
        }
        self.put(point);
        if let Some(above) = covered {
            above.put(self.location().through_mounts());
        }
    }

    /// It and what lies on it are in this namespace now, which belongs to the user namespace with
    /// the number `owner`.
    fn adopt(self: &Arc<Self>, namespace: u64, owner: u64) {
        for mount in self.tree() {
            mount.namespace.store(namespace, Ordering::Relaxed);
            mount.owner.store(owner, Ordering::Relaxed);
        }
    }

    /// Mounts it on `point`, where nothing is.
    fn put(self: &Arc<Self>, point: Location) {
        point.dentry.mounts.fetch_add(1, Ordering::Relaxed);
        let (parent, place) = (point.mount.clone(), key(&point.dentry));
        *self.point.lock() = Some(point);
        let mut children = parent.children.lock();
        children.at.insert(place, self.clone());
        children.places.insert(self.id, place);
    }

    /// Takes it from its place: where that was. What lies on it stays on it.
    fn take_off(self: &Arc<Self>) -> Option<Location> {
        let point = self.point.lock().take()?;
        point.dentry.mounts.fetch_sub(1, Ordering::Relaxed);
        let mut children = point.mount.children.lock();
        let there = children.at.remove(&key(&point.dentry));
        children.places.remove(&self.id);
        drop(children);
        // Not the last one: `self` is another.
        drop(there);
        Some(point)
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
            true => all().any(|m| identity(&m.fs) == identity(&self.fs) && writes(&m)),
        };
        if is_written { Err(Errno::EBUSY) } else { Ok(()) }
    }

    /// The first mount on it that was made after the one with this number.
    fn child_after(&self, id: u32) -> Option<Arc<Mount>> {
        let children = self.children.lock();
        let (_, place) = children.places.range((Excluded(id), Unbounded)).next()?;
        children.at.get(place).cloned()
    }

    fn has_children(&self) -> bool {
        !self.children.lock().places.is_empty()
    }

    /// This mount and those on it, and so on, each after what it lies on. Takes no memory.
    pub fn tree(self: &Arc<Self>) -> Tree<'_> {
        Tree { top: self, at: None }
    }
}

/// See [`Mount::tree`].
#[derive(Clone)]
pub struct Tree<'a> {
    top: &'a Arc<Mount>,
    /// The one that came last.
    at: Option<Arc<Mount>>,
}

impl Iterator for Tree<'_> {
    type Item = Arc<Mount>;

    fn next(&mut self) -> Option<Arc<Mount>> {
        let Some(mut at) = self.at.take() else {
            self.at = Some(self.top.clone());
            return self.at.clone();
        };
        let mut next = at.child_after(0);
        while next.is_none() {
            if Arc::ptr_eq(&at, self.top) {
                self.at = Some(at);
                return None;
            }
            let point = at.point()?;
            next = point.mount.child_after(at.id);
            at = point.mount;
        }
        self.at.clone_from(&next);
        next
    }
}

impl Peer for Mount {
    fn id(&self) -> u32 {
        self.id
    }

    fn propagation(&self) -> &Mutex<Propagation<Self>> {
        &self.propagation
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        ALL.lock().remove(&self.id);
        peers::forget(self.id, core::mem::take(self.propagation.get_mut()));
        self.retire();
        self.children.get_mut().forget_barred();
    }
}

/// ENOSPC if `more` mounts were too many that are made in a mount namespace of the user namespace
/// with this number, ENOMEM if there is no memory for them. Half of the room is left to the
/// container's own.
pub fn check_room(more: usize, owner: u64) -> Result {
    /// Kernel memory that each takes, with its places in the tables, in bytes.
    const BYTES_EACH: u64 = 1024;
    let more = more as u64;
    let most = if owner == INITIAL_USER { most() } else { most() / 2 };
    if (ALL.lock().len() as u64).saturating_add(more) > most {
        return Err(Errno::ENOSPC);
    }
    account::ask(more.saturating_mul(BYTES_EACH))
}

fn identity(fs: &Arc<dyn FileSystem>) -> usize {
    Arc::as_ptr(fs).cast::<u8>() as usize
}

/// All mounts, in the order they were made, one after the other: a list of them might need more
/// memory in one piece than there is.
pub fn all() -> impl Iterator<Item = Arc<Mount>> {
    let mut last = 0;
    core::iter::from_fn(move || {
        let all = ALL.lock();
        let mut later = all.range((Excluded(last), Unbounded));
        let (id, mount) = later.find_map(|(id, mount)| Some((*id, mount.upgrade()?)))?;
        last = id;
        Some(mount)
    })
}

/// The first mount in this namespace that was made after the one with this number.
pub fn in_namespace_after(namespace: u64, id: u32) -> Option<Arc<Mount>> {
    let all = ALL.lock();
    let later = all.range((Excluded(id), Unbounded)).filter_map(|(_, mount)| mount.upgrade());
    let mut there = later.filter(|mount| mount.namespace() == namespace);
    there.next()
}

/// True if something is mounted on this name in this namespace, through whichever of its mounts.
pub fn is_mounted_on(namespace: u64, dentry: &Arc<Dentry>) -> bool {
    let mut id = 0;
    while dentry.mounts.load(Ordering::Relaxed) > 0
        && let Some(mount) = in_namespace_after(namespace, id)
    {
        if mount.lies_on(dentry) {
            return true;
        }
        id = mount.id;
    }
    false
}

/// All mounted file systems.
pub fn file_systems() -> impl Iterator<Item = Arc<dyn FileSystem>> {
    let mut found: BTreeMap<usize, Arc<dyn FileSystem>> = BTreeMap::new();
    for mount in all() {
        found.entry(identity(&mount.fs)).or_insert_with(|| mount.fs.clone());
    }
    found.into_values()
}
