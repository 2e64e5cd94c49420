//! Directories of volumes of which an image has a copy, and every container that is made of it one
//! of its own (`--rw-dir`): what one writes there no other sees, and an image finds the files that
//! its programs had when it was made.
//!
//! The copies of a container lie beside its snapshots, in a directory of nobody else's, and go with
//! it. It has them in place of what its configuration mounts there.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::bundle::Bundle;
use super::mounts::Mount;
use super::state::{Entry, State, make_private};
use crate::image::files::Files;
use crate::image::tree;
use crate::image::write::Tree;

const ANNOTATION: &str = "io.quark.rw-dirs";
/// The directory of them all.
const KIND: &str = "rw-dirs";

/// Those of a container that is saved: what the command line and its annotation name, and those of
/// which it has copies already.
///
/// # Errors
/// When one is no volume that can be written.
pub fn of(
    (entry, state): (&Entry, &State),
    bundle: &Bundle,
    options: &[String],
) -> Result<Vec<Tree>> {
    let mut trees: Vec<Tree> = Vec::new();
    let annotated = annotated(&state.annotations);
    for name in options.iter().cloned().chain(annotated).chain(state.rw_dirs.iter().cloned()) {
        let mount = find(&bundle.mounts, &name)?;
        if trees.iter().any(|tree| tree.destination == mount.destination) {
            continue;
        }
        let own = state.rw_dirs.iter().position(|own| *own == mount.destination);
        let host = match own {
            Some(number) => entry.rw_dirs().join(number.to_string()),
            None => mount.host.clone().context("it has no directory")?,
        };
        trees.push(Tree { destination: mount.destination.clone(), host });
    }
    Ok(trees)
}

fn annotated(annotations: &BTreeMap<String, String>) -> Vec<String> {
    let value = annotations.get(ANNOTATION).map_or("", String::as_str);
    value.split(':').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The mount that is seen at `name`.
fn find<'a>(mounts: &'a [Mount], name: &str) -> Result<&'a Mount> {
    let there = |mount: &&Mount| Path::new(&mount.destination) == Path::new(name);
    let Some(mount) = mounts.iter().rev().find(there) else {
        let volumes = mounts.iter().filter(|mount| mount.host.is_some());
        let volumes: Vec<&str> = volumes.map(|mount| mount.destination.as_str()).collect();
        bail!("{name:?} is no volume of the container: those are [{}]", volumes.join(", "))
    };
    match &mount.host {
        None => bail!("{name:?} is a {} of the container's own: its images have it", mount.fstype),
        Some(_) if mount.readonly() => bail!("{name:?} is a volume that may not be written"),
        Some(host) if !host.is_dir() => bail!("{name:?} is a single file, and no directory"),
        Some(_) => Ok(mount),
    }
}

/// Gives a container that is made of an image its own copies, which stand in `mounts` then.
///
/// # Errors
/// When one cannot be copied. What has been is left.
pub fn give(entry: &Entry, image: &Files, names: &[String], mounts: &mut [Mount]) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    make_private(&entry.rw_dirs())?;
    for (number, name) in names.iter().enumerate() {
        let path = entry.rw_dirs().join(number.to_string());
        let mut copy = || -> Result<()> {
            let destination = find(mounts, name)?.destination.clone();
            tree::copy(image.tree(number)?.as_fd(), tree::make(&path)?.as_fd())?;
            for mount in mounts.iter_mut().filter(|mount| mount.destination == destination) {
                mount.host = Some(path.clone());
                mount.recursive = false;
            }
            Ok(())
        };
        copy().with_context(|| format!("giving the container a copy of {name}"))?;
    }
    Ok(())
}

impl Entry {
    /// The directory of its own copies, by number, which may not be there.
    pub fn rw_dirs(&self) -> PathBuf {
        self.kept(KIND)
    }

    /// Removes them.
    pub fn forget_rw_dirs(&self) {
        self.forget_kept(KIND, tree::remove);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_volumes_that_can_be_written_are_such() {
        let dir = std::env::temp_dir();
        let mount = |place: &str, host: Option<PathBuf>, option: &str| Mount {
            destination: place.to_owned(),
            fstype: if host.is_some() { "host" } else { "tmpfs" }.to_owned(),
            host,
            recursive: false,
            source: String::new(),
            options: vec![option.to_owned()],
        };
        let mounts = [
            mount("/data/", Some(dir.clone()), "rw"),
            mount("/fixed", Some(dir), "ro"),
            mount("/file", Some("/etc/passwd".into()), "rw"),
            mount("/run", None, "rw"),
        ];
        assert_eq!(find(&mounts, "/data").unwrap().destination, "/data/");
        for (name, why) in [
            ("/fixed", "may not be written"),
            ("/file", "a single file"),
            ("/run", "tmpfs of the container's own"),
            ("/", "those are [/data/, /fixed, /file]"),
            ("/data/../data", "no volume"),
        ] {
            let error = format!("{:#}", find(&mounts, name).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn an_annotation_names_several() {
        let of = |value: &str| annotated(&BTreeMap::from([(ANNOTATION.into(), value.into())]));
        assert_eq!(of("/a:/b/c"), ["/a", "/b/c"]);
        assert_eq!(of(""), [""; 0]);
        assert_eq!(annotated(&BTreeMap::new()), [""; 0]);
    }
}
