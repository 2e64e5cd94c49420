//! `create`, `run` and `do`: making a container, and staying with it.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use qlib::control::Request;

use super::bundle::Bundle;
use super::checkpoint;
use super::cli::{self, Global};
use super::client::{ANSWER_TIMEOUT, Connection, Refused};
use super::create::{self, Created, Origin, check_global, create};
use super::durable;
use super::error::ContainerError;
use super::life;
use super::moment::{self, Moment};
use super::state::{Entry, Status, Store};
use super::view::View;
use crate::console::{self, Pty};
use crate::image::Manifest;
use crate::image::packed;
use crate::image::seal::Key;

/// `quark create`.
///
/// # Errors
/// With nothing left behind.
pub fn create_command(global: &Global, options: &cli::Create) -> Result<()> {
    check(global, options)?;
    let bundle = Bundle::load(&options.bundle)?;
    let pty = terminal(&bundle, options.console_socket.as_deref(), true)?;
    let signals = console::catch_signals()?;
    let created = create(&request(global, options, &bundle, pty.as_ref(), &signals, false))?;
    if let Err(e) = hand_over(pty.as_ref(), options) {
        undo(created);
        return Err(e);
    }
    Ok(())
}

/// `quark run`; the exit code.
///
/// # Errors
/// With nothing left behind.
pub fn run_command(global: &Global, run: &cli::Run, moment: &cli::MomentOptions) -> Result<i32> {
    let bundle = Bundle::load(&run.create.bundle)?;
    let moment = Moment::choose(moment, &bundle.annotations())?;
    make(global, run, &bundle, (None, false), |store, created| {
        let watch = moment.map(|m| m.watch(&created.entry, &created.state)).transpose()?;
        life::start(store, &created.state.id, global.timeout)?;
        Ok(watch)
    })
}

