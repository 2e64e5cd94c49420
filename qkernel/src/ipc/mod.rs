//! Pipes, event counters, epoll and other means by which processes and threads talk.

pub mod aio;
mod busy_poll;
pub mod epoll;
pub mod eventfd;
pub mod fanotify;
pub mod futex;
pub mod mqueue;
pub mod pipe;
pub mod sigio;
pub mod signalfd;
pub mod sysv;
pub mod timerfd;
pub mod tty;
pub mod uring;
pub mod userfaultfd;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linux_raw_sys::general::{S_IFIFO, S_IFMT, S_IFSOCK};

use crate::abi::TimeSpec;
use crate::fs::attr::{Attributes, SetAttributes, device};
use crate::fs::proc::sys;
use crate::task::current;
use crate::time;

/// Nobody is in an IPC namespace any more.
pub fn namespace_ended(namespace: u64) {
    sysv::namespace_ended(namespace);
    mqueue::namespace_ended(namespace);
    sys::namespace_ended(namespace);
}

static LAST_INODE: AtomicU64 = AtomicU64::new(0);

/// What stat(2) reports of a pipe or socket that has no name: who made it, and when.
#[derive(Debug)]
pub struct AnonInode {
    inode: u64,
    born_ns: u64,
    uid: AtomicU32,
    gid: AtomicU32,
    /// Permission bits that chmod(2) has set, or [`NEVER_SET`].
    mode: AtomicU32,
}

/// More than any permission bits.
const NEVER_SET: u32 = u32::MAX;

impl AnonInode {
    /// A new one, of the thread that is served now.
    pub fn new() -> Self {
        let creds = current::get().map(|thread| thread.creds());
        let (uid, gid) = creds.map_or((0, 0), |creds| (creds.fsuid, creds.fsgid));
        AnonInode {
            inode: LAST_INODE.fetch_add(1, Ordering::Relaxed) + 1,
            born_ns: time::realtime_ns(),
            uid: uid.into(),
            gid: gid.into(),
            mode: NEVER_SET.into(),
        }
    }

    fn attributes(&self, mode: u32, minor: u32) -> Attributes {
        let born = TimeSpec::from_ns(self.born_ns);
        let mode = match self.mode.load(Ordering::Relaxed) {
            NEVER_SET => mode,
            set => mode & S_IFMT | set,
        };
        Attributes {
            mode,
            nlink: 1,
            ino: self.inode,
            uid: self.uid(),
            gid: self.gid.load(Ordering::Relaxed),
            block_size: 4096,
            dev: device(0, minor),
            atime: born,
            mtime: born,
            ctime: born,
            btime: born,
            ..Attributes::default()
        }
    }

    /// chmod(2) and chown(2). Its times stay.
    pub fn change(&self, change: &SetAttributes) {
        let SetAttributes { mode, uid, gid, .. } = *change;
        for (place, new) in [(&self.mode, mode), (&self.uid, uid), (&self.gid, gid)] {
            if let Some(new) = new {
                place.store(new, Ordering::Relaxed);
            }
        }
    }

    /// As a pipe.
    pub fn pipe(&self) -> Attributes {
        self.attributes(S_IFIFO | 0o600, 0xe)
    }

    /// As a socket, whose number is `inode`.
    pub fn socket(&self, inode: u64) -> Attributes {
        Attributes { ino: inode, ..self.attributes(S_IFSOCK | 0o777, 8) }
    }

    /// The number of a socket that the host does not know. It is none that the host counts to soon,
    /// and a positive number of 32 bits, as ss(8) shows them.
    pub fn own_socket(&self) -> u64 {
        const FIRST: u64 = 1 << 30;
        FIRST | self.inode & (FIRST - 1)
    }

    /// Whose it is.
    pub fn uid(&self) -> u32 {
        self.uid.load(Ordering::Relaxed)
    }
}

impl Default for AnonInode {
    fn default() -> Self {
        Self::new()
    }
}
