//! PID namespaces (pid_namespaces(7)): processes and threads have another number in each.
//!
//! The kernel itself goes by the numbers of the container's own namespace, which it calls pids and
//! tids; groups and sessions have those of their first members. A further namespace has a table of
//! the pids that it sees, and what it calls each. They are translated where programs give and get
//! them: [`Thread::pid_of`], [`Thread::number_of`].

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::process::Process;
use super::{Thread, current, table};
use crate::account::PID_MAX;
use crate::errno::{Errno, Result};
use crate::namespace::{self, INITIAL_PID};
use crate::sync::{Mutex, Once};
use crate::user_namespace::UserNs;

/// How deep namespaces may lie in each other (Linux's MAX_PID_NS_LEVEL).
const MAX_LEVEL: u32 = 32;
/// Its first process, which gets the orphans of the others, and without which there are none.
const INIT: u32 = 1;

/// A PID namespace.
pub struct PidNamespace {
    /// The inode number of its file in /proc/PID/ns.
    pub number: u64,
    /// How many lie around it.
    pub level: u32,
    /// The next one around it, which sees all of its processes.
    pub parent: Option<Arc<PidNamespace>>,
    /// The user namespace that it belongs to.
    pub user: UserNs,
    /// Of those that are not the container's own.
    names: Mutex<Names>,
}

/// The rest of the end of a namespace's first process, with its wait status.
pub type Finish = fn(&Arc<Process>, i32);

#[derive(Default)]
struct Names {
    number_of: BTreeMap<u32, u32>,
    pid_of: BTreeMap<u32, u32>,
    last: u32,
    /// Its first process ends, or has ended.
    is_over: bool,
    /// That process, its wait status, and what is to be done with it when the others are gone.
    ending: Option<(Arc<Process>, i32, Finish)>,
}

impl Names {
    /// A free number for `pid`, in rising order.
    fn add(&mut self, pid: u32) -> Result {
        if self.is_over {
            return Err(Errno::ENOMEM);
        }
        for _ in 0..PID_MAX {
            let next = if self.last + 1 >= PID_MAX { INIT + 1 } else { self.last + 1 };
            self.last = next;
            if let Entry::Vacant(free) = self.pid_of.entry(next) {
                free.insert(pid);
                self.number_of.insert(pid, next);
                return Ok(());
            }
        }
        Err(Errno::EAGAIN)
    }

    /// Who waited for this to be the last.
    fn remove(&mut self, pid: u32) -> Option<(Arc<Process>, i32, Finish)> {
        if let Some(number) = self.number_of.remove(&pid) {
            self.pid_of.remove(&number);
            // Also when it has failed to become a process.
            self.is_over |= number == INIT;
        }
        if self.pid_of.len() <= 1 { self.ending.take() } else { None }
    }
}

impl PidNamespace {
    /// That of the container.
    pub fn initial() -> Arc<Self> {
        static INITIAL: Once<Arc<PidNamespace>> = Once::new();
        let make = || PidNamespace {
            number: INITIAL_PID,
            level: 0,
            parent: None,
            user: UserNs::default(),
            names: Mutex::default(),
        };
        INITIAL.get_or_set(|| Arc::new(make())).clone()
    }

    /// A new one in this one, of this user namespace: ENOSPC if it were too deep.
    pub fn within(self: &Arc<Self>, user: &UserNs) -> Result<Arc<Self>> {
        if self.level >= MAX_LEVEL {
            return Err(Errno::ENOSPC);
        }
        Ok(Arc::new(PidNamespace {
            number: namespace::next_number(),
            level: self.level + 1,
            parent: Some(self.clone()),
            user: user.clone(),
            names: Mutex::default(),
        }))
    }

    /// This one and those around it, but for the container's own.
    fn numbered(self: &Arc<Self>) -> impl Iterator<Item = Arc<PidNamespace>> {
        let mut next = Some(self.clone());
        core::iter::from_fn(move || {
            let this = next.take().filter(|this| this.level > 0)?;
            next = this.parent.clone();
            Some(this)
        })
    }

    /// True if it is `inner`, or lies around it.
    pub fn contains(&self, inner: &Arc<PidNamespace>) -> bool {
        let mut at = inner;
        loop {
            if at.number == self.number {
                return true;
            }
            let Some(parent) = &at.parent else { return false };
            at = parent;
        }
    }

