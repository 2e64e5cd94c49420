//! What lies in the directory of an image, and what can be done to it as a whole.

use std::collections::HashSet;
use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use qlib::PAGE_SIZE;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use twox_hash::XxHash3_64;

use super::files::Files;
use super::tree;
use crate::sys::{self, procfs};

/// What an image says of itself. It is written last, so what has none is no image.
pub(super) const MANIFEST: &str = "manifest.json";
/// Guest memory, the working set, and the checksums of that and of the swapped pages.
pub(super) const FILES: [&str; 3] = ["ram", "reap", "sums"];
/// The directory of copied directories, by number.
pub(super) const TREES: &str = "rw";
/// All of a packed image.
pub(super) const PACKED: &str = "packed";
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

/// Notes pages in a row in the checksum of guest memory.
pub(super) fn note_each(sum: &mut XxHash3_64, offset: u64, pages: &[u8]) {
    let offsets = (offset..).step_by(PAGE_SIZE as usize);
    for (page, offset) in pages.chunks(PAGE_SIZE as usize).zip(offsets) {
        sum.write_u64(offset);
        sum.write(page);
    }
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
    let mut dirs = vec![dir.to_owned()];
    let mut bytes = 0;
    while let Some(dir) = dirs.pop() {
        for item in fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(file) = item.metadata() else { continue };
            if file.is_dir() {
                dirs.push(item.path());
            } else if seen.insert(file.ino()) {
                bytes += file.blocks() * 512;
            }
        }
    }
    bytes
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

/// Removes its copies of directories: no container can be made of it any more that has some.
///
/// # Errors
/// Those of the file system.
pub fn forget_trees(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir.join(TREES)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Checks that no image has been made in `dir`, or begun.
///
/// # Errors
/// When one has.
pub(super) fn check_free(dir: &Path) -> Result<()> {
    let is_there = |name: &str| dir.join(name).symlink_metadata().is_ok();
    let is_whole = is_image(dir);
    let (first_layer, draft) = (layer(0), draft(PACKED));
    if is_whole || FILES.into_iter().chain([&*first_layer, TREES, &*draft]).any(is_there) {
        let what = if is_whole { "an image" } else { "a part of an image" };
        let dir = dir.display();
        bail!("there is {what} in {dir} already: remove it, or name another directory");
    }
    Ok(())
}

/// What a file is called until it is whole.
pub(super) fn draft(name: &str) -> String {
    format!(".{name}")
}

/// Makes the directory of an image, if there is none; whether there was none.
///
/// # Errors
/// With its path.
pub(super) fn make_new(dir: &Path) -> Result<bool> {
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        made => {
            made.map(|()| true).with_context(|| format!("making the directory {}", dir.display()))
        }
    }
}

/// True if there is an image.
pub fn is_image(dir: &Path) -> bool {
    [MANIFEST, PACKED].into_iter().any(|name| dir.join(name).symlink_metadata().is_ok())
}

/// Has an image in `to` too, whose manifest comes last: the same files, or copies where they cannot
/// have two names.
///
/// # Errors
/// Those of the file system; what has been made is left.
pub fn copy(from: &Files, to: &Path) -> Result<()> {
    if let Some(trees) = &from.trees {
        let path = to.join(TREES);
        tree::copy(trees.as_fd(), tree::make(&path)?.as_fd())
            .with_context(|| format!("writing {}", path.display()))?;
    }
    for (file, name) in from.each() {
        let path = to.join(&name);
        if link(file, &path).is_ok() {
            continue;
        }
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let copied = options.open(&path).and_then(|new| copy_file(file, &new));
        copied.with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Gives a file that has no name, or others, this one. EXDEV where it lies in another file system,
/// ENOENT for one that has had a name and has none any more.
pub(super) fn link(file: &File, path: &Path) -> rustix::io::Result<()> {
    rustix::fs::linkat(CWD, listed("fd", file), CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// Copies what is not a hole.
fn copy_file(from: &File, to: &File) -> io::Result<()> {
    to.set_len(from.metadata()?.len())?;
    for extent in sys::extents(from.as_fd()) {
        let (start, end) = extent?;
        copy_part(from, to, start, end - start)?;
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

/// Where a descriptor of this process is listed.
pub(super) fn listed(kind: &str, fd: impl AsFd) -> PathBuf {
    procfs::path(&format!("self/{kind}/{}", fd.as_fd().as_raw_fd()))
}
