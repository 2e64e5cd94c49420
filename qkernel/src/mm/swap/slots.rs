//! Swap slots: how many page-table entries name each, and giving back those that none does.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use qlib::host::Op;

use crate::host::Call;
use crate::sync::{Mutex, mutex};

/// The "slot" of a page that is all zeros: it takes no place in the store. Real slots are stored
/// one higher.
pub const ZERO: u64 = 0;
/// Freed slots are given back to the store in batches of this many.
const BATCH: usize = 256;

struct Slots {
    /// References beyond the first, by slot.
    shared: BTreeMap<u64, u32>,
    /// No longer named, not yet given back.
    free: Vec<u64>,
    /// Slots in use.
    used: u64,
}

static SLOTS: Mutex<Slots> = mutex(Slots { shared: BTreeMap::new(), free: Vec::new(), used: 0 });

/// The store gave out `count` slots.
pub fn count_used(count: usize) {
    SLOTS.lock().used += count as u64;
}

/// Pages in the swap file.
pub fn used() -> u64 {
    SLOTS.lock().used
}

/// `count` more entries name the slot.
pub fn add_refs(slot: u64, count: u32) {
    if slot != ZERO && count > 0 {
        *SLOTS.lock().shared.entry(slot).or_insert(0) += count;
    }
}

/// One more entry names the slot.
pub fn add_ref(slot: u64) {
    add_refs(slot, 1);
}

/// How many entries name the slot.
pub fn names(slot: u64) -> u32 {
    SLOTS.lock().shared.get(&slot).map_or(1, |more| more + 1)
}

/// One entry less names the slot; the last one frees it.
pub fn drop_ref(slot: u64) {
    if slot == ZERO {
        return;
    }
    let full = {
        let mut slots = SLOTS.lock();
        match slots.shared.get_mut(&slot) {
            Some(1) => {
                slots.shared.remove(&slot);
            }
            Some(count) => *count -= 1,
            None => {
                slots.used -= 1;
                slots.free.push(slot - 1);
            }
        }
        slots.free.len() >= BATCH
    };
    if full {
        give_back();
    }
}

/// Gives freed slots back to the store.
pub fn give_back() {
    let free = core::mem::take(&mut SLOTS.lock().free);
    if free.is_empty() {
        return;
    }
    // A store that cannot free a slot only grows; the quota bounds it.
    let _ = Call::new(Op::SwapFree).bytes(zerocopy::IntoBytes::as_bytes(free.as_slice())).run();
}
