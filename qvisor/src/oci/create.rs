//! Making a container: state directory, cgroup, sandbox process, hooks. Whatever fails, all steps
//! before it are undone.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::fcntl::Flock;
use nix::sched::CloneFlags;
use nix::sys::signalfd::SignalFd;
use oci_spec::runtime::{Hooks, LinuxResources};
use qlib::control::{RootLayer, SleepSpec};
use rustix::thread::CapabilitySet;

use super::bundle::{self, Bundle};
use super::child::{FromChild, Setup, ToChild};
use super::cli::Global;
use super::client::{ANSWER_TIMEOUT, Connection};
use super::error::ContainerError;
use super::member::MEMBER_COMMAND;
use super::pod::{Joined, Pod};
use super::pressure::Trigger;
use super::roots::Roots;
use super::state::{Entry, State, Status, Store, default_root, start_time};
use super::upper::Upper;
use super::view::View;
use super::{background, client, durable, hooks, hub, pod, rootless, rw_dirs, sleep, uds, wire};
use crate::cgroup::{self, Cgroup, Hierarchies, Plan};
use crate::console::{self, Pty};
use crate::image::files::Files;
use crate::image::host::ClockShift;
use crate::image::{Container, Manifest};
use crate::platform;
use crate::sandbox::confine::user_namespace;
use crate::sandbox::hostcall::uds::HostUds;
use crate::sandbox::names::Interface;
use crate::sandbox::pressure::Pull;
use crate::sys::utc::Utc;
use crate::sys::{self, Child, Spawn};

/// The first argument by which a sandbox process knows itself.
pub const SANDBOX_COMMAND: &CStr = c"sandbox-process";

/// What to make.
#[derive(Debug)]
pub struct Request<'a> {
    /// Options of every command.
    pub global: &'a Global,
    /// The ID.
    pub id: &'a str,
    /// The configuration.
    pub bundle: &'a Bundle,
    /// The network namespace: `None` for the caller's own, an empty path for a new one.
    pub network: Option<PathBuf>,
    /// What of the host's files is the root, below a throw-away layer; `None` for the bundle's own.
    pub view: Option<View>,
    /// The image that it is made of.
    pub image: Option<Origin<'a>>,
    /// What its programs do not ask for is read ahead of use then, unless an annotation says more.
    pub background: bool,
    /// The terminal of the container's program.
    pub pty: Option<&'a Pty>,
    /// Its standard streams, if it has no terminal; `None` for those of this process.
    pub streams: Option<[BorrowedFd<'a>; 3]>,
    /// Where the sandbox's process ID is written.
    pub pid_file: Option<&'a Path>,
    /// The sandbox ends with this process.
    pub tied: bool,
    /// Until it is started it is this process's own, and what is left of it if that is killed is
    /// known by that.
    pub claimed: bool,
    /// This process stays while the container runs.
    pub attended: bool,
    /// A signal among these that asks this program to end makes it undo everything first.
    pub signals: &'a SignalFd,
}

/// An image that containers are made of.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// It, whose guest memory has been checked.
    pub files: &'a Files,
    /// The layer that what is written to its root goes to.
    pub layer: Option<RootLayer>,
    /// How their clocks are shifted.
    pub clocks: ClockShift,
    /// The volumes of which they have copies of their own.
    pub rw_dirs: &'a [String],
    /// It is one container's, which goes on.
    pub goes_on: bool,
}

impl<'a> Origin<'a> {
    /// That of an image that says this of itself.
    ///
    /// # Errors
    /// When the host does not tell whether it has been booted since.
    pub fn new(files: &'a Files, manifest: &'a Manifest) -> Result<Self> {
        let Container { layer, rw_dirs, .. } = &manifest.container;
        let clocks = manifest.clocks.shift_from(&manifest.host)?;
        Ok(Origin { files, layer: *layer, clocks, rw_dirs, goes_on: false })
    }
}

impl<'a> Request<'a> {
    /// A detached container of an image, which is this process's until it is told to go on.
    pub fn of_image(
        global: &'a Global,
        id: &'a str,
        bundle: &'a Bundle,
        image: Origin<'a>,
        signals: &'a SignalFd,
    ) -> Self {
        Request {
            global,
            id,
            bundle,
            network: bundle.network(),
            view: None,
            image: Some(image),
            background: false,
            pty: None,
            streams: None,
            pid_file: None,
            tied: false,
            claimed: true,
            attended: false,
            signals,
        }
    }
}

