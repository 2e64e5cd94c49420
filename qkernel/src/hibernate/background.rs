//! The rest of a container that was made of an image comes back by itself: what programs have not
//! asked for yet is read ahead of use, little by little, so that no fault waits for the store.
//!
//! Whatever else there is to do goes first. It ends for good when a sleep or an image is asked for,
//! which would write what it has read, and when memory is short. What it brings is no working set
//! ([`Usage::ahead`](crate::mm::swap::Usage::ahead)), and that it is at work keeps nothing awake.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::state::State;
use crate::arch::heap;
use crate::errno::Result;
use crate::fs::shmem;
use crate::mm::swap::ahead::Shared;
use crate::mm::swap::slots;
use crate::mm::{AddressSpace, reclaim};
use crate::sync::{Mutex, mutex};
use crate::task::table;
use crate::{account, executor, klog, time};

/// How long the container has for itself first.
const START_NS: u64 = 50_000_000;
/// Between two reads.
const PAUSE_NS: u64 = 1_000_000;
/// How soon it looks again whether something still runs.
const LOOK_NS: u64 = 5_000_000;
/// How long it waits for that: what runs all the time has some pages brought all the same.
const PATIENCE_NS: u64 = 50_000_000;
/// Of memory, programs must be left so much: this part, or so many bytes if that is less.
const ROOM_SHARE: u64 = 8;
const ROOM_BYTES: u64 = 256 << 20;
/// What is forked while all is looked through is found by looking again, so often at most.
const MOST_ROUNDS: u32 = 4;

/// It is to begin with the next wake.
static ASKED: AtomicBool = AtomicBool::new(false);
/// What it has for all spaces while it is at work.
static SHARED: Mutex<Option<Shared>> = mutex(None);
/// How often it has begun.
static BEGUN: AtomicU64 = AtomicU64::new(0);
/// Pages that it has brought.
static BROUGHT: AtomicU64 = AtomicU64::new(0);

/// Has it begin once the sandbox, which has just been made of an image, is awake.
pub fn ask() {
    ASKED.store(true, Relaxed);
}

/// The sandbox is awake.
pub(super) fn begin_if_asked() {
    if ASKED.swap(false, Relaxed) {
        *SHARED.lock() = Some(Shared::default());
        let number = BEGUN.fetch_add(1, Relaxed) + 1;
        executor::spawn_quiet(run(number));
    }
}

/// Ends it for good.
pub(super) fn stop() {
    ASKED.store(false, Relaxed);
    let shared = SHARED.lock().take();
    drop(shared);
}

/// Pages that it has brought.
pub(super) fn brought() -> u64 {
    BROUGHT.load(Relaxed)
}

/// Pages that it is yet to bring.
pub(super) fn left() -> u64 {
    if SHARED.lock().is_some() { slots::used() } else { 0 }
}

/// True if the one that began with this number is still at work.
fn is_on(number: u64) -> bool {
    SHARED.lock().is_some() && BEGUN.load(Relaxed) == number
}

/// True if there is memory for pages that nobody has asked for.
fn has_room() -> bool {
    let room = ROOM_BYTES.min(account::memory_bytes() / ROOM_SHARE);
    !heap::is_low() && !reclaim::is_awaited() && account::available_bytes() > room
}

/// True if something goes on in the container.
fn is_busy() -> bool {
    !executor::is_still() || table::threads().any(|thread| thread.user.is_expected())
}

async fn run(number: u64) {
    time::pass(START_NS).await;
    let mut round = Round::begin();
    let mut rounds = 1;
    while is_on(number) && matches!(super::current(), State::Awake { .. }) {
        if !has_room() {
            klog!(Info, "no more of the image is read ahead of use: memory is short");
            break;
        }
        match round.step() {
            Ok(true) => {}
            Ok(false) if round.pages > 0 && rounds < MOST_ROUNDS && slots::used() > 0 => {
                round = Round::begin();
                rounds += 1;
            }
            Ok(false) | Err(_) => break,
        }
        time::pass(PAUSE_NS).await;
        let since_ns = time::monotonic_ns();
        while is_on(number) && is_busy() && time::elapsed_ns(since_ns) < PATIENCE_NS {
            time::pass(LOOK_NS).await;
        }
    }
    if is_on(number) {
        stop();
    }
}

/// A look through all memory.
struct Round {
    /// Spaces that are still to be looked through, the last one first. They may end meanwhile.
    spaces: Vec<Weak<AddressSpace>>,
    /// How far it is in that one.
    at: u64,
    /// The number of the object that comes next, and how far it is in there; `None` after the last.
    object: Option<(u64, u64)>,
    /// Pages that it has brought.
    pages: u64,
}

impl Round {
    fn begin() -> Round {
        let spaces = AddressSpace::all().iter().map(Arc::downgrade).collect();
        Round { spaces, at: 0, object: Some((0, 0)), pages: 0 }
    }

    /// Brings some pages; whether there may be more.
    fn step(&mut self) -> Result<bool> {
        if let Some((number, page)) = self.object {
            let Some((found, object)) = shmem::object_from(number) else {
                self.object = None;
                return Ok(true);
            };
            let brought = object.bring_ahead(if found == number { page } else { 0 })?;
            self.note(brought.pages);
            self.object = Some(brought.next.map_or((found + 1, 0), |next| (found, next)));
            return Ok(true);
        }
        let Some(space) = self.spaces.last() else { return Ok(false) };
        let mut next = None;
        if let Some(space) = space.upgrade() {
            // No lock is held meanwhile: this may be the space's end.
            let Some(mut shared) = SHARED.lock().take() else { return Ok(false) };
            let brought = space.bring_ahead(self.at, &mut shared);
            *SHARED.lock() = Some(shared);
            let brought = brought?;
            self.note(brought.pages);
            next = brought.next;
        }
        if next.is_none() {
            self.spaces.pop();
        }
        self.at = next.unwrap_or(0);
        Ok(true)
    }

    fn note(&mut self, pages: u64) {
        self.pages += pages;
        BROUGHT.fetch_add(pages, Relaxed);
    }
}
