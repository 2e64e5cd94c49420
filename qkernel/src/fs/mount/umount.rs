//! umount2(2): what goes, where else that is propagated to, and what must stay.
//!
//! From a mount that goes, the going of what lies on it is propagated to the receivers of its
//! parent. There it goes too, unless something lies on it that stays; what merely covers it, root
//! on root, stays and moves down to where that was.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::gather::gather;
use super::propagate::each_copy;
use super::{Mount, identity, locked, peers};
use crate::errno::{Errno, Result};
use crate::fs::Location;
use crate::fs::dentry::{self, Dentry};
use crate::fs::inode::FileSystem;
use crate::pieces::Pieces;

/// It goes if nothing is in its way.
const CANDIDATE: u8 = 1;
/// It goes.
const GOING: u8 = 2;
/// What lies below it has been told that something on it stays.
const TOLD: u8 = 4;
/// It has gone, or was never anywhere: its file system does without it.
const RETIRED: u8 = 8;

impl Mount {
    fn has_mark(&self, marks: u8) -> bool {
        self.marks.load(Ordering::Relaxed) & marks != 0
    }

    fn mark(&self, marks: u8) {
        self.marks.fetch_or(marks, Ordering::Relaxed);
    }

    fn unmark(&self, marks: u8) {
        self.marks.fetch_and(!marks, Ordering::Relaxed);
    }

    /// Its file system has one mount less: true if that was the last one.
    pub(super) fn retire(&self) -> bool {
        let was = self.marks.fetch_or(RETIRED, Ordering::Relaxed);
        was & RETIRED == 0 && self.superblock.mounts.fetch_sub(1, Ordering::Relaxed) == 1
    }

    /// True if somebody has a place on it: an open or mapped file, a directory to work in, a
    /// program. The caller has one too, so has what it is mounted on, and `known` others.
    fn is_held(self: &Arc<Self>, known: usize) -> bool {
        const CALLER_AND_PARENT: usize = 2;
        Arc::strong_count(self) > CALLER_AND_PARENT + known
    }

    /// EBUSY if it is in use, or a copy of it is to which umount2(2) is propagated.
    fn check_unused(self: &Arc<Self>, point: &Location) -> Result {
        if self.has_children() || self.is_held(0) {
            return Err(Errno::EBUSY);
        }
        each_copy(point, |copy| {
            // What covers it does not keep it from going; anything else does, so that it is not
            // asked.
            let known = match copy.cover() {
                Some(cover) if copy.child_after(0).is_some_and(|c| Arc::ptr_eq(&c, &cover)) => {
                    if copy.child_after(cover.id).is_some() {
                        return Ok(());
                    }
                    1
                }
                _ if copy.has_children() => return Ok(()),
                _ => 0,
            };
            // It may be what `self` lies on.
            let known = known + usize::from(Arc::ptr_eq(&copy, &point.mount));
            if copy.is_held(known) { Err(Errno::EBUSY) } else { Ok(()) }
        })
    }

    /// umount2(2): takes it from its place, and (`lazy`) all that lies on it from theirs, each for
    /// itself; and so where that is propagated to.
    ///
    /// # Errors
    /// EBUSY when somebody has a place on it, or something is mounted on it, and it is not to be
    /// lazy, EINVAL for the root of a namespace, what is in none and what is locked, ENOMEM.
    pub fn detach(self: &Arc<Self>, lazy: bool) -> Result {
        let Some(point) = self.point().filter(|_| self.is_in_tree() && !self.is_locked()) else {
            return Err(Errno::EINVAL);
        };
        if !lazy {
            self.check_unused(&point)?;
        }
        let mut going = Pieces::new();
        for mount in self.tree() {
            going.push(mount)?;
        }
        let own = going.len();
        let staying = add_copies(&mut going).and_then(|()| staying_covers(&going, own));
        for mount in going.iter() {
            mount.unmark(GOING);
        }
        let staying = staying?;
        for (cover, _) in staying.iter() {
            cover.take_off();
        }
        peers::make_all_private(going.iter().cloned());
        for mount in going.iter() {
            mount.namespace.store(0, Ordering::Relaxed);
        }
        for mount in going.iter() {
            let point = mount.take_off();
            locked::took_off(mount, point.as_ref().filter(|point| !point.mount.is_in_tree()));
        }
        for (cover, place) in staying {
            cover.put(place);
        }
        let mut unmounted = Unmounted::default();
        going.iter().for_each(|mount| unmounted.note(mount));
        Ok(())
    }

