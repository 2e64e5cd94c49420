//! Leases of open files (fcntl(2), F_SETLEASE): who holds one is told before others open the file
//! in a way that conflicts with it, or truncate it, and these wait until the holder has given way,
//! for `fs.lease-break-time` seconds at most. Only what goes through this kernel is seen.
//!
//! ```text
//!                    a reader comes               a writer comes
//! write lease ─────► to become a read lease ────► to be given up ───► none
//! read lease  ──────────────────────────────────► to be given up ───► none
//! ```

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use linux_raw_sys::general::{CAP_LEASE, F_RDLCK, F_UNLCK, F_WRLCK};

use super::attr::Attributes;
use super::busy::{self, Id};
use super::{Caller, OpenFile};
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::sync::{Mutex, mutex};
use crate::time;
use crate::wait::{PollMask, WaitQueue, block_on};

/// Somebody who is told by a signal.
pub trait Told: Send + Sync {
    /// Tells.
    fn tell(&self);
}

/// By when a holder has to give way, CLOCK_MONOTONIC in nanoseconds; `u64::MAX`: it has all the
/// time there is.
type Deadline = Option<u64>;

struct Lease {
    /// The open file that holds it, by address.
    holder: usize,
    is_write: bool,
    /// A writer has come.
    give_up: Deadline,
    /// A reader has come.
    downgrade: Deadline,
    told: Arc<dyn Told>,
}

impl Lease {
    /// What the holder is to have: F_*.
    fn target(&self) -> u32 {
        match self {
            Lease { give_up: Some(_), .. } => F_UNLCK,
            Lease { downgrade: Some(_), .. } | Lease { is_write: false, .. } => F_RDLCK,
            _ => F_WRLCK,
        }
    }
}

/// fs.lease-break-time: how long a holder may take to give way, in seconds; 0: as long as it likes.
pub static BREAK_TIME_S: AtomicU64 = AtomicU64::new(45);
/// fs.leases-enable: without it nobody gets a lease any more.
pub static ENABLED: AtomicU64 = AtomicU64::new(1);

/// All leases, by file.
static LEASES: Mutex<BTreeMap<Id, Vec<Lease>>> = mutex(BTreeMap::new());

/// Notified when a lease goes or becomes less.
pub static CHANGES: WaitQueue = WaitQueue::new();

/// Takes away what a holder was to give up in time, and did not.
fn expire(leases: &mut Vec<Lease>) {
    if leases.iter().all(|lease| lease.target() == F_WRLCK) {
        return;
    }
    let now = time::monotonic_ns();
    let is_over = |deadline: Deadline| deadline.is_some_and(|deadline| deadline <= now);
    for lease in leases.iter_mut().filter(|lease| is_over(lease.downgrade)) {
        (lease.is_write, lease.downgrade) = (false, None);
    }
    leases.retain(|lease| !is_over(lease.give_up));
}

fn holder_of(file: &OpenFile) -> usize {
    core::ptr::from_ref(file) as usize
}

fn attributes_of(file: &OpenFile) -> Result<Attributes> {
    match &file.path {
        Some(place) => place.inode().permissions(),
        None => file.attributes(),
    }
}

/// The leases of a file as they are by now, as `change` leaves them.
fn with_leases<T>(id: Id, change: impl FnOnce(&mut Vec<Lease>) -> T) -> T {
    let mut all = LEASES.lock();
    let leases = all.entry(id).or_default();
    expire(leases);
    let result = change(leases);
    if leases.is_empty() {
        all.remove(&id);
    }
    result
}

/// F_GETLEASE: F_RDLCK, F_WRLCK or F_UNLCK. While the lease is broken, what it is to become.
pub fn get(file: &OpenFile) -> Result<u32> {
    let holder = holder_of(file);
    Ok(with_leases(attributes_of(file)?.id(), |leases| {
        leases.iter().find(|lease| lease.holder == holder).map_or(F_UNLCK, Lease::target)
    }))
}

/// EACCES unless who has `creds` may have leases on a file, EINVAL if nobody may.
fn check(creds: &Creds, attributes: &Attributes) -> Result {
    if creds.fsuid != attributes.uid && !creds.capable(CAP_LEASE) {
        return Err(Errno::EACCES);
    }
    if attributes.is_regular() { Ok(()) } else { Err(Errno::EINVAL) }
}

