//! Who holds what: the locks of all files, and how many there may be.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::ops::Bound::{Excluded, Unbounded};

use crate::account;
use crate::errno::{Errno, Result};
use crate::fs::OpenFile;
use crate::fs::outside::OutsideLocks;
use crate::wait::WaitQueue;

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
    pub(super) dev: u64,
    pub(super) ino: u64,
    pub(super) whole_file: bool,
}

const FIRST_KEY: Key = Key { dev: 0, ino: 0, whole_file: false };

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

/// The locks of one kind on one file.
#[derive(Default)]
pub(super) struct FileLocks {
    /// By owner and first byte; those of one owner do not overlap.
    by_owner: BTreeMap<(Owner, u64), Extent>,
    /// The same by what they exclude, class of length, and first byte: past the last byte.
    by_place: BTreeMap<Place, u64>,
    pub(super) queue: Arc<WaitQueue>,
}

#[derive(Clone, Copy)]
struct Extent {
    end: u64,
    exclusive: bool,
}

/// Exclusive; class of length; first byte; owner.
type Place = (bool, u8, u64, Owner);

/// Comes before any other in order.
const FIRST_OWNER: Owner = Owner::Process(0);

/// The locks of class n have 2^n bytes or more, and less than twice as many. So those that overlap
/// a range begin in it, or not far before.
fn class(start: u64, end: u64) -> u8 {
    (end - start).checked_ilog2().unwrap_or(0) as u8
}

impl FileLocks {
    fn insert(&mut self, lock: Lock) {
        let Lock { owner, start, end, exclusive } = lock;
        self.by_owner.insert((owner, start), Extent { end, exclusive });
        self.by_place.insert((exclusive, class(start, end), start, owner), end);
    }

    /// The last lock of `owner` that overlaps `start..end`.
    fn last_of(&self, owner: Owner, start: u64, end: u64) -> Option<Lock> {
        let ((_, at), held) = self.by_owner.range((owner, 0)..(owner, end)).next_back()?;
        let lock = Lock { owner, start: *at, end: held.end, exclusive: held.exclusive };
        Some(lock).filter(|lock| lock.end > start)
    }

    /// Sets `start..end`, merging and splitting what its owner has there; `None`: takes it away.
    fn apply(&mut self, owner: Owner, start: u64, end: u64, exclusive: Option<bool>) {
        while let Some(lock) = self.last_of(owner, start, end) {
            self.by_owner.remove(&(owner, lock.start));
            let class = class(lock.start, lock.end);
            self.by_place.remove(&(lock.exclusive, class, lock.start, owner));
            if lock.end > end {
                self.insert(Lock { start: end, ..lock });
            }
            if lock.start < start {
                self.insert(Lock { end: start, ..lock });
            }
        }
        if let Some(exclusive) = exclusive {
            self.insert(Lock { owner, start, end, exclusive });
        }
    }

    /// A lock of another owner that stands in the way of `wanted`.
    pub(super) fn conflict(&self, wanted: &Lock) -> Option<Lock> {
        self.other(wanted, true).or_else(|| self.other(wanted, false).filter(|_| wanted.exclusive))
    }

    /// A lock of another owner, exclusive or not, that overlaps `wanted`.
    fn other(&self, wanted: &Lock, exclusive: bool) -> Option<Lock> {
        let mut next = 0;
        loop {
            let mut rest = self.by_place.range((exclusive, next, 0, FIRST_OWNER)..);
            let class =
                rest.next().map(|(place, _)| *place).filter(|place| place.0 == exclusive)?.1;
            let before = 2u64.checked_shl(class.into()).filter(|n| *n > 0).unwrap_or(u64::MAX);
            let from = wanted.start.saturating_sub(before);
            let places =
                (exclusive, class, from, FIRST_OWNER)..(exclusive, class, wanted.end, FIRST_OWNER);
            let overlaps =
                |(place, end): &(&Place, &u64)| place.3 != wanted.owner && **end > wanted.start;
            if let Some((place, end)) = self.by_place.range(places).find(overlaps) {
                return Some(Lock { owner: place.3, start: place.2, end: *end, exclusive });
            }
            next = class + 1;
        }
    }
}

