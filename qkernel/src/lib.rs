//! The quark guest kernel: serves the Linux system-call interface to unmodified programs.
//!
//! The rooms are layers; each uses those below it only (`tests/layers.rs`). From the top:
//! [`kernel`] dispatches events; [`hibernate`] is deflate and inflate; [`syscall`] holds the table
//! that leads from a number to a function; [`net`], [`ipc`] and the file systems of [`fs`] are what
//! the calls are about; [`task`] processes, threads, signals; the rest of [`fs`] is the VFS; [`mm`]
//! address spaces and page faults. They stand on [`executor`], [`wait`], [`time`] and [`host`], and
//! these on [`arch`], the edge to the platform (the only `unsafe` room).
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;

pub mod abi;
pub mod account;
pub mod arch;
pub mod creds;
pub mod errno;
pub mod executor;
pub mod fs;
pub mod hibernate;
pub mod host;
pub mod input;
pub mod io;
pub mod ipc;
pub mod kernel;
pub mod log;
pub mod mm;
pub mod namespace;
pub mod net;
pub mod pieces;
pub mod random;
pub mod sync;
pub mod syscall;
pub mod task;
pub mod time;
pub mod urgent;
pub mod user_namespace;
pub mod utsname;
pub mod wait;

pub use errno::{Errno, Result};
