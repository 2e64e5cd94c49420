//! Leaf entries of a page table.

use core::fmt;

use bitflags::bitflags;

use crate::{Gpa, PAGE_SHIFT};

/// Swap slot numbers are below this.
pub const SLOT_END: u64 = 1 << 40;
/// Where the spare bits of an entry begin, and how many values they have.
const SPARE_SHIFT: u32 = 52;
const SPARE_MASK: u64 = 0x3f << SPARE_SHIFT;
/// The address field of an entry.
pub(super) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

bitflags! {
    /// The flags of a leaf entry. Bits 52 to 57 are free for the kernel's own use.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct PteFlags: u64 {
        /// The page can be accessed.
        const PRESENT = 1 << 0;
        /// The page can be written.
        const WRITE = 1 << 1;
        /// User mode may access it.
        const USER = 1 << 2;
        /// It was accessed (set by the hardware, where there is one that walks).
        const ACCESSED = 1 << 5;
        /// It was written (set by the hardware, where there is one that walks).
        const DIRTY = 1 << 6;
        /// Not present; the address field holds the number of a swap slot.
        const SWAPPED = 1 << 9;
        /// Copy on write: a write fault copies the frame unless it has no other reference.
        const COW = 1 << 10;
        /// The frame lies in a file window and is not reference counted.
        const WINDOW = 1 << 11;
        /// A write to it, which it does not allow, is a program's to see to first (userfaultfd(2)).
        const WATCHED = 1 << 58;
        /// No instruction may be fetched from it.
        const NX = 1 << 63;
    }
}

impl PteFlags {
    /// Those that a page has in the swap store too.
    pub const KEPT_IN_SLOT: PteFlags = PteFlags::COW.union(PteFlags::WATCHED);
}

/// A leaf entry.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Pte(pub u64);

impl Pte {
    /// Nothing is there.
    pub const EMPTY: Pte = Pte(0);

    /// An entry for the frame at `gpa`.
    pub const fn new(gpa: Gpa, flags: PteFlags) -> Self {
        Self(gpa.0 & ADDRESS | flags.bits())
    }

    /// An entry for a page that lies in swap slot `slot`. `flags` say what it will be when it is
    /// back, PRESENT excepted. Panics when the slot number is [`SLOT_END`] or more.
    pub const fn swapped(slot: u64, flags: PteFlags) -> Self {
        assert!(slot < SLOT_END, "swap slot number too large");
        Self(
            slot << PAGE_SHIFT
                | flags.difference(PteFlags::PRESENT).union(PteFlags::SWAPPED).bits(),
        )
    }

    /// True if nothing is there.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True if it maps a frame.
    pub const fn is_present(self) -> bool {
        self.0 & PteFlags::PRESENT.bits() != 0
    }

    /// True if the page is in the swap store.
    pub const fn is_swapped(self) -> bool {
        self.0 & (PteFlags::PRESENT.bits() | PteFlags::SWAPPED.bits()) == PteFlags::SWAPPED.bits()
    }

    /// The frame, for an entry that is not swapped.
    pub const fn gpa(self) -> Gpa {
        Gpa(self.0 & ADDRESS)
    }

    /// The slot, when it is swapped.
    pub const fn slot(self) -> Option<u64> {
        if self.is_swapped() { Some((self.0 & ADDRESS) >> PAGE_SHIFT) } else { None }
    }

    /// The six bits that are free for the kernel's own use, whether the page is there or in the
    /// swap store.
    pub const fn spare(self) -> u8 {
        ((self.0 & SPARE_MASK) >> SPARE_SHIFT) as u8
    }

    /// This entry with other spare bits; only the low six count.
    #[must_use]
    pub const fn with_spare(self, bits: u8) -> Self {
        Self(self.0 & !SPARE_MASK | ((bits as u64) << SPARE_SHIFT) & SPARE_MASK)
    }

    /// The flags; unnamed bits are dropped.
    pub const fn flags(self) -> PteFlags {
        PteFlags::from_bits_truncate(self.0)
    }

    /// True if all of `flags` are set.
    pub const fn has(self, flags: PteFlags) -> bool {
        self.0 & flags.bits() == flags.bits()
    }

    /// This entry with `flags` set too.
    #[must_use]
    pub const fn with(self, flags: PteFlags) -> Self {
        Self(self.0 | flags.bits())
    }

    /// This entry with `flags` clear.
    #[must_use]
    pub const fn without(self, flags: PteFlags) -> Self {
        Self(self.0 & !flags.bits())
    }

    /// This entry for another frame, other bits the same.
    #[must_use]
    pub const fn with_gpa(self, gpa: Gpa) -> Self {
        Self(self.0 & !ADDRESS | gpa.0 & ADDRESS)
    }
}

impl fmt::Debug for Pte {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pte({:#x} {:?})", self.0 & ADDRESS, self.flags())
    }
}
