//! Page faults that a program serves itself (userfaultfd(2)): who waits for that, and what there is
//! to be read of them. Which ranges such faults happen in, each range knows
//! ([`super::vma::Vma::served_by`]); pages are placed there by [`super::placed`].
//!
//! A fault is *waiting* from when it happens until somebody wakes its page, the thread is
//! interrupted, or the descriptor is closed; it is *unread* until it is read, and may be woken
//! before that. Whoever waits looks at the page again afterwards, so a wake too many is harmless.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use qlib::Va;

use crate::errno::Result;
use crate::sync::Mutex;
use crate::wait::{PollMask, WaitQueue};

/// A bit of [`Context::features`] that is none of userfaultfd(2): UFFDIO_API has been called.
const IS_READY: u64 = 1 << 63;

/// What a range of an address space has to do with a userfaultfd.
#[derive(Clone)]
pub struct Registration {
    /// Whose faults these are.
    pub context: Arc<Context>,
    /// Pages that are missing (UFFDIO_REGISTER_MODE_MISSING).
    pub missing: bool,
    /// Writes to pages that are protected (UFFDIO_REGISTER_MODE_WP).
    pub writes: bool,
}

impl PartialEq for Registration {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.context, &other.context)
            && (self.missing, self.writes) == (other.missing, other.writes)
    }
}

/// What is to be read of one fault (struct uffd_msg).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// UFFD_PAGEFAULT_FLAG_*.
    pub flags: u64,
    /// The address, as exactly as the program wants it.
    pub address: Va,
    /// The thread, by the number that it has in its own PID namespace; 0 where nobody asked.
    pub tid: u32,
}

/// What else a program is told of its memory, as it asked for.
pub enum Event {
    /// UFFD_EVENT_FORK: a child has ranges that are served as these are.
    Fork(Child),
    /// UFFD_EVENT_REMAP: so many bytes are at the second address now.
    Remap(Va, Va, u64),
    /// UFFD_EVENT_REMOVE: pages are missing again.
    Remove(Range<Va>),
    /// UFFD_EVENT_UNMAP.
    Unmap(Range<Va>),
}

/// The userfaultfd of a child, which nobody has a descriptor of. Its faults are the kernel's when
/// that is so for ever.
pub struct Child {
    context: Option<Arc<Context>>,
    /// Its memory, as the room above names it.
    pub memory: Arc<dyn Any + Send + Sync>,
}

impl Child {
    /// Of a child with this memory.
    pub fn new(context: Arc<Context>, memory: Arc<dyn Any + Send + Sync>) -> Self {
        Child { context: Some(context), memory }
    }

    /// For its descriptor.
    pub fn take(&mut self) -> Option<Arc<Context>> {
        self.context.take()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(context) = self.context.take() {
            context.close();
        }
    }
}

/// A call that waits until its event has been read.
struct Told {
    is_read: AtomicBool,
    read: WaitQueue,
}

/// One fault.
struct Fault {
    page: Va,
    number: u64,
    message: Message,
    is_over: AtomicBool,
    woken: WaitQueue,
}

#[derive(Default)]
struct State {
    /// Counts faults.
    last: u64,
    /// By page and number.
    waiting: BTreeMap<(Va, u64), Arc<Fault>>,
    /// Those of them that have not been read, by number.
    unread: BTreeMap<u64, Message>,
    /// By number, which are those of faults too; all unread.
    events: BTreeMap<u64, (Event, Arc<Told>)>,
}

/// One userfaultfd, without its descriptor.
pub struct Context {
    /// UFFD_USER_MODE_ONLY: no faults of the kernel.
    is_for_user_mode_only: bool,
    /// UFFD_FEATURE_*, and [`IS_READY`].
    features: AtomicU64,
    state: Mutex<State>,
    is_closed: AtomicBool,
    /// Woken (READ) when there is something to be read.
    readers: WaitQueue,
}

