//! Descriptors in flight (SCM_RIGHTS): in a message that nobody has received yet.
//!
//! Sockets in flight to each other can form a circle that no descriptor leads to any more. Their number is bounded, as Linux bounds
//! it: a program can lose that many, not more.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::errno::{Errno, Result};
use crate::fs::OpenFile;
use crate::sync::{Mutex, mutex};

/// The most descriptors in flight in the container.
pub const MAX_IN_FLIGHT: usize = 16 << 10;

static IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);

/// ETOOMANYREFS.
const ETOOMANYREFS: Errno = Errno(linux_raw_sys::errno::ETOOMANYREFS as i32);

/// Files in flight, counted.
#[derive(Default)]
pub struct InFlight(Vec<Arc<OpenFile>>);

impl InFlight {
    /// Sends files off. ETOOMANYREFS.
    pub fn new(files: Vec<Arc<OpenFile>>) -> Result<Self> {
        let before = IN_FLIGHT.fetch_add(files.len(), Ordering::Relaxed);
        if before + files.len() > MAX_IN_FLIGHT {
            IN_FLIGHT.fetch_sub(files.len(), Ordering::Relaxed);
            return Err(ETOOMANYREFS);
        }
        Ok(InFlight(files))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
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

/// Files to be let go, and whether somebody is at it.
static GRAVEYARD: Mutex<(bool, Vec<Arc<OpenFile>>)> = mutex((false, Vec::new()));

impl Drop for InFlight {
    /// They never arrive. A file let go here may be a socket with more files in flight to it, and so on: they are let go one after
    /// the other, not one within the other, for there may be more of them than fit on a stack.
    fn drop(&mut self) {
        let files = self.receive();
        if files.is_empty() {
            return;
        }
        {
            let mut graveyard = GRAVEYARD.lock();
            graveyard.1.extend(files);
            if graveyard.0 {
                return;
            }
            graveyard.0 = true;
        }
        loop {
            let next = {
                let mut graveyard = GRAVEYARD.lock();
                let next = graveyard.1.pop();
                graveyard.0 = next.is_some();
                next
            };
            if next.is_none() {
                return;
            }
            drop(next);
        }
    }
}
