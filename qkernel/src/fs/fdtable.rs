//! File descriptor tables.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::O_PATH;

use crate::account;
use crate::errno::{Errno, Result};
use crate::fs::OpenFile;
use crate::sync::Mutex;

/// A file descriptor as a program gives it.
pub type Fd = i32;

/// The most descriptors a table may hold whatever RLIMIT_NOFILE says (Linux's default nr_open).
pub const MAX_FDS: usize = 1 << 20;

/// What an open file takes at least, in bytes.
const OPEN_FILE_BYTES: u64 = 512;

#[derive(Clone)]
struct Slot {
    file: Arc<OpenFile>,
    close_on_exec: bool,
}

/// A table of file descriptors, shared by threads (CLONE_FILES).
#[derive(Default)]
pub struct FdTable {
    slots: Mutex<Slots>,
}

/// What a table holds.
#[derive(Default)]
struct Slots {
    list: Vec<Option<Slot>>,
    used: Used,
}

/// Which descriptors are open: a bit for each, and a bit for each word of those that is full, so
/// that the lowest free one of very many is found by looking at few words.
#[derive(Default)]
struct Used {
    open: Vec<u64>,
    full: Vec<u64>,
}

const BITS: usize = u64::BITS as usize;

/// The first bit from `from` on that is not set; those past the end are not.
fn first_clear(words: &[u64], from: usize) -> usize {
    let mut at = from;
    while let Some(word) = words.get(at / BITS) {
        let clear = !word & u64::MAX << (at % BITS);
        if clear != 0 {
            return at / BITS * BITS + clear.trailing_zeros() as usize;
        }
        at = (at / BITS + 1) * BITS;
    }
    at
}

fn set_bit(words: &mut [u64], index: usize, on: bool) {
    if let Some(word) = words.get_mut(index / BITS) {
        let bit = 1 << (index % BITS);
        *word = if on { *word | bit } else { *word & !bit };
    }
}

impl Used {
    /// Makes room for descriptors below `len`. ENOMEM.
    fn grow(&mut self, len: usize) -> Result {
        for (words, bits) in [(&mut self.open, len), (&mut self.full, len.div_ceil(BITS))] {
            let count = bits.div_ceil(BITS);
            if let Some(more) = count.checked_sub(words.len()) {
                words.try_reserve(more).map_err(|_| Errno::ENOMEM)?;
                words.resize(count, 0);
            }
        }
        Ok(())
    }

    /// ENOMEM.
    fn duplicate(&self) -> Result<Used> {
        let mut copy = Used { open: account::vec_for(self.open.len())?, full: Vec::new() };
        copy.full = account::vec_for(self.full.len())?;
        copy.open.extend_from_slice(&self.open);
        copy.full.extend_from_slice(&self.full);
        Ok(copy)
    }

    fn set(&mut self, index: usize, is_open: bool) {
        set_bit(&mut self.open, index, is_open);
        let is_full = self.open.get(index / BITS) == Some(&u64::MAX);
        set_bit(&mut self.full, index / BITS, is_full);
    }

    /// The lowest descriptor that is free and not below `minimum`.
    fn lowest_free(&self, minimum: usize) -> usize {
        let here = first_clear(self.open.get(..=minimum / BITS).unwrap_or(&[]), minimum);
        if here / BITS == minimum / BITS {
            return here;
        }
        let word = first_clear(&self.full, minimum / BITS + 1);
        first_clear(&self.open, word * BITS)
    }
}

impl Slots {
    /// Makes room for descriptors below `len`. ENOMEM.
    fn grow(&mut self, len: usize) -> Result {
        let list = &mut self.list;
        if len > list.capacity() {
            // As vectors grow; a table of many is moved, and both places are taken for a moment.
            let capacity = len.max(list.capacity() * 2).clamp(8, MAX_FDS.max(len));
            account::ask((capacity * size_of::<Option<Slot>>()) as u64)?;
            list.try_reserve_exact(capacity - list.len()).map_err(|_| Errno::ENOMEM)?;
        }
        self.used.grow(len)?;
        list.resize(len, None);
        Ok(())
    }

    /// Puts something into a place that there is: what was there.
    fn put(&mut self, index: usize, slot: Slot) -> Option<Slot> {
        self.used.set(index, true);
        self.list.get_mut(index)?.replace(slot)
    }
}

