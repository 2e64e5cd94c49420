//! The dentry cache: names that were found, so that a path walk asks the file system as little as
//! possible.
//!
//! A dentry lives as long as somebody refers to it (an open file, a child, a mount), or it is among
//! the recently used.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::inode::{Caching, FileSystem, Inode};
use crate::errno::{Errno, Result};
use crate::sync::{Mutex, mutex};

/// How many dentries are kept although nobody refers to them.
const KEPT: usize = 4096;

/// A name and what it leads to.
pub struct Dentry {
    /// Its file system.
    pub fs: Arc<dyn FileSystem>,
    /// What it leads to.
    pub inode: Arc<dyn Inode>,
    place: Mutex<DentryPlace>,
    children: Mutex<BTreeMap<Vec<u8>, Weak<Dentry>>>,
    /// The name is gone; open files live on.
    unlinked: AtomicBool,
    /// How many mounts have it as mount point.
    pub mounts: AtomicU32,
    /// Key in the set of recently used dentries; 0 when it is not in it.
    kept_as: AtomicU64,
    used_again: AtomicBool,
}

struct DentryPlace {
    /// `None` for the root of a file system.
    parent: Option<Arc<Dentry>>,
    name: Vec<u8>,
    /// Of a file without a name, where it was made.
    home: Option<Arc<Dentry>>,
}

struct Recent {
    by_age: BTreeMap<u64, Arc<Dentry>>,
    next: u64,
}

static RECENT: Mutex<Recent> = mutex(Recent { by_age: BTreeMap::new(), next: 1 });

impl Dentry {
    /// The root of a file system.
    pub fn root(fs: Arc<dyn FileSystem>) -> Arc<Self> {
        let inode = fs.root();
        Self::new(fs, inode, None, Vec::new())
    }

    fn new(
        fs: Arc<dyn FileSystem>,
        inode: Arc<dyn Inode>,
        parent: Option<Arc<Dentry>>,
        name: Vec<u8>,
    ) -> Arc<Self> {
        Self::make(fs, inode, DentryPlace { parent, name, home: None })
    }

    fn make(fs: Arc<dyn FileSystem>, inode: Arc<dyn Inode>, place: DentryPlace) -> Arc<Self> {
        Arc::new(Dentry {
            fs,
            inode,
            place: Mutex::new(place),
            children: Mutex::default(),
            unlinked: AtomicBool::new(false),
            mounts: AtomicU32::new(0),
            kept_as: AtomicU64::new(0),
            used_again: AtomicBool::new(false),
        })
    }

    /// A dentry for a file that has no name (O_TMPFILE, memfd_create(2)); `label` is what /proc
    /// shows.
    pub fn unnamed(fs: Arc<dyn FileSystem>, inode: Arc<dyn Inode>, label: &[u8]) -> Arc<Self> {
        Self::unnamed_of(None, fs, inode, label)
    }

    /// The same of one that was made in a directory.
    pub fn unnamed_in(directory: &Arc<Dentry>, inode: Arc<dyn Inode>, label: &[u8]) -> Arc<Self> {
        Self::unnamed_of(Some(directory.clone()), directory.fs.clone(), inode, label)
    }

    fn unnamed_of(
        home: Option<Arc<Dentry>>,
        fs: Arc<dyn FileSystem>,
        inode: Arc<dyn Inode>,
        label: &[u8],
    ) -> Arc<Self> {
        let dentry =
            Self::make(fs, inode, DentryPlace { parent: None, name: label.to_vec(), home });
        dentry.unlinked.store(true, Ordering::Relaxed);
        dentry
    }

    /// The directory in which a file without a name was made.
    pub fn home(&self) -> Option<Arc<Dentry>> {
        self.place.lock().home.clone()
    }

    /// Its parent; `None` for a root.
    pub fn parent(&self) -> Option<Arc<Dentry>> {
        self.place.lock().parent.clone()
    }

    /// Its name in its parent.
    pub fn name(&self) -> Vec<u8> {
        self.place.lock().name.clone()
    }

    /// True if its name has been removed.
    pub fn is_unlinked(&self) -> bool {
        self.unlinked.load(Ordering::Relaxed)
    }

    /// True if `self` is `other` or lies above it.
    pub fn is_above(self: &Arc<Self>, other: &Arc<Dentry>) -> bool {
        let mut at = Some(other.clone());
        while let Some(dentry) = at {
            if Arc::ptr_eq(self, &dentry) {
                return true;
            }
            at = dentry.parent();
        }
        false
    }

    /// The child `name`. `last`: it is the last component of a path, so the file system must be
    /// asked if others may change it.
    pub fn lookup(self: &Arc<Self>, name: &[u8], last: bool) -> Result<Arc<Dentry>> {
        if let Some(child) = self.cached(name) {
            let trusted = match child.inode.caching() {
                Caching::Keep => true,
                Caching::Check if !last && child.inode.is_dir() => true,
                Caching::Check => match child.inode.revalidate() {
                    Ok(same) => same,
                    Err(error) => {
                        if error == Errno::ENOENT {
                            self.forget(&child);
                        }
                        return Err(error);
                    }
                },
                Caching::Never => false,
            };
            if trusted || child.mounts.load(Ordering::Relaxed) > 0 {
                child.used_again.store(true, Ordering::Relaxed);
                return Ok(child);
            }
            self.forget(&child);
        }
        let inode = self.inode.clone().lookup(name)?;
        Ok(self.insert(name, inode))
    }

