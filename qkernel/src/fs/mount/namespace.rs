//! Mount namespaces (mount_namespaces(7)).

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, Ordering};

use super::copy::{Kinship, Selection};
use super::locked::Locks;
use super::{Mount, check_room};
use crate::errno::{Errno, Result};
use crate::fs::{FsContext, Location};
use crate::namespace::{self, INITIAL_MNT};
use crate::sync::{Mutex, Once, mutex};
use crate::user_namespace::UserNs;

/// A mount namespace: a tree of mounts.
pub struct MountNamespace {
    /// The inode number of its file in /proc/PID/ns. A later one has a higher number.
    pub number: u64,
    /// The number of the one that it is a copy of, by way of others: all of a container have the
    /// same, and see nothing of another's.
    family: u64,
    /// The user namespace that it belongs to.
    pub user: UserNs,
    /// `None`: until the container has one.
    root: Mutex<Option<Arc<Mount>>>,
}

/// All of them, by family and number.
static ALL: Mutex<BTreeMap<(u64, u64), Weak<MountNamespace>>> = mutex(BTreeMap::new());

impl MountNamespace {
    /// That of the container's first process.
    pub fn initial() -> Arc<Self> {
        static INITIAL: Once<Arc<MountNamespace>> = Once::new();
        INITIAL.get_or_set(|| Self::new(INITIAL_MNT, INITIAL_MNT, UserNs::default())).clone()
    }

    /// A further one of this user namespace, with nothing in it.
    pub fn empty(user: &UserNs) -> Arc<Self> {
        let number = namespace::next_number();
        Self::new(number, number, user.clone())
    }

    fn new(number: u64, family: u64, user: UserNs) -> Arc<Self> {
        let new = Arc::new(MountNamespace { number, family, user, root: Mutex::default() });
        ALL.lock().insert((family, number), Arc::downgrade(&new));
        new
    }

    /// That of its container with this number.
    pub fn relative(&self, number: u64) -> Option<Arc<Self>> {
        ALL.lock().get(&(self.family, number)).and_then(Weak::upgrade)
    }

    /// Those of its container that were made after it, or before it, the next one first.
    pub fn others(&self, after: bool) -> impl Iterator<Item = Arc<Self>> {
        let (family, mut at) = (self.family, self.number);
        core::iter::from_fn(move || {
            let all = ALL.lock();
            let mut live =
                |((_, number), one): (&(u64, u64), &Weak<Self>)| Some((*number, one.upgrade()?));
            let next = match after {
                true => {
                    all.range((family, at.checked_add(1)?)..=(family, u64::MAX)).find_map(&mut live)
                }
                false => all.range((family, 0)..(family, at)).rev().find_map(&mut live),
            };
            let (number, next) = next?;
            at = number;
            Some(next)
        })
    }

    /// How many mounts are in it.
    pub fn mount_count(&self) -> usize {
        let root = self.root.lock().clone();
        root.map_or(0, |root| root.tree().count())
    }

    /// `mount`, which lies nowhere, becomes the root of its tree.
    pub fn set_root(&self, mount: &Arc<Mount>) {
        mount.adopt(self.number, self.user.number);
        let old = self.root.lock().replace(mount.clone());
        drop(old);
    }

    /// The root of its tree, which is somewhere else now.
    pub(super) fn give_up(&self) -> Option<Arc<Mount>> {
        self.root.lock().take()
    }

    /// Where its tree begins for who enters it.
    pub fn root(&self) -> Option<Location> {
        let root = self.root.lock().clone();
        root.map(|root| root.location().through_mounts())
    }