/// All locks.
pub(super) struct Table {
    pub(super) files: BTreeMap<Key, FileLocks>,
    /// How many locks an owner has on each file, and in all; how many there are.
    own: BTreeMap<(Owner, Key), usize>,
    counts: BTreeMap<Owner, usize>,
    all: usize,
    /// The process that took an open file's lock by flock(2), for /proc/locks.
    takers: BTreeMap<Owner, u32>,
    /// Which owner each waiting owner waits for.
    pub(super) waiting: BTreeMap<Owner, Owner>,
    /// How those outside see the locks of an owner who has some there, or is about to.
    pub(super) outside: BTreeMap<(Owner, Key), Arc<dyn OutsideLocks>>,
}

/// What a lock takes, about, in bytes.
const LOCK_BYTES: u64 = 256;
/// So many anybody may have.
const FEW: usize = 64;

/// Locks that there may be (ENOLCK), twice as many if nobody has more than [`FEW`]: no process's
/// end gives back what open files of others hold.
fn most() -> usize {
    (account::memory_bytes() / 64 / LOCK_BYTES).clamp(4096, 65_536) as usize
}

/// Those that one owner may have.
pub(super) fn most_of_one() -> usize {
    most() / 4
}

impl Table {
    pub(super) const fn empty() -> Self {
        Table {
            files: BTreeMap::new(),
            own: BTreeMap::new(),
            counts: BTreeMap::new(),
            all: 0,
            takers: BTreeMap::new(),
            waiting: BTreeMap::new(),
            outside: BTreeMap::new(),
        }
    }

    pub(super) fn count_of(&self, owner: Owner) -> usize {
        self.counts.get(&owner).copied().unwrap_or(0)
    }

    /// ENOLCK if `owner` may have no further lock.
    pub(super) fn check_room(&self, owner: Owner) -> Result {
        if self.all < FEW {
            return Ok(());
        }
        let own = self.count_of(owner);
        let most = most();
        if own >= most_of_one() || self.all >= most && own >= FEW || self.all >= 2 * most {
            Err(Errno::ENOLCK)
        } else {
            Ok(())
        }
    }

    /// Sets a range of a file's bytes, or takes it away (`None`): the queue of those who wait.
    pub(super) fn set(
        &mut self,
        key: Key,
        owner: Owner,
        (start, end): (u64, u64),
        exclusive: Option<bool>,
    ) -> Arc<WaitQueue> {
        let file = self.files.entry(key).or_default();
        let before = file.by_owner.len();
        file.apply(owner, start, end, exclusive);
        let after = file.by_owner.len();
        let queue = file.queue.clone();
        let recount = |n: usize| n + after - before;
        self.all = recount(self.all);
        let here = recount(self.own.remove(&(owner, key)).unwrap_or(0));
        let everywhere = recount(self.counts.remove(&owner).unwrap_or(0));
        if here > 0 {
            self.own.insert((owner, key), here);
        }
        if everywhere > 0 {
            self.counts.insert(owner, everywhere);
        } else {
            self.takers.remove(&owner);
        }
        self.tidy(key);
        queue
    }

    /// Forgets the file if nobody has a lock on it or waits for one.
    pub(super) fn tidy(&mut self, key: Key) {
        let is_idle = |file: &FileLocks| file.by_owner.is_empty() && file.queue.is_empty();
        if self.files.get(&key).is_some_and(is_idle) {
            self.files.remove(&key);
        }
    }

    /// A lock of somebody else that stands in the way of `wanted`.
    pub(super) fn conflict(&self, key: Key, wanted: &Lock) -> Option<Lock> {
        self.files.get(&key)?.conflict(wanted)
    }

    /// True if `owner` has a lock on the file.
    pub(super) fn has_some(&self, key: Key, owner: Owner) -> bool {
        self.own.contains_key(&(owner, key))
    }

