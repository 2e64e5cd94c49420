//! What a process has asked for that is done while it goes on (io_uring(7)): it ends with the
//! process, and with the program that asked for it.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use super::{Process, Thread};
use crate::errno::{Errno, Result};
use crate::wait::{PollMask, WaitQueue, block_until_killed};

/// What one process has asked of one object.
pub trait Errands: Send + Sync {
    /// Has all of it end as soon as it can.
    fn cancel(&self);
    /// True if something is under way.
    fn are_any_left(&self) -> bool;
    /// Notified with IN when something has ended.
    fn ended(&self) -> &WaitQueue;
}

/// All of a process.
pub type List = Vec<Weak<dyn Errands>>;

impl Process {
    /// From now on these end with it.
    pub fn add_errands(&self, new: &Arc<dyn Errands>) {
        let mut list = self.errands.lock();
        list.retain(|errands| errands.strong_count() > 0);
        list.push(Arc::downgrade(new));
    }

    /// Has all that it has asked for end as soon as it can: that.
    pub(super) fn cancel_errands(&self) -> Vec<Arc<dyn Errands>> {
        let list = core::mem::take(&mut *self.errands.lock());
        let all: Vec<Arc<dyn Errands>> = list.iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|errands| errands.cancel());
        all
    }
}

/// Has all that the thread's process has asked for end, and waits for that: none of it touches the
/// memory of the program that comes next. ERESTARTSYS if the thread is to end.
pub(super) async fn end(thread: &Arc<Thread>) -> Result {
    for errands in thread.process.cancel_errands() {
        let is_over = || if errands.are_any_left() { Err(Errno::EAGAIN) } else { Ok(()) };
        block_until_killed(thread, &[errands.ended()], PollMask::IN, is_over).await?;
    }
    Ok(())
}
