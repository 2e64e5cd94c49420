//! A configuration file that belongs to somebody else: read with care, replaced as a whole.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// No such file is longer, in bytes.
const LONGEST: u64 = 1 << 20;
/// The mode of one that is made.
const MODE: u32 = 0o644;

/// A file as it was found.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    /// `None`: there is none.
    text: Option<String>,
}

impl ConfigFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it is no plain file of UTF-8 text that may be changed.
    pub fn read(path: &Path) -> Result<ConfigFile> {
        let path = std::path::absolute(path).context("finding the configuration file")?;
        let shown = path.display();
        let metadata = match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Ok(ConfigFile { path, text: None });
            }
            other => other.with_context(|| shown.to_string())?,
        };
        if metadata.is_symlink() {
            let to = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
            bail!(
                "{shown} is a symbolic link: whoever made it may put it back; name the file with \
                 --config {}",
                to.display()
            );
        }
        if !metadata.is_file() {
            bail!("{shown} is not a file: name another with --config");
        }
        if metadata.mode() & 0o200 == 0 {
            let mode = metadata.mode() & 0o7777;
            bail!("{shown} is read-only (mode {mode:04o}): chmod u+w it, or edit it yourself");
        }
        let text = text_of(&path)?;
        Ok(ConfigFile { path, text: Some(text) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was in it.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Where it is kept as it was before the runtime `name` was in it.
    pub fn copy_path(&self, name: &str) -> PathBuf {
        let mut path = OsString::from(&self.path);
        path.push(format!(".before-{name}"));
        path.into()
    }

    /// What it was before the runtime `name` was in it, if that was kept.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn copy(&self, name: &str) -> Result<Option<String>> {
        let path = self.copy_path(name);
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_file() => text_of(&path).map(Some),
            Ok(_) => bail!("{} is not a file: remove it", path.display()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).with_context(|| path.display().to_string()),
        }
    }

    /// Keeps what is in it now as what was before the runtime `name`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&self, name: &str) -> Result<()> {
        let copy = self.copy_path(name);
        match &self.text {
            Some(text) => write(&copy, text, &self.path),
            // One that was left by somebody else tells nothing about a file that is not there.
            None => remove(&copy),
        }
    }

    /// Forgets what was before the runtime `name`.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn forget(&self, name: &str) -> Result<()> {
        remove(&self.copy_path(name))
    }

    /// Writes `text` in its place; without any, removes it.
    ///
    /// # Errors
    /// When somebody else has changed it meanwhile, or it cannot be written: then it is as it was.
    pub fn replace(&self, text: Option<&str>) -> Result<()> {
        if ConfigFile::read(&self.path)?.text != self.text {
            bail!("{} was changed meanwhile: try again", self.path.display());
        }
        match text {
            Some(text) => write(&self.path, text, &self.path),
            None => remove(&self.path),
        }
    }
}

fn text_of(path: &Path) -> Result<String> {
    let mut text = String::new();
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    file.and_then(|file| file.take(LONGEST + 1).read_to_string(&mut text))
        .with_context(|| format!("reading {}", path.display()))?;
    if text.len() as u64 > LONGEST {
        bail!("{} is longer than {LONGEST} bytes", path.display());
    }
    Ok(text)
}

/// Writes a whole file or leaves what is there, with the mode and owner of the one at `like`.
fn write(path: &Path, text: &str, like: &Path) -> Result<()> {
    let mut new = OsString::from(path);
    new.push(format!(".quark-{}", std::process::id()));
    let new = PathBuf::from(new);
    let result = fill(&new, text, like).and_then(|()| fs::rename(&new, path));
    if result.is_err() {
        fs::remove_file(&new).ok();
    }
    result.with_context(|| format!("writing {}", path.display()))
}

fn fill(new: &Path, text: &str, like: &Path) -> io::Result<()> {
    if let Some(dir) = new.parent() {
        fs::create_dir_all(dir)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    file.write_all(text.as_bytes())?;
    let mode = match fs::symlink_metadata(like) {
        Ok(metadata) => {
            chown(new, Some(metadata.uid()), Some(metadata.gid()))?;
            metadata.mode() & 0o7777
        }
        Err(_) => MODE,
    };
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.sync_all()
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Copies a program, replacing what is there as a whole; what runs goes on with the old one.
///
/// # Errors
/// When it cannot be written.
pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    let mut new = OsString::from(to);
    new.push(format!(".quark-{}", std::process::id()));
    let new = PathBuf::from(new);
    let copy = || -> io::Result<()> {
        if let Some(dir) = to.parent() {
            fs::create_dir_all(dir)?;
        }
        let mut source = File::open(from)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o700).open(&new)?;
        io::copy(&mut source, &mut file)?;
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        file.sync_all()?;
        fs::rename(&new, to)
    };
    let result = copy();
    if result.is_err() {
        fs::remove_file(&new).ok();
    }
    result.with_context(|| format!("copying {} to {}", from.display(), to.display()))
}
