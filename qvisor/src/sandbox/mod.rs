//! The sandbox process: guest memory, the kernel image in it, the host calls it makes, and the event loop.
//!
//! The process that boots a sandbox is already in the container's namespaces and cgroup. It has no other thread when it
//! boots, and becomes the event loop.

pub mod backtrace;
pub mod confine;
pub mod control;
pub mod ended;
pub mod events;
pub mod hostcall;
pub mod loader;
pub mod memory;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use qlib::control::{ContainerSpec, ProcessSpec, Reply, Request};
use qlib::host::NO_HANDLE;
use qlib::kvm::KvmInfo;
use qlib::pagetable::USER_END;
use qlib::platform::{ABI_VERSION, BOOT_MAGIC, BootInfo, Event, PLATFORM_KVM, PLATFORM_PROCESS};
use qlib::{Gpa, PAGE_SIZE, Va};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::platform::PlatformKind;
use crate::platform::kvm::{self, KvmPlatform, Shape};
use crate::platform::process::{Leave, ProcessConfig, ProcessPlatform, cost};
use crate::store::Store;
use crate::streams::Stream;
use confine::profiles::Profile;
use confine::{ConfineError, Confinement};
use control::{ControlServer, Mailbox, Replies};
use events::Poller;
use hostcall::HostSide;
use loader::{IMAGE_START, LoadedKernel, LoaderError, MAILBOX_BYTES, OwnFile};
use memory::ops::{self, Kernel};
use memory::{GuestMemory, MemoryError, RAM_UNIT, WINDOW_POOL_BYTES};

/// How long the kernel may take to make a container or load a program.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// What a sandbox is made of.
#[derive(Debug)]
pub struct SandboxConfig {
    /// Guest RAM in bytes; rounded up to 4 MiB. It is sparse: what is not touched costs nothing.
    pub ram_bytes: u64,
    /// vCPUs that the guest reports.
    pub cpus: u32,
    /// Root directory of the container (an O_PATH descriptor will do).
    pub root: OwnedFd,
    /// Directories and files for the mounts of kind "host".
    pub mounts: Vec<OwnedFd>,
    /// Standard input, output and error of the container's first process.
    pub stdio: [Option<Stream>; 3],
    /// The listening control socket, if the sandbox can be controlled.
    pub control: Option<OwnedFd>,
    /// The directory in which the swap store keeps its nameless files, and how many bytes they may take. By default
    /// /var/tmp, which is on a disk, and twice the RAM.
    pub store: Option<(OwnedFd, u64)>,
    /// How guest code runs.
    pub platform: PlatformKind,
    /// How the process platform works.
    pub process: ProcessConfig,
    /// What the process keeps of its privileges; `None` for all, in tests. It takes [`crate::procfs::make_own`] before.
    pub confine: Option<Confinement>,
    /// What the container looks like. `root` is ignored; `host` of a mount is an index into `mounts`.
    pub container: ContainerSpec,
}

