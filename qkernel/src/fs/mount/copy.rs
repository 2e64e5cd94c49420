//! Copies of mounts and of whole trees of them: for MS_BIND, for who receives mounts from others,
//! and for new mount namespaces.

use alloc::sync::Arc;

use super::peers::{self, Propagation};
use super::{Mount, check_room};
use crate::errno::{Errno, Result};
use crate::fs::Location;
use crate::fs::dentry::Dentry;

/// What a copy has to do with its original, as to propagation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kinship {
    /// It is a peer if the original is shared, a slave or unbindable if that is it.
    Same,
    /// It receives from the original, which is shared, and (`shared`) hands on to peers of its own.
    Slave { shared: bool },
}

/// What of a tree is copied.
pub(super) struct Selection<'a> {
    /// The root of the tree.
    pub top: &'a Arc<Mount>,
    /// Of the root, what lies here and what is mounted there.
    pub root: &'a Arc<Dentry>,
    /// What is unbindable too.
    pub with_unbindable: bool,
    /// Files of mount namespaces too.
    pub with_namespaces: bool,
}

impl Selection<'_> {
    /// The first mount after the one with this number on `parent` that belongs to it.
    fn child_after(&self, parent: &Arc<Mount>, mut id: u32) -> Option<Arc<Mount>> {
        loop {
            let child = parent.child_after(id)?;
            if self.takes(parent, &child) {
                return Some(child);
            }
            id = child.id;
        }
    }

    fn takes(&self, parent: &Arc<Mount>, child: &Mount) -> bool {
        let is_outside = || {
            let point = child.point();
            point.is_none_or(|point| !self.root.is_above(&point.dentry))
        };
        (self.with_unbindable || !child.is_unbindable())
            && (self.with_namespaces || child.root.inode.mount_namespace().is_none())
            && !(Arc::ptr_eq(parent, self.top) && is_outside())
    }

    /// Calls `visit` for each mount of it, after the one that it lies on: with the mount, and what
    /// `visit` gave for that one. What it gave for the root.
    fn walk<T: Clone>(
        &self,
        mut up: impl FnMut(&T) -> Option<T>,
        mut visit: impl FnMut(&Arc<Mount>, Option<&T>) -> T,
    ) -> T {
        let first = visit(self.top, None);
        let (mut at, mut value) = (self.top.clone(), first.clone());
        let mut next = self.child_after(&at, 0);
        loop {
            while next.is_none() {
                if Arc::ptr_eq(&at, self.top) {
                    return first;
                }
                let (Some(point), Some(above)) = (at.point(), up(&value)) else { return first };
                next = self.child_after(&point.mount, at.id);
                (at, value) = (point.mount, above);
            }
            let Some(child) = next else { return first };
            value = visit(&child, Some(&value));
            next = self.child_after(&child, 0);
            at = child;
        }
    }

    /// EPERM if something locked is left out of it, as it is unbindable: what that hides would be
    /// seen.
    pub fn check_locked(&self) -> Result {
        let is_left_out = |mount: &Arc<Mount>| {
            let is_of_top = mount.point().filter(|point| Arc::ptr_eq(&point.mount, self.top));
            mount.is_locked()
                && mount.is_unbindable()
                && is_of_top.is_none_or(|point| self.root.is_above(&point.dentry))
        };
        let mut all = self.top.tree().skip(1);
        if all.any(|mount| is_left_out(&mount)) { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// How many mounts these are.
    pub fn count(&self) -> usize {
        let mut count = 0;
        self.walk(|()| Some(()), |_, _| count += 1);
        count
    }

    /// A copy of all of them, which lies nowhere yet; `copied` is told of each mount and its copy.
    /// There must be room.
    pub fn copy(
        &self,
        kinship: Kinship,
        mut copied: impl FnMut(&Arc<Mount>, &Arc<Mount>),
    ) -> Arc<Mount> {
        self.walk(
            |copy: &Arc<Mount>| copy.point().map(|point| point.mount),
            |original, parent| {
                let root = if parent.is_none() { self.root } else { &original.root };
                let copy = original.of_same(root.clone(), original.flags());
                copy.set_locks(original.locks());
                match kinship {
                    Kinship::Same => peers::join(&copy, &**original),
                    Kinship::Slave { shared } => peers::follow(&copy, &**original, shared),
                }
                if let (Some(parent), Some(point)) = (parent, original.point()) {
                    copy.put(Location { mount: parent.clone(), dentry: point.dentry });
                }
                copied(original, &copy);
                copy
            },
        )
    }
}

impl Mount {
    /// A copy of what lies at `from`, and (`recursive`) of what is mounted there, which lies
    /// nowhere yet; `owner` is the number of the user namespace that it is for. EINVAL for what
    /// must not be bound, ENOSPC when there would be too many mounts.
    pub fn cloned(from: &Location, recursive: bool, owner: u64) -> Result<Arc<Mount>> {
        if from.mount.is_unbindable() {
            return Err(Errno::EINVAL);
        }
        let selection = Selection {
            top: &from.mount,
            root: &from.dentry,
            with_unbindable: false,
            with_namespaces: true,
        };
        let copy = if recursive {
            selection.check_locked()?;
            check_room(selection.count(), owner)?;
            selection.copy(Kinship::Same, |_, _| {})
        } else {
            if from.mount.hides_below(&from.dentry) {
                return Err(Errno::EINVAL);
            }
            check_room(1, owner)?;
            let copy = from.mount.of_same(from.dentry.clone(), from.mount.flags());
            copy.set_locks(from.mount.locks());
            peers::join(&copy, &*from.mount);
            copy
        };
        copy.unlock_place();
        Ok(copy)
    }

    /// mount(2) with MS_BIND: mounts such a copy on `place`.
    pub fn bind(from: &Location, place: Location, recursive: bool) -> Result {
        let copy = Self::cloned(from, recursive, place.mount.owner())?;
        let grafted = copy.graft(place);
        if grafted.is_err() {
            copy.take_apart();
        }
        grafted
    }

    /// MS_MOVE: from where it is to `place`.
    ///
    /// # Errors
    /// EINVAL for the root of a namespace, for what is locked there, for what lies on a shared
    /// mount, and for what has unbindable ones on it if `place` is on a shared mount; ELOOP if
    /// `place` lies on it.
    pub fn move_to(self: &Arc<Self>, place: Location) -> Result {
        let parent = self.point().ok_or(Errno::EINVAL)?.mount;
        if parent.peer_group().is_some() || self.is_locked() {
            return Err(Errno::EINVAL);
        }
        let place = place.through_mounts();
        self.check_moves_to(&place)?;
        self.graft(place)
    }

    /// EINVAL if it has unbindable mounts on it and `place` is on a shared one; ELOOP if `place`
    /// lies on it.
    pub(super) fn check_moves_to(self: &Arc<Self>, place: &Location) -> Result {
        let is_unbindable =
            |mount: Arc<Mount>| matches!(&*mount.propagation.lock(), Propagation::Unbindable);
        if place.mount.peer_group().is_some() && self.tree().any(is_unbindable) {
            return Err(Errno::EINVAL);
        }
        // Nobody could ever reach either again.
        if self.is_above(&place.mount) { Err(Errno::ELOOP) } else { Ok(()) }
    }

    /// MOVE_MOUNT_SET_GROUP of move_mount(2): it, which is private, receives what `from` does, and
    /// who receives from `from` does so from it.
    ///
    /// # Errors
    /// EINVAL if it is not private, or shows what `from` does not.
    pub fn join_group_of(self: &Arc<Self>, from: &Mount) -> Result {
        let is_private = matches!(&*self.propagation.lock(), Propagation::Private);
        let is_same = super::identity(&self.fs) == super::identity(&from.fs);
        if !is_private
            || !is_same
            || !from.root.is_above(&self.root)
            || from.hides_below(&self.root)
            || from.is_unbindable()
        {
            return Err(Errno::EINVAL);
        }
        peers::join(self, from);
        Ok(())
    }

    /// Takes a tree apart that lies nowhere: each mount from the one that it lies on, for they hold
    /// each other.
    pub fn take_apart(self: &Arc<Self>) {
        let mut at = self.clone();
        loop {
            while let Some(child) = at.child_after(0) {
                at = child;
            }
            let Some(point) = at.take_off() else { return };
            if Arc::ptr_eq(&at, self) {
                return;
            }
            at = point.mount;
        }
    }
}
