//! Inflate: what wakes a sleeping sandbox, and reading its working set back.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use qlib::host::{Op, Segment};

use super::deflate::WORKING_SET;
use super::state::{Input, State};
use super::{stats, step};
use crate::errno::Result;
use crate::host::Call;
use crate::mm::swap::memory_is_lost;
use crate::task::pause::{self, Reason};
use crate::{input, random, time};

/// What woke the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A connection, data, a datagram: anything that one of its host files or sockets became ready
    /// for.
    Host,
    /// The end of what a thread has waited for the host's disk for. Nobody outside asks for
    /// anything: it is no input.
    Disk,
    /// A signal other than SIGCONT.
    Signal,
    /// SIGCONT.
    Continue,
    /// A further process was asked for.
    Exec,
    /// A timer of a program was due.
    Timer,
    /// It was forced to sleep in the middle of something.
    Unfinished,
}

impl Cause {
    /// True if there is something to do now: somebody outside, or a timer, has asked for it.
    fn is_input(self) -> bool {
        !matches!(self, Cause::Continue | Cause::Disk | Cause::Unfinished)
    }
}

/// Wakes the sandbox if it sleeps; ends a deflate that is under way. One that has not begun yet
/// lets what comes be served first, but that SIGCONT takes it back. When this returns its working
/// set is there and its threads may go on; the caller then does what it woke it for.
pub fn wake(cause: Cause) {
    if cause.is_input() {
        input::note();
    }
    match super::current() {
        State::Awake { .. } | State::Inflating => {}
        State::Settling { .. } if cause != Cause::Continue => {}
        State::Settling { .. } | State::Deflating { .. } => {
            step(Input::Wake);
            pause::resume(Reason::Sleep);
        }
        State::Hibernated => {
            let begin_ns = time::monotonic_ns();
            step(Input::Wake);
            if let Err(error) = read_working_set() {
                memory_is_lost(error);
            }
            random::reseed();
            step(Input::Inflated);
            if cause.is_input() {
                // What woke it begins to be served now.
                input::note();
            }
            pause::resume(Reason::Sleep);
            stats::count_wake(cause, time::elapsed_ns(begin_ns));
        }
    }
}

/// The platform's timer went off: wakes a sandbox whose timers do that, if one is due.
pub fn on_timer() {
    if super::current() == State::Hibernated && time::has_slept_enough() {
        wake(Cause::Timer);
    }
}

/// Fills the frames of the working set from the REAP file.
fn read_working_set() -> Result {
    let set = core::mem::take(&mut *WORKING_SET.lock());
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
