//! How a sandbox is made, from top to bottom: [`build`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use qlib::control::{ContainerSpec, FIRST_CONTAINER, Reply, Request};
use qlib::kvm::KvmInfo;
use qlib::pagetable::USER_END;
use qlib::platform::{ABI_VERSION, BOOT_MAGIC, BootInfo, PLATFORM_PROCESS};
use qlib::{Gpa, PAGE_SIZE, Va};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::admission::Admission;
use super::confine::{ConfineError, Confinement};
use super::control_server::{AsMade, ControlServer, hand_over};
use super::events::Poller;
use super::hostcall::HostSide;
use super::hostcall::image::PutBackError;
use super::image::Image;
use super::loader::{
    IMAGE_START, LoadedKernel, LoaderError, MAILBOX_BYTES, OwnFile, Placement, embedded_image, load,
};
use super::mailbox::{Mailbox, Replies};
use super::memory::{GuestMemory, MemoryError, RAM_UNIT, copy};
use super::names;
use super::platform::{Entry, Leave, Platform, Resources};
use super::pressure::Pressure;
use super::{Sandbox, limits, panic};
use crate::store::{STORE_DIR, Store};
use crate::streams::Stream;
use crate::sys;

/// What a sandbox is made of.
#[derive(Debug)]
pub struct SandboxConfig {
    /// Guest RAM in bytes; rounded up to 4 MiB. It is sparse: what is not touched costs nothing.
    pub ram_bytes: u64,
    /// vCPUs that the guest reports.
    pub cpus: u32,
    /// Root directory of the container (an O_PATH descriptor will do), and directories and files
    /// for its mounts of kind "host", in their order.
    pub files: Vec<OwnedFd>,
    /// Standard input, output and error of the container's first process.
    pub stdio: [Option<Stream>; 3],
    /// The listening control socket, if the sandbox can be controlled.
    pub control: Option<OwnedFd>,
    /// The directory in which the swap store keeps its nameless files, and how many bytes they may
    /// take. By default /var/tmp, which is on a disk, and twice the RAM.
    pub store: Option<(OwnedFd, u64)>,
    /// Whom it waits for before it wakes.
    pub admission: Option<Admission>,
    /// What tells that the host is short of memory, if it sleeps then.
    pub pressure: Option<Pressure>,
    /// How the host is told to drop what it remembers of names, if it can be.
    pub names: Option<names::Files>,
    /// How guest code gets to run.
    pub platform: Box<dyn Platform>,
    /// What the process keeps of its privileges; `None` for all, in tests. It takes
    /// [`crate::sys::procfs::make_own`] before.
    pub confine: Option<Confinement>,
    /// Further containers may be made in it.
    pub is_shared: bool,
    /// What the container looks like. Handles in it are ignored.
    pub container: ContainerSpec,
    /// It goes on where another one was: asleep, with the processes of that.
    pub image: Option<Image>,
    /// What its programs do not ask for is read ahead of use then.
    pub background: bool,
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
    /// It cannot go on where another one was.
    #[error(transparent)]
    PutBack(#[from] PutBackError),
    /// The sandbox ended while it booted.
    #[error("the sandbox ended with status {0} while it started")]
    Ended(i32),
}

pub(super) fn refused(what: &'static str) -> impl FnOnce(Errno) -> BootError {
    move |e| BootError::Host(what, e)
}

/// Boots the kernel and makes the container.
pub(super) fn build(config: SandboxConfig) -> Result<Sandbox, BootError> {
    let SandboxConfig { files, container, confine, platform, .. } = config;
    let limit = container.memory_limit.guest;
    let resources = Resources { cpus: config.cpus, memory_limit_bytes: limit };

    prepare_process();
    let image = config.image;
    let memory = match &image {
        Some(image) => Arc::new(image.memory(platform.window_bytes())?),
        None => make_memory(config.ram_bytes, platform.window_bytes())?,
    };
    let host = make_host(memory, config.store, image.as_ref())?;
    host.note_limit(limit);
    host.admit_by(config.admission);
    host.be_told_by(config.pressure);
    host.drop_names_by(config.names);
    let own_file = OwnFile::open();

    // From here on the process has less and less: the host's files while the platform is prepared,
    // all that the kernel does not need before its first instruction.
    let fds: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    let leave = confine.as_ref().map(|confinement| Leaving { confinement, mounts: &fds });
    let leave = leave.as_ref().map(|leave| leave as &dyn Leave);
    let platform = platform.prepare(&host, resources, leave).map_err(BootError::Platform)?;
    let loaded = load_kernel(&host.memory, &platform.placement(), own_file.as_ref())?;
    platform.finish().map_err(BootError::Platform)?;
    let info = boot_info(&host, &loaded, config.cpus)?;
    if let Some(confinement) = confine {
        host.allow_uds(confinement.host_uds);
        confinement.enter(platform.profiles())?;
    }
    if let Some(image) = &image {
        image.fill(&host.memory).map_err(refused("read the memory of the image"))?;
    }
    let entry = image.as_ref().map_or(Entry::Boot, |image| Entry::Again(&image.parts.user_blocks));
    let platform = platform.start(&loaded, info, entry).map_err(BootError::Platform)?;

    let (container, _) = hand_over(&host, files, config.stdio, container)
        .map_err(refused("use the root, mounts and standard streams"))?;
    host.output.note_streams(container.stdio);
    let mailbox = Mailbox { gpa: loaded.mailbox, bytes: MAILBOX_BYTES };
    let server = ControlServer::new(
        host.clone(),
        platform.clone(),
        mailbox,
        config.is_shared,
        config.control,
        AsMade { limit: container.memory_limit, sleep: container.sleep.clone(), is_paused: false },
    )
    .map_err(refused("listen on the control socket"))?;
    let request = match image {
        Some(Image { parts, files, .. }) => {
            host.put_back(&parts, files)?;
            host.note_layer(container.root_layer);
            let ContainerSpec { hostname, memory_limit: limit, sleep, .. } = container;
            let hostname = Some(hostname);
            let background = config.background;
            Request::Restored { hostname, limit, sleep, paused: false, background }
        }
        None => Request::Create(container),
    };
    let mut sandbox = Sandbox { platform, host, mailbox, server };
    match sandbox.request(&request)? {
        Reply::Container(FIRST_CONTAINER) | Reply::Done => {}
        other => return Err(BootError::Confused(format!("{other:?}"))),
    }
    sys::trim_process();
    Ok(sandbox)
}

/// What a process is before it becomes a sandbox.
fn prepare_process() {
    sys::ignore_signals();
    sys::limit_malloc();
    limits::raise();
    copy::set_crash_hook(panic::crash);
    // Before Linux 6.4 rustix reads the auxiliary vector from /proc, at its first use of it, which
    // must not be after that is gone.
    let _ = rustix::param::linux_hwcap();
    // The guest has a umask of its own.
    rustix::process::umask(Mode::empty());
}

fn make_memory(ram_bytes: u64, window_bytes: u64) -> Result<Arc<GuestMemory>, BootError> {
    let ram_bytes = ram_bytes.max(RAM_UNIT).next_multiple_of(RAM_UNIT);
    Ok(Arc::new(GuestMemory::at_random_base(ram_bytes, window_bytes)?))
}

/// What the kernel's host calls reach: memory, the event loop, the swap store.
fn make_host(
    memory: Arc<GuestMemory>,
    store: Option<(OwnedFd, u64)>,
    image: Option<&Image>,
) -> Result<Arc<HostSide>, BootError> {
    let poller = Arc::new(Poller::new().map_err(refused("make the event loop"))?);
    let (dir, quota_bytes) = match store {
        Some(store) => store,
        // Its quota follows from the memory limit.
        None => (default_store_dir().map_err(refused("open /var/tmp"))?, 0),
    };
    let store = match image {
        Some(image) => image.store(dir, quota_bytes)?,
        None => Store::opened(dir, quota_bytes),
    };
    let host = HostSide::new(memory, poller, Arc::new(Replies::new()), Some(store));
    let host = Arc::new(host.map_err(refused("open /proc/self/fd"))?);
    host.replies.make_wakeup().map_err(refused("make the control server's eventfd"))?;
    Ok(host)
}

fn default_store_dir() -> Result<OwnedFd, Errno> {
    rustix::fs::open(STORE_DIR, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// What a process leaves behind, and the root and volumes that it keeps.
struct Leaving<'a> {
    confinement: &'a Confinement,
    mounts: &'a [BorrowedFd<'a>],
}

impl Leave for Leaving<'_> {
    fn leave_host(&self) -> anyhow::Result<()> {
        Ok(self.confinement.leave_host()?)
    }

    fn enter_domain(&self) -> anyhow::Result<()> {
        Ok(self.confinement.enter_domain(self.mounts)?)
    }
}

fn load_kernel(
    memory: &GuestMemory,
    placement: &Placement,
    own_file: Option<&OwnFile>,
) -> Result<LoadedKernel, BootError> {
    let loaded = load(memory, embedded_image(), placement, own_file)?;
    loaded.seal(memory)?;
    Ok(loaded)
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
        vdso_bytes: 0,
        vdso_copy: Gpa(0),
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
        max_tasks: u32::MAX,
        seed: seed().map_err(refused("get random bytes"))?,
        kvm: KvmInfo::default(),
    })
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

fn seed() -> Result<[u8; 32], Errno> {
    let mut seed = [0; 32];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
    Ok(seed)
}
