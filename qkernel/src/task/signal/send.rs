//! Sending signals.

use alloc::sync::Arc;

use linux_raw_sys::general::{RLIMIT_SIGPENDING, SIGCONT, SIGKILL};

use super::set::{STOP_SIGNALS, UNBLOCKABLE};
use super::{Disposition, SigInfo, SigSet, Signo};
use crate::errno::{Errno, Result};
use crate::task::{Process, Thread, exit, table};
use crate::wait::{PollMask, Sleeper};

/// Where a signal comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The PID namespace itself: its first process gets only what it has a handler for.
    Inside,
    /// One around it, or the command line: SIGKILL and SIGSTOP reach the first process too.
    Outside,
}

/// Sends a signal to a process. EAGAIN when a queued real-time signal exceeds RLIMIT_SIGPENDING.
pub fn send_to_process(process: &Arc<Process>, info: SigInfo) -> Result {
    send(process, None, info, Origin::Inside)
}

/// Sends a signal to a process from outside of the container.
pub fn send_from_outside(process: &Arc<Process>, info: SigInfo) -> Result {
    send(process, None, info, Origin::Outside)
}

/// Sends a signal of `sender`'s to a process, or to one thread of it: `make` makes it of what the
/// receiver calls the sender, and what its user. As [`send_to_process`].
pub fn send_by(
    sender: &Thread,
    process: &Arc<Process>,
    target: Option<&Arc<Thread>>,
    make: impl FnOnce(u32, u32) -> SigInfo,
) -> Result {
    let uid = process.uid_shown(sender.creds().uid);
    send_of(&sender.process, process, target, |pid| make(pid, uid))
}

/// As [`send_by`], where the sender is no thread, but a process.
pub fn send_of(
    sender: &Process,
    process: &Arc<Process>,
    target: Option<&Arc<Thread>>,
    make: impl FnOnce(u32) -> SigInfo,
) -> Result {
    let number = process.number_of(sender.pid);
    // Who is not seen by it is of a namespace around its own.
    let origin = if number == 0 { Origin::Outside } else { Origin::Inside };
    let info = make(number);
    let info = if number == 0 { info.without_sender() } else { info };
    send(process, target, info, origin)
}

/// Sends a signal to one thread. As [`send_to_process`].
pub fn send_to_thread(thread: &Arc<Thread>, info: SigInfo) -> Result {
    send(&thread.process, Some(thread), info, Origin::Inside)
}

/// Sends a signal to every process of a group; how many there were.
pub fn send_to_group(pgid: u32, info: SigInfo) -> usize {
    let members = table::group(pgid);
    for process in &members {
        // Each member is on its own: what one cannot take does not keep it from the others.
        let _ = send_to_process(process, info);
    }
    members.len()
}

/// True if whoever has these effective and real user ids, and no capability, may send `process` a
/// signal (kill(2)).
pub fn would_be_allowed(euid: u32, uid: u32, process: &Process) -> bool {
    let Some(first) = process.first_thread() else { return true };
    let its = first.creds();
    [euid, uid].iter().any(|id| *id == its.uid || *id == its.suid)
}

fn send(
    process: &Arc<Process>,
    target: Option<&Arc<Thread>>,
    info: SigInfo,
    origin: Origin,
) -> Result {
    let signo = info.signal();
    let Some(first) = process.first_thread() else {
        // A zombie.
        return Ok(());
    };
    prepare(process, signo);
    if is_ignored(process, target.unwrap_or(&first), signo, origin) {
        return Ok(());
    }
    if signo == SIGKILL {
        exit::group_exit(process, SIGKILL as i32);
        return Ok(());
    }
    let limit = process.rlimit(RLIMIT_SIGPENDING);
    let fresh = match target {
        Some(thread) => {
            let mut signals = thread.signals.lock();
            if info.is_queued()
                && signals.pending.len() as u64 >= limit
                && signo >= super::FIRST_REALTIME
            {
                return Err(Errno::EAGAIN);
            }
            signals.pending.push(info, limit)
        }
        None => {
            let mut signals = process.signals.lock();
            if info.is_queued()
                && signals.pending.len() as u64 >= limit
                && signo >= super::FIRST_REALTIME
            {
                return Err(Errno::EAGAIN);
            }
            signals.pending.push(info, limit)
        }
    };
    if fresh {
        wake_taker(process, target, signo);
    }
    Ok(())
}

