//! Who is told that a message has come to an empty queue (mq_notify(3)): one process at a time, and
//! once.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};

use linux_raw_sys::general::{SI_MESGQ, SIGEV_NONE, SIGEV_SIGNAL, SIGEV_THREAD};

use crate::task::pid_namespace::shown;
use crate::task::signal::{SigInfo, Signo, send_by};
use crate::task::{Process, Thread};

/// Told of the one thing that happens to a registration: a message (true), or its removal.
pub type Tell = Box<dyn Fn(bool) + Send + Sync>;

/// How a process is told.
pub enum How {
    /// Not at all: it only keeps others from being told (SIGEV_NONE).
    Nobody,
    /// By a signal, 0 for none, with a value (SIGEV_SIGNAL).
    Signal(Signo, u64),
    /// By the C library's own thread, which waits for it (SIGEV_THREAD).
    Thread(Tell),
}

/// A process that is to be told.
pub struct Registration {
    process: Weak<Process>,
    pid: u32,
    how: How,
}

impl Registration {
    /// Of `process`.
    pub fn new(process: &Arc<Process>, how: How) -> Self {
        Registration { process: Arc::downgrade(process), pid: process.pid, how }
    }

    /// The process, while it lives.
    fn process(&self) -> Option<Arc<Process>> {
        self.process.upgrade().filter(|process| !process.is_zombie())
    }

    /// True if it still counts: its process has not ended.
    pub fn is_valid(&self) -> bool {
        self.process().is_some()
    }

    /// True if it is that of process `pid`.
    pub fn is_of(&self, pid: u32) -> bool {
        self.pid == pid && self.is_valid()
    }

    /// A message from `sender` has come.
    pub fn message(self, sender: &Thread) {
        let Some(process) = self.process() else { return };
        match self.how {
            How::Nobody | How::Signal(0, _) => {}
            How::Signal(signo, value) => {
                // It may be about to end.
                let _ = send_by(sender, &process, None, |pid, uid| {
                    SigInfo::queue(signo, SI_MESGQ, pid, uid, value)
                });
            }
            How::Thread(tell) => tell(true),
        }
    }

    /// It is removed before there was a message.
    pub fn removed(self) {
        if let How::Thread(tell) = self.how {
            tell(false);
        }
    }

    /// What the queue's file tells of it: SIGEV_*, the signal and the process.
    pub fn described(&self) -> (u32, u32, u32) {
        let pid = shown(self.pid);
        match self.how {
            How::Nobody => (SIGEV_NONE, 0, pid),
            How::Signal(signo, _) => (SIGEV_SIGNAL, signo, pid),
            How::Thread(_) => (SIGEV_THREAD, 0, pid),
        }
    }
}
