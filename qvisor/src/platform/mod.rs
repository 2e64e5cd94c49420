//! How guest code gets to run. A platform supplies the `space_*`, `thread_*` and `fpstate_*` entries of
//! [`qlib::platform::PlatformOps`] and calls the kernel's dispatch function with what user threads do.
//!
//! `unsafe` is at home here: raw system calls, memory shared with stub processes, functions called from the kernel image.

use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::Arc;

use qlib::Gpa;

#[allow(unsafe_code)]
pub mod kvm;
pub mod probe;
#[allow(unsafe_code)]
pub mod process;

/// What lies behind guest physical addresses on the host.
pub trait GuestPhys: Send + Sync {
    /// The file descriptor, and the offset in it in bytes, behind `[gpa, gpa+len)`: the RAM memfd, or the file of a window.
    /// `None` when the range is not guest memory or is not contiguous in one file. The platform keeps the descriptor
    /// alive until the mapping has been made, so a window may be dropped at any time.
    fn host_backing(&self, gpa: Gpa, len: u64) -> Option<(Arc<OwnedFd>, u64)>;
}

/// The platforms by name, as in `--platform=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlatformKind {
    /// Stub processes of the host.
    Process,
    /// A KVM virtual machine.
    Kvm,
}

impl FromStr for PlatformKind {
    type Err = String;

    /// Takes `auto`, `process` or `kvm`; `auto` is the best that works on this host.
    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" | "process" => Ok(Self::Process),
            "kvm" => Err("the kvm platform is not in this build; use --platform=process".into()),
            other => Err(format!("unknown platform {other:?}: use auto, process or kvm")),
        }
    }
}
