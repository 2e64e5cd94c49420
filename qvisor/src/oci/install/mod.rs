//! `quark install` and `quark uninstall`: making quark known to Docker, containerd and Kubernetes,
//! and taking back exactly that.
//!
//! Engines' configurations are edited in place, so that all else in them stays. What was there
//! before is kept beside each; if nothing else has changed since, uninstall puts that back,
//! whatever its format was. No service is restarted.

mod all;
mod containerd;
mod docker;
mod file;
pub mod options;
mod place;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use similar::TextDiff;

use self::containerd::Version;
use self::file::ConfigFile;
use self::options::{Install, Target, Uninstall};
use self::place::Place;
use super::info::print;
use super::roots::Roots;
use super::state::{Store, default_root};

/// What an engine is to know.
#[derive(Clone, Debug)]
struct Runtime {
    /// By which users ask for it.
    name: String,
    /// The program.
    binary: PathBuf,
    /// What Docker gives it each time.
    args: Vec<String>,
    /// containerd has quark's own shim.
    has_shim: bool,
}

/// What an engine knows by a runtime's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Registered {
    binary: Option<PathBuf>,
    args: Vec<String>,
    has_shim: bool,
}

/// Who starts containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Docker,
    /// With the version of the format that a new file has.
    Containerd(Version),
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::Docker => "Docker",
            Engine::Containerd(_) => "containerd",
        }
    }

    fn config(self) -> &'static Path {
        Path::new(match self {
            Engine::Docker => docker::CONFIG,
            Engine::Containerd(_) => containerd::CONFIG,
        })
    }

    fn with(self, text: Option<&str>, runtime: &Runtime) -> Result<String> {
        match self {
            Engine::Docker => docker::with(text, runtime),
            Engine::Containerd(version) => containerd::with(text, runtime, version),
        }
    }

    fn without(self, text: &str, name: &str, before: Option<&str>) -> Result<String> {
        match self {
            Engine::Docker => docker::without(text, name, before),
            Engine::Containerd(_) => containerd::without(text, name),
        }
    }

    /// The names of the runtimes that it knows.
    fn names(self, text: &str) -> Result<Vec<String>> {
        match self {
            Engine::Docker => docker::names(text),
            Engine::Containerd(_) => containerd::names(text),
        }
    }

    /// True if it takes the runtime `name` where nobody names one.
    fn is_default(self, text: &str, name: &str) -> bool {
        match self {
            Engine::Docker => docker::is_default(text, name),
            Engine::Containerd(_) => containerd::is_default(text, name),
        }
    }

    /// What it knows by `name`, and itself as the file tells it to be.
    fn registered(self, text: Option<&str>, name: &str) -> Result<(Option<Registered>, Engine)> {
        let Some(text) = text else { return Ok((None, self)) };
        Ok(match self {
            Engine::Docker => (docker::registered(text, name)?, self),
            Engine::Containerd(_) => match containerd::registered(text, name)? {
                Some((registered, version)) => (Some(registered), Engine::Containerd(version)),
                None => (None, self),
            },
        })
    }

    /// What is left to do when its configuration was changed.
    fn then(self) -> &'static str {
        match self {
            Engine::Docker => "systemctl reload docker (--reload does the same)",
            Engine::Containerd(_) => "systemctl restart containerd (containers go on)",
        }
    }
}

/// The engines that are asked for, or those of this host.
fn engines(target: &Target) -> Result<Vec<Engine>> {
    let mut engines = Vec::new();
    let found = !target.docker && !target.containerd;
    if target.docker || (found && (in_path("dockerd") || Path::new(docker::CONFIG).exists())) {
        engines.push(Engine::Docker);
    }
    // Without a configuration it is most likely Docker's.
    if target.containerd || (found && Path::new(containerd::CONFIG).exists()) {
        engines.push(Engine::Containerd(Version::installed()));
    }
    if engines.is_empty() {
        bail!(
            "neither Docker nor containerd is on this host: name one by --docker or --containerd"
        );
    }
    if target.config.is_some() && (found || engines.len() > 1) {
        bail!("--config is the file of one engine: give --docker or --containerd with it");
    }
    if target.config.is_none() && !rustix::process::geteuid().is_root() {
        bail!("changing {} needs root", engines[0].config().display());
    }
    Ok(engines)
}

