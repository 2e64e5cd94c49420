//! Advisory locks: record locks of processes and of open files (fcntl(2)), and flock(2).
//!
//! The table here is the truth between owners of this container. Of a file that others outside can
//! lock too, each owner holds the same outside by a descriptor of its own, for as long as it has a
//! lock ([`super::outside`]). A lock is taken there before it is entered here, and given up there
//! before it is taken out here; nothing is awaited between the two. So nothing has to be computed
//! when one of several owners lets go, and splits, merges and conversions are the host kernel's.

pub mod list;
mod table;

use alloc::sync::Arc;

use table::Table;
pub use table::{Key, Lock, Owner};

use crate::errno::{Errno, Result};
use crate::fs::outside::{Holder, OutsideLocks};
use crate::fs::{Caller, OpenFile};
use crate::sync::{Mutex, mutex};
use crate::wait::{PollMask, WaitQueue, block_on};

static TABLE: Mutex<Table> = mutex(Table::empty());

/// Why a lock was not taken.
enum Refused {
    /// This owner holds one that stands in the way.
    Inside(Owner),
    /// Somebody outside does.
    Outside,
    Failed(Errno),
}

impl From<Refused> for Errno {
    fn from(refused: Refused) -> Errno {
        match refused {
            Refused::Inside(_) | Refused::Outside => Errno::EAGAIN,
            Refused::Failed(errno) => errno,
        }
    }
}

/// An owner who is about to take a lock on a file.
struct Claim<'a> {
    file: &'a OpenFile,
    key: Key,
    owner: Owner,
    outside: Option<Arc<dyn OutsideLocks>>,
}

impl<'a> Claim<'a> {
    fn new(file: &'a OpenFile, key: Key, owner: Owner) -> Result<Self> {
        let known = TABLE.lock().outside.get(&(owner, key)).cloned();
        let outside = match known {
            Some(known) => Some(known),
            None => file.ops.outside_locks(file)?.inspect(|new| {
                TABLE.lock().outside.insert((owner, key), new.clone());
            }),
        };
        Ok(Claim { file, key, owner, outside })
    }

    fn take(&mut self, wanted: &Lock) -> core::result::Result<(), Refused> {
        {
            let table = TABLE.lock();
            if let Some(lock) = table.conflict(self.key, wanted) {
                return Err(Refused::Inside(lock.owner));
            }
            table.check_room(self.owner).map_err(Refused::Failed)?;
        }
        self.take_outside(wanted).map_err(|errno| match errno {
            Errno::EAGAIN => Refused::Outside,
            errno => Refused::Failed(errno),
        })?;
        let range = (wanted.start, wanted.end);
        let queue = TABLE.lock().set(self.key, self.owner, range, Some(wanted.exclusive));
        // A write lock that became a read lock lets others in.
        queue.wake(PollMask::READ);
        Ok(())
    }

    fn take_outside(&mut self, wanted: &Lock) -> Result {
        // Another thread of the owner may have made it writable.
        let current = TABLE.lock().outside.get(&(self.owner, self.key)).cloned();
        self.outside = current.or(self.outside.take());
        let Some(outside) = self.outside.clone() else { return Ok(()) };
        let outside = match wanted.exclusive && !self.key.whole_file && !outside.is_writable() {
            true => self.make_writable(&*outside)?,
            false => outside,
        };
        let taken = outside.take(self.key.whole_file, wanted.start, wanted.end, wanted.exclusive);
        if taken.is_err() && self.key.whole_file {
            // A conversion has given the old lock up before it failed (flock(2)).
            unlock(self.key, self.owner, 0, u64::MAX);
        }
        taken
    }

    /// The owner has read locks by a descriptor that is for reading only, and now wants to write.
    /// Another one takes its place: read locks of both do not exclude each other, so none is given
    /// up in between.
    fn make_writable(&mut self, old: &dyn OutsideLocks) -> Result<Arc<dyn OutsideLocks>> {
        let new = self.file.ops.outside_locks(self.file)?.ok_or(Errno::ENOLCK)?;
        let mut from = 0;
        loop {
            let next = TABLE.lock().next_of(self.key, self.owner, from);
            let Some(held) = next else { break };
            new.take(false, held.start, held.end, held.exclusive)?;
            from = held.end;
        }
        let replaced = TABLE.lock().outside.insert((self.owner, self.key), new.clone());
        drop(replaced);
        // A thread that waits may still have it.
        old.give_up(false, 0, u64::MAX).ok();
        self.outside = Some(new.clone());
        Ok(new)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.outside.take().is_some() {
            drop_unused(self.key, self.owner);
        }
    }
}

fn drop_unused(key: Key, owner: Owner) {
    let unused = TABLE.lock().take_unused(key, owner);
    drop(unused);
}

/// Takes a lock, or EAGAIN, or ENOLCK. After EAGAIN a lock of flock(2) that was to be converted may
/// be gone.
pub fn try_lock(file: &OpenFile, key: Key, wanted: Lock) -> Result {
    let conflict = TABLE.lock().conflict(key, &wanted);
    if conflict.is_some() {
        return Err(Errno::EAGAIN);
    }
    Ok(Claim::new(file, key, wanted.owner)?.take(&wanted)?)
}

