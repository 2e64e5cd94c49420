//! The directory of an image: writing one, and reading it. Its manifest is written last, so what
//! has none is no image, and read first.

use std::fs::{self, File};
use std::hash::Hasher;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use qlib::PAGE_SIZE;
use twox_hash::XxHash3_64;

use super::{FORMAT, Manifest, build};
use crate::sandbox::image::each_page;
use crate::store::Stored;
use crate::sys::procfs;

const MANIFEST: &str = "manifest.json";
/// All files of an image but for the manifest: guest memory, swapped pages, the working set, and
/// the checksums of both.
const FILES: [&str; 4] = ["ram", "swap", "reap", "sums"];
/// The longest manifest that is read, in bytes.
const MAX_MANIFEST: u64 = 64 << 20;
/// The most checksums that are read, in bytes: those of a terabyte.
const MAX_SUMS: u64 = 1 << 30;
/// Bytes that are moved at once.
const BATCH_BYTES: u64 = 1 << 20;

/// The files of a sandbox that sleeps.
#[derive(Debug)]
pub struct Sources {
    /// Guest memory.
    pub ram: File,
    /// Those of its store, as [`Stored::files`] says.
    pub store: [Option<File>; 3],
}

/// An image that has been read and checked, but for the pages of its programs, which are checked
/// as they come.
#[derive(Debug)]
pub struct Opened {
    /// What it says of itself.
    pub manifest: Manifest,
    /// Guest memory.
    pub ram: File,
    /// What is swapped out.
    pub swap: File,
    /// The working set.
    pub reap: File,
}

/// What is written so far; taken away again if it is not finished.
struct Draft<'a> {
    dir: &'a Path,
    is_new: bool,
    files: Vec<PathBuf>,
    is_done: bool,
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        for path in &self.files {
            fs::remove_file(path).ok();
        }
        if self.is_new {
            fs::remove_dir(self.dir).ok();
        }
    }
}

impl Draft<'_> {
    fn file(&mut self, name: &str) -> Result<File> {
        let path = self.dir.join(name);
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&path).with_context(|| format!("making {}", path.display()))?;
        self.files.push(path);
        Ok(file)
    }
}

/// Writes an image to `dir`, which is made if it does not exist and must have no image yet.
///
/// # Errors
/// With nothing left of it.
pub fn write<'a>(dir: &'a Path, mut manifest: Manifest, sources: &Sources) -> Result<Written<'a>> {
    let made = fs::DirBuilder::new().mode(0o700).create(dir);
    let is_new = made.is_ok();
    match made {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(e).with_context(|| format!("making the directory {}", dir.display()));
        }
        _ => {}
    }
    let is_there = |name: &str| dir.join(name).symlink_metadata().is_ok();
    if is_there(MANIFEST) || FILES.into_iter().any(is_there) {
        let what = if is_there(MANIFEST) { "an image" } else { "a part of an image" };
        let dir = dir.display();
        bail!("there is {what} in {dir} already: remove it, or name another directory");
    }
    ensure!(manifest.parts.store.end().is_some(), "the slots of its store are in no order");
    let mut draft = Draft { dir, is_new, files: Vec::new(), is_done: false };
    let writing = || format!("writing the image to {}", dir.display());
    manifest.ram_sum = copy_ram(&sources.ram, &draft.file(FILES[0])?).with_context(writing)?;
    let stored = std::mem::take(&mut manifest.parts.store);
    let (swap, reap) = (draft.file(FILES[1])?, draft.file(FILES[2])?);
    copy_store(&stored, sources, &swap, &reap).with_context(writing)?;
    let sums = postcard::to_allocvec(&stored)?;
    draft.file(FILES[3])?.write_all_at(&sums, 0).with_context(writing)?;
    manifest.sums_sum = XxHash3_64::oneshot(&sums);
    let text = serde_json::to_vec_pretty(&manifest)?;
    let beside = format!(".{MANIFEST}");
    draft
        .file(&beside)
        .and_then(|file| Ok(file.write_all_at(&text, 0)?))
        .and_then(|()| Ok(fs::rename(dir.join(&beside), dir.join(MANIFEST))?))
        .with_context(writing)?;
    draft.files.push(dir.join(MANIFEST));
    draft.is_done = true;
    Ok(Written(draft))
}

/// An image that was written.
pub struct Written<'a>(Draft<'a>);

impl Written<'_> {
    /// Takes it away again.
    pub fn remove(mut self) {
        self.0.is_done = false;
    }
}

