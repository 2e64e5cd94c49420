//! Access to guest RAM by guest physical address, from inside the kernel.
//!
//! A [`PhysMap`] says where guest physical address 0 lies in the kernel's own address space. Every
//! access is checked against the size of RAM. Guest physical addresses come from the kernel's own
//! tables, so a bad one is a bug of the kernel: accessors of whole frames panic on it, accessors of
//! bytes return `None`.
//!
//! User programs may write the same bytes at the same time. What is read here is a snapshot without
//! any promise of consistency, as with any memory shared with untrusted code.
#![allow(unsafe_code)]

use core::ptr;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::{Gpa, PAGE_SIZE};

/// An atomic integer without invalid values, as [`PhysMap::atomics`] gives out.
pub trait AtomicWord: sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! atomic_words {
    ($($word:ty),*) => {
        $(impl sealed::Sealed for $word {}
        impl AtomicWord for $word {})*
    };
}

atomic_words!(AtomicU16, AtomicU32, AtomicU64);

/// Where guest RAM is mapped in the kernel's address space.
#[derive(Clone, Copy, Debug)]
pub struct PhysMap {
    base: usize,
    bytes: u64,
}

impl PhysMap {
    /// A map of `bytes` bytes of guest RAM (a multiple of the page size) at kernel virtual address
    /// `base` (4 MiB aligned).
    ///
    /// # Safety
    /// `[base, base + bytes)` must be mapped readable and writable for as long as the map, a copy
    /// of it, or anything that it handed out is used, and must not be used by Rust objects other
    /// than through this map and the allocators built on it.
    pub const unsafe fn new(base: usize, bytes: u64) -> Self {
        Self { base, bytes }
    }

    /// Kernel virtual address of guest physical address 0.
    pub const fn base(self) -> usize {
        self.base
    }

    /// Size of RAM in bytes.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// True if all `len` bytes at `gpa` are RAM.
    pub const fn contains(self, gpa: Gpa, len: u64) -> bool {
        match gpa.0.checked_add(len) {
            Some(end) => end <= self.bytes,
            None => false,
        }
    }

    /// The kernel's pointer to `len` bytes of RAM at `gpa`; `None` when they are not all RAM.
    #[inline]
    pub fn ptr(self, gpa: Gpa, len: u64) -> Option<*mut u8> {
        self.contains(gpa, len)
            .then(|| ptr::with_exposed_provenance_mut(self.base + gpa.0 as usize))
    }

    /// The guest physical address of a kernel pointer into RAM; `None` when it is not one.
    pub fn gpa_of(self, pointer: *const u8) -> Option<Gpa> {
        let offset = (pointer.expose_provenance().checked_sub(self.base)?) as u64;
        (offset < self.bytes).then_some(Gpa(offset))
    }

    /// The kernel's pointer to a whole frame. Panics when `gpa` is not a frame of RAM.
    #[inline]
    fn frame(self, gpa: Gpa) -> *mut u8 {
        #[cold]
        fn refuse(gpa: Gpa) -> ! {
            panic!("{gpa:?} is not a frame of RAM")
        }
        match self.ptr(gpa, PAGE_SIZE) {
            Some(pointer) if gpa.is_page_aligned() => pointer,
            _ => refuse(gpa),
        }
    }

