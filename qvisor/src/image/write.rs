//! Writing an image: the files of a store are given names in it, or copied, and the manifest comes
//! last.

use std::fs::{self, File};
use std::hash::Hasher;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use qlib::PAGE_SIZE;
use twox_hash::XxHash3_64;

use super::Manifest;
use super::directory::{
    FILES, MANIFEST, MAX_LAYERS, TREES, at, check_free, copy_part, is_layer, layer, link, make_new,
    note_each, open,
};
use super::{directory, tree};
use crate::sandbox::image::each_run;
use crate::store::Stored;
use crate::store::kept::{self, Kept};

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

/// A directory of which an image has a copy.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Where the container sees it.
    pub destination: String,
    /// Where it lies.
    pub host: PathBuf,
}

/// What is written so far; taken away again if it is not finished.
struct Draft<'a> {
    dir: &'a Path,
    is_new: bool,
    files: Vec<PathBuf>,
    /// There is a directory of copied directories.
    has_trees: bool,
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
        if self.has_trees {
            fs::remove_dir_all(self.dir.join(TREES)).ok();
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

    /// Copies directories.
    fn copy_trees(&mut self, trees: &[Tree]) -> Result<()> {
        if trees.is_empty() {
            return Ok(());
        }
        // What is in them may be executed by nobody else.
        tree::make(&self.dir.join(TREES))?;
        self.has_trees = true;
        for (number, Tree { destination, host }) in trees.iter().enumerate() {
            let to = tree::make(&self.dir.join(TREES).join(number.to_string()))?;
            let from = File::open(host).map_err(anyhow::Error::from);
            from.and_then(|from| tree::copy(from.as_fd(), to.as_fd()))
                .with_context(|| format!("copying the container's {destination}"))?;
        }
        Ok(())
    }

    /// See [`link`].
    fn link(&mut self, file: &File, name: &str) -> rustix::io::Result<()> {
        let path = self.dir.join(name);
        link(file, &path)?;
        self.files.push(path);
        Ok(())
    }

    /// Writes the slots, all of which are below `end`, but for those that are kept, and says in
    /// `stored` where they are then; the last of the files, if there is any, and whether it is the
    /// file system where they were.
    fn write_swap(
        &mut self,
        stored: &mut Stored,
        end: u64,
        (sources, kept): (&Sources, &Kept),
    ) -> Result<(Option<File>, bool)> {
        let mut ends = stored.layers.clone();
        let last = ends.last().copied().unwrap_or(0);
        // The file for other slots may have none.
        let is_used = stored.own && end > last;
        ends.extend(is_used.then_some(end));
        let files = &sources.swap[..ends.len()];
        stored.own = false;
        let Some(last) = files.last() else { return Ok((None, true)) };
        let mut each = files.iter().zip(0..);
        if ends.len() <= MAX_LAYERS
            && each.all(|(file, number)| self.link(file, &layer(number)).is_ok())
        {
            stored.layers = ends;
            return Ok((Some(last.try_clone()?), true));
        }
        for path in self.files.extract_if(.., |path| is_layer(path)) {
            fs::remove_file(path)?;
        }
        let to = self.file(&layer(0))?;
        for (first, sums) in &stored.swap {
            let (mut at, end) = (*first, first + sums.len() as u64);
            for (file, layer_end) in files.iter().zip(&ends) {
                let to_here = end.min(*layer_end);
                while at < to_here {
                    let (start, stop) = kept.gap_from(at);
                    let stop = stop.min(to_here);
                    if start < stop {
                        copy_part(file, &to, start * PAGE_SIZE, (stop - start) * PAGE_SIZE)?;
                    }
                    at = stop.max(start);
                }
            }
        }
        let last = ends.pop().unwrap_or(end);
        stored.layers = vec![last];
        let is_near = is_near(&files[0], &to)?;
        Ok((Some(to), is_near))
    }

    /// Writes the working set, but for what is kept: its file, and whether that is the file system
    /// where it was.
    fn write_reap(
        &mut self,
        stored: &Stored,
        name: &str,
        (sources, kept): (&Sources, &Kept),
    ) -> Result<(File, bool)> {
        let (Some(sums), Some(file)) = (&stored.reap, &sources.reap) else {
            return Ok((self.file(name)?, true));
        };
        if self.link(file, name).is_ok() {
            return Ok((file.try_clone()?, true));
        }
        let to = self.file(name)?;
        // What is kept comes last.
        let pages = kept.reap.first().map_or(sums.len() as u64, |run| run.place);
        copy_part(file, &to, 0, pages * PAGE_SIZE)?;
        let is_near = is_near(file, &to)?;
        Ok((to, is_near))
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

/// An image of which everything is known, but what the sandbox keeps.
pub struct Begun<'a> {
    draft: Draft<'a>,
    manifest: Manifest,
    stored: Stored,
    kept: Kept,
    /// Guest memory that is not empty, by offset.
    ram: Vec<(u64, Vec<u8>)>,
    /// The file of the last layer.
    slots: Option<File>,
    reap: File,
    /// What it keeps goes to a file of its own store, too.
    is_far: bool,
}

/// Begins to write an image to `dir`, which is made if it does not exist and must have no image
/// yet, with copies of `trees`. `adopt` has the sandbox go on with the files of the image: where
/// they lie in the file system of its own they are the same, and not written twice. When this
/// returns, the sandbox may go on that keeps what it keeps.
///
/// # Errors
/// With nothing left of it.
pub fn begin<'a>(
    dir: &'a Path,
    mut manifest: Manifest,
    (sources, kept): (&Sources, &Kept),
    trees: &[Tree],
    adopt: impl FnOnce(Shared) -> Result<()>,
) -> Result<Begun<'a>> {
    let is_new = make_new(dir)?;
    check_free(dir)?;
    let end = manifest.parts.store.end().context("the slots of its store are in no order")?;
    let mut draft = Draft { dir, is_new, files: Vec::new(), has_trees: false, is_done: false };
    let writing = writing(dir);
    draft.copy_trees(trees).with_context(&writing)?;
    let [_, reap_name, _] = FILES;
    let mut stored = std::mem::take(&mut manifest.parts.store);
    let from = (sources, kept);
    let (slots, is_near) = draft.write_swap(&mut stored, end, from).with_context(&writing)?;
    let (reap, is_reap_near) = draft.write_reap(&stored, reap_name, from).with_context(&writing)?;
    let is_near = is_near && is_reap_near;
    if is_near {
        let at = at(dir).with_context(&writing)?;
        let file = |name: &str| open(at.as_fd(), name);
        let layers = stored.layers.iter().zip(0..);
        let layers = layers.map(|(end, number)| Ok((*end, file(&layer(number))?)));
        let reap = stored.reap.is_some().then(|| file(reap_name)).transpose()?;
        adopt(Shared { layers: layers.collect::<Result<_>>()?, reap })?;
    }
    let ram = copy_ram(&sources.ram, &kept.frames()).with_context(&writing)?;
    let kept = kept.clone();
    Ok(Begun { draft, manifest, stored, kept, ram, slots, reap, is_far: !is_near })
}

