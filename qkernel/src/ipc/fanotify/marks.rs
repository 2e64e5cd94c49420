//! Marks: what a group wants to be told of.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use super::abi::*;
use crate::errno::{Errno, Result};
use crate::fs::busy::Id;
use crate::fs::dentry::Dentry;
use crate::fs::inode::FileSystem;
use crate::fs::mount::Mount;
use crate::fs::notify::Happening;
use crate::fs::{Location, handle};

/// What a mark is on: a file, by number; a mount, by number; a file system, by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// FAN_MARK_INODE.
    Inode(Id),
    /// FAN_MARK_MOUNT.
    Mount(u32),
    /// FAN_MARK_FILESYSTEM.
    FileSystem(usize),
}

fn address(fs: &Arc<dyn FileSystem>) -> usize {
    Arc::as_ptr(fs).cast::<u8>() as usize
}

impl Subject {
    /// What a mark of this type (FAN_MARK_*) on `place` is on.
    pub fn of(place: &Location, kind: u32) -> Result<Subject> {
        Ok(match kind {
            FAN_MARK_MOUNT => Subject::Mount(place.mount.id),
            FAN_MARK_FILESYSTEM => Subject::FileSystem(address(&place.dentry.fs)),
            _ => Subject::Inode(place.inode().permissions()?.id()),
        })
    }

    /// FAN_MARK_*.
    pub fn kind(self) -> u32 {
        match self {
            Subject::Inode(_) => 0,
            Subject::Mount(_) => FAN_MARK_MOUNT,
            Subject::FileSystem(_) => FAN_MARK_FILESYSTEM,
        }
    }
}

/// What keeps the number or address that the mark goes by from being used again, or shows that it
/// is no longer what it was.
enum Kept {
    Inode(Arc<Dentry>),
    /// FAN_MARK_EVICTABLE: it goes when the file is forgotten.
    Evictable(Weak<Dentry>),
    Mount(Weak<Mount>),
    FileSystem(Weak<dyn FileSystem>, u64),
}

impl Kept {
    fn is_there(&self) -> bool {
        match self {
            Kept::Inode(_) => true,
            Kept::Evictable(dentry) => dentry.strong_count() > 0,
            Kept::Mount(mount) => mount.strong_count() > 0,
            Kept::FileSystem(fs, _) => fs.strong_count() > 0,
        }
    }
}

impl Kept {
    /// What is shown of the handle of a file that has one.
    fn handle(&self, subject: &Subject) -> String {
        let dentry = match self {
            Kept::Inode(dentry) => Some(dentry.clone()),
            Kept::Evictable(dentry) => dentry.upgrade(),
            _ => None,
        };
        let mut text = String::new();
        if let (Some(dentry), Subject::Inode((_, ino))) = (dentry, subject)
            && dentry.fs.has_handles()
        {
            let (bytes, kind) = (handle::BYTES, handle::KIND);
            text = alloc::format!(" fhandle-bytes:{bytes:x} fhandle-type:{kind:x} f_handle:");
            for byte in handle::body(*ino) {
                text.push_str(&alloc::format!("{byte:02x}"));
            }
        }
        text
    }
}

/// A mark.
pub struct Mark {
    /// Events that are told of.
    pub mask: u32,
    /// Events that are not.
    pub ignored: u32,
    /// FAN_MARK_IGNORED_SURV_MODIFY, FAN_MARK_EVICTABLE, FAN_MARK_IGNORE.
    pub flags: u32,
    kept: Kept,
}

/// How a mark has to do with an event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It is on what the event is reported of, or all around it.
    Own,
    /// It is on the directory of what that is.
    Parent,
    /// It is on the directory where a name went.
    To,
}

fn is_applicable(mask: u32, is_dir: bool, role: Role) -> bool {
    (!is_dir || mask & FAN_ONDIR != 0) && (role != Role::Parent || mask & FAN_EVENT_ON_CHILD != 0)
}

impl Mark {
    /// The events that are ignored, of those that have to do with it so.
    fn ignores(&self, is_dir: bool, role: Role) -> u32 {
        let flags = match self.flags & FAN_MARK_IGNORE {
            // Of old, directories are ignored too, and children if they are told of.
            0 => FAN_ONDIR | self.mask & FAN_EVENT_ON_CHILD,
            _ => self.ignored,
        };
        if is_applicable(flags, is_dir, role) { self.ignored & !EVENT_FLAGS } else { 0 }
    }

    /// Adds to it. EEXIST if its flags (FAN_MARK_*) do not go together with those it has.
    fn add(&mut self, mask: u32, flags: u32) -> Result {
        let ignores = flags & MARK_IGNORES;
        let survives = FAN_MARK_IGNORED_SURV_MODIFY;
        if flags & FAN_MARK_EVICTABLE != 0 && self.flags & FAN_MARK_EVICTABLE == 0
            || ignores == FAN_MARK_IGNORED_MASK && self.flags & FAN_MARK_IGNORE != 0
            || ignores == FAN_MARK_IGNORE && self.flags & survives != 0 && flags & survives == 0
        {
            return Err(Errno::EEXIST);
        }
        if ignores == 0 {
            self.mask |= mask;
        } else {
            self.ignored |= mask;
            self.flags |= flags & (survives | FAN_MARK_IGNORE);
        }
        Ok(())
    }
}

