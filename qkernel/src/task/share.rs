//! Memory limits of the further containers of a pod with one kernel. Each is as if the container
//! were alone: who is at its own limit is killed, or a process of the same container.
//!
//! A container holds what its programs show of frames ([`AddressSpace::held_bytes`]): not what lies
//! in a tmpfs without being mapped, and none of the kernel's memory, which are the pod's. Nothing
//! is counted as pages come and go. It is looked at after so many faults as may have used up what
//! was left at the last look. What is reserved for a program and not touched does not count, and
//! is touched without a fault: by so much it can be more.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use qlib::PAGE_SIZE;
use qlib::bitmap::MAX_RUN;

use super::{Process, oom};
use crate::klog;
use crate::mm::AddressSpace;
use crate::mm::committed::Committed;
use crate::mm::fault::take_copied;
use crate::sync::{Mutex, mutex};

/// What a fault may bring, in pages.
pub const FAULT_PAGES: u64 = 16;
/// The same where it brings a huge page.
pub const HUGE_PAGES: u64 = MAX_RUN as u64;
/// What a process begins with.
pub const FORK_PAGES: u64 = 64;
/// Near the limit it is looked at after this many: a look takes as long as some ten faults for each
/// 100 MiB.
const LEAST_PAGES: u64 = 64 * FAULT_PAGES;

struct Share {
    limit_bytes: u64,
    /// Pages that may come before the next look.
    left_pages: u64,
}

static SHARES: Mutex<BTreeMap<u32, Share>> = mutex(BTreeMap::new());
static ARE_ANY: AtomicBool = AtomicBool::new(false);

/// Sets the limits of containers, in bytes; those that are not among them have none.
pub fn set(limits: impl Iterator<Item = (u32, u64)>) {
    let new: BTreeMap<u32, Share> = limits
        .map(|(container, limit_bytes)| (container, Share { limit_bytes, left_pages: 0 }))
        .collect();
    ARE_ANY.store(!new.is_empty(), Relaxed);
    let old = core::mem::replace(&mut *SHARES.lock(), new);
    drop(old);
}

/// A process may hold so many pages more than before. It may have been killed for that afterwards.
#[inline]
pub fn grown(process: &Process, pages: u64) {
    if ARE_ANY.load(Relaxed) {
        look_after(process.container, pages);
    }
}

/// The same after a system call, for what that has copied to memory of the process.
#[inline]
pub fn called(process: &Process) {
    if ARE_ANY.load(Relaxed) {
        let copied = take_copied();
        if copied > 0 {
            look_after(process.container, copied.saturating_mul(FAULT_PAGES));
        }
    }
}

#[cold]
fn look_after(container: u32, pages: u64) {
    let limit_bytes = {
        let mut shares = SHARES.lock();
        let Some(share) = shares.get_mut(&container) else { return };
        share.left_pages = share.left_pages.saturating_sub(pages);
        if share.left_pages > 0 {
            return;
        }
        share.limit_bytes
    };
    let held = held_bytes(container, None);
    // The host is asked only where that matters.
    let held = match held > limit_bytes {
        true => held_bytes(container, Some(&mut Committed::default())),
        false => held,
    };
    if held > limit_bytes {
        klog!(Warn, "a container holds {} of {} KiB", held >> 10, limit_bytes >> 10);
        oom::kill_one_of(container);
    }
    if let Some(share) = SHARES.lock().get_mut(&container) {
        share.left_pages = (limit_bytes.saturating_sub(held) / PAGE_SIZE).max(LEAST_PAGES);
    }
}

/// What the living processes of a container hold, in bytes; with `committed` only of what was
/// touched.
pub fn held_bytes(container: u32, mut committed: Option<&mut Committed>) -> u64 {
    let mut spaces: Vec<Arc<AddressSpace>> = Vec::new();
    for process in oom::living().filter(|process| process.container == container) {
        let mm = process.mm();
        if !spaces.iter().any(|other| Arc::ptr_eq(other, &mm)) {
            spaces.push(mm);
        }
    }
    spaces.iter().map(|mm| mm.held_bytes(committed.as_deref_mut())).sum()
}

/// True if a container holds more than it may.
pub fn is_over(container: u32) -> bool {
    let limit = SHARES.lock().get(&container).map(|share| share.limit_bytes);
    limit.is_some_and(|limit| held_bytes(container, Some(&mut Committed::default())) > limit)
}
