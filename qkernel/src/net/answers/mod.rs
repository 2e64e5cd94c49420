//! Probes that are answered while the sandbox sleeps, without waking it, where it is told to.
//!
//! The kernel itself runs while it sleeps. It accepts connections of [probes](super::probes) then,
//! and deals with two kinds: those that end without having said anything, and those that ask again
//! what the program has answered while it was awake, byte for byte. Whatever is sent is only looked
//! at (MSG_PEEK) until that is certain. Everything else wakes the sandbox, and its program accepts
//! the connection from here, with all that came on it: what was asked is answered.

mod http;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use linux_raw_sys::net::{MSG_PEEK, SHUT_WR, SO_LINGER, SOL_SOCKET};
use qlib::control::AnswerSpec;
use qlib::host::Segment;

use self::http::{Answer, MAX_ANSWER, MAX_REQUEST, Request};
use super::{HostSocket, host, probes};
use crate::arch;
use crate::errno::Errno;
use crate::sync::{Mutex, mutex};
use crate::time;

/// Connections that have yet to say what they want; one more wakes.
const MOST_HELD: usize = 8;
/// For how long they may: whoever waits for the program to speak first is served then.
const HOLD_NS: u64 = 1_000_000_000;
/// Answers that are known, and connections of probes that are followed.
const MOST_KNOWN: usize = 4;
const MOST_LEARNING: usize = 8;

/// A connection that was accepted asleep.
struct Held {
    /// The token of the listening socket.
    listener: u64,
    socket: Arc<HostSocket>,
    address: Vec<u8>,
    /// It wakes then, CLOCK_MONOTONIC.
    until_ns: u64,
}

/// A request and its answer, on connections to one listening socket.
struct Known {
    listener: u64,
    request: Vec<u8>,
    answer: Vec<u8>,
}

/// The same while it is under way, on the connection `token`.
struct Learning {
    token: u64,
    talk: Known,
}

/// Anything is answered at all.
static ON: AtomicBool = AtomicBool::new(false);
static SPEC: Mutex<AnswerSpec> = mutex(AnswerSpec { tcp: false, paths: Vec::new() });
static HELD: Mutex<Vec<Held>> = mutex(Vec::new());
/// Those that the program has yet to accept.
static WAITING: Mutex<VecDeque<Held>> = mutex(VecDeque::new());
static KNOWN: Mutex<Vec<Known>> = mutex(Vec::new());
static LEARNING: Mutex<Vec<Learning>> = mutex(Vec::new());
/// Connections of probes that cannot be followed any more, and their listening sockets: what is
/// said there may be worse than what is known, so nothing is known of these while they are open.
static UNFOLLOWED: Mutex<BTreeMap<u64, u64>> = mutex(BTreeMap::new());
/// How many were answered.
static ANSWERED: AtomicU64 = AtomicU64::new(0);

/// These are answered from now on.
pub fn are(spec: &AnswerSpec) {
    ON.store(spec.tcp || !spec.paths.is_empty(), Relaxed);
    *SPEC.lock() = spec.clone();
}

/// True if any are.
pub fn are_on() -> bool {
    ON.load(Relaxed)
}

/// How many were answered asleep.
pub fn count() -> u64 {
    ANSWERED.load(Relaxed)
}

// ---- asleep ----

/// What is to become of a connection.
enum Verdict {
    /// It may be a probe.
    Hold,
    /// It has been answered.
    Done,
    /// It is for the program.
    Wake,
}

/// Connections have come to a listening socket while the sandbox sleeps. False: it must wake.
pub(super) fn on_connection(listener: &HostSocket) -> bool {
    loop {
        let (socket, address) = match listener.accept_now() {
            Ok(accepted) => accepted,
            Err(Errno::EAGAIN) => break,
            // The program gets to see it, if it is still there.
            Err(_) => return false,
        };
        let is_probe = probes::is_one(&address);
        let is_watched = socket.begin_to_watch().is_ok();
        let (listener, until_ns) = (listener.token(), time::deadline_after(HOLD_NS));
        let verdict = match is_probe && is_watched {
            true => look(listener, &socket),
            false => Verdict::Wake,
        };
        if !matches!(verdict, Verdict::Done) {
            HELD.lock().push(Held { listener, socket, address, until_ns });
        }
        if matches!(verdict, Verdict::Wake) || HELD.lock().len() > MOST_HELD {
            return false;
        }
    }
    arm();
    true
}

