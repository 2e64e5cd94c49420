//! The later steps of a container's life: start, kill, pause, resume, delete.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::fcntl::Flock;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use qlib::control::{Reply, Request};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

use super::child::ToChild;
use super::client::{ANSWER_TIMEOUT, Connection, Refused, unexpected};
use super::error::{ContainerError, SandboxEnded};
use super::hibernation::{self, SWAP_TIMEOUT};
use super::member::MEMBER_COMMAND;
use super::state::{Entry, State, Status, Store};
use super::{create, hooks, hub, pod, wire};
use crate::cgroup::Cgroup;
use crate::console;

/// How long loading a program may take, from a slow disk and after a wake.
const LOAD_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a sandbox may take to end that does not answer, as its command has ended, which had to
/// tell it to go on.
const MOMENT: Duration = Duration::from_secs(2);
/// How long a command that makes a container may take to undo what it did, when that is deleted:
/// longer only if it waits for a hook, or has been stopped.
const MAKER_PATIENCE: Duration = Duration::from_secs(2);
/// How long a killed process may take to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts the program of a created container. When that fails the container is stopped.
///
/// # Errors
/// When there is no such container, it was started before, or its program cannot be run.
pub fn start(store: &Store, id: &str, timeout: Option<Duration>) -> Result<()> {
    // A signal that asks this program to end makes it end the container first.
    console::catch_signals()?;
    let entry = store.entry(id)?;
    let _lock = entry.lock()?;
    let state = entry.load()?;
    match state.status() {
        Status::Created if pod::is_held(&state, store) => {
            bail!("the pod of container {id} is paused: resume its first container")
        }
        Status::Created => {}
        Status::Stopped => bail!("cannot start a container that has stopped"),
        other => bail!("cannot start container {id}: it is {}", other.name()),
    }
    let connection =
        Connection::open_interruptible(&entry, timeout.unwrap_or(LOAD_TIMEOUT), Duration::ZERO);
    let launched = connection.and_then(|mut connection| launch(&mut connection, &state));
    started(&entry, state, launched)
}

/// A container that was made of an image and has been told to go on.
#[derive(Debug)]
pub struct Going {
    entry: Entry,
    state: State,
    _lock: Flock<File>,
}

/// Has what a created container was made of go on, whose first process has this number, and whose
/// wake is noted in `note`. It is nobody's own from then on. When that fails the container is
/// stopped.
///
/// # Errors
/// As there.
pub fn go_on(
    store: &Store,
    id: &str,
    (init, note): (u32, Option<File>),
    setup: &UnixStream,
) -> Result<Going> {
    let entry = store.entry(id)?;
    let lock = entry.lock()?;
    let mut state = entry.load()?;
    state.init = init;
    state.step = Status::Running;
    let go = || {
        entry.save(&state)?;
        let note: Vec<_> = note.iter().map(AsFd::as_fd).collect();
        wire::send(setup, &ToChild::Go, &note)?;
        entry.disown()
    };
    go().inspect_err(|_| drop(end(&state)))?;
    Ok(Going { entry, state, _lock: lock })
}

impl Going {
    /// Waits until it is awake, and calls its hooks. When that fails the container is stopped.
    ///
    /// # Errors
    /// When it cannot wake, or a hook fails.
    pub fn finish(self) -> Result<()> {
        let Going { entry, state, _lock } = self;
        let wake = || {
            // It answers when it is awake.
            Connection::open(&entry, SWAP_TIMEOUT)?.order(&Request::Wake)?;
            poststart(&state)
        };
        wake().inspect_err(|_| drop(end(&state)))
    }
}

/// Notes that a container has been started, and calls its hooks.
fn started(entry: &Entry, mut state: State, init: Result<u32>) -> Result<()> {
    let finish = |state: &mut State| {
        state.init = init?;
        state.step = Status::Running;
        entry.save(state)?;
        poststart(state)
    };
    finish(&mut state).inspect_err(|_| drop(end(&state)))
}

