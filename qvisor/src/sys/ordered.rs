//! Locks, each with its place in one order: whoever holds one takes only those that come later in
//! [`place`]. So no threads can wait for each other in a circle. Builds with debug assertions check
//! it at run time, with each lock that is taken and not only where it goes wrong, and panic; in
//! others these are the locks of the standard library, without a byte or an instruction more.
//!
//! A lock whose holder panicked is taken as it is: what it guards is whole between any two
//! statements that can panic, or the process ends anyway.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, WaitTimeoutResult};
use std::time::Duration;

/// A lock's place in the order.
pub trait Place {
    /// Its number: the smaller is taken first.
    const NUMBER: u32;
}

macro_rules! order {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// The order, from the outermost lock to the innermost.
        pub mod place {
            enum Number { $($name),+ }
            $(
                $(#[doc = $doc])+
                #[derive(Debug)]
                pub enum $name {}

                impl super::Place for $name {
                    const NUMBER: u32 = Number::$name as u32;
                }
            )+

            /// Their names, by number.
            #[cfg(any(debug_assertions, test))]
            pub(super) const NAMES: &[&str] = &[$(stringify!($name)),+];
        }
    };
}

order! {
    /// The guest kernel: its own lock is taken when an event is delivered, with none of the others
    /// held, and whoever makes a host call or an operation of the platform has it.
    Kernel,
    /// `process`: making a zygote, for which this process' memory changes for a moment.
    ZygoteStart,
    /// `process`: finishing the zygote.
    ZygoteFinish,
    /// `process`: what maps the zygote's user ids.
    ZygoteIds,
    /// `process`: the platform itself, in an operation of the kernel's.
    Platform,
    /// `process`: the last places for tasks, from their being promised, or given up, to their use.
    Places,
    /// `process`: whose turn it is to have a stub made.
    ZygoteTurns,
    /// `process`: all address spaces, by number.
    Spaces,
    /// `process`: one address space. Nobody has two.
    Space,
    /// `process`: the numbers of files among the stubs' descriptors.
    StubFiles,
    /// `process`: what the zygote was told to close.
    StubCloses,
    /// `process`: kicks to look after.
    Kicks,
    /// `process`: who looks for fast calls.
    Pollers,
    /// `process`: a space that its receiver has lent.
    Loan,
    /// `kvm`: how many vCPUs have started.
    Vcpus,
    /// `kvm`: the memory slots.
    MemorySlots,
    /// `kvm`: the queue of host calls.
    CallQueue,
    /// `kvm`: the queue of events.
    EventQueue,
    /// `kvm`: the vCPUs' statistics.
    VcpuStats,
    /// Control requests on their way into the mailbox.
    MailboxLine,
    /// Who gets which answer to a control request.
    MailboxTargets,
    /// Processes that nobody has asked for yet.
    Unclaimed,
    /// Processes that nobody wants.
    Unwanted,
    /// What is looked for in the container's output.
    Output,
    /// The guest's handles of host objects.
    Handles,
    /// The record locks of one host object. Nobody has two objects'.
    Records,
    /// Operations that wait for a disk.
    DiskWork,
    /// Waits for a lock on a file.
    LockWaits,
    /// Calls that may block.
    Bounded,
    /// Sockets with names on the host.
    BoundSockets,
    /// The windows of guest memory.
    Windows,
    /// Where the next wake is noted.
    WakeNote,
    /// The place in the line of those who give memory back.
    PressureTicket,
    /// Events that the loop has yet to deliver.
    PendingEvents,
    /// How many look at what the guest watches.
    Lookers,
    /// The store of what is swapped out.
    Store,
    /// Files that are kept for stores.
    SpareFiles,
    /// How much may be logged.
    LogBudget,
    /// The log file. A message may be logged anywhere, so nothing is below.
    LogFile,
}

/// Which places this thread holds, checked.
#[cfg(debug_assertions)]
mod held {
    use std::cell::Cell;

