//! Sets of signals.

use linux_raw_sys::general::{
    SIGBUS, SIGCHLD, SIGCONT, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGSTOP, SIGSYS, SIGTRAP, SIGTSTP,
    SIGTTIN, SIGTTOU, SIGURG, SIGWINCH,
};

/// A signal number, 1 to 64.
pub type Signo = u32;

/// The highest signal number.
pub const SIGNALS: u32 = 64;
/// The first real-time signal (as the kernel counts; the C library keeps the first two).
pub const FIRST_REALTIME: Signo = 32;

/// A set of signals: bit `n - 1` is signal `n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SigSet(pub u64);

/// Signals that stop a process by default.
pub const STOP_SIGNALS: SigSet = SigSet::of(&[SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU]);
/// Signals that are ignored by default.
pub const IGNORED_SIGNALS: SigSet = SigSet::of(&[SIGCHLD, SIGCONT, SIGURG, SIGWINCH]);
/// Signals that can be neither caught, blocked nor ignored.
pub const UNBLOCKABLE: SigSet = SigSet::of(&[SIGKILL, SIGSTOP]);
/// Signals of a thread's own exceptions: taken before others.
pub const SYNCHRONOUS: SigSet = SigSet::of(&[SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGSYS]);

impl SigSet {
    /// The empty set.
    pub const EMPTY: SigSet = SigSet(0);

    /// The set of these signals.
    pub const fn of(signals: &[Signo]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < signals.len() {
            bits |= 1 << (signals[i] - 1);
            i += 1;
        }
        SigSet(bits)
    }

    /// A set as a program gave it for a mask: SIGKILL and SIGSTOP never are in it.
    pub const fn as_mask(self) -> Self {
        SigSet(self.0 & !UNBLOCKABLE.0)
    }

    const fn bit(signo: Signo) -> u64 {
        if signo >= 1 && signo <= SIGNALS { 1 << (signo - 1) } else { 0 }
    }

    /// True if `signo` is in it.
    pub const fn contains(self, signo: Signo) -> bool {
        self.0 & Self::bit(signo) != 0
    }

    /// Adds `signo`.
    pub fn add(&mut self, signo: Signo) {
        self.0 |= Self::bit(signo);
    }

    /// Takes `signo` out.
    pub fn remove(&mut self, signo: Signo) {
        self.0 &= !Self::bit(signo);
    }

    /// What is in either.
    pub const fn union(self, other: SigSet) -> SigSet {
        SigSet(self.0 | other.0)
    }

    /// What is in this one and not in `other`.
    pub const fn minus(self, other: SigSet) -> SigSet {
        SigSet(self.0 & !other.0)
    }

    /// What is in both.
    pub const fn and(self, other: SigSet) -> SigSet {
        SigSet(self.0 & other.0)
    }

    /// True if nothing is in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The signal to be taken first: a synchronous one, else the lowest.
    pub fn first(self) -> Option<Signo> {
        let preferred = self.and(SYNCHRONOUS);
        let from = if preferred.is_empty() { self } else { preferred };
        (!from.is_empty()).then(|| from.0.trailing_zeros() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_added() {
        let mut set = SigSet::EMPTY;
        for signo in [1, 31, 32, 64] {
            assert!(!set.contains(signo));
            set.add(signo);
            assert!(set.contains(signo));
        }
        set.remove(31);
        assert!(!set.contains(31));
        // Numbers that are no signals change nothing.
        let before = set;
        set.add(0);
        set.add(65);
        assert_eq!(set, before);
        assert!(!set.contains(0) && !set.contains(65));
        assert_eq!(SigSet(u64::MAX).as_mask().0, !((1 << 8) | (1 << 18)));
    }

    #[test]
    fn synchronous_signals_come_first() {
        assert_eq!(SigSet::of(&[1, 15, 11, 34]).first(), Some(11));
        assert_eq!(SigSet::of(&[34, 15]).first(), Some(15));
        assert_eq!(SigSet::EMPTY.first(), None);
        assert_eq!(SigSet::of(&[64]).first(), Some(64));
    }
}
