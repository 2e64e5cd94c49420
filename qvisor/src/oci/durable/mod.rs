//! `quark hibernate --durable`: a sleep that outlasts the host's next boot. The container's pages,
//! and what else it is, are in an image beside its snapshots; `quark restore --durable` has it go
//! on from there, once, if it has not been awake since.
//!
//! | file, besides the image's | what |
//! |---|---|
//! | `bundle` | where its configuration is |
//! | `asleep` | 1, until the sandbox wakes and makes it 0; without it the image is not whole |
//!
//! The sandbox that goes on from there notes its wake there, too.

pub mod sleep;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::state::{Entry, Store, own};
use crate::image::directory;
use crate::image::files::Files;

/// The directory of them all.
const KIND: &str = "durable";
const BUNDLE: &str = "bundle";
const ASLEEP: &str = "asleep";
/// What `asleep` is called until all that it stands for is on the disk.
const DRAFT: &str = ".asleep";

/// The image that a container can go on from.
#[derive(Debug)]
pub struct Durable {
    /// Its bundle.
    pub bundle: PathBuf,
    /// The image.
    pub files: Files,
}

/// True if there is an image of a container that has not been awake since.
///
/// # Errors
/// When that cannot be told.
fn is_good(dir: &Path) -> Result<bool> {
    let mut first = [0];
    let read = open_file(&dir.join(ASLEEP)).and_then(|file| file.read_at(&mut first, 0));
    match read {
        Ok(count) => Ok(first[..count] == *b"1"),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(false)
        }
        Err(e) => Err(e).with_context(|| format!("reading {}", dir.join(ASLEEP).display())),
    }
}

/// A regular file, to read it.
fn open_file(path: &Path) -> io::Result<File> {
    let file = own(OpenOptions::new().read(true)).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no regular file")),
    }
}

/// The image that a container goes on from.
///
/// # Errors
/// When there is none, or it has been awake since.
pub fn open(entry: &Entry) -> Result<Durable> {
    let (id, dir) = (&entry.id, entry.durable());
    if !directory::is_image(&dir) || !dir.join(ASLEEP).exists() {
        bail!(
            "container {id} was not kept: quark hibernate --durable {id} does that while it runs"
        );
    }
    if !is_good(&dir)? {
        bail!(
            "container {id} was kept for a boot of the host, and has been awake since: what it was \
             at its end is lost"
        );
    }
    Ok(Durable { bundle: bundle(&dir)?, files: Files::open(&dir)? })
}

fn bundle(dir: &Path) -> Result<PathBuf> {
    let path = dir.join(BUNDLE);
    let mut bundle = Vec::new();
    let read = open_file(&path)
        .and_then(|file| file.take(libc::PATH_MAX.unsigned_abs().into()).read_to_end(&mut bundle));
    read.with_context(|| format!("reading {}", path.display()))?;
    Ok(PathBuf::from(OsString::from_vec(bundle)))
}

/// Checks that it has not gone on meanwhile that goes on now.
///
/// # Errors
/// When it has.
pub fn check(entry: &Entry) -> Result<()> {
    match is_good(&entry.durable())? {
        true => Ok(()),
        false => bail!("another command has had container {} go on", entry.id),
    }
}

/// Where the sandbox notes that it wakes.
///
/// # Errors
/// Those of open(2).
pub fn note(entry: &Entry) -> Result<File> {
    open_note(&entry.durable().join(ASLEEP))
}

fn open_note(path: &Path) -> Result<File> {
    // The sandbox process has no use for more.
    let file = own(OpenOptions::new().write(true)).open(path);
    file.with_context(|| format!("opening {}", path.display()))
}

/// Checks that no container waits under this ID for somebody to have it go on; one that has been
/// awake does not.
///
/// # Errors
/// When one does.
pub fn check_free(entry: &Entry) -> Result<()> {
    let id = &entry.id;
    if is_good(&entry.durable())? {
        bail!(
            "container {id} was hibernated for the host's next boot: quark restore --durable {id} \
             has it go on, quark delete {id} forgets it"
        );
    }
    entry.forget_void();
    Ok(())
}

/// The containers that wait for somebody to have them go on, with their bundles, by ID.
pub fn all(store: &Store) -> Vec<(String, PathBuf)> {
    let dir = store.images().join(KIND);
    let names = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut all: Vec<(String, PathBuf)> = names
        .filter_map(|item| item.file_name().into_string().ok())
        .filter_map(|id| Some((store.entry(&id).ok()?, id)))
        .filter(|(entry, _)| check(entry).is_ok())
        .filter_map(|(entry, id)| Some((id, bundle(&entry.durable()).ok()?)))
        .collect();
    all.sort();
    all
}

impl Entry {
    /// The directory of what is kept of it for the host's next boot, which may not be there.
    fn durable(&self) -> PathBuf {
        self.kept(KIND)
    }

    /// Whether something of it is kept, good or not.
    pub fn is_durable(&self) -> bool {
        self.durable().exists()
    }

    /// Removes that if it has been awake since.
    pub fn forget_void(&self) {
        if self.is_durable() && matches!(is_good(&self.durable()), Ok(false)) {
            self.forget_durable();
        }
    }

    /// Removes that. It is void before, on the disk too: what is removed may come back with a host
    /// that loses its power.
    pub fn forget_durable(&self) {
        self.forget_kept(KIND, |dir| {
            let void = |file: File| {
                let written = file.write_all_at(b"0", 0).or_else(|_| file.set_len(0));
                written.and_then(|()| file.sync_data())
            };
            let voided = match is_good(dir) {
                Ok(false) => Ok(()),
                _ => open_note(&dir.join(ASLEEP)).map_err(io::Error::other).and_then(void),
            };
            // Where that cannot be had, this may do.
            fs::remove_dir_all(dir).and(voided)
        });
    }
}
