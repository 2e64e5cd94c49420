//! `quark wait`: the end of a container, for those that are not its parent.
//!
//! Who waits for a container looks at its sandbox process and never asks it: any number may, it
//! costs the sandbox nothing, and does not wake it. Who waits for another process of it holds a
//! connection, of which a sandbox has few; so there may be [`PLACES`] of those.

use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use qlib::control::{Reply, Request};
use serde_json::json;

use super::cli::{self, Format};
use super::client::{ANSWER_TIMEOUT, Connection, unexpected};
use super::error::SandboxEnded;
use super::info::{killed, print, running};
use super::state::{Entry, State, Store, recorded};

/// How many may wait for processes of one container at once.
const PLACES: usize = 16;

/// `quark wait`.
///
/// # Errors
/// When there is no such container or process.
pub fn wait(
    (store, id): &(Store, String),
    options: &cli::Wait,
    timeout: Option<Duration>,
) -> Result<()> {
    let status = match options.pid {
        None => {
            let (entry, state) = store.load(id)?;
            end_of_container(&entry, &state)?
        }
        Some(pid) => {
            let (entry, state) = running(store, id)?;
            if pid == state.init {
                end_of_container(&entry, &state)?
            } else {
                end_of(&entry, pid, timeout)?
            }
        }
    };
    match options.format {
        Format::Table => print(&format!("{status}\n")),
        Format::Json => print(&format!("{}\n", json!({"id": id, "exitStatus": status}))),
    }
}

/// Waits for the sandbox's end; the container's exit status.
pub(super) fn end_of_container(entry: &Entry, state: &State) -> Result<i32> {
    // Whoever sees its end first may delete what is left of it.
    let record = entry.open_ended();
    if state.pid == 0 {
        bail!("container {} is being created", entry.id);
    }
    if let Some(pidfd) = state.sandbox()? {
        let mut process = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        while let Err(e) = poll(&mut process, PollTimeout::NONE) {
            if e != Errno::EINTR {
                return Err(e).context("waiting for the sandbox");
            }
        }
    }
    let ended = record.ok().and_then(|file| recorded(file).0);
    let by_signal = || killed(state)["status"].as_i64().and_then(|s| i32::try_from(s).ok());
    ended.map(|e| e.status).or_else(by_signal).context("how it ended is not known")
}

/// Waits for a process's end; its exit status.
fn end_of(entry: &Entry, pid: u32, timeout: Option<Duration>) -> Result<i32> {
    let _place = place(entry)?;
    let mut connection = Connection::open(entry, timeout.unwrap_or(ANSWER_TIMEOUT))?;
    connection.set_timeout(None);
    connection.send(&Request::Wait { pid }, &[])?;
    match connection.receive() {
        Ok(Reply::Exited(status)) => Ok(status),
        Ok(other) => Err(unexpected(&other)),
        // It takes all its processes with it.
        Err(e) if e.is::<SandboxEnded>() => Ok(128 + libc::SIGKILL),
        Err(e) => Err(e),
    }
}

/// One of the places for those who wait. It is free again when this process has ended, however it
/// does.
fn place(entry: &Entry) -> Result<Flock<std::fs::File>> {
    for number in 0..PLACES {
        let path = entry.dir.join(format!("wait.{number}"));
        let mut open = OpenOptions::new();
        open.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = open.open(&path).with_context(|| format!("opening {}", path.display()))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(place) => return Ok(place),
            Err((_, Errno::EWOULDBLOCK)) => {}
            Err((_, e)) => return Err(e).with_context(|| format!("locking {}", path.display())),
        }
    }
    bail!(
        "{PLACES} wait for processes of container {} already: wait for the container instead \
         (without --pid), or end one of them",
        entry.id
    )
}