fn in_path(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').any(|dir| Path::new(dir).join(program).is_file())
}

/// `quark install`.
///
/// # Errors
/// With one line that says what to do; the file that it is about is as it was.
pub fn install(options: &Install) -> Result<()> {
    let target = &options.target;
    if let Some(path) = &options.kubernetes {
        runtime_class(path, &target.name, target.dry_run)?;
        if !target.docker && !target.containerd {
            return Ok(());
        }
    }
    let engines = engines(target)?;
    check_arguments(&options.runtime_args, target)?;
    if !options.runtime_args.is_empty() && engines.iter().any(|e| *e != Engine::Docker) {
        tracing::warn!("--runtime-arg counts for Docker alone: containerd gives no options");
    }
    let place = Place::new(target.prefix.as_deref(), true)?;
    let has_shim = place.has_shim() || containerd::finds_shim();
    let runtime = Runtime {
        name: target.name.clone(),
        binary: place.binary(),
        args: options.runtime_args.clone(),
        has_shim: has_shim && engines.iter().any(|e| matches!(e, Engine::Containerd(_))),
    };
    // All of it is thought through before anything is changed.
    let register = |engine, path: &Path| registration(engine, path, &runtime);
    let changes = changes_of(target, &engines, "not registered with", register)?;
    place.fill(target.dry_run)?;
    for change in &changes {
        change.make(target.dry_run)?;
    }
    if changes.is_empty() {
        print(&format!("{} is registered as it should be: nothing changed\n", target.name))?;
    }
    finish(target, &changes)
}

/// Refuses options that quark would refuse each time a container is made.
fn check_arguments(args: &[String], target: &Target) -> Result<()> {
    if args.is_empty() {
        return Ok(());
    }
    if target.containerd {
        bail!(
            "containerd gives no options to a runtime: leave --runtime-arg out, and use \
             annotations of pods (io.quark.*)"
        );
    }
    // The command line is above this module; it is the same program.
    let status = std::process::Command::new("/proc/self/exe")
        .args(args)
        .arg("features")
        .stdin(std::process::Stdio::null())
        .output()
        .context("trying the options of --runtime-arg")?;
    if !status.status.success() {
        let said = String::from_utf8_lossy(&status.stderr);
        bail!("--runtime-arg {}: {}", args.join(" "), said.trim().trim_start_matches("quark: "));
    }
    Ok(())
}

/// A change of one file.
struct Change {
    engine: Engine,
    file: ConfigFile,
    /// The runtime's name.
    name: String,
    /// What will be there; `None`: no file.
    new: Option<String>,
    /// What is to be kept of what was there.
    keep: Keep,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// All of it.
    Now,
    /// What is kept already.
    Before,
    /// Nothing.
    Nothing,
}

/// What registers `runtime`; `None` if it is there.
fn registration(engine: Engine, path: &Path, runtime: &Runtime) -> Result<Option<Change>> {
    let file = ConfigFile::read(path)?;
    let about = || path.display().to_string();
    let (there, engine) = engine.registered(file.text(), &runtime.name).with_context(about)?;
    let keep = match &there {
        None => Keep::Now,
        Some(there) => {
            check_ours(there, runtime, "quark uninstall").with_context(about)?;
            Keep::Before
        }
    };
    let new = engine.with(file.text(), runtime).with_context(about)?;
    if file.text() == Some(&new) {
        return Ok(None);
    }
    Ok(Some(Change { engine, file, name: runtime.name.clone(), new: Some(new), keep }))
}

/// True if what an engine calls `there` is `binary`: by whatever path, also through links, or by a
/// name that is looked for in PATH.
fn is_same(there: &Path, binary: &Path) -> bool {
    let is_bare = there.components().count() == 1 && !there.is_absolute();
    let path = std::env::var_os("PATH").filter(|_| is_bare);
    let found = path.and_then(|path| {
        std::env::split_paths(&path).map(|dir| dir.join(there)).find(|place| place.is_file())
    });
    let file = |path: &Path| path.canonicalize().ok();
    there == binary
        || file(binary).is_some_and(|b| file(found.as_deref().unwrap_or(there)) == Some(b))
}

