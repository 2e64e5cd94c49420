//! Listeners of filters (seccomp_unotify(2)): who supervises a program is told of calls that a
//! filter gives to it, and answers in its place. What a supervisor asks are the requests of
//! [`crate::syscall::listener`].
//!
//! ```text
//!            receive          answer
//!  Fresh ───────────► Taken ───────────► Answered
//!    │                  │ the listener is closed ▲
//!    └──────────────────┴────────────────────────┘
//! ```
//!
//! A request is there as long as its thread waits: who is interrupted, or dies, takes it away.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::O_RDWR;
use qlib::seccomp::Call;

use crate::errno::{Errno, Result};
use crate::fs::{FileOps, OpenFile};
use crate::random;
use crate::sync::Mutex;
use crate::wait::{PollMask, Signal, Sleeper, WaitQueue, block_on, block_until_killed};

/// What the supervisor has a call come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// %rax.
    Returns(i64),
    /// It is made (SECCOMP_USER_NOTIF_FLAG_CONTINUE).
    Made,
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Fresh,
    Taken,
    Answered(Answer),
}

/// A thread that waits.
pub type Waiter = Arc<dyn Any + Send + Sync>;

struct Request {
    thread: Waiter,
    wakeup: Arc<Signal>,
    call: Call,
    stage: Stage,
}

#[derive(Default)]
struct State {
    /// By number, which is also the order of their arrival.
    requests: BTreeMap<u64, Request>,
    /// Those that are fresh.
    fresh: BTreeSet<u64>,
    /// How many are taken.
    taken: usize,
    /// The number of the next one.
    next: u64,
    /// How many have come, less how often somebody has come for one: of those that are gone by
    /// then it is told, too (ENOENT).
    arrived: u64,
    /// Nobody has a descriptor of it any more.
    is_closed: bool,
    /// No thread has its filter any more.
    is_unused: bool,
}

/// A filter's listener.
pub struct Listener {
    state: Mutex<State>,
    /// Who waits to receive, or polls.
    pub queue: WaitQueue,
    /// SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV: no signal but one that kills interrupts a call that
    /// the supervisor has taken.
    outlasts_signals: bool,
}

impl Listener {
    /// A new one, and its file.
    pub fn make(outlasts_signals: bool) -> (Arc<Listener>, Arc<OpenFile>) {
        let state = State { next: random::next_u64(), ..State::default() };
        let queue = WaitQueue::new();
        let listener = Arc::new(Listener { state: Mutex::new(state), queue, outlasts_signals });
        (listener.clone(), OpenFile::new(listener, O_RDWR))
    }

    /// True if somebody has a descriptor of it.
    pub(super) fn is_open(&self) -> bool {
        !self.state.lock().is_closed
    }

    /// No thread has its filter any more.
    pub(super) fn is_unused(&self) {
        self.state.lock().is_unused = true;
        self.queue.wake(PollMask::HUP);
    }

