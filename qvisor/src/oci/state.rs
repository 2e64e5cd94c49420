//! The state directory: one directory for each container below `--root`, with `state.json`, the
//! control socket and a lock.
//!
//! The directory's creation is what claims an ID. `state.json` is replaced as a whole, so a reader
//! never sees half of it. Whether the container runs is not believed from the file: the sandbox
//! process is looked at.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use oci_spec::runtime::Hooks;
use qlib::control::{ProcessSpec, RootLayer};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::error::{ContainerError, MAX_ID_BYTES};
use crate::cgroup::Cgroup;
use crate::image::host::ClockShift;
use crate::platform::PlatformKind;
use crate::sandbox::ended::{self, Ended, Incidents, RECORD_BYTES};

/// Where root's containers are kept unless `--root` says otherwise.
pub const DEFAULT_ROOT: &str = "/run/quark";
/// Where images are kept, each below the path of its state directory.
const IMAGES: &str = "/var/lib/quark";
/// The control socket's name in a container's directory.
pub const CONTROL_SOCKET: &str = "control.sock";
/// The file in a container's directory that is locked by the command that changes the container.
const LOCK: &str = "lock";
/// The file in a container's directory in which the sandbox records how it ended.
const ENDED: &str = "ended";
/// The file in a container's directory that is locked by the command that stays with the container.
const OWNER_LOCK: &str = "owner.lock";
/// The file in a container's directory that tells whoever makes the container that it is to be
/// deleted.
const DOOM: &str = "doom";
/// The file in a state directory by which wakes wait for each other; no container can have this
/// name.
const WAKE_PLACES: &str = "wakes:places";
/// The directory of a state directory in which the sockets of its pools are.
const POOLS: &str = "templates:pools";
/// The file in a state directory in which sandboxes that sleep for the host's memory stand in line.
const PRESSURE_LINE: &str = "pressure:line";
/// No `state.json` is longer, in bytes: it holds a part of a configuration.
const MAX_STATE: u64 = 64 << 20;

/// How long to wait for another command that changes the same container: longer than one waits for
/// its sandbox.
const LOCK_TIMEOUT: Duration = Duration::from_secs(90);
/// How often to remove a directory in which others still make files.
const REMOVALS: usize = 1000;
/// How often to look whether it has ended.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Where the caller's containers are kept unless `--root` says otherwise: a directory for what
/// lasts until the host boots. Not all hosts have one for ordinary users; their home directory has
/// to do then.
pub fn default_root() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return DEFAULT_ROOT.into();
    }
    let run = PathBuf::from(format!("/run/user/{}", user.as_raw()));
    variable("XDG_RUNTIME_DIR")
        .or_else(|| fs::metadata(&run).is_ok_and(|m| m.uid() == user.as_raw()).then_some(run))
        .or_else(|| variable("XDG_DATA_HOME"))
        .or_else(|| variable("HOME").map(|home| home.join(".local/share")))
        .map_or_else(|| format!("/tmp/quark-{}", user.as_raw()).into(), |dir| dir.join("quark"))
}

/// The absolute path that a variable of the environment has.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// The path without symbolic links, as far as it is there.
fn real(path: &Path) -> PathBuf {
    match (fs::canonicalize(path), path.parent(), path.file_name()) {
        (Err(_), Some(parent), Some(name)) => real(parent).join(name),
        (found, ..) => found.unwrap_or_else(|_| path.to_owned()),
    }
}

/// Makes a directory, and those that it lies in, for nobody else.
///
/// # Errors
/// Those of mkdir(2).
pub fn make_private(dir: &Path) -> Result<()> {
    let made = DirBuilder::new().mode(0o700).recursive(true).create(dir);
    made.with_context(|| format!("making {}", dir.display()))
}

