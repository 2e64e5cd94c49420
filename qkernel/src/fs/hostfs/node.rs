//! A name in a host tree.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{
    AT_REMOVEDIR, O_ACCMODE, O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_RDONLY, O_TMPFILE,
    O_TRUNC, RENAME_EXCHANGE, S_IFDIR, S_IFMT, S_IFREG, S_ISVTX,
};
use qlib::host::Op;

use super::handle_cache::{self, FileHandle, Id};
use super::{HostFile, HostFs, device, file};
use crate::creds::FileCaps;
use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, SetAttributes, SetTime, is_device};
use crate::fs::inode::{Caching, Created, Inode, Link, NewNode, Rename, current_walk};
use crate::fs::{Caller, FileOps, special};
use crate::host::{Call, Handle};
use crate::sync::Mutex;
use crate::time;

/// A name in a host tree. Two names of one host file are two nodes; what they share is found by
/// device and inode.
pub struct HostNode {
    fs: Arc<HostFs>,
    place: Mutex<HostPlace>,
    kind: u32,
    last: Mutex<Last>,
    /// Where a symbolic link leads, once it was read.
    target: Mutex<Option<Vec<u8>>>,
    /// It has no name (O_TMPFILE), or none any more, and is known by this as long as it is open.
    unnamed: Mutex<Weak<FileHandle>>,
    /// There may be device nodes in this directory, once somebody has asked.
    holds_devices: Mutex<Option<bool>>,
}

struct HostPlace {
    /// `None` for the root.
    parent: Option<Arc<HostNode>>,
    name: Vec<u8>,
    /// The name is gone.
    gone: bool,
}

/// What the host said last, and in which walk.
struct Last {
    attributes: Attributes,
    /// 0: something was changed since.
    walk: u64,
    at_ns: u64,
    /// A handle that further opens for reading may use, if somebody has one open or it is kept.
    shared: Weak<FileHandle>,
}

/// What names a file to the host: a path beneath a handle, or if it is empty the handle itself.
struct At {
    handle: u32,
    path: Vec<u8>,
    held: Option<Arc<FileHandle>>,
}

impl At {
    fn call(&self, op: Op) -> Call {
        Call::on(op, self.handle).bytes(&self.path)
    }
}

impl HostNode {
    pub(super) fn new(
        fs: Arc<HostFs>,
        parent: Option<Arc<HostNode>>,
        name: &[u8],
        attributes: Attributes,
    ) -> Arc<Self> {
        Arc::new(HostNode {
            fs,
            place: Mutex::new(HostPlace { parent, name: name.to_vec(), gone: false }),
            kind: attributes.mode & S_IFMT,
            last: Mutex::new(Last {
                attributes,
                walk: current_walk(),
                at_ns: time::monotonic_ns(),
                shared: Weak::new(),
            }),
            target: Mutex::new(None),
            unnamed: Mutex::default(),
            holds_devices: Mutex::default(),
        })
    }

    /// The file system it belongs to.
    pub fn fs(&self) -> &Arc<HostFs> {
        &self.fs
    }

    /// Its path beneath the root; ENOENT when its name is gone.
    fn path(&self) -> Result<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut parent = self.collect(&mut names)?;
        while let Some(node) = parent {
            parent = node.collect(&mut names)?;
        }
        let mut path = Vec::with_capacity(names.iter().map(|n| n.len() + 1).sum());
        for name in names.iter().rev() {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        Ok(path)
    }

    /// Where the host finds it. ENOENT when its name is gone.
    fn at(&self) -> Result<At> {
        let held = self.unnamed_handle();
        Ok(match held {
            Some(held) => At { handle: held.number(), path: Vec::new(), held: Some(held) },
            None => At { handle: self.fs.handle(), path: self.path()?, held: None },
        })
    }

    fn collect(&self, names: &mut Vec<Vec<u8>>) -> Result<Option<Arc<HostNode>>> {
        let place = self.place.lock();
        if place.gone {
            return Err(Errno::ENOENT);
        }
        if place.parent.is_some() {
            names.push(place.name.clone());
        }
        Ok(place.parent.clone())
    }

