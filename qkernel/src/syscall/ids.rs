//! Process, thread, group and session ids.

use alloc::sync::Arc;

use qlib::Va;

use crate::errno::{Errno, Result};
use crate::task::{Process, Thread, session};

/// getpid(2).
pub fn getpid(thread: &Arc<Thread>) -> Result<usize> {
    Ok(thread.number_of(thread.process.pid) as usize)
}

/// gettid(2).
pub fn gettid(thread: &Arc<Thread>) -> Result<usize> {
    Ok(thread.number_of(thread.tid()) as usize)
}

/// getppid(2).
pub fn getppid(thread: &Arc<Thread>) -> Result<usize> {
    Ok(thread.number_of(thread.process.ppid()) as usize)
}

/// The process with `pid`, or the thread's own for 0.
pub fn process_or_self(thread: &Arc<Thread>, pid: i32) -> Result<Arc<Process>> {
    match pid {
        0 => Ok(thread.process.clone()),
        1.. => thread.find_process_of(pid as u32),
        _ => Err(Errno::ESRCH),
    }
}

/// getpgrp(2).
pub fn getpgrp(thread: &Arc<Thread>) -> Result<usize> {
    Ok(thread.number_of(thread.process.pgid()) as usize)
}

/// getpgid(2).
pub fn getpgid(thread: &Arc<Thread>, pid: i32) -> Result<usize> {
    Ok(thread.number_of(process_or_self(thread, pid)?.pgid()) as usize)
}

/// getsid(2).
pub fn getsid(thread: &Arc<Thread>, pid: i32) -> Result<usize> {
    Ok(thread.number_of(process_or_self(thread, pid)?.sid()) as usize)
}

/// setpgid(2).
pub fn setpgid(thread: &Arc<Thread>, pid: i32, pgid: i32) -> Result<usize> {
    if pgid < 0 {
        return Err(Errno::EINVAL);
    }
    let known = |number| if number == 0 { Ok(0) } else { thread.pid_of(number) };
    let pid = known(u32::try_from(pid).map_err(|_| Errno::ESRCH)?)?;
    let pgid = known(pgid as u32).map_err(|_| Errno::EPERM)?;
    session::set_pgid(&thread.process, pid, pgid)?;
    Ok(0)
}

/// setsid(2).
pub fn setsid(thread: &Arc<Thread>) -> Result<usize> {
    session::set_sid(&thread.process).map(|sid| thread.number_of(sid) as usize)
}

/// set_tid_address(2).
pub fn set_tid_address(thread: &Arc<Thread>, tidptr: Va) -> Result<usize> {
    thread.attrs.lock().clear_child_tid = tidptr;
    gettid(thread)
}
