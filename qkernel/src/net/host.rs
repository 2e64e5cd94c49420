//! Readiness of host objects: tokens lead from an event to the object that waits for it.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use crate::sync::{Mutex, mutex};
use crate::wait::PollMask;

/// Something that watches a host handle.
pub trait HostWatcher: Send + Sync {
    /// The handle became ready for `events`.
    fn on_ready(&self, events: PollMask);

    /// True if anybody may be notified by that: worth waking a sleeping sandbox. The host also
    /// notifies what is known already (that a socket can be written to comes along with
    /// everything), and what has been used up meanwhile.
    fn is_news(&self, events: PollMask) -> bool;

    /// The sandbox is about to sleep: has the host notify of what comes, if it does not yet.
    /// True if something lies there that it has not notified of.
    fn watch_asleep(&self) -> bool {
        false
    }
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

/// Has the host notify of everything that may wake a sleeping sandbox, also of sockets for which
/// nobody has waited yet. Whether something lies in one of those.
pub fn watch_all() -> bool {
    let all: Vec<Arc<dyn HostWatcher>> =
        WATCHERS.lock().by_token.values().filter_map(Weak::upgrade).collect();
    all.iter().filter(|watcher| watcher.watch_asleep()).count() > 0
}

/// Who is to be notified of an event of the platform.
pub fn watcher(token: u64) -> Option<Arc<dyn HostWatcher>> {
    WATCHERS.lock().by_token.get(&token).and_then(Weak::upgrade)
}
