//! The stops of a tracee (ptrace(2), "Stopped states"): by a signal that it is to take, at the
//! start and end of a system call, by job control, and for the events that its tracer asked for.

use alloc::sync::Arc;

use linux_raw_sys::general::{
    __NR_execve, __NR_exit, __NR_exit_group, __NR_rt_sigreturn, SIGKILL, SIGTRAP, TRAP_BRKPT,
    TRAP_TRACE,
};
use linux_raw_sys::ptrace::{
    PTRACE_EVENT_EXEC, PTRACE_EVENT_EXIT, PTRACE_EVENT_STOP, PTRACE_O_TRACEEXEC,
    PTRACE_O_TRACESYSGOOD,
};
use qlib::platform::UserRegs;

use super::{is_event_stop, status_of, told, tracer_of};
use crate::errno::{Errno, Result};
use crate::task::Thread;
use crate::task::outcome::Outcome;
use crate::task::signal::{self, SigInfo, Signo};
use crate::task::tracee::{ASKED, CALLS, CHANGED, InCall, Kind, Next, RUNS_ON, Stop};
use crate::urgent;
use crate::wait::Sleeper;

/// Flag of %rflags: a trap after each instruction.
const TRAP_FLAG: u64 = 0x100;

/// What `look` sees of a tracee's stop. ESRCH if it is in none.
pub fn with<T>(thread: &Thread, look: impl FnOnce(&mut Stop) -> T) -> Result<T> {
    let seen = thread.trace.with(|traced| {
        let stop = traced.stop.as_mut().filter(|stop| stop.over.is_none());
        stop.map(look)
    });
    seen.flatten().ok_or(Errno::ESRCH)
}

/// Says that its tracer has changed its registers.
pub fn changed(thread: &Thread) {
    thread.trace.set(CHANGED, true);
}

/// Ends a stop, if it is in one: how it goes on, and the signal that it takes.
pub fn end(thread: &Thread, next: Next, signo: Signo) {
    thread.trace.with(|traced| {
        traced.next = next;
        if let Some(stop) = &mut traced.stop {
            stop.over = Some(signo);
            // One that is detached has nowhere to keep it.
            thread.trace.left.lock().replace(*stop);
        }
    });
    thread.wakeup().set();
}

/// It goes on by itself from now on.
pub fn no_more_steps(thread: &Thread) {
    thread.user.change_registers(|regs| regs.rflags &= !TRAP_FLAG);
}

/// Ends a step before its flag is saved for the return from a handler. Whether the thread goes by
/// steps.
pub fn ends_step(thread: &Thread, regs: &mut UserRegs) -> bool {
    let steps = thread.trace.is_on() && thread.trace.with(|traced| traced.steps) == Some(true);
    if steps {
        regs.rflags &= !TRAP_FLAG;
    }
    steps
}

/// What a tracee that goes by steps takes after one.
pub fn stepped() -> SigInfo {
    SigInfo::new(SIGTRAP, TRAP_TRACE as i32)
}

/// Stops the thread until its tracer lets it go on: the stop as it was at its end. `None` if it has
/// no tracer, or dies.
pub(super) async fn stop(thread: &Arc<Thread>, stop: Stop) -> Option<Stop> {
    // From here on they are known without asking the platform.
    thread.user.registers().await.ok()?;
    let steps = thread.trace.with(|traced| {
        traced.stop = Some(stop);
        core::mem::take(&mut traced.steps)
    })?;
    if steps {
        changed(thread);
        no_more_steps(thread);
    }
    thread.trace.left.lock().take();
    signal::set_parked(thread, true);
    told::stopped(thread, stop.status);
    signal::deliver::notify_if_stopped(&thread.process);
    let wakeup = thread.wakeup();
    // One that is killed tells of its end, too, but not to a tracer that ends itself, as those who
    // trace each other would wait for ever, and not where others wait for its memory.
    let outlasts_death = stop.status >> 16 == PTRACE_EVENT_EXIT as i32;
    let is_told = || {
        let tracer = tracer_of(thread);
        let lives = tracer.is_some_and(|tracer| tracer.tree.lock().exiting.is_none());
        lives && !urgent::is_urgent(thread.user.token)
    };
    loop {
        wakeup.clear();
        let is_over = thread.trace.left.lock().is_some();
        let listens = with(thread, |stop| stop.listens) == Ok(true);
        if is_over || thread.is_dying() && !(outlasts_death && is_told()) {
            break;
        }
        if listens && !thread.process.signals.lock().is_stopped() {
            // It has been continued, which is told by another stop.
            thread.trace.set(ASKED, true);
            thread.trace.left.lock().replace(Stop { over: Some(0), ..stop });
            break;
        }
        thread.sleeps();
        wakeup.wait().await;
    }
    signal::set_parked(thread, false);
    let has_flag = thread.user.known_registers().rflags & TRAP_FLAG != 0;
    let next = thread.trace.with(|traced| {
        traced.stop = None;
        traced.steps = traced.next.steps() && !has_flag;
        traced.next
    });
    let next = next.unwrap_or(Next::Continue);
    thread.trace.set(CALLS, next != Next::Continue);
    if next.steps() {
        changed(thread);
        thread.user.change_registers(|regs| regs.rflags |= TRAP_FLAG);
    }
    let ended = thread.trace.left.lock().take();
    ended.filter(|_| !thread.is_dying() || outlasts_death)
}

