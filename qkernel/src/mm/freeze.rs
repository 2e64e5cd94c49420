//! Keeping the other threads of an address space from mapping pages while its page table changes
//! under them, where threads carry changes out ([`super::mmu`]).
//!
//! An operation to map a page that is still on its way when the page is taken away would be carried
//! out after the operation that takes it away: the CPU would see a page that the page table does
//! not have. So, where several threads share a space, whoever takes something away waits first
//! until no other thread has such an operation out, and holds back new ones.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::{AddressSpace, UserThread};
use crate::wait::{PollMask, Signal};

/// While it lives, no other thread of the space gets new pages mapped.
pub struct Frozen {
    mm: Arc<AddressSpace>,
}

impl AddressSpace {
    /// True if whoever takes pages away must [freeze](AddressSpace::freeze) the space for that.
    pub fn must_freeze(&self) -> bool {
        self.lock().mmu.must_freeze()
    }

    /// Freezes the space for `thread` of it, which is not in user mode. `None` when no other thread
    /// shares it.
    pub async fn freeze(self: &Arc<Self>, thread: &UserThread) -> Option<Frozen> {
        if !self.must_freeze() {
            return None;
        }
        self.freezers.fetch_add(1, Ordering::Relaxed);
        let frozen = Frozen { mm: self.clone() };
        for other in self.threads() {
            if other.token != thread.token {
                other.mapped().await;
            }
        }
        Some(frozen)
    }

    /// Takes all threads of a space of another process out of user mode, and keeps them out while
    /// the result lives.
    pub async fn halt(self: &Arc<Self>, thread: &UserThread) -> Frozen {
        self.freezers.fetch_add(1, Ordering::Relaxed);
        let frozen = Frozen { mm: self.clone() };
        for other in self.threads() {
            if other.token == thread.token {
                continue;
            }
            other.mapped().await;
            while other.is_in_user_mode() {
                other.interrupt();
                other.leaves_user_mode().await;
            }
        }
        frozen
    }

    /// Has a thread of a [halted](AddressSpace::halt) space carry out what the space has in store
    /// for the platform.
    pub async fn carry_out_ops(self: &Arc<Self>) {
        for thread in self.threads() {
            // One that dies meanwhile leaves it to the next.
            if !thread.is_dead() && thread.flush(self).await.is_ok() {
                return;
            }
        }
    }

    /// True if somebody holds it frozen.
    pub fn is_frozen(&self) -> bool {
        self.freezers.load(Ordering::Relaxed) > 0
    }

    /// Operations to map pages that were given in an earlier epoch may be about pages that have
    /// been taken away since.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Waits until nobody does.
    pub async fn thawed(&self) {
        while self.is_frozen() {
            let signal = Arc::new(Signal::default());
            let id = self.thaw.register(PollMask::IN, signal.clone());
            signal.wait().await;
            self.thaw.unregister(id);
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.mm.epoch.fetch_add(1, Ordering::Relaxed);
        if self.mm.freezers.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.mm.thaw.wake(PollMask::IN);
        }
    }
}