    /// A frame that is used as a page table. Panics when `gpa` is not a frame of RAM.
    #[inline]
    pub fn page_table(self, gpa: Gpa) -> &'static [AtomicU64; 512] {
        // SAFETY: the frame is mapped for the life of the map and aligned; atomics may alias and
        // accept any bytes.
        unsafe { &*self.frame(gpa).cast::<[AtomicU64; 512]>() }
    }

    /// Fills a frame with zeros. Panics when `gpa` is not a frame of RAM.
    pub fn zero_frame(self, gpa: Gpa) {
        self.fill_frame(gpa, 0);
    }

    /// Fills a frame with `byte`. Panics when `gpa` is not a frame of RAM.
    pub fn fill_frame(self, gpa: Gpa, byte: u8) {
        // SAFETY: `frame` gives a pointer to PAGE_SIZE mapped bytes.
        unsafe { ptr::write_bytes(self.frame(gpa), byte, PAGE_SIZE as usize) }
    }

    /// Copies the frame `src` to the frame `dst`. Panics when one of them is not a frame of RAM.
    pub fn copy_frame(self, dst: Gpa, src: Gpa) {
        // SAFETY: both pointers are to PAGE_SIZE mapped bytes; `copy` allows them to be the same.
        unsafe { ptr::copy(self.frame(src), self.frame(dst), PAGE_SIZE as usize) }
    }

    /// True if a frame holds only zeros. Panics when `gpa` is not a frame of RAM. Reading a frame
    /// that the host has not committed commits it.
    pub fn frame_is_zero(self, gpa: Gpa) -> bool {
        self.page_table(gpa)
            .chunks(8)
            .all(|c| c.iter().fold(0, |a, w| a | w.load(Ordering::Relaxed)) == 0)
    }

    /// Copies bytes out of RAM; `None` (and nothing copied) when they are not all RAM. May cross
    /// frames.
    #[must_use]
    pub fn read_bytes(self, gpa: Gpa, to: &mut [u8]) -> Option<()> {
        let from = self.ptr(gpa, to.len() as u64)?;
        // SAFETY: `ptr` checked that to.len() bytes are mapped at `from`; `to` is an exclusive Rust
        // object, so it does not overlap guest RAM handed out here.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Some(())
    }

    /// Copies bytes into RAM; `None` (and nothing copied) when they are not all RAM. May cross
    /// frames.
    #[must_use]
    pub fn write_bytes(self, gpa: Gpa, from: &[u8]) -> Option<()> {
        let to = self.ptr(gpa, from.len() as u64)?;
        // SAFETY: `ptr` checked that from.len() bytes are mapped at `to`. A kernel object that lies
        // in the kernel heap is never at a user frame, but `copy` makes even an overlap harmless.
        unsafe { ptr::copy(from.as_ptr(), to, from.len()) };
        Some(())
    }

    /// A 32-bit word of RAM, for futexes and flags shared with user programs; `None` when it is not
    /// aligned or not RAM.
    pub fn atomic_u32(self, gpa: Gpa) -> Option<&'static AtomicU32> {
        if !gpa.0.is_multiple_of(4) {
            return None;
        }
        // SAFETY: four mapped bytes, aligned, alive as long as the map; atomics may alias and
        // accept any bytes.
        self.ptr(gpa, 4).map(|p| unsafe { &*p.cast::<AtomicU32>() })
    }

    /// A 64-bit word of RAM; `None` when it is not aligned or not RAM.
    pub fn atomic_u64(self, gpa: Gpa) -> Option<&'static AtomicU64> {
        if !gpa.0.is_multiple_of(8) {
            return None;
        }
        // SAFETY: eight mapped bytes, aligned, alive as long as the map; atomics may alias and
        // accept any bytes.
        self.ptr(gpa, 8).map(|p| unsafe { &*p.cast::<AtomicU64>() })
    }

    /// `N` atomic words that follow each other in RAM; `None` when they are not aligned or not all
    /// RAM.
    pub fn atomics<W: AtomicWord, const N: usize>(self, gpa: Gpa) -> Option<&'static [W; N]> {
        if !gpa.0.is_multiple_of(size_of::<W>() as u64) {
            return None;
        }
        let pointer = self.ptr(gpa, size_of::<[W; N]>() as u64)?;
        // SAFETY: that many mapped bytes, aligned (atomics are aligned to their size), alive as
        // long as the map; atomics may alias, and those that are an `AtomicWord` accept any bytes.
        Some(unsafe { &*pointer.cast::<[W; N]>() })
    }

    /// Reads an aligned 32-bit word in one access; `None` when it is not aligned or not RAM.
    pub fn read_u32(self, gpa: Gpa) -> Option<u32> {
        Some(self.atomic_u32(gpa)?.load(Ordering::SeqCst))
    }

    /// Reads an aligned 64-bit word in one access; `None` when it is not aligned or not RAM.
    pub fn read_u64(self, gpa: Gpa) -> Option<u64> {
        Some(self.atomic_u64(gpa)?.load(Ordering::SeqCst))
    }

    /// Writes an aligned 32-bit word in one access; `None` when it is not aligned or not RAM.
    #[must_use]
    pub fn write_u32(self, gpa: Gpa, value: u32) -> Option<()> {
        self.atomic_u32(gpa)?.store(value, Ordering::SeqCst);
        Some(())
    }

    /// Writes an aligned 64-bit word in one access; `None` when it is not aligned or not RAM.
    #[must_use]
    pub fn write_u64(self, gpa: Gpa, value: u64) -> Option<()> {
        self.atomic_u64(gpa)?.store(value, Ordering::SeqCst);
        Some(())
    }
}

#[cfg(any(test, feature = "testing"))]
pub mod testing {
    //! Guest RAM made of ordinary host memory.

    use core::ptr;

    use super::PhysMap;

    const ALIGN: usize = 4 << 20;

    /// Sparse, zeroed, 4 MiB-aligned host memory that stands for guest RAM in tests. Unmapped when
    /// dropped: whatever the map handed out must be gone by then.
    #[derive(Debug)]
    pub struct TestRam {
        mapping: usize,
        mapping_len: usize,
        map: PhysMap,
    }

