//! How many record locks a sandbox holds on the host. Linux charges the memory of locks to nobody's
//! cgroup, and knows no limit, so there is one here, for whoever has taken the guest kernel over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

/// So many there may be (ENOLCK): twice as many as a guest kernel lets its programs have, for two
/// descriptors hold the same ones while one takes the other's place.
const MAX_RECORDS: usize = 4 * 65_536;

/// Those of all descriptors of a sandbox.
#[derive(Debug, Default)]
pub struct RecordCount(AtomicUsize);

/// Those of one descriptor. The host has no more: it merges neighbours.
#[derive(Debug, Default)]
pub struct Records {
    /// By first byte: past the last one, and whether it is a write lock.
    held: BTreeMap<u64, (u64, bool)>,
    /// Where they are counted, once there were any.
    all: Option<Arc<RecordCount>>,
}

impl Records {
    /// Has `on_host` lock the bytes `start..end`, or with `None` unlock them, and notes that.
    /// ENOLCK when there are too many.
    pub fn set(
        &mut self,
        all: &Arc<RecordCount>,
        (start, end): (u64, u64),
        exclusive: Option<bool>,
        on_host: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let splits = self.last(start, end).is_some_and(|(at, past, _)| at < start && end < past);
        let is_full = all.0.load(Ordering::Relaxed) >= MAX_RECORDS;
        if is_full && (exclusive.is_some() || splits) {
            return Err(Errno::NOLCK);
        }
        on_host()?;
        let before = self.held.len();
        self.apply(start, end, exclusive);
        let all = &self.all.get_or_insert_with(|| all.clone()).0;
        all.fetch_add(self.held.len(), Ordering::Relaxed);
        all.fetch_sub(before, Ordering::Relaxed);
        Ok(())
    }

    /// The last one that overlaps `start..end`.
    fn last(&self, start: u64, end: u64) -> Option<(u64, u64, bool)> {
        let (at, (past, exclusive)) = self.held.range(..end).next_back()?;
        (*past > start).then_some((*at, *past, *exclusive))
    }

    fn apply(&mut self, start: u64, end: u64, exclusive: Option<bool>) {
        while let Some((at, past, was)) = self.last(start, end) {
            self.held.remove(&at);
            if past > end {
                self.held.insert(end, (past, was));
            }
            if at < start {
                self.held.insert(at, (start, was));
            }
        }
        if let Some(exclusive) = exclusive {
            self.held.insert(start, (end, exclusive));
        }
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        if let Some(all) = &self.all {
            all.0.fetch_sub(self.held.len(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(records: &Records) -> Vec<(u64, u64, bool)> {
        records.held.iter().map(|(at, (past, exclusive))| (*at, *past, *exclusive)).collect()
    }

    fn count(all: &RecordCount) -> usize {
        all.0.load(Ordering::Relaxed)
    }

    #[test]
    fn ranges_are_split_and_replaced_and_counted() {
        let all = Arc::<RecordCount>::default();
        let (mut one, mut other) = (Records::default(), Records::default());
        one.set(&all, (0, u64::MAX), Some(true), || Ok(())).unwrap();
        one.set(&all, (10, 20), Some(false), || Ok(())).unwrap();
        assert_eq!(held(&one), [(0, 10, true), (10, 20, false), (20, u64::MAX, true)]);
        one.set(&all, (5, 15), None, || Ok(())).unwrap();
        assert_eq!(held(&one), [(0, 5, true), (15, 20, false), (20, u64::MAX, true)]);
        let refused = one.set(&all, (0, u64::MAX), Some(false), || Err(Errno::AGAIN));
        assert_eq!((refused, held(&one).len()), (Err(Errno::AGAIN), 3));
        other.set(&all, (0, 1), Some(false), || Ok(())).unwrap();
        assert_eq!(count(&all), 4);
        one.set(&all, (1, u64::MAX), None, || Ok(())).unwrap();
        assert_eq!((held(&one), count(&all)), (vec![(0, 1, true)], 2));
        drop(one);
        other.set(&all, (0, u64::MAX), None, || Ok(())).unwrap();
        assert_eq!(count(&all), 0);
    }

    #[test]
    fn there_are_no_more_than_there_may_be() {
        let all = Arc::new(RecordCount(AtomicUsize::new(MAX_RECORDS - 1)));
        let mut records = Records::default();
        records.set(&all, (0, 100), Some(true), || Ok(())).unwrap();
        let not_asked = || -> Result<(), Errno> { panic!("the host is not asked") };
        assert_eq!(records.set(&all, (200, 300), Some(true), not_asked), Err(Errno::NOLCK));
        assert_eq!(records.set(&all, (40, 60), None, not_asked), Err(Errno::NOLCK));
        // What does not make more of them goes on.
        records.set(&all, (60, u64::MAX), None, || Ok(())).unwrap();
        records.set(&all, (0, u64::MAX), None, || Ok(())).unwrap();
        records.set(&all, (200, 300), Some(true), || Ok(())).unwrap();
    }
}
