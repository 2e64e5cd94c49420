//! A queue: its messages by priority, who waits for them, and its open file.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::cmp::Reverse;

use linux_raw_sys::general::S_IFREG;

use super::notify::{How, Registration};
use super::share::Share;
use crate::abi::abi_struct;
use crate::account::{self, Lasting};
use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, SetAttributes};
use crate::fs::inode::{Caching, Inode};
use crate::fs::{Caller, FileOps, OpenFile};
use crate::io::IoBuffer;
use crate::sync::Mutex;
use crate::task::{Process, Thread};
use crate::wait::{PollMask, WaitQueue, block_on};

/// Priorities are below this (MQ_PRIO_MAX of mq_overview(7)).
pub const MOST_PRIORITIES: u32 = 32768;
/// What a message takes besides its bytes, about, in bytes: itself, and its part of a map that may
/// be half empty.
const MESSAGE_BYTES: u64 = 256;
/// How long the file of a queue says that it is, in bytes (FILENT_SIZE of ipc/mqueue.c).
const FILE_BYTES: u64 = 80;

abi_struct! {
    /// struct mq_attr (linux/mqueue.h).
    pub struct MqAttr {
        pub flags: i64, pub max_messages: i64, pub message_bytes: i64, pub messages: i64,
        pub reserved: [i64; 4],
    }
}

struct Message {
    bytes: Vec<u8>,
    _lasting: Lasting,
}

/// A message with its priority.
type Item = (u32, Message);

/// Where a thread that waits is given a message, or one is taken from it.
type Slot = Mutex<Option<Item>>;

/// Threads that wait, the first to come first.
type Waiting = VecDeque<Arc<Slot>>;

struct Inner {
    attributes: Attributes,
    /// By priority and, of each, the other way round by age: the last goes first.
    messages: BTreeMap<(u32, Reverse<u64>), Message>,
    last_serial: u64,
    /// Of all messages.
    bytes: u64,
    /// They wait for a message: there is none.
    receivers: Waiting,
    /// They wait for room, each with its message in its slot: the queue is full.
    senders: Waiting,
    registration: Option<Registration>,
}

impl Inner {
    fn new(attributes: Attributes) -> Self {
        Inner {
            attributes,
            messages: BTreeMap::new(),
            last_serial: 0,
            bytes: 0,
            receivers: Waiting::new(),
            senders: Waiting::new(),
            registration: None,
        }
    }

    fn insert(&mut self, (priority, message): Item) {
        self.last_serial += 1;
        self.bytes += message.bytes.len() as u64;
        self.messages.insert((priority, Reverse(self.last_serial)), message);
    }

    /// Gives a message to who has waited for one longest, or keeps it: whom to tell that there is
    /// one now. As on Linux all times of the queue are those of the last message that came or went.
    fn put(&mut self, item: Item) -> Option<Registration> {
        self.attributes.touch();
        if let Some(receiver) = self.receivers.pop_front() {
            *receiver.lock() = Some(item);
            return None;
        }
        self.insert(item);
        if self.messages.len() == 1 { self.registration.take() } else { None }
    }

    /// The oldest message of the highest priority. Its place is that of who has waited for room
    /// longest.
    fn take(&mut self) -> Option<Item> {
        let ((priority, _), message) = self.messages.pop_last()?;
        self.bytes -= message.bytes.len() as u64;
        self.attributes.touch();
        if let Some(sender) = self.senders.pop_front()
            && let Some(item) = sender.lock().take()
        {
            self.insert(item);
        }
        Some((priority, message))
    }
}

/// A queue.
pub struct Queue {
    inner: Mutex<Inner>,
    events: WaitQueue,
    max_messages: u64,
    message_bytes: u64,
    /// What it counts for its user, and takes, until it is gone.
    _share: Share,
    _lasting: Lasting,
}

/// A thread that waits: in one of a queue's two lists, as long as this lives or until it is served.
struct Waiter<'a> {
    queue: &'a Queue,
    list: fn(&mut Inner) -> &mut Waiting,
    slot: Arc<Slot>,
}

impl<'a> Waiter<'a> {
    /// ENOMEM.
    fn new(
        queue: &'a Queue,
        list: fn(&mut Inner) -> &mut Waiting,
        item: Option<Item>,
    ) -> Result<Self> {
        let slot = Arc::new(Mutex::new(item));
        let mut inner = queue.inner.lock();
        let waiting = list(&mut inner);
        account::room_in(waiting)?;
        waiting.push_back(slot.clone());
        Ok(Waiter { queue, list, slot })
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut inner = self.queue.inner.lock();
        (self.list)(&mut inner).retain(|slot| !Arc::ptr_eq(slot, &self.slot));
    }
}

