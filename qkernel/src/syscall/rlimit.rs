//! Resource limits (getrlimit(2)).

use alloc::sync::Arc;

use linux_raw_sys::general::{CAP_SYS_RESOURCE, RLIM_NLIMITS, RLIMIT_CPU, RLIMIT_NOFILE};
use qlib::Va;

use super::ids::process_or_self;
use crate::abi::abi_struct;
use crate::errno::{Errno, Result};
use crate::fs::fdtable::MAX_FDS;
use crate::task::cpu_limit;
use crate::task::{Process, Thread};

abi_struct! {
    /// struct rlimit.
    pub struct RLimit { pub soft: u64, pub hard: u64, }
}

fn get(process: &Process, resource: u32) -> Result<RLimit> {
    let limits = process.rlimits.lock();
    limits.0.get(resource as usize).map(|&(soft, hard)| RLimit { soft, hard }).ok_or(Errno::EINVAL)
}

fn set(thread: &Thread, process: &Arc<Process>, resource: u32, new: RLimit) -> Result {
    let old = get(process, resource)?;
    if new.soft > new.hard {
        return Err(Errno::EINVAL);
    }
    let beyond_table = resource == RLIMIT_NOFILE && new.hard > MAX_FDS as u64;
    if beyond_table || (new.hard > old.hard && !thread.creds().capable(CAP_SYS_RESOURCE)) {
        return Err(Errno::EPERM);
    }
    if let Some(slot) = process.rlimits.lock().0.get_mut(resource as usize) {
        *slot = (new.soft, new.hard);
    }
    if resource == RLIMIT_CPU {
        cpu_limit::watch(process);
    }
    Ok(())
}

/// getrlimit(2).
pub fn getrlimit(thread: &Arc<Thread>, resource: u32, rlim: Va) -> Result<usize> {
    let limit = get(&thread.process, resource)?;
    thread.mm().write(rlim, &limit)?;
    Ok(0)
}

/// setrlimit(2).
pub fn setrlimit(thread: &Arc<Thread>, resource: u32, rlim: Va) -> Result<usize> {
    let new = thread.mm().read(rlim)?;
    set(thread, &thread.process, resource, new)?;
    Ok(0)
}

/// prlimit(2).
pub fn prlimit64(
    thread: &Arc<Thread>,
    pid: i32,
    resource: u32,
    new_limit: Va,
    old_limit: Va,
) -> Result<usize> {
    if resource >= RLIM_NLIMITS {
        return Err(Errno::EINVAL);
    }
    let target = process_or_self(thread, pid)?;
    if target.pid != thread.process.pid {
        let (own, its) = (thread.creds(), target.first_thread().ok_or(Errno::ESRCH)?.creds());
        let same = [its.uid, its.euid, its.suid].iter().all(|id| *id == own.uid)
            && [its.gid, its.egid, its.sgid].iter().all(|id| *id == own.gid);
        if !same && !own.capable_in(&its.user, CAP_SYS_RESOURCE) {
            return Err(Errno::EPERM);
        }
    }
    let mm = thread.mm();
    let old = get(&target, resource)?;
    if new_limit.0 != 0 {
        set(thread, &target, resource, mm.read(new_limit)?)?;
    }
    if old_limit.0 != 0 {
        mm.write(old_limit, &old)?;
    }
    Ok(0)
}
