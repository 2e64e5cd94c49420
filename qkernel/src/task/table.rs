//! All processes and threads, by number.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use super::pid_namespace::{self, PidNamespace};
use super::{Process, Thread};
use crate::account::PID_MAX;
use crate::errno::{Errno, Result};
use crate::sync::{Mutex, mutex};
use crate::wait::PollMask;

struct Table {
    threads: BTreeMap<u32, Weak<Thread>>,
    processes: BTreeMap<u32, Weak<Process>>,
    /// With the real user id of each.
    by_token: BTreeMap<u64, (Weak<Thread>, u32)>,
    /// How many threads a real user has.
    users: BTreeMap<u32, usize>,
    /// What stays of the processes of a container that are gone, as long as that is there.
    past: BTreeMap<u32, Past>,
    /// Process group and pid, session and pid, of all processes.
    groups: Relation,
    sessions: Relation,
    /// The namespaces of the pids that are not of the container's own.
    namespaces: BTreeMap<u32, Arc<PidNamespace>>,
    last_pid: u32,
    last_token: u64,
}

/// What processes of a container did that are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// CPU time in user mode, in nanoseconds.
    pub user_ns: u64,
    /// The same in the kernel.
    pub system_ns: u64,
    /// How many were killed as memory was used up; also those that are still there.
    pub oom_kills: u64,
}

static TABLE: Mutex<Table> = mutex(Table {
    threads: BTreeMap::new(),
    processes: BTreeMap::new(),
    by_token: BTreeMap::new(),
    users: BTreeMap::new(),
    past: BTreeMap::new(),
    groups: Relation::new(),
    sessions: Relation::new(),
    namespaces: BTreeMap::new(),
    last_pid: 0,
    last_token: 0,
});

/// Processes, each of which belongs to a group, by both.
struct Relation {
    group_of: BTreeMap<u32, u32>,
    members: BTreeSet<(u32, u32)>,
}

impl Relation {
    const fn new() -> Self {
        Relation { group_of: BTreeMap::new(), members: BTreeSet::new() }
    }

    /// The process belongs to `group` now, or to none: what it belonged to.
    fn set(&mut self, pid: u32, group: Option<u32>) -> Option<u32> {
        let old = match group {
            Some(group) => self.group_of.insert(pid, group),
            None => self.group_of.remove(&pid),
        };
        if let Some(old) = old {
            self.members.remove(&(old, pid));
        }
        if let Some(group) = group {
            self.members.insert((group, pid));
        }
        old
    }

    /// The first process of `group` from pid `first` on.
    fn member(&self, group: u32, first: u32) -> Option<u32> {
        self.members.range((group, first)..=(group, u32::MAX)).next().map(|(_, pid)| *pid)
    }
}

/// A free pid, in rising order as Linux gives them; also free as a process group and session id by
/// construction, for those live on as long as a process of theirs is in the table. EAGAIN when
/// there is none.
pub fn allocate_pid() -> Result<u32> {
    let mut table = TABLE.lock();
    for _ in 0..PID_MAX {
        let next = if table.last_pid + 1 >= PID_MAX { 2 } else { table.last_pid + 1 };
        table.last_pid = next;
        if !table.is_in_use(next) {
            return Ok(next);
        }
    }
    Err(Errno::EAGAIN)
}

/// The pid that was given last.
pub fn last_pid() -> u32 {
    TABLE.lock().last_pid
}

/// The pid is one of this namespace, which is not the container's own.
pub fn note_namespace(pid: u32, namespace: Arc<PidNamespace>) {
    TABLE.lock().namespaces.insert(pid, namespace);
}

/// Something that had this pid is gone: if nothing has it any more, its namespaces forget it.
pub fn give_back(pid: u32) {
    let namespace = {
        let mut table = TABLE.lock();
        let is_over = !table.namespaces.is_empty() && !table.is_in_use(pid);
        if is_over { table.namespaces.remove(&pid) } else { None }
    };
    if let Some(namespace) = namespace {
        pid_namespace::forget(&namespace, pid);
    }
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
    let uid = thread.creds().uid;
    table.threads.insert(thread.tid(), Arc::downgrade(thread));
    table.by_token.insert(thread.user.token, (Arc::downgrade(thread), uid));
    *table.users.entry(uid).or_default() += 1;
}

/// Removes a thread.
pub fn remove_thread(tid: u32, token: u64) {
    let mut table = TABLE.lock();
    table.threads.remove(&tid);
    if let Some((_, uid)) = table.by_token.remove(&token) {
        table.leaves(uid);
    }
    drop(table);
    give_back(tid);
}

/// The thread's real user id has changed.
pub fn note_user(token: u64, uid: u32) {
    let mut table = TABLE.lock();
    let Some(entry) = table.by_token.get_mut(&token) else { return };
    let old = core::mem::replace(&mut entry.1, uid);
    *table.users.entry(uid).or_default() += 1;
    table.leaves(old);
}

/// How many threads a real user has.
pub fn count_of_user(uid: u32) -> usize {
    TABLE.lock().users.get(&uid).copied().unwrap_or(0)
}

/// How many threads there are.
pub fn thread_count() -> usize {
    TABLE.lock().threads.len()
}

impl Table {
    /// True if a thread or process has this pid, or the group or session of one.
    fn is_in_use(&self, pid: u32) -> bool {
        self.threads.contains_key(&pid)
            || self.processes.contains_key(&pid)
            || self.groups.member(pid, 0).is_some()
            || self.sessions.member(pid, 0).is_some()
    }