/// A container that has been made.
#[derive(Debug)]
pub struct Created {
    /// Its directory.
    pub entry: Entry,
    /// Its state.
    pub state: State,
    /// Its sandbox process.
    pub child: Child,
    /// For one that is tied, or was claimed: the claim that this process is still there.
    pub owner_lock: Option<Flock<fs::File>>,
    /// The sandbox process' end of its set-up: one that was made of an image waits for
    /// [`ToChild::Go`] there.
    pub setup: UnixStream,
}

/// A container that is being made: its sandbox process boots. Dropped, it is undone.
#[derive(Debug)]
pub struct Begun {
    undo: Undo,
    entry: Entry,
    state: State,
    /// It is this process's own when it is made, too.
    is_kept: bool,
    setup: UnixStream,
    pid_file: Option<PathBuf>,
}

/// Undoes the steps that were taken, in reverse, unless told otherwise.
#[derive(Debug, Default)]
struct Undo {
    entry: Option<Entry>,
    /// Its directory: by that name there may be another by now.
    dir: Option<fs::File>,
    /// Tells who deletes it that this process makes it still.
    owner_lock: Option<Flock<fs::File>>,
    cgroup: Option<Cgroup>,
    child: Option<Child>,
    /// The sandbox of the pod that the container shares, and where its files are in that.
    joined: Option<(OwnedFd, String)>,
    /// The file that tells the container's process, and what it tells.
    pid_file: Option<(PathBuf, i32)>,
    /// Hooks to call, with the state they read.
    poststop: Option<(Hooks, serde_json::Value)>,
}

impl Undo {
    /// Stops making what somebody has asked to be deleted.
    fn go_on(&self) -> Result<()> {
        match &self.entry {
            Some(entry) if !self.has_entry() || entry.is_doomed() => {
                Err(ContainerError::Deleted(entry.id.clone()).into())
            }
            _ => Ok(()),
        }
    }

    /// What a failure comes of, if that is that somebody has deleted what is made.
    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        match self.go_on() {
            Err(deleted) => {
                tracing::debug!("{error:#}");
                deleted
            }
            Ok(()) => error,
        }
    }

    /// True if the container's directory is still that which was made for it.
    fn has_entry(&self) -> bool {
        let inode = |metadata: io::Result<fs::Metadata>| metadata.map(|m| m.ino()).ok();
        match (&self.entry, &self.dir) {
            (Some(entry), Some(dir)) => inode(fs::metadata(&entry.dir)) == inode(dir.metadata()),
            _ => false,
        }
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        // Who would not wait for this process has removed the rest, and called the hooks.
        let (has_entry, is_gone) =
            (self.has_entry(), self.entry.as_ref().is_some_and(|entry| !entry.dir.exists()));
        if let Some((path, pid)) = &self.pid_file
            && fs::read_to_string(path).is_ok_and(|text| text == pid.to_string())
        {
            fs::remove_file(path).ok();
        }
        if let Some(child) = &mut self.child {
            child.kill().ok();
            child.wait().ok();
        }
        if let Some((mounts, place)) = &self.joined
            && let Err(e) = hub::detach(mounts, place)
        {
            tracing::debug!("{e:#}");
        }
        if let Some(cgroup) = &self.cgroup
            && (has_entry || is_gone)
            && let Err(e) = cgroup.remove()
        {
            tracing::warn!("{e:#}");
        }
        if !has_entry {
            return;
        }
        if let Some(entry) = &self.entry {
            match entry.remove() {
                Ok(true) => {}
                Ok(false) => return,
                Err(e) => tracing::warn!("{e:#}"),
            }
            entry.forget_rw_dirs();
        }
        if let Some((hooks, state)) = &self.poststop {
            hooks::run_and_log("poststop", hooks.poststop().as_ref(), state);
        }
    }
}

/// Refuses what this build cannot do, before anything is made.
pub fn check_global(global: &Global) -> Result<()> {
    if global.systemd_cgroup {
        bail!("--systemd-cgroup: the systemd cgroup driver is not supported; use cgroupfs");
    }
    Ok(())
}

