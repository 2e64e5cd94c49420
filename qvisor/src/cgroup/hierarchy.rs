//! Which cgroup hierarchies this host has mounted, and where the caller is in them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{Unavailable, Version, write_file};

/// The controllers used on version 1, when mounted. `name=systemd` is joined so that tools which
/// find a container by it see the right path.
const WANTED: &[&str] = &[
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "pids",
    "name=systemd",
];

/// The mounted hierarchies.
#[derive(Clone, Debug)]
pub struct Hierarchies {
    pub(super) version: Version,
    /// Controller to (mount point, the caller's own path in it). With version 2 the one key is "".
    mounts: BTreeMap<String, (PathBuf, String)>,
}

/// True if the file system that a path leads to is one of cgroups: another may be mounted over it.
fn shows_cgroups(point: &Path) -> bool {
    /// CGROUP_SUPER_MAGIC and CGROUP2_SUPER_MAGIC of linux/magic.h.
    const MAGIC: [i64; 2] = [0x0027_e0eb, 0x6367_7270];
    rustix::fs::statfs(point).is_ok_and(|s| MAGIC.contains(&s.f_type))
}

impl Hierarchies {
    /// Reads /proc/self/mountinfo and /proc/self/cgroup.
    ///
    /// # Errors
    /// When they cannot be read or no hierarchy is mounted.
    pub fn detect() -> Result<Self> {
        let mountinfo =
            fs::read_to_string("/proc/self/mountinfo").context("reading /proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup").context("reading /proc/self/cgroup")?;
        let found = Self::parse(&mountinfo, &own)?;
        if let Some((point, _)) = found.mounts.values().find(|(point, _)| !shows_cgroups(point)) {
            bail!(Unavailable(format!("{} is covered by another file system", point.display())));
        }
        Ok(found)
    }

    /// The same from the texts of the two files. Version 1 is taken when any controller is mounted
    /// there (a "hybrid" host has a version 2 hierarchy beside it, with few controllers or none).
    pub(super) fn parse(mountinfo: &str, own: &str) -> Result<Self> {
        let mut own_paths = BTreeMap::new();
        for line in own.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            for c in controllers.split(',') {
                own_paths.insert(c.to_owned(), path.to_owned());
            }
        }
        let mut v1 = BTreeMap::new();
        let mut v2 = None;
        for line in mountinfo.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let left: Vec<&str> = left.split(' ').collect();
            let right: Vec<&str> = right.split(' ').collect();
            let (Some(root), Some(point), Some(kind), Some(options)) =
                (left.get(3), left.get(4), right.first(), right.get(2))
            else {
                continue;
            };
            let here = |controller: &str| {
                let own = own_paths.get(controller).map_or("/", String::as_str);
                // In a cgroup namespace or container the mount shows a part of the hierarchy.
                let own = if *root == "/" { own } else { own.strip_prefix(root).unwrap_or("/") };
                (PathBuf::from(point.replace("\\040", " ")), own.to_owned())
            };
            match *kind {
                "cgroup" => {
                    for option in options.split(',').filter(|o| WANTED.contains(o)) {
                        v1.entry(option.to_owned()).or_insert_with(|| here(option));
                    }
                }
                "cgroup2" => {
                    v2.get_or_insert_with(|| here(""));
                }
                _ => {}
            }
        }
        if v1.keys().any(|c| c != "name=systemd") {
            return Ok(Hierarchies { version: Version::V1, mounts: v1 });
        }
        match v2 {
            Some(mount) => Ok(Hierarchies {
                version: Version::V2,
                mounts: BTreeMap::from([(String::new(), mount)]),
            }),
            None => bail!(Unavailable("no cgroup hierarchy is mounted".to_owned())),
        }
    }

    /// True if the caller may make cgroups below their own.
    ///
    /// # Errors
    /// When their own cannot be looked at.
    pub fn is_delegated(&self) -> Result<bool> {
        for (point, own) in self.mounts.values() {
            let dir = point.join(own.trim_start_matches('/'));
            match rustix::fs::access(&dir, rustix::fs::Access::WRITE_OK) {
                Ok(()) => {}
                Err(rustix::io::Errno::ACCESS | rustix::io::Errno::ROFS) => return Ok(false),
                Err(e) => return Err(e).with_context(|| format!("cgroup {}", dir.display())),
            }
        }
        Ok(true)
    }

    /// (controller, mount point, directory) of each hierarchy for OCI's `cgroupsPath`.
    pub(super) fn directories(&self, path: &str) -> Result<Vec<(String, PathBuf, PathBuf)>> {
        let of_unit = if path.starts_with('/') { None } else { path_of_unit(path)? };
        let wanted = Path::new(of_unit.as_deref().unwrap_or(path));
        if wanted.components().any(|c| matches!(c, Component::ParentDir)) {
            bail!("cgroupsPath {path:?} must not contain \"..\"");
        }
        let mut all = Vec::new();
        for (controller, (point, own)) in &self.mounts {
            let mut dir = point.clone();
            if !wanted.is_absolute() {
                dir.push(own.trim_start_matches('/'));
            }
            dir.extend(wanted.components().filter(|c| matches!(c, Component::Normal(_))));
            if dir == *point {
                bail!("cgroupsPath {path:?} names the root cgroup");
            }
            all.push((controller.clone(), point.clone(), dir));
        }
        Ok(all)
    }
}

