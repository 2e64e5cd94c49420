//! Control requests from qvisor: starting processes, signals, hibernation, numbers.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::general::{AT_FDCWD, O_DIRECTORY, O_PATH, O_RDWR, RLIMIT_NOFILE, SIGCHLD};

use qlib::control::{
    ContainerSpec, ProcessInfo, ProcessSpec, Reply, Request, SeccompFilter, SleepSpec, Timers,
    WakeCause,
};
use qlib::host::Op;
use qlib::seccomp::{Insn, Program as Filter};

use super::{TASK_UPCALLS, checks, shrink, signals, thread};
use crate::arch::heap;
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::fs::open::OpenHow;
use crate::fs::{self, FdTable, FsContext, OpenFile};
use crate::hibernate::deflate::{Failure, Why};
use crate::hibernate::idle::Habit;
use crate::hibernate::quiesce::Patience;
use crate::hibernate::{self, busy};
use crate::host::Call;
use crate::ipc::tty::{self, device::TtyFile};
use crate::mm::{AddressSpace, UserThread};
use crate::net::{answers, probes};
use crate::sync::{Mutex, mutex};
use crate::task::exec::{self, Program};
use crate::task::namespaces::Namespaces;
use crate::task::pause::{self, Reason};
use crate::task::pid_namespace::NewPid;
use crate::task::rlimit::Rlimits;
use crate::task::signal;
use crate::task::{
    NewThread, Process, Thread, ThreadAttrs, cpu_limit, exit, filters, oom, seccomp, table,
};
use crate::utsname::UtsNamespace;
use crate::wait::Signal;
use crate::{arch, executor, mm, time, urgent};

/// The container, once it is made.
struct Container {
    /// Where processes find their files.
    fs: FsContext,
    /// Processes made by Start and Exec: kept, zombies too, until a Wait has been answered.
    roots: Vec<Arc<Process>>,
    /// (request, pid) of each Wait that is not answered yet.
    waits: Vec<(u64, u32)>,
    /// oom_score_adj that its first process began with.
    oom_score_adj: i32,
}

static CONTAINER: Mutex<Option<Container>> = mutex(None);

/// Set at each end of a process, for the end of the container.
static ENDED: Mutex<Option<Arc<Signal>>> = mutex(None);

/// How long the end of pid 1 waits for that of the other processes.
const FAREWELL_NS: u64 = 2_000_000_000;

/// How long others are killed for a process that is to start.
const START_PATIENCE_NS: u64 = 5_000_000_000;

/// A request lies in the mailbox: `id` is what its reply must name, `len` its length in bytes.
pub fn on_request(id: u64, len: u64) {
    let boot = arch::boot();
    let mut bytes = alloc::vec![0; len.min(boot.mailbox_bytes) as usize];
    let copied = arch::copy_from_gpa(&mut bytes, boot.mailbox);
    // Serving it may take long; the next one may come.
    if let Err(errno) = Call::new(Op::MailboxTaken).arg(0, id).run() {
        crate::klog!(Error, "the mailbox cannot be given back: {errno:?}");
    }
    // It must be served when programs have used memory up.
    heap::on_reserve(|| serve_bytes(id, copied, &bytes));
}

fn serve_bytes(id: u64, copied: Result, bytes: &[u8]) {
    let request =
        copied.and_then(|()| postcard::from_bytes::<Request>(bytes).map_err(|_| Errno::EINVAL));
    match request {
        Ok(request) => serve(id, request),
        Err(errno) => reply(id, &failure(errno, "the control request cannot be read".to_string())),
    }
}

/// Answers request `id`.
pub fn reply(id: u64, reply: &Reply) {
    let bytes = match postcard::to_allocvec(reply) {
        Ok(bytes) => bytes,
        Err(_) => return crate::klog!(Error, "a control reply cannot be encoded"),
    };
    if let Err(errno) = Call::new(Op::ControlReply).arg(0, id).bytes(&bytes).run() {
        crate::klog!(Error, "a control reply was refused: {errno:?}");
    }
}

fn failure(errno: Errno, message: String) -> Reply {
    Reply::Error { errno: errno.0, message }
}

fn done(result: Result) -> Reply {
    match result {
        Ok(()) => Reply::Done,
        Err(errno) => failure(errno, errno.to_string()),
    }
}