/// The lock that stands in the way of a record lock (F_GETLK).
pub fn test(file: &OpenFile, key: Key, wanted: &Lock) -> Result<Option<Holder>> {
    let conflict = TABLE.lock().conflict(key, wanted);
    if let Some(Lock { owner, start, end, exclusive }) = conflict {
        let pid = match owner {
            Owner::Process(pid) => pid as i32,
            Owner::File(_) => -1,
        };
        return Ok(Some(Holder { start, end, exclusive, pid }));
    }
    match &Claim::new(file, key, wanted.owner)?.outside {
        Some(outside) => outside.test(wanted.start, wanted.end, wanted.exclusive),
        None => Ok(None),
    }
}

/// Takes a lock, waiting for it. EDEADLK when record locks of processes of this container wait for
/// each other in a circle.
pub async fn lock(caller: &dyn Caller, file: &OpenFile, key: Key, wanted: Lock) -> Result {
    let mut claim = Claim::new(file, key, wanted.owner)?;
    let turn = claim.outside.as_ref().map(|outside| outside.turn(key.whole_file));
    let queue = TABLE.lock().files.entry(key).or_default().queue.clone();
    let both: [&WaitQueue; 2] = [&queue, turn.as_ref().map_or(&*queue, |turn| turn.queue())];
    let queues = if turn.is_some() { &both[..] } else { &both[..1] };
    let result = block_on(caller, queues, PollMask::READ, None, || {
        let refused = match claim.take(&wanted) {
            Ok(()) => return Ok(()),
            Err(refused) => refused,
        };
        match refused {
            Refused::Inside(holder) if matches!(wanted.owner, Owner::Process(_)) => {
                let mut table = TABLE.lock();
                if table.is_deadlock(wanted.owner, holder) {
                    return Err(Errno::EDEADLK);
                }
                table.waiting.insert(wanted.owner, holder);
            }
            Refused::Outside => {
                TABLE.lock().waiting.remove(&wanted.owner);
                if let (Some(turn), Some(outside)) = (&turn, &claim.outside) {
                    turn.begin(&**outside, wanted.start, wanted.end, wanted.exclusive)?;
                }
            }
            _ => {}
        }
        Err(refused.into())
    })
    .await;
    {
        let mut table = TABLE.lock();
        table.waiting.remove(&wanted.owner);
        table.tidy(key);
    }
    // From here on nothing is taken outside any more.
    drop(turn);
    let has_some = TABLE.lock().has_some(key, wanted.owner);
    if let Some(outside) = claim.outside.as_ref().filter(|_| key.whole_file && !has_some) {
        // Its turn may have come at the very end.
        outside.give_up(true, 0, u64::MAX).ok();
    }
    result
}

/// `pid` is the process that has taken the open file `owner`'s lock by flock(2).
pub fn taken_by(owner: Owner, pid: u32) {
    TABLE.lock().set_taker(owner, pid);
}

/// Gives up what `owner` holds of `start..end`.
pub fn unlock(key: Key, owner: Owner, start: u64, end: u64) {
    // It can fail where a lock is split, which only `try_unlock` does.
    give_up_outside(key, owner, start, end).ok();
    unlock_inside(key, owner, start, end);
}

fn give_up_outside(key: Key, owner: Owner, start: u64, end: u64) -> Result {
    let outside = TABLE.lock().outside.get(&(owner, key)).cloned();
    outside.map_or(Ok(()), |outside| outside.give_up(key.whole_file, start, end))
}

fn unlock_inside(key: Key, owner: Owner, start: u64, end: u64) {
    let queue = {
        let mut table = TABLE.lock();
        if !table.has_some(key, owner) {
            return;
        }
        table.set(key, owner, (start, end), None)
    };
    drop_unused(key, owner);
    queue.wake(PollMask::READ);
}

/// The same on behalf of a program: ENOLCK if that leaves it with one lock more than it may have.
pub fn try_unlock(key: Key, owner: Owner, start: u64, end: u64) -> Result {
    TABLE.lock().check_split(key, owner, start, end)?;
    give_up_outside(key, owner, start, end)?;
    unlock_inside(key, owner, start, end);
    Ok(())
}

/// A descriptor of `file` was closed by `caller`'s process: its record locks on the file are gone.
pub fn closed(caller: &dyn Caller, file: &OpenFile) {
    let owner = Owner::Process(caller.pid());
    if TABLE.lock().count_of(owner) == 0 {
        return;
    }
    if let Ok(key) = Key::of(file, false) {
        unlock(key, owner, 0, u64::MAX);
    }
}

/// The last reference to an open file is gone.
pub fn file_gone(file: *const OpenFile) {
    gone(Owner::File(file as usize));
}

/// A process ended.
pub fn process_ended(pid: u32) {
    gone(Owner::Process(pid));
}

/// Gives up all that `owner` holds.
fn gone(owner: Owner) {
    loop {
        let Some(key) = TABLE.lock().file_of(owner) else { return };
        unlock(key, owner, 0, u64::MAX);
    }
}

#[cfg(test)]
mod tests;
