//! The quark guest kernel: serves the Linux system-call interface to unmodified programs.
//!
//! A map of the rooms: [`arch`] is the edge to the platform (the only `unsafe` one); [`syscall`] holds the table that
//! leads from a number to a function; [`task`] processes, threads, signals; [`mm`] address spaces and page faults; [`fs`], [`net`],
//! [`ipc`], [`time`] what the calls are about; [`hibernate`] deflate and inflate. [`executor`], [`wait`], [`sync`] are
//! what all of it stands on.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;

pub mod abi;
pub mod account;
pub mod arch;
pub mod control;
pub mod errno;
pub mod executor;
pub mod fs;
pub mod hibernate;
pub mod host;
pub mod io;
pub mod ipc;
pub mod log;
pub mod mm;
pub mod net;
pub mod pieces;
pub mod random;
pub mod sync;
pub mod syscall;
pub mod task;
pub mod time;
pub mod urgent;
pub mod wait;

pub use errno::{Errno, Result};
