//! Futexes (futex(2)): queues of waiters by the word they wait on.
//!
//! Kernel code is serialized, user code is not: a waiter is queued before its word is compared, so
//! a program that changes the word and then wakes cannot miss it.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use linux_raw_sys::general::{FUTEX_OWNER_DIED, FUTEX_TID_MASK, FUTEX_WAITERS};
use qlib::Va;

use crate::errno::{Errno, Result};
use crate::mm::AddressSpace;
use crate::sync::{Mutex, mutex};
use crate::task::Thread;
use crate::wait::{PollMask, Signal, Sleeper, block_on};

/// Which word a futex is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// In memory that only one address space sees: its identity, and the address.
    Private(usize, u64),
    /// In a mapped object: its identity, and the offset in it in bytes.
    Shared(usize, u64),
}

/// A futex word, and a number that rises: where one who waits is in its queue.
type Place = (Key, u64);

/// One who waits.
pub struct Waiter {
    place: Mutex<Place>,
    bitset: u32,
    woken: AtomicBool,
    /// The futex word is a PI lock, and this is the thread id to hand it to; 0 otherwise.
    pi_tid: u32,
    /// Which word of futex_waitv(2) it is.
    index: u32,
    signal: Arc<Signal>,
}

/// The waiters on all words, those of each oldest first.
#[derive(Default)]
struct Queues {
    waiters: BTreeMap<Place, Arc<Waiter>>,
    last: u64,
}

/// Not in one piece: each thread may wait for 128 words of its own (futex_waitv(2)).
static QUEUES: Mutex<Queues> = mutex(Queues { waiters: BTreeMap::new(), last: 0 });

/// Waiters that are taken at a time.
const BATCH: usize = 64;

fn with_queues<T>(f: impl FnOnce(&mut Queues) -> T) -> T {
    f(&mut QUEUES.lock())
}

impl Waiter {
    fn new(key: Key, bitset: u32, pi_tid: u32, index: u32, signal: Arc<Signal>) -> Arc<Self> {
        Arc::new(Waiter {
            place: Mutex::new((key, 0)),
            bitset,
            woken: AtomicBool::new(false),
            pi_tid,
            index,
            signal,
        })
    }

    fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed)
    }
}

/// A place in a queue, given up when dropped.
struct Queued(Arc<Waiter>);

impl Queued {
    fn new(waiter: Arc<Waiter>) -> Self {
        let (key, _) = *waiter.place.lock();
        with_queues(|queues| queues.enqueue(key, &waiter));
        Queued(waiter)
    }
}

impl Queues {
    /// Puts a waiter at the end of a queue.
    fn enqueue(&mut self, key: Key, waiter: &Arc<Waiter>) {
        self.last += 1;
        let place = (key, self.last);
        *waiter.place.lock() = place;
        self.waiters.insert(place, waiter.clone());
    }

    /// The waiters of `key`.
    fn of(&self, key: Key) -> impl Iterator<Item = (&Place, &Arc<Waiter>)> {
        self.waiters.range((key, 0)..=(key, u64::MAX))
    }

    /// Takes up to `count` waiters of `key` whose bitset meets `bitset`.
    fn take(&mut self, key: Key, count: usize, bitset: u32) -> Vec<Arc<Waiter>> {
        let meets = |(_, waiter): &(&Place, &Arc<Waiter>)| waiter.bitset & bitset != 0;
        let places: Vec<Place> =
            self.of(key).filter(meets).take(count).map(|(place, _)| *place).collect();
        places.iter().filter_map(|place| self.waiters.remove(place)).collect()
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if !self.0.is_woken() {
            let place = *self.0.place.lock();
            let removed = with_queues(|queues| queues.waiters.remove(&place));
            drop(removed);
        }
    }
}

/// The key of the word at `va`; EINVAL when it is not aligned, EFAULT when a shared word is not
/// mapped.
pub fn key(mm: &Arc<AddressSpace>, va: Va, private: bool) -> Result<Key> {
    if !va.0.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    let own = Key::Private(Arc::as_ptr(mm) as usize, va.0);
    if private {
        return Ok(own);
    }
    Ok(match mm.shared_object(va)? {
        Some((object, offset)) => Key::Shared(object, offset),
        None => own,
    })
}

/// As [`key`], of a word whose waiters are about to be woken or moved: EINVAL if they wait for a PI
/// lock, which only its owner hands over.
pub fn plain_key(mm: &Arc<AddressSpace>, va: Va, private: bool) -> Result<Key> {
    let key = key(mm, va, private)?;
    let first = with_queues(|queues| queues.of(key).next().map(|(_, waiter)| waiter.pi_tid));
    if first.unwrap_or(0) == 0 { Ok(key) } else { Err(Errno::EINVAL) }
}

