//! What `quark do` shows of the host: its root file system and what else keeps files on disks, but
//! not the mounts through which a kernel shows itself and its processes (/proc, /sys, /dev …), nor
//! /run and /tmp, which are for those who run now.
//!
//! It is put together in the mount namespace of the sandbox process, which then takes a detached
//! copy. What is not in that copy cannot be reached from inside, whatever the guest unmounts or its
//! kernel does.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use serde::{Deserialize, Serialize};

/// Where the view is put together: a directory that every host has, and that the sandbox mounts its
/// own file system on afterwards.
const PLACE: &str = "/proc";

/// Directories that are empty in the view, with their permissions. The guest has its own of the
/// first three.
const EMPTY: [(&str, u32); 5] =
    [("/proc", 0o555), ("/sys", 0o555), ("/dev", 0o755), ("/run", 0o755), ("/tmp", 0o1777)];

/// The directories of the guest's own kernel: nothing of the host's can be shown there.
const GUEST: [&str; 3] = ["/proc", "/sys", "/dev"];

/// File systems that keep files on a disk or another host and that /proc/filesystems calls "nodev".
const WITH_FILES: [&str; 8] = ["overlay", "btrfs", "zfs", "nfs", "nfs4", "cifs", "9p", "virtiofs"];

/// What to show besides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Directories and files that are there in any case; absolute, without links.
    pub keep: Vec<PathBuf>,
}

impl View {
    /// The view for a command that runs in `cwd`, with `host_network` or without.
    ///
    /// # Errors
    /// When the directory cannot be shown.
    pub fn new(cwd: &Path, host_network: bool) -> Result<View> {
        let cwd = cwd.canonicalize().context("finding the current directory")?;
        if let Some(dir) = GUEST.iter().find(|d| cwd.starts_with(d)) {
            bail!(
                "the current directory {} is not there inside, where {dir} is the guest's: change \
                to another",
                cwd.display()
            );
        }
        let mut keep = vec![cwd];
        // A host may keep this one in /run, and with its network goes its resolver.
        keep.extend(
            host_network.then(|| Path::new("/etc/resolv.conf").canonicalize().ok()).flatten(),
        );
        // Those that are empty stay so, also where they are mounts.
        keep.retain(|k| !EMPTY.iter().any(|(dir, _)| k == Path::new(dir)));
        keep.retain(|k| EMPTY.iter().any(|(dir, _)| k.starts_with(dir)) || is_on_other_mount(k));
        Ok(View { keep })
    }

    /// Tells when the current directory `cwd` is one of those that are empty inside, and `volumes`
    /// (paths inside) do not show it.
    pub fn warn_of_empty(cwd: &Path, volumes: &[PathBuf]) {
        let Ok(cwd) = cwd.canonicalize() else { return };
        if EMPTY.iter().any(|(dir, _)| cwd == Path::new(dir)) && !volumes.contains(&cwd) {
            let dir = cwd.display();
            tracing::warn!(
                "{dir}, the current directory, is empty inside: change to a directory below it, \
                or add --volume {dir}:{dir}"
            );
        }
    }

    /// Why the program `name` is not there inside, if it is there outside and `volumes` (paths
    /// inside) do not show it.
    ///
    /// # Errors
    /// With one line that says what to do.
    pub fn check_program(&self, name: &str, volumes: &[PathBuf]) -> Result<()> {
        if !name.contains('/') {
            return Ok(());
        }
        let Ok(program) = Path::new(name).canonicalize() else { return Ok(()) };
        let hidden = EMPTY.iter().find(|(dir, _)| program.starts_with(dir));
        let shown = self.keep.iter().chain(volumes).any(|k| program.starts_with(k));
        if let Some((dir, _)) = hidden.filter(|_| !shown) {
            let is_in_it = program.parent() == Some(Path::new(dir));
            let (program, parent) =
                (program.display(), program.parent().unwrap_or(&program).display());
            if is_in_it {
                bail!(
                    "{program} is not there inside, where {dir} is empty: put it into a directory \
                    below, or add --volume {parent}:{parent}:ro"
                );
            }
            bail!(
                "{program} is not there inside, where {dir} is empty: change to its directory, or \
                add --volume {parent}:{parent}:ro"
            );
        }
        Ok(())
    }

