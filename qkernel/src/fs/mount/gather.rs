//! To which mounts umount2(2) is propagated: each peer group that receives is looked at once, and
//! of each mount in it no more than there is on it, however many go.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::peers::PeerGroup;
use super::{Mount, key};
use crate::errno::Result;
use crate::pieces::Pieces;

type Group = Arc<PeerGroup<Mount>>;

/// Groups on the members of which mounts go, with the places of those.
type Sources = BTreeMap<u32, (Group, Pieces<usize>)>;

/// What is mounted where mounts on the groups that are gone through go, by how many of these have
/// the place.
struct Search<F> {
    sources: Sources,
    places: BTreeMap<usize, usize>,
    found: F,
}

/// Calls `found` for each mount that lies where one of `going` does on a mount that receives from
/// the one that this lies on; also for those of `going` themselves. ENOMEM, and what `found` says.
pub(super) fn gather(
    going: &Pieces<Arc<Mount>>,
    found: impl FnMut(Arc<Mount>) -> Result,
) -> Result {
    let mut sources = Sources::new();
    for point in going.iter().filter_map(|mount| mount.point()) {
        // Where nothing else is mounted, nothing else goes.
        if point.dentry.mounts.load(Ordering::Relaxed) < 2 {
            continue;
        }
        let Some(group) = point.mount.peer_group() else { continue };
        let (_, places) = sources.entry(group.id).or_insert_with(|| (group, Pieces::new()));
        places.push(key(&point.dentry))?;
    }
    let mut search = Search { sources, places: BTreeMap::new(), found };
    // Those that have none of `sources` above them.
    let mut clear = BTreeSet::new();
    while let Some(first) = search.sources.values().next().map(|(group, _)| group.clone()) {
        let (mut top, mut at) = (first.clone(), first);
        let mut below = Pieces::new();
        while let Some(master) = at.master().filter(|master| !clear.contains(&master.id)) {
            if search.sources.contains_key(&master.id) {
                top = master.clone();
            }
            below.push(master.id)?;
            at = master;
        }
        search.go_through(&top)?;
        // With the top and what is below it, all are clear that were met.
        clear.extend(below);
    }
    Ok(())
}

impl<F: FnMut(Arc<Mount>) -> Result> Search<F> {
    /// Looks at `top` and what receives from it, each after the group that it receives from.
    fn go_through(&mut self, top: &Group) -> Result {
        let mut path: Pieces<(Group, Pieces<usize>, u32)> = Pieces::new();
        let places = self.enter(top)?;
        path.push((top.clone(), places, 0))?;
        while let Some((group, _, after)) = path.len().checked_sub(1).and_then(|i| path.get_mut(i))
        {
            if let Some((id, slaves)) = group.group_after(*after) {
                *after = id;
                let places = self.enter(&slaves)?;
                path.push((slaves, places, 0))?;
            } else if let Some((_, places, _)) = path.pop() {
                for place in places {
                    self.forget(place);
                }
            }
        }
        Ok(())
    }

    /// Looks at the members of `group` and its slaves without a group. The places that are looked
    /// for from here on.
    fn enter(&mut self, group: &Group) -> Result<Pieces<usize>> {
        let places = self.sources.remove(&group.id).map(|(_, places)| places).unwrap_or_default();
        for place in places.iter() {
            *self.places.entry(*place).or_default() += 1;
        }
        let mut id = 0;
        while let Some((next, member)) = group.member_after(id) {
            self.look_at(&member)?;
            id = next;
        }
        let mut id = 0;
        while let Some((next, slave)) = group.slave_after(id) {
            self.look_at(&slave)?;
            id = next;
        }
        Ok(places)
    }

    fn forget(&mut self, place: usize) {
        if let Some(count) = self.places.get_mut(&place) {
            *count -= 1;
            if *count == 0 {
                self.places.remove(&place);
            }
        }
    }

    fn look_at(&mut self, mount: &Arc<Mount>) -> Result {
        let on_it = mount.children.lock().at.len();
        if on_it <= self.places.len() {
            let mut id = 0;
            while let Some(child) = mount.child_after(id) {
                id = child.id;
                let place = child.point().map(|point| key(&point.dentry));
                if place.is_some_and(|place| self.places.contains_key(&place)) {
                    (self.found)(child)?;
                }
            }
            return Ok(());
        }
        for place in self.places.keys() {
            let there = mount.children.lock().at.get(place).cloned();
            if let Some(child) = there {
                (self.found)(child)?;
            }
        }
        Ok(())
    }
}
