//! Locks of the guest kernel.
//!
//! Kernel code is serialized by one *kernel lock*, taken in [`crate::arch::entry`] for the length of a dispatch; user
//! code runs in parallel. So an object's [`Mutex`] can never be contended, only re-entered by mistake, and a re-entry is a bug in the
//! kernel that is reported at once instead of hanging. Guards are not `Send`: holding one across an `await` does not
//! compile.

use core::sync::atomic::{AtomicU32, Ordering};

pub use crate::arch::cell::{Once, RawLock};

/// Guards one kernel object. See the module's documentation.
pub type Mutex<T> = lock_api::Mutex<RawLock, T>;
/// A new [`Mutex`], also for statics.
pub const fn mutex<T>(value: T) -> Mutex<T> {
    Mutex::const_new(RawLock::new(), value)
}

/// What [`Mutex::lock`] gives.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawLock, T>;

/// The kernel lock: spins for a moment, then sleeps in the host (`kvm`: keeps spinning).
///
/// It is not fair: who runs takes it again before one who sleeps has woken up. That is fast, and means nothing to a program; but somebody
/// whom others wait for must not be one of hundreds. So there are *urgent* ones, to whom it is handed over, past everybody else.
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
}

impl KernelLock {
    /// An unlocked lock.
    pub const fn new() -> Self {
        KernelLock {
            word: AtomicU32::new(0),
            urgent: AtomicU32::new(0),
            handed: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
        }
    }

    /// Takes the lock; `wait(word, expected)` sleeps while the word equals `expected`.
    pub fn lock(&self, wait: impl Fn(&AtomicU32, u32)) {
        for _ in 0..200 {
            if self.word.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            core::hint::spin_loop();
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        while self.word.swap(2, Ordering::Acquire) != 0 {
            wait(&self.word, 2);
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes the lock next after the one who has it, or after others as urgent as this.
    pub fn lock_urgently(&self, wait: impl Fn(&AtomicU32, u32)) {
        if self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        // Either who gives it up sees this, or this one sees that it has been given up.
        self.urgent.fetch_add(1, Ordering::SeqCst);
        loop {
            // Somebody may sleep: what it is set to says so.
            let free = self.word.compare_exchange(0, 2, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            if free || self.handed.compare_exchange(1, 0, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                self.urgent.fetch_sub(1, Ordering::SeqCst);
                return;
            }
            wait(&self.handed, 0);
        }
    }

    /// Gives it up; `wake(word)` wakes one sleeper.
    pub fn unlock(&self, wake: impl Fn(&AtomicU32)) {
        while self.urgent.load(Ordering::SeqCst) == 0 {
            let was = self.word.swap(0, Ordering::SeqCst);
            let overlooked = self.urgent.load(Ordering::SeqCst) != 0;
            if !overlooked || self.word.compare_exchange(0, 2, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                // Whoever has taken it meanwhile will see the urgent one.
                if was == 2 {
                    wake(&self.word);
                }
                return;
            }
            // Held again. The urgent one may have had it in between, and be gone: so look anew.
        }
        // It stays held, so that nobody comes in between. Nobody but an urgent one can take it, and as long as it is held each of them waits.
        self.handed.store(1, Ordering::Release);
        wake(&self.handed);
    }

    /// Whether an urgent one waits. For the holder.
    pub fn is_wanted_urgently(&self) -> bool {
        self.urgent.load(Ordering::Relaxed) > 0
    }

    /// How many others wait, or are about to find that they need not. For the holder: each of them will hold it after this one.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
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
