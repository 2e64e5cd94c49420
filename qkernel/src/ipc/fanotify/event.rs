//! Events that wait for the reader of a group, and the form in which it gets them.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use super::abi::*;
use super::marks::Wanted;
use crate::fs::ask::Question;
use crate::fs::busy::Id;
use crate::fs::notify::{self, Entry, Happening};
use crate::fs::{Fd, Location, handle};
use crate::task::Process;

/// FAN_EVENT_METADATA_LEN.
pub const METADATA_BYTES: usize = 24;
/// FAN_NOFD, FAN_NOPIDFD.
pub const NO_FD: Fd = -1;
/// FAN_EPIDFD: there was none to be had.
pub const NO_PIDFD: Fd = -2;
/// FANOTIFY_METADATA_VERSION.
const VERSION: u8 = 3;

/// FAN_EVENT_INFO_TYPE_*.
const INFO_FID: u8 = 1;
const INFO_DFID_NAME: u8 = 2;
const INFO_DFID: u8 = 3;
const INFO_PIDFD: u8 = 4;
const INFO_OLD_DFID_NAME: u8 = 10;
const INFO_NEW_DFID_NAME: u8 = 12;

/// struct fanotify_event_info_fid with the head of its handle, and what the handle holds.
const FID_BYTES: usize = 12 + 8 + handle::BYTES as usize;
const PIDFD_BYTES: usize = 8;

/// A directory, by its inode number, and a name in it, or none.
type Named = (u64, Vec<u8>);

/// What a group is told by handles.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handles {
    fsid: [i32; 2],
    directory: Option<Named>,
    to: Option<Named>,
    /// The inode number.
    object: Option<u64>,
}

/// Of what an event is.
pub enum What {
    /// Of nothing: events were lost.
    Overflow,
    /// Of what the reader gets a descriptor of, and maybe a question about that.
    Open(Location, Option<Arc<Question>>),
    /// Of what it learns the handles of.
    Handles(Arc<Handles>),
}

/// What makes two events one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Mount and name by address.
    Open(u32, u32, (usize, usize)),
    /// See [`Handles`].
    Handles(u32, u32, Arc<Handles>),
}

/// An event.
pub struct Event {
    /// FAN_*.
    pub mask: u32,
    /// Who did it: a process, or a thread for who wants to know that. 0: the kernel.
    pub pid: u32,
    /// That process, for who gets a descriptor of it.
    pub process: Weak<Process>,
    /// Of what it is.
    pub what: What,
}

/// The handle of what has this number, which is where a group's events can come from.
fn number((_, ino): Id) -> u64 {
    ino
}

impl Handles {
    /// What a group with FAN_REPORT_* `flags` is told of an event; `None`: nothing.
    pub fn of(event: &Happening<'_>, wanted: &Wanted, flags: u32) -> Option<Handles> {
        let object = event.object;
        let around = object.or(event.entry.map(|entry| entry.directory))?;
        let fsid = around.dentry.fs.statfs().ok()?.fsid;
        let above = event.entry.map(|entry| number(entry.directory.id));
        let own = object.map(|object| number(object.id));
        let has_target = flags & FAN_REPORT_TARGET_FID != 0;
        let mut id = match event.is_of_entry {
            true if !has_target => above,
            _ => own,
        };
        if flags & FAN_REPORT_DIR_FID == 0 {
            return Some(Handles { fsid, object: Some(id?), ..Handles::default() });
        }
        let directory = if event.is_of_entry || !event.is_dir { above } else { own };
        let Some(directory) = directory else {
            return Some(Handles { fsid, object: Some(id?), ..Handles::default() });
        };
        let tells_child = match event.is_of_entry {
            true => has_target,
            false => flags & FAN_REPORT_FID != 0 && !event.is_dir,
        };
        let child = id.take().filter(|id| tells_child && *id != directory);
        let has_name = flags & FAN_REPORT_NAME != 0 && (event.is_of_entry || !event.is_dir);
        if !has_name && child.is_none() {
            return Some(Handles { fsid, object: Some(directory), ..Handles::default() });
        }
        let named = |entry: Entry<'_>| (number(entry.directory.id), entry.name.to_vec());
        let mut handles = Handles { fsid, object: child, ..Handles::default() };
        match event.entry.filter(|_| has_name) {
            Some(entry) if event.mask & FAN_RENAME == 0 || wanted.old => {
                handles.directory = Some(named(entry));
            }
            Some(_) => {}
            None => handles.directory = Some((directory, Vec::new())),
        }
        if event.mask & FAN_RENAME != 0 && wanted.new {
            handles.to = event.to.map(named);
        }
        Some(handles)
    }

