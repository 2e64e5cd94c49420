//! What keeps a container awake: whatever somebody would miss if it slept now.
//!
//! Looked for in two steps. What goes on [inside] costs a walk over the threads; what is
//! [outside] asks the host about sockets, and is worth it only when nothing goes on inside.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt::{self, Display, Formatter};

use crate::executor;
use crate::fs::disk;
use crate::mm::reclaim;
use crate::net::host::{self, Untaken};
use crate::sync::{Count, Counted};
use crate::task::{Process, pause, table};
use crate::time::{self, breath};

/// For how long somebody who has asked something is believed to wait for an answer that a timer
/// brings about. Later the timer wakes the container.
const REQUEST_NS: u64 = 10_000_000_000;

/// Processes from outside that are being made.
static STARTS: Count = Count::none();

/// Signals from outside that wait for a program's handler.
static SIGNALS: Count = Count::none();

/// A process from outside is being made, as long as the result lives.
pub fn starts_a_visitor() -> Counted {
    STARTS.begin()
}

/// A signal from outside waits to be delivered, as long as the result lives.
pub fn awaits_a_handler() -> Counted {
    SIGNALS.begin()
}

/// Why a container is not idle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Busy {
    /// `quark pause` came in the middle of something.
    Paused,
    /// A thread runs, or is about to: process and name.
    Runs(String),
    /// A system call pauses between two pieces of its work, or waits for memory.
    Works,
    /// A thread waits for the host's disk.
    Disk,
    /// A signal waits for its handler.
    Signal,
    /// A process of `quark exec` has not ended.
    Visitor(String),
    /// Data or a connection lies there, of this address.
    Untaken(Untaken, String),
    /// This address waits for an answer, and in so many nanoseconds a timer goes off.
    Unanswered(String, u64),
    /// A timer of a program goes off in so many nanoseconds.
    Timer(u64),
    /// An image of it is being made.
    Image,
}

impl Display for Busy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Busy::Paused => f.write_str("it was paused in the middle of something: resume it"),
            Busy::Runs(who) => write!(f, "{who} runs"),
            Busy::Works => f.write_str("a system call is at work, or waits for memory"),
            Busy::Signal => {
                f.write_str("a signal has come before the program has a handler for it")
            }
            Busy::Disk => f.write_str("a program waits for the host's disk"),
            Busy::Visitor(who) => write!(f, "{who} of an exec has not ended"),
            Busy::Untaken(Untaken::Connection, address) => {
                write!(f, "a connection to {address} has not been accepted")
            }
            Busy::Untaken(Untaken::Data, address) => {
                write!(f, "data from {address} has not been read")
            }
            Busy::Unanswered(address, ns) => write!(
                f,
                "{address} waits for an answer, and a timer goes off in {} ms",
                ns / 1_000_000
            ),
            Busy::Timer(ns) => write!(f, "a timer goes off in {} ms", ns / 1_000_000),
            Busy::Image => f.write_str("an image of it is being made"),
        }
    }
}

fn named(process: &Process) -> String {
    let name = process.threads().first().map(|thread| thread.name()).unwrap_or_default();
    // A program may call itself anything.
    format!("process {} ({})", process.pid, name.escape_debug())
}

/// True if a thread looks blocked that nobody outside need do anything for: its call pauses between
/// two pieces, or it waits for memory.
fn rests_from_work() -> bool {
    breath::is_any_pausing() || reclaim::is_awaited()
}

/// What goes on in the container. `None`: every thread is blocked in a system call with no pending
/// wake-up, and not because the kernel rests from that call, and no process from outside is there:
/// nothing happens any more unless something comes. For a task that is the only one that may run.
pub(super) fn inside() -> Option<Busy> {
    if pause::holds_somebody() {
        return Some(Busy::Paused);
    }
    if let Some(thread) = table::threads().find(|thread| thread.user.is_expected()) {
        return Some(Busy::Runs(named(&thread.process)));
    }
    if !executor::is_still() || rests_from_work() {
        return Some(Busy::Works);
    }
    let visits = |process: &Arc<Process>| process.is_visitor() && !process.is_zombie();
    if let Some(visitor) = table::processes().find(visits) {
        return Some(Busy::Visitor(named(&visitor)));
    }
    if STARTS.is_any() {
        return Some(Busy::Visitor("the beginning".into()));
    }
    if SIGNALS.is_any() {
        return Some(Busy::Signal);
    }
    disk::is_any_awaited().then_some(Busy::Disk)
}

/// What has been asked of the container and not been done. Timers that go off within `timers_ns`
/// count, others, or all if that is 0, only for who waits for an answer.
pub(super) fn outside(timers_ns: u64) -> Option<Busy> {
    let now_ns = time::monotonic_ns();
    let unserved = host::find_unserved(now_ns);
    if let Some((what, address)) = unserved.untaken {
        return Some(Busy::Untaken(what, address));
    }
    let due_ns = time::next_due_in_ns()?;
    if due_ns < timers_ns {
        return Some(Busy::Timer(due_ns));
    }
    let (asked_ns, address) = unserved.asking?;
    let waits = due_ns < REQUEST_NS && now_ns.saturating_sub(asked_ns) < REQUEST_NS;
    waits.then_some(Busy::Unanswered(address, due_ns))
}

/// True if somebody has had nothing of an answer yet, since whenever.
pub(super) fn owes_an_answer() -> bool {
    host::is_any_asking(u64::MAX)
}