fn poststart(state: &State) -> Result<()> {
    let poststart = state.hooks.as_ref().and_then(|h| h.poststart().as_ref());
    hooks::run("poststart", poststart, &state.oci(Status::Running))
}

/// Sends the program; its guest process id.
fn launch(connection: &mut Connection, state: &State) -> Result<u32> {
    let program = state.process.args.first().map_or("", String::as_str);
    match connection.call(&Request::Start(state.process.clone()), &[]) {
        Ok(Reply::Pid(pid)) => Ok(pid),
        Ok(other) => Err(unexpected(&other)),
        Err(e) => Err(exec_error(e, program)),
    }
}

/// The guest kernel says which program and why, in the words that Docker looks for; other errors
/// are given the name.
pub fn exec_error(error: anyhow::Error, program: &str) -> anyhow::Error {
    if error.downcast_ref::<Refused>().is_some() {
        error
    } else {
        error.context(format!("exec: {program:?}"))
    }
}

/// Kills the sandbox process and waits until it is gone.
pub(super) fn end(state: &State) -> Result<()> {
    let Some(pidfd) = state.sandbox()? else { return Ok(()) };
    match pidfd_send_signal(&pidfd, rustix::process::Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(e) => return Err(e).context("killing the sandbox process"),
    }
    if !ends_within(&pidfd, KILL_TIMEOUT)? {
        bail!("the sandbox process {} does not end", state.pid);
    }
    Ok(())
}

/// Waits for the end of a process: whether it came in time.
fn ends_within(pidfd: &OwnedFd, limit: Duration) -> Result<bool> {
    let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    Ok(poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], limit)? > 0)
}

/// The status after a request that failed with `error`. A sandbox that no longer answers may have
/// to end first: a process closes what it has open before others see that it is gone.
pub(super) fn status_after(state: &State, error: &anyhow::Error) -> Status {
    const PATIENCE: Duration = Duration::from_secs(2);
    if error.is::<SandboxEnded>()
        && let Ok(Some(pidfd)) = state.sandbox()
    {
        // Whatever comes of it, the status tells.
        let _ = ends_within(&pidfd, PATIENCE);
    }
    state.status()
}

/// A signal by name (with or without SIG) or number.
///
/// # Errors
/// When there is none.
pub fn parse_signal(text: &str) -> Result<i32> {
    if let Ok(number) = text.parse::<i32>() {
        if (0..=64).contains(&number) {
            return Ok(number);
        }
        bail!("unknown signal {text:?}");
    }
    let upper = text.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Ok(signal) = format!("SIG{short}").parse::<Signal>() {
        return Ok(signal as i32);
    }
    // signal(7): real-time signals count from 34 in the C library.
    let realtime = match (short.strip_prefix("RTMIN"), short.strip_prefix("RTMAX")) {
        (Some(""), _) => Some(34),
        (Some(plus), _) => {
            plus.strip_prefix('+').and_then(|n| n.parse::<i32>().ok()).map(|n| 34 + n)
        }
        (_, Some("")) => Some(64),
        (_, Some(minus)) => {
            minus.strip_prefix('-').and_then(|n| n.parse::<i32>().ok()).map(|n| 64 - n)
        }
        _ => None,
    };
    realtime.filter(|n| (34..=64).contains(n)).with_context(|| format!("unknown signal {text:?}"))
}

/// True if a signal ends the init process with which runc waits for `start`, a program in Go: what
/// it has no use for it ignores.
fn ends_created(signo: i32) -> bool {
    #[rustfmt::skip]
    let ending = [
        libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT,
        libc::SIGBUS, libc::SIGFPE, libc::SIGKILL, libc::SIGSEGV, libc::SIGTERM, libc::SIGSTKFLT,
        libc::SIGSYS,
    ];
    ending.contains(&signo)
}