/// Locks a directory, or a file, that nobody else has locked.
///
/// # Errors
/// When somebody has; those of opening it.
pub fn try_lock(path: &Path) -> io::Result<Flock<File>> {
    let lock = Flock::lock(File::open(path)?, FlockArg::LockExclusiveNonblock);
    lock.map_err(|(_, errno)| errno.into())
}

/// Puts a file in the place of the one that has this name, if one has.
///
/// # Errors
/// With nothing changed.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> io::Result<()> {
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let mut file =
            own(OpenOptions::new().write(true).create(true).truncate(true)).open(&new)?;
        file.write_all(bytes)?;
        fs::rename(&new, path)
    };
    write().with_context(|| format!("writing {}", path.display()))
}

/// The life of a container, in the words of the OCI runtime specification (and runc's "paused").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Being made.
    Creating,
    /// Made, its program not started.
    Created,
    /// Started.
    Running,
    /// Started, and held by `pause`.
    Paused,
    /// Its sandbox has ended.
    Stopped,
}

impl Status {
    /// The word.
    pub fn name(self) -> &'static str {
        match self {
            Status::Creating => "creating",
            Status::Created => "created",
            Status::Running => "running",
            Status::Paused => "paused",
            Status::Stopped => "stopped",
        }
    }
}

/// What is remembered of a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// Its ID.
    pub id: String,
    /// Of the OCI configuration.
    pub oci_version: String,
    /// The sandbox process, or that which stands for a further container of one; 0 before there is
    /// one.
    pub pid: i32,
    /// Its start time in clock ticks since boot, which tells it from a later process with the same
    /// number.
    pub start_time: u64,
    /// The last step of its life; see [`State::status`] for the truth.
    pub step: Status,
    /// Absolute path of the bundle.
    pub bundle: PathBuf,
    /// Absolute path of the root file system.
    pub rootfs: PathBuf,
    /// RFC 3339.
    pub created: String,
    /// User name or number of who made it.
    pub owner: String,
    /// Annotations of the configuration.
    pub annotations: BTreeMap<String, String>,
    /// How its guest code runs.
    #[serde(default)]
    pub platform: PlatformKind,
    /// Where its files are in the sandbox of its pod, if it shares that ([`super::hub`]).
    #[serde(default)]
    pub hub: Option<String>,
    /// The layer that what it writes to its root goes to.
    #[serde(default)]
    pub layer: Option<RootLayer>,
    /// How its clocks are shifted.
    #[serde(default)]
    pub clocks: ClockShift,
    /// The volumes of which it has copies of its own ([`super::rw_dirs`]).
    #[serde(default)]
    pub rw_dirs: Vec<String>,
    /// Further containers of its pod share its kernel.
    #[serde(default)]
    pub is_shared: bool,
    /// The first container of its pod, if it shares the kernel of that.
    #[serde(default)]
    pub pod: Option<String>,
    /// The cgroup.
    pub cgroup: Option<Cgroup>,
    /// Hooks of the configuration.
    pub hooks: Option<Hooks>,
    /// The program to start.
    pub process: ProcessSpec,
    /// Guest process id of the program, 0 before it runs.
    pub init: u32,
}

impl State {
    /// The status as the sandbox process shows it.
    pub fn status(&self) -> Status {
        if self.pid == 0 {
            return self.step;
        }
        match start_time(self.pid) {
            Some(start) if start == self.start_time => self.step,
            _ => Status::Stopped,
        }
    }

    /// Opens the sandbox process, so that its number cannot come to mean another; `None` when it
    /// has ended.
    ///
    /// # Errors
    /// Those of pidfd_open(2).
    pub fn sandbox(&self) -> Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(e) => return Err(e).context("opening the sandbox process"),
        };
        Ok((start_time(self.pid) == Some(self.start_time)).then_some(pidfd))
    }

    /// The state as the OCI runtime specification has it, for `state` and for hooks.
    pub fn oci(&self, status: Status) -> serde_json::Value {
        serde_json::json!({
            "ociVersion": self.oci_version,
            "id": self.id,
            "status": status.name(),
            "pid": if status == Status::Stopped { 0 } else { self.pid },
            "bundle": self.bundle,
            "annotations": self.annotations,
        })
    }
}