/// Makes a container.
///
/// # Errors
/// With nothing left behind.
pub fn create(request: &Request<'_>) -> Result<Created> {
    begin(request)?.finish(request.signals)
}

/// Begins to make a container: until its sandbox process can go on by itself.
///
/// # Errors
/// With nothing left behind.
pub fn begin(request: &Request<'_>) -> Result<Begun> {
    let mut undo = Undo::default();
    match make(request, &mut undo) {
        Ok((entry, state, setup)) => {
            let is_kept = request.tied || request.claimed;
            let pid_file = request.pid_file.map(Path::to_owned);
            Ok(Begun { undo, entry, state, is_kept, setup, pid_file })
        }
        Err(e) => Err(undo.explain(e)),
    }
}

/// As [`begin`], noting the steps in `undo`.
fn make(request: &Request<'_>, undo: &mut Undo) -> Result<(Entry, State, UnixStream)> {
    let Request { global, id, bundle, .. } = *request;
    check_global(global)?;
    let annotations = bundle.annotations();
    let store = Store::new(&global.root)?;
    let joined = pod::first_of(bundle, id, &store);
    let joined = joined.map(|first| Joined::new(first, bundle, &store)).transpose()?;
    if request.image.is_some() && joined.is_some() {
        bail!("a container of a pod with one kernel cannot be made of an image");
    }
    let choices = Choices::new(global, &annotations, request.background)?;
    let platform = match &joined {
        Some(joined) => joined.state.platform,
        None => {
            bundle.check_alone()?;
            platform::choose(global.platform.into(), &default_root())?.kind
        }
    };
    if let (Some(resources), None) = (bundle.resources(), &joined) {
        bundle::check_limits(resources, platform)?;
    }
    let (entry, owner_lock) = store.claim_as_owner(id)?;
    undo.owner_lock = Some(owner_lock);
    undo.entry = Some(entry.clone());
    let dir = fs::File::open(&entry.dir);
    undo.dir = Some(dir.with_context(|| format!("opening {}", entry.dir.display()))?);
    let goes_on = request.image.is_some_and(|image| image.goes_on);
    match goes_on {
        true => durable::check(&entry)?,
        false => durable::check_free(&entry)?,
    }
    entry.be_made(goes_on);
    if let Err(e) = Roots::of_caller().note(store.root()) {
        tracing::warn!("quark list --all-roots will not find the container: {e:#}");
    }

    let resources = bundle.resources();
    let planned = Hierarchies::detect().and_then(|h| Plan::new(&h, &bundle.cgroup_path(id)));
    let mut state = State {
        id: id.to_owned(),
        oci_version: bundle.spec.version().clone(),
        pid: 0,
        start_time: 0,
        step: Status::Creating,
        bundle: bundle.dir.clone(),
        rootfs: bundle.rootfs.clone(),
        created: Utc::now().to_string(),
        owner: nix::unistd::getuid().to_string(),
        annotations,
        platform,
        clocks: request.image.map_or_else(ClockShift::default, |image| image.clocks),
        rw_dirs: request.image.map_or_else(Vec::new, |image| image.rw_dirs.to_vec()),
        layer: request.image.map_or(choices.layer, |image| image.layer),
        is_shared: joined.is_none() && choices.pod == Pod::Shared,
        pod: joined.as_ref().map(|joined| joined.state.id.clone()),
        hub: joined.as_ref().map(|_| hub::new_place()),
        cgroup: planned.as_ref().ok().map(|plan| plan.cgroup.clone()),
        hooks: bundle.spec.hooks().clone(),
        process: bundle.process.clone(),
        init: 0,
    };
    // Whoever is killed from here on leaves a cgroup that `delete` knows.
    entry.save(&state)?;
    let cgroup = match planned.and_then(|plan| plan.make(resources)) {
        Ok(cgroup) => Some(cgroup),
        Err(e) if rootless::is_needed() => {
            // Guest memory is limited in any case, by the size of the guest's RAM.
            if resources.is_some_and(|r| *r != LinuxResources::default()) {
                tracing::warn!(
                    "limits of linux.resources are not applied, as no cgroup is delegated to this \
                    user: {e:#}"
                );
            }
            None
        }
        // What asks for no limit can do without.
        Err(e)
            if resources.is_none_or(|r| *r == LinuxResources::default())
                && e.is::<cgroup::Unavailable>() =>
        {
            tracing::warn!("the sandbox is in no cgroup of its own: {e:#}");
            None
        }
        Err(e) => return Err(e),
    };
    undo.cgroup.clone_from(&cgroup);
    state.cgroup.clone_from(&cgroup);
    undo.go_on()?;

    let record = entry.make_ended()?;
    let control = match &joined {
        Some(joined) => {
            client::refer(&entry, &joined.entry)?;
            Control::Of(joined)
        }
        None => Control::Own(client::listen(&entry)?),
    };

    let (ours, theirs) = UnixStream::pair().context("making the set-up socket")?;
    let child = spawn(request, (control.command(), state.clocks), cgroup.as_ref(), theirs.as_fd())?;
    drop(theirs);
    let child = undo.child.insert(child);
    state.pid = child.pid();
    state.start_time = start_time(state.pid).unwrap_or(0);
    entry.save(&state)?;
    // Whoever deletes it has either seen the process, and ended it, or is seen here.
    undo.go_on()?;

    let mut setup = setup(request, &state, &choices);
    if let Some(Origin { files, rw_dirs, .. }) = request.image {
        rw_dirs::give(&entry, files, rw_dirs, &mut setup.mounts)?;
    }
    let wait = setup.wait;
    match control {
        Control::Own(listener) => {
            let image = request.image;
            let host = (&store, bundle, cgroup.as_ref());
            let image = image.map(|image| image.files);
            equip(&ours, setup, choices, (&listener, &record, image), host)?;
        }
        Control::Of(joined) => {
            undo.joined = Some(joined.mounts.try_clone()?).zip(state.hub.clone());
            let connection = Connection::open(&entry, ANSWER_TIMEOUT)?;
            let fds = [connection.stream().as_fd(), record.as_fd(), joined.mounts.as_fd()];
            let fds: Vec<_> =
                fds.into_iter().chain(joined.users.as_ref().map(AsFd::as_fd)).collect();
            wire::send(&ours, &ToChild::Join(Box::new(setup), joined.namespaces), &fds)
                .context("setting up the container")?;
        }
    }
    if wait && let Some(hooks) = &state.hooks {
        let json = state.oci(Status::Creating);
        undo.poststop = Some((hooks.clone(), state.oci(Status::Stopped)));
        #[allow(deprecated)]
        hooks::run("prestart", hooks.prestart().as_ref(), &json)?;
        undo.go_on()?;
        hooks::run("createRuntime", hooks.create_runtime().as_ref(), &json)?;
        undo.go_on()?;
        wire::send(&ours, &ToChild::Go, &[]).context("setting up the sandbox")?;
    }
    Ok((entry, state, ours))
}

