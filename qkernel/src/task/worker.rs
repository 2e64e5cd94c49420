//! Stand-ins for a thread, each of which serves one request of its that may take longer than the
//! call by which it was made (io_uring_enter(2)).
//!
//! A worker has the process, the descriptors, the root and working directory and the credentials
//! that its thread had then. It is in no list: no signal comes to it, and it never is in user mode.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::{SigSet, Thread, ThreadAttrs, filters, tracee};
use crate::creds::Creds;
use crate::fs::FdTable;
use crate::sync::Mutex;

impl Thread {
    /// One for `thread`, with these credentials.
    pub fn worker(thread: &Arc<Thread>, creds: Arc<Creds>) -> Arc<Thread> {
        let worker = Arc::new(Thread {
            tid: AtomicU32::new(thread.tid()),
            process: thread.process.clone(),
            user: thread.user.clone(),
            wakeup: Arc::default(),
            files: Mutex::new(thread.files()),
            fs: Mutex::new(Arc::new(Mutex::new(thread.fs()))),
            namespaces: Mutex::new(thread.namespaces()),
            creds: Mutex::new(creds),
            signals: Mutex::default(),
            attrs: Mutex::new(ThreadAttrs::default()),
            dying: AtomicBool::new(false),
            is_worker: true,
            seccomp: filters::State::default(),
            dispatch: Default::default(),
            exit_status: Mutex::default(),
            syscalls: AtomicU64::new(0),
            lost: Mutex::default(),
            missed: Mutex::default(),
            newborn: Mutex::default(),
            trace: tracee::Trace::default(),
            cpu_time: Default::default(),
            minor_faults: AtomicU64::new(0),
            major_faults: AtomicU64::new(0),
            voluntary_switches: AtomicU64::new(0),
            other_switches: AtomicU64::new(0),
        });
        worker.signals.lock().mask = SigSet(u64::MAX);
        worker
    }

    /// Has a worker end as soon as it can, whatever it waits for. It knows no descriptors any more.
    pub fn stop_working(&self) {
        if !self.dying.swap(true, Ordering::Relaxed) {
            self.set_files(FdTable::new());
            self.wakeup.set();
        }
    }
}
