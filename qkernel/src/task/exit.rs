//! The end of threads and processes (exit(2), exit_group(2)), and what their parents are notified
//! of.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use linux_raw_sys::general::{
    CLD_CONTINUED, CLD_DUMPED, CLD_EXITED, CLD_KILLED, CLD_STOPPED, SA_NOCLDSTOP, SA_NOCLDWAIT,
    SIGCHLD, SIGCONT, SIGKILL,
};

use super::pid_namespace::PidNamespace;
use super::process::{Image, Usage};
use super::signal::{self, SigInfo, SigSet, Signo};
use super::{Process, Thread, session, table, trace, wait};
use crate::fs::{self, FdTable};
use crate::mm::reclaim;
use crate::wait::PollMask;

/// In a wait status: there is a core dump.
pub const DUMPED: i32 = 0x80;

/// The wait status of an exit with `code`.
pub const fn status_of_code(code: i32) -> i32 {
    (code & 0xff) << 8
}

/// exit(2): only this thread ends, as soon as it gets to its return to user mode.
pub fn thread_exit(thread: &Arc<Thread>, code: i32) {
    *thread.exit_status.lock() = status_of_code(code);
    thread.kill();
}

/// Only this thread ends, by `signo`.
pub fn thread_killed(thread: &Thread, signo: Signo) {
    *thread.exit_status.lock() = signo as i32;
    thread.kill();
}

/// All threads of the process are to end; `status` is its wait status unless one was decided on
/// before.
pub fn group_exit(process: &Arc<Process>, status: i32) {
    process.tree.lock().exiting.get_or_insert(status);
    for thread in process.each_thread() {
        thread.kill();
    }
}

/// The wait status with which a thread ends.
pub fn status_of(thread: &Thread) -> u64 {
    let exiting = thread.process.tree.lock().exiting;
    exiting.unwrap_or_else(|| *thread.exit_status.lock()) as u64
}

/// vfork(2): lets the parent go on. At exec, and at the end.
pub fn release_vfork_parent(thread: &Thread) {
    let parent = thread.attrs.lock().vfork_parent.take();
    if let Some(parent) = parent {
        parent.set();
    }
}

/// The thread's task is about to end.
pub fn thread_ended(thread: &Arc<Thread>) {
    let process = &thread.process;
    let mm = process.mm();
    // Two know of the memory: the process, and this function.
    let is_last = process.tree.lock().threads.len() <= 1;
    leave_memory(thread, is_last && Arc::strong_count(&mm) <= 2);
    release_vfork_parent(thread);
    thread.cpu_time.left_user_mode();
    // The platform does not know any more when nobody is left there.
    process.look_for_one();
    thread.user.end(&mm);
    mm.leave(&thread.user);
    drop(mm);
    thread.seccomp.release();
    // Other threads may wait for what the descriptors lead to (the far end of a pipe): they are
    // closed now, not with the zombie.
    thread.set_files(FdTable::new());
    table::remove_thread(thread.tid(), thread.user.token);
    process.traits.lock().usage += thread.used();
    let is_last = {
        let mut links = process.tree.lock();
        if thread.tid() == process.pid {
            links.leader_status = Some(*thread.exit_status.lock());
        }
        links.uid = thread.creds().uid;
        links.threads.remove(&thread.user.token);
        links.threads.is_empty()
    };
    if is_last {
        process_ended(thread);
    } else {
        trace::told::ended(thread, None);
        signal::send::retarget(thread, SigSet(u64::MAX));
        signal::deliver::notify_if_stopped(process);
        process.thread_events.wake(PollMask::READ);
        process.exit_events.wake(PollMask::READ | PollMask::HUP);
    }
}

/// The thread will not use its memory any more (exit, exec): gives up its robust locks, and tells
/// those who share the memory. `is_alone`: nobody shares it.
pub fn leave_memory(thread: &Arc<Thread>, is_alone: bool) {
    (thread.process.upcalls.leaves_memory)(thread);
    clear_child_tid(thread, is_alone);
}

/// set_tid_address(2): notifies those who share the memory that the thread is gone.
fn clear_child_tid(thread: &Arc<Thread>, is_alone: bool) {
    let address = core::mem::take(&mut thread.attrs.lock().clear_child_tid);
    if address.0 == 0 || is_alone {
        return;
    }
    // The program may have unmapped it: then there is nobody to notify.
    let mm = thread.mm();
    if mm.write(address, &0u32).is_ok() {
        (thread.process.upcalls.wake_futex)(&mm, address, 1);
    }
}

