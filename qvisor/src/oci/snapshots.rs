//! Snapshots of a container: images of it that quark keeps, by name, as long as the container is
//! there. `checkpoint --name` takes one, `rollback` goes back to one ([`super::rollback`]).

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::cli::{self, Format, Global};
use super::state::{Entry, Store, make_private, replace};
use super::top::size;
use super::{checkpoint, info};
use crate::image::directory;
use crate::sys::utc::Utc;

/// Names the snapshot that the container was last made, or made of.
const CURRENT: &str = ".current";

/// `quark checkpoint --name`; `keep`: how many there are to be afterwards at most.
///
/// # Errors
/// When the container cannot be saved; it goes on then, as it was.
pub fn take(
    store: &Store,
    (id, name): (&str, &str),
    keep: Option<u32>,
    global: &Global,
) -> Result<()> {
    let (entry, state) = checkpoint::savable(store, id)?;
    let volumes = checkpoint::own_volumes(&state)?;
    let dir = path(store, &entry, name)?;
    let _lock = entry.lock()?;
    if directory::is_image(&dir) {
        bail!(
            "container {id} has a snapshot {name} already: take another name, or remove it with \
             quark snapshots --remove {name} {id}"
        );
    }
    make_private(&entry.snapshots())?;
    // Of a command that was killed.
    fs::remove_dir_all(&dir).ok();
    checkpoint::save((&entry, &state, &volumes), &[], &dir, (current(&entry), false), global)
        .with_context(|| format!("container {id} was not saved"))?;
    set_current(&entry, name)?;
    let all = all(&entry);
    let surplus = keep.map_or(0, |keep| all.len().saturating_sub(keep as usize));
    // Each is whole without the others.
    all[..surplus].iter().try_for_each(|old| remove(&entry.snapshots().join(&old.name)))
}

fn remove(dir: &Path) -> Result<()> {
    directory::remove(dir).with_context(|| format!("removing {}", dir.display()))
}

/// The directory that a snapshot has or would have.
///
/// # Errors
/// When the name is none.
pub fn path(store: &Store, entry: &Entry, name: &str) -> Result<PathBuf> {
    // The rules are those of IDs.
    if store.entry(name).is_err() || name.starts_with('.') {
        bail!("{name:?} is no name for a snapshot: letters, digits, and _+-. make one");
    }
    Ok(entry.snapshots().join(name))
}

/// The snapshot that the container was last made, or made of.
fn current(entry: &Entry) -> Option<String> {
    let name = fs::read_to_string(entry.snapshots().join(CURRENT)).ok()?;
    entry.snapshots().join(&name).is_dir().then_some(name)
}

/// See [`current`].
///
/// # Errors
/// Those of the file system.
pub fn set_current(entry: &Entry, name: &str) -> Result<()> {
    replace(&entry.snapshots().join(CURRENT), name.as_bytes())
}

/// `quark snapshots`.
///
/// # Errors
/// When there is no such container or snapshot, or it cannot be removed.
pub fn snapshots(store: &Store, options: &cli::Snapshots) -> Result<()> {
    let (entry, _) = store.load(&options.id)?;
    if let Some(name) = &options.remove {
        let dir = path(store, &entry, name)?;
        let _lock = entry.lock()?;
        if !dir.is_dir() {
            return Err(missing(&entry, name));
        }
        // Without it there is no image, whatever comes in between.
        return remove(&dir);
    }
    let all = all(&entry);
    let text = match options.format {
        Format::Json => serde_json::to_string(&all)? + "\n",
        Format::Table => tree(&all),
    };
    info::print(&text)
}

/// The error for a snapshot that is not there.
pub fn missing(entry: &Entry, name: &str) -> anyhow::Error {
    let names: Vec<String> = all(entry).into_iter().map(|one| one.name).collect();
    let there_are = match names.is_empty() {
        true => "it has none (quark checkpoint --name NAME makes one)".to_owned(),
        false => format!("it has {}", names.join(", ")),
    };
    anyhow::anyhow!("container {} has no snapshot {name}: {there_are}", entry.id)
}

/// A snapshot, as it is shown.
#[derive(Debug, serde::Serialize)]
struct Shown {
    name: String,
    parent: Option<String>,
    /// In UTC.
    taken: String,
    /// Disk space in bytes that it does not share with one before it.
    bytes: u64,
    /// The container was last made of it, or has become it.
    current: bool,
}

/// All of a container, oldest first.
fn all(entry: &Entry) -> Vec<Shown> {
    let current = current(entry);
    let names = fs::read_dir(entry.snapshots()).into_iter().flatten().flatten();
    let names = names.filter_map(|item| item.file_name().into_string().ok());
    let mut all: Vec<Shown> = names
        .filter(|name| !name.starts_with('.'))
        .filter_map(|name| {
            let (taken, parent) = directory::taken(&entry.snapshots().join(&name)).ok()?;
            let current = current.as_ref() == Some(&name);
            let taken = Utc::from(taken).to_string();
            Some(Shown { name, parent, taken, bytes: 0, current })
        })
        .collect();
    all.sort_by(|one, other| one.taken.cmp(&other.taken));
    let mut seen = HashSet::new();
    let mut names: HashSet<String> = HashSet::new();
    for one in &mut all {
        // A name that was given up may be that of a later one.
        one.parent.take_if(|parent| !names.contains(parent));
        names.insert(one.name.clone());
        one.bytes = directory::disk_bytes(&entry.snapshots().join(&one.name), &mut seen);
    }
    all
}

/// The snapshots as a tree, each below the one that it comes from.
fn tree(all: &[Shown]) -> String {
    let mut below: HashMap<Option<&str>, Vec<&Shown>> = HashMap::new();
    for one in all {
        below.entry(one.parent.as_deref()).or_default().push(one);
    }
    let mut text = format!("{:<28} {:>9}  TAKEN\n", "SNAPSHOT", "SIZE");
    let mut left: Vec<(usize, &Shown)> = Vec::new();
    let mut next = below.remove(&None).unwrap_or_default();
    let mut depth = 0;
    loop {
        left.extend(next.into_iter().rev().map(|one| (depth, one)));
        let Some((its_depth, one)) = left.pop() else { return text };
        let name = format!("{}{}{}", "  ".repeat(its_depth), one.name, mark(one));
        writeln!(text, "{name:<28} {:>9}  {}", size(one.bytes), one.taken).ok();
        next = below.remove(&Some(one.name.as_str())).unwrap_or_default();
        depth = its_depth + 1;
    }
}

/// Tells the one that the container is at.
fn mark(one: &Shown) -> &'static str {
    if one.current { " *" } else { "" }
}