fn serve(id: u64, request: Request) {
    match request {
        Request::Create(spec) => reply(id, &create(&spec)),
        Request::Start(spec) => start(id, spec, true),
        Request::Exec(spec) => start(id, spec, false),
        Request::Wait { pid } | Request::Hold { pid } => wait(id, pid),
        Request::Signal { pid, all, signo } => reply(id, &done(signals::send(pid, all, signo))),
        Request::Processes => reply(id, &Reply::Processes(processes())),
        Request::Resize { pid, rows, cols } => reply(id, &done(resize(pid, rows, cols))),
        Request::Hibernate { patience_ms, force } => executor::spawn(async move {
            let patience = Patience { ns: patience_ms.saturating_mul(1_000_000), force };
            let answer = match hibernate::deflate::deflate(Why::Asked(patience)).await {
                Ok(()) => Reply::Done,
                Err(Failure { errno, reason }) => failure(errno, reason),
            };
            reply(id, &answer);
        }),
        Request::Wake => {
            hibernate::wake(WakeCause::Sigcont);
            reply(id, &Reply::Done);
        }
        Request::Pause => executor::spawn(async move {
            reply(id, &done(pause::pause(Reason::Order).await.map(|_| ())))
        }),
        Request::Resume => {
            // A hibernated container stays so: that is another kind of sleep, which a wake ends.
            pause::resume(Reason::Order);
            reply(id, &Reply::Done);
        }
        Request::Limit(limit) => reply(id, &done(mm::limit::set_limit(limit, shrink_names))),
        Request::Stats => reply(id, &Reply::Stats(Box::new(hibernate::stats::collect()))),
        Request::Why => reply(id, &Reply::Why(hibernate::idle::wakefulness())),
        // qvisor keeps these numbers.
        Request::Platform => reply(
            id,
            &failure(Errno::EINVAL, "the kernel does not count for the platform".to_string()),
        ),
    }
}

/// Gives up what is only kept to be fast.
fn shrink_names() {
    shrink();
    fs::dentry::shrink();
}

fn create(spec: &ContainerSpec) -> Reply {
    if CONTAINER.lock().is_some() {
        return failure(Errno::EEXIST, "the container exists already".to_string());
    }
    #[cfg(feature = "poison")]
    if crate::arch::poison::attempt(&spec.hostname) {
        return failure(Errno::ECANCELED, "poisoned".to_string());
    }
    UtsNamespace::initial().set_hostname(spec.hostname.clone());
    for (name, value) in &spec.sysctl {
        if let Err(errno) = fs::proc::set_sysctl(name, value) {
            let why = match errno {
                Errno::ENOENT => "there is no such setting in the guest kernel",
                Errno::EPERM => "it would have no effect in the guest kernel",
                _ => "it cannot have this value",
            };
            return failure(errno, format!("sysctl {name}={value}: {why}"));
        }
    }
    // Made while there is memory for certain.
    AddressSpace::placeholder();
    match fs::mount_container(spec) {
        Ok(fs) => {
            *CONTAINER.lock() =
                Some(Container { fs, roots: Vec::new(), waits: Vec::new(), oom_score_adj: 0 });
            sleep_as(&spec.sleep);
            Reply::Done
        }
        Err((errno, place)) => {
            let advice = match errno {
                Errno::EROFS => {
                    ": it does not exist, and cannot be made on a read-only file system"
                }
                _ => "",
            };
            failure(errno, format!("making {place} in the container failed: {errno}{advice}"))
        }
    }
}

/// When the container goes to sleep by itself, and what its timers do then.
fn sleep_as(spec: &SleepSpec) {
    probes::come_from(&spec.ignore_from);
    answers::are(&spec.answer);
    checks::are(&spec.ignore_exec);
    hibernate::deflate::let_timers(spec.timers);
    if spec.dry_run && (spec.after_ms > 0 || spec.on_pressure) {
        hibernate::dry::begin();
    }
    if spec.on_pressure {
        hibernate::told::heed();
    }
    if spec.after_ms > 0 {
        hibernate::idle::watch(Habit {
            after_ns: spec.after_ms.saturating_mul(1_000_000),
            timers_rest: spec.timers == Timers::Rest,
        });
    }
}