    /// The first lock of `owner` on the file that begins at `from` or after it.
    pub(super) fn next_of(&self, key: Key, owner: Owner, from: u64) -> Option<Lock> {
        let own = (owner, from)..=(owner, u64::MAX);
        let ((_, start), held) = self.files.get(&key)?.by_owner.range(own).next()?;
        Some(Lock { owner, start: *start, end: held.end, exclusive: held.exclusive })
    }

    /// The lock after `last` in the order of files, owners and first bytes; `None`: the first one.
    pub(super) fn after(&self, last: Option<(Key, Lock)>) -> Option<(Key, Lock)> {
        let (key, from) = match last {
            Some((key, lock)) => (key, Excluded((lock.owner, lock.start))),
            None => (FIRST_KEY, Unbounded),
        };
        let rest = self.files.get(&key).and_then(|f| f.by_owner.range((from, Unbounded)).next());
        let (key, (at, held)) = match rest {
            Some(lock) => (key, lock),
            None => {
                let mut others = self.files.range((Excluded(key), Unbounded));
                others.find_map(|(key, file)| Some((*key, file.by_owner.first_key_value()?)))?
            }
        };
        Some((key, Lock { owner: at.0, start: at.1, end: held.end, exclusive: held.exclusive }))
    }

    /// Who took the locks of an open file by flock(2), as long as it has some.
    pub(super) fn set_taker(&mut self, owner: Owner, pid: u32) {
        if self.count_of(owner) > 0 {
            self.takers.insert(owner, pid);
        }
    }

    /// See there; 0 if nobody did.
    pub(super) fn taker_of(&self, owner: Owner) -> u32 {
        self.takers.get(&owner).copied().unwrap_or(0)
    }

    /// ENOLCK if the owner may not have one lock more, as taking `start..end` out of the middle of
    /// one makes two.
    pub(super) fn check_split(&self, key: Key, owner: Owner, start: u64, end: u64) -> Result {
        let around = self.files.get(&key).and_then(|file| file.last_of(owner, start, end));
        match around.is_some_and(|lock| lock.start < start && end < lock.end) {
            true => self.check_room(owner),
            false => Ok(()),
        }
    }

    /// Takes the outside's view of an owner's locks out if it has none and nobody is about to take
    /// one: for the caller to drop, without holding the table.
    pub(super) fn take_unused(&mut self, key: Key, owner: Owner) -> Option<Arc<dyn OutsideLocks>> {
        let is_unused = |held: &Arc<dyn OutsideLocks>| Arc::strong_count(held) == 1;
        if self.has_some(key, owner) || !self.outside.get(&(owner, key)).is_some_and(is_unused) {
            return None;
        }
        self.outside.remove(&(owner, key))
    }

    /// A file that `owner` has locks on.
    pub(super) fn file_of(&self, owner: Owner) -> Option<Key> {
        let mut own = self.own.range((owner, FIRST_KEY)..);
        own.next().map(|(at, _)| *at).filter(|at| at.0 == owner).map(|at| at.1)
    }

