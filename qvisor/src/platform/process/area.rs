//! The thread slots of one stub process, as the sandbox process sees them. The guest can write all
//! over them at any time: everything read here is copied once and then judged.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::layout::*;

/// A shared mapping of a stub's slots. The memory file behind it ends after the last slot in use:
/// whoever touches more, gets SIGBUS.
#[derive(Debug)]
pub struct Area {
    start: *mut u8,
    gs_address: u64,
    file: OwnedFd,
    /// Slots that the file has room for.
    size: AtomicU32,
    /// There may be slots at its end that nobody uses.
    spare: AtomicBool,
}

// SAFETY: the mapping belongs to this value; all access to its bytes goes through volatile or
// byte-wise copies, and races with the guest and with other threads can only yield other bytes.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Makes the memory for a new stub, with one slot, and maps it. `gs_address`: where the stub
    /// has it, if its threads shall find their slots by the GS base; else 0.
    pub fn new(gs_address: u64) -> io::Result<Self> {
        let file = crate::sys::memfd(c"quark-threads", SLOT_BYTES, false)?;
        // SAFETY: a new mapping at an address of the host's choice.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                AREA_BYTES as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let size = AtomicU32::new(1);
        Ok(Self { start: start.cast(), gs_address, file, size, spare: AtomicBool::new(false) })
    }

    /// Slots that the file has room for: more than there are threads by a few.
    pub fn slots(&self) -> u32 {
        self.size.load(Ordering::Relaxed)
    }

    /// The memory file.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// True if [`Slots::trim`] has something to do.
    pub fn has_spare(&self) -> bool {
        self.spare.load(Ordering::Relaxed)
    }

    fn resize(&self, slots: u32) -> io::Result<()> {
        // SAFETY: plain numbers. Nobody in the sandbox process touches slots that are not in use.
        match unsafe {
            libc::ftruncate(self.file.as_raw_fd(), (u64::from(slots) * SLOT_BYTES) as i64)
        } {
            0 => {
                self.size.store(slots, Ordering::Relaxed);
                Ok(())
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn at(&self, slot: u32, offset: u64, len: u64) -> *mut u8 {
        let slots = self.size.load(Ordering::Relaxed);
        assert!(slot < slots && offset <= SLOT_BYTES && len <= SLOT_BYTES - offset);
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

/// Which slots of an [`Area`] are in use.
#[derive(Debug, Default)]
pub struct Slots {
    /// All from here on are free.
    end: u32,
    /// Those below that are free.
    free: BTreeSet<u32>,
}

impl Slots {
    /// Slots at the end that must be free before they are given back, so that a thread that comes
    /// and goes costs nothing.
    const SLACK: u32 = 8;

    /// A slot for a new thread: the first that is free, so that the file stays short.
    ///
    /// # Errors
    /// EAGAIN when all are used, or `limit` is reached; those of ftruncate(2).
    pub fn take(&mut self, area: &Area, limit: &Limit) -> io::Result<u32> {
        let slot = self.unused(area, limit)?;
        for of_another in [FAST_YIELDS, FAST_TID, FAST_PID] {
            area.word(slot, of_another).store(0, Ordering::Relaxed);
        }
        Ok(slot)
    }

    /// The first that is free; another thread may have had it, and left its words there.
    fn unused(&mut self, area: &Area, limit: &Limit) -> io::Result<u32> {
        if let Some(slot) = self.free.pop_first() {
            return Ok(slot);
        }
        if self.end == MAX_SLOTS || !limit.take() {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        if self.end == area.size.load(Ordering::Relaxed)
            && let Err(e) = area.resize(self.end + 1)
        {
            limit.give(1);
            return Err(e);
        }
        self.end += 1;
        Ok(self.end - 1)
    }

    /// A thread has ended.
    pub fn give(&mut self, area: &Area, slot: u32) {
        self.free.insert(slot);
        if slot + 1 == self.end {
            area.spare.store(true, Ordering::Relaxed);
        }
    }

    /// Gives the memory of unused slots at the end back to the host. Only for the receiver of the
    /// space, as it may look at slots of threads that have just ended.
    pub fn trim(&mut self, area: &Area, limit: &Limit) {
        area.spare.store(false, Ordering::Relaxed);
        let before = self.end;
        while self.end > 0 && self.free.remove(&(self.end - 1)) {
            self.end -= 1;
        }
        limit.give(before - self.end);
        let wanted = self.end.max(1);
        if wanted + Self::SLACK <= area.size.load(Ordering::Relaxed)
            && let Err(e) = area.resize(wanted)
        {
            tracing::debug!("slots are not given back: {e}");
        }
    }

    /// How many count for the limit: those in use, and free ones between them, which a guest can
    /// fill too.
    pub fn count(&self) -> u32 {
        self.end
    }
}

/// A number that must not grow beyond a limit.
#[derive(Debug)]
pub struct Limit {
    used: AtomicU32,
    most: u32,
}

impl Limit {
    /// Nothing is used of it.
    pub fn new(most: u32) -> Self {
        Self { used: AtomicU32::new(0), most }
    }

    /// The limit.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// How many are used.
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// One more, if there may be one more.
    pub fn take(&self) -> bool {
        let more = |n: u32| (n < self.most).then_some(n + 1);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// `count` fewer.
    pub fn give(&self, count: u32) {
        self.used.fetch_sub(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_file_is_as_long_as_slots_are_used() {
        let area = Area::new(0).unwrap();
        let file = std::fs::File::from(area.file().try_clone().unwrap());
        let bytes = || file.metadata().unwrap().size();
        let limit = Limit::new(MAX_SLOTS);
        let mut slots = Slots::default();
        let taken: Vec<u32> = (0..100).map(|_| slots.take(&area, &limit).unwrap()).collect();
        assert_eq!(taken, (0..100).collect::<Vec<_>>());
        assert_eq!(bytes(), 100 * SLOT_BYTES);
        for slot in 1..99 {
            slots.give(&area, slot);
        }
        assert!(!area.has_spare(), "the last is in use");
        assert_eq!(slots.take(&area, &limit).unwrap(), 1);
        slots.give(&area, 99);
        assert!(area.has_spare());
        slots.trim(&area, &limit);
        assert_eq!((bytes(), slots.count()), (2 * SLOT_BYTES, 2));
        slots.give(&area, 1);
        slots.trim(&area, &limit);
        assert_eq!(bytes(), 2 * SLOT_BYTES, "one more costs nothing");
        while slots.take(&area, &limit).is_ok() {}
        assert_eq!(bytes(), AREA_BYTES);
        assert!(!limit.take());
    }
}