/// Makes a container, of an image if there is one, has `start` start it, and stays with it; the
/// exit code.
fn make(
    global: &Global,
    options: &cli::Run,
    bundle: &Bundle,
    (image, background): (Option<Origin<'_>>, bool),
    start: impl FnOnce(&Store, &Created) -> Result<Option<moment::Watch>>,
) -> Result<i32> {
    check(global, &options.create)?;
    let pty = terminal(bundle, options.create.console_socket.as_deref(), options.detach)?;
    let signals = signals(options.detach)?;
    // A terminal that is handed over is somebody else's.
    let attended = !options.detach && options.create.console_socket.is_none();
    let request = request(global, &options.create, bundle, pty.as_ref(), &signals, attended);
    let claimed = image.is_some();
    let created = create(&create::Request { image, background, claimed, ..request })?;
    let store = Store::new(&global.root)?;
    let started = hand_over(pty.as_ref(), &options.create).and_then(|()| start(&store, &created));
    let started = started.and_then(|watch| match watch {
        Some(watch) if options.detach => watch.leave(global).map(|()| None),
        Some(watch) => Ok(Some(watch.serve(global))),
        None => Ok(None),
    });
    let saver = match started {
        Ok(saver) => saver,
        Err(e) => {
            if let Some(path) = &options.create.pid_file {
                std::fs::remove_file(path).ok();
            }
            undo(created);
            return Err(e);
        }
    };
    if options.detach {
        return Ok(0);
    }
    let relayed = if options.create.console_socket.is_some() { None } else { pty };
    let how = if options.keep { Stay::Keep } else { Stay::Run };
    let status = stay(created, relayed, &signals, how, global.timeout)?;
    saver.map_or(Ok(status), |saver| saver.finish(status))
}

/// `quark restore`; the exit code.
///
/// # Errors
/// With nothing left behind.
pub fn restore_command(global: &Global, options: &cli::Restore) -> Result<i32> {
    if options.durable {
        return restore_durable(global, options);
    }
    let dir = std::path::absolute(&options.image_path)?;
    let key = options.key_file.as_deref().map(Key::read).transpose()?;
    let image = packed::find(&dir, key.as_ref())?;
    let manifest = image.check()?;
    let mut bundle = Bundle::load(&options.run.create.bundle)?;
    if options.new_network {
        bundle.set_new_network();
    }
    let image = (Origin::new(&image, &manifest)?, &manifest);
    make_again(global, (&options.run, options.background), &bundle, image)
}

/// `quark restore --durable`; the exit code.
fn restore_durable(global: &Global, options: &cli::Restore) -> Result<i32> {
    let store = Store::new(&global.root)?;
    let entry = store.entry(&options.run.create.id)?;
    life::remove_abandoned(&entry);
    if entry.load().is_ok_and(|state| state.status() != Status::Stopped) {
        return Err(ContainerError::Exists(entry.id).into());
    }
    let durable = durable::open(&entry)?;
    let manifest = durable.files.check()?;
    let given = options.bundle_given.then_some(&options.run.create.bundle);
    let mut bundle = Bundle::load(given.unwrap_or(&durable.bundle))?;
    if options.new_network {
        bundle.set_new_network();
    }
    make_way(&entry)?;
    let image = Origin { goes_on: true, ..Origin::new(&durable.files, &manifest)? };
    make_again(global, (&options.run, options.background), &bundle, (image, &manifest))
}

/// Removes what is left of a container that goes on elsewhere, where the state directory has
/// outlived the boot, too.
fn make_way(entry: &Entry) -> Result<()> {
    // Where there is nothing, or somebody changes it, who claims the ID finds out more.
    let Ok(_lock) = entry.lock() else { return Ok(()) };
    match entry.load() {
        Ok(state) if state.status() != Status::Stopped || entry.has_owner() => {
            Err(ContainerError::Exists(entry.id.clone()).into())
        }
        Ok(state) => life::destroy_but_durable(entry, &state),
        Err(_) => Ok(()),
    }
}

/// Makes a container of an image that has been checked, whose rest is read ahead of use or not, and
/// stays with it; the exit code.
///
/// # Errors
/// With nothing left behind.
pub(super) fn make_again(
    global: &Global,
    (options, background): (&cli::Run, bool),
    bundle: &Bundle,
    (image, manifest): (Origin<'_>, &Manifest),
) -> Result<i32> {
    checkpoint::check_bundle(&image.files.dir, manifest, bundle)?;
    life::remove_abandoned(&Store::new(&global.root)?.entry(&options.create.id)?);
    make(global, options, bundle, (Some(image), background), |store, created| {
        let note = image.goes_on.then(|| durable::note(&created.entry)).transpose()?;
        let init = (manifest.container.init, note);
        life::go_on(store, &created.state.id, init, &created.setup)?.finish()?;
        // Unless it is about to be kept anew.
        if let (true, Ok(_lock)) = (image.goes_on, created.entry.try_lock()) {
            created.entry.forget_void();
        }
        Ok(None)
    })
}

/// `quark do`; the exit code.
///
/// # Errors
/// With nothing left behind.
pub fn do_command(global: &Global, options: &cli::Do) -> Result<i32> {
    check_global(global)?;
    let terminal =
        rustix::termios::isatty(std::io::stdin()) && rustix::termios::isatty(std::io::stdout());
    let cwd = current_directory()?;
    let volumes: Vec<_> =
        options.volumes.iter().map(|v| super::spec::volume(v)).collect::<Result<_>>()?;
    let has_host_network = options.network == cli::Network::Host;
    let view = View::new(&cwd, has_host_network)?;
    let shown: Vec<PathBuf> =
        volumes.iter().filter_map(|v| v["destination"].as_str().map(PathBuf::from)).collect();
    View::warn_of_empty(&cwd, &shown);
    view.check_program(options.command.first().map_or("", String::as_str), &shown)?;
    let spec = super::spec::host(&options.command, terminal, &cwd, &volumes)?;
    let mut bundle = Bundle::check(PathBuf::from("/"), spec)?;
    // Who runs a command wants Ctrl-C, a hang-up and SIGTERM to end it, and has no init that would.
    bundle.process.default_actions = true;
    let pty = terminal.then(|| Pty::open(console::window(std::io::stdin()))).transpose()?;
    let signals = console::catch_all_signals()?;
    sweep(&Store::new(&global.root)?);
    let id = format!("do-{}", std::process::id());
    let request = create::Request {
        global,
        id: &id,
        bundle: &bundle,
        network: (!has_host_network).then(PathBuf::new),
        view: Some(view),
        image: None,
        background: false,
        pty: pty.as_ref(),
        streams: None,
        pid_file: None,
        tied: true,
        claimed: false,
        attended: true,
        signals: &signals,
    };
    let created = create(&request)?;
    if let Err(e) = life::start(&Store::new(&global.root)?, &id, global.timeout) {
        undo(created);
        return Err(e);
    }
    stay(created, pty, &signals, Stay::Do, global.timeout)
}

/// Where `quark do` runs its command.
fn current_directory() -> Result<PathBuf> {
    match std::env::current_dir() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            bail!("the current directory has been deleted: change to another")
        }
        other => other.context("finding the current directory"),
    }
}