    /// What it calls `pid`; 0 if it does not see it.
    pub fn number_of(&self, pid: u32) -> u32 {
        match self.level {
            0 => pid,
            _ => self.names.lock().number_of.get(&pid).copied().unwrap_or(0),
        }
    }

    /// The pid that it calls `number`.
    pub fn pid_of(&self, number: u32) -> Option<u32> {
        match self.level {
            0 => Some(number),
            _ => self.names.lock().pid_of.get(&number).copied(),
        }
    }

    /// The number that it gave last.
    pub fn last(&self) -> u32 {
        match self.level {
            0 => table::last_pid(),
            _ => self.names.lock().last,
        }
    }

    /// The process that it calls `number`, zombies included.
    pub fn process(&self, number: u32) -> Option<Arc<Process>> {
        table::process(self.pid_of(number)?)
    }

    /// The thread that it calls `number`.
    pub fn thread(&self, number: u32) -> Option<Arc<Thread>> {
        table::thread(self.pid_of(number)?)
    }

    /// The process that gets orphans; `None` if there is none, or it ends.
    pub fn init(&self) -> Option<Arc<Process>> {
        if self.level > 0 && self.names.lock().is_over {
            return None;
        }
        self.process(INIT).filter(|init| !init.is_zombie())
    }

    /// The processes that it sees and calls `first` or more, zombies included, by rising number.
    pub fn processes_from(
        self: &Arc<Self>,
        first: u32,
    ) -> impl Iterator<Item = (u32, Arc<Process>)> {
        let this = self.clone();
        let mut next = Some(first);
        core::iter::from_fn(move || {
            loop {
                let (number, process) = match this.level {
                    0 => {
                        let process = table::processes_from(next?).next()?;
                        (process.pid, Some(process))
                    }
                    _ => {
                        let names = this.names.lock();
                        let (number, pid) = names.pid_of.range(next?..).next()?;
                        let (number, pid) = (*number, *pid);
                        drop(names);
                        (number, table::process(pid))
                    }
                };
                next = number.checked_add(1);
                if let Some(process) = process {
                    return Some((number, process));
                }
            }
        })
    }

    /// What `pid` is called in it, and in those between it and that of the process whose own is
    /// `inner`, from the outside in: NSpid of proc_pid_status(5).
    pub fn numbers_down_to(&self, inner: &Arc<PidNamespace>, pid: u32) -> Vec<u32> {
        let mut numbers = Vec::new();
        let mut at = Some(inner);
        while let Some(namespace) = at {
            numbers.push(namespace.number_of(pid));
            at = namespace.parent.as_ref().filter(|_| namespace.number != self.number);
        }
        numbers.reverse();
        numbers
    }

    /// Its first process ends: nobody comes to it any more. The others, which are to end with it.
    pub fn end(self: &Arc<Self>) -> impl Iterator<Item = Arc<Process>> {
        self.names.lock().is_over = true;
        self.processes_from(INIT + 1).map(|(_, process)| process)
    }

    /// True if `init`, its first process, which ends with this wait status, is the last. Else
    /// `finish` is called when it is.
    pub fn is_alone(&self, init: &Arc<Process>, status: i32, finish: Finish) -> bool {
        let mut names = self.names.lock();
        if names.pid_of.len() <= 1 {
            return true;
        }
        names.ending = Some((init.clone(), status, finish));
        false
    }
}

/// A pid for something new. It is given back when this is dropped, unless something in the table
/// has it by then.
pub struct NewPid(pub u32);

impl NewPid {
    /// For something in `namespace`: EAGAIN when no number is free, ENOMEM when that is over.
    pub fn new(namespace: &Arc<PidNamespace>) -> Result<NewPid> {
        let pid = table::allocate_pid()?;
        if namespace.level > 0 {
            for numbered in namespace.numbered() {
                let added = numbered.names.lock().add(pid);
                if let Err(error) = added {
                    forget(namespace, pid);
                    return Err(error);
                }
            }
            table::note_namespace(pid, namespace.clone());
        }
        Ok(NewPid(pid))
    }
}

