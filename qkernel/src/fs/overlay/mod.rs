//! An overlay: a guest-private upper layer over a lower layer that is never written.
//!
//! Removed names of the lower layer are remembered beside the upper layer's directories, not in
//! them. A file of the lower layer is copied up when it is first opened for writing or changed
//! otherwise; its inode number stays the same.

mod copy;
mod file;
mod node;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

pub use node::OverlayNode;

use linux_raw_sys::general::OVERLAYFS_SUPER_MAGIC;
use qlib::control::RootLayer;

use super::attr::StatFs;
use super::inode::{FileSystem, Inode, next_device};
use super::tmpfs::TmpFs;
use crate::account;
use crate::errno::Result;
use crate::sync::Mutex;

/// Set in the inode numbers of objects that the lower layer never had.
const UPPER_INO: u64 = 1 << 62;

/// An overlay file system.
pub struct OverlayFs {
    upper: Arc<TmpFs>,
    lower: Arc<dyn FileSystem>,
    device: u64,
    root: Mutex<Weak<OverlayNode>>,
    this: Weak<OverlayFs>,
    /// Names of the lower layer that are no longer to be seen, by inode number of the upper
    /// directory.
    hidden: Mutex<BTreeMap<u64, BTreeSet<Vec<u8>>>>,
    /// Inode numbers of what was copied up, by inode number in the upper layer.
    origins: Mutex<BTreeMap<u64, u64>>,
}

impl OverlayFs {
    /// A new upper layer over `lower`.
    pub fn new(lower: Arc<dyn FileSystem>, layer: &RootLayer) -> Result<Arc<Self>> {
        let root = lower.root().attributes()?;
        let bytes = layer.bytes(account::memory_bytes());
        let make = if layer.is_on_disk { TmpFs::on_disk } else { TmpFs::new };
        let upper = make(bytes, root.mode & 0o7777, root.uid, root.gid);
        Ok(Arc::new_cyclic(|this| OverlayFs {
            upper,
            lower,
            device: next_device(),
            root: Mutex::default(),
            this: this.clone(),
            hidden: Mutex::default(),
            origins: Mutex::default(),
        }))
    }

    /// Hides `name` of the lower layer in the directory whose upper one has number `directory`.
    fn hide(&self, directory: u64, name: &[u8]) {
        self.hidden.lock().entry(directory).or_default().insert(name.to_vec());
    }

    fn is_hidden(&self, directory: u64, name: &[u8]) -> bool {
        self.hidden.lock().get(&directory).is_some_and(|names| names.contains(name))
    }
}

impl FileSystem for OverlayFs {
    fn type_name(&self) -> &'static str {
        "overlay"
    }

    fn root(&self) -> Arc<dyn Inode> {
        let known = self.root.lock().upgrade();
        if let Some(root) = known {
            return root;
        }
        let fs = self.this.upgrade().expect("a file system in use is alive");
        let root =
            OverlayNode::new(&fs, None, b"", Some(self.upper.root()), Some(self.lower.root()));
        *self.root.lock() = Arc::downgrade(&root);
        root
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs { kind: i64::from(OVERLAYFS_SUPER_MAGIC), ..self.upper.statfs()? })
    }

    fn tells_extents(&self) -> bool {
        self.upper.tells_extents()
    }

    fn unmounted(&self) {
        self.lower.unmounted();
    }
}

#[cfg(test)]
mod tests;