    /// Puts it together and gives a detached read-only copy. Needs a mount namespace of its own,
    /// and CAP_SYS_ADMIN there.
    ///
    /// # Errors
    /// When the host refuses a step.
    pub fn open(&self) -> Result<OwnedFd> {
        let mounts = Mounts::read()?;
        let whole = match clone_tree(Path::new("/"), false) {
            Ok(tree) => Ok((tree, true)),
            // In a mount namespace that a user made, what is mounted on it cannot be left out.
            Err(rustix::io::Errno::INVAL) => {
                clone_tree(Path::new("/"), true).map(|tree| (tree, false))
            }
            Err(e) => Err(e),
        };
        let (tree, is_bare) = whole.context("cloning the root file system")?;
        attach(&tree, Path::new(PLACE)).context("attaching the root file system")?;
        let done = self.furnish(&mounts, is_bare);
        let copy = done.and_then(|()| {
            crate::sys::clone_mount(Path::new(PLACE), true, true).context("cloning the view")
        });
        umount2(PLACE, MntFlags::MNT_DETACH).context("taking the view away")?;
        copy
    }

    fn furnish(&self, mounts: &Mounts, is_bare: bool) -> Result<()> {
        for (point, fstype) in &mounts.points {
            if is_hidden(point) {
                continue;
            }
            let wanted = mounts.has_files(point)
                || self.keep.iter().any(|k| mounts.of(k) == Some(point.as_path()));
            if wanted && is_bare {
                let tree = clone_tree(point, false);
                if let Err(e) = tree.and_then(|tree| attach(&tree, &inside(point))) {
                    tracing::warn!(
                        "what is mounted on {} is not there inside: {e}",
                        point.display()
                    );
                }
            } else if !wanted && !is_bare && mounts.is_reachable(point) && inside(point).is_dir() {
                cover(&inside(point), 0o555)
                    .with_context(|| format!("covering {fstype} on {}", point.display()))?;
            }
        }
        for (dir, mode) in EMPTY {
            let at = inside(Path::new(dir));
            // A link leads to something that is empty itself, or is a link like any other.
            if fs::symlink_metadata(&at).is_ok_and(|m| m.is_dir()) {
                let is_empty = fs::read_dir(&at).is_ok_and(|mut d| d.next().is_none());
                if !is_empty || !GUEST.contains(&dir) {
                    cover(&at, mode).with_context(|| format!("making an empty {dir}"))?;
                }
            }
        }
        for keep in self.keep.iter().filter(|k| is_hidden(k)) {
            let at = inside(keep);
            let make = || -> Result<()> {
                let parent = at.parent().context("it has no parent")?;
                fs::create_dir_all(parent)?;
                if keep.is_dir() {
                    fs::create_dir(&at)?;
                } else {
                    fs::File::create_new(&at)?;
                }
                let tree = clone_tree(keep, false).or_else(|_| clone_tree(keep, true))?;
                Ok(attach(&tree, &at)?)
            };
            make().with_context(|| format!("showing {}", keep.display()))?;
        }
        Ok(())
    }
}

fn is_hidden(path: &Path) -> bool {
    EMPTY.iter().any(|(dir, _)| path.starts_with(dir))
}

fn is_on_other_mount(path: &Path) -> bool {
    Mounts::read().is_ok_and(|m| m.of(path).is_some_and(|point| point != Path::new("/")))
}

/// The path in the view that is put together.
fn inside(path: &Path) -> PathBuf {
    let parts = path.components().filter(|c| matches!(c, Component::Normal(_)));
    Path::new(PLACE).components().chain(parts).collect()
}

fn clone_tree(path: &Path, recursive: bool) -> rustix::io::Result<OwnedFd> {
    let all = if recursive { OpenTreeFlags::AT_RECURSIVE } else { OpenTreeFlags::empty() };
    open_tree(
        rustix::fs::CWD,
        path,
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | all,
    )
}

fn attach(tree: &OwnedFd, at: &Path) -> rustix::io::Result<()> {
    move_mount(tree.as_fd(), "", rustix::fs::CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

fn cover(at: &Path, mode: u32) -> nix::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some(format!("size=1m,mode={mode:o}").as_str()))
}

