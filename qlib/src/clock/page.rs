//! The clock page, as its writer and its readers see it. This file is compiled into the vDSO too:
//! `core` only, no panic on any path, no call to a function outside of it that is not inlined.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Nanoseconds of a second, to take a time apart into a `struct timespec`.
pub const TIMESPEC_NS: u64 = 1_000_000_000;

/// Fraction bits of [`Line::ns_per_tick`]. At 5 GHz over 2 s the last bit is worth 36 us / 2^17,
/// less than a nanosecond; at 100 MHz a tick of 10 ns leaves 12 bits to spare.
pub const FRACTION_BITS: u32 = 48;

/// Which of the page's three times a clock id (clock_gettime(2)) stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// CLOCK_MONOTONIC and its like.
    Monotonic,
    /// CLOCK_REALTIME and its like.
    Realtime,
    /// CLOCK_BOOTTIME.
    Boottime,
}

/// The source of clock `id`; `None` for clocks that the page knows nothing of (CPU time, dynamic
/// clocks, unknown ones).
#[inline(always)]
pub const fn source_of(id: u32) -> Option<Source> {
    // By their numbers (linux/time.h), as this file is compiled without dependencies too. The guest
    // has one rate for all clocks: MONOTONIC_RAW is MONOTONIC, as elsewhere in the kernel, and the
    // coarse clocks are exact. TAI: no leap-second table.
    match id {
        0 | 5 | 8 | 11 => Some(Source::Realtime),
        1 | 4 | 6 => Some(Source::Monotonic),
        7 | 9 => Some(Source::Boottime),
        _ => None,
    }
}

/// A straight line from time stamps to times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Time stamp at which it begins, in ticks.
    pub begin_tsc: u64,
    /// Time stamp after which it must not be used any more, in ticks. 0: never valid.
    pub valid_until_tsc: u64,
    /// Nanoseconds of a tick, with [`FRACTION_BITS`] fraction bits.
    pub ns_per_tick: u64,
    /// CLOCK_MONOTONIC at `begin_tsc`, in nanoseconds.
    pub monotonic_ns: u64,
    /// CLOCK_REALTIME at `begin_tsc`, in nanoseconds since the epoch.
    pub realtime_ns: u64,
    /// CLOCK_BOOTTIME at `begin_tsc`, in nanoseconds.
    pub boottime_ns: u64,
}

impl Line {
    /// The time of `source` at `tsc`, valid or not; before the line's beginning the time of its
    /// beginning. Wraps on nonsense.
    #[inline(always)]
    pub const fn at(&self, source: Source, tsc: u64) -> u64 {
        let base_ns = match source {
            Source::Monotonic => self.monotonic_ns,
            Source::Realtime => self.realtime_ns,
            Source::Boottime => self.boottime_ns,
        };
        let ticks = tsc.saturating_sub(self.begin_tsc);
        base_ns.wrapping_add(((ticks as u128 * self.ns_per_tick as u128) >> FRACTION_BITS) as u64)
    }

    /// True if it may be used at `tsc`.
    #[inline(always)]
    pub const fn is_valid_at(&self, tsc: u64) -> bool {
        self.begin_tsc <= tsc && tsc <= self.valid_until_tsc
    }
}

/// A [`Line`] that one writes while others read: a sequence lock. Fills the first 64 bytes of a
/// page of its own. All zeros is a page that is not valid.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ClockPage {
    /// Odd while the words are being written; each change adds 2.
    sequence: AtomicU32,
    reserved: AtomicU32,
    begin_tsc: AtomicU64,
    valid_until_tsc: AtomicU64,
    ns_per_tick: AtomicU64,
    monotonic_ns: AtomicU64,
    realtime_ns: AtomicU64,
    boottime_ns: AtomicU64,
}

/// A reader gives up after this many changes under its eyes, so that a page of garbage cannot hang
/// it.
const ATTEMPTS: u32 = 1000;

