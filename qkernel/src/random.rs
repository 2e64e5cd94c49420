//! Random bytes, from the host's generator.

use qlib::host::Op;

use crate::errno::Result;
use crate::host::Call;

/// Fills `out` with random bytes.
pub fn fill(out: &mut [u8]) -> Result {
    Call::new(Op::Random).bytes_out(out).run().map(|_| ())
}

/// A random number.
pub fn next_u64() -> u64 {
    let mut bytes = [0; 8];
    // Without the host's generator there is no randomness to be had; the clock at least differs from call to call.
    if fill(&mut bytes).is_err() {
        return crate::time::monotonic_ns();
    }
    u64::from_le_bytes(bytes)
}
