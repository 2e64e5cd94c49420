//! What this room calls in those above it.
//!
//! The table is compiled in, not set at boot: so it is as read-only as all tables of functions of the image are (doc/security.md).

use qlib::platform::Event;

/// Functions of the kernel that the edge to the platform, and the memory of programs, call.
#[derive(Debug)]
pub struct Upcalls {
    /// Sets up what all else stands on. Once, before any event; the heap is there.
    pub boot: fn(),
    /// Takes an event of the platform, and runs tasks. Takes the kernel lock itself.
    pub dispatch: fn(&Event),
    /// Takes one event and runs all tasks that are ready then. Under the kernel lock.
    pub serve: fn(&Event),
    /// Fires what is due and runs all tasks that are ready. Under the kernel lock.
    pub run_tasks: fn(),
    /// Frees the page tables that are out of use, if there are at least so many, when no CPU walks them any more.
    pub release_tables: fn(usize),
    /// RLIMIT_STACK and RLIMIT_AS of the thread that the kernel works for, in bytes; 0 where it works for none.
    pub memory_limits: fn() -> (u64, u64),
}

pub(crate) const UPCALLS: &Upcalls = &crate::kernel::UPCALLS;
