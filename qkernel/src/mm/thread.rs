//! The platform's side of a thread: where it is (user mode, in a system call, stopped), and waiting for its traps.

use core::future::poll_fn;
use core::ops::Deref;
use core::task::{Poll, Waker};

use alloc::vec::Vec;

use qlib::Gpa;
use qlib::platform::{ORDER_MAP, Order, TRAP_DEAD, TRAP_STOPPED, TRAP_SYNCED, TRAP_SYSCALL, Trap, UserRegs};

use super::orders::void_map;
use super::{AddressSpace, DeferredFree};
use crate::account;
use crate::arch::user::{Go, SpaceHandle, ThreadHandle};
use crate::errno::{Errno, Result};
use crate::sync::Mutex;

/// Where a thread is, as far as the kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In user mode, or on its way out of it.
    User,
    /// Stopped in a system call that is not answered yet; registers unknown.
    Syscall,
    /// Stopped with its registers known. `in_syscall`: a call is not answered yet.
    Stopped { in_syscall: bool },
    /// Its orders are being carried out ([`Go::Hold`]); it will be stopped again.
    Syncing { in_syscall: bool },
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

struct State {
    handle: Option<Charged>,
    place: Place,
    /// How many traps came.
    traps: u64,
    /// A trap that the thread's task has not taken yet; the result of the system call, if it has been served already.
    trap: Option<(Trap, Option<Result<usize>>)>,
    regs: UserRegs,
    /// A stop was asked for and has not happened.
    stop_asked: bool,
    /// The task, waiting for a trap.
    waker: Option<Waker>,
    /// Others, waiting for a stop or a sync.
    watchers: Vec<Waker>,
    /// What the thread does to itself at its next resume, besides what the address space has in store.
    own_orders: Vec<Order>,
    /// How often the platform thread was resumed: tells a stop that came too late from a current one.
    resumes: u64,
    /// A resume carried orders to map something, and no trap has proved yet that they were carried out.
    mapping: bool,
    /// The last trap proves nothing ([`Trap::unproven`]): the thread may still be on its way to user mode, or in it.
    unproven: bool,
    /// Orders that this thread has to carry out itself before it goes on, and the frames that are free afterwards.
    claimed: (Vec<Order>, DeferredFree),
    /// The address space's epoch when they were claimed.
    claimed_epoch: u64,
    /// Frames that this thread's last orders unmapped: free once it traps, for then the orders are carried out.
    deferred: DeferredFree,
}

