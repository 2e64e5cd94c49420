//! Before a deflate: what has just come from outside is served first.
//!
//! A thread that was notified of a connection or of data, and is paused before it has taken it,
//! would sleep on it: the host notifies once and will not again. The same holds for a thread that
//! has taken a request and handed it to another. No look at sockets finds all of that; that nobody
//! runs does. So a deflate begins at a moment when every thread waits for something: what has come
//! has been served then, or waits for more, and what comes later wakes.
//!
//! A container that computes for long has no such moment soon. It is put to sleep once nothing that
//! has come from outside is fresh any more ([`input`]): what it does then has been under way for
//! longer than that, and sleeps along.

use crate::errno::{Errno, Result};
use crate::fs::disk;
use crate::mm::reclaim;
use crate::net::host;
use crate::task::pause::{self, Held, Traps};
use crate::task::table;
use crate::time::{self, breath};
use crate::{executor, input};

/// How long a deflate waits at most, if more and more comes.
const LIMIT_NS: u64 = 2_000_000_000;
/// How long it waits for what the host does with its disk. That may take much longer: it sleeps
/// along then, and its end wakes.
const DISK_NS: u64 = 500_000_000;
/// How soon it looks again while the kernel rests from work of its own, whose end no trap shows.
const LOOK_NS: u64 = 1_000_000;

/// True if a thread looks blocked that nobody outside need do anything for: its call pauses between
/// two pieces, or it waits for memory, or for the host's disk.
fn rests_from_work() -> bool {
    breath::is_any_pausing() || reclaim::is_awaited() || disk::is_any_awaited()
}

/// True if every thread is blocked in a system call with no pending wake-up, and not because the
/// kernel rests from that call: nothing happens any more unless something comes. For a task that is
/// the only one that may run.
pub(super) fn is_quiet() -> bool {
    !rests_from_work()
        && !pause::holds_somebody()
        && !table::threads().any(|thread| thread.user.is_expected())
}

/// Waits until a deflate may begin; when this returns it does so in the same breath. EINTR when
/// `held` was ended, EBUSY when there is always something new to serve, or something that `quark
/// pause` keeps from being served.
pub(super) async fn quiesce(held: &Held) -> Result {
    let begin_ns = time::monotonic_ns();
    let limit_ns = begin_ns + LIMIT_NS;
    let disk_ns = begin_ns + DISK_NS;
    let traps = Traps::watch();
    loop {
        held.still()?;
        if !executor::is_drained() {
            // Somebody may have been notified and not have looked yet.
            executor::yield_now().await;
            continue;
        }
        if is_quiet() {
            host::watch_all();
            return Ok(());
        }
        let now_ns = time::monotonic_ns();
        if disk::is_any_awaited() && now_ns < disk_ns {
            traps.next_until(now_ns + LOOK_NS).await;
            continue;
        }
        let stopped_ns = pause::ordered_since_ns();
        match input::fresh_until(stopped_ns.unwrap_or(now_ns)) {
            // Nobody has waited for what lies there, so the host did not notify when it came: it
            // may have been just now.
            None if host::watch_all() => input::note(),
            None => return Ok(()),
            Some(_) if stopped_ns.is_some() || now_ns >= limit_ns => return Err(Errno::EBUSY),
            Some(_) if rests_from_work() => traps.next_until(now_ns + LOOK_NS).await,
            Some(end_ns) => traps.next_until(end_ns.min(limit_ns)).await,
        }
    }
}
