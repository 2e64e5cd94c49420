//! Attributes: stat, statfs, mode, owner, times, extended attributes.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags};
use rustix::io::Errno;

use super::super::memory::{GuestRange, sys};
use super::path::directory;
use super::{Call, Outcome};

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
        self.put(1, &stat).map(|_| 0)
    }

    pub(super) fn stat(&mut self) -> Outcome {
        let object = self.object()?;
        let stat = sys::statx(object.as_fd(), c"", libc::AT_EMPTY_PATH)?;
        self.put(0, &stat).map(|_| 0)
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
        let node = if path.is_empty() { Node::Own(root.as_fd()) } else { Node::Opened(path.open_path(&root)?) };
        if mask & (UID | GID) != 0 {
            let pick = |bit, value| if mask & bit != 0 { value } else { u32::MAX };
            sys::chown_fd(node.as_fd(), pick(UID, owner as u32), pick(GID, (owner >> 32) as u32))?;
        }
        if mask & MODE != 0 {
            let mode = (mode & 0o7777) as u32;
            match sys::chmod_fd(node.as_fd(), mode) {
                // Linux before 6.6.
                Err(Errno::NOSYS) => {
                    let name = node.as_fd().as_raw_fd().to_string();
                    rustix::fs::chmodat(&self.host.proc_fd, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
                }
                other => other?,
            }
        }
        if mask & (ATIME | MTIME | ATIME_NOW | MTIME_NOW) != 0 {
            let time = |set: bool, now: bool, ns: u64| {
                let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
                if now {
                    special(UTIME_NOW)
                } else if set {
                    // Signed: files may be older than 1970.
                    let ns = ns as i64;
                    Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) }
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

    /// The path under which the extended-attribute calls, which have no *at form on older kernels, reach the node.
    fn xattr_path(&self) -> Result<(Option<OwnedFd>, CString), Errno> {
        let (root, path) = (self.object()?, self.path(0)?);
        let (fd, raw) = if path.is_empty() {
            (None, root.as_fd().as_raw_fd())
        } else {
            let fd = path.open_path(&root)?;
            let raw = fd.as_raw_fd();
            (Some(fd), raw)
        };
        let path = crate::procfs::path(&format!("self/fd/{raw}"));
        let path = CString::new(path.into_os_string().into_encoded_bytes()).map_err(|_| Errno::INVAL)?;
        Ok((fd, path))
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
        let (_fd, path) = self.xattr_path()?;
        let mut value = vec![0; xattr_buffer(out.len())];
        let n = rustix::fs::getxattr(&path, &name, &mut value)?;
        put_xattr(out, value.get(..n).unwrap_or_default())
    }

    pub(super) fn set_xattr(&mut self) -> Outcome {
        let name = self.xattr_name()?;
        writable_xattr(&name)?;
        let value = self.range(2)?;
        if value.len() > MAX_XATTR_VALUE {
            return Err(Errno::TOOBIG);
        }
        let value = value.to_vec(MAX_XATTR_VALUE)?;
        let flags = XattrFlags::from_bits(self.arg32(0)?).ok_or(Errno::INVAL)?;
        let (_fd, path) = self.xattr_path()?;
        rustix::fs::setxattr(&path, &name, &value, flags).map(|()| 0)
    }

    pub(super) fn list_xattr(&mut self) -> Outcome {
        let out = self.range(1)?;
        let (_fd, path) = self.xattr_path()?;
        let mut names = vec![0; xattr_buffer(out.len())];
        let n = rustix::fs::listxattr(&path, &mut names)?;
        put_xattr(out, names.get(..n).unwrap_or_default())
    }

    pub(super) fn remove_xattr(&mut self) -> Outcome {
        let name = self.xattr_name()?;
        writable_xattr(&name)?;
        let (_fd, path) = self.xattr_path()?;
        rustix::fs::removexattr(&path, &name).map(|()| 0)
    }
}

/// How much to ask the host for. A size of zero asks for the length, which takes the whole value to learn.
fn xattr_buffer(len: usize) -> usize {
    if len == 0 { MAX_XATTR_VALUE } else { len.min(MAX_XATTR_VALUE) }
}

fn put_xattr(out: GuestRange<'_>, value: &[u8]) -> Outcome {
    if !out.is_empty() {
        out.write(value)?;
    }
    Ok(value.len() as u64)
}

/// The names a container may write on the host: its own (user.*), access lists, and file capabilities, which package
/// managers set. trusted.* and the labels of the host's security modules are not for guests.
fn writable_xattr(name: &CStr) -> Result<(), Errno> {
    let name = name.to_bytes();
    let allowed =
        name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_") || name == b"security.capability";
    if allowed { Ok(()) } else { Err(Errno::PERM) }
}
