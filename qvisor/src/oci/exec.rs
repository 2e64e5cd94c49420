//! `exec`: a further process in a running container.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::sched::{CloneFlags, setns};
use qlib::control::{ProcessSpec, Reply, Request};

use super::bundle::read_bounded;
use super::cli::{self, Global};
use super::client::{ANSWER_TIMEOUT, Connection, unexpected};
use super::error::{ContainerError, WithCode};
use super::state::{Entry, State, Status};
use super::{create, life, pod, process, roots, run};
use crate::console::{self, Pty};
use crate::streams::Stream;
use crate::sys::{self, Spawn};

/// The first argument by which a shim, a process that stands for a guest process, knows itself.
pub const SHIM_COMMAND: &CStr = c"exec-shim";

/// How long a sandbox may take to start a process: loading its program, and waking before that.
const LOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// runc's exit code for an exec that did not come to run its program.
const FAILED: u8 = 255;

/// `quark exec`; the exit code.
///
/// # Errors
/// With exit code 255.
pub fn exec_command(global: &Global, options: &cli::Exec) -> Result<i32> {
    exec(global, options)
        .map_err(|e| WithCode { code: FAILED, error: e.context("exec failed") }.into())
}

fn exec(global: &Global, options: &cli::Exec) -> Result<i32> {
    let (store, id) = roots::find(global, &options.id)?;
    let (entry, state) = store.load(&id)?;
    match pod::status(&state, &store) {
        Status::Running => {}
        Status::Paused if options.ignore_paused => {}
        Status::Stopped => return Err(ContainerError::NotRunning.into()),
        other => bail!("cannot exec in a container that is {}", other.name()),
    }
    let mut spec = specification(options, &state)?;
    let interactive = spec.terminal && options.console_socket.is_none();
    if interactive && options.detach {
        bail!("cannot allocate tty if quark will detach without setting console socket");
    }
    if options.console_socket.is_some() && !spec.terminal {
        bail!("cannot use console socket if quark will not allocate tty");
    }
    if interactive && spec.window == (0, 0) {
        spec.window = console::window(std::io::stdin());
    }
    let pty = spec.terminal.then(|| Pty::open(spec.window)).transpose()?;
    let signals = if options.detach { None } else { Some(console::catch_all_signals()?) };
    let timeout = global.timeout.unwrap_or(LOAD_TIMEOUT);
    let mut connection = if signals.is_some() {
        Connection::open_interruptible(&entry, timeout, Duration::ZERO)?
    } else {
        Connection::open(&entry, timeout)?
    };
    tracing::debug!("client {}: connected", std::process::id());
    let pid = begin(&mut connection, spec, pty.as_ref())?;
    tracing::debug!("client {}: started guest process {pid}", std::process::id());
    let hand_over = || -> Result<()> {
        if let (Some(pty), Some(socket)) = (&pty, &options.console_socket) {
            pty.send_master(socket)?;
        }
        // Before the other, so that who sees that finds this.
        if let Some(path) = &options.internal_pid_file {
            create::write_pid_file(path, i32::try_from(pid).context("guest process id")?)?;
        }
        if signals.is_none() {
            leave_shim(&entry, &state, pid, &connection, options.pid_file.as_deref())?;
        }
        Ok(())
    };
    if let Err(e) = hand_over() {
        signal(&entry, pid, libc::SIGKILL).ok();
        return Err(e);
    }
    let Some(signals) = signals else { return Ok(0) };
    if let Some(path) = &options.pid_file {
        create::write_pid_file(path, i32::try_from(std::process::id()).context("process id")?)?;
    }
    let master = pty.map(|p| p.master);
    let relayed = master.as_ref().filter(|_| interactive);
    connection.send(&Request::Wait { pid }, &[])?;
    console::attend(connection.stream().as_fd(), &signals, relayed, |signo| {
        run::forward(&entry, pid, signo, relayed, global.timeout)
    })?;
    connection.set_timeout(Some(ANSWER_TIMEOUT));
    exited(&mut connection)
}

/// The process to run, from --process or from the container's own with the other options applied.
fn specification(options: &cli::Exec, state: &State) -> Result<ProcessSpec> {
    if options.preserve_fds != 0 {
        bail!("--preserve-fds: only the standard streams can be passed to a guest");
    }
    if let Some(path) = &options.process {
        let text = read_bounded(path)?;
        let parse = || -> serde_json::Result<oci_spec::runtime::Process> {
            let mut value = serde_json::from_slice(&text)?;
            process::complete(&mut value);
            serde_json::from_value(value)
        };
        let process =
            parse().with_context(|| format!("{} is not an OCI process", path.display()))?;
        let mut spec = process::convert(&process, &state.rootfs)
            .with_context(|| path.display().to_string())?;
        spec.terminal |= options.tty;
        spec.seccomp.clone_from(&state.process.seccomp);
        spec.container = state.process.container;
        return Ok(spec);
    }
    if options.command.is_empty() {
        bail!("process args cannot be empty");
    }
    let mut spec = state.process.clone();
    spec.args.clone_from(&options.command);
    spec.terminal = options.tty;
    spec.window = (0, 0);
    spec.default_actions = false;
    for variable in &options.env {
        let Some((name, _)) = variable.split_once('=') else {
            bail!("--env {variable:?}: use NAME=value")
        };
        let prefix = format!("{name}=");
        spec.env.retain(|e| !e.starts_with(&prefix));
        spec.env.push(variable.clone());
    }
    if let Some(cwd) = &options.cwd {
        if !Path::new(cwd).is_absolute() {
            bail!("--cwd must be an absolute path");
        }
        spec.cwd.clone_from(cwd);
    }
    if let Some(user) = &options.user {
        let (uid, gid) = process::parse_user(user)?;
        spec.uid = uid;
        spec.gid = gid.unwrap_or(spec.gid);
    }
    spec.groups.extend(&options.additional_gids);
    for name in &options.cap {
        let bit = process::capability_bit(name)?;
        // Bounding, effective and permitted, as runc.
        for set in [0, 1, 3] {
            spec.capabilities[set] |= bit;
        }
    }
    spec.no_new_privs |= options.no_new_privs;
    Ok(spec)
}

