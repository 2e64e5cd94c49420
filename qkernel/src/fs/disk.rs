//! Waiting for a disk that a file system lies on (fsync(2), syncfs(2), O_SYNC, reads of what is not
//! cached): for as long as that takes, without the kernel lock.

use alloc::sync::Arc;

use linux_raw_sys::general::{O_DSYNC, O_SYNC};

use crate::errno::{Errno, Result};
use crate::fs::OpenFile;
use crate::sync::Count;
use crate::wait::{PollMask, Sleeper, WaitQueue, block_until_killed, block_until_killed_or};

/// Something that a disk is at.
pub trait Pending: Send + Sync {
    /// What it came to, which is told once; EAGAIN while it is not over.
    fn outcome(&self) -> Result<Result>;
    /// What is notified of its end, with IN.
    fn queue(&self) -> &WaitQueue;
}

/// What is to be waited for; `None`: it is over.
pub type Begun = Option<Arc<dyn Pending>>;

/// Threads that wait.
static WAITING: Count = Count::none();

/// True if a thread waits for a disk: it looks blocked, and needs nobody outside to go on.
pub fn is_any_awaited() -> bool {
    WAITING.is_any()
}

/// Waits until it is over: what came of it. As on Linux no signal cuts that short but one that
/// kills (ERESTARTSYS).
pub async fn finished(thread: &dyn Sleeper, begun: Begun) -> Result {
    let Some(work) = begun else { return Ok(()) };
    let _waiting = WAITING.begin();
    let queues = [work.queue()];
    block_until_killed(thread, &queues, PollMask::IN, || work.outcome()).await?
}

/// The same, for at most until `deadline_ns` (CLOCK_MONOTONIC): ETIMEDOUT, and nobody is told of it
/// any more.
pub async fn finished_by(thread: &dyn Sleeper, begun: Begun, deadline_ns: u64) -> Result {
    let Some(work) = begun else { return Ok(()) };
    let _waiting = WAITING.begin();
    let queues = [work.queue()];
    block_until_killed_or(thread, &queues, PollMask::IN, deadline_ns, || work.outcome()).await?
}

/// True if what is written with these flags of open(2) is on the disk before the call ends.
pub fn is_synchronous(flags: u32) -> bool {
    flags & O_DSYNC != 0
}

/// Waits until the `bytes` that were just written to `file` are where `flags` (O_DSYNC, O_SYNC)
/// want them. The host does not know of these: it would write to the disk while its caller has the
/// kernel lock.
pub async fn settle(thread: &dyn Sleeper, file: &OpenFile, flags: u32, bytes: usize) -> Result {
    if bytes == 0 || !is_synchronous(flags) {
        return Ok(());
    }
    // O_SYNC has the bit of O_DSYNC, and one for the attributes.
    match file.ops.sync(file, flags & O_SYNC != O_SYNC) {
        // A pipe, a socket: there is no disk.
        Err(Errno::EINVAL) => Ok(()),
        begun => finished(thread, begun?).await,
    }
}
