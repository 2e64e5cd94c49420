//! Waiting for what a file system writes to its disk (fsync(2), syncfs(2)): for as long as that
//! takes, without the kernel lock.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::errno::Result;
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

/// How many threads wait.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// True if a thread waits for something to be written: it looks blocked, and needs nobody outside
/// to go on.
pub fn is_any_awaited() -> bool {
    WAITING.load(Relaxed) > 0
}

/// A thread waits, as long as this lives.
struct Waiting;

impl Waiting {
    fn begin() -> Waiting {
        WAITING.fetch_add(1, Relaxed);
        Waiting
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Relaxed);
    }
}

/// Waits until it is written: what came of it. As on Linux no signal cuts that short but one that
/// kills (ERESTARTSYS).
pub async fn written(thread: &dyn Sleeper, begun: Begun) -> Result {
    let Some(writeback) = begun else { return Ok(()) };
    let _waiting = Waiting::begin();
    let queues = [writeback.queue()];
    block_until_killed(thread, &queues, PollMask::IN, || writeback.outcome()).await?
}
