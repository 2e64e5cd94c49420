//! Mount points that a read-only root file system does not have: they are made before it is shown
//! read-only to the sandbox, as runc makes them. (On one that may be written the guest kernel makes
//! them.)
#![deny(unsafe_code)]

use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::mounts::Mount;

/// Makes what is missing below `root`, which may be hostile: links lead nowhere outside of it. What
/// cannot be made is left to the guest kernel, whose error says where.
pub fn make(root: &Path, mounts: &[Mount]) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Whoever opens it next says what is wrong with it.
    let Ok(root) = rustix::fs::open(root, flags, Mode::empty()) else { return };
    for (index, mount) in mounts.iter().enumerate() {
        let place = Path::new(&mount.destination);
        // It lies in another file system, in which the guest kernel makes it.
        let is_covered = mounts[..index].iter().any(|before| {
            let before = Path::new(&before.destination);
            place.starts_with(before) && before != Path::new("/")
        });
        if is_covered {
            continue;
        }
        let is_file = mount.host.as_ref().is_some_and(|host| !host.is_dir());
        if let Err(e) = make_one(&root, place, is_file) {
            tracing::debug!("mount point {} is not made: {e}", mount.destination);
        }
    }
}

fn make_one(root: &OwnedFd, place: &Path, is_file: bool) -> Result<(), Errno> {
    let mut at = PathBuf::from(".");
    let mut parent = find(root, &at)?;
    let mut names = place.components().peekable();
    while let Some(part) = names.next() {
        let name = match part {
            Component::Normal(name) => name,
            Component::ParentDir => return Err(Errno::INVAL),
            _ => continue,
        };
        at.push(name);
        parent = match find(root, &at) {
            Err(Errno::NOENT) => {
                if is_file && names.peek().is_none() {
                    let mode = Mode::from_raw_mode(0o644);
                    rustix::fs::mknodat(&parent, name, FileType::RegularFile, mode, 0)?;
                } else {
                    rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755))?;
                }
                find(root, &at)?
            }
            found => found?,
        };
    }
    Ok(())
}

fn find(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_missing_is_made_and_nothing_outside() {
        let dir = std::env::temp_dir().join(format!("quark-points-{}", std::process::id()));
        let (root, outside) = (dir.join("root"), dir.join("outside"));
        fs::create_dir_all(&root).unwrap();
        fs::create_dir_all(&outside).unwrap();
        symlink(&outside, root.join("absolute")).unwrap();
        symlink("../outside", root.join("relative")).unwrap();
        symlink("usr/lib", root.join("lib")).unwrap();
        fs::create_dir_all(root.join("usr/lib")).unwrap();
        fs::write(dir.join("file"), "").unwrap();
        let mount = |place: &str, host: Option<PathBuf>| Mount {
            destination: place.to_owned(),
            fstype: "tmpfs".to_owned(),
            host,
            recursive: false,
            source: String::new(),
            options: Vec::new(),
        };
        let mounts = [
            mount("/proc", None),
            mount("/dev", None),
            mount("/dev/pts", None),
            mount("/lib/deep/er", None),
            mount("/absolute/x", None),
            mount("/relative/x", None),
            mount("/etc/resolv.conf", Some(dir.join("file"))),
            mount("/../escaped", None),
        ];
        for _ in 0..2 {
            make(&root, &mounts);
        }
        assert!(root.join("proc").is_dir() && root.join("dev").is_dir());
        assert!(!root.join("dev/pts").exists(), "it will be in the other file system");
        assert!(root.join("usr/lib/deep/er").is_dir());
        assert!(root.join("etc/resolv.conf").is_file());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert!(!dir.join("escaped").exists());
        fs::remove_dir_all(dir).unwrap();
    }
}
