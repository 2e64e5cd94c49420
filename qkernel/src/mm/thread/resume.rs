//! A thread goes on, and carries out changes of mappings first.

use alloc::sync::Arc;
use alloc::vec::Vec;

use qlib::platform::{DeferredOp, OP_MAP, OP_SET_NAME};

use super::{RunState, State, UserThread};
use crate::arch::user::Go;
use crate::errno::{Errno, Result};
use crate::mm::freeze::EVERYTHING;
use crate::mm::ranges::Ranges;
use crate::mm::{AddressSpace, DeferredFree, free_frames};

impl UserThread {
    /// Binds what `mm` has in store for the platform to this thread, which has just caused it: it
    /// must not go on before that is carried out, whoever else of its space goes on meanwhile.
    pub fn claim_ops(&self, mm: &AddressSpace) {
        let (ops, deferred, copies) = mm.take_ops();
        // Others may have claimed operations to map what was there.
        copies.iter().for_each(|range| mm.note_stale(range.clone()));
        let mut state = self.state.lock();
        let epoch = mm.epoch();
        if state.claimed_epoch != epoch {
            let claimed_epoch = core::mem::replace(&mut state.claimed_epoch, epoch);
            mm.void_stale(claimed_epoch, &mut state.claimed.0);
        }
        state.claimed.0.extend(ops);
        state.claimed.1.append(deferred);
        if !copies.is_empty() {
            copies.iter().for_each(|range| state.claimed_copies.add(range.clone()));
            state.copies_claimed += 1;
        }
    }

    fn take_claimed(&self, mm: &AddressSpace) -> (Vec<DeferredOp>, DeferredFree) {
        self.claim_ops(mm);
        let mut state = self.state.lock();
        state.claimed_copies.clear();
        core::mem::take(&mut state.claimed)
    }

    /// The same for a thread that does not ask whether it is held back, for it stays out of user
    /// mode.
    fn take_claimed_to_hold(&self, mm: &AddressSpace) -> (Vec<DeferredOp>, DeferredFree) {
        let (mut ops, deferred) = self.take_claimed(mm);
        mm.void_frozen(&mut ops);
        (ops, deferred)
    }

    /// The pages of the kernel's copying that what it has claimed shows, and how often it has
    /// claimed such.
    pub(in crate::mm) fn claimed_copies(&self) -> (Ranges, u64) {
        let state = self.state.lock();
        (state.claimed_copies.clone(), state.copies_claimed)
    }

    /// Nobody maps what was there before any more, if it has claimed none since.
    pub(in crate::mm) fn forget_copies(&self, claimed: u64) {
        let mut state = self.state.lock();
        if state.copies_claimed == claimed {
            state.claimed_copies.clear();
        }
    }

    /// True if there are such.
    pub fn shows_copies(&self) -> bool {
        !self.state.lock().claimed_copies.is_empty()
    }

    /// Waits until it may have the platform carry out what it has claimed: somebody else has no
    /// operations carried out by it, nor may any thread map what copies of the kernel's replace.
    async fn settled(&self, mm: &AddressSpace) {
        loop {
            self.synced().await;
            // Whoever waits here, nobody else takes along what the caller has just caused.
            self.claim_ops(mm);
            if !mm.maps_what_was_copied(self) {
                return;
            }
            mm.mapped_before_copies(self).await;
        }
    }

    /// Looks at the operations that it has claimed.
    pub(in crate::mm) fn with_claimed<T>(&self, look: impl FnOnce(&[DeferredOp]) -> T) -> T {
        look(&self.state.lock().claimed.0)
    }

    /// Lets the thread go on, after carrying out what `mm` has in store for the platform. Not valid
    /// while it is in user mode.
    pub fn resume(self: &Arc<Self>, mm: &AddressSpace, go: Go<'_>) {
        let (ops, deferred) = self.take_claimed(mm);
        self.resume_with(mm, go, &ops, deferred);
    }

