//! What the host writes to its disk for us, and takes its time for.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use qlib::host::{Op, SYNC_BEGUN};

use crate::errno::{Errno, Result};
use crate::fs::writeback::{Begun, Writeback};
use crate::host::Call;
use crate::net::host::{HostWatcher, add_watcher, remove_watcher};
use crate::wait::{PollMask, WaitQueue};

/// An operation of the host that has begun.
struct HostWriteback {
    token: u64,
    /// The host keeps the result.
    is_pending: AtomicBool,
    queue: WaitQueue,
}

/// Has the host begin `op` ([`Op::Sync`] or [`Op::SyncFs`]) with the object behind `handle`.
pub(super) fn begin(op: Op, handle: u32, data_only: bool) -> Result<Begun> {
    let writeback = Arc::new_cyclic(|this: &Weak<HostWriteback>| HostWriteback {
        token: add_watcher(this.clone()),
        is_pending: AtomicBool::new(false),
        queue: WaitQueue::new(),
    });
    let call = Call::on(op, handle).arg(0, writeback.token).arg(1, u64::from(data_only));
    if call.run()? != SYNC_BEGUN {
        return Ok(None);
    }
    writeback.is_pending.store(true, Relaxed);
    Ok(Some(writeback))
}

impl Writeback for HostWriteback {
    fn outcome(&self) -> Result<Result> {
        let (_, out) = Call::new(Op::SyncResult).arg(0, self.token).run_out()?;
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

impl HostWatcher for HostWriteback {
    fn on_ready(&self, events: PollMask) {
        self.queue.wake(events);
    }

    fn is_news(&self, _events: PollMask) -> bool {
        true
    }
}

impl Drop for HostWriteback {
    fn drop(&mut self) {
        remove_watcher(self.token);
        if self.is_pending.load(Relaxed) {
            Call::new(Op::SyncForget).arg(0, self.token).post();
        }
    }
}
