//! Readiness of host objects: tokens lead from an event to the object that waits for it.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};

use crate::hibernate;
use crate::sync::{Mutex, mutex};
use crate::wait::PollMask;

/// Something that watches a host handle.
pub trait HostWatcher: Send + Sync {
    /// The handle became ready for `events`.
    fn on_ready(&self, events: PollMask);
}

struct Watchers {
    by_token: BTreeMap<u64, Weak<dyn HostWatcher>>,
    last_token: u64,
}

static WATCHERS: Mutex<Watchers> = mutex(Watchers { by_token: BTreeMap::new(), last_token: 0 });

/// Registers a watcher: the token to give to [`qlib::host::Op::Watch`].
pub fn add_watcher(watcher: Weak<dyn HostWatcher>) -> u64 {
    let mut watchers = WATCHERS.lock();
    watchers.last_token += 1;
    let token = watchers.last_token;
    watchers.by_token.insert(token, watcher);
    token
}

/// Forgets a token.
pub fn remove_watcher(token: u64) {
    WATCHERS.lock().by_token.remove(&token);
}

/// An event of the platform.
pub fn on_ready(token: u64, mask: u32) {
    hibernate::on_host_event();
    let watcher: Option<Arc<dyn HostWatcher>> = WATCHERS.lock().by_token.get(&token).and_then(Weak::upgrade);
    if let Some(watcher) = watcher {
        watcher.on_ready(PollMask::from_bits_truncate(mask));
    }
}
