//! Attributes: stat, statfs, mode, owner, times, extended attributes.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags,
};
use rustix::io::Errno;

use super::super::memory::GuestRange;
use super::path::directory;
use super::table::{file_type, reopen};
use super::{Call, Outcome};
use crate::sys;

/// XATTR_NAME_MAX and XATTR_SIZE_MAX.
const MAX_XATTR_NAME: usize = 255;
const MAX_XATTR_VALUE: usize = 65_536;

const NO_AUTOMOUNT: i32 = libc::AT_NO_AUTOMOUNT;

/// What a path names: the handle's own object, or one opened (O_PATH) for this call.
enum Node<'a> {
    Own(BorrowedFd<'a>),
    Opened(OwnedFd),
}

impl AsFd for Node<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Node::Own(fd) => *fd,
            Node::Opened(fd) => fd.as_fd(),
        }
    }
}

impl Call<'_> {
    pub(super) fn stat_path(&mut self) -> Outcome {
        let (root, path) = (self.object()?, self.path(0)?);
        let stat = if path.is_empty() {
            sys::statx(root.as_fd(), c"", libc::AT_EMPTY_PATH)?
        } else if path.is_name() {
            sys::statx(directory(&root)?, path.as_c(), libc::AT_SYMLINK_NOFOLLOW | NO_AUTOMOUNT)?
        } else {
            let (parent, name) = path.parent(&root)?;
            sys::statx(parent.as_fd(), name, libc::AT_SYMLINK_NOFOLLOW | NO_AUTOMOUNT)?
        };
        self.put(1, &self.host.owners.without_foreign_set_id(stat)).map(|_| 0)
    }

    pub(super) fn stat(&mut self) -> Outcome {
        let object = self.object()?;
        let stat = sys::statx(object.as_fd(), c"", libc::AT_EMPTY_PATH)?;
        self.put(0, &self.host.owners.without_foreign_set_id(stat)).map(|_| 0)
    }

    pub(super) fn stat_fs(&mut self) -> Outcome {
        let object = self.object()?;
        let stat = sys::fstatfs(object.as_fd())?;
        self.put(0, &stat).map(|_| 0)
    }

    pub(super) fn set_attr(&mut self) -> Outcome {
        const MODE: u64 = 1;
        const UID: u64 = 2;
        const GID: u64 = 4;
        const ATIME: u64 = 8;
        const MTIME: u64 = 16;
        const ATIME_NOW: u64 = 32;
        const MTIME_NOW: u64 = 64;
        let [mask, mode, owner, atime, mtime, _] = self.args;
        if mask & !(MODE | UID | GID | ATIME | MTIME | ATIME_NOW | MTIME_NOW) != 0 {
            return Err(Errno::INVAL);
        }
        let (root, path) = (self.object()?, self.path(0)?);
        let node = if path.is_empty() {
            Node::Own(root.from_mount()?.as_fd())
        } else {
            Node::Opened(path.open_path(&root)?)
        };
        let kind = file_type(node.as_fd())?;
        if matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) {
            // The host's: a guest has device nodes of its own.
            return Err(Errno::PERM);
        }
        if mask & MODE != 0 && kind == FileType::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        if mask & (UID | GID) != 0 {
            let pick = |bit, value| if mask & bit != 0 { value } else { u32::MAX };
            sys::chown_fd(node.as_fd(), pick(UID, owner as u32), pick(GID, (owner >> 32) as u32))?;
        }
        if mask & MODE != 0 {
            self.chmod_node(node.as_fd(), Mode::from_raw_mode((mode & 0o7777) as u32))?;
        }
        if mask & (ATIME | MTIME | ATIME_NOW | MTIME_NOW) != 0 {
            let time = |set: bool, now: bool, ns: u64| {
                let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
                if now {
                    special(UTIME_NOW)
                } else if set {
                    // Signed: files may be older than 1970.
                    let ns = ns as i64;
                    Timespec {
                        tv_sec: ns.div_euclid(1_000_000_000),
                        tv_nsec: ns.rem_euclid(1_000_000_000),
                    }
                } else {
                    special(UTIME_OMIT)
                }
            };
            let times = Timestamps {
                last_access: time(mask & ATIME != 0, mask & ATIME_NOW != 0, atime),
                last_modification: time(mask & MTIME != 0, mask & MTIME_NOW != 0, mtime),
            };
            rustix::fs::utimensat(node.as_fd(), c"", &times, AtFlags::EMPTY_PATH)?;
        }
        Ok(0)
    }

    /// Changes the mode of what a descriptor (also an O_PATH one) refers to, which is no symbolic
    /// link.
    pub(super) fn chmod_node(&self, node: BorrowedFd<'_>, mode: Mode) -> Result<(), Errno> {
        match sys::chmod_fd(node, mode.as_raw_mode()) {
            // Linux before 6.6: the entry of /proc/self/fd leads to that very object, and no
            // further.
            Err(Errno::NOSYS) => {
                let name = node.as_raw_fd().to_string();
                rustix::fs::chmodat(&self.host.proc_fd, name, mode, AtFlags::empty())
            }
            other => other,
        }
    }

    /// A descriptor of the node that the extended-attribute calls take: O_PATH ones they do not.
    /// `None` for what has no attributes that a guest may see: symbolic links, FIFOs, sockets,
    /// devices.
    fn xattr_node(&self) -> Result<Option<OwnedFd>, Errno> {
        let (root, path) = (self.object()?, self.path(0)?);
        let node = if path.is_empty() {
            Node::Own(root.from_mount()?.as_fd())
        } else {
            Node::Opened(path.open_path(&root)?)
        };
        let flags = match file_type(node.as_fd())? {
            FileType::RegularFile => OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY,
            FileType::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
            _ => return Ok(None),
        };
        reopen(node.as_fd(), &self.host.proc_fd, flags).map(Some)
    }

    fn xattr_name(&self) -> Result<CString, Errno> {
        let name = self.range(1)?;
        if name.is_empty() || name.len() > MAX_XATTR_NAME {
            return Err(Errno::RANGE);
        }
        CString::new(name.to_vec(MAX_XATTR_NAME)?).map_err(|_| Errno::INVAL)
    }

    pub(super) fn get_xattr(&mut self) -> Outcome {
        let (name, out) = (self.xattr_name()?, self.range(2)?);
        let node = match self.xattr_node() {
            // Only the user's own need read access to the file, which an ordinary user's sandbox
            // may lack; the others cannot be had through a descriptor of it then, and nearly no
            // file has any.
            Err(Errno::ACCESS) if !name.to_bytes().starts_with(b"user.") => {
                return Err(Errno::NODATA);
            }
            node => node?,
        };
        let node = node.filter(|_| is_guests(name.to_bytes())).ok_or(Errno::NODATA)?;
        let mut value =
            vec![0; if out.is_empty() { MAX_XATTR_VALUE } else { out.len().min(MAX_XATTR_VALUE) }];
        let n = rustix::fs::fgetxattr(&node, &name, &mut value)?;
        put_xattr(out, value.get(..n).unwrap_or_default())
    }

    pub(super) fn set_xattr(&mut self) -> Outcome {
        let name = self.xattr_name()?;
        self.may_write(&name)?;
        let value = self.range(2)?;
        if value.len() > MAX_XATTR_VALUE {
            return Err(Errno::TOOBIG);
        }
        let value = value.to_vec(MAX_XATTR_VALUE)?;
        let flags = XattrFlags::from_bits(self.arg32(0)?).ok_or(Errno::INVAL)?;
        let node = self.xattr_node()?.ok_or(Errno::PERM)?;
        rustix::fs::fsetxattr(&node, &name, &value, flags).map(|()| 0)
    }

    pub(super) fn list_xattr(&mut self) -> Outcome {
        let out = self.range(1)?;
        let node = match self.xattr_node() {
            Err(Errno::ACCESS) => None,
            node => node?,
        };
        let Some(node) = node else { return Ok(0) };
        let mut names = vec![0; MAX_XATTR_VALUE];
        let n = rustix::fs::flistxattr(&node, &mut names)?;
        let all = names.get(..n).unwrap_or_default().split_inclusive(|b| *b == 0);
        let guests: Vec<u8> = all.filter(|name| is_guests(name)).flatten().copied().collect();
        if !out.is_empty() && out.len() < guests.len() {
            return Err(Errno::RANGE);
        }
        put_xattr(out, &guests)
    }

    pub(super) fn remove_xattr(&mut self) -> Outcome {
        let name = self.xattr_name()?;
        self.may_write(&name)?;
        let node = self.xattr_node()?.ok_or(Errno::PERM)?;
        rustix::fs::fremovexattr(&node, &name).map(|()| 0)
    }

    /// EPERM for a name that the guest may not write. File capabilities are as good as a
    /// set-user-ID bit, on the host too: they take CAP_SETFCAP of the container.
    fn may_write(&self, name: &CStr) -> Result<(), Errno> {
        const CAP_SETFCAP: u64 = 1 << 31;
        let granted = name != CAPABILITY || self.host.granted() & CAP_SETFCAP != 0;
        if granted && is_guests(name.to_bytes()) { Ok(()) } else { Err(Errno::PERM) }
    }
}

fn put_xattr(out: GuestRange<'_>, value: &[u8]) -> Outcome {
    if !out.is_empty() {
        out.write(value)?;
    }
    Ok(value.len() as u64)
}

/// Where file capabilities lie.
const CAPABILITY: &CStr = c"security.capability";

/// True if a name, with or without its NUL, is one that a container has to do with: its own
/// (user.*), access lists, and file capabilities, which package managers set. trusted.* and the
/// labels of the host's security modules are not for guests.
fn is_guests(name: &[u8]) -> bool {
    let name = name.strip_suffix(&[0]).unwrap_or(name);
    name.starts_with(b"user.")
        || name.starts_with(b"system.posix_acl_")
        || name == CAPABILITY.to_bytes()
}
