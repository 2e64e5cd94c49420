//! timerfd_create(2): a timer behind a descriptor.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use crate::errno::{Errno, Result};
use crate::fs::{FileOps, OpenFile};
use crate::io::IoBuffer;
use crate::sync::Mutex;
use crate::task::timer::{Base, Expire, Setting, Timer};
use crate::time::Clock;
use crate::wait::{PollMask, WaitQueue};

/// A timerfd.
pub struct TimerFd {
    clock: Clock,
    timer: Arc<Timer>,
    /// How often it went off since the last read.
    count: Mutex<u64>,
    queue: WaitQueue,
}

impl TimerFd {
    /// One that is not set.
    pub fn new(clock: Clock) -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<TimerFd>| TimerFd {
            clock,
            timer: Timer::new(Base::Clock(clock), me.clone()),
            count: Mutex::new(0),
            queue: WaitQueue::new(),
        })
    }

    /// timerfd_settime(2): how it was set before. `absolute`: `setting.left_ns` is a time of its
    /// clock.
    pub fn set(&self, setting: Setting, absolute: bool) -> Setting {
        *self.count.lock() = 0;
        if absolute {
            self.timer.set_at(setting.left_ns, setting.interval_ns)
        } else {
            self.timer.set(setting)
        }
    }

    /// timerfd_gettime(2).
    pub fn setting(&self) -> Setting {
        self.timer.setting()
    }

    /// Its clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }
}

impl Expire for TimerFd {
    fn expired(&self, times: u64) {
        {
            let mut count = self.count.lock();
            *count = count.saturating_add(times);
        }
        self.queue.wake(PollMask::READ);
    }
}

impl FileOps for TimerFd {
    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        if buffer.remaining() < 8 {
            return Err(Errno::EINVAL);
        }
        let count = core::mem::take(&mut *self.count.lock());
        if count == 0 {
            return Err(Errno::EAGAIN);
        }
        buffer.put(&count.to_ne_bytes())
    }

    fn poll(&self, _file: &OpenFile) -> PollMask {
        if *self.count.lock() > 0 { PollMask::READ } else { PollMask::empty() }
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.queue)
    }

    fn release(&self, _file: &OpenFile) {
        self.timer.stop();
    }

    fn label(&self, _file: &OpenFile) -> Vec<u8> {
        b"anon_inode:[timerfd]".to_vec()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
