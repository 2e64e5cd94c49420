//! Times as RFC 3339 has them. Written without an allocation or a lock, for whoever may have
//! neither any more.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// A time in UTC, shown with nanoseconds: `2000-02-29T12:34:56.000000000Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utc {
    /// Since 1970-01-01.
    seconds: u64,
    nanoseconds: u32,
}

impl Utc {
    /// The time now.
    pub fn now() -> Utc {
        let now = clock_gettime(ClockId::Realtime);
        Utc { seconds: now.tv_sec.max(0) as u64, nanoseconds: now.tv_nsec as u32 }
    }
}

impl From<SystemTime> for Utc {
    fn from(time: SystemTime) -> Utc {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Utc { seconds: since.as_secs(), nanoseconds: since.subsec_nanos() }
    }
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, rest) = (self.seconds / 86_400, self.seconds % 86_400);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
        let nanoseconds = self.nanoseconds;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        write!(f, ".{nanoseconds:09}Z")
    }
}

/// The Gregorian date of a day counted from 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64) {
    // Counted from 0000-03-01, so that the leap day is the last of its year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_read_as_dates() {
        let at = |s| Utc::from(UNIX_EPOCH + Duration::from_secs(s)).to_string();
        assert_eq!(at(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(at(951_827_696), "2000-02-29T12:34:56.000000000Z");
        assert_eq!(at(1_767_225_599), "2025-12-31T23:59:59.000000000Z");
    }
}
