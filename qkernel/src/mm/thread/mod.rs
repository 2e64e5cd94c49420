//! The platform's side of a thread: where it is (user mode, in a system call, stopped), its
//! [traps](trap), how it [goes on](resume), and how it is [there no more](shed) for a while.

mod anew;
mod resume;
pub mod shed;
mod trap;

use core::ops::{Deref, Range};
use core::task::Waker;

use alloc::vec::Vec;

use qlib::platform::{DeferredOp, OP_SET_FS, OP_SET_GS, Trap, UserRegs};
use qlib::{Gpa, Va};

use self::anew::Anew;
use super::mmu::void;
use super::ranges::Ranges;
use super::{AddressSpace, DeferredFree};
use crate::account;
use crate::arch::user::{Go, SpaceHandle, ThreadHandle};
use crate::errno::{Errno, Result};
use crate::sync::Mutex;

/// Where a thread is, as far as the kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunState {
    /// In user mode, or on its way out of it.
    User,
    /// Stopped in a system call that is not answered yet; registers unknown.
    Syscall,
    /// Stopped with its registers known. `in_syscall`: a call is not answered yet.
    Stopped { in_syscall: bool },
    /// Its operations are being carried out ([`Go::Hold`]); it will be stopped again. `known`: its
    /// registers are, and may have been changed since the platform told them.
    Syncing { in_syscall: bool, known: bool },
    /// It will never run again.
    Dead,
}

/// A platform thread, charged for as long as it is there: what comes last is dropped last.
struct Charged {
    handle: ThreadHandle,
    _charge: Charge,
}

/// What a platform thread costs.
struct Charge;

impl Drop for Charge {
    fn drop(&mut self) {
        account::thread_gone();
    }
}

impl Charged {
    fn new(space: &SpaceHandle, creator: Option<&Charged>, token: u64) -> Result<Self> {
        let handle = ThreadHandle::new(space, creator.map(|creator| &creator.handle), token)?;
        account::thread_made();
        Ok(Charged { handle, _charge: Charge })
    }
}

impl Deref for Charged {
    type Target = ThreadHandle;

    fn deref(&self) -> &ThreadHandle {
        &self.handle
    }
}

/// A trap for a thread's task.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// The trap.
    pub trap: Trap,
    /// The result, if the system call, or the page fault (0), has been served already.
    pub served: Option<Result<usize>>,
    /// The call site is to be patched ([`super::patch::pays`]).
    pub pays: bool,
}

/// What a trap is about, as far as the thread's state says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concern {
    /// Those who asked for a stop, or had operations carried out; they have been notified.
    Others,
    /// The thread. `alone`: nobody else waits for it to be out of user mode.
    Thread {
        /// See there.
        alone: bool,
    },
}

struct State {
    handle: Option<Charged>,
    anew: Anew,
    /// It is charged for while it has no platform thread, as it will have one again.
    charge: Option<Charge>,
    /// The operation that names it at the host.
    name: Option<DeferredOp>,
    place: RunState,
    /// How many traps came.
    traps: u64,
    /// A trap that the thread's task has not taken yet.
    trap: Option<Arrived>,
    regs: UserRegs,
    /// A stop was asked for and has not happened.
    stop_asked: bool,
    /// The task, waiting for a trap.
    waker: Option<Waker>,
    /// Others, waiting for a stop or a sync.
    watchers: Vec<Waker>,
    /// What the thread does to itself at its next resume, besides what the address space has in
    /// store.
    own_ops: Vec<DeferredOp>,
    /// How often the platform thread was resumed: tells a stop that came too late from a current
    /// one.
    resumes: u64,
    /// What resumes have mapped, while no trap has proved yet that it was carried out.
    mapping: Ranges,
    /// The address space has it on its list of those that map something.
    listed: bool,
    /// The last trap proves nothing ([`Trap::unproven`]): the thread may still be on its way to
    /// user mode, or in it.
    unproven: bool,
    /// Operations that this thread has to carry out itself before it goes on, and the frames that
    /// are free afterwards.
    claimed: (Vec<DeferredOp>, DeferredFree),
    /// Pages that they show as the kernel has copied them, while another thread may yet map what
    /// was there before.
    claimed_copies: Ranges,
    /// How often such were claimed.
    copies_claimed: u64,
    /// The address space's epoch when they were claimed.
    claimed_epoch: u64,
    /// Frames that this thread's last operations unmapped: free once it traps, for then the
    /// operations are carried out.
    deferred: DeferredFree,
}

