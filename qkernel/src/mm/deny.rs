//! Memory that is never both written and executed (PR_SET_MDWE of prctl(2)).

use core::sync::atomic::Ordering;

use bitflags::bitflags;

use super::{AddressSpace, Prot};
use crate::errno::{Errno, Result};

bitflags! {
    /// PR_MDWE_*: what an address space denies.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Denied: u32 {
        /// Mappings that are writable and executable, and such as become executable later.
        const EXEC_GAIN = 1;
        /// Its children and its next program deny nothing.
        const NOT_INHERITED = 2;
    }
}

impl Denied {
    /// What a child, or the next program, denies.
    pub fn inherited(self) -> Denied {
        if self.contains(Denied::NOT_INHERITED) { Denied::empty() } else { self }
    }
}

impl AddressSpace {
    /// What it denies.
    pub fn denied(&self) -> Denied {
        Denied::from_bits_truncate(self.denied.load(Ordering::Relaxed))
    }

    /// PR_SET_MDWE with these bits: EINVAL for some that make no sense, EPERM for others than it
    /// has.
    pub fn deny_write_exec(&self, bits: u32) -> Result {
        let new = Denied::from_bits(bits).ok_or(Errno::EINVAL)?;
        if new == Denied::NOT_INHERITED {
            return Err(Errno::EINVAL);
        }
        let old = self.denied();
        if !old.is_empty() && old != new {
            return Err(Errno::EPERM);
        }
        self.set_denied(new);
        Ok(())
    }

    /// Has it deny this.
    pub fn set_denied(&self, denied: Denied) {
        self.denied.store(denied.bits(), Ordering::Relaxed);
    }

    /// EACCES if nothing there may go from `old` to `new`; for a new mapping both are the same.
    pub fn check_denied(&self, old: Prot, new: Prot) -> Result {
        let gains = !old.contains(Prot::EXEC) || new.contains(Prot::WRITE);
        let is_denied = self.denied().contains(Denied::EXEC_GAIN);
        if is_denied && new.contains(Prot::EXEC) && gains { Err(Errno::EACCES) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inherited() {
        assert_eq!(Denied::EXEC_GAIN.inherited(), Denied::EXEC_GAIN);
        assert_eq!(Denied::all().inherited(), Denied::empty());
    }
}
