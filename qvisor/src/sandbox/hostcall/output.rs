//! A text that somebody waits for in the standard output of the container.
//!
//! The output goes to the host as ever; what was written is looked at afterwards, where it lies in
//! guest memory, and only as long as somebody waits. The guest may change it meanwhile, and so be
//! misunderstood: that is between it and itself.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use qlib::host::NO_HANDLE;
use rustix::io::Errno;

use super::super::memory::GuestRange;
use crate::sys::ordered::{Mutex, place};

/// The longest text that is looked for, in bytes.
const MAX_TEXT: usize = 4096;
/// No handle, twice.
const NOTHING: u64 = pair(NO_HANDLE, NO_HANDLE);

const fn pair(first: u32, second: u32) -> u64 {
    (first as u64) << 32 | second as u64
}

/// What is looked for in the container's output.
#[derive(Debug)]
pub struct Output {
    /// The handles that its first process writes to: its standard output, and its terminal, which
    /// is its standard input's.
    streams: AtomicU64,
    /// The same while something is looked for in them.
    watched: AtomicU64,
    watch: Mutex<Option<Watch>, place::Output>,
}

#[derive(Debug)]
struct Watch {
    /// The connection that asked for it.
    key: u64,
    search: Search,
    found: bool,
    /// Whom to tell.
    waiter: Option<Arc<OwnedFd>>,
}

/// A text in a stream that comes in pieces: Knuth, Morris and Pratt's.
#[derive(Debug)]
struct Search {
    text: Vec<u8>,
    /// For each length of a beginning of the text, less one: how long the longest shorter beginning
    /// is that it ends with.
    shorter: Vec<u16>,
    /// How much of the text the stream ends with.
    matched: usize,
}

impl Default for Output {
    fn default() -> Self {
        let (streams, watched) = (AtomicU64::new(NOTHING), AtomicU64::new(NOTHING));
        Self { streams, watched, watch: Mutex::default() }
    }
}

impl Output {
    /// These are the standard streams of the container.
    pub fn note_streams(&self, stdio: [u32; 3]) {
        self.streams.store(pair(stdio[0], stdio[1]), Ordering::Relaxed);
    }

    /// Looks for a text for a connection, from now on.
    ///
    /// # Errors
    /// EINVAL for no text and a long one, EBUSY when something is looked for already.
    pub fn watch(&self, key: u64, text: &str) -> Result<(), Errno> {
        if text.is_empty() || text.len() > MAX_TEXT {
            return Err(Errno::INVAL);
        }
        let mut watch = self.watch.lock();
        if watch.is_some() {
            return Err(Errno::BUSY);
        }
        let search = Search::new(text.as_bytes());
        *watch = Some(Watch { key, search, found: false, waiter: None });
        let streams = self.streams.load(Ordering::Relaxed);
        self.watched.store(streams, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the text that is looked for has come. If not, `socket` is told when it does.
    ///
    /// # Errors
    /// EINVAL when the connection has nothing looked for.
    pub fn wait(&self, key: u64, socket: &Arc<OwnedFd>) -> Result<bool, Errno> {
        let mut watch = self.watch.lock();
        let watch = watch.as_mut().filter(|watch| watch.key == key).ok_or(Errno::INVAL)?;
        if !watch.found {
            watch.waiter = Some(socket.clone());
        }
        Ok(watch.found)
    }

    /// A connection has ended: nothing is looked for in its name.
    pub fn forget(&self, key: u64) {
        let mut watch = self.watch.lock();
        if watch.take_if(|watch| watch.key == key).is_some() {
            self.watched.store(NOTHING, Ordering::Relaxed);
        }
    }

    /// True if something is looked for in what is written to this handle.
    pub(super) fn is_watched(&self, handle: u32) -> bool {
        let watched = self.watched.load(Ordering::Relaxed);
        watched != NOTHING && has(watched, handle)
    }

    /// A handle is given up: the next one of its number is something else.
    pub(super) fn closed(&self, handle: u32) {
        let streams = self.streams.load(Ordering::Relaxed);
        if has(streams, handle) {
            self.streams.store(without(streams, handle), Ordering::Relaxed);
            let watched = self.watched.load(Ordering::Relaxed);
            self.watched.store(without(watched, handle), Ordering::Relaxed);
        }
    }

    /// Something was written: whom to tell that it is what was looked for.
    pub(super) fn written(&self, pieces: &[GuestRange<'_>], bytes: usize) -> Option<Arc<OwnedFd>> {
        let mut watch = self.watch.lock();
        let watch = watch.as_mut().filter(|watch| !watch.found)?;
        let mut left = bytes;
        for piece in pieces {
            let piece = piece.truncated(left);
            left -= piece.len();
            // It was there a moment ago, and can be gone only if it is a file that was cut off.
            let Ok(bytes) = piece.to_vec(piece.len()) else { continue };
            if watch.search.finds(&bytes) {
                watch.found = true;
                self.watched.store(NOTHING, Ordering::Relaxed);
                return watch.waiter.take();
            }
        }
        None
    }
}

fn has(pair: u64, handle: u32) -> bool {
    pair as u32 == handle || (pair >> 32) as u32 == handle
}

fn without(handles: u64, handle: u32) -> u64 {
    let keep = |one: u32| if one == handle { NO_HANDLE } else { one };
    pair(keep((handles >> 32) as u32), keep(handles as u32))
}

impl Search {
    fn new(text: &[u8]) -> Self {
        let mut shorter = vec![0u16; text.len()];
        let mut length = 0;
        for at in 1..text.len() {
            while length > 0 && text[at] != text[length] {
                length = usize::from(shorter[length - 1]);
            }
            length += usize::from(text[at] == text[length]);
            shorter[at] = length as u16;
        }
        Self { text: text.to_vec(), shorter, matched: 0 }
    }

    /// Goes on with a piece of the stream: true if the text has come.
    fn finds(&mut self, piece: &[u8]) -> bool {
        for byte in piece {
            while self.matched > 0 && *byte != self.text[self.matched] {
                self.matched = usize::from(self.shorter[self.matched - 1]);
            }
            self.matched += usize::from(*byte == self.text[self.matched]);
            if self.matched == self.text.len() {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finds(text: &str, pieces: &[&str]) -> bool {
        let mut search = Search::new(text.as_bytes());
        pieces.iter().any(|piece| search.finds(piece.as_bytes()))
    }

    #[test]
    fn a_text_is_found_however_it_is_cut() {
        let stream = "we are reareready now\n";
        for first in 0..stream.len() {
            for second in first..stream.len() {
                let pieces = [&stream[..first], &stream[first..second], &stream[second..]];
                for text in ["ready", "reready", "areready", "w", "we", "now\n", stream] {
                    assert!(finds(text, &pieces), "{text:?} in {pieces:?}");
                }
                for text in ["rready", "readyn", "now\n\n", "We", "aready "] {
                    assert!(!finds(text, &pieces), "{text:?} in {pieces:?}");
                }
            }
        }
    }

    #[test]
    fn what_repeats_itself_is_found() {
        assert!(finds("aabaaab", &["aabaabaaab"]));
        assert!(finds("abababc", &["ab", "abababab", "c"]));
        assert!(!finds("abababc", &["abab", "abab"]));
        assert!(finds(&"x".repeat(4096), &["x"; 4096]));
    }
}
