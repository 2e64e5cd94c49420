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
struct CpuWatch(Weak<Process>);

impl Observer for CpuWatch {
    fn notify(&self, _events: PollMask) {
        let Some(process) = self.0.upgrade() else { return };
        process.traits.lock().cpu_watched = false;
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

/// Begins to watch the process's use of CPU time, if RLIMIT_CPU limits it and it is not watched
/// yet.
pub fn watch(process: &Arc<Process>) {
    let (soft, hard) = process.rlimits.lock().get(RLIMIT_CPU);
    let limit_ns = soft.min(hard).saturating_mul(SECOND_NS);
    if limit_ns == u64::MAX
        || process.is_zombie()
        || core::mem::replace(&mut process.traits.lock().cpu_watched, true)
    {
        return;
    }
    let left_ns = limit_ns.saturating_sub(process.usage().total_ns());
    let threads = process.thread_count().max(1) as u64;
    let look_ns = time::monotonic_ns().saturating_add((left_ns / threads).max(MIN_LOOK_NS));
    time::insert_own(look_ns, Arc::new(CpuWatch(Arc::downgrade(process))));
}
