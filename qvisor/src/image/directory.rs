//! The directory of an image: writing one, and reading it. Its manifest is written last, so what
//! has none is no image, and read first.

use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use qlib::PAGE_SIZE;
use rustix::fs::{AtFlags, CWD};
use twox_hash::XxHash3_64;

use super::{FORMAT, Manifest, build};
use crate::sandbox::image::each_page;
use crate::store::Stored;
use crate::sys::procfs;

const MANIFEST: &str = "manifest.json";
/// Guest memory, the working set, and the checksums of that and of the swapped pages.
const FILES: [&str; 3] = ["ram", "reap", "sums"];
/// Swapped pages, with the number of the layer.
const SWAP: &str = "swap.";
/// An image that would have more layers has one.
const MAX_LAYERS: usize = 16;
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
    /// Those of its store that hold slots: its layers, and one for other slots if there is one.
    pub swap: Vec<File>,
    /// The working set.
    pub reap: Option<File>,
}

/// An image that has been read and checked, but for the pages of its programs, which are checked
/// as they come.
#[derive(Debug)]
pub struct Opened {
    /// What it says of itself.
    pub manifest: Manifest,
    /// Guest memory.
    pub ram: File,
    /// What is swapped out, by layer.
    pub swap: Vec<File>,
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

    /// Gives a file that has no name, or others, this one. EXDEV where it lies in another file
    /// system, ENOENT for one that has had a name and has none any more.
    fn link(&mut self, file: &File, name: &str) -> rustix::io::Result<()> {
        let path = self.dir.join(name);
        let from = listed("fd", file);
        rustix::fs::linkat(CWD, from, CWD, &path, AtFlags::SYMLINK_FOLLOW)?;
        self.files.push(path);
        Ok(())
    }

    /// Writes the slots, all of which are below `end`, and says in `stored` where they are then;
    /// true if it is the file system where they were.
    fn write_swap(&mut self, stored: &mut Stored, end: u64, sources: &Sources) -> Result<bool> {
        let mut ends = stored.layers.clone();
        let last = ends.last().copied().unwrap_or(0);
        // The file for other slots may have none.
        let is_used = stored.own && end > last;
        ends.extend(is_used.then_some(end));
        let files = &sources.swap[..ends.len()];
        stored.own = false;
        if ends.is_empty() {
            return Ok(true);
        }
        let linked =
            (files.iter().zip(0..)).try_for_each(|(file, number)| self.link(file, &layer(number)));
        if ends.len() <= MAX_LAYERS && linked.is_ok() {
            stored.layers = ends;
            return Ok(true);
        }
        for path in self.files.extract_if(.., |path| is_layer(path)) {
            fs::remove_file(path)?;
        }
        let to = self.file(&layer(0))?;
        for (first, sums) in &stored.swap {
            let (mut at, end) = (*first, first + sums.len() as u64);
            for (file, layer_end) in files.iter().zip(&ends) {
                let to_here = end.min(*layer_end);
                if at < to_here {
                    copy(file, &to, at * PAGE_SIZE, (to_here - at) * PAGE_SIZE)?;
                    at = to_here;
                }
            }
        }
        let last = ends.pop().unwrap_or(end);
        stored.layers = vec![last];
        Ok(is_near(&files[0], &to)?)
    }

    /// Writes the working set, and says whether that is the file system where it was.
    fn write_reap(&mut self, stored: &Stored, name: &str, sources: &Sources) -> Result<bool> {
        let (Some(sums), Some(file)) = (&stored.reap, &sources.reap) else {
            self.file(name)?;
            return Ok(true);
        };
        if self.link(file, name).is_ok() {
            return Ok(true);
        }
        let to = self.file(name)?;
        copy(file, &to, 0, sums.len() as u64 * PAGE_SIZE)?;
        Ok(is_near(file, &to)?)
    }
}

fn is_layer(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(SWAP))
}

/// True if two files lie in one file system.
fn is_near(one: &File, other: &File) -> io::Result<bool> {
    Ok(one.metadata()?.dev() == other.metadata()?.dev())
}

/// Files of an image that is being written with which the sandbox can go on as if they were its
/// own.
#[derive(Debug)]
pub struct Shared {
    /// Slots, and the slot after the last of each file.
    pub layers: Vec<(u64, File)>,
    /// The working set.
    pub reap: Option<File>,
}

