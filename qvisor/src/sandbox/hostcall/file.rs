//! Open files: open, create, read, write, and what else takes an open file.

use std::os::fd::{AsFd, OwnedFd};

use qlib::control::Reply;
use qlib::host::{STREAM, WRITES_WHOLE};
use rustix::event::PollFlags;
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, ResolveFlags, SeekFrom, Stat};
use rustix::io::Errno;
use rustix::net::{SocketType, sockopt::socket_type};

use super::super::memory::{GuestRange, Ranges};
use super::dir::take_away;
use super::path::{GuestPath, RESOLVE, directory};
use super::table::{Kind, Object, file_type, is_nodev, reopen};
use super::{Call, Outcome, procfs};
use crate::sys;

/// The open flags a guest may choose.
const GUEST_FLAGS: u32 = (libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_CREAT
    | libc::O_DIRECT
    | libc::O_DIRECTORY
    | libc::O_EXCL
    | libc::O_LARGEFILE
    | libc::O_NOATIME
    | libc::O_NOFOLLOW
    | libc::O_NOCTTY
    | libc::O_NONBLOCK
    | libc::O_CLOEXEC
    | libc::O_PATH
    | libc::O_TMPFILE
    | libc::O_TRUNC) as u32;

/// What every open has.
const IMPLIED: OFlags =
    OFlags::NOFOLLOW.union(OFlags::NOCTTY).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// A pipe that polls writable takes this much without blocking (PIPE_BUF).
const POLLED_WRITE_BYTES: usize = 4096;