impl Begun {
    /// Becomes readable when it is made, or not.
    pub fn setup(&self) -> BorrowedFd<'_> {
        self.setup.as_fd()
    }

    /// Waits until it is made.
    ///
    /// # Errors
    /// With nothing left behind.
    pub fn finish(mut self, signals: &SignalFd) -> Result<Created> {
        match self.complete(signals) {
            Ok(child) => {
                let Begun { mut undo, entry, state, is_kept, setup, .. } = self;
                let owner_lock = undo.owner_lock.take().filter(|_| is_kept);
                // Nothing is to be undone any more.
                undo.entry = None;
                undo.joined = None;
                undo.cgroup = None;
                undo.pid_file = None;
                undo.poststop = None;
                Ok(Created { entry, state, child, owner_lock, setup })
            }
            Err(e) => Err(self.undo.explain(e)),
        }
    }

    fn complete(&mut self, signals: &SignalFd) -> Result<Child> {
        let Begun { undo, entry, state, is_kept, setup, pid_file } = self;
        console::wait_readable(setup.as_fd(), signals)?;
        match wire::receive(setup)? {
            Some((FromChild::Ready(number), _)) => state.process.container = number,
            Some((FromChild::Failed(message), _)) => bail!("{message}"),
            None => bail!("the sandbox process ended while it was set up; its log may say why"),
        }

        state.step = Status::Created;
        if !*is_kept {
            entry.disown()?;
        }
        entry.save(state)?;
        if let Some(path) = pid_file {
            undo.pid_file = Some((path.clone(), state.pid));
            write_pid_file(path, state.pid)?;
        }
        undo.go_on()?;
        undo.child.take().context("the sandbox process")
    }
}

