//! Pending signals.

use alloc::collections::BTreeMap;

use super::{FIRST_REALTIME, SigInfo, SigSet, Signo};

/// Signals with information that can be pending at one place, whatever the limits are: 16 MiB of
/// kernel memory.
const MOST_PENDING: u64 = 65_536;

/// Signals that were sent and not taken yet. Standard signals are pending once however often they
/// are sent; real-time ones queue.
#[derive(Clone, Debug, Default)]
pub struct PendingQueue {
    set: SigSet,
    /// By signal, in the order in which they came.
    infos: BTreeMap<Place, SigInfo>,
    last: u64,
    /// Where the signal of a POSIX timer is.
    timers: BTreeMap<i32, Place>,
}

type Place = (Signo, u64);

impl PendingQueue {
    /// What is pending.
    pub fn set(&self) -> SigSet {
        self.set
    }

    /// Entries, for RLIMIT_SIGPENDING.
    pub fn len(&self) -> usize {
        self.infos.len()
    }

    /// True if nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// Adds a signal; false when it was a standard one that is pending already. Beyond `limit`
    /// entries a real-time signal is pending without its information, at most once.
    pub fn push(&mut self, info: SigInfo, limit: u64) -> bool {
        let signo = info.signal();
        if signo < FIRST_REALTIME && self.set.contains(signo) {
            return false;
        }
        self.set.add(signo);
        let fits = signo < FIRST_REALTIME || (self.infos.len() as u64) < limit.min(MOST_PENDING);
        if fits {
            self.last += 1;
            if let Some(id) = info.timer_id() {
                self.timers.insert(id, (signo, self.last));
            }
            self.infos.insert((signo, self.last), info);
        }
        true
    }

    /// Adds to the overrun count of the signal of timer `id` that is pending; false when none is.
    pub fn add_overrun(&mut self, id: i32, times: i32) -> bool {
        match self.timers.get(&id).and_then(|place| self.infos.get_mut(place)) {
            Some(info) => {
                info.add_overrun(times);
                true
            }
            None => false,
        }
    }

    /// Takes the first signal that is in `wanted`.
    pub fn take(&mut self, wanted: SigSet) -> Option<SigInfo> {
        let signo = self.set.and(wanted).first()?;
        // One that exceeded the limit has no information left.
        let info = self.first(signo).and_then(|place| self.remove(place));
        if self.first(signo).is_none() {
            self.set.remove(signo);
        }
        Some(info.unwrap_or(SigInfo::user(signo, 0, 0)))
    }

    /// Forgets all signals of `set`.
    pub fn discard(&mut self, set: SigSet) {
        if !self.set.and(set).is_empty() {
            let mut left = self.set.and(set);
            self.set = self.set.minus(set);
            while let Some(signo) = left.first() {
                left.remove(signo);
                while let Some(place) = self.first(signo) {
                    self.remove(place);
                }
            }
        }
    }

    /// Where the first of this signal is.
    fn first(&self, signo: Signo) -> Option<Place> {
        self.infos.range((signo, 0)..=(signo, u64::MAX)).next().map(|(place, _)| *place)
    }

    fn remove(&mut self, place: Place) -> Option<SigInfo> {
        let info = self.infos.remove(&place)?;
        if let Some(id) = info.timer_id()
            && self.timers.get(&id) == Some(&place)
        {
            self.timers.remove(&id);
        }
        Some(info)
    }

    /// True if `signo` is pending.
    pub fn contains(&self, signo: Signo) -> bool {
        self.set.contains(signo)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn user(signo: Signo, pid: u32) -> SigInfo {
        SigInfo::user(signo, pid, 0)
    }

    #[test]
    fn standard_signals_coalesce_and_realtime_ones_queue() {
        let mut queue = PendingQueue::default();
        assert!(queue.push(user(15, 1), 100));
        assert!(!queue.push(user(15, 2), 100));
        assert!(queue.push(user(40, 3), 100));
        assert!(queue.push(user(40, 4), 100));
        assert!(queue.push(user(35, 5), 100));
        let all = SigSet(u64::MAX);
        let order: Vec<(u32, u32)> =
            core::iter::from_fn(|| queue.take(all)).map(|i| (i.signal(), i.pid())).collect();
        assert_eq!(order, [(15, 1), (35, 5), (40, 3), (40, 4)]);
        assert!(queue.is_empty() && queue.take(all).is_none());
    }

    #[test]
    fn a_timer_finds_its_signal_while_that_is_pending() {
        let mut queue = PendingQueue::default();
        queue.push(SigInfo::timer(40, 7, 0, 0), 100);
        queue.push(SigInfo::timer(40, 8, 0, 0), 100);
        queue.push(SigInfo::timer(14, 9, 0, 0), 100);
        assert!(queue.add_overrun(8, 3) && queue.add_overrun(9, 1) && !queue.add_overrun(6, 1));
        queue.discard(SigSet::of(&[14, 15]));
        assert!(!queue.add_overrun(9, 1));
        let taken: Vec<_> = (0..2).filter_map(|_| queue.take(SigSet(u64::MAX))).collect();
        assert_eq!(taken.iter().map(SigInfo::timer_fields).collect::<Vec<_>>(), [(7, 0), (8, 3)]);
        assert!(!queue.add_overrun(8, 1) && queue.is_empty());
    }

    #[test]
    fn only_wanted_signals_are_taken() {
        let mut queue = PendingQueue::default();
        queue.push(user(2, 1), 100);
        queue.push(user(10, 2), 100);
        assert!(queue.take(SigSet::of(&[3, 12])).is_none());
        assert_eq!(queue.take(SigSet::of(&[10])).map(|i| i.pid()), Some(2));
        queue.discard(SigSet::of(&[2]));
        assert!(queue.is_empty());
    }

    #[test]
    fn beyond_the_limit_the_signal_stays_without_its_information() {
        let mut queue = PendingQueue::default();
        queue.push(user(40, 1), 1);
        queue.push(user(41, 2), 1);
        queue.push(user(41, 3), 1);
        assert_eq!(queue.len(), 1);
        assert_eq!(queue.take(SigSet(u64::MAX)).map(|i| i.signal()), Some(40));
        assert_eq!(queue.take(SigSet(u64::MAX)), Some(user(41, 0)));
        assert!(queue.is_empty());
    }
}
