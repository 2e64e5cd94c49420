//! What extended state the CPU keeps for programs.

use core::arch::x86_64::_xgetbv;

/// The parts of it, as XCR0 has them, but for those that a program asks for first (AMX's tiles).
/// Only where there is more than FXSAVE stores.
pub fn parts() -> u64 {
    const ASKED_FOR: u64 = 1 << 18;

    #[target_feature(enable = "xsave")]
    fn read() -> u64 {
        // SAFETY: register 0 is there on every CPU that has XSAVE.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: state that XSAVE alone stores is there, and so the host has let programs use that.
    unsafe { read() & !ASKED_FOR }
}
