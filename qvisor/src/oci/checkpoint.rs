//! `quark checkpoint`: an image of a container, and `quark restore`: a container of an image.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use qlib::control::{HibernationState, Reply, Request};

use super::bundle::Bundle;
use super::cli::{self, Global};
use super::client::{ANSWER_TIMEOUT, Connection, Refused, unexpected};
use super::hibernation::{SWAP_TIMEOUT, ask_to_sleep};
use super::state::{Entry, State, Status, Store};
use super::{info, life, pod};
use crate::image::directory::{self, Sources};
use crate::image::{self, Manifest, record};
use crate::platform::PlatformKind;
use crate::sandbox::hostcall::image::Parts;

/// How often it is put to sleep again if something wakes it before it can be copied.
const TRIES: u32 = 5;

/// `quark checkpoint`: writes an image of a container, which goes to sleep for it, and ends unless
/// it is to go on.
///
/// # Errors
/// When it cannot be saved; it goes on then.
pub fn checkpoint(store: &Store, options: &cli::Checkpoint, global: &Global) -> Result<()> {
    let (entry, state) = info::running(store, &options.id)?;
    let _lock = entry.lock()?;
    check(&state)?;
    let volumes = volumes(&Bundle::load(&state.bundle).context("the container's configuration")?);
    let was_asleep = is_asleep(&entry)?;
    // containerd pauses a container first. What is held is not idle, and would be held in the image.
    let was_paused = state.status() == Status::Paused;
    let order = |request: &Request| Connection::open(&entry, SWAP_TIMEOUT)?.order(request);
    if was_paused {
        order(&Request::Resume)?;
    }
    let written = save(&entry, &state, &volumes, options, global);
    if options.leave_running || written.is_err() {
        // Who slept need not wake for it.
        let woken = if was_asleep { Ok(()) } else { order(&Request::Wake) };
        let held = if was_paused { order(&Request::Pause) } else { Ok(()) };
        if let Err(e) = woken.and(held) {
            tracing::debug!("after the checkpoint: {e:#}");
        }
    }
    written.with_context(|| format!("container {} was not saved", entry.id))?;
    if options.leave_running {
        return Ok(());
    }
    life::end(&state)
}

/// What cannot be saved in any case.
fn check(state: &State) -> Result<()> {
    let id = &state.id;
    if state.platform != PlatformKind::Process {
        bail!(
            "container {id} cannot be saved: it is on the kvm platform, and images are of the \
            process platform"
        );
    }
    pod::check_first(state, "saved")?;
    match state.status() {
        Status::Running | Status::Paused => Ok(()),
        other => bail!("cannot save container {id}: it is {}, not running", other.name()),
    }
}

fn is_asleep(entry: &Entry) -> Result<bool> {
    let stats = info::stats(entry, Some(ANSWER_TIMEOUT))?;
    Ok(stats.state == HibernationState::Hibernated)
}

/// Where files of the host are mounted, besides the root, in their order.
pub fn volumes(bundle: &Bundle) -> Vec<String> {
    let of_host = bundle.mounts.iter().filter(|mount| mount.host.is_some());
    of_host.map(|mount| mount.destination.clone()).collect()
}

fn save(
    entry: &Entry,
    state: &State,
    volumes: &[String],
    options: &cli::Checkpoint,
    global: &Global,
) -> Result<()> {
    let mut connection = Connection::open(entry, SWAP_TIMEOUT)?;
    let (bytes, mut files) = sleeping(&mut connection, entry, global)?;
    let parts: Parts = postcard::from_bytes(&bytes).context("decoding what the sandbox is")?;
    let missing = || "the sandbox did not send all of its files";
    let mut next = || if files.is_empty() { None } else { Some(File::from(files.remove(0))) };
    let ram = next().with_context(missing)?;
    let mut store = [None, None, None];
    for (file, is_there) in store.iter_mut().zip(parts.store.files) {
        if is_there {
            *file = Some(next().with_context(missing)?);
        }
    }
    ensure!(files.len() == parts.files as usize, missing());
    let files = record::describe(&parts, &files, u32::try_from(volumes.len())?)?;
    let manifest = Manifest {
        format: image::FORMAT,
        kernel: image::build(),
        boot_id: directory::boot_id()?,
        platform: state.platform,
        container: image::Container {
            id: state.id.clone(),
            init: state.init,
            process: state.process.clone(),
            volumes: volumes.to_vec(),
        },
        ram_sum: 0,
        sums_sum: 0,
        parts,
        files,
    };
    let image = directory::write(&options.image_path, manifest, &Sources { ram, store })?;
    connection.order(&Request::Release { end: !options.leave_running }).inspect_err(|_| {
        image.remove();
    })
}

/// Puts it to sleep if it is not, and has it say what it is. It does nothing from then on until the
/// connection is used again, or ends.
fn sleeping(
    connection: &mut Connection,
    entry: &Entry,
    global: &Global,
) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut refused = None;
    for _ in 0..TRIES {
        ask_to_sleep(entry, global.timeout, false)?;
        match connection.call_for_files(&Request::Checkpoint, MAX_FILES) {
            Ok((Reply::Image(bytes), files)) => return Ok((bytes, files)),
            Ok((other, _)) => return Err(unexpected(&other)),
            Err(e) if e.downcast_ref::<Refused>().is_some_and(|r| r.errno == libc::EBUSY) => {
                refused = Some(e);
            }
            Err(e) => return Err(e),
        }
    }
    Err(refused.unwrap_or_else(|| unexpected(&Reply::Done)))
}

/// More files than any sandbox has.
const MAX_FILES: usize = 1 << 20;

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
            then.join(", "),
            now.join(", ")
        );
    }
    Ok(())
}
