//! What the sandbox process gives up before the first instruction of its guest kernel: the host's
//! file system, capabilities, the ways to get privileges back, the system calls that it does not
//! need. `doc/security.md` tells what remains and why.
//!
//! In this operation: every descriptor has been opened; then [`root`], [`user_namespace`] and
//! [`landlock`], which hold for the zygote too, that is made next; then [`privileges`] and
//! [`filter`]. The process has one thread then, and every other inherits all of it.

pub mod end;
mod filter;
pub mod landlock;
pub mod names;
mod privileges;
pub mod profiles;
mod root;
pub mod user_namespace;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::hostcall::uds::HostUds;
use profiles::Profile;

pub use privileges::{FILE_CAPABILITIES, NETWORK_CAPABILITIES};

/// What a sandbox process keeps.
#[derive(Debug)]
pub struct Confinement {
    /// Of [`NETWORK_CAPABILITIES`], those that the container's programs may have.
    pub network: CapabilitySet,
    /// A user namespace to enter, for which root and volumes are id-mapped.
    pub user_namespace: Option<OwnedFd>,
    /// AF_UNIX sockets in volumes.
    pub host_uds: HostUds,
    /// Files of further containers are mounted in its root from outside ([`crate::sys::hub`]).
    pub is_shared: bool,
    /// The log's file, for a last line, and whether its lines are JSON.
    pub log: Option<(OwnedFd, bool)>,
}

/// The threads of this process are filtered.
static FILTERED: AtomicBool = AtomicBool::new(false);

/// They may make AF_UNIX sockets.
static HOST_UDS: AtomicBool = AtomicBool::new(false);

/// What threads of this process may do.
fn own_calls() -> Vec<profiles::Call> {
    // Asked for the first time while it may be.
    static RECEIVE_ENDS: OnceLock<bool> = OnceLock::new();
    let mut calls = profiles::calls();
    if *RECEIVE_ENDS.get_or_init(crate::sys::receive_ends) {
        calls = profiles::without_end_of_stubs(calls);
    }
    if HOST_UDS.load(Ordering::Acquire) { calls } else { profiles::without_unix(calls) }
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
    /// Leaves the host's file system and users, for good. It takes [`crate::sys::procfs::make_own`]
    /// before.
    ///
    /// # Errors
    /// With the first step that failed.
    pub fn leave_host(&self) -> Result<(), ConfineError> {
        if self.user_namespace.is_some() && self.network.contains(CapabilitySet::NET_BIND_SERVICE) {
            // The network namespace is the host's user namespace', and its capability counts for
            // nothing any more. Who may bind which port the sandbox decides itself.
            std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0").map_err(|e| {
                step("opening ports below 1024")(Errno::from_io_error(&e).unwrap_or(Errno::IO))
            })?;
        }
        root::leave(self.is_shared).map_err(step("leaving the host's file system"))?;
        crate::sys::procfs::be_there().map_err(step("entering its own /proc"))?;
        let Some(namespace) = &self.user_namespace else { return Ok(()) };
        user_namespace::enter(namespace).map_err(step("entering its user namespace"))
    }

    /// Can open no file from here on but those of `mounts`, the own /proc, and what is mounted in
    /// the empty root later, if anything may be.
    ///
    /// # Errors
    /// With the first step that failed.
    pub fn enter_domain(&self, mounts: &[BorrowedFd<'_>]) -> Result<(), ConfineError> {
        let Some(proc) = crate::sys::procfs::own() else { return Ok(()) };
        let hub = self.is_shared.then(root::open).transpose().map_err(step("opening its root"))?;
        let mounts: Vec<BorrowedFd<'_>> =
            mounts.iter().copied().chain(hub.as_ref().map(AsFd::as_fd)).collect();
        match landlock::enter(&mounts, proc.as_fd()).map_err(step("entering a Landlock domain"))? {
            Ok(()) => {}
            Err(Errno::NOSYS | Errno::OPNOTSUPP) => {
                tracing::info!(
                    "this host has no Landlock (Linux 5.19 or later), which would guard directories"
                );
            }
            Err(e) => {
                tracing::warn!("the host refuses Landlock, which would guard directories: {e}")
            }
        }
        Ok(())
    }

    /// Gives everything else up, for good, after [`Self::leave_host`] and [`Self::enter_domain`].
    /// `who` are the threads that this one is and makes.
    ///
    /// # Errors
    /// With the first step that failed.
    pub fn enter(self, who: &[Profile]) -> Result<(), ConfineError> {
        // In a user namespace that the network namespace is not of they would be good for nothing.
        let network =
            if self.user_namespace.is_some() { CapabilitySet::empty() } else { self.network };
        privileges::keep(FILE_CAPABILITIES | network.intersection(NETWORK_CAPABILITIES))?;
        if let Some((file, is_json)) = self.log {
            end::set_log(file, is_json);
        }
        end::catch()
            .map_err(|e| step("catching SIGSYS")(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        HOST_UDS.store(self.host_uds.is_on(), Ordering::Release);
        filter::install(&own_calls(), who).map_err(step("installing the seccomp filter"))?;
        FILTERED.store(true, Ordering::Release);
        Ok(())
    }
}

/// Leaves this thread, and those that it makes, no more than `who` of what the process may do, if
/// the process is confined.
///
/// # Errors
/// When the filter cannot be installed.
pub fn narrow(who: Profile) -> Result<(), ConfineError> {
    if !FILTERED.load(Ordering::Acquire) {
        return Ok(());
    }
    filter::install(&own_calls(), &[who]).map_err(step("installing the seccomp filter of a thread"))
}

#[cfg(test)]
mod tests;
