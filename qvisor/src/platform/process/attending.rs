//! A receiver that waits for what comes from outside, too.
//!
//! Most calls that have to wait, wait for the host: for a request, or the answer of another server.
//! If the event loop waited for that, each would wake a thread more, on another processor mostly,
//! which then wants the kernel at the same time as the receiver whose thread it has answered. So
//! one receiver at a time, of a space with a call that waits, *attends*: it waits for its stub's
//! calls and for what the guest watches at once, and the event loop sleeps on.
//!
//! A sandbox that sleeps has no stub, so nobody attends then: the event loop alone wakes it, or
//! does not while it is being saved.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::answers::be_receiver_of;
use crate::sys::{self, Listener, Received, Wait};

/// The host objects that the guest watches. A receiver that looks at its threads' slots looks at
/// these too, so that an answer from outside need not wake another thread first.
pub trait Outside: Send + Sync {
    /// From now on [`Self::look`] is called often, and nobody else need watch.
    fn begin(&self);
    /// Notifies the kernel of what is ready. True if anything was.
    fn look(&self) -> bool;
    /// A descriptor that can be read when something is ready.
    fn as_fd(&self) -> BorrowedFd<'_>;
    /// No more.
    fn end(&self);
}

/// Times in a row that something came from outside and not a call of the space itself, after which
/// another one may attend, for whom it was.
const MOST_FOR_OTHERS: u32 = 8;
/// Calls in a row without anything from outside, after which it is no longer worth a host call more
/// for each.
const MOST_ALONE: u32 = 64;
/// So many calls in a row go before what has come from outside.
const MOST_BEFORE: u32 = 4;
/// Threads of the space, at most: the host walks through their calls each time that it is asked
/// whether there is one.
const MOST_THREADS: u32 = 64;
/// Who takes this long to have a call served, by waiting for the kernel perhaps, leaves the outside
/// to the event loop,
const LONG: Duration = Duration::from_millis(1);
/// and so does everybody for so long.
const REST: Duration = Duration::from_millis(50);

/// Whether some receiver attends.
pub(super) struct Attended {
    is: AtomicBool,
    began: Instant,
    /// Nobody begins to before: nanoseconds since `began`.
    not_before_ns: AtomicU64,
}

impl Default for Attended {
    fn default() -> Self {
        let not_before_ns = AtomicU64::new(0);
        Self { is: AtomicBool::new(false), began: Instant::now(), not_before_ns }
    }
}

impl Attended {
    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn rest(&self) {
        self.not_before_ns.store(self.now_ns() + REST.as_nanos() as u64, Ordering::Relaxed);
    }

    fn rests(&self) -> bool {
        self.now_ns() < self.not_before_ns.load(Ordering::Relaxed)
    }
}

/// What one receiver knows of it.
pub(super) struct Attendant<'a> {
    attended: &'a Attended,
    outside: Option<&'a dyn Outside>,
    space: u32,
    listener: &'a Listener,
    /// Tells of the stub's end, where the listener does not.
    stub_end: Option<&'a OwnedFd>,
    attends: bool,
    /// In a row: events from outside, calls with nothing from there, calls while something was.
    for_others: u32,
    alone: u32,
    before: u32,
    /// When its last call was received.
    received: Instant,
}

impl<'a> Attendant<'a> {
    pub(super) fn new(
        attended: &'a Attended,
        outside: Option<&'a dyn Outside>,
        space: u32,
        listener: &'a Listener,
        stub_end: Option<&'a OwnedFd>,
    ) -> Self {
        Self {
            attended,
            outside,
            space,
            listener,
            stub_end,
            attends: false,
            for_others: 0,
            alone: 0,
            before: 0,
            received: Instant::now(),
        }
    }

    /// A call of the space, which has so many threads, has been delivered: attends from now on, if
    /// nobody does and the call waits; and no more if it should not.
    pub(super) fn note(&mut self, threads: u32, waits: impl FnOnce() -> bool) {
        if self.attends {
            if self.received.elapsed() > LONG {
                self.attended.rest();
                self.end();
            } else if self.alone > MOST_ALONE || threads > MOST_THREADS {
                self.end();
            }
        } else if self.may_begin(threads, waits)
            && let Some(outside) = self.outside
            && !self.attended.is.swap(true, Ordering::Acquire)
        {
            outside.begin();
            self.attends = true;
            (self.for_others, self.alone, self.before) = (0, 0, 0);
        }
    }

    fn may_begin(&self, threads: u32, waits: impl FnOnce() -> bool) -> bool {
        // Where the listener does not tell of the stub's end, there is more to wait for.
        self.stub_end.is_none()
            && !self.attended.is.load(Ordering::Relaxed)
            && threads <= MOST_THREADS
            && waits()
            && !self.attended.rests()
    }

    /// No more.
    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.attends) {
            if let Some(outside) = self.outside {
                outside.end();
            }
            self.attended.is.store(false, Ordering::Release);
        }
    }

    /// The next call of the space. What comes from outside before is delivered.
    pub(super) fn receive(&mut self) -> Received {
        while self.attends
            && let Some(outside) = self.outside
        {
            let found = sys::look_at([self.listener], Some(outside.as_fd()), Wait::Ever);
            let calls = found.calls != 0;
            if found.other && (!calls || self.before >= MOST_BEFORE) {
                // Whom it answers has waited for somebody outside.
                be_receiver_of(0);
                outside.look();
                be_receiver_of(self.space);
                self.before = 0;
                self.for_others += u32::from(!calls);
                if self.for_others > MOST_FOR_OTHERS {
                    self.end();
                }
            } else if calls {
                if let Some(n) = self.listener.receive_waiting() {
                    self.before = if found.other { self.before + 1 } else { 0 };
                    self.alone =
                        if found.other || self.for_others > 0 { 0 } else { self.alone + 1 };
                    self.for_others = 0;
                    self.received = Instant::now();
                    return Received::Call(n);
                }
            } else if found.gone != 0 {
                return Received::Gone;
            }
        }
        self.listener.receive(self.stub_end.map(AsFd::as_fd))
    }
}

impl Drop for Attendant<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
