//! The sleep of which the disk has the image when it has begun.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::super::cli::Global;
use super::super::held::Held;
use super::super::state::{Entry, State, Status, Store, make_private, own};
use super::super::{checkpoint, hibernation, rw_dirs};
use super::{ASLEEP, BUNDLE, DRAFT, is_good, open_note};
use crate::image::host::Host;
use crate::image::write::Tree;

/// Puts a container to sleep once it is idle, as `quark hibernate` does, and keeps it on the disk.
///
/// # Errors
/// When it does not sleep, or cannot be saved: it sleeps then, or has been woken.
pub fn hibernate(store: &Store, id: &str, global: &Global) -> Result<()> {
    let (entry, state) = checkpoint::savable(store, id)?;
    hibernation::hibernate(store, id, global.timeout, false)?;
    let _lock = entry.lock()?;
    let dir = entry.durable();
    if is_good(&dir)? {
        // A command that was killed may have come no further than that.
        return Ok(File::open(dir)?.sync_all()?);
    }
    save(&entry, &state).with_context(|| format!("container {id} is not kept for the next boot"))
}

/// Writes the image of a container that sleeps.
fn save(entry: &Entry, state: &State) -> Result<()> {
    let bundle = checkpoint::own_bundle(state)?;
    let volumes = checkpoint::volumes(&bundle);
    let trees = rw_dirs::of((entry, state), &bundle, &[])?;
    let dir = entry.durable();
    entry.forget_durable();
    make_private(&dir)?;
    let saved = write(entry, state, (&volumes, &trees), &dir);
    saved.inspect_err(|_| entry.forget_durable())
}

fn write(
    entry: &Entry,
    state: &State,
    (volumes, trees): (&[String], &[Tree]),
    dir: &Path,
) -> Result<()> {
    let new = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        let file = own(OpenOptions::new().write(true).create_new(true)).open(&path);
        let written = file.and_then(|mut file| file.write_all(bytes));
        written.with_context(|| format!("writing {}", path.display()))
    };
    new(BUNDLE, state.bundle.as_os_str().as_bytes())?;
    new(DRAFT, b"1")?;
    let host = Host::here()?;
    let mut held = Held::hold_sleeper(entry)?;
    let begun = checkpoint::begin(&mut held, (state, host), (volumes, trees), dir, None)?;
    held.note_wake(&open_note(&dir.join(DRAFT))?)?;
    // Nothing else is ever written where its pages are: it may be woken meanwhile.
    let is_near = begun.is_near();
    if is_near {
        held.release(false)?;
    }
    begun.finish(&held.sources)?;
    if !is_near {
        held.release(false)?;
    }
    let publish = || -> Result<()> {
        to_disk(dir, !trees.is_empty())?;
        fs::rename(dir.join(DRAFT), dir.join(ASLEEP))?;
        File::open(dir)?.sync_all()?;
        Ok(())
    };
    publish().with_context(|| format!("writing {}", dir.display()))?;
    if !is_good(dir)? {
        bail!("something has woken it meanwhile: hibernate it again");
    }
    if state.status() == Status::Stopped {
        bail!("it has ended meanwhile");
    }
    Ok(())
}

/// Has the disk have all that is in a directory, and the directories that it lies in. `deep`: there
/// are others in it.
fn to_disk(dir: &Path, deep: bool) -> io::Result<()> {
    if deep {
        rustix::fs::syncfs(File::open(dir)?)?;
    }
    for item in fs::read_dir(dir)? {
        File::open(item?.path())?.sync_all()?;
    }
    let sync = |dir: &Path| File::open(dir)?.sync_all();
    sync(dir)?;
    // That of all of them, and that of the state directory's.
    let mut above = dir.ancestors().skip(1);
    above.by_ref().take(2).try_for_each(sync)?;
    // Those of others it may not read, or they are of what is never written.
    above.take_while(|dir| sync(dir).is_ok()).count();
    Ok(())
}
