//! The system calls about signals (signal(7)).

use alloc::boxed::Box;
use alloc::sync::Arc;

use linux_raw_sys::general::{
    CAP_KILL, SIG_BLOCK, SIG_SETMASK, SIG_UNBLOCK, SIGCONT, SIGKILL, SIGSTOP,
};
use qlib::Va;

use crate::abi::TimeSpec;
use crate::errno::{Errno, Result};
use crate::task::outcome::{Outcome, RegistersReplaced};
use crate::task::signal::{
    self, AltStack, Disposition, SIGNALS, SigAction, SigInfo, SigSet, SigStack, deliver, send_by,
};
use crate::task::{Process, Thread, table};
use crate::time;
use crate::wait::{PollMask, block_on};

/// sizeof(sigset_t) in the kernel's interface.
const SIGSET_BYTES: usize = 8;

fn read_set(thread: &Thread, at: Va, sigsetsize: usize) -> Result<SigSet> {
    if sigsetsize != SIGSET_BYTES {
        return Err(Errno::EINVAL);
    }
    thread.mm().read::<u64>(at).map(SigSet)
}

/// rt_sigaction(2).
pub fn rt_sigaction(
    thread: &Arc<Thread>,
    signum: u32,
    act: Va,
    oldact: Va,
    sigsetsize: usize,
) -> Result<usize> {
    if sigsetsize != SIGSET_BYTES || !(1..=SIGNALS).contains(&signum) {
        return Err(Errno::EINVAL);
    }
    let mm = thread.mm();
    let new = if act.0 != 0 { Some(mm.read::<SigAction>(act)?) } else { None };
    if new.is_some() && matches!(signum, SIGKILL | SIGSTOP) {
        return Err(Errno::EINVAL);
    }
    let old = thread.process.signals.lock().action(signum);
    if let Some(mut action) = new {
        action.mask = SigSet(action.mask).as_mask().0;
        thread.process.signals.lock().set_action(signum, action);
        if action.disposition(signum) == Disposition::Ignore {
            // A pending signal that is ignored from now on is gone.
            signal::discard(&thread.process, SigSet::of(&[signum]));
        }
    }
    if oldact.0 != 0 {
        mm.write(oldact, &old)?;
    }
    Ok(0)
}

/// rt_sigprocmask(2).
pub fn rt_sigprocmask(
    thread: &Arc<Thread>,
    how: u32,
    set: Va,
    oldset: Va,
    sigsetsize: usize,
) -> Result<usize> {
    if sigsetsize != SIGSET_BYTES {
        return Err(Errno::EINVAL);
    }
    let old = thread.signals.lock().mask;
    if set.0 != 0 {
        let set = read_set(thread, set, sigsetsize)?;
        let new = match how {
            SIG_BLOCK => old.union(set),
            SIG_UNBLOCK => old.minus(set),
            SIG_SETMASK => set,
            _ => return Err(Errno::EINVAL),
        };
        signal::set_mask(thread, new);
    }
    if oldset.0 != 0 {
        thread.mm().write(oldset, &old.0)?;
    }
    Ok(0)
}

/// rt_sigreturn(2).
pub async fn rt_sigreturn(thread: &Arc<Thread>) -> Result<RegistersReplaced> {
    deliver::rt_sigreturn(thread).await
}

/// rt_sigpending(2).
pub fn rt_sigpending(thread: &Arc<Thread>, set: Va, sigsetsize: usize) -> Result<usize> {
    if sigsetsize > SIGSET_BYTES {
        return Err(Errno::EINVAL);
    }
    let blocked = signal::pending(thread).and(thread.signals.lock().mask);
    thread.mm().write_bytes(set, &blocked.0.to_le_bytes()[..sigsetsize])?;
    Ok(0)
}

/// rt_sigsuspend(2).
pub async fn rt_sigsuspend(thread: &Arc<Thread>, mask: Va, sigsetsize: usize) -> Result<usize> {
    let mask = read_set(thread, mask, sigsetsize)?;
    signal::swap_mask_for_wait(thread, mask);
    pause(thread).await
}

