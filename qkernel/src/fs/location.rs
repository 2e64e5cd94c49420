//! A place in the tree of files.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use super::attr::Attributes;
use super::dentry::Dentry;
use super::inode::Inode;
use super::mount::Mount;
use super::walk::PATH_MAX;
use crate::errno::Result;

/// A name in a mounted file system.
#[derive(Clone)]
pub struct Location {
    /// The mount it was reached through.
    pub mount: Arc<Mount>,
    /// The name.
    pub dentry: Arc<Dentry>,
}

impl Location {
    /// What is there.
    pub fn inode(&self) -> &Arc<dyn Inode> {
        &self.dentry.inode
    }

    /// stat(2).
    pub fn attributes(&self) -> Result<Attributes> {
        self.dentry.inode.attributes()
    }

    /// True if both are the same place.
    pub fn is_same(&self, other: &Location) -> bool {
        Arc::ptr_eq(&self.mount, &other.mount) && Arc::ptr_eq(&self.dentry, &other.dentry)
    }

    /// True if it is the root of its mount.
    pub fn is_mount_root(&self) -> bool {
        Arc::ptr_eq(&self.mount.root, &self.dentry)
    }

    /// One step up, without regard to any chroot; the topmost place is its own parent.
    pub fn parent(&self) -> Location {
        let mut at = self.clone();
        while at.is_mount_root() {
            match at.mount.point() {
                Some(point) => at = point,
                None => return at,
            }
        }
        match at.dentry.parent() {
            Some(dentry) => Location { mount: at.mount, dentry },
            None => at,
        }
    }

    /// True if it is what is mounted or lies below: what is mounted is a part of a file system, out
    /// of which others may have moved it.
    pub fn is_on_its_mount(&self) -> bool {
        self.mount.root.parent().is_none() || self.mount.root.is_above(&self.dentry)
    }

    /// True if a path leads down from `above` to it.
    pub fn is_below(&self, above: &Location) -> bool {
        let mut at = self.clone();
        while !Arc::ptr_eq(&at.mount, &above.mount) {
            let Some(point) = at.mount.point() else { return false };
            at = point;
        }
        above.dentry.is_above(&at.dentry)
    }

    /// What is mounted on it, if something is.
    pub fn through_mounts(mut self) -> Location {
        while let Some(mount) = self.mount.mounted_at(&self.dentry) {
            let dentry = mount.root.clone();
            self = Location { mount, dentry };
        }
        self
    }

    /// Its absolute path as seen from `root`, and whether it can be reached from there. Of one that
    /// is longer than any path may be (as directories and mounts can be nested) only the end is
    /// given, as of something that cannot be reached.
    pub fn path_and_reach(&self, root: &Location) -> (Vec<u8>, bool) {
        const MOST_BYTES: usize = 16 * PATH_MAX;
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut bytes = 0;
        let mut at = self.clone();
        let reachable = loop {
            if at.is_same(root) {
                break true;
            }
            if at.is_mount_root() {
                match at.mount.point() {
                    Some(point) => at = point,
                    None => break false,
                }
                continue;
            }
            let Some(parent) = at.dentry.parent() else {
                // A file without a name: what it is called instead.
                return (at.dentry.name(), false);
            };
            let name = at.dentry.name();
            bytes += name.len() + 1;
            if bytes > MOST_BYTES {
                break false;
            }
            names.push(name);
            at = Location { mount: at.mount, dentry: parent };
        };
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        (path, reachable)
    }

    /// Its absolute path as seen from `root`; " (deleted)" follows when its name is gone, as in
    /// /proc.
    pub fn path_from(&self, root: &Location) -> Vec<u8> {
        let (mut path, _) = self.path_and_reach(root);
        if self.dentry.is_unlinked() && self.dentry.parent().is_some() {
            path.extend_from_slice(b" (deleted)");
        }
        path
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Location({}:{:?})",
            self.mount.id,
            alloc::string::String::from_utf8_lossy(&self.dentry.name())
        )
    }
}