/// Refuses a runtime of this name that is another program.
fn check_ours(there: &Registered, runtime: &Runtime, command: &str) -> Result<()> {
    let name = &runtime.name;
    match &there.binary {
        Some(binary) if is_same(binary, &runtime.binary) => Ok(()),
        // One that nobody can run is nobody's.
        Some(binary) if binary.is_absolute() && !binary.exists() => Ok(()),
        Some(binary) => bail!(
            "its runtime {name:?} is {}, not {}: take that out by its own {command}, or choose \
             another --name",
            binary.display(),
            runtime.binary.display()
        ),
        None if there.has_shim => Ok(()),
        None => bail!("its runtime {name:?} is not quark: choose another --name"),
    }
}

/// `quark uninstall`.
///
/// # Errors
/// With one line that says what to do; the file that it is about is as it was.
pub fn uninstall(options: &Uninstall) -> Result<()> {
    let target = &options.target;
    if options.all {
        return all::uninstall(target);
    }
    let engines = engines(target)?;
    let place = Place::new(target.prefix.as_deref(), false)?;
    let runtime = Runtime {
        name: target.name.clone(),
        binary: place.binary(),
        args: Vec::new(),
        has_shim: false,
    };
    let remove = |engine, path: &Path| removal(engine, path, &runtime);
    let changes = changes_of(target, &engines, "not taken out of", remove)?;
    let containers = containers();
    if containers > 0 {
        tracing::warn!(
            "{containers} containers of quark exist (quark list --all-roots): delete them by their \
             engine before you remove the binary"
        );
    }
    for change in &changes {
        change.make(target.dry_run)?;
    }
    if target.prefix.is_some() {
        match still_named(&place, &changes, target) {
            Some(path) => print(&format!(
                "kept {}: {} has another runtime that needs it\n",
                place.binary().display(),
                path.display()
            ))?,
            None => place.empty(target.dry_run)?,
        }
    }
    if changes.is_empty() {
        print(&format!("{} is not registered: nothing changed\n", target.name))?;
    }
    finish(target, &changes)
}

/// What is to be done to the engines' files. `failed` is said of one for which that cannot be found
/// out, if nobody named it: whoever did not name it need not have it.
fn changes_of(
    target: &Target,
    engines: &[Engine],
    failed: &str,
    change: impl Fn(Engine, &Path) -> Result<Option<Change>>,
) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    for engine in engines {
        let path = target.config.as_deref().unwrap_or(engine.config());
        match change(*engine, path) {
            Err(e) if engines.len() > 1 && !target.containerd && !target.docker => {
                tracing::warn!("{failed} {}: {e:#}", engine.name());
            }
            other => changes.extend(other?),
        }
    }
    Ok(changes)
}

/// The configuration that needs the binary also when `changes` have been made, whether it is one of
/// those that `target` means or not.
fn still_named(place: &Place, changes: &[Change], target: &Target) -> Option<PathBuf> {
    let usual = [Engine::Docker, Engine::Containerd(Version::installed())].map(Engine::config);
    let mut paths = usual.into_iter().chain(target.config.as_deref());
    let names = |path: &&Path| {
        let text = match changes.iter().find(|change| change.file.path() == *path) {
            Some(change) => change.new.clone(),
            None => std::fs::read_to_string(path).ok(),
        };
        text.is_some_and(|text| place.is_named_in(&text))
    };
    paths.find(names).map(Path::to_owned)
}

/// What takes `runtime` out; `None` if it is not there.
fn removal(engine: Engine, path: &Path, runtime: &Runtime) -> Result<Option<Change>> {
    let file = ConfigFile::read(path)?;
    let about = || path.display().to_string();
    let name = &runtime.name;
    let (there, engine) = engine.registered(file.text(), name).with_context(about)?;
    let (Some(there), Some(text)) = (there, file.text()) else { return Ok(None) };
    check_ours(&there, runtime, "quark uninstall").with_context(about)?;
    check_not_default(engine, text, name).with_context(about)?;
    let before = file.copy(name)?;
    let installed = Runtime {
        name: name.clone(),
        binary: there.binary.unwrap_or_else(|| runtime.binary.clone()),
        args: there.args,
        has_shim: there.has_shim,
    };
    let is_untouched =
        engine.with(before.as_deref(), &installed).is_ok_and(|installed| installed == text);
    let new = if is_untouched {
        before
    } else {
        Some(engine.without(text, name, before.as_deref()).with_context(about)?)
    };
    Ok(Some(Change { engine, file, name: name.clone(), new, keep: Keep::Nothing }))
}

