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
        let is_free = !self.0.swap(true, Ordering::Acquire);
        if cfg!(debug_assertions) && is_free {
            held::add(1);
        }
        is_free
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
        if cfg!(debug_assertions) {
            held::add(-1);
        }
        self.0.store(false, Ordering::Release);
    }
}

/// Panics in builds with debug assertions if any [`RawLock`] is held: by who gives the kernel lock
/// up, after which others take the same locks.
#[track_caller]
pub fn assert_none_is_held() {
    debug_assert!(held::count() == 0, "a kernel object's lock outlives the kernel lock");
}

/// How many locks are held, under the kernel lock.
#[cfg(not(test))]
mod held {
    use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

    static COUNT: AtomicI32 = AtomicI32::new(0);

    pub(super) fn add(n: i32) {
        COUNT.fetch_add(n, Relaxed);
    }

    pub(super) fn count() -> i32 {
        COUNT.load(Relaxed)
    }
}

/// The same of a thread: host tests have no kernel lock.
#[cfg(test)]
mod held {
    use core::cell::Cell;

    std::thread_local! {
        static COUNT: Cell<i32> = const { Cell::new(0) };
    }

    pub(super) fn add(n: i32) {
        COUNT.set(COUNT.get() + n);
    }

    pub(super) fn count() -> i32 {
        COUNT.get()
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

#[cfg(test)]
mod tests {
    use super::{RawLock, assert_none_is_held};

    type Mutex<T> = lock_api::Mutex<RawLock, T>;

    #[test]
    fn a_lock_given_up_in_time_is_fine() {
        let (one, other) = (Mutex::new(1), Mutex::new(2));
        let (first, second) = (one.lock(), other.lock());
        assert!(one.try_lock().is_none());
        drop(first);
        drop(second);
        assert_none_is_held();
    }

    #[test]
    #[cfg_attr(not(debug_assertions), ignore = "a check of builds with debug assertions")]
    #[should_panic = "a kernel object's lock outlives the kernel lock"]
    fn a_lock_that_outlives_the_kernel_lock_is_found() {
        let object = Mutex::new(());
        let _held = object.lock();
        assert_none_is_held();
    }
}
