//! The lock that serializes the guest kernel.

#[cfg(not(all(test, loom)))]
use core::{
    hint,
    sync::atomic::{AtomicU32, Ordering},
};
#[cfg(all(test, loom))]
use loom::{
    hint,
    sync::atomic::{AtomicU32, Ordering},
};

/// How often one looks before it sleeps, unless [told otherwise](KernelLock::spin_for).
const SPINS: u32 = if cfg!(loom) { 0 } else { 200 };

/// The kernel lock: one spins for a moment, the others sleep in the host.
///
/// It is not fair: who runs takes it again before one who sleeps has woken up. That is fast, and
/// means nothing to a program; but somebody whom others wait for must not be one of hundreds. So
/// there are *urgent* ones, to whom it is handed over, past everybody else.
#[derive(Debug, Default)]
pub struct KernelLock {
    /// 0 free, 1 held, 2 held and somebody sleeps who is not urgent.
    word: AtomicU32,
    /// Urgent ones that have yet to get it.
    urgent: AtomicU32,
    /// 1: it is held on behalf of an urgent one, who has only to notice.
    handed: AtomicU32,
    /// Those that are not urgent and had no luck at once.
    waiting: AtomicU32,
    /// 1: one of them looks for it, and need not be woken up.
    spinning: AtomicU32,
    /// How often it looks.
    spins: AtomicU32,
}

impl KernelLock {
    /// An unlocked lock.
    #[cfg(not(all(test, loom)))]
    pub const fn new() -> Self {
        KernelLock {
            word: AtomicU32::new(0),
            urgent: AtomicU32::new(0),
            handed: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            spinning: AtomicU32::new(0),
            spins: AtomicU32::new(SPINS),
        }
    }

