//! What locks and once-set values stand on. See [`crate::sync`] for their use.

use alloc::boxed::Box;
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The raw form of [`crate::sync::Mutex`].
#[derive(Debug, Default)]
pub struct RawLock(AtomicBool);

impl RawLock {
    /// An unlocked lock.
    pub const fn new() -> Self {
        RawLock(AtomicBool::new(false))
    }

    fn acquire(&self) -> bool {
        !self.0.swap(true, Ordering::Acquire)
    }
}

// SAFETY: `acquire` succeeds for one holder at a time, until `unlock`.
unsafe impl lock_api::RawMutex for RawLock {
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: Self = RawLock::new();
    type GuardMarker = lock_api::GuardNoSend;

    #[track_caller]
    fn lock(&self) {
        if self.acquire() {
            return;
        }
        // Host tests have no kernel lock: there, other threads may hold it for a moment.
        #[cfg(test)]
        while !self.acquire() {
            std::thread::sleep(std::time::Duration::from_micros(1));
        }
        #[cfg(not(test))]
        panic!("a kernel object's lock was taken twice");
    }

    fn try_lock(&self) -> bool {
        self.acquire()
    }

    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A value that is set once, at boot. Reading it takes no lock: it is read outside of the kernel
/// lock too.
pub struct Once<T: 'static>(AtomicPtr<T>, PhantomData<&'static T>);

impl<T: Send + Sync + 'static> Once<T> {
    /// Not set yet.
    pub const fn new() -> Self {
        Once(AtomicPtr::new(ptr::null_mut()), PhantomData)
    }

    /// Sets it; the first value stays.
    pub fn set(&self, value: T) -> &'static T {
        let fresh = Box::into_raw(Box::new(value));
        match self.0.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: a leaked box, never freed or changed from now on.
            Ok(_) => unsafe { &*fresh },
            Err(first) => {
                // SAFETY: `fresh` was never shown to anybody.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: as above, of whoever came first.
                unsafe { &*first }
            }
        }
    }

    /// The value; if it was not set, what `make` makes.
    pub fn get_or_set(&self, make: impl FnOnce() -> T) -> &'static T {
        self.try_get().unwrap_or_else(|| self.set(make()))
    }

    /// The value, if it was set.
    pub fn try_get(&self) -> Option<&'static T> {
        // SAFETY: null, or a leaked box that is never freed or changed.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// The value. Panics before it was set: a bug in the boot order.
    pub fn get(&self) -> &'static T {
        self.try_get().expect("used before boot set it")
    }
}

impl<T: Send + Sync + 'static> Default for Once<T> {
    fn default() -> Self {
        Self::new()
    }
}
