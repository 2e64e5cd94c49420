//! The files of an image, opened: reading it, and giving it to another process.

use std::fs::{self, File};
use std::hash::Hasher;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use qlib::PAGE_SIZE;
use rustix::io::Errno;
use twox_hash::XxHash3_64;

use super::directory::{
    FILES, MANIFEST, MAX_LAYERS, MAX_MANIFEST, PACKED, TREES, at, layer, listed, note_each, open,
};
use super::{FORMAT, Manifest, build, tree};
use crate::sandbox::image::each_run;
use crate::store::Stored;

/// The most checksums that are read, in bytes: those of a terabyte.
const MAX_SUMS: u64 = 1 << 30;

/// The files of an image: they stay the same whatever becomes of its directory.
#[derive(Debug)]
pub struct Files {
    /// Where they were found, for messages.
    pub dir: PathBuf,
    /// Guest memory.
    pub ram: File,
    /// The working set.
    pub reap: File,
    /// What is swapped out, by layer.
    pub swap: Vec<File>,
    /// The directory of copied directories, if there are any.
    pub(super) trees: Option<OwnedFd>,
    /// They come from one file that lies in `dir`.
    is_packed: bool,
    sums: File,
    manifest: File,
}

impl Files {
    /// Opens the image in `dir`.
    ///
    /// # Errors
    /// When there is none, or a part of it is missing.
    pub fn open(dir: &Path) -> Result<Files> {
        let none = || format!("there is no image in {}", dir.display());
        // All are of one directory, even if another one gets its name meanwhile.
        let at = at(dir).with_context(none)?;
        let manifest = open(at.as_fd(), MANIFEST).with_context(none)?;
        let part = |name: &str| {
            open(at.as_fd(), name).with_context(|| format!("{}: {name}", damaged(dir)))
        };
        let [ram, reap, sums] = FILES;
        let (ram, reap, sums) = (part(ram)?, part(reap)?, part(sums)?);
        // The manifest says how many there are to be.
        let mut swap = Vec::new();
        while swap.len() < MAX_LAYERS {
            match open(at.as_fd(), &layer(swap.len())) {
                Ok(file) => swap.push(file),
                Err(e) if e.downcast_ref() == Some(&Errno::NOENT) => break,
                Err(e) => return Err(e).with_context(|| format!("opening {}", dir.display())),
            }
        }
        let trees = tree::open(at.as_fd(), TREES).ok();
        let dir = dir.to_owned();
        Ok(Files { dir, ram, reap, swap, trees, is_packed: false, sums, manifest })
    }

    /// Those of the packed image in `dir`, taken by name.
    ///
    /// # Errors
    /// When one is missing.
    pub(super) fn unpacked(
        dir: &Path,
        mut take: impl FnMut(&str) -> Option<File>,
    ) -> Result<Files> {
        let mut part = |name: &str| take(name).with_context(|| format!("it lacks {name}"));
        let [ram, reap, sums] = FILES;
        let (ram, reap, sums, manifest) = (part(ram)?, part(reap)?, part(sums)?, part(MANIFEST)?);
        let swap = (0..MAX_LAYERS).map_while(|number| take(&layer(number))).collect();
        let dir = dir.to_owned();
        Ok(Files { dir, ram, reap, swap, trees: None, is_packed: true, sums, manifest })
    }

    /// The copied directory with this number.
    ///
    /// # Errors
    /// When it is missing.
    pub fn tree(&self, number: usize) -> Result<OwnedFd> {
        let missing = || format!("{}: it lacks a directory", damaged(&self.dir));
        let trees = self.trees.as_ref().with_context(missing)?;
        tree::open(trees.as_fd(), &*number.to_string()).with_context(missing)
    }

    /// True if these are the files of the image in `dir`.
    pub fn are_in(&self, dir: &Path) -> bool {
        let there = fs::symlink_metadata(dir.join(MANIFEST));
        let same = |there: fs::Metadata, here: fs::Metadata| {
            (there.dev(), there.ino()) == (here.dev(), here.ino())
        };
        there.and_then(|there| Ok(same(there, self.manifest.metadata()?))).unwrap_or(false)
    }

    /// All, with their names, the manifest last.
    pub fn each(&self) -> impl Iterator<Item = (&File, String)> {
        let [ram, reap, sums] = FILES.map(str::to_owned);
        let parts = [(&self.ram, ram), (&self.reap, reap), (&self.sums, sums)];
        let layers = self.swap.iter().zip((0..).map(layer));
        parts.into_iter().chain(layers).chain([(&self.manifest, MANIFEST.to_owned())])
    }

