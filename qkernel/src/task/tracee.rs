//! What a thread has of being traced, and a process of tracing others (ptrace(2)): the state. What
//! is done with it lies in [`super::trace`].

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::any::Any;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::signal::info::SigInfo;
use super::signal::set::Signo;
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::sync::Mutex;

/// It has a tracer.
pub(super) const TRACED: u32 = 1;
/// It stops at its system calls.
pub(super) const CALLS: u32 = 2;
/// It is to stop at its return to user mode (PTRACE_INTERRUPT, the first stop of one that is
/// seized).
pub(super) const ASKED: u32 = 4;
/// Its tracer has let it go on although job control has stopped its process.
pub(super) const RUNS_ON: u32 = 8;
/// Its registers have been changed since it entered the system call, or the stop, that it is in. It
/// outlasts the tracing: who lets a tracee go may have changed them before.
pub(super) const CHANGED: u32 = 16;

/// What a thread has of tracing: nothing, mostly.
#[derive(Default)]
pub struct Trace {
    /// What is asked at each system call and return to user mode.
    flags: AtomicU32,
    state: Mutex<Option<Box<Traced>>>,
    /// The system call that it is in, and its result as its registers show it so far, for the
    /// events of a tracer: ENOSYS until there is one.
    call: Mutex<Option<(u64, Result<usize>)>>,
    /// A stop that its tracer has ended, until the thread goes on.
    pub(super) left: Mutex<Option<Stop>>,
}

/// What a tracee has.
pub struct Traced {
    /// The process that traces it.
    pub tracer: Weak<dyn Any + Send + Sync>,
    /// Who has begun that, with what rights: they count for as long as it lasts.
    pub creds: Arc<Creds>,
    /// PTRACE_O_*.
    pub options: u32,
    /// By PTRACE_SEIZE: job control stops are told apart from others, and last.
    pub is_seized: bool,
    /// It is in a stop.
    pub stop: Option<Stop>,
    /// How it goes on after that.
    pub next: Next,
    /// PTRACE_GETEVENTMSG.
    pub message: u64,
    /// It goes on by single steps that it does not make by itself: its flags are not its own.
    pub steps: bool,
}

/// How a tracee goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// PTRACE_CONT.
    Continue,
    /// PTRACE_SYSCALL: until it enters or leaves a system call.
    Calls,
    /// PTRACE_SINGLESTEP: for one instruction.
    Step,
    /// PTRACE_SYSEMU: until it enters a system call, which it does not make.
    Emulated,
    /// PTRACE_SYSEMU_SINGLESTEP: for one instruction, or until it enters a system call, which it
    /// does not make.
    EmulatedStep,
}

impl Next {
    /// It takes a trap after the next instruction.
    pub(super) fn steps(self) -> bool {
        matches!(self, Next::Step | Next::EmulatedStep)
    }

    /// It makes no system calls.
    pub(super) fn is_emulated(self) -> bool {
        matches!(self, Next::Emulated | Next::EmulatedStep)
    }
}

impl Trace {
    /// The thread has entered a system call, or has the result of it, or is in none (any more).
    pub fn set_call(&self, call: Option<(u64, Result<usize>)>) {
        *self.call.lock() = call;
    }

    /// The system call that it is in.
    pub(super) fn call(&self) -> Option<(u64, Result<usize>)> {
        *self.call.lock()
    }

    /// True if it has a tracer.
    pub fn is_on(&self) -> bool {
        self.has(TRACED)
    }

    /// True if it stops at its system calls, or after each instruction, of which a call is one.
    pub fn stops_at_calls(&self) -> bool {
        self.has(CALLS)
    }

    /// True if it is to stop before it goes back to user mode.
    pub fn is_asked(&self) -> bool {
        self.has(ASKED)
    }

    /// True if it goes on although job control has stopped its process.
    pub fn runs_on(&self) -> bool {
        self.has(RUNS_ON)
    }

    /// True if its registers are not those that it came with.
    pub(super) fn is_changed(&self) -> bool {
        self.has(CHANGED)
    }

    /// The same; from now on they are.
    pub(super) fn take_change(&self) -> bool {
        self.flags.fetch_and(!CHANGED, Relaxed) & CHANGED != 0
    }