/// Writes an image to `dir`, which is made if it does not exist and must have no image yet.
/// `adopt` has the sandbox go on with the files of the image: where they lie in the file system of
/// its own they are the same, and not written twice.
///
/// # Errors
/// With nothing left of it.
pub fn write<'a>(
    dir: &'a Path,
    mut manifest: Manifest,
    sources: &Sources,
    adopt: impl FnOnce(Shared) -> Result<()>,
) -> Result<Written<'a>> {
    let made = fs::DirBuilder::new().mode(0o700).create(dir);
    let is_new = made.is_ok();
    match made {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(e).with_context(|| format!("making the directory {}", dir.display()));
        }
        _ => {}
    }
    let is_there = |name: &str| dir.join(name).symlink_metadata().is_ok();
    let first_layer = layer(0);
    if is_there(MANIFEST) || FILES.into_iter().chain([&*first_layer]).any(is_there) {
        let what = if is_there(MANIFEST) { "an image" } else { "a part of an image" };
        let dir = dir.display();
        bail!("there is {what} in {dir} already: remove it, or name another directory");
    }
    let end = manifest.parts.store.end().context("the slots of its store are in no order")?;
    let mut draft = Draft { dir, is_new, files: Vec::new(), is_done: false };
    let writing = || format!("writing the image to {}", dir.display());
    let [ram, reap, sums] = FILES;
    manifest.ram_sum = copy_ram(&sources.ram, &draft.file(ram)?).with_context(writing)?;
    let mut stored = std::mem::take(&mut manifest.parts.store);
    let is_near = draft.write_swap(&mut stored, end, sources).with_context(writing)?
        & draft.write_reap(&stored, reap, sources).with_context(writing)?;
    if is_near {
        let file = |name: &str| open(&dir.join(name));
        let layers = stored.layers.iter().zip(0..);
        let layers = layers.map(|(end, number)| Ok((*end, file(&layer(number))?)));
        let reap = stored.reap.is_some().then(|| file(reap)).transpose()?;
        adopt(Shared { layers: layers.collect::<Result<_>>()?, reap })?;
    }
    let bytes = postcard::to_allocvec(&stored)?;
    draft.file(sums)?.write_all_at(&bytes, 0).with_context(writing)?;
    manifest.sums_sum = XxHash3_64::oneshot(&bytes);
    manifest.layers = stored.layers.len();
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

/// The name of a layer's file.
fn layer(number: usize) -> String {
    format!("{SWAP}{number}")
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

/// Reads what the image in `dir` says of itself, but for what its store holds, and checks that it
/// can be restored by this build on this host.
///
/// # Errors
/// With what is wrong with it.
pub fn manifest(dir: &Path) -> Result<Manifest> {
    let manifest = dir.join(MANIFEST);
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
    let manifest: Manifest = serde_json::from_slice(&text).with_context(damaged)?;
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
    ensure!(manifest.layers <= MAX_LAYERS, damaged());
    Ok(manifest)
}

/// Reads the image in `dir` and checks all of it, but for the pages of its programs.
///
/// # Errors
/// As [`manifest`].
pub fn read(dir: &Path) -> Result<Opened> {
    let mut manifest = manifest(dir)?;
    let damaged = || format!("the image in {} is damaged", dir.display());
    let file = |file: &str| open(&dir.join(file)).with_context(|| format!("{}: {file}", damaged()));
    let [ram, reap, sums] = FILES;
    let (ram, reap, sums) = (file(ram)?, file(reap)?, file(sums)?);
    let swap: Vec<File> =
        (0..manifest.layers).map(|number| file(&layer(number))).collect::<Result<_>>()?;
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
    check_store(&manifest.parts.store, &swap, &reap).with_context(damaged)?;
    Ok(Opened { manifest, ram, swap, reap })
}

/// Checks that the files of a store are as long as what is said to be in them.
fn check_store(stored: &Stored, swap: &[File], reap: &File) -> Result<()> {
    let has_pages = |file: &File, pages: u64| -> Result<bool> {
        Ok(file.metadata()?.len() / PAGE_SIZE >= pages)
    };
    let last_used = |end: u64| {
        let runs = stored.swap.iter().take_while(|(first, _)| *first < end);
        runs.last().map_or(0, |(first, sums)| end.min(first + sums.len() as u64))
    };
    stored.end().context("its slots are in no order")?;
    ensure!(swap.len() == stored.layers.len(), "it has not as many layers as it says");
    let mut start = 0;
    for (file, end) in swap.iter().zip(&stored.layers) {
        let used = last_used(*end);
        ensure!(used <= start || has_pages(file, used)?, "swap is cut short");
        start = *end;
    }
    let reaped = stored.reap.as_ref().map_or(0, Vec::len) as u64;
    ensure!(has_pages(reap, reaped)?, "reap is cut short");
    Ok(())
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
    let file = open(&dir.join(MANIFEST))?;
    let made = file.metadata()?.modified()?;
    let brief: Brief = serde_json::from_reader(io::BufReader::new(file.take(MAX_MANIFEST)))?;
    Ok((made, brief.container.parent))
}

/// Removes an image, its manifest first. Containers that were made of it keep what they need.
///
/// # Errors
/// Those of the file system.
pub fn remove(dir: &Path) -> io::Result<()> {
    fs::remove_file(dir.join(MANIFEST))?;
    fs::remove_dir_all(dir)
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
