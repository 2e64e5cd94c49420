//! CPU time of threads and processes, and the clock ids that name it (clock_getcpuclockid(3)).

use linux_raw_sys::general::{CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID};

use super::Thread;
use super::process::Usage;
use crate::errno::{Errno, Result};

/// True if a clock id names CPU time.
pub fn is_cpu_clock(id: i32) -> bool {
    id < 0 || id as u32 == CLOCK_PROCESS_CPUTIME_ID || id as u32 == CLOCK_THREAD_CPUTIME_ID
}

/// The time of a CPU clock; `None` if `id` does not name one. EINVAL when its process or thread
/// does not exist.
pub fn clock_ns(thread: &Thread, id: i32) -> Option<Result<u64>> {
    let sum = |used: Usage| Ok(used.total_ns());
    if id >= 0 {
        return match id as u32 {
            CLOCK_PROCESS_CPUTIME_ID => Some(sum(thread.process.usage())),
            CLOCK_THREAD_CPUTIME_ID => Some(sum(thread.usage())),
            _ => None,
        };
    }
    // The bits of a dynamic id: ~pid << 3 | per-thread 4 | which (0 profiled, 1 virtual, 2
    // scheduled, 3 a file's clock).
    const PER_THREAD: i32 = 4;
    const WHICH: i32 = 3;
    if id & WHICH == WHICH {
        return Some(Err(Errno::EINVAL));
    }
    let number = !(id >> 3) as u32;
    Some(if id & PER_THREAD != 0 {
        let other = if number == 0 { None } else { thread.find_thread(number).ok() };
        match other {
            Some(other) if other.process.pid == thread.process.pid => sum(other.usage()),
            None if number == 0 => sum(thread.usage()),
            _ => Err(Errno::EINVAL),
        }
    } else if number == 0 {
        sum(thread.process.usage())
    } else {
        thread.find_process(number).map_or(Err(Errno::EINVAL), |process| sum(process.usage()))
    })
}