    /// Job control has let its process go on: the next stop is for it again, and one that is seized
    /// tells its tracer of that, also if it runs already.
    pub fn continued(&self) {
        self.set(RUNS_ON, false);
        if self.is_seized() {
            self.set(ASKED, true);
        }
    }

    /// Has the thread be a tracee. EPERM if it is one.
    pub(super) fn begin(&self, traced: Traced) -> Result {
        let mut state = self.state.lock();
        if state.is_some() {
            return Err(Errno::EPERM);
        }
        *state = Some(Box::new(traced));
        drop(state);
        self.set(TRACED, true);
        Ok(())
    }

    /// It is none any more.
    pub(super) fn end(&self) {
        let traced = self.state.lock().take();
        drop(traced);
        self.flags.fetch_and(CHANGED, Relaxed);
    }

    fn has(&self, flag: u32) -> bool {
        self.flags.load(Relaxed) & flag != 0
    }

    pub(super) fn set(&self, flag: u32, on: bool) {
        match on {
            true => self.flags.fetch_or(flag, Relaxed),
            false => self.flags.fetch_and(!flag, Relaxed),
        };
    }

    /// The process that traces it.
    pub(super) fn tracer(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.state.lock().as_ref().and_then(|traced| traced.tracer.upgrade())
    }

    /// What `look` sees of a tracee.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut Traced) -> T) -> Option<T> {
        self.state.lock().as_deref_mut().map(look)
    }

    /// True if its tracer wants to be told of this (PTRACE_O_*).
    pub fn has_option(&self, option: u32) -> bool {
        self.is_on() && self.with(|traced| traced.options & option != 0) == Some(true)
    }

    /// PTRACE_GETEVENTMSG.
    pub fn message(&self) -> u64 {
        self.with(|traced| traced.message).unwrap_or(0)
    }

    /// PTRACE_SETOPTIONS.
    pub fn set_options(&self, options: u32) {
        self.with(|traced| traced.options = options);
    }

    /// By PTRACE_SEIZE.
    pub(super) fn is_seized(&self) -> bool {
        self.with(|traced| traced.is_seized) == Some(true)
    }
}

/// What a stop is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A signal.
    Signal,
    /// The start of a system call.
    Entry,
    /// Its end.
    Exit,
    /// Job control.
    Group,
    /// PTRACE_EVENT_SECCOMP: the start of a system call that a filter has caught.
    Filter,
    /// Another PTRACE_EVENT_*.
    Event,
}

/// The system call that a tracee is in, as its registers show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InCall {
    /// orig_rax: its number; -1 for none.
    pub nr: u64,
    /// %rax: its result, if there is one yet.
    pub value: i64,
}

/// A tracee's stop.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// What wait(2) says of it.
    pub status: i32,
    /// What it is for.
    pub kind: Kind,
    /// PTRACE_GETSIGINFO.
    pub info: Option<SigInfo>,
    /// The system call that the tracee is in.
    pub call: Option<InCall>,
    /// wait(2) has told of it.
    pub is_told: bool,
    /// PTRACE_LISTEN: it lasts until job control ends it.
    pub listens: bool,
    /// It is over, and the tracee takes this signal (0: none).
    pub over: Option<Signo>,
}

impl Stop {
    /// One that begins.
    pub fn new(kind: Kind, status: i32, info: Option<SigInfo>, call: Option<InCall>) -> Stop {
        Stop { status, kind, info, call, is_told: false, listens: false, over: None }
    }
}

/// The tracees of a process, by token.
pub type Tracees = BTreeMap<u64, Tracee>;

/// One of them.
pub enum Tracee {
    /// It lives.
    Lives,
    /// It has ended, which only its tracer has yet to be told.
    Ended(Ended),
}

/// What is told of a tracee that has ended.
#[derive(Clone, Copy)]
pub struct Ended {
    /// Thread id.
    pub tid: u32,
    /// Process group.
    pub pgid: u32,
    /// Real user id.
    pub uid: u32,
    /// The wait status.
    pub status: i32,
    /// It was the first thread of its process.
    pub is_leader: bool,
    /// User and system time, in nanoseconds.
    pub times_ns: (u64, u64),
}