/// The start time of a process in clock ticks since boot; `None` when it has ended (a zombie has).
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command in parentheses may hold anything, so count from its end.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The containers below one `--root`.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

/// One container's directory.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The ID.
    pub id: String,
    /// The directory.
    pub dir: PathBuf,
}

impl Store {
    /// The store at `root`, which need not exist yet.
    ///
    /// # Errors
    /// When it is there, and somebody else could have written what it says: which processes to
    /// kill, which hooks to call.
    pub fn new(root: &Path) -> Result<Self> {
        let store = Store { root: std::path::absolute(root).context("finding --root")? };
        store.check()?;
        Ok(store)
    }

    /// The directory for images of these containers that quark keeps itself, if it is there: state
    /// directories lie in memory, and images are too large for that.
    pub fn images(&self) -> PathBuf {
        let home = || variable("HOME").map(|home| home.join(".local/share"));
        let dir = match rustix::process::geteuid().is_root() {
            true => Some(IMAGES.into()),
            false => variable("XDG_DATA_HOME").or_else(home).map(|dir| dir.join("quark/images")),
        };
        let dir = dir.unwrap_or_else(|| self.root.join(".images"));
        // By whatever path the state directory is given.
        let root = real(&self.root);
        dir.join(root.strip_prefix("/").unwrap_or(&root))
    }

