//! Timers: setitimer(2), alarm(2), timer_create(2), timerfd_create(2) and their families.

use alloc::sync::Arc;

use linux_raw_sys::general::{
    O_CLOEXEC, O_NONBLOCK, O_RDWR, SIGALRM, SIGEV_NONE, SIGEV_SIGNAL, SIGEV_THREAD,
    SIGEV_THREAD_ID, TFD_TIMER_ABSTIME, TFD_TIMER_CANCEL_ON_SET, TIMER_ABSTIME,
};
use qlib::Va;

use super::install;
use crate::abi::{TimeSpec, TimeVal, abi_struct};
use crate::errno::{Errno, Result};
use crate::fs::{Fd, OpenFile};
use crate::ipc::timerfd::TimerFd;
use crate::task::Thread;
use crate::task::cpu_clock::{self, CpuClock};
use crate::task::timer::{Base, Setting};
use crate::task::timers::{Notify, Which};
use crate::time::Clock;

abi_struct! {
    /// struct itimerval.
    pub struct ITimerVal { pub interval: TimeVal, pub value: TimeVal, }
}
abi_struct! {
    /// struct itimerspec.
    pub struct ITimerSpec { pub interval: TimeSpec, pub value: TimeSpec, }
}
abi_struct! {
    /// struct sigevent.
    pub struct SigEvent {
        pub value: u64, pub signo: i32, pub notify: i32, pub tid: i32, pub pad: [u32; 11],
    }
}

const ITIMER_REAL: u32 = 0;
const ITIMER_VIRTUAL: u32 = 1;
const ITIMER_PROF: u32 = 2;
const LAST_SIGNAL: u32 = 64;

impl ITimerVal {
    fn of(setting: Setting) -> Self {
        ITimerVal {
            interval: TimeVal::from_ns(setting.interval_ns),
            value: TimeVal::from_ns(round_up_us(setting.left_ns)),
        }
    }

    fn setting(self) -> Result<Setting> {
        Ok(Setting { left_ns: self.value.to_ns()?, interval_ns: self.interval.to_ns()? })
    }
}

/// A timer that is set must not seem not to be.
fn round_up_us(ns: u64) -> u64 {
    ns.div_ceil(1000).saturating_mul(1000)
}

impl ITimerSpec {
    fn of(setting: Setting) -> Self {
        ITimerSpec {
            interval: TimeSpec::from_ns(setting.interval_ns),
            value: TimeSpec::from_ns(setting.left_ns),
        }
    }

    fn setting(self) -> Result<Setting> {
        Ok(Setting { left_ns: self.value.to_ns()?, interval_ns: self.interval.to_ns()? })
    }
}

fn which_timer(which: u32) -> Result<Which> {
    match which {
        ITIMER_REAL => Ok(Which::Real),
        ITIMER_VIRTUAL => Ok(Which::Virtual),
        ITIMER_PROF => Ok(Which::Profiling),
        _ => Err(Errno::EINVAL),
    }
}

/// getitimer(2).
pub fn getitimer(thread: &Arc<Thread>, which: u32, value: Va) -> Result<usize> {
    let process = &thread.process;
    let timer = process.timers.interval(process, which_timer(which)?);
    thread.mm().write(value, &ITimerVal::of(timer.setting()))?;
    Ok(0)
}

/// setitimer(2).
pub fn setitimer(thread: &Arc<Thread>, which: u32, new: Va, old: Va) -> Result<usize> {
    let process = &thread.process;
    let timer = process.timers.interval(process, which_timer(which)?);
    // Linux takes a null pointer for a timer that is not set.
    let setting = match new.0 {
        0 => Setting::default(),
        _ => thread.mm().read::<ITimerVal>(new)?.setting()?,
    };
    let before = timer.set(setting);
    if old.0 != 0 {
        thread.mm().write(old, &ITimerVal::of(before))?;
    }
    Ok(0)
}

/// alarm(2).
pub fn alarm(thread: &Arc<Thread>, seconds: u32) -> Result<usize> {
    const SECOND: u64 = 1_000_000_000;
    let process = &thread.process;
    let timer = process.timers.interval(process, Which::Real);
    let before = timer.set(Setting { left_ns: u64::from(seconds) * SECOND, interval_ns: 0 });
    // To the nearest second, but never 0 for an alarm that was still to come.
    let left = match before.left_ns {
        0 => 0,
        left => (left.saturating_add(SECOND / 2) / SECOND).max(1),
    };
    Ok(left as usize)
}