impl State {
    /// True if the platform may still be carrying out operations to map something.
    fn is_mapping(&self) -> bool {
        !self.mapping.is_empty() && self.place != RunState::Dead
    }

    /// The registers tell of segment bases that the thread is to have when it goes on.
    fn set_new_bases(&mut self) {
        for op in &self.own_ops {
            match op.kind {
                OP_SET_FS => self.regs.fs_base = op.va.0,
                OP_SET_GS => self.regs.gs_base = op.va.0,
                _ => {}
            }
        }
    }

    /// Gives `mm` back what this thread was to do to it, and has not, and the frames that wait for
    /// that: others do it in its place.
    fn leave_to_others(&mut self, mm: &AddressSpace, token: u64) {
        if core::mem::take(&mut self.listed) {
            mm.forget_mapping(token);
        }
        let (mut ops, claimed) = core::mem::take(&mut self.claimed);
        // What it was to map may have been taken away since, by somebody who did not know of it.
        ops.iter_mut().for_each(void);
        mm.put_back(ops, claimed, core::mem::take(&mut self.claimed_copies));
        mm.defer_free(core::mem::take(&mut self.deferred));
    }

    /// Asks the platform for a stop, unless one is on its way.
    fn ask_to_stop(&mut self) {
        if !self.stop_asked {
            self.stop_asked = true;
            if let Some(handle) = &self.handle {
                handle.stop();
            }
        }
    }
}

/// The platform's side of one guest thread.
pub struct UserThread {
    /// Comes back in traps.
    pub token: u64,
    state: Mutex<State>,
}

impl UserThread {
    /// A new stopped thread in `mm`. `creator` as in [`ThreadHandle::new`].
    pub fn new(mm: &AddressSpace, creator: Option<&UserThread>, token: u64) -> Result<Self> {
        let handle = match creator {
            Some(creator) => {
                // It may have been taken off the platform in the middle of its call.
                creator.revive(mm)?;
                let state = creator.state.lock();
                mm.with_handle(|space| Charged::new(space, state.handle.as_ref(), token))?
            }
            None => mm.with_handle(|space| Charged::new(space, None, token))?,
        };
        Ok(UserThread {
            token,
            state: Mutex::new(State {
                handle: Some(handle),
                anew: Anew::default(),
                charge: None,
                name: None,
                place: RunState::Stopped { in_syscall: false },
                traps: 0,
                trap: None,
                regs: UserRegs::default(),
                stop_asked: false,
                waker: None,
                watchers: Vec::new(),
                own_ops: Vec::new(),
                resumes: 0,
                mapping: Ranges::default(),
                listed: false,
                unproven: false,
                claimed: (Vec::new(), DeferredFree::default()),
                claimed_copies: Ranges::default(),
                copies_claimed: 0,
                claimed_epoch: 0,
                deferred: DeferredFree::default(),
            }),
        })
    }

    /// Takes the platform thread of `other` (a fresh one, made for exec) in place of its own, which
    /// ends. What that was to do to `mm` others do in its place.
    pub fn adopt(&self, other: UserThread, mm: &AddressSpace) {
        let fresh = other.state.into_inner();
        let mut state = self.state.lock();
        state.leave_to_others(mm, self.token);
        if let Some(old) = state.handle.take() {
            old.resume(Gpa(0), Go::Exit, &[]);
        }
        state.handle = fresh.handle;
        state.anew = fresh.anew;
        state.charge = None;
        state.place = fresh.place;
        state.trap = None;
        // It is about the space that is left.
        state.claimed_epoch = 0;
        state.stop_asked = false;
        state.resumes = fresh.resumes;
        state.mapping = fresh.mapping;
        state.unproven = fresh.unproven;
    }

