//! Inodes of an overlay.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{
    O_ACCMODE, O_RDONLY, O_TRUNC, RENAME_EXCHANGE, S_IFDIR, S_IFLNK, S_IFREG,
};

use super::file::{OverlayDir, OverlayFile, list};
use super::{OverlayFs, UPPER_INO};
use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, SetAttributes};
use crate::fs::inode::{Caching, Created, Inode, Link, NewNode, Rename};
use crate::fs::{Caller, FileOps, special};
use crate::sync::Mutex;

/// A name in an overlay.
pub struct OverlayNode {
    pub(super) fs: Weak<OverlayFs>,
    kind: u32,
    ino: u64,
    /// The file system's device number.
    device: u64,
    pub(super) layers: Mutex<Layers>,
}

impl Drop for OverlayNode {
    fn drop(&mut self) {
        // A long chain of parents that only their children hold must not recurse once for each.
        let mut parent = self.layers.get_mut().parent.take();
        while let Some(mut node) = parent.and_then(Arc::into_inner) {
            parent = node.layers.get_mut().parent.take();
        }
    }
}

/// Where a name is found.
#[derive(Clone)]
pub(super) struct Layers {
    /// What it is in the upper layer.
    pub upper: Option<Arc<dyn Inode>>,
    /// What it is in the lower layer, if that still counts.
    pub lower: Option<Arc<dyn Inode>>,
    /// `None` for the root.
    pub parent: Option<Arc<OverlayNode>>,
    /// Its name in its parent.
    pub name: Vec<u8>,
    /// The name is gone.
    pub gone: bool,
}

/// A number that the lower layer's device and inode number always give.
pub(super) fn lower_ino(dev: u64, ino: u64) -> u64 {
    (ino ^ dev.rotate_left(40)) & !UPPER_INO
}

/// The number of what has these numbers in the two layers: that of the lower layer's file that it
/// was copied up from, or of the directory that it is merged with, or one of its own.
pub(super) fn overlay_ino(
    fs: &OverlayFs,
    upper: Option<u64>,
    lower: impl FnOnce() -> Option<u64>,
) -> u64 {
    let origin = upper.and_then(|ino| fs.origins.lock().get(&ino).copied());
    origin.or_else(lower).unwrap_or(upper.unwrap_or(0) | UPPER_INO)
}

impl OverlayNode {
    pub(super) fn new(
        fs: &Arc<OverlayFs>,
        parent: Option<Arc<OverlayNode>>,
        name: &[u8],
        upper: Option<Arc<dyn Inode>>,
        lower: Option<Arc<dyn Inode>>,
    ) -> Arc<Self> {
        let upper_ino = upper.as_ref().and_then(|u| u.attributes().ok()).map(|a| a.ino);
        let ino = overlay_ino(fs, upper_ino, || {
            let attributes = lower.as_ref()?.permissions();
            Some(attributes.map_or(0, |a| lower_ino(a.dev, a.ino)))
        });
        let kind = upper.as_ref().or(lower.as_ref()).map_or(S_IFREG, |i| i.kind());
        let layers = Layers { upper, lower, parent, name: name.to_vec(), gone: false };
        Arc::new(OverlayNode {
            fs: Arc::downgrade(fs),
            kind,
            ino,
            device: fs.device,
            layers: Mutex::new(layers),
        })
    }

    pub(super) fn fs(&self) -> Result<Arc<OverlayFs>> {
        self.fs.upgrade().ok_or(Errno::EIO)
    }

    pub(super) fn layers(&self) -> Layers {
        self.layers.lock().clone()
    }

    /// What its contents and attributes are taken from.
    pub(super) fn top(&self) -> Result<Arc<dyn Inode>> {
        let layers = self.layers.lock();
        layers.upper.as_ref().or(layers.lower.as_ref()).cloned().ok_or(Errno::ENOENT)
    }

    /// Its own number.
    pub(super) fn ino(&self) -> u64 {
        self.ino
    }

    /// Attributes of a layer's inode as the overlay's.
    pub(super) fn as_own(&self, attributes: Attributes) -> Attributes {
        Attributes { dev: self.device, ino: self.ino, ..attributes }
    }

    /// The number of its directory in the upper layer, if it has one.
    fn upper_number(&self) -> Option<u64> {
        self.layers().upper.and_then(|u| u.attributes().ok()).map(|a| a.ino)
    }

    /// True if the lower layer's `name` is to be seen here.
    pub(super) fn shows_lower(&self, name: &[u8]) -> Result<bool> {
        let fs = self.fs()?;
        Ok(self.upper_number().is_none_or(|number| !fs.is_hidden(number, name)))
    }