/// timer_create(2).
pub fn timer_create(thread: &Arc<Thread>, clock: u32, event: Va, id: Va) -> Result<usize> {
    let process = &thread.process;
    let base = match cpu_clock::named(thread, clock as i32) {
        Some(Ok(CpuClock::Process(process))) => Base::ProcessCpu(Arc::downgrade(&process)),
        Some(Ok(CpuClock::Thread(thread))) => Base::ThreadCpu(Arc::downgrade(&thread)),
        // A file's clock may have timers on Linux.
        Some(Err(_)) if clock as i32 & cpu_clock::WHICH == cpu_clock::WHICH => {
            return Err(Errno::EOPNOTSUPP);
        }
        Some(Err(errno)) => return Err(errno),
        None => Base::Clock(Clock::for_timers(clock as i32)?),
    };
    let event = match event.0 {
        0 => None,
        _ => Some(thread.mm().read::<SigEvent>(event)?),
    };
    let signo = event.map_or(SIGALRM, |event| event.signo as u32);
    let is_signal = (1..=LAST_SIGNAL).contains(&signo);
    let notify = match event.map_or(SIGEV_SIGNAL, |event| event.notify as u32) {
        SIGEV_NONE => Notify::Nobody,
        SIGEV_SIGNAL | SIGEV_THREAD if is_signal => Notify::Process(Arc::downgrade(process), signo),
        SIGEV_THREAD_ID if is_signal => {
            let tid = event.map_or(0, |event| event.tid as u32);
            let target = thread.find_thread(tid).ok();
            let target =
                target.filter(|t| Arc::ptr_eq(&t.process, process)).ok_or(Errno::EINVAL)?;
            Notify::Thread(Arc::downgrade(&target), signo)
        }
        _ => return Err(Errno::EINVAL),
    };
    let timer = process.timers.create(base, notify, event.map(|event| event.value))?;
    if let Err(error) = thread.mm().write(id, &timer) {
        process.timers.delete(timer)?;
        return Err(error);
    }
    Ok(0)
}

/// timer_settime(2).
pub fn timer_settime(thread: &Arc<Thread>, id: i32, flags: u32, new: Va, old: Va) -> Result<usize> {
    let setting = thread.mm().read::<ITimerSpec>(new)?.setting()?;
    let timer = thread.process.timers.get(id)?;
    let before = if flags & TIMER_ABSTIME != 0 {
        timer.timer.set_at(setting.left_ns, setting.interval_ns)
    } else {
        timer.timer.set(setting)
    };
    if old.0 != 0 {
        thread.mm().write(old, &ITimerSpec::of(before))?;
    }
    Ok(0)
}

/// timer_gettime(2).
pub fn timer_gettime(thread: &Arc<Thread>, id: i32, value: Va) -> Result<usize> {
    let timer = thread.process.timers.get(id)?;
    thread.mm().write(value, &ITimerSpec::of(timer.timer.setting()))?;
    Ok(0)
}

/// timer_getoverrun(2).
pub fn timer_getoverrun(thread: &Arc<Thread>, id: i32) -> Result<usize> {
    Ok(thread.process.timers.get(id)?.overrun() as usize)
}

/// timer_delete(2).
pub fn timer_delete(thread: &Arc<Thread>, id: i32) -> Result<usize> {
    thread.process.timers.delete(id)?;
    Ok(0)
}

/// timerfd_create(2).
pub fn timerfd_create(thread: &Arc<Thread>, clock: u32, flags: u32) -> Result<usize> {
    if flags & !(O_CLOEXEC | O_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let timerfd = TimerFd::new(Clock::for_timers(clock as i32)?);
    let file = OpenFile::new(timerfd, O_RDWR | flags & O_NONBLOCK);
    install::one(thread, file, flags & O_CLOEXEC != 0)
}

fn with_timerfd<T>(thread: &Thread, fd: Fd, action: impl FnOnce(&TimerFd) -> T) -> Result<T> {
    let file = thread.files().get(fd)?;
    file.downcast::<TimerFd>().map(action).ok_or(Errno::EINVAL)
}

/// timerfd_settime(2). The clock is the host's and never set by the guest: TFD_TIMER_CANCEL_ON_SET
/// has nothing to cancel.
pub fn timerfd_settime(
    thread: &Arc<Thread>,
    fd: Fd,
    flags: u32,
    new: Va,
    old: Va,
) -> Result<usize> {
    if flags & !(TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET) != 0 {
        return Err(Errno::EINVAL);
    }
    let setting = thread.mm().read::<ITimerSpec>(new)?.setting()?;
    let before =
        with_timerfd(thread, fd, |timerfd| timerfd.set(setting, flags & TFD_TIMER_ABSTIME != 0))?;
    if old.0 != 0 {
        thread.mm().write(old, &ITimerSpec::of(before))?;
    }
    Ok(0)
}

/// timerfd_gettime(2).
pub fn timerfd_gettime(thread: &Arc<Thread>, fd: Fd, value: Va) -> Result<usize> {
    let setting = with_timerfd(thread, fd, TimerFd::setting)?;
    thread.mm().write(value, &ITimerSpec::of(setting))?;
    Ok(0)
}
