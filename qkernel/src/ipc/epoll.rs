//! epoll(7): a set of files, and the queue of those among them that may be ready.
//!
//! An [`Item`] observes its file's wait queue. A notification puts it into the ready queue; whether
//! it really is ready is found out when the queue is collected. Level-triggered items that are
//! ready go back into the queue, to be looked at again next time.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use linux_raw_sys::general::{
    EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLWAKEUP,
};
use qlib::Va;

use super::busy_poll;
use crate::account;
use crate::errno::{Errno, Result};
use crate::fs::{Caller, CloseHook, Fd, FileOps, OpenFile};
use crate::net::host;
use crate::sync::Mutex;
use crate::wait::{self, Observer, PollMask, Turn, WaitQueue};

/// How deep epoll instances may watch each other (EP_MAX_NESTS).
const MAX_NESTING: usize = 4;
/// Bits of an event that are not readiness.
const MODES: u32 = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP;
/// What may be asked for together with EPOLLEXCLUSIVE (epoll_ctl(2)).
const WITH_EXCLUSIVE: u32 =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;

/// A file of the set: its descriptor when it was added, and its description.
type ItemKey = (Fd, usize);

/// One file of a set.
struct Item {
    key: ItemKey,
    file: Weak<OpenFile>,
    epoll: Weak<Epoll>,
    state: Mutex<ItemState>,
}

struct ItemState {
    /// What is asked for; empty once an EPOLLONESHOT item has fired.
    interest: PollMask,
    /// EPOLLET and EPOLLONESHOT.
    modes: u32,
    data: u64,
    /// Its neighbours in the ready queue; `None`: it is not there.
    queued: Option<Neighbours>,
    /// It has left the set.
    is_removed: bool,
    registration: u64,
}

/// What an item of the ready queue comes after, and before.
#[derive(Clone, Copy, Debug)]
struct Neighbours {
    previous: Option<ItemKey>,
    next: Option<ItemKey>,
}

#[derive(Default)]
struct EpollState {
    items: BTreeMap<ItemKey, Arc<Item>>,
    /// The ends of the ready queue, of items that may be ready: a list through the items, for a
    /// notification has no memory to ask for, and one may go to as many sets as there are.
    first: Option<ItemKey>,
    last: Option<ItemKey>,
    /// How many are in it.
    ready: usize,
}

impl EpollState {
    /// Changes the neighbours of the item with `key`, which is in the ready queue.
    fn change(&self, key: ItemKey, change: impl FnOnce(&mut Neighbours)) {
        if let Some(item) = self.items.get(&key) {
            item.state.lock().queued.as_mut().map(change);
        }
    }

    /// From now on `next` comes after `of`; if that is none, it is the first.
    fn set_next(&mut self, of: Option<ItemKey>, next: Option<ItemKey>) {
        match of {
            Some(key) => self.change(key, |n| n.next = next),
            None => self.first = next,
        }
    }

    /// From now on `previous` comes before `of`; if that is none, it is the last.
    fn set_previous(&mut self, of: Option<ItemKey>, previous: Option<ItemKey>) {
        match of {
            Some(key) => self.change(key, |n| n.previous = previous),
            None => self.last = previous,
        }
    }

    /// Puts an item of the set at the end of the ready queue, or in front, unless it is there.
    fn enqueue(&mut self, item: &Item, in_front: bool) {
        if item.state.lock().queued.is_some() {
            return;
        }
        let (previous, next) = if in_front { (None, self.first) } else { (self.last, None) };
        item.state.lock().queued = Some(Neighbours { previous, next });
        self.set_next(previous, Some(item.key));
        self.set_previous(next, Some(item.key));
        self.ready += 1;
    }

    /// Takes an item out of the ready queue, if it is there.
    fn unqueue(&mut self, item: &Item) {
        let Some(Neighbours { previous, next }) = item.state.lock().queued.take() else { return };
        self.set_next(previous, next);
        self.set_previous(next, previous);
        self.ready -= 1;
    }

    /// Takes the first item out of the ready queue.
    fn dequeue(&mut self) -> Option<Arc<Item>> {
        let item = self.items.get(&self.first?)?.clone();
        self.unqueue(&item);
        Some(item)
    }
}