/// What the command line and annotations say of the sandbox that is made.
struct Choices {
    sleep: SleepSpec,
    trigger: Option<Trigger>,
    host_uds: HostUds,
    layer: Option<RootLayer>,
    pod: Pod,
    background: bool,
}

impl Choices {
    fn new(
        global: &Global,
        annotations: &BTreeMap<String, String>,
        background: bool,
    ) -> Result<Choices> {
        let (sleep, trigger) = sleep::spec(annotations, &global.sleep)?;
        let host_uds = uds::choose(annotations, global.host_uds)?;
        let layer = Upper::choose(annotations, global.rootfs_upper, global.rootfs_size)?;
        let pod = Pod::choose(annotations, global.pod)?;
        let background = background::choose(annotations, background)?;
        Ok(Choices { sleep, trigger, host_uds, layer, pod, background })
    }
}

/// How commands reach the container.
enum Control<'a> {
    /// By this socket of its own.
    Own(UnixListener),
    /// By that of the first container of its pod.
    Of(&'a Joined),
}

impl Control<'_> {
    /// What the process that is made has to know itself by.
    fn command(&self) -> &'static CStr {
        match self {
            Control::Own(_) => SANDBOX_COMMAND,
            Control::Of(_) => MEMBER_COMMAND,
        }
    }
}

/// Sends a sandbox process its set-up, with what comes with that.
fn equip(
    socket: &UnixStream,
    setup: Setup,
    choices: Choices,
    (listener, record, image): (&UnixListener, &fs::File, Option<&Files>),
    (store, bundle, cgroup): (&Store, &Bundle, Option<&Cgroup>),
) -> Result<()> {
    let pressure = choices.trigger.and_then(|trigger| be_told(&trigger, store));
    let pull = pressure.as_ref().map(|(_, pull, _)| *pull);
    let names = cgroup.and_then(Cgroup::names);
    let sleep = SleepSpec { on_pressure: pressure.is_some(), ..choices.sleep };
    let setup = Setup {
        sleep,
        pressure: pull,
        names: names.as_ref().map(|files| match files.version {
            cgroup::Version::V1 => Interface::V1,
            cgroup::Version::V2 => Interface::V2,
        }),
        sysctl: pod::settings(bundle, &setup.id, store),
        ..setup
    };
    let namespace = user_namespace(&setup);
    let places = (setup.wake_concurrency > 0).then(|| store.wake_places()).transpose()?;
    let fds: Vec<_> = [listener.as_fd(), record.as_fd()]
        .into_iter()
        .chain(places.as_ref().map(AsFd::as_fd))
        .chain(pressure.iter().flat_map(|(trigger, _, line)| [trigger.as_fd(), line.as_fd()]))
        .chain(names.iter().flat_map(|files| [files.held.as_fd(), files.reclaim.as_fd()]))
        .chain(image.into_iter().flat_map(Files::fds))
        .chain(namespace.as_ref().map(AsFd::as_fd))
        .collect();
    wire::send(socket, &ToChild::Setup(Box::new(setup)), &fds).context("setting up the sandbox")
}

/// What tells a container that the host is short of memory, and the line of those that sleep then.
/// A host without that, or a user that may not have it, is no reason not to run.
fn be_told(trigger: &Trigger, store: &Store) -> Option<(OwnedFd, Pull, OwnedFd)> {
    let told = trigger.set().and_then(|(fd, pull)| Ok((fd, pull, store.pressure_line()?)));
    told.inspect_err(|e| {
        tracing::warn!(
            "the container will not sleep when the host is short of memory, of which it cannot be \
             told: {e:#}"
        )
    })
    .ok()
}