fn start(id: u64, spec: ProcessSpec, first: bool) {
    crate::klog!(Debug, "request {id}: start {:?}", spec.args);
    hibernate::wake(WakeCause::Exec);
    let made = open_streams(&spec).map(|streams| (make_process(&spec, &streams, first), streams));
    let answer = match made {
        Ok((Ok(pid), _)) => Reply::Pid(pid),
        Ok((Err((Errno::ENOMEM | Errno::ERESTARTNOMEM | Errno::EAGAIN, _)), streams)) if !first => {
            return start_with_less(id, spec, streams);
        }
        Ok((Err((errno, message)), _)) | Err((errno, message)) => failure(errno, message),
    };
    note_started(id, &answer);
    reply(id, &answer);
}

/// For who looks where the time of an exec goes.
fn note_started(id: u64, answer: &Reply) {
    crate::klog!(Debug, "request {id}: {answer:?}");
}

/// Starts a process when even the reserve is used up: others are killed until it can be.
fn start_with_less(id: u64, spec: ProcessSpec, streams: Streams) {
    let starts = busy::starts_a_visitor();
    executor::spawn(async move {
        let _nobody_sleeps_on_it = starts;
        let deadline_ns = time::monotonic_ns() + START_PATIENCE_NS;
        let answer = loop {
            oom::relieve_request(deadline_ns, shrink).await;
            // It may have been forced to sleep meanwhile.
            hibernate::wake(WakeCause::Exec);
            match heap::on_reserve(|| make_process(&spec, &streams, false)) {
                Ok(pid) => break Reply::Pid(pid),
                Err((Errno::ENOMEM | Errno::ERESTARTNOMEM | Errno::EAGAIN, _))
                    if time::monotonic_ns() < deadline_ns => {}
                Err((errno, message)) => break failure(errno, message),
            }
        };
        note_started(id, &answer);
        reply(id, &answer);
    });
}

type Explained<T> = core::result::Result<T, (Errno, String)>;

/// Adds to an error what it was about.
fn about<T>(result: Result<T>, what: &str) -> Explained<T> {
    result.map_err(|errno| (errno, format!("{what}: {errno}")))
}

fn creds_of(spec: &ProcessSpec) -> Creds {
    let [bounding, effective, inheritable, permitted, ambient] = spec.capabilities;
    // What a process could not have set itself (capset(2), PR_CAP_AMBIENT_RAISE) is no way to have
    // more than the sets say.
    let inheritable = inheritable & bounding;
    Creds {
        uid: spec.uid,
        euid: spec.uid,
        suid: spec.uid,
        fsuid: spec.uid,
        gid: spec.gid,
        egid: spec.gid,
        sgid: spec.gid,
        fsgid: spec.gid,
        groups: spec.groups.clone(),
        cap_bounding: bounding,
        cap_effective: effective & permitted,
        cap_inheritable: inheritable,
        cap_permitted: permitted,
        cap_ambient: ambient & permitted & inheritable,
        no_new_privs: spec.no_new_privs,
        ..Creds::default()
    }
}

/// The standard streams of a process to be made. They own the host handles that came with the
/// request, and so outlive a try that finds no memory.
enum Streams {
    /// All three are this terminal.
    Terminal(Arc<tty::Tty>),
    /// Standard input, output and error.
    Files([Arc<OpenFile>; 3]),
}

fn open_streams(spec: &ProcessSpec) -> Explained<Streams> {
    if spec.terminal {
        let console = tty::console::open(spec.stdio[0], spec.window, (spec.uid, spec.gid));
        return Ok(Streams::Terminal(about(console, "setting up the terminal")?));
    }
    Ok(Streams::Files(spec.stdio.map(fs::host_stream)))
}