/// What a group wants of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The events, with FAN_ONDIR if a mark has that.
    pub mask: u32,
    /// Of FAN_RENAME, that it was told where the name was.
    pub old: bool,
    /// Of FAN_RENAME, where it is now.
    pub new: bool,
}

/// The marks of a group.
#[derive(Default)]
pub struct Marks {
    all: BTreeMap<Subject, Mark>,
    /// So many have to be there before it is looked which have lost what they were on.
    look_at: usize,
}

impl Marks {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Subject, &Mark)> {
        self.all.iter()
    }

    /// Takes out those that have lost what they were on, if it is time for that (`now`: it is).
    pub fn clean(&mut self, now: bool) -> Vec<Mark> {
        if !now && self.len() < self.look_at {
            return Vec::new();
        }
        let is_gone = |_: &Subject, mark: &mut Mark| !mark.kept.is_there();
        let gone = self.all.extract_if(.., is_gone).map(|(_, mark)| mark).collect();
        self.look_at = self.len() * 2 + 64;
        gone
    }

    /// True if there is a mark on this.
    pub fn has(&self, subject: Subject) -> bool {
        self.all.get(&subject).is_some_and(|mark| mark.kept.is_there())
    }

    /// Adds to the mark on `subject`, which is at `place`: FAN_MARK_* flags. What it replaces.
    pub fn add(
        &mut self,
        subject: Subject,
        place: &Location,
        mask: u32,
        flags: u32,
    ) -> Result<Option<Mark>> {
        if let Some(mark) = self.all.get_mut(&subject).filter(|mark| mark.kept.is_there()) {
            let mut pinned = None;
            mark.add(mask, flags)?;
            if mark.flags & FAN_MARK_EVICTABLE != 0 && flags & FAN_MARK_EVICTABLE == 0 {
                // From now on it stays.
                mark.flags &= !FAN_MARK_EVICTABLE;
                pinned =
                    Some(core::mem::replace(&mut mark.kept, Kept::Inode(place.dentry.clone())));
            }
            drop(pinned);
            return Ok(None);
        }
        let kept = match subject {
            Subject::Inode(_) if flags & FAN_MARK_EVICTABLE != 0 => {
                Kept::Evictable(Arc::downgrade(&place.dentry))
            }
            Subject::Inode(_) => Kept::Inode(place.dentry.clone()),
            Subject::Mount(_) => Kept::Mount(Arc::downgrade(&place.mount)),
            Subject::FileSystem(_) => {
                let device = place.inode().permissions()?.dev;
                Kept::FileSystem(Arc::downgrade(&place.dentry.fs), device)
            }
        };
        let mut mark = Mark { mask: 0, ignored: 0, flags: flags & FAN_MARK_EVICTABLE, kept };
        mark.add(mask, flags)?;
        Ok(self.all.insert(subject, mark))
    }

    /// Takes from the mark on `subject`; `not_counted` alone does not keep it. The mark, if it has
    /// nothing else. ENOENT.
    pub fn remove(
        &mut self,
        subject: Subject,
        mask: u32,
        flags: u32,
        not_counted: u32,
    ) -> Result<Option<Mark>> {
        let mark = self.all.get_mut(&subject).ok_or(Errno::ENOENT)?;
        let list = if flags & MARK_IGNORES == 0 { &mut mark.mask } else { &mut mark.ignored };
        *list &= !(mask & !not_counted);
        let is_left = (mark.mask | mark.ignored) & !not_counted != 0;
        Ok(if is_left { None } else { self.all.remove(&subject) })
    }

    /// Takes out all of a type (FAN_MARK_*).
    pub fn flush(&mut self, kind: u32) -> Vec<Mark> {
        let is_such = |subject: &Subject, _: &mut Mark| subject.kind() == kind;
        self.all.extract_if(.., is_such).map(|(_, mark)| mark).collect()
    }

    /// Takes out the mark on a file.
    pub fn forget(&mut self, id: Id) -> Option<Mark> {
        self.all.remove(&Subject::Inode(id))
    }

    /// True if a mark on file `id` has `dentry` live on.
    pub fn keeps(&self, id: Id, dentry: &Arc<Dentry>) -> bool {
        let mark = self.all.get(&Subject::Inode(id));
        mark.is_some_and(
            |mark| matches!(&mark.kept, Kept::Inode(kept) if Arc::ptr_eq(kept, dentry)),
        )
    }

    /// What is wanted of an event. A change of a file ends what is ignored of it.
    pub fn wanted(&mut self, event: &Happening<'_>) -> Wanted {
        let inode = |id: Id| Some(Subject::Inode(id));
        let own = event.object.map(|object| object.id);
        let above = event.entry.map(|entry| entry.directory.id);
        let to = event.to.map(|to| to.directory.id);
        let dentry = event.object.or(event.entry.map(|entry| entry.directory));
        let fs = dentry.map(|object| Subject::FileSystem(address(&object.dentry.fs)));
        let mount = event.mount.map(|mount| Subject::Mount(mount.id));
        let (first, second) = match event.is_of_entry {
            true => ((above.and_then(inode), Role::Own), (to.and_then(inode), Role::To)),
            false => ((own.and_then(inode), Role::Own), (above.and_then(inode), Role::Parent)),
        };
        let (mut mask, mut ignored, mut wanted) = (0, 0, Wanted::default());
        for (subject, role) in [(fs, Role::Own), (mount, Role::Own), first, second] {
            let mark = subject.and_then(|subject| self.all.get_mut(&subject));
            let Some(mark) = mark.filter(|mark| mark.kept.is_there()) else { continue };
            if event.mask & FAN_MODIFY != 0 && mark.flags & FAN_MARK_IGNORED_SURV_MODIFY == 0 {
                mark.ignored = 0;
            }
            ignored |= mark.ignores(event.is_dir, role);
            if !is_applicable(mark.mask, event.is_dir, role) {
                continue;
            }
            mask |= mark.mask;
            let is_around = !matches!(subject, Some(Subject::Inode(_)));
            wanted.old |= is_around || role == Role::Own;
            wanted.new |= is_around || role == Role::To;
        }
        let flag = if event.is_dir { FAN_ONDIR } else { 0 };
        wanted.mask = (event.mask & EVENTS & mask & !ignored) | (flag & mask);
        if wanted.mask & EVENTS == 0 { Wanted::default() } else { wanted }
    }

    /// Lines of /proc/PID/fdinfo.
    pub fn show(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (subject, mark) in self.iter().filter(|(_, mark)| mark.kept.is_there()) {
            let what = match (subject, &mark.kept) {
                (Subject::Inode((dev, ino)), _) => {
                    alloc::format!("ino:{ino:x} sdev:{:x}", short_device(*dev))
                }
                (Subject::Mount(id), _) => alloc::format!("mnt_id:{id:x}"),
                (_, Kept::FileSystem(_, dev)) => {
                    alloc::format!("sdev:{:x}", short_device(*dev))
                }
                _ => continue,
            };
            let (flags, mask, ignored) = (mark.flags, mark.mask, mark.ignored);
            let handle = mark.kept.handle(subject);
            let line = alloc::format!(
                "fanotify {what} mflags:{flags:x} mask:{mask:x} ignored_mask:{ignored:x}{handle}\n"
            );
            out.extend_from_slice(line.as_bytes());
        }
        out
    }
}

