//! The clocks that programs name by id (clock_gettime(2)), and deadlines on them.

use linux_raw_sys::general::{
    CLOCK_BOOTTIME, CLOCK_BOOTTIME_ALARM, CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE,
    CLOCK_MONOTONIC_RAW, CLOCK_REALTIME, CLOCK_REALTIME_ALARM, CLOCK_REALTIME_COARSE, CLOCK_TAI,
};

use super::{monotonic_ns, realtime_ns};
use crate::arch;
use crate::errno::{Errno, Result};

/// A clock that runs on its own (not one of CPU time).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// CLOCK_REALTIME and its like.
    Realtime,
    /// CLOCK_MONOTONIC and its like.
    Monotonic,
    /// CLOCK_BOOTTIME.
    Boottime,
}

impl Clock {
    /// The clock with this id; EINVAL for unknown ones and those of CPU time.
    pub fn from_id(id: i32) -> Result<Clock> {
        match u32::try_from(id).map_err(|_| Errno::EINVAL)? {
            // TAI: the guest, as most hosts, has no leap-second table, so its offset from UTC is 0.
            CLOCK_REALTIME | CLOCK_REALTIME_COARSE | CLOCK_REALTIME_ALARM | CLOCK_TAI => {
                Ok(Clock::Realtime)
            }
            CLOCK_MONOTONIC | CLOCK_MONOTONIC_RAW | CLOCK_MONOTONIC_COARSE => Ok(Clock::Monotonic),
            CLOCK_BOOTTIME | CLOCK_BOOTTIME_ALARM => Ok(Clock::Boottime),
            _ => Err(Errno::EINVAL),
        }
    }

    /// The clock with this id, if timers may run on it; EINVAL otherwise.
    pub fn for_timers(id: i32) -> Result<Clock> {
        match id as u32 {
            CLOCK_REALTIME_COARSE | CLOCK_MONOTONIC_COARSE | CLOCK_MONOTONIC_RAW => {
                Err(Errno::EINVAL)
            }
            _ => Clock::from_id(id),
        }
    }

    /// Its time in nanoseconds.
    pub fn now_ns(self) -> u64 {
        match self {
            Clock::Realtime => realtime_ns(),
            Clock::Monotonic => monotonic_ns(),
            Clock::Boottime => arch::now_ns(CLOCK_BOOTTIME),
        }
    }

    /// The CLOCK_MONOTONIC time at which this clock will show `ns` (now, if that is past).
    pub fn to_monotonic_ns(self, ns: u64) -> u64 {
        match self {
            Clock::Monotonic => ns,
            _ => monotonic_ns().saturating_add(ns.saturating_sub(self.now_ns())),
        }
    }
}

/// The deadline `ns` nanoseconds from now.
pub fn deadline_after(ns: u64) -> u64 {
    monotonic_ns().saturating_add(ns)
}