impl FdTable {
    /// An empty table.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// A copy, as fork(2) makes it. ENOMEM.
    pub fn duplicate(&self) -> Result<Arc<Self>> {
        let slots = self.slots.lock();
        let mut copy: Vec<Option<Slot>> = account::vec_for(slots.list.len())?;
        copy.extend(slots.list.iter().cloned());
        let slots = Slots { list: copy, used: slots.used.duplicate()? };
        Ok(Arc::new(FdTable { slots: Mutex::new(slots) }))
    }

    /// The file of `fd`, or EBADF. Includes O_PATH descriptors.
    pub fn get(&self, fd: Fd) -> Result<Arc<OpenFile>> {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        self.slots
            .lock()
            .list
            .get(index)
            .and_then(|s| s.as_ref())
            .map(|s| s.file.clone())
            .ok_or(Errno::EBADF)
    }

    /// As [`Self::get`], but EBADF for what is only a place (O_PATH).
    pub fn opened(&self, fd: Fd) -> Result<Arc<OpenFile>> {
        let file = self.get(fd)?;
        if file.flags() & O_PATH != 0 { Err(Errno::EBADF) } else { Ok(file) }
    }

    /// Puts a file at the lowest free descriptor not below `minimum`; EMFILE when that reaches
    /// `limit` (RLIMIT_NOFILE).
    pub fn insert(
        &self,
        file: Arc<OpenFile>,
        close_on_exec: bool,
        minimum: Fd,
        limit: u64,
    ) -> Result<Fd> {
        let mut slots = self.slots.lock();
        let limit = usize::try_from(limit).unwrap_or(MAX_FDS).min(MAX_FDS);
        let minimum = usize::try_from(minimum).map_err(|_| Errno::EINVAL)?;
        let index = slots.used.lowest_free(minimum);
        if index >= limit {
            return Err(Errno::EMFILE);
        }
        if index >= slots.list.len() {
            slots.grow(index + 1)?;
        }
        slots.put(index, Slot { file, close_on_exec });
        Ok(index as Fd)
    }

    /// Puts a file at exactly `fd` (dup2(2)): what was there before. EBADF when that is not below
    /// `limit`.
    pub fn replace(
        &self,
        fd: Fd,
        file: Arc<OpenFile>,
        close_on_exec: bool,
        limit: u64,
    ) -> Result<Option<Arc<OpenFile>>> {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        if index as u64 >= limit || index >= MAX_FDS {
            return Err(Errno::EBADF);
        }
        let mut slots = self.slots.lock();
        if index >= slots.list.len() {
            slots.grow(index + 1)?;
        }
        Ok(slots.put(index, Slot { file, close_on_exec }).map(|s| s.file))
    }

    /// Takes a descriptor away: its file, which the caller drops without holding the table.
    pub fn remove(&self, fd: Fd) -> Result<Arc<OpenFile>> {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        let mut slots = self.slots.lock();
        let slot = slots.list.get_mut(index).and_then(Option::take).ok_or(Errno::EBADF)?;
        slots.used.set(index, false);
        while slots.list.last().is_some_and(Option::is_none) {
            slots.list.pop();
        }
        Ok(slot.file)
    }

    /// FD_CLOEXEC of `fd`.
    pub fn close_on_exec(&self, fd: Fd) -> Result<bool> {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        self.slots
            .lock()
            .list
            .get(index)
            .and_then(|s| s.as_ref())
            .map(|s| s.close_on_exec)
            .ok_or(Errno::EBADF)
    }

    /// Sets FD_CLOEXEC of `fd`.
    pub fn set_close_on_exec(&self, fd: Fd, on: bool) -> Result {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        let mut slots = self.slots.lock();
        let slot = slots.list.get_mut(index).and_then(|s| s.as_mut()).ok_or(Errno::EBADF)?;
        slot.close_on_exec = on;
        Ok(())
    }

    /// Sets FD_CLOEXEC of all in `first..=last`.
    pub fn set_close_on_exec_range(&self, first: Fd, last: Fd) {
        let mut slots = self.slots.lock();
        let first = usize::try_from(first).unwrap_or(0);
        let count = usize::try_from(last).map_or(0, |last| (last + 1).saturating_sub(first));
        slots
            .list
            .iter_mut()
            .skip(first)
            .take(count)
            .flatten()
            .for_each(|slot| slot.close_on_exec = true);
    }

    /// The highest open descriptor and one more.
    pub fn end(&self) -> usize {
        self.slots.lock().list.iter().rposition(Option::is_some).map_or(0, |last| last + 1)
    }

