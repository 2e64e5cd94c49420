//! Guest memory used up: untouched reservations are taken back first, then a process is killed.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;

use linux_raw_sys::general::SIGKILL;
use qlib::pagetable::Pte;

use super::deflate::Committed;
use crate::errno::Result;
use crate::fs::hostfs::kept;
use crate::klog;
use crate::mm::frames;
use crate::mm::space::wait_for_frames;
use crate::task::{Process, Thread, exit, run, table};

/// Tries to get frames back at once, without waiting for anybody: whether some are free now. User frames that the platform shows
/// cannot be, so there is nothing to get yet.
pub fn reclaim() -> bool {
    false
}

/// A fault of `thread` found no frame. Takes back what its address space reserved and never touched; when that gives nothing, kills the
/// process that holds most memory. Afterwards the fault is tried again, unless the thread is to die.
pub async fn handle(thread: &Arc<Thread>) -> Result {
    // What is kept only to be fast goes first; it frees nothing that a fault could use at once.
    kept::give_up_all();
    let mm = thread.mm();
    let _frozen = mm.freeze(thread).await;
    run::may_sync(thread).await;
    mm.hide_all();
    thread.user.flush(&mm).await?;
    let mut committed = Committed::default();
    let mut freed = 0;
    mm.rewrite_private(&mut |anonymous, pte| {
        if !anonymous || committed.contains(pte.gpa()) {
            return pte;
        }
        frames::user().ref_dec(pte.gpa());
        freed += 1;
        Pte::EMPTY
    });
    if freed > 0 {
        return Ok(());
    }
    let living: Vec<_> = table::processes().into_iter().filter(|p| p.links.lock().exit_status.is_none()).collect();
    let is_dying = |p: &Arc<Process>| p.links.lock().exiting.is_some();
    if living.iter().any(is_dying) {
        // Somebody's frames are on their way: it first has to run to its end.
        if !wait_for_frames().await {
            crate::executor::yield_now().await;
        }
        return Ok(());
    }
    let victim = living.into_iter().max_by_key(|p| (p.mm().sizes().1, Reverse(p.pid)));
    if let Some(victim) = victim {
        klog!(Warn, "out of guest memory: killed process {} ({} bytes resident)", victim.pid, victim.mm().sizes().1);
        exit::group_exit(&victim, SIGKILL as i32);
    }
    wait_for_frames().await;
    Ok(())
}
