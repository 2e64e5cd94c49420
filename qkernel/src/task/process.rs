//! A process: what the threads of one thread group share, and what its parent waits for.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::ops::Range;

use linux_raw_sys::general::{RLIMIT_AS, RLIMIT_STACK};
use qlib::{PAGE_SIZE, Va};

use super::pid_namespace::PidNamespace;
use super::rlimit::Rlimits;
use super::tracee::Tracees;
use super::upcalls::Upcalls;
use super::{Thread, current, signal, table};
use crate::fs::OpenFile;
use crate::fs::busy::Claim;
use crate::mm::AddressSpace;
use crate::mm::fault::Growth;
use crate::mm::given::Wanted;
use crate::sync::Mutex;
use crate::time;
use crate::user_namespace::UserNs;
use crate::wait::WaitQueue;

/// A thread group.
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// A number that no other process has, nor had, and no thread as its token.
    pub serial: u64,
    /// The namespace that it is in.
    pub pid_namespace: Arc<PidNamespace>,
    /// The container that it is in.
    pub container: u32,
    /// It is the first process of that.
    pub is_first: bool,
    /// What it needs of the rooms above.
    pub upcalls: &'static Upcalls,
    /// Its address space; `None` once it ended.
    mm: Mutex<Option<Arc<AddressSpace>>>,
    /// Its place in the tree, and its threads.
    pub tree: Mutex<ProcessTree>,
    /// The threads that it traces (ptrace(2)).
    pub tracees: Mutex<Tracees>,
    /// Signal actions and signals pending for the whole process.
    pub signals: Mutex<signal::ProcessSignals>,
    /// Resource limits.
    pub rlimits: Mutex<Rlimits>,
    /// What it runs.
    pub image: Mutex<Image>,
    /// Notified when a child changes state (exits, stops, continues).
    pub child_events: WaitQueue,
    /// Notified when this process ends (pidfd, control Wait), when it has been waited for, and when
    /// a thread of it has ended.
    pub exit_events: WaitQueue,
    /// Notified when one of its threads has ended (execve waits for that).
    pub thread_events: WaitQueue,
    /// Notified when a signal arrives for it or one of its threads (signalfd, sigtimedwait).
    pub signal_events: WaitQueue,
    /// Its core dump, once that is begun: what [`super::coredump`] keeps.
    pub dump: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
    /// prctl(2), personality(2) and accounting.
    pub traits: Mutex<Traits>,
    /// Contexts of io_setup(2), by id: those of [`crate::ipc::aio`].
    pub aio: Mutex<BTreeMap<u64, Arc<dyn Any + Send + Sync>>>,
    /// What it has asked for that is done while it goes on.
    pub(super) errands: Mutex<super::errands::List>,
    /// Its timers.
    pub timers: super::timers::ProcessTimers,
    /// CLOCK_MONOTONIC at its start.
    pub start_ns: u64,
}

/// Where a process comes from.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The container that it is in.
    pub container: u32,
    /// It is the first process of that.
    pub is_first: bool,
    /// What it needs of the rooms above.
    pub upcalls: &'static Upcalls,
}

/// A process's place in the tree.
#[derive(Default)]
pub struct ProcessTree {
    /// Dead or none for pid 1 and for processes started by `exec`.
    pub parent: Weak<Process>,
    /// Living and zombie children, by pid.
    pub children: BTreeMap<u32, Arc<Process>>,
    /// Those of them that may have something to be waited for.
    pub news: BTreeSet<u32>,
    /// Its threads by token, which is the order in which they were made: leader first.
    pub threads: BTreeMap<u64, Arc<Thread>>,
    /// Process group id.
    pub pgid: u32,
    /// Session id.
    pub sid: u32,
    /// Set once all threads are gone (zombie): exit code or signal, as wait(2) encodes it.
    pub exit_status: Option<i32>,
    /// The wait status its leader ended with, while other threads live.
    pub leader_status: Option<i32>,
    /// The process that traced its leader when that ended, while other threads live.
    pub leader_tracer: Option<Weak<dyn Any + Send + Sync>>,
    /// Its parent traced its leader when that ended, and waits for it whatever it does with
    /// SIGCHLD.
    pub is_traced_by_parent: bool,
    /// exit_group(2) or a fatal signal decided on this wait status; threads are ending.
    pub exiting: Option<i32>,
    /// It was chosen to be killed when memory was used up.
    pub is_killed_for_memory: bool,
    /// Its PID namespace is over: its parent, which did not make it, does not wait for it.
    pub is_forgotten: bool,
    /// Signal its parent gets at its end (clone(2)), 0 none.
    pub exit_signal: u32,
    /// PR_SET_CHILD_SUBREAPER.
    pub is_subreaper: bool,
    /// It has called execve(2) since it was forked.
    pub has_execed: bool,
    /// Stopped by this signal, and not reported to wait(2) yet.
    pub stop_report: Option<u32>,
    /// Continued, and not reported to wait(2) yet.
    pub continue_report: bool,
    /// The controlling terminal, of the room above.
    pub tty: Option<Arc<dyn Any + Send + Sync>>,
    /// Its real user id, kept for siginfo after its end.
    pub uid: u32,
}

