//! Long work in pieces, so that others get the kernel meanwhile.

use alloc::sync::Arc;

use super::{insert, monotonic_ns};
use crate::sync::Count;
use crate::wait::Signal;

/// Work at a stretch, in nanoseconds.
const WORK_NS: u64 = 5_000_000;
/// The pause after it in which others have their turn, in nanoseconds: what it takes a thread of
/// the host to wake up.
pub const PAUSE_NS: u64 = 100_000;
/// Bytes that are moved between two looks at the clock.
pub const PIECE_BYTES: usize = 256 << 10;

/// Pauses under way, also of work that is given up in one.
static PAUSES: Count = Count::none();

/// True if some long work pauses: its thread looks blocked, and has something to do all the same.
pub fn is_any_pausing() -> bool {
    PAUSES.is_any()
}

/// Long work in pieces.
pub struct Breath {
    since_ns: u64,
}

impl Breath {
    /// The work begins.
    pub fn new() -> Self {
        Breath { since_ns: monotonic_ns() }
    }

    /// Between two pieces: pauses if that is due. Who wants the kernel cannot be known: this very
    /// thread of the host may be the one that takes their calls in. All that the caller knows of
    /// other objects may be different afterwards, and its thread may have been asked to end.
    pub async fn take(&mut self) {
        if monotonic_ns().saturating_sub(self.since_ns) < WORK_NS {
            return;
        }
        let _pause = PAUSES.begin();
        let signal = Arc::new(Signal::default());
        insert(monotonic_ns() + PAUSE_NS, signal.clone());
        signal.wait().await;
        self.since_ns = monotonic_ns();
    }
}

impl Default for Breath {
    fn default() -> Self {
        Self::new()
    }
}
