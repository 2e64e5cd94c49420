//! The sandbox process, from its first instruction to the boot of its guest kernel.
//!
//! It is in the container's cgroup and namespaces already. It gets its [`Setup`] over a socket,
//! opens what the guest may see, boots, and says that it is ready. Its exit code is that of the
//! container's program.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use nix::mount::{MsFlags, mount};
use oci_spec::runtime::Hook;
use qlib::control::{
    ContainerSpec, DeviceSpec, FIRST_CONTAINER, FurtherNamespaces, MemoryLimit, MountSpec,
    RootLayer, SleepSpec,
};
use qlib::host::NO_HANDLE;
use rustix::fs::{Mode, OFlags};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use super::log;
use super::mount_points;
use super::mounts::Mount;
use super::view::View;
use super::{hooks, network, wire};
use crate::image::files::Files;
use crate::image::host::ClockShift;
use crate::image::open::Sockets;
use crate::platform::process::{FastCalls, ProcessConfig};
use crate::platform::{self, PlatformKind};
use crate::sandbox::admission::Admission;
use crate::sandbox::confine::Confinement;
use crate::sandbox::hostcall::uds::HostUds;
use crate::sandbox::image::Image;
use crate::sandbox::memory::RAM_UNIT;
use crate::sandbox::names;
use crate::sandbox::pressure::{Pressure, Pull};
use crate::sandbox::{Sandbox, SandboxConfig, ended};
use crate::streams::Stream;

/// All that a sandbox process is told.
#[derive(Debug, Serialize, Deserialize)]
pub struct Setup {
    /// The container's ID.
    pub id: String,
    /// `--log`, `--log-format`, `--debug`.
    pub log: (Option<PathBuf>, log::Format, bool),
    /// The command stays while the container runs, and standard error is its user's.
    pub attended: bool,
    /// How guest code runs, as `--platform` chose.
    pub platform: PlatformKind,
    /// `--fast-calls`.
    pub fast_calls: FastCalls,
    /// The root file system.
    pub root: PathBuf,
    /// It may not be written.
    pub root_readonly: bool,
    /// It is this view of the host's, with a throw-away layer over it.
    pub view: Option<View>,
    /// The directory of the image that it is made of, and how many files that has: they come with
    /// the set-up, and guest memory has been checked.
    pub image: Option<(PathBuf, usize)>,
    /// How its clocks are shifted.
    pub clocks: ClockShift,
    /// What its programs do not ask for is read ahead of use then.
    pub background: bool,
    /// Where its files go in the sandbox of its pod, if it is a further container of that.
    pub hub: Option<String>,
    /// The layer that what is written to the root goes to. One that may not be written needs none.
    pub layer: Option<RootLayer>,
    /// The mounts.
    pub mounts: Vec<Mount>,
    /// Device nodes besides the standard ones.
    pub devices: Vec<DeviceSpec>,
    /// Host name.
    pub hostname: String,
    /// sysctl settings.
    pub sysctl: Vec<(String, String)>,
    /// OCI maskedPaths.
    pub masked_paths: Vec<String>,
    /// OCI readonlyPaths.
    pub readonly_paths: Vec<String>,
    /// In bytes, 0 for none.
    pub memory_limit_bytes: u64,
    /// Of tasks in the cgroup, 0 for none.
    pub tasks_limit: u32,
    /// When it sleeps.
    pub sleep: SleepSpec,
    /// At most so many sandboxes of this state directory wake at once; 0: as many as there are.
    pub wake_concurrency: u16,
    /// How what comes with the set-up tells that the host is short of memory.
    pub pressure: Option<Pull>,
    /// Of what kind the files are that come with the set-up, by which the cgroup drops names.
    pub names: Option<names::Interface>,
    /// AF_UNIX sockets in volumes.
    pub host_uds: HostUds,
    /// Further containers may be made in it.
    pub is_shared: bool,
    /// The network namespace is new.
    pub new_network: bool,
    /// The network namespace is the container's own, new or joined.
    pub own_network: bool,
    /// For a new score, or `None` to leave it.
    pub oom_score_adj: Option<i32>,
    /// Capabilities of the container's programs that its sockets need of the sandbox process: a
    /// mask, by number.
    pub capabilities: u64,
    /// The kernel image to boot in place of the built-in one; only builds for tests look at it.
    pub test_kernel: Option<PathBuf>,
    /// The parent has hooks to call first and says [`ToChild::Go`].
    pub wait: bool,
    /// To call in this process's namespaces.
    pub create_container: Vec<Hook>,
    /// What they read.
    pub hook_state: serde_json::Value,
}

