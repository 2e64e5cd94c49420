//! A file without a name, and moving pages between it and guest memory.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use nix::fcntl::{FallocateFlags, OFlag, fallocate, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use qlib::host::Segment;
use qlib::{Gpa, PAGE_SIZE};

use super::{BATCH_BYTES, PageMemory};
use crate::sys;
use crate::sys::ordered::{Mutex, place};

/// Segments in one system call (UIO_MAXIOV).
const MAX_IOVECS: usize = 1024;

/// A file that no directory names; its space is freed when it is dropped.
#[derive(Debug)]
pub struct HiddenFile {
    file: Arc<File>,
    /// Where it goes then, if it is not closed.
    home: Option<Arc<Pool>>,
}

/// Files that were made ahead, for a process that cannot make any later.
#[derive(Debug)]
pub struct Pool {
    spare: Mutex<Vec<Arc<File>>, place::SpareFiles>,
    /// Why there are none: an errno.
    error: Option<i32>,
}

impl Pool {
    /// `count` empty files on the file system of `dir`. If that cannot make them, who takes one is
    /// told so.
    pub fn new(dir: BorrowedFd<'_>, count: usize) -> Arc<Self> {
        let made: io::Result<Vec<_>> =
            (0..count).map(|_| Ok(HiddenFile::create(dir)?.file.clone())).collect();
        let error = made.as_ref().err().map(|e| e.raw_os_error().unwrap_or(libc::EIO));
        Arc::new(Pool { spare: Mutex::new(made.unwrap_or_default()), error })
    }

    /// One of them, which comes back when it is dropped. ENFILE when all are in use.
    pub fn take(self: &Arc<Self>) -> io::Result<HiddenFile> {
        let file = self.spare.lock().pop();
        let errno = self.error.unwrap_or(libc::ENFILE);
        let file = file.ok_or_else(|| io::Error::from_raw_os_error(errno))?;
        Ok(HiddenFile { file, home: Some(self.clone()) })
    }

    /// Has these files and no others.
    pub fn refill(&self, files: impl IntoIterator<Item = File>) {
        *self.spare.lock() = files.into_iter().map(Arc::new).collect();
    }
}

impl Drop for HiddenFile {
    fn drop(&mut self) {
        if let Some(pool) = &self.home {
            self.truncate(0);
            pool.spare.lock().push(self.file.clone());
        }
    }
}

impl HiddenFile {
    /// An empty file on the file system of `dir`.
    pub fn create(dir: BorrowedFd<'_>) -> io::Result<Self> {
        let file = Arc::new(Self::create_file(dir)?);
        Ok(Self { file, home: None })
    }

    /// A file that another store has written, which is only read.
    pub fn of(file: Arc<File>) -> Self {
        Self { file, home: None }
    }

    /// It is somebody else's from now on, with what it holds.
    pub fn give_up(mut self) {
        self.home = None;
    }

    /// The file.
    pub fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    /// Likewise, for another process's store.
    pub fn create_file(dir: BorrowedFd<'_>) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NOATIME;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        // Without O_EXCL: who writes an image gives it a name there instead of copying it.
        match openat(dir, ".", flags | OFlag::O_TMPFILE, mode) {
            Ok(fd) => return Ok(fd.into()),
            // File systems that cannot, and kernels that do not know the flag.
            Err(
                nix::Error::EOPNOTSUPP
                | nix::Error::EISDIR
                | nix::Error::EINVAL
                | nix::Error::ENOENT,
            ) => {}
            Err(error) => return Err(error.into()),
        }
        let name = format!(".quark-store-{:016x}", RandomState::new().hash_one(0));
        let fd = openat(
            dir,
            name.as_str(),
            flags | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW,
            mode,
        )?;
        unlinkat(dir, name.as_str(), UnlinkatFlags::NoRemoveDir)?;
        Ok(fd.into())
    }

