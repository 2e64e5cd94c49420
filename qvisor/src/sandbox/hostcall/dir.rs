//! Directories: reading them, and making, moving and removing names in them.

use std::ffi::CStr;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, Mode, RenameFlags, SeekFrom};
use rustix::io::Errno;

use super::super::memory::sys;
use super::path::GuestPath;
use super::table::Kind;
use super::{Call, Outcome};

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
            rustix::fs::readlinkat(root.as_fd(), c"", Vec::new())?
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
        let mode = Mode::from_raw_mode(self.arg32(0)? & 0o7777);
        let (parent, name) = path.parent(&root)?;
        rustix::fs::mkdirat(&parent, name, mode)?;
        self.own_new(&parent, name, 1, Some(mode), AtFlags::REMOVEDIR)
    }

    pub(super) fn mknod(&mut self) -> Outcome {
        let (root, path) = (self.object()?, self.path(0)?);
        let raw = self.arg32(0)?;
        let kind = FileType::from_raw_mode(raw);
        // Device nodes are the guest kernel's own affair: it never makes one on the host.
        if !matches!(kind, FileType::Fifo | FileType::Socket | FileType::RegularFile) {
            return Err(Errno::PERM);
        }
        let mode = Mode::from_raw_mode(raw & 0o7777);
        let (parent, name) = path.parent(&root)?;
        rustix::fs::mknodat(&parent, name, kind, mode, 0)?;
        self.own_new(&parent, name, 1, Some(mode), AtFlags::empty())
    }

    pub(super) fn symlink(&mut self) -> Outcome {
        let (root, path) = (self.object()?, self.path(0)?);
        let mut target = self.range(1)?.to_vec(4095)?;
        if target.is_empty() || target.contains(&0) {
            return Err(Errno::INVAL);
        }
        target.push(0);
        let target = CStr::from_bytes_until_nul(&target).map_err(|_| Errno::INVAL)?;
        let (parent, name) = path.parent(&root)?;
        rustix::fs::symlinkat(target, &parent, name)?;
        self.own_new(&parent, name, 1, None, AtFlags::empty())
    }

    /// Gives a name just made the owner in args `first`, `first + 1`; takes it away again when that fails.
    fn own_new(&self, parent: &impl AsFd, name: &CStr, first: usize, mode: Option<Mode>, unlink: AtFlags) -> Outcome {
        let own = || {
            let (uid, gid) = (self.arg32(first)?, self.arg32(first + 1)?);
            let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if (stat.st_uid, stat.st_gid) != (uid, gid) {
                sys::chown_at(parent.as_fd(), name, uid, gid)?;
            }
            // A change of owner takes set-id bits away, and mkdir never gives them.
            if let Some(mode) = mode.filter(|m| m.intersects(Mode::SUID | Mode::SGID | Mode::SVTX)) {
                rustix::fs::chmodat(parent, name, mode, AtFlags::empty())?;
            }
            Ok(0)
        };
        let result = own();
        if result.is_err() {
            rustix::fs::unlinkat(parent, name, unlink).ok();
        }
        result
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
