//! Waiting: queues of observers, and the one form in which a system call blocks.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::task::{Poll, Waker};

use bitflags::bitflags;

use crate::account;
use crate::errno::{Errno, Result};
use crate::sync::{Mutex, mutex};
use crate::time;

bitflags! {
    /// Readiness, with the bit values of poll(2) and epoll(7).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PollMask: u32 {
        /// Data can be read.
        const IN = 0x001;
        /// Urgent data.
        const PRI = 0x002;
        /// Data can be written.
        const OUT = 0x004;
        /// Error.
        const ERR = 0x008;
        /// Hang-up.
        const HUP = 0x010;
        /// Not open.
        const NVAL = 0x020;
        /// As IN.
        const RDNORM = 0x040;
        /// Priority band data.
        const RDBAND = 0x080;
        /// As OUT.
        const WRNORM = 0x100;
        /// Priority data may be written.
        const WRBAND = 0x200;
        /// The peer shut down writing.
        const RDHUP = 0x2000;
    }
}

impl PollMask {
    /// IN and RDNORM.
    pub const READ: PollMask = PollMask::IN.union(PollMask::RDNORM);
    /// OUT and WRNORM.
    pub const WRITE: PollMask = PollMask::OUT.union(PollMask::WRNORM);
    /// What those who watch a socket are notified of when data has come. (Linux leaves it to them
    /// whether it is urgent.)
    pub const RECEIVED: PollMask = PollMask::READ.union(PollMask::PRI).union(PollMask::RDBAND);
    /// The same when there is room for more.
    pub const SENDABLE: PollMask = PollMask::WRITE.union(PollMask::WRBAND);
    /// What is reported whether asked for or not.
    pub const ALWAYS: PollMask = PollMask::ERR.union(PollMask::HUP);
}

/// Somebody who wants to know of events: a waiting thread, an epoll instance.
pub trait Observer: Send + Sync {
    /// Some of `events` may have happened. Must not block, nor touch the queue it is called from.
    fn notify(&self, events: PollMask);

    /// True if somebody will see to `events` when notified: nobody else of those who take turns
    /// need be.
    fn is_attended(&self, events: PollMask) -> bool {
        let _ = events;
        true
    }

    /// True if this is a task that sleeps, and has not been notified since.
    fn is_asleep(&self) -> bool {
        false
    }
}

/// Who is notified when several observe one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Each time.
    Always,
    /// One of those that say this, the oldest that sees to the event (EPOLLEXCLUSIVE).
    OneOfThem,
}

struct Entry {
    id: u64,
    mask: PollMask,
    turn: Turn,
    /// `None`: it has gone, and its place not yet.
    observer: Option<Arc<dyn Observer>>,
}

impl Entry {
    /// Its observer, if that is to be notified of any of `events`.
    fn wants(&self, events: PollMask) -> Option<&Arc<dyn Observer>> {
        self.observer.as_ref().filter(|_| self.mask.intersects(events))
    }
}

/// Entries by id. Places of those that have gone are given up many at a time, so that a program
/// with very many of them does not have all of the list moved for each; the first and the last one
/// are never such places, so that whoever wakes the oldest need not look past them.
#[derive(Default)]
struct Entries {
    list: VecDeque<Entry>,
    gone: usize,
}

impl Entries {
    fn remove(&mut self, id: u64) -> Option<Arc<dyn Observer>> {
        let index = self.list.binary_search_by_key(&id, |e| e.id).ok()?;
        let observer = self.list.get_mut(index)?.observer.take();
        self.gone += usize::from(observer.is_some());
        while self.list.back().is_some_and(|last| last.observer.is_none()) {
            self.list.pop_back();
            self.gone -= 1;
        }
        while self.list.front().is_some_and(|first| first.observer.is_none()) {
            self.list.pop_front();
            self.gone -= 1;
        }
        if self.gone > self.list.len() / 2 {
            self.list.retain(|e| e.observer.is_some());
            self.gone = 0;
        }
        observer
    }
}

/// Those who wait for something of one object.
#[derive(Default)]
pub struct WaitQueue {
    entries: Mutex<Entries>,
}

static NEXT_ENTRY: AtomicU64 = AtomicU64::new(1);

/// So many queues a thread may wait at without asking whether there is memory for that.
const FEW_QUEUES: usize = 4;

/// Numbers the notifications that are not made by one that is being notified.
static CASCADES: AtomicU64 = AtomicU64::new(0);
/// How many notifications are under way, one made by the other.
static DEPTH: AtomicU32 = AtomicU32::new(0);

