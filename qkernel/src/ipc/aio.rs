//! Contexts of asynchronous I/O (io_setup(2)): what has been done, until somebody asks for it.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::abi::abi_struct;
use crate::account;
use crate::errno::{Errno, Result};
use crate::sync::Mutex;
use crate::task::Process;
use crate::wait::{PollMask, WaitQueue};

/// The most events of all contexts together (fs.aio-max-nr).
pub const MOST_EVENTS: u64 = 65536;

/// Events that contexts have room for, all together (fs.aio-nr).
static EVENTS: AtomicU64 = AtomicU64::new(0);

abi_struct! {
    /// struct io_event of linux/aio_abi.h: what the request said of itself, where it lies, and how
    /// it ended.
    pub struct IoEvent { pub data: u64, pub request: u64, pub result: i64, pub result2: i64, }
}

/// How many events there is room for, all together.
pub fn events() -> u64 {
    EVENTS.load(Relaxed)
}

#[derive(Default)]
struct State {
    done: VecDeque<IoEvent>,
    /// Requests that are being served.
    under_way: usize,
    is_destroyed: bool,
}

/// A context.
pub struct Context {
    most: u32,
    state: Mutex<State>,
    /// Notified when something is done.
    queue: WaitQueue,
}

impl Drop for Context {
    fn drop(&mut self) {
        EVENTS.fetch_sub(self.most.into(), Relaxed);
    }
}

impl Context {
    /// One for `most` events that nobody has asked for. EAGAIN when there are too many already.
    pub fn new(most: u32) -> Result<Arc<Self>> {
        if events() + u64::from(most) > MOST_EVENTS {
            return Err(Errno::EAGAIN);
        }
        EVENTS.fetch_add(most.into(), Relaxed);
        Ok(Arc::new(Context { most, state: Mutex::default(), queue: WaitQueue::new() }))
    }

    /// That of `process` with this id. EINVAL.
    pub fn of(process: &Process, id: u64) -> Result<Arc<Self>> {
        let found = process.aio.lock().get(&id).cloned();
        found.and_then(|context| context.downcast().ok()).ok_or(Errno::EINVAL)
    }

    /// A request begins, and there is room for its end. EAGAIN, ENOMEM.
    pub fn begin(&self) -> Result {
        let mut state = self.state.lock();
        if state.is_destroyed {
            return Err(Errno::EINVAL);
        }
        if state.done.len() + state.under_way >= self.most as usize {
            return Err(Errno::EAGAIN);
        }
        for _ in 0..=state.under_way {
            account::room_in(&mut state.done)?;
        }
        state.under_way += 1;
        Ok(())
    }

    /// A request that began was none after all.
    pub fn give_up(&self) {
        self.state.lock().under_way -= 1;
    }

    /// A request that began has been served.
    pub fn end(&self, event: IoEvent) {
        {
            let mut state = self.state.lock();
            state.under_way -= 1;
            state.done.push_back(event);
        }
        self.queue.wake(PollMask::READ);
    }

    /// True if something is done that nobody has taken.
    pub fn has_events(&self) -> bool {
        !self.state.lock().done.is_empty()
    }

    /// Takes what is done, at most `most` events.
    pub fn take(&self, most: usize) -> Vec<IoEvent> {
        let mut state = self.state.lock();
        let count = state.done.len().min(most);
        state.done.drain(..count).collect()
    }

    /// Puts events back that could not be told of.
    pub fn put_back(&self, events: Vec<IoEvent>) {
        let mut state = self.state.lock();
        events.into_iter().rev().for_each(|event| state.done.push_front(event));
    }

    /// What notifies of more.
    pub fn queue(&self) -> &WaitQueue {
        &self.queue
    }

    /// True if nothing more is done with it.
    pub fn is_destroyed(&self) -> bool {
        self.state.lock().is_destroyed
    }

    /// io_destroy(2): who waits for events is told that there are none.
    pub fn destroy(&self) {
        self.state.lock().is_destroyed = true;
        self.queue.wake(PollMask::READ);
    }
}
