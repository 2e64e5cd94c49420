//! The queue of a group: in the order in which things happened, equal ones as one.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Weak;

use qlib::PAGE_SIZE;

use super::abi::FAN_Q_OVERFLOW;
use super::event::{Event, Key, What};
use crate::account;

/// Events that have not been read.
#[derive(Default)]
pub struct Queue {
    events: VecDeque<Event>,
    /// The number of the first of them; each gets the next.
    first: u64,
    /// The last event of each kind.
    last: BTreeMap<Key, u64>,
    /// That some were lost is among them.
    has_overflow: bool,
}

impl Queue {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Puts an event at the end, or makes it a part of an equal one: `Err`, with the event, if
    /// there may be no more than `most`, or memory is short, so that it is lost.
    pub fn push(&mut self, event: Event, most: usize) -> Result<(), Event> {
        let has_room = self.events.len() < most
            && account::ask(PAGE_SIZE).is_ok()
            && account::room_in(&mut self.events).is_ok();
        if !has_room {
            self.overflow();
            return Err(event);
        }
        let next = self.first + self.events.len() as u64;
        if let Some(key) = event.key() {
            let same = self.last.get(&key).and_then(|at| at.checked_sub(self.first));
            if let Some(same) = same.and_then(|at| self.events.get_mut(at as usize)) {
                same.mask |= event.mask;
                // Nothing that must not be dropped here lives by this one alone.
                return Ok(());
            }
            self.last.insert(key, next);
        }
        self.events.push_back(event);
        Ok(())
    }

    /// Says, once, that something was lost.
    fn overflow(&mut self) {
        if self.has_overflow || account::room_in(&mut self.events).is_err() {
            return;
        }
        let what = What::Overflow;
        let event = Event { mask: FAN_Q_OVERFLOW, pid: 0, process: Weak::new(), what };
        self.events.push_back(event);
        self.has_overflow = true;
    }

    /// The first event.
    pub fn front(&self) -> Option<&Event> {
        self.events.front()
    }

    /// Takes the first event.
    pub fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Some(key) = event.key()
            && self.last.get(&key) == Some(&self.first)
        {
            self.last.remove(&key);
        }
        self.first += 1;
        self.has_overflow &= !matches!(event.what, What::Overflow);
        Some(event)
    }
}
