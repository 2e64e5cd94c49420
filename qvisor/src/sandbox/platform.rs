//! How guest code gets to run, as a sandbox sees it. A platform is chosen outside
//! (`platform::make`); from then on nobody asks which one it is.
//!
//! It comes in three stages, and each is made of the one before: a [`Platform`] that was chosen, a
//! [`Prepared`] one for which the kernel image can be loaded, a [`Running`] one that takes events.

use std::fmt;
use std::sync::Arc;

use anyhow::Result;
use qlib::control::PlatformStats;
use qlib::platform::{BootInfo, Event};

use super::confine::profiles::Profile;
use super::hostcall::HostSide;
use super::loader::{LoadedKernel, Placement};

/// What a sandbox has for its guest.
#[derive(Clone, Copy, Debug)]
pub struct Resources {
    /// vCPUs that the guest reports.
    pub cpus: u32,
    /// The container's memory limit in bytes, 0 for none.
    pub memory_limit_bytes: u64,
}

/// What the process gives up while its platform is prepared: after everything is open that is
/// needed of the host, and before any process is made that should not have it either.
pub trait Leave {
    /// Leaves the host's file system, for an empty root directory, and its users.
    ///
    /// # Errors
    /// When it cannot.
    fn leave_host(&self) -> Result<()>;
    /// Enters a Landlock domain, in which no file of proc(5) can be written.
    ///
    /// # Errors
    /// When it cannot.
    fn enter_domain(&self) -> Result<()>;
}

/// A platform that was chosen.
pub trait Platform: fmt::Debug {
    /// Address space for file windows, in bytes.
    fn window_bytes(&self) -> u64;

    /// Opens what it needs of the host, has the process `leave` it, and begins to make what user
    /// code will run in. The calling thread must live as long as the process.
    ///
    /// # Errors
    /// When this host cannot, or the process cannot leave it.
    fn prepare(
        self: Box<Self>,
        host: &Arc<HostSide>,
        resources: Resources,
        leave: Option<&dyn Leave>,
    ) -> Result<Box<dyn Prepared>>;
}

/// How a kernel is entered.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// It begins.
    Boot,
    /// It goes on, in guest memory that has been filled; these blocks of it are user memory.
    Again(&'a [u64]),
}

/// A platform for which the kernel image can be loaded.
pub trait Prepared {
    /// Where the image is to lie, and with what beside it.
    fn placement(&self) -> Placement;

    /// Waits for what [`Platform::prepare`] began, while this process is not confined.
    ///
    /// # Errors
    /// When it has failed.
    fn finish(&self) -> Result<()>;

    /// The kinds of threads that this one is and makes.
    fn profiles(&self) -> &'static [Profile];

    /// Enters the kernel, with `info` as far as all platforms tell it alike, and its own besides.
    ///
    /// # Errors
    /// When the host refuses something.
    fn start(
        self: Box<Self>,
        loaded: &LoadedKernel,
        info: BootInfo,
        entry: Entry<'_>,
    ) -> Result<Arc<dyn Running>>;
}

/// A platform on which the guest kernel runs, as long as this lives.
pub trait Running: Send + Sync {
    /// Gives the guest kernel an event. May be called on several threads at once.
    fn dispatch(&self, event: &Event);

    /// What it counts, for `quark events --stats`.
    fn stats(&self) -> PlatformStats;

    /// The sandbox's cgroup has so many tasks at most from now on, 0 for no limit.
    fn limit_tasks(&self, limit: u32);
}
