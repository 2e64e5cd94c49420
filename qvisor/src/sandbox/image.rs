//! What a sandbox is made of that goes on where another one was ([`crate::image`]).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use qlib::{Frames, Gpa, PAGE_SIZE};
use rustix::io::Errno;

use super::hostcall::image::{Parts, PutBackError};
use super::memory::{GuestMemory, MemoryError};
use crate::store::Store;
use crate::sys;

/// How much of guest memory is read at once, in bytes.
const BATCH_BYTES: u64 = 1 << 20;

/// An image, opened.
#[derive(Debug)]
pub struct Image {
    /// What it is besides its memory.
    pub parts: Parts,
    /// The files that it names; `None` for what every container is given.
    pub files: Vec<Option<OwnedFd>>,
    /// Guest memory.
    pub ram: File,
    /// What is swapped out.
    pub swap: Arc<File>,
    /// The working set.
    pub reap: Arc<File>,
}

impl Image {
    /// The store, with what it held.
    pub fn store(&self, dir: OwnedFd, quota_bytes: u64) -> Result<Store, PutBackError> {
        let (swap, reap) = (self.swap.clone(), self.reap.clone());
        Store::again(dir, quota_bytes, &self.parts.store, swap, reap)
            .map_err(|_| PutBackError::Damaged("its swapped pages are in no order"))
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
        each_page(&self.ram, |offset, page| {
            let place = memory.ram_slice(Gpa(offset), page.len() as u64);
            Ok(place.ok_or(Errno::FAULT)?.write(page)?)
        })
        .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }
}

/// Calls `each` with the offset and the content of each page that is not all zeros.
///
/// # Errors
/// Those of reading it, and of `each`.
pub fn each_page(
    file: &File,
    mut each: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut bytes = vec![0; BATCH_BYTES as usize];
    let mut at = 0;
    while let Some(data) = sys::seek_data(file.as_fd(), at)? {
        let hole = sys::seek_hole(file.as_fd(), data)?;
        let start = data / PAGE_SIZE * PAGE_SIZE;
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
