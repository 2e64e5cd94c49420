//! `quark template`: images that containers are made of by name, kept in the state directory.
//!
//! A template is a directory with an image and [`About`] it. It is made under another name, and
//! gets its own when it is whole; what a command leaves there that was killed is finished or
//! removed by the next one. Names with a colon are nobody's template.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::cli::{self, Format, Global};
use super::info::{print, table};
use super::state::{Store, make_private, try_lock};
use super::{checkpoint, info};
use crate::image::Manifest;
use crate::image::directory;
use crate::image::files::Files;
use crate::image::packed;
use crate::image::seal::Key;
use crate::sys::utc::Utc;

/// The file that says what a template is besides its image.
const ABOUT: &str = "template.json";
/// The file that is locked by who changes the list of templates.
const LOCK: &str = "lock:";
/// What the name of one begins with that is being made, or removed.
const NEW: &str = "new:";
const OLD: &str = "old:";

/// What a template is besides its image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct About {
    /// The bundle of the container that it was made of.
    pub bundle: Option<PathBuf>,
    /// The container's ID.
    pub container: String,
    /// When, as RFC 3339.
    pub created: String,
}

/// A template, opened: it stays the same even if it is deleted.
#[derive(Debug)]
pub struct Template {
    /// Its name.
    pub name: String,
    /// What it is besides its image.
    pub about: About,
    /// Its image.
    pub files: Files,
}

/// The templates of a state directory.
struct Templates {
    dir: PathBuf,
}

/// The list is not changed by others while it lives.
struct Held(#[expect(dead_code, reason = "it is there to be dropped")] Flock<File>);

/// A template that is being made; removed when dropped, unless it is whole.
struct Draft<'a> {
    all: &'a Templates,
    name: &'a str,
    dir: PathBuf,
    /// While it is held the draft is somebody's.
    _lock: Flock<File>,
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // What has been published is not there any more; what is whole the next command publishes.
        if !is_whole(&self.dir) {
            fs::remove_dir_all(&self.dir).ok();
        }
    }
}

/// True if there is a whole image, and what is to be known about it.
fn is_whole(dir: &Path) -> bool {
    directory::is_image(dir) && dir.join(ABOUT).exists()
}

impl Templates {
    /// Those of `store`, in which `name` may be one.
    fn of(store: &Store, name: &str) -> Result<Templates> {
        store.entry(name).with_context(|| format!("the name of a template, {name:?}"))?;
        Ok(Templates { dir: store.templates() })
    }

    /// Makes the directory, keeps others away, and clears up after those that were killed.
    fn hold(&self, store: &Store) -> Result<Held> {
        store.make()?;
        make_private(&self.dir)?;
        self.hold_existing()
    }

    fn hold_existing(&self) -> Result<Held> {
        let path = self.dir.join(LOCK);
        let mut options = OpenOptions::new();
        options.write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&path).with_context(|| format!("opening {}", path.display()))?;
        let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, e)| e);
        let held = Held(lock.with_context(|| format!("locking {}", path.display()))?);
        for name in self.names()? {
            let dir = self.dir.join(&name);
            if name.starts_with(OLD) {
                fs::remove_dir_all(dir).ok();
            } else if let Some(name) = name.strip_prefix(NEW)
                && let Ok(_lock) = try_lock(&dir)
            {
                // The container may have ended for it.
                if !is_whole(&dir) || fs::rename(&dir, self.dir.join(name)).is_err() {
                    fs::remove_dir_all(dir).ok();
                }
            }
        }
        Ok(held)
    }

    /// What is in the directory, by name.
    fn names(&self) -> Result<Vec<String>> {
        let reading = || format!("reading {}", self.dir.display());
        let mut names = Vec::new();
        for item in fs::read_dir(&self.dir).with_context(reading)? {
            let name = item.with_context(reading)?.file_name();
            names.extend(name.into_string().ok().filter(|name| name != LOCK));
        }
        names.sort();
        Ok(names)
    }

    /// Claims a name.
    fn begin<'a>(&'a self, store: &Store, name: &'a str) -> Result<Draft<'a>> {
        let _held = self.hold(store)?;
        if self.dir.join(name).exists() {
            bail!("there is a template {name} already: delete it, or choose another name");
        }
        let dir = self.dir.join(format!("{NEW}{name}"));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                bail!("template {name} is being made by another command")
            }
            made => made.with_context(|| format!("making {}", dir.display()))?,
        }
        match try_lock(&dir) {
            Ok(lock) => Ok(Draft { all: self, name, dir, _lock: lock }),
            Err(e) => {
                fs::remove_dir(&dir).ok();
                Err(e).with_context(|| format!("locking {}", dir.display()))
            }
        }
    }

    /// Opens one.
    fn open(&self, name: &str) -> Result<Template> {
        let missing =
            || bail!("there is no template {name}: quark template list shows those there");
        if !self.dir.is_dir() {
            return missing();
        }
        let _held = self.hold_existing()?;
        let dir = self.dir.join(name);
        if !dir.is_dir() {
            return missing();
        }
        let about = about(&dir)?;
        Ok(Template { name: name.to_owned(), about, files: Files::open(&dir)? })
    }
}

