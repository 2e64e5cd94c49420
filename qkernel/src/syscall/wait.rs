//! wait4(2), waitid(2).

use alloc::sync::Arc;

use linux_raw_sys::general::{
    __WALL, __WCLONE, __WNOTHREAD, P_ALL, P_PGID, P_PID, P_PIDFD, SIGCHLD, WCONTINUED, WEXITED,
    WNOHANG, WUNTRACED,
};
use qlib::Va;

use super::sysinfo::RUsage;
use crate::errno::{Errno, Result};
use crate::task::signal::SigInfo;
use crate::task::wait::{KNOWN_OPTIONS, Who, wait_for};
use crate::task::{Thread, pidfd};

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
            Who::Pid(pidfd::number_of(thread, id)?)
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
