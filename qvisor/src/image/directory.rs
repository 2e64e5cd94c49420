//! What lies in the directory of an image, and what can be done to it as a whole.

use std::collections::HashSet;
use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use rustix::fs::{CWD, Mode, OFlags};
use twox_hash::XxHash3_64;

use super::files::Files;
use crate::sys::{self, procfs};

/// What an image says of itself. It is written last, so what has none is no image.
pub(super) const MANIFEST: &str = "manifest.json";
/// Guest memory, the working set, and the checksums of that and of the swapped pages.
pub(super) const FILES: [&str; 3] = ["ram", "reap", "sums"];
/// Swapped pages, with the number of the layer.
const SWAP: &str = "swap.";
/// An image that would have more layers has one.
pub(super) const MAX_LAYERS: usize = 16;
/// The longest manifest that is read, in bytes.
pub(super) const MAX_MANIFEST: u64 = 64 << 20;
/// Bytes that are moved at once.
const BATCH_BYTES: u64 = 1 << 20;

/// The name of a layer's file.
pub(super) fn layer(number: usize) -> String {
    format!("{SWAP}{number}")
}

pub(super) fn is_layer(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(SWAP))
}

/// Notes a page in the checksum of guest memory.
pub(super) fn note(sum: &mut XxHash3_64, offset: u64, page: &[u8]) {
    sum.write_u64(offset);
    sum.write(page);
}

/// The directory.
pub(super) fn at(dir: &Path) -> io::Result<OwnedFd> {
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, dir, how, Mode::empty())?)
}

/// A regular file, to read it; nothing that waits for somebody.
pub(super) fn open(dir: BorrowedFd<'_>, name: &str) -> Result<File> {
    let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(dir, name, how, Mode::empty())?);
    ensure!(file.metadata()?.is_file(), "{name} is no regular file");
    Ok(file)
}

/// When the image in `dir` was made, and the snapshot before it.
///
/// # Errors
/// When there is none.
pub fn taken(dir: &Path) -> Result<(SystemTime, Option<String>)> {
    #[derive(serde::Deserialize)]
    struct Brief {
        container: Whose,
    }
    #[derive(serde::Deserialize)]
    struct Whose {
        parent: Option<String>,
    }
    let file = open(at(dir)?.as_fd(), MANIFEST)?;
    let made = file.metadata()?.modified()?;
    let brief: Brief = serde_json::from_reader(io::BufReader::new(file.take(MAX_MANIFEST)))?;
    Ok((made, brief.container.parent))
}

/// Disk space of the files in a directory that were not `seen` in another.
pub fn disk_bytes(dir: &Path, seen: &mut HashSet<u64>) -> u64 {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let files = files.filter_map(|item| item.metadata().ok());
    files.filter(|file| seen.insert(file.ino())).map(|file| file.blocks() * 512).sum()
}

/// Removes an image, its manifest first. Containers that were made of it keep what they need.
///
/// # Errors
/// Those of the file system.
pub fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(MANIFEST)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => fs::remove_dir_all(dir),
    }
}

/// True if there is an image.
pub fn is_image(dir: &Path) -> bool {
    dir.join(MANIFEST).exists()
}

/// Has an image in `to` too, whose manifest comes last: the same files, or copies where they cannot
/// have two names.
///
/// # Errors
/// Those of the file system; what has been made is left.
pub fn copy(from: &Files, to: &Path) -> Result<()> {
    for (file, name) in from.each() {
        let (path, old) = (to.join(&name), from.dir.join(&name));
        if fs::hard_link(old, &path).is_ok() {
            continue;
        }
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let copied = options.open(&path).and_then(|new| copy_file(file, &new));
        copied.with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Copies what is not a hole.
fn copy_file(from: &File, to: &File) -> io::Result<()> {
    to.set_len(from.metadata()?.len())?;
    let mut at = 0;
    while let Some(data) = sys::seek_data(from.as_fd(), at)? {
        at = sys::seek_hole(from.as_fd(), data)?;
        copy_part(from, to, data, at - data)?;
    }
    Ok(())
}

/// Copies `len` bytes at `offset` to the same place of another file, in whatever way the host does
/// that fastest.
pub(super) fn copy_part(from: &File, to: &File, offset: u64, len: u64) -> io::Result<()> {
    let end = offset + len;
    let mut at = offset;
    while at < end {
        let (mut here, mut there) = (at, at);
        let most = usize::try_from(end - at).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(from, Some(&mut here), to, Some(&mut there), most) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => at += n as u64,
            Err(rustix::io::Errno::NOSPC) => return Err(rustix::io::Errno::NOSPC.into()),
            // Not between these two.
            Err(_) => break,
        }
    }
    let mut bytes = vec![0; BATCH_BYTES.min(end - at) as usize];
    while at < end {
        let part = &mut bytes[..BATCH_BYTES.min(end - at) as usize];
        from.read_exact_at(part, at)?;
        to.write_all_at(part, at)?;
        at += part.len() as u64;
    }
    Ok(())
}

/// What tells this boot of this host from others.
///
/// # Errors
/// When the host does not tell.
pub fn boot_id() -> Result<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    Ok(id.context("reading /proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Where a descriptor of this process is listed.
pub(super) fn listed(kind: &str, fd: impl AsFd) -> PathBuf {
    procfs::path(&format!("self/{kind}/{}", fd.as_fd().as_raw_fd()))
}
