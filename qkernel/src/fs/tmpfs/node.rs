//! Inodes of a tmpfs.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use linux_raw_sys::general::{
    O_EXCL, O_TRUNC, RENAME_EXCHANGE, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, XATTR_CREATE,
    XATTR_REPLACE,
};
use qlib::PAGE_SIZE;

use super::inodes::Inodes;
use super::{TmpFile, TmpFs};
use crate::account::{self, Lasting};
use crate::creds::FileCaps;
use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, SetAttributes, SetTime};
use crate::fs::inode::{Created, Inode, Link, NewNode, Rename};
use crate::fs::shmem::Shmem;
use crate::fs::{Caller, FileOps, special};
use crate::sync::Mutex;

/// An object of a tmpfs.
pub struct TmpNode {
    pub(super) fs: Weak<TmpFs>,
    pub(super) attributes: Mutex<Attributes>,
    pub(super) content: Content,
    /// It has no name, and may be given one (O_TMPFILE without O_EXCL).
    may_be_named: AtomicBool,
    xattrs: Mutex<BTreeMap<Vec<u8>, Xattr>>,
    /// Where it counts as one.
    inodes: Arc<Inodes>,
}

impl TmpNode {
    /// What a directory that nobody has any more holds.
    fn take_names(&mut self) -> BTreeMap<Vec<u8>, Entry> {
        match &mut self.content {
            Content::Dir(names) => core::mem::take(&mut names.get_mut().by_name),
            _ => BTreeMap::new(),
        }
    }
}

impl Drop for TmpNode {
    fn drop(&mut self) {
        self.inodes.give();
        // Directories may lie deeper in each other than the stack is: each is emptied before it
        // goes.
        let mut rest = self.take_names();
        let mut above = Vec::new();
        loop {
            match rest.pop_first() {
                Some((_, entry)) => {
                    let mut node = Arc::into_inner(entry.node);
                    let below = node.as_mut().map(TmpNode::take_names);
                    if let Some(below) = below.filter(|below| !below.is_empty()) {
                        above.push(core::mem::replace(&mut rest, below));
                    }
                }
                None => match above.pop() {
                    Some(names) => rest = names,
                    None => return,
                },
            }
        }
    }
}

/// The value of an extended attribute, and the kernel memory that it takes.
type Xattr = (Vec<u8>, Lasting);

/// What it holds.
pub enum Content {
    /// Names.
    Dir(Mutex<Names>),
    /// Data.
    File(Arc<Shmem>),
    /// A path.
    Link(Vec<u8>),
    /// A device node, FIFO or socket: nothing.
    Special,
}

/// What a name leads to.
struct Entry {
    position: u64,
    node: Arc<TmpNode>,
    /// The kernel memory that it and the node take.
    lasting: Lasting,
}

/// Bytes of these names as listxattr(2) gives them.
fn listed_bytes(xattrs: &BTreeMap<Vec<u8>, Xattr>) -> usize {
    xattrs.keys().map(|name| name.len() + 1).sum()
}

/// What a name and its node take, about, in bytes, besides the characters: the node, its object,
/// both maps of the directory.
const NODE_BYTES: u64 = 1024;
/// What an extended attribute takes besides its name and value, in bytes: its part of a map that
/// may be half empty.
const XATTR_BYTES: u64 = 192;
/// Bytes of names that listxattr(2) can tell of (XATTR_LIST_MAX): there are no more.
const LISTED_MAX: usize = 65536;

/// The names of a directory. Positions for getdents64(2) are given in the order of making, so that
/// a listing goes on where it was whatever comes and goes.
#[derive(Default)]
pub struct Names {
    by_name: BTreeMap<Vec<u8>, Entry>,
    by_position: BTreeMap<u64, Vec<u8>>,
    last_position: u64,
}

impl Names {
    fn insert(&mut self, name: &[u8], node: Arc<TmpNode>, lasting: Lasting) {
        // 1 and 2 are "." and "..".
        self.last_position = self.last_position.max(2) + 1;
        self.by_position.insert(self.last_position, name.to_vec());
        self.by_name.insert(name.to_vec(), Entry { position: self.last_position, node, lasting });
    }

    fn remove(&mut self, name: &[u8]) -> Option<Entry> {
        let entry = self.by_name.remove(name)?;
        self.by_position.remove(&entry.position);
        Some(entry)
    }

    fn get(&self, name: &[u8]) -> Option<Arc<TmpNode>> {
        self.by_name.get(name).map(|entry| entry.node.clone())
    }

