//! Draws the lines of the clock page from samples of the host's clocks.
//!
//! What a sample says is an interval, not a value: the host read its clock somewhere between two
//! readings of the time stamp counter. Rules, in this order:
//! 1. CLOCK_MONOTONIC and CLOCK_BOOTTIME never go back, and do not jump for small errors: a line
//!    begins where the last one is and is inclined so that the error is gone when it ends. It jumps
//!    forward for large errors. It is slowed down, by an eighth at most, for as long as it takes if
//!    it is far ahead.
//! 2. CLOCK_REALTIME and CLOCK_BOOTTIME are CLOCK_MONOTONIC plus an offset that on the host changes
//!    only by steps (settimeofday(2), a suspend). So samples of it narrow an interval, and a sample
//!    that contradicts the interval is a step.
//! 3. The rate comes from samples that lie seconds apart, so that their noise is small beside their
//!    distance. One that contradicts the line by more than noise means that the host changed its
//!    rate: older samples are forgotten.

use super::page::{FRACTION_BITS, Line, Source};

/// How long a line may be used, in nanoseconds.
pub const VALID_NS: u64 = 1_500_000_000;
/// A line that runs behind by more than this jumps.
const JUMP_NS: u64 = 2_000_000;
/// Error that a line may gather for want of knowledge of the rate; a line whose rate is not that
/// well known ends earlier.
const DRIFT_NS: u64 = 50_000;
/// The rate is used when it is known this well: one part in so many.
const RATE_KNOWN: u64 = 2_000;
/// An assumed rate may be wrong by one part in so many.
const ASSUMED_DOUBT: u64 = 1_000;
/// Distance of the samples that the rate is taken from: between this and twice this, if there are
/// calls often enough.
const BASELINE_NS: u64 = 4_000_000_000;
/// More than the host's rate can change between two lines (NTP's limit is 500 parts in a million to
/// each side): one part in so many.
const RATE_CHANGE: u64 = 500;
/// A line may be slower than the host's clock by one part in so many, to let it catch up.
const SLOWEST: u64 = 8;

/// One look at the host's clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Time stamp before the clocks were read, in ticks.
    pub before_tsc: u64,
    /// Time stamp afterwards.
    pub after_tsc: u64,
    /// CLOCK_MONOTONIC, read before the next two, in nanoseconds.
    pub monotonic_ns: u64,
    /// CLOCK_REALTIME.
    pub realtime_ns: u64,
    /// CLOCK_BOOTTIME.
    pub boottime_ns: u64,
    /// CLOCK_MONOTONIC once more, read after them.
    pub monotonic_after_ns: u64,
}

impl Sample {
    /// How far apart the two time stamps lie, in ticks: the uncertainty of the sample.
    pub const fn window(&self) -> u64 {
        self.after_tsc.saturating_sub(self.before_tsc)
    }

    fn middle(&self) -> u64 {
        self.before_tsc + self.window() / 2
    }

    fn middle_ns(&self) -> u64 {
        self.monotonic_ns + self.monotonic_after_ns.saturating_sub(self.monotonic_ns) / 2
    }
}

/// What is known of an offset to CLOCK_MONOTONIC: it lies in `[low, high]`, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Offset {
    low: i64,
    high: i64,
}

impl Offset {
    fn of(sample: &Sample, clock_ns: u64) -> Offset {
        let minus = |monotonic_ns: u64| clock_ns.wrapping_sub(monotonic_ns) as i64;
        let low = minus(sample.monotonic_after_ns);
        Offset { low, high: minus(sample.monotonic_ns).max(low) }
    }

    /// What is known with `new` too: less uncertain, or after a step what `new` says.
    fn narrowed(self, new: Offset) -> Offset {
        let both = Offset { low: self.low.max(new.low), high: self.high.min(new.high) };
        if both.low <= both.high { both } else { new }
    }
}

/// The samples of which the rate is made.
#[derive(Clone, Copy, Debug)]
struct Baseline {
    /// The rate is taken from here to now.
    old: Sample,
    /// Takes its place when it is old enough.
    next: Sample,
}

/// Turns samples into lines. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Calibrator {
    line: Option<Line>,
    baseline: Option<Baseline>,
    realtime: Option<Offset>,
    boottime: Option<Offset>,
    last: Option<Sample>,
    /// The smallest window of a sample so far, in ticks.
    best_window: Option<u64>,
    /// What somebody says the rate is.
    assumed: Option<Rate>,
}

fn to_ns(ticks: u64, ns_per_tick: u64) -> u64 {
    u64::try_from((u128::from(ticks) * u128::from(ns_per_tick)) >> FRACTION_BITS)
        .unwrap_or(u64::MAX)
}

