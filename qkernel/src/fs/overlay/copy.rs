//! Copy-up: what is to be changed moves to the upper layer.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{O_EXCL, O_RDONLY, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};

use super::OverlayNode;
use crate::errno::{Errno, Result};
use crate::fs::OpenFile;
use crate::fs::attr::{Attributes, SetAttributes, SetTime};
use crate::fs::inode::{FileSystem, Inode, Link, NewNode};
use crate::fs::shmem::Shmem;
use crate::fs::tmpfs::TmpNode;
use crate::io::IoBuffer;

/// Bytes copied at a time.
const CHUNK: usize = 128 << 10;

impl OverlayNode {
    /// Makes sure that it is in the upper layer, and its parents: its inode there. `empty`: a
    /// file's content is not wanted, for it is about to be cut off.
    pub(super) fn copy_up(&self, empty: bool) -> Result<Arc<dyn Inode>> {
        // From the top on: directories may lie deeper in each other than the stack is.
        let mut missing = Vec::new();
        let mut at = self.parent_below();
        while let Some(parent) = at {
            at = parent.parent_below();
            missing.push(parent);
        }
        while let Some(parent) = missing.pop() {
            parent.copy_up_into(false)?;
        }
        self.copy_up_into(empty)
    }

    /// The directory that it is copied up into, if that is not in the upper layer.
    fn parent_below(&self) -> Option<Arc<OverlayNode>> {
        let layers = self.layers();
        let parent = layers.parent.filter(|_| layers.upper.is_none() && !layers.gone)?;
        let is_below = parent.layers.lock().upper.is_none();
        is_below.then_some(parent)
    }

    /// As [`Self::copy_up`], of what lies in a directory of the upper layer.
    fn copy_up_into(&self, empty: bool) -> Result<Arc<dyn Inode>> {
        let layers = self.layers();
        if let Some(upper) = layers.upper {
            return Ok(upper);
        }
        let lower = layers.lower.ok_or(Errno::ENOENT)?;
        let attributes = lower.attributes()?;
        let new = NewNode {
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: attributes.rdev,
        };
        let fs = self.fs()?;
        let upper: Arc<dyn Inode> = match layers.parent {
            Some(parent) if !layers.gone => {
                let directory = parent.layers().upper.ok_or(Errno::ENOENT)?;
                make(&directory, &layers.name, &new, &lower, empty)?
            }
            // A removed file that is still open.
            _ if attributes.is_regular() => {
                let (inode, _) = fs.upper.root().create_unnamed(&new, O_RDONLY | O_EXCL)?;
                fill(&inode, &lower, empty)?;
                inode
            }
            _ => return Err(Errno::ENOENT),
        };
        for name in
            lower.list_xattr().unwrap_or_default().split(|b| *b == 0).filter(|n| !n.is_empty())
        {
            if let Ok(value) = lower.get_xattr(name) {
                upper.set_xattr(name, &value, 0)?;
            }
        }
        upper.set_attributes(&times(&attributes))?;
        fs.origins.lock().insert(upper.attributes()?.ino, self.ino());
        let mut layers = self.layers.lock();
        layers.upper = Some(upper.clone());
        // Only directories go on being looked up in the lower layer.
        let old = if attributes.is_dir() { None } else { layers.lower.take() };
        drop(layers);
        drop(old);
        Ok(upper)
    }
}

fn times(attributes: &Attributes) -> SetAttributes {
    SetAttributes {
        atime: Some(SetTime::At(attributes.atime)),
        mtime: Some(SetTime::At(attributes.mtime)),
        ..SetAttributes::default()
    }
}

/// Makes `name` in the upper directory `parent` as `lower` is.
fn make(
    parent: &Arc<dyn Inode>,
    name: &[u8],
    new: &NewNode,
    lower: &Arc<dyn Inode>,
    empty: bool,
) -> Result<Arc<dyn Inode>> {
    let parent = parent.clone();
    match new.mode & S_IFMT {
        S_IFDIR => parent.make_dir(name, new),
        S_IFLNK => match lower.read_link(None)? {
            Link::Path(target) => parent.make_symlink(name, &target, new),
            Link::Place(_) => Err(Errno::EIO),
        },
        S_IFREG => {
            let (inode, _) = parent.clone().create(name, new, O_RDONLY)?;
            if let Err(error) = fill(&inode, lower, empty) {
                // Half a copy must not hide the whole file.
                parent.unlink(name, &inode)?;
                return Err(error);
            }
            Ok(inode)
        }
        _ => parent.make_node(name, new),
    }
}

/// Copies a file's content. Holes are not looked for: pages of zeros are left out.
fn fill(upper: &Arc<dyn Inode>, lower: &Arc<dyn Inode>, empty: bool) -> Result {
    if empty {
        return Ok(());
    }
    let data: &Arc<Shmem> = upper.downcast::<TmpNode>().ok_or(Errno::EIO)?.data()?;
    let source = OpenFile::new(lower.clone().open_data()?, O_RDONLY);
    let mut bytes = alloc::vec![0u8; CHUNK];
    let mut at = 0;
    loop {
        let read = source.ops.read(&source, &mut IoBuffer::kernel(&mut bytes), at)?;
        if read == 0 {
            return data.truncate(at);
        }
        for (index, page) in bytes[..read].chunks(4096).enumerate() {
            if page.iter().all(|b| *b == 0) {
                continue;
            }
            let offset = at + (index * 4096) as u64;
            if data.write(&mut IoBuffer::kernel_const(page), offset)? < page.len() {
                return Err(Errno::ENOSPC);
            }
        }
        at += read as u64;
    }
}