    /// The descriptor.
    #[cfg(test)]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Disk space it takes, in bytes.
    pub fn disk_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |m| m.blocks() * 512)
    }

    /// Writes all of `from` at `offset`. There are at most [`MAX_IOVECS`] segments.
    pub fn write_pages(
        &self,
        memory: &impl PageMemory,
        from: &[Segment],
        offset: u64,
    ) -> io::Result<()> {
        let whole =
            move_all(from, offset, |rest, at| memory.write_out(rest, self.file.as_fd(), at))?;
        if whole { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Fills all of `to` from `offset`; false when the file ends before. At most [`MAX_IOVECS`]
    /// segments.
    pub fn read_pages(
        &self,
        memory: &impl PageMemory,
        to: &[Segment],
        offset: u64,
    ) -> io::Result<bool> {
        move_all(to, offset, |rest, at| memory.read_in(rest, self.file.as_fd(), at))
    }

    /// Fills `bytes`; false when the file ends before.
    pub fn read_exactly(&self, offset: u64, bytes: &mut [u8]) -> io::Result<bool> {
        match self.file.read_exact_at(bytes, offset) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lets the host begin to write a range to the disk. What goes wrong is seen by
    /// [`Self::sync`].
    pub fn start_writeback(&self, offset: u64, len: u64) {
        start_writeback(&self.file, offset, len);
    }

    /// Waits until a range is on the disk, as far as the host can tell: its pages are clean, and no
    /// error was seen. It is not made to survive a crash of the host, for nothing of the sandbox
    /// does.
    pub fn sync(&self, offset: u64, len: u64) -> io::Result<()> {
        sync(&self.file, offset, len)
    }

    /// Frees the space of a range. A failure costs space only.
    pub fn punch(&self, offset: u64, len: u64) {
        if let Err(error) = punch(&self.file, offset, len) {
            tracing::debug!(%error, fd = self.file.as_raw_fd(), "cannot free space of the store");
        }
    }

    /// Cuts the file off. A failure costs space only.
    pub fn truncate(&self, len: u64) {
        if let Err(error) = self.file.set_len(len) {
            tracing::debug!(%error, fd = self.file.as_raw_fd(), "cannot cut the store's file");
        }
    }

    /// Takes a range back that was written by an operation that failed; the file ends at `end`
    /// without it.
    pub fn discard(&self, offset: u64, len: u64, end: u64) {
        if offset >= end { self.truncate(end) } else { self.punch(offset, len) }
    }
}

/// Has a range of a file be a hole.
pub(super) fn punch(file: &File, offset: u64, len: u64) -> nix::Result<()> {
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(file, flags, offset as i64, len as i64)
}

/// As [`HiddenFile::start_writeback`], for any file.
pub(super) fn start_writeback(file: &File, offset: u64, len: u64) {
    let _ = sys::sync_range(file.as_fd(), offset, len, false);
}

/// As [`HiddenFile::sync`], for any file.
pub(super) fn sync(file: &File, offset: u64, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    match sys::sync_range(file.as_fd(), offset, len, true) {
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::ESPIPE)) =>
        {
            file.sync_data()
        }
        result => result,
    }
}

/// Calls `step` until all of `segments` was moved; false when it moved nothing.
fn move_all(
    segments: &[Segment],
    offset: u64,
    mut step: impl FnMut(&[Segment], u64) -> io::Result<usize>,
) -> io::Result<bool> {
    let total: u64 = segments.iter().map(|s| s.len).sum();
    let mut rest;
    let mut left = segments;
    let mut done = 0;
    while done < total {
        match step(left, offset + done) {
            Ok(0) => return Ok(false),
            Ok(moved) => done += (moved as u64).min(total - done),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        rest = after(segments, done);
        left = &rest;
    }
    Ok(true)
}

/// What is left of `segments` after their first `skip` bytes.
fn after(segments: &[Segment], mut skip: u64) -> Vec<Segment> {
    let mut rest = Vec::new();
    for segment in segments {
        let gone = skip.min(segment.len);
        skip -= gone;
        if gone < segment.len {
            rest.push(Segment { gpa: segment.gpa + gone, len: segment.len - gone });
        }
    }
    rest
}

/// The pages of page-aligned segments, in order.
pub fn pages(segments: &[Segment]) -> impl Iterator<Item = Gpa> {
    segments.iter().flat_map(|s| (0..s.len / PAGE_SIZE).map(move |i| s.gpa + i * PAGE_SIZE))
}

/// A place in a list of page-aligned segments.
#[derive(Debug)]
pub struct Cursor<'s> {
    segments: &'s [Segment],
    /// Bytes of the first of them that are done.
    done: u64,
}

impl<'s> Cursor<'s> {
    /// The beginning of `segments`.
    pub fn new(segments: &'s [Segment]) -> Self {
        Self { segments, done: 0 }
    }

    /// The next segments: `limit` bytes (whole pages), or less when that is enough for one system
    /// call. At least one page unless all are done.
    pub fn take(&mut self, limit: u64) -> Vec<Segment> {
        let mut left = limit.min(BATCH_BYTES);
        let mut batch = Vec::new();
        while let [first, rest @ ..] = self.segments
            && left > 0
            && batch.len() < MAX_IOVECS
        {
            let len = (first.len - self.done).min(left);
            batch.push(Segment { gpa: first.gpa + self.done, len });
            left -= len;
            self.done += len;
            if self.done == first.len {
                (self.segments, self.done) = (rest, 0);
            }
        }
        batch
    }
}