    use super::Place;
    use super::place::{Kernel, NAMES};

    const _: () = assert!(NAMES.len() <= 64);

    thread_local! {
        static HELD: Cell<u64> = const { Cell::new(0) };
    }

    /// One place, until it is dropped.
    pub(super) struct Held(u32);

    fn names(held: u64) -> String {
        let held = (0..NAMES.len()).filter(|at| held >> at & 1 == 1);
        held.map(|at| NAMES[at]).collect::<Vec<_>>().join(", ")
    }

    #[track_caller]
    pub(super) fn take(number: u32) -> Held {
        let held = HELD.get();
        assert!(
            held >> number == 0,
            "lock order: {} is taken by a thread that holds {}",
            NAMES[number as usize],
            names(held)
        );
        HELD.set(held | 1 << number);
        Held(number)
    }

    impl Held {
        /// Nothing else is held by a thread that waits: it would keep others from waking it. Who
        /// waits in the kernel does so for some microseconds at most, and gets on without.
        #[track_caller]
        pub(super) fn check_wait(&self) {
            let others = HELD.get() & !(1 << self.0 | 1 << Kernel::NUMBER);
            let own = NAMES[self.0 as usize];
            assert!(others == 0, "lock order: a wait with {own} also holds {}", names(others));
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.set(HELD.get() & !(1 << self.0));
        }
    }
}

#[cfg(not(debug_assertions))]
mod held {
    pub(super) struct Held;

    pub(super) fn take(_: u32) -> Held {
        Held
    }

    impl Held {
        pub(super) fn check_wait(&self) {}
    }
}

/// The guest kernel's place, as long as this lives.
pub struct InKernel {
    _held: held::Held,
}

/// This thread enters the guest kernel: it holds no lock, and is not there already.
#[track_caller]
pub fn enter_kernel() -> InKernel {
    InKernel { _held: held::take(place::Kernel::NUMBER) }
}

/// [`std::sync::Mutex`] with a place.
pub struct Mutex<T, P>(std::sync::Mutex<T>, PhantomData<fn() -> P>);

/// What [`Mutex::lock`] gives.
pub struct MutexGuard<'a, T> {
    // Before `held`, so it is free by the time that it counts as free.
    inner: std::sync::MutexGuard<'a, T>,
    held: held::Held,
}

impl<T, P: Place> Mutex<T, P> {
    /// An unlocked one.
    pub const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value), PhantomData)
    }

    /// Takes it.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = held::take(P::NUMBER);
        MutexGuard { inner: self.0.lock().unwrap_or_else(PoisonError::into_inner), held }
    }

    /// What it guards, for who has the mutex itself.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Default, P: Place> Default for Mutex<T, P> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug, P> fmt::Debug for Mutex<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// [`std::sync::Condvar`] of such a mutex. Whoever waits holds no other lock.
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// Nobody waits.
    pub const fn new() -> Self {
        Condvar(std::sync::Condvar::new())
    }

    /// Wakes one up.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all up.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits.
    #[track_caller]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let MutexGuard { inner, held } = guard;
        held.check_wait();
        let inner = self.0.wait(inner).unwrap_or_else(PoisonError::into_inner);
        MutexGuard { inner, held }
    }

    /// Waits as long as `condition` holds.
    #[track_caller]
    pub fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        while condition(&mut guard) {
            guard = self.wait(guard);
        }
        guard
    }

    /// Waits for so long at most.
    #[track_caller]
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        let MutexGuard { inner, held } = guard;
        held.check_wait();
        let (inner, end) =
            self.0.wait_timeout(inner, limit).unwrap_or_else(PoisonError::into_inner);
        (MutexGuard { inner, held }, end)
    }
}

/// [`std::sync::RwLock`] with a place. Nobody reads it twice at a time: a writer in between would
/// stop both.
pub struct RwLock<T, P>(std::sync::RwLock<T>, PhantomData<fn() -> P>);

