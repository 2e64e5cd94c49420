//! How many groups and marks a user may have, and events a group (proc_sys_fs(5)).

use alloc::collections::BTreeMap;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use qlib::PAGE_SIZE;

use crate::account;
use crate::errno::{Errno, Result};
use crate::fs::inotify;
use crate::sync::{Mutex, mutex};

/// fs.fanotify.max_queued_events.
pub static MOST_EVENTS: AtomicU64 = AtomicU64::new(16384);
/// fs.fanotify.max_user_groups.
pub static MOST_GROUPS: AtomicU64 = AtomicU64::new(128);

/// fs.fanotify.max_user_marks: as for inotify(7).
pub fn most_marks() -> usize {
    inotify::max_watches()
}

/// How many events may be in a queue.
pub fn most_events() -> usize {
    usize::try_from(MOST_EVENTS.load(Relaxed)).unwrap_or(usize::MAX)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    groups: u64,
    marks: usize,
}

/// By user.
static USED: Mutex<BTreeMap<u32, Used>> = mutex(BTreeMap::new());

/// What a group is not limited in.
#[derive(Clone, Copy, Debug)]
pub struct Unlimited {
    /// FAN_UNLIMITED_MARKS.
    pub marks: bool,
}

/// A group of a user, with its marks.
#[derive(Debug)]
pub struct Share {
    uid: u32,
    unlimited: Unlimited,
}

impl Share {
    /// For one group more. EMFILE.
    pub fn take(uid: u32, unlimited: Unlimited) -> Result<Share> {
        let mut used = USED.lock();
        let used = used.entry(uid).or_default();
        if used.groups >= MOST_GROUPS.load(Relaxed) {
            return Err(Errno::EMFILE);
        }
        used.groups += 1;
        Ok(Share { uid, unlimited })
    }

    /// For one mark more. ENOSPC; ENOMEM where only memory is the limit.
    pub fn mark(&self) -> Result {
        if self.unlimited.marks {
            return account::ask(PAGE_SIZE);
        }
        let mut used = USED.lock();
        let used = used.entry(self.uid).or_default();
        if used.marks >= most_marks() {
            return Err(Errno::ENOSPC);
        }
        used.marks += 1;
        Ok(())
    }

    /// So many marks are gone.
    pub fn give_back(&self, marks: usize) {
        if !self.unlimited.marks
            && let Some(used) = USED.lock().get_mut(&self.uid)
        {
            used.marks = used.marks.saturating_sub(marks);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut all = USED.lock();
        if let Some(used) = all.get_mut(&self.uid) {
            used.groups = used.groups.saturating_sub(1);
            if *used == Used::default() {
                all.remove(&self.uid);
            }
        }
    }
}
