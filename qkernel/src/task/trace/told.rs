//! What a tracer is told of its tracees: by SIGCHLD, and by wait(2).

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use linux_raw_sys::general::{
    __WALL, __WCLONE, CLD_TRAPPED, SA_NOCLDSTOP, SIGCHLD, WEXITED, WNOWAIT,
};

use super::{by_token, tracer_of};
use crate::task::exit::{child_info, code_of_status};
use crate::task::process::Usage;
use crate::task::tracee::{Ended, Tracee};
use crate::task::wait::{Event, Waited, Who};
use crate::task::{Process, Thread, signal};
use crate::wait::PollMask;

/// In the key of the end of a process, beside the token of its last thread.
const OF_PROCESS: u64 = 1 << 63;

/// So many ends are kept for who does not ask for them.
const MOST: usize = 32768;

pub(super) fn begin(tracer: &Process, thread: &Arc<Thread>) {
    tracer.tracees.lock().insert(thread.user.token, Tracee::Lives);
}

pub(super) fn end(tracer: &Process, thread: &Thread) {
    tracer.tracees.lock().remove(&thread.user.token);
}

/// Those that live.
pub(super) fn tracees(tracer: &Process) -> Vec<Arc<Thread>> {
    if tracer.tracees.lock().is_empty() {
        return Vec::new();
    }
    let tokens: Vec<u64> = tracer.tracees.lock().keys().copied().collect();
    tokens.into_iter().filter_map(by_token).collect()
}

/// Notifies the tracer of a thread that has stopped, with this wait status.
pub(super) fn stopped(thread: &Arc<Thread>, status: i32) {
    let Some(tracer) = tracer_of(thread) else { return };
    let is_wanted = !tracer.signals.lock().action(SIGCHLD).has(SA_NOCLDSTOP);
    let who = (&thread.process, thread.tid());
    notify(&tracer, who, is_wanted, (CLD_TRAPPED as i32, status >> 8));
}

fn notify(
    tracer: &Arc<Process>,
    who: (&Arc<Process>, u32),
    is_wanted: bool,
    (code, value): (i32, i32),
) {
    let ignores = tracer.signals.lock().action(SIGCHLD).handler == signal::action::IGNORE;
    if is_wanted && !ignores {
        let info = child_info(tracer, who, SIGCHLD, code, value);
        let _ = signal::send_to_process(tracer, info);
    }
    tracer.child_events.wake(PollMask::READ);
}

/// A thread ends, and its process with it if that has a wait status now. Tracers are told, but not
/// of what they are told as parents.
pub fn ended(thread: &Arc<Thread>, of_process: Option<i32>) {
    let process = &thread.process;
    let tracer = tracer_of(thread);
    if let Some(tracer) = &tracer {
        end(tracer, thread);
    }
    let is_leader = thread.tid() == process.pid;
    if is_leader && of_process.is_none() {
        // That is told with the end of its process.
        if let Some(tracer) = tracer {
            let tracer: Weak<Process> = Arc::downgrade(&tracer);
            process.tree.lock().leader_tracer = Some(tracer);
        }
        return;
    }
    if let Some(tracer) = tracer.as_ref().filter(|_| !is_leader) {
        let status = *thread.exit_status.lock();
        keep_end(tracer, thread, (thread.tid(), status), thread.user.token);
    }
    let Some(status) = of_process else { return };
    let of_leader = process.tree.lock().leader_tracer.take();
    let of_leader = of_leader.and_then(|tracer| tracer.upgrade()?.downcast().ok());
    let tracer = if is_leader { tracer } else { of_leader };
    let is_parent =
        |tracer: &Arc<Process>| process.parent().is_some_and(|parent| Arc::ptr_eq(&parent, tracer));
    process.tree.lock().is_traced_by_parent = tracer.as_ref().is_some_and(is_parent);
    if let Some(tracer) = tracer.filter(|tracer| !is_parent(tracer)) {
        keep_end(&tracer, thread, (process.pid, status), thread.user.token | OF_PROCESS);
    }
}

/// Keeps the end of what has this thread id for its tracer, who is notified.
fn keep_end(tracer: &Arc<Process>, thread: &Thread, (tid, status): (u32, i32), key: u64) {
    let process = &thread.process;
    let Usage { user_ns, system_ns, .. } = thread.usage();
    let news = Ended {
        tid,
        pgid: process.pgid(),
        uid: process.uid(),
        status,
        is_leader: tid == process.pid,
        times_ns: (user_ns, system_ns),
    };
    {
        let mut tracees = tracer.tracees.lock();
        if tracees.len() < MOST {
            tracees.insert(key, Tracee::Ended(news));
        }
    }
    notify(tracer, (process, tid), true, code_of_status(status));
}

/// News of a tracee that a wait is about, and whether there is any such tracee.
pub fn look(tracer: &Arc<Process>, who: Who, options: u32) -> (Option<Waited>, bool) {
    let mut any = false;
    let mut next = 0;
    let keeps = options & WNOWAIT != 0;
    let is_about = |tid: u32, pgid: u32, is_leader: bool| {
        let is_chosen = match who {
            Who::Any => true,
            Who::Pid(pid) => pid == tid,
            Who::Group(group) => group == pgid,
        };
        is_chosen && (is_leader || options & (__WALL | __WCLONE) != 0)
    };
    loop {
        let found = {
            let tracees = tracer.tracees.lock();
            let found = tracees.range(next..).next();
            found.map(|(token, tracee)| match tracee {
                Tracee::Lives => (*token, None),
                Tracee::Ended(news) => (*token, Some(*news)),
            })
        };
        let Some((token, news)) = found else { return (None, any) };
        next = token + 1;
        if let Some(news) = news
            && is_about(news.tid, news.pgid, news.is_leader)
        {
            any = true;
            if options & WEXITED == 0 {
                continue;
            }
            if !keeps {
                tracer.tracees.lock().remove(&token);
            }
            let (pid, event) = (tracer.number_of(news.tid), Event::Ended(news.status));
            let (user_ns, system_ns) = news.times_ns;
            let usage = Usage { user_ns, system_ns, ..Usage::default() };
            return (Some(Waited { pid, uid: news.uid, event, usage, max_rss_kib: 0 }), true);
        }
        let Some(thread) = by_token(token) else { continue };
        let (process, tid) = (&thread.process, thread.tid());
        if !is_about(tid, process.pgid(), tid == process.pid) {
            continue;
        }
        any = true;
        let status = super::stops::with(&thread, |stop| {
            let is_news = !stop.is_told && !stop.listens;
            stop.is_told |= !keeps;
            is_news.then_some(stop.status)
        });
        if let Ok(Some(status)) = status {
            let (pid, uid) = (tracer.number_of(tid), process.uid());
            let (event, usage) = (Event::Trapped(status), thread.usage());
            return (Some(Waited { pid, uid, event, usage, max_rss_kib: 0 }), true);
        }
    }
}
