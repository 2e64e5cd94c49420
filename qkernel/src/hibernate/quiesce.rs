//! Before a deflate: what is under way is finished first.
//!
//! A thread that was notified of a connection or of data, and is paused before it has taken it,
//! would sleep on it: the host notifies once and will not again. The same holds for a thread that
//! has taken a request and handed it to another, or that waits in the middle of one for a moment.
//! So a deflate begins at a moment when nobody would miss anything ([`busy`]): what has come has
//! been served then, or waits for more, and what comes later wakes.

use qlib::control::Timers;

use super::busy::{self, Busy};
use super::deflate::{self, Failure};
use crate::executor;
use crate::net::host;
use crate::task::pause::Held;
use crate::time;

/// Timers that go off so soon are waited for. One that does so all the time, ever again within
/// this, is work.
const SOON_NS: u64 = 20_000_000;
/// How long a deflate waits for what the host does with its disk. That may take much longer: it
/// sleeps along then, and its end wakes.
const DISK_NS: u64 = 500_000_000;
/// How long it lets tasks run that are about to: what they do may be over at once.
const TURN_NS: u64 = 20_000_000;
/// How soon it looks again: at first, and at most.
const LOOK_NS: [u64; 2] = [500_000, 10_000_000];

/// How long to wait for a container to be idle, and what then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Nanoseconds.
    pub ns: u64,
    /// It sleeps then in any case, and is woken at once if there is something left to do.
    pub force: bool,
    /// It is not: whoever asked for the sleep sees to that.
    pub stay: bool,
}

impl Patience {
    /// What is left of it, if it began at `begin_ns` (CLOCK_MONOTONIC).
    pub(super) fn since(self, begin_ns: u64) -> Patience {
        Patience { ns: self.ns.saturating_sub(time::elapsed_ns(begin_ns)), ..self }
    }

    /// True if a further attempt may do what one without patience has not done.
    pub(super) fn is_left(self) -> bool {
        self.ns > 0 || self.force
    }
}

/// Timers that go off within so many nanoseconds are waited for: none, where they are to rest.
fn soon_ns() -> u64 {
    if *deflate::TIMERS.lock() == Timers::Rest { 0 } else { SOON_NS }
}

/// What keeps a container awake that was asked to sleep so many nanoseconds ago.
pub(super) fn look(waited_ns: u64) -> Option<Busy> {
    match busy::inside() {
        Some(Busy::Disk) if waited_ns >= DISK_NS => busy::outside(soon_ns()),
        None => busy::outside(soon_ns()),
        inside => inside,
    }
}

/// Waits until a deflate may begin; when this returns it does so in the same breath. What is left
/// to do then, if it is forced. EINTR when `held` was ended, EBUSY and the reason when patience is
/// over, or there is something that `quark pause` keeps from being done. What stays asleep until
/// somebody sees to it may sleep in the middle of that.
pub(super) async fn quiesce(held: &Held, patience: Patience) -> Result<Option<Busy>, Failure> {
    let begin_ns = time::monotonic_ns();
    let mut look_ns = LOOK_NS[0];
    loop {
        held.still()?;
        let waited_ns = time::elapsed_ns(begin_ns);
        if !executor::is_still() && waited_ns < patience.ns.max(TURN_NS) {
            // Somebody may have been notified and not have looked yet.
            executor::yield_now().await;
            continue;
        }
        let left = look(waited_ns);
        match left {
            Some(Busy::Paused) if !patience.stay => return Err(Failure::busy(&Busy::Paused)),
            Some(busy) if waited_ns >= patience.ns && !patience.force => {
                return Err(Failure::busy(&busy));
            }
            Some(busy) if waited_ns < patience.ns && busy != Busy::Paused => {}
            idle_or_forced => {
                host::watch_all();
                return Ok(idle_or_forced);
            }
        }
        time::pass(look_ns).await;
        look_ns = (look_ns * 5 / 4).min(LOOK_NS[1]);
    }
}
