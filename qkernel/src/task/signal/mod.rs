//! Signals (signal(7)): who has which pending, blocked, handled; [`send`]ing them, and
//! [`deliver`]ing them at the return to user mode.

pub mod action;
pub mod deliver;
pub mod frame;
pub mod info;
pub mod mask;
pub mod queue;
pub mod send;
pub mod set;

use alloc::sync::Arc;

use linux_raw_sys::general::{SS_AUTODISARM, SS_DISABLE, SS_ONSTACK};

pub use action::{Actions, Disposition, SigAction};
pub use deliver::{Death, Delivery, deliver, force, force_exception, force_segv, to_return_value};
pub use frame::{FXSAVE_BYTES, SigStack, USER_CS, USER_SS};
pub use info::SigInfo;
pub use mask::{restore_mask, set_mask, swap_mask_for_wait};
pub use queue::PendingQueue;
pub use send::{
    send_by, send_of, send_to_group, send_to_process, send_to_thread, would_be_allowed,
};
pub use set::{FIRST_REALTIME, SIGNALS, SigSet, Signo};

use super::{Process, Thread};
use crate::errno::{Errno, Result};
use crate::sync::Mutex;

/// A thread's own part of signal handling.
#[derive(Clone, Debug, Default)]
pub struct ThreadSignals {
    /// Blocked signals.
    pub mask: SigSet,
    /// The mask to come back to, while a call like ppoll(2) has replaced it.
    saved_mask: Option<SigSet>,
    /// Sent to this thread.
    pending: PendingQueue,
    /// What sigtimedwait(2) waits for: it wakes the thread though it is blocked.
    waited_for: SigSet,
    /// The alternate stack.
    alt_stack: AltStack,
    /// What is behind the last exception.
    fault: frame::Fault,
    /// The thread is parked in a stopped process.
    is_parked: bool,
    /// A call that may be taken up again by restart_syscall(2).
    restart: Option<Restart>,
}

/// A call that was interrupted, to be taken up again with the time that is left.
#[derive(Clone, Copy, Debug)]
struct Restart {
    nr: u64,
    deadline_ns: u64,
    /// restart_syscall(2) is being served: the call may have the deadline.
    is_active: bool,
}

/// sigaltstack(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AltStack {
    sp: u64,
    size: u64,
    /// SS_DISABLE or SS_AUTODISARM.
    flags: u32,
}

/// The smallest alternate stack (MINSIGSTKSZ).
const MIN_STACK_BYTES: u64 = 2048;

impl Default for AltStack {
    fn default() -> Self {
        AltStack { sp: 0, size: 0, flags: SS_DISABLE }
    }
}

