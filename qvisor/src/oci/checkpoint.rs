//! `quark checkpoint`: an image of a container, and `quark restore`: a container of an image.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use qlib::control::{HibernationState, Reply, Request};

use super::bundle::Bundle;
use super::cli::{self, Global};
use super::client::{ANSWER_TIMEOUT, Connection, Refused, unexpected};
use super::hibernation::{self, SWAP_TIMEOUT};
use super::state::{Entry, State, Status, Store};
use super::{info, life, pod};
use crate::image::directory::{self, Sources};
use crate::image::{self, Manifest, record};
use crate::platform::PlatformKind;
use crate::sandbox::hostcall::image::Parts;
use crate::sys;

/// How often it is put to sleep if something wakes it before it can be copied.
const TRIES: u32 = 20;
/// How long it may take to become idle. Then it is stopped in the middle of what it does.
const PATIENCE: Duration = Duration::from_secs(1);

/// `quark checkpoint`: writes an image of a container, which goes to sleep for it, and ends unless
/// it is to go on.
///
/// # Errors
/// When it cannot be saved; it goes on then, as it was.
pub fn checkpoint(store: &Store, options: &cli::Checkpoint, global: &Global) -> Result<()> {
    // A file-size limit is an error like a full disk.
    sys::ignore_signals();
    let (entry, state) = info::running(store, &options.id)?;
    check(&state)?;
    let volumes = volumes(&Bundle::load(&state.bundle).context("the container's configuration")?);
    // containerd pauses a container first, and what is held would be held in the image.
    let was_paused = state.status() == Status::Paused;
    let order = |request: &Request| Connection::open(&entry, SWAP_TIMEOUT)?.order(request);
    if was_paused {
        order(&Request::Resume)?;
    }
    let written = save(&entry, &state, &volumes, options, global);
    if was_paused
        && (options.leave_running || written.is_err())
        && let Err(e) = order(&Request::Pause)
    {
        tracing::debug!("after the checkpoint: {e:#}");
    }
    written.with_context(|| format!("container {} was not saved", entry.id))?;
    // It is ending by itself.
    if options.leave_running { Ok(()) } else { life::end(&state) }
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
    // Whoever was awake is woken when it ends.
    let mut connection = Connection::open(entry, ANSWER_TIMEOUT)?;
    let (bytes, mut files) = sleeping(&mut connection, global)?;
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
    let terminal = record::terminal(&parts, &files);
    let files = record::describe(&parts, &files, u32::try_from(volumes.len())?)?;
    let manifest = Manifest {
        format: image::FORMAT,
        kernel: image::build(),
        boot_id: directory::boot_id()?,
        platform: state.platform,
        container: image::Container {
            id: state.id.clone(),
            init: state.init,
            volumes: volumes.to_vec(),
            terminal,
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
fn sleeping(connection: &mut Connection, global: &Global) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    // One that does not answer at all is found out sooner.
    let stats = match connection.call(&Request::Stats, &[])? {
        Reply::Stats(stats) => stats,
        other => return Err(unexpected(&other)),
    };
    let patience = global.timeout.unwrap_or(PATIENCE);
    let sleep = hibernation::request(connection, patience, true, true);
    let mut is_asleep = stats.state == HibernationState::Hibernated;
    let mut tries = 0;
    loop {
        let asked = match is_asleep {
            true => Ok(()),
            false => connection.order(&sleep),
        };
        is_asleep = false;
        tries += 1;
        let is_busy = |e: &anyhow::Error| {
            let refused = e.downcast_ref::<Refused>().map(|refused| refused.errno);
            tries < TRIES && matches!(refused, Some(libc::EBUSY | libc::EINTR))
        };
        match asked.and_then(|()| connection.call_for_files(&Request::Checkpoint, MAX_FILES)) {
            Ok((Reply::Image(bytes), files)) => return Ok((bytes, files)),
            Ok((other, _)) => return Err(unexpected(&other)),
            // Something has woken it meanwhile.
            Err(e) if is_busy(&e) => {}
            Err(e) => return Err(hibernation::explained(e)),
        }
    }
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
            then.join(", ").escape_debug(),
            now.join(", ")
        );
    }
    Ok(())
}
