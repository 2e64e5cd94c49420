//! Making threads and processes (clone(2), clone3(2), fork(2), vfork(2)).

use alloc::sync::Arc;

use linux_raw_sys::general::{
    CAP_SYS_ADMIN, CAP_SYS_RESOURCE, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID, CLONE_CLEAR_SIGHAND,
    CLONE_FILES, CLONE_FS, CLONE_IO, CLONE_NEWIPC, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER,
    CLONE_PARENT, CLONE_PARENT_SETTID, CLONE_PIDFD, CLONE_PTRACE, CLONE_SETTLS, CLONE_SIGHAND,
    CLONE_SYSVSEM, CLONE_THREAD, CLONE_UNTRACED, CLONE_VFORK, CLONE_VM, RLIMIT_NOFILE,
    RLIMIT_NPROC, SIGCHLD,
};
use linux_raw_sys::ptrace::{
    PTRACE_EVENT_CLONE, PTRACE_EVENT_FORK, PTRACE_EVENT_VFORK, PTRACE_EVENT_VFORK_DONE,
};
use qlib::Va;

use super::namespaces::{self, Namespaces};
use super::pid_namespace::{NewPid, PidNamespace};
use super::pidfd::PidFd;
use super::process::{Origin, Process};
use super::signal::SIGNALS;
use super::{
    NewThread, Thread, ThreadAttrs, affinity, cpu_limit, exit, oom, run, share, table, trace,
    userfault,
};
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::fs::{FsContext, OpenFile};
use crate::mm::thread::shed;
use crate::mm::{AddressSpace, UserThread};
use crate::sync::Mutex;
use crate::wait::Sleeper;

/// What to make.
#[derive(Clone, Copy, Debug, Default)]
pub struct CloneArgs {
    /// CLONE_*, without the exit signal.
    pub flags: u64,
    /// The child's stack pointer, or 0 for its parent's.
    pub stack: u64,
    /// Signal for the parent at the child's end.
    pub exit_signal: u32,
    /// CLONE_PARENT_SETTID.
    pub parent_tid: Va,
    /// CLONE_CHILD_SETTID, CLONE_CHILD_CLEARTID.
    pub child_tid: Va,
    /// CLONE_SETTLS.
    pub tls: u64,
    /// CLONE_PIDFD: where the descriptor is stored.
    pub pidfd: Va,
}

const NAMESPACES: u64 = namespaces::FLAGS as u64;
const KNOWN: u64 = (CLONE_VM
    | CLONE_FS
    | CLONE_FILES
    | CLONE_SIGHAND
    | CLONE_PIDFD
    | CLONE_PTRACE
    | CLONE_VFORK
    | CLONE_PARENT
    | CLONE_THREAD
    | CLONE_SYSVSEM
    | CLONE_SETTLS
    | CLONE_PARENT_SETTID
    | CLONE_CHILD_CLEARTID
    | CLONE_CHILD_SETTID
    | CLONE_UNTRACED
    | CLONE_IO) as u64
    | CLONE_CLEAR_SIGHAND
    | linux_raw_sys::general::CLONE_DETACHED as u64;

impl CloneArgs {
    fn has(&self, flag: u32) -> bool {
        self.flags & u64::from(flag) != 0
    }

