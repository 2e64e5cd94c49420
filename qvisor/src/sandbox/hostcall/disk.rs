//! What takes as long as the host's disk is busy: fsync(2), fdatasync(2),
//! sync_file_range(2), syncfs(2), and reads of what is not in the page cache. And what takes as
//! long as the host needs to make a huge page.
//!
//! Whoever makes a host call has the guest kernel's lock, so the call only begins the operation: a
//! thread of its own carries it out, and an EVENT_READY tells the kernel that it is over. What ends
//! at once is answered at once.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use qlib::Gpa;
use qlib::host::{DISK_BEGUN, MAX_FETCH_BYTES};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::super::events::{INTERNAL, Poller};
use super::table::{Kind, file_type, reopen};
use super::{Call, Outcome, linger};
use crate::store::populate::{self, Pace};
use crate::sys;
use crate::sys::ordered::{Condvar, Mutex, MutexGuard, place};

/// Operations under way at a time. Further ones wait for one of these to end.
const MAX_WORKERS: usize = 16;
/// Operations that are begun and not taken, more than a container has threads. Beyond it the call
/// itself carries an operation out.
const MAX_OPERATIONS: usize = 65_536;
/// How long the call waits for what a thread can do at once: with a clean file it is over by then.
const AT_ONCE: Duration = Duration::from_micros(100);
const STACK_BYTES: usize = 64 << 10;
/// Read at a time.
const PIECE_BYTES: usize = 64 << 10;
/// By how much `QUARK_SLOW_DISK` prolongs each operation.
const SLOW: Duration = Duration::from_secs(3);

/// statfs(2): file systems that have nothing to write.
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;

type Done = Result<(), Errno>;

/// What is to be done. It keeps what it needs of the object that it is about, so that may be closed
/// meanwhile.
pub struct Work(Box<dyn FnOnce() -> Done + Send>);

impl Work {
    /// Of anything.
    pub fn new(work: impl FnOnce() -> Done + Send + 'static) -> Work {
        Work(Box::new(work))
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Work")
    }
}

#[derive(Debug)]
struct Operation {
    /// Tells it from an earlier one with the same token.
    serial: u64,
    /// `None`: it is not over.
    result: Option<Done>,
    /// Its end is to be told of.
    is_awaited: bool,
}

#[derive(Debug, Default)]
struct State {
    /// By the guest's token.
    operations: BTreeMap<u64, Operation>,
    /// Those that no thread has yet, oldest first: by serial, with the token.
    queue: BTreeMap<u64, (u64, Work)>,
    last_serial: u64,
    workers: usize,
    /// Of the workers those that have nothing to do.
    idle: usize,
}

/// The operations of a sandbox.
#[derive(Debug)]
pub struct DiskWork {
    state: Mutex<State, place::DiskWork>,
    /// There is something in the queue.
    queued: Condvar,
    /// Something is over.
    ended: Condvar,
    poller: Arc<Poller>,
    /// For tests: each operation takes [`SLOW`] longer, and none is done at once.
    is_slow: bool,
}

impl DiskWork {
    /// None yet.
    pub fn new(poller: Arc<Poller>) -> DiskWork {
        DiskWork {
            state: Mutex::default(),
            queued: Condvar::new(),
            ended: Condvar::new(),
            poller,
            is_slow: std::env::var_os("QUARK_SLOW_DISK").is_some(),
        }
    }

    /// For tests: the disk is slow, and nothing is cached.
    pub fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// Operations that are begun and not taken: each may keep a descriptor open.
    pub fn len(&self) -> usize {
        self.lock().operations.len()
    }

    /// Begins `work` under `token`: its result if that is known at once. EINVAL for a token with
    /// the highest bit, EEXIST for one that stands for an operation already.
    pub fn begin(self: &Arc<Self>, token: u64, work: Work) -> Result<Option<Done>, Errno> {
        self.begin_patiently(token, work, AT_ONCE)
    }

