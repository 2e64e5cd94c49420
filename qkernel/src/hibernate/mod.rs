//! Hibernation: the sandbox's memory goes to the store and comes back (sections 3.1 to 3.5 of the paper).
//!
//! [`state`] is the state machine. [`settle`] lets what has just come be served, [`pause`] stops user code, [`deflate`] writes memory out,
//! [`inflate`] reads it back; [`slots`] keeps count of what is in the swap file, [`stats`] of what happened.

pub mod deflate;
pub mod inflate;
pub mod oom;
mod pages;
pub mod pause;
mod settle;
pub mod slots;
pub mod state;
pub mod stats;
mod usage;

pub use inflate::{Cause, swap_in, swap_in_run, wake};
pub use oom::reclaim;
pub use pause::gate;
pub use settle::note_input;
pub use stats::count_fault;
pub use usage::Usage;

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use self::state::{Input, State};
use crate::klog;
use crate::sync::{Mutex, mutex};

static STATE: Mutex<State> = mutex(State::START);

/// The state now.
pub fn current() -> State {
    *STATE.lock()
}

/// Takes the state machine a step further; an input that makes no sense is a bug, is logged, and changes nothing.
fn step(input: Input) {
    let mut state = STATE.lock();
    match state.after(input) {
        Some(next) => *state = next,
        None => {
            let before = *state;
            drop(state);
            klog!(Error, "hibernation: {input:?} in state {before:?}");
        }
    }
}

/// Notes whether some thread runs now: what tells Running from Warm, and HibernateRunning from WokenUp. Called when the state is asked for.
pub fn note_activity() {
    if let State::Awake { busy, .. } = current() {
        let runs = crate::task::table::threads().iter().any(|thread| thread.user.is_in_user_mode());
        if runs != busy {
            step(if runs { Input::Busy } else { Input::Idle });
        }
    }
}

/// Something was asked of the container since it woke.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Something outside (a socket, a pipe) is ready: wakes a sleeping sandbox. Before anything else is done about it.
pub fn on_host_event() {
    wake(Cause::Host);
}

/// Whether the life that ends now says something about which pages a request uses: not when the container was only
/// woken ahead of use, and put to sleep again unused.
fn life_counts() -> bool {
    ASKED.load(Relaxed)
}