/// The last thread of a process is gone: it becomes a zombie.
fn process_ended(last: &Arc<Thread>) {
    let process = &last.process;
    let status = {
        let links = process.tree.lock();
        let own = *last.exit_status.lock();
        links.exiting.or(links.leader_status).unwrap_or(own)
    };
    trace::told::ended(last, Some(status));
    trace::tracer_ended(process);
    process.timers.clear();
    fs::lock::process_ended(process.pid);
    process.note_resident();
    process.drop_mm();
    forget_image(process);
    (process.upcalls.gives_up)(process);
    drop(process.tree.lock().tty.take());
    let ends_namespace = process.is_init() && process.pid_namespace.level > 0;
    if ends_namespace {
        for other in process.pid_namespace.end() {
            group_exit(&other, SIGKILL as i32);
        }
    }
    let orphans = reparent_children(process);
    let finish = |init: &_, status| become_zombie(init, status, &BTreeMap::new());
    if !ends_namespace || process.pid_namespace.is_alone(process, status, finish) {
        become_zombie(process, status, &orphans);
    }
}

/// The rest of a process's end: from now on it can be waited for. The first process of a further
/// PID namespace comes here when all others of that are gone. `orphans`: what children it had.
fn become_zombie(process: &Arc<Process>, status: i32, orphans: &BTreeMap<u32, Arc<Process>>) {
    {
        let mut links = process.tree.lock();
        links.exit_status = Some(status);
        links.stop_report = None;
        links.continue_report = false;
    }
    session::after_exit(process, orphans);
    notify_parent(process, status);
    process.exit_events.wake(PollMask::READ);
    (process.upcalls.ended)(process, status);
    reclaim::note_freed();
}

/// Keeps only the path of what the process ran: its executable may close now.
fn forget_image(process: &Process) {
    let path = process.image.lock().path.clone();
    let rest = Image { path, ..Image::default() };
    let old = core::mem::replace(&mut *process.image.lock(), rest);
    drop(old);
}

/// Gives the children of a process that ends to its nearest ancestor that takes orphans, or to pid
/// 1: those children.
fn reparent_children(process: &Arc<Process>) -> BTreeMap<u32, Arc<Process>> {
    let children = {
        let mut links = process.tree.lock();
        links.news.clear();
        core::mem::take(&mut links.children)
    };
    if children.is_empty() {
        return children;
    }
    let (reaper, waits) = child_reaper_of(process);
    for child in children.values() {
        {
            let mut links = child.tree.lock();
            links.parent = reaper.as_ref().map(Arc::downgrade).unwrap_or_default();
            links.is_forgotten = !waits;
        }
        let uid = process.tree.lock().uid;
        for thread in child.each_thread() {
            let signo = thread.attrs.lock().parent_death_signal;
            if signo != 0 {
                let _ = signal::send_of(process, child, Some(&thread), |pid| {
                    SigInfo::user(signo, pid, child.uid_shown(uid))
                });
            }
        }
        let Some(reaper) = &reaper else {
            // Pid 1 itself has ended: nobody will wait for them.
            if child.is_zombie() {
                table::remove_process(child.pid);
            }
            continue;
        };
        {
            let mut links = reaper.tree.lock();
            links.children.insert(child.pid, child.clone());
            links.news.insert(child.pid);
        }
        let status = {
            let mut links = child.tree.lock();
            links.exit_signal = SIGCHLD;
            links.exit_status
        };
        if let Some(status) = status {
            notify_parent(child, status);
        }
    }
    children
}

/// Who gets the children of a process, and whether it waits for them: it does not if their PID
/// namespace is over.
fn child_reaper_of(process: &Arc<Process>) -> (Option<Arc<Process>>, bool) {
    let namespace = &process.pid_namespace;
    let lives = |p: &Arc<Process>| {
        let links = p.tree.lock();
        links.exit_status.is_none() && links.exiting.is_none()
    };
    let mut ancestor = process.parent();
    while let Some(candidate) = ancestor.filter(|p| Arc::ptr_eq(&p.pid_namespace, namespace)) {
        if candidate.tree.lock().is_subreaper && lives(&candidate) {
            return (Some(candidate), true);
        }
        ancestor = candidate.parent();
    }
    let is_other = |init: &Arc<Process>| init.pid != process.pid;
    match namespace.init() {
        Some(init) if is_other(&init) => (Some(init), true),
        _ => (PidNamespace::initial().init().filter(is_other), false),
    }
}