/// What [`RwLock::read`] and [`RwLock::write`] give.
pub struct RwLockGuard<G> {
    inner: G,
    _held: held::Held,
}

impl<T, P: Place> RwLock<T, P> {
    /// An unlocked one.
    pub const fn new(value: T) -> Self {
        RwLock(std::sync::RwLock::new(value), PhantomData)
    }

    /// Takes it beside other readers.
    #[track_caller]
    pub fn read(&self) -> RwLockGuard<std::sync::RwLockReadGuard<'_, T>> {
        let _held = held::take(P::NUMBER);
        RwLockGuard { inner: self.0.read().unwrap_or_else(PoisonError::into_inner), _held }
    }

    /// Takes it alone.
    #[track_caller]
    pub fn write(&self) -> RwLockGuard<std::sync::RwLockWriteGuard<'_, T>> {
        let _held = held::take(P::NUMBER);
        RwLockGuard { inner: self.0.write().unwrap_or_else(PoisonError::into_inner), _held }
    }
}

impl<T: Default, P: Place> Default for RwLock<T, P> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug, P> fmt::Debug for RwLock<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<G: Deref> Deref for RwLockGuard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for RwLockGuard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// What `f` panics with.
    fn panic_of(f: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("nothing was found");
        panic.downcast_ref::<String>().expect("a message").clone()
    }

    #[test]
    fn the_written_order_is_fine_and_locks_may_be_given_up_in_any() {
        let spaces = RwLock::<_, place::Spaces>::new(1);
        let space = Mutex::<_, place::Space>::new(2);
        for _ in 0..2 {
            let (outer, inner) = (spaces.read(), space.lock());
            assert_eq!((*outer, *inner), (1, 2));
            drop(outer);
            drop(inner);
            drop(enter_kernel());
        }
    }

    #[test]
    fn a_wrong_order_is_found_though_nobody_else_is_there() {
        let spaces = RwLock::<_, place::Spaces>::new(());
        let space = Mutex::<_, place::Space>::new(());
        let found = panic_of(|| {
            let _inner = space.lock();
            spaces.read();
        });
        assert_eq!(found, "lock order: Spaces is taken by a thread that holds Space");
        // It was given up on the way out.
        drop(spaces.write());
    }

    #[test]
    fn two_locks_of_one_place_are_found() {
        let (one, other) = (Mutex::<_, place::Space>::new(()), Mutex::<_, place::Space>::new(()));
        let found = panic_of(|| {
            let _one = one.lock();
            other.lock();
        });
        assert_eq!(found, "lock order: Space is taken by a thread that holds Space");
        let files = RwLock::<_, place::Handles>::new(());
        let found = panic_of(|| {
            let _first = files.read();
            files.read();
        });
        assert_eq!(found, "lock order: Handles is taken by a thread that holds Handles");
    }

    #[test]
    fn the_kernel_is_not_entered_twice_and_not_with_a_lock() {
        let space = Mutex::<_, place::Space>::new(());
        let found = panic_of(|| {
            let _held = space.lock();
            drop(enter_kernel());
        });
        assert_eq!(found, "lock order: Kernel is taken by a thread that holds Space");
        let found = panic_of(|| {
            let _kernel = enter_kernel();
            drop(space.lock());
            enter_kernel();
        });
        assert_eq!(found, "lock order: Kernel is taken by a thread that holds Kernel");
    }

    #[test]
    fn nobody_waits_with_another_lock() {
        let (outer, inner) = (Mutex::<_, place::Space>::new(()), Mutex::<_, place::Loan>::new(()));
        let condition = Condvar::new();
        let found = panic_of(|| {
            let _outer = outer.lock();
            drop(condition.wait_timeout(inner.lock(), Duration::from_millis(1)));
        });
        assert_eq!(found, "lock order: a wait with Loan also holds Space");
        let (guard, end) = condition.wait_timeout(inner.lock(), Duration::from_millis(1));
        drop(guard);
        assert!(end.timed_out());
        drop(enter_kernel());
    }
}
