//! The timer queue: deadlines in nanoseconds, ordered.

use alloc::collections::BTreeMap;

/// Names one timer until it fires or is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerKey {
    deadline_ns: u64,
    sequence: u64,
}

/// Timers by deadline; equal deadlines fire in the order of their insertion.
#[derive(Debug)]
pub struct TimerQueue<T> {
    timers: BTreeMap<TimerKey, T>,
    sequence: u64,
}

impl<T> TimerQueue<T> {
    /// Without timers.
    pub const fn new() -> Self {
        TimerQueue { timers: BTreeMap::new(), sequence: 0 }
    }

    /// Adds a timer.
    pub fn insert(&mut self, deadline_ns: u64, value: T) -> TimerKey {
        self.sequence += 1;
        let key = TimerKey { deadline_ns, sequence: self.sequence };
        self.timers.insert(key, value);
        key
    }

    /// Removes a timer that has not fired.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        self.timers.remove(&key)
    }

    /// The earliest timer whose deadline is not after `now_ns`.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<T> {
        let entry = self.timers.first_entry()?;
        (entry.key().deadline_ns <= now_ns).then(|| entry.remove())
    }

    /// The earliest deadline.
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.first_key_value().map(|(key, _)| key.deadline_ns)
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.timers.is_empty()
    }
}

impl<T> Default for TimerQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::{TimerKey, TimerQueue};

    #[test]
    fn fires_in_order_and_only_when_due() {
        let mut queue = TimerQueue::new();
        queue.insert(30, 'c');
        queue.insert(10, 'a');
        let cancelled = queue.insert(10, 'x');
        queue.insert(10, 'b');
        assert_eq!(queue.cancel(cancelled), Some('x'));
        assert_eq!(queue.cancel(cancelled), None);
        assert_eq!(queue.next_deadline(), Some(10));
        assert_eq!(queue.pop_due(9), None);
        assert_eq!(queue.pop_due(10), Some('a'));
        assert_eq!(queue.pop_due(29), Some('b'));
        assert_eq!(queue.pop_due(29), None);
        assert_eq!(queue.pop_due(99), Some('c'));
        assert!(queue.is_empty());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Cancel(usize),
        Advance(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (0..200u64).prop_map(Step::Insert),
            1 => any::<usize>().prop_map(Step::Cancel),
            2 => (0..40u64).prop_map(Step::Advance),
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn behaves_as_a_sorted_list(steps in steps()) {
            let mut queue = TimerQueue::new();
            // Of the model: deadline, name, key. Names rise, so that sorting keeps the order of
            // insertion.
            let mut model: Vec<(u64, usize, TimerKey)> = Vec::new();
            let (mut now, mut name) = (0, 0);
            for step in steps {
                match step {
                    Step::Insert(deadline) => {
                        model.push((deadline, name, queue.insert(deadline, name)));
                        name += 1;
                    }
                    Step::Cancel(index) if !model.is_empty() => {
                        let (_, name, key) = model.remove(index % model.len());
                        prop_assert_eq!(queue.cancel(key), Some(name));
                        prop_assert_eq!(queue.cancel(key), None);
                    }
                    Step::Cancel(_) => {}
                    Step::Advance(by) => {
                        now += by;
                        model.sort_by_key(|(deadline, name, _)| (*deadline, *name));
                        while model.first().is_some_and(|(deadline, ..)| *deadline <= now) {
                            prop_assert_eq!(queue.pop_due(now), Some(model.remove(0).1));
                        }
                        prop_assert_eq!(queue.pop_due(now), None);
                    }
                }
                prop_assert_eq!(queue.next_deadline(),
                    model.iter().map(|(deadline, ..)| *deadline).min());
                prop_assert_eq!(queue.is_empty(), model.is_empty());
            }
        }
    }
}