    /// Asks about a call of a thread, and waits for what the supervisor makes of it. ENOSYS if
    /// there is none (any more), ERESTARTSYS when a signal is to be handled or the thread is to
    /// die.
    pub(super) async fn ask<T: Sleeper + 'static>(
        &self,
        thread: &Arc<T>,
        call: &Call,
    ) -> Result<Answer> {
        let asked = {
            let mut state = self.state.lock();
            if state.is_closed {
                return Err(Errno::ENOSYS);
            }
            let id = state.next;
            state.next = id.wrapping_add(1);
            let (waiter, wakeup) = (thread.clone(), thread.wakeup());
            let request = Request { thread: waiter, wakeup, call: *call, stage: Stage::Fresh };
            state.requests.insert(id, request);
            state.fresh.insert(id);
            state.arrived += 1;
            Asked { listener: self, id }
        };
        self.queue.wake(PollMask::READ);
        let attempt = || match self.stage(asked.id) {
            Ok(Stage::Answered(answer)) => Ok(answer),
            Ok(_) => Err(Errno::EAGAIN),
            Err(error) => Err(error),
        };
        let answer = block_on(thread, &[], PollMask::empty(), None, attempt).await;
        let is_held = || self.outlasts_signals && self.stage(asked.id) == Ok(Stage::Taken);
        match answer {
            Err(Errno::ERESTARTSYS) if is_held() => {
                block_until_killed(thread, &[], PollMask::empty(), attempt).await
            }
            answer => answer,
        }
    }

    fn stage(&self, id: u64) -> Result<Stage> {
        self.state.lock().requests.get(&id).map(|request| request.stage).ok_or(Errno::ENOENT)
    }

    /// A thread waits no more.
    fn forget(&self, id: u64) {
        let request = {
            let mut state = self.state.lock();
            let request = state.requests.remove(&id);
            state.fresh.remove(&id);
            let was_taken = request.as_ref().is_some_and(|r| r.stage == Stage::Taken);
            state.taken -= usize::from(was_taken);
            request
        };
        drop(request);
    }

    /// The oldest call that nobody has taken, which is then, once `tell` has told of it: its
    /// number, its thread. EAGAIN: none has come. ENOENT: one has that is gone, or no thread has
    /// the filter any more.
    pub fn receive(&self, tell: impl FnOnce(u64, &Waiter, &Call) -> Result) -> Result {
        let (id, thread, call) = {
            let mut state = self.state.lock();
            if state.arrived == 0 && !state.is_unused {
                return Err(Errno::EAGAIN);
            }
            let found = state.fresh.first().and_then(|id| {
                state.requests.get(id).map(|request| (*id, request.thread.clone(), request.call))
            });
            match found {
                Some(found) => found,
                None => {
                    state.arrived = state.arrived.saturating_sub(1);
                    return Err(Errno::ENOENT);
                }
            }
        };
        tell(id, &thread, &call)?;
        {
            let mut state = self.state.lock();
            state.arrived = state.arrived.saturating_sub(1);
            if state.fresh.remove(&id) {
                state.taken += 1;
                if let Some(request) = state.requests.get_mut(&id) {
                    request.stage = Stage::Taken;
                }
            }
        }
        self.queue.wake(PollMask::WRITE);
        Ok(())
    }

    /// The thread whose call has been taken and has no answer. ENOENT, EINPROGRESS.
    pub fn taken(&self, id: u64) -> Result<Waiter> {
        let state = self.state.lock();
        let request = state.requests.get(&id).ok_or(Errno::ENOENT)?;
        if request.stage == Stage::Taken {
            Ok(request.thread.clone())
        } else {
            Err(Errno::EINPROGRESS)
        }
    }

    /// Answers a call. ENOENT, EINPROGRESS.
    pub fn answer(&self, id: u64, answer: Answer) -> Result {
        let wakeup = {
            let mut state = self.state.lock();
            let request = state.requests.get_mut(&id).ok_or(Errno::ENOENT)?;
            if request.stage != Stage::Taken {
                return Err(Errno::EINPROGRESS);
            }
            request.stage = Stage::Answered(answer);
            let wakeup = request.wakeup.clone();
            state.taken -= 1;
            wakeup
        };
        wakeup.set();
        Ok(())
    }
}

/// The request of a thread that waits.
struct Asked<'a> {
    listener: &'a Listener,
    id: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.listener.forget(self.id);
    }
}

impl FileOps for Listener {
    fn poll(&self, _file: &OpenFile) -> PollMask {
        let state = self.state.lock();
        let mut mask = PollMask::empty();
        mask.set(PollMask::READ, !state.fresh.is_empty());
        mask.set(PollMask::WRITE, state.taken > 0);
        mask.set(PollMask::HUP, state.is_unused);
        mask
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.queue)
    }

    fn label(&self, _file: &OpenFile) -> Vec<u8> {
        b"anon_inode:seccomp notify".to_vec()
    }

    /// Calls that wait fail, as those that come later.
    fn release(&self, _file: &OpenFile) {
        let waiting: Vec<Arc<Signal>> = {
            let mut state = self.state.lock();
            state.is_closed = true;
            state.fresh.clear();
            state.taken = 0;
            let open = state.requests.values_mut();
            let open = open.filter(|request| !matches!(request.stage, Stage::Answered(_)));
            open.map(|request| {
                let error = Errno::ENOSYS.0;
                request.stage = Stage::Answered(Answer::Returns(-i64::from(error)));
                request.wakeup.clone()
            })
            .collect()
        };
        waiting.iter().for_each(|wakeup| wakeup.set());
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
