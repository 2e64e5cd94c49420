//! Descriptors of processes and threads: pidfd_open(2), pidfd_send_signal(2), pidfd_getfd(2).

use alloc::sync::Arc;

use linux_raw_sys::general::{O_NONBLOCK, RLIMIT_NOFILE};
use qlib::Va;

use super::install;
use super::signal::check_permission;
use crate::creds::AccessMode;
use crate::errno::{Errno, Result};
use crate::fs::{Fd, synth};
use crate::task::pidfd::{PIDFD_THREAD, PidFd};
use crate::task::signal::{SIGNALS, SigInfo, send_by};
use crate::task::{Process, Thread, access, table};

const PIDFD_NONBLOCK: u32 = O_NONBLOCK;
/// PIDFD_SIGNAL_* (linux/pidfd.h).
const SIGNAL_THREAD: u32 = 1;
const SIGNAL_THREAD_GROUP: u32 = 2;
const SIGNAL_PROCESS_GROUP: u32 = 4;

/// pidfd_open(2).
pub fn pidfd_open(thread: &Arc<Thread>, pid: i32, flags: u32) -> Result<usize> {
    if pid <= 0 || flags & !(PIDFD_NONBLOCK | PIDFD_THREAD) != 0 {
        return Err(Errno::EINVAL);
    }
    let file = match (thread.find_process(pid as u32), thread.find_thread(pid as u32)) {
        (Ok(process), _) => PidFd::open(process, flags),
        (Err(_), Ok(other)) if flags & PIDFD_THREAD != 0 => PidFd::open_thread(&other, flags),
        // A thread that is not the first of its process.
        (Err(_), Ok(_)) => return Err(Errno::EINVAL),
        (Err(error), Err(_)) => return Err(error),
    };
    let fd = thread.files().insert(file, true, 0, thread.process.rlimit(RLIMIT_NOFILE))?;
    Ok(fd as usize)
}

/// Whom a signal goes to.
enum Target {
    Thread(Arc<Thread>),
    Process(Arc<Process>),
    /// The group that has the number of the process or thread for its own.
    Group(u32),
    /// One that has ended, and takes nothing any more.
    Zombie(Arc<Process>),
}

impl Target {
    /// What descriptor `fd` names: one of pidfd_open(2), or a process's directory in /proc. ESRCH.
    fn find(thread: &Thread, fd: Fd, flags: u32) -> Result<Target> {
        let file = thread.files().get(fd)?;
        let of_process = synth::process_of(&file).transpose()?;
        let named = match &of_process {
            Some(_) => None,
            None => Some(file.downcast::<PidFd>().ok_or(Errno::EBADF)?),
        };
        let process = of_process.as_ref().or(named.map(|named| &named.process));
        let process = process.ok_or(Errno::EBADF)?;
        if thread.number_of(process.pid) == 0 && process.is_in_table() {
            // Of a namespace that does not lie in the caller's.
            return Err(Errno::EINVAL);
        }
        let is_of_thread = named.is_some() && file.flags() & PIDFD_THREAD != 0;
        let scope = match flags {
            0 if is_of_thread => SIGNAL_THREAD,
            0 => SIGNAL_THREAD_GROUP,
            scope => scope,
        };
        let is_there = match named {
            Some(named) => named.number().is_some(),
            None => process.is_in_table(),
        };
        let number = named.map_or(process.pid, PidFd::tid);
        if scope == SIGNAL_PROCESS_GROUP {
            // The group may outlive the process, but not the number's being another's. No group
            // has that of a thread.
            let is_others = table::process(number).is_some_and(|now| now.serial != process.serial);
            let has_group = number == process.pid && !is_others;
            return if has_group { Ok(Target::Group(number)) } else { Err(Errno::ESRCH) };
        }
        if !is_there {
            return Err(Errno::ESRCH);
        }
        let living = || match named {
            Some(named) => named.living_thread(),
            None => table::thread(number),
        };
        Ok(match (scope, process.is_zombie()) {
            (_, true) => Target::Zombie(process.clone()),
            (SIGNAL_THREAD, false) => match living() {
                Some(target) => Target::Thread(target),
                None => Target::Zombie(process.clone()),
            },
            _ => Target::Process(process.clone()),
        })
    }

    /// True if it is the calling process, or its calling thread, alone.
    fn is_caller(&self, thread: &Thread) -> bool {
        match self {
            Target::Thread(target) => target.tid() == thread.tid(),
            Target::Process(process) => {
                process.pid == thread.process.pid && thread.tid() == process.pid
            }
            Target::Group(_) | Target::Zombie(_) => false,
        }
    }
}

/// pidfd_send_signal(2).
pub fn pidfd_send_signal(
    thread: &Arc<Thread>,
    pidfd: Fd,
    sig: u32,
    info: Va,
    flags: u32,
) -> Result<usize> {
    let known = [0, SIGNAL_THREAD, SIGNAL_THREAD_GROUP, SIGNAL_PROCESS_GROUP];
    if !known.contains(&flags) || sig > SIGNALS {
        return Err(Errno::EINVAL);
    }
    let target = Target::find(thread, pidfd, flags)?;
    let forged = if info.0 == 0 {
        None
    } else {
        let info = thread.mm().read::<SigInfo>(info)?;
        if info.signo != sig as i32 {
            return Err(Errno::EINVAL);
        }
        if !info.may_be_forged() && !target.is_caller(thread) {
            return Err(Errno::EPERM);
        }
        Some(info)
    };
    let send = |process: &Arc<Process>, to: Option<&Arc<Thread>>| {
        check_permission(thread, process, sig)?;
        if sig == 0 {
            return Ok(());
        }
        send_by(thread, process, to, |pid, uid| {
            let plain = if to.is_some() { SigInfo::thread } else { SigInfo::user };
            forged.unwrap_or_else(|| plain(sig, pid, uid))
        })
    };
    match target {
        Target::Thread(target) => send(&target.process, Some(&target))?,
        Target::Process(process) => send(&process, None)?,
        Target::Zombie(process) => check_permission(thread, &process, sig)?,
        Target::Group(pgid) => {
            // As kill(2): it is enough if one of them gets it.
            let mut outcome = Err(Errno::ESRCH);
            for process in table::group(pgid) {
                let sent = send(&process, None);
                if outcome.is_err() {
                    outcome = sent;
                }
            }
            outcome?;
        }
    }
    Ok(0)
}

/// pidfd_getfd(2): for who may attach to the process (ptrace(2)).
pub fn pidfd_getfd(thread: &Arc<Thread>, pidfd: Fd, targetfd: Fd, flags: u32) -> Result<usize> {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let file = thread.files().get(pidfd)?;
    let other = file.downcast::<PidFd>().ok_or(Errno::EBADF)?.some_thread()?;
    access::check(thread, &other, AccessMode::Real)?;
    install::one(thread, other.files().get(targetfd)?, true)
}
