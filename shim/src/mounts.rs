//! The mounts of a container's root file system, as containerd's snapshotters describe them.

use std::ffi::CString;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use containerd_shim_protos::types::mount::Mount;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_change, mount_remount, unmount,
};

/// What mount(2) takes of options without a name of its own, in bytes: a page, with its end.
const MAX_DATA: usize = 4095;

/// Makes the mounts on a directory.
///
/// # Errors
/// When one fails; those before it are undone.
pub fn apply(mounts: &[Mount], target: &Path) -> Result<()> {
    for one in mounts {
        let made = apply_one(one, target).with_context(|| {
            format!("mounting {} ({}) on {}", one.source, one.type_, target.display())
        });
        if made.is_err() {
            remove(target);
            return made;
        }
    }
    Ok(())
}

/// Removes all mounts from a directory.
pub fn remove(target: &Path) {
    // It fails with EINVAL when none is left.
    while unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_ok() {}
}

fn apply_one(one: &Mount, target: &Path) -> Result<()> {
    let below: PathBuf =
        Path::new(&one.target).components().filter(|c| matches!(c, Component::Normal(_))).collect();
    let target = target.join(below);
    let options = Options::parse(&one.options);
    if options.bind || one.type_ == "bind" {
        let recursive = options.recursive || one.options.iter().any(|o| o == "rbind");
        if recursive {
            mount_bind_recursive(&one.source, &target)?;
        } else {
            mount_bind(&one.source, &target)?;
        }
        if !options.flags.is_empty() {
            mount_remount(&target, MountFlags::BIND | options.flags, "")?;
        }
    } else {
        let (dir, data) = options.data()?;
        let _there = dir.map(|d| WorkingDirectory::change(&d)).transpose()?;
        let data = CString::new(data)?;
        mount(&one.source, &target, one.type_.as_str(), options.flags, Some(data.as_c_str()))?;
    }
    if let Some(propagation) = options.propagation {
        mount_change(&target, propagation)?;
    }
    Ok(())
}

/// Options, as in fstab(5).
#[derive(Debug)]
struct Options {
    flags: MountFlags,
    propagation: Option<MountPropagationFlags>,
    bind: bool,
    recursive: bool,
    /// What the file system itself is told.
    data: Vec<String>,
}

impl Options {
    fn parse(options: &[String]) -> Self {
        let mut parsed = Self {
            flags: MountFlags::empty(),
            propagation: None,
            bind: false,
            recursive: false,
            data: Vec::new(),
        };
        for option in options {
            let (flag, on) = match option.as_str() {
                "ro" => (MountFlags::RDONLY, true),
                "rw" => (MountFlags::RDONLY, false),
                "nosuid" => (MountFlags::NOSUID, true),
                "suid" => (MountFlags::NOSUID, false),
                "nodev" => (MountFlags::NODEV, true),
                "dev" => (MountFlags::NODEV, false),
                "noexec" => (MountFlags::NOEXEC, true),
                "exec" => (MountFlags::NOEXEC, false),
                "noatime" => (MountFlags::NOATIME, true),
                "nodiratime" => (MountFlags::NODIRATIME, true),
                "relatime" => (MountFlags::RELATIME, true),
                "strictatime" => (MountFlags::STRICTATIME, true),
                "sync" => (MountFlags::SYNCHRONOUS, true),
                "dirsync" => (MountFlags::DIRSYNC, true),
                "bind" => {
                    parsed.bind = true;
                    continue;
                }
                "rbind" => {
                    (parsed.bind, parsed.recursive) = (true, true);
                    continue;
                }
                "private" | "rprivate" | "slave" | "rslave" | "shared" | "rshared"
                | "unbindable" | "runbindable" => {
                    parsed.propagation = Some(propagation(option));
                    continue;
                }
                // What mount(8) alone understands.
                "defaults" | "loud" | "auto" | "noauto" | "_netdev" | "nofail" => continue,
                other => {
                    parsed.data.push(other.to_owned());
                    continue;
                }
            };
            parsed.flags.set(flag, on);
        }
        parsed
    }

