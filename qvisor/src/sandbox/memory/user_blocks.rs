//! Which blocks of RAM hold user memory, as the guest kernel said when it took each: kept outside
//! of guest memory, so that no mistake of the kernel's makes its own memory a program's.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};

use qlib::{Gpa, PAGE_SIZE};
use rustix::io::Errno;

use super::RAM_UNIT;

/// A bit for each block of [`RAM_UNIT`] bytes.
pub struct UserBlocks {
    bits: Box<[AtomicU64]>,
    ram_bytes: u64,
    free_start: OnceLock<Gpa>,
}

impl UserBlocks {
    /// None yet.
    pub fn new(ram_bytes: u64) -> Self {
        let words = (ram_bytes / RAM_UNIT).div_ceil(64) as usize;
        Self {
            bits: (0..words).map(|_| AtomicU64::new(0)).collect(),
            ram_bytes,
            free_start: OnceLock::new(),
        }
    }

    /// From now on blocks from `free_start` on can be.
    pub fn begin(&self, free_start: Gpa) {
        // Entered twice (by a test), a kernel has the same.
        let _ = self.free_start.set(free_start);
    }

    fn bit(&self, gpa: Gpa) -> Option<(&AtomicU64, u64)> {
        let block = gpa.0 / RAM_UNIT;
        Some((self.bits.get((block / 64) as usize)?, 1 << (block % 64)))
    }

    /// Makes `block` one of user memory, or one of the kernel's. EINVAL when it is none, EALREADY
    /// when it is that.
    pub fn set(&self, block: Gpa, is_user: bool) -> Result<(), Errno> {
        let first = self.free_start.get().ok_or(Errno::INVAL)?;
        if !block.0.is_multiple_of(RAM_UNIT) || block < *first || block.0 >= self.ram_bytes {
            return Err(Errno::INVAL);
        }
        let (word, mask) = self.bit(block).ok_or(Errno::INVAL)?;
        let before =
            if is_user { word.fetch_or(mask, AcqRel) } else { word.fetch_and(!mask, AcqRel) };
        if (before & mask != 0) == is_user { Err(Errno::ALREADY) } else { Ok(()) }
    }

    /// The numbers of those of user memory.
    pub fn all(&self) -> Vec<u64> {
        let blocks = 0..self.bits.len() as u64 * 64;
        let is_user = |n: &u64| self.bits[(n / 64) as usize].load(Acquire) & 1 << (n % 64) != 0;
        blocks.filter(is_user).collect()
    }

    /// True if the range lies in one block of user memory, and not in its first page, which is the
    /// allocator's.
    pub fn contain(&self, gpa: Gpa, len: u64) -> bool {
        let offset = gpa.0 % RAM_UNIT;
        offset >= PAGE_SIZE
            && offset.checked_add(len).is_some_and(|end| end <= RAM_UNIT)
            && self.bit(gpa).is_some_and(|(word, mask)| word.load(Acquire) & mask != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Gpa = Gpa(RAM_UNIT);
    const LAST: Gpa = Gpa(99 * RAM_UNIT);

    #[test]
    fn blocks_are_the_kernels_until_it_says_otherwise() {
        let blocks = UserBlocks::new(100 * RAM_UNIT);
        assert_eq!(
            blocks.set(LAST, true),
            Err(Errno::INVAL),
            "before it is known where the kernel lies"
        );
        blocks.begin(FIRST);
        assert!(!blocks.contain(LAST + PAGE_SIZE, PAGE_SIZE));
        assert_eq!(blocks.set(LAST, true), Ok(()));
        assert_eq!(blocks.set(LAST, true), Err(Errno::ALREADY));
        assert!(blocks.contain(LAST + PAGE_SIZE, RAM_UNIT - PAGE_SIZE));
        assert!(blocks.contain(LAST + RAM_UNIT - PAGE_SIZE, PAGE_SIZE));
        assert_eq!(blocks.set(LAST, false), Ok(()));
        assert_eq!(blocks.set(LAST, false), Err(Errno::ALREADY));
        assert!(!blocks.contain(LAST + PAGE_SIZE, PAGE_SIZE));
    }

    #[test]
    fn ranges_that_leave_a_block_are_not_in_it() {
        let blocks = UserBlocks::new(100 * RAM_UNIT);
        blocks.begin(FIRST);
        for block in [FIRST, FIRST + RAM_UNIT] {
            blocks.set(block, true).unwrap();
        }
        assert!(!blocks.contain(FIRST, PAGE_SIZE), "the first page is the allocator's");
        assert!(!blocks.contain(FIRST + PAGE_SIZE, RAM_UNIT), "so is the next block's");
        assert!(!blocks.contain(FIRST - PAGE_SIZE, 2 * PAGE_SIZE));
        assert!(!blocks.contain(FIRST + PAGE_SIZE, u64::MAX));
        assert!(!blocks.contain(Gpa(u64::MAX - PAGE_SIZE), PAGE_SIZE));
        assert!(!blocks.contain(LAST + RAM_UNIT, PAGE_SIZE));
    }

    #[test]
    fn what_is_no_block_of_its_own_is_refused() {
        let blocks = UserBlocks::new(100 * RAM_UNIT);
        blocks.begin(FIRST);
        for gpa in [
            Gpa(0),
            FIRST + PAGE_SIZE,
            LAST + RAM_UNIT,
            Gpa(128 * RAM_UNIT),
            Gpa(u64::MAX / RAM_UNIT * RAM_UNIT),
        ] {
            assert_eq!(blocks.set(gpa, true), Err(Errno::INVAL), "{gpa:?}");
        }
    }
}