    /// True if the platform may still be carrying out operations to map something.
    pub fn is_mapping(&self) -> bool {
        self.state.lock().is_mapping()
    }

    /// True if that may be in `range`.
    pub(super) fn maps_in(&self, range: &Range<Va>) -> bool {
        let state = self.state.lock();
        state.is_mapping() && state.mapping.overlaps(range)
    }

    /// True if it has nothing to do on the list of those that map something: it is taken off.
    pub(super) fn unlist(&self) -> bool {
        let mut state = self.state.lock();
        state.listed = state.is_mapping();
        !state.listed
    }

    /// True if somebody else has the thread carry out operations.
    pub fn is_synced(&self) -> bool {
        !matches!(self.state.lock().place, RunState::Syncing { .. })
    }

    /// True if it is in user mode.
    pub fn is_in_user_mode(&self) -> bool {
        self.state.lock().place == RunState::User
    }

    /// True if a trap of it will come without anything else happening: it runs, or the platform is
    /// about to stop it or to carry out its operations.
    pub fn is_expected(&self) -> bool {
        let state = self.state.lock();
        match state.place {
            RunState::User | RunState::Syncing { .. } => true,
            RunState::Syscall => state.stop_asked,
            RunState::Stopped { .. } | RunState::Dead => false,
        }
    }

    /// True if it has ever been let go.
    pub fn has_run(&self) -> bool {
        self.state.lock().resumes > 0
    }

    /// True if it can never run again.
    pub fn is_dead(&self) -> bool {
        self.state.lock().place == RunState::Dead
    }

    /// True if its preemptions are to be traps ([`qlib::platform::TRAP_PREEMPTED`]). ENOSYS where
    /// the platform does not know of them.
    pub fn watch(&self, on: bool) -> Result {
        self.state.lock().handle.as_ref().ok_or(Errno::ESRCH)?.watch(on)
    }

    /// It may answer gettid(2) and getpid(2) itself with these, and sched_yield(2), as long as
    /// nobody watches its calls; `None`: no more.
    pub fn answers(&self, own: Option<(u32, u32)>) {
        if let Some(handle) = &self.state.lock().handle {
            handle.answers(own);
        }
    }

    /// Has it run on these CPUs only, a bit each. ENOSYS where the host decides.
    pub fn bind(&self, cpus: u64) -> Result {
        self.state.lock().handle.as_ref().ok_or(Errno::ESRCH)?.bind(cpus)
    }

    /// True if it may be in user mode although its last trap says otherwise, for that trap proves
    /// nothing.
    pub fn is_unproven(&self) -> bool {
        let state = self.state.lock();
        state.unproven && state.place == RunState::Syscall
    }

    /// Its floating-point state; it is stopped.
    pub fn fpstate(&self) -> Result<Vec<u8>> {
        self.state.lock().fpstate()
    }

    /// Sets its floating-point state (empty: initial); it is stopped.
    pub fn set_fpstate(&self, fpstate: &[u8]) -> Result {
        self.state.lock().set_fpstate(fpstate)
    }

    /// Ends it on the platform. What it was to do to `mm`, and has not, others do in its place. Its
    /// last trap is a proof ([`UserThread::proven`]) or its end.
    pub fn end(&self, mm: &AddressSpace) {
        let mut state = self.state.lock();
        if let Some(handle) = state.handle.take()
            && state.place != RunState::Dead
        {
            handle.resume(Gpa(0), Go::Exit, &[]);
        }
        state.place = RunState::Dead;
        state.anew = Anew::default();
        state.charge = None;
        state.leave_to_others(mm, self.token);
    }
}
