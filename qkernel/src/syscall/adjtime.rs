//! adjtimex(2) and clock_adjtime(2): they tell, and adjust nothing.

use alloc::sync::Arc;

use linux_raw_sys::general::CLOCK_REALTIME;
use qlib::Va;

use crate::abi::{TimeVal, abi_struct};
use crate::errno::{Errno, Result};
use crate::task::Thread;
use crate::time::{self, Clock};

/// Of `modes`: adjtime(3); and what it may do, begin an adjustment or only tell of it.
const ADJ_ADJTIME: u32 = 0x8000;
const ADJ_OFFSET_SINGLESHOT: u32 = 0x0001;
const ADJ_OFFSET_READONLY: u32 = 0x2000;
/// A bit of `status`: the clock follows no other that anyone here knew of.
const STA_UNSYNC: i32 = 0x40;
/// The state that goes with it, TIME_ERROR.
const TIME_ERROR: usize = 5;
/// Errors of such a clock, in microseconds (NTP_PHASE_LIMIT).
const UNKNOWN_ERROR_US: i64 = 16_000_000;
/// The most that a frequency may be off, in units of 2⁻¹⁶ ppm.
const TOLERANCE: i64 = 500 << 16;
/// Microseconds between ticks.
const TICK_US: i64 = 10_000;

abi_struct! {
    /// struct timex.
    pub struct Timex {
        pub modes: u32, pub pad: u32, pub offset: i64, pub freq: i64, pub maxerror: i64,
        pub esterror: i64, pub status: i32, pub pad2: u32, pub constant: i64, pub precision: i64,
        pub tolerance: i64, pub time: TimeVal, pub tick: i64, pub ppsfreq: i64, pub jitter: i64,
        pub shift: i32, pub pad3: u32, pub stabil: i64, pub jitcnt: i64, pub calcnt: i64,
        pub errcnt: i64, pub stbcnt: i64, pub tai: i32, pub pad4: [u32; 11],
    }
}

/// adjtimex(2). The clock is the host's, and what keeps it right is not known: it counts as one
/// that is not synchronized. To adjust it takes CAP_SYS_TIME over it, which nobody has here.
pub fn adjtimex(thread: &Arc<Thread>, buf: Va) -> Result<usize> {
    let Timex { modes, .. } = thread.mm().read(buf)?;
    let only_tells = if modes & ADJ_ADJTIME == 0 {
        modes == 0
    } else if modes & ADJ_OFFSET_SINGLESHOT == 0 {
        return Err(Errno::EINVAL);
    } else {
        modes & ADJ_OFFSET_READONLY != 0
    };
    if !only_tells {
        return Err(Errno::EPERM);
    }
    let told = Timex {
        modes,
        maxerror: UNKNOWN_ERROR_US,
        esterror: UNKNOWN_ERROR_US,
        status: STA_UNSYNC,
        constant: 2,
        precision: 1,
        tolerance: TOLERANCE,
        time: TimeVal::from_ns(time::realtime_ns()),
        tick: TICK_US,
        ..Timex::default()
    };
    thread.mm().write(buf, &told)?;
    Ok(TIME_ERROR)
}

/// clock_adjtime(2). EOPNOTSUPP for clocks that nothing adjusts.
pub fn clock_adjtime(thread: &Arc<Thread>, clock: u32, buf: Va) -> Result<usize> {
    Clock::from_id(clock as i32)?;
    if clock != CLOCK_REALTIME {
        return Err(Errno::EOPNOTSUPP);
    }
    adjtimex(thread, buf)
}