impl Queue {
    /// An empty one for so many messages of so many bytes.
    pub(super) fn new(
        attributes: Attributes,
        (max_messages, message_bytes): (u64, u64),
        share: Share,
        lasting: Lasting,
    ) -> Arc<Self> {
        let inner = Inner::new(Attributes { size: FILE_BYTES, ..attributes });
        let (inner, events) = (Mutex::new(inner), WaitQueue::new());
        let (_share, _lasting) = (share, lasting);
        Arc::new(Queue { inner, events, max_messages, message_bytes, _share, _lasting })
    }

    /// The longest message, in bytes.
    pub fn message_bytes(&self) -> u64 {
        self.message_bytes
    }

    fn count(&self) -> u64 {
        self.inner.lock().messages.len() as u64
    }

    /// What mq_getattr(3) tells, but for the flags of an open file.
    pub fn attr(&self) -> MqAttr {
        MqAttr {
            max_messages: self.max_messages as i64,
            message_bytes: self.message_bytes as i64,
            messages: self.count() as i64,
            ..MqAttr::default()
        }
    }

    /// Its name is gone.
    pub(super) fn unlinked(&self) {
        self.inner.lock().attributes.nlink = 0;
    }

    /// mq_send(3). EAGAIN when it is full and `may_wait` is not set, ETIMEDOUT at the deadline
    /// (CLOCK_MONOTONIC).
    pub async fn send(
        &self,
        thread: &Arc<Thread>,
        (priority, bytes): (u32, Vec<u8>),
        may_wait: bool,
        deadline_ns: Option<u64>,
    ) -> Result {
        let held = account::on_heap(bytes.len()) + MESSAGE_BYTES;
        let lasting = Lasting::take(held).map_err(|_| Errno::ENOMEM)?;
        let item = (priority, Message { bytes, _lasting: lasting });
        if self.count() < self.max_messages {
            let told = self.inner.lock().put(item);
            self.events.wake(PollMask::READ);
            if let Some(registration) = told {
                registration.message(thread);
            }
            return Ok(());
        }
        if !may_wait {
            return Err(Errno::EAGAIN);
        }
        let waiter = Waiter::new(self, |inner| &mut inner.senders, Some(item))?;
        let attempt = || if waiter.slot.lock().is_none() { Ok(()) } else { Err(Errno::EAGAIN) };
        let waited = block_on(thread, &[&self.events], PollMask::WRITE, deadline_ns, attempt).await;
        // It may have been taken at the last moment.
        if waiter.slot.lock().is_none() { Ok(()) } else { waited }
    }

    /// mq_receive(3): a message and its priority. Errors as of [`Queue::send`], where it is empty.
    pub async fn receive(
        &self,
        thread: &Arc<Thread>,
        may_wait: bool,
        deadline_ns: Option<u64>,
    ) -> Result<(u32, Vec<u8>)> {
        let taken = self.inner.lock().take();
        if let Some((priority, message)) = taken {
            self.events.wake(PollMask::WRITE);
            return Ok((priority, message.bytes));
        }
        if !may_wait {
            return Err(Errno::EAGAIN);
        }
        let waiter = Waiter::new(self, |inner| &mut inner.receivers, None)?;
        let attempt = || waiter.slot.lock().take().ok_or(Errno::EAGAIN);
        let waited = block_on(thread, &[&self.events], PollMask::READ, deadline_ns, attempt).await;
        // It may have come at the last moment.
        let (priority, message) = waited.or_else(|e| waiter.slot.lock().take().ok_or(e))?;
        Ok((priority, message.bytes))
    }

    /// mq_notify(3): `process` is to be told, or, by `None`, no longer. EBUSY when another is, or
    /// it is already.
    pub fn notify(&self, process: &Arc<Process>, how: Option<How>) -> Result {
        let Some(how) = how else {
            self.forget(process.pid);
            return Ok(());
        };
        let old = {
            let mut inner = self.inner.lock();
            if inner.registration.as_ref().is_some_and(Registration::is_valid) {
                return Err(Errno::EBUSY);
            }
            inner.registration.replace(Registration::new(process, how))
        };
        // Of a process that has ended.
        drop(old);
        Ok(())
    }

