//! How a thread goes on that the platform [has made anew](super::shed).

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use qlib::platform::UserRegs;

use crate::arch::user::Go;

/// How many threads are to be made anew.
static KEPT: AtomicU64 = AtomicU64::new(0);

/// True if there are threads that are to be made anew.
pub(super) fn are_some_kept() -> bool {
    KEPT.load(Relaxed) > 0
}

/// The floating-point state of a thread that has no platform thread.
pub(super) struct Kept(pub(super) Vec<u8>);

impl Kept {
    pub(super) fn new(fpstate: Vec<u8>) -> Self {
        KEPT.fetch_add(1, Relaxed);
        Kept(fpstate)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        KEPT.fetch_sub(1, Relaxed);
    }
}

/// What a thread that the platform is to make anew needs besides its registers.
#[derive(Default)]
pub(super) struct Anew {
    /// Its floating-point state, while there is no platform thread.
    pub(super) fpstate: Option<Kept>,
    /// There is one that has not gone on yet: the registers that it tells of are not the thread's.
    pub(super) is_new: bool,
    /// There is one that is not the first.
    pub(super) is_another: bool,
}

impl Anew {
    /// How the thread goes on so that it does what `go` says; `regs` are its registers, which
    /// become those that it has then.
    pub(super) fn translate<'a>(&mut self, go: Go<'a>, regs: &'a mut UserRegs) -> Go<'a> {
        if !self.is_new {
            return go;
        }
        self.is_new = matches!(go, Go::Hold);
        match go {
            Go::Return(value) => {
                regs.rax = value as u64;
                Go::Regs(regs)
            }
            Go::Continue => Go::Regs(regs),
            Go::Regs(_) | Go::Hold | Go::Exit => go,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_platform_thread_gets_the_registers_with_what_it_does_first() {
        let own = UserRegs { rip: 7, rax: 1, ..UserRegs::default() };
        let first = |go: Go<'_>| {
            let mut anew = Anew { is_new: true, ..Anew::default() };
            let mut regs = own;
            let said = match anew.translate(go, &mut regs) {
                Go::Regs(regs) => Some(*regs),
                _ => None,
            };
            (said, anew.is_new)
        };
        assert_eq!(first(Go::Return(-4)), (Some(UserRegs { rax: -4i64 as u64, ..own }), false));
        assert_eq!(first(Go::Continue), (Some(own), false));
        let others = UserRegs { rip: 9, ..UserRegs::default() };
        assert_eq!(first(Go::Regs(&others)), (Some(others), false));
        assert_eq!(first(Go::Hold), (None, true));
        let mut known = Anew::default();
        assert!(matches!(known.translate(Go::Return(3), &mut own.clone()), Go::Return(3)));
    }
}
