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
#[derive(Debug, Default)]
pub struct KernelLock {
    /// 0 free, 1 held, 2 held and somebody sleeps.
    word: AtomicU32,
}

impl KernelLock {
    /// An unlocked lock.
    pub const fn new() -> Self {
        KernelLock { word: AtomicU32::new(0) }
    }

    /// Takes the lock; `wait(word, expected)` sleeps while the word equals `expected`.
    pub fn lock(&self, wait: impl Fn(&AtomicU32, u32)) {
        for _ in 0..200 {
            if self.word.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            core::hint::spin_loop();
        }
        while self.word.swap(2, Ordering::Acquire) != 0 {
            wait(&self.word, 2);
        }
    }

    /// Gives it up; `wake(word)` wakes one sleeper.
    pub fn unlock(&self, wake: impl Fn(&AtomicU32)) {
        if self.word.swap(0, Ordering::Release) == 2 {
            wake(&self.word);
        }
    }
}
