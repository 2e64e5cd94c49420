//! Locks of the guest kernel, and counts of what is under way.
//!
//! Kernel code is serialized by one *kernel lock* ([`qlib::kernel_lock`]), taken in
//! [`crate::arch::lock`] for the length of a dispatch; user code runs in parallel. So an object's
//! [`Mutex`] can never be contended, only re-entered by mistake, and a re-entry is a bug in the
//! kernel that is reported at once instead of hanging. Guards are not `Send`: holding one across an
//! `await` does not compile.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

pub use crate::arch::cell::{Once, RawLock};

/// Guards one kernel object. See the module's documentation.
pub type Mutex<T> = lock_api::Mutex<RawLock, T>;
/// A new [`Mutex`], also for statics.
pub const fn mutex<T>(value: T) -> Mutex<T> {
    Mutex::const_new(RawLock::new(), value)
}

/// What [`Mutex::lock`] gives.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawLock, T>;

/// How many of something are under way.
#[derive(Debug)]
pub struct Count(AtomicU32);

impl Count {
    /// None.
    pub const fn none() -> Count {
        Count(AtomicU32::new(0))
    }

    /// One more, as long as the result lives.
    pub fn begin(&'static self) -> Counted {
        self.0.fetch_add(1, Relaxed);
        Counted(self)
    }

    /// True if there is one.
    pub fn is_any(&self) -> bool {
        self.0.load(Relaxed) > 0
    }
}

/// One that is counted.
#[derive(Debug)]
pub struct Counted(&'static Count);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}
