//! What both sides of the sandbox boundary must agree on: addresses, the platform's operations, the
//! host-call wire format, control messages, the page-table format and the page allocator. No policy
//! lives here.
//!
//! The crate is `no_std`: it is linked into the guest kernel image and into the VMM alike.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;

pub mod addr;
pub mod bitmap;
pub mod blocks;
pub mod channel;
pub mod clock;
pub mod control;
pub mod fpstate;
pub mod heap;
pub mod host;
pub mod kernel_lock;
pub mod kvm;
pub mod pagetable;
pub mod phys;
pub mod platform;
pub mod seccomp;
pub mod sockopt;

pub use addr::{Frames, Gpa, PAGE_SHIFT, PAGE_SIZE, Va};
