//! The kernel lock: kernel code runs on one CPU at a time. Who had to sleep for it, and for how
//! long, is counted, but not on `kvm`: there whoever reads the clock may need the lock for that.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use linux_raw_sys::general::CLOCK_MONOTONIC;
use qlib::control::LockWaits;
use qlib::kernel_lock::KernelLock;

use super::{lock_wait, lock_wake, now_ns};

static KERNEL_LOCK: KernelLock = KernelLock::new();

/// What somebody wants the kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A system call.
    Call,
    /// A page fault.
    Fault,
    /// What else a thread stops for: exceptions, kicks, operations that are done.
    Trap,
    /// Something outside is ready.
    Outside,
    /// The timer.
    Timer,
    /// A control request.
    Control,
    /// An address space is gone.
    Space,
}

impl Wanted {
    /// All of them, in order.
    const ALL: [Wanted; 7] = {
        use Wanted::*;
        [Call, Fault, Trap, Outside, Timer, Control, Space]
    };

    fn name(self) -> &'static str {
        match self {
            Wanted::Call => "call",
            Wanted::Fault => "fault",
            Wanted::Trap => "trap",
            Wanted::Outside => "outside",
            Wanted::Timer => "timer",
            Wanted::Control => "control",
            Wanted::Space => "space",
        }
    }
}

/// How those who wanted the kernel for one thing waited for it. Changed under it only.
struct Waits {
    total_ns: AtomicU64,
    longest_ns: AtomicU64,
    histogram: [AtomicU64; LockWaits::CLASSES],
}

static WAITS: [Waits; Wanted::ALL.len()] = [const {
    Waits {
        total_ns: AtomicU64::new(0),
        longest_ns: AtomicU64::new(0),
        histogram: [const { AtomicU64::new(0) }; LockWaits::CLASSES],
    }
}; Wanted::ALL.len()];

/// How often it was taken.
static TURNS: AtomicU64 = AtomicU64::new(0);

/// Which turn of the kernel this is: it is another one after each time that user code has run, or
/// others have had the kernel. Under it.
pub fn turn() -> u64 {
    TURNS.load(Relaxed)
}

/// Says on how many processors the kernel runs.
pub(super) fn begin(cpus: u32) {
    /// Looks, some 20 to 50 µs: as long as it takes to sleep and to be woken up on another
    /// processor of the host.
    const LONG: u32 = 1000;
    if cpus == 1 {
        // Nobody gives it up while another one looks.
        KERNEL_LOCK.spin_for(0);
    } else if !super::is_kvm() {
        KERNEL_LOCK.spin_for(LONG);
    }
}

/// Takes the kernel lock.
pub fn lock(wanted: Wanted) {
    timed(wanted, |sleep| KERNEL_LOCK.lock(sleep));
}

/// Takes it where the clock may not be read without it.
pub fn lock_untimed() {
    KERNEL_LOCK.lock(lock_wait);
    begin_turn();
}

/// Takes it before all who have come by [`lock`].
pub fn lock_urgently(wanted: Wanted) {
    timed(wanted, |sleep| KERNEL_LOCK.lock_urgently(sleep));
}

fn begin_turn() {
    TURNS.store(TURNS.load(Relaxed) + 1, Relaxed);
}

type Sleep<'a> = &'a dyn Fn(&core::sync::atomic::AtomicU32, u32);

/// Notes how long `take` took, if it slept.
fn timed(wanted: Wanted, take: impl FnOnce(Sleep<'_>)) {
    let since_ns = Cell::new(0);
    take(&|word, expected| {
        if since_ns.get() == 0 {
            since_ns.set(now_ns(CLOCK_MONOTONIC));
        }
        lock_wait(word, expected);
    });
    begin_turn();
    if since_ns.get() != 0 {
        let ns = now_ns(CLOCK_MONOTONIC).saturating_sub(since_ns.get());
        let waits = &WAITS[wanted as usize];
        waits.total_ns.fetch_add(ns, Relaxed);
        waits.longest_ns.fetch_max(ns, Relaxed);
        waits.histogram[LockWaits::class_of(ns)].fetch_add(1, Relaxed);
    }
}

/// Gives it up. No object's lock is held then.
#[track_caller]
pub fn unlock() {
    super::cell::assert_none_is_held();
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

/// Who has waited for it so far, and how long: those who did at all.
pub fn waits() -> alloc::vec::Vec<LockWaits> {
    let waits = |wanted: Wanted| {
        let waits = &WAITS[wanted as usize];
        LockWaits {
            wanted_for: wanted.name().into(),
            total_ns: waits.total_ns.load(Relaxed),
            longest_ns: waits.longest_ns.load(Relaxed),
            histogram: waits.histogram.each_ref().map(|count| count.load(Relaxed)),
        }
    };
    Wanted::ALL.map(waits).into_iter().filter(|waits| waits.longest_ns > 0).collect()
}
