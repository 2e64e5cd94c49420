//! inotify(7): what happens to files, of which those who watch them are notified. Only what goes
//! through this kernel is seen.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{
    IN_ALL_EVENTS, IN_ATTRIB, IN_CREATE, IN_DELETE, IN_DELETE_SELF, IN_DONT_FOLLOW, IN_EXCL_UNLINK,
    IN_IGNORED, IN_ISDIR, IN_MASK_ADD, IN_MASK_CREATE, IN_MOVE_SELF, IN_MOVED_FROM, IN_MOVED_TO,
    IN_ONESHOT, IN_ONLYDIR, IN_Q_OVERFLOW,
};
use linux_raw_sys::ioctl::FIONREAD;
use qlib::Va;

use super::dentry::Dentry;
use super::{FileOps, Location, OpenFile, Tells, dnotify};
use crate::account;
use crate::errno::{Errno, Result};
use crate::fs::Caller;
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

/// Which file: device and inode number.
type Id = (u64, u64);

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

fn id_of(place: &Location) -> Result<Id> {
    Ok(place.inode().permissions()?.id())
}

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
        let id = id_of(place)?;
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
    fn notify(&self, id: Id, mask: u32, cookie: u32, name: &[u8]) {
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
    fn leaves_out_unlinked(&self, id: Id) -> bool {
        self.state.lock().watch_of(id).is_some_and(|(_, watch)| watch.mask & IN_EXCL_UNLINK != 0)
    }

    /// True if a watch of file `id` keeps `dentry`.
    fn keeps(&self, id: Id, dentry: &Arc<Dentry>) -> bool {
        self.state.lock().watch_of(id).is_some_and(|(_, watch)| Arc::ptr_eq(&watch.dentry, dentry))
    }

    /// File `id` is gone, and so is its watch.
    fn is_gone(&self, id: Id) {
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
        if command != FIONREAD {
            return Err(Errno::ENOTTY);
        }
        let bytes: usize = self.state.lock().events.iter().map(Event::len).sum();
        caller.mm().write(Va(argument), &(bytes as i32))?;
        Ok(0)
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

fn instances() -> Vec<Arc<Inotify>> {
    let list = INSTANCES.lock();
    if list.is_empty() { Vec::new() } else { list.iter().filter_map(Weak::upgrade).collect() }
}

/// Something (IN_*) happened to what lies at `place`: notifies its watchers and those of its
/// directory.
pub fn event(place: &Location, mask: u32) {
    let instances = instances();
    if instances.is_empty() && dnotify::is_unused() {
        return;
    }
    let is_dir = if place.inode().is_dir() { IN_ISDIR } else { 0 };
    let own = id_of(place);
    let is_unlinked = place.dentry.is_unlinked();
    let parent = place.dentry.parent();
    let above = parent.and_then(|p| p.inode.permissions().ok()).map(|a| a.id());
    for id in above.into_iter().chain(own.ok()) {
        dnotify::happened(id, mask);
    }
    for instance in instances {
        if let Some(id) = above.filter(|id| !(is_unlinked && instance.leaves_out_unlinked(*id))) {
            instance.notify(id, mask | is_dir, 0, &place.dentry.name());
        }
        if let Ok(id) = own {
            instance.notify(id, mask | is_dir, 0, b"");
        }
    }
}

/// The same for an open file.
pub fn file_event(file: &OpenFile, mask: u32) {
    if let Some(place) = &file.path {
        event(place, mask);
    }
}

/// A name came (IN_CREATE) or went (IN_DELETE) in `directory`.
pub fn name_event(directory: &Location, name: &[u8], mask: u32, is_dir: bool) {
    let instances = instances();
    if instances.is_empty() && dnotify::is_unused() {
        return;
    }
    let Ok(id) = id_of(directory) else { return };
    dnotify::happened(id, mask);
    for instance in instances {
        instance.notify(id, mask | if is_dir { IN_ISDIR } else { 0 }, 0, name);
    }
}

/// `name` was made in `directory`.
pub fn created(directory: &Location, name: &[u8], is_dir: bool) {
    name_event(directory, name, IN_CREATE, is_dir);
}

/// What lies at `place` has one name more, or less. Its directory's watchers hear nothing of that.
pub fn links_changed(place: &Location) {
    name_event(place, b"", IN_ATTRIB, false);
}

/// `child` was removed from `directory`.
pub fn removed(directory: &Location, name: &[u8], child: &Location) {
    let is_dir = child.inode().is_dir();
    if !is_dir {
        links_changed(child);
    }
    name_event(directory, name, IN_DELETE, is_dir);
    is_gone(child);
}

/// What lies at `place` is gone if it has no name any more, and nobody has it but the caller: its
/// watchers are told, and watch nothing from now on.
pub fn is_gone(place: &Location) {
    let instances = instances();
    if instances.is_empty() || !place.dentry.is_unlinked() {
        return;
    }
    let Ok(id) = id_of(place) else { return };
    let watches = instances.iter().filter(|instance| instance.keeps(id, &place.dentry)).count();
    let has_name = || place.attributes().is_ok_and(|a| a.nlink > 0);
    if Arc::strong_count(&place.dentry) > 1 + watches || (!place.inode().is_dir() && has_name()) {
        return;
    }
    for instance in instances {
        instance.is_gone(id);
    }
}

/// `child` got another name.
pub fn moved(from: (&Location, &[u8]), to: (&Location, &[u8]), child: &Location) {
    let instances = instances();
    if instances.is_empty() && dnotify::is_unused() {
        return;
    }
    static COOKIE: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);
    let cookie = COOKIE.fetch_add(1, core::sync::atomic::Ordering::Relaxed).wrapping_add(1);
    let is_dir = if child.inode().is_dir() { IN_ISDIR } else { 0 };
    let (old, new, own) = (id_of(from.0), id_of(to.0), id_of(child));
    if let (Ok(old), Ok(new)) = (old, new) {
        dnotify::happened(old, dnotify::RENAME);
        if old != new {
            dnotify::happened(new, dnotify::RENAME);
        }
        dnotify::happened(old, IN_MOVED_FROM);
        dnotify::happened(new, IN_MOVED_TO);
    }
    for instance in instances {
        for (directory, name, mask) in [(old, from.1, IN_MOVED_FROM), (new, to.1, IN_MOVED_TO)] {
            if let Ok(id) = directory {
                instance.notify(id, mask | is_dir, cookie, name);
            }
        }
        if let Ok(id) = own {
            instance.notify(id, IN_MOVE_SELF, 0, b"");
        }
    }
}
