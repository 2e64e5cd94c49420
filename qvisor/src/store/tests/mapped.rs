//! Memory that is a mapped memfd, as the sandbox has it: for what only the real thing shows.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::{Duration, Instant};

use super::*;
use crate::store::populate::{MappedRam, cpu_time, populate};

/// A memfd, mapped shared at a multiple of 2 MiB.
pub struct Mapped {
    base: usize,
    bytes: u64,
    memfd: OwnedFd,
    /// True if [`PageMemory::populate`] does anything.
    pub ahead: Cell<bool>,
    /// Huge pages that it made.
    pub huge_pages: Cell<u64>,
}

impl Mapped {
    pub fn new(bytes: u64) -> Self {
        // SAFETY: a new descriptor, and a mapping at an address of the host's choice.
        unsafe {
            let memfd =
                OwnedFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC));
            assert_eq!(libc::ftruncate(memfd.as_raw_fd(), bytes as i64), 0);
            let size = bytes as usize + (2 << 20);
            let none = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let base = libc::mmap(std::ptr::null_mut(), size, libc::PROT_NONE, none, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            let base = (base as usize).next_multiple_of(2 << 20);
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(
                base as *mut c_void,
                bytes as usize,
                prot,
                libc::MAP_SHARED | libc::MAP_FIXED,
                memfd.as_raw_fd(),
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            Self { base, bytes, memfd, ahead: Cell::new(true), huge_pages: Cell::default() }
        }
    }

    fn iovecs(&self, ranges: &[Segment]) -> Vec<libc::iovec> {
        let base = |s: &Segment| (self.base + s.gpa.0 as usize) as *mut c_void;
        assert!(ranges.iter().all(|s| s.gpa.0 + s.len <= self.bytes));
        ranges.iter().map(|s| libc::iovec { iov_base: base(s), iov_len: s.len as usize }).collect()
    }

    /// Gives a range back to the host.
    pub fn release(&self, range: Segment) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: no pointers.
        let done = unsafe {
            libc::fallocate(self.memfd.as_raw_fd(), mode, range.gpa.0 as i64, range.len as i64)
        };
        assert_eq!(done, 0);
    }

    pub fn committed_bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        File::from(self.memfd.try_clone().unwrap()).metadata().unwrap().blocks() * 512
    }

    pub fn fill(&self, page: u64, value: u64) {
        let words: Vec<u8> =
            (0..512).flat_map(|i| (value.wrapping_mul(0x9e37_79b9) ^ i).to_le_bytes()).collect();
        self.copy_in(Gpa(page * PAGE_SIZE), &words).unwrap();
    }

    pub fn holds(&self, page: u64, value: u64) -> bool {
        let mut bytes = [0; PAGE];
        self.copy_out(Gpa(page * PAGE_SIZE), &mut bytes).unwrap();
        (0..512).flat_map(|i| (value.wrapping_mul(0x9e37_79b9) ^ i).to_le_bytes()).eq(bytes)
    }
}

impl PageMemory for Mapped {
    fn write_out(&self, from: &[Segment], file: BorrowedFd<'_>, offset: u64) -> io::Result<usize> {
        let iov = self.iovecs(from);
        // SAFETY: the vectors lie in the mapping (checked by `iovecs`).
        let n = unsafe {
            libc::pwritev(file.as_raw_fd(), iov.as_ptr(), iov.len() as i32, offset as i64)
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    fn read_in(&self, to: &[Segment], file: BorrowedFd<'_>, offset: u64) -> io::Result<usize> {
        let iov = self.iovecs(to);
        // SAFETY: as above; nothing in Rust refers to the mapping.
        let n = unsafe {
            libc::preadv(file.as_raw_fd(), iov.as_ptr(), iov.len() as i32, offset as i64)
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    fn copy_out(&self, from: Gpa, to: &mut [u8]) -> io::Result<()> {
        let range = self.iovecs(&[Segment { gpa: from, len: to.len() as u64 }]);
        // SAFETY: the range lies in the mapping, `to` does not.
        unsafe {
            std::ptr::copy_nonoverlapping(range[0].iov_base.cast(), to.as_mut_ptr(), to.len())
        };
        Ok(())
    }

    fn copy_in(&self, to: Gpa, from: &[u8]) -> io::Result<()> {
        let range = self.iovecs(&[Segment { gpa: to, len: from.len() as u64 }]);
        // SAFETY: the range lies in the mapping, `from` does not.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), range[0].iov_base.cast(), from.len())
        };
        Ok(())
    }

    fn populate(&self, ranges: &[Segment]) {
        if self.ahead.get() {
            let ram = MappedRam { base: self.base, bytes: self.bytes };
            self.huge_pages.set(populate(ram, ranges));
        }
    }
}

/// How many pages of a file are dirty or under writeback in the page cache (cachestat(2), Linux
/// 6.5).
pub fn dirty_pages(file: BorrowedFd<'_>, len: u64) -> Option<u64> {
    const SYS_CACHESTAT: libc::c_long = 451;
    let range = [0u64, len];
    let mut stat = [0u64; 5]; // cached, dirty, writeback, evicted, recently evicted
    // SAFETY: the structures have the sizes that the call reads and writes.
    let done = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), stat.as_mut_ptr(), 0)
    };
    (done == 0).then(|| {
        assert!(stat[0] > 0, "nothing is cached: {stat:?}");
        stat[1] + stat[2]
    })
}