fn finish(woken: &[Arc<Waiter>]) {
    for waiter in woken {
        waiter.woken.store(true, Ordering::Relaxed);
        waiter.signal.set();
    }
}

/// Wakes up to `count` waiters of `key` whose bitset meets `bitset`: how many.
pub fn wake(key: Key, count: usize, bitset: u32) -> usize {
    let mut total = 0;
    loop {
        let want = (count - total).min(BATCH);
        let woken = with_queues(|queues| queues.take(key, want, bitset));
        finish(&woken);
        total += woken.len();
        if woken.len() < BATCH {
            return total;
        }
    }
}

/// Wakes waiters of the word at `va`, private or shared (clear_child_tid, set_tid_address(2)).
pub fn wake_at(mm: &Arc<AddressSpace>, va: Va, count: usize) {
    let private = Key::Private(Arc::as_ptr(mm) as usize, va.0);
    if let Ok(key) = key(mm, va, false) {
        let woken = wake(key, count, u32::MAX);
        if key != private && woken < count {
            wake(private, count - woken, u32::MAX);
        }
    }
}

/// Wakes up to `wake_count` waiters of `from` and moves up to `move_count` more to `to`: (woken,
/// moved).
pub fn requeue(from: Key, to: Key, wake_count: usize, move_count: usize) -> (usize, usize) {
    let woken = wake(from, wake_count, u32::MAX);
    if from == to {
        // They are there already; Linux counts them.
        return (woken, waiters_of(to, move_count));
    }
    let mut moved = 0;
    loop {
        let want = (move_count - moved).min(BATCH);
        let batch = with_queues(|queues| queues.take(from, want, u32::MAX));
        for waiter in &batch {
            with_queues(|queues| queues.enqueue(to, waiter));
        }
        moved += batch.len();
        if batch.len() < BATCH {
            return (woken, moved);
        }
    }
}

/// Waits on the word at `va` while it holds `expected`, until a deadline of CLOCK_MONOTONIC.
///
/// Errors: EAGAIN (another value), ETIMEDOUT, EFAULT, ERESTARTSYS.
pub async fn wait(
    thread: &Arc<Thread>,
    va: Va,
    private: bool,
    expected: u32,
    bitset: u32,
    deadline_ns: Option<u64>,
) -> Result {
    let mm = thread.mm();
    let waiter = Waiter::new(key(&mm, va, private)?, bitset, 0, 0, thread.wakeup());
    let queued = Queued::new(waiter);
    if mm.read::<u32>(va)? != expected {
        return Err(Errno::EAGAIN);
    }
    let woken = || if queued.0.is_woken() { Ok(()) } else { Err(Errno::EAGAIN) };
    block_on(thread, &[], PollMask::empty(), deadline_ns, woken).await
}

/// One word of futex_waitv(2).
#[derive(Clone, Copy, Debug)]
pub struct WaitWord {
    /// Where.
    pub va: Va,
    /// FUTEX_PRIVATE_FLAG.
    pub private: bool,
    /// While it holds this.
    pub expected: u32,
}

/// Waits on several words: the index of one that was woken.
pub async fn wait_any(
    thread: &Arc<Thread>,
    words: &[WaitWord],
    deadline_ns: Option<u64>,
) -> Result<usize> {
    let mm = thread.mm();
    let mut queued = Vec::with_capacity(words.len());
    for (index, word) in words.iter().enumerate() {
        let key = key(&mm, word.va, word.private)?;
        queued.push(Queued::new(Waiter::new(key, u32::MAX, 0, index as u32, thread.wakeup())));
    }
    let woken =
        || queued.iter().find(|q| q.0.is_woken()).map(|q| q.0.index as usize).ok_or(Errno::EAGAIN);
    for word in words {
        if mm.read::<u32>(word.va)? != word.expected {
            return woken();
        }
    }
    block_on(thread, &[], PollMask::empty(), deadline_ns, woken).await
}

// ---- priority inheritance locks: the owner's thread id in the word; no priorities are inherited,
// for there are none ----

/// Changes the word atomically against user code; `change` gives the new value, or `None` to leave
/// it. The old value.
fn update_word(
    mm: &Arc<AddressSpace>,
    va: Va,
    mut change: impl FnMut(u32) -> Option<u32>,
) -> Result<u32> {
    mm.update_u32(va, |old| change(old).unwrap_or(old))
}

