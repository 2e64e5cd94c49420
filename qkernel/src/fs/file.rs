//! The open file description (open(2), "open file description") and the operations that kinds of
//! files supply.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use linux_raw_sys::general::{
    self, ANON_INODE_FS_MAGIC, IN_CLOSE_NOWRITE, IN_CLOSE_WRITE, O_ACCMODE, O_APPEND, O_NONBLOCK,
    O_PATH, O_RDONLY, O_RDWR, O_WRONLY, S_IFIFO, S_IFSOCK, SEEK_CUR,
};
use linux_raw_sys::ioctl::FIONREAD;
use qlib::host::STREAM;
use qlib::{PAGE_SHIFT, Va};

use super::attr::{Attributes, SetAttributes, StatFs, device};
use super::busy::Claim;
use super::dentry::Dentry;
use super::disk::Begun;
use super::inode::Inode;
use super::outside::OutsideLocks;
use crate::errno::{Errno, Result};
use crate::fs::{Caller, Location};
use crate::io::IoBuffer;
use crate::mm::mapped::MappedFile;
use crate::mm::vma::FileMapping;
use crate::sync::Mutex;
use crate::wait::{PollMask, WaitQueue};

/// What a read found without waiting for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cached {
    /// This much was read.
    pub bytes: usize,
    /// A disk has no more of what was asked for.
    pub is_all: bool,
}

impl Cached {
    /// Nothing more is to be had.
    pub fn all(bytes: usize) -> Cached {
        Cached { bytes, is_all: true }
    }
}

/// ioctl(2) of a file that tells nothing but how many bytes there are to be read (FIONREAD). ENOTTY
/// for other requests.
pub fn tell_unread(
    caller: &dyn Caller,
    command: u32,
    argument: u64,
    bytes: impl FnOnce() -> usize,
) -> Result<usize> {
    if command != FIONREAD {
        return Err(Errno::ENOTTY);
    }
    let bytes = i32::try_from(bytes()).unwrap_or(i32::MAX);
    caller.mm().write(Va(argument), &bytes).map(|()| 0)
}

