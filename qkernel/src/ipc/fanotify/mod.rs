//! fanotify(7): groups, which are told what happens to files, mounts and file systems that they
//! have marks on, and may be asked whether a file may be opened or read. What happens is told by
//! [`crate::fs::notify`], questions come from [`crate::fs::ask`].

pub mod abi;
mod event;
mod limits;
mod marks;
mod queue;
mod reader;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::O_LARGEFILE;

use self::abi::*;
use self::event::{Event, Handles, METADATA_BYTES, What};
pub use self::limits::{MOST_EVENTS, MOST_GROUPS, most_marks};
use self::limits::{Share, Unlimited};
use self::marks::{Mark, Marks, Subject};
use self::queue::Queue;
use crate::errno::{Errno, Result};
use crate::fs::ask::Question;
use crate::fs::busy::{self, Id};
use crate::fs::dentry::Dentry;
use crate::fs::file::tell_unread;
use crate::fs::notify::{self, Happening, Listener};
use crate::fs::{Caller, Fd, FileOps, Location, OpenFile};
use crate::io::IoBuffer;
use crate::sync::Mutex;
use crate::task::current;
use crate::wait::{PollMask, WaitQueue};

/// A group.
pub struct Group {
    /// FAN_* of fanotify_init(2).
    flags: u32,
    /// O_* of the descriptors that its reader gets.
    event_flags: u32,
    /// Who made it may not see all.
    is_unprivileged: bool,
    share: Share,
    marks: Mutex<Marks>,
    queue: Mutex<Queue>,
    /// Questions that were read, by the descriptors that came with them; `None`: the group is
    /// closed.
    asked: Mutex<Option<BTreeMap<Fd, Vec<Arc<Question>>>>>,
    events: WaitQueue,
}

impl Group {
    /// A new group of the user `uid`. EMFILE if that has as many as may be.
    pub fn new(
        uid: u32,
        flags: u32,
        event_flags: u32,
        is_unprivileged: bool,
    ) -> Result<Arc<Group>> {
        let unlimited = Unlimited { marks: flags & FAN_UNLIMITED_MARKS != 0 };
        let group = Arc::new(Group {
            flags,
            event_flags: event_flags | O_LARGEFILE,
            is_unprivileged,
            share: Share::take(uid, unlimited)?,
            marks: Mutex::default(),
            queue: Mutex::default(),
            asked: Mutex::new(Some(BTreeMap::new())),
            events: WaitQueue::new(),
        });
        let listener: Weak<Group> = Arc::downgrade(&group);
        notify::listen(listener);
        Ok(group)
    }

    /// Its flags.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// True if it has files of its user's alone watched, by their own marks.
    pub fn is_unprivileged(&self) -> bool {
        self.is_unprivileged
    }

