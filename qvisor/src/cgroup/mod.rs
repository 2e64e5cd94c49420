//! Control groups of sandboxes, versions 1 and 2, by the file system alone (the `cgroupfs` driver
//! of runc).
//!
//! A cgroup is made before its sandbox; the sandbox process moves itself in before it runs anything
//! of its own, so all memory of the guest is charged there. Only the life-cycle code in `oci`
//! enters this room.
#![deny(unsafe_code)]

mod hierarchy;
mod limits;
mod names;
mod removal;
mod stats;

pub use hierarchy::Hierarchies;
pub use stats::CgroupStats;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use oci_spec::runtime::LinuxResources;
use serde::{Deserialize, Serialize};

/// This host offers no cgroup that a container could have.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0}; mount the cgroup file systems writable, for instance: mount -t cgroup2 none \
    /sys/fs/cgroup"
)]
pub struct Unavailable(String);

/// What is wrong when a cgroup cannot be made.
fn unavailable(dir: &Path, error: io::Error) -> anyhow::Error {
    let what = format!("creating cgroup {}", dir.display());
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::NotFound => {
            Unavailable(format!("{what}: {error}")).into()
        }
        _ => anyhow::Error::new(error).context(what),
    }
}

/// Which interface a cgroup has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    /// One directory for each controller.
    V1,
    /// One directory.
    V2,
}

/// The directories of one container's cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    version: Version,
    /// By controller; with version 2 the one key is "".
    dirs: BTreeMap<String, PathBuf>,
    /// Directories that were made for it, innermost last in each hierarchy.
    made: Vec<PathBuf>,
}

/// How a new process gets into a cgroup.
#[derive(Debug, Default)]
pub struct Membership {
    /// The directory to give to clone3(2) (version 2).
    pub born_in: Option<File>,
    /// The files into which it writes "0" (version 1).
    pub join: Vec<File>,
}

/// Controller, root of its hierarchy, the cgroup's directory there.
type Directory = (String, PathBuf, PathBuf);

/// A cgroup that is going to be made.
#[derive(Debug)]
pub struct Plan {
    path: String,
    places: Vec<Directory>,
    /// What is to be removed at the end, however far its making comes.
    pub cgroup: Cgroup,
}

impl Plan {
    /// Of the cgroup `path` (as OCI's `linux.cgroupsPath`: absolute from the root of the
    /// hierarchies, relative from the caller's own).
    ///
    /// # Errors
    /// When the cgroup has processes in it.
    pub fn new(hierarchies: &Hierarchies, path: &str) -> Result<Self> {
        let mut cgroup =
            Cgroup { version: hierarchies.version, dirs: BTreeMap::new(), made: Vec::new() };
        let places = hierarchies.directories(path)?;
        for (controller, base, dir) in &places {
            let missing = dir.ancestors().take_while(|at| at != base && !at.exists());
            let mut missing: Vec<_> = missing.map(Path::to_path_buf).collect();
            // One that an earlier container left is this one's now.
            if missing.is_empty() && dir != base && !has_children(dir) {
                missing.push(dir.clone());
            }
            missing.into_iter().rev().for_each(|at| cgroup.remember(at));
            cgroup.dirs.insert(controller.clone(), dir.clone());
        }
        cgroup.check_unused(path)?;
        Ok(Plan { path: path.to_owned(), places, cgroup })
    }

    /// Makes it, and sets its limits. Nothing is left behind on failure.
    ///
    /// # Errors
    /// When a limit is asked for that this host has no controller for, the cgroup has processes in
    /// it by now, or a file refuses its value.
    pub fn make(self, resources: Option<&LinuxResources>) -> Result<Cgroup> {
        let Plan { path, places, mut cgroup } = self;
        match cgroup.build(&path, &places, resources) {
            Ok(()) => Ok(cgroup),
            Err(e) => {
                cgroup.remove().ok();
                Err(e)
            }
        }
    }
}

fn has_children(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|entries| {
        entries.flatten().any(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
    })
}

impl Cgroup {
    fn build(
        &mut self,
        path: &str,
        places: &[Directory],
        resources: Option<&LinuxResources>,
    ) -> Result<()> {
        for (controller, base, dir) in places {
            self.make_dir(base, dir).map_err(|e| unavailable(dir, e))?;
            if controller == "cpuset" {
                inherit_cpuset(base, dir)
                    .with_context(|| format!("setting up cgroup {}", dir.display()))?;
            }
        }
        self.check_unused(path)?;
        match resources {
            Some(resources) => self.set_limits(resources),
            None => Ok(()),
        }
    }

