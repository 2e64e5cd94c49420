//! What this room calls in those above it, which hold what threads and processes give up when they
//! end.
//!
//! Every process leads to the table, which is a constant of the room that makes the first one
//! ([`crate::kernel`]).

use alloc::sync::Arc;

use qlib::Va;
use qlib::platform::UserRegs;

use super::namespaces::Namespace;
use super::{Process, Thread};
use crate::errno::Result;
use crate::fs::{Attributes, FileOps};
use crate::mm::AddressSpace;

/// Opens a special file of some kind: its attributes (with the device number) and O_* flags.
pub type Opener =
    fn(thread: &Arc<Thread>, node: &Attributes, flags: u32) -> Result<Arc<dyn FileOps>>;

/// Functions of the kernel that the life of processes calls.
#[derive(Debug)]
pub struct Upcalls {
    /// Starts the task of a new thread, which is stopped; with its first registers.
    pub start: fn(Arc<Thread>, UserRegs),
    /// A thread leaves its memory, which is still there (get_robust_list(2)).
    pub leaves_memory: fn(&Arc<Thread>),
    /// Wakes at most so many who wait for a futex.
    pub wake_futex: fn(&Arc<AddressSpace>, Va, usize),
    /// A process has no memory any more, and is about to become a zombie: it gives up what it holds
    /// in rooms above.
    pub gives_up: fn(&Arc<Process>),
    /// A process has become a zombie, with this wait status.
    pub ended: fn(&Arc<Process>, i32),
    /// Nobody is in the IPC namespace of this number any more.
    pub ipc_namespace_ended: fn(u64),
    /// Nobody is in the network namespace of this number any more, and it has no sockets.
    pub net_namespace_ended: fn(u64),
    /// Opens any special file.
    pub open_special: Opener,
    /// Opens the file that stands for a namespace: the number of the thread's new descriptor.
    pub open_namespace: fn(&Arc<Thread>, Namespace) -> Result<usize>,
    /// Gives up what is kept only to be fast.
    pub shrink: fn(),
    /// Writes files out that need not be in memory: true if that gave some back, or would if what
    /// the current thread's objects have [lost](super::lost) were unmapped.
    pub page_out: fn() -> bool,
}
