use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::*;

/// This machine's counter and clocks, so many times as fast: lines that are good for 1.5 s end
/// sooner.
struct Fast {
    times: u64,
    calls: AtomicU32,
    start: Instant,
    realtime_ns: u64,
    refuses: AtomicBool,
}

impl Fast {
    fn new(times: u64) -> Fast {
        let realtime_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        Fast {
            times,
            calls: AtomicU32::new(0),
            start: Instant::now(),
            realtime_ns,
            refuses: AtomicBool::new(false),
        }
    }

    fn monotonic(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 * self.times + 1_000_000
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }
}

impl Clocks for Fast {
    fn tsc(&self) -> u64 {
        Ring0.tsc().wrapping_mul(self.times)
    }

    fn host(&self) -> Option<[u64; 4]> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let now = self.monotonic();
        let answer = [now, now + self.realtime_ns, now + 500, self.monotonic()];
        (!self.refuses.load(Ordering::Relaxed)).then_some(answer)
    }
}

#[test]
fn a_valid_page_needs_no_host_call() {
    let (clocks, keeper, page) = (Fast::new(1), Keeper::new(), ClockPage::new());
    let mut reads = 0;
    while clocks.start.elapsed() < Duration::from_millis(300) {
        let (before, now, after) = (
            clocks.monotonic(),
            keeper.now_ns(&page, Source::Monotonic, &clocks),
            clocks.monotonic(),
        );
        // A test that is not run for a while sees a sample that is late by as much.
        assert!(
            before.saturating_sub(5_000_000) <= now && now <= after + 5_000_000,
            "{now}: {before} {after}"
        );
        reads += 1;
    }
    // All the calls are from the first milliseconds, while the rate was not known, and a few lines
    // that end early.
    let calls = clocks.calls();
    assert!(reads > 50 * calls, "{calls} calls for {reads} readings");
    if page.read_with(Source::Monotonic, || clocks.tsc()).is_some() {
        keeper.now_ns(&page, Source::Realtime, &clocks);
        keeper.now_ns(&page, Source::Boottime, &clocks);
        assert!(clocks.calls() <= calls + SAMPLES as u32);
    }
}

#[test]
fn no_vcpu_sees_monotonic_go_back() {
    // A line is good for 7 ms at most, and four threads want the next one.
    let (clocks, keeper, page) = (Fast::new(200), Keeper::new(), ClockPage::new());
    let latest = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for kernel in [true, true, false, true] {
            scope.spawn({
                let (clocks, keeper, page, latest) = (&clocks, &keeper, &page, &latest);
                move || {
                    while clocks.start.elapsed() < Duration::from_millis(1500) {
                        let before = latest.load(Ordering::SeqCst);
                        let now = match kernel {
                            true => Some(keeper.now_ns(page, Source::Monotonic, clocks)),
                            // As a program does: by the page alone.
                            false => page.read_with(Source::Monotonic, || clocks.tsc()),
                        };
                        let Some(now) = now else { continue };
                        assert!(now >= before, "{} ns back, kernel: {kernel}", before - now);
                        latest.fetch_max(now, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert!(clocks.calls() > 20, "{}", clocks.calls());
}

#[test]
fn a_host_that_does_not_answer_stops_no_clock() {
    let (clocks, keeper, page) = (Fast::new(1000), Keeper::new(), ClockPage::new());
    while page.read_with(Source::Monotonic, || clocks.tsc()).is_none() {
        keeper.now_ns(&page, Source::Monotonic, &clocks);
    }
    clocks.refuses.store(true, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(10));
    let first = keeper.now_ns(&page, Source::Monotonic, &clocks);
    std::thread::sleep(Duration::from_millis(10));
    assert!(keeper.now_ns(&page, Source::Monotonic, &clocks) > first + 1_000_000_000);
}

#[test]
fn a_caller_that_can_never_have_the_lock_gets_an_answer() {
    let (clocks, keeper, page) = (Fast::new(1), Keeper::new(), ClockPage::new());
    let _busy = keeper.calibrator.lock();
    assert!(keeper.now_ns(&page, Source::Monotonic, &clocks) > 0);
}
