//! Keeping the other threads of an address space from mapping pages while its page table changes
//! under them, where threads carry changes out ([`super::mmu`]).
//!
//! An operation to map a page that is still on its way when the page is taken away would be carried
//! out after the operation that takes it away: the CPU would see a page that the page table does
//! not have. So, where several threads share a space, whoever takes a *range* away waits first
//! until no other thread has an operation to map something there out, and holds back new ones.
//! Threads that have nothing to do with the range notice nothing.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use qlib::Va;
use qlib::platform::DeferredOp;

use super::mmu::{maps_in, touches, void};
use super::{AddressSpace, UserThread};
use crate::wait::{self, PollMask};

/// All of an address space.
pub const EVERYTHING: Range<Va> = Va(0)..Va(u64::MAX);

/// Ranges that are remembered after they were frozen.
const REMEMBERED: usize = 32;

/// Who is kept from what in an address space.
#[derive(Default)]
pub(super) struct Freezer {
    /// Ranges in which nobody maps anything now.
    frozen: Vec<Range<Va>>,
    /// How many keep all threads out of user mode now.
    halts: u32,
    /// Counts the ranges that were frozen so far: operations to map a page that were given before
    /// may be about one that has been taken away since.
    epoch: u64,
    /// The last ones, the newest last.
    recent: VecDeque<Range<Va>>,
    /// Threads that may have operations to map something out. Each knows that it is
    /// [listed](UserThread::unlist); who has none any more goes when somebody looks.
    mapping: Vec<Arc<UserThread>>,
}

impl Freezer {
    /// What was mapped in `range` before is stale from now on.
    fn note(&mut self, range: Range<Va>) {
        self.epoch += 1;
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(range);
    }

    fn is_idle(&self) -> bool {
        self.frozen.is_empty() && self.halts == 0
    }

    /// True if one of `ops` maps something that is frozen.
    fn forbids(&self, ops: &[DeferredOp]) -> bool {
        self.frozen.iter().any(|range| ops.iter().any(|op| maps_in(op, range)))
    }

    /// The threads but `own` that have an operation out to map something in `range`.
    fn mapping_in(&mut self, range: &Range<Va>, own: u64) -> Vec<Arc<UserThread>> {
        self.mapping.retain(|thread| !thread.unlist());
        let is_one = |thread: &&Arc<UserThread>| thread.token != own && thread.maps_in(range);
        self.mapping.iter().filter(is_one).cloned().collect()
    }
}

/// What a [`Frozen`] keeps threads from.
enum Hold {
    /// Mapping something there.
    Range(Range<Va>),
    /// User mode.
    All,
}

/// While it lives, no other thread of the space gets pages of a range mapped, or gets to user mode
/// at all.
pub struct Frozen {
    mm: Arc<AddressSpace>,
    hold: Hold,
}

/// A thread has an operation out to map something in a range that is to be frozen.
#[derive(Debug)]
pub struct MustWait;

impl Frozen {
    fn new(mm: &Arc<AddressSpace>, hold: Hold) -> Self {
        let mut freezer = mm.freezer.lock();
        match &hold {
            Hold::Range(range) => freezer.frozen.push(range.clone()),
            Hold::All => freezer.halts += 1,
        }
        Frozen { mm: mm.clone(), hold }
    }
}

impl AddressSpace {
    /// True if whoever takes pages away must [freeze](AddressSpace::freeze) the space for that.
    pub fn must_freeze(&self) -> bool {
        self.lock().mmu.must_freeze()
    }

    /// Freezes `range` of the space for `thread` of it, which is not in user mode. `None` when no
    /// other thread shares it.
    pub async fn freeze(self: &Arc<Self>, thread: &UserThread, range: Range<Va>) -> Option<Frozen> {
        if !self.must_freeze() {
            return None;
        }
        let range = self.with_patches(range);
        let frozen = Frozen::new(self, Hold::Range(range.clone()));
        // Who has moved pages meanwhile, or has operations carried out without going on, is waited
        // for too.
        loop {
            let others = self.freezer.lock().mapping_in(&range, thread.token);
            if others.is_empty() {
                return Some(frozen);
            }
            for other in others {
                other.mapped(&range).await;
            }
        }
    }

    /// As [`AddressSpace::freeze`], if nobody need be waited for; else nothing is frozen.
    pub fn freeze_now(
        self: &Arc<Self>,
        thread: &UserThread,
        range: Range<Va>,
    ) -> Result<Option<Frozen>, MustWait> {
        if !self.must_freeze() {
            return Ok(None);
        }
        let range = self.with_patches(range);
        if !self.freezer.lock().mapping_in(&range, thread.token).is_empty() {
            return Err(MustWait);
        }
        Ok(Some(Frozen::new(self, Hold::Range(range))))
    }

    /// All that goes with `range`: patched pages elsewhere do if their pads are among it.
    fn with_patches(&self, range: Range<Va>) -> Range<Va> {
        if self.lock().patches.has_pads_in(&range) { EVERYTHING } else { range }
    }

    /// Takes all threads of a space of another process out of user mode, and keeps them out while
    /// the result lives.
    pub async fn halt(self: &Arc<Self>, thread: &UserThread) -> Frozen {
        self.halt_but(thread.token).await
    }

    /// The same for a task that is no thread's.
    pub async fn halt_all(self: &Arc<Self>) -> Frozen {
        self.halt_but(0).await
    }

    async fn halt_but(self: &Arc<Self>, token: u64) -> Frozen {
        let frozen = Frozen::new(self, Hold::All);
        let is_underway = |other: &Arc<UserThread>| {
            other.token != token && (other.is_in_user_mode() || other.maps_in(&EVERYTHING))
        };
        // Asked anew each time, with nothing waited for after the last answer.
        while let Some(other) = self.threads().into_iter().find(is_underway) {
            other.mapped(&EVERYTHING).await;
            other.leaves_user_mode().await;
        }
        frozen
    }

