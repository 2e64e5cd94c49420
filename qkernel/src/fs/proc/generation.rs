//! /proc/quark/generation: which life of the sandbox this is. One that is made of its image has
//! another, and so has it itself when it goes back to an earlier state. A program that keeps what
//! must be used only once (seeds, nonces, names of its own) watches the file: poll(2) tells POLLPRI
//! and POLLERR as long as it holds another value than was read through the same descriptor.

use alloc::string::String;
use alloc::sync::Arc;
use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::sys::uuid;
use crate::errno::Result;
use crate::fs::{FileOps, OpenFile};
use crate::io::IoBuffer;
use crate::sync::{Mutex, mutex};
use crate::wait::{PollMask, WaitQueue};

/// The value, once somebody has asked.
static VALUE: Mutex<Option<String>> = mutex(None);
/// How many there have been.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Notified of the next one.
static RENEWED: WaitQueue = WaitQueue::new();

/// This is another life: the file holds another value.
pub fn renew() {
    *VALUE.lock() = None;
    COUNT.fetch_add(1, Relaxed);
    RENEWED.wake(CHANGED);
}

const CHANGED: PollMask = PollMask::PRI.union(PollMask::ERR);

/// The open file; the count of the value that was read.
struct Generation(AtomicU64);

/// Opens it.
pub fn open() -> Arc<dyn FileOps> {
    Arc::new(Generation(AtomicU64::new(COUNT.load(Relaxed))))
}

impl FileOps for Generation {
    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        let text = {
            let mut value = VALUE.lock();
            self.0.store(COUNT.load(Relaxed), Relaxed);
            value.get_or_insert_with(uuid).clone() + "\n"
        };
        let rest = usize::try_from(offset).ok().and_then(|at| text.as_bytes().get(at..));
        buffer.put(rest.unwrap_or_default())
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn poll(&self, _file: &OpenFile) -> PollMask {
        match self.0.load(Relaxed) == COUNT.load(Relaxed) {
            true => PollMask::READ,
            false => PollMask::READ.union(CHANGED),
        }
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&RENEWED)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
