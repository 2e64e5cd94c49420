//! Scheduling (sched(7)). Who decides when user threads run, the host or the `kvm` platform, knows
//! nothing of policies and priorities: what programs set here is kept and reported back. `kvm`
//! keeps to the sets of CPUs.

use alloc::sync::Arc;

use linux_raw_sys::general::{
    CAP_SYS_NICE, PRIO_PGRP, PRIO_PROCESS, PRIO_USER, RLIMIT_NICE, RLIMIT_RTPRIO, SCHED_BATCH,
    SCHED_FIFO, SCHED_IDLE, SCHED_NORMAL, SCHED_RESET_ON_FORK, SCHED_RR,
};
use qlib::Va;

use crate::abi::{TimeSpec, abi_struct};
use crate::errno::{Errno, Result};
use crate::executor;
use crate::task::{Thread, affinity, table};

/// The highest real-time priority.
const MAX_RT_PRIORITY: i32 = 99;

fn target(thread: &Arc<Thread>, pid: i32) -> Result<Arc<Thread>> {
    match pid {
        0 => Ok(thread.clone()),
        1.. => thread
            .find_thread(pid as u32)
            .or_else(|_| thread.find_process(pid as u32)?.first_thread().ok_or(Errno::ESRCH)),
        _ => Err(Errno::EINVAL),
    }
}

