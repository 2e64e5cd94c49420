//! Resource limits (getrlimit(2)).

use alloc::sync::{Arc, Weak};

use linux_raw_sys::general::{
    RLIM_NLIMITS, RLIM64_INFINITY, RLIMIT_AS, RLIMIT_CORE, RLIMIT_CPU, RLIMIT_MEMLOCK, RLIMIT_MSGQUEUE, RLIMIT_NICE,
    RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_RTPRIO, RLIMIT_SIGPENDING, RLIMIT_STACK, SIGKILL, SIGXCPU,
};

use super::signal::{self, SigInfo};
use super::{Process, current, exit};
use crate::mm::fault::Growth;
use crate::time;
use crate::wait::{Observer, PollMask};

/// Soft and hard limits by RLIMIT_* number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rlimits(pub [(u64, u64); RLIM_NLIMITS as usize]);

impl Default for Rlimits {
    fn default() -> Self {
        let infinity = RLIM64_INFINITY as u64;
        let mut limits = [(infinity, infinity); RLIM_NLIMITS as usize];
        let mut set = |which: u32, soft, hard| limits[which as usize] = (soft, hard);
        set(RLIMIT_STACK, 8 << 20, infinity);
        set(RLIMIT_CORE, 0, infinity);
        set(RLIMIT_NPROC, 30_000, 30_000);
        set(RLIMIT_NOFILE, 1024, 1 << 20);
        set(RLIMIT_MEMLOCK, 8 << 20, 8 << 20);
        set(RLIMIT_SIGPENDING, 30_000, 30_000);
        set(RLIMIT_MSGQUEUE, 819_200, 819_200);
        set(RLIMIT_NICE, 0, 0);
        set(RLIMIT_RTPRIO, 0, 0);
        Rlimits(limits)
    }
}

/// How often the use of CPU time is looked at at most.
const MIN_LOOK_NS: u64 = 10_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Looks at a process's use of CPU time when it may have reached RLIMIT_CPU.
struct CpuWatch(Weak<Process>);

impl Observer for CpuWatch {
    fn notify(&self, _events: PollMask) {
        let Some(process) = self.0.upgrade() else { return };
        process.traits.lock().cpu_watched = false;
        let (soft, hard) = process.rlimits.lock().get(RLIMIT_CPU);
        let used_ns = process.times().total_ns();
        if used_ns >= hard.saturating_mul(SECOND_NS) {
            return exit::group_exit(&process, SIGKILL as i32);
        }
        if used_ns >= soft.saturating_mul(SECOND_NS) {
            // As on Linux: once more after each further second.
            if let Some(limit) = process.rlimits.lock().0.get_mut(RLIMIT_CPU as usize) {
                limit.0 = soft.saturating_add(1);
            }
            let _ = signal::send_to_process(&process, SigInfo::kernel(SIGXCPU));
        }
        watch_cpu(&process);
    }
}

/// Begins to watch the process's use of CPU time, if RLIMIT_CPU limits it and it is not watched yet.
pub fn watch_cpu(process: &Arc<Process>) {
    let (soft, hard) = process.rlimits.lock().get(RLIMIT_CPU);
    let limit_ns = soft.min(hard).saturating_mul(SECOND_NS);
    if limit_ns == u64::MAX || process.is_zombie() || core::mem::replace(&mut process.traits.lock().cpu_watched, true) {
        return;
    }
    let left_ns = limit_ns.saturating_sub(process.times().total_ns());
    let threads = process.threads().len().max(1) as u64;
    let look_ns = time::monotonic_ns().saturating_add((left_ns / threads).max(MIN_LOOK_NS));
    time::insert(look_ns, Arc::new(CpuWatch(Arc::downgrade(process))));
}

/// How far a fault may extend the stack of a process.
pub fn growth(process: &Process) -> Growth {
    let limits = process.rlimits.lock();
    Growth { stack_bytes: limits.soft(RLIMIT_STACK), total_bytes: limits.soft(RLIMIT_AS) }
}

/// RLIMIT_STACK and RLIMIT_AS of the thread that the kernel works for, in bytes; 0 where it works for none.
pub fn of_current_memory() -> (u64, u64) {
    current::get().map_or((0, 0), |thread| {
        let Growth { stack_bytes, total_bytes } = growth(&thread.process);
        (stack_bytes, total_bytes)
    })
}

impl Rlimits {
    /// Soft and hard limit of `which`.
    pub fn get(&self, which: u32) -> (u64, u64) {
        let infinity = RLIM64_INFINITY as u64;
        self.0.get(which as usize).copied().unwrap_or((infinity, infinity))
    }

    /// The soft limit of `which`.
    pub fn soft(&self, which: u32) -> u64 {
        self.0.get(which as usize).map_or(RLIM64_INFINITY as u64, |l| l.0)
    }
}