/// A result as %rax shows it in a stop: calls that are to be made again say so.
fn shown(result: Result<usize>) -> i64 {
    match result {
        Ok(value) => value as i64,
        Err(errno) => -i64::from(errno.0),
    }
}

/// What comes of the system call that the tracee is in, whose registers may have been changed in a
/// stop that showed `before` and ended with `after`: `None` if it has all its registers now.
fn settle(
    thread: &Thread,
    call: Option<(u64, Result<usize>)>,
    before: Option<InCall>,
    after: Option<InCall>,
) -> Option<(u64, Result<usize>)> {
    if !thread.trace.take_change() {
        return call;
    }
    let (nr, result) = call?;
    let value = after.map_or(shown(result), |call| call.value);
    let is_same = after == before;
    if is_same && signal::deliver::is_restart(&result) {
        return Some((nr, result));
    }
    let value = if is_same { signal::to_return_value(result) } else { value };
    thread.user.change_registers(|regs| regs.rax = value as u64);
    None
}

/// The state of a system call between its end and the return to user mode.
pub struct Leaving<'a> {
    /// The call, if there is one that has not set its result yet.
    pub call: &'a mut Option<(u64, Result<usize>)>,
    /// The registers are others than those that the call began with.
    pub replaced: &'a mut bool,
}

impl Leaving<'_> {
    fn in_call(&self) -> Option<InCall> {
        self.call.map(|(nr, result)| InCall { nr, value: shown(result) })
    }

    async fn stop(
        &mut self,
        thread: &Arc<Thread>,
        kind: Kind,
        status: i32,
        info: Option<SigInfo>,
    ) -> Option<Stop> {
        let before = self.in_call();
        let ended = stop(thread, Stop::new(kind, status, info, before)).await;
        let had = self.call.is_some();
        let is_changed = thread.trace.is_changed();
        *self.call = settle(thread, *self.call, before, ended.and_then(|stop| stop.call));
        *self.replaced |= had && self.call.is_none() || !had && is_changed;
        ended
    }
}

/// The signal that a thread takes in place of one that it was to take, if it takes any.
pub async fn by_signal(
    thread: &Arc<Thread>,
    info: SigInfo,
    mut leaving: Leaving<'_>,
) -> Option<SigInfo> {
    let signo = info.signal();
    if !thread.trace.is_on() || signo == SIGKILL {
        return Some(info);
    }
    let ended = leaving.stop(thread, Kind::Signal, status_of(signo, 0), Some(info)).await?;
    let info = match ended.over? {
        0 => return None,
        same if same == signo => ended.info.unwrap_or(info),
        other => from_tracer(thread, other),
    };
    if thread.signals.lock().mask.contains(info.signal()) {
        // It has been blocked meanwhile.
        let _ = signal::send_to_thread(thread, info);
        return None;
    }
    Some(info)
}

fn from_tracer(thread: &Thread, signo: Signo) -> SigInfo {
    let tracer = tracer_of(thread);
    let (pid, uid) = tracer.map_or((0, 0), |tracer| (tracer.pid, tracer.uid()));
    let uid = thread.creds().uid_shown(uid);
    SigInfo::user(signo, thread.process.number_of(pid), uid)
}