impl Context {
    /// A new one, of which nothing is registered.
    pub fn new(is_for_user_mode_only: bool) -> Arc<Self> {
        Arc::new(Context {
            is_for_user_mode_only,
            features: AtomicU64::new(0),
            state: Mutex::default(),
            is_closed: AtomicBool::new(false),
            readers: WaitQueue::new(),
        })
    }

    /// That of a child of the program.
    pub fn of_child(&self) -> Arc<Self> {
        let child = Context::new(self.is_for_user_mode_only);
        child.features.store(self.features.load(Relaxed), Relaxed);
        child
    }

    /// True if nobody serves faults any more: they are the kernel's.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// UFFDIO_API: false if that has been called before.
    pub fn enable(&self, features: u64) -> bool {
        self.features.compare_exchange(0, features | IS_READY, Relaxed, Relaxed).is_ok()
    }

    /// True if UFFDIO_API has been called.
    pub fn is_ready(&self) -> bool {
        self.features.load(Relaxed) & IS_READY != 0
    }

    /// The features that are in use.
    pub fn features(&self) -> u64 {
        self.features.load(Relaxed) & !IS_READY
    }

    /// True if all of these features (UFFD_FEATURE_*) are in use.
    pub fn has(&self, features: u32) -> bool {
        self.features() & u64::from(features) == u64::from(features)
    }

    /// True if faults of the kernel itself are served too.
    pub fn serves_kernel(&self) -> bool {
        !self.is_for_user_mode_only
    }

    /// Woken (READ) when there is something to be read.
    pub fn readers(&self) -> &WaitQueue {
        &self.readers
    }

    /// True if something is to be read.
    pub fn has_unread(&self) -> bool {
        let state = self.state.lock();
        !state.unread.is_empty() || !state.events.is_empty()
    }

    /// True if the program has yet to be told what has become of its memory: no pages are placed.
    pub fn is_changing(&self) -> bool {
        !self.state.lock().events.is_empty()
    }

    /// How many faults are unread, and how many wait.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.unread.len(), state.waiting.len())
    }

    /// The oldest fault that nobody has read, which counts as read from now on.
    pub fn take_message(&self) -> Option<Message> {
        self.state.lock().unread.pop_first().map(|(_, message)| message)
    }

    /// Has an event read: it is there as long as the result lives, at most.
    pub fn tell(self: &Arc<Self>, event: Event) -> Telling {
        let told = Arc::new(Told { is_read: AtomicBool::new(false), read: WaitQueue::new() });
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        let refused = match self.is_closed() {
            true => Some(event),
            false => {
                state.events.insert(number, (event, told.clone()));
                None
            }
        };
        drop(state);
        told.is_read.store(refused.is_some(), Relaxed);
        drop(refused);
        self.readers.wake(PollMask::READ);
        Telling { context: self.clone(), number, told }
    }

    /// Reads the oldest event by `read`; if that fails it stays.
    pub fn read_event<T>(&self, read: impl FnOnce(&mut Event) -> Result<T>) -> Result<Option<T>> {
        let oldest = self.state.lock().events.pop_first();
        let Some((number, (mut event, told))) = oldest else { return Ok(None) };
        let result = read(&mut event);
        if result.is_err() {
            self.state.lock().events.insert(number, (event, told));
        } else {
            told.is_read.store(true, Relaxed);
            told.read.wake(PollMask::IN);
        }
        result.map(Some)
    }

    /// A fault in `page`: it waits as long as the result lives, at most.
    pub fn begin(self: &Arc<Self>, page: Va, message: Message) -> Waiting {
        let (is_over, woken) = (AtomicBool::new(false), WaitQueue::new());
        let fault = {
            let mut state = self.state.lock();
            state.last += 1;
            let fault = Fault { page, number: state.last, message, is_over, woken };
            let fault = Arc::new(fault);
            if self.is_closed() {
                fault.is_over.store(true, Relaxed);
            } else {
                state.waiting.insert((page, fault.number), fault.clone());
                state.unread.insert(fault.number, fault.message);
            }
            fault
        };
        self.readers.wake(PollMask::READ);
        Waiting { context: self.clone(), fault }
    }

    /// Wakes whoever waits for a page of `range`, read or not.
    pub fn wake(&self, range: Range<Va>) {
        let woken: Vec<Arc<Fault>> = {
            let mut state = self.state.lock();
            let within = state.waiting.range((range.start, 0)..(range.end, 0));
            let woken: Vec<Arc<Fault>> = within.map(|(_, fault)| fault.clone()).collect();
            for fault in &woken {
                state.waiting.remove(&(fault.page, fault.number));
                state.unread.remove(&fault.number);
                fault.is_over.store(true, Relaxed);
            }
            woken
        };
        woken.iter().for_each(|fault| fault.woken.wake(PollMask::IN));
    }

    /// The descriptor is closed: nobody waits any more, now or later.
    pub fn close(&self) {
        self.is_closed.store(true, Relaxed);
        self.wake(Va(0)..Va(u64::MAX));
        let events = core::mem::take(&mut self.state.lock().events);
        for (_, told) in events.values() {
            told.is_read.store(true, Relaxed);
            told.read.wake(PollMask::IN);
        }
        drop(events);
        self.readers.wake(PollMask::HUP);
    }
}

