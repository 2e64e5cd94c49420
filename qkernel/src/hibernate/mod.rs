//! Hibernation: the sandbox's memory goes to the store and comes back (sections 3.1 to 3.5 of the
//! paper).
//!
//! [`state`] is the state machine. [`quiesce`] waits until nothing keeps it awake ([`busy`]),
//! [`crate::task::pause`] stops user code, [`deflate`] writes memory out, or [keeps](keep) it for
//! an image, [`inflate`] reads it back, [`background`] the rest of an image; [`idle`] does without
//! SIGSTOP, [`pressure`] for the host's memory; [`dry`] only tells of it; who asks twice
//! [joins](join); [`stats`] keeps count of what happened, [`history`] of when and why. Slots, their
//! pages and when those were last used are [`crate::mm::swap`]'s.

pub mod background;
pub mod busy;
pub mod deflate;
pub mod dry;
mod history;
pub mod idle;
pub mod inflate;
mod join;
mod keep;
mod pages;
pub mod pressure;
pub mod quiesce;
pub mod state;
pub mod stats;
pub mod told;

pub use inflate::{become_copy, called_off, keep_awake, on_timer, wake};

use self::state::{Input, State};
use crate::sync::{Mutex, mutex};
use crate::time::Rest;
use crate::{input, klog, time};

static STATE: Mutex<State> = mutex(State::START);

/// The state now.
pub fn current() -> State {
    *STATE.lock()
}

/// Takes the state machine a step further; an input that makes no sense is a bug, is logged, and
/// changes nothing.
fn step(input: Input) {
    let mut state = STATE.lock();
    match state.after(input) {
        Some(next) => {
            *state = next;
            time::rest(match next {
                State::Deflating { .. } => Rest::Whole,
                State::Hibernated => deflate::rest_of_timers(),
                _ => Rest::None,
            });
        }
        None => {
            let before = *state;
            drop(state);
            klog!(Error, "hibernation: {input:?} in state {before:?}");
        }
    }
}

/// Notes whether some thread runs now: what tells Running from Warm, and HibernateRunning from
/// WokenUp. Called when the state is asked for.
pub fn note_activity() {
    if let State::Awake { busy, .. } = current() {
        let runs = crate::task::table::threads().any(|thread| thread.user.is_in_user_mode());
        if runs != busy {
            step(if runs { Input::Busy } else { Input::Idle });
        }
    }
}

/// True if what can be answered without a wake may be: asleep, and not paused besides.
pub fn may_answer() -> bool {
    current() == State::Hibernated && crate::task::pause::ordered_since_ns().is_none()
}

/// True if the life that ends now says something about which pages a request uses: not when the
/// container was only woken ahead of use, and put to sleep again unused.
fn life_counts() -> bool {
    input::has_come()
}
