//! A receiver that waits for what comes from outside, too.
//!
//! Most calls that have to wait, wait for the host: for a request, or the answer of another server.
//! If the event loop waited for that, each would wake a thread more, on another processor mostly,
//! which then wants the kernel at the same time as the receiver whose thread it has answered. So
//! one receiver at a time, of a space with a call that waits, *attends*: it waits for its stub's
//! calls and for what the guest watches at once, and the event loop sleeps on.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use super::fast;
use super::space::Space;
use super::{Outside, Shared, Stub};
use crate::sys::{self, Received, Wait};

/// Times in a row that something came from outside and not a call of the space itself, after which
/// another one may attend, for whom it was.
const MOST_FOR_OTHERS: u32 = 8;

/// Threads of the space, at most: the host walks through their calls each time that it is asked
/// whether there is one.
const MOST_THREADS: u32 = 64;

/// Whether some receiver attends.
#[derive(Default)]
pub(super) struct Attended(AtomicBool);

/// What one receiver knows of it.
pub(super) struct Attendant<'a> {
    shared: &'a Shared,
    space: &'a Space,
    attends: bool,
    for_others: u32,
}

impl<'a> Attendant<'a> {
    pub(super) fn new(shared: &'a Shared, space: &'a Space) -> Self {
        Self { shared, space, attends: false, for_others: 0 }
    }

    fn outside(&self) -> Option<&'a dyn Outside> {
        self.shared.outside.get().map(|outside| &**outside)
    }

    /// A call of the space has been delivered: attends from now on, if nobody does and the call
    /// waits; and no more if the space has become too large for that.
    pub(super) fn note(&mut self, tid: u32) {
        let attended = &self.shared.attended.0;
        if self.space.area.slots() > MOST_THREADS {
            return self.end();
        }
        if self.attends
            || attended.load(Ordering::Relaxed)
            || self.space.lock().waiting_call(tid).is_none()
        {
            return;
        }
        if let Some(outside) = self.outside()
            && !attended.swap(true, Ordering::Acquire)
        {
            outside.begin();
            self.attends = true;
            self.for_others = 0;
        }
    }

    /// No more.
    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.attends) {
            if let Some(outside) = self.outside() {
                outside.end();
            }
            self.shared.attended.0.store(false, Ordering::Release);
        }
    }

    /// The next call of the space; what comes from outside before is delivered.
    pub(super) fn receive(&mut self, stub: &Stub) -> Received {
        while self.attends
            && stub.end.is_none()
            && let Some(outside) = self.outside()
        {
            let found = sys::look_at([&*stub.listener], Some(outside.as_fd()), Wait::Ever);
            if found.calls != 0 {
                if let Some(n) = stub.listener.receive_waiting() {
                    self.for_others = 0;
                    return Received::Call(n);
                }
            } else if found.gone != 0 {
                return Received::Gone;
            } else if found.other {
                // Whom it answers has waited for somebody outside.
                fast::be_receiver_of(0);
                outside.look();
                fast::be_receiver_of(self.space.id);
                self.for_others += 1;
                if self.for_others > MOST_FOR_OTHERS {
                    self.end();
                }
            }
        }
        stub.listener.receive(stub.end.as_ref().map(AsFd::as_fd))
    }
}

impl Drop for Attendant<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
