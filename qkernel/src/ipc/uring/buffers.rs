//! Buffers that programs leave with a ring: groups to choose one from (IORING_OP_PROVIDE_BUFFERS),
//! and a table of those that requests name by number (IORING_REGISTER_BUFFERS).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use qlib::Va;

use crate::account;
use crate::errno::{Errno, Result};

/// A buffer of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provided {
    /// Where it lies.
    pub address: Va,
    /// Its size in bytes.
    pub length: usize,
    /// Its number.
    pub number: u16,
}

/// All that a ring has been given.
#[derive(Default)]
pub struct Buffers {
    groups: BTreeMap<u16, VecDeque<Provided>>,
    /// Those that were registered; `None`: none were.
    pub registered: Option<Vec<(Va, usize)>>,
}

impl Buffers {
    /// One more buffer of a group. ENOMEM.
    pub fn provide(&mut self, group: u16, buffer: Provided) -> Result {
        let list = self.groups.entry(group).or_default();
        account::room_in(list)?;
        list.push_back(buffer);
        Ok(())
    }

    /// Takes a buffer of a group. ENOBUFS.
    pub fn take(&mut self, group: u16) -> Result<Provided> {
        let list = self.groups.get_mut(&group).ok_or(Errno::ENOBUFS)?;
        let taken = list.pop_front().ok_or(Errno::ENOBUFS)?;
        if list.is_empty() {
            self.groups.remove(&group);
        }
        Ok(taken)
    }

    /// Gives one back that was taken and not used.
    pub fn give_back(&mut self, group: u16, buffer: Provided) {
        let list = self.groups.entry(group).or_default();
        // Others may have been provided meanwhile: without memory it is lost to its group.
        if account::room_in(list).is_ok() {
            list.push_front(buffer);
        }
    }

    /// Takes at most `most` buffers of a group away: how many. ENOENT.
    pub fn remove(&mut self, group: u16, most: usize) -> Result<usize> {
        let list = self.groups.get_mut(&group).ok_or(Errno::ENOENT)?;
        let count = most.min(list.len());
        list.drain(..count);
        if list.is_empty() {
            self.groups.remove(&group);
        }
        Ok(count)
    }

    /// Bytes of the kernel's memory that the lists take, about.
    pub fn held_bytes(&self) -> usize {
        let provided: usize = self.groups.values().map(VecDeque::len).sum();
        let registered = self.registered.as_ref().map_or(0, Vec::len);
        provided * size_of::<Provided>() + registered * size_of::<(Va, usize)>()
    }

    /// EFAULT unless the range lies in registered buffer `number`.
    pub fn check(&self, number: u16, address: Va, length: usize) -> Result {
        let list = self.registered.as_ref().ok_or(Errno::EFAULT)?;
        let (start, size) = *list.get(usize::from(number)).ok_or(Errno::EFAULT)?;
        let offset = address.0.checked_sub(start.0).ok_or(Errno::EFAULT)?;
        let end = offset.checked_add(length as u64).ok_or(Errno::EFAULT)?;
        if end <= size as u64 { Ok(()) } else { Err(Errno::EFAULT) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_lies_in_its_buffer_or_is_refused() {
        let registered = Some(alloc::vec![(Va(0x1000), 0x100), (Va(u64::MAX - 15), 15)]);
        let buffers = Buffers { registered, ..Buffers::default() };
        assert_eq!(buffers.check(0, Va(0x1000), 0x100), Ok(()));
        assert_eq!(buffers.check(0, Va(0x10ff), 1), Ok(()));
        assert_eq!(buffers.check(1, Va(u64::MAX - 15), 15), Ok(()));
        for (number, at, length) in [
            (0, 0xfff, 1),
            (0, 0x1000, 0x101),
            (0, 0x1001, usize::MAX),
            (2, 0x1000, 1),
            (1, u64::MAX, 16),
        ] {
            assert_eq!(buffers.check(number, Va(at), length), Err(Errno::EFAULT));
        }
        assert_eq!(Buffers::default().check(0, Va(0), 0), Err(Errno::EFAULT));
    }

    #[test]
    fn buffers_of_a_group_are_taken_in_their_order() {
        let mut buffers = Buffers::default();
        let buffer = |number| Provided { address: Va(0), length: 1, number };
        assert_eq!(buffers.take(7), Err(Errno::ENOBUFS));
        (1..4).for_each(|number| buffers.provide(7, buffer(number)).expect("memory"));
        assert_eq!(buffers.take(7), Ok(buffer(1)));
        buffers.give_back(7, buffer(1));
        assert_eq!(buffers.take(7), Ok(buffer(1)));
        assert_eq!((buffers.remove(7, 9), buffers.remove(7, 9)), (Ok(2), Err(Errno::ENOENT)));
    }
}
