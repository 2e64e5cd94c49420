//! Delivery: what pending signals do at a thread's return to user mode, and the way back from a
//! handler.

use alloc::boxed::Box;
use alloc::sync::Arc;

use linux_raw_sys::general::{
    __NR_restart_syscall, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSTOP, SIGTRAP, SS_ONSTACK,
};
use qlib::Va;
use qlib::platform::UserRegs;
use zerocopy::IntoBytes;

use super::action::{DEFAULT, Disposition, SigAction};
use super::frame::{self, FXSAVE_BYTES, Fault, RtSigFrame};
use super::mask::restore_saved_mask;
use super::set::UNBLOCKABLE;
use super::{AltStack, SigInfo, SigSet, Signo, is_quiet};
use crate::arch;
use crate::errno::{Errno, Result};
use crate::task::outcome::{Outcome, RegistersReplaced};
use crate::task::trace::stops::{self, Leaving};
use crate::task::{Process, Thread, exit, oom, rseq, session};
use crate::wait::Sleeper;

/// What the thread does at its return to user mode.
#[derive(Debug)]
pub enum Delivery {
    /// Nothing to handle: go on, with `result` for the system call (restart codes resolved) if
    /// there was one.
    None(Option<i64>),
    /// Go on with these registers (a handler is set up, or the call is restarted).
    Registers(UserRegs),
    /// The process ends: the caller rechecks `dying`.
    Ended,
    /// The process ends by a signal, with a core dump if it may have one.
    Dumps(Box<Death>),
}

/// A signal that ends a process, and the thread that takes it.
#[derive(Debug)]
pub struct Death {
    /// The signal.
    pub info: SigInfo,
    /// The thread's registers.
    pub regs: UserRegs,
    /// The number of the call that it is in, -1 for none.
    pub call: i64,
}

/// A call's result as %rax carries it.
pub fn to_return_value(result: Result<usize>) -> i64 {
    match result {
        Ok(value) => value as i64,
        Err(errno) if errno.is_internal() => -i64::from(Errno::EINTR.0),
        Err(errno) => -i64::from(errno.0),
    }
}

/// True if a call asks to be made again.
pub fn is_restart(result: &Result<usize>) -> bool {
    matches!(
        result,
        Err(Errno::ERESTARTSYS
            | Errno::ERESTARTNOINTR
            | Errno::ERESTARTNOHAND
            | Errno::ERESTART_RESTARTBLOCK)
    )
}

/// Sends a signal that an exception of the thread's own caused; it cannot be blocked or ignored.
pub fn force_exception(thread: &Arc<Thread>, signo: Signo, si_code: i32, addr: Va) {
    let trapno = match signo {
        SIGSEGV | SIGBUS => 14,
        SIGILL => 6,
        SIGTRAP => 3,
        SIGFPE if si_code != linux_raw_sys::general::FPE_INTDIV as i32 => 19,
        _ => 0,
    };
    thread.signals.lock().fault =
        Fault { err: 4, trapno, cr2: if trapno == 14 { addr.0 } else { 0 } };
    force(thread, SigInfo::fault(signo, si_code, addr.0));
}

/// Sends a signal of the thread's own doing: if it is blocked or ignored, the process ends.
pub fn force(thread: &Arc<Thread>, info: SigInfo) {
    let signo = info.signal();
    let blocked = thread.signals.lock().mask.contains(signo);
    {
        let mut process = thread.process.signals.lock();
        let action = process.action(signo);
        if blocked || action.disposition(signo) == Disposition::Ignore {
            process.set_action(signo, SigAction::default());
        }
        if blocked || action.handler <= super::action::IGNORE {
            process.is_killable = true;
        }
    }
    let mut signals = thread.signals.lock();
    signals.mask.remove(signo);
    signals.pending.push(info, u64::MAX);
}

/// The program's memory is of no use for a handler of `signo`, or for what it has asked for (0): as
/// Linux's force_sigsegv.
pub fn force_segv(thread: &Arc<Thread>, signo: Signo) {
    if signo == SIGSEGV {
        thread.process.signals.lock().set_action(SIGSEGV, SigAction::default());
    }
    force(thread, SigInfo::kernel(SIGSEGV));
}

