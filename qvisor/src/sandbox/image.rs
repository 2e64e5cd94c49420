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
use crate::store::kept::is_zero;
use crate::store::{Store, StoreError};
use crate::sys;

/// How much of guest memory is read at once, in bytes: at most, and where it has holes.
const BATCH_BYTES: u64 = 1 << 20;
const FEW_BYTES: u64 = 64 << 10;
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
        // By its own address: what the kernel may not write, an image may not either.
        each_run(&self.ram, &[], |offset, pages| {
            let place = memory.ram_slice(Gpa(offset), pages.len() as u64);
            Ok(place.ok_or(Errno::FAULT)?.write(pages)?)
        })
        .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }
}

/// Calls `each` with the offset and the content of pages in a row that are not all zeros, and in
/// none of the ranges `without`, which are whole pages, lowest first. Neighbours mostly come
/// together.
///
/// # Errors
/// Those of reading it, and of `each`.
pub fn each_run(
    file: &File,
    without: &[(u64, u64)],
    mut each: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    const PAGE: usize = PAGE_SIZE as usize;
    let mut bytes = vec![0; BATCH_BYTES as usize];
    let mut without = without.iter().peekable();
    let end = file.metadata()?.len().next_multiple_of(PAGE_SIZE);
    let (mut at, mut batch) = (0, FEW_BYTES);
    // Somebody may make an image longer meanwhile.
    while let Some(data) = sys::seek_data(file.as_fd(), at)?.filter(|data| *data < end) {
        let start = data / PAGE_SIZE * PAGE_SIZE;
        while without.next_if(|(_, end)| *end <= start).is_some() {}
        let stop = match without.peek() {
            Some((first, end)) if *first <= start => {
                at = *end;
                continue;
            }
            next => next.map_or(end, |(first, _)| end.min(*first)),
        };
        // Where the next hole is, is not asked for: the host would look for it page by page, far
        // into what is left out. What is read of one is zeros.
        at = stop.min(start + batch);
        let part = &mut bytes[..(at - start) as usize];
        read_or_zero(file, part, start)?;
        let (pages, _) = part.as_chunks::<PAGE>();
        let (mut offset, mut is_dense) = (start, true);
        for run in pages.chunk_by(|one, other| is_zero(one) == is_zero(other)) {
            match is_zero(&run[0]) {
                true => is_dense = false,
                false => each(offset, run.as_flattened())?,
            }
            offset += run.as_flattened().len() as u64;
        }
        batch = if is_dense { BATCH_BYTES.min(2 * batch) } else { FEW_BYTES };
    }
    Ok(())
}

/// Reads a part of a file, beyond whose end there are zeros.
fn read_or_zero(file: &File, mut part: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !part.is_empty() {
        match file.read_at(part, offset) {
            Ok(0) => {
                part.fill(0);
                return Ok(());
            }
            Ok(n) => (part, offset) = (&mut part[n..], offset + n as u64),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
