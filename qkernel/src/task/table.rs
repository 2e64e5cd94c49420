//! All processes and threads, by number.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use super::process::ProcessTree;
use super::{Process, Thread};
use crate::account::PID_MAX;
use crate::errno::{Errno, Result};
use crate::sync::{Mutex, mutex};

struct Table {
    threads: BTreeMap<u32, Weak<Thread>>,
    processes: BTreeMap<u32, Weak<Process>>,
    by_token: BTreeMap<u64, Weak<Thread>>,
    last_pid: u32,
    last_token: u64,
}

static TABLE: Mutex<Table> = mutex(Table {
    threads: BTreeMap::new(),
    processes: BTreeMap::new(),
    by_token: BTreeMap::new(),
    last_pid: 0,
    last_token: 0,
});

/// A free pid, in rising order as Linux gives them; also free as a process group and session id by
/// construction, for those live on as long as a process of theirs is in the table. EAGAIN when
/// there is none.
pub fn allocate_pid() -> Result<u32> {
    let mut table = TABLE.lock();
    for _ in 0..PID_MAX {
        let next = if table.last_pid + 1 >= PID_MAX { 2 } else { table.last_pid + 1 };
        table.last_pid = next;
        let is_group = |p: &Weak<Process>| {
            p.upgrade().is_some_and(|p| {
                let links = p.tree.lock();
                links.pgid == next || links.sid == next
            })
        };
        if !table.threads.contains_key(&next)
            && !table.processes.contains_key(&next)
            && !table.processes.values().any(is_group)
        {
            return Ok(next);
        }
    }
    Err(Errno::EAGAIN)
}

/// The next pid is 1 again, if nothing lives: the container's first process could not be started.
pub fn restart_pids() {
    let mut table = TABLE.lock();
    if table.threads.is_empty() && table.processes.is_empty() {
        table.last_pid = 0;
    }
}

/// A token for a platform thread, never given twice.
pub fn allocate_token() -> u64 {
    let mut table = TABLE.lock();
    table.last_token += 1;
    table.last_token
}

/// Enters a thread.
pub fn add_thread(thread: &Arc<Thread>) {
    let mut table = TABLE.lock();
    table.threads.insert(thread.tid(), Arc::downgrade(thread));
    table.by_token.insert(thread.user.token, Arc::downgrade(thread));
}

/// Removes a thread.
pub fn remove_thread(tid: u32, token: u64) {
    let mut table = TABLE.lock();
    table.threads.remove(&tid);
    table.by_token.remove(&token);
}

/// A thread has a new id in place of `old`.
pub fn renumber_thread(old: u32, thread: &Arc<Thread>) {
    let mut table = TABLE.lock();
    table.threads.remove(&old);
    table.threads.insert(thread.tid(), Arc::downgrade(thread));
}

/// Enters a process.
pub fn add_process(process: &Arc<Process>) {
    TABLE.lock().processes.insert(process.pid, Arc::downgrade(process));
}

/// Removes a process: it has been waited for.
pub fn remove_process(pid: u32) {
    TABLE.lock().processes.remove(&pid);
}

/// The thread with this id.
pub fn thread(tid: u32) -> Option<Arc<Thread>> {
    TABLE.lock().threads.get(&tid).and_then(Weak::upgrade)
}

/// The thread whose platform thread has this token.
pub fn thread_by_token(token: u64) -> Option<Arc<Thread>> {
    TABLE.lock().by_token.get(&token).and_then(Weak::upgrade)
}

/// The process with this id, zombies included.
pub fn process(pid: u32) -> Option<Arc<Process>> {
    TABLE.lock().processes.get(&pid).and_then(Weak::upgrade)
}

/// All processes, by rising pid, zombies included. No list of them is made: whoever looks for
/// somebody to kill for memory has none for it.
pub fn processes() -> impl Iterator<Item = Arc<Process>> {
    processes_from(0)
}

/// The processes, as [`processes`] gives them, from number `first` on.
pub fn processes_from(first: u32) -> impl Iterator<Item = Arc<Process>> {
    each(|table| &table.processes, first)
}

/// The living processes of group `pgid`.
pub fn group(pgid: u32) -> Vec<Arc<Process>> {
    living(|links| links.pgid == pgid)
}

/// The living processes of session `sid`.
pub fn session(sid: u32) -> Vec<Arc<Process>> {
    living(|links| links.sid == sid)
}

fn living(wanted: impl Fn(&ProcessTree) -> bool) -> Vec<Arc<Process>> {
    let is_wanted = |p: &Arc<Process>| {
        let links = p.tree.lock();
        links.exit_status.is_none() && wanted(&links)
    };
    processes().filter(is_wanted).collect()
}

/// All threads, by rising tid. As [`processes`].
pub fn threads() -> impl Iterator<Item = Arc<Thread>> {
    each(|table| &table.threads, 0)
}

/// What is in a part of the table from number `first` on, one after the other as it is then.
fn each<T>(
    part: fn(&Table) -> &BTreeMap<u32, Weak<T>>,
    first: u32,
) -> impl Iterator<Item = Arc<T>> {
    let mut next = Some(first);
    core::iter::from_fn(move || {
        let table = TABLE.lock();
        let mut rest = part(&table).range(next?..);
        let (id, found) = rest.find_map(|(id, entry)| Some((*id, entry.upgrade()?)))?;
        next = id.checked_add(1);
        Some(found)
    })
}
