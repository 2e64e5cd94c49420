//! Locks of files that others outside of the sandbox can lock too: flock(2), and record locks as
//! those of open file descriptions (F_OFD_SETLK), which processes' locks exclude and the other way
//! round. A descriptor holds what one owner inside has.
//!
//! No call waits, and no thread does in the host. Linux has no readiness for locks: a thread that
//! is blocked in fcntl(2) must be brought out by a signal, and may have taken the lock meanwhile.
//! And as many would be needed as there are waits, for one that waits its turn for a thread does
//! not see that its lock is free. So a single thread looks at everything that is waited for, soon
//! at first and then ever less often.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::c_short;
use nix::fcntl::{FcntlArg, fcntl};
use qlib::host::{LOCK_EXCLUSIVE, LOCK_FLOCK, LOCK_NONE, LOCK_RECORD, LOCK_SHARED};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::super::events::{INTERNAL, Poller};
use super::table::{Kind, Object};
use super::{Call, Outcome, linger};
use crate::sys;
use crate::sys::ordered::{Condvar, Mutex, MutexGuard, place};

/// How long after a look the next one is, at first. Each time it is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// And at most: what a lock that has become free is noticed late.
const LAST_PAUSE: Duration = Duration::from_millis(64);
/// Waits at a time (ENOLCK): a look at all of them takes some milliseconds.
const MAX_WAITS: usize = 4096;
const STACK_BYTES: usize = 64 << 10;

/// What a descriptor is to hold.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    is_flock: bool,
    /// `None`: nothing.
    exclusive: Option<bool>,
    start: i64,
    /// 0: to the end of the file.
    len: i64,
}

impl Wanted {
    /// From the arguments of [`qlib::host::Op::Lock`].
    fn new(args: &[u64]) -> Result<Wanted, Errno> {
        let &[kind, how, start, end, ..] = args else { return Err(Errno::INVAL) };
        let is_flock = match kind {
            LOCK_RECORD => false,
            LOCK_FLOCK => true,
            _ => return Err(Errno::INVAL),
        };
        let exclusive = match how {
            LOCK_SHARED => Some(false),
            LOCK_EXCLUSIVE => Some(true),
            LOCK_NONE => None,
            _ => return Err(Errno::INVAL),
        };
        let number = |n: u64| i64::try_from(n).map_err(|_| Errno::INVAL);
        let len = match end {
            u64::MAX => 0,
            end if end > start => number(end)? - number(start)?,
            _ => return Err(Errno::INVAL),
        };
        Ok(Wanted { is_flock, exclusive, start: number(start)?, len })
    }

    fn record(&self) -> libc::flock {
        let kind = match self.exclusive {
            None => libc::F_UNLCK,
            Some(false) => libc::F_RDLCK,
            Some(true) => libc::F_WRLCK,
        };
        libc::flock {
            l_type: kind as c_short,
            l_whence: libc::SEEK_SET as c_short,
            l_start: self.start,
            l_len: self.len,
            l_pid: 0,
        }
    }

    /// EAGAIN when somebody else's lock stands in the way.
    fn set(&self, object: &Object) -> Result<(), Errno> {
        if self.is_flock {
            let operation = match self.exclusive {
                None => FlockOperation::NonBlockingUnlock,
                Some(false) => FlockOperation::NonBlockingLockShared,
                Some(true) => FlockOperation::NonBlockingLockExclusive,
            };
            return rustix::fs::flock(object.as_fd(), operation);
        }
        match fcntl(object.as_fd(), FcntlArg::F_OFD_SETLK(&self.record())) {
            Ok(_) => Ok(()),
            Err(nix::Error::EACCES) => Err(Errno::AGAIN),
            Err(e) => Err(errno(e)),
        }
    }

    /// What stands in the way of a record lock.
    fn in_the_way(&self, object: &Object) -> Result<Option<libc::flock>, Errno> {
        let mut record = self.record();
        fcntl(object.as_fd(), FcntlArg::F_OFD_GETLK(&mut record)).map_err(errno)?;
        Ok((record.l_type != libc::F_UNLCK as c_short).then_some(record))
    }

    /// True once it is worth trying: a record lock would be had, or an error be told; flock(2),
    /// which cannot be asked, has the lock.
    fn has_its_turn(&self, object: &Object) -> bool {
        match self.is_flock {
            true => self.set(object) != Err(Errno::AGAIN),
            false => !matches!(self.in_the_way(object), Ok(Some(_))),
        }
    }
}

fn errno(error: nix::Error) -> Errno {
    Errno::from_raw_os_error(error as i32)
}

#[derive(Debug)]
struct Wait {
    object: Arc<Object>,
    wanted: Wanted,
    /// When it is looked at next, and how long after that.
    due: Instant,
    pause: Duration,
}

#[derive(Debug, Default)]
struct State {
    /// By the guest's token.
    waits: BTreeMap<u64, Wait>,
    /// A thread looks at them.
    is_served: bool,
}

