//! The swap store: pages of guest memory that lie on the host's disk while the sandbox sleeps.

use std::io;
use std::os::fd::BorrowedFd;

use qlib::Gpa;
use qlib::host::{Op, Segment};
use rustix::io::Errno;

use super::super::admission::Admission;
use super::super::memory::GuestMemory;
use super::{Call, Outcome};
use crate::store::populate::{self, MappedRam};
use crate::store::{PageMemory, Store, StoreError};
use crate::sys;

/// Slots in one SwapFree.
const MAX_SLOTS: usize = 1 << 20;

impl GuestMemory {
    /// Where the sandbox process has it.
    pub(super) fn mapped(&self) -> MappedRam {
        MappedRam { base: self.base() as usize, bytes: self.ram_bytes() }
    }
}

impl PageMemory for GuestMemory {
    fn write_out(&self, from: &[Segment], file: BorrowedFd<'_>, offset: u64) -> io::Result<usize> {
        Ok(sys::write(file, &self.ranges(from)?, Some(offset), 0)?)
    }

    fn read_in(&self, to: &[Segment], file: BorrowedFd<'_>, offset: u64) -> io::Result<usize> {
        Ok(sys::read(file, &self.ranges(to)?, Some(offset), 0)?)
    }

    fn copy_out(&self, from: Gpa, to: &mut [u8]) -> io::Result<()> {
        Ok(self.read(from, to)?)
    }

    fn copy_in(&self, to: Gpa, from: &[u8]) -> io::Result<()> {
        Ok(self.write(to, from)?)
    }

    fn populate(&self, ranges: &[Segment]) {
        populate::populate(self.mapped(), ranges);
    }
}

impl Call<'_> {
    pub(super) fn store_call(&mut self, op: Op) -> Outcome {
        let host = self.host;
        let store = host.store.as_ref().ok_or(Errno::NOSYS)?;
        let result = match op {
            Op::SwapOut => return self.swap_out(store),
            Op::SwapIn => {
                self.ram_only()?;
                if self.segments.is_empty() {
                    return Err(Errno::INVAL);
                }
                store.swap_in(&*host.memory, self.args[0], &self.segments)
            }
            Op::SwapFree => {
                let bytes = self.range(0)?.to_vec(MAX_SLOTS * 8)?;
                let (slots, rest) = bytes.as_chunks::<8>();
                if !rest.is_empty() {
                    return Err(Errno::INVAL);
                }
                let slots: Vec<u64> = slots.iter().map(|b| u64::from_le_bytes(*b)).collect();
                store.swap_free(&slots)
            }
            Op::ReapOut => {
                self.ram_only()?;
                match (self.args[0], self.args[1]) {
                    (0, _) => store.reap_begin(),
                    (1, 1) => store.reap_keep(&self.segments),
                    (1, _) => store.reap_append(&*host.memory, &self.segments),
                    (2, _) => store.reap_end(),
                    _ => return Err(Errno::INVAL),
                }
            }
            Op::ReapIn => {
                self.ram_only()?;
                let admission = host.admission.get().filter(|_| !self.segments.is_empty());
                let _place = admission.and_then(Admission::enter);
                host.wake_note.write();
                if self.segments.is_empty() {
                    return Ok(0);
                }
                store.reap_in(&*host.memory, self.args[0], &self.segments)
            }
            _ => {
                let s = store.stat();
                self.args[..5].copy_from_slice(&[
                    s.swap_pages,
                    s.swap_disk_bytes,
                    s.reap_pages,
                    s.reap_disk_bytes,
                    s.quota_bytes,
                ]);
                Ok(())
            }
        };
        result.map(|()| 0).map_err(|e| self.report(&e))
    }

    fn swap_out(&self, store: &Store) -> Outcome {
        self.ram_only()?;
        let is_soon = match self.args[1] {
            0 => false,
            3 => true,
            1 => return store.swap_keep(&self.segments).map_err(|e| self.report(&e)),
            2 => {
                store.keep_begin();
                return Ok(0);
            }
            _ => return Err(Errno::INVAL),
        };
        let pages: u64 =
            self.segments.iter().fold(0, |n, s| n.saturating_add(s.len / qlib::PAGE_SIZE));
        let bytes = pages.checked_mul(8).ok_or(Errno::INVAL)?;
        let to = self.host.memory.ram_slice(Gpa(self.args[0]), bytes).ok_or(Errno::FAULT)?;
        let memory = &*self.host.memory;
        let slots = match is_soon {
            false => store.swap_out(memory, &self.segments),
            true => store.swap_out_soon(memory, &self.segments),
        };
        let slots = slots.map_err(|e| self.report(&e))?;
        let numbers: Vec<u8> = slots.iter().flat_map(|s| s.to_le_bytes()).collect();
        if let Err(e) = to.write(&numbers) {
            // The guest does not learn the numbers, so nobody else would ever free them.
            store.swap_free(&slots).ok();
            return Err(e);
        }
        Ok(slots.len() as u64)
    }

    /// EFAULT unless every segment lies in RAM: what is in a window has its place on disk already.
    fn ram_only(&self) -> Result<(), Errno> {
        let inside = |s: &Segment| self.host.memory.ram_slice(s.gpa, s.len).is_some();
        if self.segments.iter().all(inside) { Ok(()) } else { Err(Errno::FAULT) }
    }

    /// The guest learns the errno, the log the whole story.
    fn report(&self, error: &StoreError) -> Errno {
        let line = error.to_string();
        if self.host.log.take(line.len()) {
            tracing::warn!("{line}");
        }
        Errno::from_raw_os_error(error.errno())
    }
}
