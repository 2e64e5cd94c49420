//! Descriptors in flight (SCM_RIGHTS): in a message that nobody has received yet.
//!
//! Sockets in flight to each other can form a circle that no descriptor leads to any more. Their
//! number is bounded, as Linux bounds it, and such circles are looked for ([`collect`]) when a
//! socket is closed while few are in flight, when there are many, and when memory is short. What is
//! in a circle may be more than memory: a group of fanotify(7) that nobody will answer for.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::UnixSocket;
use crate::net::{Family, Socket};

use crate::errno::{Errno, Result};
use crate::fs::OpenFile;
use crate::pieces::Pieces;
use crate::sync::{Mutex, mutex};

/// The most descriptors in flight in the container.
pub const MAX_IN_FLIGHT: usize = 16 << 10;

static IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);

/// With fewer than this many in flight nobody looks for circles.
const FEW: usize = 64;

/// How many have to be in flight for circles to be looked for.
static COLLECT_AT: AtomicUsize = AtomicUsize::new(FEW);

/// Sockets that descriptors have been sent to, by address; some may be gone, or have none any more.
static HOLDERS: Mutex<BTreeMap<usize, Weak<UnixSocket>>> = mutex(BTreeMap::new());

/// Descriptors are about to be put into the queue of `socket`.
pub fn note_holder(socket: &Arc<UnixSocket>) {
    HOLDERS.lock().insert(Arc::as_ptr(socket) as usize, Arc::downgrade(socket));
}

/// The socket at this address is about to be freed.
pub fn forget_holder(at: usize) {
    HOLDERS.lock().remove(&at);
}

fn unix_of(file: &OpenFile) -> Option<&Arc<UnixSocket>> {
    match &file.downcast::<Socket>()?.family {
        Family::Unix(socket) => Some(socket),
        Family::Host(_) | Family::Guest(_) => None,
    }
}

/// Closes sockets in flight that no descriptor leads to, nor a socket that one leads to: how many
/// files were let go.
///
/// As Linux's garbage collector: a file whose references all come from queues is a candidate. What
/// the queues of other sockets hold can be received, and so on from there; the candidates that are
/// not found that way are garbage.
///
/// Done when memory is short: its books grow in small pieces, element by element (`collect` would
/// sort a list of all), and when there is no room for them nothing is let go.
pub fn collect() -> usize {
    let mut holders: BTreeMap<usize, Arc<UnixSocket>> = BTreeMap::new();
    HOLDERS.lock().retain(|at, weak| match weak.upgrade() {
        Some(socket) if socket.holds_rights() => holders.insert(*at, socket).is_none(),
        _ => false,
    });
    // For each file in flight: how often, and its references in all.
    let mut in_flight: BTreeMap<usize, (usize, usize, usize)> = BTreeMap::new();
    for holder in holders.values() {
        holder.visit_rights(&mut |file| {
            if let Some(socket) = unix_of(file) {
                let entry = in_flight.entry(Arc::as_ptr(file) as usize);
                entry.or_insert((0, Arc::strong_count(file), Arc::as_ptr(socket) as usize)).0 += 1;
            }
        });
    }
    let is_lost = |(count, references, _): &&(usize, usize, usize)| count == references;
    let mut lost: BTreeSet<usize> = BTreeSet::new();
    in_flight.values().filter(is_lost).for_each(|(_, _, socket)| {
        lost.insert(*socket);
    });
    let mut open = Pieces::new();
    let mut has_room =
        holders.keys().filter(|at| !lost.contains(at)).all(|at| open.push(*at).is_ok());
    while let Some(at) = open.pop() {
        let Some(holder) = holders.get(&at) else { continue };
        holder.visit_rights(&mut |file| {
            if let Some(socket) = unix_of(file)
                && lost.remove(&(Arc::as_ptr(socket) as usize))
            {
                has_room &= open.push(Arc::as_ptr(socket) as usize).is_ok();
            }
        });
    }
    if !has_room {
        return 0;
    }
    // Dropped one after the other; the sockets themselves stay until the end.
    lost.iter()
        .filter_map(|at| holders.get(at))
        .flat_map(|holder| holder.take_rights())
        .map(|r| r.0.len())
        .sum()
}

/// A socket was closed: it may have been the last that led to a circle, as Linux looks then, too.
/// With many in flight that would take too long each time.
pub fn closed_one() {
    static LOOKS: AtomicBool = AtomicBool::new(false);
    let few = 1..=FEW;
    // Those that are let go are closed too: they belong to the circles that are found.
    if few.contains(&IN_FLIGHT.load(Ordering::Relaxed)) && !LOOKS.swap(true, Ordering::Relaxed) {
        collect();
        LOOKS.store(false, Ordering::Relaxed);
    }
}

/// ETOOMANYREFS.
const ETOOMANYREFS: Errno = Errno(linux_raw_sys::errno::ETOOMANYREFS as i32);

/// Files in flight, counted.
#[derive(Default)]
pub struct InFlight(Vec<Arc<OpenFile>>);

impl InFlight {
    /// Sends files off. ETOOMANYREFS.
    pub fn new(files: Vec<Arc<OpenFile>>) -> Result<Self> {
        if files.is_empty() {
            return Ok(InFlight::default());
        }
        if IN_FLIGHT.load(Ordering::Relaxed) >= COLLECT_AT.load(Ordering::Relaxed) {
            collect();
            COLLECT_AT.store((2 * IN_FLIGHT.load(Ordering::Relaxed)).max(FEW), Ordering::Relaxed);
        }
        let before = IN_FLIGHT.fetch_add(files.len(), Ordering::Relaxed);
        if before + files.len() > MAX_IN_FLIGHT {
            IN_FLIGHT.fetch_sub(files.len(), Ordering::Relaxed);
            return Err(ETOOMANYREFS);
        }
        Ok(InFlight(files))
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The files.
    pub fn files(&self) -> &[Arc<OpenFile>] {
        &self.0
    }

    /// They have arrived.
    pub fn receive(&mut self) -> Vec<Arc<OpenFile>> {
        IN_FLIGHT.fetch_sub(self.0.len(), Ordering::Relaxed);
        core::mem::take(&mut self.0)
    }

    /// A copy for MSG_PEEK.
    pub fn peek(&self) -> Vec<Arc<OpenFile>> {
        self.0.clone()
    }
}

/// Files to be let go, and whether somebody is at it. In pieces: a long chain may come to its end
/// when memory is short.
static GRAVEYARD: Mutex<(bool, Pieces<Arc<OpenFile>>)> = mutex((false, Pieces::new()));

impl Drop for InFlight {
    /// They never arrive. A file let go here may be a socket with more files in flight to it, and
    /// so on: they are let go one after the other, not one within the other, for there may be more
    /// of them than fit on a stack.
    fn drop(&mut self) {
        let files = self.receive();
        if files.is_empty() {
            return;
        }
        {
            let mut free_at_exit = GRAVEYARD.lock();
            for file in files {
                // A piece is small: what there is always memory for.
                free_at_exit.1.push(file).expect("memory for a small piece");
            }
            if free_at_exit.0 {
                return;
            }
            free_at_exit.0 = true;
        }
        loop {
            let next = {
                let mut free_at_exit = GRAVEYARD.lock();
                let next = free_at_exit.1.pop();
                free_at_exit.0 = next.is_some();
                next
            };
            if next.is_none() {
                return;
            }
            drop(next);
        }
    }
}