fn make_process(spec: &ProcessSpec, streams: &Streams, first: bool) -> Explained<u32> {
    let container = CONTAINER.lock().as_ref().map(|c| (c.fs.clone(), c.oom_score_adj));
    let Some((mut context, first_score)) = container else {
        return Err((Errno::ESRCH, "the container has not been made yet".to_string()));
    };
    if first && table::process(1).is_some() {
        return Err((Errno::EEXIST, "the container's first process runs already".to_string()));
    }
    if !first && table::process(1).is_none_or(|p| p.is_zombie()) {
        return Err((Errno::ESRCH, "the container's first process does not run".to_string()));
    }
    context.umask = spec.umask & 0o777;
    let namespaces = Namespaces::initial();
    // Where it is now: pivot_root(2) may have moved it.
    if let Some(root) = namespaces.mnt.root() {
        (context.root, context.cwd) = (root.clone(), root);
    }
    let mut rlimits = Rlimits::default();
    for &(which, soft, hard) in &spec.rlimits {
        if let Some(slot) = rlimits.0.get_mut(which as usize) {
            // As fs.nr_open bounds it on Linux.
            let most = if which == RLIMIT_NOFILE { fs::fdtable::MAX_FDS as u64 } else { u64::MAX };
            *slot = (soft.min(most), hard.min(most));
        }
    }
    let mm = about(AddressSpace::new(true), "making an address space")?;
    let user =
        about(UserThread::new(mm.handle(), None, table::allocate_token()), "making a thread")?;
    let namespaces = Namespaces::initial();
    let new_pid = about(NewPid::new(&namespaces.pid_for_children), "making a process")?;
    let pid = new_pid.0;
    let pid_namespace = namespaces.pid_for_children.clone();
    let process = Arc::new(Process::new(pid, pid_namespace, mm.clone(), rlimits, &TASK_UPCALLS));
    {
        let mut links = process.tree.lock();
        links.pgid = pid;
        links.sid = pid;
        links.exit_signal = SIGCHLD;
    }
    let score = spec.oom_score_adj.unwrap_or(first_score);
    process.traits.lock().oom_score_adj = (score, score);
    if spec.default_actions {
        process.signals.lock().be_ordinary();
    }
    table::add_process(&process);
    let thread = Thread::enter(NewThread {
        tid: pid,
        process: process.clone(),
        user,
        files: FdTable::new(),
        fs: Arc::new(Mutex::new(context)),
        namespaces: Arc::new(namespaces),
        creds: Arc::new(creds_of(spec)),
        signals: signal::ThreadSignals::default(),
        seccomp: filters::State::default(),
        attrs: ThreadAttrs::default(),
    });
    match set_up(&thread, &mm, spec, streams, first) {
        Ok(regs) => {
            if let Some(container) = CONTAINER.lock().as_mut() {
                container.roots.push(process);
                if first {
                    container.oom_score_adj = score;
                }
            }
            cpu_limit::watch(&thread.process);
            if !first {
                urgent::begin(thread.user.token);
                checks::begins(pid, &spec.args);
            }
            thread::start(thread, regs);
            Ok(pid)
        }
        Err(error) => {
            thread.user.end(&mm);
            mm.leave(&thread.user);
            table::remove_thread(pid, thread.user.token);
            process.tree.lock().threads.clear();
            thread.set_files(FdTable::new());
            table::remove_process(pid);
            process.drop_mm();
            if first {
                table::restart_pids();
            }
            Err(error)
        }
    }
}

/// Working directory, standard descriptors, and the program's image.
fn set_up(
    thread: &Arc<Thread>,
    mm: &AddressSpace,
    spec: &ProcessSpec,
    streams: &Streams,
    first: bool,
) -> Explained<qlib::platform::UserRegs> {
    let Some(name) = spec.args.first() else {
        return Err((Errno::EINVAL, "the process has no arguments".to_string()));
    };
    set_up_stdio(thread, streams)?;
    let cwd = if spec.cwd.is_empty() { "/" } else { &spec.cwd };
    let how = OpenHow { flags: O_PATH | O_DIRECTORY, ..OpenHow::default() };
    let mut opened = fs::open(thread, AT_FDCWD, cwd.as_bytes(), &how);
    if first && opened.as_ref().is_err_and(|e| *e == Errno::ENOENT) {
        // As runc does for a container's own program.
        about(
            fs::setup::make_directory(&thread.fs().root, cwd.as_bytes()),
            &format!("making cwd ({cwd:?})"),
        )?;
        opened = fs::open(thread, AT_FDCWD, cwd.as_bytes(), &how);
    }
    let directory = about(opened, &format!("chdir to cwd ({cwd:?}) failed"))?;
    if let Some(place) = &directory.path {
        thread.update_fs(|f| f.cwd = place.clone());
    }
    let (path, file) = find_program(thread, name, &spec.env)?;
    let bytes =
        |strings: &[String]| strings.iter().map(|s| s.as_bytes().to_vec()).collect::<Vec<_>>();
    let failed = format!("exec {name:?}");
    let program = Program { file, path, args: bytes(&spec.args), env: bytes(&spec.env) };
    let executable = about(exec::find(thread, program), &failed)?;
    let new = about(fs::exec_creds(thread, executable.file(), false), &failed)?;
    let loaded = about(exec::load(thread, &new, mm, executable), &failed)?;
    thread.set_creds(new.creds);
    let regs = loaded.regs;
    exec::apply(thread, loaded);
    if let Some(filter) = &spec.seccomp {
        about(add_filter(thread, filter), "installing the seccomp filter")?;
    }
    Ok(regs)
}

