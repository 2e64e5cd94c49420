//! Memory of user programs: address spaces, page faults, access to user memory.
//!
//! The page table in guest memory is the truth; what CPUs see follows it by the [`mmu`]: it may lag
//! (a missing mapping faults), never lead.

pub mod committed;
pub mod deferred_free;
pub mod deny;
pub mod discard;
mod emptied;
mod expect;
pub mod fault;
pub mod fork;
pub mod frames;
pub mod freeze;
pub mod given;
pub mod held;
mod huge;
mod layout;
pub mod limit;
pub mod map;
pub mod mapped;
pub mod missed;
pub mod mmu;
pub mod patch;
pub mod placed;
pub mod policy;
pub mod ranges;
pub mod reclaim;
mod rewritten;
pub mod rmap;
pub mod space;
pub mod swap;
pub mod tables;
pub mod thread;
pub mod user;
pub mod userfault;
pub mod vma;

pub use deferred_free::DeferredFree;
pub use frames::{free_frames, init};
pub use layout::VSYSCALL;
pub use space::{AddressSpace, ProgramMemory};
pub use thread::UserThread;
pub use vma::{Prot, Vma, VmaFlags};

/// What an access to user memory does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Instruction fetch.
    Execute,
}
