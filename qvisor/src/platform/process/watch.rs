//! Looks after kicks: a thread that does not come within a while is examined. The thread that does
//! so exists only while kicks are about, so an idle sandbox has none.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use crate::sys;
use crate::sys::ordered::{Mutex, place};

/// When to look.
const DELAY: Duration = Duration::from_millis(100);
/// How many times there must be nothing to look at before the thread ends.
const LINGER: u32 = 10;

/// Kicks to look after.
#[derive(Default)]
pub struct Watch(Mutex<List, place::Kicks>);

#[derive(Default)]
struct List {
    due: VecDeque<(Instant, u32, u32)>,
    shared: std::sync::Weak<Shared>,
    running: bool,
}

impl Watch {
    /// Says whose spaces it looks after.
    pub fn attach(&self, shared: &Arc<Shared>) {
        self.0.lock().shared = Arc::downgrade(shared);
    }

    /// A kick was sent to a thread of a space.
    pub fn add(&self, space: u32, thread: u32) {
        let mut list = self.0.lock();
        list.due.push_back((Instant::now() + DELAY, space, thread));
        if !list.running
            && let Some(shared) = list.shared.upgrade()
        {
            let spawned = sys::spawn_thread("kick-watch", 64 << 10, move || look_after(&shared));
            // Without it the next kick tries again.
            list.running = spawned.is_ok();
        }
    }
}

fn look_after(shared: &Shared) {
    let mut idle = 0;
    loop {
        std::thread::sleep(DELAY);
        let now = Instant::now();
        let mut due = Vec::new();
        {
            let mut list = shared.watch.0.lock();
            while list.due.front().is_some_and(|(when, ..)| *when <= now)
                && let Some(entry) = list.due.pop_front()
            {
                due.push(entry);
            }
            idle = if due.is_empty() && list.due.is_empty() { idle + 1 } else { 0 };
            if idle > LINGER {
                list.running = false;
                return;
            }
        }
        for (_, space, thread) in due {
            if let Some(space) = shared.space(u64::from(space))
                && space.check_kick(thread)
            {
                let mut list = shared.watch.0.lock();
                list.due.push_back((now + DELAY, space.id, thread));
            }
        }
    }
}
