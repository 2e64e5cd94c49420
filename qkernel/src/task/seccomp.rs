//! What becomes of system calls under filters, and who may restrict them (seccomp(2)). Each call of
//! a thread with filters is asked of them before anything of it is served ([`enforce`]).

use alloc::boxed::Box;
use alloc::sync::Arc;

use linux_raw_sys::general::{CAP_SYS_ADMIN, SIGKILL, SIGSYS};
use qlib::seccomp::{ARCH, Call, ret};

use super::filters::{NewFilter, Verdict};
use super::listener::{Answer, Listener};
use super::outcome::Outcome;
use super::signal::{self, SigInfo};
use super::trace::filtered;
use super::{Process, Thread, exit};
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::klog;
use crate::sync::{Mutex, mutex};
use crate::time;
use crate::wait::Sleeper;

/// The largest error number that a filter gives (MAX_ERRNO).
const MAX_ERRNO: u32 = 4095;

/// EACCES unless the thread may restrict its calls by filters: it, and what it executes, gets no
/// more rights, or it may do everything anyway.
pub fn check_right(thread: &Thread) -> Result {
    let creds = thread.creds();
    let may = creds.no_new_privs || creds.capable_here(CAP_SYS_ADMIN);
    if may { Ok(()) } else { Err(Errno::EACCES) }
}

/// Adds a filter. EINVAL in strict mode, EBUSY for a second listener, ENOMEM when there are too
/// many.
pub fn add(thread: &Thread, new: NewFilter) -> Result {
    thread.seccomp.set(thread.seccomp.with(new)?);
    thread.user.answers(None);
    Ok(())
}

/// Adds a filter, and gives all threads of the process those that this one has then; or adds none:
/// then the id of a thread with a filter that this one has not.
pub fn add_to_all(thread: &Thread, new: NewFilter) -> Result<Option<u32>> {
    let filter = thread.seccomp.with(new)?;
    let others = || thread.process.each_thread().filter(|t| t.tid() != thread.tid());
    let differs = |other: &Arc<Thread>| !other.seccomp.is_within(&thread.seccomp);
    if let Some(other) = others().find(|other| !other.is_dying() && differs(other)) {
        return Ok(Some(thread.number_of(other.tid())));
    }
    let no_new_privs = thread.creds().no_new_privs;
    for other in others() {
        let creds = other.creds();
        if no_new_privs && !creds.no_new_privs {
            other.set_creds(Creds { no_new_privs, ..Creds::clone(&creds) });
        }
        other.seccomp.set(filter.clone());
        other.user.answers(None);
    }
    thread.seccomp.set(filter);
    thread.user.answers(None);
    Ok(None)
}

/// Does what the thread's restrictions say of a call; `None`: it is to be served, or what its
/// tracer has made of it.
pub async fn enforce(thread: &Arc<Thread>, call: &mut Call) -> Option<Outcome> {
    if !thread.seccomp.is_on() {
        return None;
    }
    match thread.seccomp.verdict(call) {
        Verdict::Pass => None,
        verdict => Box::pin(carry_out(thread, call, verdict)).await,
    }
}

async fn carry_out(thread: &Arc<Thread>, call: &mut Call, mut verdict: Verdict) -> Option<Outcome> {
    // Who has been asked is not asked again about what it has made of the call.
    let mut has_been_traced = false;
    let (value, logs, listener) = loop {
        match verdict {
            Verdict::Pass => return None,
            Verdict::Strict => {
                log(thread, call, "killed by strict mode");
                exit::thread_killed(thread, SIGKILL);
                return Some(Outcome::Returns(Err(Errno::EPERM)));
            }
            Verdict::Filter { value, .. }
                if ret::action(value) == ret::TRACE && has_been_traced =>
            {
                return None;
            }
            Verdict::Filter { value, .. }
                if ret::action(value) == ret::TRACE && filtered::is_wanted(thread) =>
            {
                if let Some(outcome) = filtered::ask(thread, call, ret::data(value)).await {
                    return Some(outcome);
                }
                has_been_traced = true;
                verdict = thread.seccomp.verdict(call);
            }
            Verdict::Filter { value, logs, listener } => break (value, logs, listener),
        }
    };
    let data = ret::data(value);
    let (result, what) = match ret::action(value) {
        ret::LOG => {
            log(thread, call, "logged");
            return None;
        }
        ret::TRAP => {
            let info = SigInfo::call(SIGSYS, call.ip, call.nr as u32, ARCH, data);
            signal::force(thread, info);
            // Handlers find the number where it was.
            (Ok(call.nr as usize), "trapped")
        }
        // Some numbers mean something inside of the kernel, and nothing to programs.
        ret::ERRNO => (Ok((data.min(MAX_ERRNO) as usize).wrapping_neg()), "failed"),
        ret::USER_NOTIF => match answer(thread, call, listener).await {
            Ok(Answer::Made) => return None,
            Ok(Answer::Returns(value)) => (Ok(value as usize), "answered"),
            Err(error) => (Err(error), "failed"),
        },
        // No tracer wants to be asked.
        ret::TRACE => (Err(Errno::ENOSYS), "failed"),
        action => {
            log(thread, call, "killed");
            let is_alone = || living(&thread.process) <= 1;
            if action == ret::KILL_THREAD && !is_alone() {
                exit::thread_killed(thread, SIGSYS);
            } else {
                exit::group_exit(&thread.process, SIGSYS as i32);
            }
            return Some(Outcome::Returns(Err(Errno::EPERM)));
        }
    };
    if logs {
        log(thread, call, what);
    }
    Some(Outcome::Returns(result))
}

/// What a listener, if there is one, has a call come to.
async fn answer(
    thread: &Arc<Thread>,
    call: &Call,
    listener: Option<Arc<Listener>>,
) -> Result<Answer> {
    let listener = listener.ok_or(Errno::ENOSYS)?;
    listener.ask(thread, call).await
}

/// How many threads of a process are not on their way to their end.
fn living(process: &Process) -> usize {
    process.each_thread().filter(|thread| !thread.is_dying()).count()
}

/// The most lines of a second: any program can have filters that log.
const LINES_A_SECOND: u32 = 20;

/// A second, and how many lines there were in it.
static LINES: Mutex<(u64, u32)> = mutex((0, 0));

fn log(thread: &Thread, call: &Call, what: &str) {
    let second = time::monotonic_ns() / 1_000_000_000;
    let before = {
        let mut lines = LINES.lock();
        if lines.0 != second {
            *lines = (second, 0);
        }
        lines.1 += 1;
        lines.1 - 1
    };
    if before < LINES_A_SECOND {
        klog!(
            Warn,
            "seccomp: process {} {:?}: call {} at {:#x} {what}",
            thread.process.pid,
            thread.name(),
            call.nr,
            call.ip
        );
    } else if before == LINES_A_SECOND {
        klog!(Warn, "seccomp: further calls of this second are not logged");
    }
}

/// What the filters of a process hold, in bytes; shared ones count once.
pub fn held_bytes(process: &Process) -> u64 {
    let mut last = core::ptr::null();
    let mut bytes = 0;
    for thread in process.each_thread() {
        if let Some((filter, held)) = thread.seccomp.held_bytes()
            && !core::ptr::eq(filter, last)
        {
            last = filter;
            bytes += held;
        }
    }
    bytes
}
