//! Has all address spaces follow what memory objects lose by a system call, before it returns; see
//! [`crate::mm::rmap`].

use alloc::sync::Arc;

use super::{Thread, current, run};
use crate::mm::AddressSpace;
use crate::mm::rmap::Lost;

/// Notes what an object has lost, for the system call of the current thread to [unmap] before it
/// returns.
pub fn note(lost: Lost) {
    // Kernel tasks shorten no objects that programs map.
    if let Some(thread) = current::get() {
        thread.lost.lock().push(lost);
    }
}

/// Takes what objects have lost by the system call of `thread` out of all address spaces.
pub async fn unmap(thread: &Arc<Thread>) {
    loop {
        let all = core::mem::take(&mut *thread.lost.lock());
        if all.is_empty() {
            return;
        }
        for lost in &all {
            for mm in AddressSpace::all() {
                if mm.maps(lost) {
                    take_out(thread, &mm, lost).await;
                }
            }
        }
    }
}

async fn take_out(thread: &Arc<Thread>, mm: &Arc<AddressSpace>, lost: &Lost) {
    if Arc::ptr_eq(mm, &thread.mm()) {
        let frozen = run::freeze_to_sync(thread).await;
        mm.lose(lost);
        drop(frozen);
        thread.user.claim_ops(mm);
    } else {
        let halted = run::halt_to_sync(thread, mm).await;
        mm.lose(lost);
        mm.carry_out_ops().await;
        drop(halted);
    }
}