/// Settings and counts of a process that few calls touch.
#[derive(Clone, Debug)]
pub struct Traits {
    /// PR_SET_DUMPABLE.
    pub dumpable: u32,
    /// The user namespace that its program began in, or a larger one: who looks into it though it
    /// is not dumpable must be capable there.
    pub memory_user: UserNs,
    /// oom_score_adj of proc(5), and the least that it may be set to without CAP_SYS_RESOURCE.
    pub oom_score_adj: (i32, i32),
    /// coredump_filter of core(5).
    pub coredump_filter: u32,
    /// personality(2).
    pub personality: u32,
    /// PR_SET_THP_DISABLE.
    pub thp_disable: bool,
    /// Commands of membarrier(2) it registered for.
    pub membarrier: u32,
    /// Most resident memory it had at the moments it was looked at, in KiB.
    pub max_rss_kib: u64,
    /// When its use of CPU time is looked at next for RLIMIT_CPU, as CLOCK_MONOTONIC; 0 never.
    pub cpu_look_ns: u64,
    /// What its ended threads used.
    pub usage: Usage,
    /// That of children it has waited for.
    pub children_usage: Usage,
    /// Most resident memory of children it has waited for, in KiB.
    pub children_max_rss_kib: u64,
}

impl Default for Traits {
    fn default() -> Self {
        Traits {
            dumpable: 1,
            memory_user: UserNs::default(),
            oom_score_adj: (0, 0),
            coredump_filter: 0x33,
            personality: 0,
            thp_disable: false,
            membarrier: 0,
            max_rss_kib: 0,
            cpu_look_ns: 0,
            usage: Usage::default(),
            children_usage: Usage::default(),
            children_max_rss_kib: 0,
        }
    }
}

/// What user programs have used, as getrusage(2) tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time in user mode, in nanoseconds.
    pub user_ns: u64,
    /// Time in the kernel, in nanoseconds.
    pub system_ns: u64,
    /// Page faults that needed no disk. (One shows several pages where they lie in a row.)
    pub minor_faults: u64,
    /// Those that brought a page back from the store.
    pub major_faults: u64,
    /// How often it has slept, waiting for something.
    pub voluntary_switches: u64,
    /// How often it has given way to others while it could go on, as far as the platform tells.
    pub other_switches: u64,
}

impl Usage {
    /// Both times together.
    pub fn total_ns(self) -> u64 {
        self.user_ns.saturating_add(self.system_ns)
    }
}

impl core::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Usage) {
        self.user_ns = self.user_ns.saturating_add(other.user_ns);
        self.system_ns = self.system_ns.saturating_add(other.system_ns);
        self.minor_faults = self.minor_faults.saturating_add(other.minor_faults);
        self.major_faults = self.major_faults.saturating_add(other.major_faults);
        self.voluntary_switches = self.voluntary_switches.saturating_add(other.voluntary_switches);
        self.other_switches = self.other_switches.saturating_add(other.other_switches);
    }
}

/// Shares what the host has given to an address space among those who live there.
fn share_out<'a>(
    mm: &AddressSpace,
    now_ns: u64,
    threads: impl Iterator<Item = &'a Arc<Thread>> + Clone,
) {
    let mut wanted = Wanted::default();
    threads.clone().for_each(|thread| wanted += thread.cpu_time.since_look(now_ns));
    let share = mm.look_at_given(now_ns, wanted);
    threads.for_each(|thread| thread.cpu_time.looked_at(now_ns, share));
}

