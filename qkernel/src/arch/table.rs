//! The image's page of entry points: where qvisor enters the kernel, and the platform's operations.
//!
//! The operations are the only functions of qvisor that the kernel can call. They are reached
//! relative to the instruction that calls: there is no pointer to the page in writable memory, and
//! the page itself is read-only, and no part of guest RAM, before the first instruction of the
//! kernel (`qvisor/src/sandbox/loader.rs`).

use core::cell::UnsafeCell;

use qlib::platform::{ABI_VERSION, Event, KernelEntry, PlatformOps};

/// See [`KernelEntry`]. A cell, as qvisor may have filled in other operations than are compiled in.
#[repr(transparent)]
pub struct Table(UnsafeCell<KernelEntry>);

// SAFETY: nothing of the kernel writes to it, and qvisor does so only before the kernel runs.
unsafe impl Sync for Table {}

#[cfg(target_os = "none")]
unsafe extern "Rust" {
    // The page: the image defines it with this type (`image.rs`), among what is read-only after
    // relocation, and has a note that says where.
    safe static QKERNEL_TABLE: Table;
}

/// The page.
#[cfg(target_os = "none")]
pub(super) fn table() -> &'static Table {
    &QKERNEL_TABLE
}

/// Unit tests have no platform.
#[cfg(not(target_os = "none"))]
pub(super) fn table() -> &'static Table {
    unreachable!("no platform was given")
}

impl Table {
    /// A table with these entry points and operations.
    pub const fn new(dispatch: unsafe extern "C" fn(*const Event), ops: PlatformOps) -> Self {
        Table(UnsafeCell::new(KernelEntry { version: ABI_VERSION, dispatch, ops }))
    }

    /// Where the operations are.
    pub(super) fn operations(&self) -> *const PlatformOps {
        // SAFETY: the address of a field of a static.
        unsafe { &raw const (*self.0.get()).ops }
    }
}

/// One of the platform's operations, by its name. To be called in an `unsafe` block, which the call
/// needs anyway: the table is a static that is never written while the kernel runs. The read is
/// volatile, for what the compiler knows of the table's contents is not what they are.
macro_rules! operation {
    ($name:ident) => {{
        // Unit tests have no platform.
        #[cfg(test)]
        $crate::arch::boot();
        (&raw const (*$crate::arch::table::table().operations()).$name).read_volatile()
    }};
}
pub(super) use operation;
