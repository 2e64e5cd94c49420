//! How much a guest can make the log hold, which lies on the host's disk.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::sys::ordered::{Mutex, place};

/// What a guest may write into the log at once, and in a second afterwards, in bytes. The log lies
/// on the host's disk.
const LOG_BURST: u64 = 1 << 20;
const LOG_PER_SECOND: u64 = 64 << 10;

/// Events of one kind that are all written, at first.
const FIRST: u64 = 20;

/// What the guest may still write into the log.
#[derive(Debug)]
pub struct LogBudget(Mutex<(Instant, u64), place::LogBudget>);

impl Default for LogBudget {
    fn default() -> LogBudget {
        LogBudget(Mutex::new((Instant::now(), LOG_BURST)))
    }
}

impl LogBudget {
    /// Takes `bytes` out of it, if they are there. Who asked for a detailed log gets it whole.
    pub fn take(&self, bytes: usize) -> bool {
        tracing::level_filters::LevelFilter::current() >= tracing::level_filters::LevelFilter::DEBUG
            || self.take_at(Instant::now(), bytes as u64)
    }

    fn take_at(&self, now: Instant, bytes: u64) -> bool {
        let mut budget = self.0.lock();
        let (last, left) = *budget;
        let passed_ms =
            u64::try_from(now.saturating_duration_since(last).as_millis()).unwrap_or(u64::MAX);
        let earned = passed_ms.saturating_mul(LOG_PER_SECOND) / 1000;
        // A moment too short to earn anything is not lost.
        let last = if earned > 0 { now } else { last };
        let left = left.saturating_add(earned).min(LOG_BURST);
        let enough = left >= bytes;
        *budget = (last, if enough { left - bytes } else { left });
        enough
    }
}

/// Events that a guest can bring about as often as it likes: the first are written, and then fewer
/// and fewer.
#[derive(Debug, Default)]
pub struct Seldom(AtomicU64);

impl Seldom {
    /// None yet.
    pub const fn new() -> Seldom {
        Seldom(AtomicU64::new(0))
    }

    /// Counts one: how many there have been, if this one is to be written.
    pub fn count(&self) -> Option<u64> {
        let count = self.0.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        (count <= FIRST || count.is_power_of_two()).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_guest_cannot_fill_the_disk_with_its_log() {
        let budget = LogBudget::default();
        let start = Instant::now();
        let lines = |at: Instant| (0..100_000).filter(|_| budget.take_at(at, 1024)).count();
        assert_eq!(lines(start), 1024);
        assert_eq!(lines(start + Duration::from_secs(1)), 64);
        assert_eq!(lines(start + Duration::from_secs(3600)), 1024);
    }

    #[test]
    fn what_happens_often_is_written_seldom() {
        let events = Seldom::new();
        let written: Vec<u64> = (0..1000).filter_map(|_| events.count()).collect();
        let expected: Vec<u64> = (1..=20).chain([32, 64, 128, 256, 512]).collect();
        assert_eq!(written, expected);
    }
}
