//! What a new process or thread of the guest will need of the host, kept from the moment on at
//! which the guest is promised one: fork(2) and clone(2) fail with EAGAIN, and nobody who has begun
//! is ended for want of it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::sys;

/// So many of the last descriptors are not promised: commands connect, files are passed on.
const SPARE_DESCRIPTORS: u64 = 64;
/// But not more than this part of all.
const SPARE_PART: u64 = 8;
/// So many tasks before the limit of its cgroup (the sandbox has some of its own) places are kept:
/// that takes a thread for each.
const NEAR_TASKS: u32 = 40;
const STACK_BYTES: usize = 16 << 10;

/// The limits that count.
#[derive(Debug)]
pub struct Limits {
    /// RLIMIT_NOFILE of the sandbox process.
    pub descriptors: u64,
    /// Of tasks in its cgroup; 0 for none.
    pub tasks: AtomicU32,
}

impl Limits {
    /// Those of this process, in a cgroup that lets it have so many tasks (0: no limit).
    pub fn of_process(tasks: u32) -> Self {
        use rustix::process::{Resource, getrlimit};
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Limits { descriptors, tasks: tasks.into() }
    }

    /// So many tasks of stubs, roughly, have room.
    pub fn most_tasks(&self) -> u32 {
        /// Of a stub: its listener, the file of its slots, and what others need meanwhile.
        const DESCRIPTORS_EACH: u64 = 4;
        let tasks = match self.tasks.load(Ordering::Relaxed) {
            0 => u32::MAX,
            limit => limit,
        };
        tasks.min(u32::try_from(self.descriptors / DESCRIPTORS_EACH).unwrap_or(u32::MAX))
    }

    /// True if the descriptor with this number is one of the last.
    fn is_last(&self, descriptor: u64) -> bool {
        descriptor + SPARE_DESCRIPTORS.min(self.descriptors / SPARE_PART) >= self.descriptors
    }

    /// True if `used` tasks are so many that the next may be refused.
    pub(super) fn is_near(&self, used: u32) -> bool {
        let tasks = self.tasks.load(Ordering::Relaxed);
        tasks != 0 && used.saturating_add(NEAR_TASKS) >= tasks
    }
}

/// A place for a task: a thread that sleeps until it is given up.
#[derive(Debug)]
struct Task {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Task {
    fn take() -> io::Result<Self> {
        let (end, ended): (Sender<()>, Receiver<()>) = channel();
        let thread = sys::spawn_thread("room", STACK_BYTES, move || {
            let _ = ended.recv();
        })?;
        Ok(Task { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        drop(self.end.take());
        // Then its place is free.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The place of a new stub, or of one more thread of one. Given up when it is dropped, right before
/// the stub or thread is made.
#[derive(Debug)]
pub struct Room {
    _descriptor: Option<OwnedFd>,
    _task: Option<Task>,
}

impl Room {
    /// For a stub, whose listener is a descriptor, where `used` tasks are known of. EAGAIN.
    pub fn for_stub(limits: &Limits, used: u32) -> io::Result<Self> {
        let descriptor = sys::memfd(c"quark-room", 0, false)?;
        // It is the lowest free number.
        if limits.is_last(descriptor.as_raw_fd() as u64) {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        Ok(Room { _descriptor: Some(descriptor), _task: place(limits, used)? })
    }

    /// For one more thread. EAGAIN.
    pub fn for_thread(limits: &Limits, used: u32) -> io::Result<Self> {
        Ok(Room { _descriptor: None, _task: place(limits, used)? })
    }
}

/// A place for a task, if they are few: and there must be one more, for whoever comes between the
/// moment that this is given up and the one that it is used.
fn place(limits: &Limits, used: u32) -> io::Result<Option<Task>> {
    if !limits.is_near(used) {
        return Ok(None);
    }
    let task = Task::take()?;
    Task::take().map(drop)?;
    Ok(Some(task))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_descriptors_are_not_promised() {
        let of = |descriptors| Limits { descriptors, tasks: 0.into() };
        let room = Room::for_stub(&of(u64::MAX), u32::MAX).unwrap();
        assert!(room._task.is_none(), "there is no limit of tasks");
        let refused = Room::for_stub(&of(1), 0).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EAGAIN));
        for (descriptors, first) in [(1024, 960), (80, 70)] {
            assert!(of(descriptors).is_last(first) && !of(descriptors).is_last(first - 1));
        }
    }

    #[test]
    fn the_tighter_limit_counts() {
        let most =
            |descriptors, tasks: u32| Limits { descriptors, tasks: tasks.into() }.most_tasks();
        assert_eq!(most(u64::MAX, 0), u32::MAX);
        assert_eq!(most(u64::MAX, 100), 100);
        assert_eq!(most(1024, 0), 256);
        assert_eq!(most(1024, 100), 100);
    }

    #[test]
    fn near_the_limit_a_place_is_kept() {
        let limits = Limits { descriptors: u64::MAX, tasks: 100.into() };
        assert!(Room::for_thread(&limits, 100 - NEAR_TASKS - 1).unwrap()._task.is_none());
        assert!(Room::for_thread(&limits, 100 - NEAR_TASKS).unwrap()._task.is_some());
    }
}
