//! Host files: a tree of files beneath a handle that qvisor gave, reached by relative paths through
//! the channel. No host descriptor is held for a name, only for open files, and a few for a while
//! after that ([`kept`]).

mod device;
mod disk;
mod file;
pub mod handle_cache;
mod lock;
mod node;
pub mod stream;
pub mod window;

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use qlib::host::Op;
use zerocopy::FromZeros;

pub use disk::begin_huge_page;
pub use file::HostFile;
pub use node::HostNode;
use window::HostMapping;

use super::attr::{Attributes, StatFs, Statx};
use super::disk::Begun;
use super::inode::{FileSystem, Inode};
use crate::errno::Result;
use crate::host::Call;
use crate::host::Handle;
use crate::sync::Mutex;

/// The types that host trees are often of, by what statfs(2) says of them (linux/magic.h): programs
/// find in /proc/mounts what they find on Linux.
const TYPES: [(u32, &str); 17] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x794c_7630, "overlay"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x2fc1_2fc1, "zfs"),
    (0xf2f5_2010, "f2fs"),
    (0x6969, "nfs"),
    (0x6573_5546, "fuse"),
    (0x0102_1997, "9p"),
    (0x4d44, "vfat"),
    (0x7371_7368, "squashfs"),
    (0xe0f5_e1e2, "erofs"),
    (0x6265_6572, "sysfs"),
    (0x0027_e0eb, "cgroup"),
    (0x6367_7270, "cgroup2"),
];

/// A host tree.
pub struct HostFs {
    root: Handle,
    /// How long names and attributes are believed without asking, in nanoseconds.
    trust_ns: u64,
    root_node: Mutex<Weak<HostNode>>,
    this: Weak<HostFs>,
    tells_what_is_cached: AtomicBool,
    /// Mappings in use, by device, inode and whether they are writable.
    mappings: Mutex<BTreeMap<(u64, u64, bool), Weak<HostMapping>>>,
}

impl HostFs {
    /// The tree beneath the host handle `root`, a directory or a single file, which others may
    /// change at any time.
    pub fn new(root: Handle) -> Result<Arc<Self>> {
        Self::with_trust(root, 0)
    }

    /// A tree that belongs to the container alone: what is known is believed for a second (as FUSE
    /// does by default), unless it is changed from here.
    pub fn owned(root: Handle) -> Result<Arc<Self>> {
        Self::with_trust(root, 1_000_000_000)
    }

    fn with_trust(root: Handle, trust_ns: u64) -> Result<Arc<Self>> {
        let fs = Arc::new_cyclic(|this| HostFs {
            root,
            trust_ns,
            root_node: Mutex::default(),
            this: this.clone(),
            tells_what_is_cached: AtomicBool::new(true),
            mappings: Mutex::default(),
        });
        // The root must be there: what follows relies on it.
        stat_path(fs.handle(), b"")?;
        Ok(fs)
    }

    /// True if the host may know what of a file is in its page cache (RWF_NOWAIT).
    pub(super) fn tells_what_is_cached(&self) -> bool {
        self.tells_what_is_cached.load(Relaxed)
    }

    /// It said that it does not: some file systems cannot, among them the host's overlay.
    pub(super) fn cannot_tell_what_is_cached(&self) {
        self.tells_what_is_cached.store(false, Relaxed);
    }

    /// True if others may have its files open at the same time.
    pub(super) fn is_shared(&self) -> bool {
        self.trust_ns == 0
    }

    /// What lies at `path`.
    fn stat(&self, path: &[u8]) -> Result<Attributes> {
        let found = stat_path(self.handle(), path)?;
        Ok(if self.is_shared() { found } else { device::shown(self.handle(), path, found) })
    }

    /// The handle that paths are relative to.
    pub(super) fn handle(&self) -> u32 {
        self.root.number()
    }
}

impl FileSystem for HostFs {
    fn type_name(&self) -> &'static str {
        let magic = self.statfs().map_or(0, |stat| stat.kind);
        TYPES.iter().find(|(of, _)| i64::from(*of) == magic).map_or("host", |(_, name)| *name)
    }

    fn root(&self) -> Arc<dyn Inode> {
        let known = self.root_node.lock().upgrade();
        if let Some(node) = known {
            return node;
        }
        let fs = self.this.upgrade().expect("a file system in use is alive");
        let attributes = stat_path(self.handle(), b"").unwrap_or_default();
        let node = HostNode::new(fs, None, b"", attributes);
        *self.root_node.lock() = Arc::downgrade(&node);
        node
    }

    fn statfs(&self) -> Result<StatFs> {
        statfs(self.handle())
    }

    fn tells_extents(&self) -> bool {
        // As those of Linux that only live in memory do not.
        !matches!(self.type_name(), "tmpfs" | "ramfs")
    }

    fn sync(&self) -> Result<Begun> {
        disk::begin(Op::SyncFs, self.handle(), &[])
    }

    fn unmounted(&self) {
        handle_cache::give_up_tree(self.handle());
    }
}

/// statfs of a handle.
fn statfs(handle: u32) -> Result<StatFs> {
    let mut out = StatFs::new_box_zeroed().map_err(|_| crate::Errno::ENOMEM)?;
    Call::on(Op::StatFs, handle).bytes_out(zerocopy::IntoBytes::as_mut_bytes(&mut *out)).run()?;
    Ok(*out)
}

/// statx of a path beneath `root`.
fn stat_path(root: u32, path: &[u8]) -> Result<Attributes> {
    let mut out = Statx::new_box_zeroed().map_err(|_| crate::Errno::ENOMEM)?;
    let bytes = zerocopy::IntoBytes::as_mut_bytes(&mut *out);
    Call::on(Op::StatPath, root).bytes(path).bytes_out(bytes).run()?;
    Ok(Attributes::from_statx(&out))
}

/// statx of an open handle.
pub fn stat_handle(handle: u32) -> Result<Attributes> {
    let mut out = Statx::new_box_zeroed().map_err(|_| crate::Errno::ENOMEM)?;
    Call::on(Op::Stat, handle).bytes_out(zerocopy::IntoBytes::as_mut_bytes(&mut *out)).run()?;
    Ok(Attributes::from_statx(&out))
}
