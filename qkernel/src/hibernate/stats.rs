//! Counts of faults, swaps, deflates and wakes.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use qlib::PAGE_SIZE;
use qlib::control::{CountStats, MemoryStats, Stats};
use qlib::host::Op;

use super::history;
use super::inflate::Cause;
use crate::host::Call;
use crate::task::{oom, table};
use crate::{arch, mm};

macro_rules! counters {
    ($($name:ident)*) => {
        $(pub(super) static $name: AtomicU64 = AtomicU64::new(0);)*
    };
}

counters! {
    REAP_PAGES REAP_LEFT DEFLATES DEFLATES_FAILED DEFLATES_IDLE BY_SOCKET BY_DISK BY_SIGNAL BY_SIGCONT
    BY_EXEC BY_TIMER BY_UNFINISHED LAST_DEFLATE_NS LAST_WAKE_NS WORST_WAKE_NS WORKING_SET_PAGES
}

/// Counts a wake that took `ns`.
pub(super) fn count_wake(cause: Cause, ns: u64) {
    let counter = match cause {
        Cause::Host => &BY_SOCKET,
        Cause::Disk => &BY_DISK,
        Cause::Signal => &BY_SIGNAL,
        Cause::Continue => &BY_SIGCONT,
        Cause::Exec => &BY_EXEC,
        Cause::Timer => &BY_TIMER,
        Cause::Unfinished => &BY_UNFINISHED,
    };
    counter.fetch_add(1, Relaxed);
    LAST_WAKE_NS.store(ns, Relaxed);
    WORST_WAKE_NS.fetch_max(ns, Relaxed);
    history::woken(cause, ns);
}

/// How often the sandbox was woken.
pub(super) fn wakes() -> u64 {
    let all = [&BY_SOCKET, &BY_DISK, &BY_SIGNAL, &BY_SIGCONT, &BY_EXEC, &BY_TIMER, &BY_UNFINISHED];
    all.iter().map(|counter| counter.load(Relaxed)).sum()
}

/// All numbers about the sandbox.
pub fn collect() -> Stats {
    let heap = arch::heap::HEAP.stats();
    let store = Call::new(Op::StoreStat).run_out().map(|(_, args)| args).unwrap_or_default();
    super::note_activity();
    let (held_before, held_after) = history::held_around_sleep();
    Stats {
        state: super::current().shown(),
        memory: MemoryStats {
            frames_used: mm::frames::stats().frames_used * PAGE_SIZE,
            kernel_heap: heap.handed_out_bytes,
            kernel_heap_held: heap.pages_held * PAGE_SIZE,
            page_tables: heap.table_pages * PAGE_SIZE,
            file_windows: crate::fs::window_bytes(),
            swapped_raw: (mm::swap::slots::used() + store[2]) * PAGE_SIZE,
            swapped_stored: store[1] + store[3],
            working_set: WORKING_SET_PAGES.load(Relaxed) * PAGE_SIZE,
            patched_text: mm::patch::patched_pages() * PAGE_SIZE,
            ram: arch::boot().ram_bytes,
            ram_held: history::ram_held(),
            ram_held_before_sleep: held_before,
            ram_held_after_sleep: held_after,
        },
        counts: CountStats {
            syscalls: table::threads().map(|t| t.syscalls.load(Relaxed)).sum(),
            faults: mm::fault::count(),
            swap_ins: mm::swap::swap_ins(),
            reap_pages: REAP_PAGES.load(Relaxed),
            reap_left: REAP_LEFT.load(Relaxed),
            oom_kills: oom::kills(),
            deflates: DEFLATES.load(Relaxed),
            deflates_failed: DEFLATES_FAILED.load(Relaxed),
            deflates_idle: DEFLATES_IDLE.load(Relaxed),
            wakes_by_socket: BY_SOCKET.load(Relaxed),
            wakes_by_disk: BY_DISK.load(Relaxed),
            wakes_by_signal: BY_SIGNAL.load(Relaxed),
            wakes_by_sigcont: BY_SIGCONT.load(Relaxed),
            wakes_by_exec: BY_EXEC.load(Relaxed),
            wakes_by_timer: BY_TIMER.load(Relaxed),
            wakes_by_unfinished: BY_UNFINISHED.load(Relaxed),
            last_deflate_ns: LAST_DEFLATE_NS.load(Relaxed),
            last_wake_ns: LAST_WAKE_NS.load(Relaxed),
            worst_wake_ns: WORST_WAKE_NS.load(Relaxed),
        },
        sleeps: history::collect(),
        kernel_lock: arch::lock::waits(),
    }
}
