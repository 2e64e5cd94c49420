//! The timers of a process: the three of setitimer(2), and those of timer_create(2).

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, Ordering};

use linux_raw_sys::general::{SIGALRM, SIGPROF, SIGVTALRM};

use super::signal::{self, SigInfo};
use super::timer::{Base, Expire, Timer};
use super::{Process, Signo, Thread};
use crate::errno::{Errno, Result};
use crate::sync::Mutex;
use crate::time::Clock;

/// Which timer of setitimer(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// ITIMER_REAL.
    Real,
    /// ITIMER_VIRTUAL.
    Virtual,
    /// ITIMER_PROF.
    Profiling,
}

/// Sends a process its timer's signal.
struct SendSignal {
    process: Weak<Process>,
    signo: Signo,
}

impl Expire for SendSignal {
    fn expired(&self, _times: u64) {
        if let Some(process) = self.process.upgrade() {
            // A signal of the kernel's own is not refused.
            let _ = signal::send_to_process(&process, SigInfo::kernel(self.signo));
        }
    }
}

struct IntervalTimer {
    timer: Arc<Timer>,
    _target: Arc<SendSignal>,
}

/// Whom a POSIX timer notifies, and how (sigevent(3type)).
pub enum Notify {
    /// SIGEV_NONE.
    Nobody,
    /// SIGEV_SIGNAL.
    Process(Weak<Process>, Signo),
    /// SIGEV_THREAD_ID.
    Thread(Weak<Thread>, Signo),
}

/// A timer of timer_create(2).
pub struct PosixTimer {
    /// When it goes off.
    pub timer: Arc<Timer>,
    id: i32,
    value: u64,
    notify: Notify,
    overrun: AtomicI32,
}

impl PosixTimer {
    /// timer_getoverrun(2): how often it went off beyond the first time for the signal sent last.
    pub fn overrun(&self) -> i32 {
        self.overrun.load(Ordering::Relaxed)
    }
}

impl Expire for PosixTimer {
    fn expired(&self, times: u64) {
        let times = i32::try_from(times).unwrap_or(i32::MAX);
        let (pending, signo) = match &self.notify {
            Notify::Nobody => return,
            Notify::Process(process, signo) => match process.upgrade() {
                Some(process) => (signal::add_overrun(&process, None, self.id, times), *signo),
                None => return,
            },
            Notify::Thread(thread, signo) => match thread.upgrade() {
                Some(thread) => {
                    (signal::add_overrun(&thread.process, Some(&thread), self.id, times), *signo)
                }
                None => return,
            },
        };
        if pending {
            self.overrun.store(self.overrun().saturating_add(times), Ordering::Relaxed);
            return;
        }
        self.overrun.store(times - 1, Ordering::Relaxed);
        let info = SigInfo::timer(signo, self.id, times - 1, self.value);
        // What RLIMIT_SIGPENDING refuses is lost, as on Linux.
        let _ = match &self.notify {
            Notify::Process(process, _) => {
                process.upgrade().map(|p| signal::send_to_process(&p, info))
            }
            Notify::Thread(thread, _) => thread.upgrade().map(|t| signal::send_to_thread(&t, info)),
            Notify::Nobody => None,
        };
    }
}

/// The most POSIX timers of a process.
const MAX_TIMERS: usize = 16_384;
/// What one takes, about, in bytes, with its place in the queue of timers.
const TIMER_BYTES: u64 = 640;

/// The timers of a process. A forked child begins without any.
#[derive(Default)]
pub struct ProcessTimers {
    interval: Mutex<[Option<IntervalTimer>; 3]>,
    posix: Mutex<(i32, BTreeMap<i32, Arc<PosixTimer>>)>,
}

impl ProcessTimers {
    /// The timer `which` of `process`, whose timers these are.
    pub fn interval(&self, process: &Arc<Process>, which: Which) -> Arc<Timer> {
        if let Some(known) = &self.interval.lock()[which as usize] {
            return known.timer.clone();
        }
        let me = Arc::downgrade(process);
        let (base, signo) = match which {
            Which::Real => (Base::Clock(Clock::Monotonic), SIGALRM),
            Which::Virtual => (Base::ProcessCpu(me.clone()), SIGVTALRM),
            Which::Profiling => (Base::ProcessCpu(me.clone()), SIGPROF),
        };
        let target = Arc::new(SendSignal { process: me, signo });
        let weak: Weak<dyn Expire> = Arc::downgrade(&(target.clone() as Arc<dyn Expire>));
        let timer = Timer::new(base, weak);
        self.interval.lock()[which as usize] =
            Some(IntervalTimer { timer: timer.clone(), _target: target });
        timer
    }

    /// timer_create(2): the new timer's id. `value` `None`: the id. EAGAIN when there are too many.
    pub fn create(&self, base: Base, notify: Notify, value: Option<u64>) -> Result<i32> {
        let mut posix = self.posix.lock();
        if posix.1.len() >= MAX_TIMERS {
            return Err(Errno::EAGAIN);
        }
        while posix.1.contains_key(&posix.0) {
            posix.0 = posix.0.wrapping_add(1) & i32::MAX;
        }
        let id = posix.0;
        posix.0 = id.wrapping_add(1) & i32::MAX;
        let timer = Arc::new_cyclic(|me: &Weak<PosixTimer>| PosixTimer {
            timer: Timer::new(base, me.clone()),
            id,
            value: value.unwrap_or(id as u64),
            notify,
            overrun: AtomicI32::new(0),
        });
        posix.1.insert(id, timer);
        Ok(id)
    }

    /// Memory that they take, about, in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.posix.lock().1.len() as u64 * TIMER_BYTES
    }

    /// The timer with this id. EINVAL.
    pub fn get(&self, id: i32) -> Result<Arc<PosixTimer>> {
        self.posix.lock().1.get(&id).cloned().ok_or(Errno::EINVAL)
    }

    /// timer_delete(2). EINVAL.
    pub fn delete(&self, id: i32) -> Result {
        let timer = self.posix.lock().1.remove(&id).ok_or(Errno::EINVAL)?;
        timer.timer.stop();
        Ok(())
    }

    /// execve(2): POSIX timers go, those of setitimer(2) stay.
    pub fn reset_for_exec(&self) {
        let timers: Vec<Arc<PosixTimer>> =
            core::mem::take(&mut self.posix.lock().1).into_values().collect();
        for timer in timers {
            timer.timer.stop();
        }
    }

    /// The process has ended.
    pub fn clear(&self) {
        self.reset_for_exec();
        let interval = core::mem::take(&mut *self.interval.lock());
        for timer in interval.into_iter().flatten() {
            timer.timer.stop();
        }
    }
}