/// Refuses the default runtime: an engine that does not know the one it is to take does not start.
fn check_not_default(engine: Engine, text: &str, name: &str) -> Result<()> {
    if engine.is_default(text, name) {
        bail!(
            "{name:?} is the default runtime of {}: take that out first, for it would not start \
             any more",
            engine.name()
        );
    }
    Ok(())
}

impl Change {
    /// Makes it, or prints what it is.
    fn make(&self, dry_run: bool) -> Result<()> {
        let path = self.file.path().display().to_string();
        if dry_run {
            let (old, new) = (self.file.text().unwrap_or(""), self.new.as_deref().unwrap_or(""));
            let name = |exists: bool| if exists { path.as_str() } else { "/dev/null" };
            let diff = TextDiff::from_lines(old, new);
            let mut unified = diff.unified_diff();
            let header = unified.header(name(self.file.text().is_some()), name(self.new.is_some()));
            return print(&header.to_string());
        }
        if self.keep == Keep::Now {
            self.file.keep(&self.name)?;
        }
        if let Err(e) = self.file.replace(self.new.as_deref()) {
            if self.keep == Keep::Now {
                self.file.forget(&self.name).ok();
            }
            return Err(e);
        }
        if self.keep == Keep::Nothing {
            self.file.forget(&self.name)?;
        }
        let (name, engine) = (&self.name, self.engine.name());
        let done = match (self.keep, self.file.text()) {
            (Keep::Nothing, _) => format!("{name} is no runtime of {engine} any more: {path}"),
            (Keep::Now, Some(_)) => format!(
                "{name} is a runtime of {engine} now: {path} (as it was: {})",
                self.file.copy_path(name).display()
            ),
            _ => format!("{name} is a runtime of {engine} now: {path}"),
        };
        print(&format!("{done}\n"))
    }
}

/// Tells what is left to do, or has it done.
fn finish(target: &Target, changes: &[Change]) -> Result<()> {
    if target.dry_run {
        return Ok(());
    }
    if target.reload {
        reload(&target.docker_pid_file)?;
    }
    for change in changes {
        if change.engine != Engine::Docker || !target.reload {
            print(&format!("next: {}\n", change.engine.then()))?;
        }
    }
    let is_new = |c: &Change| c.keep == Keep::Now && matches!(c.engine, Engine::Containerd(_));
    if changes.iter().any(is_new) {
        let name = &target.name;
        print(&format!(
            "for Kubernetes: quark install --name {name} --kubernetes - | kubectl apply -f -\n"
        ))?;
    }
    Ok(())
}

/// Has dockerd read its configuration.
fn reload(pid_file: &Path) -> Result<()> {
    let about = || format!("--reload: no dockerd by {}", pid_file.display());
    let text = fs::read_to_string(pid_file).with_context(about)?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw).with_context(about)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).with_context(about)?;
    let name = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
    let name = name.with_context(about)?;
    if name.trim() != "dockerd" {
        bail!(
            "--reload: process {} of {} is {:?}",
            pid.as_raw_nonzero(),
            pid_file.display(),
            name.trim()
        );
    }
    pidfd_send_signal(&process, Signal::HUP).with_context(about)?;
    print("dockerd reads its configuration again\n")
}

/// How many containers there are, of all known state directories.
fn containers() -> usize {
    let (roots, _) = Roots::of_caller().all(&default_root());
    let stores = roots.iter().filter_map(|root| Store::new(root).ok());
    stores.filter_map(|store| store.list().ok()).map(|list| list.len()).sum()
}

/// Writes what makes a pod's `runtimeClassName` mean the runtime `name`.
fn runtime_class(path: &Path, name: &str, dry_run: bool) -> Result<()> {
    let text = format!(
        "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata:\n  name: {name}\nhandler: {name}\n"
    );
    if path == Path::new("-") || dry_run {
        return print(&text);
    }
    match fs::read_to_string(path) {
        Ok(there) if there == text => return Ok(()),
        Ok(_) => bail!("{} exists: choose another file", path.display()),
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(e).with_context(|| path.display().to_string());
        }
        Err(_) => {}
    }
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    print(&format!("wrote {}: kubectl apply -f {0}\n", path.display()))
}