/// F_SETLEASE with F_RDLCK or F_WRLCK. EAGAIN if others have the file open in a way that conflicts,
/// or hold leases that do.
pub fn set(
    creds: &Creds,
    file: &OpenFile,
    is_write: bool,
    told: impl FnOnce() -> Arc<dyn Told>,
) -> Result {
    let attributes = attributes_of(file)?;
    check(creds, &attributes)?;
    if ENABLED.load(Relaxed) == 0 {
        return Err(Errno::EINVAL);
    }
    let id = attributes.id();
    let uses = busy::uses_of(id);
    let conflicts = match is_write {
        false => uses.writers > 0,
        true => {
            uses.writers != i64::from(file.is_writable())
                || uses.readers != u64::from(!file.is_writable())
        }
    };
    if conflicts {
        return Err(Errno::EAGAIN);
    }
    let (holder, told) = (holder_of(file), told());
    let dropped = with_leases(id, |leases| {
        let others = leases.iter().filter(|lease| lease.holder != holder);
        let is_in_the_way = |other: &Lease| is_write || other.give_up.is_some();
        if others.clone().any(is_in_the_way) {
            return Err(Errno::EAGAIN);
        }
        match leases.iter_mut().find(|lease| lease.holder == holder) {
            // Somebody waits for it to become less.
            Some(own) if own.give_up.is_some() || is_write && own.downgrade.is_some() => {
                Err(Errno::EAGAIN)
            }
            Some(own) => {
                own.is_write = is_write;
                if !is_write {
                    own.downgrade = None;
                }
                Ok(Some(core::mem::replace(&mut own.told, told)))
            }
            None => {
                let new = Lease { holder, is_write, give_up: None, downgrade: None, told };
                leases.try_reserve(1).map_err(|_| Errno::ENOLCK)?;
                leases.push(new);
                Ok(None)
            }
        }
    })?;
    drop(dropped);
    CHANGES.wake(PollMask::READ);
    Ok(())
}

/// F_SETLEASE with F_UNLCK. EAGAIN if the file holds no lease.
pub fn give_up(creds: &Creds, file: &OpenFile) -> Result {
    let attributes = attributes_of(file)?;
    check(creds, &attributes)?;
    if remove(attributes.id(), holder_of(file)) { Ok(()) } else { Err(Errno::EAGAIN) }
}

/// The last descriptor of a file is gone, and so is its lease.
pub fn file_gone(file: &OpenFile) {
    if file.telling.lock().is_none() {
        return;
    }
    let holder = holder_of(file);
    let id = {
        let all = LEASES.lock();
        let holds = |leases: &Vec<Lease>| leases.iter().any(|lease| lease.holder == holder);
        all.iter().find(|(_, leases)| holds(leases)).map(|(id, _)| *id)
    };
    if let Some(id) = id {
        remove(id, holder);
    }
}

fn remove(id: Id, holder: usize) -> bool {
    let removed = with_leases(id, |leases| {
        let index = leases.iter().position(|lease| lease.holder == holder)?;
        Some(leases.swap_remove(index))
    });
    let is_removed = removed.is_some();
    drop(removed);
    if is_removed {
        CHANGES.wake(PollMask::READ);
    }
    is_removed
}

/// Somebody is about to open a file with these attributes, for writing or not, or to truncate it:
/// holders of leases that this conflicts with are told. ELEASED while there are any.
pub fn break_for(file: &Attributes, writes: bool) -> Result {
    if LEASES.lock().is_empty() || !file.is_regular() {
        return Ok(());
    }
    let deadline = match BREAK_TIME_S.load(Relaxed) {
        0 => u64::MAX,
        time_s => time::monotonic_ns().saturating_add(time_s.saturating_mul(1_000_000_000)),
    };
    let mut told = Vec::new();
    let conflicts = with_leases(file.id(), |leases| {
        let mut conflicts = false;
        for lease in leases.iter_mut().filter(|lease| writes || lease.is_write) {
            conflicts = true;
            let is_new = match writes {
                true => lease.give_up.is_none(),
                false => lease.target() == F_WRLCK,
            };
            if is_new {
                let kept = if writes { &mut lease.give_up } else { &mut lease.downgrade };
                *kept = Some(deadline);
                told.push(lease.told.clone());
            }
        }
        conflicts
    });
    for told in told {
        told.tell();
    }
    if conflicts { Err(Errno::ELEASED) } else { Ok(()) }
}

/// When the first of all holders that are to give way loses its lease: who waits looks again then.
fn next_deadline() -> Deadline {
    let all = LEASES.lock();
    let deadlines = all.values().flatten().flat_map(|lease| [lease.give_up, lease.downgrade]);
    deadlines.flatten().min().filter(|deadline| *deadline != u64::MAX)
}

/// Does what [`break_for`] may stop, as soon as no lease stands in the way; EAGAIN at once if it is
/// not to wait.
pub async fn when_broken<T>(
    caller: &dyn Caller,
    is_nonblocking: bool,
    attempt: impl Fn() -> Result<T>,
) -> Result<T> {
    match now(attempt()) {
        Ok(Some(done)) => return Ok(done),
        Ok(None) if is_nonblocking => return Err(Errno::EAGAIN),
        Ok(None) => {}
        Err(errno) => return Err(errno),
    }
    loop {
        let again = || match now(attempt()) {
            Ok(None) => Err(Errno::EAGAIN),
            result => Ok(result),
        };
        match block_on(caller, &[&CHANGES], PollMask::READ, next_deadline(), again).await {
            Err(Errno::ETIMEDOUT) => {}
            result => {
                if let Some(done) = result?? {
                    return Ok(done);
                }
            }
        }
    }
}

/// `None` for what a lease has stopped.
fn now<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(Errno::ELEASED) => Ok(None),
        result => result.map(Some),
    }
}

/// What a lease has stopped fails with EAGAIN, where nobody can wait.
pub fn or_fail<T>(result: Result<T>) -> Result<T> {
    now(result)?.ok_or(Errno::EAGAIN)
}
