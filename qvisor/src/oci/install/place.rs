//! Where the binary lies that engines are told of.
//!
//! They run it as root for as long as they have it in their configuration. So it must lie where it
//! stays, and where only root can put another.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::containerd::SHIM;
use super::file::copy_program;
use crate::oci::info::print;

/// The programs and their place.
#[derive(Debug)]
pub struct Place {
    /// Where this program lies.
    from: PathBuf,
    /// The directory that they are copied to.
    to: Option<PathBuf>,
}

impl Place {
    /// `prefix`/bin, or where this program lies; that it stays there is checked if `stays`.
    ///
    /// # Errors
    /// When it does not.
    pub fn new(prefix: Option<&Path>, stays: bool) -> Result<Place> {
        let from = std::env::current_exe().context("finding this program")?;
        let to = match prefix {
            Some(prefix) if prefix.is_absolute() => Some(prefix.join("bin")),
            Some(prefix) => bail!("--prefix {}: use an absolute path", prefix.display()),
            None => None,
        };
        if to.is_none()
            && stays
            && let Some(why) = passing(&from)
        {
            bail!(
                "{} {why}: give --prefix /usr/local, and it is copied to /usr/local/bin",
                from.display()
            );
        }
        Ok(Place { from, to })
    }

    /// The binary's path.
    pub fn binary(&self) -> PathBuf {
        self.to.as_ref().map_or_else(|| self.from.clone(), |dir| dir.join("quark"))
    }

    /// True if containerd will find the shim, which lies beside this program and is copied too.
    pub fn has_shim(&self) -> bool {
        self.is_in_path() && self.from.with_file_name(SHIM).is_file()
    }

    /// True if the programs are copied to where containerd looks for shims.
    fn is_in_path(&self) -> bool {
        self.to.as_deref().is_some_and(|dir| {
            ["/usr/local/bin", "/usr/bin"].iter().any(|usual| dir == Path::new(usual))
        })
    }

    /// Copies the programs, if they go elsewhere.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn fill(&self, dry_run: bool) -> Result<()> {
        for (from, to) in self.pairs() {
            if !from.is_file() || fs::canonicalize(&to).is_ok_and(|there| there == from) {
                continue;
            }
            if fs::read(&to).ok().is_some_and(|there| fs::read(&from).is_ok_and(|f| f == there)) {
                continue;
            }
            if !dry_run {
                copy_program(&from, &to)?;
            }
            print(&format!("{}copied {} to {}\n", would(dry_run), from.display(), to.display()))?;
        }
        Ok(())
    }

    /// True if a configuration with this text has a runtime that is this binary or its shim, as far
    /// as one can tell: a comment that names them counts too.
    pub fn is_named_in(&self, text: &str) -> bool {
        let binary = self.binary();
        let has_shim = self.is_in_path() && text.contains("io.containerd.quark.v1");
        has_shim || binary.to_str().is_some_and(|path| text.contains(&format!("\"{path}\"")))
    }

    /// Removes the programs from where they were copied to.
    ///
    /// # Errors
    /// When they cannot be removed.
    pub fn empty(&self, dry_run: bool) -> Result<()> {
        for (_, to) in self.pairs() {
            if !to.is_file() {
                continue;
            }
            if !dry_run {
                fs::remove_file(&to).with_context(|| format!("removing {}", to.display()))?;
            }
            print(&format!("{}removed {}\n", would(dry_run), to.display()))?;
        }
        Ok(())
    }

    fn pairs(&self) -> Vec<(PathBuf, PathBuf)> {
        let Some(dir) = &self.to else { return Vec::new() };
        vec![
            (self.from.clone(), dir.join("quark")),
            (self.from.with_file_name(SHIM), dir.join(SHIM)),
        ]
    }
}

fn would(dry_run: bool) -> &'static str {
    if dry_run { "to be " } else { "" }
}

/// Why a program at `path` is not to be relied on; `None` if it is.
fn passing(path: &Path) -> Option<String> {
    const VOLATILE: [&str; 5] = ["/tmp", "/var/tmp", "/run", "/dev", "/proc"];
    if VOLATILE.iter().any(|dir| path.starts_with(dir)) {
        return Some("lies in a directory that does not last".to_owned());
    }
    // What is marked by the first (the Cache Directory Tagging Specification) may be removed at any
    // time; cargo does not mark a directory that was there, but leaves the second.
    let is_of_builds =
        |dir: &Path| ["CACHEDIR.TAG", ".cargo-lock"].iter().any(|mark| dir.join(mark).exists());
    if path.ancestors().any(is_of_builds) {
        return Some("lies in a directory of builds".to_owned());
    }
    for part in path.ancestors() {
        let Ok(metadata) = fs::metadata(part) else {
            return Some("is gone from its directory".to_owned());
        };
        if metadata.uid() != 0 || metadata.mode() & 0o022 != 0 {
            return Some(format!("can be replaced by others than root ({})", part.display()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_must_last_and_be_roots() {
        for path in ["/tmp/x/quark", "/run/quark", "/usr/bin/quark (deleted)"] {
            assert!(passing(Path::new(path)).is_some(), "{path}");
        }
        assert_eq!(passing(Path::new("/usr/bin/env")), None);
        let dir = std::env::current_exe().unwrap();
        assert!(passing(&dir).is_some_and(|why| why.contains("builds")), "{}", dir.display());
    }
}
