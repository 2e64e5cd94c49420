//! The top of the kernel, which knows all other rooms: boot, the dispatch of events, control requests.

pub mod control;
mod dispatch;

use crate::arch::upcalls::Upcalls;
use crate::mm;
use crate::task::rlimit;

/// What the edge to the platform calls.
pub const UPCALLS: Upcalls = Upcalls {
    boot: mm::init,
    dispatch: dispatch::dispatch,
    serve: dispatch::serve,
    run_tasks: dispatch::run_tasks,
    release_tables: mm::frames::release_tables,
    memory_limits: rlimit::of_current_memory,
};
