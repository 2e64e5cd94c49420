//! Serving requests that are linked, one after the other, and answering them.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use core::task::{Context, Poll, Waker};

use super::job::{Done, Job, Prepared};
use super::{ops, timeout};
use crate::errno::{Errno, Result};
use crate::executor;
use crate::ipc::uring::Ring;
use crate::ipc::uring::abi::{Cqe, OP_LINK_TIMEOUT, OP_TIMEOUT, SQE_CQE_SKIP, SQE_HARDLINK};
use crate::ipc::uring::request::Request;
use crate::task::{Thread, current, run};
use crate::time::breath::Breath;

/// A request that was submitted, and who is to serve it.
pub(super) struct Entry {
    pub(super) request: Arc<Request>,
    pub(super) worker: Arc<Thread>,
    /// What it comes with, or what is wrong with it.
    pub(super) prepared: Result<Prepared>,
}

/// Serves requests, now as far as nothing has to be waited for, and then as a task that is held
/// with those of the thread of this token.
pub(super) fn start(token: u64, ring: Arc<Ring>, chain: VecDeque<Entry>, later: bool) {
    let is_late = Arc::new(AtomicBool::new(later));
    let mut all: Pin<Box<dyn Future<Output = ()> + Send>> =
        Box::pin(serve(ring, chain, is_late.clone()));
    // It is polled once more by the task, whatever wakes it before.
    let is_over = |all: &mut Pin<Box<dyn Future<Output = ()> + Send>>| {
        all.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    };
    if !later && is_over(&mut all) {
        return;
    }
    is_late.store(true, Relaxed);
    executor::spawn_for(token, all);
}

/// Where answers go.
struct Answers<'a> {
    ring: &'a Ring,
    is_late: &'a AtomicBool,
}

impl Answers<'_> {
    /// Answers a request, or ends it silently.
    fn give(&self, request: &Request, done: Done, is_skipped: bool) {
        if !is_skipped {
            let user_data = request.terms.lock().user_data;
            let cqe = Cqe { user_data, result: done.result, flags: done.flags };
            let counts = request.sqe.opcode != OP_TIMEOUT;
            self.ring.answer(cqe, counts, self.is_late.load(Relaxed));
        }
        self.ring.requests.remove(request.id);
    }

    fn give_limit(&self, Limited { limit, why }: Limited) {
        let is_skipped = why == Errno::ECANCELED && limit.sqe.flags & SQE_CQE_SKIP != 0;
        self.give(&limit, Done::error(why), is_skipped);
    }
}

/// What limited a request, and why it does no longer.
struct Limited {
    limit: Arc<Request>,
    why: Errno,
}

fn is_limit(entry: &Entry) -> bool {
    entry.request.sqe.opcode == OP_LINK_TIMEOUT
}

async fn serve(ring: Arc<Ring>, mut chain: VecDeque<Entry>, is_late: Arc<AtomicBool>) {
    let answers = Answers { ring: &ring, is_late: &is_late };
    // What is wrong with one of them all of them suffer from.
    let mut is_broken = chain.iter().any(|entry| entry.prepared.is_err());
    let mut is_silent = false;
    let mut breath = Breath::new();
    while let Some(Entry { request, worker, prepared }) = chain.pop_front() {
        let flags = request.sqe.flags;
        let mut limited = None;
        let done = match prepared {
            Err(error) => Done::error(error),
            Ok(_) if is_broken || request.is_cancelled() => Done::error(Errno::ECANCELED),
            Ok(prepared) => {
                let limit = chain.front().is_some_and(is_limit).then(|| chain.pop_front());
                let job = Job { ring: ring.clone(), request: request.clone(), worker, prepared };
                let done;
                (done, limited) = within(job, limit.flatten(), &answers).await;
                done
            }
        };
        let is_skipped = match is_broken {
            true => is_silent,
            false => flags & SQE_CQE_SKIP != 0 && !done.failed,
        };
        if done.failed && flags & SQE_HARDLINK == 0 && !is_broken {
            is_broken = true;
            is_silent = flags & SQE_CQE_SKIP != 0;
        }
        answers.give(&request, done, is_skipped);
        if let Some(limited) = limited {
            answers.give_limit(limited);
        }
        // There may be thousands that need not wait for anything.
        breath.take().await;
    }
}

/// Serves one request, no longer than its limit allows; that is answered after it.
async fn within(job: Job, limit: Option<Entry>, answers: &Answers<'_>) -> (Done, Option<Limited>) {
    let request = job.request.clone();
    request.begin();
    let mut served = pin!(one(job, answers.is_late));
    let Some(Entry { request: limit, prepared, .. }) = limit else { return (served.await, None) };
    let time_ns = match prepared {
        Ok(Prepared::Time(ns)) => ns,
        _ => 0,
    };
    limit.begin();
    let first = {
        let mut is_over = pin!(timeout::is_over(&limit, time_ns));
        poll_fn(|cx| match served.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Ok(done)),
            Poll::Pending => is_over.as_mut().poll(cx).map(Err),
        })
        .await
    };
    match first {
        Ok(done) => (done, Some(Limited { limit, why: Errno::ECANCELED })),
        Err(true) => {
            request.cancel();
            (served.await, Some(Limited { limit, why: Errno::ETIME }))
        }
        Err(false) => {
            answers.give_limit(Limited { limit, why: Errno::ECANCELED });
            (served.await, None)
        }
    }
}

async fn one(job: Job, is_late: &AtomicBool) -> Done {
    let (request, worker) = (job.request.clone(), job.worker.clone());
    let mut served = ops::serve(job);
    let result = poll_fn(|cx| current::within(&worker, || served.as_mut().poll(cx))).await;
    drop(served);
    hand_over_lost(&worker);
    show(&worker, is_late).await;
    match result {
        Ok(done) => done,
        Err(error) if request.is_cancelled() && (error.is_internal() || error == Errno::EINTR) => {
            Done::error(Errno::ECANCELED)
        }
        // A page that somebody else sees to, in a place that cannot wait for it.
        Err(Errno::ERESTARTNOMEM) if worker.missed.lock().take().is_some() => {
            Done::error(Errno::EFAULT)
        }
        Err(Errno::ERESTARTNOMEM) => Done::error(Errno::ENOMEM),
        Err(error) if error.is_internal() => Done::error(Errno::EINTR),
        Err(error) => Done::error(error),
    }
}

/// What memory objects have lost is taken out of address spaces by a thread: the one that submits,
/// or, where that was over before, whichever of its process makes a call next.
fn hand_over_lost(worker: &Arc<Thread>) {
    let lost = core::mem::take(&mut *worker.lost.lock());
    if lost.is_empty() {
        return;
    }
    if let Some(thread) = current::get().or_else(|| worker.process.first_thread()) {
        thread.lost.lock().extend(lost);
    }
}

/// Has the program see what the kernel has copied for a request, before that is answered: it may
/// look at the answer without a call.
async fn show(worker: &Arc<Thread>, is_late: &AtomicBool) {
    let (mm, threads) = (worker.mm(), worker.mm().threads());
    let is_unseen = match threads.len() {
        1 => is_late.load(Relaxed) && mm.has_ops(),
        _ => mm.has_unseen_copies() || threads.iter().any(|thread| thread.shows_copies()),
    };
    if !is_unseen || !threads.iter().any(|thread| thread.is_in_user_mode()) {
        return;
    }
    let halted = mm.halt_all().await;
    // Nothing is shown to anybody while the container sleeps.
    run::may_sync(worker).await;
    mm.carry_out_ops().await;
    drop(halted);
}