    fn child_path(&self, name: &[u8]) -> Result<Vec<u8>> {
        let mut path = self.path()?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Ok(path)
    }

    /// Notes what the host says of it.
    pub(super) fn learn(&self, attributes: &Attributes) {
        let at_ns = time::monotonic_ns();
        let old = {
            let mut last = self.last.lock();
            (last.walk, last.at_ns) = (current_walk(), at_ns);
            core::mem::replace(&mut last.attributes, *attributes)
        };
        if old.ctime != attributes.ctime {
            *self.target.lock() = None;
        }
    }

    /// What the host said last, if that still counts.
    fn known(&self) -> Option<Attributes> {
        let last = self.last.lock();
        if last.walk == current_walk() {
            return Some(last.attributes);
        }
        // A further name of the same file may have changed it.
        let is_alone = self.kind == S_IFDIR || last.attributes.nlink == 1;
        let trusted = last.walk != 0 && is_alone && self.fs.trust_ns > 0;
        (trusted && time::monotonic_ns().saturating_sub(last.at_ns) < self.fs.trust_ns)
            .then_some(last.attributes)
    }

    /// What is known of it is old from now on.
    pub(super) fn is_changed(&self) {
        let shared = {
            let mut last = self.last.lock();
            last.walk = 0;
            core::mem::take(&mut last.shared)
        };
        if let Some(handle) = shared.upgrade() {
            handle_cache::give_up(&handle);
        }
    }

    /// A handle of this very file that is open for reading already.
    fn shared_handle(&self) -> Option<Arc<FileHandle>> {
        let last = self.last.lock();
        let handle = last.shared.upgrade()?;
        let is_same = handle.id() == Some(Id::of(&last.attributes));
        // Somebody may just have closed it, so that this is its last reference.
        drop(last);
        is_same.then_some(handle)
    }

    fn child(self: &Arc<Self>, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let attributes = self.fs.stat(&self.child_path(name)?)?;
        Ok(HostNode::new(self.fs.clone(), Some(self.clone()), name, attributes))
    }

    /// Opens the host's file or directory.
    fn open_host(self: Arc<Self>, flags: u32) -> Result<Arc<HostFile>> {
        let shares = self.kind == S_IFREG && handle_cache::may_share(flags);
        if shares && let Some(handle) = self.shared_handle() {
            handle_cache::keep(&handle);
            return Ok(HostFile::new(handle, self));
        }
        if flags & O_TRUNC != 0 || flags & O_ACCMODE != O_RDONLY {
            self.is_changed();
        }
        let wanted = if self.kind == S_IFDIR { O_DIRECTORY } else { flags & O_TRUNC };
        let at = self.at()?;
        // What has no name any more is not kept open for others.
        let shares = shares && at.held.is_none();
        let (handle, [dev, ino, ctime_ns, ..]) = at
            .call(Op::Open)
            .arg(0, u64::from(file::host_flags(flags) | wanted | O_NOFOLLOW))
            .run_out()?;
        let id = Id { dev, ino, ctime_ns };
        let handle =
            FileHandle::new(Handle::new(handle as u32), self.fs.handle(), shares.then_some(id));
        if shares {
            // What the host gave may be newer than what is known of the name: the next walk will
            // see.
            let is_known = {
                let mut last = self.last.lock();
                let is_known = Id::of(&last.attributes) == id;
                if is_known {
                    last.shared = Arc::downgrade(&handle);
                }
                is_known
            };
            if is_known {
                handle_cache::keep(&handle);
            }
        }
        Ok(HostFile::new(handle, self))
    }

    /// True if what the host lists as regular files in this directory may be device nodes.
    pub(super) fn may_hold_devices(&self) -> bool {
        if self.fs.is_shared() {
            return false;
        }
        let known = *self.holds_devices.lock();
        known.unwrap_or_else(|| {
            let Ok(path) = self.path() else { return false };
            let holds = device::is_holder(self.fs.handle(), &path);
            *self.holds_devices.lock() = Some(holds);
            holds
        })
    }

