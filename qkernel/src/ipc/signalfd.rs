//! signalfd(2): the pending signals of whoever reads.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{SI_TIMER, SIGBUS, SIGCHLD, SIGFPE, SIGILL, SIGIO, SIGSEGV, SIGTRAP};
use zerocopy::IntoBytes;

use crate::abi::abi_struct;
use crate::errno::{Errno, Result};
use crate::fs::{FileOps, OpenFile};
use crate::io::IoBuffer;
use crate::sync::Mutex;
use crate::task::signal::{self, SigInfo};
use crate::task::{Process, SigSet, Thread, current};
use crate::wait::{Observer, PollMask, WaitQueue};

abi_struct! {
    /// struct signalfd_siginfo.
    pub struct SignalFdInfo {
        pub signo: u32, pub errno: i32, pub code: i32, pub pid: u32, pub uid: u32, pub fd: i32,
        pub tid: u32, pub band: u32, pub overrun: u32, pub trapno: u32, pub status: i32,
        pub int: i32, pub ptr: u64, pub utime: u64, pub stime: u64, pub addr: u64,
        pub pad: [u64; 6],
    }
}

impl SignalFdInfo {
    /// What a signal looks like to a reader. Which fields count depends on where it comes from.
    pub fn of(info: &SigInfo) -> Self {
        let signo = info.signal();
        let out =
            SignalFdInfo { signo, errno: info.errno, code: info.code, ..SignalFdInfo::default() };
        let (ptr, int) = (info.value(), info.value() as i32);
        match signo {
            _ if info.code == SI_TIMER => {
                let (tid, overrun) = info.timer_fields();
                SignalFdInfo { tid, overrun, ptr, int, ..out }
            }
            SIGCHLD if info.code > 0 => {
                let (utime, stime) = info.times();
                SignalFdInfo {
                    pid: info.pid(),
                    uid: info.uid(),
                    status: info.status(),
                    utime,
                    stime,
                    ..out
                }
            }
            SIGSEGV | SIGBUS | SIGILL | SIGFPE | SIGTRAP if info.code > 0 => {
                SignalFdInfo { addr: info.addr(), ..out }
            }
            SIGIO if info.code > 0 => SignalFdInfo { band: info.addr() as u32, fd: int, ..out },
            _ => SignalFdInfo { pid: info.pid(), uid: info.uid(), ptr, int, ..out },
        }
    }
}

/// A signalfd.
pub struct SignalFd {
    mask: Mutex<SigSet>,
    queue: WaitQueue,
    /// The processes whose signals this one hears of: those that have used it, by pid, and the
    /// registration there.
    processes: Mutex<BTreeMap<u32, (Weak<Process>, u64)>>,
    me: Weak<SignalFd>,
}

/// Passes on that a signal arrived.
struct Forward(Weak<SignalFd>);

impl Observer for Forward {
    fn notify(&self, _events: PollMask) {
        if let Some(signalfd) = self.0.upgrade() {
            signalfd.queue.wake(PollMask::READ);
        }
    }
}

impl SignalFd {
    /// One for the signals of `mask`, opened by a thread of `process`.
    pub fn new(mask: SigSet, process: &Arc<Process>) -> Arc<Self> {
        let signalfd = Arc::new_cyclic(|me| SignalFd {
            mask: Mutex::new(mask),
            queue: WaitQueue::new(),
            processes: Mutex::default(),
            me: me.clone(),
        });
        signalfd.attach(process);
        signalfd
    }

    /// Asks for other signals.
    pub fn set_mask(&self, mask: SigSet) {
        *self.mask.lock() = mask;
        self.queue.wake(PollMask::READ);
    }

    /// The signals asked for.
    pub fn mask(&self) -> SigSet {
        *self.mask.lock()
    }

    /// Hears of the signals of `process` from now on.
    fn attach(&self, process: &Arc<Process>) {
        let known = self
            .processes
            .lock()
            .get(&process.pid)
            .is_some_and(|(known, _)| core::ptr::eq(known.as_ptr(), Arc::as_ptr(process)));
        if !known {
            let id =
                process.signal_events.register(PollMask::all(), Arc::new(Forward(self.me.clone())));
            self.processes.lock().insert(process.pid, (Arc::downgrade(process), id));
        }
    }

    fn reader(&self) -> Option<Arc<Thread>> {
        let thread = current::get()?;
        self.attach(&thread.process);
        Some(thread)
    }
}

impl FileOps for SignalFd {
    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        const BYTES: usize = size_of::<SignalFdInfo>();
        let thread = self.reader().ok_or(Errno::EAGAIN)?;
        if buffer.remaining() < BYTES {
            return Err(Errno::EINVAL);
        }
        let mut total = 0;
        while buffer.remaining() >= BYTES {
            let Some(info) = signal::take_pending(&thread, self.mask()) else { break };
            match buffer.put(SignalFdInfo::of(&info).as_bytes()) {
                Ok(copied) => total += copied,
                // As on Linux, the signal that could not be stored is lost.
                Err(error) if total == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if total == 0 { Err(Errno::EAGAIN) } else { Ok(total) }
    }

    fn poll(&self, _file: &OpenFile) -> PollMask {
        match self.reader() {
            Some(thread) if !signal::pending(&thread).and(self.mask()).is_empty() => PollMask::READ,
            _ => PollMask::empty(),
        }
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.queue)
    }

    fn release(&self, _file: &OpenFile) {
        let processes = core::mem::take(&mut *self.processes.lock());
        for (process, id) in processes.into_values() {
            if let Some(process) = process.upgrade() {
                process.signal_events.unregister(id);
            }
        }
    }

    fn label(&self, _file: &OpenFile) -> Vec<u8> {
        b"anon_inode:[signalfd]".to_vec()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_that_count_are_told() {
        assert_eq!(size_of::<SignalFdInfo>(), 128);
        let user = SignalFdInfo::of(&SigInfo::user(10, 7, 8));
        assert_eq!((user.signo, user.pid, user.uid), (10, 7, 8));
        let timer = SignalFdInfo::of(&SigInfo::timer(34, 3, 5, 99));
        assert_eq!((timer.tid, timer.overrun, timer.ptr, timer.pid), (3, 5, 99, 0));
        let child = SignalFdInfo::of(&SigInfo::child(SIGCHLD, 1, 4, 5, 6, 7, 8));
        assert_eq!((child.pid, child.uid, child.status, child.utime, child.stime), (4, 5, 6, 7, 8));
        let fault = SignalFdInfo::of(&SigInfo::fault(SIGSEGV, 1, 0x1000));
        assert_eq!((fault.addr, fault.pid), (0x1000, 0));
    }
}