/// The operations of one kind of file. All are non-blocking: EAGAIN says "wait on
/// [`FileOps::queue`] and try again".
#[allow(unused_variables)]
pub trait FileOps: Send + Sync + Any {
    /// Reads at `offset` (ignored by streams).
    fn read(&self, file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        let is_dir = self.attributes(file).is_ok_and(|a| a.is_dir());
        Err(if is_dir { Errno::EISDIR } else { Errno::EINVAL })
    }
    /// True if nothing of it may be executed, wherever it is mounted here: it lies on a noexec
    /// mount of the host.
    fn is_noexec(&self, file: &OpenFile) -> bool {
        false
    }
    /// As [`FileOps::read`] without waiting for a disk. [`FileOps::fetch`] has it read what is not
    /// cached.
    fn read_cached(
        &self,
        file: &OpenFile,
        buffer: &mut IoBuffer<'_>,
        offset: u64,
    ) -> Result<Cached> {
        self.read(file, buffer, offset).map(Cached::all)
    }
    /// Begins to have `len` bytes from `offset` on cached, or the first of them: what is to be
    /// waited for.
    fn fetch(&self, file: &OpenFile, offset: u64, len: usize) -> Result<Begun> {
        Ok(None)
    }
    /// Writes at `offset` (ignored by streams).
    fn write(&self, file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        Err(Errno::EINVAL)
    }
    /// True if reads and writes have a position (else lseek gives ESPIPE).
    fn is_seekable(&self) -> bool {
        false
    }
    /// True if it is the same at every position: its own is always 0, and lseek(2) finds no fault.
    fn is_everywhere(&self) -> bool {
        false
    }
    /// True if it has an end to seek from (SEEK_END of lseek(2); else EINVAL).
    fn has_end(&self, file: &OpenFile) -> bool {
        true
    }
    /// What it can be opened again by, where the inode of its place went by a name that is gone.
    fn nameless(&self) -> Option<Arc<dyn Inode>> {
        None
    }
    /// True if the position is not ours: others outside read and write at it too (a file of the
    /// host given as a standard stream). Reads and writes at the file's own position have
    /// [`STREAM`] for an offset then, and lseek(2) is [`FileOps::seek`].
    fn shares_position(&self) -> bool {
        false
    }
    /// lseek(2) where the position is shared: SEEK_* and the new position in bytes.
    fn seek(&self, offset: i64, whence: u32) -> Result<u64> {
        Err(Errno::ESPIPE)
    }
    /// True if a blocking write goes on until everything is written (pipes, stream sockets,
    /// terminals).
    fn is_stream(&self) -> bool {
        false
    }
    /// True if nobody may tell when there is room to write again, so that who waits has to look.
    fn may_miss_room(&self) -> bool {
        false
    }
    /// True if a write of so many bytes is made at once or not at all (PIPE_BUF, see pipe(7)).
    fn writes_at_once(&self, _bytes: usize) -> bool {
        !self.is_stream()
    }
    /// Bytes of memory that lie in it (what a pipe or socket has queued, the pages of a file in
    /// memory), about. Takes no lock that a caller may hold.
    fn held_bytes(&self) -> u64 {
        0
    }
    /// How long a blocking read, or write, waits in nanoseconds; 0: for ever (SO_RCVTIMEO,
    /// SO_SNDTIMEO).
    fn wait_limit_ns(&self, writes: bool) -> u64 {
        0
    }
    /// Readiness now.
    fn poll(&self, file: &OpenFile) -> PollMask {
        PollMask::READ | PollMask::WRITE
    }
    /// What is notified of changes of readiness; `None` for files that are always ready (epoll
    /// refuses those with EPERM).
    fn queue(&self) -> Option<&WaitQueue> {
        None
    }
    /// What of it O_ASYNC tells of.
    fn tells(&self) -> Tells {
        Tells::Nothing
    }
    /// ioctl(2).
    fn ioctl(
        &self,
        caller: &dyn Caller,
        file: &OpenFile,
        command: u32,
        argument: u64,
    ) -> Result<usize> {
        Err(Errno::ENOTTY)
    }
    /// The memory for mmap(2); `writable`: shared and writable.
    fn mapping(&self, file: &OpenFile, writable: bool) -> Result<Arc<dyn MappedFile>> {
        Err(Errno::ENODEV)
    }
    /// As [`FileOps::mapping`] of `length` bytes from `offset` on: the memory, and which of its
    /// pages comes first.
    fn mapping_at(
        &self,
        file: &OpenFile,
        writable: bool,
        offset: u64,
        length: u64,
    ) -> Result<(Arc<dyn MappedFile>, u64)> {
        let _ = length;
        Ok((self.mapping(file, writable)?, offset >> PAGE_SHIFT))
    }
    /// stat(2) of the open file.
    fn attributes(&self, file: &OpenFile) -> Result<Attributes> {
        match &file.path {
            Some(place) => place.attributes(),
            None => Ok(anonymous_attributes()),
        }
    }
    /// chmod(2), chown(2), utimensat(2) of the open file.
    fn set_attributes(&self, file: &OpenFile, change: &SetAttributes) -> Result {
        file.path.as_ref().ok_or(Errno::EPERM)?.inode().set_attributes(change)
    }
    /// getxattr(2) of the open file, whatever its name leads to by now: ENODATA when there is none.
    fn get_xattr(&self, file: &OpenFile, name: &[u8]) -> Result<Vec<u8>> {
        file.path.as_ref().ok_or(Errno::EOPNOTSUPP)?.inode().get_xattr(name)
    }
    /// listxattr(2) of the open file: names, each ended by NUL.
    fn list_xattr(&self, file: &OpenFile) -> Result<Vec<u8>> {
        file.path.as_ref().map_or(Ok(Vec::new()), |place| place.inode().list_xattr())
    }
    /// ftruncate(2): the new length in bytes.
    fn truncate(&self, file: &OpenFile, size: u64) -> Result {
        Err(Errno::EINVAL)
    }
    /// fallocate(2).
    fn allocate(&self, file: &OpenFile, mode: u32, offset: u64, len: u64) -> Result {
        Err(Errno::ENODEV)
    }
    /// For the locks of one more owner, if others outside of the container can lock the file too.
    /// ENOLCK when they cannot be told.
    fn outside_locks(&self, file: &OpenFile) -> Result<Option<Arc<dyn OutsideLocks>>> {
        Ok(None)
    }
    /// Begins fsync(2), or fdatasync(2): what is to be waited for.
    fn sync(&self, file: &OpenFile, data_only: bool) -> Result<Begun> {
        Err(Errno::EINVAL)
    }
    /// Begins sync_file_range(2) with SYNC_FILE_RANGE_*: what is to be waited for. fdatasync(2)
    /// does at least that much.
    fn sync_range(&self, file: &OpenFile, offset: u64, len: u64, flags: u32) -> Result<Begun> {
        self.sync(file, true)
    }
    /// Begins syncfs(2): what is to be waited for.
    fn sync_fs(&self, file: &OpenFile) -> Result<Begun> {
        match &file.path {
            Some(place) => place.dentry.fs.sync(),
            // What has no name here may still be a file of the host, as standard output can be.
            None => match self.sync(file, false) {
                Err(Errno::EINVAL) => Ok(None),
                begun => begun,
            },
        }
    }
    /// statfs(2) of the file system it lies in.
    fn statfs(&self, file: &OpenFile) -> Result<StatFs> {
        match &file.path {
            Some(place) => place.dentry.fs.statfs(),
            None => Ok(crate::fs::inode::simple_statfs(ANON_INODE_FS_MAGIC)),
        }
    }
    /// Entries of a directory from `position` on, without "." and ".." if the file system has none
    /// of its own: the position at which to go on. ENOTDIR when it is none.
    fn read_dir(&self, file: &OpenFile, position: u64, sink: &mut DirSink<'_>) -> Result<u64> {
        Err(Errno::ENOTDIR)
    }
    /// SEEK_DATA (`data`) or SEEK_HOLE of lseek(2) from `offset`; ENXIO past the end.
    fn seek_data(&self, file: &OpenFile, offset: u64, data: bool) -> Result<u64> {
        let size = self.attributes(file)?.size;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        Ok(if data { offset } else { size })
    }
    /// What /proc/PID/fd shows for files without a place in the tree: "pipe:[1]",
    /// "anon_inode:[eventpoll]" …
    fn label(&self, file: &OpenFile) -> Vec<u8> {
        let attributes = self.attributes(file).unwrap_or_default();
        match attributes.kind() {
            S_IFIFO => alloc::format!("pipe:[{}]", attributes.ino).into_bytes(),
            S_IFSOCK => alloc::format!("socket:[{}]", attributes.ino).into_bytes(),
            _ => b"anon_inode:[file]".to_vec(),
        }
    }
    /// Lines that /proc/PID/fdinfo shows besides the common ones.
    fn details(&self, file: &OpenFile) -> Vec<u8> {
        Vec::new()
    }
    /// Process `pid` has closed a descriptor of it, whoever has others.
    fn closed_by(&self, pid: u32) {}
    /// The last descriptor is gone.
    fn release(&self, file: &OpenFile) {}
    /// For the kinds that system calls ask for by type (sockets, epoll, directories …): `self`.
    fn as_any(&self) -> &dyn Any;
}