/// Events that are taken in one piece.
const MOST_AT_ONCE: usize = 1024;

/// The items that one call may still look at: those that were ready when it began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round(usize);

impl Round {
    /// True if there is nothing left to look at.
    pub fn is_over(self) -> bool {
        self.0 == 0
    }
}

/// An epoll instance.
pub struct Epoll {
    me: Weak<Epoll>,
    state: Mutex<EpollState>,
    queue: WaitQueue,
    /// Instances that watch this one.
    parents: Mutex<Vec<Weak<Epoll>>>,
    /// The last [cascade](wait::cascade) that `queue` was notified in.
    cascade: AtomicU64,
    busy_poll: Mutex<busy_poll::Params>,
}

/// One event to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fired {
    /// EPOLL* bits.
    pub events: u32,
    /// epoll_data.
    pub data: u64,
    key: ItemKey,
}

fn key_of(fd: Fd, file: &Arc<OpenFile>) -> ItemKey {
    (fd, Arc::as_ptr(file) as usize)
}

fn interest_of(events: u32) -> PollMask {
    PollMask::from_bits_truncate(events) | PollMask::ALWAYS
}

impl Item {
    /// Puts it into the ready queue, unless it is there or may not be: whether it is new there.
    fn enqueue(self: &Arc<Self>, epoll: &Epoll) -> bool {
        {
            let state = self.state.lock();
            if state.queued.is_some() || state.is_removed || state.interest.is_empty() {
                return false;
            }
        }
        epoll.state.lock().enqueue(self, false);
        true
    }

    /// It is ready as it is: those who wait for that are notified, if they have not been.
    fn is_ready(self: &Arc<Self>) {
        if let Some(epoll) = self.epoll.upgrade()
            && self.enqueue(&epoll)
        {
            epoll.queue.wake(PollMask::READ);
        }
    }

    /// True if one of `events` is asked for, or it is not known what happened.
    fn wants(&self, events: PollMask) -> bool {
        events.is_empty() || self.state.lock().interest.intersects(events)
    }

    /// What of its interest holds now.
    fn poll(&self) -> PollMask {
        let interest = self.state.lock().interest;
        match self.file.upgrade() {
            Some(file) if !interest.is_empty() => file.poll() & interest,
            _ => PollMask::empty(),
        }
    }
}

/// The observer that an item leaves at its file: does not keep the item alive.
struct ItemObserver(Weak<Item>);

impl Observer for ItemObserver {
    fn notify(&self, events: PollMask) {
        let Some(item) = self.0.upgrade().filter(|item| item.wants(events)) else { return };
        let Some(epoll) = item.epoll.upgrade() else { return };
        // Who watches the set by edges is notified of each, also while the item is queued. But of
        // what happened only once, however many ways there are from there through other sets.
        item.enqueue(&epoll);
        let cascade = wait::cascade();
        if epoll.cascade.swap(cascade, Relaxed) != cascade {
            epoll.queue.wake(PollMask::READ);
        }
    }

    fn is_attended(&self, events: PollMask) -> bool {
        let Some(item) = self.0.upgrade().filter(|item| item.wants(events)) else { return false };
        item.epoll.upgrade().is_some_and(|epoll| epoll.queue.has_sleeper())
    }
}

impl CloseHook for ItemObserver {
    fn closed(&self, ops: &dyn FileOps) {
        let Some(item) = self.0.upgrade() else { return };
        if let Some(epoll) = item.epoll.upgrade() {
            epoll.forget(item.key);
        }
        let registration = item.state.lock().registration;
        if let Some(queue) = ops.queue() {
            queue.unregister(registration);
        }
    }

    fn id(&self) -> usize {
        self.0.as_ptr() as usize
    }
}

impl Epoll {
    /// An empty set.
    pub fn new() -> Arc<Self> {
        Arc::new_cyclic(|me| Epoll {
            me: me.clone(),
            state: Mutex::default(),
            queue: WaitQueue::new(),
            parents: Mutex::default(),
            cascade: AtomicU64::new(0),
            busy_poll: Mutex::default(),
        })
    }

