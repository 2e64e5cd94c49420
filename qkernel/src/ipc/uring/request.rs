//! Requests under way, and how they are found to be cancelled.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::abi::Sqe;
use crate::sync::Mutex;
use crate::task::Thread;
use crate::task::errands::Errands;
use crate::wait::{PollMask, WaitQueue};

/// What others may change of a request that waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Comes back in its answer.
    pub user_data: u64,
    /// What it polls for.
    pub events: u32,
    /// When its time is over, in nanoseconds of CLOCK_MONOTONIC.
    pub deadline_ns: u64,
    /// How often they were changed.
    pub changes: u32,
}

/// A request that has been submitted and has not been answered.
pub struct Request {
    /// In the order of submission.
    pub id: u64,
    /// The process that submitted it.
    pub pid: u32,
    /// The request as it was submitted.
    pub sqe: Sqe,
    /// Who serves it.
    worker: Mutex<Option<Arc<Thread>>>,
    has_begun: AtomicBool,
    /// Where the description lies that it is about: only to be compared.
    file: AtomicUsize,
    is_cancelled: AtomicBool,
    /// What others may change of it.
    pub terms: Mutex<Terms>,
    /// Notified with IN when they did.
    pub changed: WaitQueue,
}

impl Request {
    /// A request that this thread is to serve.
    fn new(id: u64, sqe: Sqe, worker: &Arc<Thread>) -> Arc<Self> {
        let terms = Terms { user_data: sqe.user_data, ..Terms::default() };
        Arc::new(Request {
            id,
            pid: worker.process.pid,
            sqe,
            worker: Mutex::new(Some(worker.clone())),
            has_begun: AtomicBool::new(false),
            file: AtomicUsize::new(0),
            is_cancelled: AtomicBool::new(false),
            terms: Mutex::new(terms),
            changed: WaitQueue::new(),
        })
    }

    /// It begins.
    pub fn begin(&self) {
        self.has_begun.store(true, Relaxed);
    }

    /// True if it has begun, and may be cancelled yet.
    pub fn is_under_way(&self) -> bool {
        self.has_begun.load(Relaxed) && !self.is_cancelled()
    }

    /// It is about the description that lies there.
    pub fn set_file(&self, file: usize) {
        self.file.store(file, Relaxed);
    }

    /// True if it is about the description that lies there.
    pub fn is_about(&self, file: usize) -> bool {
        self.file.load(Relaxed) == file
    }

    /// It is to end as soon as it can.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Relaxed);
        let worker = self.worker.lock().clone();
        if let Some(worker) = worker {
            worker.stop_working();
        }
        self.changed.wake(PollMask::IN);
    }

    /// True if it is to end as soon as it can.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Relaxed)
    }

    /// Changes its terms, if it waits.
    pub fn change(&self, change: impl FnOnce(&mut Terms)) {
        {
            let mut terms = self.terms.lock();
            change(&mut terms);
            terms.changes = terms.changes.wrapping_add(1);
        }
        self.changed.wake(PollMask::IN);
    }
}

/// Requests that wait until others before them have been answered.
pub struct Drained {
    /// The first of them.
    pub first: Arc<Request>,
    /// All before it are to be answered, and not only those that wait here to have begun.
    pub drains: bool,
    /// Has them begin.
    pub start: Box<dyn FnOnce() + Send>,
}

/// The requests of a ring that have not been answered, in the order of submission.
#[derive(Default)]
pub struct Requests {
    all: Mutex<BTreeMap<u64, Arc<Request>>>,
    next_id: AtomicU64,
    drained: Mutex<VecDeque<Drained>>,
    /// How many were taken from the front of those.
    starts: AtomicU64,
    /// Notified with IN when one has been answered.
    pub ended: WaitQueue,
}

impl Requests {
    /// One more.
    pub fn add(&self, sqe: Sqe, worker: &Arc<Thread>) -> Arc<Request> {
        let id = self.next_id.fetch_add(1, Relaxed);
        let request = Request::new(id, sqe, worker);
        self.all.lock().insert(id, request.clone());
        request
    }

    /// It has been answered.
    pub fn remove(&self, id: u64) {
        let request = self.all.lock().remove(&id);
        if let Some(request) = request {
            // It refers to what it was done with.
            let worker = request.worker.lock().take();
            drop(worker);
            self.start_drained();
            self.ended.wake(PollMask::IN);
        }
    }

    /// True if requests wait for others: later ones queue behind them.
    pub fn is_draining(&self) -> bool {
        !self.drained.lock().is_empty()
    }

    /// Has requests begin when those before them have been answered.
    pub fn drain(&self, drained: Drained) {
        self.drained.lock().push_back(drained);
        self.start_drained();
    }

    /// Has those begin that need not wait any more.
    fn start_drained(&self) {
        loop {
            let next = {
                let oldest = self.all.lock().keys().next().copied();
                let is_free = |d: &Drained| {
                    !d.drains || oldest.is_none_or(|id| id >= d.first.id) || d.first.is_cancelled()
                };
                let mut drained = self.drained.lock();
                if drained.front().is_some_and(is_free) { drained.pop_front() } else { None }
            };
            let Some(Drained { start, .. }) = next else { return };
            self.starts.fetch_add(1, Relaxed);
            start();
        }
    }

    /// Has those begin that were cancelled, wherever they stand: that is their end.
    fn start_cancelled(&self) {
        let mut from = 0;
        loop {
            let next = {
                let mut drained = self.drained.lock();
                let is_over = |at: &usize| drained[*at].first.is_cancelled();
                let found = (from..drained.len()).find(is_over);
                found.and_then(|at| {
                    from = at;
                    drained.remove(at)
                })
            };
            let Some(Drained { start, .. }) = next else { break };
            let starts = self.starts.load(Relaxed);
            start();
            // Those before it are others if some of them have begun meanwhile.
            if self.starts.load(Relaxed) != starts {
                from = 0;
            }
        }
        self.start_drained();
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.lock().len()
    }

    /// The oldest one that is meant.
    pub fn find(&self, is_meant: impl Fn(&Request) -> bool) -> Option<Arc<Request>> {
        self.all.lock().values().find(|request| is_meant(request)).cloned()
    }

    /// Cancels those that are meant, one after the other: there may be no memory for a list. How
    /// many.
    pub fn cancel(&self, is_meant: impl Fn(&Request) -> bool) -> usize {
        let (mut next, mut count) = (0, 0);
        loop {
            let found = {
                let all = self.all.lock();
                let mut later = all.range(next..).map(|(_, request)| request);
                later.find(|request| is_meant(request)).cloned()
            };
            let Some(request) = found else { break };
            next = request.id + 1;
            count += 1;
            request.cancel();
        }
        if count > 0 {
            self.start_cancelled();
        }
        count
    }
}

/// What one process has asked of one ring.
pub struct Submitter {
    pid: u32,
    requests: Arc<Requests>,
    /// All of it was to end.
    is_over: AtomicBool,
}

impl Submitter {
    /// Nothing yet.
    pub fn new(pid: u32, requests: Arc<Requests>) -> Arc<Self> {
        Arc::new(Submitter { pid, requests, is_over: AtomicBool::new(false) })
    }

    /// True if all of it was to end.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }
}

impl Errands for Submitter {
    fn cancel(&self) {
        self.is_over.store(true, Relaxed);
        self.requests.cancel(|request| request.pid == self.pid);
    }

    fn are_any_left(&self) -> bool {
        self.requests.find(|request| request.pid == self.pid).is_some()
    }

    fn ended(&self) -> &WaitQueue {
        &self.requests.ended
    }
}