/// What a file with O_ASYNC tells of by signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tells {
    /// It cannot: the flag is not kept.
    Nothing,
    /// Data and room, as which the end of the other side counts too.
    Data,
    /// Of that end besides.
    DataAndEnd,
}

/// What stat(2) reports of files that are no more than a descriptor.
fn anonymous_attributes() -> Attributes {
    Attributes {
        mode: 0o600,
        nlink: 1,
        ino: 1,
        block_size: 4096,
        dev: device(0, 0xf),
        ..Attributes::default()
    }
}

/// One entry of a directory.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// Inode number.
    pub ino: u64,
    /// The position after it.
    pub next: u64,
    /// DT_*.
    pub kind: u8,
    /// Its name.
    pub name: &'a [u8],
}

/// Takes directory entries; false: this one did not fit, stop before it.
pub type DirSink<'a> = dyn FnMut(DirEntry<'_>) -> bool + 'a;

/// Somebody who has to know when a description is gone (an epoll item).
pub trait CloseHook: Send + Sync {
    /// Its last descriptor was closed; `ops` are still there.
    fn closed(&self, ops: &dyn FileOps);
    /// Tells hooks apart, to remove one.
    fn id(&self) -> usize;
}

/// An open file description: shared by dup(2) and fork(2).
pub struct OpenFile {
    /// What kind of file it is.
    pub ops: Arc<dyn FileOps>,
    /// O_* access mode and status flags.
    flags: AtomicU32,
    /// The file position in bytes.
    pub position: Mutex<u64>,
    /// Whom it tells of its readiness by signals, once somebody has asked for that: what
    /// [`crate::ipc::sigio`] keeps.
    pub telling: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
    /// Where it was opened, for /proc and for the *at calls: set by the VFS.
    pub path: Option<Location>,
    /// It is a regular file.
    claim: Option<Claim>,
    /// Nobody is told what is done with it (FMODE_NONOTIFY).
    is_unseen: bool,
    /// Opening it has made the file (F_CREATED_QUERY).
    is_created: AtomicBool,
    /// Who has to know when it is gone, by [`CloseHook::id`].
    pub close_hooks: Mutex<BTreeMap<usize, Arc<dyn CloseHook>>>,
}