/// From the command to the sandbox process.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToChild {
    /// First. With it come the control listener, the file for [`crate::sandbox::ended`], the file
    /// of places of wakes, a trigger and the line of who waits for that, two files of its cgroup,
    /// the files of its image, and a user namespace for the sandbox process, if it is to have them.
    Setup(Box<Setup>),
    /// The same for the process that stands for a further container of a sandbox ([`member`]), with
    /// its namespaces. With it come a connection to the sandbox, the file for
    /// [`crate::sandbox::ended`], the sandbox's mount namespace, and its user namespace, if it has
    /// one.
    Join(Box<Setup>, FurtherNamespaces),
    /// The hooks have been called; or, after [`FromChild::Ready`], one that was made of an image is
    /// to go on. With that comes the file in which it notes that it wakes, if there is one.
    Go,
    /// Before that: it is somebody else's, and these are the standard streams from now on, which
    /// come with it, each shared with nobody or not ([`Stream::own`]). It answers
    /// [`FromChild::Ready`].
    Streams([bool; 3]),
}

/// From the sandbox process to the command.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromChild {
    /// The guest kernel runs and has made the container, which has this number there.
    Ready(u32),
    /// It failed; the process ends.
    Failed(String),
}

/// The main function of the sandbox process.
pub fn main() -> i32 {
    serve(sandbox)
}

/// What a process does that stands for a container: `work`, given the socket of the command that
/// made it, which is told of a failure; its exit code.
pub(super) fn serve(work: impl FnOnce(&UnixStream) -> Result<i32>) -> i32 {
    // It was executed as /proc/self/exe, and would be listed as "exe".
    rustix::thread::set_name(c"quark").ok();
    let parent = match crate::sys::take_setup_fd() {
        Ok(fd) => UnixStream::from(fd),
        Err(_) => {
            log::fatal("this command is for quark's own use", false);
            return 1;
        }
    };
    match work(&parent) {
        Ok(code) => code,
        Err(e) => {
            // After Ready nobody reads this, and the log has to do.
            tracing::error!("{e:#}");
            ended::ended(1, &format!("{e:#}"));
            wire::send(&parent, &FromChild::Failed(format!("{e:#}")), &[]).ok();
            1
        }
    }
}

fn sandbox(parent: &UnixStream) -> Result<i32> {
    let Some((ToChild::Setup(mut setup), fds)) = wire::receive(parent)? else {
        bail!("no set-up came")
    };
    let mut fds = fds.into_iter();
    let (Some(listener), Some(record)) = (fds.next(), fds.next()) else {
        bail!("the set-up came without its descriptors");
    };
    ended::record_in(record);
    let places = if setup.wake_concurrency > 0 { fds.next() } else { None };
    let pressure = match setup.pressure {
        Some(pull) => {
            let (Some(trigger), Some(line)) = (fds.next(), fds.next()) else {
                bail!("the set-up came without its trigger");
            };
            Some(Pressure::new(trigger, pull, line, setup.clocks.monotonic_ns / 1000))
        }
        None => None,
    };
    let names = match setup.names {
        Some(interface) => {
            let (Some(held), Some(reclaim)) = (fds.next(), fds.next()) else {
                bail!("the set-up came without its cgroup's files");
            };
            Some(names::Files { interface, held, reclaim })
        }
        None => None,
    };
    let count = setup.image.as_ref().map_or(0, |(_, files)| *files);
    let of_image: Vec<OwnedFd> = fds.by_ref().take(count).collect();
    begin_log(&setup)?;
    #[cfg(debug_assertions)]
    if let Some(kernel) = &setup.test_kernel {
        crate::sandbox::loader::use_image(kernel)
            .with_context(|| format!("reading {}", kernel.display()))?;
    }
    leave_mounts()?;
    if setup.new_network {
        network::loopback_up().context("bringing up the loopback device")?;
    }
    if let Some(score) = setup.oom_score_adj {
        set_oom_score(score);
    }
    call_hooks(&setup, parent)?;
    let (opened, user_namespace) = open_mapped(&setup, fds.next())?;
    // The platform looks after its stubs by the process ids that they have here.
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>)
        .context("mounting the sandbox's own /proc")?;
    crate::sys::procfs::make_own().context("mounting the sandbox's own /proc")?;
    network::apply_settings(&mut setup.sysctl, setup.own_network)?;
    let stdio = take_stdio()?;
    let image = match &setup.image {
        Some((dir, _)) => {
            let files = Files::again(dir, of_image)?;
            Some(open_image(files, &setup, &opened, &stdio)?)
        }
        None => None,
    };
    let attended = setup.attended;
    let admission = places.map(|file| Admission::new(file, setup.wake_concurrency));
    let listener = listener.into();
    let setup = *setup;
    let boot =
        Boot { setup, opened, user_namespace, stdio, listener, admission, pressure, names, image };
    boot.run(parent, || {
        if !attended {
            log::end_sandbox();
        }
        wire::send(parent, &FromChild::Ready(FIRST_CONTAINER), &[])
    })
}