/// The number of the notification that all those under way have come of: whoever passes them on to
/// others need not do so more than once for it.
pub fn cascade() -> u64 {
    // Unit tests have no lock that makes it one at a time.
    if cfg!(test) {
        return CASCADES.fetch_add(1, Ordering::Relaxed);
    }
    CASCADES.load(Ordering::Relaxed)
}

/// Observers that are notified between two looks at the queue.
const WAKE_BATCH: usize = 8;

impl WaitQueue {
    /// Without observers.
    pub const fn new() -> Self {
        WaitQueue { entries: mutex(Entries { list: VecDeque::new(), gone: 0 }) }
    }

    /// Adds an observer for `mask` (ERR and HUP always count); the id undoes it. For the few whose
    /// number no program chooses: [`WaitQueue::try_register`].
    pub fn register(&self, mask: PollMask, observer: Arc<dyn Observer>) -> u64 {
        self.add(mask, Turn::Always, observer)
    }

    /// As [`WaitQueue::register`]. ENOMEM.
    pub fn try_register(
        &self,
        mask: PollMask,
        turn: Turn,
        observer: Arc<dyn Observer>,
    ) -> Result<u64> {
        account::room_in(&mut self.entries.lock().list)?;
        Ok(self.add(mask, turn, observer))
    }

    fn add(&self, mask: PollMask, turn: Turn, observer: Arc<dyn Observer>) -> u64 {
        let id = NEXT_ENTRY.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { id, mask: mask | PollMask::ALWAYS, turn, observer: Some(observer) };
        self.entries.lock().list.push_back(entry);
        id
    }

    /// Removes the observer with this id.
    pub fn unregister(&self, id: u64) {
        let removed = self.entries.lock().remove(id);
        drop(removed);
    }

    /// Notifies all observers of any of `events`.
    pub fn wake(&self, events: PollMask) {
        self.wake_some(events, usize::MAX);
    }

    /// Notifies the first `count` observers of any of `events`, oldest first. Those that register
    /// meanwhile are not notified.
    pub fn wake_some(&self, events: PollMask, count: usize) {
        if DEPTH.fetch_add(1, Ordering::Relaxed) == 0 {
            CASCADES.fetch_add(1, Ordering::Relaxed);
        }
        self.notify_some(events, count);
        DEPTH.fetch_sub(1, Ordering::Relaxed);
    }

    fn notify_some(&self, events: PollMask, count: usize) {
        let end = NEXT_ENTRY.load(Ordering::Relaxed);
        let (mut left, mut next) = (count, 0);
        let mut is_seen_to = false;
        while left > 0 {
            // A few at a time: there may be more than a list in one piece can be had for.
            let mut hit: [Option<(Turn, Arc<dyn Observer>)>; WAKE_BATCH] =
                [const { None }; WAKE_BATCH];
            let mut found = 0;
            {
                let entries = self.entries.lock();
                // They are in the order of their ids.
                let from = entries.list.partition_point(|e| e.id < next);
                let rest = entries.list.iter().skip(from).take_while(|e| e.id < end);
                let notified = rest.filter_map(|e| Some((e, e.wants(events)?)));
                for (place, (entry, observer)) in hit.iter_mut().zip(notified).take(left) {
                    *place = Some((entry.turn, observer.clone()));
                    next = entry.id + 1;
                    found += 1;
                }
            }
            for (turn, observer) in hit.into_iter().flatten() {
                match turn {
                    Turn::OneOfThem if is_seen_to => continue,
                    Turn::OneOfThem => is_seen_to = observer.is_attended(events),
                    Turn::Always => {}
                }
                observer.notify(events);
            }
            if found < WAKE_BATCH {
                return;
            }
            left -= found;
        }
    }

    /// True if somebody asked for any of `events`.
    pub fn has_observer(&self, events: PollMask) -> bool {
        self.entries.lock().list.iter().any(|e| e.wants(events).is_some())
    }

    /// True if a task sleeps here that has not been notified yet.
    pub fn has_sleeper(&self) -> bool {
        let is_asleep = |e: &Entry| e.observer.as_ref().is_some_and(|o| o.is_asleep());
        self.entries.lock().list.iter().any(is_asleep)
    }

    /// True if nobody waits.
    pub fn is_empty(&self) -> bool {
        self.entries.lock().list.is_empty()
    }
}

