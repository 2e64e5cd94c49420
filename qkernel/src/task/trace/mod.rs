//! Tracing of threads by another process (ptrace(2)): who traces whom, and what a tracee does for
//! its tracer: it [stops](stops), and its tracer [is told](told) of that. What a tracer asks of a
//! tracee that has stopped are the requests of [`crate::syscall::ptrace`].

pub mod filtered;
pub mod registers;
pub mod stops;
pub mod told;

use alloc::sync::{Arc, Weak};

use linux_raw_sys::general::{CAP_SYS_PTRACE, SIGKILL, SIGSTOP};
use linux_raw_sys::ptrace::{
    PTRACE_EVENT_STOP, PTRACE_O_EXITKILL, PTRACE_O_TRACECLONE, PTRACE_O_TRACEEXEC,
    PTRACE_O_TRACEEXIT, PTRACE_O_TRACEFORK, PTRACE_O_TRACESECCOMP, PTRACE_O_TRACESYSGOOD,
    PTRACE_O_TRACEVFORK, PTRACE_O_TRACEVFORKDONE,
};

use super::signal::{SigInfo, Signo};
use super::tracee::{ASKED, Next, Traced};
use super::{Process, Thread, access, exit, signal, table};
use crate::creds::{AccessMode, Creds};
use crate::errno::{Errno, Result};
use crate::user_namespace::UserNs;
use crate::wait::Sleeper;

/// The options of PTRACE_SETOPTIONS that have an effect.
pub const OPTIONS: u32 = PTRACE_O_TRACESYSGOOD
    | PTRACE_O_TRACEFORK
    | PTRACE_O_TRACEVFORK
    | PTRACE_O_TRACECLONE
    | PTRACE_O_TRACEEXEC
    | PTRACE_O_TRACEVFORKDONE
    | PTRACE_O_TRACEEXIT
    | PTRACE_O_TRACESECCOMP
    | PTRACE_O_EXITKILL;

/// Who traces a thread.
pub fn tracer_of(thread: &Thread) -> Option<Arc<Process>> {
    thread.trace.tracer()?.downcast().ok()
}

/// Has `tracer` trace a thread from now on. EPERM if somebody does.
/// `creds`: who begins that.
fn begin(
    tracer: &Arc<Process>,
    thread: &Arc<Thread>,
    creds: Arc<Creds>,
    (options, is_seized): (u32, bool),
) -> Result {
    let weak: Weak<Process> = Arc::downgrade(tracer);
    thread.trace.begin(Traced {
        tracer: weak,
        creds,
        options,
        is_seized,
        stop: None,
        next: Next::Continue,
        message: 0,
        steps: false,
    })?;
    thread.user.answers(None);
    told::begin(tracer, thread);
    Ok(())
}

/// PTRACE_TRACEME: has its parent trace a thread. EPERM if it has none in its container, or one
/// with less capabilities, or one that has forbidden itself more (landlock(7)).
pub fn trace_me(thread: &Arc<Thread>) -> Result {
    let parent = thread.process.parent().ok_or(Errno::EPERM)?;
    let first = parent.first_thread().ok_or(Errno::EPERM)?;
    let (own, its) = (thread.creds(), first.creds());
    let mode = AccessMode::Real;
    let has_less = !its.has_caps_of(&own, mode) && !its.capable_in(&own.user, CAP_SYS_PTRACE);
    if has_less || !its.domain.is_above(&own.domain) {
        return Err(Errno::EPERM);
    }
    // The parent has not asked for it: it gets no more than what the thread may do by itself.
    begin(&parent, thread, own, (0, false))
}

/// True if a program that the thread executes gets no rights by its file: who traces it would have
/// them, too.
pub fn limits_rights(thread: &Thread) -> bool {
    thread.trace.is_on() && !is_privileged(thread, &thread.creds().user)
}

/// True if who began to trace the thread might trace any in this user namespace.
fn is_privileged(tracee: &Thread, user: &UserNs) -> bool {
    tracee.trace.with(|traced| traced.creds.capable_in(user, CAP_SYS_PTRACE)) == Some(true)
}

/// EIO unless the tracer of the thread may look into its memory, which may be another program's by
/// now than when that began.
pub fn may_look_into(tracee: &Thread) -> Result {
    let is_open =
        access::is_dumpable(tracee) || is_privileged(tracee, &access::memory_user(tracee));
    is_open.then_some(()).ok_or(Errno::EIO)
}

/// PTRACE_ATTACH, or PTRACE_SEIZE with these options: the thread is a tracee from now on.
pub fn take(tracer: &Thread, thread: &Arc<Thread>, seized_with: Option<u32>) -> Result {
    let how = (seized_with.unwrap_or(0), seized_with.is_some());
    begin(&tracer.process, thread, tracer.creds(), how)
}

