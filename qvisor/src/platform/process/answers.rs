//! Answers to stubs: who gives them, and that they wait until the locks are free.
//!
//! An answer makes a thread of the guest ready to run, mostly on this very processor, and the host
//! may have it run at once. If that happened in the guest kernel, the kernel would be locked as
//! long as that thread computes, and all others that want it would sleep meanwhile. So what is
//! answered in there is sent on the way out, by [`Later`].
//!
//! Nobody can tell, for a thread without an answer does nothing. A kick would tear its call on some
//! hosts, so who kicks sends the answer before (`SpaceState::kick`), and it is lost when it is sent
//! again. Where any signal tears a waiting call, no answer waits (`SpaceState::answers_may_wait`).

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;

use smallvec::SmallVec;
use tracing::warn;

use crate::sandbox::log_limit::Seldom;
use crate::sys::Listener;

/// So many do not wait: those whom they are for have other processors to run on.
const MANY: usize = 4;

static UNANSWERED: Seldom = Seldom::new();

thread_local! {
    /// How many [`Later`] there are on this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// What it has to send, in order.
    static WAITING: RefCell<Waiting> = const { RefCell::new(SmallVec::new_const()) };
    /// The space whose receiver this thread is; 0 for none's.
    static RECEIVER_OF: Cell<u32> = const { Cell::new(0) };
}

type Waiting = SmallVec<[(Arc<Listener>, Answer); 2]>;

/// Says that this thread is the receiver of a space.
pub fn be_receiver_of(space: u32) {
    RECEIVER_OF.set(space);
}

/// True if this thread, which answers a call in a space, is the receiver of another one.
pub fn answers_another(space: u32) -> bool {
    ![0, space].contains(&RECEIVER_OF.get())
}

/// What a call that waits in the host comes back with.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// This value, any 64 bits.
    Value(u64, i64),
    /// What the host makes of it.
    Continue(u64),
}

impl Answer {
    pub(super) fn send(self, listener: &Listener) {
        let sent = match self {
            Answer::Value(id, value) => listener.answer(id, value),
            Answer::Continue(id) => listener.let_continue(id),
        };
        note(sent);
    }
}

/// A lost notification means that the thread is being killed, whose end comes as an event of its
/// own, or that it was answered before (EINPROGRESS: just now).
fn note(sent: io::Result<()>) {
    if let Err(e) = sent
        && !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINPROGRESS))
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
    let many = WAITING.with_borrow_mut(|waiting| {
        waiting.push((listener.clone(), answer));
        waiting.len() >= MANY
    });
    if many {
        send_all();
    }
}

/// Sends what waits. Called before the kernel does what may take long, too.
pub(super) fn send_all() {
    for (listener, answer) in WAITING.with_borrow_mut(std::mem::take) {
        answer.send(&listener);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_wait_for_the_outermost_end() {
        // One that the host refuses all answers to.
        let listener = Listener::new(std::fs::File::open("/dev/null").expect("/dev/null").into());
        let listener = Arc::new(listener);
        let waiting = || WAITING.with_borrow(SmallVec::len);
        send(&listener, Answer::Value(1, 2), true);
        assert_eq!(waiting(), 0, "nothing is locked");
        {
            let _outer = Later::begin();
            send(&listener, Answer::Value(1, 2), true);
            {
                let _inner = Later::begin();
                send(&listener, Answer::Continue(3), true);
                send(&listener, Answer::Value(4, 5), false);
            }
            assert_eq!(waiting(), 2, "one may not wait");
            send_all();
            assert_eq!(waiting(), 0);
            send(&listener, Answer::Continue(6), true);
            assert_eq!(waiting(), 1);
        }
        assert_eq!((waiting(), DEPTH.get(), Arc::strong_count(&listener)), (0, 0, 1));
    }
}