/// The waits of a sandbox.
#[derive(Debug)]
pub struct LockWaits {
    state: Mutex<State, place::LockWaits>,
    /// There is one more.
    begun: Condvar,
    poller: Arc<Poller>,
}

impl LockWaits {
    /// None yet.
    pub fn new(poller: Arc<Poller>) -> LockWaits {
        LockWaits { state: Mutex::default(), begun: Condvar::new(), poller }
    }

    /// How many there are: each keeps a descriptor open.
    pub fn len(&self) -> usize {
        self.lock().waits.len()
    }

    fn begin(
        self: &Arc<Self>,
        token: u64,
        object: Arc<Object>,
        wanted: Wanted,
    ) -> Result<(), Errno> {
        if token & INTERNAL != 0 || wanted.exclusive.is_none() {
            return Err(Errno::INVAL);
        }
        let mut state = self.lock();
        if state.waits.contains_key(&token) {
            return Err(Errno::EXIST);
        }
        if state.waits.len() >= MAX_WAITS {
            return Err(Errno::NOLCK);
        }
        if !state.is_served {
            let this = self.clone();
            sys::spawn_thread("lock-watch", STACK_BYTES, move || this.serve())
                .map_err(|_| Errno::NOLCK)?;
            state.is_served = true;
        }
        let due = Instant::now() + FIRST_PAUSE;
        state.waits.insert(token, Wait { object, wanted, due, pause: FIRST_PAUSE });
        self.begun.notify_one();
        Ok(())
    }

    fn forget(&self, token: u64) -> Result<(), Errno> {
        let wait = self.lock().waits.remove(&token).ok_or(Errno::NOENT)?;
        // It may close a file.
        drop(wait);
        Ok(())
    }

    fn serve(&self) {
        let mut state = self.lock();
        loop {
            let over = self.look(&mut state, Instant::now());
            if !over.is_empty() {
                drop(state);
                // They may close files.
                drop(over);
                state = self.lock();
                continue;
            }
            let next = state.waits.values().map(|wait| wait.due).min();
            let (locked, is_over) = linger::wait(&self.begun, state, next);
            state = locked;
            if is_over && state.waits.is_empty() {
                state.is_served = false;
                return;
            }
        }
    }

    /// Looks at what is due, and tells of those that have their turn: they are over. All of it
    /// under the lock, so that nothing is taken for a wait that was forgotten.
    fn look(&self, state: &mut State, now: Instant) -> Vec<Wait> {
        let mut over = Vec::new();
        for (token, wait) in state.waits.iter_mut().filter(|(_, wait)| wait.due <= now) {
            let has_its_turn = wait.wanted.has_its_turn(&wait.object);
            // With more events pending than there may be it is told of later.
            if has_its_turn && self.poller.post_ready(*token, libc::EPOLLIN as u32).is_ok() {
                over.push(*token);
            } else {
                wait.pause = (wait.pause * 2).min(LAST_PAUSE);
                wait.due = now + wait.pause;
            }
        }
        over.iter().filter_map(|token| state.waits.remove(token)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Call<'_> {
    /// Standard streams are not locked: their descriptors are those of others.
    fn lockable(&self) -> Result<Arc<Object>, Errno> {
        let object = self.object()?;
        match object.kind() {
            Kind::File | Kind::Dir { .. } => Ok(object),
            _ => Err(Errno::INVAL),
        }
    }

    pub(super) fn lock(&mut self) -> Outcome {
        let (wanted, object) = (Wanted::new(&self.args)?, self.lockable()?);
        if wanted.is_flock {
            return wanted.set(&object).map(|()| 0);
        }
        let range = (self.args[2], self.args[3]);
        let mut records = object.records.lock();
        let on_host = || wanted.set(&object);
        records.set(&self.host.lock_records, range, wanted.exclusive, on_host).map(|()| 0)
    }

    pub(super) fn lock_test(&mut self) -> Outcome {
        let wanted = Wanted::new(&self.args)?;
        if wanted.is_flock || wanted.exclusive.is_none() {
            return Err(Errno::INVAL);
        }
        let Some(other) = wanted.in_the_way(&*self.lockable()?)? else { return Ok(0) };
        let is_exclusive = other.l_type == libc::F_WRLCK as c_short;
        self.args[1] = if is_exclusive { LOCK_EXCLUSIVE } else { LOCK_SHARED };
        self.args[2] = other.l_start.cast_unsigned();
        self.args[3] = match other.l_len {
            0 => u64::MAX,
            len => other.l_start.saturating_add(len).cast_unsigned(),
        };
        // Which process it is says nothing in the guest, and is nothing that it should know.
        self.args[4] = u64::from(other.l_pid == -1);
        Ok(1)
    }

    pub(super) fn lock_wait(&mut self) -> Outcome {
        let (token, wanted) = (self.args[0], Wanted::new(&self.args[1..])?);
        self.host.lock_waits.begin(token, self.lockable()?, wanted).map(|()| 0)
    }

    pub(super) fn lock_forget(&mut self) -> Outcome {
        self.host.lock_waits.forget(self.args[0]).map(|()| 0)
    }
}
