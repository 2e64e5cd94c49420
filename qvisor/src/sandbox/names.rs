//! What the host's kernel remembers of names that the guest looked up and that do not exist
//! (negative directory entries). They are charged to the sandbox's memory cgroup, beside guest
//! memory and beyond what the guest counts, and there can be any number of them.
//!
//! The host drops them when the cgroup comes to its limit, but has the memory only when a grace
//! period of RCU is over. A guest that takes much memory just then does not wait for that, and the
//! host's killer comes though most of the cgroup could be freed. So they are dropped before: the
//! cgroup is asked to reclaim when the guest has looked up many such names and the host holds more
//! than what a memory limit leaves for it. That costs the page cache of the cgroup too, so names
//! that do exist are no reason for it: their number is that of files.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::sys;

/// It is looked at after so many names, of 200 to 500 bytes each, on overlay in each layer.
const MOST_NAMES: u32 = 256;
/// What there may be of it at least, with all else that the host's kernel keeps for a sandbox, in
/// bytes.
const LEAST_BYTES: u64 = 2 << 20;
/// The same as a part of the memory limit: the half of what is set aside.
const SHARE: u64 = 32;
/// So much more must have come since it was last dropped, in bytes: what is left then is something
/// else, tasks for instance.
const WORTH_IT: u64 = 1 << 20;
const STACK_BYTES: usize = 64 << 10;
/// More than memory.stat is long.
const STAT_BYTES: usize = 8 << 10;

/// How a cgroup tells what the host's kernel holds for it, and is told to drop it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Interface {
    /// memory.kmem.usage_in_bytes and memory.force_empty.
    V1,
    /// memory.stat and memory.reclaim.
    V2,
}

/// The two files of a cgroup, open.
#[derive(Debug)]
pub struct Files {
    /// Their kind.
    pub interface: Interface,
    /// Tells how much it is.
    pub held: OwnedFd,
    /// Written to, it has the host reclaim.
    pub reclaim: OwnedFd,
}

impl Files {
    /// Bytes of the host's kernel that are charged to the cgroup; with version 2 those alone that
    /// can be reclaimed.
    fn held_bytes(&self) -> Result<u64, Errno> {
        let mut text = [0; STAT_BYTES];
        let got = rustix::io::pread(&self.held, &mut text, 0)?;
        let text = std::str::from_utf8(&text[..got]).map_err(|_| Errno::INVAL)?;
        let number = match self.interface {
            Interface::V1 => Some(text),
            Interface::V2 => text.lines().find_map(|l| l.strip_prefix("slab_reclaimable ")),
        };
        number.and_then(|n| n.trim().parse().ok()).ok_or(Errno::INVAL)
    }

    /// Has the host drop about `bytes`. It takes a tenth of a second.
    fn reclaim(&self, bytes: u64) {
        let mut text = Vec::new();
        // A version 1 cgroup takes no number: it drops what it can.
        let bytes = if self.interface == Interface::V1 { 0 } else { bytes };
        let written = write!(text, "{bytes}").is_ok();
        // EAGAIN: it was less. There is nothing better to be done about it.
        if written && let Err(e) = rustix::io::write(&self.reclaim, &text) {
            tracing::debug!("asking the host to drop names: {e}");
        }
    }
}

/// The names that a sandbox has looked up in vain.
#[derive(Debug, Default)]
pub struct Names {
    /// `None`: there is no cgroup, or it cannot be asked.
    files: OnceLock<Files>,
    /// Since it was last looked at.
    missed: AtomicU32,
    /// What there may be, in bytes; 0 without a memory limit.
    most_bytes: AtomicU64,
    /// What was left when it was last dropped, in bytes.
    left_bytes: AtomicU64,
    /// A thread is at it.
    is_busy: AtomicBool,
}

impl Names {
    /// These are the cgroup's, once, before the guest runs.
    pub fn be_told_by(&self, files: Option<Files>) {
        if let Some(files) = files {
            self.files.get_or_init(|| files);
        }
    }

    /// Notes the memory limit, in bytes (0: none).
    pub fn note_limit(&self, limit: u64) {
        let most = if limit == 0 { 0 } else { (limit / SHARE).max(LEAST_BYTES) };
        self.most_bytes.store(most, Relaxed);
    }

    /// The guest has looked up one more that does not exist.
    pub fn missed(self: &Arc<Self>) {
        if self.most_bytes.load(Relaxed) == 0 || self.missed.fetch_add(1, Relaxed) < MOST_NAMES {
            return;
        }
        self.missed.store(0, Relaxed);
        let Some(files) = self.files.get() else { return };
        let Ok(held) = files.held_bytes() else { return };
        if !self.are_too_many(held) || self.is_busy.swap(true, Relaxed) {
            return;
        }
        let this = self.clone();
        // Whoever looks up a name has the guest kernel's lock.
        let started = sys::spawn_thread("names", STACK_BYTES, move || this.drop_them(held));
        if started.is_err() {
            self.is_busy.store(false, Relaxed);
        }
    }

    /// True if `held` bytes are more than there may be, and more than is left when it is dropped.
    fn are_too_many(&self, held: u64) -> bool {
        let left = self.left_bytes.fetch_min(held, Relaxed).min(held);
        held > self.most_bytes.load(Relaxed) && held >= left.saturating_add(WORTH_IT)
    }

    fn drop_them(&self, held: u64) {
        if let Some(files) = self.files.get() {
            files.reclaim(held);
            self.left_bytes.store(files.held_bytes().unwrap_or(held), Relaxed);
        }
        self.is_busy.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_when_it_is_dropped_is_no_reason_to_drop_it_again() {
        let names = Names::default();
        names.note_limit(1 << 20);
        assert!(!names.are_too_many(LEAST_BYTES));
        assert!(names.are_too_many(LEAST_BYTES + WORTH_IT));
        names.left_bytes.store(10 << 20, Relaxed);
        assert!(!names.are_too_many((10 << 20) + WORTH_IT - 1));
        assert!(names.are_too_many((10 << 20) + WORTH_IT));
        // Some of that has gone by itself.
        assert!(!names.are_too_many(5 << 20));
        assert!(names.are_too_many(6 << 20));
        names.note_limit(640 << 20);
        assert!(!names.are_too_many(20 << 20));
        assert!(names.are_too_many((20 << 20) + 1));
    }

    #[test]
    fn both_interfaces_are_read() {
        let file = |text: &str| {
            let fd = rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::empty()).unwrap();
            rustix::io::write(&fd, text.as_bytes()).unwrap();
            fd
        };
        let files = |interface, text| Files { interface, held: file(text), reclaim: file("") };
        assert_eq!(files(Interface::V1, "4096\n").held_bytes(), Ok(4096));
        let stat = "anon 1\nslab_reclaimable 8192\nslab 3\n";
        assert_eq!(files(Interface::V2, stat).held_bytes(), Ok(8192));
        assert_eq!(files(Interface::V2, "anon 1\n").held_bytes(), Err(Errno::INVAL));
    }
}
