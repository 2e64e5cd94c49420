//! Controlling terminals: sessions, foreground groups, background reads and writes.

use alloc::sync::Arc;

use linux_raw_sys::general::{CAP_SYS_ADMIN, SIGCONT, SIGHUP, SIGTTIN, SIGTTOU, TOSTOP};

use super::Tty;
use crate::errno::{Errno, Result};
use crate::task::signal::{Disposition, SigInfo, send_to_group, send_to_process};
use crate::task::{Process, Thread, session, table};

/// True if `tty` is the process's controlling terminal.
pub fn is_controlling(process: &Process, tty: &Arc<Tty>) -> bool {
    controlling(process).is_ok_and(|own| Arc::ptr_eq(&own, tty))
}

/// The process's controlling terminal: ENXIO when it has none.
pub fn controlling(process: &Process) -> Result<Arc<Tty>> {
    let own = process.tree.lock().tty.clone();
    own.and_then(|tty| tty.downcast().ok()).ok_or(Errno::ENXIO)
}

/// Makes `tty` the controlling terminal of the session that the process leads. EPERM when it leads
/// none, has one already, or the terminal belongs to another session (unless `steal`, for the
/// privileged).
pub fn acquire(thread: &Thread, tty: &Arc<Tty>, steal: bool) -> Result {
    let process = &thread.process;
    let (sid, pgid, has_one) = {
        let links = process.tree.lock();
        (links.sid, links.pgid, links.tty.is_some())
    };
    let (owner, _) = tty.owners();
    if is_controlling(process, tty) && owner == sid {
        return Ok(());
    }
    if sid != process.pid || has_one {
        return Err(Errno::EPERM);
    }
    if owner != 0 && owner != sid {
        if !steal || !thread.creds().capable(CAP_SYS_ADMIN) {
            return Err(Errno::EPERM);
        }
        leave(owner);
    }
    tty.set_owners(sid, pgid);
    for member in table::session(sid) {
        member.tree.lock().tty = Some(tty.clone());
    }
    Ok(())
}

/// Takes the controlling terminal from every process of session `sid`.
fn leave(sid: u32) {
    for member in table::session(sid) {
        let old = member.tree.lock().tty.take();
        drop(old);
    }
}

/// TIOCNOTTY: the process gives up its controlling terminal; if it leads the session, all of it
/// does.
pub fn release(process: &Arc<Process>, tty: &Arc<Tty>) -> Result {
    if !is_controlling(process, tty) {
        return Err(Errno::ENOTTY);
    }
    let sid = process.sid();
    if sid == process.pid {
        disassociate(process, tty, sid);
    } else {
        let old = process.tree.lock().tty.take();
        drop(old);
    }
    Ok(())
}

fn disassociate(leader: &Arc<Process>, tty: &Arc<Tty>, sid: u32) {
    let (owner, foreground) = tty.owners();
    if owner == sid {
        if foreground != 0 {
            send_to_group(foreground, SigInfo::kernel(SIGHUP));
            send_to_group(foreground, SigInfo::kernel(SIGCONT));
        }
        tty.set_owners(0, 0);
    }
    leave(sid);
    let old = leader.tree.lock().tty.take();
    drop(old);
}

/// A process ended. If it led its session, the foreground group is notified, and the terminal is
/// free for another one.
pub fn process_ended(process: &Arc<Process>) {
    let sid = process.sid();
    if sid == process.pid
        && let Ok(tty) = controlling(process)
    {
        disassociate(process, &tty, sid);
    }
}

/// vhangup(2).
pub fn hang_up_session(process: &Arc<Process>) {
    if let Ok(tty) = controlling(process) {
        tty.hang_up();
    }
}

/// A terminal has hung up: notifies its session's leader and its foreground group.
pub fn notify_hang_up(tty: &Tty) {
    let (sid, foreground) = tty.owners();
    if let Some(leader) = table::process(sid).filter(|_| sid != 0) {
        let _ = send_to_process(&leader, SigInfo::kernel(SIGHUP));
        let _ = send_to_process(&leader, SigInfo::kernel(SIGCONT));
        if foreground != leader.pgid() {
            send_to_group(foreground, SigInfo::kernel(SIGHUP));
        }
    }
}

/// True if the thread is in a background group of its controlling terminal `tty`.
fn is_background(thread: &Thread, tty: &Arc<Tty>) -> bool {
    let (sid, foreground) = tty.owners();
    is_controlling(&thread.process, tty)
        && sid == thread.process.sid()
        && foreground != 0
        && foreground != thread.process.pgid()
}

fn is_ignored(thread: &Thread, signo: u32) -> bool {
    let blocked = thread.signals.lock().mask.contains(signo);
    blocked || thread.process.signals.lock().action(signo).disposition(signo) == Disposition::Ignore
}

/// Lets a background group's read stop it with SIGTTIN: EIO when it cannot be stopped.
pub fn check_read(thread: &Thread, tty: &Arc<Tty>) -> Result {
    if !is_background(thread, tty) {
        return Ok(());
    }
    let pgid = thread.process.pgid();
    if is_ignored(thread, SIGTTIN) || session::is_orphaned_group(pgid) {
        return Err(Errno::EIO);
    }
    send_to_group(pgid, SigInfo::kernel(SIGTTIN));
    Err(Errno::ERESTARTSYS)
}

/// Lets a background group's write stop it with SIGTTOU, if the terminal is set so.
pub fn check_write(thread: &Thread, tty: &Arc<Tty>) -> Result {
    if tty.termios().lflag & TOSTOP == 0 { Ok(()) } else { check_change(thread, tty) }
}

/// Lets a background group's change of the terminal stop it with SIGTTOU: EIO when it is orphaned.
pub fn check_change(thread: &Thread, tty: &Arc<Tty>) -> Result {
    if !is_background(thread, tty) || is_ignored(thread, SIGTTOU) {
        return Ok(());
    }
    let pgid = thread.process.pgid();
    if session::is_orphaned_group(pgid) {
        return Err(Errno::EIO);
    }
    send_to_group(pgid, SigInfo::kernel(SIGTTOU));
    Err(Errno::ERESTARTSYS)
}

/// TIOCSPGRP: makes group `pgid` the foreground one.
pub fn set_foreground(thread: &Thread, tty: &Arc<Tty>, pgid: i32) -> Result {
    check_change(thread, tty)?;
    let sid = thread.process.sid();
    if !is_controlling(&thread.process, tty) || tty.owners().0 != sid {
        return Err(Errno::ENOTTY);
    }
    let pgid = thread.pid_of(u32::try_from(pgid).map_err(|_| Errno::EINVAL)?)?;
    let members = table::group(pgid);
    if members.is_empty() {
        return Err(Errno::ESRCH);
    }
    if !members.iter().any(|p| p.sid() == sid) {
        return Err(Errno::EPERM);
    }
    tty.set_owners(sid, pgid);
    Ok(())
}
