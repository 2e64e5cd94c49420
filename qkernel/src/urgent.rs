//! Whose turn comes first: a process that has just come by `quark exec`.
//!
//! Somebody at a prompt waits for it, perhaps because the container's own programs have gone wild.
//! For its first moments its thread passes all others at the kernel lock, its task goes to the head
//! of the queue, and its pages may come from what others must leave. Both time and work are
//! bounded, for it may be the next to go wild.
//!
//! And one that is killed for want of memory, for others wait for what it holds.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::time;

/// How long a process is urgent after it was started.
const TIME_NS: u64 = 2_000_000_000;
/// How much time in the kernel it may use meanwhile.
const WORK_NS: u64 = 200_000_000;
/// How many that came from outside may be urgent at once; the oldest makes room.
const MOST: usize = 4;
/// The same of those that are to end.
const MOST_ENDING: usize = 12;

struct Slot {
    /// Of its thread; 0: free.
    token: AtomicU64,
    until_ns: AtomicU64,
    left_ns: AtomicU64,
}

static SLOTS: [Slot; MOST + MOST_ENDING] = [const {
    Slot { token: AtomicU64::new(0), until_ns: AtomicU64::new(0), left_ns: AtomicU64::new(0) }
}; MOST + MOST_ENDING];

/// How many slots are taken.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// The thread with this token has come from outside, and is urgent from now on.
pub fn begin(token: u64) {
    take(&SLOTS[..MOST], token);
}

/// The thread with this token is to end soon.
pub fn hasten_end(token: u64) {
    if slot_of(token).is_none() {
        take(&SLOTS[MOST..], token);
    }
}

fn take(slots: &[Slot], token: u64) {
    let oldest = slots.iter().min_by_key(|slot| match slot.token.load(Relaxed) {
        0 => 0,
        _ => slot.until_ns.load(Relaxed),
    });
    if let Some(slot) = oldest {
        slot.until_ns.store(time::monotonic_ns() + TIME_NS, Relaxed);
        slot.left_ns.store(WORK_NS, Relaxed);
        if slot.token.swap(token, Relaxed) == 0 {
            TAKEN.fetch_add(1, Relaxed);
        }
    }
}

fn free(slot: &Slot, token: u64) {
    // Two may find at once that its time is over.
    if slot.token.compare_exchange(token, 0, Relaxed, Relaxed).is_ok() {
        TAKEN.fetch_sub(1, Relaxed);
    }
}

/// It is so no more: its thread has ended.
pub fn end(token: u64) {
    if let Some(slot) = slot_of(token) {
        free(slot, token);
    }
}

#[inline]
fn slot_of(token: u64) -> Option<&'static Slot> {
    if TAKEN.load(Relaxed) == 0 {
        return None;
    }
    SLOTS.iter().find(|slot| token != 0 && slot.token.load(Relaxed) == token)
}

/// True if the thread with this token is urgent. Asked without the kernel lock too.
pub fn is_urgent(token: u64) -> bool {
    let Some(slot) = slot_of(token) else { return false };
    if slot.left_ns.load(Relaxed) > 0 && time::monotonic_ns() < slot.until_ns.load(Relaxed) {
        return true;
    }
    free(slot, token);
    false
}

/// The kernel has worked so long for the thread with this token.
pub fn worked(token: u64, ns: u64) {
    if let Some(slot) = slot_of(token) {
        slot.left_ns.store(slot.left_ns.load(Relaxed).saturating_sub(ns), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgency_ends_with_its_work_and_makes_room() {
        let token = 1 << 40;
        assert!(!is_urgent(0) && !is_urgent(token));
        begin(token);
        assert!(is_urgent(token));
        worked(token, WORK_NS - 1);
        assert!(is_urgent(token));
        worked(token, 1);
        assert!(!is_urgent(token));
        for i in 0..=MOST as u64 {
            begin(token + i);
        }
        assert!(is_urgent(token + MOST as u64));
        assert_eq!((0..=MOST as u64).filter(|i| is_urgent(token + i)).count(), MOST);
        (0..=MOST as u64).for_each(|i| end(token + i));
        assert!(!is_urgent(token + MOST as u64));
    }
}
