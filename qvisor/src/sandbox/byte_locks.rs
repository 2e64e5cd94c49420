//! Record locks (of open file descriptions) on single bytes of a file that the sandboxes of a state
//! directory share, none of which are ever written: what one sandbox can tell the others without a
//! daemon. Whoever dies frees what it holds.

use std::os::fd::{AsFd, OwnedFd};

use libc::{c_int, c_short};
use nix::fcntl::{FcntlArg, fcntl};
use rustix::time::ClockId;

/// The file, open for writing, as nobody else has it open.
#[derive(Debug)]
pub struct ByteLocks(OwnedFd);

impl ByteLocks {
    /// Locks of `file`, which is open for writing and shared with nobody.
    pub fn new(file: OwnedFd) -> ByteLocks {
        ByteLocks(file)
    }

    /// Takes a byte. False if somebody else holds it, or locks do not work.
    pub fn lock(&self, at: i64) -> bool {
        fcntl(self.0.as_fd(), FcntlArg::F_OFD_SETLK(&record(libc::F_WRLCK, at, 1))).is_ok()
    }

    /// Gives a byte back.
    pub fn free(&self, at: i64) {
        // It can only fail if locks do not work at all, and then there is none.
        fcntl(self.0.as_fd(), FcntlArg::F_OFD_SETLK(&record(libc::F_UNLCK, at, 1))).ok();
    }

    /// A byte that somebody else holds of the `len` from `start` on (0: of all).
    pub fn held(&self, start: i64, len: i64) -> Option<i64> {
        let mut record = record(libc::F_WRLCK, start, len);
        fcntl(self.0.as_fd(), FcntlArg::F_OFD_GETLK(&mut record)).ok()?;
        (record.l_type != libc::F_UNLCK as c_short).then_some(record.l_start)
    }

    /// How many bytes others hold from `start` on and before `end`; at most `most` are counted.
    pub fn count(&self, start: i64, end: i64, most: u64) -> u64 {
        if most == 0 || start >= end {
            return 0;
        }
        // The host tells of any of them.
        let Some(at) = self.held(start, end - start) else { return 0 };
        let before = 1 + self.count(start, at, most - 1);
        before + self.count(at + 1, end, most - before)
    }
}

fn record(kind: c_int, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as c_short,
        l_whence: libc::SEEK_SET as c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// CLOCK_REALTIME in microseconds: the clock that all sandboxes share, as some have another
/// CLOCK_MONOTONIC (time_namespaces(7)). That it may be set changes an order, and nothing else.
pub fn now_us() -> i64 {
    let now = rustix::time::clock_gettime(ClockId::Realtime);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}