/// Restricts the calls of a program from its first instruction on. Nobody asks for its rights:
/// whoever has it started may restrict it.
fn add_filter(thread: &Thread, filter: &SeccompFilter) -> Result {
    let insns = filter.program.iter().copied().map(Insn::from).collect();
    let program = Filter::new(insns).ok_or(Errno::EINVAL)?;
    seccomp::add(thread, program, filter.logs)
}

fn set_up_stdio(thread: &Arc<Thread>, streams: &Streams) -> Explained<()> {
    let files = thread.files();
    let limit = fs::fdtable::MAX_FDS as u64;
    let three = match streams {
        Streams::Terminal(console) => {
            let file = about(open_terminal(thread, console), "opening the terminal")?;
            [file.clone(), file.clone(), file]
        }
        Streams::Files(three) => three.clone(),
    };
    for file in three {
        about(files.insert(file, false, 0, limit), "opening the standard streams")?;
    }
    Ok(())
}

/// Opens a terminal, which becomes the controlling one, by its name in /dev/pts if it has one.
fn open_terminal(thread: &Arc<Thread>, console: &Arc<tty::Tty>) -> Result<Arc<OpenFile>> {
    let how = OpenHow { flags: O_RDWR, ..OpenHow::default() };
    let path = format!("/dev/pts/{}", console.number);
    if let Ok(file) = fs::open(thread, AT_FDCWD, path.as_bytes(), &how)
        && file.downcast::<TtyFile>().is_some_and(|f| Arc::ptr_eq(f.tty(), console))
    {
        return Ok(file);
    }
    Ok(OpenFile::new(TtyFile::open(thread, console, O_RDWR)?, O_RDWR))
}

/// Finds the program as runc does: a name without a slash in $PATH.
fn find_program(
    thread: &Arc<Thread>,
    name: &str,
    env: &[String],
) -> Explained<(Vec<u8>, Arc<OpenFile>)> {
    let try_open = |path: &str| fs::open_exec(thread, AT_FDCWD, path.as_bytes(), 0);
    // The words of Go's exec.LookPath, which runc passes on.
    let explain = |errno: Errno| match errno {
        Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ENAMETOOLONG => {
            (errno, format!("exec: {name:?}: stat {name}: {errno}"))
        }
        other => (other, format!("exec: {name:?}: {other}")),
    };
    if name.contains('/') {
        return try_open(name).map(|file| (name.as_bytes().to_vec(), file)).map_err(explain);
    }
    let path = env.iter().rev().find_map(|e| e.strip_prefix("PATH=")).unwrap_or("");
    let mut denied = false;
    for directory in path.split(':') {
        let directory = if directory.is_empty() { "." } else { directory };
        let candidate = format!("{directory}/{name}");
        match try_open(&candidate) {
            Ok(file) => return Ok((candidate.into_bytes(), file)),
            Err(Errno::EACCES) => denied = true,
            Err(_) => {}
        }
    }
    if denied {
        return Err((Errno::EACCES, format!("exec: {name:?}: permission denied")));
    }
    Err((Errno::ENOENT, format!("exec: {name:?}: executable file not found in $PATH")))
}

/// What a wait status is as an exit code of a command: the code, or 128 + signal.
const fn exit_code(status: i32) -> i32 {
    if status & 0x7f == 0 { status >> 8 & 0xff } else { 128 + (status & 0x7f) }
}