/// Handles pending signals at the return to user mode. `call`: the number of the system call the
/// thread is in, and its outcome. Stops and continues are handled here too.
pub async fn deliver(thread: &Arc<Thread>, call: Option<(u64, Outcome)>) -> Delivery {
    let (mut call, mut replaced) = match call {
        Some((nr, Outcome::Returns(result))) => (Some((nr, result)), false),
        Some((_, Outcome::RegistersReplaced)) => (None, true),
        None => (None, false),
    };
    loop {
        if thread.is_dying() {
            return Delivery::Ended;
        }
        if is_quiet(thread) {
            break;
        }
        if thread.trace.is_on() {
            let leaving = Leaving { call: &mut call, replaced: &mut replaced };
            stops::at_return(thread, leaving).await;
        }
        park_while_stopped(thread).await;
        if thread.is_dying() {
            return Delivery::Ended;
        }
        if thread.trace.is_asked() {
            // Somebody has begun to trace it meanwhile.
            continue;
        }
        let Some(info) = dequeue(thread) else {
            // What the wait's own mask let through has been handled; now the thread's mask counts
            // again.
            restore_saved_mask(thread);
            continue;
        };
        let leaving = Leaving { call: &mut call, replaced: &mut replaced };
        let Some(info) = stops::by_signal(thread, info, leaving).await else { continue };
        let signo = info.signal();
        let action = thread.process.signals.lock().action(signo);
        match action.disposition(signo) {
            Disposition::Ignore => {}
            Disposition::Handle => {
                let Ok(regs) = thread.user.registers().await else { return Delivery::Ended };
                let mut regs = finish_call(regs, call.take(), Some(&action));
                replaced = true;
                let steps = stops::ends_step(thread, &mut regs);
                if rseq::on_signal(thread, &mut regs).is_err() {
                    force_segv(thread, signo);
                }
                let entered = loop {
                    match set_up_handler(thread, &regs, &info, &action) {
                        Err(Errno::ERESTARTNOMEM) if oom::copy_may_go_on(thread).await => {}
                        result => break result,
                    }
                };
                thread.signals.lock().fault = Fault::default();
                match entered {
                    Ok(entered) => {
                        thread.user.set_registers(&entered);
                        if steps {
                            // As after an instruction: the handler is what comes next.
                            force(thread, stops::stepped());
                        }
                    }
                    Err(_) => {
                        thread.user.set_registers(&regs);
                        force_segv(thread, signo);
                    }
                }
            }
            _ if is_protected(&thread.process, signo) => {}
            Disposition::Stop => {
                if signo == SIGSTOP || !session::is_orphaned_group(thread.process.pgid()) {
                    begin_stop(&thread.process, signo);
                }
            }
            Disposition::Core => {
                let Ok(regs) = thread.user.registers().await else { return Delivery::Ended };
                let number = call.map_or(-1, |(nr, _)| nr as i64);
                let regs = if replaced { regs } else { finish_call(regs, call.take(), None) };
                return Delivery::Dumps(Box::new(Death { info, regs, call: number }));
            }
            Disposition::Terminate => {
                exit::group_exit(&thread.process, signo as i32);
                return Delivery::Ended;
            }
        }
    }
    match call {
        Some((nr, result)) if is_restart(&result) => {
            let Ok(regs) = thread.user.registers().await else { return Delivery::Ended };
            remember_restart(thread, nr, result);
            Delivery::Registers(finish_call(regs, Some((nr, result)), None))
        }
        _ if replaced => match thread.user.registers().await {
            Ok(regs) => Delivery::Registers(regs),
            Err(_) => Delivery::Ended,
        },
        Some((_, result)) => Delivery::None(Some(to_return_value(result))),
        None => Delivery::None(None),
    }
}

/// True if pid 1 does not take `signo`, having no handler for it.
fn is_protected(process: &Process, signo: Signo) -> bool {
    super::send::is_init(process)
        && !UNBLOCKABLE.contains(signo)
        && !process.signals.lock().is_killable
}

fn dequeue(thread: &Thread) -> Option<SigInfo> {
    let mask = thread.signals.lock().mask;
    super::take_pending(thread, SigSet(!mask.0))
}

/// The registers with which the thread leaves a system call: its result, or the call again.
/// `handler`: a handler with this action runs first.
fn finish_call(
    mut regs: UserRegs,
    call: Option<(u64, Result<usize>)>,
    handler: Option<&SigAction>,
) -> UserRegs {
    let Some((nr, result)) = call else { return regs };
    let again = match (result, handler) {
        (Err(Errno::ERESTARTNOINTR), _) => Some(nr),
        (Err(Errno::ERESTARTSYS), Some(action)) => action.restarts().then_some(nr),
        (Err(Errno::ERESTARTSYS | Errno::ERESTARTNOHAND), None) => Some(nr),
        (Err(Errno::ERESTART_RESTARTBLOCK), None) => Some(u64::from(__NR_restart_syscall)),
        _ => None,
    };
    match again {
        Some(nr) => {
            regs.rax = nr;
            // Back over the two bytes of the system-call instruction.
            regs.rip = regs.rip.wrapping_sub(2);
        }
        None => regs.rax = to_return_value(result) as u64,
    }
    regs
}

