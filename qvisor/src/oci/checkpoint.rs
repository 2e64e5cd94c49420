//! `quark checkpoint`: an image of a container, and `quark restore`: a container of an image.

use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::bundle::Bundle;
use super::cli::{self, Global};
use super::held::{Held, adopt};
use super::state::{Entry, State, Status, Store};
use super::{info, life, pod};
use crate::image::write::{self, Written};
use crate::image::{self, Manifest, record};
use crate::platform::PlatformKind;
use crate::sandbox::hostcall::image::Parts;
use crate::sys;

/// `quark checkpoint`: writes an image of a container, which goes to sleep for it, and ends unless
/// it is to go on.
///
/// # Errors
/// When it cannot be saved; it goes on then, as it was.
pub fn checkpoint(store: &Store, options: &cli::Checkpoint, global: &Global) -> Result<()> {
    let (entry, state) = savable(store, &options.id)?;
    let volumes = own_volumes(&state)?;
    let end = !options.leave_running;
    save((&entry, &state, &volumes), &options.image_path, (None, end), global)
        .with_context(|| format!("container {} was not saved", entry.id))?;
    // It is ending by itself.
    if options.leave_running { Ok(()) } else { life::end(&state) }
}

/// Checks that it is no container that cannot be saved in any case.
///
/// # Errors
/// When it is one.
pub fn check(state: &State) -> Result<()> {
    let id = &state.id;
    if state.platform != PlatformKind::Process {
        bail!(
            "container {id} cannot be saved: it is on the kvm platform, and images are of the \
            process platform"
        );
    }
    pod::check_first(state, "saved")
}

/// A container that runs, and is none that cannot be saved. From then on a file-size limit is an
/// error like a full disk.
///
/// # Errors
/// When there is no such container; with what it is.
pub fn savable(store: &Store, id: &str) -> Result<(Entry, State)> {
    sys::ignore_signals();
    let (entry, state) = info::running(store, id)?;
    check(&state)?;
    match state.status() {
        Status::Running | Status::Paused => Ok((entry, state)),
        other => bail!("cannot save container {id}: it is {}, not running", other.name()),
    }
}

/// A container's own bundle.
///
/// # Errors
/// When that cannot be read.
pub fn own_bundle(state: &State) -> Result<Bundle> {
    Bundle::load(&state.bundle).context("the container's configuration")
}

/// What [`volumes`] says of that.
///
/// # Errors
/// When it cannot be read.
pub fn own_volumes(state: &State) -> Result<Vec<String>> {
    Ok(volumes(&own_bundle(state)?))
}

/// Where files of the host are mounted, besides the root, in their order.
pub fn volumes(bundle: &Bundle) -> Vec<String> {
    let of_host = bundle.mounts.iter().filter(|mount| mount.host.is_some());
    of_host.map(|mount| mount.destination.clone()).collect()
}

/// Writes an image of a container, given with its volumes, to `dir`; what it is, and its files.
/// `parent`: see [`write`]; `end`: it ends then.
///
/// # Errors
/// With nothing left of it.
pub fn save(
    (entry, state, volumes): (&Entry, &State, &[String]),
    dir: &Path,
    (parent, end): (Option<String>, bool),
    global: &Global,
) -> Result<(Parts, Vec<OwnedFd>)> {
    let mut held = Held::hold(entry, global.timeout)?;
    let written = write(&mut held, state, volumes, dir, parent)?;
    held.release(end).inspect_err(|_| written.remove())
}

/// Writes an image of a container that is held to `dir`; `parent`: the snapshot that it was made
/// of, or that was made of it before.
///
/// # Errors
/// With nothing left of it.
fn write<'a>(
    held: &mut Held,
    state: &State,
    volumes: &[String],
    dir: &'a Path,
    parent: Option<String>,
) -> Result<Written<'a>> {
    let parts = &held.parts;
    let terminal = record::terminal(parts, &held.files);
    let files = record::describe(parts, &held.files, u32::try_from(volumes.len())?)?;
    let manifest = Manifest {
        format: image::FORMAT,
        kernel: image::build().to_owned(),
        boot_id: image::directory::boot_id()?,
        platform: state.platform,
        container: image::Container {
            id: state.id.clone(),
            init: state.init,
            volumes: volumes.to_vec(),
            terminal,
            is_overlaid: state.is_overlaid,
            parent,
        },
        ram_sum: 0,
        sums_sum: 0,
        layers: 0,
        parts: parts.clone(),
        files,
    };
    let Held { connection, sources, .. } = held;
    write::write(dir, manifest, sources, |shared| adopt(connection, shared))
}

/// Checks that a container of this bundle may be what the container of an image was.
///
/// # Errors
/// With what is not the same.
pub fn check_bundle(dir: &Path, manifest: &Manifest, bundle: &Bundle) -> Result<()> {
    let (then, now) = (&manifest.container.volumes, volumes(bundle));
    if *then != now {
        bail!(
            "the image in {} is of a container with the volumes [{}], and the bundle has [{}]",
            dir.display(),
            then.join(", ").escape_debug(),
            now.join(", ")
        );
    }
    Ok(())
}