impl Call<'_> {
    pub(super) fn open(&mut self) -> Outcome {
        let flags = self.open_flags()?;
        if flags.intersects(OFlags::CREATE | OFlags::EXCL) || flags.contains(OFlags::TMPFILE) {
            return Err(Errno::INVAL);
        }
        let path = self.path(0)?;
        let root = self.object()?;
        let (object, stat) = self.open_object(&root, &path, flags)?;
        let ctime_ns =
            (stat.st_ctime as u64).wrapping_mul(1_000_000_000).wrapping_add(stat.st_ctime_nsec);
        let device = u64::from(rustix::fs::major(stat.st_dev)) << 32
            | u64::from(rustix::fs::minor(stat.st_dev));
        let handle = self.host.insert(object)?;
        [self.args[0], self.args[1], self.args[2]] = [device, stat.st_ino, ctime_ns];
        Ok(u64::from(handle))
    }

    pub(super) fn create(&mut self) -> Outcome {
        let flags = self.open_flags()?.difference(OFlags::CREATE);
        let mode = Mode::from_raw_mode(self.arg32(1)? & 0o7777);
        let (uid, gid) = (self.arg32(2)?, self.arg32(3)?);
        let (root, path) = (self.object()?, self.path(0)?);
        let unnamed = flags.contains(OFlags::TMPFILE);
        if flags.contains(OFlags::PATH) || path.is_empty() && !unnamed {
            return Err(Errno::INVAL);
        }
        if unnamed {
            let file = rustix::fs::openat2(
                directory(&root)?,
                if path.is_empty() { c"." } else { path.as_c() },
                flags | IMPLIED,
                mode,
                RESOLVE,
            )?;
            own(&file, uid, gid, mode)?;
            return self.host.insert(Object::new(file, Kind::File)).map(u64::from);
        }
        // A name can come and go between the two ways of opening it; a few rounds, then the guest
        // sees the race.
        for _ in 0..8 {
            // Made by us it is a regular file and nothing else, so devices are no concern here.
            let new = flags.difference(OFlags::TRUNC) | OFlags::CREATE | OFlags::EXCL | IMPLIED;
            match rustix::fs::openat2(directory(&root)?, path.as_c(), new, mode, RESOLVE) {
                Ok(file) => {
                    if let Err(e) = own(&file, uid, gid, mode) {
                        let (parent, name) = path.parent(&root)?;
                        take_away(&parent, name, &file);
                        return Err(e);
                    }
                    return self.host.insert(Object::new(file, Kind::File)).map(u64::from);
                }
                Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => {}
                Err(e) => return Err(e),
            }
            match self.open_object(&root, &path, flags) {
                Err(Errno::NOENT) => {}
                other => return self.host.insert(other?.0).map(u64::from),
            }
        }
        Err(Errno::NOENT)
    }

    fn open_flags(&self) -> Result<OFlags, Errno> {
        let flags = self.arg32(0)?;
        if flags & !GUEST_FLAGS != 0 {
            return Err(Errno::INVAL);
        }
        Ok(OFlags::from_bits_retain(flags))
    }

    /// Opens an existing file or directory: it, and what fstat(2) says of it. ENXIO for devices,
    /// FIFOs and sockets: a guest has its own.
    fn open_object(
        &self,
        root: &Object,
        path: &GuestPath,
        flags: OFlags,
    ) -> Result<(Object, Stat), Errno> {
        let root = root.from_mount()?;
        if flags.contains(OFlags::PATH) {
            let fd = if path.is_empty() {
                reopen(root.as_fd(), &self.host.proc_fd, OFlags::PATH)?
            } else {
                path.open_path(root)?
            };
            let stat = rustix::fs::fstat(&fd)?;
            return match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    let nodev = is_nodev(fd.as_fd());
                    Ok((Object::new(fd, Kind::Dir { nodev }), stat))
                }
                _ if flags.contains(OFlags::DIRECTORY) => Err(Errno::NOTDIR),
                _ => Ok((Object::new(fd, Kind::Path), stat)),
            };
        }
        if !path.is_empty() {
            if !matches!(root.kind(), Kind::Dir { .. }) {
                return Err(Errno::NOTDIR);
            }
            if root.kind() == (Kind::Dir { nodev: true }) {
                // The mount itself keeps device nodes shut, so one call may open whatever is there.
                let resolve = RESOLVE | ResolveFlags::NO_XDEV;
                match rustix::fs::openat2(
                    root.as_fd(),
                    path.as_c(),
                    flags | IMPLIED,
                    Mode::empty(),
                    resolve,
                ) {
                    Ok(fd) => return self.checked(fd, flags, true),
                    Err(Errno::XDEV) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        // To open a device node may already do something: look at what it is before.
        let opened;
        let fd = if path.is_empty() {
            root.as_fd()
        } else {
            opened = path.open_path(root)?;
            opened.as_fd()
        };
        match file_type(fd)? {
            FileType::RegularFile | FileType::Directory => {}
            FileType::Symlink => return Err(Errno::LOOP),
            _ => return Err(Errno::NXIO),
        }
        let fd =
            reopen(fd, &self.host.proc_fd, flags.difference(OFlags::NOFOLLOW) | OFlags::NONBLOCK)?;
        self.checked(fd, flags, false)
    }

    /// Refuses what is neither a regular file nor a directory, after it was opened, and what procfs
    /// shows to nobody but us.
    fn checked(&self, fd: OwnedFd, flags: OFlags, nodev: bool) -> Result<(Object, Stat), Errno> {
        let stat = rustix::fs::fstat(&fd)?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Dir { nodev: nodev || is_nodev(fd.as_fd()) },
            _ => return Err(Errno::NXIO),
        };
        if kind == Kind::File {
            procfs::check(fd.as_fd(), &stat, flags, &self.host.proc_fd)?;
        }
        Ok((Object::new(fd, kind), stat))
    }

    pub(super) fn read(&mut self) -> Outcome {
        let object = self.object()?;
        let to = self.ranges(0)?;
        let offset = offset_arg(self.args[0])?;
        let fd = object.as_fd();
        let bytes = match object.kind() {
            Kind::File if self.args[1] == 1 => {
                if self.host.disk.is_slow() {
                    return Err(Errno::AGAIN);
                }
                sys::read(fd, &to, offset, libc::RWF_NOWAIT)?
            }
            Kind::File | Kind::StdioFile | Kind::NetFile => sys::read(fd, &to, offset, 0)?,
            Kind::Dir { .. } | Kind::StdioDir => return Err(Errno::ISDIR),
            Kind::Path => return Err(Errno::BADF),
            _ if offset.is_some() => return Err(Errno::SPIPE),
            Kind::Stream { nonblocking: true, .. } => sys::read(fd, &to, None, 0)?,
            Kind::Stream { nonblocking: false, .. } => {
                ready(&object, PollFlags::IN)?;
                match sys::read(fd, &to, None, libc::RWF_NOWAIT) {
                    Err(Errno::OPNOTSUPP) => {
                        self.host.bounded.run(|| sys::read(fd, &to, None, 0))?
                    }
                    other => other?,
                }
            }
            Kind::StdioSocket | Kind::Socket { .. } => {
                sys::recvmsg(fd, &mut [], &mut [], &to, libc::MSG_DONTWAIT)?.bytes
            }
        };
        Ok(bytes as u64)
    }

    pub(super) fn write(&mut self) -> Outcome {
        let object = self.object()?;
        let from = self.ranges(0)?;
        let offset = offset_arg(self.args[0])?;
        let flags = self.arg_int(1);
        if flags & !libc::RWF_APPEND != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let fd = object.as_fd();
        let bytes = match object.kind() {
            Kind::File | Kind::StdioFile => sys::write(fd, &from, offset, flags)?,
            Kind::Dir { .. } | Kind::StdioDir | Kind::Path | Kind::NetFile => {
                return Err(Errno::BADF);
            }
            _ if offset.is_some() => return Err(Errno::SPIPE),
            Kind::Stream { nonblocking: true, .. } => sys::write(fd, &from, None, 0)?,
            Kind::Stream { nonblocking: false, .. } => {
                ready(&object, PollFlags::OUT)?;
                let from = truncated(&from, POLLED_WRITE_BYTES);
                match sys::write(fd, &from, None, libc::RWF_NOWAIT) {
                    Err(Errno::OPNOTSUPP) => {
                        self.host.bounded.run(|| sys::write(fd, &from, None, 0))?
                    }
                    other => other?,
                }
            }
            Kind::Socket { domain: libc::AF_NETLINK } => {
                self.send_netlink(&object, &[], &from, 0)?
            }
            Kind::StdioSocket | Kind::Socket { .. } => {
                sys::sendmsg(fd, &[], &[], &from, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)?
            }
        };
        let output = &self.host.output;
        if output.is_watched(self.handle)
            && let Some(waiter) = output.written(&from, bytes)
        {
            self.host.replies.answer(&waiter, &Reply::Done);
        }
        Ok(bytes as u64)
    }

    /// The object, if it is a regular file; EINVAL otherwise.
    pub(super) fn regular_file(&self) -> Result<std::sync::Arc<Object>, Errno> {
        let object = self.object()?;
        if object.kind() == Kind::File { Ok(object) } else { Err(Errno::INVAL) }
    }

    /// Of what the guest has opened itself it keeps the position, and asks only where data is.
    pub(super) fn seek(&mut self) -> Outcome {
        let object = self.object()?;
        let whence = self.arg_int(1);
        let may = match object.kind() {
            Kind::StdioFile => true,
            Kind::File => matches!(whence, libc::SEEK_DATA | libc::SEEK_HOLE),
            _ => false,
        };
        if !may {
            return Err(Errno::SPIPE);
        }
        let offset = self.args[0].cast_signed();
        let from_start = || u64::try_from(offset).map_err(|_| Errno::INVAL);
        let to = match whence {
            libc::SEEK_SET => SeekFrom::Start(from_start()?),
            libc::SEEK_CUR => SeekFrom::Current(offset),
            libc::SEEK_END => SeekFrom::End(offset),
            libc::SEEK_DATA => SeekFrom::Data(from_start().or(Err(Errno::NXIO))?),
            libc::SEEK_HOLE => SeekFrom::Hole(from_start().or(Err(Errno::NXIO))?),
            _ => return Err(Errno::INVAL),
        };
        rustix::fs::seek(object.as_fd(), to)
    }

    pub(super) fn stream_flags(&mut self) -> Outcome {
        let object = self.object()?;
        match object.kind() {
            Kind::Stream { .. } | Kind::StdioFile | Kind::StdioDir | Kind::StdioSocket => {
                let flags = rustix::fs::fcntl_getfl(object.as_fd())?;
                let kept = (flags & (OFlags::RWMODE | OFlags::APPEND)).bits();
                Ok(u64::from(kept) | if writes_whole(&object)? { WRITES_WHOLE } else { 0 })
            }
            _ => Err(Errno::INVAL),
        }
    }

    pub(super) fn truncate(&mut self) -> Outcome {
        let object = self.object()?;
        if !matches!(object.kind(), Kind::File | Kind::StdioFile) {
            return Err(Errno::INVAL);
        }
        if self.args[0] > i64::MAX as u64 {
            return Err(Errno::INVAL);
        }
        rustix::fs::ftruncate(object.as_fd(), self.args[0]).map(|()| 0)
    }

    pub(super) fn allocate(&mut self) -> Outcome {
        let object = self.regular_file()?;
        let mode = FallocateFlags::from_bits(self.arg32(0)?).ok_or(Errno::OPNOTSUPP)?;
        let [_, offset, len, ..] = self.args;
        if offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::FBIG);
        }
        rustix::fs::fallocate(object.as_fd(), mode, offset, len).map(|()| 0)
    }
}