/// Stops a tracee as long as job control stops its process, and where its tracer has asked for it.
pub async fn at_return(thread: &Arc<Thread>, mut leaving: Leaving<'_>) {
    loop {
        let stopped_by = thread.process.signals.lock().stopped_by();
        let stopped_by = stopped_by.filter(|_| !thread.trace.runs_on());
        if thread.is_dying() || stopped_by.is_none() && !thread.trace.is_asked() {
            return;
        }
        thread.trace.set(ASKED, false);
        let event = PTRACE_EVENT_STOP;
        let signo = stopped_by.unwrap_or(SIGTRAP);
        let kind = if stopped_by.is_some() { Kind::Group } else { Kind::Event };
        let (status, info) = match thread.trace.is_seized() {
            true => (status_of(signo, event), Some(about(thread, signo | event << 8))),
            false => (status_of(signo, 0), None),
        };
        leaving.stop(thread, kind, status, info).await;
        if !thread.trace.is_on() {
            // Nobody tells it from others that are stopped any more.
            return;
        }
        if stopped_by.is_some() && thread.process.signals.lock().is_stopped() {
            thread.trace.set(RUNS_ON, true);
        }
    }
}

/// What PTRACE_GETSIGINFO says of a stop that is no signal's.
pub(super) fn about(thread: &Thread, code: u32) -> SigInfo {
    let creds = thread.creds();
    let (tid, uid) = (thread.process.number_of(thread.tid()), creds.uid_shown(creds.uid));
    // What is set in the low byte besides says that it is a call's.
    SigInfo::of_stop(code & 0x7f, code as i32, tid, uid)
}

/// What a tracee that enters a system call does then: another call than its own, or none, with this
/// result.
pub enum Instead {
    /// See there.
    Makes(u64, [u64; 6]),
    /// See there.
    Skips(i64),
    /// The same, of a call that the tracer makes in its place: it counts as made.
    Emulated(i64),
}

/// The start of a system call: what the tracer has made of it.
pub async fn at_entry(thread: &Arc<Thread>, nr: u64) -> Option<Instead> {
    let next = thread.trace.with(|traced| traced.next)?;
    let is_emulated = next.is_emulated();
    if next != Next::Calls && !is_emulated {
        return None;
    }
    let call = InCall { nr, value: -i64::from(Errno::ENOSYS.0) };
    let ended = at_call(thread, Kind::Entry, call).await.and_then(|ended| ended.call);
    // However the tracer has it go on from there, and also if it dies meanwhile.
    match is_emulated {
        true => Some(Instead::Emulated(ended.unwrap_or(call).value)),
        false => instead(thread, ended),
    }
}

/// What a tracer has made of a call that is now this one, in a stop before it is made.
pub(super) fn instead(thread: &Thread, now: Option<InCall>) -> Option<Instead> {
    let now = now.filter(|_| thread.trace.is_changed())?;
    if now.nr == u64::MAX {
        return Some(Instead::Skips(now.value));
    }
    let UserRegs { rdi, rsi, rdx, r10, r8, r9, .. } = thread.user.known_registers();
    Some(Instead::Makes(now.nr, [rdi, rsi, rdx, r10, r8, r9]))
}

async fn at_call(thread: &Arc<Thread>, kind: Kind, call: InCall) -> Option<Stop> {
    let signo = match thread.trace.has_option(PTRACE_O_TRACESYSGOOD) {
        true => SIGTRAP | 0x80,
        false => SIGTRAP,
    };
    let stopped = Stop::new(kind, status_of(signo, 0), Some(about(thread, signo)), Some(call));
    let ended = stop(thread, stopped).await?;
    if let Some(signo @ 1..) = ended.over {
        let _ = signal::send_to_thread(thread, SigInfo::kernel(signo));
    }
    Some(ended)
}

