//! Processes and threads of the guest.
//!
//! A [`Thread`] is one executor task ([`run`]); a [`Process`] is what its threads share and what
//! wait(2) sees. Both are found by number in [`table`]. Locks of different objects are taken one at
//! a time unless a comment says otherwise.

pub mod access;
pub mod affinity;
pub mod clone;
pub mod coredump;
pub mod cpu_clock;
pub mod cpu_limit;
pub mod cpu_time;
pub mod current;
pub mod dispatch;
pub mod elf;
pub mod errands;
pub mod exec;
pub mod exit;
pub mod filters;
pub mod listener;
pub mod login;
pub mod lost;
pub mod namespaces;
pub mod oom;
pub mod outcome;
pub mod owed;
pub mod pause;
pub mod pid_namespace;
pub mod pidfd;
pub mod process;
pub mod rlimit;
pub mod rseq;
pub mod run;
pub mod seccomp;
pub mod session;
pub mod share;
pub mod signal;
pub mod table;
pub mod timer;
pub mod timers;
pub mod trace;
pub mod tracee;
pub mod upcalls;
pub mod userfault;
pub mod vdso;
pub mod wait;
pub mod worker;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use qlib::Va;
use qlib::platform::{DeferredOp, UserRegs};

pub use login::Login;
pub use process::Process;
pub use signal::{SigSet, Signo};

use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::fs::{Caller, FdTable, FsContext};
use crate::mm::missed::Missed;
use crate::mm::policy::Policy;
use crate::mm::{AddressSpace, UserThread, rmap};
use crate::sync::Mutex;
use crate::wait::{Signal, Sleeper};
use namespaces::Namespaces;

/// A guest thread.
pub struct Thread {
    /// Thread id, unique among live threads. It changes when a thread that is not the leader calls
    /// execve(2).
    tid: AtomicU32,
    /// What it shares with the other threads of its process.
    pub process: Arc<Process>,
    /// The platform's side of it.
    pub user: Arc<UserThread>,
    /// Set by whatever it may wait for.
    wakeup: Arc<Signal>,
    /// Descriptors (CLONE_FILES).
    files: Mutex<Arc<FdTable>>,
    /// Root, working directory, umask (CLONE_FS).
    pub fs: Mutex<Arc<Mutex<FsContext>>>,
    /// Its namespaces; replaced as a whole when they change.
    namespaces: Mutex<Arc<Namespaces>>,
    /// Credentials; replaced as a whole when they change.
    creds: Mutex<Arc<Creds>>,
    /// Its signal mask, pending signals, alternate stack.
    pub signals: Mutex<signal::ThreadSignals>,
    /// Things few calls touch.
    pub attrs: Mutex<ThreadAttrs>,
    /// It is to end as soon as it can (exit_group, a fatal signal, exec of another thread).
    dying: AtomicBool,
    /// It only stands in for a thread ([`worker`]).
    is_worker: bool,
    /// How its system calls are restricted.
    pub seccomp: filters::State,
    /// Which of its calls it takes itself.
    pub dispatch: dispatch::State,
    /// The wait status it ends with, if it is the last (exit(2)).
    pub exit_status: Mutex<i32>,
    /// System calls made.
    pub syscalls: AtomicU64,
    /// What memory objects have lost by the system call that it makes.
    pub lost: Mutex<Vec<rmap::Lost>>,
    /// Pages that its system call needs, and others see to first ([`userfault`]).
    pub missed: Mutex<Missed>,
    /// Threads of its address space that it has made, with their first registers. The platform has
    /// them made by this one when it goes on, and until then nothing of theirs begins: whoever
    /// waited for them would wait for this one too.
    pub newborn: Mutex<Vec<(Arc<Thread>, UserRegs)>>,
    /// How it is traced (ptrace(2)).
    pub trace: tracee::Trace,
    /// How long it has run.
    pub cpu_time: cpu_time::CpuTime,
    /// Page faults that needed no disk, and those that brought a page back from the store.
    minor_faults: AtomicU64,
    major_faults: AtomicU64,
    /// How often it has slept, and how often it has given way to others while it could go on.
    voluntary_switches: AtomicU64,
    other_switches: AtomicU64,
}

/// Things of a thread that few calls touch.
#[derive(Clone, Default)]
pub struct ThreadAttrs {
    /// PR_SET_NAME, at most 15 bytes.
    pub name: Vec<u8>,
    /// set_tid_address(2): zeroed, and a futex woken there, when the thread ends.
    pub clear_child_tid: Va,
    /// get_robust_list(2): head and length.
    pub robust_list: (Va, usize),
    /// vfork(2): the parent's thread, which waits until this is taken out (and set): at exec, or at
    /// the end.
    pub vfork_parent: Option<Arc<Signal>>,
    /// PR_SET_PDEATHSIG.
    pub parent_death_signal: u32,
    /// PR_SET_TIMERSLACK, in nanoseconds; 0 for the default.
    pub timer_slack_ns: u64,
    /// set_mempolicy(2).
    pub memory_policy: Policy,
    /// setpriority(2).
    pub nice: i32,
    /// sched_setscheduler(2): policy (with SCHED_RESET_ON_FORK) and priority.
    pub policy: (u32, i32),
    /// sched_setaffinity(2), a bit for each CPU; 0 = all.
    pub affinity: u64,
    /// ioprio_set(2).
    pub io_priority: u32,
    /// rseq(2).
    pub rseq: Option<Rseq>,
    /// /proc/PID/loginuid and sessionid.
    pub login: Login,
}

