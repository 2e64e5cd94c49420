//! Peer groups: who receives whose mounts (mount_namespaces(7), "Shared subtrees").
//!
//! A group that has no members is no master: its slaves become those of its own master, if it has
//! one. How many there are of each, and how long a chain of masters is, is the guest's choice:
//! nothing here is recursive.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::mem;
use core::ops::Bound::{Excluded, Unbounded};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::pieces::Pieces;
use crate::sync::Mutex;

/// What can be in a peer group: mounts.
pub trait Peer: Sized {
    /// A number that no other has.
    fn id(&self) -> u32;
    /// Its place in the groups. Changed by this module only.
    fn propagation(&self) -> &Mutex<Propagation<Self>>;
}

/// What a mount receives, and who receives from it.
#[derive(Default)]
pub enum Propagation<T> {
    /// Nothing and nobody (MS_PRIVATE).
    #[default]
    Private,
    /// As [`Propagation::Private`], and it may not be bound (MS_UNBINDABLE).
    Unbindable,
    /// It receives from this group (MS_SLAVE).
    Slave(Arc<PeerGroup<T>>),
    /// It is in this group, the members of which receive from each other (MS_SHARED), and from the
    /// group's master.
    Shared(Arc<PeerGroup<T>>),
}

impl<T> Clone for Propagation<T> {
    fn clone(&self) -> Self {
        match self {
            Propagation::Private => Propagation::Private,
            Propagation::Unbindable => Propagation::Unbindable,
            Propagation::Slave(master) => Propagation::Slave(master.clone()),
            Propagation::Shared(group) => Propagation::Shared(group.clone()),
        }
    }
}

/// A peer group.
pub struct PeerGroup<T> {
    /// Its number in /proc/PID/mountinfo.
    pub id: u32,
    links: Mutex<Links<T>>,
}

struct Links<T> {
    master: Option<Arc<PeerGroup<T>>>,
    members: BTreeMap<u32, Weak<T>>,
    /// Slaves that are in no group.
    slaves: BTreeMap<u32, Weak<T>>,
    /// Groups of slaves.
    groups: BTreeMap<u32, Weak<PeerGroup<T>>>,
}

/// The first of `all` after the number `after` that still is there.
fn after<T>(all: &BTreeMap<u32, Weak<T>>, after: u32) -> Option<(u32, Arc<T>)> {
    let mut rest = all.range((Excluded(after), Unbounded));
    rest.find_map(|(id, weak)| Some((*id, weak.upgrade()?)))
}

impl<T: Peer> PeerGroup<T> {
    /// A group without members.
    fn new(master: Option<Arc<Self>>) -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let group = Arc::new(PeerGroup {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            links: Mutex::new(Links {
                master: master.clone(),
                members: BTreeMap::new(),
                slaves: BTreeMap::new(),
                groups: BTreeMap::new(),
            }),
        });
        if let Some(master) = master {
            master.links.lock().groups.insert(group.id, Arc::downgrade(&group));
        }
        group
    }

    /// The group that its members receive from.
    pub fn master(&self) -> Option<Arc<Self>> {
        self.links.lock().master.clone()
    }

    /// The member after the one with this number.
    pub fn member_after(&self, id: u32) -> Option<(u32, Arc<T>)> {
        after(&self.links.lock().members, id)
    }

    /// The slave without a group after the one with this number.
    pub fn slave_after(&self, id: u32) -> Option<(u32, Arc<T>)> {
        after(&self.links.lock().slaves, id)
    }

    /// The group of slaves after the one with this number.
    pub fn group_after(&self, id: u32) -> Option<(u32, Arc<Self>)> {
        after(&self.links.lock().groups, id)
    }

    fn is_empty(&self) -> bool {
        self.links.lock().members.is_empty()
    }

    /// It has no members any more: its slaves become its master's.
    fn dissolve(&self) {
        let (master, slaves, groups) = {
            let mut links = self.links.lock();
            let master = links.master.take();
            (master, mem::take(&mut links.slaves), mem::take(&mut links.groups))
        };
        for slave in slaves.values().filter_map(Weak::upgrade) {
            let now = match &master {
                Some(master) => Propagation::Slave(master.clone()),
                None => Propagation::Private,
            };
            *slave.propagation().lock() = now;
        }
        for group in groups.values().filter_map(Weak::upgrade) {
            group.links.lock().master.clone_from(&master);
        }
        if let Some(master) = master {
            let mut links = master.links.lock();
            links.groups.remove(&self.id);
            join_lists(&mut links.slaves, slaves);
            join_lists(&mut links.groups, groups);
        }
    }
}

/// Moves the shorter list into the longer one.
fn join_lists<T>(into: &mut BTreeMap<u32, T>, mut more: BTreeMap<u32, T>) {
    if into.len() < more.len() {
        mem::swap(into, &mut more);
    }
    into.extend(more);
}