    /// Takes away every descriptor in `first..=last` that `which(close_on_exec)` holds for, and
    /// gives its file to `gone`. A few at a time: a list of all might need more memory than there
    /// is, and this is done to give memory back.
    pub fn drain(
        &self,
        first: Fd,
        last: Fd,
        which: impl Fn(bool) -> bool,
        mut gone: impl FnMut(Arc<OpenFile>),
    ) {
        const BATCH: usize = 64;
        let mut next = usize::try_from(first).unwrap_or(0);
        let end = usize::try_from(last).map_or(0, |last| last + 1);
        loop {
            let mut out: [Option<Arc<OpenFile>>; BATCH] = [const { None }; BATCH];
            let mut places = out.iter_mut();
            {
                let mut slots = self.slots.lock();
                let end = end.min(slots.list.len());
                while next < end && places.len() > 0 {
                    let taken = slots.list[next].take_if(|slot| which(slot.close_on_exec));
                    if let Some(slot) = taken
                        && let Some(place) = places.next()
                    {
                        slots.used.set(next, false);
                        *place = Some(slot.file);
                    }
                    next += 1;
                }
            }
            let is_last = places.len() > 0;
            out.into_iter().flatten().for_each(&mut gone);
            if is_last {
                return;
            }
        }
    }

    /// Memory that its files hold and that their last close gives back, about, in bytes, with the
    /// table itself.
    pub fn held_bytes(&self) -> u64 {
        let slots = self.slots.lock();
        let files = slots
            .list
            .iter()
            .flatten()
            .map(|slot| OPEN_FILE_BYTES + slot.file.ops.held_bytes())
            .sum::<u64>();
        files + (slots.list.len() * size_of::<Option<Slot>>()) as u64
    }

    /// At most `most` open descriptors, ascending, from `from` on.
    pub fn list(&self, from: usize, most: usize) -> Vec<Fd> {
        let slots = self.slots.lock();
        let open = slots.list.iter().enumerate().skip(from).filter(|(_, slot)| slot.is_some());
        open.map(|(index, _)| index as Fd).take(most).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_one_is_found_among_many() {
        let mut used = Used::default();
        assert_eq!((used.lowest_free(0), used.lowest_free(7), used.lowest_free(700)), (0, 7, 700));
        const MANY: usize = 3 * BITS * BITS + 5;
        used.grow(MANY).expect("memory");
        (0..MANY).for_each(|i| used.set(i, true));
        assert_eq!((used.lowest_free(0), used.lowest_free(1 << 20)), (MANY, 1 << 20));
        for hole in [MANY - 1, BITS * BITS, BITS * BITS - 1, 70, 64, 63, 0] {
            used.set(hole, false);
            assert_eq!(used.lowest_free(0), hole);
        }
        for (minimum, free) in [(1, 63), (64, 64), (65, 70), (71, BITS * BITS - 1)] {
            assert_eq!(used.lowest_free(minimum), free);
        }
        assert_eq!(used.lowest_free(BITS * BITS + 1), MANY - 1);
        assert_eq!(used.duplicate().expect("memory").lowest_free(1), 63);
        used.set(0, true);
        assert_eq!(used.lowest_free(0), 63);
    }

    #[test]
    fn descriptors_are_given_from_below() {
        let table = FdTable::new();
        let file = OpenFile::new(crate::ipc::eventfd::EventFd::new(0, false), 0);
        let open = |minimum| table.insert(file.clone(), false, minimum, 100);
        let all: Vec<_> = (0..70).map(|_| open(0)).collect();
        assert!(all.iter().enumerate().all(|(i, fd)| *fd == Ok(i as Fd)));
        table.remove(65).expect("it is open");
        table.remove(3).expect("it is open");
        assert_eq!((open(4), open(0), open(90), open(0)), (Ok(65), Ok(3), Ok(90), Ok(70)));
        assert!(table.replace(95, file.clone(), false, 100).is_ok_and(|before| before.is_none()));
        assert_eq!((open(95), open(99), open(99)), (Ok(96), Ok(99), Err(Errno::EMFILE)));
        table.drain(10, 20, |_| true, drop);
        assert_eq!(table.duplicate().expect("memory").insert(file.clone(), false, 0, 100), Ok(10));
        assert_eq!((open(0), open(20), open(21)), (Ok(10), Ok(20), Ok(71)));
    }
}