    /// The same; the call waits at most so long for what it is the only one to ask for.
    fn begin_patiently(
        self: &Arc<Self>,
        token: u64,
        work: Work,
        patience: Duration,
    ) -> Result<Option<Done>, Errno> {
        if token & INTERNAL != 0 {
            return Err(Errno::INVAL);
        }
        let mut state = self.lock();
        if state.operations.contains_key(&token) {
            return Err(Errno::EXIST);
        }
        if state.operations.len() >= MAX_OPERATIONS || !self.has_worker_for_one_more(&mut state) {
            drop(state);
            return Ok(Some((work.0)()));
        }
        state.last_serial += 1;
        let serial = state.last_serial;
        state.operations.insert(token, Operation { serial, result: None, is_awaited: false });
        state.queue.insert(serial, (token, work));
        self.queued.notify_one();
        // Only for the first: who has the kernel lock must not wait for one after the other.
        let is_first = state.operations.values().filter(|o| o.result.is_none()).nth(1).is_none();
        let limit = if is_first && !self.is_slow { patience } else { Duration::ZERO };
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.ended.wait_timeout(state, left).0;
            match state.operations.get(&token) {
                Some(own) if own.serial == serial && own.result.is_none() => {}
                Some(own) if own.serial == serial => {
                    return Ok(state.operations.remove(&token).and_then(|own| own.result));
                }
                // Another call has taken it, which the kernel does not do before it has a token.
                _ => return Err(Errno::NOENT),
            }
        }
        if let Some(own) = state.operations.get_mut(&token).filter(|own| own.serial == serial) {
            own.is_awaited = true;
        }
        Ok(None)
    }

    /// Sees to it that a worker comes to one more operation. False if there is none at all.
    fn has_worker_for_one_more(self: &Arc<Self>, state: &mut State) -> bool {
        if state.queue.len() >= state.idle && state.workers < MAX_WORKERS {
            let this = self.clone();
            let started = sys::spawn_thread("sync", STACK_BYTES, move || this.serve());
            state.workers += usize::from(started.is_ok());
        }
        state.workers > 0
    }

    /// Takes the result of an operation, after which the token stands for nothing. ENOENT if it
    /// does now, EAGAIN while the operation is not over.
    pub fn take(&self, token: u64) -> Result<Done, Errno> {
        let mut state = self.lock();
        let result =
            state.operations.get(&token).ok_or(Errno::NOENT)?.result.ok_or(Errno::AGAIN)?;
        state.operations.remove(&token);
        Ok(result)
    }

    /// Nobody waits for an operation any more: it ends unheard, if it has begun. ENOENT if there is
    /// none.
    pub fn forget(&self, token: u64) -> Result<(), Errno> {
        let mut state = self.lock();
        let own = state.operations.remove(&token).ok_or(Errno::NOENT)?;
        let work = state.queue.remove(&own.serial);
        // It may close a file.
        drop(state);
        drop(work);
        Ok(())
    }

    /// A worker's life.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some((serial, (token, work))) = state.queue.pop_first() {
                drop(state);
                if self.is_slow {
                    self.dawdle();
                }
                let result = (work.0)();
                state = self.end(token, serial, result);
                continue;
            }
            state.idle += 1;
            let (locked, is_over) = linger::wait(&self.queued, state, None);
            state = locked;
            state.idle -= 1;
            if is_over && state.queue.is_empty() {
                state.workers -= 1;
                return;
            }
        }
    }

    fn end(&self, token: u64, serial: u64, result: Done) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let own = state.operations.get_mut(&token).filter(|own| own.serial == serial);
        let is_awaited = own.is_some_and(|own| {
            own.result = Some(result);
            own.is_awaited
        });
        if is_awaited {
            drop(state);
            // The event loop is behind by as many events as there may be only if the guest makes
            // them without end, and then it is the guest that loses one.
            self.poller.post_ready(token, libc::EPOLLIN as u32).ok();
            return self.lock();
        }
        self.ended.notify_all();
        state
    }

    fn dawdle(&self) {
        // A thread of the sandbox may not sleep otherwise than for a lock.
        let (lock, never) = (std::sync::Mutex::new(()), std::sync::Condvar::new());
        let Ok(locked) = lock.lock() else { return };
        drop(never.wait_timeout_while(locked, SLOW, |()| true));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// True if nothing of it is ever written to a disk.
fn lies_in_memory(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|s| [TMPFS, RAMFS].contains(&s.f_type))
}

