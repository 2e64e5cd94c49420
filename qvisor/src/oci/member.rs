//! The process of the host that stands for a further container of a sandbox, whose kernel it
//! shares: a *member* of its pod.
//!
//! It opens what the container may see of the host, has the sandbox make the container, and stays.
//! It is in the container's cgroup, its number is the container's process ID, and its exit code is
//! that of the container's program. When it ends the sandbox ends the container; when the sandbox
//! ends, it does.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, anyhow, bail};
use qlib::control::{ContainerSpec, FurtherNamespaces, Reply, Request};

use super::child::{self, FromChild, Setup, ToChild};
use super::client::{Connection, unexpected};
use super::{hub, wire};
use crate::sandbox::control_server::MAX_FDS;
use crate::sandbox::ended;
use crate::sys;

/// The first argument by which such a process knows itself.
pub const MEMBER_COMMAND: &CStr = c"member-process";

/// Its main function.
pub fn main() -> i32 {
    child::serve(member)
}

fn member(parent: &UnixStream) -> Result<i32> {
    let Some((ToChild::Join(setup, namespaces), fds)) = wire::receive(parent)? else {
        bail!("no set-up came")
    };
    let mut fds = fds.into_iter();
    let (Some(connection), Some(record), Some(mounts)) = (fds.next(), fds.next(), fds.next())
    else {
        bail!("the set-up came without its descriptors");
    };
    ended::record_in(record);
    child::begin_log(&setup)?;
    sys::ignore_signals();
    child::leave_mounts()?;
    child::call_hooks(&setup, parent)?;
    let mut connection = Connection::from_stream(UnixStream::from(connection));
    let container = join(&mut connection, &setup, namespaces, &mounts, fds.next())?;
    wire::send(parent, &FromChild::Ready(container), &[])?;
    if !setup.attended {
        super::log::end_sandbox();
    }
    drop((setup, mounts));
    sys::trim_process();
    attend(&mut connection, container)
}

/// Has the sandbox make the container; its number there.
fn join(
    connection: &mut Connection,
    setup: &Setup,
    namespaces: FurtherNamespaces,
    mounts: &OwnedFd,
    users: Option<OwnedFd>,
) -> Result<u32> {
    let opened = child::open_all(setup)?;
    let spec = child::container_spec(setup, &opened);
    let files = opened.files();
    if let Some(users) = &users {
        for file in &files {
            sys::map_mount(file, users).context(
                "its files cannot be shown to the pod's sandbox, which has a user namespace (their \
                file system cannot be id-mapped): make the pod separate",
            )?;
        }
    }
    let place = setup.hub.as_deref().context("the set-up has no place for the files")?;
    hub::attach(mounts, place, &files)?;
    let made = make(connection, ContainerSpec { namespaces, ..spec }, &files);
    if made.is_err() {
        hub::detach(mounts, place).ok();
    }
    made
}

fn make(connection: &mut Connection, spec: ContainerSpec, files: &[OwnedFd]) -> Result<u32> {
    let streams = child::take_stdio()?;
    let own_stdio = streams.each_ref().map(|stream| stream.own);
    let streams = streams.iter().map(|stream| stream.fd.as_fd());
    let fds: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).chain(streams).collect();
    if fds.len() > MAX_FDS {
        bail!(
            "the container has {} mounts of the host, and one that shares the kernel of its pod can \
            have {}",
            files.len() - 1,
            MAX_FDS - 4
        );
    }
    let request = Request::Create(ContainerSpec { own_stdio, ..spec });
    match connection.call(&request, &fds)? {
        Reply::Container(number) => Ok(number),
        other => Err(unexpected(&other)),
    }
}

/// Waits for the container's end; its exit code.
fn attend(connection: &mut Connection, container: u32) -> Result<i32> {
    let (code, reason) = match connection.call(&Request::Attend { container }, &[]) {
        Ok(Reply::Ended { code, for_memory: true }) => {
            let reason = "the memory of its pod was used up, and its program killed for that";
            ended::out_of_memory(code, reason);
            return Ok(code);
        }
        Ok(Reply::Ended { code, .. }) => (code, "its program ended".to_owned()),
        Ok(other) => return Err(anyhow!("{other:?} does not tell the container's end")),
        Err(e) => (128 + libc::SIGKILL, format!("the sandbox of its pod ended: {e:#}")),
    };
    ended::ended(code, &reason);
    Ok(code)
}
