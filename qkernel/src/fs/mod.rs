//! Files: what an open file is, descriptors, the tree of names, and (in the modules) the file
//! systems.

pub mod ask;
pub mod attr;
pub mod busy;
pub mod caller;
pub mod context;
pub mod cpu;
pub mod dentry;
pub mod dev;
pub mod devpts;
pub mod disk;
pub mod dnotify;
pub mod fdtable;
pub mod file;
pub mod handle;
pub mod hostfs;
pub mod inode;
pub mod inotify;
pub mod landlock;
pub mod lease;
pub mod location;
pub mod lock;
pub mod memfd;
pub mod mount;
pub mod mounter;
pub mod notify;
pub mod nsfs;
pub mod open;
pub mod options;
pub mod outside;
pub mod overlay;
pub mod perm;
pub mod position;
pub mod proc;
pub mod records;
pub mod remove;
pub mod setup;
pub mod shmem;
pub mod special;
pub mod synth;
mod syscache;
pub mod sysfs;
mod sysnet;
pub mod tmpfs;
pub mod walk;

#[cfg(test)]
mod tests;

pub use attr::Attributes;
pub use caller::Caller;
pub use context::FsContext;
pub use fdtable::{Fd, FdTable};
pub use file::{CloseHook, FileOps, OpenFile, Tells};
pub use hostfs::stream::host_stream;
pub use hostfs::window::window_bytes;
pub use location::Location;
pub use open::{exec_creds, lookup, open, open_exec};
pub use setup::{Sources, mount_container};
pub use shmem::{Page, Shmem, memory_objects, shared_memory};