    /// True if `owner` would wait for itself if it waited for `holder`.
    pub(super) fn is_deadlock(&self, owner: Owner, holder: Owner) -> bool {
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

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::collection;
    use proptest::prelude::*;

    use super::*;

    fn lock(pid: u32, start: u64, end: u64, exclusive: bool) -> Lock {
        Lock { owner: Owner::Process(pid), start, end, exclusive }
    }

    fn file(locks: &[Lock]) -> FileLocks {
        let mut file = FileLocks::default();
        for lock in locks {
            file.apply(lock.owner, lock.start, lock.end, Some(lock.exclusive));
        }
        file
    }

    fn held(file: &FileLocks) -> Vec<Lock> {
        assert_eq!(file.by_owner.len(), file.by_place.len());
        let lock = |(at, e): (&(Owner, u64), &Extent)| Lock {
            owner: at.0,
            start: at.1,
            end: e.end,
            exclusive: e.exclusive,
        };
        file.by_owner.iter().map(lock).collect()
    }

    #[test]
    fn a_lock_in_the_middle_splits_and_a_new_one_replaces() {
        let mut file = file(&[lock(1, 0, 100, true)]);
        file.apply(Owner::Process(1), 40, 60, None);
        assert_eq!(held(&file), [lock(1, 0, 40, true), lock(1, 60, 100, true)]);
        file.apply(Owner::Process(1), 0, 100, Some(false));
        assert_eq!(held(&file), [lock(1, 0, 100, false)]);
    }

    proptest! {
        #[test]
        fn conflicts_are_those_that_a_look_at_all_finds(
            locks in collection::vec((1..4u32, 0..200u64, 0..9u32, any::<bool>()), 0..40),
        ) {
            let mut table = Table::empty();
            let key = Key { dev: 1, ino: 1, whole_file: false };
            for (pid, start, power, exclusive) in locks {
                // Some are as long as can be.
                let end = if power == 8 { u64::MAX } else { start + (1 << power) + start % 3 };
                let wanted = lock(pid, start, end, exclusive);
                let all = table.files.get(&key).map_or(Vec::new(), held);
                let in_the_way = |l: &&Lock| {
                    l.owner != wanted.owner
                        && (l.exclusive || exclusive)
                        && l.start < end
                        && start < l.end
                };
                let found = table.files.get(&key).and_then(|file| file.conflict(&wanted));
                prop_assert_eq!(found.is_some(), all.iter().any(|l| in_the_way(&l)));
                prop_assert!(found.as_ref().is_none_or(|l| all.contains(l) && in_the_way(&l)));
                let change = found.is_none().then_some(exclusive);
                table.set(key, wanted.owner, (start, end), change);
                let all = table.files.get(&key).map_or(Vec::new(), held);
                let own = all.iter().filter(|l| l.owner == wanted.owner).count();
                prop_assert_eq!((table.all, table.count_of(wanted.owner)), (all.len(), own));
                prop_assert_eq!(table.own.contains_key(&(wanted.owner, key)), own > 0);
                prop_assert_eq!(table.files.is_empty(), all.is_empty());
            }
        }
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let held = file(&[lock(1, 0, 10, false)]);
        assert_eq!(held.conflict(&lock(2, 5, 6, false)), None);
        assert_eq!(held.conflict(&lock(2, 5, 6, true)), Some(lock(1, 0, 10, false)));
        assert_eq!(held.conflict(&lock(2, 10, 11, true)), None);
        assert_eq!(held.conflict(&lock(1, 0, 10, true)), None);
    }

    #[test]
    fn all_are_listed_once() {
        let mut table = Table::empty();
        let key = |dev, ino, whole_file| Key { dev, ino, whole_file };
        let owners = [Owner::Process(3), Owner::Process(4), Owner::File(3)];
        let mut all = Vec::new();
        for key in [FIRST_KEY, key(0, 0, true), key(1, 7, false), key(2, 1, false)] {
            for owner in owners {
                for start in [0, 20] {
                    table.set(key, owner, (start, start + 10), Some(false));
                    all.push((key, Lock { owner, start, end: start + 10, exclusive: false }));
                }
            }
        }
        // One for which somebody waits, and which nobody has a lock on.
        table.files.entry(key(1, 6, false)).or_default();
        let listed: Vec<_> =
            core::iter::successors(table.after(None), |last| table.after(Some(*last))).collect();
        assert_eq!(listed, all);
        table.set_taker(owners[2], 9);
        table.set_taker(Owner::File(4), 9);
        assert_eq!((table.taker_of(owners[2]), table.taker_of(Owner::File(4))), (9, 0));
        for (key, lock) in all {
            table.set(key, lock.owner, (lock.start, lock.end), None);
        }
        assert_eq!((table.after(None), table.taker_of(owners[2])), (None, 0));
    }

    #[test]
    fn a_circle_of_waiting_owners_is_found() {
        let mut table = Table::empty();
        let p = Owner::Process;
        table.waiting.insert(p(2), p(3));
        table.waiting.insert(p(3), p(1));
        assert!(table.is_deadlock(p(1), p(2)));
        assert!(!table.is_deadlock(p(4), p(2)));
    }
}