impl OpenFile {
    /// A new description.
    pub fn new(ops: Arc<dyn FileOps>, flags: u32) -> Arc<Self> {
        Self::at(ops, flags, None)
    }

    /// A new description of a file with a place in the tree.
    pub fn at(ops: Arc<dyn FileOps>, flags: u32, path: Option<Location>) -> Arc<Self> {
        Self::claimed(ops, flags, path, None)
    }

    /// As [`OpenFile::at`], of a file that nobody executes meanwhile if it has a claim.
    pub fn claimed(
        ops: Arc<dyn FileOps>,
        flags: u32,
        path: Option<Location>,
        claim: Option<Claim>,
    ) -> Arc<Self> {
        Self::make(ops, flags, path, claim, false)
    }

    /// As [`OpenFile::claimed`], of one for who watches files: nobody is told what is done with it.
    pub fn unseen(
        ops: Arc<dyn FileOps>,
        flags: u32,
        path: Location,
        claim: Option<Claim>,
    ) -> Arc<Self> {
        Self::make(ops, flags, Some(path), claim, true)
    }

    fn make(
        ops: Arc<dyn FileOps>,
        flags: u32,
        path: Option<Location>,
        claim: Option<Claim>,
        is_unseen: bool,
    ) -> Arc<Self> {
        if let (Some(place), true) = (&path, claim.as_ref().is_some_and(Claim::writes)) {
            place.mount.begin_writing();
        }
        Arc::new(OpenFile {
            ops,
            flags: AtomicU32::new(flags),
            position: Mutex::new(0),
            telling: Mutex::default(),
            path,
            claim,
            is_unseen,
            is_created: AtomicBool::new(false),
            close_hooks: Mutex::default(),
        })
    }

    /// O_* flags now.
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Replaces the flags.
    pub fn set_flags(&self, flags: u32) {
        self.flags.store(flags, Ordering::Relaxed);
    }

    /// True if O_NONBLOCK is set.
    pub fn is_nonblocking(&self) -> bool {
        self.flags() & O_NONBLOCK != 0
    }

    /// True if O_APPEND is set.
    pub fn is_append(&self) -> bool {
        self.flags() & O_APPEND != 0
    }

    /// True if it was opened for reading.
    pub fn is_readable(&self) -> bool {
        self.flags() & O_PATH == 0 && matches!(self.flags() & O_ACCMODE, O_RDONLY | O_RDWR)
    }

    /// True if it was opened for writing.
    pub fn is_writable(&self) -> bool {
        self.flags() & O_PATH == 0 && matches!(self.flags() & O_ACCMODE, O_WRONLY | O_RDWR)
    }

    /// True if nobody is told what is done with it.
    pub fn is_unseen(&self) -> bool {
        self.is_unseen
    }