fn wait(id: u64, pid: u32) {
    let status = {
        let mut container = CONTAINER.lock();
        let Some(container) = container.as_mut() else {
            return reply(
                id,
                &failure(Errno::ESRCH, "the container has not been made yet".to_string()),
            );
        };
        let Some(root) = container.roots.iter().find(|p| p.pid == pid).cloned() else {
            return reply(
                id,
                &failure(Errno::ECHILD, format!("process {pid} was not started from outside")),
            );
        };
        let status = root.tree.lock().exit_status;
        if status.is_none() {
            container.waits.push((id, pid));
        }
        status
    };
    if let Some(status) = status {
        reply(id, &Reply::Exited(exit_code(status)));
        forget(pid);
    }
}

/// A process made from outside is a zombie that nobody asks for any more.
fn forget(pid: u32) {
    let removed = {
        let mut container = CONTAINER.lock();
        let Some(container) = container.as_mut() else { return };
        let index = container.roots.iter().position(|p| p.pid == pid);
        index.map(|i| container.roots.remove(i))
    };
    if pid != 1 {
        table::remove_process(pid);
    }
    drop(removed);
}

/// A process has become a zombie: answers those who wait for it from outside; if it was pid 1, ends
/// the container.
pub fn process_ended(process: &Arc<Process>, status: i32) {
    let waits: Vec<u64> = {
        let mut container = CONTAINER.lock();
        let Some(container) = container.as_mut() else { return };
        let mut answered = Vec::new();
        container.waits.retain(|(id, pid)| {
            if *pid == process.pid {
                answered.push(*id);
            }
            *pid != process.pid
        });
        answered
    };
    checks::ends(process.pid);
    if process.is_visitor() {
        let us = |ns: u64| ns / 1000;
        let used = process.usage();
        crate::klog!(
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
    for id in &waits {
        reply(*id, &Reply::Exited(exit_code(status)));
    }
    if !waits.is_empty() && process.pid != 1 {
        forget(process.pid);
    }
    let ended = ENDED.lock().clone();
    if let Some(ended) = ended {
        ended.set();
    }
    if process.pid == 1 {
        end_container(exit_code(status));
    }
}

/// True if the platform took pid 1 away, which is why the sandbox ends then.
static FIRST_TAKEN_AWAY: AtomicBool = AtomicBool::new(false);

/// The platform has taken a thread of `process` away, and the process ends for that.
pub fn process_taken_away(process: &Process) {
    if process.pid == 1 {
        FIRST_TAKEN_AWAY.store(true, Ordering::Relaxed);
    }
}

/// Pid 1 has ended: kills what is left, waits for it, and ends the sandbox.
fn end_container(code: i32) {
    exit::kill_all_but(1);
    let signal = Arc::new(Signal::default());
    *ENDED.lock() = Some(signal.clone());
    let deadline = time::monotonic_ns() + FAREWELL_NS;
    let timer = time::insert(deadline, signal.clone());
    executor::spawn(async move {
        while table::processes().any(|p| !p.is_zombie()) && time::monotonic_ns() < deadline {
            signal.wait().await;
        }
        time::cancel(timer);
        tty::console::drain(deadline).await;
        let why = u64::from(FIRST_TAKEN_AWAY.load(Ordering::Relaxed));
        if let Err(errno) = Call::new(Op::Exit).arg(0, code as u64).arg(1, why).run() {
            crate::klog!(Error, "the sandbox refused to end: {errno:?}");
        }
    });
}

fn resize(pid: u32, rows: u16, cols: u16) -> Result {
    let process = table::process(pid).ok_or(Errno::ESRCH)?;
    let tty = tty::controlling(&process).map_err(|_| Errno::ENOTTY)?;
    tty.set_window(tty::Window { words: [rows, cols, 0, 0] });
    Ok(())
}

fn processes() -> Vec<ProcessInfo> {
    let describe = |process: Arc<Process>| {
        let cmdline = process.image.lock().cmdline.clone();
        let words: Vec<&[u8]> = cmdline.split(|b| *b == 0).collect();
        let rss_bytes = process.mm().resident_bytes();
        ProcessInfo {
            pid: process.pid,
            ppid: process.ppid(),
            uid: process.uid(),
            threads: process.threads().len() as u32,
            state: process.state_letter(),
            rss_bytes,
            utime_us: process.usage().user_ns / 1000,
            start_ns: process.start_ns,
            cmdline: String::from_utf8_lossy(&words.join(&b' ')).trim_end().to_string(),
        }
    };
    table::processes().map(describe).collect()
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
