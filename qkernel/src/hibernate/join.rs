//! Who wants the sandbox to sleep while it is going to sleep already joins what is under way: they
//! are all told how it ended.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::deflate::Failure;
use super::quiesce::{self, Patience};
use super::state::State;
use crate::sync::{Mutex, mutex};
use crate::time;
use crate::wait::Signal;

type Outcome = core::result::Result<(), Failure>;

/// An attempt to put the sandbox to sleep.
#[derive(Default)]
pub(super) struct Attempt {
    outcome: Mutex<Option<Outcome>>,
    joined: Mutex<Vec<Arc<Signal>>>,
}

/// The one that is under way.
static UNDER_WAY: Mutex<Option<Arc<Attempt>>> = mutex(None);

/// An attempt begins; there is no other.
pub(super) fn begin() -> Arc<Attempt> {
    let attempt = Arc::new(Attempt::default());
    *UNDER_WAY.lock() = Some(attempt.clone());
    attempt
}

/// It has ended like this.
pub(super) fn end(attempt: &Attempt, outcome: &Outcome) {
    *UNDER_WAY.lock() = None;
    *attempt.outcome.lock() = Some(outcome.clone());
    let joined = core::mem::take(&mut *attempt.joined.lock());
    joined.iter().for_each(|signal| signal.set());
}

/// How the attempt that is under way ends. EBUSY and the reason if the sandbox is still not idle
/// when patience is over; once memory is being written it is waited for in any case. `None` if
/// there is no attempt.
pub(super) async fn join(patience: Patience) -> Option<Outcome> {
    let attempt = UNDER_WAY.lock().clone()?;
    let begin_ns = time::monotonic_ns();
    let signal = Arc::new(Signal::default());
    attempt.joined.lock().push(signal.clone());
    time::insert_own(time::deadline_after(patience.ns), signal.clone());
    loop {
        signal.wait().await;
        let outcome = attempt.outcome.lock().clone();
        if outcome.is_some() {
            return outcome;
        }
        let is_waiting = matches!(super::current(), State::Settling { .. });
        if is_waiting
            && !patience.since(begin_ns).is_left()
            && let Some(busy) = quiesce::look(u64::MAX)
        {
            return Some(Err(Failure::busy(&busy)));
        }
    }
}