/// What a process runs.
#[derive(Clone, Default)]
pub struct Image {
    /// The executable.
    pub exe: Option<Arc<OpenFile>>,
    /// Nobody writes to it meanwhile.
    pub claim: Option<Arc<Claim>>,
    /// Its absolute path in the container.
    pub path: Vec<u8>,
    /// argv, NUL-terminated each, as it was at exec.
    pub cmdline: Vec<u8>,
    /// Where the program has its arguments: what lies there by now is /proc/PID/cmdline.
    pub args: Range<Va>,
    /// Where its environment lies.
    pub env: Range<Va>,
    /// Auxiliary vector as stored on the stack.
    pub auxv: Vec<u8>,
}

impl Image {
    /// The arguments as they lie in the program's memory, where it may have written others, or a
    /// title of its own (setproctitle(3)): then that goes on into the environment, to its first NUL
    /// byte.
    pub fn arguments(&self, mm: &AddressSpace) -> Vec<u8> {
        let Range { start, end } = self.args;
        let last = end.0.checked_sub(1).filter(|last| *last >= start.0);
        let last = last.and_then(|last| mm.read::<u8>(Va(last)).ok());
        match last {
            None => Vec::new(),
            Some(0) => bytes_of(mm, &self.args),
            Some(_) => {
                let most = start.checked_add(PAGE_SIZE).unwrap_or(end);
                let mut title = bytes_of(mm, &(start..most));
                let len = title.iter().position(|byte| *byte == 0).map(|at| at + 1);
                title.truncate(len.unwrap_or(title.len()));
                title
            }
        }
    }

    /// The environment as it lies in the program's memory.
    pub fn environment(&self, mm: &AddressSpace) -> Vec<u8> {
        bytes_of(mm, &self.env)
    }
}

/// What lies in a range, up to what cannot be read.
fn bytes_of(mm: &AddressSpace, range: &Range<Va>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let next = (at.page_floor() + PAGE_SIZE).min(range.end);
        let len = bytes.len();
        bytes.resize(len + (next - at) as usize, 0);
        if mm.read_bytes(at, &mut bytes[len..]).is_err() {
            bytes.truncate(len);
            break;
        }
        at = next;
    }
    bytes
}

impl Process {
    /// A process without threads yet.
    pub fn new(
        pid: u32,
        pid_namespace: Arc<PidNamespace>,
        mm: Arc<AddressSpace>,
        rlimits: Rlimits,
        Origin { container, is_first, upcalls }: Origin,
    ) -> Self {
        Process {
            pid,
            serial: table::allocate_token(),
            pid_namespace,
            container,
            is_first,
            upcalls,
            mm: Mutex::new(Some(mm)),
            tree: Mutex::default(),
            tracees: Mutex::default(),
            signals: Mutex::default(),
            rlimits: Mutex::new(rlimits),
            image: Mutex::default(),
            child_events: WaitQueue::new(),
            exit_events: WaitQueue::new(),
            thread_events: WaitQueue::new(),
            signal_events: WaitQueue::new(),
            dump: Mutex::default(),
            traits: Mutex::default(),
            aio: Mutex::default(),
            errands: Mutex::default(),
            timers: Default::default(),
            start_ns: crate::time::monotonic_ns(),
        }
    }

    /// Its address space; an empty one if it ended.
    pub fn mm(&self) -> Arc<AddressSpace> {
        let mm = self.mm.lock().clone();
        mm.unwrap_or_else(AddressSpace::placeholder)
    }

    /// Looks at its address space. `look` must not come back here.
    pub fn with_mm<R>(&self, look: impl FnOnce(&AddressSpace) -> R) -> R {
        match &*self.mm.lock() {
            Some(mm) => look(mm),
            None => look(&AddressSpace::placeholder()),
        }
    }

    /// Replaces its address space (exec).
    pub fn set_mm(&self, mm: Arc<AddressSpace>) {
        let old = self.mm.lock().replace(mm);
        drop(old);
    }

    /// Gives up its address space (exit).
    pub fn drop_mm(&self) {
        let old = self.mm.lock().take();
        drop(old);
        self.drop_aio();
        self.cancel_errands();
    }

    /// Gives up its contexts of asynchronous I/O, as exec and exit do.
    pub fn drop_aio(&self) {
        let contexts = core::mem::take(&mut *self.aio.lock());
        drop(contexts);
    }

    /// How far a fault may extend its stack.
    pub fn growth(&self) -> Growth {
        let limits = self.rlimits.lock();
        Growth { stack_bytes: limits.soft(RLIMIT_STACK), total_bytes: limits.soft(RLIMIT_AS) }
    }

    /// Its threads now.
    pub fn threads(&self) -> Vec<Arc<Thread>> {
        self.tree.lock().threads.values().cloned().collect()
    }