/// CLD_* code and status of a wait status, as siginfo has them.
pub fn code_of_status(status: i32) -> (i32, i32) {
    if status & 0x7f == 0 {
        (CLD_EXITED as i32, status >> 8 & 0xff)
    } else {
        let is_dumped = status & DUMPED != 0;
        (if is_dumped { CLD_DUMPED } else { CLD_KILLED } as i32, status & 0x7f)
    }
}

/// Notifies the parent of a zombie; reaps it at once if the parent does not want to.
fn notify_parent(process: &Arc<Process>, status: i32) {
    let is_forgotten = process.tree.lock().is_forgotten;
    let Some(parent) = process.parent() else {
        if is_forgotten {
            table::remove_process(process.pid);
        }
        return;
    };
    if is_forgotten {
        wait::reap(&parent, process);
        return parent.child_events.wake(PollMask::READ);
    }
    parent.tree.lock().news.insert(process.pid);
    let exit_signal = process.tree.lock().exit_signal;
    let action = parent.signals.lock().action(SIGCHLD);
    let is_plain = exit_signal == SIGCHLD && !process.tree.lock().is_traced_by_parent;
    let ignores = is_plain && action.handler == signal::action::IGNORE;
    let reaps_itself = is_plain && (ignores || action.has(SA_NOCLDWAIT));
    if exit_signal != 0 && !ignores {
        let (code, value) = code_of_status(status);
        let info = child_info(&parent, (process, process.pid), exit_signal, code, value);
        let _ = signal::send_to_process(&parent, info);
    }
    if reaps_itself {
        wait::reap(&parent, process);
    }
    parent.child_events.wake(PollMask::READ);
}

/// What `parent` is told of its child.
pub(super) fn child_info(
    parent: &Process,
    (process, tid): (&Arc<Process>, u32),
    signo: u32,
    code: i32,
    value: i32,
) -> SigInfo {
    let uid = parent.uid_shown(process.uid());
    let Usage { user_ns, system_ns, .. } = process.usage();
    let ticks = |ns: u64| (ns / 10_000_000) as i64;
    let pid = parent.number_of(tid);
    SigInfo::child(signo, code, pid, uid, value, ticks(user_ns), ticks(system_ns))
}

/// Notifies the parent that job control stopped the process by `signo`.
pub fn notify_stopped(process: &Arc<Process>, signo: u32) {
    {
        let mut links = process.tree.lock();
        links.stop_report = Some(signo);
        links.continue_report = false;
    }
    notify_job_control(process, CLD_STOPPED as i32, signo as i32);
}

/// Notifies the parent that SIGCONT continued the process.
pub fn notify_continued(process: &Arc<Process>) {
    {
        let mut links = process.tree.lock();
        links.stop_report = None;
        links.continue_report = true;
    }
    notify_job_control(process, CLD_CONTINUED as i32, SIGCONT as i32);
}

fn notify_job_control(process: &Arc<Process>, code: i32, value: i32) {
    let Some(parent) = process.parent() else { return };
    if process.tree.lock().is_forgotten {
        return;
    }
    parent.tree.lock().news.insert(process.pid);
    let action = parent.signals.lock().action(SIGCHLD);
    if action.handler != signal::action::IGNORE && !action.has(SA_NOCLDSTOP) {
        let info = child_info(&parent, (process, process.pid), SIGCHLD, code, value);
        let _ = signal::send_to_process(&parent, info);
    }
    parent.child_events.wake(PollMask::READ);
}

/// Kills each of these processes.
pub fn kill_all(are_they: impl Fn(&Process) -> bool) {
    for process in table::processes().filter(|process| are_they(process)) {
        group_exit(&process, SIGKILL as i32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_statuses_are_encoded_as_in_wait_2() {
        assert_eq!(status_of_code(0), 0);
        assert_eq!(status_of_code(7), 0x700);
        assert_eq!(status_of_code(-1), 0xff00);
        assert_eq!(status_of_code(256), 0);
        assert_eq!(code_of_status(0x700), (CLD_EXITED as i32, 7));
        assert_eq!(code_of_status(0xff00), (CLD_EXITED as i32, 255));
        assert_eq!(code_of_status(9), (CLD_KILLED as i32, 9));
    }
}