/// pause(2).
pub async fn pause(thread: &Arc<Thread>) -> Result<usize> {
    let never = || Err::<usize, _>(Errno::EAGAIN);
    block_on(thread, &[], PollMask::empty(), None, never).await.map_err(|_| Errno::ERESTARTNOHAND)
}

/// rt_sigtimedwait(2).
pub async fn rt_sigtimedwait(
    thread: &Arc<Thread>,
    set: Va,
    info: Va,
    timeout: Va,
    sigsetsize: usize,
) -> Result<usize> {
    let wanted = read_set(thread, set, sigsetsize)?.as_mask();
    let deadline_ns = if timeout.0 == 0 {
        None
    } else {
        let ns = thread.mm().read::<TimeSpec>(timeout)?.to_ns()?;
        Some(time::monotonic_ns().saturating_add(ns))
    };
    signal::set_waited_for(thread, wanted);
    let attempt = || signal::take_pending(thread, wanted).ok_or(Errno::EAGAIN);
    let result =
        block_on(thread, &[&thread.process.signal_events], PollMask::READ, deadline_ns, attempt)
            .await;
    signal::set_waited_for(thread, SigSet::EMPTY);
    let taken = match result {
        Ok(taken) => taken,
        Err(Errno::ETIMEDOUT) => return Err(Errno::EAGAIN),
        Err(_) => return Err(Errno::EINTR),
    };
    if info.0 != 0 {
        thread.mm().write(info, &taken)?;
    }
    Ok(taken.signal() as usize)
}

/// sigaltstack(2).
pub async fn sigaltstack(thread: &Arc<Thread>, ss: Va, old_ss: Va) -> Result<usize> {
    let sp = thread.user.registers().await?.rsp;
    let new = if ss.0 != 0 { Some(thread.mm().read::<SigStack>(ss)?) } else { None };
    let old = signal::alt_stack(thread);
    if let Some(new) = new {
        if old.is_in_use(sp) {
            return Err(Errno::EPERM);
        }
        signal::set_alt_stack(thread, AltStack::from_user(new)?);
    }
    if old_ss.0 != 0 {
        thread.mm().write(old_ss, &old.to_user(sp))?;
    }
    Ok(0)
}

/// restart_syscall(2).
pub async fn restart_syscall(
    thread: &Arc<Thread>,
    arg0: u64,
    arg1: u64,
    arg2: u64,
    arg3: u64,
    arg4: u64,
    arg5: u64,
) -> Outcome {
    let Some(nr) = signal::begin_restart(thread) else {
        return Outcome::Returns(Err(Errno::EINTR));
    };
    let outcome = Box::pin(super::dispatch(thread, nr, [arg0, arg1, arg2, arg3, arg4, arg5])).await;
    signal::end_restart(thread, nr);
    outcome
}

/// True if `thread` may send `signo` to `target` (kill(2)): EPERM.
pub fn check_permission(thread: &Arc<Thread>, target: &Arc<Process>, signo: u32) -> Result {
    if target.pid == thread.process.pid {
        return Ok(());
    }
    let own = thread.creds();
    let is_capable = match target.first_thread() {
        Some(its) => own.capable_in(&its.creds().user, CAP_KILL),
        None => true,
    };
    if is_capable || (signo == SIGCONT && target.sid() == thread.process.sid()) {
        return Ok(());
    }
    if signal::would_be_allowed(own.euid, own.uid, target) { Ok(()) } else { Err(Errno::EPERM) }
}

fn check_number(signo: u32) -> Result {
    if signo > SIGNALS { Err(Errno::EINVAL) } else { Ok(()) }
}

fn kill_one(thread: &Arc<Thread>, target: &Arc<Process>, signo: u32) -> Result {
    check_permission(thread, target, signo)?;
    if signo != 0 {
        send_by(thread, target, None, |pid, uid| SigInfo::user(signo, pid, uid))?;
    }
    Ok(())
}