    /// A thread of this user is gone.
    fn leaves(&mut self, uid: u32) {
        if let Some(count) = self.users.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                self.users.remove(&uid);
            }
        }
    }
}

/// A thread has a new id in place of `old`.
pub fn renumber_thread(old: u32, thread: &Arc<Thread>) {
    let mut table = TABLE.lock();
    table.threads.remove(&old);
    table.threads.insert(thread.tid(), Arc::downgrade(thread));
    drop(table);
    give_back(old);
}

/// Enters a process.
pub fn add_process(process: &Arc<Process>) {
    let (pgid, sid) = (process.pgid(), process.sid());
    let mut table = TABLE.lock();
    table.processes.insert(process.pid, Arc::downgrade(process));
    table.groups.set(process.pid, Some(pgid));
    table.sessions.set(process.pid, Some(sid));
}

/// Moves a process of the table to a group, and to a session.
pub fn regroup(process: &Process, pgid: u32, sid: u32) {
    let (old_group, old_session) = {
        let mut links = process.tree.lock();
        (core::mem::replace(&mut links.pgid, pgid), core::mem::replace(&mut links.sid, sid))
    };
    {
        let mut table = TABLE.lock();
        table.groups.set(process.pid, Some(pgid));
        table.sessions.set(process.pid, Some(sid));
    }
    give_back(old_group);
    give_back(old_session);
}

/// Removes a process: it has been waited for.
pub fn remove_process(pid: u32) {
    let (process, group, session) = {
        let mut table = TABLE.lock();
        let process = table.processes.remove(&pid);
        (process, table.groups.set(pid, None), table.sessions.set(pid, None))
    };
    if let Some(process) = process.and_then(|process| process.upgrade()) {
        process.exit_events.wake(PollMask::HUP);
        let usage = process.usage();
        with_past(process.container, |past| {
            past.user_ns += usage.user_ns;
            past.system_ns += usage.system_ns;
        });
    }
    for number in [Some(pid), group, session].into_iter().flatten() {
        give_back(number);
    }
}

/// Notes something of a container's past, unless that is gone itself.
fn with_past(container: u32, change: impl FnOnce(&mut Past)) {
    if let Some(past) = TABLE.lock().past.get_mut(&container) {
        change(past);
    }
}

/// A container begins.
pub fn know_container(container: u32) {
    TABLE.lock().past.insert(container, Past::default());
}

/// A process of a container is killed as memory is used up.
pub fn note_oom_kill(container: u32) {
    with_past(container, |past| past.oom_kills += 1);
}

/// What stays of the container's processes.
pub fn past_of(container: u32) -> Past {
    TABLE.lock().past.get(&container).copied().unwrap_or_default()
}

/// Forgets a container that has ended. A zombie of it may stay with a parent elsewhere.
pub fn forget_container(container: u32) {
    TABLE.lock().past.remove(&container);
}

/// The thread with this id.
pub fn thread(tid: u32) -> Option<Arc<Thread>> {
    TABLE.lock().threads.get(&tid).and_then(Weak::upgrade)
}

/// The thread whose platform thread has this token.
pub fn thread_by_token(token: u64) -> Option<Arc<Thread>> {
    TABLE.lock().by_token.get(&token).and_then(|(thread, _)| thread.upgrade())
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
    members(pgid).filter(|p| !p.is_zombie()).collect()
}

/// The processes of group `pgid`, zombies included. As [`processes`].
pub fn members(pgid: u32) -> impl Iterator<Item = Arc<Process>> {
    related(|table| &table.groups, pgid)
}

/// The living processes of session `sid`.
pub fn session(sid: u32) -> Vec<Arc<Process>> {
    related(|table| &table.sessions, sid).filter(|p| !p.is_zombie()).collect()
}

fn related(part: fn(&Table) -> &Relation, group: u32) -> impl Iterator<Item = Arc<Process>> {
    let mut next = 0;
    core::iter::from_fn(move || {
        let table = TABLE.lock();
        loop {
            let pid = part(&table).member(group, next)?;
            next = pid + 1;
            if let Some(process) = table.processes.get(&pid).and_then(Weak::upgrade) {
                return Some(process);
            }
        }
    })
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

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn who_moves_to_another_group_is_found_there_alone() {
        let mut groups = Relation::new();
        let all = |groups: &Relation, group| {
            let mut next = 0;
            core::iter::from_fn(|| {
                let pid = groups.member(group, next)?;
                next = pid + 1;
                Some(pid)
            })
            .collect::<Vec<_>>()
        };
        for (pid, group) in [(7, 1), (3, 1), (5, 2), (u32::MAX - 1, 1)] {
            groups.set(pid, Some(group));
        }
        assert_eq!((all(&groups, 1), all(&groups, 2)), (vec![3, 7, u32::MAX - 1], vec![5]));
        groups.set(7, Some(2));
        groups.set(7, Some(2));
        groups.set(3, None);
        assert_eq!((all(&groups, 1), all(&groups, 2)), (vec![u32::MAX - 1], vec![5, 7]));
        let left = [5, 7, u32::MAX - 1, 9].map(|pid| groups.set(pid, None));
        assert_eq!(left, [Some(2), Some(2), Some(1), None]);
        assert!(groups.members.is_empty() && groups.group_of.is_empty());
    }
}
