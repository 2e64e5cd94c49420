//! Advisory locks: record locks of processes and of open files (fcntl(2)), and flock(2). Known to
//! this container only.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::errno::{Errno, Result};
use crate::fs::{Caller, OpenFile};
use crate::sync::{Mutex, mutex};
use crate::wait::{PollMask, WaitQueue, block_on};

/// Who holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A process (POSIX record locks).
    Process(u32),
    /// An open file description, by its address (F_OFD_* and flock(2)).
    File(usize),
}

impl Owner {
    /// The owner of an open file's locks.
    pub fn of_file(file: &Arc<OpenFile>) -> Self {
        Owner::File(Arc::as_ptr(file) as usize)
    }
}

/// A lock on the bytes `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Who holds it.
    pub owner: Owner,
    /// First byte.
    pub start: u64,
    /// Past the last byte; `u64::MAX`: to the end of the file.
    pub end: u64,
    /// A write lock.
    pub exclusive: bool,
}

/// Which file, and which of the two kinds of locks, which do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    dev: u64,
    ino: u64,
    whole_file: bool,
}

impl Key {
    /// For record locks, or with `whole_file` for flock(2).
    pub fn of(file: &OpenFile, whole_file: bool) -> Result<Self> {
        let attributes = match &file.path {
            Some(place) => place.inode().permissions()?,
            None => file.attributes()?,
        };
        Ok(Key { dev: attributes.dev, ino: attributes.ino, whole_file })
    }
}

#[derive(Default)]
struct FileLocks {
    held: Vec<Lock>,
    queue: Arc<WaitQueue>,
}

struct Table {
    files: BTreeMap<Key, FileLocks>,
    /// Which owner each waiting owner waits for.
    waiting: BTreeMap<Owner, Owner>,
}

static TABLE: Mutex<Table> = mutex(Table { files: BTreeMap::new(), waiting: BTreeMap::new() });

/// Sets `wanted` in `held`, merging and splitting what its owner has there; `None`: takes it away.
fn apply(held: &mut Vec<Lock>, owner: Owner, start: u64, end: u64, exclusive: Option<bool>) {
    let mut rest = Vec::new();
    held.retain(|lock| {
        if lock.owner != owner || lock.end <= start || lock.start >= end {
            return true;
        }
        if lock.start < start {
            rest.push(Lock { end: start, ..*lock });
        }
        if lock.end > end {
            rest.push(Lock { start: end, ..*lock });
        }
        false
    });
    held.extend(rest);
    if let Some(exclusive) = exclusive {
        held.push(Lock { owner, start, end, exclusive });
    }
}

fn conflict(held: &[Lock], wanted: &Lock) -> Option<Lock> {
    held.iter()
        .find(|l| {
            l.owner != wanted.owner
                && (l.exclusive || wanted.exclusive)
                && l.start < wanted.end
                && wanted.start < l.end
        })
        .copied()
}

/// Locks that there may be, and that one owner may have (ENOLCK). Whoever closes a file or ends
/// looks at all of them, and no process's end gives back what open files of others hold.
const MOST: usize = 16_384;
const MOST_OF_ONE: usize = 4096;
/// So many anybody may have.
const FEW: usize = 64;

impl Table {
    /// ENOLCK if `owner` may have no further lock.
    fn check_room(&self, owner: Owner) -> Result {
        let all: usize = self.files.values().map(|file| file.held.len()).sum();
        if all < FEW {
            return Ok(());
        }
        let own = self
            .files
            .values()
            .flat_map(|file| &file.held)
            .filter(|lock| lock.owner == owner)
            .count();
        if own >= MOST_OF_ONE || all >= MOST && own >= FEW || all >= 2 * MOST {
            Err(Errno::ENOLCK)
        } else {
            Ok(())
        }
    }

    /// True if `owner` would wait for itself if it waited for `holder`.
    fn is_deadlock(&self, owner: Owner, holder: Owner) -> bool {
        let mut at = holder;
        for _ in 0..self.waiting.len() + 1 {
            if at == owner {
                return true;
            }
            match self.waiting.get(&at) {
                Some(next) => at = *next,
                None => return false,
            }
        }
        false
    }
}

/// Takes a lock, or EAGAIN, or ENOLCK.
pub fn try_lock(key: Key, wanted: Lock) -> Result {
    let queue = {
        let mut table = TABLE.lock();
        if table.files.get(&key).is_some_and(|file| conflict(&file.held, &wanted).is_some()) {
            return Err(Errno::EAGAIN);
        }
        table.check_room(wanted.owner)?;
        let file = table.files.entry(key).or_default();
        apply(&mut file.held, wanted.owner, wanted.start, wanted.end, Some(wanted.exclusive));
        file.queue.clone()
    };
    // A write lock that became a read lock lets others in.
    queue.wake(PollMask::READ);
    Ok(())
}

/// The lock that stands in the way of `wanted` (F_GETLK).
pub fn test(key: Key, wanted: &Lock) -> Option<Lock> {
    TABLE.lock().files.get(&key).and_then(|file| conflict(&file.held, wanted))
}