    pub(super) fn resume_with(
        self: &Arc<Self>,
        mm: &AddressSpace,
        go: Go<'_>,
        ops: &[DeferredOp],
        deferred: DeferredFree,
    ) {
        if let Err(error) = self.revive(mm) {
            self.lose(mm, error);
        }
        let mut state = self.state.lock();
        if state.place == RunState::Dead {
            // Nothing runs there any more. The caller's address space frees them when it is gone.
            state.deferred.append(deferred);
            return;
        }
        let in_syscall =
            matches!(state.place, RunState::Syscall | RunState::Stopped { in_syscall: true });
        state.place = match go {
            Go::Hold => RunState::Syncing { in_syscall, known: state.place != RunState::Syscall },
            Go::Exit => RunState::Dead,
            _ => RunState::User,
        };
        state.deferred.append(deferred);
        let own = core::mem::take(&mut state.own_ops);
        // What is not proved stays under way, whatever comes after it.
        for op in ops.iter().filter(|op| op.kind == OP_MAP) {
            state.mapping.add(op.va..op.va + op.len);
        }
        self.list(&mut state, mm);
        state.resumes += 1;
        let root = mm.root();
        let mut regs;
        let go = if state.anew.is_new {
            regs = state.regs;
            state.anew.translate(go, &mut regs)
        } else {
            go
        };
        let Some(handle) = &state.handle else { return };
        if own.is_empty() {
            handle.resume(root, go, ops);
        } else {
            handle.resume(root, go, &[ops, &own].concat());
        }
    }

    /// Carries out what `mm` has in store for the platform, now, through this thread, which is not
    /// in user mode.
    pub async fn flush(self: &Arc<Self>, mm: &AddressSpace) -> Result {
        self.claim_ops(mm);
        self.settled(mm).await;
        if self.is_dead() {
            self.state.lock().leave_to_others(mm, self.token);
            return Err(Errno::ESRCH);
        }
        let (ops, deferred) = self.take_claimed_to_hold(mm);
        if ops.is_empty() {
            free_frames(deferred);
            return Ok(());
        }
        self.resume_with(mm, Go::Hold, &ops, deferred);
        self.wait_stopped(false).await
    }

    /// As [`UserThread::flush`], also when `mm` has nothing in store: threads that this one is the
    /// creator of exist afterwards.
    pub async fn hold(self: &Arc<Self>, mm: &AddressSpace) -> Result {
        self.settled(mm).await;
        let (ops, deferred) = self.take_claimed_to_hold(mm);
        self.resume_with(mm, Go::Hold, &ops, deferred);
        self.wait_stopped(false).await
    }

    /// Says that pages have moved whose old place is seen until the thread's operations are carried
    /// out, which they are next: whoever takes pages away waits for that as for operations to map
    /// something.
    pub fn moves_pages(self: &Arc<Self>, mm: &AddressSpace) {
        let mut state = self.state.lock();
        state.mapping.add(EVERYTHING);
        self.list(&mut state, mm);
    }

    /// Has `mm` list the thread if it maps something.
    fn list(self: &Arc<Self>, state: &mut State, mm: &AddressSpace) {
        if state.is_mapping() && !core::mem::replace(&mut state.listed, true) {
            mm.list_mapping(self);
        }
    }

    /// Adds an operation about the thread itself (its segment bases) to its next resume.
    pub fn attach_op(&self, op: DeferredOp) {
        let mut state = self.state.lock();
        if op.kind == OP_SET_NAME {
            state.name = Some(op);
        }
        state.own_ops.push(op);
        state.set_new_bases();
    }

    /// True if nobody wants anything of the thread that keeps it from going on after a trap that
    /// its task has not been told of.
    pub fn may_go_on(&self) -> bool {
        let state = self.state.lock();
        state.place == RunState::User
            && !state.stop_asked
            && state.watchers.is_empty()
            && state.own_ops.is_empty()
    }
}
