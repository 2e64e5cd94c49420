//! Which file lies behind which range of the window area, and which ranges are free. Only
//! bookkeeping: the mappings themselves are made by [`super::GuestMemory`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use qlib::{Gpa, PAGE_SIZE};
use rustix::io::Errno;

/// One file window.
#[derive(Debug)]
pub struct Window {
    /// The file, kept open as long as the window is there.
    pub file: Arc<OwnedFd>,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Writes go to the file.
    pub writable: bool,
}

/// Why a window could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// Offset or length are not page aligned, zero, or overflow.
    #[error("bad window range")]
    BadRange,
    /// The window area or the number of windows is exhausted.
    #[error("no room for another window")]
    NoRoom,
    /// The host refused the mapping.
    #[error("the host refused: {0}")]
    Host(Errno),
}

impl From<WindowError> for Errno {
    fn from(e: WindowError) -> Errno {
        match e {
            WindowError::BadRange => Errno::INVAL,
            WindowError::NoRoom => Errno::NOMEM,
            WindowError::Host(e) => e,
        }
    }
}

/// The host allows 65,530 mappings for each process (vm.max_map_count), and a window costs two:
/// itself, and the gap that is left behind it when its neighbour is dropped. The rest is room for
/// everything else.
const MAX_WINDOWS: usize = 24_576;

/// The windows and the free ranges between them.
#[derive(Debug)]
pub struct WindowTable {
    used: BTreeMap<u64, Window>,
    /// Free ranges, start → length; never two that touch.
    free: BTreeMap<u64, u64>,
}

impl WindowTable {
    /// An empty table over `[start, start+bytes)`.
    pub fn new(start: Gpa, bytes: u64) -> WindowTable {
        let free = if bytes == 0 { BTreeMap::new() } else { BTreeMap::from([(start.0, bytes)]) };
        WindowTable { used: BTreeMap::new(), free }
    }

    /// Has no window made in `range` from now on.
    pub fn exclude(&mut self, range: Range<Gpa>) {
        let cut: Vec<(u64, u64)> =
            self.free.iter().map(|(start, len)| (*start, start + len)).collect();
        for (start, end) in
            cut.into_iter().filter(|(start, end)| *start < range.end.0 && range.start.0 < *end)
        {
            self.free.remove(&start);
            for (start, end) in [(start, range.start.0), (range.end.0, end)] {
                if start < end {
                    self.free.insert(start, end - start);
                }
            }
        }
    }

