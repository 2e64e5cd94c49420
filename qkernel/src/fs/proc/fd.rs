//! /proc/PID/fd and fdinfo, and files without a place that are reached through them.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{O_CLOEXEC, S_IFLNK, S_IFREG};

use super::pid::Subject;
use super::{Node, number};
use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, SetAttributes, StatFs};
use crate::fs::dentry::Dentry;
use crate::fs::inode::{FileSystem, Inode, Link, simple_statfs};
use crate::fs::mount::{Mount, MountFlags};
use crate::fs::synth::{Dir, LISTED, Listed, numbered};
use crate::fs::{Caller, Fd, FileOps, Location, OpenFile};
use crate::io::IoBuffer;
use crate::mm::mapped::MappedFile;
use crate::sync::Once;
use crate::task::Thread;
use crate::wait::{PollMask, WaitQueue};

/// /proc/PID/fd or fdinfo.
pub struct FdDir {
    subject: Subject,
    infos: bool,
}

impl FdDir {
    /// fd.
    pub fn links(subject: Subject) -> Self {
        FdDir { subject, infos: false }
    }

    /// fdinfo.
    pub fn infos(subject: Subject) -> Self {
        FdDir { subject, infos: true }
    }
}

impl Dir for FdDir {
    fn find(&self, name: &[u8]) -> Option<Node> {
        let fd = Fd::try_from(number(name)?).ok()?;
        let file = self.subject.living().ok()?.files().get(fd).ok()?;
        let subject = self.subject.clone();
        Some(if self.infos {
            Node::File(
                0o400,
                Box::new(move |reader| info(&subject.check_living(reader)?, fd)),
                None,
            )
        } else {
            // Who may do what with it, as lsof(8) reads.
            let read = if file.is_readable() { 0o500 } else { 0 };
            let write = if file.is_writable() { 0o300 } else { 0 };
            Node::Link(
                read | write,
                Box::new(move |reader| {
                    let thread = subject.check_living(reader)?;
                    let file = thread.files().get(fd)?;
                    Ok(Link::Place(place_of(&file, &thread.fs().root)))
                }),
            )
        })
    }

    /// The positions are the descriptors.
    fn list_from(&self, from: u64) -> Vec<Listed> {
        let Ok(thread) = self.subject.living() else { return Vec::new() };
        let open = thread.files().list(usize::try_from(from).unwrap_or(usize::MAX), LISTED);
        let kind = if self.infos { S_IFREG } else { S_IFLNK };
        numbered(open.into_iter().map(Fd::cast_unsigned), 0, kind)
    }

    fn owner(&self) -> (u32, u32) {
        self.subject.thread().map_or((0, 0), |t| {
            let creds = t.creds();
            (creds.euid, creds.egid)
        })
    }

    fn check_open(&self, thread: &Arc<Thread>) -> Result {
        self.subject.check_access(thread).map(|_| ())
    }

    fn mode(&self) -> u32 {
        0o500
    }

    fn is_fleeting(&self) -> bool {
        true
    }
}

fn info(thread: &Arc<Thread>, fd: Fd) -> Result<Vec<u8>> {
    let files = thread.files();
    let file = files.get(fd)?;
    let cloexec = if files.close_on_exec(fd)? { O_CLOEXEC } else { 0 };
    let mount = file.path.as_ref().map_or(0, |p| p.mount.id);
    let ino = file.attributes().map_or(0, |a| a.ino);
    let position = file.tell()?;
    let flags = file.flags() | cloexec | 0o100000;
    let mut out = format!("pos:\t{position}\nflags:\t0{flags:o}\nmnt_id:\t{mount}\nino:\t{ino}\n")
        .into_bytes();
    out.extend(file.ops.details(&file));
    Ok(out)
}