/// kill(2).
pub fn kill(thread: &Arc<Thread>, pid: i32, sig: u32) -> Result<usize> {
    check_number(sig)?;
    let group = match pid {
        1.. => {
            return kill_one(thread, &thread.find_process_of(pid as u32)?, sig).map(|()| 0);
        }
        -1 => {
            let own = thread.process.pid;
            let all = thread.process.pid_namespace.processes_from(2);
            all.map(|(_, process)| process).filter(|process| process.pid != own).collect()
        }
        0 => table::group(thread.process.pgid()),
        i32::MIN => return Err(Errno::ESRCH),
        _ => table::group(thread.pid_of(pid.unsigned_abs())?),
    };
    if group.is_empty() {
        return Err(Errno::ESRCH);
    }
    let (mut sent, mut error) = (false, Errno::EPERM);
    for target in group {
        match kill_one(thread, &target, sig) {
            Ok(()) => sent = true,
            Err(e) => error = e,
        }
    }
    if sent || pid == -1 { Ok(0) } else { Err(error) }
}

fn find_thread(thread: &Thread, tgid: Option<i32>, tid: i32) -> Result<Arc<Thread>> {
    if tid <= 0 || tgid.is_some_and(|t| t <= 0) {
        return Err(Errno::EINVAL);
    }
    let target = thread.find_thread(tid as u32)?;
    if tgid.is_some_and(|t| thread.number_of(target.process.pid) != t as u32) {
        return Err(Errno::ESRCH);
    }
    Ok(target)
}

fn kill_thread(thread: &Arc<Thread>, target: &Arc<Thread>, signo: u32) -> Result<usize> {
    check_number(signo)?;
    check_permission(thread, &target.process, signo)?;
    if signo != 0 {
        let process = &target.process;
        send_by(thread, process, Some(target), |pid, uid| SigInfo::thread(signo, pid, uid))?;
    }
    Ok(0)
}

/// tkill(2).
pub fn tkill(thread: &Arc<Thread>, tid: i32, sig: u32) -> Result<usize> {
    kill_thread(thread, &find_thread(thread, None, tid)?, sig)
}

/// tgkill(2).
pub fn tgkill(thread: &Arc<Thread>, tgid: i32, tid: i32, sig: u32) -> Result<usize> {
    kill_thread(thread, &find_thread(thread, Some(tgid), tid)?, sig)
}

/// Reads a siginfo_t that a program hands over for signal `signo`.
pub fn read_info(thread: &Thread, signo: u32, at: Va) -> Result<SigInfo> {
    let mut info = thread.mm().read::<SigInfo>(at)?;
    info.signo = signo as i32;
    Ok(info)
}

/// rt_sigqueueinfo(2).
pub fn rt_sigqueueinfo(thread: &Arc<Thread>, tgid: i32, sig: u32, info: Va) -> Result<usize> {
    let info = read_info(thread, sig, info)?;
    if !info.may_be_forged() && tgid != thread.number_of(thread.process.pid) as i32 {
        return Err(Errno::EPERM);
    }
    check_number(sig)?;
    let target = thread.find_process(u32::try_from(tgid).map_err(|_| Errno::ESRCH)?)?;
    check_permission(thread, &target, sig)?;
    if sig != 0 {
        send_by(thread, &target, None, |_, _| info)?;
    }
    Ok(0)
}

/// rt_tgsigqueueinfo(2).
pub fn rt_tgsigqueueinfo(
    thread: &Arc<Thread>,
    tgid: i32,
    tid: i32,
    sig: u32,
    info: Va,
) -> Result<usize> {
    let target = find_thread(thread, Some(tgid), tid)?;
    let info = read_info(thread, sig, info)?;
    if !info.may_be_forged() && tgid != thread.number_of(thread.process.pid) as i32 {
        return Err(Errno::EPERM);
    }
    check_number(sig)?;
    check_permission(thread, &target.process, sig)?;
    if sig != 0 {
        send_by(thread, &target.process, Some(&target), |_, _| info)?;
    }
    Ok(0)
}
