//! Threads without a platform thread: a sleeping sandbox has none. What the platform knew of a
//! thread, its registers and floating-point state, lies in kernel memory then, and the platform
//! makes it anew when it goes on, with all threads of its space.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use qlib::platform::{OP_SET_NAME, TRAP_DEAD, Trap};

use super::anew::{self, Anew, Kept};
use super::{Arrived, Charged, RunState, State, UserThread};
use crate::account;
use crate::arch::user::{Go, ThreadHandle};
use crate::errno::{Errno, Result};
use crate::klog;
use crate::mm::{AddressSpace, DeferredFree, free_frames};

impl AddressSpace {
    /// Takes the space off the platform with all its threads, which are stopped: user code of it
    /// runs again after the platform has made them anew ([`UserThread::revive`]). Afterwards
    /// nothing of it is mapped once it is [gone](crate::mm::space::until_gone).
    pub fn shed(&self) {
        if !self.is_on_platform() {
            return;
        }
        let threads = self.threads();
        self.is_wanted.store(threads.iter().any(|thread| thread.was_made_anew()), Relaxed);
        threads.iter().for_each(|thread| thread.shed(self));
        self.take_off_platform();
    }

    /// Drops what a space that is [shed](AddressSpace::shed) has in store for the platform.
    pub fn forget_ops(&self) {
        for thread in self.threads() {
            thread.state.lock().leave_to_others(self, thread.token);
        }
        let (_, frames, _) = self.take_ops();
        free_frames(frames);
    }

    /// Has the platform begin to make the space anew if it had to in the life before. Where there
    /// is no room the one who needs it is told.
    pub fn expect(&self) {
        if self.is_wanted.load(Relaxed) && !self.is_on_platform() {
            let _ = self.make_on_platform();
        }
    }
}

impl UserThread {
    /// True if there is no platform thread for it, and may be one again.
    pub fn is_shed(&self) -> bool {
        self.state.lock().anew.fpstate.is_some()
    }

    fn was_made_anew(&self) -> bool {
        let state = self.state.lock();
        state.anew.is_another && state.handle.is_some()
    }

    fn shed(&self, mm: &AddressSpace) {
        let mut state = self.state.lock();
        let RunState::Stopped { .. } = state.place else { return };
        let Some(handle) = &state.handle else { return };
        match handle.read_fpstate() {
            Ok(fpstate) => state.anew.fpstate = Some(Kept::new(fpstate)),
            // It is gone already, and the platform says so.
            Err(_) => return,
        }
        state.leave_to_others(mm, self.token);
        state.mapping.clear();
        state.unproven = false;
        state.resumes = 0;
        state.anew.is_new = false;
        if let Some(Charged { handle, _charge }) = state.handle.take() {
            drop(handle);
            state.charge = Some(_charge);
        }
    }

    /// Has the platform make the space of a thread anew that is shed, and all its threads.
    pub(super) fn revive(&self, mm: &AddressSpace) -> Result {
        if !self.is_shed() {
            return Ok(());
        }
        if !mm.is_on_platform() {
            mm.make_on_platform()?;
        }
        self.make_anew(mm, None)?;
        let made = mm.threads().into_iter().try_for_each(|other| match other.is_shed() {
            true => other.make_anew(mm, Some(self)),
            false => Ok(()),
        });
        if made.is_err() {
            mm.shed();
        }
        made
    }

    /// `creator` as in [`crate::arch::user::ThreadHandle::new`].
    fn make_anew(&self, mm: &AddressSpace, creator: Option<&UserThread>) -> Result {
        let creator = creator.map(|creator| creator.state.lock());
        let creator = creator.as_ref().and_then(|creator| creator.handle.as_deref());
        let made = mm.with_handle(|space| ThreadHandle::new(space, creator, self.token))?;
        let mut state = self.state.lock();
        made.set_fpstate(&state.anew.fpstate.as_ref().ok_or(Errno::ESRCH)?.0)?;
        let _charge = state.charge.take().ok_or(Errno::ESRCH)?;
        let made = Charged { handle: made, _charge };
        state.anew = Anew { fpstate: None, is_new: true, is_another: true };
        state.handle = Some(made);
        if mm.has_one_thread()
            && let Some(name) = state.name
            && !state.own_ops.iter().any(|op| op.kind == OP_SET_NAME)
        {
            state.own_ops.push(name);
        }
        Ok(())
    }

    /// The platform could not make it anew: it is as if the host had taken it away.
    #[cold]
    pub(super) fn lose(&self, mm: &AddressSpace, error: Errno) {
        klog!(
            Error,
            "the host has no room for a process or thread that slept ({}): the process was ended",
            error.name()
        );
        let watchers = {
            let mut state = self.state.lock();
            state.place = RunState::Dead;
            state.anew = Anew::default();
            state.charge = None;
            state.leave_to_others(mm, self.token);
            core::mem::take(&mut state.watchers)
        };
        watchers.into_iter().for_each(core::task::Waker::wake);
        let trap = Trap { kind: TRAP_DEAD, token: self.token, ..Trap::default() };
        self.notify(Arrived { trap, served: None, pays: false });
    }
}

impl State {
    /// The floating-point state that the platform thread has, or is to have.
    pub(super) fn fpstate(&self) -> Result<Vec<u8>> {
        match &self.anew.fpstate {
            Some(kept) => Ok(kept.0.clone()),
            None => self.handle.as_ref().ok_or(Errno::ESRCH)?.read_fpstate(),
        }
    }

    /// Sets it (empty: initial).
    pub(super) fn set_fpstate(&mut self, fpstate: &[u8]) -> Result {
        match &mut self.anew.fpstate {
            Some(kept) => kept.0 = fpstate.to_vec(),
            None => self.handle.as_ref().ok_or(Errno::ESRCH)?.set_fpstate(fpstate)?,
        }
        Ok(())
    }
}

impl Charged {
    fn read_fpstate(&self) -> Result<Vec<u8>> {
        let mut buffer = alloc::vec![0; crate::arch::boot().fpstate_bytes as usize];
        let length = self.fpstate(&mut buffer)?;
        buffer.truncate(length);
        Ok(buffer)
    }
}

/// Before a new process or thread takes a place at the platform: those that are to be made anew get
/// theirs back now if there may be too few for all.
pub fn keep_places() {
    if !anew::are_some_kept() || !account::is_half_full() {
        return;
    }
    for mm in AddressSpace::all() {
        if let Some(thread) = mm.threads().into_iter().find(|thread| thread.is_shed()) {
            // Whoever needs it tries again, and is told.
            if thread.revive(&mm).is_ok() {
                // It makes the others of its space, and may itself wait for one of them.
                thread.resume_with(&mm, Go::Hold, &[], DeferredFree::default());
            }
        }
    }
}

/// Brings threads into the stopped state, in which their registers are known.
pub async fn stop_all(threads: &[Arc<UserThread>]) {
    // All are asked before the first is waited for.
    for thread in threads {
        thread.ask_to_stop();
    }
    for thread in threads {
        // One that died is nobody's to wait for.
        let _ = thread.wait_stopped(true).await;
    }
}
