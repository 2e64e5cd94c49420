//! The command line from outside: what a user of runc sees, with a busybox root file system. Needs
//! root, for cgroups and namespaces, and busybox (Debian's busybox-static).

mod bad_input;
mod cgroups;
mod confined;
mod crowd;
mod disk;
mod ended;
mod escape;
mod find;
mod half_made;
mod host;
mod image;
mod install;
mod life;
mod locks;
mod memory;
mod pipes;
mod platform;
mod pod;
mod pod_shares;
mod poison;
mod reopen;
mod rootless;
mod seccomp;
#[path = "../support/mod.rs"]
mod shared;
mod shared_pod;
mod streams;
mod support;
mod uds;
mod unanswered;
mod upper;
mod user;
mod wait;
mod watch;