/// Starts the container's process, in its cgroup and namespaces.
fn spawn(
    request: &Request<'_>,
    (command, clocks): (&CStr, ClockShift),
    cgroup: Option<&Cgroup>,
    socket: BorrowedFd<'_>,
) -> Result<Child> {
    let args = [c"quark".to_owned(), command.to_owned(), CString::new(request.id)?];
    let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let stdio = match (request.pty, request.streams) {
        (Some(pty), _) => [pty.slave.as_fd(); 3],
        (None, Some(streams)) => streams,
        (None, None) => [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
    };
    // In a PID namespace of its own all its stubs end with it, whatever happens.
    let mut new_namespaces = CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWIPC;
    let network = match &request.network {
        None => None,
        Some(path) if path.as_os_str().is_empty() => {
            new_namespaces |= CloneFlags::CLONE_NEWNET;
            None
        }
        Some(path) => Some(
            // Whatever is there instead of a namespace must not be waited for.
            fs::OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(path)
                .with_context(|| format!("network namespace {}", path.display()))?,
        ),
    };
    let membership = cgroup.map(Cgroup::membership).transpose()?.unwrap_or_default();
    if rootless::is_needed() {
        new_namespaces |= CloneFlags::CLONE_NEWUSER;
    }
    let clocks = clocks.offsets()?;
    let spawned = sys::spawn(&Spawn {
        args: &args,
        stdio,
        socket,
        cgroup: membership.born_in.as_ref().map(AsFd::as_fd),
        cgroup_files: membership.join.iter().map(AsFd::as_fd).collect(),
        network: network.as_ref().map(AsFd::as_fd),
        new_namespaces,
        clocks: clocks.as_deref(),
        parent_death_signal: request.tied.then_some(libc::SIGKILL),
        prepare: rootless::is_needed().then_some(&rootless::map_ids),
    });
    match spawned {
        Err(e) if rootless::is_needed() => {
            let why = rootless::obstacle().unwrap_or_else(|| "quark doctor tells more".to_owned());
            Err(e).with_context(|| {
                format!("starting the sandbox process of an ordinary user ({why})")
            })
        }
        other => {
            other.with_context(|| match request.network.as_deref().filter(|_| network.is_some()) {
                Some(path) => format!(
                    "starting the sandbox process in the network namespace {}",
                    path.display()
                ),
                None => "starting the sandbox process".to_owned(),
            })
        }
    }
}

/// True if a network namespace, new (no path) or there already, is not the one that this command is
/// in: the host's.
fn is_own_network(path: &Path) -> bool {
    let is_ours = || sys::is_same_file(path, Path::new("/proc/thread-self/ns/net"));
    // If it cannot be told it is not.
    path.as_os_str().is_empty() || is_ours().is_ok_and(|is_ours| !is_ours)
}

/// A user namespace for the sandbox process of root, if its sockets can do there what they may. The
/// network namespace is not of that user namespace: raw sockets cannot be, nothing of it can be
/// changed, and ports below 1024 are opened where the network is nobody else's.
fn user_namespace(setup: &Setup) -> Option<OwnedFd> {
    let capabilities = CapabilitySet::from_bits_retain(setup.capabilities);
    let ports = setup.new_network || !capabilities.contains(CapabilitySet::NET_BIND_SERVICE);
    let in_namespace = capabilities.intersects(CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN);
    if rootless::is_needed() || in_namespace || !ports {
        return None;
    }
    let made = sys::user_namespace(&user_namespace::id_map());
    made.inspect_err(|e| {
        tracing::info!("the sandbox process stays the host's root: no user namespace for it: {e}")
    })
    .ok()
}

fn setup(request: &Request<'_>, state: &State, choices: &Choices) -> Setup {
    let Request { global, bundle, .. } = *request;
    let spec = &bundle.spec;
    let linux = spec.linux().as_ref();
    let hooks = state.hooks.as_ref();
    let some = |h: &Option<Vec<oci_spec::runtime::Hook>>| h.as_ref().is_some_and(|h| !h.is_empty());
    #[allow(deprecated)]
    let wait = hooks.is_some_and(|h| some(h.prestart()) || some(h.create_runtime()));
    Setup {
        id: state.id.clone(),
        log: (
            global.log.as_ref().map(|l| std::path::absolute(l).unwrap_or_else(|_| l.clone())),
            global.log_format,
            global.debug,
        ),
        attended: request.attended,
        platform: state.platform,
        fast_calls: global.fast_calls,
        root: bundle.rootfs.clone(),
        root_readonly: spec
            .root()
            .as_ref()
            .and_then(oci_spec::runtime::Root::readonly)
            .unwrap_or(false),
        view: request.view.clone(),
        image: request.image.map(|Origin { files, .. }| (files.dir.clone(), files.each().count())),
        clocks: state.clocks,
        background: choices.background,
        hub: state.hub.clone(),
        layer: state.layer,
        mounts: bundle.mounts.clone(),
        hostname: bundle.hostname(),
        devices: bundle.devices.clone(),
        sysctl: Vec::new(),
        masked_paths: linux.and_then(|l| l.masked_paths().clone()).unwrap_or_default(),
        readonly_paths: linux.and_then(|l| l.readonly_paths().clone()).unwrap_or_default(),
        memory_limit_bytes: bundle.memory_limit(),
        tasks_limit: bundle.tasks_limit(),
        sleep: choices.sleep.clone(),
        wake_concurrency: global.wake_concurrency,
        pressure: None,
        names: None,
        host_uds: choices.host_uds,
        is_shared: state.is_shared,
        new_network: request.network.as_ref().is_some_and(|p| p.as_os_str().is_empty()),
        own_network: request.network.as_deref().is_some_and(is_own_network),
        oom_score_adj: spec.process().as_ref().and_then(oci_spec::runtime::Process::oom_score_adj),
        test_kernel: cfg!(debug_assertions)
            .then(|| std::env::var_os("QUARK_TEST_KERNEL"))
            .flatten()
            .map(PathBuf::from),
        capabilities: state.process.capabilities.iter().fold(0, |all, set| all | set),
        wait,
        create_container: hooks.and_then(|h| h.create_container().clone()).unwrap_or_default(),
        hook_state: state.oci(Status::Creating),
    }
}

/// Writes a process ID as containerd expects it: the file appears whole. What is there already is
/// replaced, and no symbolic link is followed, neither at the file's own name nor at that of the
/// file that becomes it.
///
/// # Errors
/// Those of the file system.
pub fn write_pid_file(path: &Path, pid: i32) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let name = path.file_name().ok_or(std::io::ErrorKind::InvalidInput)?;
        let (new, mut file) = new_beside(path, name)?;
        let done = file.write_all(pid.to_string().as_bytes()).and_then(|()| fs::rename(&new, path));
        if done.is_err() {
            fs::remove_file(&new).ok();
        }
        done
    };
    write().with_context(|| format!("writing --pid-file {}", path.display()))
}

