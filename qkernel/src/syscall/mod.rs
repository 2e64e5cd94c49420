//! System calls: [`table`] leads from a number to a function; the functions stand here by family,
//! each under its man-page name.

pub mod args;
pub mod attr;
pub mod clock;
pub mod clone;
pub mod creds;
pub mod dir;
pub mod epoll;
pub mod exec;
pub mod exit;
pub mod fcntl;
pub mod futex;
pub mod ids;
pub mod inotify;
pub mod install;
pub mod link;
pub mod lock;
pub mod memfd;
pub mod memory;
pub mod message;
pub mod misc;
pub mod mount;
pub mod open;
pub mod pipe;
pub mod poll;
pub mod prctl;
pub mod process_vm;
pub mod rlimit;
pub mod rseq;
pub mod rw;
pub mod sched;
pub mod sendfile;
pub mod signal;
pub mod signalfd;
pub mod socket;
pub mod sockopt;
pub mod stat;
pub mod sync;
pub mod sysinfo;
pub mod sysv;
pub mod table;
pub mod timers;
pub mod transfer;
pub mod wait;
pub mod xattr;

pub use table::{dispatch, dispatch_now};
