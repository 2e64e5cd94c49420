//! Signal masks, and those that stand in for them during a wait (sigprocmask(2), ppoll(2)).

use super::{SigSet, send};
use crate::errno::{Errno, Result};
use crate::task::Thread;

/// Sets the signal mask, and has signals looked at that are no longer blocked.
pub fn set_mask(thread: &Thread, mask: SigSet) {
    let newly_blocked = {
        let mut signals = thread.signals.lock();
        let old = core::mem::replace(&mut signals.mask, mask.as_mask());
        signals.mask.minus(old)
    };
    // A signal for the whole process that this thread was woken for may have to go to another
    // thread now.
    send::retarget(thread, newly_blocked);
}

/// Replaces the mask for the length of a wait (ppoll(2), pselect(2), epoll_pwait(2),
/// rt_sigsuspend(2)). The old one comes back by [`restore_mask`], or, if that is not called, at the
/// return to user mode, after a handler was set up for what interrupted the wait.
pub fn swap_mask_for_wait(thread: &Thread, mask: SigSet) {
    let mut signals = thread.signals.lock();
    let old = core::mem::replace(&mut signals.mask, mask.as_mask());
    signals.saved_mask.get_or_insert(old);
}

/// Ends what [`swap_mask_for_wait`] began, when the wait was not interrupted by a signal (`result`
/// tells): a signal that the old mask blocks then stays pending.
pub fn restore_mask<T>(thread: &Thread, result: &Result<T>) {
    let interrupted = matches!(
        result,
        Err(Errno::EINTR
            | Errno::ERESTARTSYS
            | Errno::ERESTARTNOHAND
            | Errno::ERESTARTNOINTR
            | Errno::ERESTART_RESTARTBLOCK)
    );
    if !interrupted {
        restore_saved_mask(thread);
    }
}

/// Brings the mask back that a wait has replaced, if it has.
pub fn restore_saved_mask(thread: &Thread) {
    let saved = thread.signals.lock().saved_mask.take();
    if let Some(mask) = saved {
        set_mask(thread, mask);
    }
}
