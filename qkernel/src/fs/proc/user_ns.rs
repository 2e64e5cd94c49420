//! /proc/PID/uid_map, gid_map, projid_map and setgroups (user_namespaces(7)): they are about the
//! user namespace in which the process was when the file was opened, and who opened it must have
//! the right to write, not only who writes.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{
    CAP_SETFCAP, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN, O_ACCMODE, O_RDONLY,
};
use qlib::PAGE_SIZE;

use super::pid::Subject;
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::fs::synth::Node;
use crate::fs::{FileOps, OpenFile};
use crate::io::IoBuffer;
use crate::task::current;
use crate::user_namespace::{Extent, Ids, UserNs};

/// Which of the files it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Map(Ids),
    SetGroups,
}

/// An open one.
struct NsFile {
    what: What,
    user: UserNs,
    opener: Arc<Creds>,
}

fn node(subject: Subject, what: What) -> Node {
    Node::Own(
        0o644,
        Box::new(move |opener| {
            let user = subject.thread()?.creds().user.clone();
            Ok(Arc::new(NsFile { what, user, opener: opener.creds() }))
        }),
    )
}

/// uid_map, gid_map or projid_map.
pub fn map(subject: Subject, ids: Ids) -> Node {
    node(subject, What::Map(ids))
}

/// setgroups.
pub fn setgroups(subject: Subject) -> Node {
    node(subject, What::SetGroups)
}

impl NsFile {
    fn text(&self) -> Vec<u8> {
        match self.what {
            What::Map(ids) => self.user.map_text(ids, &self.opener.user).into_bytes(),
            What::SetGroups if self.user.denies_setgroups() => b"deny\n".to_vec(),
            What::SetGroups => b"allow\n".to_vec(),
        }
    }

    /// Who writes `bytes` sets the map.
    fn set_map(&self, ids: Ids, writer: &Creds, bytes: &[u8]) -> Result {
        let parent = self.user.parent.as_ref().ok_or(Errno::EPERM)?;
        let opener = &self.opener;
        if opener.user != self.user && opener.user != *parent {
            return Err(Errno::EPERM);
        }
        self.user.check_unmapped(ids)?;
        if ids != Ids::Projects && !opener.capable_in(&self.user, CAP_SYS_ADMIN) {
            return Err(Errno::EPERM);
        }
        let extents = Extent::parse(bytes)?;
        if !self.may_map(ids, parent, writer, &extents) {
            return Err(Errno::EPERM);
        }
        self.user.set_map(ids, extents)
    }

    /// True if the opener, and who writes, may map just these (Linux's new_idmap_permitted).
    fn may_map(&self, ids: Ids, parent: &UserNs, writer: &Creds, extents: &[Extent]) -> bool {
        let opener = &self.opener;
        let needed = match ids {
            Ids::Users => CAP_SETUID,
            Ids::Groups => CAP_SETGID,
            // They need no privilege.
            Ids::Projects => return true,
        };
        // Who has the parent's root could give files capabilities that count there.
        let maps_root = ids == Ids::Users && extents.iter().any(|extent| extent.lower == 0);
        let may_map_root = match opener.user == self.user {
            true => self.user.maker_sets_capabilities,
            false => opener.capable_in(parent, CAP_SETFCAP),
        };
        if maps_root && !may_map_root {
            return false;
        }
        if let [one] = extents
            && one.count == 1
            && self.user.owner.0 == opener.euid
        {
            let is_own = match ids {
                Ids::Users => parent.uid_of(one.lower) == Ok(opener.euid),
                // Groups that take rights away could be left.
                _ => self.user.denies_setgroups() && parent.gid_of(one.lower) == Ok(opener.egid),
            };
            if is_own {
                return true;
            }
        }
        writer.capable_in(parent, needed) && opener.capable_in(parent, needed)
    }

    fn set_setgroups(&self, bytes: &[u8]) -> Result {
        if !self.opener.capable_in(&self.user, CAP_SYS_ADMIN) {
            return Err(Errno::EACCES);
        }
        match bytes.trim_ascii_end() {
            b"allow" => self.user.set_setgroups(true),
            b"deny" => self.user.set_setgroups(false),
            _ => Err(Errno::EINVAL),
        }
    }
}

impl FileOps for NsFile {
    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        let text = self.text();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        buffer.put(&text[start..])
    }

    fn write(&self, file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        let length = buffer.remaining();
        if file.flags() & O_ACCMODE == O_RDONLY {
            return Err(Errno::EBADF);
        }
        // All at once.
        if offset != 0 || length as u64 >= PAGE_SIZE {
            return Err(Errno::EINVAL);
        }
        let bytes = buffer.take_vec(length)?;
        let writer = current::get().map_or_else(|| self.opener.clone(), |thread| thread.creds());
        match self.what {
            What::Map(ids) => self.set_map(ids, &writer, &bytes)?,
            What::SetGroups => self.set_setgroups(&bytes)?,
        }
        Ok(length)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