fn about(dir: &Path) -> Result<About> {
    let path = dir.join(ABOUT);
    let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))
}

impl Draft<'_> {
    fn describe(&self, about: &About) -> Result<()> {
        let path = self.dir.join(ABOUT);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let text = serde_json::to_vec_pretty(about)?;
        let written = options.open(&path).and_then(|mut file| file.write_all(&text));
        written.with_context(|| format!("writing {}", path.display()))
    }

    /// Gives it its name.
    fn publish(self, store: &Store) -> Result<()> {
        let _held = self.all.hold(store)?;
        let to = self.all.dir.join(self.name);
        fs::rename(&self.dir, &to).with_context(|| format!("making {}", to.display()))
    }
}

/// Opens a template to make containers of it.
///
/// # Errors
/// When there is none with this name.
pub fn open(store: &Store, name: &str) -> Result<Template> {
    Templates::of(store, name)?.open(name)
}

/// Does `work` while no other command does anything with templates of `store`.
///
/// # Errors
/// When others cannot be kept away; those of `work`.
pub fn alone<T>(store: &Store, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let _held = Templates { dir: store.templates() }.hold(store)?;
    work()
}

impl Template {
    /// True if this is what has its name now.
    pub fn is_current(&self, store: &Store) -> bool {
        self.files.are_in(&store.templates().join(&self.name))
    }

    /// Checks its image ([`Files::check`]); what that says of itself.
    ///
    /// # Errors
    /// With what is wrong with it.
    pub fn read(&self) -> Result<Manifest> {
        self.files.check().with_context(|| format!("template {} cannot be used", self.name))
    }

    /// The bundle of its containers, if no other is `given`.
    ///
    /// # Errors
    /// When it has none.
    pub fn bundle<'a>(&'a self, given: Option<&'a Path>) -> Result<&'a Path> {
        given
            .or(self.about.bundle.as_deref())
            .with_context(|| format!("template {} was made of an image: say --bundle", self.name))
    }
}

/// `quark template`.
///
/// # Errors
/// With nothing changed.
pub fn template(store: &Store, options: &cli::Template, global: &Global) -> Result<()> {
    match options {
        cli::Template::Create(options) => create(store, options, global),
        cli::Template::List(options) => list(store, options),
        cli::Template::Delete(options) => delete(store, &options.name),
    }
}

