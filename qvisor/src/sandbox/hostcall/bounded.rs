//! Reads and writes of streams that may block: terminals and pipes whose open file description
//! belongs to others too (they could not be opened anew, see [`crate::streams`]).
//!
//! That the host calls such a stream ready is no promise: somebody else may take the bytes or the
//! room first, and a terminal is ready to be written while it has room for a single byte. Whoever
//! blocks there has the guest kernel's lock. So each such call has little time, after which a
//! signal takes it out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::linger;
use crate::sys;
use crate::sys::ordered::{Condvar, Mutex, MutexGuard, place};

/// How long a call may block.
const LIMIT: Duration = Duration::from_millis(5);
const STACK_BYTES: usize = 64 << 10;

/// The calls that may be blocked now.
#[derive(Debug, Default)]
pub struct Bounded {
    calls: Mutex<Calls, place::Bounded>,
    begun: Condvar,
}

#[derive(Debug, Default)]
struct Calls {
    blocked: Vec<Blocked>,
    /// Somebody looks after them.
    watched: bool,
}

#[derive(Debug)]
struct Blocked {
    tid: u32,
    until: Instant,
    signalled: bool,
}

impl Bounded {
    /// Does `operation`, a single system call that a signal interrupts. EAGAIN if it would have
    /// blocked for longer than [`LIMIT`]; ENOMEM if there is no thread to see to that.
    pub fn run<T>(
        self: &Arc<Self>,
        operation: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let tid = sys::gettid();
        let mut calls = self.lock();
        if !calls.watched {
            let this = self.clone();
            sys::spawn_thread("stream-watch", STACK_BYTES, move || this.watch())
                .map_err(|_| Errno::NOMEM)?;
            calls.watched = true;
        }
        calls.blocked.push(Blocked { tid, until: Instant::now() + LIMIT, signalled: false });
        drop(calls);
        self.begun.notify_one();
        let result = operation();
        let mut calls = self.lock();
        let own = calls.blocked.iter().position(|b| b.tid == tid);
        let signalled = own.is_some_and(|own| calls.blocked.swap_remove(own).signalled);
        drop(calls);
        if signalled {
            // At the end of any system call the signal has been taken: it interrupts nothing that
            // comes after.
            sys::gettid();
        }
        match result {
            Err(Errno::INTR) => Err(Errno::AGAIN),
            other => other,
        }
    }

    fn watch(&self) {
        let mut calls = self.lock();
        loop {
            let now = Instant::now();
            for call in calls.blocked.iter_mut().filter(|b| b.until <= now) {
                // Under the lock, so the thread cannot have left the call unseen. Once more after a
                // while, as it may not have been in the call yet.
                call.signalled = true;
                call.until = now + LIMIT;
                sys::tgkill(std::process::id(), call.tid, sys::INTERRUPT).ok();
            }
            let next = calls.blocked.iter().map(|b| b.until).min();
            let (locked, is_over) = linger::wait(&self.begun, calls, next);
            calls = locked;
            if is_over && calls.blocked.is_empty() {
                calls.watched = false;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::pipe;

    #[test]
    fn a_call_that_blocks_comes_back() {
        sys::take_interrupts().unwrap();
        let bounded = Arc::new(Bounded::default());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let (r, _w) = pipe().unwrap();
                    for _ in 0..20 {
                        let began = Instant::now();
                        let read = bounded.run(|| rustix::io::read(&r, &mut [0; 10]));
                        assert_eq!(read, Err(Errno::AGAIN));
                        assert!(began.elapsed() >= LIMIT);
                        assert_eq!(bounded.run(|| Ok(7)), Ok(7));
                        // No signal is left for what comes after.
                        let poll = rustix::event::PollFd::new(&r, rustix::event::PollFlags::IN);
                        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000 };
                        assert_eq!(rustix::event::poll(&mut [poll], Some(&none)), Ok(0));
                    }
                });
            }
        });
        let gone = Instant::now() + linger::LINGER * 10;
        while bounded.lock().watched {
            assert!(Instant::now() < gone, "the thread stays");
            std::thread::sleep(linger::LINGER / 10);
        }
    }
}