    /// Removes the registration of process `pid`, if that has one.
    fn forget(&self, pid: u32) {
        let removed = {
            let mut inner = self.inner.lock();
            let is_its = inner.registration.as_ref().is_some_and(|r| r.is_of(pid));
            if is_its { inner.registration.take() } else { None }
        };
        if let Some(registration) = removed {
            registration.removed();
        }
    }

    /// What its file reads as.
    fn text(&self) -> Vec<u8> {
        let inner = self.inner.lock();
        let registration = inner.registration.as_ref().filter(|r| r.is_valid());
        let (how, signo, pid) = registration.map_or((0, 0, 0), Registration::described);
        let bytes = inner.bytes;
        format!("QSIZE:{bytes:<10} NOTIFY:{how:<5} SIGNO:{signo:<5} NOTIFY_PID:{pid:<6}\n")
            .into_bytes()
    }
}

impl Inode for Queue {
    fn kind(&self) -> u32 {
        S_IFREG
    }

    fn attributes(&self) -> Result<Attributes> {
        Ok(self.inner.lock().attributes)
    }

    /// mq_unlink(3) takes names away without a path.
    fn caching(&self) -> Caching {
        Caching::Never
    }

    fn open(self: Arc<Self>, _caller: &dyn Caller, _flags: u32) -> Result<Arc<dyn FileOps>> {
        Ok(Arc::new(OpenQueue(self)))
    }

    fn set_attributes(&self, change: &SetAttributes) -> Result {
        change.apply(&mut self.inner.lock().attributes);
        Ok(())
    }

    fn truncate(&self, _size: u64) -> Result {
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An open queue.
pub struct OpenQueue(pub Arc<Queue>);

impl FileOps for OpenQueue {
    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        let text = self.0.text();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        buffer.put(&text[start..])
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn poll(&self, _file: &OpenFile) -> PollMask {
        let count = self.0.count();
        let mut mask = PollMask::empty();
        mask.set(PollMask::READ, count > 0);
        mask.set(PollMask::WRITE, count < self.0.max_messages);
        mask
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.0.events)
    }

    fn attributes(&self, _file: &OpenFile) -> Result<Attributes> {
        Inode::attributes(&*self.0)
    }

    fn set_attributes(&self, _file: &OpenFile, change: &SetAttributes) -> Result {
        Inode::set_attributes(&*self.0, change)
    }

    fn truncate(&self, _file: &OpenFile, _size: u64) -> Result {
        Ok(())
    }

    fn closed_by(&self, pid: u32) {
        self.0.forget(pid);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(priority: u32, byte: u8) -> Item {
        (priority, Message { bytes: alloc::vec![byte; 3], _lasting: Lasting::default() })
    }

    fn next(queue: &mut Inner) -> Option<(u32, u8)> {
        queue.take().map(|(priority, message)| (priority, message.bytes[0]))
    }

    #[test]
    fn the_oldest_of_the_highest_priority_is_first() {
        let mut queue = Inner::new(Attributes::default());
        for (priority, byte) in [(1, 1), (5, 2), (1, 3), (5, 4), (0, 5)] {
            assert!(queue.put(item(priority, byte)).is_none());
        }
        assert_eq!((queue.messages.len(), queue.bytes), (5, 15));
        let order: Vec<_> = core::iter::from_fn(|| next(&mut queue)).collect();
        assert_eq!(order, [(5, 2), (5, 4), (1, 1), (1, 3), (0, 5)]);
        assert_eq!(queue.bytes, 0);
    }

    #[test]
    fn who_waits_is_served_first() {
        let mut queue = Inner::new(Attributes::default());
        let slot = |item| Arc::new(Slot::new(item));
        let (first, second) = (slot(None), slot(None));
        queue.receivers.extend([first.clone(), second.clone()]);
        assert!(queue.put(item(1, 1)).is_none() && queue.put(item(9, 2)).is_none());
        assert_eq!(first.lock().take().map(|(priority, _)| priority), Some(1));
        assert_eq!(second.lock().take().map(|(priority, _)| priority), Some(9));
        assert!(queue.messages.is_empty());
        queue.put(item(0, 3));
        let (first, second) = (slot(Some(item(0, 4))), slot(Some(item(7, 5))));
        queue.senders.extend([first.clone(), second.clone()]);
        assert_eq!(next(&mut queue), Some((0, 3)));
        assert!(first.lock().is_none() && second.lock().is_some());
        assert_eq!(next(&mut queue), Some((0, 4)));
        assert_eq!(next(&mut queue), Some((7, 5)));
        assert_eq!(next(&mut queue), None);
    }
}
