//! Random bytes: a ChaCha20 generator, as the one behind getrandom(2) on Linux.
//!
//! The host seeds it at boot, and again at its first use, for the seed of the boot stays in memory,
//! and whenever this memory may have a twin elsewhere: after each wake. What was given out cannot
//! be computed from what is in memory later: each call ends by replacing the key (fast key
//! erasure).

use alloc::boxed::Box;

use qlib::host::Op;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::arch;
use crate::host::Call;
use crate::klog;
use crate::sync::{Mutex, mutex};

type Key = [u8; 32];

/// The key of the next call; `None` until the first.
static KEY: Mutex<Option<Key>> = mutex(None);

/// Fills `out` from the generator with this key: the key of the next call.
fn generate(key: Key, out: &mut [u8]) -> Key {
    let mut generator = ChaCha20Rng::from_seed(key);
    let mut next = Key::default();
    generator.fill_bytes(&mut next);
    generator.fill_bytes(out);
    next
}

/// Fills `out` with random bytes.
pub fn fill(out: &mut [u8]) {
    let mut key = KEY.lock();
    if key.is_none() {
        drop(key);
        reseed();
        key = KEY.lock();
    }
    *key = Some(generate(key.unwrap_or_default(), out));
}

/// A random number.
pub fn next_u64() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// Stirs in fresh bytes of the host's generator: whoever has a copy of this memory does not know
/// what comes. The old key stays part of it, so nothing is lost where the host has none to give.
pub fn reseed() {
    // In guest memory, which a stack is not.
    let mut fresh = Box::new(Key::default());
    if let Err(error) = Call::new(Op::Random).bytes_out(&mut *fresh).run() {
        klog!(Warn, "no fresh random bytes from the host: {}", error.name());
    }
    let mut key = KEY.lock();
    let mut stirred = generate(key.unwrap_or(arch::boot().seed), &mut []);
    stirred.iter_mut().zip(*fresh).for_each(|(old, new)| *old ^= new);
    *key = Some(stirred);
    // Nor may it be found in memory that was freed.
    core::hint::black_box(&mut fresh).fill(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_gives_one_sequence_and_is_replaced() {
        let (mut one, mut two) = ([0; 100], [0; 100]);
        let key = [7; 32];
        let next = generate(key, &mut one);
        assert_eq!((generate(key, &mut two), one), (next, two));
        assert_ne!(next, key);
        // What a call gives out is not its next key, nor what the next call gives out.
        generate(next, &mut two);
        assert_ne!(one, two);
        assert!(!one.windows(32).any(|w| w == next));
    }

    #[test]
    fn its_bits_are_even() {
        let mut out = [0; 4096];
        generate([1; 32], &mut out);
        let ones: u32 = out.iter().map(|b| b.count_ones()).sum();
        assert!((16_000..16_800).contains(&ones), "{ones} of 32768 bits");
    }
}