    /// Finds a place for a window, lowest first, so that windows stay dense and share page tables.
    pub fn insert(
        &mut self,
        file: Arc<OwnedFd>,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<Gpa, WindowError> {
        let end = offset.checked_add(len).ok_or(WindowError::BadRange)?;
        if len == 0
            || !offset.is_multiple_of(PAGE_SIZE)
            || !len.is_multiple_of(PAGE_SIZE)
            || end > i64::MAX as u64
        {
            return Err(WindowError::BadRange);
        }
        if self.used.len() >= MAX_WINDOWS {
            return Err(WindowError::NoRoom);
        }
        let (start, size) = self
            .free
            .iter()
            .find(|(_, size)| **size >= len)
            .map(|(a, b)| (*a, *b))
            .ok_or(WindowError::NoRoom)?;
        self.free.remove(&start);
        if size > len {
            self.free.insert(start + len, size - len);
        }
        self.used.insert(start, Window { file, offset, len, writable });
        Ok(Gpa(start))
    }

    /// Makes a window at a place that nothing has, as another table had it.
    pub fn put(&mut self, gpa: Gpa, window: Window) -> Result<(), WindowError> {
        let len = window.len;
        let is_good = [gpa.0, window.offset, len].iter().all(|n| n.is_multiple_of(PAGE_SIZE))
            && len > 0
            && window.offset.checked_add(len).is_some_and(|end| end <= i64::MAX as u64);
        let end = gpa.0.checked_add(len).filter(|_| is_good).ok_or(WindowError::BadRange)?;
        let (start, size) = self
            .free
            .range(..=gpa.0)
            .next_back()
            .map(|(a, b)| (*a, *b))
            .ok_or(WindowError::NoRoom)?;
        let free_end = start + size;
        if end > free_end || self.used.len() >= MAX_WINDOWS {
            return Err(WindowError::NoRoom);
        }
        self.free.remove(&start);
        for (start, end) in [(start, gpa.0), (end, free_end)] {
            if start < end {
                self.free.insert(start, end - start);
            }
        }
        self.used.insert(gpa.0, window);
        Ok(())
    }

    /// Forgets the window that begins at `gpa`.
    pub fn remove(&mut self, gpa: Gpa) -> Option<Window> {
        let window = self.used.remove(&gpa.0)?;
        let (mut start, mut len) = (gpa.0, window.len);
        if let Some(next) = self.free.remove(&(start + len)) {
            len += next;
        }
        if let Some((before, size)) = self.free.range(..start).next_back().map(|(a, b)| (*a, *b))
            && before + size == start
        {
            self.free.remove(&before);
            start = before;
            len += size;
        }
        self.free.insert(start, len);
        Some(window)
    }

    /// The window that begins at `gpa`.
    pub fn get(&self, gpa: Gpa) -> Option<&Window> {
        self.used.get(&gpa.0)
    }

    /// The window in which `gpa` lies, with its first address.
    pub fn containing(&self, gpa: Gpa) -> Option<(Gpa, &Window)> {
        let (start, window) = self.used.range(..=gpa.0).next_back()?;
        (gpa.0 - start < window.len).then_some((Gpa(*start), window))
    }

    /// How many windows there are.
    pub fn count(&self) -> usize {
        self.used.len()
    }

    /// All windows, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (Gpa, &Window)> {
        self.used.iter().map(|(a, w)| (Gpa(*a), w))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_window_lies_in_what_is_excluded() {
        let file = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let mut table = WindowTable::new(Gpa(0x10000), 16 * PAGE_SIZE);
        table.exclude(Gpa(0x14000)..Gpa(0x16000));
        table.exclude(Gpa(0)..Gpa(0x11000));
        table.exclude(Gpa(0x80000)..Gpa(0x90000));
        let mut made = Vec::new();
        while let Ok(gpa) = table.insert(file.clone(), 0, PAGE_SIZE, false) {
            made.push(gpa.0 / PAGE_SIZE);
        }
        assert_eq!(
            made,
            [0x11, 0x12, 0x13, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f]
        );
    }

    proptest! {
        /// Windows never overlap, and when all are gone the area is one free range again.
        #[test]
        fn ranges_stay_disjoint_and_coalesce(
            steps in prop::collection::vec((any::<bool>(), 1u64..9, any::<usize>()), 1..200),
        ) {
            let file = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
            let mut table = WindowTable::new(Gpa(1 << 22), 64 * PAGE_SIZE);
            let mut live: Vec<Gpa> = Vec::new();
            for (add, pages, pick) in steps {
                if add {
                    if let Ok(gpa) = table.insert(file.clone(), 0, pages * PAGE_SIZE, false) {
                        live.push(gpa);
                    }
                } else if !live.is_empty() {
                    let gpa = live.swap_remove(pick % live.len());
                    prop_assert!(table.remove(gpa).is_some());
                    prop_assert!(table.remove(gpa).is_none());
                }
                let mut end = 1u64 << 22;
                for (gpa, w) in table.iter() {
                    prop_assert!(gpa.0 >= end);
                    end = gpa.0 + w.len;
                }
                prop_assert!(end <= (1 << 22) + 64 * PAGE_SIZE);
            }
            for gpa in live {
                table.remove(gpa);
            }
            prop_assert_eq!(table.free.iter().map(|(a, b)| (*a, *b)).collect::<Vec<_>>(),
                vec![(1 << 22, 64 * PAGE_SIZE)]);
        }
    }
}