#[test]
fn populating_changes_no_bytes_and_commits_what_is_needed() {
    let memory = Mapped::new(16 << 20);
    let store = store(10_000);
    (0..1300).for_each(|p| memory.fill(p, p));
    memory.fill(4000, 1);
    store.reap_begin().unwrap();
    store.reap_append(&memory, &[segment(0, 1300)]).unwrap();
    store.reap_end().unwrap();
    memory.release(segment(0, 1300));
    memory.fill(511, 77);
    store.reap_in(&memory, 0, &[segment(0, 500), segment(512, 800)]).unwrap();
    assert!(
        (0..500).all(|p| memory.holds(p, p)) && (0..800).all(|p| memory.holds(512 + p, 500 + p))
    );
    assert!(memory.holds(511, 77), "a page inside a huge page that was not read keeps its bytes");
    assert!(memory.committed_bytes() <= (1300 + 12 + 1) * PAGE_SIZE + 4 * 4096);
}

/// What the ways to fill a working set cost, in µs a page. Run with `--ignored --nocapture`,
/// release profile.
#[test]
#[ignore = "measures"]
fn measure_inflate() {
    const PAGES: u64 = 64 * 512;
    let memory = Mapped::new(PAGES * PAGE_SIZE);
    let store = store(10 * PAGES);
    (0..PAGES).for_each(|p| memory.fill(p, p));
    let all = [segment(0, PAGES)];
    let per_page = |since: (Instant, Duration), pages: u64| {
        let us = |time: Duration| time.as_secs_f64() * 1e6 / pages as f64;
        format!("{:6.2} ({:.2} of the CPU)", us(since.0.elapsed()), us(cpu_time() - since.1))
    };
    let now = || (Instant::now(), cpu_time());
    let start = now();
    let slots = store.swap_out(&memory, &all).unwrap();
    println!("swap out, synced: {}", per_page(start, PAGES));
    for _ in 0..4 {
        let start = now();
        store.reap_begin().unwrap();
        store.reap_append(&memory, &all).unwrap();
        println!("REAP out: {}", per_page(start, PAGES));
        store.reap_end().unwrap();
        println!("REAP out, synced: {}", per_page(start, PAGES));
    }
    // On a virtual machine, huge pages that it never used before are slow to get, once.
    for _ in 0..100 {
        memory.release(all[0]);
        memory.populate(&all);
        if memory.huge_pages.get() == PAGES / 512 {
            break;
        }
    }
    for round in 0..3 {
        memory.release(all[0]);
        memory.ahead.set(false);
        let start = now();
        store.reap_in(&memory, 0, &all).unwrap();
        println!("round {round}: REAP in, into absent pages: {}", per_page(start, PAGES));
        let start = now();
        store.reap_in(&memory, 0, &all).unwrap();
        println!("round {round}: REAP in, into present pages: {}", per_page(start, PAGES));
        memory.release(all[0]);
        memory.ahead.set(true);
        let start = now();
        memory.populate(&all);
        println!(
            "round {round}: populate, {} huge pages: {}",
            memory.huge_pages.get(),
            per_page(start, PAGES)
        );
        let start = now();
        memory.ahead.set(false);
        store.reap_in(&memory, 0, &all).unwrap();
        println!("round {round}: then REAP in: {}", per_page(start, PAGES));
        memory.release(all[0]);
        memory.ahead.set(true);
        memory.release(all[0]);
        let single: Vec<_> = (0..1000).map(|i| (i * 7919 % PAGES) as usize).collect();
        let start = now();
        single
            .iter()
            .for_each(|&i| store.swap_in(&memory, slots[i], &[segment(i as u64, 1)]).unwrap());
        println!("round {round}: swap in, one by one: {}", per_page(start, 1000));
        let mut sums = 0;
        let start = now();
        for page in 0..PAGES {
            let mut bytes = [0; PAGE];
            memory.copy_out(Gpa(page % 64 * PAGE_SIZE), &mut bytes).unwrap();
            sums ^= store.sum(&bytes, Kind::Reap, page);
        }
        println!("round {round}: checksum of cached pages: {} {sums:x}", per_page(start, PAGES));
    }
}
