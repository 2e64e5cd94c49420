//! The verdict of the last probe, kept until the host or this program changes.
//!
//! One small JSON file in a directory that only its owner may write. What cannot be believed
//! (another owner, other writers, a damaged file, another host) is as good as nothing: the probe
//! runs anew. A file that cannot be written costs a probe at each start, nothing else.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Report;

/// The file in [`crate::oci::state::DEFAULT_ROOT`]; no container can have this name.
pub const FILE: &str = "kvm:verdict";
/// No verdict is longer.
const MAX_BYTES: u64 = 16 << 10;

/// What a verdict holds for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// /proc/sys/kernel/random/boot_id.
    pub boot_id: String,
    /// uname -r.
    pub release: String,
    /// /dev/kvm: device number, inode number, time of its last change in seconds and nanoseconds. A
    /// module that is loaded anew makes a new one.
    pub device: (u64, u64, i64, i64),
    /// Version of this program.
    pub version: String,
    /// Its file: device, inode number, bytes, and the time of its last change.
    pub program: (u64, u64, u64, i64, i64),
}

impl Key {
    /// That of this host and program; `None` when something of it cannot be found out, a missing
    /// /dev/kvm for instance.
    pub fn current() -> Option<Key> {
        let kvm = std::fs::metadata("/dev/kvm").ok()?;
        let program = std::fs::metadata("/proc/self/exe").ok()?;
        Some(Key {
            boot_id: std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .ok()?
                .trim()
                .to_owned(),
            release: rustix::system::uname().release().to_str().ok()?.to_owned(),
            device: (kvm.rdev(), kvm.ino(), kvm.ctime(), kvm.ctime_nsec()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            program: (
                program.dev(),
                program.ino(),
                program.size(),
                program.mtime(),
                program.mtime_nsec(),
            ),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct Kept {
    key: Key,
    report: Report,
}

/// The place of the verdict.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
    owner: u32,
}

impl Cache {
    /// In `dir`, which need not exist; files of others than `owner` (a user id) are not believed.
    pub fn new(dir: &Path, owner: u32) -> Cache {
        Cache { dir: dir.to_owned(), owner }
    }

    /// True if a file or directory is the owner's, and nobody else may write it.
    fn is_ours(&self, metadata: &std::fs::Metadata) -> bool {
        metadata.uid() == self.owner && metadata.mode() & 0o022 == 0
    }

    /// True if what is in the directory can be believed.
    fn has_safe_dir(&self) -> bool {
        std::fs::symlink_metadata(&self.dir).is_ok_and(|m| m.is_dir() && self.is_ours(&m))
    }

    /// The verdict for `key`, if there is one.
    pub fn get(&self, key: &Key) -> Option<Report> {
        if !self.has_safe_dir() {
            return None;
        }
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file =
            OpenOptions::new().read(true).custom_flags(flags).open(self.dir.join(FILE)).ok()?;
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || !self.is_ours(&metadata) || metadata.len() > MAX_BYTES {
            return None;
        }
        let mut text = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut text).ok()?;
        let kept: Kept = serde_json::from_slice(&text).ok()?;
        (kept.key == *key).then_some(kept.report)
    }

    /// Keeps a verdict. The file appears whole.
    ///
    /// # Errors
    /// Those of the file system, and EPERM for a directory that others may write.
    pub fn put(&self, key: &Key, report: &Report) -> std::io::Result<()> {
        if let Err(e) = DirBuilder::new().mode(0o700).recursive(true).create(&self.dir)
            && e.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(e);
        }
        if !self.has_safe_dir() {
            return Err(std::io::ErrorKind::PermissionDenied.into());
        }
        let text = serde_json::to_vec(&Kept { key: key.clone(), report: report.clone() })?;
        let new = self.dir.join(format!("{FILE}:{}", std::process::id()));
        // What an earlier process with this number left is nobody's any more.
        std::fs::remove_file(&new).ok();
        let written =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).and_then(
                |mut file: File| {
                    file.write_all(&text)?;
                    std::fs::rename(&new, self.dir.join(FILE))
                },
            );
        if written.is_err() {
            std::fs::remove_file(&new).ok();
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::skip::skip;

    fn key() -> Key {
        Key {
            boot_id: "b".into(),
            release: "6.1".into(),
            device: (1, 2, 3, 4),
            version: "0".into(),
            program: (1, 2, 3, 4, 5),
        }
    }

    struct TempDir(PathBuf);

    impl TempDir {
        fn new(name: &str) -> TempDir {
            let dir =
                std::env::temp_dir().join(format!("quark-verdict-{name}-{}", std::process::id()));
            std::fs::remove_dir_all(&dir).ok();
            TempDir(dir)
        }

        fn cache(&self) -> Cache {
            Cache::new(&self.0, rustix::process::geteuid().as_raw())
        }

        fn file(&self) -> PathBuf {
            self.0.join(FILE)
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    fn report() -> Report {
        Report { refusal: Some("no".into()), call_ns: Some(50), ..Report::default() }
    }

    #[test]
    fn a_verdict_holds_for_its_key_alone() {
        let place = TempDir::new("key");
        let cache = place.cache();
        assert_eq!(cache.get(&key()), None, "nothing there yet");
        cache.put(&key(), &report()).unwrap();
        assert_eq!(cache.get(&key()), Some(report()));
        let stale = [
            Key { boot_id: "c".into(), ..key() },
            Key { release: "6.2".into(), ..key() },
            Key { device: (1, 2, 3, 5), ..key() },
            Key { version: "1".into(), ..key() },
            Key { program: (1, 2, 3, 4, 6), ..key() },
        ];
        for key in stale {
            assert_eq!(cache.get(&key), None, "{key:?}");
        }
        // A new one takes the place of the old one, and leaves nothing beside it.
        cache.put(&key(), &Report::default()).unwrap();
        assert_eq!(cache.get(&key()), Some(Report::default()));
        assert_eq!(std::fs::read_dir(&place.0).unwrap().count(), 1);
        assert_eq!(std::fs::metadata(&place.0).unwrap().mode() & 0o777, 0o700);
        assert_eq!(std::fs::metadata(place.file()).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_file_is_no_verdict() {
        let place = TempDir::new("damaged");
        let cache = place.cache();
        cache.put(&key(), &report()).unwrap();
        let whole = std::fs::read(place.file()).unwrap();
        for len in 0..whole.len() {
            std::fs::write(place.file(), &whole[..len]).unwrap();
            assert_eq!(cache.get(&key()), None, "{len} bytes");
        }
        std::fs::write(place.file(), [&whole[..], b"x"].concat()).unwrap();
        assert_eq!(cache.get(&key()), None);
        let padded = [&whole[..], &vec![b' '; MAX_BYTES as usize]].concat();
        std::fs::write(place.file(), padded).unwrap();
        assert_eq!(cache.get(&key()), None, "too long");
        std::fs::write(place.file(), &whole).unwrap();
        assert_eq!(cache.get(&key()), Some(report()));
    }

    #[test]
    fn what_others_may_have_written_is_not_believed() {
        let place = TempDir::new("foreign");
        let cache = place.cache();
        cache.put(&key(), &report()).unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap()
        };
        // Another owner of file and directory.
        let other = Cache::new(&place.0, rustix::process::geteuid().as_raw() + 1);
        assert_eq!(other.get(&key()), None);
        assert!(other.put(&key(), &report()).is_err());
        mode(&place.file(), 0o620);
        assert_eq!(cache.get(&key()), None, "others write the file");
        mode(&place.file(), 0o644);
        assert_eq!(cache.get(&key()), Some(report()));
        mode(&place.0, 0o777);
        assert_eq!(cache.get(&key()), None, "others write the directory");
        assert!(cache.put(&key(), &report()).is_err());
        mode(&place.0, 0o755);
        assert_eq!(cache.get(&key()), Some(report()));
        // A link may lead to a file that looks right.
        let real = place.0.join("real");
        std::fs::rename(place.file(), &real).unwrap();
        symlink(&real, place.file()).unwrap();
        assert_eq!(cache.get(&key()), None, "a link");
    }

    #[test]
    fn a_foreign_file_in_our_directory_is_not_believed() {
        if !rustix::process::geteuid().is_root() {
            return skip("needs root to give a file away");
        }
        let place = TempDir::new("given");
        let cache = place.cache();
        cache.put(&key(), &report()).unwrap();
        std::os::unix::fs::chown(place.file(), Some(65534), None).unwrap();
        assert_eq!(cache.get(&key()), None);
        cache.put(&key(), &report()).unwrap();
        assert_eq!(cache.get(&key()), Some(report()), "it is replaced");
    }
}