/// Gives a new file its owner, and the set-id bits that a change of owner takes away.
pub(super) fn own(file: &OwnedFd, uid: u32, gid: u32, mode: Mode) -> Result<(), Errno> {
    let stat = rustix::fs::fstat(file)?;
    if (stat.st_uid, stat.st_gid) != (uid, gid) {
        sys::chown_fd(file.as_fd(), uid, gid)?;
        if mode.intersects(Mode::SUID | Mode::SGID) {
            rustix::fs::fchmod(file, mode)?;
        }
    }
    Ok(())
}

fn offset_arg(arg: u64) -> Result<Option<u64>, Errno> {
    match arg {
        STREAM => Ok(None),
        o if o > i64::MAX as u64 => Err(Errno::INVAL),
        o => Ok(Some(o)),
    }
}

/// The first `bytes` bytes of `ranges`.
fn truncated<'m>(ranges: &[GuestRange<'m>], bytes: usize) -> Ranges<'m> {
    let mut left = bytes;
    let cut = |r: &GuestRange<'m>| {
        let part = r.truncated(left);
        left -= part.len();
        part
    };
    ranges.iter().map(cut).filter(|r| !r.is_empty()).collect()
}

/// True of a pipe, a terminal and a stream socket.
fn writes_whole(object: &Object) -> Result<bool, Errno> {
    match object.kind() {
        Kind::Stream { tty: true, .. } => Ok(true),
        Kind::Stream { .. } => {
            let mode = rustix::fs::fstat(object.as_fd())?.st_mode;
            Ok(FileType::from_raw_mode(mode) == FileType::Fifo)
        }
        Kind::StdioSocket => Ok(socket_type(object.as_fd())? == SocketType::STREAM),
        _ => Ok(false),
    }
}

/// EAGAIN unless the object is ready for `wanted` (or has an error to tell).
fn ready(object: &Object, wanted: PollFlags) -> Result<(), Errno> {
    if sys::poll_now(object, wanted)?.is_empty() { Err(Errno::AGAIN) } else { Ok(()) }
}

impl AsFd for Object {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        Object::as_fd(self)
    }
}