/// The mounts of this process's namespace below the root.
#[derive(Debug, Default)]
struct Mounts {
    /// Mount point, the nearer to the root the earlier, to the type of what is topmost there.
    points: BTreeMap<PathBuf, String>,
    /// Types of file systems on a disk.
    on_disk: Vec<String>,
}

impl Mounts {
    fn read() -> Result<Mounts> {
        let table =
            fs::read_to_string("/proc/self/mountinfo").context("reading /proc/self/mountinfo")?;
        let types = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        Ok(Mounts::parse(&table, &types))
    }

    /// From the texts of /proc/self/mountinfo and /proc/filesystems (proc(5)).
    fn parse(table: &str, types: &str) -> Mounts {
        let mut points = BTreeMap::new();
        for line in table.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let (Some(point), Some(fstype)) = (left.split(' ').nth(4), right.split(' ').next())
            else {
                continue;
            };
            if point != "/" {
                points.insert(PathBuf::from(unescape(point)), fstype.to_owned());
            }
        }
        let on_disk =
            types.lines().filter(|l| !l.starts_with("nodev")).map(|l| l.trim().to_owned());
        Mounts { points, on_disk: on_disk.chain(WITH_FILES.map(str::to_owned)).collect() }
    }

    /// The mount point of what `path` is on; `None` is the root.
    fn of(&self, path: &Path) -> Option<&Path> {
        path.ancestors()
            .find_map(|a| self.points.get_key_value(a))
            .map(|(point, _)| point.as_path())
    }

    /// True if a mount, and all that it is mounted on, keeps files on a disk.
    fn has_files(&self, point: &Path) -> bool {
        let mut on_the_way = point.ancestors().filter_map(|a| self.points.get(a));
        on_the_way.all(|fstype| self.on_disk.iter().any(|known| known == fstype))
    }

    /// True if all that it is mounted on keeps files, so that it is not covered already.
    fn is_reachable(&self, point: &Path) -> bool {
        let parent = point.parent().and_then(|p| self.of(p));
        parent.is_none_or(|p| self.has_files(p))
    }
}

/// A path with the escapes that mountinfo has for space, tab, newline and backslash.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 27 0:21 / /proc rw - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 254:1 / /home rw,relatime shared:2 master:3 - ext4 /dev/vdb rw
31 30 0:31 / /home/a\\040b/ram rw - tmpfs tmpfs rw
32 31 254:2 / /home/a\\040b/ram/disk rw - xfs /dev/vdc rw
33 27 0:33 / /data rw - zfs pool/data rw
";
    const TYPES: &str = "nodev\tproc\nnodev\ttmpfs\n\text4\n\txfs\n";

    #[test]
    fn only_what_keeps_files_is_shown() {
        let mounts = Mounts::parse(TABLE, TYPES);
        let has = |p: &str| mounts.has_files(Path::new(p));
        assert!(has("/home") && has("/data"));
        assert!(!has("/proc") && !has("/home/a b/ram") && !has("/home/a b/ram/disk"));
        assert!(
            mounts.is_reachable(Path::new("/home/a b/ram"))
                && !mounts.is_reachable(Path::new("/home/a b/ram/disk"))
        );
        assert_eq!(mounts.of(Path::new("/home/a b/ram/x/y")), Some(Path::new("/home/a b/ram")));
        assert_eq!(mounts.of(Path::new("/etc")), None);
    }

    #[test]
    fn a_program_that_is_hidden_is_told() {
        let dir = std::env::temp_dir().join(format!("quark-view-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let program = dir.join("program");
        fs::write(&program, "").unwrap();
        let name = program.to_str().unwrap();
        let result = View::default().check_program(name, &[]);
        if dir.starts_with("/tmp") {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(&format!("--volume {0}:{0}:ro", dir.display())), "{error}");
        }
        assert!(View::new(&dir, false).unwrap().check_program(name, &[]).is_ok());
        assert!(View::default().check_program(name, std::slice::from_ref(&dir)).is_ok());
        assert!(View::default().check_program("sh", &[]).is_ok());
        assert!(View::new(Path::new("/proc/self"), false).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