/// The same, when the tracer sees all of it: the thread stops by SIGSTOP, or goes on if it is
/// seized.
pub fn taken(tracer: &Thread, thread: &Arc<Thread>) -> Result {
    tell_if_stopped(thread);
    if thread.trace.is_seized() {
        return Ok(());
    }
    signal::send_by(tracer, &thread.process, Some(thread), |pid, uid| {
        SigInfo::user(SIGSTOP, pid, uid)
    })
}

/// A thread that job control has stopped before it became a tracee tells its tracer of that.
fn tell_if_stopped(thread: &Arc<Thread>) {
    if thread.process.signals.lock().is_stopped() {
        interrupt(thread);
        thread.wakeup().set();
    }
}

/// PTRACE_INTERRUPT, of one that is seized: EIO else.
pub fn ask_to_stop(thread: &Arc<Thread>) -> Result {
    if !thread.trace.is_seized() {
        return Err(Errno::EIO);
    }
    interrupt(thread);
    Ok(())
}

fn interrupt(thread: &Arc<Thread>) {
    thread.trace.set(ASKED, true);
    thread.interrupt();
}

/// A tracee has made a thread or process, and its tracer wants to have that, too: it stops before
/// its first instruction.
pub fn inherit(parent: &Thread, child: &Arc<Thread>) {
    let Some(tracer) = tracer_of(parent) else { return };
    let begun =
        parent.trace.with(|traced| (traced.creds.clone(), (traced.options, traced.is_seized)));
    let Some((creds, how @ (_, is_seized))) = begun else { return };
    if begin(&tracer, child, creds, how).is_err() {
        return;
    }
    if is_seized {
        child.trace.set(ASKED, true);
    } else {
        let _ = signal::send_to_thread(child, SigInfo::user(SIGSTOP, 0, 0));
    }
}

/// Ends the tracing of a thread, which goes on, and takes `signo` if it is in the stop of a signal.
pub fn detach(thread: &Arc<Thread>, signo: Signo) {
    let tracer = tracer_of(thread);
    let steps = thread.trace.with(|traced| traced.steps) == Some(true);
    // One in a stop takes what it is about first.
    stops::end(thread, Next::Continue, signo);
    if steps {
        stops::no_more_steps(thread);
    }
    thread.trace.end();
    if let Some(tracer) = tracer {
        told::end(&tracer, thread);
    }
    thread.interrupt();
}

/// A process ends that may be a tracer: its tracees go on, or end if it wanted that.
pub fn tracer_ended(tracer: &Arc<Process>) {
    for thread in told::tracees(tracer) {
        let is_to_end = thread.trace.has_option(PTRACE_O_EXITKILL);
        detach(&thread, 0);
        if is_to_end {
            exit::group_exit(&thread.process, SIGKILL as i32);
        }
    }
}

/// The tracee of `tracer` that it calls `number`, which is in a stop if `stopped`: ESRCH.
pub fn tracee(tracer: &Thread, number: i32, stopped: bool) -> Result<Arc<Thread>> {
    let number = u32::try_from(number).map_err(|_| Errno::ESRCH)?;
    let thread = tracer.find_thread(number)?;
    let is_its = tracer_of(&thread).is_some_and(|own| Arc::ptr_eq(&own, &tracer.process));
    let is_stopped = || stops::with(&thread, |_| ()).is_ok();
    if is_its && (!stopped || is_stopped()) { Ok(thread) } else { Err(Errno::ESRCH) }
}

/// The wait status of a stop: by a signal, with PTRACE_EVENT_*.
const fn status_of(signo: Signo, event: u32) -> i32 {
    ((event << 16) | (signo << 8) | 0x7f) as i32
}

/// True if the event is that of PTRACE_EVENT_STOP.
const fn is_event_stop(status: i32) -> bool {
    status >> 16 == PTRACE_EVENT_STOP as i32
}

/// The thread with this token, if it lives.
fn by_token(token: u64) -> Option<Arc<Thread>> {
    table::thread_by_token(token)
}

#[cfg(test)]
mod tests {
    use linux_raw_sys::general::SIGTRAP;

    use super::*;

    #[test]
    fn statuses_are_as_in_ptrace_2() {
        assert_eq!(status_of(SIGSTOP, 0), 0x137f);
        assert_eq!(status_of(SIGTRAP | 0x80, 0), 0x857f);
        assert_eq!(status_of(SIGTRAP, 4), 0x4057f);
        assert!(is_event_stop(status_of(SIGTRAP, PTRACE_EVENT_STOP)));
        assert!(!is_event_stop(status_of(SIGTRAP, 4)));
    }
}