/// True if `thread` may change how `other` is scheduled: EPERM.
fn check_owner(thread: &Thread, other: &Thread) -> Result {
    let (own, its) = (thread.creds(), other.creds());
    if own.euid == its.euid || own.euid == its.uid || own.capable_in(&its.user, CAP_SYS_NICE) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// sched_yield(2).
pub async fn sched_yield(_thread: &Arc<Thread>) -> Result<usize> {
    executor::yield_now().await;
    Ok(0)
}

/// sched_setaffinity(2).
pub fn sched_setaffinity(
    thread: &Arc<Thread>,
    pid: i32,
    cpusetsize: usize,
    mask: Va,
) -> Result<usize> {
    let other = target(thread, pid).map_err(|_| Errno::ESRCH)?;
    let mut bytes = [0; 8];
    let length = cpusetsize.min(8);
    thread.mm().read_bytes(mask, &mut bytes[..length])?;
    check_owner(thread, &other)?;
    affinity::set(&other, u64::from_le_bytes(bytes))?;
    Ok(0)
}

/// sched_getaffinity(2).
pub fn sched_getaffinity(
    thread: &Arc<Thread>,
    pid: i32,
    cpusetsize: usize,
    mask: Va,
) -> Result<usize> {
    if cpusetsize < 8 || !cpusetsize.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let other = target(thread, pid).map_err(|_| Errno::ESRCH)?;
    thread.mm().write(mask, &affinity::of(&other))?;
    Ok(8)
}

fn check_policy(policy: u32, priority: i32) -> Result {
    match policy & !SCHED_RESET_ON_FORK {
        SCHED_NORMAL | SCHED_BATCH | SCHED_IDLE if priority == 0 => Ok(()),
        SCHED_FIFO | SCHED_RR if (1..=MAX_RT_PRIORITY).contains(&priority) => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

fn set_policy(thread: &Arc<Thread>, pid: i32, policy: u32, priority: i32) -> Result<usize> {
    let other = target(thread, pid)?;
    check_policy(policy, priority)?;
    check_owner(thread, &other)?;
    let is_realtime = matches!(policy & !SCHED_RESET_ON_FORK, SCHED_FIFO | SCHED_RR);
    let allowed = thread.process.rlimit(RLIMIT_RTPRIO);
    if is_realtime && priority as u64 > allowed && !thread.creds().capable(CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    other.attrs.lock().policy = (policy, priority);
    Ok(0)
}

/// sched_setscheduler(2).
pub fn sched_setscheduler(thread: &Arc<Thread>, pid: i32, policy: i32, param: Va) -> Result<usize> {
    let policy = u32::try_from(policy).map_err(|_| Errno::EINVAL)?;
    let priority: i32 = thread.mm().read(param)?;
    set_policy(thread, pid, policy, priority)
}

/// sched_getscheduler(2).
pub fn sched_getscheduler(thread: &Arc<Thread>, pid: i32) -> Result<usize> {
    Ok(target(thread, pid)?.attrs.lock().policy.0 as usize)
}

/// sched_setparam(2).
pub fn sched_setparam(thread: &Arc<Thread>, pid: i32, param: Va) -> Result<usize> {
    let priority: i32 = thread.mm().read(param)?;
    let policy = target(thread, pid)?.attrs.lock().policy.0;
    set_policy(thread, pid, policy, priority)
}

/// sched_getparam(2).
pub fn sched_getparam(thread: &Arc<Thread>, pid: i32, param: Va) -> Result<usize> {
    let priority = target(thread, pid)?.attrs.lock().policy.1;
    thread.mm().write(param, &priority)?;
    Ok(0)
}

/// sched_get_priority_max(2).
pub fn sched_get_priority_max(_thread: &Arc<Thread>, policy: u32) -> Result<usize> {
    match policy {
        SCHED_FIFO | SCHED_RR => Ok(MAX_RT_PRIORITY as usize),
        SCHED_NORMAL | SCHED_BATCH | SCHED_IDLE => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

/// sched_get_priority_min(2).
pub fn sched_get_priority_min(thread: &Arc<Thread>, policy: u32) -> Result<usize> {
    sched_get_priority_max(thread, policy).map(|max| max.min(1))
}

/// sched_rr_get_interval(2).
pub fn sched_rr_get_interval(thread: &Arc<Thread>, pid: i32, tp: Va) -> Result<usize> {
    const ROUND_ROBIN_NS: u64 = 100_000_000;
    const FAIR_NS: u64 = 4_000_000;
    let policy = target(thread, pid)?.attrs.lock().policy.0 & !SCHED_RESET_ON_FORK;
    let ns = match policy {
        SCHED_RR => ROUND_ROBIN_NS,
        SCHED_FIFO => 0,
        _ => FAIR_NS,
    };
    thread.mm().write(tp, &TimeSpec::from_ns(ns))?;
    Ok(0)
}

abi_struct! {
    /// struct sched_attr, first version.
    pub struct SchedAttr {
        pub size: u32, pub policy: u32, pub flags: u64, pub nice: i32, pub priority: u32,
        pub runtime: u64, pub deadline: u64, pub period: u64,
    }
}

const ATTR_BYTES: u32 = size_of::<SchedAttr>() as u32;
const FLAG_RESET_ON_FORK: u64 = 1;

/// sched_setattr(2), without deadline scheduling (EINVAL).
pub fn sched_setattr(thread: &Arc<Thread>, pid: i32, attr: Va, flags: u32) -> Result<usize> {
    if flags != 0 || attr.0 == 0 {
        return Err(Errno::EINVAL);
    }
    let mm = thread.mm();
    let size: u32 = mm.read(attr)?;
    if size != 0 && size < ATTR_BYTES {
        mm.write(attr, &ATTR_BYTES)?;
        return Err(Errno::E2BIG);
    }
    let attr: SchedAttr = mm.read(attr)?;
    if attr.flags & !FLAG_RESET_ON_FORK != 0 {
        return Err(Errno::EINVAL);
    }
    let reset = if attr.flags & FLAG_RESET_ON_FORK != 0 { SCHED_RESET_ON_FORK } else { 0 };
    let priority = i32::try_from(attr.priority).map_err(|_| Errno::EINVAL)?;
    set_policy(thread, pid, attr.policy | reset, priority)?;
    if matches!(attr.policy, SCHED_NORMAL | SCHED_BATCH) {
        set_nice(thread, &*target(thread, pid)?, attr.nice)?;
    }
    Ok(0)
}

/// sched_getattr(2).
pub fn sched_getattr(
    thread: &Arc<Thread>,
    pid: i32,
    attr: Va,
    size: u32,
    flags: u32,
) -> Result<usize> {
    if flags != 0 || size < ATTR_BYTES || u64::from(size) > qlib::PAGE_SIZE {
        return Err(Errno::EINVAL);
    }
    let other = target(thread, pid)?;
    let (policy, priority, nice) = {
        let attrs = other.attrs.lock();
        (attrs.policy.0, attrs.policy.1, attrs.nice)
    };
    let out = SchedAttr {
        size: ATTR_BYTES,
        policy: policy & !SCHED_RESET_ON_FORK,
        flags: if policy & SCHED_RESET_ON_FORK != 0 { FLAG_RESET_ON_FORK } else { 0 },
        nice,
        priority: priority as u32,
        ..SchedAttr::default()
    };
    thread.mm().write(attr, &out)?;
    Ok(0)
}

/// The threads that getpriority(2)'s arguments name.
fn by_priority_target(
    thread: &Arc<Thread>,
    which: u32,
    who: i32,
) -> Result<alloc::vec::Vec<Arc<Thread>>> {
    let id = u32::try_from(who).map_err(|_| Errno::ESRCH)?;
    let threads = match which {
        PRIO_PROCESS => alloc::vec![target(thread, who).map_err(|_| Errno::ESRCH)?],
        PRIO_PGRP => {
            let pgid = if id == 0 { thread.process.pgid() } else { thread.pid_of(id)? };
            table::group(pgid).iter().flat_map(|p| p.threads()).collect()
        }
        PRIO_USER => {
            let creds = thread.creds();
            let uid = match id {
                0 => creds.uid,
                id => creds.user.uid_of(id).map_err(|_| Errno::ESRCH)?,
            };
            let is_seen = |t: &Arc<Thread>| thread.number_of(t.tid()) != 0;
            table::threads().filter(|t| t.creds().uid == uid && is_seen(t)).collect()
        }
        _ => return Err(Errno::EINVAL),
    };
    if threads.is_empty() { Err(Errno::ESRCH) } else { Ok(threads) }
}

fn set_nice(thread: &Thread, other: &Thread, nice: i32) -> Result {
    check_owner(thread, other)?;
    let nice = nice.clamp(-20, 19);
    let old = other.attrs.lock().nice;
    let floor = 20 - i64::try_from(thread.process.rlimit(RLIMIT_NICE)).unwrap_or(40).min(40);
    if nice < old && i64::from(nice) < floor && !thread.creds().capable(CAP_SYS_NICE) {
        return Err(Errno::EACCES);
    }
    other.attrs.lock().nice = nice;
    Ok(())
}

/// getpriority(2): 20 minus the nice value, as the kernel's interface has it.
pub fn getpriority(thread: &Arc<Thread>, which: u32, who: i32) -> Result<usize> {
    let threads = by_priority_target(thread, which, who)?;
    let lowest = threads.iter().map(|t| t.attrs.lock().nice).min().unwrap_or(0);
    Ok((20 - lowest) as usize)
}

/// setpriority(2).
pub fn setpriority(thread: &Arc<Thread>, which: u32, who: i32, prio: i32) -> Result<usize> {
    for other in by_priority_target(thread, which, who)? {
        set_nice(thread, &other, prio)?;
    }
    Ok(0)
}

const IOPRIO_WHO_PROCESS: i32 = 1;

/// ioprio_get(2), of single threads.
pub fn ioprio_get(thread: &Arc<Thread>, which: i32, who: i32) -> Result<usize> {
    if which != IOPRIO_WHO_PROCESS {
        return Err(Errno::EINVAL);
    }
    Ok(target(thread, who).map_err(|_| Errno::ESRCH)?.attrs.lock().io_priority as usize)
}

/// ioprio_set(2), of single threads. Kept and reported back; the host orders disk access.
pub fn ioprio_set(thread: &Arc<Thread>, which: i32, who: i32, ioprio: i32) -> Result<usize> {
    const CLASS_SHIFT: i32 = 13;
    let class = ioprio >> CLASS_SHIFT;
    if which != IOPRIO_WHO_PROCESS || !(0..=3).contains(&class) || ioprio & 0x1fff > 7 {
        return Err(Errno::EINVAL);
    }
    let other = target(thread, who).map_err(|_| Errno::ESRCH)?;
    check_owner(thread, &other)?;
    if class == 1 && !thread.creds().capable(CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    other.attrs.lock().io_priority = ioprio as u32;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_fit_their_policy() {
        assert_eq!(check_policy(SCHED_NORMAL, 0), Ok(()));
        assert_eq!(check_policy(SCHED_NORMAL, 1), Err(Errno::EINVAL));
        assert_eq!(check_policy(SCHED_FIFO, 0), Err(Errno::EINVAL));
        assert_eq!(check_policy(SCHED_RR | SCHED_RESET_ON_FORK, 99), Ok(()));
        assert_eq!(check_policy(SCHED_RR, 100), Err(Errno::EINVAL));
        assert_eq!(check_policy(6, 0), Err(Errno::EINVAL));
        assert_eq!(ATTR_BYTES, 48);
    }
}