impl Drop for NewPid {
    fn drop(&mut self) {
        table::give_back(self.0);
    }
}

/// Nothing has this pid any more.
pub(super) fn forget(namespace: &Arc<PidNamespace>, pid: u32) {
    for numbered in namespace.numbered() {
        let last = numbered.names.lock().remove(pid);
        if let Some((init, status, finish)) = last {
            finish(&init, status);
        }
    }
}

/// What the thread that the kernel works for calls `pid` (0: it does not see it); for the kernel
/// itself it is the pid.
pub fn shown(pid: u32) -> u32 {
    current::get().map_or(pid, |thread| thread.number_of(pid))
}

impl Process {
    /// True if it is the first process of its namespace, which signals without a handler do not
    /// reach and which gets the orphans.
    pub fn is_init(&self) -> bool {
        match self.pid_namespace.level {
            0 => self.pid == INIT,
            _ => self.pid_namespace.number_of(self.pid) == INIT,
        }
    }

    /// What it calls the process, thread, group or session with this pid; 0 if it does not see it.
    pub fn number_of(&self, pid: u32) -> u32 {
        self.pid_namespace.number_of(pid)
    }
}

impl Thread {
    /// What it calls the process, thread, group or session with this pid; 0 if it does not see it.
    pub fn number_of(&self, pid: u32) -> u32 {
        self.process.number_of(pid)
    }

    /// The pid of what it calls `number`: ESRCH.
    pub fn pid_of(&self, number: u32) -> Result<u32> {
        self.process.pid_namespace.pid_of(number).ok_or(Errno::ESRCH)
    }

    /// The process that it calls `number`, zombies included: ESRCH.
    pub fn find_process(&self, number: u32) -> Result<Arc<Process>> {
        self.process.pid_namespace.process(number).ok_or(Errno::ESRCH)
    }

    /// The thread that it calls `number`: ESRCH.
    pub fn find_thread(&self, number: u32) -> Result<Arc<Thread>> {
        self.process.pid_namespace.thread(number).ok_or(Errno::ESRCH)
    }

    /// As [`Thread::find_process`], also by the number of any of its threads.
    pub fn find_process_of(&self, number: u32) -> Result<Arc<Process>> {
        self.find_process(number)
            .or_else(|_| self.find_thread(number).map(|thread| thread.process.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_from_one_and_are_given_again_at_last() {
        let mut names = Names::default();
        for pid in [70, 80, 90] {
            names.add(pid).unwrap();
        }
        assert_eq!(names.number_of, BTreeMap::from([(70, 1), (80, 2), (90, 3)]));
        names.remove(80);
        names.add(100).unwrap();
        assert_eq!(names.number_of.get(&100), Some(&4));
        names.last = PID_MAX - 1;
        names.add(110).unwrap();
        assert_eq!(names.number_of.get(&110), Some(&2));
        assert_eq!(names.pid_of.len(), names.number_of.len());
        names.is_over = true;
        assert_eq!(names.add(120), Err(Errno::ENOMEM));
        assert!(names.remove(110).is_none());
    }

    #[test]
    fn each_namespace_is_seen_from_those_around_it() {
        let outer = PidNamespace::initial().within(&UserNs::default()).unwrap();
        let inner = outer.within(&UserNs::default()).unwrap();
        assert!(outer.contains(&inner) && !inner.contains(&outer) && inner.contains(&inner));
        outer.names.lock().add(50).unwrap();
        for namespace in inner.numbered() {
            namespace.names.lock().add(60).unwrap();
        }
        assert_eq!((outer.number_of(60), inner.number_of(60), inner.number_of(50)), (2, 1, 0));
        assert_eq!((outer.pid_of(2), inner.pid_of(2)), (Some(60), None));
        assert_eq!(PidNamespace::initial().numbers_down_to(&inner, 60), [60, 2, 1]);
        assert_eq!(outer.numbers_down_to(&inner, 60), [2, 1]);
        let deepest = (2..MAX_LEVEL).fold(inner, |at, _| at.within(&UserNs::default()).unwrap());
        assert!(deepest.within(&UserNs::default()).is_err());
        forget(&deepest.parent.clone().unwrap(), 60);
        assert_eq!(outer.number_of(60), 0);
    }
}
