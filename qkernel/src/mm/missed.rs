//! What a thread's system call has to do with page faults that a program serves
//! ([`super::userfault`]).

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use qlib::Va;

use super::userfault::{Context, Event};

/// What calls have yet to write to pages that are missing: at most so many bytes.
const MOST_OWED_BYTES: usize = 64 << 10;

/// A missing page that a system call needs, and what is to be done when the call is over: bytes to
/// be written to such pages, for what it has done by then cannot be undone, and copying cannot
/// wait; and who is to be told what it has done to memory.
#[derive(Default)]
pub struct Missed {
    /// Copies may be owed: the thread is in a call.
    may_owe: bool,
    fault: Option<(Va, bool)>,
    owed: VecDeque<(Va, Vec<u8>)>,
    owed_bytes: usize,
    untold: Vec<(Arc<Context>, Event)>,
}

impl Missed {
    /// A call begins (`true`), or is over.
    pub fn set_in_call(&mut self, is_in_call: bool) {
        self.may_owe = is_in_call;
        if is_in_call {
            (self.fault, self.owed_bytes) = (None, 0);
            self.owed.clear();
        }
    }

    /// The page at `va` is missing, for a write or a read.
    pub fn note(&mut self, va: Va, write: bool) {
        self.fault = Some((va, write));
    }

    /// The last page that was missing, and whether it was for a write.
    pub fn take(&mut self) -> Option<(Va, bool)> {
        self.fault.take()
    }

    /// `bytes` are to be written to the missing page at `va` later. False if they cannot wait.
    pub fn owe(&mut self, va: Va, bytes: &[u8]) -> bool {
        let is_missing = self.fault == Some((va, true));
        if !self.may_owe || !is_missing || self.owed_bytes + bytes.len() > MOST_OWED_BYTES {
            return false;
        }
        self.owed_bytes += bytes.len();
        self.owed.push_back((va, bytes.to_vec()));
        self.fault = None;
        true
    }

    /// The call has done this to memory: who asked for that is told when it is over.
    pub fn note_untold(&mut self, mut events: Vec<(Arc<Context>, Event)>) {
        self.untold.append(&mut events);
    }

    /// Who is to be told, and what.
    pub fn take_untold(&mut self) -> Vec<(Arc<Context>, Event)> {
        core::mem::take(&mut self.untold)
    }

    /// True if something is to be written, or told.
    pub fn is_unfinished(&self) -> bool {
        self.owes() || !self.untold.is_empty()
    }

    /// True if something is to be written.
    pub fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// What is to be written next.
    pub fn next_owed(&mut self) -> Option<(Va, Vec<u8>)> {
        let next = self.owed.pop_front()?;
        self.owed_bytes -= next.1.len();
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_owed_and_no_more_than_a_message() {
        let mut missed = Missed::default();
        missed.note(Va(0x1000), true);
        assert!(!missed.owe(Va(0x1000), &[1]), "in no call");
        missed.set_in_call(true);
        assert!(!missed.owe(Va(0x1000), &[1]), "another call's");
        missed.note(Va(0x1000), true);
        assert!(!missed.owe(Va(0x2000), &[1]), "not missing");
        assert!(missed.owe(Va(0x1000), &[1]) && missed.owes());
        missed.note(Va(0x2000), true);
        assert!(!missed.owe(Va(0x2000), &[0; MOST_OWED_BYTES]));
        assert_eq!(missed.next_owed(), Some((Va(0x1000), alloc::vec![1])));
        assert!(!missed.owes());
    }
}