/// Logs as the command does that makes the container.
pub(super) fn begin_log(setup: &Setup) -> Result<()> {
    match &setup.log {
        (Some(path), format, debug) => log::init(Some(path), *format, *debug),
        (None, _, debug) => log::init_sandbox(*debug),
    }
}

/// Nothing mounted from here on is seen outside; what the host unmounts goes away here too.
pub(super) fn leave_mounts() -> Result<()> {
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
        .context("making the mounts private")
}

fn wait_for_go(parent: &UnixStream) -> Result<()> {
    match wire::receive(parent)? {
        Some((ToChild::Go, _)) => Ok(()),
        _ => bail!("the command that makes the container ended"),
    }
}

/// Waits until one that was made of an image is to go on, for whoever that is.
fn wait_for_taker(parent: &UnixStream, sandbox: &Sandbox, first_stream: u32) -> Result<()> {
    loop {
        let (own, fds) = match wire::receive(parent)? {
            Some((ToChild::Go, note)) => {
                return note.into_iter().try_for_each(|file| Ok(sandbox.note_wake(file)?));
            }
            Some((ToChild::Streams(own), fds)) => (own, fds),
            _ => bail!("the command that makes the container ended"),
        };
        let streams = fds.into_iter().zip(own).map(|(fd, own)| Stream { fd, own }).collect();
        sandbox.change_streams(first_stream, streams)?;
        wire::send(parent, &FromChild::Ready(FIRST_CONTAINER), &[])?;
    }
}

/// Calls createContainer hooks, after those that the command calls.
pub(super) fn call_hooks(setup: &Setup, parent: &UnixStream) -> Result<()> {
    if setup.wait {
        wait_for_go(parent)?;
    }
    hooks::run_in(
        Some(&setup.root),
        "createContainer",
        Some(&setup.create_container),
        &setup.hook_state,
    )
}

/// The host objects that the guest may reach.
pub struct Opened {
    /// The root directory.
    pub root: OwnedFd,
    /// For each mount of the set-up with a host path: the descriptor, and whether it is a single
    /// file.
    pub mounts: Vec<Option<(OwnedFd, bool)>>,
}

impl Opened {
    /// The descriptors: that of the root, and those of mounts, in this order.
    pub fn files(self) -> Vec<OwnedFd> {
        let mounts = self.mounts.into_iter().flatten().map(|(fd, _)| fd);
        std::iter::once(self.root).chain(mounts).collect()
    }
}

/// Opens what an image names, as this container has it; sets its terminal as that was.
fn open_image(image: Files, setup: &Setup, opened: &Opened, stdio: &[Stream; 3]) -> Result<Image> {
    let mut manifest = image.read()?;
    let most = ram_bytes()?.next_multiple_of(RAM_UNIT);
    if manifest.parts.ram_bytes > most {
        bail!("the image in {} is damaged: no guest has so much memory", image.dir.display());
    }
    manifest.parts.granted &= setup.capabilities;
    let volumes = opened.mounts.iter().flatten().map(|(fd, _)| fd.as_fd());
    let mounts: Vec<_> = std::iter::once(opened.root.as_fd()).chain(volumes).collect();
    let may_bind = CapabilitySet::from_bits_retain(setup.capabilities)
        .contains(CapabilitySet::NET_BIND_SERVICE);
    let low_ports = may_bind || setup.new_network;
    let container = &manifest.container;
    let sockets = Sockets { low_ports, in_place: false, kept: &|_| None };
    let files =
        crate::image::open::open_all(&manifest.files, &container.volumes, &mounts, sockets)?;
    let terminal = stdio.iter().find(|stream| rustix::termios::isatty(&stream.fd));
    if let (Some(modes), Some(terminal)) = (container.terminal, terminal) {
        crate::image::open::set_terminal(terminal.fd.as_fd(), modes)
            .context("setting the terminal")?;
    }
    let Files { ram, swap, reap, .. } = image;
    let swap = swap.into_iter().map(Arc::new).collect();
    Ok(Image { parts: manifest.parts, files, ram, swap, reap: reap.into() })
}