/// Something has come on a connection while the sandbox sleeps. False: it must wake.
pub(super) fn on_data(token: u64) -> bool {
    let find = || HELD.lock().iter().position(|held| held.socket.token() == token);
    let Some(at) = find() else { return false };
    let held = HELD.lock().get(at).map(|held| (held.listener, held.socket.clone()));
    let Some((listener, socket)) = held else { return false };
    match look(listener, &socket) {
        Verdict::Hold => true,
        Verdict::Wake => false,
        Verdict::Done => {
            let held = HELD.lock().swap_remove(at);
            drop(held);
            arm();
            true
        }
    }
}

/// True if one has been held for too long.
pub fn is_overdue() -> bool {
    let next = HELD.lock().iter().map(|held| held.until_ns).min();
    next.is_some_and(|until_ns| until_ns <= time::monotonic_ns())
}

fn arm() {
    let next = HELD.lock().iter().map(|held| held.until_ns).min();
    time::end_rest_at(next.unwrap_or(u64::MAX));
}

/// The sandbox is awake: what is held is for the program.
pub fn hand_over() {
    if !are_on() || HELD.lock().is_empty() {
        return;
    }
    let held = core::mem::take(&mut *HELD.lock());
    time::end_rest_at(u64::MAX);
    let mut listeners: Vec<u64> = held.iter().map(|held| held.listener).collect();
    listeners.dedup();
    WAITING.lock().extend(held);
    for token in listeners {
        if let Some(listener) = host::watcher(token) {
            listener.on_ready(crate::wait::PollMask::IN);
        }
    }
}

/// A connection to this listening socket that was accepted before: itself, and its peer's address.
pub(super) fn accepted(listener: u64) -> Option<(Arc<HostSocket>, Vec<u8>)> {
    if !are_on() {
        return None;
    }
    let mut waiting = WAITING.lock();
    let at = waiting.iter().position(|held| held.listener == listener)?;
    let held = waiting.remove(at)?;
    Some((held.socket, held.address))
}

/// True if there is one.
pub(super) fn is_waiting(listener: u64) -> bool {
    are_on() && WAITING.lock().iter().any(|held| held.listener == listener)
}

/// Looks at what a probe says, and answers it if that can be done here.
fn look(listener: u64, socket: &HostSocket) -> Verdict {
    let spec = SPEC.lock().clone();
    // One byte more: then it is too long.
    let mut bytes = alloc::vec![0; MAX_REQUEST + 1];
    let count = match socket.receive_now(&mut bytes, MSG_PEEK) {
        Err(Errno::EAGAIN) => return Verdict::Hold,
        // It broke the connection off, as some load balancers do.
        Err(Errno::ECONNRESET) | Ok(0) if spec.tcp => {
            ANSWERED.fetch_add(1, Relaxed);
            return Verdict::Done;
        }
        Err(_) | Ok(0) => return Verdict::Wake,
        Ok(count) => count,
    };
    let asked = bytes.get(..count).unwrap_or_default();
    match http::request(asked, &spec.paths) {
        Request::Begins => Verdict::Hold,
        Request::Other => Verdict::Wake,
        Request::Whole => answer(listener, socket, asked),
    }
}

/// Says again what the program said, if it was asked the same.
fn answer(listener: u64, socket: &HostSocket, asked: &[u8]) -> Verdict {
    let known = {
        let known = KNOWN.lock();
        let known = known.iter().find(|one| one.listener == listener && one.request == asked);
        known.map(|one| one.answer.clone())
    };
    let Some(answer) = known else { return Verdict::Wake };
    // There is room for all of it on a new connection. What is not taken the program may say.
    if !matches!(socket.send_now(&answer), Ok(1..)) {
        return Verdict::Wake;
    }
    // What was looked at only would have the host reset the connection at its end.
    let mut taken = alloc::vec![0; asked.len()];
    let _ = socket.receive_now(&mut taken, 0);
    let _ = socket.shutdown(SHUT_WR);
    ANSWERED.fetch_add(1, Relaxed);
    Verdict::Done
}

// ---- awake ----

/// A probe has connected to a listening socket: what the program answers there may be of use.
pub(super) fn learn_from(listener: u64, connection: u64) {
    if !are_on() || SPEC.lock().paths.is_empty() {
        return;
    }
    let talk = Known { listener, request: Vec::new(), answer: Vec::new() };
    let one = Learning { token: connection, talk };
    let mut learning = LEARNING.lock();
    if learning.len() < MOST_LEARNING {
        return learning.push(one);
    }
    drop(learning);
    lose(&one);
}