    /// Takes an item out of the set (not out of its file's queue).
    fn forget(&self, key: ItemKey) -> Option<Arc<Item>> {
        let mut state = self.state.lock();
        let item = state.items.get(&key)?.clone();
        state.unqueue(&item);
        state.items.remove(&key);
        item.state.lock().is_removed = true;
        Some(item)
    }

    /// EPOLL_CTL_ADD. EEXIST, EPERM (a kind of file that is always ready), EINVAL, ELOOP, ENOMEM.
    pub fn add(&self, fd: Fd, file: &Arc<OpenFile>, events: u32, data: u64) -> Result {
        let queue = file.ops.queue().ok_or(Errno::EPERM)?;
        let nested = file.downcast::<Epoll>();
        if events & EPOLLEXCLUSIVE != 0 && events & !WITH_EXCLUSIVE != 0 {
            return Err(Errno::EINVAL);
        }
        if let Some(other) = nested {
            // Linux: EPOLLEXCLUSIVE is not for epoll files.
            if core::ptr::eq(other, self) || events & EPOLLEXCLUSIVE != 0 {
                return Err(Errno::EINVAL);
            }
            if other.reaches(self, 0)? || other.height(0) + self.depth(0) >= MAX_NESTING {
                return Err(Errno::ELOOP);
            }
        }
        let key = key_of(fd, file);
        if self.state.lock().items.contains_key(&key) {
            return Err(Errno::EEXIST);
        }
        let item = Arc::new(Item {
            key,
            file: Arc::downgrade(file),
            epoll: self.me.clone(),
            state: Mutex::new(ItemState {
                interest: interest_of(events),
                modes: events & MODES,
                data,
                queued: None,
                is_removed: false,
                registration: 0,
            }),
        });
        let observer = Arc::new(ItemObserver(Arc::downgrade(&item)));
        // All that can fail comes first.
        if let Some(other) = nested {
            account::room_in(&mut *other.parents.lock())?;
        }
        // Every event is let through: EPOLL_CTL_MOD may ask for others later.
        let turn = if events & EPOLLEXCLUSIVE != 0 { Turn::OneOfThem } else { Turn::Always };
        let registration = queue.try_register(PollMask::all(), turn, observer.clone())?;
        item.state.lock().registration = registration;
        self.state.lock().items.insert(key, item.clone());
        if let Some(other) = nested {
            other.parents.lock().push(self.me.clone());
        }
        file.close_hooks.lock().insert(observer.id(), observer);
        if !item.poll().is_empty() {
            item.is_ready();
        }
        Ok(())
    }

    /// EPOLL_CTL_MOD. ENOENT; EINVAL for EPOLLEXCLUSIVE, which cannot be changed.
    pub fn modify(&self, fd: Fd, file: &Arc<OpenFile>, events: u32, data: u64) -> Result {
        if events & EPOLLEXCLUSIVE != 0 {
            return Err(Errno::EINVAL);
        }
        let item = self.state.lock().items.get(&key_of(fd, file)).cloned().ok_or(Errno::ENOENT)?;
        {
            let mut state = item.state.lock();
            if state.modes & EPOLLEXCLUSIVE != 0 {
                return Err(Errno::EINVAL);
            }
            state.interest = interest_of(events);
            state.modes = events & MODES;
            state.data = data;
        }
        if !item.poll().is_empty() {
            item.is_ready();
        }
        Ok(())
    }

    /// EPOLL_CTL_DEL. ENOENT.
    pub fn remove(&self, fd: Fd, file: &Arc<OpenFile>) -> Result {
        let item = self.forget(key_of(fd, file)).ok_or(Errno::ENOENT)?;
        self.detach(&item, file);
        Ok(())
    }

    /// Undoes what [`Epoll::add`] left at the file.
    fn detach(&self, item: &Arc<Item>, file: &OpenFile) {
        let registration = item.state.lock().registration;
        if let Some(queue) = file.ops.queue() {
            queue.unregister(registration);
        }
        let id = Arc::as_ptr(item) as usize;
        let hook = file.close_hooks.lock().remove(&id);
        drop(hook);
        if let Some(other) = file.downcast::<Epoll>() {
            let mut parents = other.parents.lock();
            if let Some(index) = parents.iter().position(|p| p.ptr_eq(&self.me)) {
                parents.swap_remove(index);
            }
        }
    }