    /// Has threads of a [halted](AddressSpace::halt) space carry out what the space has in store
    /// for the platform, and what some of them have taken along of that and not carried out.
    pub async fn carry_out_ops(self: &Arc<Self>) {
        let mut is_done = false;
        for thread in self.threads() {
            let is_needed = !is_done || thread.with_claimed(|ops| !ops.is_empty());
            // One that dies meanwhile leaves it to the next.
            if is_needed && !thread.is_dead() {
                is_done |= thread.flush(self).await.is_ok();
            }
        }
    }

    /// True if somebody holds a part of it frozen, or all.
    pub fn is_frozen(&self) -> bool {
        !self.freezer.lock().is_idle()
    }

    /// True if `thread` of the space, which is not in user mode, may not go there now: it would map
    /// something that is frozen, or show what the kernel has copied where another thread may yet
    /// map what was there before, or all are halted.
    pub fn holds_back(&self, thread: &UserThread) -> bool {
        // It takes along what the space has in store.
        if self.is_frozen() || self.has_unseen_copies() {
            thread.claim_ops(self);
        }
        self.is_frozen_for(thread) || self.maps_what_was_copied(thread)
    }

    fn is_frozen_for(&self, thread: &UserThread) -> bool {
        let freezer = self.freezer.lock();
        freezer.halts > 0
            || !freezer.frozen.is_empty() && thread.with_claimed(|ops| freezer.forbids(ops))
    }

    /// True if another thread may yet map what the kernel has replaced by copies that `thread` has
    /// claimed to show.
    pub(super) fn maps_what_was_copied(&self, thread: &UserThread) -> bool {
        let (copies, _) = thread.claimed_copies();
        let mut freezer = self.freezer.lock();
        copies.iter().any(|range| !freezer.mapping_in(range, thread.token).is_empty())
    }

    /// Waits until none does. What others are given to map meanwhile are the copies.
    pub(super) async fn mapped_before_copies(&self, thread: &UserThread) {
        let (copies, claimed) = thread.claimed_copies();
        for range in copies.iter() {
            let others = self.freezer.lock().mapping_in(range, thread.token);
            for other in others {
                other.mapped(range).await;
            }
        }
        thread.forget_copies(claimed);
    }

    /// Waits until the thread is not [held back](AddressSpace::holds_back).
    pub async fn lets_go(&self, thread: &UserThread) {
        while self.holds_back(thread) {
            match self.maps_what_was_copied(thread) {
                true => self.mapped_before_copies(thread).await,
                false => self.changed().await,
            }
        }
    }

    /// Waits until nobody holds any of it frozen.
    pub async fn thawed(&self) {
        while self.is_frozen() {
            self.changed().await;
        }
    }

    /// Waits until somebody who held a part of it frozen does so no longer.
    async fn changed(&self) {
        wait::notified(&self.thaw, PollMask::IN, None).await;
    }

    /// Operations to map something in `range` that were claimed before are stale from now on.
    pub(super) fn note_stale(&self, range: Range<Va>) {
        self.freezer.lock().note(range);
    }

    /// How many ranges were frozen so far.
    pub(super) fn epoch(&self) -> u64 {
        self.freezer.lock().epoch
    }

    /// Voids those of `ops`, which were claimed when `epoch` ranges had been frozen, that may map
    /// what has been taken away since. Nothing there is right too: it faults in again.
    pub(super) fn void_stale(&self, epoch: u64, ops: &mut [DeferredOp]) {
        let freezer = self.freezer.lock();
        // One of another space says nothing about this one.
        let since = freezer.epoch.checked_sub(epoch).and_then(|since| usize::try_from(since).ok());
        let since = since.unwrap_or(usize::MAX);
        if since > freezer.recent.len() {
            return ops.iter_mut().for_each(void);
        }
        for range in freezer.recent.iter().rev().take(since) {
            ops.iter_mut().filter(|op| touches(op, range)).for_each(void);
        }
    }

    /// Voids those of `ops` that would map now what nobody may map.
    pub(super) fn void_frozen(&self, ops: &mut [DeferredOp]) {
        // A thread that is alone carries all out in the order in which it came.
        if !self.must_freeze() {
            return;
        }
        let freezer = self.freezer.lock();
        let is_held = |op: &DeferredOp| {
            freezer.halts > 0 || freezer.frozen.iter().any(|range| touches(op, range))
        };
        ops.iter_mut().filter(|op| is_held(op)).for_each(void);
    }

    /// `thread` goes on with operations to map something.
    pub(super) fn list_mapping(&self, thread: &Arc<UserThread>) {
        self.freezer.lock().mapping.push(thread.clone());
    }

    /// The thread with this token leaves the space, with nothing of it under way.
    pub(super) fn forget_mapping(&self, token: u64) {
        self.freezer.lock().mapping.retain(|thread| thread.token != token);
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // A thread that is alone carries all out in the order in which it came. To void some of it
        // would leave holes where the page table says that something is mapped.
        let is_shared = self.mm.must_freeze();
        {
            let mut freezer = self.mm.freezer.lock();
            let gone = match &self.hold {
                Hold::Range(range) => {
                    if let Some(at) = freezer.frozen.iter().position(|frozen| frozen == range) {
                        freezer.frozen.swap_remove(at);
                    }
                    range.clone()
                }
                Hold::All => {
                    freezer.halts -= 1;
                    EVERYTHING
                }
            };
            if is_shared {
                freezer.note(gone);
            }
        }
        self.mm.thaw.wake(PollMask::IN);
    }
}
