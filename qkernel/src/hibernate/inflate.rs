//! Inflate: what wakes a sleeping sandbox, and reading its working set back.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use qlib::control::WakeCause;
use qlib::host::{Op, Segment};

use super::pages::WORKING_SET;
use super::state::{Input, State};
use super::{background, dry, stats, step, told};
use crate::errno::Result;
use crate::host::Call;
use crate::mm::AddressSpace;
use crate::mm::swap::{kept, memory_is_lost};
use crate::net::answers;
use crate::task::pause::{self, Reason};
use crate::{input, random, time};

/// True if there is something to do now: somebody outside, or a timer, has asked for it. (Nobody
/// asks for anything by the end of what the host's disk did for a thread.)
fn is_input(cause: WakeCause) -> bool {
    !matches!(cause, WakeCause::Sigcont | WakeCause::Disk | WakeCause::Unfinished)
}

/// How often somebody has wanted it to be awake, whether it was or not.
static CALLED_OFF: AtomicU64 = AtomicU64::new(0);

/// A number that changes when somebody wants it to be awake, and not only something done. Who puts
/// it to sleep goes no further then.
pub fn called_off() -> u64 {
    CALLED_OFF.load(Relaxed)
}

/// Wakes it for somebody who wants it to be awake (SIGCONT).
pub fn keep_awake() {
    CALLED_OFF.fetch_add(1, Relaxed);
    wake(WakeCause::Sigcont);
}

/// Wakes the sandbox if it sleeps; ends a deflate that is under way. One that has not begun yet
/// lets what comes be served first, but that SIGCONT takes it back. When this returns its working
/// set is there and its threads may go on; the caller then does what it woke it for.
pub fn wake(cause: WakeCause) {
    if is_input(cause) {
        input::note();
    }
    dry::woken(cause);
    match super::current() {
        State::Awake { .. } | State::Inflating => {}
        State::Settling { .. } if cause != WakeCause::Sigcont => {}
        State::Settling { .. } | State::Deflating { .. } => {
            step(Input::Wake);
            pause::resume(Reason::Sleep);
        }
        State::Hibernated => {
            let begin_ns = time::monotonic_ns();
            step(Input::Wake);
            // They come while the working set is read.
            AddressSpace::all().iter().for_each(|mm| mm.expect());
            if let Err(error) = read_working_set() {
                memory_is_lost(error);
            }
            random::reseed();
            step(Input::Inflated);
            if is_input(cause) {
                // What woke it begins to be served now.
                input::note();
            }
            pause::resume(Reason::Sleep);
            told::woke_up();
            background::begin_if_asked();
            answers::hand_over();
            stats::count_wake(cause, time::elapsed_ns(begin_ns));
        }
    }
}

/// The platform's timer went off: wakes a sandbox whose timers do that, if one is due.
pub fn on_timer() {
    if super::current() == State::Hibernated && time::has_slept_enough() {
        wake(WakeCause::Timer);
    }
}

/// The sandbox is a copy of one that kept pages, or what that was: they are in the store.
pub fn become_copy() {
    let rest = kept::forget();
    let mut set = WORKING_SET.lock();
    if let Err(error) = rest.into_iter().try_for_each(|run| set.push(run)) {
        memory_is_lost(error);
    }
}

/// Fills the frames of the working set from the REAP file. The host is told of a wake without one,
/// too.
fn read_working_set() -> Result {
    let set = core::mem::take(&mut *WORKING_SET.lock());
    if set.is_empty() {
        Call::new(Op::ReapIn).run()?;
    }
    let mut page = 0;
    for chunk in set.chunks(1000) {
        let segments: Vec<Segment> =
            chunk.iter().map(|f| Segment { gpa: f.start, len: f.len_bytes() }).collect();
        Call::new(Op::ReapIn).arg(0, page).segments(&segments).run()?;
        page += chunk.iter().map(|f| f.count).sum::<u64>();
    }
    stats::REAP_PAGES.fetch_add(page, Relaxed);
    Ok(())
}
