//! The executor: one queue of ready tasks. A guest thread is one task; so are a few services of the
//! kernel.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::task::Wake;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};

use crate::sync::{Mutex, mutex};
use crate::{arch, urgent};

type BoxedFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Job {
    /// Empty while it is being polled and after it ended.
    future: Mutex<Option<BoxedFuture>>,
    queued: AtomicBool,
    /// The platform thread that it is the task of, or 0: for [`urgent`].
    token: u64,
    /// Nobody waits for what it does.
    is_quiet: bool,
}

/// How many there are. The queue has room for all of them from when they are made on: one
/// notification may go to each, when there is no memory left.
static JOBS: AtomicUsize = AtomicUsize::new(0);

impl Drop for Job {
    fn drop(&mut self) {
        JOBS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Wake for Job {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            if self.token != 0 && HOLDS.load(Ordering::Relaxed) {
                return HELD.lock().push_back(self);
            }
            let first = urgent::is_urgent(self.token);
            let mut ready = READY.lock();
            if first { ready.push_front(self) } else { ready.push_back(self) }
        }
    }
}

static READY: Mutex<VecDeque<Arc<Job>>> = mutex(VecDeque::new());
/// True if tasks of threads are held, and those that would be ready.
static HOLDS: AtomicBool = AtomicBool::new(false);
static HELD: Mutex<VecDeque<Arc<Job>>> = mutex(VecDeque::new());

/// From now on no task of a thread runs, whatever it waited for: so no system call that is under
/// way changes memory.
pub fn hold_threads() {
    HOLDS.store(true, Ordering::Relaxed);
    let mut ready = READY.lock();
    let mut held = HELD.lock();
    held.reserve(JOBS.load(Ordering::Relaxed));
    for _ in 0..ready.len() {
        let Some(job) = ready.pop_front() else { return };
        if job.token == 0 { ready.push_back(job) } else { held.push_back(job) }
    }
}

/// How many keep the tasks of threads held, whatever wakes the sandbox.
static KEPT: AtomicU32 = AtomicU32::new(0);
/// They were to be released meanwhile.
static RELEASED: AtomicBool = AtomicBool::new(false);

/// While it lives, [`release_threads`] is put off.
pub struct KeptHeld(());

/// Keeps the tasks of threads, which are [held](hold_threads), from running for a moment, in which
/// what they run on is changed.
pub fn keep_held() -> KeptHeld {
    KEPT.fetch_add(1, Ordering::Relaxed);
    KeptHeld(())
}

impl Drop for KeptHeld {
    fn drop(&mut self) {
        if KEPT.fetch_sub(1, Ordering::Relaxed) == 1 && RELEASED.swap(false, Ordering::Relaxed) {
            release_threads();
        }
    }
}

/// They run again.
pub fn release_threads() {
    if KEPT.load(Ordering::Relaxed) > 0 {
        RELEASED.store(true, Ordering::Relaxed);
        return;
    }
    HOLDS.store(false, Ordering::Relaxed);
    let held = core::mem::take(&mut *HELD.lock());
    READY.lock().extend(held);
}

/// Adds a task; it runs at the next [`run`].
pub fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    spawn_for(0, future);
}

/// As [`spawn`], for the task of the platform thread with this token.
pub fn spawn_for(token: u64, future: impl Future<Output = ()> + Send + 'static) {
    add(token, false, future);
}

/// As [`spawn`], for what nobody waits for: it keeps nothing awake.
pub fn spawn_quiet(future: impl Future<Output = ()> + Send + 'static) {
    add(0, true, future);
}

fn add(token: u64, is_quiet: bool, future: impl Future<Output = ()> + Send + 'static) {
    let jobs = JOBS.fetch_add(1, Ordering::Relaxed) + 1;
    {
        let mut ready = READY.lock();
        let more = jobs.saturating_sub(ready.len());
        ready.reserve(more);
    }
    let job = Arc::new(Job {
        future: Mutex::new(Some(Box::pin(future))),
        queued: AtomicBool::new(false),
        token,
        is_quiet,
    });
    Wake::wake(job);
}

/// How often tasks may have let others run first before the kernel itself lets others in.
const YIELDS: u32 = 64;

/// How often that was since [`run`] began.
static YIELDED: AtomicU32 = AtomicU32::new(0);

/// Polls ready tasks until none is left, or until tasks have yielded again and again. The rest is
/// for the next time, which is soon (`time::rearm`).
pub fn run() {
    run_until(|_| false);
}

/// As [`run`], or until `leave` says that others do the rest; it is asked before each task, with
/// whether that one is urgent. Whether it said so.
pub fn run_until(leave: impl Fn(bool) -> bool) -> bool {
    YIELDED.store(0, Ordering::Relaxed);
    while YIELDED.load(Ordering::Relaxed) < YIELDS {
        let Some(is_urgent) = READY.lock().front().map(|job| urgent::is_urgent(job.token)) else {
            return false;
        };
        if leave(is_urgent) {
            return true;
        }
        let Some(job) = READY.lock().pop_front() else { return false };
        job.queued.store(false, Ordering::Release);
        let Some(mut future) = job.future.lock().take() else { continue };
        let waker = Waker::from(job.clone());
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            *job.future.lock() = Some(future);
        }
    }
    false
}

/// True if no task is ready but the one that asks.
pub fn is_drained() -> bool {
    READY.lock().is_empty()
}

/// True if the tasks that are ready, but for the one that asks, are such that nobody waits for
/// ([`spawn_quiet`]).
pub fn is_still() -> bool {
    READY.lock().iter().all(|job| job.is_quiet)
}

/// Lets somebody in who must not wait ([`urgent`]), if there is one: for work that takes long,
/// between two pieces of it.
pub async fn give_way() {
    if arch::lock::is_wanted_urgently() {
        yield_now().await;
    }
}

/// Lets other ready tasks run first.
pub async fn yield_now() {
    YIELDED.fetch_add(1, Ordering::Relaxed);
    let mut yielded = false;
    core::future::poll_fn(|cx| {
        if core::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_threads_rest_and_lose_nothing() {
        static RAN: Mutex<alloc::vec::Vec<u64>> = mutex(alloc::vec::Vec::new());
        let log = |token: u64| {
            spawn_for(token, async move {
                RAN.lock().push(token);
                yield_now().await;
                RAN.lock().push(token * 10);
            });
        };
        log(7);
        hold_threads();
        log(8);
        log(0);
        run();
        assert!(is_drained());
        assert_eq!(*RAN.lock(), [0, 0], "only what is no thread's");
        let kept = keep_held();
        release_threads();
        run();
        assert_eq!(*RAN.lock(), [0, 0], "not yet");
        drop(kept);
        run();
        assert_eq!(*RAN.lock(), [0, 0, 7, 8, 70, 80]);
        spawn_quiet(async {});
        assert!(is_still() && !is_drained(), "it is to run, and nobody waits for it");
        spawn(async {});
        assert!(!is_still());
        run();
        assert!(is_still() && is_drained());
    }
}