/// A device number as Linux's kernel has it inside: 12 bits of major, 20 of minor.
fn short_device(dev: u64) -> u64 {
    (dev >> 32) << 20 | dev & 0xf_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty(flags: u32) -> Mark {
        Mark { mask: 0, ignored: 0, flags, kept: Kept::Evictable(Weak::new()) }
    }

    #[test]
    fn marks_are_for_what_their_flags_say() {
        assert!(is_applicable(FAN_OPEN, false, Role::Own));
        assert!(!is_applicable(FAN_OPEN, true, Role::Own));
        assert!(!is_applicable(FAN_OPEN | FAN_ONDIR, false, Role::Parent));
        assert!(is_applicable(FAN_OPEN | EVENT_FLAGS, true, Role::Parent));
    }

    #[test]
    fn what_is_ignored_has_flags_of_its_own_or_those_of_the_mark() {
        let mut mark = empty(0);
        assert_eq!(mark.add(FAN_OPEN, FAN_MARK_IGNORED_MASK), Ok(()));
        assert_eq!(mark.ignores(true, Role::Own), FAN_OPEN);
        assert_eq!(mark.ignores(false, Role::Parent), 0);
        assert_eq!(mark.add(FAN_EVENT_ON_CHILD, 0), Ok(()));
        assert_eq!(mark.ignores(false, Role::Parent), FAN_OPEN);
        let lasting = FAN_MARK_IGNORE | FAN_MARK_IGNORED_SURV_MODIFY;
        assert_eq!(mark.add(FAN_CLOSE_WRITE, lasting), Ok(()));
        assert_eq!(mark.ignores(true, Role::Own), 0);
        assert_eq!(mark.ignores(false, Role::Own), FAN_OPEN | FAN_CLOSE_WRITE);
        assert_eq!(mark.add(FAN_OPEN, FAN_MARK_IGNORED_MASK), Err(Errno::EEXIST));
        assert_eq!(mark.add(FAN_OPEN, FAN_MARK_IGNORE), Err(Errno::EEXIST));
        assert_eq!(mark.add(FAN_OPEN, FAN_MARK_EVICTABLE), Err(Errno::EEXIST));
        assert_eq!(empty(FAN_MARK_EVICTABLE).add(FAN_OPEN, FAN_MARK_EVICTABLE), Ok(()));
    }
}