/// Removes what a `quark do` left that was killed: its sandbox has ended with it, its state
/// directory and cgroup have not.
fn sweep(store: &Store) {
    for entry in store.entries("do-") {
        if !entry.is_abandoned() {
            continue;
        }
        let removed = match entry.load() {
            // The sandbox gets SIGKILL a moment after the command's own end.
            Ok(state) if state.status() != Status::Stopped && state.pid != 0 => continue,
            Ok(state) => life::destroy(&entry, &state),
            Err(_) => entry.remove().map(drop),
        };
        if let Err(e) = removed {
            tracing::warn!("left by an earlier command: {e:#}");
        }
    }
}

/// Catches the signals that are the container's if this command stays with it, and else those that
/// end the command.
pub(super) fn signals(detached: bool) -> Result<SignalFd> {
    if detached { console::catch_signals() } else { console::catch_all_signals() }
}

pub(super) fn check(global: &Global, options: &cli::Create) -> Result<()> {
    check_global(global)?;
    if options.preserve_fds != 0 {
        bail!("--preserve-fds: only the standard streams can be passed to a guest");
    }
    Ok(())
}

pub(super) fn request<'a>(
    global: &'a Global,
    options: &'a cli::Create,
    bundle: &'a Bundle,
    pty: Option<&'a Pty>,
    signals: &'a SignalFd,
    attended: bool,
) -> create::Request<'a> {
    create::Request {
        global,
        id: &options.id,
        bundle,
        network: bundle.network(),
        view: None,
        image: None,
        background: false,
        pty,
        streams: None,
        pid_file: options.pid_file.as_deref(),
        tied: false,
        claimed: false,
        attended,
        signals,
    }
}

/// The terminal that a configuration asks for; runc's rules for `--console-socket`.
pub(super) fn terminal(
    bundle: &Bundle,
    socket: Option<&Path>,
    detached: bool,
) -> Result<Option<Pty>> {
    match (bundle.process.terminal, socket) {
        (true, None) if detached => {
            bail!("cannot allocate tty if quark will detach without setting console socket")
        }
        (false, Some(_)) => bail!("cannot use console socket if quark will not allocate tty"),
        (false, None) => Ok(None),
        (true, None) => Ok(Some(Pty::open(console::window(std::io::stdin()))?)),
        (true, Some(_)) => Ok(Some(Pty::open(bundle.process.window)?)),
    }
}

/// Sends the terminal to whoever asked for it.
fn hand_over(pty: Option<&Pty>, options: &cli::Create) -> Result<()> {
    match (pty, &options.console_socket) {
        (Some(pty), Some(socket)) => pty.send_master(socket),
        _ => Ok(()),
    }
}

