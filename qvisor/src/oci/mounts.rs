//! Mounts: which of a configuration's mounts are the guest's own, and which show it a host
//! directory or file.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// One mount, checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Where, in the container; absolute.
    pub destination: String,
    /// As in [`qlib::control::MountSpec`].
    pub fstype: String,
    /// For "host": the host path.
    pub host: Option<PathBuf>,
    /// For "host": with what is mounted below it.
    pub recursive: bool,
    /// What /proc/mounts shows as the source.
    pub source: String,
    /// Options for the guest.
    pub options: Vec<String>,
}

impl Mount {
    /// True if nothing may be written.
    pub fn readonly(&self) -> bool {
        // The last one counts.
        self.options.iter().rev().find(|o| *o == "ro" || *o == "rw").is_some_and(|o| o == "ro")
    }
}

/// Options that mean something to the host's mount tree only.
const PROPAGATION: &[&str] = &[
    "bind",
    "rbind",
    "private",
    "rprivate",
    "shared",
    "rshared",
    "slave",
    "rslave",
    "unbindable",
    "runbindable",
];

/// Those of them with which later mounts of the host come in.
const FOLLOWING: &[&str] = &["shared", "rshared", "slave", "rslave"];

/// Flags that every mount may have, and options of tmpfs(5) by their names.
#[rustfmt::skip]
const TMPFS: &[&str] = &[
    "", "defaults", "ro", "rw", "rro", "nosuid", "suid", "nodev", "dev", "noexec", "exec", "sync",
    "async", "dirsync", "mand", "nomand", "atime", "noatime", "diratime", "nodiratime", "relatime",
    "norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime", "iversion",
    "noiversion", "silent", "loud", "symfollow", "nosymfollow", "remount", "tmpcopyup",
    "notmpcopyup", "size", "nr_blocks", "nr_inodes", "mode", "uid", "gid", "huge", "mpol",
    "inode32", "inode64", "swap", "noswap",
];

/// Checks and converts the mounts of the bundle in `dir`.
///
/// # Errors
/// When a mount is malformed, its source is missing, or its file system is one that a guest does
/// not have.
pub fn convert(mounts: &[oci_spec::runtime::Mount], dir: &Path) -> Result<Vec<Mount>> {
    mounts
        .iter()
        .map(|m| one(m, dir).with_context(|| format!("mount {}", m.destination().display())))
        .collect()
}

fn one(mount: &oci_spec::runtime::Mount, dir: &Path) -> Result<Mount> {
    // runc accepts a relative destination, which means one below the root.
    let destination = Path::new("/")
        .join(mount.destination())
        .to_str()
        .context("its path is not UTF-8")?
        .to_owned();
    let options = mount.options().as_deref().unwrap_or_default();
    let is = |name: &str| options.iter().any(|o| o == name);
    let fstype = mount.typ().as_deref().unwrap_or("");
    let mut result = Mount {
        fstype: fstype.to_owned(),
        host: None,
        recursive: is("rbind"),
        source: mount.source().as_ref().map_or(fstype.to_owned(), |s| s.display().to_string()),
        options: options.iter().filter(|o| !PROPAGATION.contains(&o.as_str())).cloned().collect(),
        destination,
    };
    if fstype == "bind" || is("bind") || is("rbind") {
        let source = mount.source().as_ref().context("a bind mount needs a source")?;
        let source = dir.join(source);
        let source =
            source.canonicalize().with_context(|| format!("source {}", source.display()))?;
        let kind = fs::metadata(&source)
            .with_context(|| format!("source {}", source.display()))?
            .file_type();
        if kind.is_block_device() || kind.is_char_device() {
            bail!("source {} is a device, and a guest reaches no host device", source.display());
        }
        if let Some(how) = FOLLOWING.iter().find(|how| is(how)) {
            tracing::warn!(
                "mount {}: {how:?} is not followed: what the host mounts below it later is not seen",
                result.destination
            );
        }
        result.fstype = "host".to_owned();
        result.host = Some(source);
        return Ok(result);
    }
    if fstype == "tmpfs" {
        let is_known = |o: &&String| TMPFS.contains(&o.split('=').next().unwrap_or_default());
        if let Some(bad) = result.options.iter().find(|o| !is_known(o)) {
            bail!("{bad:?} is no option of a tmpfs");
        }
    }
    match fstype {
        "cgroup2" => result.fstype = "cgroup".to_owned(),
        // Every runtime fills /dev with the standard devices; in a guest that is what its devtmpfs
        // is.
        "tmpfs" if result.destination.trim_end_matches('/') == "/dev" => {
            result.fstype = "devtmpfs".to_owned()
        }
        "proc" | "sysfs" | "tmpfs" | "devtmpfs" | "devpts" | "mqueue" | "cgroup" => {}
        "" => bail!("its type is missing"),
        other => bail!(
            "file system type {other:?} is not supported; a guest has bind mounts and its own \
            file systems"
        ),
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert_json(json: &str) -> Result<Vec<Mount>> {
        convert(
            &serde_json::from_str::<Vec<oci_spec::runtime::Mount>>(json).unwrap(),
            Path::new("/"),
        )
    }

    #[test]
    fn bind_mounts_are_host_paths() {
        let all = convert_json(
            r#"[{"destination":"/data","source":"/etc","options":["rbind","rprivate","ro","nosuid"]},
                {"destination":"/dev","type":"tmpfs","source":"tmpfs","options":["mode=755"]},
                {"destination":"/sys/fs/cgroup","type":"cgroup2","source":"cgroup"}]"#,
        )
        .unwrap();
        assert_eq!(all[0].fstype, "host");
        assert_eq!(all[0].host.as_deref(), Some(Path::new("/etc")));
        assert_eq!(all[0].options, ["ro", "nosuid"]);
        assert!(all[0].recursive && all[0].readonly());
        assert_eq!((all[1].fstype.as_str(), all[1].readonly()), ("devtmpfs", false));
        assert_eq!(all[2].fstype, "cgroup");
    }

    #[test]
    fn what_a_guest_cannot_have_is_refused() {
        for json in [
            r#"[{"destination":"/d","type":"bind"}]"#,
            r#"[{"destination":"/d","type":"bind","source":"/nonexistent"}]"#,
            r#"[{"destination":"/d","type":"bind","source":"/dev/null"}]"#,
            r#"[{"destination":"/d","type":"ext4","source":"/dev/sda"}]"#,
            r#"[{"destination":"/d"}]"#,
        ] {
            assert!(convert_json(json).is_err(), "{json}");
        }
    }
}