/// What the guest is told of a container, but for handles.
pub(super) fn container_spec(setup: &Setup, opened: &Opened) -> ContainerSpec {
    let mounts = setup.mounts.iter().zip(&opened.mounts).map(|(mount, opened)| MountSpec {
        destination: mount.destination.clone(),
        fstype: mount.fstype.clone(),
        host: NO_HANDLE,
        is_file: opened.as_ref().is_some_and(|(_, is_file)| *is_file),
        source: mount.source.clone(),
        options: mount.options.clone(),
    });
    ContainerSpec {
        namespaces: FurtherNamespaces::default(),
        hostname: setup.hostname.clone(),
        root: NO_HANDLE,
        stdio: [NO_HANDLE; 3],
        own_stdio: [false; 3],
        root_readonly: setup.root_readonly && setup.view.is_none(),
        root_layer: match (&setup.view, setup.root_readonly) {
            (Some(_), _) => Some(setup.layer.unwrap_or_default()),
            (None, is_readonly) => setup.layer.filter(|_| !is_readonly),
        },
        mounts: mounts.collect(),
        devices: setup.devices.clone(),
        sysctl: setup.sysctl.clone(),
        masked_paths: setup.masked_paths.clone(),
        readonly_paths: setup.readonly_paths.clone(),
        memory_limit: memory_limit(setup.memory_limit_bytes),
        sleep: setup.sleep.clone(),
    }
}

/// As [`open_all`], for users of `namespace` if all file systems can be mapped for them: with the
/// namespace then.
fn open_mapped(setup: &Setup, namespace: Option<OwnedFd>) -> Result<(Opened, Option<OwnedFd>)> {
    let opened = open_all(setup)?;
    let Some(namespace) = namespace else { return Ok((opened, None)) };
    let volumes = opened.mounts.iter().flatten().map(|(fd, _)| fd);
    for (i, mount) in std::iter::once(&opened.root).chain(volumes).enumerate() {
        if let Err(e) = crate::sys::map_mount(mount, &namespace) {
            tracing::info!(
                "the sandbox process stays the host's root: its files cannot be mapped for \
                others: {e}"
            );
            // What has been mapped stays so.
            return Ok((if i == 0 { opened } else { open_all(setup)? }, None));
        }
    }
    Ok((opened, Some(namespace)))
}

/// Opens the root and the volumes. What is read-only is so on the host too, whatever the guest's
/// kernel does.
pub(super) fn open_all(setup: &Setup) -> Result<Opened> {
    let root = match &setup.view {
        Some(view) => view.open().context("showing the host's files")?,
        None => {
            if setup.root_readonly {
                mount_points::make(&setup.root, &setup.mounts);
            }
            crate::sys::clone_mount(&setup.root, true, setup.root_readonly || setup.layer.is_some())
                .with_context(|| format!("opening root file system {}", setup.root.display()))?
        }
    };
    let mut mounts = Vec::new();
    for mount in &setup.mounts {
        let Some(path) = &mount.host else {
            mounts.push(None);
            continue;
        };
        let fd = crate::sys::clone_mount(path, mount.recursive, mount.readonly()).map_err(|e| {
            match e.raw_os_error() {
                // What is mounted below it cannot be left out in a user namespace.
                Some(libc::EINVAL) if !mount.recursive => {
                    anyhow!("{e}; if the host has mounts below it, use rbind")
                }
                _ => e.into(),
            }
        });
        let fd = fd.with_context(|| {
            format!("opening {} for mount {}", path.display(), mount.destination)
        })?;
        let is_file =
            !nix::sys::stat::fstat(&fd).is_ok_and(|s| s.st_mode & libc::S_IFMT == libc::S_IFDIR);
        mounts.push(Some((fd, is_file)));
    }
    Ok(Opened { root, mounts })
}

/// Takes the standard streams for the guest. Standard error stays ours too, for a last word.
pub(super) fn take_stdio() -> Result<[Stream; 3]> {
    let take = || -> rustix::io::Result<[Stream; 3]> {
        let (input, output, error) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
        let streams = Stream::take_each([input.as_fd(), output.as_fd(), error.as_fd()])?;
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        Ok(streams)
    };
    take().context("taking the standard streams")
}