/// A thread's area for restartable sequences (rseq(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rseq {
    area: Va,
    len: u32,
    /// What stands before the instructions to which sections are aborted.
    sig: u32,
}

/// What a new thread begins with.
pub struct NewThread {
    /// Thread id.
    pub tid: u32,
    /// Its process.
    pub process: Arc<Process>,
    /// The platform's side of it, stopped.
    pub user: UserThread,
    /// Descriptors.
    pub files: Arc<FdTable>,
    /// Root, working directory, umask.
    pub fs: Arc<Mutex<FsContext>>,
    /// Namespaces.
    pub namespaces: Arc<Namespaces>,
    /// Credentials.
    pub creds: Arc<Creds>,
    /// Signal mask and alternate stack.
    pub signals: signal::ThreadSignals,
    /// How its system calls are restricted.
    pub seccomp: filters::State,
    /// The rest.
    pub attrs: ThreadAttrs,
}

impl Sleeper for Thread {
    fn wakeup(&self) -> Arc<Signal> {
        self.wakeup.clone()
    }

    fn is_interrupted(&self) -> bool {
        self.is_dying() || !self.is_worker && signal::has_deliverable(self)
    }

    fn is_dying(&self) -> bool {
        self.dying.load(Ordering::Relaxed)
    }

    fn sleeps(&self) {
        self.voluntary_switches.fetch_add(1, Ordering::Relaxed);
    }
}

impl Caller for Arc<Thread> {
    fn creds(&self) -> Arc<Creds> {
        Thread::creds(self)
    }

    fn mm(&self) -> Arc<AddressSpace> {
        Thread::mm(self)
    }

    fn files(&self) -> Arc<FdTable> {
        Thread::files(self)
    }

    fn look_at_fs(&self, look: &mut dyn FnMut(&FsContext)) {
        Thread::with_fs(self, look);
    }

    fn mount_namespace(&self) -> u64 {
        self.namespaces.lock().mnt.number
    }