/// Copies the pages of guest memory that are not empty, each to its place; their checksum.
fn copy_ram(from: &File, to: &File) -> io::Result<u64> {
    let mut sum = XxHash3_64::default();
    each_page(from, |offset, page| {
        note(&mut sum, offset, page);
        to.write_all_at(page, offset)
    })?;
    Ok(sum.finish())
}

fn note(sum: &mut XxHash3_64, offset: u64, page: &[u8]) {
    sum.write_u64(offset);
    sum.write(page);
}

/// Copies the pages of a store, each to its slot, and the working set.
fn copy_store(stored: &Stored, sources: &Sources, swap: &File, reap: &File) -> io::Result<()> {
    let [base, own, working_set] = &sources.store;
    let from = |file: &Option<File>, to: &File, start: u64, end: u64| match file {
        Some(file) if start < end => copy(file, to, start * PAGE_SIZE, (end - start) * PAGE_SIZE),
        None if start < end => Err(io::ErrorKind::NotFound.into()),
        _ => Ok(()),
    };
    for (first, sums) in &stored.swap {
        let end = first + sums.len() as u64;
        from(base, swap, *first, end.min(stored.floor))?;
        from(own, swap, (*first).max(stored.floor), end)?;
    }
    from(working_set, reap, 0, stored.reap.len() as u64)
}

/// Copies `len` bytes at `offset` to the same place of another file, in whatever way the host does
/// that fastest.
fn copy(from: &File, to: &File, offset: u64, len: u64) -> io::Result<()> {
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

/// Reads the image in `dir`, and checks that it can be restored by this build on this host.
///
/// # Errors
/// With what is wrong with it.
pub fn read(dir: &Path) -> Result<Opened> {
    let name = |name: &str| dir.join(name);
    let manifest = name(MANIFEST);
    let file =
        open(&manifest).with_context(|| format!("there is no image in {}", dir.display()))?;
    let long = file.metadata()?.len();
    ensure!(long <= MAX_MANIFEST, "{} is too long for a manifest", manifest.display());
    let mut text = vec![0; long as usize];
    file.read_exact_at(&mut text, 0).with_context(|| format!("reading {}", manifest.display()))?;
    let damaged = || format!("the image in {} is damaged", dir.display());
    // A later form may have other fields: its number comes first.
    let form: Form = serde_json::from_slice(&text).with_context(damaged)?;
    if form.format != FORMAT {
        bail!(
            "the image in {} is of format {}, and this version of quark reads format {FORMAT}",
            dir.display(),
            form.format
        );
    }
    let mut manifest: Manifest = serde_json::from_slice(&text).with_context(damaged)?;
    if manifest.kernel != build() {
        bail!(
            "the image in {} was made by another build of quark: make a new one with this",
            dir.display()
        );
    }
    if manifest.boot_id != boot_id()? {
        bail!(
            "the image in {} was made on another host, or before this one was booted: images hold \
             until the next boot",
            dir.display()
        );
    }
    let files: Vec<File> = FILES
        .iter()
        .map(|file| open(&name(file)).with_context(|| format!("{}: {file}", damaged())))
        .collect::<Result<_>>()?;
    let Ok([ram, swap, reap, sums]) = <[File; 4]>::try_from(files) else { bail!(damaged()) };
    let long = sums.metadata()?.len();
    ensure!(long <= MAX_SUMS, "{}: its checksums are too long", damaged());
    let mut bytes = vec![0; long as usize];
    sums.read_exact_at(&mut bytes, 0).with_context(damaged)?;
    ensure!(
        XxHash3_64::oneshot(&bytes) == manifest.sums_sum,
        "{}: sums does not check out",
        damaged()
    );
    manifest.parts.store = postcard::from_bytes(&bytes).with_context(damaged)?;
    let mut sum = XxHash3_64::default();
    each_page(&ram, |offset, page| {
        note(&mut sum, offset, page);
        Ok(())
    })
    .with_context(damaged)?;
    ensure!(sum.finish() == manifest.ram_sum, "{}: ram does not check out", damaged());
    let stored = &manifest.parts.store;
    let pages = stored.end().with_context(damaged)?;
    for (file, pages) in [(&swap, pages), (&reap, stored.reap.len() as u64)] {
        ensure!(
            file.metadata()?.len() / PAGE_SIZE >= pages,
            "{}: swap or reap is cut short",
            damaged()
        );
    }
    Ok(Opened { manifest, ram, swap, reap })
}

#[derive(serde::Deserialize)]
struct Form {
    format: u32,
}

/// A regular file, to read it; nothing that waits for somebody.
fn open(path: &Path) -> Result<File> {
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)?;
    ensure!(file.metadata()?.is_file(), "{} is no regular file", path.display());
    Ok(file)
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