/// An observer that a task can await: each notification makes one [`Signal::wait`] return.
#[derive(Default)]
pub struct Signal {
    state: Mutex<SignalState>,
}

#[derive(Default)]
struct SignalState {
    set: bool,
    waker: Option<Waker>,
}

impl Signal {
    /// Sets it and wakes the waiting task.
    pub fn set(&self) {
        let waker = {
            let mut state = self.state.lock();
            state.set = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Clears it.
    pub fn clear(&self) {
        self.state.lock().set = false;
    }

    /// Waits until it is set, and clears it.
    pub async fn wait(&self) {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if core::mem::take(&mut state.set) {
                return Poll::Ready(());
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Observer for Signal {
    fn notify(&self, _events: PollMask) {
        self.set();
    }

    fn is_asleep(&self) -> bool {
        !self.state.lock().set
    }
}

/// Registrations that undo themselves, and a timer likewise.
pub struct Registered<'a> {
    queues: Vec<(&'a WaitQueue, u64)>,
    timer: Option<time::TimerKey>,
}

impl<'a> Registered<'a> {
    /// None yet. ENOMEM if there is no room for `most`.
    pub fn new(most: usize) -> Result<Self> {
        Ok(Registered { queues: account::vec_for(most)?, timer: None })
    }

    /// `queue` gave `id` to who was registered there.
    pub fn add(&mut self, queue: &'a WaitQueue, id: u64) {
        self.queues.push((queue, id));
    }

    /// Notifies `observer` at the deadline (CLOCK_MONOTONIC) too, if there is one.
    pub fn set_deadline(&mut self, deadline_ns: Option<u64>, observer: &Arc<Signal>) {
        self.timer = deadline_ns.map(|deadline| time::insert(deadline, observer.clone()));
    }

    /// Undoes so many of those that are left, the last ones. True if there were some.
    pub fn undo(&mut self, most: usize) -> bool {
        let kept = self.queues.len().saturating_sub(most);
        let undone = self.queues.drain(kept..);
        undone.map(|(queue, id)| queue.unregister(id)).count() > 0
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        for (queue, id) in &self.queues {
            queue.unregister(*id);
        }
        if let Some(key) = self.timer {
            time::cancel(key);
        }
    }
}

/// Waits until `queue` is next notified of `mask`, or until a deadline (CLOCK_MONOTONIC). May be
/// given up.
pub async fn notified(queue: &WaitQueue, mask: PollMask, deadline_ns: Option<u64>) {
    let signal = Arc::new(Signal::default());
    let queues = alloc::vec![(queue, queue.register(mask, signal.clone()))];
    let mut registered = Registered { queues, timer: None };
    registered.set_deadline(deadline_ns, &signal);
    signal.wait().await;
}

/// Who blocks in a system call: a thread of a program.
pub trait Sleeper: Send + Sync {
    /// What wakes it.
    fn wakeup(&self) -> Arc<Signal>;
    /// True if a blocking call has to return: a signal is to be handled, or the thread is to end.
    fn is_interrupted(&self) -> bool;
    /// True if it is to end as soon as it can.
    fn is_dying(&self) -> bool;
    /// It is about to sleep.
    fn sleeps(&self) {}
}

impl<T: Sleeper> Sleeper for Arc<T> {
    fn wakeup(&self) -> Arc<Signal> {
        T::wakeup(self)
    }

    fn is_interrupted(&self) -> bool {
        T::is_interrupted(self)
    }

    fn is_dying(&self) -> bool {
        T::is_dying(self)
    }

    fn sleeps(&self) {
        T::sleeps(self);
    }
}

/// The one form in which a system call blocks: `attempt`; on EAGAIN wait until one of `queues`
/// notifies of `mask`, and attempt again.
///
/// Errors besides `attempt`'s own: ETIMEDOUT once `deadline_ns` (CLOCK_MONOTONIC) has passed,
/// ERESTARTSYS when a signal is to be handled or the thread is to die.
pub async fn block_on<T>(
    thread: &dyn Sleeper,
    queues: &[&WaitQueue],
    mask: PollMask,
    deadline_ns: Option<u64>,
    attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    block(thread, queues, mask, deadline_ns, |s| s.is_interrupted(), attempt).await
}

/// As [`block_on`], but only the thread's own end cuts the wait short, not a signal to be handled.
pub async fn block_until_killed<T>(
    thread: &dyn Sleeper,
    queues: &[&WaitQueue],
    mask: PollMask,
    attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    block(thread, queues, mask, None, |s| s.is_dying(), attempt).await
}

/// As [`block_until_killed`], with a deadline as of [`block_on`].
pub async fn block_until_killed_or<T>(
    thread: &dyn Sleeper,
    queues: &[&WaitQueue],
    mask: PollMask,
    deadline_ns: u64,
    attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    block(thread, queues, mask, Some(deadline_ns), |s| s.is_dying(), attempt).await
}

async fn block<T>(
    thread: &dyn Sleeper,
    queues: &[&WaitQueue],
    mask: PollMask,
    deadline_ns: Option<u64>,
    is_over: impl Fn(&dyn Sleeper) -> bool,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    match attempt() {
        Err(Errno::EAGAIN) => {}
        result => return result,
    }
    let wakeup = thread.wakeup();
    let mut registered = Registered::new(queues.len())?;
    for queue in queues {
        // No more than there are threads wait for few.
        let id = match queues.len() {
            ..=FEW_QUEUES => queue.register(mask, wakeup.clone()),
            _ => queue.try_register(mask, Turn::Always, wakeup.clone())?,
        };
        registered.add(queue, id);
    }
    registered.set_deadline(deadline_ns, &wakeup);
    loop {
        wakeup.clear();
        match attempt() {
            Err(Errno::EAGAIN) => {}
            result => return result,
        }
        if is_over(thread) {
            return Err(Errno::ERESTARTSYS);
        }
        if deadline_ns.is_some_and(|deadline| time::monotonic_ns() >= deadline) {
            return Err(Errno::ETIMEDOUT);
        }
        thread.sleeps();
        wakeup.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Observer for Counter {
        fn notify(&self, _events: PollMask) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn is_attended(&self, events: PollMask) -> bool {
            !events.contains(PollMask::PRI)
        }
    }

    #[test]
    fn one_of_those_who_take_turns_is_notified_and_all_others() {
        let queue = WaitQueue::new();
        let counters: Vec<Arc<Counter>> = (0..40).map(|_| Arc::default()).collect();
        for (i, counter) in counters.iter().enumerate() {
            let turn = if i % 10 == 9 { Turn::Always } else { Turn::OneOfThem };
            queue.try_register(PollMask::IN, turn, counter.clone()).expect("memory");
        }
        let notified = || -> Vec<usize> {
            let was = counters.iter().map(|c| c.0.swap(0, Ordering::Relaxed));
            was.enumerate().filter(|(_, n)| *n > 0).map(|(i, _)| i).collect()
        };
        queue.wake(PollMask::IN);
        assert_eq!(notified(), [0, 9, 19, 29, 39]);
        queue.wake(PollMask::IN | PollMask::PRI);
        assert_eq!(notified().len(), 40, "nobody sees to it");
    }

    #[test]
    fn each_observer_is_notified_once_however_many_have_gone() {
        let queue = WaitQueue::new();
        let counters: Vec<Arc<Counter>> = (0..100).map(|_| Arc::default()).collect();
        let ids: Vec<u64> = counters
            .iter()
            .map(|c| queue.try_register(PollMask::IN, Turn::Always, c.clone()).expect("memory"))
            .collect();
        let notified =
            || counters.iter().map(|c| c.0.swap(0, Ordering::Relaxed)).collect::<Vec<_>>();
        queue.wake(PollMask::OUT);
        assert!(notified().iter().all(|n| *n == 0));
        queue.wake(PollMask::IN);
        assert!(notified().iter().all(|n| *n == 1));
        queue.wake_some(PollMask::HUP, 20);
        assert!(notified().iter().enumerate().all(|(i, n)| *n == usize::from(i < 20)));
        // Oldest first, as a process that ends closes its files, and every third of the rest.
        let is_gone = |i: usize| i < 40 || i.is_multiple_of(3);
        (0..100).filter(|i| is_gone(*i)).for_each(|i| queue.unregister(ids[i]));
        assert!(queue.entries.lock().list.front().is_some_and(|first| first.id == ids[40]));
        queue.unregister(ids[0]);
        queue.wake(PollMask::IN);
        assert!(notified().iter().enumerate().all(|(i, n)| *n == usize::from(!is_gone(i))));
        (0..100).rev().for_each(|i| queue.unregister(ids[i]));
        assert!(queue.is_empty() && !queue.has_observer(PollMask::IN));
        assert!(queue.entries.lock().gone == 0);
    }
}
