//! inotify(7): instances, which are notified of what happens to files that they watch. What that is
//! they are told by [`super::notify`].

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{
    IN_ALL_EVENTS, IN_DELETE_SELF, IN_DONT_FOLLOW, IN_EXCL_UNLINK, IN_IGNORED, IN_MASK_ADD,
    IN_MASK_CREATE, IN_ONESHOT, IN_ONLYDIR, IN_Q_OVERFLOW,
};

use super::busy::Id;
use super::dentry::Dentry;
use super::{FileOps, Location, OpenFile, Tells};
use crate::account;
use crate::errno::{Errno, Result};
use crate::fs::Caller;
use crate::fs::file::tell_unread;
use crate::io::IoBuffer;
use crate::sync::{Mutex, mutex};
use crate::wait::{PollMask, WaitQueue};

/// fs.inotify.max_queued_events.
const MAX_EVENTS: usize = 16384;
/// fs.inotify.max_user_instances.
pub const MAX_INSTANCES: usize = 128;

/// fs.inotify.max_user_watches: as on Linux, a hundredth of memory at 1 KiB each, at least 8192;
/// here 65,536 at most.
pub fn max_watches() -> usize {
    (crate::account::memory_bytes() / 100 / 1024).clamp(8192, 65_536) as usize
}

struct Watch {
    id: Id,
    mask: u32,
    /// Keeps the name known, so that the number is not used again.
    dentry: Arc<Dentry>,
}

struct Event {
    wd: i32,
    mask: u32,
    cookie: u32,
    name: Vec<u8>,
}

impl Event {
    fn len(&self) -> usize {
        16 + if self.name.is_empty() { 0 } else { (self.name.len() + 1).next_multiple_of(16) }
    }

    fn bytes(&self) -> Vec<u8> {
        let len = self.len();
        let mut out = Vec::with_capacity(len);
        for word in [self.wd as u32, self.mask, self.cookie, (len - 16) as u32] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.name);
        out.resize(len, 0);
        out
    }
}

#[derive(Default)]
struct InotifyState {
    watches: BTreeMap<i32, Watch>,
    /// The watch of each file that is watched.
    by_id: BTreeMap<Id, i32>,
    last_wd: i32,
    events: VecDeque<Event>,
}

impl InotifyState {
    /// The watch of a file, and its descriptor.
    fn watch_of(&self, id: Id) -> Option<(i32, &Watch)> {
        let wd = *self.by_id.get(&id)?;
        Some((wd, self.watches.get(&wd)?))
    }

    fn remove(&mut self, wd: i32) -> Option<Watch> {
        let watch = self.watches.remove(&wd)?;
        self.by_id.remove(&watch.id);
        Some(watch)
    }
}

/// An inotify instance.
pub struct Inotify {
    /// Whose instance it is, for the limits.
    uid: u32,
    state: Mutex<InotifyState>,
    queue: WaitQueue,
}

/// All instances.
static INSTANCES: Mutex<Vec<Weak<Inotify>>> = mutex(Vec::new());

impl Inotify {
    /// A new instance of a user. EMFILE when the user has as many as may be.
    pub fn new(uid: u32) -> Result<Arc<Self>> {
        if Self::all_of(uid).len() >= MAX_INSTANCES {
            return Err(Errno::EMFILE);
        }
        let instance = Arc::new(Inotify { uid, state: Mutex::default(), queue: WaitQueue::new() });
        let mut instances = INSTANCES.lock();
        instances.retain(|i| i.strong_count() > 0);
        instances.push(Arc::downgrade(&instance));
        drop(instances);
        Ok(instance)
    }

    fn all_of(uid: u32) -> Vec<Arc<Inotify>> {
        let instances = INSTANCES.lock();
        instances.iter().filter_map(Weak::upgrade).filter(|i| i.uid == uid).collect()
    }

    /// inotify_add_watch(2): the watch descriptor.
    pub fn add(&self, place: &Location, mask: u32) -> Result<i32> {
        let id = place.inode().permissions()?.id();
        let all: usize = Self::all_of(self.uid).iter().map(|i| i.state.lock().watches.len()).sum();
        let mut state = self.state.lock();
        let kept = mask & (IN_ALL_EVENTS | IN_ONESHOT | IN_EXCL_UNLINK);
        let known = state.by_id.get(&id).copied();
        if let Some((wd, watch)) = known.and_then(|wd| Some((wd, state.watches.get_mut(&wd)?))) {
            if mask & IN_MASK_CREATE != 0 {
                return Err(Errno::EEXIST);
            }
            watch.mask = if mask & IN_MASK_ADD != 0 { watch.mask | kept } else { kept };
            return Ok(wd);
        }
        if all >= max_watches() {
            return Err(Errno::ENOSPC);
        }
        state.last_wd = state.last_wd.checked_add(1).ok_or(Errno::ENOSPC)?;
        let wd = state.last_wd;
        state.watches.insert(wd, Watch { id, mask: kept, dentry: place.dentry.clone() });
        state.by_id.insert(id, wd);
        Ok(wd)
    }

