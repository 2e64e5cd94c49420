//! Admission of wakes: so many sandboxes of a state directory at most read their working sets at
//! once, first come first served. There is no daemon: places and the line are [locks of
//! bytes](super::byte_locks) in one file that all of them have open.
//!
//! The first bytes of the file stand for the places. Who waits holds the byte of the microsecond in
//! which it came: one who finds no earlier byte held is the first in the line. Linux has no
//! readiness for locks, so everybody looks now and then, those far behind seldom. Nobody waits for
//! longer than [`PATIENCE`]: late is better than never.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::Timespec;

use super::byte_locks::{ByteLocks, now_us};

/// How long a wake waits for a place.
const PATIENCE: Duration = Duration::from_secs(2);
/// The line begins here in the file.
const LINE: i64 = 1 << 32;
/// How often the first in the line looks for a place.
const FIRST_PAUSE: Duration = Duration::from_micros(500);
/// How often the others look whether they are the first: the more often, the sooner one has come
/// that is before them.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// The part of a sandbox in it.
#[derive(Debug)]
pub struct Admission {
    locks: ByteLocks,
    places: u16,
    patience: Duration,
}

/// A place, given back when it is dropped.
#[derive(Debug)]
pub struct Place<'a> {
    admission: &'a Admission,
    at: i64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.admission.locks.free(self.at);
    }
}

impl Admission {
    /// `file` is open for writing and shared with nobody; at most `places` wake at once.
    pub fn new(file: OwnedFd, places: u16) -> Admission {
        Admission { locks: ByteLocks::new(file), places, patience: PATIENCE }
    }

    /// Waits for a place. `None` if there is none in time, or locks do not work.
    pub fn enter(&self) -> Option<Place<'_>> {
        if self.locks.held(LINE, 0).is_none()
            && let Some(place) = self.take()
        {
            return Some(place);
        }
        let begin = Instant::now();
        let mut ticket = LINE.saturating_add(now_us());
        while !self.locks.lock(ticket) {
            ticket += 1;
            if begin.elapsed() > self.patience {
                return None;
            }
        }
        let ticket = Place { admission: self, at: ticket };
        while begin.elapsed() < self.patience {
            match self.locks.held(LINE, ticket.at - LINE) {
                None => match self.take() {
                    Some(place) => return Some(place),
                    None => pause(FIRST_PAUSE),
                },
                Some(earlier) => {
                    let apart = Duration::from_micros((ticket.at - earlier).unsigned_abs());
                    pause(apart.clamp(PAUSES[0], PAUSES[1]));
                }
            }
        }
        None
    }

    fn take(&self) -> Option<Place<'_>> {
        let at = (0..i64::from(self.places)).find(|at| self.locks.lock(*at))?;
        Some(Place { admission: self, at })
    }
}

fn pause(time: Duration) {
    let time = Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    rustix::event::poll(&mut [], Some(&time)).ok();
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct File(PathBuf);

    impl File {
        fn new(name: &str) -> File {
            let name = format!("quark-admission-{name}-{}", std::process::id());
            File(std::env::temp_dir().join(name))
        }

        fn part(&self, places: u16) -> Admission {
            let mut options = std::fs::OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false);
            Admission::new(file.open(&self.0 as &Path).unwrap().into(), places)
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            std::fs::remove_file(&self.0).ok();
        }
    }

    #[test]
    fn so_many_at_once_and_no_more() {
        let file = File::new("many");
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    let part = file.part(3);
                    let place = part.enter();
                    assert!(place.is_some());
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(10));
                    inside.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(most.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn who_came_first_is_served_first() {
        let file = File::new("first");
        let holder = file.part(1);
        let place = holder.enter();
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for number in 0..20 {
                let (order, file) = (&order, &file);
                scope.spawn(move || {
                    let part = file.part(1);
                    let _place = part.enter().expect("a place");
                    order.lock().unwrap().push(number);
                });
                std::thread::sleep(Duration::from_millis(20));
            }
            drop(place);
        });
        assert!(order.lock().unwrap().iter().copied().eq(0..20));
    }

    #[test]
    fn nobody_waits_for_ever_nor_for_who_is_gone() {
        let file = File::new("gone");
        let holder = file.part(1);
        std::mem::forget(holder.enter().expect("a place"));
        let mut late = file.part(1);
        late.patience = Duration::from_millis(100);
        let begin = Instant::now();
        assert!(late.enter().is_none());
        assert!(begin.elapsed() >= late.patience);
        // The last descriptor goes, as at the end of a process.
        drop(holder);
        assert!(late.enter().is_some());
        assert!(late.locks.held(LINE, 0).is_none(), "the line is empty");
    }
}
