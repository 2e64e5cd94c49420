//! Directories: reading them, and making, moving and removing names in them.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom};
use rustix::io::Errno;

use super::file::own;
use super::path::GuestPath;
use super::table::Kind;
use super::{Call, Outcome};
use crate::sys;

/// What is to be made.
pub(super) struct New {
    kind: FileType,
    pub(super) mode: Mode,
    uid: u32,
    gid: u32,
}

/// True if nothing lies in a directory but "." and "..".
fn is_empty_dir(dir: &OwnedFd) -> Result<bool, Errno> {
    for entry in rustix::fs::Dir::read_from(dir)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes a name that was just made and could not be finished, if it still is what it was.
pub(super) fn take_away(parent: &impl AsFd, name: &CStr, node: &OwnedFd) {
    let (Ok(ours), Ok(now)) =
        (rustix::fs::fstat(node), rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW))
    else {
        return;
    };
    if (ours.st_dev, ours.st_ino) == (now.st_dev, now.st_ino) {
        let is_dir = FileType::from_raw_mode(ours.st_mode) == FileType::Directory;
        rustix::fs::unlinkat(
            parent,
            name,
            if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() },
        )
        .ok();
    }
}

impl Call<'_> {
    pub(super) fn read_dir(&mut self) -> Outcome {
        let object = self.object()?;
        if !matches!(object.kind(), Kind::Dir { .. }) {
            return Err(Errno::NOTDIR);
        }
        let to = self.range(0)?;
        if self.args[0] > i64::MAX as u64 {
            return Err(Errno::INVAL);
        }
        rustix::fs::seek(object.as_fd(), SeekFrom::Start(self.args[0]))?;
        sys::getdents(object.as_fd(), to).map(|n| n as u64)
    }

    pub(super) fn read_link(&mut self) -> Outcome {
        let (root, path) = (self.object()?, self.path(0)?);
        let out = self.range(1)?;
        let target = if path.is_empty() {
            rustix::fs::readlinkat(root.from_mount()?.as_fd(), c"", Vec::new())?
        } else {
            let (parent, name) = path.parent(&root)?;
            rustix::fs::readlinkat(parent, name, Vec::new())?
        };
        let target = target.as_bytes();
        let n = target.len().min(out.len());
        out.write(&target[..n])?;
        Ok(n as u64)
    }

    pub(super) fn mkdir(&mut self) -> Outcome {
        let (root, path) = (self.object()?, self.path(0)?);
        let new = self.new_name(FileType::Directory)?;
        let (parent, name) = path.parent(&root)?;
        rustix::fs::mkdirat(&parent, name, new.mode)?;
        self.own_new(&parent, name, &new)
    }

    pub(super) fn mknod(&mut self) -> Outcome {
        let (root, path) = (self.object()?, self.path(0)?);
        let kind = FileType::from_raw_mode(self.arg32(0)?);
        // Device nodes are the guest kernel's own affair: it never makes one on the host.
        if !matches!(kind, FileType::Fifo | FileType::Socket | FileType::RegularFile) {
            return Err(Errno::PERM);
        }
        let new = self.new_name(kind)?;
        let (parent, name) = path.parent(&root)?;
        if kind == FileType::RegularFile {
            // Made by open(2) there is a descriptor of it from the first moment.
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&parent, name, flags, new.mode)?;
            return own(&file, new.uid, new.gid, new.mode)
                .map(|()| 0)
                .inspect_err(|_| take_away(&parent, name, &file));
        }
        rustix::fs::mknodat(&parent, name, kind, new.mode, 0)?;
        self.own_new(&parent, name, &new)
    }

    pub(super) fn symlink(&mut self) -> Outcome {
        let (root, path) = (self.object()?, self.path(0)?);
        let mut target = self.range(1)?.to_vec(4095)?;
        if target.is_empty() || target.contains(&0) {
            return Err(Errno::INVAL);
        }
        target.push(0);
        let target = CStr::from_bytes_until_nul(&target).map_err(|_| Errno::INVAL)?;
        let new = New { mode: Mode::empty(), ..self.new_name(FileType::Symlink)? };
        let (parent, name) = path.parent(&root)?;
        rustix::fs::symlinkat(target, &parent, name)?;
        self.own_new(&parent, name, &new)
    }

    pub(super) fn new_name(&self, kind: FileType) -> Result<New, Errno> {
        let mode = Mode::from_raw_mode(self.args[0] as u32 & 0o7777);
        Ok(New { kind, mode, uid: self.arg32(1)?, gid: self.arg32(2)? })
    }

    /// Gives what was just made under a name its owner, and the mode bits that mkdir(2) does not
    /// give or a change of owner takes away. The directory may be in others' hands: by now anything
    /// may have that name, so it is opened, looked at, and only then changed, by its descriptor.
    /// ENOENT when it is something else.
    pub(super) fn own_new(&self, parent: &impl AsFd, name: &CStr, new: &New) -> Outcome {
        let special = new.mode.intersects(Mode::SUID | Mode::SGID | Mode::SVTX);
        let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if (stat.st_uid, stat.st_gid) == (new.uid, new.gid) && !special {
            return Ok(0);
        }
        let access = if new.kind == FileType::Directory {
            OFlags::RDONLY | OFlags::DIRECTORY
        } else {
            OFlags::PATH
        };
        let node = match rustix::fs::openat(
            parent,
            name,
            access | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        ) {
            Ok(node) => node,
            Err(Errno::LOOP | Errno::NOTDIR) => return Err(Errno::NOENT),
            Err(e) => return Err(e),
        };
        let stat = rustix::fs::fstat(&node)?;
        let ours = FileType::from_raw_mode(stat.st_mode) == new.kind
            && stat.st_uid == self.host.replies.owner()
            && match new.kind {
                FileType::Directory => is_empty_dir(&node)?,
                // A further name of something that was there before.
                _ => stat.st_nlink == 1,
            };
        if !ours {
            return Err(Errno::NOENT);
        }
        let own = || {
            if (stat.st_uid, stat.st_gid) != (new.uid, new.gid) {
                sys::chown_fd(node.as_fd(), new.uid, new.gid)?;
            }
            if special { self.chmod_node(node.as_fd(), new.mode) } else { Ok(()) }
        };
        own().map(|()| 0).inspect_err(|_| take_away(parent, name, &node))
    }

    fn two_paths(&self) -> Result<(GuestPath, GuestPath), Errno> {
        Ok((self.path(0)?, self.path(1)?))
    }

    pub(super) fn link(&mut self) -> Outcome {
        let root = self.object()?;
        let (old, new) = self.two_paths()?;
        let (to, to_name) = new.parent(&root)?;
        let (from, from_name) = old.parent(&root)?;
        rustix::fs::linkat(from, from_name, to, to_name, AtFlags::empty()).map(|()| 0)
    }

    pub(super) fn link_file(&mut self) -> Outcome {
        let (root, path) = (self.object()?, self.path(0)?);
        let file = self.host.handles.get(self.arg32(0)?).ok_or(Errno::BADF)?;
        if file.kind() != Kind::File {
            return Err(Errno::INVAL);
        }
        let (to, name) = path.parent(&root)?;
        // AT_EMPTY_PATH would take a capability. The entry leads to that very file, and no further.
        let entry = file.as_fd().as_raw_fd().to_string();
        let flags = AtFlags::SYMLINK_FOLLOW;
        rustix::fs::linkat(&self.host.proc_fd, entry, to, name, flags).map(|()| 0)
    }

    pub(super) fn rename(&mut self) -> Outcome {
        let root = self.object()?;
        let flags = RenameFlags::from_bits(self.arg32(0)?).ok_or(Errno::INVAL)?;
        if flags.contains(RenameFlags::WHITEOUT) {
            // It would make a device node.
            return Err(Errno::INVAL);
        }
        let (old, new) = self.two_paths()?;
        let (from, from_name) = old.parent(&root)?;
        let (to, to_name) = new.parent(&root)?;
        rustix::fs::renameat_with(from, from_name, to, to_name, flags).map(|()| 0)
    }

    pub(super) fn unlink(&mut self) -> Outcome {
        let (root, path) = (self.object()?, self.path(0)?);
        let flags = match self.arg_int(0) {
            0 => AtFlags::empty(),
            libc::AT_REMOVEDIR => AtFlags::REMOVEDIR,
            _ => return Err(Errno::INVAL),
        };
        let (parent, name) = path.parent(&root)?;
        rustix::fs::unlinkat(parent, name, flags).map(|()| 0)
    }
}
