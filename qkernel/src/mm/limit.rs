//! Another memory limit than the container was made with.

use qlib::control::MemoryLimit;

use super::reclaim;
use crate::account;
use crate::arch::heap;
use crate::errno::{Errno, Result};

/// Has the guest get along with `limit` from now on, or with all of RAM if that is less. `shrink`
/// gives up what is only kept to be fast. EBUSY when more is in use, and then nothing has changed.
pub fn set_limit(limit: MemoryLimit, shrink: impl FnOnce()) -> Result {
    let before = account::memory_limit();
    account::note_memory_limit(limit);
    if !heap::fits_budget() {
        shrink();
        reclaim::reclaim();
    }
    if !heap::fits_budget() {
        account::note_memory_limit(before);
        return Err(Errno::EBUSY);
    }
    reclaim::note_freed();
    Ok(())
}
