//! Which state directories there are on this host.
//!
//! Docker and containerd give `--root` directories of their own, whose places depend on their
//! configuration and version. So none is guessed: whoever makes a container notes its state
//! directory, in `roots:noted` of the [default one](default_root). A note is a symbolic link to
//! the state directory, named by a hash of its path: it appears whole, and twice is once. Those of
//! directories that are gone are removed, under a lock, as another command may be making one. What
//! is noted is a place to look at, no more: each is checked as any `--root` is
//! ([`Store::new`](super::state::Store::new)).

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use twox_hash::XxHash3_64;

use super::cli::Global;
use super::state::{Store, default_root};

/// The directory of notes in the default state directory; no container can have this name.
const NOTES: &str = "roots:noted";
/// How long to wait for others that note or remove: moments, unless one was stopped in it.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);
/// Names that a note may have: two paths may have one hash.
const NAMES: u32 = 8;

/// The state directories of the caller.
#[derive(Clone, Debug)]
pub struct Roots {
    /// The default one.
    home: PathBuf,
}

impl Roots {
    /// Those of the calling user.
    pub fn of_caller() -> Roots {
        Roots { home: default_root() }
    }

    /// Notes that `root`, which exists, is a state directory.
    ///
    /// # Errors
    /// When the note cannot be made.
    pub fn note(&self, root: &Path) -> Result<()> {
        let root = fs::canonicalize(root).with_context(|| root.display().to_string())?;
        if fs::canonicalize(&self.home).is_ok_and(|home| home == root) {
            return Ok(());
        }
        let notes = self.open(true)?;
        let is_new = {
            let notes = lock(notes, FlockArg::LockSharedNonblock)?;
            write(&notes, &root).with_context(|| format!("noting {}", root.display()))?
        };
        // As many stay as there are directories.
        if is_new {
            self.sweep().context("removing old notes")?;
        }
        Ok(())
    }

    /// All of them, `given` too, each once. None of them is checked. If the notes cannot be read:
    /// where they are, and why.
    pub fn all(&self, given: &Path) -> (Vec<PathBuf>, Option<(PathBuf, anyhow::Error)>) {
        let (noted, failure) = match self.sweep() {
            Ok(noted) => (noted, None),
            Err(e) => (Vec::new(), Some((self.home.join(NOTES), e))),
        };
        let mut all = Vec::new();
        for root in [self.home.clone(), given.to_owned()].into_iter().chain(noted) {
            let root = fs::canonicalize(&root).unwrap_or(root);
            if !all.contains(&root) {
                all.push(root);
            }
        }
        // The caller's own first.
        all[1..].sort();
        (all, failure)
    }

    /// Removes the notes of directories that are gone; those that stay.
    fn sweep(&self) -> Result<Vec<PathBuf>> {
        if !self.home.join(NOTES).try_exists().unwrap_or(true) {
            return Ok(Vec::new());
        }
        let notes = lock(self.open(false)?, FlockArg::LockExclusiveNonblock)?;
        let mut stay = Vec::new();
        for item in Dir::read_from(&*notes).context("reading the notes")? {
            let item = item.context("reading the notes")?;
            let Ok(target) = rustix::fs::readlinkat(&*notes, item.file_name(), Vec::new()) else {
                continue;
            };
            let root = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
            match fs::symlink_metadata(&root) {
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                    ) =>
                {
                    rustix::fs::unlinkat(&*notes, item.file_name(), AtFlags::empty())
                        .with_context(|| format!("removing the note of {}", root.display()))?;
                }
                _ => stay.push(root),
            }
        }
        Ok(stay)
    }

    /// The directory of notes, if nobody else can have written what is in it.
    fn open(&self, make: bool) -> Result<OwnedFd> {
        let path = self.home.join(NOTES);
        if make {
            let mut builder = DirBuilder::new();
            builder.mode(0o700).recursive(true).create(&self.home)?;
            match builder.recursive(false).create(&path) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(e).with_context(|| format!("creating {}", path.display()));
                }
                _ => {}
            }
        }
        Store::new(&self.home)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = rustix::fs::open(&path, flags, Mode::empty());
        let notes = open.with_context(|| format!("opening {}", path.display()))?;
        let stat = rustix::fs::fstat(&notes)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
            bail!("{} may be written by others: remove it", path.display());
        }
        Ok(notes)
    }
}