/// What is said of failures.
fn writing(dir: &Path) -> impl Fn() -> String {
    move || format!("writing the image to {}", dir.display())
}

impl<'a> Begun<'a> {
    /// The sandbox goes on with the image's files, and not with its own.
    pub fn is_near(&self) -> bool {
        !self.is_far
    }

    /// Writes the rest; the file that says what the store holds, too.
    ///
    /// # Errors
    /// With nothing left of it.
    pub fn finish(self, sources: &Sources) -> Result<(Written<'a>, File)> {
        let Begun { mut draft, mut manifest, mut stored, kept, ram, slots, reap, is_far } = self;
        let writing = writing(draft.dir);
        let [ram_name, _, sums_name] = FILES;
        let own = sources.swap.last().filter(|_| is_far);
        let files: Vec<&File> = slots.iter().chain(own).collect();
        kept::write_slots(&kept, &sources.ram, &files, &mut stored).with_context(&writing)?;
        kept::write_reap(&kept, &sources.ram, &reap, &mut stored).with_context(&writing)?;
        let to = draft.file(ram_name)?;
        manifest.ram_sum = write_ram(&ram, &to).with_context(&writing)?;
        let bytes = postcard::to_allocvec(&stored)?;
        let sums = draft.file(sums_name)?;
        sums.write_all_at(&bytes, 0).with_context(&writing)?;
        manifest.sums_sum = XxHash3_64::oneshot(&bytes);
        manifest.layers = stored.layers.len();
        let text = serde_json::to_vec_pretty(&manifest)?;
        let beside = directory::draft(MANIFEST);
        let dir = draft.dir;
        draft
            .file(&beside)
            .and_then(|file| Ok(file.write_all_at(&text, 0)?))
            .and_then(|()| Ok(fs::rename(dir.join(&beside), dir.join(MANIFEST))?))
            .with_context(&writing)?;
        draft.files.push(dir.join(MANIFEST));
        draft.is_done = true;
        Ok((Written(draft), sums))
    }
}

/// An image that was written.
pub struct Written<'a>(Draft<'a>);

impl Written<'_> {
    /// Takes it away again.
    pub fn remove(mut self) {
        self.0.is_done = false;
    }
}

/// The pages of guest memory that are not empty, and in none of the ranges `without`: neighbours
/// together.
fn copy_ram(from: &File, without: &[(u64, u64)]) -> io::Result<Vec<(u64, Vec<u8>)>> {
    let mut ram: Vec<(u64, Vec<u8>)> = Vec::new();
    each_run(from, without, |offset, pages| {
        match ram.last_mut() {
            Some((start, bytes)) if *start + bytes.len() as u64 == offset => {
                bytes.extend_from_slice(pages);
            }
            _ => ram.push((offset, pages.to_vec())),
        }
        Ok(())
    })?;
    Ok(ram)
}

/// Writes such pages, each to its place; their checksum.
fn write_ram(ram: &[(u64, Vec<u8>)], to: &File) -> io::Result<u64> {
    let mut sum = XxHash3_64::default();
    for (start, bytes) in ram {
        to.write_all_at(bytes, *start)?;
        note_each(&mut sum, *start, bytes);
    }
    Ok(sum.finish())
}
