//! The vector state of this host's CPU.

use std::arch::x86_64::{__cpuid_count, _fxsave, _xgetbv};

use qlib::fpstate::{FpFormat, MIN_XSAVE};

/// Tile data: a dynamic feature that a stub never asks for.
const DYNAMIC: u64 = 1 << 18;
/// PKRU, the rights of protection keys. Guests have no keys (pkey_alloc(2)), and rights that
/// nothing was given for would keep a program from all of its memory.
const PROTECTION_KEYS: u64 = 1 << 9;

#[target_feature(enable = "xsave")]
fn enabled_features() -> u64 {
    // SAFETY: XCR0 always exists where XSAVE is enabled.
    unsafe { _xgetbv(0) }
}

#[target_feature(enable = "fxsr")]
fn mxcsr_mask() -> u32 {
    #[repr(align(16))]
    struct Fx([u8; 512]);
    let mut fx = Fx([0; 512]);
    // SAFETY: 512 bytes, 16-aligned.
    unsafe { _fxsave(fx.0.as_mut_ptr()) };
    match u32::from_le_bytes([fx.0[28], fx.0[29], fx.0[30], fx.0[31]]) {
        0 => 0xffbf,
        mask => mask,
    }
}

/// Asks the CPU. `None` without XSAVE.
pub fn detect() -> Option<FpFormat> {
    if !std::is_x86_feature_detected!("xsave") || !std::is_x86_feature_detected!("fxsr") {
        return None;
    }
    // SAFETY: the features were just found.
    let (enabled, mxcsr_mask) = unsafe { (enabled_features(), mxcsr_mask()) };
    let features = enabled & !(DYNAMIC | PROTECTION_KEYS);
    let mut xsave_bytes = MIN_XSAVE;
    for i in (2..63).filter(|i| features >> i & 1 == 1) {
        let leaf = __cpuid_count(0xd, i);
        xsave_bytes = xsave_bytes.max((leaf.eax + leaf.ebx) as usize);
    }
    Some(FpFormat { xsave_bytes, features, mxcsr_mask })
}
