//! What a sandbox is made of that goes on where another one was ([`crate::image`]).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use anyhow::Context;
use qlib::{Frames, Gpa, PAGE_SIZE};
use rustix::io::Errno;

use super::hostcall::image::{Parts, PutBackError};
use super::memory::{GuestMemory, MemoryError};
use crate::store::{Store, StoreError};
use crate::sys;

/// How much of guest memory is read at once, in bytes.
const BATCH_BYTES: u64 = 1 << 20;
/// The longest description of an image that is received, in bytes.
const MAX_PARTS: u64 = 1 << 30;

/// An image, opened.
#[derive(Debug)]
pub struct Image {
    /// What it is besides its memory.
    pub parts: Parts,
    /// The files that it names; `None` for what every container is given.
    pub files: Vec<Option<OwnedFd>>,
    /// Guest memory.
    pub ram: File,
    /// What is swapped out, by layer.
    pub swap: Vec<Arc<File>>,
    /// The working set.
    pub reap: Arc<File>,
}

impl Image {
    /// What came with [`qlib::control::Request::Become`]; `is_file`: for each file that it names,
    /// whether it came too.
    pub fn received(layers: usize, is_file: &[bool], fds: Vec<OwnedFd>) -> anyhow::Result<Image> {
        let mut fds = fds.into_iter();
        let mut next = || fds.next().context("a file did not come");
        let (parts, ram) = (File::from(next()?), File::from(next()?));
        let mut bytes = vec![0; parts.metadata()?.len().min(MAX_PARTS) as usize];
        parts.read_exact_at(&mut bytes, 0)?;
        let parts = postcard::from_bytes(&bytes)?;
        let reap = Arc::new(File::from(next()?));
        let swap = (0..layers).map(|_| Ok(Arc::new(File::from(next()?))));
        let swap = swap.collect::<anyhow::Result<_>>()?;
        let files = is_file.iter().map(|is_file| is_file.then(&mut next).transpose());
        let files = files.collect::<anyhow::Result<_>>()?;
        Ok(Image { parts, files, ram, swap, reap })
    }

    /// True if it may have been made of the sandbox that has this memory.
    pub fn is_of(&self, memory: &GuestMemory) -> bool {
        self.parts.base == memory.base() && self.parts.ram_bytes == memory.ram_bytes()
    }

    /// The store, with what it held.
    pub fn store(&self, dir: OwnedFd, quota_bytes: u64) -> Result<Store, PutBackError> {
        let (swap, reap) = (self.swap.clone(), self.reap.clone());
        Store::again(dir, quota_bytes, &self.parts.store, swap, reap)
            .map_err(|_| PutBackError::Damaged("its swapped pages are in no order"))
    }

    /// Has a store hold what it held, and nothing else.
    pub fn fill_store(&self, store: &Store) -> Result<(), StoreError> {
        store.become_again(&self.parts.store, self.swap.clone(), self.reap.clone())
    }

    /// Guest memory where it was, with nothing in it yet.
    pub fn memory(&self, window_bytes: u64) -> Result<GuestMemory, MemoryError> {
        GuestMemory::again(self.parts.base, self.parts.ram_bytes, window_bytes)
    }

    /// Fills guest memory, in which a kernel image has been loaded and not been entered: what that
    /// may write is as it was. EFAULT for an image that has something where it may not.
    pub fn fill(&self, memory: &GuestMemory) -> Result<(), Errno> {
        let pages = memory.ram_bytes() / PAGE_SIZE;
        memory.release([Frames { start: Gpa(0), count: pages }])?;
        each_page(&self.ram, &[], |offset, page| {
            let place = memory.ram_slice(Gpa(offset), page.len() as u64);
            Ok(place.ok_or(Errno::FAULT)?.write(page)?)
        })
        .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }
}

/// Calls `each` with the offset and the content of each page that is not all zeros, and in none of
/// the ranges `without`, which are whole pages, lowest first.
///
/// # Errors
/// Those of reading it, and of `each`.
pub fn each_page(
    file: &File,
    without: &[(u64, u64)],
    mut each: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut bytes = vec![0; BATCH_BYTES as usize];
    let mut without = without.iter().peekable();
    let mut at = 0;
    while let Some(data) = sys::seek_data(file.as_fd(), at)? {
        let start = data / PAGE_SIZE * PAGE_SIZE;
        while without.next_if(|(_, end)| *end <= start).is_some() {}
        let stop = match without.peek() {
            Some((first, end)) if *first <= start => {
                at = *end;
                continue;
            }
            next => next.map_or(u64::MAX, |(first, _)| *first),
        };
        let hole = sys::seek_hole(file.as_fd(), data)?.min(stop);
        at = hole.next_multiple_of(PAGE_SIZE).min(start + BATCH_BYTES);
        let part = &mut bytes[..(at - start) as usize];
        part.fill(0);
        let whole = (hole.min(at) - start) as usize;
        file.read_exact_at(&mut part[..whole], start)?;
        let (pages, _) = part.as_chunks::<{ PAGE_SIZE as usize }>();
        for (page, offset) in pages.iter().zip((start..).step_by(PAGE_SIZE as usize)) {
            if page.iter().any(|byte| *byte != 0) {
                each(offset, page)?;
            }
        }
    }
    Ok(())
}