    /// Takes all of a namespace away; `self` is its root.
    pub(super) fn detach_all(self: &Arc<Self>) {
        peers::make_all_private(self.tree());
        let mut unmounted = Unmounted::default();
        let mut at = self.clone();
        loop {
            while let Some(child) = at.child_after(0) {
                at = child;
            }
            at.namespace.store(0, Ordering::Relaxed);
            unmounted.note(&at);
            let Some(point) = at.take_off() else { return };
            locked::took_off(&at, Some(&point));
            at = point.mount;
        }
    }
}

/// Takes away what is mounted, in whichever namespace, on a name that has gone: who mounts things
/// in a namespace of its own keeps nobody else from removing what they lie on. Where there is no
/// memory for it, they stay.
pub fn detach_from(dentry: &Arc<Dentry>) {
    if dentry.mounts.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut there = Pieces::new();
    for mount in super::all().filter(|mount| mount.lies_on(dentry)) {
        if there.push(mount).is_err() {
            break;
        }
    }
    for mount in there.iter() {
        mount.unlock_place();
        // It may have gone with another one.
        let _ = mount.detach(true);
    }
}

/// Adds to `going`, a tree, what goes with it elsewhere. All of it is marked as [`GOING`].
fn add_copies(going: &mut Pieces<Arc<Mount>>) -> Result {
    for mount in going.iter() {
        mount.mark(GOING);
    }
    let mut candidates: Pieces<Arc<Mount>> = Pieces::new();
    let gathered = gather(going, |copy| {
        if !copy.has_mark(GOING | CANDIDATE) {
            candidates.push(copy.clone())?;
            copy.mark(CANDIDATE);
        }
        Ok(())
    });
    for candidate in candidates.iter().filter(|_| gathered.is_ok()) {
        spare(candidate);
    }
    let mut added = gathered;
    for candidate in candidates {
        if candidate.has_mark(CANDIDATE) && added.is_ok() {
            added = going.push(candidate.clone());
            if added.is_ok() {
                candidate.mark(GOING);
            }
        }
        candidate.unmark(CANDIDATE | TOLD);
    }
    added
}

/// Spares `candidate` if something on it stays that does not merely cover it, and with it, or with
/// what covers it, what lies below.
fn spare(candidate: &Arc<Mount>) {
    if !candidate.has_mark(CANDIDATE) {
        return;
    }
    let (mut id, mut holds) = (0, false);
    while let Some(child) = candidate.child_after(id) {
        id = child.id;
        if !child.has_mark(GOING | CANDIDATE) {
            holds = true;
            if candidate.cover().is_none_or(|cover| !Arc::ptr_eq(&cover, &child)) {
                candidate.unmark(CANDIDATE);
                break;
            }
        }
    }
    let mut at = candidate.clone();
    while holds && !at.has_mark(TOLD) {
        at.mark(TOLD);
        let Some(below) = at.point().map(|point| point.mount) else { return };
        if !below.has_mark(CANDIDATE) {
            return;
        }
        if below.cover().is_none_or(|cover| !Arc::ptr_eq(&cover, &at)) {
            below.unmark(CANDIDATE);
        }
        at = below;
    }
}

/// What covers one of those that go and stays itself, and where it will lie: where what it covers
/// did, at the bottom. The first `own` of those that go have nothing on them that stays.
fn staying_covers(
    going: &Pieces<Arc<Mount>>,
    own: usize,
) -> Result<Pieces<(Arc<Mount>, Location)>> {
    let mut staying = Pieces::new();
    for mount in going.iter().skip(own) {
        let Some(cover) = mount.cover().filter(|cover| !cover.has_mark(GOING)) else { continue };
        let mut place = mount.point();
        while let Some(point) = place.take_if(|point| point.mount.has_mark(GOING)) {
            place = point.mount.point();
        }
        if let Some(place) = place {
            staying.push((cover, place))?;
        }
    }
    Ok(staying)
}

/// File systems that have no mount any more. What they keep is given up at the end, for all of them
/// together.
#[derive(Default)]
struct Unmounted(BTreeMap<usize, Arc<dyn FileSystem>>);

impl Unmounted {
    /// `mount` has gone.
    fn note(&mut self, mount: &Mount) {
        if mount.retire() {
            self.0.insert(identity(&mount.fs), mount.fs.clone());
        }
    }
}

impl Drop for Unmounted {
    fn drop(&mut self) {
        if self.0.is_empty() {
            return;
        }
        dentry::shrink_of(|fs| self.0.contains_key(&identity(fs)));
        for fs in self.0.values() {
            fs.unmounted();
        }
    }
}
