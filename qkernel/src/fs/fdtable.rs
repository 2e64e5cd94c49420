//! File descriptor tables.

use alloc::sync::Arc;
use alloc::vec::Vec;

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
    /// Every descriptor below is open.
    full_below: usize,
}

impl Slots {
    /// The lowest descriptor that is free and not below `minimum`.
    fn lowest_free(&self, minimum: usize) -> usize {
        let from = self.full_below.max(minimum);
        let free = self.list.iter().skip(from).position(Option::is_none);
        free.map_or(self.list.len().max(from), |i| from + i)
    }

    /// The descriptor is closed now.
    fn closed(&mut self, index: usize) {
        self.full_below = self.full_below.min(index);
    }
}

/// Makes room for descriptors below `len`. ENOMEM.
fn grow(list: &mut Vec<Option<Slot>>, len: usize) -> Result {
    if len > list.capacity() {
        // As vectors grow; a table of many is moved, and both places are taken for a moment.
        let capacity = len.max(list.capacity() * 2).clamp(8, MAX_FDS.max(len));
        account::ask((capacity * size_of::<Option<Slot>>()) as u64)?;
        list.try_reserve_exact(capacity - list.len()).map_err(|_| Errno::ENOMEM)?;
    }
    list.resize(len, None);
    Ok(())
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
        let slots = Slots { list: copy, full_below: slots.full_below };
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
        let index = slots.lowest_free(minimum);
        if index >= limit {
            return Err(Errno::EMFILE);
        }
        if index >= slots.list.len() {
            grow(&mut slots.list, index + 1)?;
        }
        slots.list[index] = Some(Slot { file, close_on_exec });
        if minimum <= slots.full_below {
            slots.full_below = index + 1;
        }
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
            grow(&mut slots.list, index + 1)?;
        }
        Ok(slots.list[index].replace(Slot { file, close_on_exec }).map(|s| s.file))
    }

    /// Takes a descriptor away: its file, which the caller drops without holding the table.
    pub fn remove(&self, fd: Fd) -> Result<Arc<OpenFile>> {
        let index = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        let mut slots = self.slots.lock();
        let slot = slots.list.get_mut(index).and_then(Option::take).ok_or(Errno::EBADF)?;
        slots.closed(index);
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
                        slots.closed(next);
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

    fn all_closed(count: usize) -> Slots {
        Slots { list: alloc::vec![None; count], full_below: 0 }
    }

    #[test]
    fn the_lowest_free_one_is_found_from_where_all_below_are_open() {
        let empty = all_closed(0);
        assert_eq!(empty.lowest_free(0), 0);
        assert_eq!(empty.lowest_free(7), 7);
        let mut holes = all_closed(5);
        assert_eq!(holes.lowest_free(3), 3);
        holes.full_below = 2;
        assert_eq!((holes.lowest_free(0), holes.lowest_free(4), holes.lowest_free(9)), (2, 4, 9));
        holes.closed(1);
        assert_eq!(holes.lowest_free(0), 1);
    }
}