/// The group that it is in.
pub fn group_of<T: Peer>(of: &T) -> Option<Arc<PeerGroup<T>>> {
    match &*of.propagation().lock() {
        Propagation::Shared(group) => Some(group.clone()),
        _ => None,
    }
}

/// The group that it receives from as a slave, itself or with its own group.
pub fn master_of<T: Peer>(of: &T) -> Option<Arc<PeerGroup<T>>> {
    match of.propagation().lock().clone() {
        Propagation::Shared(group) => group.master(),
        Propagation::Slave(master) => Some(master),
        _ => None,
    }
}

/// Puts it where `state` says; it was in no group.
fn enter<T: Peer>(who: &Arc<T>, state: Propagation<T>) {
    match &state {
        Propagation::Shared(group) => {
            group.links.lock().members.insert(who.id(), Arc::downgrade(who));
        }
        Propagation::Slave(master) => {
            master.links.lock().slaves.insert(who.id(), Arc::downgrade(who));
        }
        Propagation::Private | Propagation::Unbindable => {}
    }
    *who.propagation().lock() = state;
}

/// Takes `id` out of the lists of its groups: the group that has no member now.
fn strike<T: Peer>(id: u32, state: &Propagation<T>) -> Option<Arc<PeerGroup<T>>> {
    match state {
        Propagation::Shared(group) => {
            group.links.lock().members.remove(&id);
            group.is_empty().then(|| group.clone())
        }
        Propagation::Slave(master) => {
            master.links.lock().slaves.remove(&id);
            None
        }
        Propagation::Private | Propagation::Unbindable => None,
    }
}

/// The one with this number goes, which was this.
pub fn forget<T: Peer>(id: u32, state: Propagation<T>) {
    if let Some(empty) = strike(id, &state) {
        empty.dissolve();
    }
}

/// MS_SHARED: it gets a group of its own, if it is in none, which receives what it receives.
pub fn make_shared<T: Peer>(who: &Arc<T>) {
    if group_of(&**who).is_some() {
        return;
    }
    let state = mem::take(&mut *who.propagation().lock());
    strike(who.id(), &state);
    let master = if let Propagation::Slave(master) = state { Some(master) } else { None };
    enter(who, Propagation::Shared(PeerGroup::new(master)));
}

/// MS_SLAVE: it leaves its group and receives from it. From a group that has no other member it
/// receives nothing: from its master, then, if there is one.
pub fn make_slave<T: Peer>(who: &Arc<T>) {
    let Some(group) = group_of(&**who) else { return };
    let state = mem::take(&mut *who.propagation().lock());
    let master = match strike(who.id(), &state) {
        Some(empty) => {
            let master = empty.master();
            empty.dissolve();
            master
        }
        None => Some(group),
    };
    if let Some(master) = master {
        enter(who, Propagation::Slave(master));
    }
}

/// MS_PRIVATE, or (`unbindable`) MS_UNBINDABLE.
pub fn make_private<T: Peer>(who: &Arc<T>, unbindable: bool) {
    let state = mem::take(&mut *who.propagation().lock());
    forget(who.id(), state);
    if unbindable {
        *who.propagation().lock() = Propagation::Unbindable;
    }
}

/// `copy`, which is new, is of `original`'s kind: in the group that it is in, or a slave as it is.
pub fn join<T: Peer>(copy: &Arc<T>, original: &T) {
    let state = original.propagation().lock().clone();
    enter(copy, state);
}

/// `copy`, which is new, receives from the group that `original` is in, and (`shared`) has a group
/// of its own.
pub fn follow<T: Peer>(copy: &Arc<T>, original: &T, shared: bool) {
    match original.propagation().lock().clone() {
        Propagation::Shared(group) if shared => {
            enter(copy, Propagation::Shared(PeerGroup::new(Some(group))));
        }
        Propagation::Shared(group) => enter(copy, Propagation::Slave(group)),
        other => enter(copy, other),
    }
}

/// All of `all` become private, in an order in which each slave that stays moves at most once.
pub fn make_all_private<T: Peer>(all: impl Iterator<Item = Arc<T>> + Clone) {
    for who in all.clone() {
        if matches!(&*who.propagation().lock(), Propagation::Slave(_)) {
            make_private(&who, false);
        }
    }
    let mut empty = Pieces::new();
    for who in all {
        let state = mem::take(&mut *who.propagation().lock());
        if let Some(group) = strike(who.id(), &state)
            && empty.push(group.clone()).is_err()
        {
            // Without memory in any order.
            group.dissolve();
        }
    }
    // From the top, so that what lies below is handed on to one that stays.
    let mut chain = Pieces::new();
    for group in empty.iter() {
        let mut top = group.clone();
        while let Some(master) = top.master().filter(|master| master.is_empty()) {
            if chain.push(top.clone()).is_err() {
                break;
            }
            top = master;
        }
        top.dissolve();
        while let Some(group) = chain.pop() {
            group.dissolve();
        }
    }
}

#[cfg(test)]
mod tests;
