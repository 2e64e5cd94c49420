//! Clocks and sleeping: clock_gettime(2) and its family, nanosleep(2).

use alloc::sync::Arc;

use linux_raw_sys::general::{CLOCK_MONOTONIC_COARSE, CLOCK_REALTIME_COARSE, TIMER_ABSTIME};
use qlib::Va;

use crate::abi::{TimeSpec, TimeVal, abi_struct};
use crate::errno::{Errno, Result};
use crate::task::{Thread, cpu_clock, signal};
use crate::time::{self, Clock};
use crate::wait::{PollMask, block_on};

abi_struct! {
    /// struct timezone.
    pub struct TimeZone { pub minutes_west: i32, pub dst_time: i32, }
}
fn read_clock(thread: &Arc<Thread>, clock: i32) -> Result<u64> {
    match cpu_clock::clock_ns(thread, clock) {
        Some(result) => result,
        None => Ok(Clock::from_id(clock)?.now_ns()),
    }
}

/// clock_gettime(2).
pub fn clock_gettime(thread: &Arc<Thread>, clock: u32, out: Va) -> Result<usize> {
    let now = read_clock(thread, clock as i32)?;
    thread.mm().write(out, &TimeSpec::from_ns(now))?;
    Ok(0)
}

/// clock_getres(2).
pub fn clock_getres(thread: &Arc<Thread>, clock: u32, out: Va) -> Result<usize> {
    read_clock(thread, clock as i32)?;
    let resolution_ns = match clock {
        // What Linux answers with CONFIG_HZ=250.
        CLOCK_REALTIME_COARSE | CLOCK_MONOTONIC_COARSE => 4_000_000,
        _ => 1,
    };
    if out.0 != 0 {
        thread.mm().write(out, &TimeSpec::from_ns(resolution_ns))?;
    }
    Ok(0)
}

/// clock_settime(2): the clocks are the host's, so nobody in the container has CAP_SYS_TIME over
/// them.
pub fn clock_settime(thread: &Arc<Thread>, clock: u32, value: Va) -> Result<usize> {
    Clock::from_id(clock as i32)?;
    thread.mm().read::<TimeSpec>(value)?.to_ns()?;
    Err(Errno::EPERM)
}

/// settimeofday(2). As [`clock_settime`].
pub fn settimeofday(_thread: &Arc<Thread>, _value: Va, _zone: Va) -> Result<usize> {
    Err(Errno::EPERM)
}

/// gettimeofday(2).
pub fn gettimeofday(thread: &Arc<Thread>, value: Va, zone: Va) -> Result<usize> {
    if value.0 != 0 {
        thread.mm().write(value, &TimeVal::from_ns(time::realtime_ns()))?;
    }
    if zone.0 != 0 {
        thread.mm().write(zone, &TimeZone::default())?;
    }
    Ok(0)
}

/// time(2).
pub fn time(thread: &Arc<Thread>, out: Va) -> Result<usize> {
    let seconds = time::realtime_ns() / 1_000_000_000;
    if out.0 != 0 {
        thread.mm().write(out, &seconds)?;
    }
    Ok(seconds as usize)
}

/// nanosleep(2).
pub async fn nanosleep(thread: &Arc<Thread>, request: Va, remaining: Va) -> Result<usize> {
    let duration = thread.mm().read::<TimeSpec>(request)?.to_ns()?;
    sleep(thread, duration, remaining).await
}

/// clock_nanosleep(2).
pub async fn clock_nanosleep(
    thread: &Arc<Thread>,
    clock: u32,
    flags: u32,
    request: Va,
    remaining: Va,
) -> Result<usize> {
    if cpu_clock::is_cpu_clock(clock as i32) {
        // Sleeping by CPU time: Linux refuses the caller's own thread with EINVAL, and so do we the
        // rest.
        return Err(Errno::EINVAL);
    }
    let clock = Clock::for_timers(clock as i32)?;
    let value = thread.mm().read::<TimeSpec>(request)?.to_ns()?;
    if flags & TIMER_ABSTIME == 0 {
        return sleep(thread, value, remaining).await;
    }
    match block_on::<()>(thread, &[], PollMask::empty(), Some(clock.to_monotonic_ns(value)), || {
        Err(Errno::EAGAIN)
    })
    .await
    {
        Err(Errno::ETIMEDOUT) => Ok(0),
        Err(Errno::ERESTARTSYS) => Err(Errno::ERESTARTNOHAND),
        Err(error) => Err(error),
        Ok(()) => Ok(0),
    }
}

/// Sleeps; at an interruption reports what remained.
async fn sleep(thread: &Arc<Thread>, duration_ns: u64, remaining: Va) -> Result<usize> {
    let deadline =
        signal::take_restart_deadline(thread).unwrap_or_else(|| time::deadline_after(duration_ns));
    match block_on::<()>(thread, &[], PollMask::empty(), Some(deadline), || Err(Errno::EAGAIN))
        .await
    {
        Err(Errno::ETIMEDOUT) | Ok(()) => Ok(0),
        Err(Errno::ERESTARTSYS) => {
            if remaining.0 != 0 {
                let left = deadline.saturating_sub(time::monotonic_ns());
                thread.mm().write(remaining, &TimeSpec::from_ns(left))?;
            }
            Err(signal::restart_until(thread, deadline))
        }
        Err(error) => Err(error),
    }
}
