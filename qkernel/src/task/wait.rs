//! Waiting for children (wait(2)).

use alloc::sync::Arc;

use linux_raw_sys::general::{
    __WALL, __WCLONE, __WNOTHREAD, CLD_CONTINUED, CLD_STOPPED, CLD_TRAPPED, SIGCHLD, SIGCONT,
    WCONTINUED, WEXITED, WNOHANG, WNOWAIT, WUNTRACED,
};

use super::process::Usage;
use super::{Process, Thread, exit, table, trace};
use crate::errno::{Errno, Result};
use crate::wait::{PollMask, block_on};

/// Which children a wait is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Any.
    Any,
    /// The one with this pid.
    Pid(u32),
    /// Those of this process group.
    Group(u32),
}

/// What happened to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It ended, with this wait status.
    Ended(i32),
    /// It stopped by this signal.
    Stopped(u32),
    /// It was continued.
    Continued,
    /// A tracee stopped, with this wait status (ptrace(2)).
    Trapped(i32),
}

impl Event {
    /// As wait4(2) gives it.
    pub fn status(self) -> i32 {
        match self {
            Event::Ended(status) => status,
            Event::Stopped(signo) => (signo as i32) << 8 | 0x7f,
            Event::Continued => 0xffff,
            Event::Trapped(status) => status,
        }
    }

    /// si_code and si_status as waitid(2) gives them.
    pub fn code_and_status(self) -> (i32, i32) {
        match self {
            Event::Ended(status) => exit::code_of_status(status),
            Event::Stopped(signo) => (CLD_STOPPED as i32, signo as i32),
            Event::Continued => (CLD_CONTINUED as i32, SIGCONT as i32),
            Event::Trapped(status) => (CLD_TRAPPED as i32, status >> 8),
        }
    }
}

/// A child's news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// What the caller calls it.
    pub pid: u32,
    /// Its real user id.
    pub uid: u32,
    /// What happened.
    pub event: Event,
    /// How long it and the children it waited for ran.
    pub usage: Usage,
    /// Most resident memory of it and those, in KiB.
    pub max_rss_kib: u64,
}

/// The options wait4(2) and waitid(2) know between them.
pub const KNOWN_OPTIONS: u32 =
    WNOHANG | WUNTRACED | WEXITED | WCONTINUED | WNOWAIT | __WALL | __WCLONE | __WNOTHREAD;

/// Waits for news of a child: `None` with WNOHANG when there are none. ECHILD when there is no such
/// child.
pub async fn wait_for(thread: &Arc<Thread>, who: Who, options: u32) -> Result<Option<Waited>> {
    let process = &thread.process;
    let look = || match trace::told::look(process, who, options) {
        (Some(news), _) => Ok(Some(news)),
        (None, any) => match look(process, who, options) {
            Err(Errno::ECHILD) if any => Ok(None),
            result => result,
        },
    };
    let attempt = || match look()? {
        Some(news) => Ok(Some(news)),
        None if options & WNOHANG != 0 => Ok(None),
        None => Err(Errno::EAGAIN),
    };
    block_on(thread, &[&process.child_events], PollMask::READ, None, attempt).await
}

fn look(process: &Arc<Process>, who: Who, options: u32) -> Result<Option<Waited>> {
    if let Who::Pid(pid) = who {
        let child = process.tree.lock().children.get(&pid).cloned();
        let child = child.filter(|child| is_meant(child, options)).ok_or(Errno::ECHILD)?;
        return Ok(take_news(process, &child, options));
    }
    let mut next = 0;
    loop {
        let child = {
            let links = process.tree.lock();
            let Some(pid) = links.news.range(next..).next() else { break };
            next = pid + 1;
            links.children.get(pid).cloned()
        };
        let Some(child) = child else { continue };
        let is_chosen = !matches!(who, Who::Group(pgid) if child.pgid() != pgid);
        if is_chosen
            && is_meant(&child, options)
            && let Some(news) = take_news(process, &child, options)
        {
            return Ok(Some(news));
        }
        if !has_news(&child) {
            process.tree.lock().news.remove(&child.pid);
        }
    }
    let is_child =
        |p: &Arc<Process>| p.parent().is_some_and(|parent| Arc::ptr_eq(&parent, process));
    let any = match who {
        Who::Group(pgid) => table::members(pgid).any(|p| is_child(&p) && is_meant(&p, options)),
        _ => process.tree.lock().children.values().any(|child| is_meant(child, options)),
    };
    if any { Ok(None) } else { Err(Errno::ECHILD) }
}

