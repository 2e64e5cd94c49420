//! `quark rollback`: a running container becomes what it was at a snapshot, in place: the same
//! process of the host, cgroup, namespaces and streams.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use anyhow::{Context, Result, bail, ensure};
use qlib::control::{Reply, Request};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::cli::{self, Global};
use super::client::unexpected;
use super::held::Held;
use super::state::{Entry, State, Store};
use super::{checkpoint, snapshots};
use crate::image::files::Files;
use crate::image::open::Sockets;
use crate::image::{Manifest, SocketName, What, open, record};
use crate::sandbox::hostcall::image::Parts;
use crate::sys;

/// Takes a container back.
///
/// # Errors
/// When it cannot be; it goes on then as it was, but for a failure of the host that comes too late
/// for that, with which it ends.
pub fn rollback(store: &Store, options: &cli::Rollback, global: &Global) -> Result<()> {
    let (entry, state) = checkpoint::savable(store, &options.id)?;
    let dir = snapshots::path(store, &entry, &options.name)?;
    if !dir.is_dir() {
        return Err(snapshots::missing(&entry, &options.name));
    }
    let image = Files::open(&dir)?;
    let manifest = image.check()?;
    // Its sockets are known by numbers that the host has given them, and its clocks go on.
    ensure!(
        manifest.host.is_of_this_boot()?,
        "the snapshot {} was made before the host was booted: quark restore --image-path {} makes \
         a container of it",
        options.name,
        dir.display()
    );
    let bundle = checkpoint::own_bundle(&state)?;
    checkpoint::check_bundle(&dir, &manifest, &bundle)?;
    let _lock = entry.lock()?;
    go_back(&entry, &state, (&image, manifest), global)
        .with_context(|| format!("container {} was not taken back", entry.id))?;
    snapshots::set_current(&entry, &options.name)
}

fn go_back(
    entry: &Entry,
    state: &State,
    (image, manifest): (&Files, Manifest),
    global: &Global,
) -> Result<()> {
    let mut held = Held::hold(entry, global.timeout)?;
    let mut parts = manifest.parts;
    parts.granted &= held.parts.granted;
    let files = open_in(&held, state, &manifest.files, &manifest.container.volumes)?;
    let said = memfd(&parts)?;
    let fds: Vec<BorrowedFd<'_>> = [&said, &image.ram, &image.reap]
        .into_iter()
        .chain(&image.swap)
        .map(AsFd::as_fd)
        .chain(files.iter().flatten().map(AsFd::as_fd))
        .collect();
    let request = Request::Become {
        layers: image.swap.len() as u32,
        files: files.iter().map(Option::is_some).collect(),
    };
    match held.connection.call(&request, &fds)? {
        Reply::Done => held.connection.order(&Request::Wake),
        other => Err(unexpected(&other)),
    }
}

/// Opens what the image names as its container has it, with the sockets that it still has.
fn open_in(
    held: &Held,
    state: &State,
    files: &[What],
    volumes: &[String],
) -> Result<Vec<Option<OwnedFd>>> {
    let mounts = mounts(held, volumes)?;
    let now = sockets(held)?;
    let same = |name: &SocketName| {
        now.iter().find(|(now, _)| now.cookie == name.cookie || is_in_place_of(now, name))
    };
    let kept = |name: &SocketName| same(name).and_then(|(_, fd)| fd.try_clone().ok());
    let sharing: Vec<Sharing<'_>> = now.iter().map(|(name, fd)| Sharing::begin(name, fd)).collect();
    // What its sockets may do is what they may in its sandbox process.
    let sockets = Sockets { low_ports: true, in_place: true, kept: &kept };
    let network = File::open(format!("/proc/{}/ns/net", state.pid))?;
    let opened = std::thread::scope(|scope| {
        let opening = scope.spawn(|| {
            let own = fs::metadata("/proc/thread-self/ns/net")?;
            if own.ino() != network.metadata()?.ino() {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(network.as_fd(), kind)
                    .context("entering the container's network namespace")?;
            }
            open::open_all(files, volumes, &mounts, sockets)
        });
        opening.join().map_err(|_| anyhow::anyhow!("opening its files failed"))?
    });
    drop(sharing);
    for what in files {
        if let What::Socket(name) = what
            && let Some((_, fd)) = same(name)
            && opened.is_ok()
        {
            open::set_options(fd, name)?;
        }
    }
    opened
}

/// True if a socket is where another one was, and what comes there would have come to that.
fn is_in_place_of(now: &SocketName, then: &SocketName) -> bool {
    let is_unconnected = |name: &SocketName| !name.is_connected && name.peer.is_none();
    let place = |name: &SocketName| {
        (name.domain, name.kind, name.protocol, name.local, name.listens, name.only_v6)
    };
    then.local.is_some() && is_unconnected(now) && is_unconnected(then) && place(now) == place(then)
}

/// A socket that the container has now: while this lives others may have its address too.
struct Sharing<'a> {
    name: &'a SocketName,
    fd: &'a OwnedFd,
}

impl<'a> Sharing<'a> {
    fn begin(name: &'a SocketName, fd: &'a OwnedFd) -> Sharing<'a> {
        if name.local.is_some() {
            open::share_address(fd).ok();
        }
        Sharing { name, fd }
    }
}

impl Drop for Sharing<'_> {
    fn drop(&mut self) {
        open::set_options(self.fd, self.name).ok();
    }
}

/// The root and the volumes, as it has them.
fn mounts<'h>(held: &'h Held, volumes: &[String]) -> Result<Vec<BorrowedFd<'h>>> {
    let by_number: HashMap<u32, u32> =
        held.parts.handles.iter().map(|handle| (handle.number, handle.file)).collect();
    let mount = |number: u32| {
        let file = by_number.get(&number).and_then(|file| held.files.get(*file as usize));
        match file {
            Some(fd) => Ok(fd.as_fd()),
            None => bail!("it has given up a volume that it had then"),
        }
    };
    (0..=volumes.len() as u32).map(mount).collect()
}

/// The sockets that it has now.
fn sockets(held: &Held) -> Result<Vec<(SocketName, &OwnedFd)>> {
    let is_socket = |fd: &&OwnedFd| rustix::net::sockopt::socket_type(fd).is_ok();
    let sockets = held.files.iter().filter(is_socket);
    Ok(sockets.filter_map(|fd| Some((record::socket(fd).ok()?, fd))).collect())
}

/// What an image says of a sandbox, in a file.
fn memfd(parts: &Parts) -> Result<File> {
    let bytes = postcard::to_allocvec(parts)?;
    let file = File::from(sys::memfd(c"quark-parts", bytes.len() as u64, false)?);
    file.write_all_at(&bytes, 0)?;
    Ok(file)
}