/// Where an open file is, as seen from `root`; for one without a place a place of its own, through
/// which it can be opened again.
pub fn place_of(file: &Arc<OpenFile>, root: &Location) -> Location {
    if let Some(place) = file.place(root) {
        return place;
    }
    static MOUNT: Once<Arc<Mount>> = Once::new();
    let fs: Arc<dyn FileSystem> = Arc::new(NoFs);
    let mount = MOUNT.get_or_set(|| Mount::hidden(Arc::new(NoFs), MountFlags::empty())).clone();
    let label = file.ops.label(file);
    let dentry = Dentry::unnamed(fs, Arc::new(FileInode(file.clone())), &label);
    Location { mount, dentry }
}

/// The "file system" of files without a place.
struct NoFs;

struct NoDir;

impl FileSystem for NoFs {
    fn type_name(&self) -> &'static str {
        "anon_inodefs"
    }

    fn root(&self) -> Arc<dyn Inode> {
        Arc::new(NoDir)
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(simple_statfs(0x0904_1934))
    }
}

impl Inode for NoDir {
    fn kind(&self) -> u32 {
        linux_raw_sys::general::S_IFDIR
    }

    fn attributes(&self) -> Result<Attributes> {
        Err(Errno::EIO)
    }

    fn open(self: Arc<Self>, _caller: &dyn Caller, _flags: u32) -> Result<Arc<dyn FileOps>> {
        Err(Errno::ENXIO)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What /proc/PID/fd/N of a pipe or the like leads to.
struct FileInode(Arc<OpenFile>);

impl Inode for FileInode {
    fn kind(&self) -> u32 {
        let mode = self.0.attributes().map_or(0, |a| a.mode);
        mode & linux_raw_sys::general::S_IFMT
    }

    fn attributes(&self) -> Result<Attributes> {
        self.0.attributes()
    }

    fn permissions(&self) -> Result<Attributes> {
        // Who may look at the descriptor may use it.
        let attributes = self.0.attributes()?;
        Ok(Attributes { mode: attributes.mode | 0o666, ..attributes })
    }

    fn open(self: Arc<Self>, _caller: &dyn Caller, _flags: u32) -> Result<Arc<dyn FileOps>> {
        // A socket, or what only its system calls make (a ring, an epoll instance).
        if matches!(self.kind(), 0 | linux_raw_sys::general::S_IFSOCK) {
            return Err(Errno::ENXIO);
        }
        // However often it is opened again, there is one file behind it.
        let first = self.0.downcast::<Again>().map_or(&self.0, |Again(first)| first);
        Ok(Arc::new(Again(first.clone())))
    }

    fn set_attributes(&self, change: &SetAttributes) -> Result {
        self.0.ops.set_attributes(&self.0, change)
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.0.ops.get_xattr(&self.0, name)
    }

    fn list_xattr(&self) -> Result<Vec<u8>> {
        self.0.ops.list_xattr(&self.0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An open file opened again: everything goes to the first one.
struct Again(Arc<OpenFile>);

impl FileOps for Again {
    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        self.0.ops.read(&self.0, buffer, offset)
    }

    fn write(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        self.0.ops.write(&self.0, buffer, offset)
    }

    fn is_seekable(&self) -> bool {
        self.0.ops.is_seekable()
    }

    fn shares_position(&self) -> bool {
        self.0.ops.shares_position()
    }

    fn seek(&self, offset: i64, whence: u32) -> Result<u64> {
        self.0.ops.seek(offset, whence)
    }

    fn poll(&self, _file: &OpenFile) -> PollMask {
        self.0.poll()
    }

    fn queue(&self) -> Option<&WaitQueue> {
        self.0.ops.queue()
    }

    fn ioctl(
        &self,
        caller: &dyn Caller,
        _file: &OpenFile,
        command: u32,
        argument: u64,
    ) -> Result<usize> {
        self.0.ops.ioctl(caller, &self.0, command, argument)
    }

    fn mapping(&self, _file: &OpenFile, writable: bool) -> Result<Arc<dyn MappedFile>> {
        self.0.ops.mapping(&self.0, writable)
    }

    fn attributes(&self, _file: &OpenFile) -> Result<Attributes> {
        self.0.attributes()
    }

    fn label(&self, _file: &OpenFile) -> Vec<u8> {
        self.0.ops.label(&self.0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