/// Starts it; its guest process id.
fn begin(connection: &mut Connection, spec: ProcessSpec, pty: Option<&Pty>) -> Result<u32> {
    let program = spec.args.first().cloned().unwrap_or_default();
    let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let stdio: [BorrowedFd<'_>; 3] = match pty {
        Some(pty) => [pty.slave.as_fd(); 3],
        None => [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
    };
    let streams = Stream::take_each(stdio).context("taking the standard streams")?;
    let spec = ProcessSpec { own_stdio: streams.each_ref().map(|s| s.own), ..spec };
    match connection.call(&Request::Exec(spec), &streams.each_ref().map(|s| s.fd.as_fd())) {
        Ok(Reply::Pid(pid)) => Ok(pid),
        Ok(other) => Err(unexpected(&other)),
        Err(e) => Err(life::exec_error(e, &program)),
    }
}

/// Leaves a shim behind: a process that ends when the guest process does, with its exit code.
fn leave_shim(
    entry: &Entry,
    state: &State,
    pid: u32,
    connection: &Connection,
    pid_file: Option<&Path>,
) -> Result<()> {
    let dir = CString::new(entry.dir.as_os_str().as_bytes())?;
    let args = [c"quark".to_owned(), SHIM_COMMAND.to_owned(), dir, CString::new(pid.to_string())?];
    let null =
        File::options().read(true).write(true).open("/dev/null").context("opening /dev/null")?;
    be_among(state);
    let socket = connection.stream().as_fd();
    let mut child = sys::spawn(&Spawn::here(&args, [null.as_fd(); 3], socket))
        .context("starting the process that stands for the guest process")?;
    let written = match pid_file {
        Some(path) => create::write_pid_file(path, child.pid()),
        None => Ok(()),
    };
    if written.is_err() {
        child.kill().ok();
        child.wait().ok();
    }
    written
}

/// Has the children of this process be in the sandbox's PID namespace, if it may. The sandbox is
/// its first process: its end kills who is left there and comes when they have been waited for
/// (pid_namespaces(7)). So engines see the end of an exec before that of the container, after
/// which they would not look for it.
fn be_among(state: &State) {
    let joined = match state.sandbox() {
        Ok(Some(sandbox)) => setns(sandbox, CloneFlags::CLONE_NEWPID).err(),
        _ => None,
    };
    if let Some(e) = joined {
        tracing::debug!("the end of this exec may be seen after the container's: setns: {e}");
    }
}

/// The main function of a shim: `arguments` are the container's directory and the guest
/// process id.
pub fn shim_main(arguments: &[String]) -> i32 {
    rustix::thread::set_name(c"quark").ok();
    shim(arguments).unwrap_or(i32::from(FAILED))
}

fn shim(arguments: &[String]) -> Result<i32> {
    let [dir, pid] = arguments else { bail!("this command is for quark's own use") };
    let pid = pid.parse().context("guest process id")?;
    let dir = Path::new(dir).to_path_buf();
    let id = dir.file_name().and_then(|n| n.to_str()).context("container directory")?.to_owned();
    let entry = Entry { id, dir };
    let signals = console::catch_all_signals()?;
    let mut connection = Connection::from_stream(UnixStream::from(sys::take_setup_fd()?));
    // Who kills this process (SIGKILL cannot be passed on) means the guest process.
    connection.send(&Request::Hold { pid }, &[])?;
    console::attend(connection.stream().as_fd(), &signals, None, |signo| {
        run::forward(&entry, pid, signo, None, None)
    })?;
    exited(&mut connection)
}

fn exited(connection: &mut Connection) -> Result<i32> {
    match connection.receive() {
        Ok(Reply::Exited(code)) => Ok(code),
        Ok(other) => Err(unexpected(&other)),
        // The sandbox ends with its first process, and takes all others with it.
        Err(_) => Ok(128 + libc::SIGKILL),
    }
}

fn signal(entry: &Entry, pid: u32, signo: i32) -> Result<()> {
    let signo = u32::try_from(signo).map_err(|_| anyhow!("signal {signo}"))?;
    Connection::open(entry, ANSWER_TIMEOUT)?.order(&Request::Signal { pid, all: false, signo })
}