/// True if `options` are about children of its sort (__WCLONE), and may ever get news of it: of
/// a zombie, that it has ended.
fn is_meant(child: &Process, options: u32) -> bool {
    let links = child.tree.lock();
    let is_clone = links.exit_signal != SIGCHLD;
    (options & __WALL != 0 || is_clone == (options & __WCLONE != 0))
        && (options & WEXITED != 0 || links.exit_status.is_none())
}

/// What `options` ask for of what has happened to a child.
fn take_news(process: &Arc<Process>, child: &Arc<Process>, options: u32) -> Option<Waited> {
    let event = take_event(child, options)?;
    // While it still has a number.
    let pid = process.number_of(child.pid);
    let uid = child.uid();
    let mut usage = child.usage();
    let max_rss_kib = {
        let traits = child.traits.lock();
        usage += traits.children_usage;
        traits.max_rss_kib.max(traits.children_max_rss_kib)
    };
    if matches!(event, Event::Ended(_)) && options & WNOWAIT == 0 {
        reap(process, child);
    }
    Some(Waited { pid, uid, event, usage, max_rss_kib })
}

/// True if there is something that its parent may wait for.
fn has_news(child: &Process) -> bool {
    let links = child.tree.lock();
    links.exit_status.is_some() || links.stop_report.is_some() || links.continue_report
}

fn take_event(child: &Process, options: u32) -> Option<Event> {
    let mut links = child.tree.lock();
    if let Some(status) = links.exit_status {
        return (options & WEXITED != 0).then_some(Event::Ended(status));
    }
    let keeps = options & WNOWAIT != 0;
    if options & WUNTRACED != 0
        && let Some(signo) = links.stop_report
    {
        links.stop_report = links.stop_report.filter(|_| keeps);
        return Some(Event::Stopped(signo));
    }
    if options & WCONTINUED != 0 && links.continue_report {
        links.continue_report = keeps;
        return Some(Event::Continued);
    }
    None
}

/// Ends a zombie for good: its pid is free, its times count as its parent's children's.
pub fn reap(parent: &Arc<Process>, child: &Arc<Process>) {
    let mut usage = child.usage();
    let max_rss_kib = {
        let traits = child.traits.lock();
        usage += traits.children_usage;
        traits.max_rss_kib.max(traits.children_max_rss_kib)
    };
    {
        let mut traits = parent.traits.lock();
        traits.children_usage += usage;
        traits.children_max_rss_kib = traits.children_max_rss_kib.max(max_rss_kib);
    }
    let removed = {
        let mut links = parent.tree.lock();
        links.news.remove(&child.pid);
        links.children.remove(&child.pid)
    };
    table::remove_process(child.pid);
    drop(removed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_encoded_as_in_wait_2() {
        assert_eq!(Event::Ended(0x300).status(), 0x300);
        assert_eq!(Event::Ended(9).status(), 9);
        assert_eq!(Event::Stopped(20).status(), 0x147f);
        assert_eq!(Event::Continued.status(), 0xffff);
        assert_eq!(Event::Ended(0x300).code_and_status(), (1, 3));
        assert_eq!(Event::Ended(15).code_and_status(), (2, 15));
        assert_eq!(Event::Stopped(19).code_and_status(), (5, 19));
        assert_eq!(Event::Continued.code_and_status(), (6, 18));
    }
}