    /// `child` gets a name in this directory.
    fn takes(&self, child: &HostNode) {
        if !is_device(child.kind) || self.fs.is_shared() || self.may_hold_devices() {
            return;
        }
        if let Ok(path) = self.path() {
            device::mark_holder(self.fs.handle(), &path);
        }
        *self.holds_devices.lock() = Some(true);
    }

    /// A file that has no name any more, and is open by `handle`: a node by which it can be opened
    /// again. `None` while it has its name, or such a node is this one.
    pub(super) fn nameless(&self, handle: &Arc<FileHandle>) -> Option<Arc<dyn Inode>> {
        let has_name = !self.place.lock().gone;
        if self.kind != S_IFREG || has_name || self.unnamed_handle().is_some() {
            return None;
        }
        let attributes = super::stat_handle(handle.number()).ok()?;
        Some(Self::held_by(&self.fs, handle, attributes))
    }

    fn held_by(
        fs: &Arc<HostFs>,
        handle: &Arc<FileHandle>,
        attributes: Attributes,
    ) -> Arc<HostNode> {
        let node = HostNode::new(fs.clone(), None, b"", attributes);
        node.set_gone();
        *node.unnamed.lock() = Arc::downgrade(handle);
        node
    }

    /// The handle of a file that has no name.
    fn unnamed_handle(&self) -> Option<Arc<FileHandle>> {
        self.unnamed.lock().upgrade()
    }

    /// The open file of a new handle that is not shared.
    fn opened(self: &Arc<Self>, handle: Handle) -> Arc<dyn FileOps> {
        HostFile::new(FileHandle::new(handle, self.fs.handle(), None), self.clone())
    }

    fn new_child(
        self: &Arc<Self>,
        call: Call,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Arc<dyn Inode>> {
        call.arg(0, u64::from(new.mode))
            .arg(1, u64::from(new.uid))
            .arg(2, u64::from(new.gid))
            .run()?;
        self.is_changed();
        self.child(name)
    }

    /// A new socket of type `kind`, connected to this one, if it lies in a volume. ECONNREFUSED.
    pub fn connect_socket(&self, kind: u32) -> Result<Handle> {
        if !self.fs.is_shared() {
            return Err(Errno::ECONNREFUSED);
        }
        let call = self.at()?.call(Op::ConnectUnix).arg(0, kind.into());
        call.run().map(|handle| Handle::new(handle as u32))
    }

    fn set_gone(&self) {
        self.place.lock().gone = true;
        self.is_changed();
    }

    fn other(inode: &Arc<dyn Inode>) -> Result<&HostNode> {
        inode.downcast::<HostNode>().ok_or(Errno::EXDEV)
    }
}

/// Sets attributes of `path` beneath `handle`.
pub(super) fn set_attributes(handle: u32, path: &[u8], change: &SetAttributes) -> Result {
    let mut mask = 0;
    let mut set = |bit: u64, on: bool| mask |= if on { bit } else { 0 };
    set(1, change.mode.is_some());
    set(2, change.uid.is_some());
    set(4, change.gid.is_some());
    let mut time = |time: Option<SetTime>, explicit: u64, now: u64| match time {
        None => 0,
        Some(SetTime::Now) => {
            set(now, true);
            0
        }
        Some(SetTime::At(time)) => {
            set(explicit, true);
            time.sec.wrapping_mul(1_000_000_000).wrapping_add(time.nsec) as u64
        }
    };
    let (atime, mtime) = (time(change.atime, 8, 32), time(change.mtime, 16, 64));
    let owner = u64::from(change.uid.unwrap_or(0)) | u64::from(change.gid.unwrap_or(0)) << 32;
    Call::on(Op::SetAttr, handle)
        .bytes(path)
        .arg(0, mask)
        .arg(1, u64::from(change.mode.unwrap_or(0)))
        .arg(2, owner)
        .arg(3, atime)
        .arg(4, mtime)
        .run()?;
    Ok(())
}

impl Inode for HostNode {
    fn kind(&self) -> u32 {
        self.kind
    }

