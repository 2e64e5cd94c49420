//! What the sandbox process gives up before the first instruction of its guest kernel: the host's file system, capabilities, the
//! ways to get privileges back, the system calls that it does not need. `doc/security.md` tells what remains and why.
//!
//! In this order: the zygote has been started and every descriptor opened; then [`root`], [`privileges`], the
//! filters. The process has one thread.

mod privileges;
mod root;

use rustix::io::Errno;
use rustix::thread::CapabilitySet;

pub use privileges::{FILE_CAPABILITIES, NETWORK_CAPABILITIES};

/// What a sandbox process keeps.
#[derive(Clone, Copy, Debug)]
pub struct Confinement {
    /// Of [`NETWORK_CAPABILITIES`], those that the container's programs may have.
    pub network: CapabilitySet,
}

/// Why a process could not be confined. It must not go on then.
#[derive(Debug, thiserror::Error)]
#[error("cannot confine the sandbox process: {step}: {errno}")]
pub struct ConfineError {
    /// What failed.
    pub step: &'static str,
    /// Why.
    pub errno: Errno,
}

fn step(step: &'static str) -> impl FnOnce(Errno) -> ConfineError {
    move |errno| ConfineError { step, errno }
}

impl Confinement {
    /// Gives everything else up, for good.
    ///
    /// # Errors
    /// With the first step that failed.
    pub fn enter(&self) -> Result<(), ConfineError> {
        root::leave().map_err(step("leaving the host's file system"))?;
        crate::procfs::be_there().map_err(step("entering its own /proc"))?;
        privileges::keep(FILE_CAPABILITIES | self.network.intersection(NETWORK_CAPABILITIES))
    }
}
