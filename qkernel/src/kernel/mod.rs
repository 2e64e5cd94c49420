//! The top of the kernel, which knows all other rooms: boot, the dispatch of events, control
//! requests.

mod checks;
mod containers;
pub mod control;
mod devices;
mod dispatch;
mod image;
mod signals;
mod start;
pub mod thread;
mod vsyscall;
mod waits;

use alloc::sync::Arc;

use crate::arch::upcalls::Upcalls;
use crate::fs::hostfs::handle_cache;
use crate::fs::{self, nsfs, shmem};
use crate::ipc;
use crate::ipc::{futex, sysv, tty};
use crate::mm;
use crate::net::guest;
use crate::net::unix::rights;
use crate::task::{self, Process};
use crate::task::{current, userfault};

/// What the edge to the platform calls.
pub const UPCALLS: Upcalls = Upcalls {
    boot: mm::init,
    dispatch: dispatch::dispatch,
    serve: dispatch::serve,
    run_tasks: dispatch::run_tasks,
    release_tables: mm::mmu::release_tables,
    memory_limits: current::memory_limits,
    page_missed: userfault::page_missed,
    owe: userfault::owe,
    release_user_frames: mm::frames::release_free,
    give_up_handles: handle_cache::give_up_all,
    owner_of: thread::owner_of,
};

/// What the life of processes calls.
static TASK_UPCALLS: task::upcalls::Upcalls = task::upcalls::Upcalls {
    start: thread::start,
    leaves_memory: futex::exit_robust_list,
    wake_futex: futex::wake_at,
    gives_up,
    ended: containers::process_ended,
    ipc_namespace_ended: ipc::namespace_ended,
    net_namespace_ended: guest::namespace_ended,
    open_special: devices::open,
    open_namespace: |thread, namespace| nsfs::open(thread, namespace),
    shrink,
    page_out: shmem::write_out,
};

fn gives_up(process: &Arc<Process>) {
    sysv::sem::process_ended(process.pid);
    sysv::shm::process_ended(process.pid);
    tty::process_ended(process);
}

fn shrink() {
    handle_cache::give_up_all();
    rights::collect();
}

/// The same, and names, and files that need not be in memory.
fn shrink_all() {
    shrink();
    shmem::write_out();
    fs::dentry::shrink();
}
