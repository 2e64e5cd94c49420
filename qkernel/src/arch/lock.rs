//! The kernel lock: kernel code runs on one CPU at a time.

use qlib::kernel_lock::KernelLock;

use super::{lock_wait, lock_wake};

static KERNEL_LOCK: KernelLock = KernelLock::new();

/// Takes the kernel lock.
pub fn lock() {
    KERNEL_LOCK.lock(lock_wait);
}

/// Takes it before all who have come by [`lock`].
pub fn lock_urgently() {
    KERNEL_LOCK.lock_urgently(lock_wait);
}

/// Gives it up.
pub fn unlock() {
    KERNEL_LOCK.unlock(lock_wake);
}

/// How many wait for it.
pub fn waiting() -> u32 {
    KERNEL_LOCK.waiting()
}

/// True if an urgent event waits for it. Under it.
pub fn is_wanted_urgently() -> bool {
    KERNEL_LOCK.is_wanted_urgently()
}
