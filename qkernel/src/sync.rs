//! Locks of the guest kernel.
//!
//! Kernel code is serialized by one *kernel lock* ([`qlib::kernel_lock`]), taken in
//! [`crate::arch::lock`] for the length of a dispatch; user code runs in parallel. So an object's
//! [`Mutex`] can never be contended, only re-entered by mistake, and a re-entry is a bug in the
//! kernel that is reported at once instead of hanging. Guards are not `Send`: holding one across an
//! `await` does not compile.

pub use crate::arch::cell::{Once, RawLock};

/// Guards one kernel object. See the module's documentation.
pub type Mutex<T> = lock_api::Mutex<RawLock, T>;
/// A new [`Mutex`], also for statics.
pub const fn mutex<T>(value: T) -> Mutex<T> {
    Mutex::const_new(RawLock::new(), value)
}

/// What [`Mutex::lock`] gives.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawLock, T>;