    /// The state directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Refuses a directory of somebody else's, and one that others may write.
    fn check(&self) -> Result<()> {
        let (root, us) = (self.root.display(), rustix::process::geteuid().as_raw());
        let link = match fs::symlink_metadata(&self.root) {
            Ok(metadata) => metadata,
            Err(e)
                if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                return Ok(());
            }
            Err(e) => bail!("state directory {root}: {e}; choose another --root"),
        };
        // Where a link leads its owner decides.
        if ![us, 0].contains(&link.uid()) {
            bail!(
                "state directory {root} belongs to user {}, not to user {us}: choose another \
                --root",
                link.uid()
            );
        }
        let directory =
            fs::metadata(&self.root).with_context(|| format!("state directory {root}"))?;
        if !directory.is_dir() {
            bail!("state directory {root} is not a directory: choose another --root");
        }
        if directory.uid() != us {
            bail!(
                "state directory {root} belongs to user {}, not to user {us}: choose another \
                --root",
                directory.uid()
            );
        }
        if directory.mode() & 0o022 != 0 {
            let mode = directory.mode() & 0o7777;
            bail!(
                "state directory {root} may be written by others (mode {mode:04o}): chmod go-w \
                it, or choose another --root"
            );
        }
        Ok(())
    }

    /// Where its templates are.
    pub fn templates(&self) -> PathBuf {
        self.images().join("templates")
    }

    /// Where the sockets of its pools are.
    pub fn pools(&self) -> PathBuf {
        self.root.join(POOLS)
    }

    /// Makes the directory if there is none.
    ///
    /// # Errors
    /// When it cannot be made, or is somebody else's.
    pub fn make(&self) -> Result<()> {
        let mut builder = DirBuilder::new();
        builder.mode(0o700);
        builder
            .recursive(true)
            .create(&self.root)
            .with_context(|| format!("creating state directory {}", self.root.display()))
            .map_err(|e| anyhow!("{e:#}; choose another with --root, or by XDG_RUNTIME_DIR"))?;
        // Somebody else may have been faster.
        self.check()
    }

    /// Claims an ID, by making its directory, for as long as the calling process keeps the second
    /// part of the result: when that is dropped, or the process ends in whatever way and at
    /// whatever moment, [`Entry::is_abandoned`] is true.
    ///
    /// # Errors
    /// When the ID is invalid or in use, or the directory cannot be made.
    pub fn claim_as_owner(&self, id: &str) -> Result<(Entry, Flock<File>)> {
        let entry = self.entry(id)?;
        self.make()?;
        for _ in 0..16 {
            if let Some(lock) = self.try_claim(&entry)? {
                return Ok((entry.clone(), lock));
            }
        }
        Err(ContainerError::Exists(id.to_owned()).into())
    }

    /// As [`Store::claim_as_owner`]; `None` if somebody took away what was to become the directory.
    fn try_claim(&self, entry: &Entry) -> Result<Option<Flock<File>>> {
        let id = &entry.id;
        // It gets the ID's name with the lock in it. Who is killed before leaves what the next one
        // takes, or `delete` removes; no ID has a colon.
        let unseen = self.unseen(id);
        let exists = || ContainerError::Exists(id.to_owned());
        let at = |e: io::Error| match e.kind() {
            io::ErrorKind::AlreadyExists => exists().into(),
            _ => anyhow::Error::new(e).context(format!("creating {}", entry.dir.display())),
        };
        match DirBuilder::new().mode(0o700).create(&unseen) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(at(e)),
            _ => {}
        }
        let path = unseen.join(OWNER_LOCK);
        let is_gone = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
        let file = own(OpenOptions::new().write(true).create(true).truncate(false)).open(&path);
        let file = match file {
            Err(e) if is_gone(&e) => return Ok(None),
            other => other.map_err(at)?,
        };
        let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            // Others claim the same ID, or look whether what is there was left by somebody.
            Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, e)) => return Err(e).with_context(|| format!("locking {}", path.display())),
        };
        let inode = lock.metadata().map_err(at)?.ino();
        match fs::metadata(&path) {
            Ok(metadata) if metadata.ino() == inode => {}
            Ok(_) => return Err(exists().into()),
            Err(e) if is_gone(&e) => return Ok(None),
            Err(e) => return Err(at(e)),
        }
        let named = renameat_with(CWD, &unseen, CWD, &entry.dir, RenameFlags::NOREPLACE);
        match named.map_err(io::Error::from) {
            Ok(()) => Ok(Some(lock)),
            Err(e) if is_gone(&e) => Ok(None),
            Err(e) => {
                fs::remove_dir_all(&unseen).map_err(at)?;
                Err(at(e))
            }
        }
    }

    /// What is to become the directory of `id`.
    fn unseen(&self, id: &str) -> PathBuf {
        self.root.join(format!("new:{id}"))
    }

    /// Removes what somebody left who was killed while claiming `id`.
    pub fn remove_unseen(&self, id: &str) {
        let unseen = self.unseen(id);
        // Without a lock it is of one who has come no further, or is about to.
        if fs::remove_dir(&unseen).is_err()
            && let Ok(file) = File::open(unseen.join(OWNER_LOCK))
            && let Ok(_lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock)
        {
            fs::remove_dir_all(&unseen).ok();
        }
    }

    /// The directory that `id` has or would have.
    ///
    /// # Errors
    /// When the ID is invalid.
    pub fn entry(&self, id: &str) -> Result<Entry> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_+-.".contains(c);
        if id.len() > MAX_ID_BYTES {
            return Err(ContainerError::LongId(id.chars().count()).into());
        }
        if matches!(id, "" | "." | "..") {
            return Err(ContainerError::NoId(id.to_owned()).into());
        }
        if !id.chars().all(allowed) {
            return Err(ContainerError::InvalidId(id.to_owned()).into());
        }
        Ok(Entry { id: id.to_owned(), dir: self.root.join(id) })
    }

    /// The entry of an existing container and what is remembered of it.
    ///
    /// # Errors
    /// When there is none.
    pub fn load(&self, id: &str) -> Result<(Entry, State)> {
        let entry = self.entry(id)?;
        let state = entry.load()?;
        Ok((entry, state))
    }

    /// The directories of containers whose ID begins with `prefix`, also of those without a
    /// readable state.
    pub fn entries(&self, prefix: &str) -> Vec<Entry> {
        let names =
            fs::read_dir(&self.root).into_iter().flatten().flatten().map(|item| item.file_name());
        names
            .filter_map(|n| {
                n.to_str().filter(|n| n.starts_with(prefix)).and_then(|n| self.entry(n).ok())
            })
            .collect()
    }

    /// Opens the file by which wakes of this directory's containers wait for each other.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn wake_places(&self) -> Result<OwnedFd> {
        self.open_shared(WAKE_PLACES)
    }

    /// Opens the file in which this directory's containers stand in line for sleep.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn pressure_line(&self) -> Result<OwnedFd> {
        self.open_shared(PRESSURE_LINE)
    }

    fn open_shared(&self, name: &str) -> Result<OwnedFd> {
        let path = self.root.join(name);
        let mut options = OpenOptions::new();
        let file = own(options.read(true).write(true).create(true)).open(&path);
        Ok(file.with_context(|| format!("opening {}", path.display()))?.into())
    }

    /// All containers, by ID. A directory without a readable state is left out.
    ///
    /// # Errors
    /// When the directory cannot be read; that it is not there means no containers.
    pub fn list(&self) -> Result<Vec<(Entry, State)>> {
        let dir = match fs::read_dir(&self.root) {
            Ok(dir) => dir,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e).with_context(|| format!("reading {}", self.root.display())),
        };
        let mut all = Vec::new();
        for item in dir {
            let name =
                item.with_context(|| format!("reading {}", self.root.display()))?.file_name();
            if let Some(Ok(found)) = name.to_str().map(|id| self.load(id)) {
                all.push(found);
            }
        }
        all.sort_by(|a, b| a.0.id.cmp(&b.0.id));
        Ok(all)
    }
}