    /// Like mkdir -p below `base`; a parent that another container removes meanwhile is made again,
    /// and remembered as made.
    fn make_dir(&mut self, base: &Path, dir: &Path) -> io::Result<()> {
        let below = dir.strip_prefix(base).map_err(|_| io::ErrorKind::InvalidInput)?;
        for _ in 0..16 {
            let mut at = base.to_path_buf();
            let mut lost = false;
            for part in below.components() {
                if self.version == Version::V2 {
                    hierarchy::delegate(&at)?;
                }
                at.push(part);
                match fs::create_dir(&at) {
                    Ok(()) => {
                        self.remember(at.clone());
                    }
                    Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {
                        lost = true;
                        break;
                    }
                    Err(e) => return Err(e),
                }
            }
            if !lost {
                return Ok(());
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    /// Has a directory removed at the end.
    fn remember(&mut self, dir: PathBuf) {
        if !self.made.contains(&dir) {
            self.made.push(dir);
        }
    }

    fn check_unused(&self, path: &str) -> Result<()> {
        match self.stayers()?.len() {
            0 => Ok(()),
            count => bail!(
                "cgroup {path} is in use: it has {count} processes; choose another \
                linux.cgroupsPath"
            ),
        }
    }

    /// What a new process needs to be in it.
    ///
    /// With version 1 it writes to the `tasks` files: for a process with one thread they do the
    /// same as `cgroup.procs`, but spare a lock that costs an RCU grace period, more than 10 ms.
    /// With version 2 it is born in the cgroup.
    ///
    /// # Errors
    /// When one cannot be opened.
    pub fn membership(&self) -> Result<Membership> {
        let mut membership = Membership::default();
        for dir in self.dirs.values() {
            match self.version {
                Version::V1 => {
                    let path = dir.join("tasks");
                    let file = OpenOptions::new().write(true).open(&path);
                    membership
                        .join
                        .push(file.with_context(|| format!("opening {}", path.display()))?);
                }
                Version::V2 => {
                    membership.born_in = Some(
                        File::open(dir)
                            .with_context(|| format!("opening cgroup {}", dir.display()))?,
                    );
                }
            }
        }
        Ok(membership)
    }

    /// The processes in it, as host process ids.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn members(&self) -> Result<Vec<i32>> {
        let Some(dir) = self.dirs.get("memory").or_else(|| self.dirs.values().next()) else {
            return Ok(Vec::new());
        };
        members_of(dir)
    }

    /// The directory of `controller`, when there is one.
    pub fn dir(&self, controller: &str) -> Option<&Path> {
        self.dirs.get(controller).or_else(|| self.dirs.get("")).map(PathBuf::as_path)
    }

    /// True if the host has killed a process in it for want of memory.
    pub fn was_out_of_memory(&self) -> bool {
        let read = |file: &str| {
            self.memory_dir()
                .and_then(|d| fs::read_to_string(d.join(file)).ok())
                .unwrap_or_default()
        };
        // Version 2, and version 1.
        let text = read("memory.events") + &read("memory.oom_control");
        text.lines().filter_map(|l| l.strip_prefix("oom_kill ")).any(|n| n.trim() != "0")
    }

    /// The directory whose memory accounting covers the sandbox.
    pub fn memory_dir(&self) -> Option<&Path> {
        self.dir("memory")
    }

    fn write(&self, controller: &str, file: &str, value: &str) -> Result<()> {
        let Some(dir) = self.dir(controller) else {
            bail!("cannot set {file} = {value}: this host has no {controller} cgroup controller");
        };
        let path = dir.join(file);
        write_file(&path, value).with_context(|| format!("setting {} to {value}", path.display()))
    }

    fn has(&self, controller: &str, file: &str) -> bool {
        self.dir(controller).is_some_and(|d| d.join(file).exists())
    }
}

/// The processes in the cgroup with this directory; none if there is no such cgroup.
fn members_of(dir: &Path) -> Result<Vec<i32>> {
    let path = dir.join("cgroup.procs");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.lines().filter_map(|l| l.parse().ok()).collect()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e).with_context(|| format!("reading {}", path.display())),
    }
}

/// Writes without creating: a missing file must be an error.
fn write_file(path: &Path, value: &str) -> io::Result<()> {
    use std::io::Write;
    OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

/// A fresh version 1 cpuset takes no process before it has CPUs and memory nodes: it gets its
/// parent's.
fn inherit_cpuset(base: &Path, dir: &Path) -> io::Result<()> {
    let mut at = base.to_path_buf();
    let below = dir.strip_prefix(base).map_err(|_| io::ErrorKind::InvalidInput)?;
    for part in below.components() {
        let parent = at.clone();
        at.push(part);
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if fs::read_to_string(at.join(file))?.trim().is_empty() {
                let value = fs::read_to_string(parent.join(file))?;
                write_file(&at.join(file), value.trim())?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