    /// EINVAL for a mount that is not in it.
    pub fn check_in(&self, mount: &Mount) -> Result {
        if mount.namespace() == self.number { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Another one of this user namespace, with a copy of the tree. What `fs` has in this one, it
    /// has in the other then. ENOSPC when there would be too many mounts.
    ///
    /// If it is another user namespace, the mounts are locked, and hand nothing on to those here.
    pub fn copy(&self, user: &UserNs, fs: &mut FsContext) -> Result<Arc<Self>> {
        let new = Self::new(namespace::next_number(), self.family, user.clone());
        let Some(root) = self.root.lock().clone() else { return Ok(new) };
        let selection = Selection {
            top: &root,
            root: &root.root,
            with_unbindable: true,
            with_namespaces: false,
        };
        check_room(selection.count(), user.number)?;
        let is_less = *user != self.user;
        let kinship = if is_less { Kinship::Slave { shared: false } } else { Kinship::Same };
        let copy = selection.copy(kinship, |original, copy| {
            for place in [&mut fs.root, &mut fs.cwd] {
                if Arc::ptr_eq(&place.mount, original) {
                    place.mount = copy.clone();
                }
            }
        });
        if is_less {
            copy.lock_tree();
        }
        new.set_root(&copy);
        Ok(new)
    }

    /// pivot_root(2), for who has `root` as root: `new` takes the place of that, which is mounted
    /// on `put_old`.
    ///
    /// # Errors
    /// EINVAL, EBUSY and ENOENT as Linux has them.
    pub fn pivot(&self, root: &Location, new: &Location, put_old: &Location) -> Result {
        let is_shared = |mount: &Arc<Mount>| mount.peer_group().is_some();
        let place = put_old.clone().through_mounts();
        if place.dentry.is_unlinked() {
            return Err(Errno::ENOENT);
        }
        let (below_new, below_root) = (new.mount.point(), root.mount.point());
        let below = [&below_new, &below_root].into_iter().flatten();
        if is_shared(&place.mount) || below.into_iter().any(|point| is_shared(&point.mount)) {
            return Err(Errno::EINVAL);
        }
        self.check_in(&root.mount)?;
        self.check_in(&new.mount)?;
        if new.dentry.is_unlinked() {
            return Err(Errno::ENOENT);
        }
        if Arc::ptr_eq(&new.mount, &root.mount) || Arc::ptr_eq(&place.mount, &root.mount) {
            return Err(Errno::EBUSY);
        }
        let is_possible = root.is_mount_root()
            && new.is_mount_root()
            && below_new.is_some()
            && place.is_below(new)
            && new.is_below(root)
            && !new.mount.is_locked();
        if !is_possible {
            return Err(Errno::EINVAL);
        }
        new.mount.take_off();
        match root.mount.take_off() {
            Some(point) => new.mount.attach(point),
            None => {
                let old = self.root.lock().replace(new.mount.clone());
                drop(old);
            }
        }
        root.mount.attach(place);
        if root.mount.is_locked() {
            // What is the root now stays that, as the old one did.
            new.mount.set_locks(new.mount.locks() | Locks::PLACE);
            root.mount.unlock_place();
        }
        Ok(())
    }
}

/// The roots of namespaces that have ended, whose mounts are still to be taken apart: the last one;
/// the mount point of each is the one before. One may hold another, by the file that stands for it,
/// so that the end of each within that of the other would be a recursion.
static ENDED: Mutex<Option<Arc<Mount>>> = mutex(None);

impl Drop for MountNamespace {
    fn drop(&mut self) {
        static IS_UNDER_WAY: AtomicBool = AtomicBool::new(false);
        ALL.lock().remove(&(self.family, self.number));
        let Some(root) = self.root.get_mut().take() else { return };
        {
            let mut ended = ENDED.lock();
            *root.point.lock() = ended.take().map(|before| before.location());
            *ended = Some(root);
        }
        if IS_UNDER_WAY.swap(true, Ordering::Relaxed) {
            return;
        }
        loop {
            let root = {
                let mut ended = ENDED.lock();
                let Some(root) = ended.take() else { break };
                *ended = root.point.lock().take().map(|before| before.mount);
                root
            };
            root.detach_all();
        }
        IS_UNDER_WAY.store(false, Ordering::Relaxed);
    }
}