fn remember_restart(thread: &Thread, nr: u64, result: Result<usize>) {
    if result != Err(Errno::ERESTART_RESTARTBLOCK) {
        return;
    }
    if let Some(restart) = &mut thread.signals.lock().restart {
        if nr != u64::from(__NR_restart_syscall) {
            restart.nr = nr;
        }
        restart.is_active = false;
    }
}

/// Builds the frame, and blocks what the handler's action says. EFAULT when the stack cannot take
/// it; ERESTARTNOMEM when there is no memory for that: nothing has been done then.
fn set_up_handler(
    thread: &Arc<Thread>,
    regs: &UserRegs,
    info: &SigInfo,
    action: &SigAction,
) -> Result<UserRegs> {
    let signo = info.signal();
    let (alt_stack, mask, fault) = {
        let mut signals = thread.signals.lock();
        signals.restart = None;
        (signals.alt_stack, signals.saved_mask.unwrap_or(signals.mask), signals.fault)
    };
    if !action.has(linux_raw_sys::general::SA_RESTORER) {
        return Err(Errno::EFAULT);
    }
    let fpstate = thread.user.fpstate()?;
    let in_use = alt_stack.is_in_use(regs.rsp);
    let switches = action.on_stack() && alt_stack.is_enabled() && !in_use;
    let top = if switches { alt_stack.top() } else { regs.rsp };
    let at = frame::place(top, !switches, fpstate.len() as u64).ok_or(Errno::EFAULT)?;
    if in_use && !alt_stack.is_in_use(at.frame.0) {
        // The alternate stack is full.
        return Err(Errno::EFAULT);
    }
    let saved = frame::save(regs, mask, fault, at.fpstate);
    let frame = RtSigFrame {
        pretcode: action.restorer,
        uc: frame::context(saved, alt_stack.to_user(regs.rsp), mask, &fpstate),
        info: *info,
    };
    let mm = thread.mm();
    mm.write_bytes(at.fpstate, &fpstate)?;
    mm.write_bytes(at.frame, frame.as_bytes())?;

    if action.resets() {
        thread.process.signals.lock().set_action(signo, SigAction { handler: DEFAULT, ..*action });
    }
    let mut signals = thread.signals.lock();
    signals.saved_mask = None;
    let newly_blocked = action.blocked_by(signo).minus(mask);
    signals.mask = mask.union(newly_blocked);
    if switches && alt_stack.disarms() {
        signals.alt_stack = AltStack::default();
    }
    drop(signals);
    super::send::retarget(thread, newly_blocked);
    Ok(frame::enter(regs, action.handler, signo, at))
}

/// rt_sigreturn(2): takes a frame back.
pub async fn rt_sigreturn(thread: &Arc<Thread>) -> Result<RegistersReplaced> {
    let regs = thread.user.registers().await?;
    let taken = loop {
        match take_frame(thread, &regs) {
            Err(Errno::ERESTARTNOMEM) if oom::copy_may_go_on(thread).await => {}
            result => break result,
        }
    };
    match taken {
        Ok(restored) => thread.user.set_registers(&restored),
        Err(_) => {
            thread.user.set_registers(&UserRegs { rax: 0, ..regs });
            force(thread, SigInfo::kernel(SIGSEGV));
        }
    }
    Ok(RegistersReplaced)
}

