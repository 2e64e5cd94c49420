//! Who waits outside for the end of a process that was started from there.

use alloc::format;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;

use qlib::control::Reply;

use super::control::{failure, reply};
use crate::errno::Errno;
use crate::sync::{Mutex, mutex};
use crate::task::{Process, table};
use crate::{klog, time};

struct Waits {
    /// Processes made by Start and Exec: kept, zombies too, until a Wait has been answered, or
    /// their container is gone.
    roots: Vec<Arc<Process>>,
    /// (request, pid) of each Wait that is not answered yet.
    waiting: Vec<(u64, u32)>,
}

static WAITS: Mutex<Waits> = mutex(Waits { roots: Vec::new(), waiting: Vec::new() });

/// What a wait status is as an exit code of a command: the code, or 128 + signal.
pub const fn exit_code(status: i32) -> i32 {
    if status & 0x7f == 0 { status >> 8 & 0xff } else { 128 + (status & 0x7f) }
}

/// A process has been started from outside.
pub fn started(process: Arc<Process>) {
    WAITS.lock().roots.push(process);
}

/// Answers request `id` when process `pid` has ended.
pub fn wait(id: u64, pid: u32) {
    let status = {
        let mut waits = WAITS.lock();
        let Some(root) = waits.roots.iter().find(|p| p.pid == pid).cloned() else {
            return reply(
                id,
                &failure(Errno::ECHILD, format!("process {pid} was not started from outside")),
            );
        };
        let status = root.tree.lock().exit_status;
        if status.is_none() {
            waits.waiting.push((id, pid));
        }
        status
    };
    if let Some(status) = status {
        reply(id, &Reply::Exited(exit_code(status)));
        forget(pid);
    }
}

/// The requests that wait for process `pid`, which nobody answers but the caller from then on.
fn take_waiting(pid: u32) -> Vec<u64> {
    let mut waits = WAITS.lock();
    waits.waiting.extract_if(.., |(_, awaited)| *awaited == pid).map(|(id, _)| id).collect()
}

/// A process has become a zombie with this wait status: answers those who wait for it.
pub fn process_ended(process: &Process, status: i32) {
    if process.is_visitor() {
        note_ended(process, status);
    }
    let answered = take_waiting(process.pid);
    for id in &answered {
        reply(*id, &Reply::Exited(exit_code(status)));
    }
    if !answered.is_empty() {
        forget(process.pid);
    }
}

/// For who looks where the time of an exec goes.
fn note_ended(process: &Process, status: i32) {
    let us = |ns: u64| ns / 1000;
    let used = process.usage();
    klog!(
        Debug,
        "process {}, from outside, ended with {} after {} us, {} of them in user mode, {} in \
        system calls",
        process.pid,
        exit_code(status),
        us(time::elapsed_ns(process.start_ns)),
        us(used.user_ns),
        us(used.system_ns)
    );
}

/// A process made from outside is a zombie that nobody asks for any more. (A container's first
/// one is there until that is gone.)
fn forget(pid: u32) {
    let removed = {
        let roots = &mut WAITS.lock().roots;
        let index = roots.iter().position(|p| p.pid == pid && !p.is_first);
        index.map(|i| roots.remove(i))
    };
    if removed.is_some() {
        table::remove_process(pid);
    }
}

/// A container is gone, with all that was started in it.
pub fn container_gone(container: u32) {
    let removed: Vec<_> =
        WAITS.lock().roots.extract_if(.., |process| process.container == container).collect();
    for process in removed {
        if process.is_zombie() {
            table::remove_process(process.pid);
        }
        for id in take_waiting(process.pid) {
            reply(id, &failure(Errno::ESRCH, "the container has ended".to_string()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!(exit_code(0), 0);
        assert_eq!(exit_code(0x2a00), 42);
        assert_eq!(exit_code(9), 137);
    }
}