    fn pid(&self) -> u32 {
        self.process.pid
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The thread for which something is done with files.
///
/// # Errors
/// ESRCH if it is none.
pub fn thread_of(caller: &dyn Caller) -> Result<&Arc<Thread>> {
    caller.as_any().downcast_ref().ok_or(Errno::ESRCH)
}

impl Thread {
    /// Makes a thread and enters it where it can be found: in its process and in [`table`]. The
    /// room above sets it going.
    pub fn enter(new: NewThread) -> Arc<Self> {
        let thread = Arc::new(Thread {
            tid: AtomicU32::new(new.tid),
            process: new.process,
            user: Arc::new(new.user),
            wakeup: Arc::default(),
            files: Mutex::new(new.files),
            fs: Mutex::new(new.fs),
            namespaces: Mutex::new(new.namespaces),
            creds: Mutex::new(new.creds),
            signals: Mutex::new(new.signals),
            attrs: Mutex::new(new.attrs),
            dying: AtomicBool::new(false),
            is_worker: false,
            seccomp: new.seccomp,
            dispatch: dispatch::State::default(),
            exit_status: Mutex::new(0),
            syscalls: AtomicU64::new(0),
            lost: Mutex::new(Vec::new()),
            missed: Mutex::default(),
            newborn: Mutex::new(Vec::new()),
            trace: tracee::Trace::default(),
            cpu_time: cpu_time::CpuTime::default(),
            minor_faults: AtomicU64::new(0),
            major_faults: AtomicU64::new(0),
            voluntary_switches: AtomicU64::new(0),
            other_switches: AtomicU64::new(0),
        });
        thread.mm().join(&thread.user);
        thread.process.tree.lock().threads.insert(thread.user.token, thread.clone());
        table::add_thread(&thread);
        thread.tell_name();
        thread
    }

    /// Thread id, unique among live threads.
    pub fn tid(&self) -> u32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// Takes the thread id of the leader, which has ended (execve(2)).
    pub fn become_leader(self: &Arc<Self>) {
        let (old, new) = (self.tid(), self.process.pid);
        self.process.tree.lock().leader_status = None;
        if old != new {
            self.tid.store(new, Ordering::Relaxed);
            self.user.answers(None);
            table::renumber_thread(old, self);
        }
    }

    /// Its address space, or that of its process's last moment.
    pub fn mm(&self) -> Arc<AddressSpace> {
        self.process.mm()
    }

    /// By how much its sleeps may be late (PR_SET_TIMERSLACK), in nanoseconds.
    pub fn timer_slack_ns(&self) -> u64 {
        /// Of threads that did not set one.
        const DEFAULT_NS: u64 = 50_000;
        match self.attrs.lock().timer_slack_ns {
            0 => DEFAULT_NS,
            slack => slack,
        }
    }

    /// Its descriptors.
    pub fn files(&self) -> Arc<FdTable> {
        self.files.lock().clone()
    }

    /// Gives it another descriptor table (unshare, exec).
    pub fn set_files(&self, files: Arc<FdTable>) {
        // The old table may close files: not while the lock is held.
        let old = core::mem::replace(&mut *self.files.lock(), files);
        drop(old);
    }

    /// A copy of its root, working directory and umask.
    pub fn fs(&self) -> FsContext {
        FsContext { executing: 0, ..self.fs.lock().clone().lock().clone() }
    }

    /// Looks at its root, working directory and umask. `look` must not wake anybody or close files.
    pub fn with_fs<R>(&self, look: impl FnOnce(&FsContext) -> R) -> R {
        look(&self.fs.lock().lock())
    }

    /// Changes its root, working directory or umask (for all that share them).
    pub fn update_fs(&self, change: impl FnOnce(&mut FsContext)) {
        let shared = self.fs.lock().clone();
        change(&mut shared.lock());
    }

    /// Its namespaces.
    pub fn namespaces(&self) -> Arc<Namespaces> {
        self.namespaces.lock().clone()
    }

    /// Has it enter others.
    pub fn set_namespaces(&self, namespaces: Namespaces) {
        // The old ones may be the last of theirs: not ended while the lock is held.
        let old = core::mem::replace(&mut *self.namespaces.lock(), Arc::new(namespaces));
        drop(old);
    }

    /// Its credentials.
    pub fn creds(&self) -> Arc<Creds> {
        self.creds.lock().clone()
    }

    /// Replaces its credentials.
    pub fn set_creds(&self, creds: Creds) {
        let new = Arc::new(creds);
        table::note_user(self.user.token, new.uid);
        let old = core::mem::replace(&mut *self.creds.lock(), new.clone());
        // Who gets other rights may hold secrets from before (prctl(2), PR_SET_DUMPABLE and
        // PR_SET_PDEATHSIG).
        if !new.is_within(&old) {
            self.process.traits.lock().dumpable = 0;
            self.attrs.lock().parent_death_signal = 0;
        }
    }

    /// Counts one system call.
    pub fn count_syscall(&self) {
        self.syscalls.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes it end as soon as it can: wakes it from any wait and interrupts it in user mode.
    pub fn kill(&self) {
        if !self.dying.swap(true, Ordering::Relaxed) {
            self.interrupt();
        }
    }

    /// Makes it look at its signals (and `dying`): wakes it from any wait, interrupts it in user
    /// mode.
    pub fn interrupt(&self) {
        self.wakeup.set();
        self.user.interrupt();
    }

    /// Counts a page fault that was served; `major`: with a page from the store.
    pub fn count_fault(&self, major: bool) {
        let counter = if major { &self.major_faults } else { &self.minor_faults };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts that others have its processor while it could go on.
    pub fn count_preemption(&self) {
        self.other_switches.fetch_add(1, Ordering::Relaxed);
    }

    /// What it has used.
    pub fn usage(&self) -> process::Usage {
        self.process.look_for_one();
        self.used()
    }

    /// The same, with CPU time by the last look at what the host gave.
    fn used(&self) -> process::Usage {
        let (user_ns, system_ns) = self.cpu_time.told(self.process.with_mm(AddressSpace::share));
        process::Usage {
            user_ns,
            system_ns,
            minor_faults: self.minor_faults.load(Ordering::Relaxed),
            major_faults: self.major_faults.load(Ordering::Relaxed),
            voluntary_switches: self.voluntary_switches.load(Ordering::Relaxed),
            other_switches: self.other_switches.load(Ordering::Relaxed),
        }
    }

    /// Has it go by another name from now on, of at most 15 bytes.
    pub fn set_name(&self, name: Vec<u8>) {
        self.attrs.lock().name = name;
        self.tell_name();
    }

    /// Has the host call it by its name, where the host has a thread for it: but not while other
    /// threads could change that name's bytes before the host has read them.
    fn tell_name(&self) {
        let mm = self.mm();
        if mm.depends_on_user_code() && mm.has_one_thread() {
            self.user.attach_op(DeferredOp::set_name(&self.attrs.lock().name));
        }
    }

    /// Its name as /proc shows it.
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&self.attrs.lock().name).into_owned()
    }
}