fn to_ticks(ns: u64, ns_per_tick: u64) -> u64 {
    u64::try_from((u128::from(ns) << FRACTION_BITS) / u128::from(ns_per_tick.max(1)))
        .unwrap_or(u64::MAX)
}

/// A rate and the part of it by which it may be wrong, both with [`FRACTION_BITS`] fraction bits.
#[derive(Clone, Copy, Debug)]
struct Rate {
    ns_per_tick: u64,
    doubt: u64,
}

impl Rate {
    /// From two samples; `None` when they are too close for any.
    fn between(from: &Sample, to: &Sample) -> Option<Rate> {
        let ticks = to.middle().checked_sub(from.middle()).filter(|ticks| *ticks > 0)?;
        let ns = to.middle_ns().checked_sub(from.middle_ns()).filter(|ns| *ns > 0)?;
        let scaled = (u128::from(ns) << FRACTION_BITS) / u128::from(ticks);
        let ns_per_tick = u64::try_from(scaled).ok().filter(|rate| *rate > 0)?;
        let noise_ticks = u128::from(from.window() / 2) + u128::from(to.window() / 2) + 2;
        let doubt = (u128::from(ns_per_tick) * noise_ticks / u128::from(ticks))
            .min(u128::from(ns_per_tick));
        Some(Rate { ns_per_tick, doubt: doubt as u64 })
    }

    fn is_known(&self) -> bool {
        self.doubt <= self.ns_per_tick / RATE_KNOWN
    }
}

impl Calibrator {
    /// One that knows nothing yet.
    pub const fn new() -> Self {
        Calibrator {
            line: None,
            baseline: None,
            realtime: None,
            boottime: None,
            last: None,
            best_window: None,
            assumed: None,
        }
    }

    /// The counter is said to make `khz` thousand ticks a second: that will do until samples say
    /// better.
    pub fn assume(&mut self, khz: u64) {
        let ns_per_tick =
            u64::try_from((1_000_000u128 << FRACTION_BITS) / u128::from(khz.max(1))).unwrap_or(0);
        self.assumed = (khz > 0 && ns_per_tick > 0)
            .then_some(Rate { ns_per_tick, doubt: ns_per_tick / ASSUMED_DOUBT });
    }

    /// True if another try is unlikely to give a sample much better than this one.
    pub fn is_good(&self, sample: &Sample) -> bool {
        self.best_window.is_some_and(|best| sample.window() <= best.saturating_mul(2))
    }

    /// The line now.
    pub fn line(&self) -> Option<&Line> {
        self.line.as_ref()
    }

    /// Takes a sample in and draws the next line, to begin at the time stamp `now_tsc` (not before
    /// the sample's). `floor_ns` is the latest CLOCK_MONOTONIC time that somebody was told. `None`
    /// as long as too little is known of the rate: the sample itself then says the time, and
    /// another one some milliseconds later will do.
    pub fn next(&mut self, sample: &Sample, now_tsc: u64, floor_ns: u64) -> Option<Line> {
        let now_tsc = now_tsc.max(sample.after_tsc);
        self.best_window =
            Some(self.best_window.map_or(sample.window(), |best| best.min(sample.window())));
        let new = Offset::of(sample, sample.realtime_ns);
        self.realtime = Some(self.realtime.map_or(new, |known| known.narrowed(new)));
        let new = Offset::of(sample, sample.boottime_ns);
        self.boottime = Some(self.boottime.map_or(new, |known| {
            let narrowed = known.narrowed(new);
            // It cannot shrink, and CLOCK_BOOTTIME must not go back.
            Offset { low: narrowed.low.max(known.low), high: narrowed.high.max(known.low) }
        }));
        self.forget_what_is_wrong(sample);
        let rate = self.rate(sample);
        self.last = Some(*sample);
        let rate = rate.filter(Rate::is_known).or(self.assumed)?;
        let line = self.draw(sample, rate, now_tsc, floor_ns);
        self.line = Some(line);
        Some(line)
    }

    /// Forgets the samples that the rate is taken from if this one says that the counter or its
    /// rate is not what it was.
    fn forget_what_is_wrong(&mut self, sample: &Sample) {
        let Some(last) = self.last else { return };
        if sample.before_tsc < last.after_tsc || sample.monotonic_ns < last.monotonic_ns {
            // The counter, or the host, began anew.
            self.baseline = None;
            return;
        }
        let (Some(baseline), Some(short)) = (self.baseline, Rate::between(&last, sample)) else {
            return;
        };
        let Some(long) = Rate::between(&baseline.old, &last) else { return };
        let difference = long.ns_per_tick.abs_diff(short.ns_per_tick);
        // Twice the doubt, for the host's own readings are not exact either.
        if long.is_known() && short.is_known() && difference > 2 * (long.doubt + short.doubt) {
            // A change by more than a clock is ever disciplined is no change of rate but a counter
            // that was set, and so may be one by less, if that was long ago.
            let distance_ns = sample.monotonic_ns - last.monotonic_ns;
            let was_set =
                difference > long.ns_per_tick / RATE_CHANGE || distance_ns > 2 * BASELINE_NS;
            self.baseline = if was_set { None } else { Some(Baseline { old: last, next: last }) };
        }
    }

