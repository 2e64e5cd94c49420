//! Traps of a thread: what they say of it, and waiting for them.

use core::future::poll_fn;
use core::ops::Range;
use core::task::{Poll, Waker};

use qlib::Va;
use qlib::platform::{TRAP_DEAD, TRAP_STOPPED, TRAP_SYNCED, TRAP_SYSCALL, Trap, UserRegs};

use super::{Arrived, Concern, RunState, State, UserThread};
use crate::errno::{Errno, Result};
use crate::mm::{DeferredFree, free_frames};

impl UserThread {
    /// A trap came for this thread: notes where it is now, and who is to serve the trap.
    pub fn on_trap(&self, trap: &Trap) -> Concern {
        let (wakers, deferred, concern) = {
            let mut state = self.state.lock();
            if trap.kind == TRAP_STOPPED && trap.resumes != state.resumes {
                // The thread was resumed while this was on its way: it runs, and whoever wants it
                // stopped asks again.
                state.stop_asked = false;
                let wakers = core::mem::take(&mut state.watchers);
                drop(state);
                wakers.into_iter().for_each(Waker::wake);
                return Concern::Others;
            }
            let alone = !state.stop_asked && state.watchers.is_empty();
            let proven = trap.unproven == 0;
            if proven {
                state.mapping.clear();
            }
            state.unproven = !proven;
            let in_syscall = matches!(state.place, RunState::Syscall)
                || matches!(
                    state.place,
                    RunState::Stopped { in_syscall: true }
                        | RunState::Syncing { in_syscall: true, .. }
                );
            state.traps += 1;
            let deferred =
                if proven { core::mem::take(&mut state.deferred) } else { DeferredFree::default() };
            let wakers = core::mem::take(&mut state.watchers);
            let known = trap.kind == TRAP_SYNCED
                && matches!(state.place, RunState::Syncing { known: true, .. });
            match trap.kind {
                TRAP_SYSCALL if trap.in_syscall == 0 => state.place = RunState::Syscall,
                TRAP_SYSCALL => state.place = RunState::Stopped { in_syscall: true },
                TRAP_DEAD => state.place = RunState::Dead,
                TRAP_STOPPED => {
                    state.place =
                        RunState::Stopped { in_syscall: trap.in_syscall != 0 && in_syscall }
                }
                TRAP_SYNCED => {
                    let in_syscall =
                        matches!(state.place, RunState::Syncing { in_syscall: true, .. });
                    state.place = RunState::Stopped { in_syscall };
                }
                _ => state.place = RunState::Stopped { in_syscall: false },
            }
            // Those of a stopped thread may have been changed: by its tracer, or for a handler.
            let is_stop = state.place != RunState::Syscall && trap.kind != TRAP_DEAD;
            if is_stop && !known && !state.anew.is_new {
                state.regs = trap.regs;
                state.set_new_bases();
            }
            state.stop_asked = false;
            // A stop or sync inside a system call is for those who asked.
            let is_asked_for = trap.kind == TRAP_SYNCED
                || trap.kind == TRAP_STOPPED
                    && matches!(state.place, RunState::Stopped { in_syscall: true });
            let concern = if is_asked_for { Concern::Others } else { Concern::Thread { alone } };
            (wakers, deferred, concern)
        };
        free_frames(deferred);
        for waker in wakers {
            waker.wake();
        }
        concern
    }

    /// Leaves a trap, which [concerns](Concern) the thread, to its task.
    pub fn notify(&self, arrived: Arrived) {
        let waker = {
            let mut state = self.state.lock();
            state.trap = Some(arrived);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The thread's next trap that is left to its task, which alone calls this.
    pub async fn next_trap(&self) -> Arrived {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if let Some(trap) = state.trap.take() {
                return Poll::Ready(trap);
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Waits until the thread is stopped; `ask`: asks the platform for it first.
    pub async fn wait_stopped(&self, ask: bool) -> Result {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            match state.place {
                RunState::Stopped { .. } => return Poll::Ready(Ok(())),
                RunState::Dead => return Poll::Ready(Err(Errno::ESRCH)),
                RunState::User | RunState::Syscall if ask => state.ask_to_stop(),
                _ => {}
            }
            state.watchers.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// The registers of the thread, stopping it if they are not known (it waits in a system call).
    /// Only its own task calls this, with the thread not in user mode. `Err(ESRCH)` when it died.
    pub async fn registers(&self) -> Result<UserRegs> {
        self.wait_stopped(true).await?;
        Ok(self.state.lock().regs)
    }

    /// Remembers changed registers of a stopped thread, for the next [`UserThread::registers`].
    pub fn set_registers(&self, regs: &UserRegs) {
        self.state.lock().regs = *regs;
    }

    /// The registers of a thread that is stopped, and stays so.
    pub fn known_registers(&self) -> UserRegs {
        self.state.lock().regs
    }

    /// Changes them.
    pub fn change_registers(&self, change: impl FnOnce(&mut UserRegs)) {
        change(&mut self.state.lock().regs);
    }

    /// Waits until the platform has carried out all operations to map something in `range`,
    /// interrupting the thread for it.
    pub async fn mapped(&self, range: &Range<Va>) {
        self.until_proof(|state| state.mapping.overlaps(range)).await;
    }

    /// Waits until it is certain that the thread has carried out all operations that it was given,
    /// its own and those that somebody else has it carry out, and is out of user mode, interrupting
    /// it for that if its last trap proves nothing. For one that is not in user mode, before it
    /// ends or what it may see is taken apart.
    pub async fn at_rest(&self) {
        let is_syncing = |state: &State| matches!(state.place, RunState::Syncing { .. });
        self.until_proof(|state| state.unproven || is_syncing(state)).await;
    }

    /// Waits while `lacks` holds, until a trap that proves something or the thread's end,
    /// interrupting it for that.
    async fn until_proof(&self, lacks: impl Fn(&State) -> bool) {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if !lacks(&state) || state.place == RunState::Dead {
                return Poll::Ready(());
            }
            // A thread that waits in a system call has proved nothing if it was a fast one.
            if matches!(state.place, RunState::User | RunState::Syscall) {
                state.ask_to_stop();
            }
            state.watchers.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Interrupts it, and waits until it is not in user mode or has been out of it since.
    pub async fn leaves_user_mode(&self) {
        let before = self.state.lock().traps;
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if state.place != RunState::User || state.traps != before {
                return Poll::Ready(());
            }
            state.ask_to_stop();
            state.watchers.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Asks for a stop if its registers are not known, or it is in user mode.
    pub(super) fn ask_to_stop(&self) {
        let mut state = self.state.lock();
        if matches!(state.place, RunState::User | RunState::Syscall) {
            state.ask_to_stop();
        }
    }

    /// Interrupts it if it is in user mode, or may be, so that its task runs.
    pub fn interrupt(&self) {
        let mut state = self.state.lock();
        if state.place == RunState::User || state.unproven && state.place == RunState::Syscall {
            state.ask_to_stop();
        }
    }

    /// Waits while somebody else has the thread carry out operations. Its own task calls this
    /// before it resumes it.
    pub async fn synced(&self) {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if !matches!(state.place, RunState::Syncing { .. }) {
                return Poll::Ready(());
            }
            state.watchers.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}
