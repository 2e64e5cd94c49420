//! Sessions and process groups (credentials(7), setsid(2), setpgid(2)).

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use linux_raw_sys::general::{SIGCONT, SIGHUP};

use super::signal::{SigInfo, send_to_group};
use super::{Process, table};
use crate::errno::{Errno, Result};

/// Makes the process the leader of a new session and group: its id. EPERM when it leads a group.
pub fn set_sid(process: &Arc<Process>) -> Result<u32> {
    let pid = process.pid;
    if !table::group(pid).is_empty() {
        return Err(Errno::EPERM);
    }
    table::regroup(process, pid, pid);
    let tty = process.tree.lock().tty.take();
    drop(tty);
    Ok(pid)
}

/// Moves process `pid` (0: the caller) to group `pgid` (0: its own).
pub fn set_pgid(caller: &Arc<Process>, pid: u32, pgid: u32) -> Result {
    let target = if pid == 0 { caller.clone() } else { table::process(pid).ok_or(Errno::ESRCH)? };
    let is_child = target.parent().is_some_and(|p| p.pid == caller.pid);
    if target.pid != caller.pid && !is_child {
        return Err(Errno::ESRCH);
    }
    let pgid = if pgid == 0 { target.pid } else { pgid };
    let sid = caller.sid();
    {
        let links = target.tree.lock();
        if is_child && links.has_execed {
            return Err(Errno::EACCES);
        }
        if links.sid != sid || links.sid == target.pid {
            return Err(Errno::EPERM);
        }
    }
    if pgid != target.pid && !table::group(pgid).iter().any(|p| p.sid() == sid) {
        return Err(Errno::EPERM);
    }
    table::regroup(&target, pgid, sid);
    Ok(())
}

/// True if the parent is there to continue the child: it is in another group of the same session.
fn watches_over(parent: &Process, child: &Process) -> bool {
    parent.pgid() != child.pgid() && parent.sid() == child.sid()
}

/// True if no process of the group has a parent in another group of the same session: nobody is
/// there to continue it.
pub fn is_orphaned_group(pgid: u32) -> bool {
    !table::group(pgid)
        .iter()
        .any(|process| process.parent().is_some_and(|parent| watches_over(&parent, process)))
}

/// After the end of `process`: groups that became orphaned by it and have stopped members get
/// SIGHUP and SIGCONT.
pub fn after_exit(process: &Arc<Process>, was_parent_of: &BTreeMap<u32, Arc<Process>>) {
    if process.parent().is_some_and(|parent| watches_over(&parent, process)) {
        hang_up_if_orphaned(process.pgid());
    }
    for child in was_parent_of.values() {
        if watches_over(process, child) {
            hang_up_if_orphaned(child.pgid());
        }
    }
}

fn hang_up_if_orphaned(pgid: u32) {
    let has_stopped = table::group(pgid).iter().any(|p| p.signals.lock().is_stopped());
    if has_stopped && is_orphaned_group(pgid) {
        send_to_group(pgid, SigInfo::kernel(SIGHUP));
        send_to_group(pgid, SigInfo::kernel(SIGCONT));
    }
}