    fn attributes(&self) -> Result<Attributes> {
        if let Some(known) = self.known() {
            return Ok(known);
        }
        if let Some(handle) = self.unnamed_handle() {
            return super::stat_handle(handle.number());
        }
        let attributes = self.fs.stat(&self.path()?)?;
        self.learn(&attributes);
        Ok(attributes)
    }

    fn permissions(&self) -> Result<Attributes> {
        Ok(self.last.lock().attributes)
    }

    fn caching(&self) -> Caching {
        Caching::Check
    }

    fn revalidate(&self) -> Result<bool> {
        if self.known().is_some() {
            return Ok(true);
        }
        let attributes = self.fs.stat(&self.path()?).inspect_err(|_| self.is_changed())?;
        let same = {
            let last = self.last.lock();
            (attributes.dev, attributes.ino, attributes.kind())
                == (last.attributes.dev, last.attributes.ino, last.attributes.kind())
        };
        if same {
            self.learn(&attributes);
        } else {
            self.set_gone();
        }
        Ok(same)
    }

    fn lookup(self: Arc<Self>, name: &[u8]) -> Result<Arc<dyn Inode>> {
        if self.kind != S_IFDIR {
            return Err(Errno::ENOTDIR);
        }
        self.child(name)
    }

    fn open(self: Arc<Self>, caller: &dyn Caller, flags: u32) -> Result<Arc<dyn FileOps>> {
        if self.kind != S_IFREG && self.kind != S_IFDIR {
            let attributes = self.attributes()?;
            return special::open(caller, &attributes, flags);
        }
        Ok(self.open_host(flags)?)
    }

    fn open_data(self: Arc<Self>) -> Result<Arc<dyn FileOps>> {
        Ok(self.open_host(O_RDONLY)?)
    }

    fn read_link(&self, _caller: Option<&dyn Caller>) -> Result<Link> {
        // A link never changes; that its name means another one now shows in its times.
        let known = self.target.lock().clone();
        if let Some(target) = known {
            return Ok(Link::Path(target));
        }
        let mut target = alloc::vec![0; 4096];
        let len = Call::on(Op::ReadLink, self.fs.handle())
            .bytes(&self.path()?)
            .bytes_out(&mut target)
            .run()?;
        target.truncate(len as usize);
        *self.target.lock() = Some(target.clone());
        Ok(Link::Path(target))
    }

    fn create(self: Arc<Self>, name: &[u8], new: &NewNode, flags: u32) -> Result<Created> {
        let handle = Call::on(Op::Create, self.fs.handle())
            .bytes(&self.child_path(name)?)
            .arg(0, u64::from(file::host_flags(flags) | O_CREAT | O_EXCL | O_NOFOLLOW))
            .arg(1, u64::from(new.mode & 0o7777))
            .arg(2, u64::from(new.uid))
            .arg(3, u64::from(new.gid))
            .run()?;
        let handle = Handle::new(handle as u32);
        self.is_changed();
        let attributes = super::stat_handle(handle.number())?;
        let node = HostNode::new(self.fs.clone(), Some(self.clone()), name, attributes);
        let ops = node.opened(handle);
        Ok((node, Some(ops)))
    }

    fn create_unnamed(self: Arc<Self>, new: &NewNode, flags: u32) -> Result<Created> {
        let handle = Call::on(Op::Create, self.fs.handle())
            .bytes(&self.path()?)
            .arg(0, u64::from(file::host_flags(flags) | O_TMPFILE | flags & O_EXCL))
            .arg(1, u64::from(new.mode & 0o7777))
            .arg(2, u64::from(new.uid))
            .arg(3, u64::from(new.gid))
            .run()?;
        let handle = Handle::new(handle as u32);
        let attributes = super::stat_handle(handle.number())?;
        let handle = FileHandle::new(handle, self.fs.handle(), None);
        let node = Self::held_by(&self.fs, &handle, attributes);
        let ops = HostFile::new(handle, node.clone());
        Ok((node, Some(ops)))
    }

