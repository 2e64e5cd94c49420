//! `quark uninstall --all`: every runtime that is this binary, as packages do before they remove
//! it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::containerd::{self, Version};
use super::file::ConfigFile;
use super::options::Target;
use super::place::Place;
use super::{Change, Engine, Registered, Runtime, check_not_default, finish, is_same, removal};
use crate::oci::info::print;
use crate::oci::roots::Roots;
use crate::oci::state::{Status, Store, default_root};

/// Takes them out. A file that nobody named and that cannot be understood or changed is left alone,
/// with a warning: it must not keep a package installed for ever.
///
/// # Errors
/// When containers run, which could be neither stopped nor deleted without the binary, or an engine
/// would not start without the runtime; nothing has been changed then. When a file that was named
/// cannot be understood or changed.
pub fn uninstall(target: &Target) -> Result<()> {
    let place = Place::new(None, false)?;
    match running() {
        0 => {}
        1 => bail!("a container of quark runs (quark list --all-roots): delete it by its engine"),
        n => bail!(
            "{n} containers of quark run (quark list --all-roots): delete them by their engine"
        ),
    }
    let engines = engines(target)?;
    let mut found = Vec::new();
    for &engine in &engines {
        let path = target.config.as_deref().unwrap_or(engine.config());
        match names(engine, path, &place.binary()) {
            Ok((text, names)) => {
                for name in &names {
                    check_not_default(engine, &text, name)
                        .with_context(|| path.display().to_string())?;
                }
                // The last one first, so that the file becomes what it was before each.
                found.extend(names.into_iter().rev().map(|name| (engine, path, name)));
            }
            Err(_) if !mentions(path, &place.binary()) => {}
            Err(e) => left(target, engine, e)?,
        }
    }
    let mut changes: Vec<Change> = Vec::new();
    for (engine, path, name) in found {
        let runtime = Runtime { name, binary: place.binary(), args: Vec::new(), has_shim: false };
        let made = removal(engine, path, &runtime).and_then(|change| {
            change.iter().try_for_each(|change| change.make(target.dry_run)).map(|()| change)
        });
        match made {
            Ok(change) => changes.extend(change),
            Err(e) => left(target, engine, e)?,
        }
    }
    if changes.is_empty() {
        let binary = place.binary();
        print(&format!("no runtime of an engine is {}: nothing changed\n", binary.display()))?;
    }
    // What is left to do is said once for an engine.
    changes.dedup_by_key(|change| change.engine);
    finish(target, &changes)
}

/// Says that an engine's file is left alone; an error, if somebody named it.
fn left(target: &Target, engine: Engine, why: anyhow::Error) -> Result<()> {
    if target.docker || target.containerd {
        return Err(why);
    }
    tracing::warn!("not taken out of {}: {why:#}", engine.name());
    Ok(())
}

/// True if the file at `path`, in whatever format it is, may have `binary` in it. (containerd's has
/// a format, that of version 1, which most files that nobody has touched are in.)
fn mentions(path: &Path, binary: &Path) -> bool {
    let Some(name) = binary.file_name() else { return true };
    let name = name.to_string_lossy();
    fs::read(path).map_or(true, |text| String::from_utf8_lossy(&text).contains(&*name))
}

/// The engines that are named, or those that have a configuration.
fn engines(target: &Target) -> Result<Vec<Engine>> {
    let mut engines = vec![Engine::Docker, Engine::Containerd(Version::Two)];
    engines.retain(|engine| match (target.docker, target.containerd) {
        (false, false) => engine.config().exists(),
        (docker, containerd) => {
            if *engine == Engine::Docker {
                docker
            } else {
                containerd
            }
        }
    });
    if target.config.is_some() && target.docker == target.containerd {
        bail!("--config is the file of one engine: give --docker or --containerd with it");
    }
    if let (None, Some(engine)) = (&target.config, engines.first())
        && !rustix::process::geteuid().is_root()
    {
        bail!("changing {} needs root", engine.config().display());
    }
    Ok(engines)
}

/// A file's text, and the runtimes in it that are `binary`.
fn names(engine: Engine, path: &Path, binary: &Path) -> Result<(String, Vec<String>)> {
    let about = || path.display().to_string();
    let file = ConfigFile::read(path)?;
    let text = file.text().unwrap_or_default();
    let mut names = Vec::new();
    for name in engine.names(text).with_context(about)? {
        let there = engine.registered(Some(text), &name).with_context(about)?.0;
        if there.is_some_and(|there| is_of(&there, binary)) {
            names.push(name);
        }
    }
    Ok((text.to_owned(), names))
}

/// True if what is registered is `binary`. containerd finds a shim by itself: the one that lies
/// beside it.
fn is_of(there: &Registered, binary: &Path) -> bool {
    match &there.binary {
        Some(path) => is_same(path, binary),
        None => there.has_shim && containerd::finds_shim_of(binary),
    }
}

/// How many containers run, of all known state directories.
fn running() -> usize {
    let (roots, _) = Roots::of_caller().all(&default_root());
    let stores = roots.iter().filter_map(|root| Store::new(root).ok());
    let containers = stores.filter_map(|store| store.list().ok()).flatten();
    containers.filter(|(_, state)| state.status() != Status::Stopped).count()
}
