//! Clocks of ring 0, without leaving the guest: a page with a line from time stamps to times
//! ([`qlib::clock`]), which user programs see too ([`crate::task::vdso`]). Who finds it expired
//! asks the host and draws the next one. Nobody asks while nobody wants to know the time.
//!
//! Called on any vCPU, under the kernel lock or not.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use qlib::clock::{Calibrator, ClockPage, Line, Sample, Source, source_of};
use qlib::host::{HostCall, NO_HANDLE, Op};
use qlib::{Gpa, PAGE_SIZE};

use crate::arch::{boot, gpa_of, host_call};
use crate::sync::{Mutex, mutex};

/// Host calls for one sample: the first that is not disturbed, or the best of so many.
const SAMPLES: usize = 3;
/// How long to wait for another vCPU that asks the host, in ticks: some milliseconds. It may be one
/// that is asked for itself, by this very call.
const PATIENCE_TICKS: u64 = 1 << 24;

/// A page of the image with nothing else in it, as programs see all of it.
#[repr(C, align(4096))]
struct OwnPage(ClockPage);

const _: () = assert!(size_of::<OwnPage>() == PAGE_SIZE as usize);

static PAGE: OwnPage = OwnPage(ClockPage::new());
static KEEPER: Keeper = Keeper::new();

/// Where the page lies. It is the kernel's own memory: never freed, never swapped.
pub fn page() -> Gpa {
    gpa_of((&raw const PAGE).cast())
}

/// The time of clock `id` (CLOCK_MONOTONIC, CLOCK_REALTIME or CLOCK_BOOTTIME) in nanoseconds.
/// CLOCK_MONOTONIC never goes back, whichever vCPU asks.
pub fn now_ns(id: u32) -> u64 {
    KEEPER.now_ns(&PAGE.0, source_of(id).unwrap_or(Source::Monotonic), &Ring0)
}

/// The counter and the host's clocks.
pub trait Clocks {
    /// The time stamp counter, read after everything before it.
    fn tsc(&self) -> u64;
    /// Thousands of ticks a second, as far as the host knows; 0 if it does not say.
    fn khz(&self) -> u64 {
        0
    }
    /// The host's CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_BOOTTIME and CLOCK_MONOTONIC again, in
    /// nanoseconds.
    fn host(&self) -> Option<[u64; 4]>;
}

/// Those of this machine.
struct Ring0;

impl Clocks for Ring0 {
    fn tsc(&self) -> u64 {
        let (low, high): (u32, u32);
        // SAFETY: reads a counter that every x86-64 processor has.
        unsafe {
            asm!("lfence", "rdtsc", out("eax") low, out("edx") high,
                options(nostack, preserves_flags))
        };
        u64::from(high) << 32 | u64::from(low)
    }

    fn khz(&self) -> u64 {
        boot().kvm.tsc_khz
    }

    fn host(&self) -> Option<[u64; 4]> {
        let mut call = HostCall { op: Op::Clocks as u32, handle: NO_HANDLE, ..HostCall::default() };
        host_call(&mut call);
        let [monotonic, realtime, boottime, again, ..] = call.args;
        (call.ret == 0).then_some([monotonic, realtime, boottime, again])
    }
}

/// Keeps a clock page right.
pub struct Keeper {
    calibrator: Mutex<Calibrator>,
    /// The latest CLOCK_MONOTONIC time that was reported to somebody in the kernel.
    reported_ns: AtomicU64,
}

impl Keeper {
    /// One that knows nothing yet.
    pub const fn new() -> Self {
        Keeper { calibrator: mutex(Calibrator::new()), reported_ns: AtomicU64::new(0) }
    }

    /// The time of `source` by `page`, which is drawn anew if it has expired.
    pub fn now_ns(&self, page: &ClockPage, source: Source, clocks: &impl Clocks) -> u64 {
        let mut waiting_since = None;
        loop {
            if let Some(ns) = page.read_with(source, || clocks.tsc()) {
                return self.report(source, ns);
            }
            if let Some(mut calibrator) = self.calibrator.try_lock() {
                // Somebody else may have been here meanwhile.
                let ns = page.read_with(source, || clocks.tsc());
                return self.report(
                    source,
                    ns.unwrap_or_else(|| self.calibrate(&mut calibrator, page, source, clocks)),
                );
            }
            // Another vCPU is at it. The old line will do, if it has just ended: the new one begins
            // where it is then.
            if let Some((line, now)) = page.snapshot(|| clocks.tsc())
                && let Some(ns) = Calibrator::just_ended(&line, source, now)
            {
                return self.report(source, ns);
            }
            let now = clocks.tsc();
            if now.wrapping_sub(*waiting_since.get_or_insert(now)) > PATIENCE_TICKS {
                // Never seen but in a bug. It must not hang the machine.
                let reported = self.reported_ns.load(Ordering::Relaxed);
                return self
                    .report(source, clocks.host().map_or(reported, |host| time_of(source, host)));
            }
            core::hint::spin_loop();
        }
    }

    /// CLOCK_MONOTONIC as it is reported: not before what was reported already.
    fn report(&self, source: Source, ns: u64) -> u64 {
        match source {
            Source::Monotonic => self.reported_ns.fetch_max(ns, Ordering::Relaxed).max(ns),
            _ => ns,
        }
    }

    /// Asks the host, and draws the next line if enough is known: the time.
    fn calibrate(
        &self,
        known: &mut Calibrator,
        page: &ClockPage,
        source: Source,
        clocks: &impl Clocks,
    ) -> u64 {
        let mut best: Option<Sample> = None;
        for _ in 0..SAMPLES {
            let Some(sample) = look(clocks) else { continue };
            if best.is_none_or(|best| sample.window() < best.window()) {
                best = Some(sample);
            }
            if known.is_good(&sample) {
                break;
            }
        }
        let Some(sample) = best else {
            // The host does not answer: the old line is the best guess.
            let guess = |line: &Line| line.at(source, clocks.tsc());
            return known.line().map_or_else(|| self.reported_ns.load(Ordering::Relaxed), guess);
        };
        if known.line().is_none() {
            known.assume(clocks.khz());
        }
        let line = page
            .update(|| known.next(&sample, clocks.tsc(), self.reported_ns.load(Ordering::Relaxed)));
        match line {
            Some(line) => line.at(source, clocks.tsc()),
            None => time_of(
                source,
                [
                    sample.monotonic_ns,
                    sample.realtime_ns,
                    sample.boottime_ns,
                    sample.monotonic_after_ns,
                ],
            ),
        }
    }
}

impl Default for Keeper {
    fn default() -> Self {
        Self::new()
    }
}

/// One look at the host's clocks.
fn look(clocks: &impl Clocks) -> Option<Sample> {
    let before_tsc = clocks.tsc();
    let [monotonic_ns, realtime_ns, boottime_ns, monotonic_after_ns] = clocks.host()?;
    let after_tsc = clocks.tsc();
    Some(Sample {
        before_tsc,
        after_tsc,
        monotonic_ns,
        realtime_ns,
        boottime_ns,
        monotonic_after_ns,
    })
}

fn time_of(source: Source, [monotonic, realtime, boottime, _]: [u64; 4]) -> u64 {
    match source {
        Source::Monotonic => monotonic,
        Source::Realtime => realtime,
        Source::Boottime => boottime,
    }
}

#[cfg(test)]
mod tests;
