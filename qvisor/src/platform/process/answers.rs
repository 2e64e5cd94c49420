//! Answers to stubs that wait until the locks are free.
//!
//! An answer makes a thread of the guest ready to run, mostly on this very processor, and the host
//! may have it run at once. If that happened in the guest kernel, the kernel would be locked as
//! long as that thread computes, and all others that want it would sleep meanwhile. So what is
//! answered in there is sent on the way out, by [`Later`].
//!
//! Nobody can tell, for a thread without an answer does nothing: a kick that comes before takes
//! effect after it. Where a kick tears a waiting call instead, no answer waits
//! (`SpaceState::answers_may_wait`).

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;

use smallvec::SmallVec;
use tracing::warn;

use crate::sandbox::log_limit::Seldom;
use crate::sys::Listener;

static UNANSWERED: Seldom = Seldom::new();

thread_local! {
    /// How many [`Later`] there are on this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// What it has to send, in order.
    static WAITING: RefCell<Waiting> = const { RefCell::new(SmallVec::new_const()) };
}

type Waiting = SmallVec<[(Arc<Listener>, Answer); 2]>;

/// What a call that waits in the host comes back with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// This value, any 64 bits.
    Value(u64, i64),
    /// What the host makes of it.
    Continue(u64),
}

impl Answer {
    fn send(self, listener: &Listener) {
        let sent = match self {
            Answer::Value(id, value) => listener.answer(id, value),
            Answer::Continue(id) => listener.let_continue(id),
        };
        note(sent);
    }
}

/// A lost notification means that the thread is being killed; its end comes as an event of its own.
fn note(sent: io::Result<()>) {
    if let Err(e) = sent
        && e.raw_os_error() != Some(libc::ENOENT)
        && UNANSWERED.count().is_some()
    {
        warn!("answer to a stub: {e}");
    }
}

/// As long as it lives, this thread's answers wait. To be dropped without a lock.
pub(super) struct Later(());

impl Later {
    pub(super) fn begin() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Later(())
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            send_all();
        }
    }
}

/// Sends an answer, or has it wait if it may.
pub(super) fn send(listener: &Arc<Listener>, answer: Answer, may_wait: bool) {
    if !may_wait || DEPTH.get() == 0 {
        return answer.send(listener);
    }
    WAITING.with_borrow_mut(|waiting| waiting.push((listener.clone(), answer)));
}

/// Sends what waits. Called before the kernel does what may take long, too.
pub(super) fn send_all() {
    for (listener, answer) in WAITING.with_borrow_mut(std::mem::take) {
        answer.send(&listener);
    }
}