    /// Lets the lower layer's `name` be seen no more, if there is one. The directory is in the
    /// upper layer.
    fn hide(&self, name: &[u8]) -> Result {
        let Some(lower) = self.layers().lower else { return Ok(()) };
        if lower.lookup(name).is_ok()
            && let Some(number) = self.upper_number()
        {
            self.fs()?.hide(number, name);
        }
        Ok(())
    }

    fn set_gone(&self) {
        self.layers.lock().gone = true;
    }

    /// ENOTEMPTY unless it is no directory, or an empty one.
    fn check_empty(&self) -> Result {
        if self.kind == S_IFDIR && !list(self)?.is_empty() { Err(Errno::ENOTEMPTY) } else { Ok(()) }
    }

    /// A child that was just made in the upper layer.
    fn adopt(self: &Arc<Self>, name: &[u8], upper: Arc<dyn Inode>) -> Result<Arc<dyn Inode>> {
        Ok(OverlayNode::new(&self.fs()?, Some(self.clone()), name, Some(upper), None))
    }

    fn move_to(&self, parent: Option<Arc<OverlayNode>>, name: &[u8]) {
        let mut old = self.layers();
        {
            let mut layers = self.layers.lock();
            core::mem::swap(&mut *layers, &mut old);
            layers.upper = old.upper.clone();
            layers.parent = parent;
            layers.name = name.to_vec();
            // What it was in the lower layer stays behind, hidden.
            layers.lower = None;
            layers.gone = false;
        }
        drop(old);
    }
}

impl Inode for OverlayNode {
    fn kind(&self) -> u32 {
        self.kind
    }

    fn attributes(&self) -> Result<Attributes> {
        Ok(self.as_own(self.top()?.attributes()?))
    }

    fn permissions(&self) -> Result<Attributes> {
        Ok(self.as_own(self.top()?.permissions()?))
    }

    fn caching(&self) -> Caching {
        let layers = self.layers.lock();
        match (&layers.upper, &layers.lower) {
            (None, Some(lower)) => lower.caching(),
            _ => Caching::Keep,
        }
    }

    fn revalidate(&self) -> Result<bool> {
        let lower = self.layers.lock().lower.clone();
        lower.map_or(Ok(true), |lower| lower.revalidate())
    }

    fn lookup(self: Arc<Self>, name: &[u8]) -> Result<Arc<dyn Inode>> {
        if self.kind != S_IFDIR {
            return Err(Errno::ENOTDIR);
        }
        let layers = self.layers();
        let upper = match &layers.upper {
            Some(upper) => match upper.clone().lookup(name) {
                Ok(found) => Some(found),
                Err(Errno::ENOENT) => None,
                Err(error) => return Err(error),
            },
            None => None,
        };
        let wants_lower = upper.as_ref().is_none_or(|u| u.is_dir()) && self.shows_lower(name)?;
        let mut lower = match &layers.lower {
            Some(lower) if wants_lower && lower.is_dir() => match lower.clone().lookup(name) {
                Ok(found) => Some(found),
                Err(Errno::ENOENT) => None,
                Err(error) => return Err(error),
            },
            _ => None,
        };
        if upper.is_some() {
            // Only directories are merged.
            lower = lower.filter(|l| l.is_dir());
        }
        if upper.is_none() && lower.is_none() {
            return Err(Errno::ENOENT);
        }
        Ok(OverlayNode::new(&self.fs()?, Some(self.clone()), name, upper, lower))
    }

    fn open(self: Arc<Self>, caller: &dyn Caller, flags: u32) -> Result<Arc<dyn FileOps>> {
        match self.kind {
            S_IFDIR => Ok(OverlayDir::new(self)),
            S_IFREG => {
                if flags & O_ACCMODE != O_RDONLY || flags & O_TRUNC != 0 {
                    self.copy_up(flags & O_TRUNC != 0)?;
                }
                let from_upper = self.layers.lock().upper.is_some();
                let ops = self.top()?.open(caller, flags)?;
                Ok(OverlayFile::new(self, ops, from_upper))
            }
            S_IFLNK => Err(Errno::ELOOP),
            _ => special::open(caller, &self.attributes()?, flags),
        }
    }

    fn read_link(&self, caller: Option<&dyn Caller>) -> Result<Link> {
        self.top()?.read_link(caller)
    }

