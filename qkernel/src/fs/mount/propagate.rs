//! Where a mount goes besides the place that was named (Linux's
//! Documentation/filesystems/sharedsubtree.rst): to the peers of the mount that it is put on, their
//! slaves, the slaves of those, and so on.

use alloc::sync::Arc;

use super::copy::{Kinship, Selection};
use super::peers::{self, PeerGroup};
use super::{Mount, check_room};
use crate::errno::{Errno, Result};
use crate::fs::Location;
use crate::fs::dentry::Dentry;
use crate::pieces::Pieces;

/// A peer group that receives.
struct Reached {
    group: Arc<PeerGroup<Mount>>,
    /// Where in the list the group is that it receives from; its own place for the first.
    from: usize,
    /// What a mount has been copied to in it, or in the nearest group above that has one.
    copy: Option<Arc<Mount>>,
}

/// A mount that receives.
struct Receiver {
    mount: Arc<Mount>,
    /// Where in the list of groups the one is that it is in, or a slave of.
    group: usize,
    /// It is in no group itself.
    is_slave: bool,
    /// What it is to get.
    copy: Option<Arc<Mount>>,
}

/// `group` and all that receive from it, each after the one that it receives from.
fn reached_from(group: Arc<PeerGroup<Mount>>) -> Result<Pieces<Reached>> {
    let mut all = Pieces::new();
    all.push(Reached { group, from: 0, copy: None })?;
    let mut index = 0;
    while let Some(group) = all.get(index).map(|reached| reached.group.clone()) {
        let mut id = 0;
        while let Some((next, slaves)) = group.group_after(id) {
            all.push(Reached { group: slaves, from: index, copy: None })?;
            id = next;
        }
        index += 1;
    }
    Ok(all)
}

/// Calls `each` for the mounts that receive from `of`, with the places of their groups and whether
/// they are slaves without a group.
fn each_receiver(
    of: &Arc<Mount>,
    groups: &Pieces<Reached>,
    mut each: impl FnMut(Arc<Mount>, usize, bool) -> Result,
) -> Result {
    for (index, reached) in groups.iter().enumerate() {
        let mut id = 0;
        while let Some((next, member)) = reached.group.member_after(id) {
            if !Arc::ptr_eq(&member, of) {
                each(member, index, false)?;
            }
            id = next;
        }
        let mut id = 0;
        while let Some((next, slave)) = reached.group.slave_after(id) {
            each(slave, index, true)?;
            id = next;
        }
    }
    Ok(())
}

/// What is mounted, where that receives, on the place in each receiver that `point` is in its own
/// mount: each is given to `each`. ENOMEM, and what `each` says.
pub(super) fn each_copy(point: &Location, mut each: impl FnMut(Arc<Mount>) -> Result) -> Result {
    // Nothing else is mounted there, whoever receives.
    if point.dentry.mounts.load(core::sync::atomic::Ordering::Relaxed) < 2 {
        return Ok(());
    }
    let Some(group) = point.mount.peer_group() else { return Ok(()) };
    each_receiver(&point.mount, &reached_from(group)?, |receiver, _, _| {
        receiver.mounted_at(&point.dentry).map_or(Ok(()), &mut each)
    })
}

/// The receivers in which `place` can be seen, which are in a namespace.
fn receivers_of(place: &Location, groups: &Pieces<Reached>) -> Result<Pieces<Receiver>> {
    let mut all = Pieces::new();
    // Most have the same root.
    let mut last: Option<(Arc<Dentry>, bool)> = None;
    each_receiver(&place.mount, groups, |mount, group, is_slave| {
        let shows = match &last {
            Some((root, shows)) if Arc::ptr_eq(root, &mount.root) => *shows,
            _ => mount.root.is_above(&place.dentry),
        };
        last = Some((mount.root.clone(), shows));
        if shows && mount.is_in_tree() {
            all.push(Receiver { mount, group, is_slave, copy: None })?;
        }
        Ok(())
    })?;
    Ok(all)
}