    /// The first entry after `position`.
    pub(super) fn after(&self, position: u64) -> Option<(u64, Vec<u8>, Arc<TmpNode>)> {
        let (next, name) = self.by_position.range(position + 1..).next()?;
        Some((*next, name.clone(), self.get(name)?))
    }
}

impl Content {
    /// An empty directory.
    pub fn dir() -> Self {
        Content::Dir(Mutex::default())
    }
}

impl TmpNode {
    /// One that counts already ([`Inodes::take`]).
    pub(super) fn new(fs: &Arc<TmpFs>, attributes: Attributes, content: Content) -> Arc<Self> {
        Arc::new(TmpNode {
            fs: Arc::downgrade(fs),
            attributes: Mutex::new(attributes),
            content,
            may_be_named: AtomicBool::new(false),
            xattrs: Mutex::default(),
            inodes: fs.inodes.clone(),
        })
    }

    fn fs(&self) -> Result<Arc<TmpFs>> {
        self.fs.upgrade().ok_or(Errno::EIO)
    }

    pub(super) fn names(&self) -> Result<&Mutex<Names>> {
        match &self.content {
            Content::Dir(names) => Ok(names),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// A path from this directory to what has the number `ino`: `.` for itself.
    pub(super) fn path_to(self: Arc<Self>, ino: u64) -> Option<Vec<u8>> {
        if self.attributes.lock().ino == ino {
            return Some(b".".to_vec());
        }
        let mut directories = alloc::vec![(self, b".".to_vec())];
        while let Some((directory, path)) = directories.pop() {
            for (name, entry) in &directory.names().ok()?.lock().by_name {
                let below = || [&path, &b"/"[..], name].concat();
                if entry.node.attributes.lock().ino == ino {
                    return Some(below());
                }
                if entry.node.is_dir() {
                    directories.push((entry.node.clone(), below()));
                }
            }
        }
        None
    }

    /// Its data, for a regular file.
    pub fn data(&self) -> Result<&Arc<Shmem>> {
        match &self.content {
            Content::File(data) => Ok(data),
            Content::Dir(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Contents or names changed now.
    pub(super) fn is_modified(&self) {
        let now = SetTime::Now.resolve();
        let mut attributes = self.attributes.lock();
        (attributes.mtime, attributes.ctime) = (now, now);
    }

    /// Its content or its owner changes: a file's capabilities were given to what it was.
    pub(super) fn drop_capabilities(&self) {
        self.xattrs.lock().remove(FileCaps::ATTRIBUTE);
    }

    fn relink(&self, change: i32) {
        let mut attributes = self.attributes.lock();
        attributes.nlink = attributes.nlink.saturating_add_signed(change);
        attributes.ctime = SetTime::Now.resolve();
    }

    fn make(&self, new: &NewNode, content: Content) -> Result<Arc<TmpNode>> {
        let fs = self.fs()?;
        let attributes = Attributes { rdev: new.rdev, ..fs.attributes(new.mode, new.uid, new.gid) };
        fs.inodes.take()?;
        Ok(TmpNode::new(&fs, attributes, content))
    }

    /// What it takes together with `name`.
    fn lasting_bytes(&self, name: &[u8]) -> u64 {
        let target = if let Content::Link(target) = &self.content { target.len() } else { 0 };
        NODE_BYTES + 2 * account::on_heap(name.len()) + account::on_heap(target)
    }

    /// Takes what it needs more, as `new` in some directory, than it holds as `name` in this one.
    fn takes_more(&self, child: &TmpNode, name: &[u8], new: &[u8]) -> Result<Lasting> {
        let names = self.names()?.lock();
        let held = names.by_name.get(name).map_or(0, |entry| entry.lasting.bytes());
        match child.lasting_bytes(new).saturating_sub(held) {
            // That is always to be had.
            0 => Ok(Lasting::default()),
            more => Lasting::take(more),
        }
    }

    /// Enters a new child.
    fn add(&self, name: &[u8], node: Arc<TmpNode>) -> Result<Arc<dyn Inode>> {
        {
            let mut names = self.names()?.lock();
            if names.by_name.contains_key(name) {
                return Err(Errno::EEXIST);
            }
            let lasting = Lasting::take(node.lasting_bytes(name))?;
            names.insert(name, node.clone(), lasting);
        }
        if node.is_dir() {
            self.relink(1);
        }
        self.is_modified();
        Ok(node)
    }

    /// A regular file without a name, which a name may be given later.
    pub(super) fn new_file(&self, new: &NewNode) -> Result<Arc<TmpNode>> {
        let data = Shmem::new(0, self.fs()?.quota.clone());
        self.make(new, Content::File(data))
    }

    fn is_dir(&self) -> bool {
        matches!(self.content, Content::Dir(_))
    }

    fn check_empty(&self) -> Result {
        match &self.content {
            Content::Dir(names) if !names.lock().by_name.is_empty() => Err(Errno::ENOTEMPTY),
            _ => Ok(()),
        }
    }

    /// A child is gone from this directory for good.
    fn dropped(&self, child: &TmpNode) {
        if child.is_dir() {
            self.relink(-1);
            child.relink(-2);
        } else {
            if child.attributes.lock().nlink > 1 {
                self.inodes.give();
            }
            child.relink(-1);
        }
    }
}

impl Inode for TmpNode {
    fn kind(&self) -> u32 {
        self.attributes.lock().mode & S_IFMT
    }

    fn attributes(&self) -> Result<Attributes> {
        let mut attributes = *self.attributes.lock();
        match &self.content {
            Content::File(data) => {
                attributes.size = data.size();
                attributes.blocks = data.page_count() * (PAGE_SIZE / 512);
            }
            Content::Link(target) => attributes.size = target.len() as u64,
            Content::Dir(names) => attributes.size = 40 + 20 * names.lock().by_name.len() as u64,
            Content::Special => {}
        }
        Ok(attributes)
    }

    fn lookup(self: Arc<Self>, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let node = self.names()?.lock().get(name);
        node.map(|node| node as Arc<dyn Inode>).ok_or(Errno::ENOENT)
    }

    fn open(self: Arc<Self>, caller: &dyn Caller, flags: u32) -> Result<Arc<dyn FileOps>> {
        match &self.content {
            Content::File(data) => {
                if flags & O_TRUNC != 0 {
                    data.truncate(0)?;
                    self.drop_capabilities();
                    self.is_modified();
                }
                Ok(TmpFile::new(self))
            }
            Content::Dir(_) => Ok(TmpFile::new(self)),
            Content::Link(_) => Err(Errno::ELOOP),
            Content::Special => special::open(caller, &self.attributes()?, flags),
        }
    }

    fn open_data(self: Arc<Self>) -> Result<Arc<dyn FileOps>> {
        Ok(TmpFile::new(self))
    }

    fn read_link(&self, _caller: Option<&dyn Caller>) -> Result<Link> {
        match &self.content {
            Content::Link(target) => Ok(Link::Path(target.clone())),
            _ => Err(Errno::EINVAL),
        }
    }

    fn create(self: Arc<Self>, name: &[u8], new: &NewNode, _flags: u32) -> Result<Created> {
        let node = self.new_file(new)?;
        Ok((self.add(name, node)?, None))
    }

    fn create_unnamed(self: Arc<Self>, new: &NewNode, flags: u32) -> Result<Created> {
        let node = self.new_file(new)?;
        node.relink(-1);
        node.may_be_named.store(flags & O_EXCL == 0, Relaxed);
        Ok((node, None))
    }

    fn make_dir(self: Arc<Self>, name: &[u8], new: &NewNode) -> Result<Arc<dyn Inode>> {
        let node =
            self.make(&NewNode { mode: S_IFDIR | new.mode & 0o7777, ..*new }, Content::dir())?;
        self.add(name, node)
    }

    fn make_node(self: Arc<Self>, name: &[u8], new: &NewNode) -> Result<Arc<dyn Inode>> {
        let node = if new.mode & S_IFMT == S_IFREG {
            self.new_file(new)?
        } else {
            self.make(new, Content::Special)?
        };
        self.add(name, node)
    }

    fn make_symlink(
        self: Arc<Self>,
        name: &[u8],
        target: &[u8],
        new: &NewNode,
    ) -> Result<Arc<dyn Inode>> {
        let new = NewNode { mode: S_IFLNK | 0o777, ..*new };
        let node = self.make(&new, Content::Link(target.to_vec()))?;
        self.add(name, node)
    }

    fn link(self: Arc<Self>, name: &[u8], target: &Arc<dyn Inode>) -> Result<Arc<dyn Inode>> {
        let node = arc_of(target)?;
        if node.attributes.lock().nlink == 0 && !node.may_be_named.load(Relaxed) {
            return Err(Errno::ENOENT);
        }
        let is_further = node.attributes.lock().nlink > 0;
        if is_further {
            self.inodes.take()?;
        }
        node.relink(1);
        self.add(name, node.clone()).inspect_err(|_| {
            node.relink(-1);
            if is_further {
                self.inodes.give();
            }
        })?;
        // Once it has had a name, the loss of its last one is for good.
        node.may_be_named.store(false, Relaxed);
        Ok(node)
    }

    fn unlink(&self, name: &[u8], child: &Arc<dyn Inode>) -> Result {
        let child = arc_of(child)?;
        child.check_empty()?;
        let removed = self.names()?.lock().remove(name);
        drop(removed);
        self.dropped(&child);
        self.is_modified();
        Ok(())
    }

    fn rename(&self, name: &[u8], rename: &Rename<'_>) -> Result {
        let (child, to) = (arc_of(rename.child)?, arc_of(rename.to)?);
        let replaced = rename.replaced.map(arc_of).transpose()?;
        if !Weak::ptr_eq(&self.fs, &to.fs) {
            return Err(Errno::EXDEV);
        }
        let moves_dir = |node: &TmpNode, from: &TmpNode, to: &TmpNode| {
            if node.is_dir() {
                from.relink(-1);
                to.relink(1);
            }
        };
        let more = self.takes_more(&child, name, rename.to_name)?;
        if rename.flags & RENAME_EXCHANGE != 0 {
            let other = replaced.ok_or(Errno::ENOENT)?;
            let more_of_other = to.takes_more(&other, rename.to_name, name)?;
            let here = self.names()?.lock().remove(name).ok_or(Errno::ENOENT)?;
            let there = to.names()?.lock().remove(rename.to_name);
            let lasting = there.map(|entry| entry.lasting).unwrap_or_default();
            self.names()?.lock().insert(name, other.clone(), lasting.and(more_of_other));
            let lasting = here.lasting.and(more);
            to.names()?.lock().insert(rename.to_name, child.clone(), lasting);
            moves_dir(&child, self, &to);
            moves_dir(&other, &to, self);
        } else {
            if let Some(old) = &replaced {
                old.check_empty()?;
                let removed = to.names()?.lock().remove(rename.to_name);
                drop(removed);
                to.dropped(old);
            }
            let here = self.names()?.lock().remove(name).ok_or(Errno::ENOENT)?;
            let lasting = here.lasting.and(more);
            to.names()?.lock().insert(rename.to_name, child.clone(), lasting);
            moves_dir(&child, self, &to);
        }
        self.is_modified();
        to.is_modified();
        child.relink(0);
        Ok(())
    }

    fn set_attributes(&self, change: &SetAttributes) -> Result {
        if change.uid.is_some() || change.gid.is_some() {
            self.drop_capabilities();
        }
        change.apply(&mut self.attributes.lock());
        Ok(())
    }

    fn truncate(&self, size: u64) -> Result {
        self.data()?.truncate(size)?;
        self.drop_capabilities();
        self.is_modified();
        Ok(())
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.xattrs.lock().get(name).map(|(value, _)| value.clone()).ok_or(Errno::ENODATA)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], flags: u32) -> Result {
        let mut xattrs = self.xattrs.lock();
        match xattrs.contains_key(name) {
            true if flags & XATTR_CREATE != 0 => return Err(Errno::EEXIST),
            false if flags & XATTR_REPLACE != 0 => return Err(Errno::ENODATA),
            false if listed_bytes(&xattrs) + name.len() >= LISTED_MAX => return Err(Errno::ENOSPC),
            _ => {}
        }
        let held = XATTR_BYTES + account::on_heap(name.len()) + account::on_heap(value.len());
        let lasting = Lasting::take(held)?;
        xattrs.insert(name.to_vec(), (value.to_vec(), lasting));
        Ok(())
    }

    fn list_xattr(&self) -> Result<Vec<u8>> {
        let mut list = Vec::new();
        for name in self.xattrs.lock().keys() {
            list.extend_from_slice(name);
            list.push(0);
        }
        Ok(list)
    }

    fn remove_xattr(&self, name: &[u8]) -> Result {
        self.xattrs.lock().remove(name).map(|_| ()).ok_or(Errno::ENODATA)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The node itself behind an inode.
pub(super) fn arc_of(inode: &Arc<dyn Inode>) -> Result<Arc<TmpNode>> {
    let any: Arc<dyn Any + Send + Sync> = inode.clone();
    any.downcast().map_err(|_| Errno::EXDEV)
}