/// Sends a signal. STOP hibernates, CONT wakes, KILL ends the sandbox whatever its guest does, and
/// 0 only asks whether there is one.
///
/// # Errors
/// When the container does not run, or the sandbox refuses or does not answer within `timeout`.
pub fn kill(
    store: &Store,
    id: &str,
    signo: i32,
    all: bool,
    timeout: Option<Duration>,
) -> Result<()> {
    let request = |entry: &Entry, init: u32| match signo {
        libc::SIGSTOP => hibernation::ask_to_sleep(entry, timeout, false),
        libc::SIGCONT => send(entry, &Request::Wake, timeout.unwrap_or(SWAP_TIMEOUT)),
        _ => {
            let request = Request::Signal { pid: init, all, signo: signo.unsigned_abs() };
            send(entry, &request, timeout.unwrap_or(ANSWER_TIMEOUT))
        }
    };
    match signal(store, id, signo, request) {
        // runc does the same: all processes of a stopped container are gone already.
        Err(e) if all && e.downcast_ref() == Some(&ContainerError::NotRunning) => Ok(()),
        other => other,
    }
}

/// What a signal does before the container's program has been started, and when it has ended; in
/// between `request` does it, given the first process.
pub(super) fn signal(
    store: &Store,
    id: &str,
    signo: i32,
    request: impl FnOnce(&Entry, u32) -> Result<()>,
) -> Result<()> {
    let (entry, state) = store.load(id)?;
    match state.status() {
        Status::Stopped => return Err(ContainerError::NotRunning.into()),
        // There is no program yet that could get it.
        Status::Creating | Status::Created if ends_created(signo) => return end(&state),
        Status::Creating | Status::Created if signo == libc::SIGSTOP => bail!(
            "cannot hibernate container {id}: its program has not been started; use quark start \
            {id} first"
        ),
        Status::Creating | Status::Created => return Ok(()),
        Status::Running | Status::Paused => {}
    }
    match signo {
        libc::SIGKILL => {
            let ended = end(&state);
            entry.forget_durable();
            return ended;
        }
        libc::SIGSTOP => pod::check_first(&state, "hibernated")?,
        0 => return Ok(()),
        _ => {}
    }
    match request(&entry, state.init) {
        Err(e) if status_after(&state, &e) == Status::Stopped => {
            Err(ContainerError::NotRunning.into())
        }
        other => other,
    }
}

/// Makes a request that is answered with Done.
fn send(entry: &Entry, request: &Request, timeout: Duration) -> Result<()> {
    Connection::open(entry, timeout)?.order(request)
}

/// Holds all processes, or lets them go on.
///
/// # Errors
/// When the container is not in the state for it, or the sandbox does not answer within `timeout`.
pub fn pause(store: &Store, id: &str, pause: bool, timeout: Option<Duration>) -> Result<()> {
    let entry = store.entry(id)?;
    let _lock = entry.lock()?;
    let mut state = entry.load()?;
    pod::check_first(&state, if pause { "paused" } else { "resumed" })?;
    let (from, to, request, opposite) = if pause {
        (Status::Running, Status::Paused, Request::Pause, Request::Resume)
    } else {
        (Status::Paused, Status::Running, Request::Resume, Request::Pause)
    };
    let status = state.status();
    if status != from {
        bail!("container {id} is {}, not {}", status.name(), from.name());
    }
    let timeout = timeout.unwrap_or(ANSWER_TIMEOUT);
    send(&entry, &request, timeout)?;
    state.step = to;
    // What is not written down nobody could take back.
    entry.save(&state).inspect_err(|_| drop(send(&entry, &opposite, timeout)))
}