/// Why a sandbox does not boot.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// Guest memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The platform.
    #[error("{0:#}")]
    Platform(anyhow::Error),
    /// The kernel image.
    #[error(transparent)]
    Loader(#[from] LoaderError),
    /// The host refused something.
    #[error("cannot {0}: {1}")]
    Host(&'static str, Errno),
    /// A mount names a descriptor that is not there.
    #[error("mount {0} has no descriptor")]
    NoMount(String),
    /// A privilege could not be given up.
    #[error(transparent)]
    Confine(#[from] ConfineError),
    /// The kernel refused.
    #[error("{message}")]
    Refused {
        /// Linux errno.
        errno: i32,
        /// What failed.
        message: String,
    },
    /// The kernel gave an answer that does not fit, or none in time.
    #[error("the guest kernel does not answer as it should: {0}")]
    Confused(String),
    /// The sandbox ended while it booted.
    #[error("the sandbox ended with status {0} while it started")]
    Ended(i32),
}

/// A booted sandbox.
pub struct Sandbox {
    guest: Guest,
    host: Arc<HostSide>,
    mailbox: Mailbox,
    server: ControlServer,
    stdio: [u32; 3],
}

/// How the guest kernel runs, and how an event gets to it.
enum Guest {
    /// In this process. The stubs live as long as the platform does.
    Process { _platform: ProcessPlatform, kernel: Kernel },
    /// In a virtual machine.
    Kvm(Arc<KvmPlatform>),
}

impl Guest {
    fn dispatch(&self, event: &Event) {
        match self {
            Guest::Process { kernel, .. } => kernel.dispatch(event),
            Guest::Kvm(platform) => platform.dispatch(event),
        }
    }
}

/// The most detailed level that is logged, as the kernel counts them.
fn log_level() -> u32 {
    use tracing::level_filters::LevelFilter;
    match LevelFilter::current() {
        LevelFilter::OFF => 0,
        LevelFilter::ERROR => 1,
        LevelFilter::WARN => 2,
        LevelFilter::INFO => 3,
        LevelFilter::DEBUG => 4,
        _ => 5,
    }
}

fn refused(what: &'static str) -> impl FnOnce(Errno) -> BootError {
    move |e| BootError::Host(what, e)
}

impl Sandbox {
    /// Boots the kernel and makes the container. Call it while the process has one thread.
    pub fn boot(config: SandboxConfig) -> Result<Sandbox, BootError> {
        ops::ignore_signals();
        ops::limit_malloc();
        raise_limits();
        // The guest has a umask of its own.
        rustix::process::umask(rustix::fs::Mode::empty());
        let ram_bytes = config.ram_bytes.max(RAM_UNIT).next_multiple_of(RAM_UNIT);
        let window_bytes = match config.platform {
            PlatformKind::Process => WINDOW_POOL_BYTES,
            PlatformKind::Kvm => kvm::WINDOW_BYTES,
        };
        let memory = Arc::new(GuestMemory::at_random_base(ram_bytes, window_bytes)?);
        memory::copy::set_crash_hook(ops::crash);

        let poller = Arc::new(Poller::new().map_err(refused("make the event loop"))?);
        let (store_dir, quota_bytes) = match config.store {
            Some(store) => store,
            None => (default_store_dir().map_err(refused("open /var/tmp"))?, ram_bytes.saturating_mul(2)),
        };
        let store = Store::opened(store_dir, quota_bytes);
        let host = HostSide::new(memory.clone(), poller, Arc::new(Replies::new()), Some(store));
        let host = Arc::new(host.map_err(refused("open /proc/self/fd"))?);
        host.replies.make_bell().map_err(refused("make the control socket's bell"))?;
        ops::set_host(host.clone()).map_err(refused("boot a second sandbox in one process"))?;

        let mounts: Vec<_> = std::iter::once(&config.root).chain(&config.mounts).map(AsFd::as_fd).collect();
        let confine = config.confine.map(|confinement| (confinement, &mounts[..]));
        let (guest, mailbox) = match config.platform {
            PlatformKind::Process => {
                let memory_limit_bytes = config.container.memory_limit_bytes;
                let process = ProcessConfig { memory_limit_bytes, ..config.process };
                boot_process(&host, process, config.cpus, confine)?
            }
            PlatformKind::Kvm => boot_kvm(&host, config.cpus, confine)?,
        };

        let root = host.add_mount(config.root).map_err(refused("use the root directory"))?;
        let mut handles = Vec::new();
        for fd in config.mounts {
            handles.push(host.add_mount(fd).map_err(refused("use a mount's descriptor"))?);
        }
        let mut container = ContainerSpec { root, ..config.container };
        for mount in container.mounts.iter_mut().filter(|m| m.fstype == "host") {
            let handle = handles.get(mount.host as usize);
            mount.host = *handle.ok_or_else(|| BootError::NoMount(mount.destination.clone()))?;
        }
        let mut stdio = [NO_HANDLE; 3];
        for (to, stream) in stdio.iter_mut().zip(config.stdio) {
            if let Some(stream) = stream {
                *to = host.add_stdio(stream).map_err(refused("use a standard stream"))?;
            }
        }
        let mailbox = Mailbox { gpa: mailbox, bytes: MAILBOX_BYTES };
        let mut server = ControlServer::new(host.clone(), mailbox, stdio, config.control)
            .map_err(refused("listen on the control socket"))?;
        if let Guest::Kvm(platform) = &guest {
            server.set_exits(platform.exits());
        }
        let mut sandbox = Sandbox { guest, host, mailbox, server, stdio };
        match sandbox.request(&Request::Create(container))? {
            Reply::Done => {}
            other => return Err(BootError::Confused(format!("{other:?}"))),
        }
        ops::trim_process();
        Ok(sandbox)
    }

    /// Starts the container's first process, on the streams given at boot; its guest process id.
    pub fn start(&mut self, process: ProcessSpec) -> Result<u32, BootError> {
        match self.request(&Request::Start(ProcessSpec { stdio: self.stdio, ..process }))? {
            Reply::Pid(pid) => Ok(pid),
            other => Err(BootError::Confused(format!("{other:?}"))),
        }
    }

    /// Makes a request of the VMM's own and runs the event loop until it is answered.
    fn request(&mut self, request: &Request) -> Result<Reply, BootError> {
        let guest = &self.guest;
        let dispatch = |event: &Event| guest.dispatch(event);
        let reply = self.mailbox.local(&self.host, request, &dispatch).map_err(refused("ask the guest kernel"))?;
        let end = Instant::now() + START_TIMEOUT;
        loop {
            match reply.try_recv() {
                Ok(Reply::Error { errno, message }) => return Err(BootError::Refused { errno, message }),
                Ok(reply) => return Ok(reply),
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => {
                    return Err(BootError::Confused("it dropped a request".into()));
                }
            }
            if let Some(status) = self.host.poller.exit_status() {
                return Err(BootError::Ended(status));
            }
            if Instant::now() > end {
                return Err(BootError::Confused(format!("no answer in {} s", START_TIMEOUT.as_secs())));
            }
            // Answers from other threads wake the loop.
            let step = Timespec { tv_sec: 1, tv_nsec: 0 };
            let turned = self.host.poller.clone().turn(Some(step), &dispatch, &mut self.server);
            turned.map_err(refused("wait for events"))?;
        }
    }

    /// Runs until the container's first process has ended; its exit status.
    pub fn run(mut self) -> Result<i32, BootError> {
        let guest = self.guest;
        let dispatch = |event: &Event| guest.dispatch(event);
        self.host.poller.clone().run(&dispatch, &mut self.server).map_err(refused("wait for events"))
    }
}

/// What every platform tells the kernel alike.
fn boot_info(host: &HostSide, loaded: &LoadedKernel, cpus: u32) -> Result<BootInfo, BootError> {
    Ok(BootInfo {
        magic: BOOT_MAGIC,
        version: ABI_VERSION,
        cpus: cpus.max(1),
        platform: PLATFORM_PROCESS,
        log_level: log_level(),
        phys_base: host.memory.base(),
        ram_bytes: host.memory.ram_bytes(),
        free_start: loaded.free_start,
        image_start: IMAGE_START,
        mailbox: loaded.mailbox,
        mailbox_bytes: MAILBOX_BYTES,
        user_min: Va(0x1_0000),
        user_max: Va(USER_END.0 - PAGE_SIZE),
        vdso: Va(0),
        hwcap: rustix::param::linux_hwcap().0 as u64,
        hwcap2: 0,
        fast_entry: Va(0),
        fast_after: 0,
        fpstate_bytes: 0,
        poison_frames: u32::from(std::env::var_os("QUARK_POISON_FRAMES").is_some()),
        host_bytes_per_process: 0,
        host_bytes_per_thread: 0,
        max_processes: u32::MAX,
        max_threads: u32::MAX,
        seed: seed().map_err(refused("get random bytes"))?,
        kvm: KvmInfo::default(),
    })
}

/// What a process gives up, and the root and volumes that it keeps.
type Confine<'a> = Option<(Confinement, &'a [BorrowedFd<'a>])>;

impl Leave for (Confinement, &[BorrowedFd<'_>]) {
    fn leave_host(&self) -> anyhow::Result<()> {
        Ok(self.0.leave_host()?)
    }

    fn enter_domain(&self) -> anyhow::Result<()> {
        Ok(Confinement::enter_domain(self.1)?)
    }
}

/// Enters the kernel in this process.
fn boot_process(
    host: &Arc<HostSide>,
    config: ProcessConfig,
    cpus: u32,
    confine: Confine<'_>,
) -> Result<(Guest, Gpa), BootError> {
    let own_file = OwnFile::open();
    let leave = confine.as_ref().map(|confine| confine as &dyn Leave);
    let platform = ProcessPlatform::begin(host.memory.clone(), config, leave).map_err(BootError::Platform)?;
    let mut operations = ops::operations();
    platform.fill_ops(&mut operations);
    let place =
        loader::Place { base: host.memory.base(), extra_bytes: 0, own_file: own_file.as_ref(), ops: Some(operations) };
    let loaded = loader::load(&host.memory, loader::embedded_image(), place)?;
    loaded.seal(&host.memory)?;
    platform.finish().map_err(BootError::Platform)?;
    let info = BootInfo {
        user_min: platform.user_min(),
        user_max: platform.user_max(),
        vdso: platform.vdso(),
        hwcap2: platform.hwcap2(),
        fast_entry: platform.fast_entry(),
        fast_after: platform.fast_after(),
        fpstate_bytes: platform.fpstate_bytes(),
        host_bytes_per_process: cost::PROCESS_BYTES,
        host_bytes_per_thread: cost::THREAD_BYTES,
        max_processes: platform.max_processes(),
        max_threads: platform.max_threads(),
        ..boot_info(host, &loaded, cpus)?
    };
    if let Some((confinement, _)) = confine {
        confinement.enter(&[Profile::Process])?;
    }
    let kernel = ops::enter(host.memory.clone(), &loaded, &info)?;
    platform.set_dispatch(Box::new(move |event| kernel.dispatch(event)));
    platform.set_outside(Box::new(OutsideOf { host: host.clone(), kernel }));
    host.memory.set_dropped(platform.file_sweeper());
    Ok((Guest::Process { _platform: platform, kernel }, loaded.mailbox))
}

/// Starts the kernel in a virtual machine.
fn boot_kvm(host: &Arc<HostSide>, cpus: u32, confine: Confine<'_>) -> Result<(Guest, Gpa), BootError> {
    let shape = Shape::new(cpus).map_err(BootError::Platform)?;
    let platform = KvmPlatform::new(host.clone(), shape).map_err(BootError::Platform)?;
    let own_file = OwnFile::open();
    let extra_bytes = kvm::extra_bytes(shape.cpus);
    let place = loader::Place { base: shape.base, extra_bytes, own_file: own_file.as_ref(), ops: None };
    let loaded = loader::load(&host.memory, loader::embedded_image(), place)?;
    loaded.seal(&host.memory)?;
    let info = BootInfo { platform: PLATFORM_KVM, ..boot_info(host, &loaded, shape.cpus)? };
    if let Some((confinement, mounts)) = confine {
        confinement.leave_host()?;
        Confinement::enter_domain(mounts)?;
        confinement.enter(&[Profile::Loop, Profile::Vcpu])?;
    }
    platform.start(&loaded, info).map_err(BootError::Platform)?;
    confine::narrow(Profile::Loop)?;
    Ok((Guest::Kvm(platform), loaded.mailbox))
}

/// What the guest watches, for a receiver of the platform that looks at it itself for a while.
struct OutsideOf {
    host: Arc<HostSide>,
    kernel: Kernel,
}

impl crate::platform::process::Outside for OutsideOf {
    fn begin(&self) {
        self.host.poller.look_begin();
    }

    fn look(&self) -> bool {
        self.host.poller.look(&|event| self.kernel.dispatch(event))
    }

    fn end(&self) {
        self.host.poller.look_end();
    }
}

/// The directory in which the swap store keeps its files.
pub const STORE_DIR: &str = "/var/tmp";

fn default_store_dir() -> Result<OwnedFd, Errno> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(STORE_DIR, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn seed() -> Result<[u8; 32], Errno> {
    let mut seed = [0; 32];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
    Ok(seed)
}

/// Every handle and every window holds a descriptor.
/// The sandbox has files of its own, guest RAM among them. What limits a caller has for files count for the guest's programs
/// ([`crate::oci`] passes them on), and the guest kernel sees to them.
fn raise_limits() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).ok();
    // What a hard limit that stays keeps from being made is told when it is.
    lift_limit(Resource::Fsize).ok();
}

/// Takes a limit of this process away; without CAP_SYS_RESOURCE its hard limit stays.
fn lift_limit(resource: rustix::process::Resource) -> Result<(), Errno> {
    use rustix::process::{Rlimit, getrlimit, setrlimit};
    setrlimit(resource, Rlimit { current: None, maximum: None }).or_else(|_| {
        let maximum = getrlimit(resource).maximum;
        setrlimit(resource, Rlimit { current: maximum, maximum })
    })
}

/// Runs one process in a sandbox over `root_path`, with the standard streams of this process; its exit status.
/// `container.root` and `process.stdio` are filled in here.
pub fn run_simple(
    root_path: &std::path::Path,
    container: ContainerSpec,
    process: ProcessSpec,
) -> Result<i32, BootError> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(root_path, flags, Mode::empty()).map_err(refused("open the root directory"))?;
    let config = SandboxConfig {
        ram_bytes: 4 << 30,
        cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        root,
        mounts: Vec::new(),
        stdio: [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()].map(|s| Stream::take(s).ok()),
        control: None,
        store: None,
        platform: PlatformKind::Process,
        process: ProcessConfig::default(),
        confine: None,
        container,
    };
    let mut sandbox = Sandbox::boot(config)?;
    sandbox.start(process)?;
    sandbox.run()
}