    /// The epoll instances among the items.
    fn children(&self) -> Vec<Arc<OpenFile>> {
        let items: Vec<Arc<Item>> = self.state.lock().items.values().cloned().collect();
        items
            .iter()
            .filter_map(|i| i.file.upgrade())
            .filter(|f| f.downcast::<Epoll>().is_some())
            .collect()
    }

    /// True if `target` is watched by this instance, directly or through others. ELOOP when they
    /// are nested too deeply.
    fn reaches(&self, target: &Epoll, level: usize) -> Result<bool> {
        if level > MAX_NESTING {
            return Err(Errno::ELOOP);
        }
        for file in self.children() {
            let Some(child) = file.downcast::<Epoll>() else { continue };
            if core::ptr::eq(child, target) || child.reaches(target, level + 1)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Levels of instances watched by this one.
    fn height(&self, level: usize) -> usize {
        if level > MAX_NESTING {
            return 0;
        }
        let heights = self
            .children()
            .into_iter()
            .filter_map(|f| f.downcast::<Epoll>().map(|e| e.height(level + 1) + 1));
        heights.max().unwrap_or(0)
    }

    /// Levels of instances that watch this one.
    fn depth(&self, level: usize) -> usize {
        if level > MAX_NESTING {
            return 0;
        }
        let parents: Vec<Arc<Epoll>> =
            self.parents.lock().iter().filter_map(Weak::upgrade).collect();
        parents.iter().map(|p| p.depth(level + 1) + 1).max().unwrap_or(0)
    }

    /// Takes up to `max` events, and no more than [`MOST_AT_ONCE`]: those, and the rest of the
    /// round. Empty when nothing is ready.
    pub fn collect(&self, max: usize) -> (Vec<Fired>, Round) {
        let collected = self.collect_known(max);
        if collected.0.is_empty() && host::look() { self.collect_known(max) } else { collected }
    }

    fn collect_known(&self, max: usize) -> (Vec<Fired>, Round) {
        let mut round = Round(self.state.lock().ready);
        (self.collect_more(max, &mut round), round)
    }

    /// Goes on with a round.
    pub fn collect_more(&self, max: usize, round: &mut Round) -> Vec<Fired> {
        let max = max.min(MOST_AT_ONCE);
        let mut fired = Vec::new();
        let mut again = Vec::new();
        while round.0 > 0 && fired.len() < max {
            round.0 -= 1;
            let Some(item) = self.state.lock().dequeue() else { break };
            let ready = item.poll();
            if ready.is_empty() {
                continue;
            }
            let mut state = item.state.lock();
            fired.push(Fired { events: ready.bits(), data: state.data, key: item.key });
            if state.modes & EPOLLONESHOT != 0 {
                state.interest = PollMask::empty();
            } else if state.modes & EPOLLET == 0 {
                again.push(item.clone());
            }
        }
        let mut state = self.state.lock();
        for item in again.iter().filter(|item| !item.state.lock().is_removed) {
            state.enqueue(item, false);
        }
        drop(state);
        fired
    }

    /// Takes back events that could not be reported to the program.
    pub fn give_back(&self, fired: &[Fired]) {
        for event in fired {
            let item = self.state.lock().items.get(&event.key).cloned();
            if let Some(item) = item {
                {
                    let mut state = item.state.lock();
                    if state.interest.is_empty() {
                        state.interest =
                            PollMask::from_bits_truncate(event.events) | PollMask::ALWAYS;
                    }
                }
                item.is_ready();
            }
        }
    }

    /// What notifies that there may be events.
    pub fn events(&self) -> &WaitQueue {
        &self.queue
    }

    /// The descriptors in the set with their events and data, for /proc/PID/fdinfo.
    pub fn list(&self) -> Vec<(Fd, u32, u64)> {
        let describe = |item: &Arc<Item>| {
            let state = item.state.lock();
            (item.key.0, state.interest.bits() | state.modes, state.data)
        };
        self.state.lock().items.values().map(describe).collect()
    }
}

impl FileOps for Epoll {
    fn held_bytes(&self) -> u64 {
        const ITEM_BYTES: usize = 640;
        (self.state.lock().items.len() * ITEM_BYTES) as u64
    }

    fn poll(&self, _file: &OpenFile) -> PollMask {
        let look = || loop {
            let Some(item) = self.state.lock().dequeue() else {
                return false;
            };
            // One that is not ready any more need not be looked at again.
            if item.poll().is_empty() {
                continue;
            }
            let is_removed = item.state.lock().is_removed;
            if !is_removed {
                self.state.lock().enqueue(&item, true);
            }
            return true;
        };
        if look() || host::look() && look() { PollMask::READ } else { PollMask::empty() }
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.queue)
    }

    fn ioctl(
        &self,
        caller: &dyn Caller,
        _file: &OpenFile,
        command: u32,
        argument: u64,
    ) -> Result<usize> {
        busy_poll::ioctl(&self.busy_poll, caller, command, Va(argument))
    }

    fn release(&self, _file: &OpenFile) {
        let EpollState { items, .. } = core::mem::take(&mut *self.state.lock());
        for item in items.values() {
            {
                let mut state = item.state.lock();
                (state.is_removed, state.queued) = (true, None);
            }
            if let Some(file) = item.file.upgrade() {
                self.detach(item, &file);
            }
        }
    }

    fn label(&self, _file: &OpenFile) -> Vec<u8> {
        b"anon_inode:[eventpoll]".to_vec()
    }

    fn details(&self, _file: &OpenFile) -> Vec<u8> {
        let line = |(fd, events, data)| {
            alloc::format!("tfd: {fd:8} events: {events:8x} data: {data:16x}\n")
        };
        self.list().into_iter().map(line).collect::<String>().into_bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::IoBuffer;
    use crate::ipc::eventfd::EventFd;
    use crate::ipc::pipe;
    use linux_raw_sys::general::{EPOLLIN, EPOLLOUT};

    fn eventfd(count: u64) -> Arc<OpenFile> {
        OpenFile::new(EventFd::new(count, false), 0)
    }

    fn add_to(file: &OpenFile, value: u64) {
        file.ops.write(file, &mut IoBuffer::kernel_const(&value.to_ne_bytes()), 0).expect("write");
    }

    fn data(fired: Vec<Fired>) -> Vec<(u32, u64)> {
        fired.iter().map(|f| (f.events, f.data)).collect()
    }

    #[test]
    fn level_triggered_items_fire_until_they_are_quiet() {
        let (epoll, file) = (Epoll::new(), eventfd(0));
        epoll.add(3, &file, EPOLLIN, 7).expect("add");
        assert_eq!(data(epoll.collect(9).0), []);
        add_to(&file, 1);
        assert_eq!(data(epoll.collect(9).0), [(EPOLLIN, 7)]);
        assert_eq!(data(epoll.collect(9).0), [(EPOLLIN, 7)]);
        file.ops.read(&file, &mut IoBuffer::kernel(&mut [0; 8]), 0).expect("read");
        assert_eq!(data(epoll.collect(9).0), []);
        assert_eq!(epoll.add(3, &file, EPOLLIN, 7), Err(Errno::EEXIST));
    }

    #[test]
    fn edge_triggered_items_fire_once_for_each_event() {
        let (epoll, file) = (Epoll::new(), eventfd(1));
        epoll.add(3, &file, EPOLLIN | EPOLLET, 1).expect("add");
        assert_eq!(epoll.collect(9).0.len(), 1);
        assert_eq!(epoll.collect(9).0.len(), 0);
        add_to(&file, 1);
        assert_eq!(epoll.collect(9).0.len(), 1);
        assert_eq!(epoll.collect(9).0.len(), 0);
    }

    #[test]
    fn items_take_turns_and_those_that_leave_lose_theirs() {
        let epoll = Epoll::new();
        let files: Vec<_> = (0..4).map(|_| eventfd(1)).collect();
        for (fd, file) in files.iter().enumerate() {
            epoll.add(fd as Fd, file, EPOLLIN, fd as u64).expect("add");
        }
        let own = OpenFile::new(epoll.clone(), 0);
        let next = || data(epoll.collect(1).0).first().map(|(_, data)| *data);
        assert_eq!([next(), next()], [Some(0), Some(1)]);
        // A look at the set changes no turn, and what it finds quiet leaves the queue.
        files[2].ops.read(&files[2], &mut IoBuffer::kernel(&mut [0; 8]), 0).expect("read");
        assert_eq!((own.poll(), own.poll()), (PollMask::READ, PollMask::READ));
        assert_eq!(epoll.state.lock().ready, 3);
        epoll.remove(0, &files[0]).expect("remove");
        assert_eq!(epoll.state.lock().ready, 2);
        assert_eq!([next(), next(), next()], [Some(3), Some(1), Some(3)]);
        add_to(&files[2], 1);
        assert_eq!([next(), next(), next()], [Some(1), Some(3), Some(2)]);
    }

    #[test]
    fn oneshot_items_fire_again_only_after_a_change() {
        let (epoll, file) = (Epoll::new(), eventfd(1));
        epoll.add(3, &file, EPOLLIN | EPOLLONESHOT, 1).expect("add");
        assert_eq!(epoll.collect(9).0.len(), 1);
        add_to(&file, 1);
        assert_eq!(epoll.collect(9).0.len(), 0);
        epoll.modify(3, &file, EPOLLIN | EPOLLOUT | EPOLLONESHOT, 2).expect("modify");
        assert_eq!(data(epoll.collect(9).0), [(EPOLLIN | EPOLLOUT, 2)]);
        let fired = [Fired { events: EPOLLIN, data: 2, key: key_of(3, &file) }];
        epoll.give_back(&fired);
        assert_eq!(epoll.collect(9).0.len(), 1);
    }

    #[test]
    fn a_closed_file_leaves_the_set() {
        let (epoll, file) = (Epoll::new(), eventfd(1));
        epoll.add(3, &file, EPOLLIN, 1).expect("add");
        let duplicate = file.clone();
        drop(file);
        assert_eq!(epoll.collect(9).0.len(), 1);
        drop(duplicate);
        assert_eq!(epoll.collect(9).0.len(), 0);
        assert!(epoll.list().is_empty());
    }

    #[test]
    fn removing_undoes_every_trace() {
        let (epoll, (r, w)) = (Epoll::new(), pipe::create(0));
        epoll.add(3, &r, EPOLLIN, 1).expect("add");
        epoll.remove(3, &r).expect("remove");
        assert_eq!(epoll.remove(3, &r), Err(Errno::ENOENT));
        assert!(r.close_hooks.lock().is_empty());
        assert!(r.ops.queue().expect("a pipe has one").is_empty());
        epoll.add(3, &r, EPOLLIN, 1).expect("add");
        drop(OpenFile::new(epoll, 0));
        assert!(r.close_hooks.lock().is_empty());
        assert!(w.ops.queue().expect("a pipe has one").is_empty());
    }

    #[test]
    fn instances_nest_but_not_in_circles() {
        let file = eventfd(0);
        let epolls: Vec<Arc<Epoll>> = (0..7).map(|_| Epoll::new()).collect();
        let files: Vec<Arc<OpenFile>> =
            epolls.iter().map(|e| OpenFile::new(e.clone(), 0)).collect();
        epolls[0].add(1, &files[1], EPOLLIN, 5).expect("add");
        epolls[1].add(1, &file, EPOLLIN, 6).expect("add");
        assert_eq!(epolls[0].collect(9).0.len(), 0);
        add_to(&file, 1);
        assert_eq!(data(epolls[0].collect(9).0), [(EPOLLIN, 5)]);
        assert_eq!(epolls[1].add(1, &files[0], EPOLLIN, 0), Err(Errno::ELOOP));
        assert_eq!(epolls[0].add(1, &files[0], EPOLLIN, 0), Err(Errno::EINVAL));
        // A chain from the top down ends at the allowed depth, and from the bottom up too.
        for i in 1..4 {
            epolls[i].add(1, &files[i + 1], EPOLLIN, 0).expect("add");
        }
        assert_eq!(epolls[4].add(1, &files[5], EPOLLIN, 0), Err(Errno::ELOOP));
        assert_eq!(epolls[6].add(1, &files[0], EPOLLIN, 0), Err(Errno::ELOOP));
    }
}
