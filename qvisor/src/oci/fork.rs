//! `quark fork`: containers that begin as what a running one is, which goes on.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};

use super::bundle::Bundle;
use super::checkpoint;
use super::cli::{self, Global};
use super::clones::make_all;
use super::create::{self, Origin};
use super::rw_dirs;
use super::state::{Entry, State, Store, make_private, try_lock};
use crate::image::directory;
use crate::image::files::Files;
use crate::sandbox::hostcall::image::{Parts, STREAMS};

/// The name of the last image that a container was forked by, among its snapshots.
const LAST: &str = ".fork";

/// Makes containers of what another one is.
///
/// # Errors
/// When that cannot be copied, or one of them cannot be made; those before it stay.
pub fn fork(store: &Store, options: &cli::Fork, global: &Global) -> Result<()> {
    let (entry, state) = checkpoint::savable(store, &options.id)?;
    let own = checkpoint::own_bundle(&state)?;
    let volumes = checkpoint::volumes(&own);
    let trees = rw_dirs::of((&entry, &state), &own, &[])?;
    let names: Vec<String> = trees.iter().map(|tree| tree.destination.clone()).collect();
    let mut bundle = match &options.bundle {
        Some(dir) => Bundle::load(dir)?,
        None => own,
    };
    if bundle.process.terminal {
        bail!(
            "container {} has a terminal, which cannot be shared: use checkpoint and restore",
            entry.id
        );
    }
    let ids = match options.count {
        None => vec![options.new.clone()],
        Some(count) => (1..=count).map(|n| format!("{}-{n}", options.new)).collect(),
    };
    for id in &ids {
        store.entry(id)?;
    }
    let draft = Draft::new(&store.images().join("forks"))?;
    let dir = draft.image();
    let whose = (&entry, &state, &*volumes);
    let hold = || {
        let _lock = entry.lock()?;
        let saved = checkpoint::save(whose, &trees, &dir, (None, false), global)?;
        streams(&saved, volumes.len() as u32)
    };
    let streams = hold().with_context(|| format!("container {} was not forked", entry.id))?;
    // Nobody gets into the host's network whose original is not there.
    if options.new_network || bundle.network().is_none() && !shares_network(state.pid)? {
        bundle.set_new_network();
    }
    let image = Files::open(&dir)?;
    let are_there = make_all(store, (global, state.init), ids.into_iter(), |id, signals| {
        bundle.set_cgroup_beside(id);
        let streams = Some(streams.each_ref().map(AsFd::as_fd));
        let State { layer, clocks, .. } = state;
        let image = Origin { files: &image, layer, clocks, rw_dirs: &names, goes_on: false };
        let request = create::Request::of_image(global, id, &bundle, image, signals);
        create::begin(&create::Request { streams, ..request })
    })?;
    draft.keep_for(&entry);
    ensure!(are_there, "not all containers were made that were to be forked from {}", entry.id);
    Ok(())
}

/// True if a process has the network of this one.
fn shares_network(pid: i32) -> Result<bool> {
    let network = |pid: &str| fs::metadata(format!("/proc/{pid}/ns/net")).map(|file| file.ino());
    Ok(network(&pid.to_string())? == network("self")?)
}

/// The standard streams of a container with so many volumes; what it has closed is /dev/null.
fn streams((parts, files): &(Parts, Vec<OwnedFd>), volumes: u32) -> Result<[OwnedFd; 3]> {
    let stream = |number: u32| {
        let handle = parts.handles.iter().find(|handle| handle.number == volumes + number);
        match handle.and_then(|handle| files.get(handle.file as usize)) {
            Some(fd) => Ok(fd.try_clone()?),
            None => Ok(File::options().read(true).write(true).open("/dev/null")?.into()),
        }
    };
    let streams: Vec<OwnedFd> = (1..=STREAMS).map(stream).collect::<Result<_>>()?;
    <[OwnedFd; 3]>::try_from(streams).map_err(|_| anyhow::anyhow!("a stream is missing"))
}

/// A directory for an image that is there as long as this command.
struct Draft {
    dir: PathBuf,
    /// Tells who finds it later whether the command was killed.
    _lock: Flock<File>,
}

impl Draft {
    /// In a directory for such, from which those go that killed commands left.
    fn new(parent: &Path) -> Result<Draft> {
        let making = || format!("making a directory for the image in {}", parent.display());
        make_private(parent)?;
        // No other command looks around between the making of a directory and its lock.
        let all = File::open(parent).with_context(making)?;
        let _alone = Flock::lock(all, FlockArg::LockExclusive).map_err(|(_, e)| e)?;
        for left in fs::read_dir(parent).with_context(making)?.flatten() {
            if try_lock(&left.path()).is_ok() {
                fs::remove_dir_all(left.path()).ok();
            }
        }
        let dir = parent.join(std::process::id().to_string());
        fs::DirBuilder::new().mode(0o700).create(&dir).with_context(making)?;
        let lock = try_lock(&dir).with_context(making)?;
        Ok(Draft { dir, _lock: lock })
    }

    /// Has the container that the image is of keep it: the files that it goes on with have a name
    /// there, by which the next image has them too.
    fn keep_for(&self, entry: &Entry) {
        let dir = entry.snapshots();
        let kept = make_private(&dir).and_then(|()| {
            fs::remove_dir_all(dir.join(LAST)).ok();
            fs::rename(self.image(), dir.join(LAST))?;
            // Nobody else is made of it.
            Ok(directory::forget_trees(&dir.join(LAST))?)
        });
        if let Err(e) = kept {
            tracing::debug!("the next image copies what this one had: {e:#}");
        }
    }

    /// Where the image goes.
    fn image(&self) -> PathBuf {
        self.dir.join("image")
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Whoever was made of it has its files open.
        fs::remove_dir_all(&self.dir).ok();
    }
}
