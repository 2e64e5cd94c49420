//! The position of an open file, while one call moves it step by step: a long read(2) or write(2),
//! or one that waits for a disk. Others that use it wait, as for Linux's `f_pos_lock`, so that what
//! each of them transfers is in one piece.

use alloc::collections::BTreeSet;

use crate::errno::{Errno, Result};
use crate::fs::OpenFile;
use crate::sync::{Count, Counted, Mutex, mutex};
use crate::wait::{PollMask, Sleeper, WaitQueue, block_until_killed};

/// The files whose positions somebody moves, by address. One for each thread at most.
static MOVING: Mutex<BTreeSet<usize>> = mutex(BTreeSet::new());
/// How many: most of the time none, which is seen without a look at the files.
static COUNT: Count = Count::none();
/// One is moved no more.
static MOVED: WaitQueue = WaitQueue::new();

/// The position of a file is this call's alone as long as this lives, and not longer than the file.
#[derive(Debug)]
pub struct Moving {
    file: usize,
    _counted: Counted,
}

impl Drop for Moving {
    fn drop(&mut self) {
        MOVING.lock().remove(&self.file);
        MOVED.wake(PollMask::IN);
    }
}

fn key_of(file: &OpenFile) -> usize {
    core::ptr::from_ref(file) as usize
}

/// True if another call moves the position of `file`: who wants it waits in [`hold`].
pub fn is_moving(file: &OpenFile) -> bool {
    COUNT.is_any() && MOVING.lock().contains(&key_of(file))
}

/// Waits until nobody else moves the position of `file`. ERESTARTSYS if the thread is to end.
pub async fn hold(thread: &dyn Sleeper, file: &OpenFile) -> Result<Moving> {
    let key = key_of(file);
    block_until_killed(thread, &[&MOVED], PollMask::IN, || match MOVING.lock().insert(key) {
        true => Ok(Moving { file: key, _counted: COUNT.begin() }),
        false => Err(Errno::EAGAIN),
    })
    .await
}