fn set_oom_score(score: i32) {
    let path = "/proc/self/oom_score_adj";
    if std::fs::read_to_string(path).is_ok_and(|now| now.trim() == score.to_string()) {
        return;
    }
    if let Err(e) = std::fs::write(path, score.to_string()) {
        tracing::warn!("process.oomScoreAdj {score} is not applied: {e}");
    }
}

/// All that is needed to boot.
pub struct Boot {
    /// The set-up.
    pub setup: Setup,
    /// Root and volumes.
    pub opened: Opened,
    /// The user namespace that it is opened for.
    pub user_namespace: Option<OwnedFd>,
    /// Standard input, output and error of the container's program.
    pub stdio: [Stream; 3],
    /// Where commands connect.
    pub listener: UnixListener,
    /// Whom it waits for before it wakes.
    pub admission: Option<Admission>,
    /// What tells that the host is short of memory, if it sleeps then.
    pub pressure: Option<Pressure>,
    /// How the host is told to drop what it remembers of names.
    pub names: Option<names::Files>,
    /// What it is made of that was another one before.
    pub image: Option<Image>,
}

impl Boot {
    /// Boots, calls `ready` when the container is made, and serves until its program ends.
    fn run(self, parent: &UnixStream, ready: impl FnOnce() -> Result<()>) -> Result<i32> {
        let Boot {
            setup,
            opened,
            user_namespace,
            stdio,
            listener,
            admission,
            pressure,
            names,
            image,
        } = self;
        let container = container_spec(&setup, &opened);
        let process = ProcessConfig {
            fast_calls: setup.fast_calls,
            tasks_limit: setup.tasks_limit,
            ..ProcessConfig::default()
        };
        let config = SandboxConfig {
            ram_bytes: ram_bytes()?,
            cpus: std::thread::available_parallelism()
                .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
            files: opened.files(),
            stdio: stdio.map(Some),
            control: Some(listener.into()),
            store: None,
            admission,
            pressure,
            names,
            platform: platform::make(setup.platform, process),
            confine: Some(Confinement {
                network: network_capabilities(setup.capabilities, setup.own_network),
                user_namespace,
                host_uds: setup.host_uds,
                is_shared: setup.is_shared,
                log: log::file(),
            }),
            is_shared: setup.is_shared,
            container,
            image,
            background: setup.background,
        };
        let is_restored = config.image.is_some();
        let first_stream = u32::try_from(config.files.len())?;
        let mut sandbox = Sandbox::boot(config)?;
        ready()?;
        if is_restored {
            // Until then it is nobody's, and ends with the command.
            wait_for_taker(parent, &sandbox, first_stream)?;
            sandbox.wake()?;
        }
        Ok(sandbox.run()?)
    }
}

/// What the sandbox process may keep for the network. That of the host is not a guest's to change.
fn network_capabilities(given: u64, own_network: bool) -> CapabilitySet {
    let given = CapabilitySet::from_bits_retain(given);
    if own_network { given } else { given.difference(CapabilitySet::NET_ADMIN) }
}

/// A limit in bytes, and what of it the guest may have: the VMM and the host's books about the
/// guest are charged to the same cgroup, and the guest must come to its limit before the host does.
pub(super) fn memory_limit(whole: u64) -> MemoryLimit {
    // What ends at once in a small one, stubs with their page tables, is charged for a while yet.
    let overhead = (whole / 16).max(8 << 20).min(whole / 4 + (2 << 20)).min(whole / 2);
    MemoryLimit { whole, guest: whole - overhead }
}

/// Guest RAM: as much as the host has. It costs nothing before it is touched, and a memory limit
/// bounds that.
fn ram_bytes() -> Result<u64> {
    let info = rustix::system::sysinfo();
    match (info.totalram as u64).saturating_mul(u64::from(info.mem_unit)) {
        0 => bail!("this host does not tell how much memory it has"),
        host => Ok(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_leaves_room_for_the_sandbox() {
        assert_eq!(memory_limit(0).guest, 0);
        assert_eq!(memory_limit(6 << 20).guest, 3 << 20);
        assert_eq!(memory_limit(256 << 20).guest, 240 << 20);
        assert_eq!(memory_limit(16 << 20).guest, 10 << 20);
        assert_eq!(memory_limit(32 << 20).guest, 24 << 20);
        assert!(ram_bytes().unwrap() > 1 << 20);
    }
}
