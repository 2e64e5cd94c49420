//! What an address space holds of memory that others hold, too.

use qlib::PAGE_SIZE;
use qlib::Va;

use super::AddressSpace;
use super::committed::Committed;
use super::frames::{self, counted_frame};
use crate::arch;

impl AddressSpace {
    /// Bytes of the frames that it shows, of a frame with several names (after fork(2), in shared
    /// memory) its part: what Linux calls the proportional set size. Pages of mapped host files are
    /// the host's. With `committed`, what was reserved and never touched does not count.
    pub fn held_bytes(&self, mut committed: Option<&mut Committed>) -> u64 {
        let mut bytes = 0;
        self.lock().table().visit(Va(0)..arch::boot().user_max, &mut |_, pte| {
            if let Some(frame) = counted_frame(pte)
                && committed.as_mut().is_none_or(|committed| committed.contains(frame))
            {
                bytes += PAGE_SIZE / u64::from(frames::user().ref_count(frame).max(1));
            }
            true
        });
        bytes
    }
}
