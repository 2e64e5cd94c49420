//! The vector state in a signal frame: an XSAVE image in standard format with the kernel's
//! software-reserved words in bytes 464 to 511 (`struct _fpx_sw_bytes`) and a second magic word
//! behind it.

use alloc::vec;
use alloc::vec::Vec;

const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// FXSAVE area and XSAVE header: no XSAVE image is shorter, in bytes.
pub const MIN_XSAVE: usize = 576;
/// The legacy area of it, in bytes.
pub const FX_BYTES: usize = 512;
const SW: usize = 464;
const MXCSR: usize = 24;

/// The format of a CPU.
#[derive(Clone, Copy, Debug)]
pub struct FpFormat {
    /// Bytes of the XSAVE image, without the second magic word.
    pub xsave_bytes: usize,
    /// The features in it.
    pub features: u64,
    /// Valid bits of MXCSR.
    pub mxcsr_mask: u32,
}

impl FpFormat {
    /// Bytes in a signal frame.
    pub fn frame_bytes(&self) -> usize {
        self.xsave_bytes + 4
    }

    /// Turns `image`, of which nothing is known, into one that XRSTOR and the host's sigreturn
    /// take. `None` when it is too short to hold even the legacy state.
    pub fn sanitize(&self, image: &[u8]) -> Option<Vec<u8>> {
        if image.len() < FX_BYTES {
            return None;
        }
        let full = image.len() >= self.xsave_bytes;
        let mut out = vec![0; self.frame_bytes()];
        let taken = if full { self.xsave_bytes } else { FX_BYTES };
        out[..taken].copy_from_slice(&image[..taken]);
        let mxcsr = u32::from_le_bytes([
            image[MXCSR],
            image[MXCSR + 1],
            image[MXCSR + 2],
            image[MXCSR + 3],
        ]);
        put(&mut out, MXCSR, &(mxcsr & self.mxcsr_mask).to_le_bytes());
        let present = if full {
            let mut b = [0; 8];
            b.copy_from_slice(&image[FX_BYTES..FX_BYTES + 8]);
            u64::from_le_bytes(b) & self.features
        } else {
            3
        };
        put(&mut out, FX_BYTES, &[0; 64]);
        put(&mut out, FX_BYTES, &present.to_le_bytes());
        self.mark(&mut out);
        Some(out)
    }

    /// Writes the software-reserved words and the second magic word into a frame of
    /// [`Self::frame_bytes`].
    pub fn mark(&self, frame: &mut [u8]) {
        put(frame, SW, &[0; 48]);
        put(frame, SW, &MAGIC1.to_le_bytes());
        put(frame, SW + 4, &(self.frame_bytes() as u32).to_le_bytes());
        put(frame, SW + 8, &self.features.to_le_bytes());
        put(frame, SW + 16, &(self.xsave_bytes as u32).to_le_bytes());
        put(frame, self.xsave_bytes, &MAGIC2.to_le_bytes());
    }
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_images_become_valid() {
        let format = FpFormat { xsave_bytes: 832, features: 7, mxcsr_mask: 0xffff };
        assert!(format.xsave_bytes >= MIN_XSAVE);
        assert!(format.sanitize(&[0xff; 511]).is_none());
        for len in [512, 600, format.xsave_bytes, format.frame_bytes() + 100] {
            let out = format.sanitize(&vec![0xff; len]).expect("long enough");
            assert_eq!(out.len(), format.frame_bytes());
            assert_eq!(u32::from_le_bytes(out[24..28].try_into().expect("4")), format.mxcsr_mask);
            assert_eq!(out[520..576], [0; 56]);
            assert_eq!(
                u64::from_le_bytes(out[512..520].try_into().expect("8")) & !format.features,
                0
            );
            assert_eq!(out[format.xsave_bytes..], MAGIC2.to_le_bytes());
        }
    }
}
