//! Process file descriptors (pidfd_open(2)).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use super::pid_namespace::shown;
use super::{Process, Thread, table};
use crate::errno::{Errno, Result};
use crate::fs::{Fd, FileOps, OpenFile};
use crate::wait::{PollMask, WaitQueue};

/// A descriptor that names a process: readable once it ended.
pub struct PidFd {
    /// The process.
    pub process: Arc<Process>,
}

impl PidFd {
    /// For `process`.
    pub fn make(process: Arc<Process>) -> Arc<dyn FileOps> {
        Arc::new(PidFd { process })
    }
}

impl FileOps for PidFd {
    fn poll(&self, _file: &OpenFile) -> PollMask {
        if self.process.is_zombie() { PollMask::READ } else { PollMask::empty() }
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.process.exit_events)
    }

    fn details(&self, _file: &OpenFile) -> Vec<u8> {
        let pid = self.process.pid;
        // Once it has been waited for, the number may be another's.
        let is_there = table::process(pid).is_some_and(|other| Arc::ptr_eq(&other, &self.process));
        let number = if is_there { i64::from(shown(pid)) } else { -1 };
        alloc::format!("Pid:\t{number}\n").into_bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The process that descriptor `fd` names. EBADF when it is none of this kind.
pub fn process_of(thread: &Thread, fd: Fd) -> Result<Arc<Process>> {
    let file = thread.files().get(fd)?;
    file.downcast::<PidFd>().map(|p| p.process.clone()).ok_or(Errno::EBADF)
}
