//! Inflate: what wakes a sleeping sandbox, and reading its working set back.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use qlib::host::{EXIT_MEMORY_LOST, Op, Segment};
use qlib::{Gpa, PAGE_SIZE};

use super::deflate::WORKING_SET;
use super::pause::{self, Reason};
use super::state::{Input, State};
use super::{settle, slots, stats, step};
use crate::errno::{Errno, Result};
use crate::host::Call;
use crate::mm::frames;
use crate::{klog, random, time};

/// Exit status of a container whose memory cannot be read back (as if killed by SIGBUS).
const DAMAGED_STATUS: u64 = 128 + linux_raw_sys::general::SIGBUS as u64;

/// What woke the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A connection, data, a datagram: anything that one of its host files or sockets became ready for.
    Host,
    /// A signal other than SIGCONT.
    Signal,
    /// SIGCONT.
    Continue,
    /// A further process was asked for.
    Exec,
}

/// Wakes the sandbox if it sleeps; ends a deflate that is under way. One that has not begun yet lets what comes by a socket be served
/// first. When this returns its working set is there and its
/// threads may go on; the caller then does what it woke it for.
pub fn wake(cause: Cause) {
    if cause != Cause::Continue {
        super::ASKED.store(true, Relaxed);
        settle::note_input();
    }
    match super::current() {
        State::Awake { .. } | State::Inflating => {}
        State::Settling { .. } if cause == Cause::Host => {}
        State::Settling { .. } | State::Deflating { .. } => {
            step(Input::Wake);
            pause::resume(Reason::Sleep);
        }
        State::Hibernated => {
            let begin_ns = time::monotonic_ns();
            step(Input::Wake);
            if let Err(error) = read_working_set() {
                give_up(error);
            }
            random::reseed();
            step(Input::Inflated);
            pause::resume(Reason::Sleep);
            stats::count_wake(cause, time::monotonic_ns() - begin_ns);
        }
    }
}

/// Fills the frames of the working set from the REAP file.
fn read_working_set() -> Result {
    let set = core::mem::take(&mut *WORKING_SET.lock());
    let mut page = 0;
    for chunk in set.chunks(1000) {
        let segments: Vec<Segment> = chunk.iter().map(|f| Segment { gpa: f.start, len: f.len_bytes() }).collect();
        Call::new(Op::ReapIn).arg(0, page).segments(&segments).run()?;
        page += chunk.iter().map(|f| f.count).sum::<u64>();
    }
    stats::REAP_PAGES.fetch_add(page, Relaxed);
    Ok(())
}

/// Brings the page of `slot` back after a fault: its frame. The faulting entry's reference to the slot is dropped.
pub fn swap_in(slot: u64) -> Result<Gpa> {
    if slot == slots::ZERO {
        return frames::alloc_zeroed();
    }
    let frame = frames::alloc()?;
    read_slots(slot, &[Segment { gpa: frame, len: PAGE_SIZE }], 1);
    Ok(frame)
}

/// The same for `count` slots in a row (a power of two, more than one): the first of as many contiguous frames; `None` if there are none.
pub fn swap_in_run(slot: u64, count: u64) -> Option<Gpa> {
    if slot == slots::ZERO || count < 2 {
        return None;
    }
    let frame = frames::user().alloc_run(count as usize)?;
    read_slots(slot, &[Segment { gpa: frame, len: count * PAGE_SIZE }], count);
    Some(frame)
}

fn read_slots(slot: u64, frames: &[Segment], count: u64) {
    if let Err(error) = Call::new(Op::SwapIn).arg(0, slot - 1).segments(frames).run() {
        give_up(error);
    }
    (slot..slot + count).for_each(slots::drop_ref);
    stats::SWAP_INS.fetch_add(count, Relaxed);
}

/// The container's memory is lost: it ends here and now, rather than run on bad data. The host call does not come back, and nobody goes on in
/// the meantime, for this thread has the kernel.
fn give_up(error: Errno) -> ! {
    let what = if error == Errno::EBADMSG { "is damaged (a checksum does not hold)" } else { "cannot be read" };
    klog!(Error, "the swap store {what} ({}): the container's memory is lost, so it was ended", error.name());
    let ended = Call::new(Op::Exit).arg(0, DAMAGED_STATUS).arg(1, EXIT_MEMORY_LOST).run();
    panic!("the sandbox goes on although its memory is lost ({ended:?})");
}