/// Deletes a container: what it left in cgroups and the state directory.
///
/// # Errors
/// When it runs and `force` is not given, or does not exist.
pub fn delete(store: &Store, id: &str, force: bool) -> Result<()> {
    let entry = store.entry(id)?;
    let result = delete_entry(&entry, force);
    if force {
        store.remove_unseen(id);
    }
    match result {
        // What is left of it is what it could have gone on from.
        Err(e) if is_missing(&e, id) && entry.is_durable() => {
            entry.forget_durable();
            entry.forget_snapshots();
            entry.forget_rw_dirs();
            Ok(())
        }
        Err(e) if force && is_missing(&e, id) => Ok(()),
        other => other,
    }
}

/// True if there is no container of this ID.
fn is_missing(error: &anyhow::Error, id: &str) -> bool {
    error.downcast_ref() == Some(&ContainerError::NotExist(id.to_owned()))
}

fn delete_entry(entry: &Entry, force: bool) -> Result<()> {
    let end_of_patience = Instant::now() + MAKER_PATIENCE;
    // Another command may hold the lock while it waits for a sandbox that does not answer: then it
    // need not wait any longer.
    if force {
        stop_making(entry, end_of_patience)?;
        if let Ok(state) = entry.load() {
            end(&state)?;
        }
    }
    let _lock = entry.lock()?;
    // Who makes it may have begun only after that.
    if force {
        stop_making(entry, end_of_patience)?;
    }
    let state = match entry.load() {
        Ok(state) => state,
        // A command was killed before it wrote any state.
        Err(e) if force && is_missing(&e, &entry.id) => return entry.remove().map(drop),
        Err(e) => return Err(e),
    };
    match state.status() {
        Status::Stopped => {}
        Status::Created => end(&state)?,
        Status::Creating if force => {
            end(&state)?;
            end_unknown(&state);
        }
        _ if force => end(&state)?,
        other => {
            return Err(
                ContainerError::NotStopped(entry.id.clone(), other.name().to_owned()).into()
            );
        }
    }
    destroy(entry, &state)
}