/// Reads a part of a file for no other purpose than that it be in the page cache.
fn read_through(fd: BorrowedFd<'_>, mut at: u64, end: u64) -> Done {
    let mut piece = vec![0; PIECE_BYTES];
    while at < end {
        let wanted = (end - at).min(PIECE_BYTES as u64) as usize;
        match rustix::io::pread(fd, &mut piece[..wanted], at)? {
            0 => break,
            read => at += read as u64,
        }
    }
    Ok(())
}

/// What the guest is told of an operation: its result if it has one already.
fn outcome(begun: Option<Done>) -> Outcome {
    match begun {
        Some(done) => done.map(|()| 0),
        None => Ok(DISK_BEGUN),
    }
}

impl Call<'_> {
    pub(super) fn sync(&mut self) -> Outcome {
        let object = self.object()?;
        if !matches!(object.kind(), Kind::File | Kind::StdioFile | Kind::Dir { .. }) {
            return Err(Errno::INVAL);
        }
        let fd = object.fd().clone();
        let [_, what, offset, len, flags, ..] = self.args;
        self.begin(object.as_fd(), move || match what {
            1 => rustix::fs::fdatasync(&fd),
            2 => sys::sync_file_range(fd.as_fd(), offset, len, flags as u32),
            _ => rustix::fs::fsync(&fd),
        })
    }

    /// Of the whole host only the one file system that the object lies on.
    pub(super) fn sync_fs(&mut self) -> Outcome {
        let object = self.object()?;
        if !matches!(object.kind(), Kind::File | Kind::Dir { .. } | Kind::Path) {
            return Err(Errno::INVAL);
        }
        let flags = match file_type(object.as_fd())? {
            FileType::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
            FileType::RegularFile => OFlags::RDONLY,
            _ => return Ok(0),
        };
        let (fd, proc_fd): (_, Arc<OwnedFd>) = (object.fd().clone(), self.host.proc_fd.clone());
        let is_path = rustix::fs::fcntl_getfl(&fd)?.contains(OFlags::PATH);
        self.begin(object.as_fd(), move || match is_path {
            // syncfs(2) does not take what serves as a mount.
            true => rustix::fs::syncfs(&reopen(fd.as_fd(), &proc_fd, flags | OFlags::NOCTTY)?),
            // What is open has its own account of errors that it was told of.
            false => rustix::fs::syncfs(&fd),
        })
    }

    pub(super) fn fetch(&mut self) -> Outcome {
        let object = self.regular_file()?;
        let (offset, len) = (self.args[1], self.args[2].min(MAX_FETCH_BYTES));
        let end = offset.checked_add(len).ok_or(Errno::INVAL)?;
        let fd = object.fd().clone();
        self.begin(object.as_fd(), move || read_through(fd.as_fd(), offset, end))
    }

    fn begin(&self, of: BorrowedFd<'_>, work: impl FnOnce() -> Done + Send + 'static) -> Outcome {
        let disk = &self.host.disk;
        if !disk.is_slow && lies_in_memory(of) {
            return work().map(|()| 0);
        }
        outcome(disk.begin(self.args[0], Work::new(work))?)
    }

    pub(super) fn huge_page(&mut self) -> Outcome {
        let memory = self.host.memory.clone();
        let extent = Gpa(self.args[1]);
        let work = Work::new(move || match populate::make_huge(memory.mapped(), extent) {
            Ok(Pace::Fast) => Ok(()),
            Ok(Pace::Slow) => Err(Errno::TIME),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL)),
        });
        // It is never over at once.
        outcome(self.host.disk.begin_patiently(self.args[0], work, Duration::ZERO)?)
    }

    pub(super) fn disk_result(&mut self) -> Outcome {
        let done = self.host.disk.take(self.args[0])?;
        self.args[0] = done.map_or_else(|e| e.raw_os_error() as u64, |()| 0);
        Ok(0)
    }

    pub(super) fn disk_forget(&mut self) -> Outcome {
        self.host.disk.forget(self.args[0]).map(|()| 0)
    }
}
