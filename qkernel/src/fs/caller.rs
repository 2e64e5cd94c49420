//! Who asks: what the VFS knows of the thread that a file operation is made for.

use alloc::sync::Arc;
use core::any::Any;

use super::{FdTable, FsContext};
use crate::creds::Creds;
use crate::mm::AddressSpace;
use crate::wait::Sleeper;

/// Somebody for whom files are looked up, opened and worked on. What is special to threads, the
/// rooms above find out from the value behind it.
pub trait Caller: Sleeper {
    /// Its credentials.
    fn creds(&self) -> Arc<Creds>;
    /// Where the addresses that it names lie.
    fn mm(&self) -> Arc<AddressSpace>;
    /// Its descriptors.
    fn files(&self) -> Arc<FdTable>;
    /// Looks at its root, working directory and umask. `look` must not wake anybody or close files.
    fn look_at_fs(&self, look: &mut dyn FnMut(&FsContext));
    /// The number of its mount namespace.
    fn mount_namespace(&self) -> u64;
    /// The process that it belongs to: the owner of its record locks.
    fn pid(&self) -> u32;
    /// For the rooms above to know their own.
    fn as_any(&self) -> &dyn Any;
}

impl dyn Caller + '_ {
    /// Something of its root, working directory and umask. `look` must not wake anybody or close
    /// files.
    pub fn with_fs<R>(&self, look: impl FnOnce(&FsContext) -> R) -> R {
        let (mut look, mut seen) = (Some(look), None);
        self.look_at_fs(&mut |fs| seen = look.take().map(|look| look(fs)));
        seen.expect("a caller has a root and a working directory")
    }
}