    /// FAN_MARK_ADD of what lies at `place`. EEXIST, ENOSPC.
    pub fn add_mark(&self, place: &Location, mask: u32, flags: u32) -> Result {
        let subject = Subject::of(place, flags & MARK_TYPE)?;
        if let Subject::Inode(id) = subject
            && flags & MARK_IGNORES != 0
            && flags & FAN_MARK_IGNORED_SURV_MODIFY == 0
            && busy::uses_of(id).writers > 0
        {
            // Who has it open for writing would end what is ignored at once.
            return Ok(());
        }
        let is_known = self.marks.lock().has(subject);
        if !is_known {
            self.clean(false);
            if self.share.mark().is_err() {
                self.clean(true);
                self.share.mark()?;
            }
        }
        let result = self.marks.lock().add(subject, place, mask, flags);
        match result {
            // One that had lost what it was on.
            Ok(Some(replaced)) => self.let_go([replaced]),
            Ok(None) => {}
            Err(error) => {
                if !is_known {
                    self.share.give_back(1);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// FAN_MARK_REMOVE. ENOENT.
    pub fn remove_mark(&self, place: &Location, mask: u32, flags: u32, uncounted: u32) -> Result {
        let subject = Subject::of(place, flags & MARK_TYPE)?;
        let removed = self.marks.lock().remove(subject, mask, flags, uncounted)?;
        self.let_go(removed);
        Ok(())
    }

    /// FAN_MARK_FLUSH of marks of this type.
    pub fn flush_marks(&self, kind: u32) {
        let removed = self.marks.lock().flush(kind);
        self.let_go(removed);
    }

    fn clean(&self, now: bool) {
        let gone = self.marks.lock().clean(now);
        self.let_go(gone);
    }

    fn let_go(&self, marks: impl IntoIterator<Item = Mark>) {
        self.share.give_back(marks.into_iter().count());
    }

    fn most_events(&self) -> usize {
        if self.flags & FAN_UNLIMITED_QUEUE != 0 { usize::MAX } else { limits::most_events() }
    }

    /// The event that it is told of something, if it wants to know.
    fn event_of(&self, happening: &Happening<'_>) -> Option<Event> {
        let object = happening.object;
        if self.flags & FID == 0 {
            let is_seen = |dentry: &Arc<Dentry>| {
                let inode = &dentry.inode;
                happening.mount.is_some() && (inode.is_regular() || inode.is_dir())
            };
            object.filter(|object| is_seen(object.dentry))?;
        } else if self.flags & FAN_REPORT_FID == 0 && happening.entry.is_none() && !happening.is_dir
        {
            return None;
        }
        let wanted = self.marks.lock().wanted(happening);
        if wanted.mask == 0 {
            return None;
        }
        let (mut mask, what) = if self.flags & FID == 0 {
            let (mount, dentry) = (happening.mount?.clone(), object?.dentry.clone());
            (wanted.mask & EVENTS, What::Open(Location { mount, dentry }, None))
        } else {
            let handles = Handles::of(happening, &wanted, self.flags)?;
            (wanted.mask, What::Handles(Arc::new(handles)))
        };
        mask &= !FAN_EVENT_ON_CHILD;
        let thread = current::get();
        let (pid, process) = match &thread {
            Some(thread) if self.flags & FAN_REPORT_TID != 0 => (thread.tid(), Weak::new()),
            Some(thread) => (thread.process.pid, Arc::downgrade(&thread.process)),
            None => (0, Weak::new()),
        };
        Some(Event { mask, pid, process, what })
    }

    /// Puts an event into the queue. False if it is lost.
    fn push(&self, event: Event) -> bool {
        let result = self.queue.lock().push(event, self.most_events());
        let is_in = result.is_ok();
        drop(result);
        self.events.wake(PollMask::READ);
        is_in
    }

    /// Takes out questions at the front of the queue for whose answer nobody waits.
    fn drop_given_up(&self) {
        loop {
            let mut queue = self.queue.lock();
            if !queue.front().is_some_and(Event::is_given_up) {
                return;
            }
            let gone = queue.pop();
            drop(queue);
            if let Some(gone) = gone {
                gone.end(false);
            }
        }
    }

    /// The next event, if it fits into so many bytes. EAGAIN, EINVAL.
    fn next(&self, room: usize) -> Result<Event> {
        self.drop_given_up();
        let mut queue = self.queue.lock();
        match queue.front() {
            Some(event) if event.len(self.flags) > room => Err(Errno::EINVAL),
            _ => queue.pop().ok_or(Errno::EAGAIN),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.share.give_back(self.marks.get_mut().len());
    }
}

impl Listener for Group {
    fn happened(&self, event: &Happening<'_>) {
        if let Some(event) = self.event_of(event) {
            self.push(event);
        }
    }

    fn is_gone(&self, id: Id) {
        let mark = self.marks.lock().forget(id);
        self.let_go(mark);
    }

    fn keeps(&self, id: Id, dentry: &Arc<Dentry>) -> bool {
        self.marks.lock().keeps(id, dentry)
    }

    fn rank(&self) -> u32 {
        self.flags & CLASS
    }

    fn ask(&self, event: &Happening<'_>) -> Option<Arc<Question>> {
        let mut event = self.event_of(event)?;
        let question = Question::ask();
        match &mut event.what {
            What::Open(_, asks) => *asks = Some(question.clone()),
            _ => return None,
        }
        // One that is closed, or whose queue is full, lets everything pass.
        let is_open = self.asked.lock().is_some();
        if is_open && self.push(event) { Some(question) } else { None }
    }
}

impl FileOps for Group {
    fn held_bytes(&self) -> u64 {
        const BYTES: usize = 320;
        ((self.queue.lock().len() + self.marks.lock().len()) * BYTES) as u64
    }

    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        self.give_all(buffer)
    }

    fn write(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        self.take_answer(buffer)
    }

    // As Linux has it: reads and writes at an offset are like others, and seeking does nothing.
    fn is_seekable(&self) -> bool {
        true
    }

    fn is_everywhere(&self) -> bool {
        true
    }

    fn poll(&self, _file: &OpenFile) -> PollMask {
        self.drop_given_up();
        if self.queue.lock().len() == 0 { PollMask::empty() } else { PollMask::READ }
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.events)
    }

    fn ioctl(
        &self,
        caller: &dyn Caller,
        _file: &OpenFile,
        command: u32,
        argument: u64,
    ) -> Result<usize> {
        // As on Linux, without what follows the events.
        let bytes = || self.queue.lock().len().saturating_mul(METADATA_BYTES);
        tell_unread(caller, command, argument, bytes)
    }

    fn label(&self, _file: &OpenFile) -> Vec<u8> {
        b"anon_inode:[fanotify]".to_vec()
    }

    fn details(&self, _file: &OpenFile) -> Vec<u8> {
        let (flags, events) = (self.flags, self.event_flags);
        let mut out = format!("fanotify flags:{flags:x} event-flags:{events:x}\n").into_bytes();
        out.extend(self.marks.lock().show());
        out
    }

    fn release(&self, _file: &OpenFile) {
        let asked = self.asked.lock().take();
        for question in asked.into_iter().flat_map(BTreeMap::into_values).flatten() {
            question.answer(true);
        }
        loop {
            let event = self.queue.lock().pop();
            let Some(event) = event else { break };
            event.end(true);
        }
        let marks = core::mem::take(&mut *self.marks.lock());
        self.share.give_back(marks.len());
        drop(marks);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