/// How many wait there, as far as `most`.
fn waiters_of(key: Key, most: usize) -> usize {
    with_queues(|queues| queues.of(key).take(most).count())
}

/// FUTEX_LOCK_PI and FUTEX_TRYLOCK_PI (`try_only`). Errors besides [`wait`]'s: EDEADLK (it is
/// ours), ESRCH (its owner is gone).
pub async fn lock_pi(
    thread: &Arc<Thread>,
    va: Va,
    private: bool,
    deadline_ns: Option<u64>,
    try_only: bool,
) -> Result {
    let mm = thread.mm();
    let key = key(&mm, va, private)?;
    let tid = thread.number_of(thread.tid());
    let mut queued: Option<Queued> = None;
    loop {
        // The owner hands the lock over by writing our id (see `unlock_pi`); until then we ask for
        // that by FUTEX_WAITERS.
        let old = update_word(&mm, va, |old| match old & FUTEX_TID_MASK {
            0 => {
                let waiters = waiters_of(key, 2).saturating_sub(usize::from(queued.is_some()));
                let flag = if waiters > 0 { FUTEX_WAITERS } else { 0 };
                Some(tid | (old & FUTEX_OWNER_DIED) | flag)
            }
            owner if owner == tid || try_only || old & FUTEX_WAITERS != 0 => None,
            _ => Some(old | FUTEX_WAITERS),
        })?;
        match old & FUTEX_TID_MASK {
            0 => return Ok(()),
            owner if owner == tid => return Err(Errno::EDEADLK),
            _ if try_only => return Err(Errno::EAGAIN),
            owner if thread.find_thread(owner).is_err() => return Err(Errno::ESRCH),
            _ => {}
        }
        if queued.is_none() {
            queued = Some(Queued::new(Waiter::new(key, u32::MAX, tid, 0, thread.wakeup())));
        }
        let waiter = queued.as_ref().ok_or(Errno::ENOMEM)?;
        let waiter = waiter.0.clone();
        let woken = || if waiter.is_woken() { Ok(()) } else { Err(Errno::EAGAIN) };
        block_on(thread, &[], PollMask::empty(), deadline_ns, woken).await.map_err(|error| {
            match error {
                Errno::ERESTARTSYS => Errno::ERESTARTNOINTR,
                other => other,
            }
        })?;
        queued = None;
        // Handed over, or its owner died and left it free.
        if mm.read::<u32>(va)? & FUTEX_TID_MASK == tid {
            return Ok(());
        }
    }
}

/// FUTEX_UNLOCK_PI: hands the lock to the longest waiter. EPERM when it is not the caller's.
pub fn unlock_pi(thread: &Arc<Thread>, va: Va, private: bool) -> Result {
    let mm = thread.mm();
    let key = key(&mm, va, private)?;
    if mm.read::<u32>(va)? & FUTEX_TID_MASK != thread.number_of(thread.tid()) {
        return Err(Errno::EPERM);
    }
    let next = with_queues(|queues| queues.take(key, 1, u32::MAX));
    let value = match next.first() {
        Some(waiter) if waiter.pi_tid != 0 => {
            waiter.pi_tid | if waiters_of(key, 1) > 0 { FUTEX_WAITERS } else { 0 }
        }
        _ => 0,
    };
    let result = update_word(&mm, va, |_| Some(value));
    finish(&next);
    result.map(|_| ())
}

// ---- robust lists ----

/// The longest robust list that is walked (Linux's ROBUST_LIST_LIMIT).
const ROBUST_LIST_LIMIT: usize = 2048;
/// Length of struct robust_list_head in bytes.
pub const ROBUST_HEAD_BYTES: usize = 24;

/// At a thread's end: marks every robust lock that it held as abandoned, and wakes one waiter of
/// each (get_robust_list(2)).
pub fn exit_robust_list(thread: &Arc<Thread>) {
    let (head, length) = core::mem::take(&mut thread.attrs.lock().robust_list);
    if head.0 != 0 && length == ROBUST_HEAD_BYTES {
        // A list that cannot be read ends where it cannot be read, as on Linux.
        let _ = walk_robust_list(thread, head);
    }
}