/// An event that is to be read.
pub struct Telling {
    context: Arc<Context>,
    number: u64,
    told: Arc<Told>,
}

impl Telling {
    /// Woken (IN) when it has been read.
    pub fn queue(&self) -> &WaitQueue {
        &self.told.read
    }

    /// True if it has been, or never will.
    pub fn is_read(&self) -> bool {
        self.told.is_read.load(Relaxed)
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        let removed = self.context.state.lock().events.remove(&self.number);
        drop(removed);
    }
}

/// A fault that is waiting.
pub struct Waiting {
    context: Arc<Context>,
    fault: Arc<Fault>,
}

impl Waiting {
    /// Woken (IN) when it is over.
    pub fn queue(&self) -> &WaitQueue {
        &self.fault.woken
    }

    /// True if the page is to be looked at again.
    pub fn is_over(&self) -> bool {
        self.fault.is_over.load(Relaxed)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.context.state.lock();
        state.unread.remove(&self.fault.number);
        let waiting = state.waiting.remove(&(self.fault.page, self.fault.number));
        drop(state);
        drop(waiting);
    }
}

#[cfg(test)]
mod tests {
    use qlib::PAGE_SIZE;

    use super::*;

    fn message(page: u64) -> Message {
        Message { flags: 0, address: Va(page * PAGE_SIZE), tid: 0 }
    }

    fn begin(context: &Arc<Context>, page: u64) -> Waiting {
        context.begin(Va(page * PAGE_SIZE), message(page))
    }

    #[test]
    fn all_of_a_page_are_woken_read_or_not_and_nobody_else() {
        let context = Context::new(false);
        let (one, two, other) = (begin(&context, 1), begin(&context, 1), begin(&context, 2));
        assert_eq!(context.take_message(), Some(message(1)));
        context.wake(Va(PAGE_SIZE)..Va(2 * PAGE_SIZE));
        assert!(one.is_over() && two.is_over() && !other.is_over());
        assert_eq!(context.counts(), (1, 1));
        assert_eq!(context.take_message(), Some(message(2)), "the second of page 1 is not read");
        context.close();
        assert!(other.is_over() && begin(&context, 3).is_over());
        assert_eq!(context.counts(), (0, 0));
    }

    #[test]
    fn who_waits_no_longer_is_not_read_of() {
        let context = Context::new(false);
        drop(begin(&context, 1));
        assert!(!context.has_unread() && context.counts() == (0, 0));
    }

    #[test]
    fn the_handshake_is_made_once() {
        let context = Context::new(true);
        assert!(!context.is_ready() && context.enable(0) && context.is_ready());
        assert!(!context.enable(1) && context.features() == 0);
    }
}