/// The fewest characters by which a container is found.
const SHORTEST_PREFIX: usize = 4;

/// The store and the whole ID of the container that a user means by `text`: one of the default
/// state directory, else the only one of all state directories that has this ID, or a made-up one
/// that begins so. A name that somebody chose is never cut short: who means "web1" must not come to
/// "web10". Where there is none it is `text` itself, of which is said what is said otherwise. With
/// `--root` nothing is looked for.
///
/// # Errors
/// When there are several: they are named.
pub fn find(global: &Global, text: &str) -> Result<(Store, String)> {
    let store = Store::new(&global.root)?;
    let is_there = store.entry(text).is_ok_and(|entry| entry.dir.exists());
    if global.root_given || is_there {
        return Ok((store, text.to_owned()));
    }
    let (roots, failure) = Roots::of_caller().all(&global.root);
    if let Some((_, e)) = failure {
        tracing::debug!("other state directories are not known: {e:#}");
    }
    choose(store, &roots, text)
}

/// True for an ID as Docker and containerd's clients make them.
fn is_made_up(id: &str) -> bool {
    id.len() == 64 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn choose(store: Store, roots: &[PathBuf], text: &str) -> Result<(Store, String)> {
    let stores = roots.iter().filter_map(|root| Store::new(root).ok());
    let mut found: Vec<(Store, String)> = stores
        .flat_map(|store| {
            let entries = store.entries(text).into_iter().filter(|entry| {
                let is_part = text.len() >= SHORTEST_PREFIX && is_made_up(&entry.id);
                (entry.id == text || is_part) && entry.load().is_ok()
            });
            entries.map(move |entry| (store.clone(), entry.id)).collect::<Vec<_>>()
        })
        .collect();
    // One that has just this ID is meant, whatever else begins so.
    if found.iter().filter(|(_, id)| id == text).count() == 1 {
        found.retain(|(_, id)| id == text);
    }
    match found.len() {
        0 => Ok((store, text.to_owned())),
        1 => Ok(found.remove(0)),
        _ => {
            found.sort_by(|a, b| (&a.1, a.0.root()).cmp(&(&b.1, b.0.root())));
            let named =
                |(store, id): &(Store, String)| format!("{id} ({})", store.root().display());
            let all: Vec<String> = found.iter().map(named).collect();
            bail!("{text} may mean {}: give more of it, or --root", all.join(", "))
        }
    }
}

/// A lock on the directory of notes.
fn lock(notes: OwnedFd, how: FlockArg) -> Result<Flock<OwnedFd>> {
    let end = Instant::now() + PATIENCE;
    let mut notes = notes;
    loop {
        match Flock::lock(notes, how) {
            Ok(lock) => return Ok(lock),
            Err((back, Errno::EWOULDBLOCK)) if Instant::now() < end => notes = back,
            Err((_, e)) => return Err(e).context("locking the notes of state directories"),
        }
        std::thread::sleep(PAUSE);
    }
}

/// Makes a note; whether there was none.
fn write(notes: &OwnedFd, root: &Path) -> io::Result<bool> {
    let bytes = root.as_os_str().as_bytes();
    for seed in 0..NAMES {
        let name = format!("{:016x}", XxHash3_64::oneshot_with_seed(seed.into(), bytes));
        match rustix::fs::symlinkat(root, notes, &name) {
            Ok(()) => return Ok(true),
            Err(rustix::io::Errno::EXIST) => {
                let there = rustix::fs::readlinkat(notes, &name, Vec::new());
                if there.is_ok_and(|target| target.as_bytes() == bytes) {
                    return Ok(false);
                }
            }
            Err(e) => return Err(e.into()),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A scratch directory, and the roots whose default directory is in it.
    fn scratch() -> (PathBuf, Roots) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("quark-roots-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).unwrap();
        let roots = Roots { home: dir.join("home") };
        (dir, roots)
    }

    /// All of them; the notes are readable.
    fn found(roots: &Roots, given: &Path) -> Vec<PathBuf> {
        let (all, failure) = roots.all(given);
        assert!(failure.is_none(), "{failure:?}");
        all
    }

    fn made(dir: &Path, name: &str) -> PathBuf {
        let root = dir.join(name);
        fs::create_dir_all(&root).unwrap();
        root
    }

    #[test]
    fn what_was_noted_is_found_once_until_it_is_gone() {
        let (dir, roots) = scratch();
        let given = dir.join("home");
        assert_eq!(found(&roots, &given), std::slice::from_ref(&given));
        let (a, b) = (made(&dir, "a"), made(&dir, "b/moby"));
        symlink(&a, dir.join("link")).unwrap();
        for root in [&a, &b, &a, &dir.join("link"), &given] {
            if root.exists() {
                roots.note(root).unwrap();
            }
        }
        assert_eq!(found(&roots, &given), [given.clone(), a.clone(), b.clone()]);
        assert_eq!(found(&roots, &dir.join("link")), [given.clone(), a.clone(), b.clone()]);
        fs::remove_dir(&a).unwrap();
        assert_eq!(found(&roots, &given), [given.clone(), b.clone()]);
        assert_eq!(fs::read_dir(given.join(NOTES)).unwrap().count(), 1);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn notes_of_others_are_not_believed() {
        let (dir, roots) = scratch();
        let root = made(&dir, "a");
        roots.note(&root).unwrap();
        let notes = roots.home.join(NOTES);
        fs::set_permissions(&notes, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(roots.note(&root).is_err());
        let (all, failure) = roots.all(&roots.home);
        assert!(failure.is_some());
        assert_eq!(all, std::slice::from_ref(&roots.home));
        // Nor is a directory that somebody puts in its place.
        fs::rename(&notes, dir.join("elsewhere")).unwrap();
        symlink(dir.join("elsewhere"), &notes).unwrap();
        assert!(roots.note(&root).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_is_no_note_is_left_alone() {
        let (dir, roots) = scratch();
        let root = made(&dir, "a");
        roots.note(&root).unwrap();
        let notes = roots.home.join(NOTES);
        fs::write(notes.join("file"), "/etc").unwrap();
        // Another path by that name, as with two paths of one hash.
        let name = fs::read_dir(&notes).unwrap().flatten().find(|e| e.file_name() != "file");
        let name = name.unwrap().path();
        fs::remove_file(&name).unwrap();
        symlink(made(&dir, "b"), &name).unwrap();
        roots.note(&root).unwrap();
        assert_eq!(found(&roots, &roots.home), [roots.home.clone(), root, dir.join("b")]);
        assert!(notes.join("file").exists());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn none_is_lost_while_others_come_and_go() {
        let (dir, roots) = scratch();
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let (dir, roots) = (&dir, &roots);
                scope.spawn(move || {
                    for round in 0..100 {
                        let gone = made(dir, &format!("gone-{worker}-{round}"));
                        roots.note(&gone).unwrap();
                        fs::remove_dir(&gone).unwrap();
                        let stays = made(dir, &format!("stays-{worker}"));
                        roots.note(&stays).unwrap();
                        assert!(found(roots, &roots.home).contains(&stays));
                        fs::remove_dir(&stays).unwrap();
                    }
                });
            }
        });
        fs::remove_dir_all(&dir).unwrap();
    }
}