fn take_frame(thread: &Arc<Thread>, regs: &UserRegs) -> Result<UserRegs> {
    // The handler's return took the first word off the stack.
    let at = Va(regs.rsp.wrapping_sub(8));
    let mm = thread.mm();
    let frame: RtSigFrame = mm.read(at)?;
    let fpstate_at = Va(frame.uc.mcontext.fpstate);
    if fpstate_at.0 == 0 {
        thread.user.set_fpstate(&[])?;
    } else {
        let mut head = [0; FXSAVE_BYTES];
        mm.read_bytes(fpstate_at, &mut head)?;
        let length = frame::xstate_bytes(&head).unwrap_or(FXSAVE_BYTES);
        let length = length
            .clamp(FXSAVE_BYTES, arch::boot().fpstate_bytes.max(FXSAVE_BYTES as u64) as usize);
        let mut fpstate = alloc::vec![0; length];
        mm.read_bytes(fpstate_at, &mut fpstate)?;
        thread.user.set_fpstate(&fpstate)?;
    }
    let restored = frame::restore(regs, &frame.uc.mcontext);
    super::set_mask(thread, SigSet(frame.uc.sigmask));
    // As Linux does, an unacceptable stack is left as it was.
    let in_use = super::alt_stack(thread).is_in_use(restored.rsp);
    let saved = frame::SigStack { flags: frame.uc.stack.flags & !SS_ONSTACK, ..frame.uc.stack };
    if let Ok(stack) = AltStack::from_user(saved)
        && (!in_use || stack.disarms())
    {
        super::set_alt_stack(thread, stack);
    }
    Ok(restored)
}

/// Job control: stops the process by `signo`.
fn begin_stop(process: &Arc<Process>, signo: Signo) {
    {
        let mut signals = process.signals.lock();
        if signals.stopped_by.is_some() {
            return;
        }
        signals.stopped_by = Some(signo);
        signals.stop_notified = false;
    }
    for thread in process.each_thread() {
        thread.interrupt();
    }
}

/// Waits until the process is no longer stopped, or the thread is to end.
async fn park_while_stopped(thread: &Arc<Thread>) {
    if !thread.process.signals.lock().is_stopped() || thread.trace.runs_on() {
        return;
    }
    super::set_parked(thread, true);
    notify_if_stopped(&thread.process);
    let wakeup = thread.wakeup();
    loop {
        wakeup.clear();
        let is_stopped = thread.process.signals.lock().is_stopped();
        if thread.is_dying() || !is_stopped || thread.trace.is_asked() {
            break;
        }
        thread.sleeps();
        wakeup.wait().await;
    }
    super::set_parked(thread, false);
}

/// Notifies the parent that the process has stopped, once all its threads have.
pub fn notify_if_stopped(process: &Arc<Process>) {
    if !process.signals.lock().is_stopped() || process.thread_count() == 0 {
        return;
    }
    if !process.each_thread().all(|t| t.is_dying() || t.signals.lock().is_parked) {
        return;
    }
    let signo = {
        let mut signals = process.signals.lock();
        let Some(signo) = signals.stopped_by else { return };
        if core::mem::replace(&mut signals.stop_notified, true) {
            return;
        }
        signo
    };
    exit::notify_stopped(process, signo);
}

#[cfg(test)]
mod tests {
    use linux_raw_sys::general::SA_RESTART;

    use super::*;

    fn regs() -> UserRegs {
        UserRegs { rip: 0x1002, rax: 99, ..UserRegs::default() }
    }

    #[test]
    fn calls_restart_as_linux_has_it() {
        let plain = SigAction { handler: 4096, ..SigAction::default() };
        let restarting = SigAction { flags: u64::from(SA_RESTART), ..plain };
        let outcome = |errno, handler: Option<&SigAction>| {
            let out = finish_call(regs(), Some((7, Err(errno))), handler);
            if out.rip == 0x1000 { Some(out.rax) } else { None }
        };
        assert_eq!(outcome(Errno::ERESTARTSYS, None), Some(7));
        assert_eq!(outcome(Errno::ERESTARTSYS, Some(&plain)), None);
        assert_eq!(outcome(Errno::ERESTARTSYS, Some(&restarting)), Some(7));
        assert_eq!(outcome(Errno::ERESTARTNOHAND, None), Some(7));
        assert_eq!(outcome(Errno::ERESTARTNOHAND, Some(&restarting)), None);
        assert_eq!(outcome(Errno::ERESTARTNOINTR, Some(&plain)), Some(7));
        assert_eq!(outcome(Errno::ERESTART_RESTARTBLOCK, None), Some(219));
        assert_eq!(outcome(Errno::ERESTART_RESTARTBLOCK, Some(&restarting)), None);
        let out = finish_call(regs(), Some((7, Err(Errno::ERESTARTSYS))), Some(&plain));
        assert_eq!((out.rip, out.rax as i64), (0x1002, -4));
        assert_eq!(finish_call(regs(), Some((7, Ok(5))), None).rax, 5);
        assert_eq!(finish_call(regs(), None, None), regs());
    }
}