/// Takes back a container that was made. What it was to go on from, it can still go on from.
pub(super) fn undo(mut created: Created) {
    created.child.kill().ok();
    created.child.wait().ok();
    if let Err(e) = life::destroy_but_durable(&created.entry, &created.state) {
        tracing::warn!("{e:#}");
    }
}

/// What becomes of a container that a command stays with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stay {
    /// It goes with the command, whatever happens.
    Do,
    /// It is deleted when it has ended.
    Run,
    /// It stays when it has ended.
    Keep,
}

/// Stays with a started container until it ends; its exit code.
fn stay(
    created: Created,
    pty: Option<Pty>,
    signals: &SignalFd,
    how: Stay,
    timeout: Option<Duration>,
) -> Result<i32> {
    let Created { entry, mut child, owner_lock: _owner_lock, .. } = created;
    let state = entry.load()?;
    // Only the guest holds the other end now, so that it shows when it is closed.
    let master: Option<OwnedFd> = pty.map(|p| p.master);
    let attended = console::attend(child.pidfd(), signals, master.as_ref(), |signo| {
        forward(&entry, state.init, signo, master.as_ref(), timeout)?;
        // The command stops then, as one without a sandbox: the shell waits for that. Its programs
        // are a session of their own, in which nobody could have one go on, and so do not.
        if how == Stay::Do && signo == libc::SIGTSTP && master.is_none() {
            let timeout = timeout.unwrap_or(ANSWER_TIMEOUT);
            let order = |request| Connection::open(&entry, timeout)?.order(&request);
            order(Request::Pause)?;
            nix::sys::signal::raise(Signal::SIGSTOP).context("stopping")?;
            order(Request::Resume)?;
        }
        Ok(())
    });
    match attended {
        Err(e) if how == Stay::Do => {
            tracing::error!("{e:#}; the sandbox was killed");
            child.kill().ok();
        }
        other => other?,
    }
    let status = child.wait().context("waiting for the sandbox process")?;
    if how != Stay::Keep {
        life::destroy(&entry, &state)?;
    }
    Ok(status)
}

/// How long the next signal cannot interrupt one that is passed on. timeout(1) sends the same one
/// twice, to its child and to its process group; who presses ^C again as nothing happens does so
/// later.
const PATIENCE: Duration = Duration::from_secs(1);

/// Passes a signal on to a guest process; a changed window becomes a changed window.
///
/// # Errors
/// When a signal that asks a program to end cannot be passed on as the sandbox does not answer, or
/// another one comes meanwhile.
pub fn forward(
    entry: &Entry,
    pid: u32,
    signo: i32,
    master: Option<&OwnedFd>,
    timeout: Option<Duration>,
) -> Result<()> {
    let request = if signo == libc::SIGWINCH {
        let Some(master) = master else { return Ok(()) };
        let (rows, cols) = console::window(std::io::stdin());
        console::set_window(master, (rows, cols));
        Request::Resize { pid, rows, cols }
    } else {
        Request::Signal { pid, all: false, signo: signo.unsigned_abs() }
    };
    let timeout = timeout.unwrap_or(ANSWER_TIMEOUT);
    let sent = Connection::open_interruptible(entry, timeout, PATIENCE)
        .and_then(|mut c| c.order(&request));
    // It may just have ended.
    let Err(e) = sent else { return Ok(()) };
    if !entry.load().is_ok_and(|s| s.status() != Status::Stopped) {
        return Ok(());
    }
    let refused = e.downcast_ref::<Refused>();
    // The same signal once more, as timeout(1) sends it, finds that the process has ended.
    if refused.is_some_and(|r| r.errno == libc::ESRCH) {
        return Ok(());
    }
    let is_answer = refused.is_some();
    let signal = console::signal_name(signo);
    if console::asks_to_end(signo) && !is_answer {
        return Err(e.context(format!("signal {signal} not passed on")));
    }
    tracing::warn!("signal {signal} not passed on: {e:#}");
    Ok(())
}
