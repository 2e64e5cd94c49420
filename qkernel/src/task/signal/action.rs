//! What a process does about each signal (sigaction(2)).

use linux_raw_sys::general::{
    SA_NODEFER, SA_ONSTACK, SA_RESETHAND, SA_RESTART, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGQUIT,
    SIGSEGV, SIGSYS, SIGTRAP, SIGXCPU, SIGXFSZ,
};

use super::set::{IGNORED_SIGNALS, STOP_SIGNALS};
use super::{SIGNALS, SigSet, Signo};
use crate::abi::abi_struct;

/// SIG_DFL.
pub const DEFAULT: u64 = 0;
/// SIG_IGN.
pub const IGNORE: u64 = 1;

abi_struct! {
    /// struct sigaction as rt_sigaction(2) takes it.
    pub struct SigAction { pub handler: u64, pub flags: u64, pub restorer: u64, pub mask: u64, }
}

const CORE_SIGNALS: SigSet = SigSet::of(&[
    SIGQUIT, SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGXCPU, SIGXFSZ, SIGSYS,
]);

/// What to do about a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Nothing.
    Ignore,
    /// End the process.
    Terminate,
    /// End the process with a core dump (which this kernel does not write).
    Core,
    /// Stop the process.
    Stop,
    /// Call the handler.
    Handle,
}

impl SigAction {
    /// What it says about `signo`.
    pub fn disposition(&self, signo: Signo) -> Disposition {
        match self.handler {
            IGNORE => Disposition::Ignore,
            DEFAULT if IGNORED_SIGNALS.contains(signo) => Disposition::Ignore,
            DEFAULT if STOP_SIGNALS.contains(signo) => Disposition::Stop,
            DEFAULT if CORE_SIGNALS.contains(signo) => Disposition::Core,
            DEFAULT => Disposition::Terminate,
            _ => Disposition::Handle,
        }
    }

    /// True if SA_* `flag` is set.
    pub fn has(&self, flag: u32) -> bool {
        self.flags & u64::from(flag) != 0
    }

    /// SA_RESTART.
    pub fn restarts(&self) -> bool {
        self.has(SA_RESTART)
    }

    /// SA_ONSTACK.
    pub fn on_stack(&self) -> bool {
        self.has(SA_ONSTACK)
    }

    /// SA_RESETHAND.
    pub fn resets(&self) -> bool {
        self.has(SA_RESETHAND)
    }

    /// What is blocked while its handler for `signo` runs, besides what already is.
    pub fn blocked_by(&self, signo: Signo) -> SigSet {
        let mut set = SigSet(self.mask);
        if !self.has(SA_NODEFER) {
            set.add(signo);
        }
        set.as_mask()
    }
}

/// The actions of a process, by signal.
#[derive(Clone, Debug)]
pub struct Actions([SigAction; SIGNALS as usize]);

impl Default for Actions {
    fn default() -> Self {
        Actions([SigAction::default(); SIGNALS as usize])
    }
}

impl Actions {
    /// The action for `signo`.
    pub fn get(&self, signo: Signo) -> SigAction {
        (signo as usize).checked_sub(1).and_then(|i| self.0.get(i)).copied().unwrap_or_default()
    }

    /// Sets the action for `signo`.
    pub fn set(&mut self, signo: Signo, action: SigAction) {
        if let Some(slot) = (signo as usize).checked_sub(1).and_then(|i| self.0.get_mut(i)) {
            *slot = action;
        }
    }

    /// As execve(2) does: caught signals go back to the default, ignored ones stay.
    pub fn reset_handlers(&mut self) {
        for action in &mut self.0 {
            let handler = if action.handler == IGNORE { IGNORE } else { DEFAULT };
            *action = SigAction { handler, ..SigAction::default() };
        }
    }

    /// The signals whose handlers are SIG_IGN, and those that have a handler (for
    /// /proc/PID/status).
    pub fn ignored_and_caught(&self) -> (SigSet, SigSet) {
        let (mut ignored, mut caught) = (SigSet::EMPTY, SigSet::EMPTY);
        for (action, signo) in self.0.iter().zip(1..) {
            match action.handler {
                DEFAULT => {}
                IGNORE => ignored.add(signo),
                _ => caught.add(signo),
            }
        }
        (ignored, caught)
    }
}

#[cfg(test)]
mod tests {
    use linux_raw_sys::general::{SIGCHLD, SIGKILL, SIGTERM, SIGTSTP};

    use super::*;

    #[test]
    fn defaults_are_those_of_signal_7() {
        let action = SigAction::default();
        assert_eq!(action.disposition(SIGTERM), Disposition::Terminate);
        assert_eq!(action.disposition(SIGKILL), Disposition::Terminate);
        assert_eq!(action.disposition(SIGSEGV), Disposition::Core);
        assert_eq!(action.disposition(SIGCHLD), Disposition::Ignore);
        assert_eq!(action.disposition(SIGTSTP), Disposition::Stop);
        assert_eq!(action.disposition(40), Disposition::Terminate);
    }

    #[test]
    fn exec_keeps_ignored_signals_only() {
        let mut actions = Actions::default();
        actions.set(2, SigAction { handler: IGNORE, flags: 7, ..SigAction::default() });
        actions.set(15, SigAction { handler: 0x4000, mask: 9, ..SigAction::default() });
        assert_eq!(actions.ignored_and_caught(), (SigSet::of(&[2]), SigSet::of(&[15])));
        actions.reset_handlers();
        assert_eq!(actions.get(2), SigAction { handler: IGNORE, ..SigAction::default() });
        assert_eq!(actions.get(15), SigAction::default());
        // Numbers that are no signals are harmless.
        actions.set(0, SigAction { handler: 5, ..SigAction::default() });
        actions.set(65, SigAction { handler: 5, ..SigAction::default() });
        assert_eq!(actions.get(65), SigAction::default());
    }
}
