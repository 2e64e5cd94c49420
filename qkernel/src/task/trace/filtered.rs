//! Tracees whose filters have their tracer asked about a call (SECCOMP_RET_TRACE, ptrace(2),
//! PTRACE_EVENT_SECCOMP).

use alloc::sync::Arc;

use linux_raw_sys::general::SIGTRAP;
use linux_raw_sys::ptrace::{PTRACE_EVENT_SECCOMP, PTRACE_O_TRACESECCOMP};
use qlib::seccomp::Call;

use super::status_of;
use super::stops::{Instead, about, instead, stop};
use crate::errno::Errno;
use crate::task::Thread;
use crate::task::outcome::Outcome;
use crate::task::tracee::{InCall, Kind, Stop};
use crate::wait::Sleeper;

/// True if there is a tracer that wants to be asked.
pub fn is_wanted(thread: &Thread) -> bool {
    thread.trace.has_option(PTRACE_O_TRACESECCOMP)
}

/// Asks the tracer about a call, which may be another after that; `data`: what the filter tells.
/// `Some`: it is not made, but has come to this.
pub async fn ask(thread: &Arc<Thread>, call: &mut Call, data: u32) -> Option<Outcome> {
    thread.trace.with(|traced| traced.message = data.into());
    let shown = InCall { nr: call.nr, value: -i64::from(Errno::ENOSYS.0) };
    let status = status_of(SIGTRAP, PTRACE_EVENT_SECCOMP);
    let info = about(thread, SIGTRAP | PTRACE_EVENT_SECCOMP << 8);
    let ended = stop(thread, Stop::new(Kind::Filter, status, Some(info), Some(shown))).await;
    if thread.is_dying() {
        // It may not make what its tracer has had no say in.
        return Some(Outcome::Returns(Err(Errno::EINTR)));
    }
    match instead(thread, ended.and_then(|stop| stop.call)) {
        None => None,
        Some(Instead::Makes(nr, args)) => {
            (call.nr, call.args) = (nr, args);
            None
        }
        Some(Instead::Skips(value) | Instead::Emulated(value)) => {
            call.nr = u64::MAX;
            Some(Outcome::Returns(Errno::check(value)))
        }
    }
}
