//! RLIMIT_CPU (getrlimit(2)): a process that uses more CPU time gets SIGXCPU, and SIGKILL at last.

use alloc::sync::{Arc, Weak};

use linux_raw_sys::general::{RLIMIT_CPU, SIGKILL, SIGXCPU};

use super::signal::{self, SigInfo};
use super::{Process, exit};
use crate::time;
use crate::wait::{Observer, PollMask};

/// How often the use of CPU time is looked at at most.
const MIN_LOOK_NS: u64 = 10_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Looks at a process's use of CPU time when it may have reached RLIMIT_CPU.
struct CpuWatch {
    process: Weak<Process>,
    /// When: another look may have been set since, for an earlier moment.
    look_ns: u64,
}

impl Observer for CpuWatch {
    fn notify(&self, _events: PollMask) {
        let Some(process) = self.process.upgrade() else { return };
        {
            let next = &mut process.traits.lock().cpu_look_ns;
            if *next != self.look_ns {
                return;
            }
            *next = 0;
        }
        let (soft, hard) = process.rlimits.lock().get(RLIMIT_CPU);
        let used_ns = process.usage().total_ns();
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
        watch(&process);
    }
}

/// Has the process's use of CPU time looked at when it may have reached RLIMIT_CPU: that, or the
/// number of its threads, is another.
pub fn watch(process: &Arc<Process>) {
    let (soft, hard) = process.rlimits.lock().get(RLIMIT_CPU);
    let limit_ns = soft.min(hard).saturating_mul(SECOND_NS);
    if limit_ns == u64::MAX || process.is_zombie() {
        return;
    }
    let left_ns = limit_ns.saturating_sub(process.usage().total_ns());
    let threads = process.thread_count().max(1) as u64;
    let look_ns = time::monotonic_ns().saturating_add((left_ns / threads).max(MIN_LOOK_NS));
    {
        let next = &mut process.traits.lock().cpu_look_ns;
        if *next != 0 && *next <= look_ns {
            return;
        }
        *next = look_ns;
    }
    time::insert_own(look_ns, Arc::new(CpuWatch { process: Arc::downgrade(process), look_ns }));
}