    /// inotify_rm_watch(2).
    pub fn remove(&self, wd: i32) -> Result {
        let watch = self.state.lock().remove(wd).ok_or(Errno::EINVAL)?;
        drop(watch);
        self.push(Event { wd, mask: IN_IGNORED, cookie: 0, name: Vec::new() });
        Ok(())
    }

    fn push(&self, event: Event) {
        {
            let mut state = self.state.lock();
            let same = |last: &Event| {
                (last.wd, last.mask, last.cookie) == (event.wd, event.mask, event.cookie)
                    && last.name == event.name
            };
            if state.events.back().is_some_and(same) {
                return;
            }
            let overflow = Event { wd: -1, mask: IN_Q_OVERFLOW, cookie: 0, name: Vec::new() };
            match account::room_in(&mut state.events) {
                Ok(()) if state.events.len() < MAX_EVENTS => state.events.push_back(event),
                Ok(()) if state.events.back().is_some_and(|last| last.mask == IN_Q_OVERFLOW) => {
                    return;
                }
                Ok(()) => state.events.push_back(overflow),
                // No memory for one more: the last one is lost too.
                Err(_) => match state.events.back_mut() {
                    Some(last) => *last = overflow,
                    None => return,
                },
            }
        }
        self.queue.wake(PollMask::READ);
    }

    /// Something happened to `id`, or to `name` in it.
    pub fn notify(&self, id: Id, mask: u32, cookie: u32, name: &[u8]) {
        let found = {
            let state = self.state.lock();
            state
                .watch_of(id)
                .map(|(wd, w)| (wd, w.mask))
                .filter(|(_, m)| m & mask & IN_ALL_EVENTS != 0)
        };
        let Some((wd, watched)) = found else { return };
        self.push(Event { wd, mask, cookie, name: name.to_vec() });
        if watched & IN_ONESHOT != 0 {
            // It may have been removed meanwhile.
            let _ = self.remove(wd);
        }
    }

    /// True if the watch of directory `id` is not told of what has no name there any more.
    pub fn leaves_out_unlinked(&self, id: Id) -> bool {
        self.state.lock().watch_of(id).is_some_and(|(_, watch)| watch.mask & IN_EXCL_UNLINK != 0)
    }

    /// True if a watch of file `id` keeps `dentry`.
    pub fn keeps(&self, id: Id, dentry: &Arc<Dentry>) -> bool {
        self.state.lock().watch_of(id).is_some_and(|(_, watch)| Arc::ptr_eq(&watch.dentry, dentry))
    }

    /// File `id` is gone, and so is its watch.
    pub fn is_gone(&self, id: Id) {
        self.notify(id, IN_DELETE_SELF, 0, b"");
        let wd = self.state.lock().by_id.get(&id).copied();
        if let Some(wd) = wd {
            // It may have been removed meanwhile.
            let _ = self.remove(wd);
        }
    }
}

impl FileOps for Inotify {
    fn held_bytes(&self) -> u64 {
        const WATCH_BYTES: usize = 320;
        let state = self.state.lock();
        // As if all names were as long as the last one: the queue may be long, and this is asked
        // often when memory is short.
        let event_bytes =
            state.events.back().map_or(0, |event| size_of::<Event>() + event.name.capacity());
        (state.events.len() * event_bytes + state.watches.len() * WATCH_BYTES) as u64
    }

    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        let mut stored = 0;
        loop {
            let next = self.state.lock().events.pop_front();
            let Some(event) = next else {
                return if stored > 0 { Ok(stored) } else { Err(Errno::EAGAIN) };
            };
            if event.len() > buffer.remaining() {
                self.state.lock().events.push_front(event);
                return if stored > 0 { Ok(stored) } else { Err(Errno::EINVAL) };
            }
            stored += buffer.put(&event.bytes())?;
        }
    }

    fn poll(&self, _file: &OpenFile) -> PollMask {
        if self.state.lock().events.is_empty() { PollMask::empty() } else { PollMask::READ }
    }

    fn tells(&self) -> Tells {
        Tells::Data
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
        let bytes = || self.state.lock().events.iter().map(Event::len).sum();
        tell_unread(caller, command, argument, bytes)
    }

    fn label(&self, _file: &OpenFile) -> Vec<u8> {
        b"anon_inode:inotify".to_vec()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Flags that inotify_add_watch(2) takes besides events.
pub const ADD_FLAGS: u32 = IN_DONT_FOLLOW
    | IN_EXCL_UNLINK
    | IN_MASK_ADD
    | IN_MASK_CREATE
    | IN_ONESHOT
    | IN_ONLYDIR
    | IN_ALL_EVENTS;

/// True if there are none.
pub fn is_unused() -> bool {
    INSTANCES.lock().iter().all(|instance| instance.strong_count() == 0)
}

/// Those that there are.
pub fn instances() -> Vec<Arc<Inotify>> {
    let list = INSTANCES.lock();
    if list.is_empty() { Vec::new() } else { list.iter().filter_map(Weak::upgrade).collect() }
}