impl State {
    /// Gives `mm` back what this thread was to do to it, and has not, and the frames that wait for that: others do it in its place.
    fn leave_to_others(&mut self, mm: &AddressSpace) {
        let (mut orders, claimed) = core::mem::take(&mut self.claimed);
        // What it was to map may have been taken away since, by somebody who did not know of it.
        orders.iter_mut().for_each(void_map);
        mm.put_back(orders, claimed);
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
    /// A new stopped thread in `space`. `creator` as in [`ThreadHandle::new`].
    pub fn new(space: &SpaceHandle, creator: Option<&UserThread>, token: u64) -> Result<Self> {
        let handle = match creator {
            Some(creator) => {
                let state = creator.state.lock();
                Charged::new(space, state.handle.as_ref(), token)?
            }
            None => Charged::new(space, None, token)?,
        };
        Ok(UserThread {
            token,
            state: Mutex::new(State {
                handle: Some(handle),
                place: Place::Stopped { in_syscall: false },
                traps: 0,
                trap: None,
                regs: UserRegs::default(),
                stop_asked: false,
                waker: None,
                watchers: Vec::new(),
                own_orders: Vec::new(),
                resumes: 0,
                mapping: false,
                unproven: false,
                claimed: (Vec::new(), DeferredFree::default()),
                claimed_epoch: 0,
                deferred: DeferredFree::default(),
            }),
        })
    }

    /// Takes the platform thread of `other` (a fresh one, made for exec) in place of its own, which ends. What that was to do to `mm` others
    /// do in its place.
    pub fn adopt(&self, other: UserThread, mm: &AddressSpace) {
        let fresh = other.state.into_inner();
        let mut state = self.state.lock();
        state.leave_to_others(mm);
        if let Some(old) = state.handle.take() {
            old.resume(Gpa(0), Go::Exit, &[]);
        }
        state.handle = fresh.handle;
        state.place = fresh.place;
        state.trap = None;
        state.stop_asked = false;
        state.resumes = fresh.resumes;
        state.mapping = fresh.mapping;
        state.unproven = fresh.unproven;
    }

    /// A trap came for this thread. `served`: the result of the system call, if it has been served already.
    pub fn on_trap(&self, trap: &Trap, served: Option<Result<usize>>) {
        let (wakers, deferred) = {
            let mut state = self.state.lock();
            if trap.kind == TRAP_STOPPED && trap.resumes != state.resumes {
                // The thread was resumed while this was on its way: it runs, and whoever wants it stopped asks again.
                state.stop_asked = false;
                let wakers = core::mem::take(&mut state.watchers);
                drop(state);
                wakers.into_iter().for_each(Waker::wake);
                return;
            }
            let proven = trap.unproven == 0;
            state.mapping &= !proven;
            state.unproven = !proven;
            let in_syscall = matches!(state.place, Place::Syscall)
                || matches!(state.place, Place::Stopped { in_syscall: true } | Place::Syncing { in_syscall: true });
            state.traps += 1;
            let deferred = if proven { core::mem::take(&mut state.deferred) } else { DeferredFree::default() };
            let mut wakers = core::mem::take(&mut state.watchers);
            match trap.kind {
                TRAP_SYSCALL => state.place = Place::Syscall,
                TRAP_DEAD => state.place = Place::Dead,
                TRAP_STOPPED => state.place = Place::Stopped { in_syscall: trap.in_syscall != 0 && in_syscall },
                TRAP_SYNCED => {
                    let in_syscall = matches!(state.place, Place::Syncing { in_syscall: true });
                    state.place = Place::Stopped { in_syscall };
                }
                _ => state.place = Place::Stopped { in_syscall: false },
            }
            if trap.kind != TRAP_SYSCALL && trap.kind != TRAP_DEAD {
                state.regs = trap.regs;
            }
            state.stop_asked = false;
            // A stop or sync inside a system call is for those who asked; everything else is for the thread's task.
            if !matches!(state.place, Place::Stopped { in_syscall: true }) && trap.kind != TRAP_SYNCED {
                state.trap = Some((*trap, served));
                wakers.extend(state.waker.take());
            }
            (wakers, deferred)
        };
        super::free_frames(deferred);
        for waker in wakers {
            waker.wake();
        }
    }

    /// Binds what `mm` has in store for the platform to this thread, which has just caused it: it must not go on before that is
    /// carried out, whoever else of its space goes on meanwhile.
    pub fn claim_orders(&self, mm: &AddressSpace) {
        let (orders, deferred) = mm.take_orders();
        let mut state = self.state.lock();
        if state.claimed_epoch != mm.epoch() {
            state.claimed_epoch = mm.epoch();
            // The pages to be mapped may have been taken away since. Nothing there is right too: it faults in again.
            state.claimed.0.iter_mut().for_each(void_map);
        }
        state.claimed.0.extend(orders);
        state.claimed.1.append(deferred);
    }

    fn take_claimed(&self, mm: &AddressSpace) -> (Vec<Order>, DeferredFree) {
        self.claim_orders(mm);
        core::mem::take(&mut self.state.lock().claimed)
    }

    /// Lets the thread go on, after carrying out what `mm` has in store for the platform. Not valid while it is in user mode.
    pub fn resume(&self, mm: &AddressSpace, go: Go<'_>) {
        let (orders, deferred) = self.take_claimed(mm);
        self.resume_with(mm.root(), go, &orders, deferred);
    }

    fn resume_with(&self, root: Gpa, go: Go<'_>, orders: &[Order], deferred: DeferredFree) {
        let mut state = self.state.lock();
        if state.place == Place::Dead {
            // Nothing runs there any more. The caller's address space frees them when it is gone.
            state.deferred.append(deferred);
            return;
        }
        let in_syscall = matches!(state.place, Place::Syscall | Place::Stopped { in_syscall: true });
        state.place = match go {
            Go::Hold => Place::Syncing { in_syscall },
            Go::Exit => Place::Dead,
            _ => Place::User,
        };
        state.deferred.append(deferred);
        let own = core::mem::take(&mut state.own_orders);
        // What is not proved stays under way, whatever comes after it.
        state.mapping |= orders.iter().any(|order| order.op == ORDER_MAP);
        state.resumes += 1;
        let Some(handle) = &state.handle else { return };
        if own.is_empty() {
            handle.resume(root, go, orders);
        } else {
            handle.resume(root, go, &[orders, &own].concat());
        }
    }

    /// Says that pages have moved whose old place is seen until the thread's orders are carried out, which they are next: whoever takes
    /// pages away waits for that as for orders to map something.
    pub fn moves_pages(&self) {
        self.state.lock().mapping = true;
    }

    /// Whether the platform may still be carrying out orders to map something.
    pub fn is_mapping(&self) -> bool {
        let state = self.state.lock();
        state.mapping && state.place != Place::Dead
    }

    /// Waits until the platform has carried out all orders to map something, interrupting the thread for it.
    pub async fn mapped(&self) {
        self.until_proof(|state| state.mapping).await;
    }

    /// Waits until it is certain that the thread has carried out all orders that it was given and is out of user mode, interrupting it
    /// for that if its last trap proves nothing. For one that is not in user mode, before it ends or what it may see is taken apart.
    pub async fn proven(&self) {
        self.until_proof(|state| state.unproven).await;
    }

    /// Waits while `lacks` holds, until a trap that proves something or the thread's end, interrupting it for that.
    async fn until_proof(&self, lacks: impl Fn(&State) -> bool) {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if !lacks(&state) || state.place == Place::Dead {
                return Poll::Ready(());
            }
            // A thread that waits in a system call has proved nothing if it was a fast one.
            if matches!(state.place, Place::User | Place::Syscall) {
                state.ask_to_stop();
            }
            state.watchers.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Whether somebody else has the thread carry out orders.
    pub fn is_settled(&self) -> bool {
        !matches!(self.state.lock().place, Place::Syncing { .. })
    }

    /// Adds an order about the thread itself (its segment bases) to its next resume.
    pub fn attach_order(&self, order: Order) {
        self.state.lock().own_orders.push(order);
    }

    /// Whether nobody wants anything of the thread that keeps it from going on after a trap that its task has not been told of.
    pub fn may_go_on(&self) -> bool {
        let state = self.state.lock();
        state.place == Place::User && !state.stop_asked && state.watchers.is_empty() && state.own_orders.is_empty()
    }

    /// The thread's next trap, and the result of its system call if that has been served already. Only its own task calls this.
    pub async fn next_trap(&self) -> (Trap, Option<Result<usize>>) {
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

    /// The registers of the thread, stopping it if they are not known (it waits in a system call). Only its own task calls this, with
    /// the thread not in user mode. `Err(ESRCH)` when it died.
    pub async fn registers(&self) -> Result<UserRegs> {
        self.wait_stopped(true).await?;
        Ok(self.state.lock().regs)
    }

    /// Remembers changed registers of a stopped thread, for the next [`UserThread::registers`].
    pub fn set_registers(&self, regs: &UserRegs) {
        self.state.lock().regs = *regs;
    }

    /// Waits until the thread is stopped; `ask`: asks the platform for it first.
    pub async fn wait_stopped(&self, ask: bool) -> Result {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            match state.place {
                Place::Stopped { .. } => return Poll::Ready(Ok(())),
                Place::Dead => return Poll::Ready(Err(Errno::ESRCH)),
                Place::User | Place::Syscall if ask => state.ask_to_stop(),
                _ => {}
            }
            state.watchers.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Carries out what `mm` has in store for the platform, now, through this thread, which is not in user mode.
    pub async fn flush(&self, mm: &AddressSpace) -> Result {
        self.settled().await;
        if self.is_dead() {
            return Err(Errno::ESRCH);
        }
        let (orders, deferred) = self.take_claimed(mm);
        if orders.is_empty() {
            super::free_frames(deferred);
            return Ok(());
        }
        self.resume_with(mm.root(), Go::Hold, &orders, deferred);
        self.wait_stopped(false).await
    }

    /// As [`UserThread::flush`], also when `mm` has nothing in store: threads that this one is the creator of exist afterwards.
    pub async fn hold(&self, mm: &AddressSpace) -> Result {
        self.settled().await;
        let (orders, deferred) = self.take_claimed(mm);
        self.resume_with(mm.root(), Go::Hold, &orders, deferred);
        self.wait_stopped(false).await
    }

    /// Whether it is in user mode.
    pub fn is_in_user_mode(&self) -> bool {
        self.state.lock().place == Place::User
    }

    /// Whether a trap of it will come without anything else happening: it runs, or the platform is about to stop it or to carry out its
    /// orders.
    pub fn is_expected(&self) -> bool {
        let state = self.state.lock();
        match state.place {
            Place::User | Place::Syncing { .. } => true,
            Place::Syscall => state.stop_asked,
            Place::Stopped { .. } | Place::Dead => false,
        }
    }

    /// Whether it has ever been let go.
    pub fn has_run(&self) -> bool {
        self.state.lock().resumes > 0
    }

    /// Interrupts it, and waits until it is not in user mode or has been out of it since.
    pub async fn leaves_user_mode(&self) {
        let before = self.state.lock().traps;
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if state.place != Place::User || state.traps != before {
                return Poll::Ready(());
            }
            state.ask_to_stop();
            state.watchers.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Whether it can never run again.
    pub fn is_dead(&self) -> bool {
        self.state.lock().place == Place::Dead
    }

    /// Whether its preemptions are to be traps ([`qlib::platform::TRAP_PREEMPTED`]). ENOSYS where the platform does not know of them.
    pub fn watch(&self, on: bool) -> Result {
        self.state.lock().handle.as_ref().ok_or(Errno::ESRCH)?.watch(on)
    }

    /// Whether it may be in user mode although its last trap says otherwise, for that trap proves nothing.
    pub fn is_unproven(&self) -> bool {
        let state = self.state.lock();
        state.unproven && state.place == Place::Syscall
    }

    /// Interrupts it if it is in user mode, or may be, so that its task runs.
    pub fn interrupt(&self) {
        let mut state = self.state.lock();
        if state.place == Place::User || state.unproven && state.place == Place::Syscall {
            state.ask_to_stop();
        }
    }

    /// Its floating-point state; it is stopped.
    pub fn fpstate(&self) -> Result<Vec<u8>> {
        let state = self.state.lock();
        let mut buffer = alloc::vec![0; crate::arch::boot().fpstate_bytes as usize];
        let length = state.handle.as_ref().ok_or(Errno::ESRCH)?.fpstate(&mut buffer)?;
        buffer.truncate(length);
        Ok(buffer)
    }

    /// Sets its floating-point state (empty: initial); it is stopped.
    pub fn set_fpstate(&self, fpstate: &[u8]) -> Result {
        self.state.lock().handle.as_ref().ok_or(Errno::ESRCH)?.set_fpstate(fpstate)
    }

    /// Ends it on the platform. What it was to do to `mm`, and has not, others do in its place. Its last trap is a proof
    /// ([`UserThread::proven`]) or its end.
    pub fn end(&self, mm: &AddressSpace) {
        let mut state = self.state.lock();
        if let Some(handle) = state.handle.take()
            && state.place != Place::Dead
        {
            handle.resume(Gpa(0), Go::Exit, &[]);
        }
        state.place = Place::Dead;
        state.leave_to_others(mm);
    }

    /// Waits while somebody else has the thread carry out orders. Its own task calls this before it resumes it.
    pub async fn settled(&self) {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if !matches!(state.place, Place::Syncing { .. }) {
                return Poll::Ready(());
            }
            state.watchers.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}
