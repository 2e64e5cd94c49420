//! Readiness of host objects: tokens lead from an event to the object that waits for it.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use qlib::host::Op;

use crate::account;
use crate::errno::Result;
use crate::host::Call;
use crate::sync::{Mutex, mutex};
use crate::task::pause;
use crate::wait::PollMask;
use crate::{arch, input};

/// Something that watches a host handle.
pub trait HostWatcher: Send + Sync {
    /// The handle became ready for `events`.
    fn on_ready(&self, events: PollMask);

    /// True if anybody may be notified by that: worth waking a sleeping sandbox. The host also
    /// notifies what is known already (that a socket can be written to comes along with
    /// everything), and what has been used up meanwhile.
    fn is_news(&self, events: PollMask) -> bool;

    /// True if such news are of somebody outside, who has asked for something. (The end of what the
    /// host's disk did for a thread is not.)
    fn is_input(&self) -> bool {
        true
    }

    /// The sandbox is about to sleep: has the host notify of what comes, if it does not yet.
    fn watch_asleep(&self) {}

    /// Something has come while the sandbox sleeps: true if the kernel has dealt with it, and need
    /// not wake it.
    fn answers_asleep(&self) -> bool {
        false
    }

    /// What lies there that programs have yet to take. May ask the host.
    fn untaken(&self) -> Option<Untaken> {
        None
    }

    /// Since when somebody there waits for an answer, or at `now_ns` for more of it, both
    /// CLOCK_MONOTONIC.
    fn asked_ns(&self, _now_ns: u64) -> Option<u64> {
        None
    }

    /// What it is, for people: "10.0.0.1:80".
    fn describe(&self) -> String {
        String::new()
    }

    /// Of a socket the host's inode number, and the user id of whoever made it here.
    fn owner(&self) -> Option<(u64, u32)> {
        None
    }
}

/// What came from outside and lies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untaken {
    /// Data that nobody has received.
    Data,
    /// A connection that nobody has accepted.
    Connection,
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
/// nobody has waited yet.
pub fn watch_all() {
    all().iter().for_each(|watcher| watcher.watch_asleep());
}

/// What has come from outside and not been served.
#[derive(Debug, Default)]
pub struct Unserved {
    /// Something that programs have yet to take, and [of whom](HostWatcher::describe). Then nothing
    /// else was looked for.
    pub untaken: Option<(Untaken, String)>,
    /// Since when the last who has asked waits for an answer, or for more of it (CLOCK_MONOTONIC),
    /// and who that is.
    pub asking: Option<(u64, String)>,
}

/// What has not been served at `now_ns` of CLOCK_MONOTONIC. Asks the host where data may lie.
pub fn find_unserved(now_ns: u64) -> Unserved {
    let (mut last, all) = (None, all());
    for watcher in &all {
        if let Some(what) = watcher.untaken() {
            return Unserved { untaken: Some((what, watcher.describe())), asking: None };
        }
        if let Some(asked_ns) = watcher.asked_ns(now_ns)
            && last.is_none_or(|(before_ns, _)| asked_ns >= before_ns)
        {
            last = Some((asked_ns, watcher));
        }
    }
    let asking = last.map(|(asked_ns, watcher)| (asked_ns, watcher.describe()));
    Unserved { untaken: None, asking }
}

/// True if somebody waits for an answer at `now_ns`, or for more of it.
pub fn is_any_asking(now_ns: u64) -> bool {
    all().iter().any(|watcher| watcher.asked_ns(now_ns).is_some())
}

/// The owners of the sockets that are the host's, by its inode numbers. ENOMEM.
pub fn owners() -> Result<BTreeMap<u64, u32>> {
    /// Of an entry, and of one in the list of all.
    const EACH_BYTES: u64 = 64;
    account::ask(WATCHERS.lock().by_token.len() as u64 * EACH_BYTES)?;
    Ok(all().iter().filter_map(|watcher| watcher.owner()).collect())
}

fn all() -> Vec<Arc<dyn HostWatcher>> {
    WATCHERS.lock().by_token.values().filter_map(Weak::upgrade).collect()
}

/// Notifies watchers of what has become ready and has yet to be told of, so that whoever asks now
/// knows of all that was ready before. True if there was something.
///
/// On `kvm` it would be an exit of the virtual machine each time: there events alone tell.
pub fn look() -> bool {
    // While user code is stopped what comes may have to wake the sandbox: that is for who
    // dispatches events.
    if arch::is_kvm() || pause::is_paused() || WATCHERS.lock().by_token.is_empty() {
        return false;
    }
    take_ready(|watcher, events| {
        if watcher.is_news(events) && watcher.is_input() {
            input::note();
        }
        watcher.on_ready(events);
    })
}

/// Something was sent: by the loopback device it may be there already.
static SENT: AtomicBool = AtomicBool::new(false);

/// Data was given to the host to send.
pub fn note_sent() {
    SENT.store(true, Relaxed);
}

/// [Looks](look) if something was sent since it was asked last: who waits for it in this sandbox is
/// served by the thread that serves who has sent it, and not when the event loop has woken up. True
/// if something has come.
pub fn look_at_sent() -> bool {
    SENT.swap(false, Relaxed) && look()
}

/// Takes what has become ready from the host, or much of it. True if there was something.
pub fn take_ready(mut each: impl FnMut(&dyn HostWatcher, PollMask)) -> bool {
    /// Each time, and times.
    const MOST: usize = 32;
    const TIMES: usize = 8;
    let mut any = false;
    for _ in 0..TIMES {
        let count = take_some(MOST, &mut each);
        any |= count > 0;
        if count < MOST {
            break;
        }
    }
    any
}

fn take_some(most: usize, each: &mut dyn FnMut(&dyn HostWatcher, PollMask)) -> usize {
    const PAIR: usize = 16;
    // The host writes to guest memory, which a stack is not everywhere.
    let mut pairs = alloc::vec![0; most * PAIR];
    let count = Call::new(Op::TakeReady).bytes_out(&mut pairs).run().unwrap_or(0) as usize;
    for pair in pairs.chunks_exact(PAIR).take(count) {
        let word = |at: usize| {
            let bytes = pair.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            u64::from_ne_bytes(bytes.unwrap_or_default())
        };
        if let Some(watcher) = watcher(word(0)) {
            each(&*watcher, PollMask::from_bits_truncate(word(8) as u32));
        }
    }
    count
}

/// Who is to be notified of an event of the platform.
pub fn watcher(token: u64) -> Option<Arc<dyn HostWatcher>> {
    WATCHERS.lock().by_token.get(&token).and_then(Weak::upgrade)
}
