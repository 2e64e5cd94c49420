//! Counts of faults, swaps, deflates and wakes.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use qlib::PAGE_SIZE;
use qlib::control::{CountStats, MemoryStats, Stats, WakeCause};
use qlib::host::Op;

use super::{background, dry, history};
use crate::host::Call;
use crate::net::answers;
use crate::task::{oom, table};
use crate::{account, arch, mm};

macro_rules! counters {
    ($($name:ident)*) => {
        $(pub(super) static $name: AtomicU64 = AtomicU64::new(0);)*
    };
}

counters! {
    REAP_PAGES REAP_LEFT DEFLATES DEFLATES_FAILED DEFLATES_IDLE DEFLATES_PRESSURE LAST_DEFLATE_NS
    LAST_WAKE_NS WORST_WAKE_NS WORKING_SET_PAGES
}

/// Wakes by their [`WakeCause`].
static WAKES: [AtomicU64; WakeCause::COUNT] = [const { AtomicU64::new(0) }; WakeCause::COUNT];

/// Counts a wake that took `ns`.
pub(super) fn count_wake(cause: WakeCause, ns: u64) {
    WAKES[cause as usize].fetch_add(1, Relaxed);
    LAST_WAKE_NS.store(ns, Relaxed);
    WORST_WAKE_NS.fetch_max(ns, Relaxed);
    history::woken(cause, ns);
}

/// How often the sandbox was woken.
pub(super) fn wakes() -> u64 {
    WAKES.iter().map(|counter| counter.load(Relaxed)).sum()
}

/// All numbers about the sandbox.
pub fn collect() -> Stats {
    let heap = arch::heap::HEAP.stats();
    let store = Call::new(Op::StoreStat).run_out().map(|(_, args)| args).unwrap_or_default();
    super::note_activity();
    let (held_before, held_after) = history::held_around_sleep();
    let by = |cause: WakeCause| WAKES[cause as usize].load(Relaxed);
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
            background_left: background::left() * PAGE_SIZE,
            patched_text: mm::patch::patched_pages() * PAGE_SIZE,
            ram: account::memory_bytes(),
            ram_held: history::ram_held(),
            ram_held_before_sleep: held_before,
            ram_held_after_sleep: held_after,
        },
        counts: CountStats {
            syscalls: table::threads().map(|t| t.syscalls.load(Relaxed)).sum(),
            faults: mm::fault::count(),
            swap_ins: mm::swap::swap_ins(),
            background_pages: background::brought(),
            reap_pages: REAP_PAGES.load(Relaxed),
            reap_left: REAP_LEFT.load(Relaxed),
            oom_kills: oom::kills(),
            deflates: DEFLATES.load(Relaxed),
            deflates_failed: DEFLATES_FAILED.load(Relaxed),
            deflates_idle: DEFLATES_IDLE.load(Relaxed),
            deflates_pressure: DEFLATES_PRESSURE.load(Relaxed),
            wakes_by_socket: by(WakeCause::Socket),
            wakes_by_disk: by(WakeCause::Disk),
            wakes_by_signal: by(WakeCause::Signal),
            wakes_by_sigcont: by(WakeCause::Sigcont),
            wakes_by_exec: by(WakeCause::Exec),
            wakes_by_timer: by(WakeCause::Timer),
            wakes_by_unfinished: by(WakeCause::Unfinished),
            probes_answered: answers::count(),
            last_deflate_ns: LAST_DEFLATE_NS.load(Relaxed),
            last_wake_ns: LAST_WAKE_NS.load(Relaxed),
            worst_wake_ns: WORST_WAKE_NS.load(Relaxed),
        },
        sleeps: history::collect(),
        kernel_lock: arch::lock::waits(),
        dry_run: dry::collect(),
    }
}
