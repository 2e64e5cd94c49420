//! Threads of the sandbox that are there while they have work, and for a moment after it: an idle
//! sandbox has none of them.

use std::time::{Duration, Instant};

use crate::sys::ordered::{Condvar, MutexGuard};

/// How long one stays after its last work.
pub const LINGER: Duration = Duration::from_secs(1);

/// Waits for `more` work, or until what there is comes due at `next`. True if there was none, and
/// none has come for [`LINGER`].
pub fn wait<'a, T>(
    more: &Condvar,
    work: MutexGuard<'a, T>,
    next: Option<Instant>,
) -> (MutexGuard<'a, T>, bool) {
    let limit = next.map_or(LINGER, |due| due.saturating_duration_since(Instant::now()));
    let (work, end) = more.wait_timeout(work, limit);
    (work, end.timed_out() && next.is_none())
}
