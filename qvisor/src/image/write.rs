//! Writing an image: the files of a store are given names in it, or copied, and the manifest comes
//! last.

use std::fs::{self, File};
use std::hash::Hasher;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use qlib::PAGE_SIZE;
use rustix::fs::{AtFlags, CWD};
use twox_hash::XxHash3_64;

use super::Manifest;
use super::directory::{
    FILES, MANIFEST, MAX_LAYERS, at, copy_part, is_layer, layer, listed, note, open,
};
use crate::sandbox::image::each_page;
use crate::store::Stored;

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
        let mut each = files.iter().zip(0..);
        if ends.len() <= MAX_LAYERS
            && each.all(|(file, number)| self.link(file, &layer(number)).is_ok())
        {
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
                    copy_part(file, &to, at * PAGE_SIZE, (to_here - at) * PAGE_SIZE)?;
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
        copy_part(file, &to, 0, sums.len() as u64 * PAGE_SIZE)?;
        Ok(is_near(file, &to)?)
    }
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
        let at = at(dir).with_context(writing)?;
        let file = |name: &str| open(at.as_fd(), name);
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