    impl TestRam {
        /// RAM of `bytes` bytes, a multiple of the page size.
        pub fn new(bytes: u64) -> Self {
            let mapping_len = bytes as usize + ALIGN;
            // SAFETY: a new anonymous mapping at an address of the host's choice.
            let mapping = unsafe {
                libc::mmap(
                    ptr::null_mut(),
                    mapping_len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            assert_ne!(mapping, libc::MAP_FAILED, "mmap of test RAM");
            let base = mapping.expose_provenance().next_multiple_of(ALIGN);
            // SAFETY: the range lies in the mapping made above, which nothing else uses.
            Self { mapping: mapping.addr(), mapping_len, map: unsafe { PhysMap::new(base, bytes) } }
        }

        /// The map of it.
        pub fn map(&self) -> PhysMap {
            self.map
        }

        /// Gives a range back to the host, so that it reads as zeros.
        pub fn release(&self, frames: crate::Frames) {
            let at = self.map.ptr(frames.start, frames.len_bytes()).expect("a range of RAM");
            // SAFETY: the range lies in this mapping and holds no Rust object.
            let done = unsafe {
                libc::madvise(at.cast(), frames.len_bytes() as usize, libc::MADV_DONTNEED)
            };
            assert_eq!(done, 0, "madvise of test RAM");
        }

        /// Which frames of `[0, bytes)` the host has committed.
        pub fn committed(&self) -> alloc::vec::Vec<bool> {
            let mut pages = alloc::vec![0u8; (self.map.bytes() / crate::PAGE_SIZE) as usize];
            let at = ptr::with_exposed_provenance_mut(self.map.base());
            // SAFETY: the range is mapped and `pages` has a byte for each page of it.
            let done = unsafe { libc::mincore(at, self.map.bytes() as usize, pages.as_mut_ptr()) };
            assert_eq!(done, 0, "mincore of test RAM");
            pages.into_iter().map(|p| p & 1 != 0).collect()
        }
    }

    impl Drop for TestRam {
        fn drop(&mut self) {
            // SAFETY: this is the mapping made in `new`; the type's contract is that nothing refers
            // to it any more.
            unsafe {
                libc::munmap(ptr::with_exposed_provenance_mut(self.mapping), self.mapping_len)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::TestRam;
    use super::*;

    #[test]
    fn bytes_and_words_are_checked_against_ram() {
        let ram = TestRam::new(2 * PAGE_SIZE);
        let map = ram.map();
        assert_eq!(map.write_bytes(Gpa(PAGE_SIZE - 2), b"abcd"), Some(()));
        let mut got = [0; 4];
        assert_eq!(map.read_bytes(Gpa(PAGE_SIZE - 2), &mut got), Some(()));
        assert_eq!(&got, b"abcd");
        assert_eq!(map.write_bytes(Gpa(2 * PAGE_SIZE - 2), b"abcd"), None);
        assert_eq!(map.read_bytes(Gpa(u64::MAX - 1), &mut got), None);
        assert_eq!(map.read_u32(Gpa(PAGE_SIZE)), Some(u32::from_le_bytes(*b"cd\0\0")));
        assert!(map.atomic_u32(Gpa(2)).is_none());
        assert!(map.atomic_u32(Gpa(2 * PAGE_SIZE)).is_none());
        assert!(map.atomic_u64(Gpa(4)).is_none());
        let words = map.atomics::<AtomicU16, 2>(Gpa(PAGE_SIZE - 2)).unwrap();
        assert_eq!(
            words.each_ref().map(|w| w.load(Ordering::Relaxed).to_le_bytes()),
            [*b"ab", *b"cd"]
        );
        assert!(map.atomics::<AtomicU16, 1>(Gpa(1)).is_none());
        assert!(map.atomics::<AtomicU64, 2>(Gpa(2 * PAGE_SIZE - 8)).is_none());
        assert_eq!(map.write_u64(Gpa(8), 7), Some(()));
        assert_eq!(map.read_u64(Gpa(8)), Some(7));
    }

    #[test]
    fn frames_are_copied_and_zeroed() {
        let ram = TestRam::new(2 * PAGE_SIZE);
        let map = ram.map();
        assert!(map.frame_is_zero(Gpa(PAGE_SIZE)));
        assert_eq!(map.write_u32(Gpa(PAGE_SIZE - 4), 9), Some(()));
        map.copy_frame(Gpa(PAGE_SIZE), Gpa(0));
        assert_eq!(map.read_u32(Gpa(2 * PAGE_SIZE - 4)), Some(9));
        assert!(!map.frame_is_zero(Gpa(PAGE_SIZE)));
        map.zero_frame(Gpa(PAGE_SIZE));
        assert!(map.frame_is_zero(Gpa(PAGE_SIZE)));
        assert_eq!(map.gpa_of(map.ptr(Gpa(5), 1).unwrap()), Some(Gpa(5)));
    }

    #[test]
    #[should_panic(expected = "not a frame of RAM")]
    fn a_frame_beyond_ram_is_a_bug() {
        let ram = TestRam::new(PAGE_SIZE);
        ram.map().zero_frame(Gpa(PAGE_SIZE));
    }
}