/// What is in a file of [`Entry::open_ended`].
pub fn recorded(file: File) -> (Option<Ended>, Option<Incidents>) {
    let mut bytes = Vec::new();
    file.take(2 * RECORD_BYTES as u64).read_to_end(&mut bytes).ok();
    ended::parse(&bytes)
}

/// A file of a directory of a container: no other user's business, and no way out by a link. What
/// lies in its place (a FIFO) holds nobody up.
pub(super) fn own(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
}

impl Entry {
    /// The directory of its snapshots, which may not be there.
    pub fn snapshots(&self) -> PathBuf {
        self.kept("snapshots")
    }

    /// Where things of this kind of its are that are too large for a state directory.
    pub(super) fn kept(&self, kind: &str) -> PathBuf {
        let root = self.dir.parent().unwrap_or(&self.dir).to_owned();
        Store { root }.images().join(kind).join(&self.id)
    }

    /// Removes its snapshots.
    pub fn forget_snapshots(&self) {
        self.forget_kept("snapshots", |dir| fs::remove_dir_all(dir));
    }

    /// Has `remove` remove what is [kept](Entry::kept) of this kind.
    pub(super) fn forget_kept(&self, kind: &str, remove: fn(&Path) -> io::Result<()>) {
        let dir = self.kept(kind);
        match remove(&dir) {
            // And what was for them, up to where others are.
            Ok(()) => {
                dir.ancestors().skip(1).take_while(|dir| fs::remove_dir(dir).is_ok()).count();
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => tracing::warn!("removing {}: {e}", dir.display()),
        }
    }

    /// Reads `state.json`.
    ///
    /// # Errors
    /// [`ContainerError::NotExist`] when there is none.
    pub fn load(&self) -> Result<State> {
        let path = self.dir.join("state.json");
        let mut text = Vec::new();
        match own(OpenOptions::new().read(true))
            .open(&path)
            .and_then(|f| f.take(MAX_STATE).read_to_end(&mut text))
        {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(ContainerError::NotExist(self.id.clone()).into());
            }
            Err(e) => return Err(e).with_context(|| format!("reading {}", path.display())),
        };
        serde_json::from_slice(&text)
            .with_context(|| format!("{} is damaged; delete the container", path.display()))
    }