fn walk_robust_list(thread: &Arc<Thread>, head: Va) -> Result {
    const PI: u64 = 1;
    let mm = thread.mm();
    let at = |base: u64, offset: u64| Va(base.wrapping_add(offset));
    let offset = mm.read::<u64>(at(head.0, 8))?;
    let pending = mm.read::<u64>(at(head.0, 16))?;
    let mut entry = mm.read::<u64>(head)?;
    for _ in 0..ROBUST_LIST_LIMIT {
        if entry & !PI == head.0 {
            break;
        }
        // Before the lock is given up: its new owner may reuse the memory.
        let next = mm.read::<u64>(Va(entry & !PI));
        if entry & !PI != pending & !PI {
            abandon(thread, &mm, at(entry & !PI, offset), entry & PI != 0, false)?;
        }
        entry = next?;
    }
    if pending & !PI != 0 {
        abandon(thread, &mm, at(pending & !PI, offset), pending & PI != 0, true)?;
    }
    Ok(())
}

fn abandon(
    thread: &Thread,
    mm: &Arc<AddressSpace>,
    va: Va,
    is_pi: bool,
    is_pending: bool,
) -> Result {
    let old = mm.read::<u32>(va)?;
    // It died between setting the pending entry and the lock word: whoever waits must not wait for
    // ever.
    if is_pending && !is_pi && old == 0 {
        wake_at(mm, va, 1);
        return Ok(());
    }
    let tid = thread.number_of(thread.tid());
    if old & FUTEX_TID_MASK != tid {
        return Ok(());
    }
    let old = update_word(mm, va, |old| {
        (old & FUTEX_TID_MASK == tid).then_some((old & FUTEX_WAITERS) | FUTEX_OWNER_DIED)
    })?;
    if old & FUTEX_WAITERS != 0 {
        wake_at(mm, va, 1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(waiter: Arc<Waiter>) -> Queued {
        Queued::new(waiter)
    }

    fn waiter(key: Key, bitset: u32) -> Arc<Waiter> {
        Waiter::new(key, bitset, 0, 0, Arc::new(Signal::default()))
    }

    #[test]
    fn wakes_in_order_and_by_bitset() {
        let key = Key::Private(1, 0x1000);
        let all: Vec<Queued> =
            [1, 2, 1, u32::MAX].iter().map(|b| queued(waiter(key, *b))).collect();
        let woken = |all: &[Queued]| all.iter().map(|q| q.0.is_woken()).collect::<Vec<_>>();
        assert_eq!(wake(key, 1, 2), 1);
        assert_eq!(woken(&all), [false, true, false, false]);
        assert_eq!(wake(key, 2, 1), 2);
        assert_eq!(woken(&all), [true, true, true, false]);
        assert_eq!(wake(Key::Private(2, 0x1000), 9, u32::MAX), 0);
        assert_eq!(wake(key, 9, u32::MAX), 1);
        assert_eq!(wake(key, 9, u32::MAX), 0);
    }

    #[test]
    fn requeued_waiters_are_woken_where_they_went() {
        let (from, to) = (Key::Private(3, 0), Key::Shared(3, 8));
        let all: Vec<Queued> = (0..4).map(|_| queued(waiter(from, u32::MAX))).collect();
        assert_eq!(requeue(from, to, 1, 2), (1, 2));
        assert!(all[0].0.is_woken());
        assert_eq!(wake(to, 1, u32::MAX), 1);
        assert!(all[1].0.is_woken() && !all[2].0.is_woken());
        drop(all);
        assert_eq!(waiters_of(from, 9) + waiters_of(to, 9), 0);
    }

    #[test]
    fn requeue_to_itself_moves_nobody() {
        let key = Key::Private(4, 0);
        let _all: Vec<Queued> = (0..3).map(|_| queued(waiter(key, u32::MAX))).collect();
        assert_eq!(requeue(key, key, 1, 9), (1, 2));
        assert_eq!((waiters_of(key, 9), waiters_of(key, 1)), (2, 1));
    }

    #[test]
    fn a_waiter_that_gives_up_leaves_no_queue() {
        let key = Key::Private(5, 0);
        drop(queued(waiter(key, 1)));
        assert_eq!(waiters_of(key, 9), 0);
        // It leaves from where it was moved to, and nobody else does.
        let to = Key::Private(5, 4);
        let mut all: Vec<Queued> = (0..3).map(|_| queued(waiter(key, 1))).collect();
        assert_eq!(requeue(key, to, 0, 2), (0, 2));
        drop(all.remove(0));
        assert_eq!((waiters_of(key, 9), waiters_of(to, 9)), (1, 1));
        assert_eq!(wake(to, 9, 1), 1);
        assert!(all[0].0.is_woken() && !all[1].0.is_woken());
    }
}