    /// Opening it has made the file.
    pub fn note_created(&self) {
        self.is_created.store(true, Ordering::Relaxed);
    }

    /// True if opening it has made the file.
    pub fn is_created(&self) -> bool {
        self.is_created.load(Ordering::Relaxed)
    }

    /// The operations as a concrete kind.
    pub fn downcast<T: FileOps>(&self) -> Option<&T> {
        self.ops.as_any().downcast_ref()
    }

    /// Where it is, for who opens it again: in a place of its own if its name is gone. `root` is
    /// what /proc shows that place from.
    pub fn place(&self, root: &Location) -> Option<Location> {
        let place = self.path.as_ref()?;
        let Some(inode) = self.ops.nameless() else { return Some(place.clone()) };
        let label = place.path_from(root);
        let dentry = Dentry::unnamed(place.dentry.fs.clone(), inode, &label);
        Some(Location { mount: place.mount.clone(), dentry })
    }

    /// The offset of a transfer at the file's own position, as [`FileOps::read`] and
    /// [`FileOps::write`] take it.
    pub fn own_offset(&self) -> u64 {
        if self.ops.shares_position() { STREAM } else { *self.position.lock() }
    }

    /// Moves the file's own position on after a transfer of `bytes` bytes at it. What has no
    /// position, or shares the host's, needs nothing.
    pub fn advance(&self, bytes: usize) {
        let ops = &self.ops;
        if ops.is_seekable() && !ops.shares_position() && !ops.is_everywhere() {
            let mut position = self.position.lock();
            *position = position.saturating_add(bytes as u64);
        }
    }

    /// The file's own position in bytes, as lseek(2) reports it.
    pub fn tell(&self) -> Result<u64> {
        if self.ops.shares_position() {
            self.ops.seek(0, SEEK_CUR)
        } else {
            Ok(*self.position.lock())
        }
    }

    /// stat(2).
    pub fn attributes(&self) -> Result<Attributes> {
        self.ops.attributes(self)
    }

    /// Readiness now.
    pub fn poll(&self) -> PollMask {
        self.ops.poll(self)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        super::lock::file_gone(self);
        super::lease::file_gone(self);
        super::dnotify::file_gone(self);
        if let (Some(place), true) = (&self.path, self.claim.as_ref().is_some_and(Claim::writes)) {
            place.mount.end_writing();
        }
        if self.flags() & O_PATH == 0 {
            super::notify::file_event(
                self,
                if self.is_writable() { IN_CLOSE_WRITE } else { IN_CLOSE_NOWRITE },
            );
        }
        if let Some(place) = &self.path {
            super::notify::is_gone(place);
        }
        let ops = self.ops.clone();
        for hook in core::mem::take(self.close_hooks.get_mut()).into_values() {
            hook.closed(&*ops);
        }
        ops.release(self);
    }
}

/// The open file that a range of an address space shows, if it shows one.
pub fn file_of(backing: &FileMapping) -> Option<Arc<OpenFile>> {
    backing.file.clone()?.downcast().ok()
}

/// DT_* of a mode's type.
pub fn entry_kind(mode: u32) -> u8 {
    (mode >> 12 & 0xf) as u8
}

/// Gives out "." and ".." of a directory whose file system has none, at positions 1 and 2: where to
/// go on (at least 2), or as `Err` where it got full.
pub fn dots(
    file: &OpenFile,
    position: u64,
    sink: &mut DirSink<'_>,
) -> Result<core::result::Result<u64, u64>> {
    const DT_DIR: u8 = general::DT_DIR as u8;
    if position >= 2 {
        return Ok(Ok(position));
    }
    let place = file.path.as_ref().ok_or(Errno::ENOTDIR)?;
    let own = place.attributes()?.ino;
    if position == 0 && !sink(DirEntry { ino: own, next: 1, kind: DT_DIR, name: b"." }) {
        return Ok(Err(0));
    }
    let parent = place.parent().inode().permissions()?.ino;
    if !sink(DirEntry { ino: parent, next: 2, kind: DT_DIR, name: b".." }) {
        return Ok(Err(1));
    }
    Ok(Ok(2))
}