fn create(store: &Store, options: &cli::TemplateCreate, global: &Global) -> Result<()> {
    let templates = Templates::of(store, &options.name)?;
    // A file-size limit is an error like a full disk.
    crate::sys::ignore_signals();
    let bundle = options.bundle.as_deref().map(std::path::absolute).transpose()?;
    if let Some(id) = &options.from {
        let (_, state) = info::running(store, id)?;
        let draft = templates.begin(store, &options.name)?;
        let created = Utc::now().to_string();
        let bundle = Some(bundle.unwrap_or(state.bundle));
        draft.describe(&About { bundle, container: id.clone(), created })?;
        let options = cli::Checkpoint {
            id: id.clone(),
            image_path: draft.dir.clone(),
            name: None,
            keep: None,
            when_told: false,
            leave_running: options.leave_running,
            rw_dir: options.rw_dir.clone(),
            packing: cli::Packing::default(),
            criu: cli::Criu::default(),
        };
        checkpoint::checkpoint(store, &options, global)?;
        return draft.publish(store);
    }
    let from = options.image_path.as_deref().context("say --from or --image-path")?;
    let key = options.key_file.as_deref().map(Key::read).transpose()?;
    let files = packed::find(from, key.as_ref())?;
    let manifest = files.check()?;
    let draft = templates.begin(store, &options.name)?;
    let created = Utc::now().to_string();
    draft.describe(&About { bundle, container: manifest.container.id, created })?;
    directory::copy(&files, &draft.dir)?;
    draft.publish(store)?;
    // A snapshot stays one, too.
    let snapshots = store.images().join("snapshots");
    if from.canonicalize().is_ok_and(|dir| dir.starts_with(snapshots)) {
        return Ok(());
    }
    // From here on there are two; the manifest goes first, without which it is no image.
    for name in files.names().into_iter().rev() {
        let path = from.join(name);
        if let Err(e) = fs::remove_file(&path) {
            tracing::warn!("{} is left, of which the template is a copy: {e}", path.display());
        }
    }
    if let Err(e) = directory::forget_trees(from) {
        tracing::warn!(
            "a part of {} is left, of which the template is a copy: {e}",
            from.display()
        );
    }
    // The directory may have been there for other things.
    fs::remove_dir(from).ok();
    Ok(())
}

fn delete(store: &Store, name: &str) -> Result<()> {
    let templates = Templates::of(store, name)?;
    let old = templates.dir.join(format!("{OLD}{name}"));
    let remove = |dir: &Path| match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("removing {}", dir.display()))
        }
        _ => Ok(()),
    };
    ensure!(templates.dir.is_dir(), "there is no template {name}");
    let _held = templates.hold_existing()?;
    remove(&old)?;
    match fs::rename(templates.dir.join(name), &old) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => bail!("there is no template {name}"),
        renamed => renamed.with_context(|| format!("removing template {name}"))?,
    }
    remove(&old)
}

fn list(store: &Store, options: &cli::TemplateList) -> Result<()> {
    let templates = Templates { dir: store.templates() };
    let mut found = Vec::new();
    if templates.dir.is_dir() {
        let _held = templates.hold_existing()?;
        for name in templates.names()? {
            let dir = templates.dir.join(&name);
            if !name.contains(':')
                && let Ok(about) = about(&dir)
            {
                let read = Files::open(&dir).and_then(|files| files.manifest());
                let why = read.err().map(|e| format!("{e:#}"));
                let bytes = directory::disk_bytes(&dir, &mut HashSet::new());
                found.push((name, bytes, about, why));
            }
        }
    }
    if options.format == Format::Json {
        let values = found.into_iter().map(|(name, bytes, about, why)| {
            json!({
                "name": name,
                "bytes": bytes,
                "container": about.container,
                "created": about.created,
                "bundle": about.bundle,
                "restorable": why.is_none(),
                "why": why,
            })
        });
        return print(&format!("{}\n", Value::Array(values.collect())));
    }
    let head = ["NAME", "SIZE", "CONTAINER", "CREATED", "BUNDLE", "RESTORABLE"].map(str::to_owned);
    let rows = found.into_iter().map(|(name, bytes, about, why)| {
        let bundle = about.bundle.map_or_else(String::new, |b| b.display().to_string());
        let restorable = why.map_or_else(|| "yes".to_owned(), |why| format!("no: {why}"));
        [name, mebibytes(bytes), about.container, about.created, bundle, restorable]
    });
    print(&table(&std::iter::once(head).chain(rows).collect::<Vec<_>>()))
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1}M", bytes as f64 / f64::from(1 << 20))
}