    fn create(self: Arc<Self>, name: &[u8], new: &NewNode, flags: u32) -> Result<Created> {
        let (inode, _) = self.copy_up(false)?.create(name, new, flags)?;
        Ok((self.adopt(name, inode)?, None))
    }

    fn create_unnamed(self: Arc<Self>, new: &NewNode, flags: u32) -> Result<Created> {
        let (inode, _) = self.copy_up(false)?.create_unnamed(new, flags)?;
        let node = OverlayNode::new(&self.fs()?, None, b"", Some(inode), None);
        node.set_gone();
        Ok((node, None))
    }

    fn make_dir(self: Arc<Self>, name: &[u8], new: &NewNode) -> Result<Arc<dyn Inode>> {
        let made = self.copy_up(false)?.make_dir(name, new)?;
        self.adopt(name, made)
    }

    fn make_node(self: Arc<Self>, name: &[u8], new: &NewNode) -> Result<Arc<dyn Inode>> {
        let made = self.copy_up(false)?.make_node(name, new)?;
        self.adopt(name, made)
    }

    fn make_symlink(
        self: Arc<Self>,
        name: &[u8],
        target: &[u8],
        new: &NewNode,
    ) -> Result<Arc<dyn Inode>> {
        let made = self.copy_up(false)?.make_symlink(name, target, new)?;
        self.adopt(name, made)
    }

    fn link(self: Arc<Self>, name: &[u8], target: &Arc<dyn Inode>) -> Result<Arc<dyn Inode>> {
        let target = arc_of(target)?.copy_up(false)?;
        let made = self.copy_up(false)?.link(name, &target)?;
        self.adopt(name, made)
    }

    fn unlink(&self, name: &[u8], child: &Arc<dyn Inode>) -> Result {
        let child = arc_of(child)?;
        child.check_empty()?;
        let layers = child.layers();
        let upper = self.copy_up(false)?;
        if let Some(inode) = &layers.upper {
            upper.unlink(name, inode)?;
        }
        self.hide(name)?;
        child.set_gone();
        Ok(())
    }

    fn rename(&self, name: &[u8], rename: &Rename<'_>) -> Result {
        let (child, to) = (arc_of(rename.child)?, arc_of(rename.to)?);
        let replaced = rename.replaced.map(arc_of).transpose()?;
        let exchange = rename.flags & RENAME_EXCHANGE != 0;
        // A directory that also lies in the lower layer cannot leave it; mv(1) copies then.
        let merged =
            |node: &OverlayNode| node.kind == S_IFDIR && node.layers.lock().lower.is_some();
        if merged(&child) || exchange && replaced.as_ref().is_some_and(|r| merged(r)) {
            return Err(Errno::EXDEV);
        }
        if let Some(replaced) = &replaced {
            if exchange {
                replaced.copy_up(false)?;
            } else {
                replaced.check_empty()?;
            }
        }
        let upper_child = child.copy_up(false)?;
        let (upper_from, upper_to) = (self.copy_up(false)?, to.copy_up(false)?);
        let upper_replaced = replaced.as_ref().and_then(|r| r.layers().upper);
        upper_from.rename(
            name,
            &Rename {
                child: &upper_child,
                to: &upper_to,
                to_name: rename.to_name,
                replaced: upper_replaced.as_ref(),
                flags: rename.flags,
            },
        )?;
        self.hide(name)?;
        to.hide(rename.to_name)?;
        let old_parent = child.layers().parent;
        child.move_to(Some(to), rename.to_name);
        match replaced {
            Some(replaced) if exchange => replaced.move_to(old_parent, name),
            Some(replaced) => replaced.set_gone(),
            None => {}
        }
        Ok(())
    }

    fn set_attributes(&self, change: &SetAttributes) -> Result {
        self.copy_up(false)?.set_attributes(change)
    }

    fn truncate(&self, size: u64) -> Result {
        self.copy_up(size == 0)?.truncate(size)
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.top()?.get_xattr(name)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], flags: u32) -> Result {
        self.copy_up(false)?.set_xattr(name, value, flags)
    }

    fn list_xattr(&self) -> Result<Vec<u8>> {
        self.top()?.list_xattr()
    }

    fn remove_xattr(&self, name: &[u8]) -> Result {
        self.copy_up(false)?.remove_xattr(name)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The node itself behind an inode.
fn arc_of(inode: &Arc<dyn Inode>) -> Result<Arc<OverlayNode>> {
    let any: Arc<dyn Any + Send + Sync> = inode.clone();
    any.downcast().map_err(|_| Errno::EXDEV)
}