    /// The rate up to `sample`, which may become the beginning of later ones.
    fn rate(&mut self, sample: &Sample) -> Option<Rate> {
        let Some(baseline) = &mut self.baseline else {
            self.baseline = Some(Baseline { old: *sample, next: *sample });
            return None;
        };
        let rate = Rate::between(&baseline.old, sample);
        if baseline.old.window() / 4 > sample.window() && !rate.as_ref().is_some_and(Rate::is_known)
        {
            // The first one was disturbed: this one gets there sooner.
            *baseline = Baseline { old: *sample, next: *sample };
        } else if sample.monotonic_ns.saturating_sub(baseline.next.monotonic_ns) >= BASELINE_NS {
            baseline.old = baseline.next;
            baseline.next = *sample;
        }
        rate
    }

    fn draw(&self, sample: &Sample, rate: Rate, now_tsc: u64, floor_ns: u64) -> Line {
        // A TSC that steps back, as after a move to another host, must not end anybody.
        let since = now_tsc.saturating_sub(sample.middle());
        let truth_ns = sample.middle_ns().saturating_add(to_ns(since, rate.ns_per_tick));
        // What was promised for now: nobody has looked at the last line later than a little after
        // its end.
        let (promised_ns, was_seen) = match &self.line {
            None => (0, false),
            Some(line) => {
                let seen_until = line.valid_until_tsc.saturating_add(Self::grace_ticks(line));
                let is_seen = line.begin_tsc <= now_tsc && now_tsc <= seen_until;
                (line.at(Source::Monotonic, if is_seen { now_tsc } else { seen_until }), is_seen)
            }
        };
        let promised_ns = promised_ns.max(floor_ns);
        let jumps = truth_ns > promised_ns && (!was_seen || truth_ns - promised_ns > JUMP_NS);
        let begin_ns = if jumps { truth_ns } else { promised_ns };

        // Shorter while the rate is not well known.
        let drift_ns =
            u128::from(DRIFT_NS) * u128::from(rate.ns_per_tick) / u128::from(rate.doubt.max(1));
        let valid_ns = VALID_NS.min(u64::try_from(drift_ns).unwrap_or(u64::MAX));
        let valid_ticks = to_ticks(valid_ns, rate.ns_per_tick).max(1);
        let end_ns = truth_ns.saturating_add(to_ns(valid_ticks, rate.ns_per_tick));
        let climb_ns = end_ns.saturating_sub(begin_ns);
        let inclined =
            u64::try_from((u128::from(climb_ns) << FRACTION_BITS) / u128::from(valid_ticks))
                .unwrap_or(0);
        // The upper limit is for lines so short that even a small error would make them steep.
        let (slowest, fastest) = (
            rate.ns_per_tick - rate.ns_per_tick / SLOWEST,
            rate.ns_per_tick.saturating_add(rate.ns_per_tick / SLOWEST),
        );
        let offset = |known: Option<Offset>| {
            begin_ns.saturating_add_signed(known.map_or(0, |offset| offset.low))
        };
        Line {
            begin_tsc: now_tsc,
            valid_until_tsc: now_tsc.saturating_add(valid_ticks),
            ns_per_tick: inclined.clamp(slowest, fastest),
            monotonic_ns: begin_ns,
            realtime_ns: offset(self.realtime),
            boottime_ns: offset(self.boottime),
        }
    }

    /// How long after its end a line may still be used by those who wait for the next one, in
    /// ticks.
    fn grace_ticks(line: &Line) -> u64 {
        line.valid_until_tsc.saturating_sub(line.begin_tsc) / 8
    }

    /// The time of `source` at `tsc` by the last line, though it may have ended a moment ago: for
    /// those who find another busy with the next one. `None` when it ended too long ago.
    pub fn just_ended(line: &Line, source: Source, tsc: u64) -> Option<u64> {
        let usable = line.valid_until_tsc > 0 && line.begin_tsc <= tsc;
        (usable && tsc <= line.valid_until_tsc.saturating_add(Self::grace_ticks(line)))
            .then(|| line.at(source, tsc))
    }
}
