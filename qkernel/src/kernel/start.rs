//! Processes that are started from outside: a container's first one, and those of `exec`.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{AT_FDCWD, O_DIRECTORY, O_PATH, O_RDWR, RLIMIT_NOFILE, SIGCHLD};
use qlib::control::{FIRST_CONTAINER, ProcessSpec, Reply, SeccompFilter, WakeCause};
use qlib::host::NO_HANDLE;
use qlib::seccomp::{Insn, Program as Filter};

use super::control::{failure, reply};
use super::{TASK_UPCALLS, checks, containers, shrink_all, thread, waits};
use crate::arch::heap;
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::fs::open::OpenHow;
use crate::fs::{self, FdTable, OpenFile};
use crate::hibernate::{self, busy};
use crate::host::Handle;
use crate::ipc::tty::{self, device::TtyFile};
use crate::mm::thread::shed;
use crate::mm::{AddressSpace, UserThread};
use crate::sync::Mutex;
use crate::task::exec::{self, Program};
use crate::task::pid_namespace::NewPid;
use crate::task::process::Origin;
use crate::task::rlimit::Rlimits;
use crate::task::{
    NewThread, Process, Thread, ThreadAttrs, cpu_limit, filters, oom, seccomp, signal, table,
};
use crate::{executor, time, urgent};

/// How long others are killed for a process that is to start.
const START_PATIENCE_NS: u64 = 5_000_000_000;

/// Starts a process for request `id`; `first`: that of its container.
pub fn start(id: u64, spec: ProcessSpec, first: bool) {
    crate::klog!(Debug, "request {id}: start {:?}", spec.args);
    hibernate::wake(WakeCause::Exec);
    let mut spec = spec;
    if first && spec.stdio == [NO_HANDLE; 3] {
        let mut streams = containers::take_streams(spec.container);
        if spec.terminal {
            // All three are the same.
            streams[1..].fill_with(|| None);
        }
        // Whoever opens them has them from then on.
        spec.stdio = streams.map(|handle| handle.map_or(NO_HANDLE, Handle::into_number));
    }
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
            oom::relieve_request(deadline_ns, shrink_all).await;
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
        let console =
            tty::console::open(spec.container, spec.stdio[0], spec.window, (spec.uid, spec.gid));
        return Ok(Streams::Terminal(about(console, "setting up the terminal")?));
    }
    Ok(Streams::Files(spec.stdio.map(fs::host_stream)))
}

fn make_process(spec: &ProcessSpec, streams: &Streams, first: bool) -> Explained<u32> {
    let container = containers::find(spec.container)?;
    match &container.first {
        Some(_) if first => {
            let what = "the container's first process runs already";
            return Err((Errno::EEXIST, what.to_string()));
        }
        first_process if !first && first_process.as_ref().is_none_or(|p| p.is_zombie()) => {
            let what = "the container's first process does not run";
            return Err((Errno::ESRCH, what.to_string()));
        }
        _ => {}
    }
    let (mut context, namespaces) = (container.fs, container.namespaces);
    context.umask = spec.umask & 0o777;
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
    shed::keep_places();
    let mm = about(AddressSpace::new(true), "making an address space")?;
    let user = about(UserThread::new(&mm, None, table::allocate_token()), "making a thread")?;
    let new_pid = about(NewPid::new(&namespaces.pid_for_children), "making a process")?;
    let pid = new_pid.0;
    let pid_namespace = namespaces.pid_for_children.clone();
    let origin = Origin { container: spec.container, is_first: first, upcalls: &TASK_UPCALLS };
    let process = Arc::new(Process::new(pid, pid_namespace, mm.clone(), rlimits, origin));
    {
        let mut links = process.tree.lock();
        links.pgid = pid;
        links.sid = pid;
        links.exit_signal = SIGCHLD;
    }
    let score = spec.oom_score_adj.unwrap_or(container.oom_score_adj);
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
            if first {
                containers::begun(spec.container, &process, score);
            }
            waits::started(process);
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
            if first && spec.container == FIRST_CONTAINER {
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
    seccomp::add(thread, filters::NewFilter { program, logs: filter.logs, listener: None })
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
    let try_open = |path: &str| fs::open::open_exec_now(thread, path.as_bytes());
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
            // These say nothing of the file.
            Err(errno @ (Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::EIO)) => {
                return Err(explain(errno));
            }
            Err(_) => {}
        }
    }
    if denied {
        return Err((Errno::EACCES, format!("exec: {name:?}: permission denied")));
    }
    Err((Errno::ENOENT, format!("exec: {name:?}: executable file not found in $PATH")))
}
