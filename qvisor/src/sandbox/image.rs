//! What a sandbox is made of that goes on where another one was ([`crate::image`]).

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use qlib::host::Segment;
use qlib::{Frames, Gpa, PAGE_SIZE};
use rustix::io::Errno;

use super::hostcall::image::{Parts, PutBackError};
use super::memory::{GuestMemory, Layout, MemoryError};
use crate::store::{PageMemory, Store};
use crate::sys;

/// How much of guest memory is read at once, in bytes.
const BATCH_BYTES: u64 = 8 << 20;

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
    pub swap: File,
    /// The working set.
    pub reap: File,
}

impl Image {
    /// The store, with what it held.
    pub fn store(&self, dir: OwnedFd, quota_bytes: u64) -> Result<Store, PutBackError> {
        let refused = |_| PutBackError::Host("open the files of the image", Errno::MFILE);
        let swap = self.swap.try_clone().map_err(refused)?;
        let reap = self.reap.try_clone().map_err(refused)?;
        Store::again(dir, quota_bytes, &self.parts.store, swap, reap)
            .map_err(|_| PutBackError::Damaged("its swapped pages are in no order"))
    }

    /// Guest memory where it was, with nothing in it yet.
    pub fn memory(&self, window_bytes: u64) -> Result<GuestMemory, MemoryError> {
        let Parts { base, ram_bytes, .. } = self.parts;
        GuestMemory::new(Layout { base: Some(base), ram_bytes, window_bytes })
    }

    /// Fills guest memory, in which a kernel image has been loaded and not been entered: what that
    /// may write is as it was. EFAULT for an image that has something where it may not.
    pub fn fill(&self, memory: &GuestMemory) -> Result<(), Errno> {
        let pages = memory.ram_bytes() / PAGE_SIZE;
        memory.release([Frames { start: Gpa(0), count: pages }])?;
        let errno = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        let mut at = 0;
        while let Some(data) = sys::seek_data(self.ram.as_fd(), at)? {
            let hole = sys::seek_hole(self.ram.as_fd(), data)?;
            at = hole.min(data + BATCH_BYTES);
            let mut segment = Segment { gpa: Gpa(data), len: at - data };
            if memory.ram_slice(segment.gpa, segment.len).is_none() {
                return Err(Errno::FAULT);
            }
            while segment.len > 0 {
                let read = memory.read_in(&[segment], self.ram.as_fd(), segment.gpa.0);
                match read.map_err(errno)? as u64 {
                    0 => return Err(Errno::IO),
                    n => segment = Segment { gpa: segment.gpa + n, len: segment.len - n },
                }
            }
        }
        Ok(())
    }
}