/// Has a command stop that makes the container, and waits until it has undone what it did, or is
/// known not to do that soon: it has been killed, or waits for something itself. It is asked in any
/// case, however late that is.
fn stop_making(entry: &Entry, end_of_patience: Instant) -> Result<()> {
    let is_made = |state: &Result<State>| match state {
        Ok(state) => state.step != Status::Creating,
        Err(e) => e.downcast_ref() != Some(&ContainerError::NotExist(entry.id.clone())),
    };
    while entry.has_owner() {
        if is_made(&entry.load()) {
            break;
        }
        entry.doom()?;
        // It has either noted its sandbox by now, or sees that it is to stop.
        match entry.load() {
            Ok(state) if state.step == Status::Creating => end(&state)?,
            _ => {}
        }
        if Instant::now() >= end_of_patience {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Ends a sandbox process of which a command that was killed had not noted the number yet. One that
/// waits for that command ends by itself; if it cannot be looked for, that has to do.
fn end_unknown(state: &State) {
    let members = state.cgroup.as_ref().and_then(|cgroup| cgroup.members().ok());
    for pid in members.into_iter().flatten().filter_map(Pid::from_raw) {
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        let command = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_pid()));
        let command = command.unwrap_or_default();
        let mut words = command.split(|byte| *byte == 0).skip(1);
        let kinds = [create::SANDBOX_COMMAND.to_bytes(), MEMBER_COMMAND.to_bytes()];
        if words.next().is_some_and(|word| kinds.contains(&word))
            && words.next() == Some(state.id.as_bytes())
        {
            pidfd_send_signal(&pidfd, rustix::process::Signal::KILL).ok();
        }
    }
}

/// Removes a container whose sandbox has ended, and calls its poststop hooks.
///
/// # Errors
/// When its cgroup is in use or its directory cannot be removed.
pub fn destroy(entry: &Entry, state: &State) -> Result<()> {
    // It has ended, and is not to go on after all.
    entry.forget_durable();
    take_away(entry, state, false)
}

/// As [`destroy`], but that it can go on from what is kept of it, if it has not been awake since,
/// with its snapshots.
///
/// # Errors
/// As there.
pub(super) fn destroy_but_durable(entry: &Entry, state: &State) -> Result<()> {
    entry.forget_void();
    take_away(entry, state, entry.is_durable())
}

/// `goes_on`: it can, from what is kept of it.
fn take_away(entry: &Entry, state: &State, goes_on: bool) -> Result<()> {
    if let Err(e) = leave_pod(entry, state) {
        tracing::warn!("{e:#}");
    }
    // Who makes it still, and did not stop in time, removes its cgroup itself: in that may be a
    // process of which nobody else knows.
    let is_being_made = state.step == Status::Creating && entry.has_owner();
    let cgroup = match state.cgroup.as_ref().map_or(Ok(()), Cgroup::remove) {
        Err(e) if is_being_made => {
            tracing::debug!("{e:#}");
            Ok(())
        }
        other => other,
    };
    if !entry.remove()? {
        // Another command has done that, and what follows.
        return cgroup;
    }
    if !goes_on {
        entry.forget_snapshots();
    }
    entry.forget_rw_dirs();
    let poststop = state.hooks.as_ref().and_then(|h| h.poststop().as_ref());
    hooks::run_and_log("poststop", poststop, &state.oci(Status::Stopped));
    cgroup
}

/// Removes what is left of a container whose command was killed before it was started, if that is
/// what it is.
pub fn remove_abandoned(entry: &Entry) {
    if !entry.is_abandoned() {
        return;
    }
    let remove = || -> Result<()> {
        let Ok(_lock) = entry.lock() else { return Ok(()) };
        // It may have been made anew meanwhile.
        if !entry.is_abandoned() {
            return Ok(());
        }
        let state = match entry.load() {
            Ok(state) => state,
            Err(e) if e.downcast_ref() == Some(&ContainerError::NotExist(entry.id.clone())) => {
                return entry.remove().map(drop);
            }
            Err(e) => return Err(e),
        };
        if state.status() == Status::Running
            && let Some(pidfd) = state.sandbox()?
            && goes_on_alone(entry, &pidfd)?
        {
            return entry.disown();
        }
        end(&state)?;
        destroy_but_durable(entry, &state)
    };
    if let Err(e) = remove() {
        tracing::warn!("left by an earlier command: {e:#}");
    }
}

/// True if a sandbox goes on whose command was killed: it answers then. One that was not told to go
/// on ends by itself instead, as soon as it notices.
fn goes_on_alone(entry: &Entry, pidfd: &OwnedFd) -> Result<bool> {
    let connection = Connection::open(entry, MOMENT);
    let answer = connection.and_then(|mut connection| connection.call(&Request::Stats, &[]));
    Ok(answer.is_ok() || !ends_within(pidfd, MOMENT)?)
}

/// Takes the files of a container away from the sandbox of its pod, if that is still there.
fn leave_pod(entry: &Entry, state: &State) -> Result<()> {
    let (Some(first), Some(place)) = (&state.pod, &state.hub) else { return Ok(()) };
    let dir = entry.dir.with_file_name(first);
    let Ok(first) = (Entry { id: first.clone(), dir }).load() else { return Ok(()) };
    let mounts = std::fs::File::open(format!("/proc/{}/ns/mnt", first.pid));
    match (mounts, first.sandbox()?) {
        (Ok(mounts), Some(_)) => hub::detach(&mounts.into(), place),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [
            ("TERM", 15),
            ("SIGKILL", 9),
            ("stop", 19),
            ("18", 18),
            ("RTMIN", 34),
            ("SIGRTMIN+3", 37),
            ("RTMAX-1", 63),
        ] {
            assert_eq!(parse_signal(text).unwrap(), number, "{text}");
        }
        assert_eq!(parse_signal("0").unwrap(), 0);
        for text in ["", "65", "NOPE", "RTMIN+99", "RTMIN+x", "-9"] {
            assert!(parse_signal(text).is_err(), "{text}");
        }
    }
}