    fn make_dir(self: Arc<Self>, name: &[u8], new: &NewNode) -> Result<Arc<dyn Inode>> {
        let call = Call::on(Op::MkDir, self.fs.handle());
        let path = self.child_path(name)?;
        self.new_child(call.bytes(&path), name, new)
    }

    fn make_node(self: Arc<Self>, name: &[u8], new: &NewNode) -> Result<Arc<dyn Inode>> {
        let path = self.child_path(name)?;
        let root = self.fs.handle();
        let call = Call::on(Op::MkNod, root).bytes(&path);
        if !is_device(new.mode) {
            return self.new_child(call, name, new);
        }
        if self.fs.is_shared() {
            return Err(Errno::EPERM);
        }
        let file = NewNode { mode: S_IFREG | S_ISVTX | new.mode & 0o777, ..*new };
        self.new_child(call, name, &file)?;
        if let Err(error) = device::mark(root, &path, new.mode, new.rdev) {
            Call::on(Op::Unlink, root).bytes(&path).run()?;
            return Err(error);
        }
        let child = self.child(name)?;
        self.takes(Self::other(&child)?);
        Ok(child)
    }

    fn bind_socket(
        self: Arc<Self>,
        name: &[u8],
        new: &NewNode,
        kind: u32,
    ) -> Result<(Arc<dyn Inode>, Option<Handle>)> {
        if self.fs.is_shared() {
            let call = Call::on(Op::BindUnix, self.fs.handle()).bytes(&self.child_path(name)?);
            let call = call.arg(0, u64::from(new.mode)).arg(1, u64::from(new.uid));
            match call.arg(2, u64::from(new.gid)).arg(4, u64::from(kind)).run() {
                Ok(handle) => {
                    self.is_changed();
                    return Ok((self.child(name)?, Some(Handle::new(handle as u32))));
                }
                // The container was not made for it.
                Err(Errno::EOPNOTSUPP) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((self.make_node(name, new)?, None))
    }

    fn make_symlink(
        self: Arc<Self>,
        name: &[u8],
        target: &[u8],
        new: &NewNode,
    ) -> Result<Arc<dyn Inode>> {
        let call = Call::on(Op::SymLink, self.fs.handle());
        let path = self.child_path(name)?;
        // The target may be a slice of anything: the host reads only the kernel's heap.
        let target = target.to_vec();
        self.new_child(call.bytes(&path).bytes(&target), name, new)
    }

    fn link(self: Arc<Self>, name: &[u8], target: &Arc<dyn Inode>) -> Result<Arc<dyn Inode>> {
        let target = Self::other(target)?;
        let new = self.child_path(name)?;
        if let Some(handle) = target.unnamed_handle() {
            let call = Call::on(Op::LinkFile, self.fs.handle()).bytes(&new);
            call.arg(0, u64::from(handle.number())).run()?;
        } else {
            let old = target.path()?;
            target.is_changed();
            Call::on(Op::Link, self.fs.handle()).bytes(&old).bytes(&new).run()?;
        }
        self.is_changed();
        self.takes(target);
        self.child(name)
    }

    fn unlink(&self, name: &[u8], child: &Arc<dyn Inode>) -> Result {
        let flags = if child.is_dir() { AT_REMOVEDIR } else { 0 };
        Call::on(Op::Unlink, self.fs.handle())
            .bytes(&self.child_path(name)?)
            .arg(0, u64::from(flags))
            .run()?;
        self.is_changed();
        Self::other(child)?.set_gone();
        Ok(())
    }

    fn rename(&self, name: &[u8], rename: &Rename<'_>) -> Result {
        let to = rename.to.clone();
        let target = Self::other(&to)?;
        if !Arc::ptr_eq(&self.fs, &target.fs) {
            return Err(Errno::EXDEV);
        }
        let (from_path, to_path) = (self.child_path(name)?, target.child_path(rename.to_name)?);
        Call::on(Op::Rename, self.fs.handle())
            .bytes(&from_path)
            .bytes(&to_path)
            .arg(0, u64::from(rename.flags))
            .run()?;
        self.is_changed();
        target.is_changed();
        let child = Self::other(rename.child)?;
        target.takes(child);
        let from_place = (child.place.lock().parent.clone(), name.to_vec());
        let (to_parent, to_name) = (arc_of(rename.to)?, rename.to_name.to_vec());
        if let Some(replaced) = rename.replaced {
            let replaced = Self::other(replaced)?;
            if rename.flags & RENAME_EXCHANGE != 0 {
                self.takes(replaced);
                replaced.move_to(from_place.0, from_place.1);
            } else {
                replaced.set_gone();
            }
        }
        child.move_to(Some(to_parent), to_name);
        Ok(())
    }

    fn set_attributes(&self, change: &SetAttributes) -> Result {
        let mut on_host = *change;
        if is_device(self.kind) && !self.fs.is_shared() {
            on_host.mode = change.mode.map(|mode| mode | S_ISVTX);
        }
        let at = self.at()?;
        set_attributes(at.handle, &at.path, &on_host)?;
        change.apply(&mut self.last.lock().attributes);
        self.is_changed();
        Ok(())
    }

    fn truncate(&self, size: u64) -> Result {
        let handle = self
            .at()?
            .call(Op::Open)
            .arg(0, u64::from(linux_raw_sys::general::O_WRONLY | O_NOFOLLOW))
            .run()?;
        let handle = Handle::new(handle as u32);
        self.is_changed();
        Call::on(Op::Truncate, handle.number()).arg(0, size).run()?;
        Ok(())
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        get_xattr(self.at()?.call(Op::GetXattr), name)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], flags: u32) -> Result {
        if device::is_reserved(name) {
            return Err(Errno::EPERM);
        }
        let (at, name, value) = (self.at()?, name.to_vec(), value.to_vec());
        let call = at.call(Op::SetXattr).bytes(&name).bytes(&value);
        call.arg(0, u64::from(flags)).run()?;
        self.is_changed();
        Ok(())
    }

    fn list_xattr(&self) -> Result<Vec<u8>> {
        let mut names = alloc::vec![0; 65536];
        let at = self.at()?;
        let len = at.call(Op::ListXattr).bytes_out(&mut names).run()?;
        names.truncate(len as usize);
        let shown = names.split_inclusive(|b| *b == 0).filter(|name| !device::is_reserved(name));
        Ok(shown.flatten().copied().collect())
    }

    fn remove_xattr(&self, name: &[u8]) -> Result {
        if device::is_reserved(name) {
            return Err(Errno::EPERM);
        }
        let (at, name) = (self.at()?, name.to_vec());
        at.call(Op::RemoveXattr).bytes(&name).run()?;
        self.is_changed();
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The value of an attribute of what `call` is about.
pub(super) fn get_xattr(call: Call, name: &[u8]) -> Result<Vec<u8>> {
    if device::is_reserved(name) {
        return Err(Errno::ENODATA);
    }
    // Each execve(2) asks for capabilities, which nearly no file has.
    let room = if name == FileCaps::ATTRIBUTE { FileCaps::MAX_BYTES } else { 65536 };
    let (mut value, name) = (alloc::vec![0; room], name.to_vec());
    let len = call.bytes(&name).bytes_out(&mut value).run()?;
    value.truncate(len as usize);
    Ok(value)
}

impl HostNode {
    fn move_to(&self, parent: Option<Arc<HostNode>>, name: Vec<u8>) {
        let old =
            core::mem::replace(&mut *self.place.lock(), HostPlace { parent, name, gone: false });
        drop(old);
    }
}

/// The node itself behind an inode.
fn arc_of(inode: &Arc<dyn Inode>) -> Result<Arc<HostNode>> {
    let any: Arc<dyn Any + Send + Sync> = inode.clone();
    any.downcast().map_err(|_| Errno::EXDEV)
}