/// Takes a lock, waiting for it. EDEADLK when record locks of processes wait for each other in a
/// circle.
pub async fn lock(caller: &dyn Caller, key: Key, wanted: Lock) -> Result {
    let queue = TABLE.lock().files.entry(key).or_default().queue.clone();
    let result = block_on(caller, &[&queue], PollMask::READ, None, || {
        let result = try_lock(key, wanted);
        if result == Err(Errno::EAGAIN) && matches!(wanted.owner, Owner::Process(_)) {
            let mut table = TABLE.lock();
            if let Some(holder) = table.files.get(&key).and_then(|f| conflict(&f.held, &wanted)) {
                if table.is_deadlock(wanted.owner, holder.owner) {
                    return Err(Errno::EDEADLK);
                }
                table.waiting.insert(wanted.owner, holder.owner);
            }
        }
        result
    })
    .await;
    TABLE.lock().waiting.remove(&wanted.owner);
    result
}

/// Gives up what `owner` holds of `start..end`.
pub fn unlock(key: Key, owner: Owner, start: u64, end: u64) {
    release(|k, l| *k == key && l == owner, start, end);
}

/// The same on behalf of a program: ENOLCK if that leaves it with one lock more than it may have.
pub fn try_unlock(key: Key, owner: Owner, start: u64, end: u64) -> Result {
    {
        let table = TABLE.lock();
        let splits = |l: &Lock| l.owner == owner && l.start < start && end < l.end;
        if table.files.get(&key).is_some_and(|file| file.held.iter().any(splits)) {
            table.check_room(owner)?;
        }
    }
    unlock(key, owner, start, end);
    Ok(())
}

/// A descriptor of `file` was closed by `caller`'s process: its record locks on the file are gone.
pub fn closed(caller: &dyn Caller, file: &OpenFile) {
    if TABLE.lock().files.is_empty() {
        return;
    }
    if let Ok(key) = Key::of(file, false) {
        unlock(key, Owner::Process(caller.pid()), 0, u64::MAX);
    }
}

/// The last reference to an open file is gone.
pub fn file_gone(file: *const OpenFile) {
    release(|_, l| l == Owner::File(file as usize), 0, u64::MAX);
}

/// A process ended.
pub fn process_ended(pid: u32) {
    release(|_, l| l == Owner::Process(pid), 0, u64::MAX);
}

fn release(which: impl Fn(&Key, Owner) -> bool, start: u64, end: u64) {
    let mut wake = Vec::new();
    {
        let mut table = TABLE.lock();
        if table.files.is_empty() {
            return;
        }
        table.files.retain(|key, file| {
            let mut owners: Vec<Owner> =
                file.held.iter().map(|l| l.owner).filter(|o| which(key, *o)).collect();
            owners.sort_unstable();
            owners.dedup();
            if !owners.is_empty() {
                wake.push(file.queue.clone());
            }
            for owner in owners {
                apply(&mut file.held, owner, start, end, None);
            }
            !file.held.is_empty() || !file.queue.is_empty()
        });
    }
    for queue in wake {
        queue.wake(PollMask::READ);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(pid: u32, start: u64, end: u64, exclusive: bool) -> Lock {
        Lock { owner: Owner::Process(pid), start, end, exclusive }
    }

    #[test]
    fn a_lock_in_the_middle_splits_and_a_new_one_replaces() {
        let mut held = alloc::vec![lock(1, 0, 100, true)];
        apply(&mut held, Owner::Process(1), 40, 60, None);
        held.sort_by_key(|l| l.start);
        assert_eq!(held, [lock(1, 0, 40, true), lock(1, 60, 100, true)]);
        apply(&mut held, Owner::Process(1), 0, 100, Some(false));
        assert_eq!(held, [lock(1, 0, 100, false)]);
    }

    #[test]
    fn locks_are_limited_and_nobody_takes_all() {
        let key = |ino| Key { dev: 77, ino, whole_file: false };
        let [greedy, modest] = [Owner::Process(1), Owner::Process(2)];
        let byte = |owner, at: u64| Lock { owner, start: 2 * at, end: 2 * at + 1, exclusive: true };
        let mut got = 0;
        while try_lock(key(1), byte(greedy, got)).is_ok() {
            got += 1;
        }
        assert_eq!(got as usize, MOST_OF_ONE);
        assert_eq!(try_lock(key(1), byte(greedy, got)), Err(Errno::ENOLCK));
        assert_eq!(try_lock(key(2), byte(modest, 0)), Ok(()));
        unlock(key(1), greedy, 0, 2);
        let wide = Lock { owner: greedy, start: 1 << 40, end: 1 << 41, exclusive: true };
        assert_eq!(try_lock(key(1), wide), Ok(()));
        assert_eq!(
            try_unlock(key(1), greedy, (1 << 40) + 1, (1 << 40) + 2),
            Err(Errno::ENOLCK),
            "it would be two"
        );
        assert_eq!(try_unlock(key(1), greedy, 1 << 40, 1 << 41), Ok(()));
        process_ended(1);
        process_ended(2);
        assert!(!TABLE.lock().files.contains_key(&key(1)));
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let held = [lock(1, 0, 10, false)];
        assert_eq!(conflict(&held, &lock(2, 5, 6, false)), None);
        assert_eq!(conflict(&held, &lock(2, 5, 6, true)), Some(held[0]));
        assert_eq!(conflict(&held, &lock(2, 10, 11, true)), None);
        assert_eq!(conflict(&held, &lock(1, 0, 10, true)), None);
    }

    #[test]
    fn a_circle_of_waiting_owners_is_found() {
        let mut table = Table { files: BTreeMap::new(), waiting: BTreeMap::new() };
        let p = Owner::Process;
        table.waiting.insert(p(2), p(3));
        table.waiting.insert(p(3), p(1));
        assert!(table.is_deadlock(p(1), p(2)));
        assert!(!table.is_deadlock(p(4), p(2)));
    }
}