    /// What the file system is told, and the directory to be in for that: an overlay of many layers
    /// has names that together are longer than mount(2) takes, unless they are relative.
    fn data(&self) -> Result<(Option<PathBuf>, String)> {
        let whole = self.data.join(",");
        if whole.len() <= MAX_DATA {
            return Ok((None, whole));
        }
        let too_long = || format!("options of {} bytes, and {MAX_DATA} are the most", whole.len());
        let lower = self.data.iter().find_map(|o| o.strip_prefix("lowerdir="));
        let layers: Vec<&Path> = lower.with_context(too_long)?.split(':').map(Path::new).collect();
        let common = common_parent(&layers).with_context(too_long)?;
        let relative: Option<Vec<&str>> =
            layers.iter().map(|l| l.strip_prefix(&common).ok()?.to_str()).collect();
        let relative = format!("lowerdir={}", relative.with_context(too_long)?.join(":"));
        let short =
            |o: &String| if o.starts_with("lowerdir=") { relative.clone() } else { o.clone() };
        let data = self.data.iter().map(short).collect::<Vec<_>>().join(",");
        if data.len() > MAX_DATA {
            bail!("{}", too_long());
        }
        Ok((Some(common), data))
    }
}

fn propagation(option: &str) -> MountPropagationFlags {
    let (recursive, kind) = match option.strip_prefix('r') {
        Some(kind) => (MountPropagationFlags::REC, kind),
        None => (MountPropagationFlags::empty(), option),
    };
    let kind = match kind {
        "private" => MountPropagationFlags::PRIVATE,
        "slave" => MountPropagationFlags::DOWNSTREAM,
        "shared" => MountPropagationFlags::SHARED,
        _ => MountPropagationFlags::UNBINDABLE,
    };
    recursive | kind
}

/// The deepest directory that all paths are below.
fn common_parent(paths: &[&Path]) -> Option<PathBuf> {
    let mut common = paths.first()?.parent()?.to_owned();
    for path in paths {
        while !path.starts_with(&common) {
            common = common.parent()?.to_owned();
        }
    }
    Some(common).filter(|c| c.parent().is_some())
}

/// Being in another directory for a while. There are no other threads that would mind.
struct WorkingDirectory(PathBuf);

impl WorkingDirectory {
    fn change(dir: &Path) -> Result<Self> {
        let old = std::env::current_dir().unwrap_or_else(|_| "/".into());
        std::env::set_current_dir(dir).with_context(|| dir.display().to_string())?;
        Ok(Self(old))
    }
}

impl Drop for WorkingDirectory {
    fn drop(&mut self) {
        std::env::set_current_dir(&self.0).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[&str]) -> Options {
        Options::parse(&options.iter().map(|o| (*o).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_flags_or_for_the_file_system() {
        let options = parse(&["ro", "nodev", "rw", "rbind", "rslave", "workdir=/w", "index=off"]);
        assert_eq!(options.flags, MountFlags::NODEV);
        assert!(options.bind && options.recursive);
        let expected = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        assert_eq!(options.propagation, Some(expected));
        assert_eq!(options.data().unwrap(), (None, "workdir=/w,index=off".to_owned()));
    }

    #[test]
    fn an_overlay_may_have_very_many_layers() {
        let layers: Vec<_> = (0..200).map(|n| format!("/var/lib/snapshots/{n}/fs")).collect();
        let lower = format!("lowerdir={}", layers.join(":"));
        let (dir, data) = parse(&["upperdir=/u", &lower]).data().unwrap();
        assert_eq!(dir.as_deref(), Some(Path::new("/var/lib/snapshots")));
        assert!(data.starts_with("upperdir=/u,lowerdir=0/fs:1/fs:"), "{data}");
        assert!(data.len() <= MAX_DATA);
    }

    #[test]
    fn too_many_layers_are_told() {
        let layers: Vec<_> = (0..2000).map(|n| format!("/var/lib/snapshots/{n}/fs")).collect();
        let error = parse(&[&format!("lowerdir={}", layers.join(":"))]).data().unwrap_err();
        assert!(error.to_string().contains("4095 are the most"), "{error}");
    }
}
