//! Events that wait in host memory for a buffer of the guest.

use std::collections::{HashMap, VecDeque};

use qlib::channel::EventRecord;
use qlib::platform::{EVENT_READY, EVENT_TIMER};

/// The most events that wait. A guest that takes its events has at most one for each object that it
/// watches.
pub const MAX_PENDING: usize = 1 << 18;

#[derive(Clone, Copy, Debug)]
enum Entry {
    /// An EVENT_READY with this token; its mask is in the map.
    Ready(u64),
    Other(EventRecord),
}

/// Events in the order in which they came. Readiness of one token is one event, with all that was
/// reported; so is the timer.
#[derive(Debug, Default)]
pub struct PendingEvents {
    order: VecDeque<Entry>,
    masks: HashMap<u64, u64>,
    has_timer: bool,
}

impl PendingEvents {
    /// Adds an event; `Err` with how many there are when that is too many.
    pub fn add(&mut self, record: EventRecord) -> Result<(), usize> {
        let is_timer = record.kind == EVENT_TIMER;
        if is_timer && self.has_timer {
            return Ok(());
        }
        if record.kind == EVENT_READY
            && let Some(mask) = self.masks.get_mut(&record.a)
        {
            *mask |= record.b;
            return Ok(());
        }
        if self.order.len() >= MAX_PENDING {
            return Err(self.order.len());
        }
        self.has_timer |= is_timer;
        self.order.push_back(match record.kind {
            EVENT_READY => {
                self.masks.insert(record.a, record.b);
                Entry::Ready(record.a)
            }
            _ => Entry::Other(record),
        });
        Ok(())
    }

    /// The oldest.
    pub fn first(&self) -> Option<EventRecord> {
        self.order.front().map(|entry| match *entry {
            Entry::Ready(token) => {
                let b = self.masks.get(&token).copied().unwrap_or_default();
                EventRecord { kind: EVENT_READY, a: token, b }
            }
            Entry::Other(record) => record,
        })
    }

    /// Removes the oldest.
    pub fn take_first(&mut self) {
        match self.order.pop_front() {
            Some(Entry::Ready(token)) => {
                self.masks.remove(&token);
            }
            Some(Entry::Other(record)) => self.has_timer &= record.kind != EVENT_TIMER,
            None => {}
        }
        if self.order.is_empty() && self.order.capacity() > 1024 {
            // A burst is over: an idle sandbox holds no big buffers.
            *self = PendingEvents::default();
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.order.len()
    }
}
