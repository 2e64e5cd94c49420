//! Signals that come from the command line.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use linux_raw_sys::general::{SIGCONT, SIGKILL};
use qlib::control::WakeCause;

use crate::errno::{Errno, Result};
use crate::hibernate::{self, busy};
use crate::sync::{Mutex, mutex};
use crate::task::signal::{self, SIGNALS, SigInfo};
use crate::task::{Process, exit, table};
use crate::{executor, input, time};

/// For so long after its start the container's first process is taken to be on its way to install
/// its handlers, in nanoseconds.
const YOUTH_NS: u64 = 1_000_000_000;
/// How often it is looked whether it has.
const LOOK_NS: u64 = 2_000_000;

/// A signal that is found blocked so often in a row is taken by sigwait(3) or signalfd(2). A shell
/// blocks all for an instant before it waits for a child.
const BLOCKED_LOOKS: u32 = 10;

/// Processes and signals that wait for a handler of theirs: one of each kind, as pending signals
/// are.
static EARLY: Mutex<BTreeSet<(u32, u32)>> = mutex(BTreeSet::new());

/// Sends a signal to a process, or to all of its container.
///
/// One that ends most programs, and comes before the first process has a handler for it, waits
/// until there is one, at most until the process is no longer young: else it would be lost
/// (pid_namespaces(7)), and who stops a container right after its start would wait for all of the
/// time that it was given. Under runc such a signal ends the runtime's own process, which becomes
/// the program only then. The container does not sleep meanwhile.
///
/// # Errors
/// ESRCH if there is no such process any more, EINVAL if there is no such signal.
pub fn send(pid: u32, all: bool, signo: u32) -> Result {
    let targets = targets(pid, all, signo)?;
    match signo {
        SIGCONT => hibernate::keep_awake(),
        _ => hibernate::wake(WakeCause::Signal),
    }
    input::note_taken(false);
    if all || !is_early(&targets[0], signo) {
        return deliver(&targets, signo);
    }
    let early = (targets[0].pid, signo);
    if EARLY.lock().insert(early) {
        let awaited = busy::awaits_a_handler();
        executor::spawn(async move {
            let mut blocked_looks = 0;
            while is_early(&targets[0], signo) && blocked_looks < BLOCKED_LOOKS {
                let is_blocked = !signal::send::would_be_lost(&targets[0], signo);
                blocked_looks = if is_blocked { blocked_looks + 1 } else { 0 };
                time::pass(LOOK_NS).await;
            }
            EARLY.lock().remove(&early);
            // It may have ended, which is as good.
            let _ = deliver(&targets, signo);
            drop(awaited);
        });
    }
    Ok(())
}

/// Whom it is for. ESRCH if there is no such process any more.
fn targets(pid: u32, all: bool, signo: u32) -> Result<Vec<Arc<Process>>> {
    if signo > SIGNALS {
        return Err(Errno::EINVAL);
    }
    let target = table::process(pid).filter(|process| !process.is_zombie()).ok_or(Errno::ESRCH)?;
    if all {
        let is_beside = |other: &Arc<Process>| other.container == target.container;
        return Ok(table::processes().filter(is_beside).collect());
    }
    Ok(vec![target])
}

/// True if the process may have a handler for the signal soon, which would be lost now.
fn is_early(process: &Arc<Process>, signo: u32) -> bool {
    let age_ns = time::monotonic_ns().saturating_sub(process.start_ns);
    signo != 0
        && age_ns < YOUTH_NS
        && !process.is_zombie()
        && signal::send::lacks_handler(process, signo)
}

fn deliver(targets: &[Arc<Process>], signo: u32) -> Result {
    for target in targets {
        if signo == SIGKILL && !target.is_zombie() {
            exit::group_exit(target, SIGKILL as i32);
        } else if signo != 0 {
            signal::send::send_from_outside(target, SigInfo::user(signo, 0, 0))?;
        }
    }
    Ok(())
}