    /// What lies in the directory, the manifest last.
    pub fn names(&self) -> Vec<String> {
        match self.is_packed {
            true => vec![PACKED.to_owned()],
            false => self.each().map(|(_, name)| name).collect(),
        }
    }

    /// The descriptors, for [`Files::again`].
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.each().map(|(file, _)| file.as_fd())
    }

    /// The files of another process, which it has [given](Files::fds) this one: opened anew, as
    /// they have positions.
    ///
    /// # Errors
    /// When they are not all there, or cannot be opened.
    pub fn again(dir: &Path, fds: Vec<OwnedFd>) -> Result<Files> {
        let anew = |fd: OwnedFd| File::open(listed("fd", &fd)).context("opening the image anew");
        let mut files: Vec<File> = fds.into_iter().map(anew).collect::<Result<_>>()?;
        let swap = files.split_off(FILES.len().min(files.len()));
        let (Ok([ram, reap, sums]), Some((manifest, swap))) =
            (<[File; FILES.len()]>::try_from(files), split_last(swap))
        else {
            bail!("the image in {} came without its files", dir.display())
        };
        let (dir, trees) = (dir.to_owned(), None);
        Ok(Files { dir, ram, reap, swap, trees, is_packed: false, sums, manifest })
    }

    /// What it says of itself, but for what its store holds. Checks that it can be restored by this
    /// build on this host.
    ///
    /// # Errors
    /// With what is wrong with it.
    pub fn manifest(&self) -> Result<Manifest> {
        let dir = &self.dir;
        let damaged = || damaged(dir);
        let long = self.manifest.metadata()?.len();
        ensure!(long <= MAX_MANIFEST, "{}: its manifest is too long", damaged());
        let mut text = vec![0; long as usize];
        self.manifest.read_exact_at(&mut text, 0).with_context(damaged)?;
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
        let host = manifest.host.check();
        host.with_context(|| format!("the image in {} is not for this host", dir.display()))?;
        let layers = self.swap.len();
        ensure!(layers == manifest.layers, "{}: it has {layers} layers", damaged());
        Ok(manifest)
    }

    /// The same with what its store holds; the pages of its programs are checked as they come.
    /// Guest memory is not looked at ([`Files::check`]).
    ///
    /// # Errors
    /// With what is wrong with it.
    pub fn read(&self) -> Result<Manifest> {
        let mut manifest = self.manifest()?;
        let damaged = || damaged(&self.dir);
        let long = self.sums.metadata()?.len();
        ensure!(long <= MAX_SUMS, "{}: its checksums are too long", damaged());
        let mut bytes = vec![0; long as usize];
        self.sums.read_exact_at(&mut bytes, 0).with_context(damaged)?;
        let is_good = XxHash3_64::oneshot(&bytes) == manifest.sums_sum;
        ensure!(is_good, "{}: sums does not check out", damaged());
        manifest.parts.store = postcard::from_bytes(&bytes).with_context(damaged)?;
        check_store(&manifest.parts.store, &self.swap, &self.reap).with_context(damaged)?;
        Ok(manifest)
    }

    /// Checks all of it that is not checked as it comes.
    ///
    /// # Errors
    /// With what is wrong with it.
    pub fn check(&self) -> Result<Manifest> {
        let manifest = self.read()?;
        self.check_ram(&manifest)?;
        Ok(manifest)
    }

    /// Checks its guest memory: once for all sandboxes that are made of these files.
    ///
    /// # Errors
    /// When it is not what was written.
    fn check_ram(&self, manifest: &Manifest) -> Result<()> {
        let mut sum = XxHash3_64::default();
        each_run(&self.ram, &[], |offset, pages| {
            note_each(&mut sum, offset, pages);
            Ok(())
        })
        .with_context(|| damaged(&self.dir))?;
        let is_good = sum.finish() == manifest.ram_sum;
        ensure!(is_good, "{}: ram does not check out", damaged(&self.dir));
        Ok(())
    }
}

fn split_last(mut files: Vec<File>) -> Option<(File, Vec<File>)> {
    files.pop().map(|last| (last, files))
}

fn damaged(dir: &Path) -> String {
    format!("the image in {} is damaged", dir.display())
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

#[derive(serde::Deserialize)]
struct Form {
    format: u32,
}
