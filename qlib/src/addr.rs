//! Addresses and sizes, each a type of its own so that they cannot be mixed up.

use core::fmt;
use core::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// log2 of the page size.
pub const PAGE_SHIFT: u32 = 12;
/// The page size, in bytes.
pub const PAGE_SIZE: u64 = 1 << PAGE_SHIFT;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
        )]
        pub struct $name(pub u64);

        impl $name {
            /// The first byte of the page this address lies in.
            pub const fn page_floor(self) -> Self {
                Self(self.0 & !(PAGE_SIZE - 1))
            }
            /// The first page boundary at or after this address; `None` when it would overflow.
            pub const fn page_ceil(self) -> Option<Self> {
                match self.0.checked_add(PAGE_SIZE - 1) {
                    Some(a) => Some(Self(a & !(PAGE_SIZE - 1))),
                    None => None,
                }
            }
            /// The offset within the page, in bytes.
            pub const fn page_offset(self) -> u64 {
                self.0 & (PAGE_SIZE - 1)
            }
            /// True if this address is a multiple of the page size.
            pub const fn is_page_aligned(self) -> bool {
                self.page_offset() == 0
            }
            /// Rounds down to a multiple of `align`, a power of two in bytes.
            pub const fn align_down(self, align: u64) -> Self {
                Self(self.0 & !(align - 1))
            }
            /// Adds `bytes`, `None` on overflow.
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(a) => Some(Self(a)),
                    None => None,
                }
            }
        }

        impl Add<u64> for $name {
            type Output = Self;
            fn add(self, bytes: u64) -> Self {
                Self(self.0 + bytes)
            }
        }

        impl Sub<u64> for $name {
            type Output = Self;
            fn sub(self, bytes: u64) -> Self {
                Self(self.0 - bytes)
            }
        }

        impl Sub for $name {
            /// The distance in bytes.
            type Output = u64;
            fn sub(self, other: Self) -> u64 {
                self.0 - other.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

address! {
    /// A guest physical address: an offset into guest RAM, or into a file window above it.
    Gpa
}
address! {
    /// A virtual address of a guest user program.
    Va
}

/// A contiguous range of guest page frames.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frames {
    /// The first frame, page aligned.
    pub start: Gpa,
    /// How many frames.
    pub count: u64,
}

impl Frames {
    /// The length in bytes.
    pub const fn len_bytes(self) -> u64 {
        self.count << PAGE_SHIFT
    }
}
