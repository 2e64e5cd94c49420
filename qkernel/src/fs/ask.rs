//! Permission of programs (fanotify(7), FAN_OPEN_PERM and the like): who opens or reads a file
//! waits until each group that cares has answered, one after the other.
//!
//! ```text
//! attempt ──► a group is asked ──► EASKED ──► [`Inquiry::answered`] ──► attempt again ──► the next
//!                                                                  └─► EPERM
//! ```

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use super::busy::Id;
use super::notify::{Listener, listeners, with_happening};
use super::{Location, OpenFile};
use crate::errno::{Errno, Result};
use crate::sync::{Mutex, mutex};
use crate::wait::{PollMask, Sleeper, WaitQueue, block_until_killed};

/// Permission to open, to read, and to open what is to be executed.
pub const OPEN: u32 = 0x1_0000;
/// See [`OPEN`].
pub const ACCESS: u32 = 0x2_0000;
/// See [`OPEN`].
pub const OPEN_EXEC: u32 = 0x4_0000;

/// So many files a call asks about at most: a program and all that is needed to execute it.
const MOST_FILES: usize = 32;

/// What became of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Answered(bool),
    /// Whoever asked does not wait any more.
    GivenUp,
}

/// What a group was asked.
pub struct Question {
    state: Mutex<State>,
    /// Notified of the answer.
    answered: WaitQueue,
}

impl Question {
    /// A new one.
    pub fn ask() -> Arc<Question> {
        Arc::new(Question { state: Mutex::new(State::Open), answered: WaitQueue::new() })
    }

    /// Answers it, if nobody has yet.
    pub fn answer(&self, allows: bool) {
        {
            let mut state = self.state.lock();
            if *state != State::Open {
                return;
            }
            *state = State::Answered(allows);
        }
        self.answered.wake(PollMask::READ);
    }

    /// True if nobody waits for the answer any more.
    pub fn is_given_up(&self) -> bool {
        *self.state.lock() == State::GivenUp
    }

    fn give_up(&self) {
        let mut state = self.state.lock();
        if *state == State::Open {
            *state = State::GivenUp;
        }
    }

    /// Whether it was allowed. EASKED while nobody has answered.
    fn allows(&self) -> Result<bool> {
        match *self.state.lock() {
            State::Answered(allows) => Ok(allows),
            _ => Err(Errno::EASKED),
        }
    }
}

/// One permission that is asked for.
struct Asked {
    what: (u32, Id),
    /// Whom it was asked of last.
    question: Option<Arc<Question>>,
    /// Those who are still to be asked.
    others: VecDeque<Weak<dyn Listener>>,
}

/// What one call asks permission for, in all of its attempts.
#[derive(Default)]
struct Asking {
    asked: Vec<Asked>,
    /// It was made by the call, and is asked about now that it is open.
    made: Option<Location>,
}

/// Asks for one call.
pub struct Inquiry(Option<Arc<Mutex<Asking>>>);

/// That of the call of which an attempt is being made.
static CURRENT: Mutex<Option<Arc<Mutex<Asking>>>> = mutex(None);

/// True if somebody may want to be asked.
pub fn is_used() -> bool {
    listeners().iter().any(|listener| listener.rank() > 0)
}

impl Inquiry {
    /// For a call that begins. What it opens is not asked about if there is nobody who wants that.
    pub fn begin() -> Inquiry {
        Inquiry(is_used().then(Arc::default))
    }

    /// Makes an attempt: EASKED if that has to wait until somebody has answered.
    pub fn attempt<T>(&self, attempt: impl FnOnce() -> T) -> T {
        let Some(state) = &self.0 else { return attempt() };
        let before = CURRENT.lock().replace(state.clone());
        let result = attempt();
        let own = core::mem::replace(&mut *CURRENT.lock(), before);
        drop(own);
        result
    }

    /// The question that is not answered yet.
    fn open_question(&self) -> Option<Arc<Question>> {
        let state = self.0.as_ref()?.lock();
        let mut questions = state.asked.iter().filter_map(|asked| asked.question.as_ref());
        questions.find(|question| question.allows().is_err()).cloned()
    }

    /// Waits for the answer. Only the thread's own end cuts that short.
    pub async fn answered(&self, thread: &dyn Sleeper) -> Result {
        let Some(question) = self.open_question() else { return Ok(()) };
        let attempt = || question.allows().map_err(|_| Errno::EAGAIN);
        block_until_killed(thread, &[&question.answered], PollMask::READ, attempt).await?;
        Ok(())
    }

    /// As often as it takes: `attempt`, and the wait for an answer.
    pub async fn attempts<T>(
        &self,
        thread: &dyn Sleeper,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        loop {
            match self.attempt(&mut attempt) {
                Err(Errno::EASKED) => self.answered(thread).await?,
                result => return result,
            }
        }
    }

    /// Asks about what the call has made.
    pub async fn finish(&self, thread: &dyn Sleeper) -> Result {
        let made = self.0.as_ref().and_then(|state| state.lock().made.take());
        let Some(place) = made else { return Ok(()) };
        self.attempts(thread, || ask(&place, OPEN)).await
    }
}

impl Drop for Inquiry {
    fn drop(&mut self) {
        if let Some(question) = self.open_question() {
            question.give_up();
        }
    }
}

fn current() -> Option<Arc<Mutex<Asking>>> {
    CURRENT.lock().clone()
}

/// Permission `what` for what lies at `place` is wanted. EPERM, EASKED. The kernel itself asks
/// nobody.
pub fn ask(place: &Location, what: u32) -> Result {
    let Some(state) = current() else { return Ok(()) };
    with_happening(place, what, true, |event| {
        let Some(object) = event.object else { return Ok(()) };
        let what = (what, object.id);
        let is_new = !state.lock().asked.iter().any(|asked| asked.what == what);
        if is_new {
            if state.lock().asked.len() >= MOST_FILES {
                // The path leads to another file each time.
                return Err(Errno::EAGAIN);
            }
            let mut others = listeners();
            others.retain(|listener| listener.rank() > 0);
            others.sort_by_key(|listener| core::cmp::Reverse(listener.rank()));
            let others = others.iter().map(Arc::downgrade).collect();
            state.lock().asked.push(Asked { what, question: None, others });
        }
        loop {
            let next = {
                let mut state = state.lock();
                let Some(asked) = state.asked.iter_mut().find(|asked| asked.what == what) else {
                    return Ok(());
                };
                if let Some(question) = &asked.question
                    && !question.allows()?
                {
                    return Err(Errno::EPERM);
                }
                asked.question = None;
                asked.others.pop_front()
            };
            let Some(listener) = next else { return Ok(()) };
            let question = listener.upgrade().and_then(|listener| listener.ask(event));
            let mut state = state.lock();
            if let Some(asked) = state.asked.iter_mut().find(|asked| asked.what == what) {
                asked.question = question;
            }
        }
    })
}

/// What lies at `place` was made by the call: it is asked about once that is done.
pub fn ask_later(place: &Location) {
    if let Some(state) = current() {
        let before = state.lock().made.replace(place.clone());
        drop(before);
    }
}

/// True if somebody may want to be asked before `file` is read.
pub fn guards(file: &OpenFile) -> bool {
    file.path.is_some() && !file.is_unseen() && file.ops.queue().is_none() && is_used()
}

/// Asks for permission to read `file`. EPERM.
pub async fn before_reading(thread: &dyn Sleeper, file: &OpenFile) -> Result {
    let Some(place) = file.path.as_ref().filter(|_| guards(file)) else { return Ok(()) };
    Inquiry::begin().attempts(thread, || ask(place, ACCESS)).await
}