impl ClockPage {
    /// One that is not valid.
    pub const fn new() -> Self {
        ClockPage {
            sequence: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
            begin_tsc: AtomicU64::new(0),
            valid_until_tsc: AtomicU64::new(0),
            ns_per_tick: AtomicU64::new(0),
            monotonic_ns: AtomicU64::new(0),
            realtime_ns: AtomicU64::new(0),
            boottime_ns: AtomicU64::new(0),
        }
    }

    /// Writes the line that `draw` gives, if any. One writer at a time. While `draw` runs nobody
    /// can read the page: every reading of the counter that went with the old line was made before
    /// it.
    pub fn update(&self, draw: impl FnOnce() -> Option<Line>) -> Option<Line> {
        let sequence = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(sequence, Ordering::Relaxed);
        // A reader that sees one of the words below sees the odd number; and the counter is read
        // after that is to be seen.
        fence(Ordering::SeqCst);
        let line = draw();
        if let Some(line) = &line {
            self.begin_tsc.store(line.begin_tsc, Ordering::Relaxed);
            self.valid_until_tsc.store(line.valid_until_tsc, Ordering::Relaxed);
            self.ns_per_tick.store(line.ns_per_tick, Ordering::Relaxed);
            self.monotonic_ns.store(line.monotonic_ns, Ordering::Relaxed);
            self.realtime_ns.store(line.realtime_ns, Ordering::Relaxed);
            self.boottime_ns.store(line.boottime_ns, Ordering::Relaxed);
        }
        self.sequence.store(sequence.wrapping_add(1), Ordering::Release);
        line
    }

    /// Writes a line. One writer at a time.
    pub fn publish(&self, line: &Line) {
        self.update(|| Some(*line));
    }

    /// Leaves it as a writer does that never comes back.
    #[cfg(test)]
    pub(super) fn interrupt(&self) {
        self.sequence.fetch_or(1, Ordering::Relaxed);
    }

    /// The line, and what `tsc` gave while it was the page's line. `tsc` must read the counter no
    /// earlier than it is called (`lfence; rdtsc`). `None` if a writer was in the way for very
    /// long.
    #[inline(always)]
    pub fn snapshot(&self, tsc: impl Fn() -> u64) -> Option<(Line, u64)> {
        let mut attempt = 0;
        while attempt < ATTEMPTS {
            attempt += 1;
            let sequence = self.sequence.load(Ordering::Acquire);
            if sequence & 1 != 0 {
                core::hint::spin_loop();
                continue;
            }
            let line = Line {
                begin_tsc: self.begin_tsc.load(Ordering::Relaxed),
                valid_until_tsc: self.valid_until_tsc.load(Ordering::Relaxed),
                ns_per_tick: self.ns_per_tick.load(Ordering::Relaxed),
                monotonic_ns: self.monotonic_ns.load(Ordering::Relaxed),
                realtime_ns: self.realtime_ns.load(Ordering::Relaxed),
                boottime_ns: self.boottime_ns.load(Ordering::Relaxed),
            };
            let now = tsc();
            fence(Ordering::Acquire);
            if self.sequence.load(Ordering::Relaxed) == sequence {
                return Some((line, now));
            }
        }
        None
    }

    /// The time of `source` now, in nanoseconds; `None` when the page is not valid now. `tsc` as in
    /// [`ClockPage::snapshot`].
    #[inline(always)]
    pub fn read_with(&self, source: Source, tsc: impl Fn() -> u64) -> Option<u64> {
        match self.snapshot(tsc) {
            Some((line, now)) if line.is_valid_at(now) => Some(line.at(source, now)),
            _ => None,
        }
    }

    /// The time of clock `id` (CLOCK_*) at the time stamp `tsc`, in nanoseconds; `None` when the
    /// page is not valid then, or knows nothing of the clock.
    pub fn read(&self, id: u32, tsc: u64) -> Option<u64> {
        self.read_with(source_of(id)?, || tsc)
    }
}