    /// The child that is known by this name.
    fn cached(&self, name: &[u8]) -> Option<Arc<Dentry>> {
        self.children.lock().get(name).and_then(Weak::upgrade)
    }

    /// Enters a child that the file system has found or made.
    pub fn insert(self: &Arc<Self>, name: &[u8], inode: Arc<dyn Inode>) -> Arc<Dentry> {
        let keep = inode.caching() != Caching::Never;
        let child = Dentry::new(self.fs.clone(), inode, Some(self.clone()), name.to_vec());
        if keep {
            let old = self.children.lock().insert(name.to_vec(), Arc::downgrade(&child));
            drop(old);
            remember(&child);
        }
        child
    }

    /// Takes a child's name away: it was removed, replaced, or is something else now.
    pub fn forget(&self, child: &Arc<Dentry>) {
        child.unlinked.store(true, Ordering::Relaxed);
        let name = child.name();
        {
            let mut children = self.children.lock();
            if children.get(&name).is_some_and(|c| core::ptr::eq(c.as_ptr(), Arc::as_ptr(child))) {
                children.remove(&name);
            }
        }
        disregard(child);
    }

    /// Moves a child to another name.
    pub fn rename_child(&self, child: &Arc<Dentry>, to: &Arc<Dentry>, to_name: &[u8]) {
        let name = child.name();
        self.children.lock().remove(&name);
        to.children.lock().insert(to_name.to_vec(), Arc::downgrade(child));
        let old = core::mem::replace(
            &mut *child.place.lock(),
            DentryPlace { parent: Some(to.clone()), name: to_name.to_vec(), home: None },
        );
        drop(old);
    }

    /// Exchanges the places of two children.
    pub fn exchange(a: &Arc<Dentry>, b: &Arc<Dentry>) {
        let place = |d: &Dentry| {
            let place = d.place.lock();
            (place.parent.clone(), place.name.clone())
        };
        let (pa, pb) = (place(a), place(b));
        for (dentry, (parent, name)) in [(a, pb), (b, pa)] {
            if let Some(parent) = &parent {
                parent.children.lock().insert(name.clone(), Arc::downgrade(dentry));
            }
            let old = core::mem::replace(
                &mut *dentry.place.lock(),
                DentryPlace { parent, name, home: None },
            );
            drop(old);
        }
    }
}

/// Puts a dentry among the recently used.
fn remember(dentry: &Arc<Dentry>) {
    let mut displaced = Vec::new();
    {
        let mut recent = RECENT.lock();
        let key = recent.next;
        recent.next += 1;
        dentry.kept_as.store(key, Ordering::Relaxed);
        recent.by_age.insert(key, dentry.clone());
        // Second chance: what was used since it got its place gets a new one, once for each new
        // entry.
        for _ in 0..4 {
            if recent.by_age.len() <= KEPT {
                break;
            }
            let Some((_, oldest)) = recent.by_age.pop_first() else { break };
            if oldest.used_again.swap(false, Ordering::Relaxed) {
                let key = recent.next;
                recent.next += 1;
                oldest.kept_as.store(key, Ordering::Relaxed);
                recent.by_age.insert(key, oldest);
            } else {
                oldest.kept_as.store(0, Ordering::Relaxed);
                displaced.push(oldest);
            }
        }
    }
    drop(displaced);
}

/// Takes a dentry out of the recently used, so that what it holds can be freed.
fn disregard(dentry: &Dentry) {
    let key = dentry.kept_as.swap(0, Ordering::Relaxed);
    let kept = if key == 0 { None } else { RECENT.lock().by_age.remove(&key) };
    drop(kept);
}

/// Forgets the recently used dentries. Allocates nothing: memory may be used up.
pub fn shrink() {
    shrink_of(|_| true);
}

/// Forgets those of file systems of which `is_gone` is true (they were unmounted).
pub fn shrink_of(is_gone: impl Fn(&Arc<dyn FileSystem>) -> bool) {
    forget_if(|dentry| is_gone(&dentry.fs));
}

/// Forgets those of the recently used dentries that nobody asked for again since the last time:
/// what a sandbox looked up once, when its programs began, is no part of its working set.
pub fn age() {
    forget_if(|dentry| !dentry.used_again.swap(false, Ordering::Relaxed));
}

fn forget_if(is_chosen: impl Fn(&Dentry) -> bool) {
    let mut next = 0;
    loop {
        // One at a time, for it is dropped outside of the lock.
        let taken = {
            let mut recent = RECENT.lock();
            let found = recent.by_age.range(next..).find(|(_, dentry)| is_chosen(dentry));
            let Some(key) = found.map(|(key, _)| *key) else { return };
            next = key;
            recent.by_age.remove(&key)
        };
        if let Some(dentry) = taken {
            dentry.kept_as.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for Dentry {
    fn drop(&mut self) {
        let this: *const Dentry = self;
        let place = self.place.get_mut();
        let Some(mut parent) = place.parent.take() else { return };
        {
            let mut children = parent.children.lock();
            if children.get(&place.name).is_some_and(|c| core::ptr::eq(c.as_ptr(), this)) {
                children.remove(&place.name);
            }
        }
        // A long chain of parents that only their children hold must not recurse once for each.
        while let Some(dentry) = Arc::into_inner(parent) {
            let mut dentry = dentry;
            let place = dentry.place.get_mut();
            let Some(next) = place.parent.take() else { return };
            {
                let mut children = next.children.lock();
                if children.get(&place.name).is_some_and(|c| c.strong_count() == 0) {
                    children.remove(&place.name);
                }
            }
            parent = next;
        }
    }
}
