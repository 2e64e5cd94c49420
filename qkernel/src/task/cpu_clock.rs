//! CPU time of threads and processes, and the clock ids that name it (clock_getcpuclockid(3)).

use alloc::sync::Arc;

use linux_raw_sys::general::{CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID};

use super::{Process, Thread};
use crate::errno::{Errno, Result};

/// True if a clock id names CPU time.
pub fn is_cpu_clock(id: i32) -> bool {
    id < 0 || id as u32 == CLOCK_PROCESS_CPUTIME_ID || id as u32 == CLOCK_THREAD_CPUTIME_ID
}

/// Whose time a CPU clock is.
pub enum CpuClock {
    /// A process's.
    Process(Arc<Process>),
    /// A thread's.
    Thread(Arc<Thread>),
}

/// The bits of a dynamic id: ~pid << 3 | per-thread 4 | which (0 profiled, 1 virtual, 2 scheduled,
/// 3 a file's clock).
const PER_THREAD: i32 = 4;
/// The bits that say which clock it is: all set for one that is a file's.
pub const WHICH: i32 = 3;

/// The CPU clock with this id; `None` if it does not name one. EINVAL when its process or thread
/// does not exist, or the thread is another process's.
pub fn named(thread: &Arc<Thread>, id: i32) -> Option<Result<CpuClock>> {
    let own_process = || CpuClock::Process(thread.process.clone());
    let own_thread = || CpuClock::Thread(thread.clone());
    if id >= 0 {
        return match id as u32 {
            CLOCK_PROCESS_CPUTIME_ID => Some(Ok(own_process())),
            CLOCK_THREAD_CPUTIME_ID => Some(Ok(own_thread())),
            _ => None,
        };
    }
    if id & WHICH == WHICH {
        return Some(Err(Errno::EINVAL));
    }
    let found = match (!(id >> 3) as u32, id & PER_THREAD != 0) {
        (0, true) => Some(own_thread()),
        (0, false) => Some(own_process()),
        (number, true) => {
            let other = thread.find_thread(number).ok();
            let other = other.filter(|other| other.process.pid == thread.process.pid);
            other.map(CpuClock::Thread)
        }
        (number, false) => thread.find_process(number).ok().map(CpuClock::Process),
    };
    Some(found.ok_or(Errno::EINVAL))
}

/// The time of a CPU clock, as [`named`] finds it.
pub fn clock_ns(thread: &Arc<Thread>, id: i32) -> Option<Result<u64>> {
    let time = |clock| match clock {
        CpuClock::Process(process) => process.usage().total_ns(),
        CpuClock::Thread(thread) => thread.usage().total_ns(),
    };
    named(thread, id).map(|clock| clock.map(time))
}