/// A new file with a name that nobody can foresee, in the directory of `path`.
fn new_beside(path: &Path, name: &OsStr) -> std::io::Result<(PathBuf, fs::File)> {
    for _ in 0..16 {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let new = path.with_file_name(format!(
            ".{}.{:016x}",
            name.to_string_lossy(),
            u64::from_ne_bytes(random)
        ));
        // O_EXCL follows no link.
        match fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            other => return other.map(|file| (new, file)),
        }
    }
    Err(std::io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_network_is_not_the_containers_by_any_path() {
        assert!(is_own_network(Path::new("")), "a new one");
        assert!(!is_own_network(Path::new("/proc/self/ns/net")));
        assert!(is_own_network(Path::new("/proc/self/ns/mnt")), "another namespace");
        assert!(!is_own_network(Path::new("/nowhere")));
    }

    #[test]
    fn a_pid_file_follows_no_link() {
        let dir = std::env::temp_dir().join(format!("quark-pid-file-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let victim = dir.join("victim");
        fs::write(&victim, "precious").unwrap();
        // What a file beside it could be foreseen to be called, and the file itself.
        for name in [".pid", "pid"] {
            std::os::unix::fs::symlink(&victim, dir.join(name)).unwrap();
        }
        write_pid_file(&dir.join("pid"), 4711).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(fs::read_to_string(dir.join("pid")).unwrap(), "4711");
        assert!(fs::symlink_metadata(dir.join("pid")).unwrap().is_file());
        let mut names: Vec<_> =
            fs::read_dir(&dir).unwrap().flatten().map(|e| e.file_name()).collect();
        names.sort();
        assert_eq!(names, [".pid", "pid", "victim"], "nothing is left beside it");
        fs::remove_dir_all(&dir).unwrap();
    }
}