/// What a stop or continue signal does at its arrival, whether or not it is blocked or handled.
fn prepare(process: &Arc<Process>, signo: Signo) {
    if STOP_SIGNALS.contains(signo) {
        super::discard(process, SigSet::of(&[SIGCONT]));
    } else if signo == SIGCONT {
        super::discard(process, STOP_SIGNALS);
        let was_notified = {
            let mut signals = process.signals.lock();
            let stopped = signals.stopped_by.take().is_some();
            let notified = core::mem::take(&mut signals.stop_notified);
            if !stopped {
                return;
            }
            notified
        };
        for thread in process.each_thread() {
            thread.trace.continued();
            thread.interrupt();
        }
        if was_notified {
            exit::notify_continued(process);
        }
    }
}

fn is_ignored(process: &Process, blocker: &Thread, signo: Signo, origin: Origin) -> bool {
    let action = process.signals.lock().action(signo);
    let is_default = action.handler == super::action::DEFAULT;
    let is_init = is_init(process);
    if is_init && is_default && UNBLOCKABLE.contains(signo) {
        return origin == Origin::Inside;
    }
    if blocker.trace.is_on() {
        // Its tracer decides.
        return false;
    }
    if !(is_init && is_default) && action.disposition(signo) != Disposition::Ignore {
        return false;
    }
    let is_waiting = process.signals.lock().waiting > 0;
    let waited_for = || process.each_thread().any(|t| t.signals.lock().waited_for.contains(signo));
    !(blocker.signals.lock().is_blocked(signo) || is_waiting && waited_for())
}

/// True if the signal would end any other process, but is lost on this one, the container's init,
/// as it has no handler for it and does not wait for it.
pub fn would_be_lost(process: &Process, signo: Signo) -> bool {
    let Some(first) = process.first_thread() else { return false };
    lacks_handler(process, signo) && is_ignored(process, &first, signo, Origin::Outside)
}

/// True if that is so, or will be as soon as it is not blocked any more.
pub fn lacks_handler(process: &Process, signo: Signo) -> bool {
    let disposition = process.signals.lock().action(signo).disposition(signo);
    is_init(process) && matches!(disposition, Disposition::Terminate | Disposition::Core)
}

/// True if it is the init of its PID namespace, which signals without a handler do not reach
/// (pid_namespaces(7)).
pub(super) fn is_init(process: &Process) -> bool {
    process.is_init() && !process.signals.lock().is_ordinary
}

/// Has a thread that does not block the signal look at it, and notifies those who wait for signals.
fn wake_taker(process: &Arc<Process>, target: Option<&Arc<Thread>>, signo: Signo) {
    let takes =
        |thread: &Arc<Thread>| !thread.is_dying() && !thread.signals.lock().mask.contains(signo);
    let taker = match target {
        Some(thread) => Some(thread.clone()).filter(takes),
        None => process.each_thread().find(takes),
    };
    match taker {
        Some(thread) if kills_at_once(process, &thread, signo) => {
            exit::group_exit(process, signo as i32);
        }
        Some(thread) => thread.interrupt(),
        None => {}
    }
    process.signal_events.wake(PollMask::READ);
}

/// True if a signal ends the process as it comes, whatever its threads wait for: as on Linux, one
/// without a handler that leaves no core, unless a tracer is to see it, the process is stopped, or
/// the thread waits for just this one.
fn kills_at_once(process: &Process, taker: &Thread, signo: Signo) -> bool {
    let (disposition, is_stopped) = {
        let signals = process.signals.lock();
        (signals.action(signo).disposition(signo), signals.is_stopped())
    };
    disposition == Disposition::Terminate
        && !is_stopped
        && !is_init(process)
        && !taker.trace.is_on()
        && !taker.signals.lock().waited_for.contains(signo)
}

/// Has other threads look at signals of the process that `thread` (by blocking `signals`, or by its
/// end) will not take.
pub fn retarget(thread: &Thread, signals: SigSet) {
    let left = thread.process.signals.lock().pending.set().and(signals);
    if left.is_empty() {
        return;
    }
    for other in thread.process.each_thread() {
        if other.tid() != thread.tid() && !left.minus(other.signals.lock().mask).is_empty() {
            other.interrupt();
        }
    }
}