/// The end of a system call with this outcome, as it was at its start or is by now.
pub async fn at_exit(thread: &Arc<Thread>, nr: u64, outcome: Outcome) -> Outcome {
    let call = match outcome {
        Outcome::Returns(result) => Some((nr, result)),
        Outcome::RegistersReplaced => None,
    };
    let next = thread.trace.with(|traced| traced.next);
    if next == Some(Next::Step) && thread.trace.stops_at_calls() {
        // As after any other instruction. What the flag does after this one depends on the CPU.
        signal::force(thread, SigInfo::new(SIGTRAP, TRAP_BRKPT as i32));
    }
    let mut before = call.map(|(nr, result)| InCall { nr, value: shown(result) });
    let mut after = before;
    if next == Some(Next::Calls) && thread.trace.stops_at_calls() {
        if before.is_none() {
            let Ok(regs) = thread.user.registers().await else { return outcome };
            // What a handler has interrupted is no call that has been made here.
            let nr = if nr == u64::from(__NR_rt_sigreturn) { u64::MAX } else { nr };
            before = Some(InCall { nr, value: regs.rax as i64 });
        }
        let Some(in_call) = before else { return outcome };
        after = at_call(thread, Kind::Exit, in_call).await.and_then(|ended| ended.call).or(before);
    }
    match call {
        Some(_) => match settle(thread, call, before, after) {
            Some((_, result)) => Outcome::Returns(result),
            None => Outcome::RegistersReplaced,
        },
        None => {
            if after != before
                && let Some(after) = after
            {
                thread.user.change_registers(|regs| regs.rax = after.value as u64);
            }
            thread.trace.take_change();
            outcome
        }
    }
}

/// The thread is about to leave a system call with this outcome, if it was in one.
pub fn leaves_call(thread: &Thread, call: Option<(u64, Outcome)>) {
    let call = call.and_then(|(nr, outcome)| match outcome {
        // It does not come back from these.
        _ if [__NR_exit, __NR_exit_group].contains(&(nr as u32)) => Some((nr, Err(Errno::ENOSYS))),
        Outcome::Returns(result) => Some((nr, result)),
        Outcome::RegistersReplaced => None,
    });
    thread.trace.set_call(call);
}

/// Stops the thread for an event (PTRACE_EVENT_*), if its tracer wants to be told of it.
pub async fn for_event(thread: &Arc<Thread>, event: u32, message: u64) {
    if !thread.trace.has_option(1 << event) {
        return;
    }
    let tracer = tracer_of(thread);
    // What it is about is a thread, but for the event of an end.
    let message = match (event, tracer, u32::try_from(message)) {
        (PTRACE_EVENT_EXIT, ..) => message,
        (_, Some(tracer), Ok(tid)) => tracer.number_of(tid).into(),
        _ => message,
    };
    thread.trace.with(|traced| traced.message = message);
    let call = thread.trace.call().map(|(nr, result)| InCall { nr, value: shown(result) });
    let info = about(thread, SIGTRAP | event << 8);
    stop(thread, Stop::new(Kind::Event, status_of(SIGTRAP, event), Some(info), call)).await;
}

/// A tracee executes another program: it has the registers that this begins with. `old`: the id
/// that the thread had before.
pub async fn for_exec(thread: &Arc<Thread>, old: u32) {
    if !thread.trace.is_on() {
        return;
    }
    if !thread.trace.has_option(PTRACE_O_TRACEEXEC) {
        if !thread.trace.is_seized() {
            let _ = signal::send_to_thread(thread, SigInfo::user(SIGTRAP, 0, 0));
        }
        return;
    }
    let event = PTRACE_EVENT_EXEC;
    let old = tracer_of(thread).map_or(0, |tracer| tracer.number_of(old));
    thread.trace.with(|traced| traced.message = old.into());
    let call = InCall { nr: __NR_execve.into(), value: -i64::from(Errno::ENOSYS.0) };
    let info = about(thread, SIGTRAP | event << 8);
    stop(thread, Stop::new(Kind::Event, status_of(SIGTRAP, event), Some(info), Some(call))).await;
    thread.trace.take_change();
    // The result of the call comes after this.
    thread.user.change_registers(|regs| regs.rax = 0);
}

/// PTRACE_LISTEN: EIO where it is in no stop that may last.
pub fn listen(thread: &Thread) -> Result {
    with(thread, |stop| {
        let lasts = is_event_stop(stop.status);
        stop.listens = lasts;
        lasts.then_some(()).ok_or(Errno::EIO)
    })??;
    // It may have been continued already.
    thread.wakeup().set();
    Ok(())
}
