//! Reading pages back from the swap file, and what becomes of a container whose memory cannot be
//! read back.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use qlib::bitmap::Stay;
use qlib::host::{EXIT_MEMORY_LOST, Op, Segment};
use qlib::{Gpa, PAGE_SIZE};

use super::slots;
use crate::errno::{Errno, Result};
use crate::host::Call;
use crate::klog;
use crate::mm::frames;

/// Exit status of a container whose memory cannot be read back (as if killed by SIGBUS).
const DAMAGED_STATUS: u64 = 128 + linux_raw_sys::general::SIGBUS as u64;

static SWAP_INS: AtomicU64 = AtomicU64::new(0);

/// Pages that were read back one by one, or in runs, after a fault.
pub fn swap_ins() -> u64 {
    SWAP_INS.load(Relaxed)
}

/// Brings the page of `slot` back after a fault: its frame, which is in use for so long. The
/// faulting entry's reference to the slot is dropped.
pub fn swap_in(slot: u64, stay: Stay) -> Result<Gpa> {
    if slot == slots::ZERO {
        return frames::alloc_zeroed_for(stay);
    }
    let frame = frames::alloc_for(stay)?;
    came_back(slot, &[Segment { gpa: frame, len: PAGE_SIZE }], 1);
    Ok(frame)
}

/// The same for `count` slots in a row (a power of two, more than one): the first of as many
/// contiguous frames; `None` if there are none.
pub fn swap_in_run(slot: u64, count: u64) -> Option<Gpa> {
    if slot == slots::ZERO || count < 2 {
        return None;
    }
    let frame = frames::alloc_run(count)?;
    came_back(slot, &[Segment { gpa: frame, len: count * PAGE_SIZE }], count);
    Some(frame)
}

fn came_back(slot: u64, frames: &[Segment], count: u64) {
    read_slots(slot, frames);
    (slot..slot + count).for_each(slots::drop_ref);
    SWAP_INS.fetch_add(count, Relaxed);
}

/// Fills frames from a slot and those that follow it ([`MAX_SWAP_IN_PAGES`] at most), which stay as
/// they are.
///
/// [`MAX_SWAP_IN_PAGES`]: qlib::host::MAX_SWAP_IN_PAGES
pub(super) fn read_slots(slot: u64, frames: &[Segment]) {
    if let Err(error) = Call::new(Op::SwapIn).arg(0, slot - 1).segments(frames).run() {
        memory_is_lost(error);
    }
}

/// The container's memory is lost: it ends here and now, rather than run on bad data. The host call
/// does not come back, and nobody goes on in the meantime, for this thread has the kernel.
pub fn memory_is_lost(error: Errno) -> ! {
    let what = if error == Errno::EBADMSG {
        "is damaged (a checksum does not hold)"
    } else {
        "cannot be read"
    };
    klog!(
        Error,
        "the swap store {what} ({}): the container's memory is lost, so it was ended",
        error.name()
    );
    let ended = Call::new(Op::Exit).arg(0, DAMAGED_STATUS).arg(1, EXIT_MEMORY_LOST).run();
    panic!("the sandbox goes on although its memory is lost ({ended:?})");
}
