//! How a receiver's answers wake threads up.
//!
//! A thread that is woken *synchronously* (SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP) starts on the
//! receiver's processor, in the belief that the receiver is about to wait for it: the cheapest way
//! there is for one thread that makes calls. But where many make calls at once, the next one is
//! there already, the receiver goes on, and those that it woke stand behind it while other
//! processors idle. In such a crowd, answers wake threads up where there is room.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::Listener;

/// Calls that are looked at, the last ones.
const SEEN: usize = 16;
/// So many threads among them are a crowd, so few are none any more.
const CROWD: usize = 4;
const FEW: usize = 2;
/// Looks at the calls once in so many.
const EVERY: usize = 8;

/// Who has called lately.
#[derive(Default)]
pub(super) struct Crowd {
    callers: [u32; SEEN],
    calls: usize,
    is_one: bool,
}

impl Crowd {
    /// Notes a call of host thread `tid`; true if there is a crowd now and was none, or the other
    /// way round.
    fn note(&mut self, tid: u32) -> bool {
        self.callers[self.calls % SEEN] = tid;
        self.calls = self.calls.wrapping_add(1);
        if !self.calls.is_multiple_of(EVERY) {
            return false;
        }
        let is_first = |at: usize| !self.callers[..at].contains(&self.callers[at]);
        let threads = (0..SEEN).filter(|at| is_first(*at)).count();
        let is_one = if self.is_one { threads > FEW } else { threads >= CROWD };
        std::mem::replace(&mut self.is_one, is_one) != is_one
    }

    /// Notes a call, and has `listener` wake threads up as it suits them, where the host can wake
    /// synchronously.
    pub(super) fn received(&mut self, sync_works: &AtomicBool, listener: &Listener, tid: u32) {
        if self.note(tid) && sync_works.load(Ordering::Relaxed) {
            listener.set_sync_wake_up(!self.is_one);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether there is a crowd after so many calls by so many threads in turns.
    fn after(crowd: &mut Crowd, calls: u32, threads: u32) -> bool {
        for call in 0..calls {
            crowd.note(call % threads);
        }
        crowd.is_one
    }

    #[test]
    fn few_threads_are_no_crowd_and_a_crowd_ends() {
        let mut crowd = Crowd::default();
        assert!(!after(&mut crowd, 100, 1));
        assert!(!after(&mut crowd, 100, 2));
        assert!(after(&mut crowd, 100, 8));
        assert!(after(&mut crowd, 100, 3), "it does not end at once");
        assert!(!after(&mut crowd, 100, 2));
    }
}
