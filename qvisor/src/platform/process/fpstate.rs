//! The vector state in a signal frame: an XSAVE image in standard format with the kernel's software-reserved words in
//! bytes 464 to 511 (`struct _fpx_sw_bytes`) and a second magic word behind it.

use std::arch::x86_64::{__cpuid_count, _fxsave, _xgetbv};

const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// FXSAVE area and XSAVE header.
const MIN_XSAVE: usize = 576;
const FX_BYTES: usize = 512;
const SW: usize = 464;
const MXCSR: usize = 24;
/// Tile data: a dynamic feature that a stub never asks for.
const DYNAMIC: u64 = 1 << 18;

/// The format of this host.
#[derive(Clone, Copy, Debug)]
pub struct FpFormat {
    /// Bytes of the XSAVE image, without the second magic word.
    pub xsave_bytes: usize,
    /// The features in it.
    pub features: u64,
    /// Valid bits of MXCSR.
    pub mxcsr_mask: u32,
}

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

impl FpFormat {
    /// Asks the CPU. `None` without XSAVE.
    pub fn detect() -> Option<Self> {
        if !std::is_x86_feature_detected!("xsave") || !std::is_x86_feature_detected!("fxsr") {
            return None;
        }
        // SAFETY: the features were just found.
        let (features, mxcsr_mask) = unsafe { (enabled_features() & !DYNAMIC, mxcsr_mask()) };
        let mut xsave_bytes = MIN_XSAVE;
        for i in (2..63).filter(|i| features >> i & 1 == 1) {
            let leaf = __cpuid_count(0xd, i);
            xsave_bytes = xsave_bytes.max((leaf.eax + leaf.ebx) as usize);
        }
        Some(Self { xsave_bytes, features, mxcsr_mask })
    }

    /// Bytes in a signal frame.
    pub fn frame_bytes(&self) -> usize {
        self.xsave_bytes + 4
    }

    /// Turns `image`, of which nothing is known, into one that the host's sigreturn takes. `None` when it is too short to
    /// hold even the legacy state.
    pub fn sanitize(&self, image: &[u8]) -> Option<Vec<u8>> {
        if image.len() < FX_BYTES {
            return None;
        }
        let full = image.len() >= self.xsave_bytes;
        let mut out = vec![0; self.frame_bytes()];
        let taken = if full { self.xsave_bytes } else { FX_BYTES };
        out[..taken].copy_from_slice(&image[..taken]);
        let mut word = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        let mxcsr = u32::from_le_bytes([image[MXCSR], image[MXCSR + 1], image[MXCSR + 2], image[MXCSR + 3]]);
        word(MXCSR, &(mxcsr & self.mxcsr_mask).to_le_bytes());
        word(SW, &[0; 48]);
        word(SW, &MAGIC1.to_le_bytes());
        word(SW + 4, &(self.frame_bytes() as u32).to_le_bytes());
        word(SW + 8, &self.features.to_le_bytes());
        word(SW + 16, &(self.xsave_bytes as u32).to_le_bytes());
        let present = if full {
            let mut b = [0; 8];
            b.copy_from_slice(&image[FX_BYTES..FX_BYTES + 8]);
            u64::from_le_bytes(b) & self.features
        } else {
            3
        };
        word(FX_BYTES, &[0; 64]);
        word(FX_BYTES, &present.to_le_bytes());
        word(self.xsave_bytes, &MAGIC2.to_le_bytes());
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_images_become_valid() {
        let format = FpFormat::detect().expect("XSAVE");
        assert!(format.xsave_bytes >= MIN_XSAVE);
        assert!(format.sanitize(&[0xff; 511]).is_none());
        for len in [512, 600, format.xsave_bytes, format.frame_bytes() + 100] {
            let out = format.sanitize(&vec![0xff; len]).expect("long enough");
            assert_eq!(out.len(), format.frame_bytes());
            assert_eq!(u32::from_le_bytes(out[24..28].try_into().expect("4")), format.mxcsr_mask);
            assert_eq!(out[520..576], [0; 56]);
            assert_eq!(u64::from_le_bytes(out[512..520].try_into().expect("8")) & !format.features, 0);
            assert_eq!(out[format.xsave_bytes..], MAGIC2.to_le_bytes());
        }
    }
}