    /// How many threads it has now.
    pub fn thread_count(&self) -> usize {
        self.tree.lock().threads.len()
    }

    /// Its threads, one after the other, without a list of them: there may be no memory for one.
    pub fn each_thread(&self) -> impl Iterator<Item = Arc<Thread>> {
        let mut next = 0;
        core::iter::from_fn(move || {
            let links = self.tree.lock();
            let (token, thread) = links.threads.range(next..).next()?;
            next = token + 1;
            Some(thread.clone())
        })
    }

    /// Its first thread that lives, the leader as a rule.
    pub fn first_thread(&self) -> Option<Arc<Thread>> {
        self.tree.lock().threads.values().next().cloned()
    }

    /// Its parent, if it lives.
    pub fn parent(&self) -> Option<Arc<Process>> {
        self.tree.lock().parent.upgrade()
    }

    /// Its parent's pid, or 0.
    pub fn ppid(&self) -> u32 {
        self.parent().map_or(0, |p| p.pid)
    }

    /// True if it came by `quark exec`: nobody in the container made it, and it is not the first.
    pub fn is_visitor(&self) -> bool {
        !self.is_first && self.parent().is_none()
    }

    /// Its process group's id.
    pub fn pgid(&self) -> u32 {
        self.tree.lock().pgid
    }

    /// Its session's id.
    pub fn sid(&self) -> u32 {
        self.tree.lock().sid
    }

    /// The real user id of its first thread, or that of its last one if it ended.
    pub fn uid(&self) -> u32 {
        match self.first_thread() {
            Some(thread) => thread.creds().uid,
            None => self.tree.lock().uid,
        }
    }

    /// What it calls a user, by the kernel id.
    pub fn uid_shown(&self, uid: u32) -> u32 {
        self.first_thread().map_or(uid, |thread| thread.creds().uid_shown(uid))
    }

    /// True if all its threads have ended.
    pub fn is_zombie(&self) -> bool {
        self.tree.lock().exit_status.is_some()
    }

    /// True until it has been waited for.
    pub fn is_in_table(&self) -> bool {
        table::process(self.pid).is_some_and(|process| process.serial == self.serial)
    }

    /// The soft limit of RLIMIT_* `which`.
    pub fn rlimit(&self, which: u32) -> u64 {
        self.rlimits.lock().soft(which)
    }

    /// What its threads have used, ended ones included.
    pub fn usage(&self) -> Usage {
        self.look_at_given();
        let mut usage = self.traits.lock().usage;
        for thread in self.each_thread() {
            usage += thread.used();
        }
        usage
    }

    /// Looks at what CPU time the host has given to its threads, and to others with its memory.
    pub fn look_at_given(&self) {
        let mm = self.mm();
        let now_ns = time::monotonic_ns();
        let links = self.tree.lock();
        if links.threads.len() == mm.thread_count() {
            return share_out(&mm, now_ns, links.threads.values());
        }
        drop(links);
        let tokens = mm.threads().into_iter().map(|thread| thread.token);
        let threads: Vec<_> = tokens.filter_map(table::thread_by_token).collect();
        share_out(&mm, now_ns, threads.iter());
    }

    /// Does so if the time of one of them is not known well enough: one among many is not worth a
    /// look at all of them each time.
    pub(super) fn look_for_one(&self) {
        let is_alone = self.tree.lock().threads.len() <= 1;
        if is_alone || !self.with_mm(|mm| mm.is_share_fresh(time::monotonic_ns())) {
            self.look_at_given();
        }
    }

    /// Its state as /proc/PID/stat has it: R, S, T or Z.
    pub fn state_letter(&self) -> char {
        // As on Linux, also when only its leader has ended.
        if self.is_zombie() || self.tree.lock().leader_status.is_some() {
            return 'Z';
        }
        if self.signals.lock().is_stopped() {
            return 'T';
        }
        let is_current = current::get().is_some_and(|t| t.process.pid == self.pid);
        if is_current || self.each_thread().any(|t| t.user.is_in_user_mode()) { 'R' } else { 'S' }
    }

    /// The most of its memory that has been resident, also of programs that it has executed before,
    /// if this was called at their ends, in KiB.
    pub fn note_resident(&self) -> u64 {
        let (_, peak_bytes) = self.mm().peaks();
        let mut traits = self.traits.lock();
        traits.max_rss_kib = traits.max_rss_kib.max(peak_bytes / 1024);
        traits.max_rss_kib
    }
}
