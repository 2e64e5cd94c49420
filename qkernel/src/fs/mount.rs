//! Mounts: which file system lies where (mount(2)). All processes of a container share one mount namespace.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use bitflags::bitflags;
use linux_raw_sys::general::{
    MS_NOATIME, MS_NODEV, MS_NODIRATIME, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_RELATIME, MS_STRICTATIME,
};

use super::Location;
use super::dentry::{self, Dentry};
use super::inode::FileSystem;
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
    /// Where it is mounted; `None` for the root mount and after umount(2).
    point: Mutex<Option<Location>>,
    children: Mutex<Vec<Arc<Mount>>>,
}

/// All mounts in the order they were made, for /proc.
static ALL: Mutex<Vec<Weak<Mount>>> = mutex(Vec::new());

impl Mount {
    /// A mount that is not placed anywhere yet.
    pub fn new(fs: Arc<dyn FileSystem>, root: Arc<Dentry>, source: Vec<u8>, flags: MountFlags) -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(20);
        let mount = Self::make(NEXT.fetch_add(1, Ordering::Relaxed), fs, root, source, flags);
        let mut all = ALL.lock();
        all.retain(|m| m.strong_count() > 0);
        all.push(Arc::downgrade(&mount));
        drop(all);
        mount
    }

    fn make(id: u32, fs: Arc<dyn FileSystem>, root: Arc<Dentry>, source: Vec<u8>, flags: MountFlags) -> Arc<Self> {
        Arc::new(Mount {
            id,
            fs,
            root,
            source,
            flags: AtomicU32::new(flags.bits()),
            point: Mutex::new(None),
            children: Mutex::default(),
        })
    }

    /// A mount that /proc does not tell of, for files without a place in the tree.
    pub fn hidden(fs: Arc<dyn FileSystem>, flags: MountFlags) -> Arc<Self> {
        let root = Dentry::root(fs.clone());
        Self::make(0, fs, root, Vec::new(), flags)
    }

    /// A mount of the whole of `fs`.
    pub fn whole(fs: Arc<dyn FileSystem>, source: &[u8], flags: MountFlags) -> Arc<Self> {
        let root = Dentry::root(fs.clone());
        Self::new(fs, root, source.to_vec(), flags)
    }

    /// Its flags.
    pub fn flags(&self) -> MountFlags {
        MountFlags::from_bits_truncate(self.flags.load(Ordering::Relaxed))
    }

    /// Replaces its flags (MS_REMOUNT).
    pub fn set_flags(&self, flags: MountFlags) {
        self.flags.store(flags.bits(), Ordering::Relaxed);
    }

    /// EROFS if nothing may be changed through it.
    pub fn check_writable(&self) -> Result {
        if self.flags().contains(MountFlags::RDONLY) { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Where it is mounted.
    pub fn point(&self) -> Option<Location> {
        self.point.lock().clone()
    }

    /// The mount on `dentry` of this mount.
    pub fn mounted_at(&self, dentry: &Arc<Dentry>) -> Option<Arc<Mount>> {
        if dentry.mounts.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let children = self.children.lock();
        children.iter().rev().find(|m| m.point.lock().as_ref().is_some_and(|p| Arc::ptr_eq(&p.dentry, dentry))).cloned()
    }

    /// The root of this mount as a place.
    pub fn location(self: &Arc<Self>) -> Location {
        Location { mount: self.clone(), dentry: self.root.clone() }
    }

    /// Mounts `self` on `point`.
    pub fn attach(self: &Arc<Self>, point: Location) {
        point.dentry.mounts.fetch_add(1, Ordering::Relaxed);
        let parent = point.mount.clone();
        *self.point.lock() = Some(point);
        parent.children.lock().push(self.clone());
    }

    /// MS_MOVE: from where it is to `point`. The mount is not the root.
    pub fn move_to(self: &Arc<Self>, point: Location) {
        let old = self.point.lock().take();
        if let Some(old) = old {
            old.dentry.mounts.fetch_sub(1, Ordering::Relaxed);
            old.mount.children.lock().retain(|m| !Arc::ptr_eq(m, self));
        }
        self.attach(point);
    }

    /// umount2(2): takes it from its place. EBUSY when something is mounted on it (unless `lazy`), EINVAL for the root.
    pub fn detach(self: &Arc<Self>, lazy: bool) -> Result {
        if !lazy && !self.children.lock().is_empty() {
            return Err(Errno::EBUSY);
        }
        let point = self.point.lock().take().ok_or(Errno::EINVAL)?;
        point.dentry.mounts.fetch_sub(1, Ordering::Relaxed);
        point.mount.children.lock().retain(|m| !Arc::ptr_eq(m, self));
        let orphans = core::mem::take(&mut *self.children.lock());
        for child in &orphans {
            let below = child.point.lock().take();
            if let Some(below) = below {
                below.dentry.mounts.fetch_sub(1, Ordering::Relaxed);
            }
        }
        if !all().iter().any(|m| !Arc::ptr_eq(m, self) && Arc::ptr_eq(&m.fs, &self.fs)) {
            dentry::shrink(Some(&self.fs));
            self.fs.unmounted();
        }
        Ok(())
    }

    /// Whether something is mounted below it.
    pub fn has_children(&self) -> bool {
        !self.children.lock().is_empty()
    }

    /// Mounts placed on this one.
    pub fn children(&self) -> Vec<Arc<Mount>> {
        self.children.lock().clone()
    }
}

/// All mounts, in the order they were made.
pub fn all() -> Vec<Arc<Mount>> {
    ALL.lock().iter().filter_map(Weak::upgrade).collect()
}