    /// EINVAL for what clone(2) calls contradictory.
    pub fn check(&self) -> Result {
        let contradictory = (self.has(CLONE_NEWNS) && self.has(CLONE_FS))
            || (self.has(CLONE_NEWUSER) && self.has(CLONE_FS))
            || (self.has(CLONE_NEWIPC) && self.has(CLONE_SYSVSEM))
            || (self.has(CLONE_THREAD) && (self.has(CLONE_NEWUSER) || self.has(CLONE_NEWPID)))
            || (self.has(CLONE_THREAD) && !self.has(CLONE_SIGHAND))
            || (self.has(CLONE_SIGHAND) && !self.has(CLONE_VM))
            || (self.has(CLONE_SIGHAND) && self.flags & CLONE_CLEAR_SIGHAND != 0);
        if contradictory || self.flags & !(KNOWN | NAMESPACES) != 0 || self.exit_signal > SIGNALS {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// The namespaces of what `thread` makes, which has `fs`, and its credentials.
    fn namespaces(
        &self,
        thread: &Thread,
        fs: &Mutex<FsContext>,
    ) -> Result<(Arc<Namespaces>, Arc<Creds>)> {
        let new = (self.flags & NAMESPACES) as u32;
        if new == 0 {
            return Ok((thread.namespaces(), thread.creds()));
        }
        let mut places = fs.lock().clone();
        let (renewed, creds) = Namespaces::renewed(thread, new, &mut places)?;
        core::mem::swap(&mut *fs.lock(), &mut places);
        Ok((Arc::new(renewed), creds.map_or_else(|| thread.creds(), Arc::new)))
    }
}

/// Makes a thread or process as `args` says: its id.
pub async fn clone(thread: &Arc<Thread>, args: CloneArgs) -> Result<usize> {
    args.check()?;
    Namespaces::check_renewal(thread, (args.flags & NAMESPACES) as u32)?;
    let is_of_nobody = thread.process.parent().is_none() || thread.process.is_init();
    if args.has(CLONE_PARENT) && is_of_nobody {
        // The sibling of a first process would be the child of somebody outside.
        return Err(Errno::EINVAL);
    }
    check_limit(thread)?;
    oom::room_for_clone(thread, !args.has(CLONE_VM)).await?;
    shed::keep_places();
    let regs = thread.user.registers().await?;
    let mm = thread.mm();
    let shares_memory = args.has(CLONE_VM);
    // Held until the parent's pages are write-protected. A pause that begins now waits for the
    // changes of mappings to be carried out.
    let frozen = if shares_memory { None } else { run::freeze_to_sync(thread).await };
    if frozen.is_some() {
        mm.hide_before_fork();
        thread.user.flush(&mm).await?;
    }
    let child_mm = if shares_memory { mm.clone() } else { mm.fork()? };
    userfault::collect(thread, &mm);
    if !shares_memory {
        // The parent's pages must be write-protected before the child exists.
        thread.user.flush(&mm).await?;
    }
    drop(frozen);
    if shares_memory {
        mm.set_shared();
    }
    if thread.is_dying() {
        // Whoever ends this process's threads (exit_group, exec of another thread) does not see one
        // that is made now.
        return Err(Errno::ERESTARTNOINTR);
    }
    let creator = shares_memory.then_some(&*thread.user);
    let user = UserThread::new(&child_mm, creator, table::allocate_token())?;
    user.set_fpstate(&thread.user.fpstate()?)?;
    let attrs = inherit_attrs(thread, &args);
    if attrs.rseq.is_some() {
        user.watch(true)?;
    }
    let fs = if args.has(CLONE_FS) {
        thread.fs.lock().clone()
    } else {
        Arc::new(Mutex::new(thread.fs()))
    };
    if fs.lock().executing > 0 {
        // Who executes a program relies on who shares these with it.
        return Err(Errno::EAGAIN);
    }
    let (namespaces, creds) = args.namespaces(thread, &fs)?;
    let same_process = args.has(CLONE_THREAD);
    let creds = match creds.rings.are_inherited(same_process) {
        true => creds,
        false => {
            let rings = creds.rings.inherited(same_process);
            Arc::new(Creds { rings, ..Creds::clone(&creds) })
        }
    };
    let pid_namespace = &namespaces.pid_for_children;
    if args.has(CLONE_THREAD) && !Arc::ptr_eq(pid_namespace, &thread.process.pid_namespace) {
        return Err(Errno::EINVAL);
    }
    let new_pid = NewPid::new(pid_namespace)?;
    let tid = new_pid.0;
    let process = if args.has(CLONE_THREAD) {
        thread.process.clone()
    } else {
        new_process(thread, &args, tid, (pid_namespace.clone(), child_mm))
    };
    let files = if args.has(CLONE_FILES) { thread.files() } else { thread.files().duplicate()? };
    let pidfd = match args.has(CLONE_PIDFD) {
        true => Some(give_pidfd(thread, &process, tid, &args)?),
        false => None,
    };

    // Nothing fails from here on until the child has its task: whoever is in the tables has one
    // that takes it out of them.
    let child = Thread::enter(NewThread {
        tid,
        process: process.clone(),
        user,
        files,
        fs,
        namespaces,
        creds,
        signals: thread.signals.lock().inherit(!shares_memory || args.has(CLONE_VFORK)),
        seccomp: thread.seccomp.inherit(),
        attrs,
    });
    if let Some(pidfd) = pidfd {
        PidFd::born(&pidfd, &child);
    }
    // What both call it.
    let (number, own_number) = (thread.number_of(tid), child.number_of(tid));
    affinity::apply(&child);
    if !args.has(CLONE_THREAD) {
        table::add_process(&process);
        let parent = if args.has(CLONE_PARENT) { thread.process.parent() } else { None };
        let parent = parent.unwrap_or_else(|| thread.process.clone());
        process.tree.lock().parent = Arc::downgrade(&parent);
        parent.tree.lock().children.insert(process.pid, process.clone());
    }
    cpu_limit::watch(&process);
    if args.has(CLONE_PARENT_SETTID) {
        // As on Linux, a bad address does not undo what has been made.
        let _ = mm.write(args.parent_tid, &number);
    }
    if args.has(CLONE_CHILD_SETTID) {
        let _ = process.mm().write(args.child_tid, &own_number);
    }

    let mut first = regs;
    first.rax = 0;
    if args.stack != 0 {
        first.rsp = args.stack;
    }
    if args.has(CLONE_SETTLS) {
        first.fs_base = args.tls;
    }
    if args.has(CLONE_VFORK) {
        child.attrs.lock().vfork_parent = Some(thread.wakeup());
    }
    let event = traced_event(thread, &args);
    if event.is_some() || args.has(CLONE_PTRACE) {
        trace::inherit(thread, &child);
    }
    thread.newborn.lock().push((child.clone(), first));
    if !shares_memory {
        run::start_newborn(thread);
    } else if args.has(CLONE_VFORK) || thread.is_interrupted() || event.is_some() {
        // The child is made by this thread, which will not go on before the child has gone its own
        // way, or a signal lets it.
        run::may_sync(thread).await;
        thread.user.hold(&mm).await?;
        run::start_newborn(thread);
    }
    if let Some(event) = event {
        trace::stops::for_event(thread, event, tid.into()).await;
    }
    if args.has(CLONE_VFORK) {
        wait_for_vfork(thread, &child).await;
        trace::stops::for_event(thread, PTRACE_EVENT_VFORK_DONE, tid.into()).await;
    }
    if !shares_memory {
        share::grown(&thread.process, share::FORK_PAGES);
    }
    Ok(number as usize)
}

/// The event that a tracer of the thread is told of (ptrace(2), PTRACE_SETOPTIONS), if it is.
fn traced_event(thread: &Thread, args: &CloneArgs) -> Option<u32> {
    let event = match args {
        _ if args.has(CLONE_UNTRACED) => return None,
        _ if args.has(CLONE_VFORK) => PTRACE_EVENT_VFORK,
        _ if args.exit_signal == SIGCHLD => PTRACE_EVENT_FORK,
        _ => PTRACE_EVENT_CLONE,
    };
    thread.trace.has_option(1 << event).then_some(event)
}

/// Opens a descriptor for `process`, or its thread `tid` that is to be, in `thread` and stores its
/// number (CLONE_PIDFD). When that fails there is none.
fn give_pidfd(
    thread: &Thread,
    process: &Arc<Process>,
    tid: u32,
    args: &CloneArgs,
) -> Result<Arc<OpenFile>> {
    let files = thread.files();
    let file = match args.has(CLONE_THREAD) {
        true => PidFd::for_newborn(process, tid, 0),
        false => PidFd::open(process.clone(), 0),
    };
    let fd = files.insert(file.clone(), true, 0, thread.process.rlimit(RLIMIT_NOFILE))?;
    if let Err(error) = thread.mm().write(args.pidfd, &fd) {
        files.remove(fd)?;
        return Err(error);
    }
    Ok(file)
}

/// RLIMIT_NPROC, for users without privileges.
fn check_limit(thread: &Thread) -> Result {
    let creds = thread.creds();
    if creds.uid == 0 || creds.capable(CAP_SYS_ADMIN) || creds.capable(CAP_SYS_RESOURCE) {
        return Ok(());
    }
    let own = table::count_of_user(creds.uid) as u64;
    if own >= thread.process.rlimit(RLIMIT_NPROC) { Err(Errno::EAGAIN) } else { Ok(()) }
}

fn new_process(
    thread: &Arc<Thread>,
    args: &CloneArgs,
    pid: u32,
    (pid_namespace, mm): (Arc<PidNamespace>, Arc<AddressSpace>),
) -> Arc<Process> {
    let parent = &thread.process;
    let (container, upcalls) = (parent.container, parent.upcalls);
    let origin = Origin { container, is_first: false, upcalls };
    let process = Process::new(pid, pid_namespace, mm, parent.rlimits.lock().clone(), origin);
    let clears = args.flags & CLONE_CLEAR_SIGHAND != 0;
    *process.signals.lock() = parent.signals.lock().inherit(args.has(CLONE_SIGHAND), clears);
    *process.image.lock() = parent.image.lock().clone();
    {
        let traits = parent.traits.lock();
        let mut own = process.traits.lock();
        own.dumpable = traits.dumpable;
        own.memory_user = traits.memory_user.clone();
        own.oom_score_adj = traits.oom_score_adj;
        own.coredump_filter = traits.coredump_filter;
        own.personality = traits.personality;
        own.thp_disable = traits.thp_disable;
        own.membarrier = traits.membarrier;
    }
    {
        let links = parent.tree.lock();
        let mut own = process.tree.lock();
        own.pgid = links.pgid;
        own.sid = links.sid;
        own.tty = links.tty.clone();
        own.exit_signal = if args.has(CLONE_PARENT) { links.exit_signal } else { args.exit_signal };
    }
    Arc::new(process)
}

fn inherit_attrs(thread: &Thread, args: &CloneArgs) -> ThreadAttrs {
    const SCHED_RESET_ON_FORK: u32 = linux_raw_sys::general::SCHED_RESET_ON_FORK;
    let attrs = thread.attrs.lock();
    let resets = attrs.policy.0 & SCHED_RESET_ON_FORK != 0;
    ThreadAttrs {
        name: attrs.name.clone(),
        clear_child_tid: if args.has(CLONE_CHILD_CLEARTID) { args.child_tid } else { Va(0) },
        timer_slack_ns: attrs.timer_slack_ns,
        nice: if resets { attrs.nice.max(0) } else { attrs.nice },
        policy: if resets { (0, 0) } else { attrs.policy },
        affinity: attrs.affinity,
        memory_policy: attrs.memory_policy,
        io_priority: attrs.io_priority,
        rseq: if args.has(CLONE_VM) { None } else { attrs.rseq },
        login: attrs.login,
        ..ThreadAttrs::default()
    }
}

/// Waits until the child has executed a program or ended; only the thread's own end cuts it short.
async fn wait_for_vfork(thread: &Arc<Thread>, child: &Arc<Thread>) {
    let wakeup = thread.wakeup();
    loop {
        wakeup.clear();
        if child.attrs.lock().vfork_parent.is_none() {
            return;
        }
        if thread.is_dying() {
            exit::release_vfork_parent(child);
            return;
        }
        thread.sleeps();
        wakeup.wait().await;
    }
}

/// fork(2).
pub async fn fork(thread: &Arc<Thread>) -> Result<usize> {
    clone(thread, CloneArgs { exit_signal: SIGCHLD, ..CloneArgs::default() }).await
}

/// vfork(2).
pub async fn vfork(thread: &Arc<Thread>) -> Result<usize> {
    let flags = u64::from(CLONE_VM | CLONE_VFORK);
    clone(thread, CloneArgs { flags, exit_signal: SIGCHLD, ..CloneArgs::default() }).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(flags: u64) -> Result {
        CloneArgs { flags, exit_signal: SIGCHLD, ..CloneArgs::default() }.check()
    }

    #[test]
    fn contradictory_flags_are_refused() {
        let vm = u64::from(CLONE_VM);
        let sighand = u64::from(CLONE_SIGHAND);
        assert_eq!(check(0), Ok(()));
        assert_eq!(check(u64::from(CLONE_THREAD)), Err(Errno::EINVAL));
        assert_eq!(check(sighand), Err(Errno::EINVAL));
        assert_eq!(check(vm | sighand | u64::from(CLONE_THREAD)), Ok(()));
        assert_eq!(check(vm | sighand | CLONE_CLEAR_SIGHAND), Err(Errno::EINVAL));
        let thread = vm | sighand | u64::from(CLONE_THREAD);
        assert_eq!(check(thread | u64::from(CLONE_NEWPID)), Err(Errno::EINVAL));
        assert_eq!(check(u64::from(CLONE_NEWIPC | CLONE_SYSVSEM)), Err(Errno::EINVAL));
        assert_eq!(check(u64::from(CLONE_NEWPID)), Ok(()));
        assert_eq!(check(u64::from(CLONE_NEWNS | CLONE_FS)), Err(Errno::EINVAL));
        assert_eq!(check(1 << 40), Err(Errno::EINVAL));
        assert_eq!(check(thread | u64::from(CLONE_PIDFD)), Ok(()));
        let bad_signal = CloneArgs { exit_signal: 65, ..CloneArgs::default() };
        assert_eq!(bad_signal.check(), Err(Errno::EINVAL));
    }
}
