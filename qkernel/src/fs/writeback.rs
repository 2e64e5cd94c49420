//! Waiting for what a file system writes to its disk (fsync(2), syncfs(2)): for as long as that
//! takes, without the kernel lock.

use alloc::sync::Arc;

use crate::errno::Result;
use crate::sync::Count;
use crate::wait::{PollMask, Sleeper, WaitQueue, block_until_killed};

/// Something that is being written.
pub trait Writeback: Send + Sync {
    /// What it came to, which is told once; EAGAIN while it is not over.
    fn outcome(&self) -> Result<Result>;
    /// What is notified of its end, with IN.
    fn queue(&self) -> &WaitQueue;
}

/// What is to be waited for; `None`: it is written.
pub type Begun = Option<Arc<dyn Writeback>>;

/// Threads that wait.
static WAITING: Count = Count::none();

/// True if a thread waits for something to be written: it looks blocked, and needs nobody outside
/// to go on.
pub fn is_any_awaited() -> bool {
    WAITING.is_any()
}

/// Waits until it is written: what came of it. As on Linux no signal cuts that short but one that
/// kills (ERESTARTSYS).
pub async fn written(thread: &dyn Sleeper, begun: Begun) -> Result {
    let Some(writeback) = begun else { return Ok(()) };
    let _waiting = WAITING.begin();
    let queues = [writeback.queue()];
    block_until_killed(thread, &queues, PollMask::IN, || writeback.outcome()).await?
}