    /// Replaces `state.json`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(&self, state: &State) -> Result<()> {
        replace(&self.dir.join("state.json"), &serde_json::to_vec(state)?)
    }

    /// Makes the file in which the sandbox records how it ends.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn make_ended(&self) -> Result<File> {
        let path = self.dir.join(ENDED);
        let file = own(OpenOptions::new().read(true).write(true).create_new(true)).open(&path);
        file.with_context(|| format!("creating {}", path.display()))
    }

    /// What the sandbox recorded: how it ended, and the last incident.
    pub fn ended(&self) -> (Option<Ended>, Option<Incidents>) {
        self.open_ended().map_or((None, None), recorded)
    }

    /// The file in which it records that, for who is there when the container has been deleted.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open_ended(&self) -> io::Result<File> {
        own(OpenOptions::new().read(true)).open(self.dir.join(ENDED))
    }

    /// Keeps other commands from changing this container while the result lives, if none does.
    ///
    /// # Errors
    /// When one does, or there is no such container.
    pub fn try_lock(&self) -> io::Result<Flock<File>> {
        try_lock(&self.dir.join(LOCK))
    }

    /// Waits until no other command changes this container, and keeps them away while the result
    /// lives.
    ///
    /// # Errors
    /// [`ContainerError::NotExist`] when it is gone; when the other command takes too long.
    pub fn lock(&self) -> Result<Flock<File>> {
        let path = self.dir.join(LOCK);
        let end = Instant::now() + LOCK_TIMEOUT;
        loop {
            if !self.dir.is_dir() {
                return Err(ContainerError::NotExist(self.id.clone()).into());
            }
            let file = own(OpenOptions::new().write(true).create(true).truncate(false)).open(&path);
            let file = match file {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                other => other.with_context(|| format!("opening {}", path.display()))?,
            };
            let inode = file.metadata()?.ino();
            let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => lock,
                Err((_, Errno::EWOULDBLOCK)) if Instant::now() < end => {
                    std::thread::sleep(LOCK_PAUSE);
                    continue;
                }
                Err((_, Errno::EWOULDBLOCK)) => {
                    bail!(
                        "another command holds container {} (waited {LOCK_TIMEOUT:?}): end that \
                        one first",
                        self.id
                    )
                }
                Err((_, e)) => {
                    return Err(e).with_context(|| format!("locking {}", path.display()));
                }
            };
            // The container may have been deleted, and even made again, while we waited.
            if fs::metadata(&path).is_ok_and(|m| m.ino() == inode) {
                return Ok(lock);
            }
        }
    }

    /// Removes what another one of the same name has left that went with the host's memory.
    /// `goes_on`: it is that one.
    pub fn be_made(&self, goes_on: bool) {
        if !goes_on {
            self.forget_snapshots();
        }
        self.forget_rw_dirs();
    }

    /// Says that the entry is nobody's own any more.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn disown(&self) -> Result<()> {
        let path = self.dir.join(OWNER_LOCK);
        fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))
    }

    /// True if the entry is somebody's [own](Store::claim_as_owner), or was of one who has ended.
    pub fn is_owned(&self) -> bool {
        self.dir.join(OWNER_LOCK).exists()
    }

    /// True if the process that [owned](Store::claim_as_owner) the entry has ended.
    pub fn is_abandoned(&self) -> bool {
        let Ok(file) = File::open(self.dir.join(OWNER_LOCK)) else { return false };
        Flock::lock(file, FlockArg::LockSharedNonblock).is_ok()
    }

    /// True if somebody who [owns](Store::claim_as_owner) the entry is there.
    pub fn has_owner(&self) -> bool {
        self.is_owned() && !self.is_abandoned()
    }

    /// Has whoever makes the container stop that.
    ///
    /// # Errors
    /// Those of the file system; there may be none.
    pub fn doom(&self) -> Result<()> {
        let path = self.dir.join(DOOM);
        match own(OpenOptions::new().write(true).create(true).truncate(false)).open(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(e).with_context(|| format!("creating {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// True if [`Entry::doom`] was called.
    pub fn is_doomed(&self) -> bool {
        self.dir.join(DOOM).exists()
    }

    /// Removes the directory; whether it was there.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn remove(&self) -> Result<bool> {
        // Others who have not seen that yet may make files in it: a lock, a state.
        for _ in 0..REMOVALS {
            match fs::remove_dir_all(&self.dir) {
                Ok(()) => return Ok(true),
                Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    if !self.dir.exists() {
                        return Ok(false);
                    }
                }
                Err(e) => {
                    return Err(e).with_context(|| format!("removing {}", self.dir.display()));
                }
            }
        }
        bail!("removing {}: files are made in it all the time", self.dir.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state directory that goes with the test.
    fn with_store(name: &str, test: impl FnOnce(Store)) {
        let root = std::env::temp_dir().join(format!("quark-{name}-{}", std::process::id()));
        test(Store { root: root.clone() });
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn an_entry_is_never_abandoned_while_its_owner_makes_it() {
        with_store("owner", |store| {
            let entries: Vec<Entry> =
                (0..500).map(|i| store.entry(&i.to_string()).unwrap()).collect();
            let is_over = std::sync::atomic::AtomicBool::new(false);
            let locks = std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        let is_bare = |e: &Entry| e.dir.exists() && !e.is_owned();
                        assert!(!entries.iter().any(|e| is_bare(e) || e.is_abandoned()));
                    }
                });
                let made = entries.iter().map(|entry| store.claim_as_owner(&entry.id));
                let locks: Vec<_> = made.collect();
                is_over.store(true, std::sync::atomic::Ordering::Relaxed);
                locks
            });
            assert!(locks.into_iter().all(|lock| lock.is_ok()));
            assert!(entries.iter().all(Entry::is_abandoned));
        });
    }

    #[test]
    fn an_id_is_claimed_by_one() {
        with_store("claim", |store| {
            for round in 0..100 {
                let id = format!("c{round}");
                if round % 2 == 0 {
                    // What somebody left who was killed before the ID had its name.
                    fs::create_dir_all(store.root.join(format!("new:{id}"))).unwrap();
                }
                let won = std::thread::scope(|scope| {
                    let all = [(); 4].map(|()| scope.spawn(|| store.claim_as_owner(&id)));
                    all.map(|one| one.join().unwrap()).into_iter().flatten().collect::<Vec<_>>()
                });
                assert_eq!(won.len(), 1);
                assert!(!won[0].0.is_abandoned());
                assert!(store.claim_as_owner(&id).is_err());
                assert_eq!(store.entries("").len(), round + 1);
            }
            assert!(
                fs::read_dir(&store.root)
                    .unwrap()
                    .flatten()
                    .all(|item| { !item.file_name().to_string_lossy().starts_with("new:") })
            );
        });
    }

    #[test]
    fn ids_follow_runc() {
        let store = Store::new(Path::new("/nonexistent")).unwrap();
        for id in ["a", "A-b_c.d+9", "..."] {
            assert!(store.entry(id).is_ok(), "{id}");
        }
        for id in ["", ".", "..", "a/b", "a b", "é", "a:b", &"x".repeat(201)] {
            assert!(store.entry(id).is_err(), "{id}");
        }
    }

    #[test]
    fn a_process_has_one_start_time_until_it_ends() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(start_time(own).is_some());
        assert_eq!(start_time(own), start_time(own));
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        // A zombie until it is waited for, and gone afterwards: both have ended.
        while start_time(pid).is_some() {
            std::thread::sleep(std::time::Duration::from_micros(1));
        }
        child.wait().unwrap();
        assert_eq!(start_time(pid), None);
    }
}
