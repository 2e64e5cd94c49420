//! The host is short of memory: its kernel says so by a trigger of PSI (pressure stall
//! information, Documentation/accounting/psi.rst), which the event loop watches. Who is idle goes
//! to sleep then, whoever was used longest ago first.
//!
//! Who was used when only the guest kernels know, and there is no daemon. So each of those that may
//! sleep stands in a line: it holds the [byte](super::byte_locks) of the microsecond in which it
//! was used last, in one file of the state directory. The earlier bytes that others hold are those
//! of who goes first. What it does with that the guest kernel decides.

use std::os::fd::{AsFd, OwnedFd};

use qlib::host::MOST_BEFORE;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::byte_locks::ByteLocks;
use super::events::Poller;
use crate::sys::ordered::{Mutex, place};

/// Bytes that are tried when others were used in the same microsecond.
const MOST_TIES: i64 = 1000;

/// How a trigger says that it has been pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pull {
    /// By urgent data (EPOLLPRI), as PSI does.
    Urgent,
    /// By data, as a FIFO does that stands for it in a test.
    Data,
}

/// The part of a sandbox in it.
#[derive(Debug)]
pub struct Pressure {
    trigger: OwnedFd,
    pull: Pull,
    line: ByteLocks,
    ahead_us: i64,
    /// The byte that it holds in the line.
    ticket: Mutex<Option<i64>, place::PressureTicket>,
}

impl Pressure {
    /// `trigger` is set; `line` is open for writing and shared with nobody. The sandbox's
    /// CLOCK_MONOTONIC is `ahead_us` microseconds ahead of that of the others.
    pub fn new(trigger: OwnedFd, pull: Pull, line: OwnedFd, ahead_us: i64) -> Pressure {
        let (line, ticket) = (ByteLocks::new(line), Mutex::default());
        Pressure { trigger, pull, line, ahead_us, ticket }
    }

    /// Has the loop tell of the trigger from now on, or no longer.
    pub(super) fn watch(&self, poller: &Poller, is_on: bool) -> Result<(), Errno> {
        let how = match self.pull {
            Pull::Urgent => EventFlags::PRI,
            Pull::Data => EventFlags::IN,
        };
        // Each pull is an edge: nothing of it is to be taken.
        poller.watch_pressure(self.trigger.as_fd(), is_on.then_some(how | EventFlags::ET))
    }

    /// Stands in the line, where it does not yet, as one that was used last at `used_us` of
    /// its CLOCK_MONOTONIC: how many others are before it, of whom [`MOST_BEFORE`] are counted.
    /// ENOLCK when there is no place.
    pub(super) fn stand(&self, used_us: u64) -> Result<u64, Errno> {
        let mut ticket = self.ticket.lock();
        let used_us = i64::try_from(used_us).map_err(|_| Errno::INVAL)?;
        let used_us = used_us.saturating_sub(self.ahead_us).max(0);
        let at = match *ticket {
            Some(at) => at,
            None => {
                let ties = used_us..used_us.saturating_add(MOST_TIES);
                ties.into_iter().find(|at| self.line.lock(*at)).ok_or(Errno::NOLCK)?
            }
        };
        *ticket = Some(at);
        Ok(self.line.count(0, at, MOST_BEFORE))
    }

    /// Leaves the line.
    pub(super) fn leave(&self) {
        let ticket = self.ticket.lock().take();
        if let Some(at) = ticket {
            self.line.free(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    struct File(PathBuf);

    impl File {
        fn part(&self) -> Pressure {
            self.ahead(0)
        }

        fn ahead(&self, ahead_us: i64) -> Pressure {
            let mut options = std::fs::OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false);
            let line = file.open(&self.0).unwrap().into();
            let trigger = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK);
            Pressure::new(trigger.unwrap(), Pull::Data, line, ahead_us)
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            std::fs::remove_file(&self.0).ok();
        }
    }

    fn file(name: &str) -> File {
        let name = format!("quark-pressure-{name}-{}", std::process::id());
        File(std::env::temp_dir().join(name))
    }

    #[test]
    fn whoever_was_used_longest_ago_is_first() {
        let file = file("order");
        let parts: Vec<Pressure> = (0..8).map(|_| file.part()).collect();
        // They come in another order than that of their use.
        let used = [50, 20, 70, 10, 60, 30, 80, 40];
        for (part, used) in parts.iter().zip(used) {
            part.stand(used).unwrap();
        }
        let before: Vec<u64> = parts.iter().map(|part| part.stand(0).unwrap()).collect();
        assert_eq!(before, [4, 1, 4, 0, 4, 2, 4, 3]);
        parts[3].leave();
        parts[3].leave();
        assert_eq!(parts[1].stand(0), Ok(0));
        assert_eq!(parts[7].stand(0), Ok(2));
        // Whose clock is ahead is as old as it is.
        assert_eq!(file.ahead(1000).stand(1025), Ok(1));
        // Whoever dies is in nobody's way.
        drop(parts);
        assert_eq!(file.part().stand(1000), Ok(0));
    }

    #[test]
    fn those_of_the_same_moment_stand_one_after_another() {
        let file = file("ties");
        let parts: Vec<Pressure> = (0..3).map(|_| file.part()).collect();
        for (at, part) in parts.iter().enumerate() {
            assert_eq!(part.stand(7), Ok(at as u64));
        }
        assert_eq!(parts[0].stand(7), Ok(0));
        assert_eq!(file.part().stand(u64::MAX), Err(Errno::INVAL));
    }
}