/// Where systemd would have the scope that a `cgroupsPath` of the form `SLICE:PREFIX:NAME` names
/// (systemd.slice(5): each dash of a slice's name is a level). `None` for any other form. Engines
/// write it for parents that are slices, whatever driver they use.
///
/// # Errors
/// When it has that form, and names no slice.
fn path_of_unit(path: &str) -> Result<Option<String>> {
    let parts: Vec<&str> = path.split(':').collect();
    let [slice, prefix, name] = parts[..] else {
        if parts.len() > 1 {
            bail!("cgroupsPath {path:?}: a relative path with a colon must be SLICE:PREFIX:NAME");
        }
        return Ok(None);
    };
    let slice = if slice.is_empty() { "system.slice" } else { slice };
    let Some(levels) = slice.strip_suffix(".slice") else {
        bail!("cgroupsPath {path:?}: {slice:?} is not the name of a slice");
    };
    if [slice, prefix, name].iter().any(|part| part.contains('/')) || name.is_empty() {
        bail!("cgroupsPath {path:?}: names of units have no \"/\" and are not empty");
    }
    let mut place = String::from("/");
    // "-.slice" is the root.
    if levels != "-" {
        if levels.split('-').any(str::is_empty) {
            bail!("cgroupsPath {path:?}: {slice:?} is not the name of a slice");
        }
        for (end, _) in levels.match_indices('-').chain([(levels.len(), "")]) {
            place += &format!("{}.slice/", &levels[..end]);
        }
    }
    place += &match (prefix, name.ends_with(".slice")) {
        (_, true) => name.to_owned(),
        ("", false) => format!("{name}.scope"),
        (prefix, false) => format!("{prefix}-{name}.scope"),
    };
    Ok(Some(place))
}

/// Makes the controllers of a version 2 directory available to its children. A controller that
/// refuses (a cgroup with processes of its own, or one that is not delegated to us) is left out;
/// limits that need it then say so.
pub(super) fn delegate(dir: &Path) -> io::Result<()> {
    let available = match fs::read_to_string(dir.join("cgroup.controllers")) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    let control = dir.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&control).unwrap_or_default();
    let missing: Vec<&str> = available
        .split_whitespace()
        .filter(|c| !enabled.split_whitespace().any(|e| e == *c))
        .collect();
    for controller in missing {
        if let Err(e) = write_file(&control, &format!("+{controller}")) {
            tracing::debug!("{}: controller {controller} not enabled: {e}", dir.display());
        }
    }
    Ok(())
}