impl Mount {
    /// Mounts a tree that is new, or is moved, on `place`, and copies of it wherever that is
    /// propagated to.
    ///
    /// # Errors
    /// ENOSPC when there would be too many mounts, ENOMEM; EPERM for what is locked and unbindable
    /// and would have copies, EINVAL for the file of a mount namespace
    /// that would have copies. Nothing is done then.
    pub fn graft(self: &Arc<Self>, place: Location) -> Result {
        let place = place.through_mounts();
        let mut receivers = Pieces::new();
        if let Some(group) = place.mount.peer_group() {
            let mut groups = reached_from(group)?;
            receivers = receivers_of(&place, &groups)?;
            let selection = self.whole_tree();
            if !receivers.is_empty() {
                if self.root.inode.mount_namespace().is_some() {
                    return Err(Errno::EINVAL);
                }
                selection.check_locked()?;
                let copies = selection.count().saturating_mul(receivers.len());
                check_room(copies, place.mount.owner())?;
            }
            for mount in self.tree() {
                peers::make_shared(&mount);
            }
            copy_to(self, &mut groups, &mut receivers);
        }
        self.take_off();
        self.attach(place.clone());
        for receiver in receivers {
            if let Some(copy) = receiver.copy {
                if receiver.mount.owner() != place.mount.owner() {
                    copy.lock_tree();
                }
                copy.unlock_place();
                copy.attach(Location { mount: receiver.mount, dentry: place.dentry.clone() });
            }
        }
        Ok(())
    }

    /// What of it is copied to others.
    fn whole_tree(self: &Arc<Self>) -> Selection<'_> {
        Selection { top: self, root: &self.root, with_unbindable: false, with_namespaces: false }
    }
}

/// Makes what each receiver gets: the first of a group a slave of what the group above got, the
/// others peers of that.
fn copy_to(source: &Arc<Mount>, groups: &mut Pieces<Reached>, receivers: &mut Pieces<Receiver>) {
    // The groups that have copies of their own lie before `known`, or it is this.
    let mut current = (0, Some(source.clone()));
    set_copy(groups, 0, source.clone());
    for index in 0..receivers.len() {
        let Some(receiver) = receivers.get_mut(index) else { return };
        let group = receiver.group;
        if current.0 != group {
            current = (group, None);
        }
        let copy = if receiver.is_slave {
            let Some(master) = copy_above(groups, group) else { return };
            master.whole_tree().copy(Kinship::Slave { shared: false }, |_, _| {})
        } else if let Some(peer) = &current.1 {
            peer.whole_tree().copy(Kinship::Same, |_, _| {})
        } else {
            let from = groups.get(group).map_or(0, |reached| reached.from);
            let Some(master) = copy_above(groups, from) else { return };
            let copy = master.whole_tree().copy(Kinship::Slave { shared: true }, |_, _| {});
            current.1 = Some(copy.clone());
            set_copy(groups, group, copy.clone());
            copy
        };
        receiver.copy = Some(copy);
    }
}

fn set_copy(groups: &mut Pieces<Reached>, index: usize, copy: Arc<Mount>) {
    if let Some(reached) = groups.get_mut(index) {
        reached.copy = Some(copy);
    }
}

/// The copy in the group at `index`, or in the nearest one above it that has one. It is kept for
/// that: chains of masters may be long.
fn copy_above(groups: &mut Pieces<Reached>, index: usize) -> Option<Arc<Mount>> {
    let mut at = index;
    let copy = loop {
        let reached = groups.get(at)?;
        match &reached.copy {
            Some(copy) => break copy.clone(),
            None => at = reached.from,
        }
    };
    let mut at = index;
    while let Some(reached) = groups.get_mut(at).filter(|reached| reached.copy.is_none()) {
        reached.copy = Some(copy.clone());
        at = reached.from;
    }
    Some(copy)
}