    /// Takes the lock; `wait(word, expected)` sleeps while the word equals `expected`.
    pub fn lock(&self, wait: impl Fn(&AtomicU32, u32)) {
        if self.try_lock(1) {
            return;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if !self.spin(1) {
            // Others may sleep as well: whoever has slept says so.
            while self.word.swap(2, Ordering::Acquire) != 0 {
                wait(&self.word, 2);
                if self.spin(2) {
                    break;
                }
            }
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// From now on one looks so often before it sleeps.
    pub fn spin_for(&self, times: u32) {
        self.spins.store(times, Ordering::Relaxed);
    }

    /// `held`: what the word becomes.
    fn try_lock(&self, held: u32) -> bool {
        self.word.compare_exchange(0, held, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Looks for it to be free, if nobody else does. True if it is taken.
    fn spin(&self, held: u32) -> bool {
        let spins = self.spins.load(Ordering::Relaxed);
        if spins == 0 || self.spinning.swap(1, Ordering::Relaxed) != 0 {
            return false;
        }
        let taken = (0..spins).any(|_| {
            hint::spin_loop();
            self.word.load(Ordering::Relaxed) == 0 && self.try_lock(held)
        });
        self.spinning.store(0, Ordering::Relaxed);
        taken
    }

    /// Takes the lock next after the one who has it, or after others as urgent as this.
    pub fn lock_urgently(&self, wait: impl Fn(&AtomicU32, u32)) {
        if self.try_lock(1) {
            return;
        }
        // Either who gives it up sees this, or this one sees that it has been given up.
        self.urgent.fetch_add(1, Ordering::SeqCst);
        loop {
            // Somebody may sleep: what it is set to says so.
            let free = self.word.compare_exchange(0, 2, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            if free
                || self.handed.compare_exchange(1, 0, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                self.urgent.fetch_sub(1, Ordering::SeqCst);
                return;
            }
            wait(&self.handed, 0);
        }
    }

    /// Gives it up; `wake(word)` wakes one sleeper.
    pub fn unlock(&self, wake: impl Fn(&AtomicU32)) {
        while self.urgent_now() == 0 {
            let was = self.word.swap(0, Ordering::SeqCst);
            let overlooked = self.urgent_now() != 0;
            if !overlooked
                || self.word.compare_exchange(0, 2, Ordering::SeqCst, Ordering::SeqCst).is_err()
            {
                // Whoever has taken it meanwhile will see the urgent one.
                if was == 2 {
                    wake(&self.word);
                }
                return;
            }
            // Held again. The urgent one may have had it in between, and be gone: so look anew.
        }
        // It stays held, so that nobody comes in between. Nobody but an urgent one can take it, and
        // as long as it is held each of them waits.
        self.handed.store(1, Ordering::Release);
        wake(&self.handed);
    }

    /// How many urgent ones wait, in the one order of all sequentially consistent accesses. (Of
    /// those loom knows only the ones that also write.)
    fn urgent_now(&self) -> u32 {
        if cfg!(loom) {
            self.urgent.fetch_add(0, Ordering::SeqCst)
        } else {
            self.urgent.load(Ordering::SeqCst)
        }
    }

    /// True if an urgent one waits. For the holder.
    pub fn is_wanted_urgently(&self) -> bool {
        self.urgent.load(Ordering::Relaxed) > 0
    }

    /// How many others wait, or are about to find that they need not. For the holder: each of them
    /// will hold it after this one.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;

    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};
    use std::vec::Vec;

    use super::*;

    fn wait(word: &AtomicU32, expected: u32) {
        if word.load(Ordering::SeqCst) == expected {
            // As a futex that returns for no reason: nobody depends on being woken.
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Holds the lock for so long.
    fn hold(time: Duration) {
        let begin = Instant::now();
        while begin.elapsed() < time {
            core::hint::spin_loop();
        }
    }

    #[test]
    fn the_kernel_lock_is_held_by_one_at_a_time() {
        let lock = KernelLock::new();
        let (inside, count) = (AtomicU32::new(0), AtomicU64::new(0));
        std::thread::scope(|s| {
            for i in 0..6 {
                let (lock, inside, count) = (&lock, &inside, &count);
                s.spawn(move || {
                    for _ in 0..2000 {
                        if i < 3 {
                            lock.lock(wait)
                        } else {
                            lock.lock_urgently(wait)
                        }
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        // Not atomic on purpose.
                        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        lock.unlock(|_| ());
                    }
                });
            }
        });
        assert_eq!(count.load(Ordering::SeqCst), 12_000);
        assert_eq!((lock.waiting(), lock.is_wanted_urgently()), (0, false));
    }

    #[test]
    fn an_urgent_one_passes_those_who_come_again_and_again() {
        let lock = KernelLock::new();
        let stop = AtomicU32::new(0);
        let held = AtomicU64::new(0);
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    while stop.load(Ordering::SeqCst) == 0 {
                        lock.lock(wait);
                        held.fetch_add(1, Ordering::SeqCst);
                        hold(Duration::from_micros(500));
                        lock.unlock(|_| ());
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(20));
            let mut passed: Vec<u64> = Vec::new();
            for _ in 0..50 {
                let before = held.load(Ordering::SeqCst);
                lock.lock_urgently(wait);
                passed.push(held.load(Ordering::SeqCst) - before);
                lock.unlock(|_| ());
                hold(Duration::from_micros(200));
            }
            stop.store(1, Ordering::SeqCst);
            // At most the one who held it, and one who took it before the urgent one could say so.
            assert!(passed.iter().all(|n| *n <= 2), "{passed:?}");
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::{Arc, Condvar, Mutex};

    use super::*;

    /// The lock, and futexes as the host has them: who is not woken sleeps on.
    struct Kernel {
        lock: KernelLock,
        /// What it guards.
        count: Mutex<u32>,
        futex: Mutex<()>,
        /// Sleepers on `word`, and on `handed`.
        sleepers: [Condvar; 2],
    }

    impl Kernel {
        fn new() -> Arc<Self> {
            Arc::new(Kernel {
                lock: KernelLock::default(),
                count: Mutex::new(0),
                futex: Mutex::new(()),
                sleepers: [Condvar::new(), Condvar::new()],
            })
        }

        fn sleepers(&self, word: &AtomicU32) -> &Condvar {
            &self.sleepers[usize::from(core::ptr::eq(word, &self.lock.handed))]
        }

        fn wait(&self, word: &AtomicU32, expected: u32) {
            let guard = self.futex.lock().unwrap();
            if word.load(Ordering::SeqCst) == expected {
                drop(self.sleepers(word).wait(guard).unwrap());
            }
        }

        fn wake(&self, word: &AtomicU32) {
            let _guard = self.futex.lock().unwrap();
            self.sleepers(word).notify_one();
        }

        fn once(&self, urgent: bool) {
            if urgent {
                self.lock.lock_urgently(|word, expected| self.wait(word, expected));
            } else {
                self.lock.lock(|word, expected| self.wait(word, expected));
            }
            *self.count.try_lock().expect("two hold it at once") += 1;
            self.lock.unlock(|word| self.wake(word));
        }
    }

    /// Each of `urgent` threads takes the lock once, and looks for it so often before it sleeps;
    /// loom tells of one that sleeps for ever.
    fn each_gets_it(urgent: &'static [bool], spins: u32) {
        let mut model = loom::model::Builder::new();
        // Each may be interrupted so often where it need not wait: with more it takes minutes.
        model.preemption_bound = Some(3);
        model.check(move || {
            let kernel = Kernel::new();
            kernel.lock.spin_for(spins);
            let (last, others) = urgent.split_last().expect("somebody");
            let threads: Vec<_> = others
                .iter()
                .map(|urgent| {
                    let kernel = kernel.clone();
                    loom::thread::spawn(move || kernel.once(*urgent))
                })
                .collect();
            kernel.once(*last);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(*kernel.count.lock().unwrap(), urgent.len() as u32);
        });
    }

    #[test]
    fn loom_an_urgent_one_and_another() {
        each_gets_it(&[true, false], 0);
    }

    #[test]
    fn loom_two_urgent_ones() {
        each_gets_it(&[true, true], 0);
    }

    #[test]
    fn loom_an_urgent_one_between_two_others() {
        each_gets_it(&[true, false, false], 0);
    }

    #[test]
    fn loom_two_urgent_ones_and_another() {
        each_gets_it(&[true, true, false], 0);
    }

    #[test]
    fn loom_three_of_whom_one_looks() {
        each_gets_it(&[false, false, false], 1);
    }

    #[test]
    fn loom_an_urgent_one_beside_one_that_looks() {
        each_gets_it(&[true, false, false], 1);
    }
}