impl AltStack {
    /// From what a program gave: EINVAL or ENOMEM as in sigaltstack(2).
    pub fn from_user(stack: SigStack) -> Result<Self> {
        match stack.flags & !SS_AUTODISARM {
            SS_DISABLE => Ok(AltStack { flags: stack.flags, ..AltStack::default() }),
            0 | SS_ONSTACK if stack.size < MIN_STACK_BYTES => Err(Errno::ENOMEM),
            0 | SS_ONSTACK => {
                Ok(AltStack { sp: stack.sp, size: stack.size, flags: stack.flags & SS_AUTODISARM })
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// As a program sees it while its stack pointer is `sp`.
    pub fn to_user(self, sp: u64) -> SigStack {
        let on = if self.flags & SS_DISABLE == 0 && self.contains(sp) { SS_ONSTACK } else { 0 };
        SigStack { sp: self.sp, flags: self.flags | on, pad: 0, size: self.size }
    }

    /// True if there is one.
    pub fn is_enabled(self) -> bool {
        self.flags & SS_DISABLE == 0
    }

    /// True if it is taken out of use while a handler runs on it.
    pub fn disarms(self) -> bool {
        self.flags & SS_AUTODISARM != 0
    }

    /// True if a thread with stack pointer `sp` uses it.
    pub fn is_in_use(self, sp: u64) -> bool {
        self.is_enabled() && !self.disarms() && self.contains(sp)
    }

    fn contains(self, sp: u64) -> bool {
        sp > self.sp && sp - self.sp <= self.size
    }

    /// The address its first frame lies below.
    pub fn top(self) -> u64 {
        self.sp.wrapping_add(self.size)
    }
}

/// What a process's threads share of signal handling.
#[derive(Debug, Default)]
pub struct ProcessSignals {
    /// What to do about each signal (CLONE_SIGHAND shares it between processes).
    actions: Arc<Mutex<Actions>>,
    /// Sent to the process.
    pending: PendingQueue,
    /// Job control: stopped by this signal.
    stopped_by: Option<Signo>,
    /// All threads have parked since, and the parent was notified.
    stop_notified: bool,
    /// An exception of its own may end it although it is pid 1.
    is_killable: bool,
    /// It has the default actions of others although it is pid 1.
    is_ordinary: bool,
    /// How many of its threads are in sigtimedwait(2).
    waiting: usize,
}

impl ProcessSignals {
    /// Gives the process, although it may be pid 1, the default actions of others.
    pub fn be_ordinary(&mut self) {
        self.is_ordinary = true;
    }
}

impl ThreadSignals {
    /// For a new thread with the mask of its maker, or as fork(2) copies: `keep_stack` unless it
    /// shares memory.
    pub fn inherit(&self, keep_stack: bool) -> Self {
        ThreadSignals {
            mask: self.saved_mask.unwrap_or(self.mask),
            alt_stack: if keep_stack { self.alt_stack } else { AltStack::default() },
            ..ThreadSignals::default()
        }
    }

    /// Pending for this thread alone.
    pub fn pending(&self) -> SigSet {
        self.pending.set()
    }

    /// What blocks a signal now, sigtimedwait(2) aside.
    fn is_blocked(&self, signo: Signo) -> bool {
        self.mask.contains(signo)
            || self.saved_mask.is_some_and(|m| m.contains(signo))
            || self.waited_for.contains(signo)
    }
}

impl ProcessSignals {
    /// Tells apart those that share their actions from those that do not.
    pub fn actions_identity(&self) -> usize {
        Arc::as_ptr(&self.actions).addr()
    }

    /// For a child: its own copy of the actions, or the same ones (CLONE_SIGHAND).
    pub fn inherit(&self, share_actions: bool, clear_handlers: bool) -> Self {
        let actions = if share_actions {
            self.actions.clone()
        } else {
            let mut copy = self.actions.lock().clone();
            if clear_handlers {
                copy.reset_handlers();
            }
            Arc::new(Mutex::new(copy))
        };
        ProcessSignals { actions, ..ProcessSignals::default() }
    }

    /// The action for `signo`.
    pub fn action(&self, signo: Signo) -> SigAction {
        self.actions.lock().get(signo)
    }

    /// Sets the action for `signo`.
    pub fn set_action(&self, signo: Signo, action: SigAction) {
        self.actions.lock().set(signo, action);
    }

    /// Pending for the whole process.
    pub fn pending(&self) -> SigSet {
        self.pending.set()
    }

    /// Ignored and caught signals (for /proc/PID/status).
    pub fn ignored_and_caught(&self) -> (SigSet, SigSet) {
        self.actions.lock().ignored_and_caught()
    }

    /// The signal by which job control has stopped the process.
    pub fn stopped_by(&self) -> Option<Signo> {
        self.stopped_by
    }

    /// True if job control has stopped the process.
    pub fn is_stopped(&self) -> bool {
        self.stopped_by.is_some()
    }

    /// As execve(2) does: own actions, handlers back to the default.
    pub fn reset_for_exec(&mut self) {
        let mut actions = self.actions.lock().clone();
        actions.reset_handlers();
        self.actions = Arc::new(Mutex::new(actions));
    }
}

/// As execve(2) does to the signal state of its thread and process: handlers go, the alternate
/// stack goes; masks and pending signals stay.
pub fn on_exec(thread: &Arc<Thread>) {
    thread.process.signals.lock().reset_for_exec();
    thread.process.timers.reset_for_exec();
    let mut signals = thread.signals.lock();
    signals.alt_stack = AltStack::default();
    signals.restart = None;
}

/// True if the thread has to look at its signals: one is pending that is not blocked, or the
/// process is stopped.
pub fn has_deliverable(thread: &Thread) -> bool {
    let (own, mask) = {
        let signals = thread.signals.lock();
        (signals.pending.set(), signals.mask)
    };
    is_deliverable(thread, own, mask)
}

fn is_deliverable(thread: &Thread, own: SigSet, mask: SigSet) -> bool {
    let process = thread.process.signals.lock();
    process.stopped_by.is_some() && !thread.trace.runs_on()
        || thread.trace.is_asked()
        || !own.union(process.pending.set()).minus(mask).is_empty()
}

/// True if [`deliver`] would have nothing to do: the cheap check at each return to user mode.
pub fn is_quiet(thread: &Thread) -> bool {
    let (own, mask) = {
        let signals = thread.signals.lock();
        if signals.saved_mask.is_some() {
            return false;
        }
        (signals.pending.set(), signals.mask)
    };
    !is_deliverable(thread, own, mask)
}

/// Pending for the thread or its process, blocked or not.
pub fn pending(thread: &Thread) -> SigSet {
    let own = thread.signals.lock().pending.set();
    own.union(thread.process.signals.lock().pending.set())
}

/// How many signals are queued for the thread or its process.
pub fn queued(thread: &Thread) -> usize {
    let own = thread.signals.lock().pending.len();
    own + thread.process.signals.lock().pending.len()
}

/// Takes a pending signal of `wanted` (for sigtimedwait(2) and signalfd(2)): the thread's own
/// first. [`super::Process::signal_events`] notifies of arrivals.
pub fn take_pending(thread: &Thread, wanted: SigSet) -> Option<SigInfo> {
    let own = thread.signals.lock().pending.take(wanted);
    own.or_else(|| thread.process.signals.lock().pending.take(wanted))
}

/// Adds to the overrun count of the signal of POSIX timer `id`, if one is pending for the thread,
/// or without one for the process; false when none is.
pub fn add_overrun(process: &super::Process, thread: Option<&Thread>, id: i32, times: i32) -> bool {
    match thread {
        Some(thread) => thread.signals.lock().pending.add_overrun(id, times),
        None => process.signals.lock().pending.add_overrun(id, times),
    }
}

/// For a call with a relative timeout that a signal interrupted: the error to return, so that it
/// goes on until `deadline_ns` (CLOCK_MONOTONIC) if no handler runs, and fails with EINTR if one
/// does. The call asks [`take_restart_deadline`] at its start.
pub fn restart_until(thread: &Thread, deadline_ns: u64) -> Errno {
    thread.signals.lock().restart = Some(Restart { nr: 0, deadline_ns, is_active: false });
    Errno::ERESTART_RESTARTBLOCK
}

/// The deadline to use instead of the relative timeout, if the call is being taken up again after a
/// signal.
pub fn take_restart_deadline(thread: &Thread) -> Option<u64> {
    let mut signals = thread.signals.lock();
    let active = signals.restart.filter(|r| r.is_active)?;
    signals.restart = None;
    Some(active.deadline_ns)
}

/// restart_syscall(2) begins: the number of the call to take up again.
pub fn begin_restart(thread: &Thread) -> Option<u64> {
    let mut signals = thread.signals.lock();
    let restart = signals.restart.as_mut()?;
    restart.is_active = true;
    Some(restart.nr)
}

/// restart_syscall(2) ends; `nr` was taken up again, and may have been interrupted again.
pub fn end_restart(thread: &Thread, nr: u64) {
    let mut signals = thread.signals.lock();
    match &mut signals.restart {
        // It did not ask for its deadline, or finished: there is nothing left to take up.
        Some(restart) if restart.is_active => signals.restart = None,
        Some(restart) => restart.nr = nr,
        None => {}
    }
}

/// What sigtimedwait(2) waits for, until it is set to nothing.
pub fn set_waited_for(thread: &Thread, wanted: SigSet) {
    let before = core::mem::replace(&mut thread.signals.lock().waited_for, wanted);
    let mut signals = thread.process.signals.lock();
    signals.waiting -= usize::from(!before.is_empty());
    signals.waiting += usize::from(!wanted.is_empty());
}

/// The alternate stack.
pub fn alt_stack(thread: &Thread) -> AltStack {
    thread.signals.lock().alt_stack
}

/// Sets the alternate stack.
pub fn set_alt_stack(thread: &Thread, stack: AltStack) {
    thread.signals.lock().alt_stack = stack;
}

/// Says whether a thread is stopped, as all of its process must be that job control stops.
pub fn set_parked(thread: &Thread, is_parked: bool) {
    thread.signals.lock().is_parked = is_parked;
}

/// Forgets pending signals of a process and its threads.
pub fn discard(process: &Process, set: SigSet) {
    process.signals.lock().pending.discard(set);
    for thread in process.each_thread() {
        thread.signals.lock().pending.discard(set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternate_stacks_are_checked() {
        let stack = |flags, size| SigStack { sp: 0x1000, flags, pad: 0, size };
        assert_eq!(AltStack::from_user(stack(0, 100)), Err(Errno::ENOMEM));
        assert_eq!(AltStack::from_user(stack(8, 8192)), Err(Errno::EINVAL));
        let disabled = AltStack::from_user(stack(SS_DISABLE, 0)).expect("valid");
        assert!(!disabled.is_enabled() && !disabled.is_in_use(0x1001));
        let alt = AltStack::from_user(stack(0, 8192)).expect("valid");
        assert!(!alt.is_in_use(0x1000));
        assert!(alt.is_in_use(0x1001) && alt.is_in_use(0x3000));
        assert!(!alt.is_in_use(0x3001));
        assert_eq!(alt.to_user(0x2000).flags, SS_ONSTACK);
        assert_eq!(alt.to_user(0x9000).flags, 0);
        let auto = AltStack::from_user(stack(SS_AUTODISARM, 8192)).expect("valid");
        assert!(auto.disarms() && !auto.is_in_use(0x2000));
    }
}
