//! The thread slots of one stub process, as the sandbox process sees them. The guest can write all over them at any
//! time: everything read here is copied once and then judged.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::AtomicU32;

use super::layout::*;

/// A shared mapping of a stub's slots.
#[derive(Debug)]
pub struct Area {
    start: *mut u8,
    gs_address: u64,
}

// SAFETY: the mapping belongs to this value; all access to its bytes goes through volatile or byte-wise copies, and races with the
// guest and with other threads can only yield other bytes.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Makes the memory for a new stub, and maps it. `gs_address`: where the stub has it, if its threads shall find their slots by the GS
    /// base; else 0.
    pub fn new(gs_address: u64) -> io::Result<(Self, OwnedFd)> {
        let fd = super::sys::memfd(c"quark-threads", AREA_BYTES, false)?;
        // SAFETY: a new mapping at an address of the host's choice.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                AREA_BYTES as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok((Self { start: start.cast(), gs_address }, fd))
    }

    fn at(&self, slot: u32, offset: u64, len: u64) -> *mut u8 {
        assert!(slot < MAX_SLOTS && offset <= SLOT_BYTES && len <= SLOT_BYTES - offset);
        // SAFETY: the assertion keeps the address inside the mapping.
        unsafe { self.start.add((u64::from(slot) * SLOT_BYTES + offset) as usize) }
    }

    /// The GS base of a thread whose program does not use it.
    pub fn gs_base(&self, slot: u32) -> u64 {
        if self.gs_address == 0 { 0 } else { self.gs_address + u64::from(slot) * SLOT_BYTES }
    }

    /// An aligned word of 32 bits that both sides change.
    pub fn word(&self, slot: u32, offset: u64) -> &AtomicU32 {
        let p = self.at(slot, offset, 4).cast::<u32>();
        assert!(p.is_aligned());
        // SAFETY: in bounds and aligned; the mapping lives as long as this value.
        unsafe { AtomicU32::from_ptr(p) }
    }

    /// Reads an aligned word.
    pub fn read_u64(&self, slot: u32, offset: u64) -> u64 {
        let p = self.at(slot, offset, 8).cast::<u64>();
        assert!(p.is_aligned());
        // SAFETY: in bounds and aligned.
        unsafe { p.read_volatile() }
    }

    /// Writes an aligned word.
    pub fn write_u64(&self, slot: u32, offset: u64, value: u64) {
        let p = self.at(slot, offset, 8).cast::<u64>();
        assert!(p.is_aligned());
        // SAFETY: in bounds and aligned.
        unsafe { p.write_volatile(value) }
    }

    /// Copies bytes out.
    pub fn read(&self, slot: u32, offset: u64, buf: &mut [u8]) {
        let p = self.at(slot, offset, buf.len() as u64);
        // SAFETY: in bounds; `buf` is not in the mapping.
        unsafe { ptr::copy_nonoverlapping(p, buf.as_mut_ptr(), buf.len()) }
    }

    /// Copies bytes in.
    pub fn write(&self, slot: u32, offset: u64, buf: &[u8]) {
        let p = self.at(slot, offset, buf.len() as u64);
        // SAFETY: in bounds; `buf` is not in the mapping.
        unsafe { ptr::copy_nonoverlapping(buf.as_ptr(), p, buf.len()) }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody has a pointer into it any more.
        unsafe { libc::munmap(self.start.cast(), AREA_BYTES as usize) };
    }
}