/// A connection is not followed any more.
fn lose(one: &Learning) {
    let listener = one.talk.listener;
    UNFOLLOWED.lock().insert(one.token, listener);
    KNOWN.lock().retain(|known| known.listener != listener);
}

/// True if what is said on a connection is listened to.
pub(super) fn is_learning(token: u64) -> bool {
    are_on() && LEARNING.lock().iter().any(|one| one.token == token)
}

/// A socket is gone. If it listened, nobody accepts any more what came to it: those are reset, as
/// what is in a queue of the host's is.
pub(super) fn forget(token: u64) {
    if !are_on() {
        return;
    }
    LEARNING.lock().retain(|one| one.token != token);
    UNFOLLOWED.lock().remove(&token);
    KNOWN.lock().retain(|one| one.listener != token);
    let is_its = |held: &mut Held| held.listener == token;
    let held: Vec<Held> = HELD.lock().extract_if(.., is_its).collect();
    let mut waiting = WAITING.lock();
    let (gone, kept) = waiting.drain(..).partition::<VecDeque<Held>, _>(|h| h.listener == token);
    *waiting = kept;
    drop(waiting);
    for one in held.iter().chain(&gone) {
        // On for no time at all (socket(7)): its end is a reset. What cannot be reset is closed.
        let _ = one.socket.set_option(SOL_SOCKET, SO_LINGER, &[1, 0, 0, 0, 0, 0, 0, 0]);
    }
    // Each of them comes here again.
    drop((held, gone));
}

/// The program has received this.
pub(super) fn on_received(token: u64, data: &[Segment], count: usize) {
    let paths: Vec<String> = SPEC.lock().paths.clone();
    with(token, |talk| {
        // More after a whole request is another one, whose answer would be taken for the first's.
        if !talk.answer.is_empty() || !append(&mut talk.request, data, count, MAX_REQUEST) {
            return false;
        }
        match http::request(&talk.request, &paths) {
            Request::Begins => true,
            Request::Other => false,
            Request::Whole => {
                // What it said before counts no more.
                let is_same =
                    |one: &Known| one.listener == talk.listener && one.request == talk.request;
                KNOWN.lock().retain(|one| !is_same(one));
                true
            }
        }
    });
}

/// The program has sent this.
pub(super) fn on_sent(token: u64, data: &[Segment], count: usize) {
    let paths: Vec<String> = SPEC.lock().paths.clone();
    with(token, |talk| {
        let is_asked = http::request(&talk.request, &paths) == Request::Whole;
        if !is_asked || !append(&mut talk.answer, data, count, MAX_ANSWER) {
            return false;
        }
        match http::answer(&talk.answer) {
            Answer::Begins => true,
            Answer::Other => false,
            Answer::Whole(again) => {
                let request = core::mem::take(&mut talk.request);
                talk.answer = Vec::new();
                if UNFOLLOWED.lock().values().all(|listener| *listener != talk.listener) {
                    let mut known = KNOWN.lock();
                    if known.len() >= MOST_KNOWN {
                        known.remove(0);
                    }
                    known.push(Known { listener: talk.listener, request, answer: again });
                }
                // The next request may come on it.
                true
            }
        }
    });
}

/// Goes on with what is learnt on a connection, as long as `next` says so.
fn with(token: u64, next: impl FnOnce(&mut Known) -> bool) {
    let mut learning = LEARNING.lock();
    let Some(at) = learning.iter().position(|one| one.token == token) else { return };
    let mut one = learning.swap_remove(at);
    drop(learning);
    if next(&mut one.talk) {
        LEARNING.lock().push(one);
    } else {
        lose(&one);
    }
}

/// Adds the first `count` bytes of user memory; false if that is more than `most` in all, or cannot
/// be read.
fn append(to: &mut Vec<u8>, data: &[Segment], count: usize, most: usize) -> bool {
    if to.len().saturating_add(count) > most {
        return false;
    }
    let mut left = count;
    for segment in data {
        let begin = to.len();
        let len = left.min(segment.len as usize);
        to.resize(begin + len, 0);
        if arch::copy_from_gpa(&mut to[begin..], segment.gpa).is_err() {
            return false;
        }
        left -= len;
    }
    left == 0
}
