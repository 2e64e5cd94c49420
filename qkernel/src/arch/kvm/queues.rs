//! Threads that are ready, in a queue for each vCPU.
//!
//! A thread waits where it was made ready, for who has just spoken to it ran there, or, if it is
//! bound to other vCPUs, in the queue of one of those. A vCPU takes from its own queue; from
//! another's what has waited a slice longer there, or anything when its own is empty. All of it
//! under the kernel lock, but for [`Queues::have_some`].

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::sync::{Mutex, mutex};

/// Most queues: sets of vCPUs have a bit for each.
const MOST: usize = 64;

/// What the queues know of a thread.
pub struct Place {
    /// The vCPUs that it may run on, a bit each; all set: any.
    cpus: Cell<u64>,
    /// The queue that it waits in, or has waited in last.
    queue: Cell<usize>,
    /// Since when it waits: a time stamp.
    since_tsc: Cell<u64>,
}

impl Place {
    /// Of a thread that may run anywhere.
    pub const fn anywhere() -> Place {
        Place { cpus: Cell::new(u64::MAX), queue: Cell::new(0), since_tsc: Cell::new(0) }
    }

    /// It may run on `cpus` only from now on. It does not wait.
    pub fn bind(&self, cpus: u64) {
        self.cpus.set(cpus);
    }

    /// True if it may run on vCPU `index`.
    pub fn may_be(&self, index: u32) -> bool {
        let bit = 1u64.checked_shl(index).unwrap_or(0);
        self.cpus.get() == u64::MAX || self.cpus.get() & bit != 0
    }

    /// Since when it waits: a time stamp.
    pub fn since_tsc(&self) -> u64 {
        self.since_tsc.get()
    }
}

/// What can wait in them.
pub trait Waits {
    /// Where it waits.
    fn place(&self) -> &Place;
}

/// The queues of all vCPUs.
pub struct Queues<T: 'static> {
    /// Up to the last one that was ever used.
    queues: Mutex<Vec<VecDeque<Arc<T>>>>,
    /// How many wait that any vCPU may take.
    free: AtomicU32,
    /// How many wait in each queue that are bound.
    bound: [AtomicU32; MOST],
}

impl<T: Waits> Queues<T> {
    /// Empty ones.
    pub const fn empty() -> Self {
        Queues {
            queues: mutex(Vec::new()),
            free: AtomicU32::new(0),
            bound: [const { AtomicU32::new(0) }; MOST],
        }
    }

    /// The count that a waiting thread is part of.
    fn count_of(&self, place: &Place) -> &AtomicU32 {
        if place.cpus.get() == u64::MAX { &self.free } else { &self.bound[place.queue.get()] }
    }

    /// True if there may be one for vCPU `index`. Takes no lock.
    pub fn have_some(&self, index: u32) -> bool {
        let bound = &self.bound[index as usize % MOST];
        self.free.load(Ordering::SeqCst) > 0 || bound.load(Ordering::SeqCst) > 0
    }

    /// Has a thread wait in the queue of vCPU `index` from `now_tsc` on, before all others if
    /// `is_first`.
    pub fn put(&self, thread: Arc<T>, index: u32, now_tsc: u64, is_first: bool) {
        let queue = index as usize % MOST;
        let place = thread.place();
        place.queue.set(queue);
        place.since_tsc.set(now_tsc);
        self.count_of(place).fetch_add(1, Ordering::SeqCst);
        let mut queues = self.queues.lock();
        while queues.len() <= queue {
            queues.push(VecDeque::new());
        }
        let queue = &mut queues[queue];
        if is_first { queue.push_front(thread) } else { queue.push_back(thread) }
    }

    /// Takes out the thread that vCPU `index` is to run next. A slice has `slice_ticks`.
    pub fn take(&self, index: u32, slice_ticks: u64) -> Option<Arc<T>> {
        let own = index as usize % MOST;
        let mut queues = self.queues.lock();
        let candidate = |(at, queue): (usize, &VecDeque<Arc<T>>)| {
            let nth = queue.iter().position(|thread| thread.place().may_be(index))?;
            let patience = if at == own { slice_ticks } else { 0 };
            Some((queue[nth].place().since_tsc().saturating_sub(patience), at, nth))
        };
        let (_, at, nth) = queues.iter().enumerate().filter_map(candidate).min()?;
        let thread = queues[at].remove(nth)?;
        self.count_of(thread.place()).fetch_sub(1, Ordering::SeqCst);
        Some(thread)
    }

    /// Takes a thread out, if it waits.
    pub fn remove(&self, thread: &Arc<T>) {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(thread.place().queue.get()) else { return };
        if let Some(nth) = queue.iter().position(|other| Arc::ptr_eq(other, thread)) {
            queue.remove(nth);
            self.count_of(thread.place()).fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// The thread that is first in the queue of vCPU `index`.
    pub fn first(&self, index: u32) -> Option<Arc<T>> {
        self.queues.lock().get(index as usize % MOST)?.front().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thread(char, Place);

    impl Waits for Thread {
        fn place(&self) -> &Place {
            &self.1
        }
    }

    #[allow(clippy::arc_with_non_send_sync)]
    fn thread(name: char) -> Arc<Thread> {
        Arc::new(Thread(name, Place::anywhere()))
    }

    fn bound(name: char, cpus: u64) -> Arc<Thread> {
        let thread = thread(name);
        thread.1.bind(cpus);
        thread
    }

    fn take(queues: &Queues<Thread>, index: u32) -> Option<char> {
        queues.take(index, 100).map(|thread| thread.0)
    }

    #[test]
    fn each_takes_its_own_and_then_what_others_have() {
        let queues = Queues::empty();
        queues.put(thread('a'), 0, 10, false);
        queues.put(thread('b'), 0, 20, false);
        queues.put(thread('c'), 1, 30, false);
        queues.put(thread('d'), 1, 40, true);
        assert!(queues.have_some(0) && queues.have_some(5));
        assert_eq!(take(&queues, 1), Some('d'));
        assert_eq!(take(&queues, 1), Some('c'));
        assert_eq!(take(&queues, 1), Some('a'));
        assert_eq!(take(&queues, 0), Some('b'));
        assert_eq!(take(&queues, 0), None);
        assert!(!queues.have_some(0));
    }

    #[test]
    fn who_has_waited_a_slice_longer_elsewhere_is_next() {
        let queues = Queues::empty();
        queues.put(thread('a'), 0, 10, false);
        queues.put(thread('b'), 1, 109, false);
        queues.put(thread('c'), 1, 111, false);
        assert_eq!(take(&queues, 1), Some('b'));
        assert_eq!(take(&queues, 1), Some('a'));
        assert_eq!(take(&queues, 1), Some('c'));
    }

    #[test]
    fn who_is_bound_is_taken_where_it_may_run_only() {
        let queues = Queues::empty();
        let [both, second] = [bound('a', 0b11), bound('b', 0b10)];
        queues.put(both.clone(), 0, 10, false);
        queues.put(second.clone(), 1, 20, false);
        assert!(queues.have_some(0) && queues.have_some(1) && !queues.have_some(2));
        assert_eq!(take(&queues, 2), None);
        queues.remove(&both);
        assert!(!queues.have_some(0) && queues.have_some(1));
        assert_eq!(take(&queues, 0), None);
        queues.put(both, 0, 30, false);
        assert_eq!(take(&queues, 1), Some('b'));
        assert_eq!(take(&queues, 1), Some('a'));
        // Not there any more: nothing changes.
        queues.remove(&second);
        assert!(!queues.have_some(0) && !queues.have_some(1));
    }
}
