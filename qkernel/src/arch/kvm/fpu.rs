//! Floating-point and vector state of user threads. The kernel itself uses none, so it stays in the
//! registers until another thread runs on the vCPU.

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::arch::asm;
use core::arch::x86_64::{__cpuid_count, _xgetbv, _xsetbv};
use core::ptr::NonNull;

use qlib::fpstate::{FX_BYTES, FpFormat, MIN_XSAVE};

use crate::errno::{Errno, Result};
use crate::sync::Once;

/// x87, SSE, AVX, AVX-512 (three parts), protection keys. Not what has to be asked for (AMX).
const WANTED: u64 = 0b1 | 0b10 | 0b100 | 0b1110_0000 | 1 << 9;
const FCW_INITIAL: u16 = 0x37f;
const MXCSR_INITIAL: u32 = 0x1f80;
const MXCSR_MASK: u32 = 0xffff;
const ALIGN: usize = 64;

static FORMAT: Once<(FpFormat, bool)> = Once::new();

/// Turns on all state that the CPU has and the kernel wants. On every vCPU, after CR4.OSXSAVE.
pub fn init(xsaveopt: bool) {
    let leaf = __cpuid_count(0xd, 0);
    let features = (u64::from(leaf.edx) << 32 | u64::from(leaf.eax)) & WANTED;
    // AVX-512 needs its three parts and AVX.
    let features =
        if features & 0b1110_0100 == 0b1110_0100 { features } else { features & !0b1110_0000 };
    // SAFETY: XSAVE is there and on (qvisor refuses CPUs without); the CPU supports these features.
    unsafe { enable(features) };
    let mut bytes = MIN_XSAVE;
    for i in (2..63).filter(|i| features >> i & 1 == 1) {
        let leaf = __cpuid_count(0xd, i);
        bytes = bytes.max((leaf.eax + leaf.ebx) as usize);
    }
    FORMAT.set((FpFormat { xsave_bytes: bytes, features, mxcsr_mask: MXCSR_MASK }, xsaveopt));
}

#[target_feature(enable = "xsave")]
unsafe fn enable(features: u64) {
    // SAFETY: as the caller promises.
    unsafe {
        _xsetbv(0, features);
        debug_assert_eq!(_xgetbv(0), features);
    }
}

/// Bytes of the state in a signal frame.
pub fn frame_bytes() -> usize {
    FORMAT.get().0.frame_bytes()
}

/// The saved state of one thread.
#[derive(Debug)]
pub struct FpState(NonNull<u8>);

// SAFETY: plain memory, owned.
unsafe impl Send for FpState {}

fn layout() -> Layout {
    let bytes = FORMAT.get().0.xsave_bytes.next_multiple_of(ALIGN);
    Layout::from_size_align(bytes, ALIGN).expect("a size from CPUID")
}

impl FpState {
    /// That of a new program. `None` when memory is used up.
    pub fn new() -> Option<FpState> {
        // SAFETY: the layout's size is not zero.
        let state = FpState(NonNull::new(unsafe { alloc_zeroed(layout()) })?);
        state.reset();
        Some(state)
    }

    /// Makes it that of a new program.
    pub fn reset(&self) {
        // SAFETY: the memory is as long as the format says and belongs to this object; the
        // registers are not involved.
        unsafe {
            self.0.as_ptr().write_bytes(0, FORMAT.get().0.xsave_bytes);
            self.0.as_ptr().cast::<u16>().write(FCW_INITIAL);
            self.0.as_ptr().add(24).cast::<u32>().write(MXCSR_INITIAL);
            self.0.as_ptr().add(FX_BYTES).cast::<u64>().write(0b11);
        }
    }

    /// Copies the registers here.
    pub fn save(&self) {
        let (format, opt) = FORMAT.get();
        let (low, high) = (format.features as u32, (format.features >> 32) as u32);
        // SAFETY: the area is aligned and as long as these features need.
        unsafe {
            match opt {
                true => {
                    asm!("xsaveopt64 [{}]", in(reg) self.0.as_ptr(), in("eax") low, in("edx") high,
                        options(nostack))
                }
                false => {
                    asm!("xsave64 [{}]", in(reg) self.0.as_ptr(), in("eax") low, in("edx") high,
                        options(nostack))
                }
            }
        }
    }

    /// Loads the registers from here.
    pub fn restore(&self) {
        let features = FORMAT.get().0.features;
        // SAFETY: the area is aligned, and was written by `save`, `reset` or `set`, which leave
        // nothing that faults.
        unsafe {
            asm!("xrstor64 [{}]", in(reg) self.0.as_ptr(), in("eax") features as u32,
                in("edx") (features >> 32) as u32, options(nostack))
        }
    }

    /// The state as a signal frame holds it; its length. ERANGE when `out` is too small.
    pub fn read(&self, out: &mut [u8]) -> Result<usize> {
        let format = &FORMAT.get().0;
        let length = format.frame_bytes();
        let out = out.get_mut(..length).ok_or(Errno::ERANGE)?;
        // SAFETY: the area is as long as the format says.
        let image = unsafe { core::slice::from_raw_parts(self.0.as_ptr(), format.xsave_bytes) };
        out[..image.len()].copy_from_slice(image);
        // What is in its first state was not written by XSAVEOPT: programs look at these without
        // asking.
        let mut words = [0; 8];
        words.copy_from_slice(&image[FX_BYTES..FX_BYTES + 8]);
        let present = u64::from_le_bytes(words);
        if present & 0b1 == 0 {
            out[..24].fill(0);
            out[..2].copy_from_slice(&FCW_INITIAL.to_le_bytes());
            out[32..160].fill(0);
        }
        if present & 0b10 == 0 {
            out[160..416].fill(0);
        }
        format.mark(out);
        Ok(length)
    }

    /// Takes a state from a signal frame, of which nothing is known. EINVAL when it is too short.
    pub fn set(&self, image: &[u8]) -> Result {
        let format = &FORMAT.get().0;
        let valid = format.sanitize(image).ok_or(Errno::EINVAL)?;
        // SAFETY: the area is as long as the format says; `valid` is longer.
        unsafe { self.0.as_ptr().copy_from_nonoverlapping(valid.as_ptr(), format.xsave_bytes) };
        Ok(())
    }
}

impl Drop for FpState {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.0.as_ptr(), layout()) }
    }
}