    /// What each record is about, and its type, in their order; `mask` is the event's.
    fn records(&self, mask: u32, flags: u32) -> impl Iterator<Item = (u8, u64, &[u8])> {
        let is_rename = mask & FAN_RENAME != 0;
        let directory = self.directory.as_ref().map(|(ino, name)| {
            let kind = match name.is_empty() {
                true => INFO_DFID,
                false if is_rename => INFO_OLD_DFID_NAME,
                false => INFO_DFID_NAME,
            };
            (kind, *ino, &name[..])
        });
        let to = self.to.as_ref().map(|(ino, name)| (INFO_NEW_DFID_NAME, *ino, &name[..]));
        let is_first = directory.is_none() && to.is_none();
        let object = self.object.map(|ino| {
            if flags & FID == FAN_REPORT_FID || !is_first {
                (INFO_FID, ino, &b""[..])
            } else if flags & FAN_REPORT_NAME != 0 && mask & FAN_ONDIR != 0 {
                (INFO_DFID_NAME, ino, &b"."[..])
            } else if mask & (DIRENT | FAN_ONDIR) != 0 {
                (INFO_DFID, ino, &b""[..])
            } else {
                (INFO_FID, ino, &b""[..])
            }
        });
        [directory, to, object].into_iter().flatten()
    }
}

fn record_bytes(name: &[u8]) -> usize {
    let name = if name.is_empty() { 0 } else { name.len() + 1 };
    (FID_BYTES + name).next_multiple_of(4)
}

impl Event {
    /// What makes another one equal; `None`: it stands alone.
    pub fn key(&self) -> Option<Key> {
        let kind = self.mask & (FAN_ONDIR | FAN_RENAME);
        match &self.what {
            What::Open(place, None) => {
                let place =
                    (Arc::as_ptr(&place.mount) as usize, Arc::as_ptr(&place.dentry) as usize);
                Some(Key::Open(self.pid, kind, place))
            }
            What::Handles(handles) => Some(Key::Handles(self.pid, kind, handles.clone())),
            _ => None,
        }
    }

    /// True if it is a question for which nobody waits any more.
    pub fn is_given_up(&self) -> bool {
        matches!(&self.what, What::Open(_, Some(question)) if question.is_given_up())
    }

    /// The reader has it. What it was of may be gone with it.
    pub fn end_read(self) {
        if let What::Open(place, _) = &self.what {
            notify::is_gone(place);
        }
    }

    /// Nobody gets it: a question is answered so.
    pub fn end(self, allows: bool) {
        if let What::Open(_, Some(question)) = &self.what {
            question.answer(allows);
        }
        self.end_read();
    }

    /// Bytes that the reader gets, of a group with FAN_REPORT_* `flags`.
    pub fn len(&self, flags: u32) -> usize {
        let handles = match &self.what {
            What::Handles(handles) => {
                handles.records(self.mask, flags).map(|(_, _, name)| record_bytes(name)).sum()
            }
            _ => 0,
        };
        let has_pidfd = flags & FAN_REPORT_PIDFD != 0;
        METADATA_BYTES + handles + if has_pidfd { PIDFD_BYTES } else { 0 }
    }

    /// The bytes: with `pid` as the reader calls it, and its descriptors.
    pub fn bytes(&self, flags: u32, pid: u32, fd: Fd, pidfd: Fd) -> Vec<u8> {
        let len = self.len(flags);
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(&(len as u32).to_le_bytes());
        out.extend_from_slice(&[VERSION, 0]);
        out.extend_from_slice(&(METADATA_BYTES as u16).to_le_bytes());
        out.extend_from_slice(&u64::from(self.mask).to_le_bytes());
        out.extend_from_slice(&fd.to_le_bytes());
        out.extend_from_slice(&pid.to_le_bytes());
        if let What::Handles(handles) = &self.what {
            for (kind, ino, name) in handles.records(self.mask, flags) {
                let end = out.len() + record_bytes(name);
                out.extend_from_slice(&[kind, 0]);
                out.extend_from_slice(&(record_bytes(name) as u16).to_le_bytes());
                for word in handles.fsid {
                    out.extend_from_slice(&word.to_le_bytes());
                }
                out.extend_from_slice(&handle::BYTES.to_le_bytes());
                out.extend_from_slice(&handle::KIND.to_le_bytes());
                out.extend_from_slice(&handle::body(ino));
                out.extend_from_slice(name);
                out.resize(end, 0);
            }
        }
        if flags & FAN_REPORT_PIDFD != 0 {
            out.extend_from_slice(&[INFO_PIDFD, 0]);
            out.extend_from_slice(&(PIDFD_BYTES as u16).to_le_bytes());
            out.extend_from_slice(&pidfd.to_le_bytes());
        }
        out
    }
}
