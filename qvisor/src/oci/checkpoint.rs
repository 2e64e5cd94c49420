//! `quark checkpoint`: an image of a container, and `quark restore`: a container of an image.

use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::bundle::Bundle;
use super::cli::{self, Global};
use super::held::{Held, adopt};
use super::state::{Entry, State, Status, Store, make_private};
use super::{info, life, pod, rw_dirs};
use crate::image::files::Files;
use crate::image::host::{Clocks, Host};
use crate::image::packed::{self, How};
use crate::image::seal::Key;
use crate::image::write::{self, Begun, Tree};
use crate::image::{self, Manifest, record};
use crate::platform::PlatformKind;
use crate::sandbox::hostcall::image::Parts;
use crate::sys;

/// What a packed image is made of, among the container's snapshots; none can have this name.
const DRAFT: &str = ".packing";

/// `quark checkpoint`: writes an image of a container, which goes to sleep for it, and ends unless
/// it is to go on.
///
/// # Errors
/// When it cannot be saved; it goes on then, as it was.
pub fn checkpoint(store: &Store, options: &cli::Checkpoint, global: &Global) -> Result<()> {
    let (entry, state) = savable(store, &options.id)?;
    let bundle = own_bundle(&state)?;
    let (volumes, rw_dirs) = (volumes(&bundle), &options.rw_dir);
    let trees = rw_dirs::of((&entry, &state), &bundle, rw_dirs)
        .with_context(|| format!("container {} was not saved: --rw-dir", entry.id))?;
    let end = !options.leave_running;
    let whose = (&entry, &state, &*volumes);
    let saved = match packing(&options.packing, &trees)? {
        Some(how) => save_packed(whose, &options.image_path, &how, end, global),
        None => save(whose, &trees, &options.image_path, (None, end), global).map(|_| ()),
    };
    saved.with_context(|| format!("container {} was not saved", entry.id))?;
    // It is ending by itself.
    if options.leave_running { Ok(()) } else { life::end(&state) }
}

/// How the image is packed, if it is to be.
fn packing(options: &cli::Packing, trees: &[Tree]) -> Result<Option<How>> {
    let cli::Packing { compress, key_file } = options;
    let key = key_file.as_deref().map(Key::read).transpose()?;
    if !compress && key.is_none() {
        return Ok(None);
    }
    if let Some(Tree { destination, .. }) = trees.first() {
        bail!(
            "an image with a copy of {destination} (io.quark.rw-dirs) cannot be compressed or \
             encrypted"
        );
    }
    Ok(Some(How { compress: *compress, key }))
}

/// Writes a packed image of a container to `dir`: from one that is its own, beside its store, so
/// that nothing else of it comes to `dir`.
///
/// # Errors
/// With nothing left of it.
fn save_packed(
    whose @ (entry, ..): (&Entry, &State, &[String]),
    dir: &Path,
    how: &How,
    end: bool,
    global: &Global,
) -> Result<()> {
    let dir = std::path::absolute(dir)?;
    let _lock = entry.lock()?;
    make_private(&entry.snapshots())?;
    let draft = entry.snapshots().join(DRAFT);
    // Of a command that was killed.
    std::fs::remove_dir_all(&draft).ok();
    let pack = || Files::open(&draft).and_then(|files| packed::pack(&files, &dir, how));
    let saved = save_then(whose, &[], &draft, (None, end), global, pack);
    std::fs::remove_dir_all(&draft).ok();
    saved.map(|_| ())
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

/// Writes an image of a container, given with its volumes, to `dir`, with copies of `trees`; what
/// it is, and its files. `parent`: see [`begin`]; `end`: it ends then.
///
/// # Errors
/// With nothing left of it.
pub fn save(
    whose: (&Entry, &State, &[String]),
    trees: &[Tree],
    dir: &Path,
    how: (Option<String>, bool),
    global: &Global,
) -> Result<(Parts, Vec<OwnedFd>)> {
    save_then(whose, trees, dir, how, global, || Ok(()))
}

/// The same, with what is done with the image before a container that is to end does.
///
/// # Errors
/// With nothing left of it.
fn save_then(
    (entry, state, volumes): (&Entry, &State, &[String]),
    trees: &[Tree],
    dir: &Path,
    (parent, end): (Option<String>, bool),
    global: &Global,
    then: impl FnOnce() -> Result<()>,
) -> Result<(Parts, Vec<OwnedFd>)> {
    let host = Host::here()?;
    let mut held = Held::hold(entry, global.timeout)?;
    let begun = begin(&mut held, (state, host), (volumes, trees), dir, parent)?;
    // Where the image's files are those of its store, nothing else is ever written where the pages
    // go that it keeps: it goes on meanwhile.
    let goes_on = !end && begun.is_near();
    if goes_on {
        held.release(false)?;
    }
    let (written, sums) = begun.finish(&held.sources)?;
    let told = || -> Result<()> {
        then()?;
        if !end && !held.kept.is_empty() {
            held.written(&sums)?;
        }
        if goes_on {
            return Ok(());
        }
        held.release(end)?;
        // It goes on from this image now.
        if end {
            entry.forget_durable();
        }
        Ok(())
    };
    told().inspect_err(|_| written.remove())?;
    Ok((held.parts, held.files))
}

/// Begins to write an image of a container of `host`, which is held, to `dir`; `parent`: the
/// snapshot that it was made of, or that was made of it before.
///
/// # Errors
/// With nothing left of it.
pub(super) fn begin<'a>(
    held: &mut Held,
    (state, host): (&State, Host),
    (volumes, trees): (&[String], &[Tree]),
    dir: &'a Path,
    parent: Option<String>,
) -> Result<Begun<'a>> {
    let parts = &held.parts;
    let terminal = record::terminal(parts, &held.files);
    let files = record::describe(parts, &held.files, u32::try_from(volumes.len())?)?;
    let manifest = Manifest {
        format: image::FORMAT,
        kernel: image::build().to_owned(),
        host,
        clocks: Clocks::now(state.clocks),
        platform: state.platform,
        container: image::Container {
            id: state.id.clone(),
            init: state.init,
            volumes: volumes.to_vec(),
            terminal,
            layer: state.layer,
            rw_dirs: trees.iter().map(|tree| tree.destination.clone()).collect(),
            parent,
        },
        ram_sum: 0,
        sums_sum: 0,
        layers: 0,
        parts: parts.clone(),
        files,
    };
    let Held { connection, sources, kept, .. } = held;
    write::begin(dir, manifest, (sources, kept), trees, |shared| adopt(connection, shared))
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
