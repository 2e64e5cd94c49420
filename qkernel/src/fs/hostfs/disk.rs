//! What the host does with its disk or memory for us, and takes its time for.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use qlib::Gpa;
use qlib::host::{DISK_BEGUN, NO_HANDLE, Op};

use crate::errno::{Errno, Result};
use crate::fs::disk::{Begun, Pending};
use crate::host::Call;
use crate::net::host::{HostWatcher, add_watcher, remove_watcher};
use crate::wait::{PollMask, WaitQueue};

/// An operation of the host that has begun.
struct HostWork {
    token: u64,
    /// The host keeps the result.
    is_pending: AtomicBool,
    queue: WaitQueue,
}

/// Has the host begin `op` ([`Op::Sync`], [`Op::SyncFs`], [`Op::Fetch`]) with the object behind
/// `handle`; `args` are those after the token.
pub(super) fn begin(op: Op, handle: u32, args: &[u64]) -> Result<Begun> {
    let work = Arc::new_cyclic(|this: &Weak<HostWork>| HostWork {
        token: add_watcher(this.clone()),
        is_pending: AtomicBool::new(false),
        queue: WaitQueue::new(),
    });
    let call = Call::on(op, handle).arg(0, work.token);
    let call = args.iter().zip(1..).fold(call, |call, (arg, at)| call.arg(at, *arg));
    if call.run()? != DISK_BEGUN {
        return Ok(None);
    }
    work.is_pending.store(true, Relaxed);
    Ok(Some(work))
}

/// Has the host begin to put a huge page behind 2 MiB of RAM ([`Op::HugePage`]).
pub fn begin_huge_page(extent: Gpa) -> Result<Begun> {
    begin(Op::HugePage, NO_HANDLE, &[extent.0])
}

impl Pending for HostWork {
    fn outcome(&self) -> Result<Result> {
        let (_, out) = Call::new(Op::DiskResult).arg(0, self.token).run_out()?;
        self.is_pending.store(false, Relaxed);
        Ok(match out[0] {
            0 => Ok(()),
            errno => Err(Errno::from_ret(-(errno as i64))),
        })
    }

    fn queue(&self) -> &WaitQueue {
        &self.queue
    }
}

impl HostWatcher for HostWork {
    fn on_ready(&self, events: PollMask) {
        self.queue.wake(events);
    }

    fn is_news(&self, _events: PollMask) -> bool {
        true
    }

    fn is_input(&self) -> bool {
        false
    }
}

impl Drop for HostWork {
    fn drop(&mut self) {
        remove_watcher(self.token);
        if self.is_pending.load(Relaxed) {
            Call::new(Op::DiskForget).arg(0, self.token).post();
        }
    }
}
