//! wait4(2), waitid(2), and process file descriptors.

use alloc::sync::Arc;

use linux_raw_sys::general::{
    __WALL, __WCLONE, __WNOTHREAD, O_NONBLOCK, O_RDWR, P_ALL, P_PGID, P_PID, P_PIDFD,
    RLIMIT_NOFILE, SIGCHLD, WCONTINUED, WEXITED, WNOHANG, WUNTRACED,
};
use qlib::Va;

use super::install;
use super::signal::{check_permission, read_info};
use super::sysinfo::RUsage;
use crate::creds::AccessMode;
use crate::errno::{Errno, Result};
use crate::fs::{Fd, OpenFile, synth};
use crate::task::signal::{SIGNALS, SigInfo, send_by};
use crate::task::wait::{KNOWN_OPTIONS, Who, wait_for};
use crate::task::{Process, Thread, access, pidfd};

/// The pid of what the thread calls `number`: a child, or a group, or ECHILD.
fn known(thread: &Thread, number: u32) -> Result<u32> {
    thread.pid_of(number).map_err(|_| Errno::ECHILD)
}

/// wait4(2).
pub async fn wait4(
    thread: &Arc<Thread>,
    pid: i32,
    wstatus: Va,
    options: u32,
    rusage: Va,
) -> Result<usize> {
    const ALLOWED: u32 = WNOHANG | WUNTRACED | WCONTINUED | __WALL | __WCLONE | __WNOTHREAD;
    if options & !ALLOWED != 0 {
        return Err(Errno::EINVAL);
    }
    let who = match pid {
        -1 => Who::Any,
        0 => Who::Group(thread.process.pgid()),
        i32::MIN => return Err(Errno::ESRCH),
        1.. => Who::Pid(known(thread, pid as u32)?),
        _ => Who::Group(known(thread, pid.unsigned_abs())?),
    };
    let Some(news) = wait_for(thread, who, options | WEXITED).await? else { return Ok(0) };
    let mm = thread.mm();
    if wstatus.0 != 0 {
        mm.write(wstatus, &news.event.status())?;
    }
    if rusage.0 != 0 {
        mm.write(rusage, &RUsage { maxrss: news.max_rss_kib as i64, ..RUsage::of(news.usage) })?;
    }
    Ok(news.pid as usize)
}

/// waitid(2).
pub async fn waitid(
    thread: &Arc<Thread>,
    idtype: u32,
    id: i32,
    infop: Va,
    options: u32,
    rusage: Va,
) -> Result<usize> {
    if options & !KNOWN_OPTIONS != 0 || options & (WEXITED | WUNTRACED | WCONTINUED) == 0 {
        return Err(Errno::EINVAL);
    }
    let mut options = options;
    let mut nonblocking_fd = false;
    let who = match idtype {
        P_ALL => Who::Any,
        P_PID if id > 0 => Who::Pid(known(thread, id as u32)?),
        P_PGID if id == 0 => Who::Group(thread.process.pgid()),
        P_PGID if id > 0 => Who::Group(known(thread, id as u32)?),
        P_PIDFD if id >= 0 => {
            nonblocking_fd = thread.files().get(id)?.is_nonblocking();
            Who::Pid(pidfd::process_of(thread, id)?.pid)
        }
        _ => return Err(Errno::EINVAL),
    };
    let asked_not_to_wait = options & WNOHANG != 0;
    if nonblocking_fd {
        options |= WNOHANG;
    }
    let news = wait_for(thread, who, options).await?;
    if news.is_none() && nonblocking_fd && !asked_not_to_wait {
        return Err(Errno::EAGAIN);
    }
    let mm = thread.mm();
    if let (Some(news), true) = (news, rusage.0 != 0) {
        mm.write(rusage, &RUsage { maxrss: news.max_rss_kib as i64, ..RUsage::of(news.usage) })?;
    }
    if infop.0 != 0 {
        // Linux stores these fields and leaves the rest of the structure alone.
        let info = match news {
            Some(news) => {
                let (code, status) = news.event.code_and_status();
                let uid = thread.creds().uid_shown(news.uid);
                SigInfo::child(SIGCHLD, code, news.pid, uid, status, 0, 0)
            }
            None => SigInfo::child(0, 0, 0, 0, 0, 0, 0),
        };
        mm.write_bytes(infop, &zerocopy::IntoBytes::as_bytes(&info)[..28])?;
    }
    Ok(0)
}

const PIDFD_NONBLOCK: u32 = O_NONBLOCK;

/// pidfd_open(2).
pub fn pidfd_open(thread: &Arc<Thread>, pid: i32, flags: u32) -> Result<usize> {
    if pid <= 0 || flags & !PIDFD_NONBLOCK != 0 {
        return Err(Errno::EINVAL);
    }
    let process = match thread.find_process(pid as u32) {
        // A thread that is not the first of its process.
        Err(_) if thread.find_thread(pid as u32).is_ok() => return Err(Errno::EINVAL),
        found => found?,
    };
    let file = OpenFile::new(pidfd::PidFd::make(process), O_RDWR | flags);
    let fd = thread.files().insert(file, true, 0, thread.process.rlimit(RLIMIT_NOFILE))?;
    Ok(fd as usize)
}

/// The process that descriptor `fd` names: one of pidfd_open(2), or its directory in /proc.
fn addressed(thread: &Thread, fd: Fd) -> Result<Arc<Process>> {
    let file = thread.files().get(fd)?;
    synth::process_of(&file).unwrap_or_else(|| pidfd::process_of(thread, fd))
}

/// pidfd_send_signal(2).
pub fn pidfd_send_signal(
    thread: &Arc<Thread>,
    pidfd: Fd,
    sig: u32,
    info: Va,
    flags: u32,
) -> Result<usize> {
    if flags != 0 || sig > SIGNALS {
        return Err(Errno::EINVAL);
    }
    let process = addressed(thread, pidfd)?;
    if process.is_zombie() {
        return Err(Errno::ESRCH);
    }
    if thread.number_of(process.pid) == 0 {
        // Of a namespace that does not lie in the caller's.
        return Err(Errno::EINVAL);
    }
    let forged = if info.0 == 0 {
        None
    } else {
        let info = read_info(thread, sig, info)?;
        if info.signal() != sig {
            return Err(Errno::EINVAL);
        }
        if !info.may_be_forged() && process.pid != thread.process.pid {
            return Err(Errno::EPERM);
        }
        Some(info)
    };
    check_permission(thread, &process, sig)?;
    if sig != 0 {
        send_by(thread, &process, None, |pid, uid| forged.unwrap_or(SigInfo::user(sig, pid, uid)))?;
    }
    Ok(0)
}

/// pidfd_getfd(2): for who may attach to the process (ptrace(2)).
pub fn pidfd_getfd(thread: &Arc<Thread>, pidfd: Fd, targetfd: Fd, flags: u32) -> Result<usize> {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let process = pidfd::process_of(thread, pidfd)?;
    let other = process.first_thread().ok_or(Errno::ESRCH)?;
    access::check(thread, &other, AccessMode::Real)?;
    install::one(thread, other.files().get(targetfd)?, true)
}
