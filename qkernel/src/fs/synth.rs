//! Files whose content the kernel makes up as it is read: what /proc, /sys and cgroup hierarchies
//! are made of.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{O_ACCMODE, O_RDONLY, PROC_SUPER_MAGIC, S_IFDIR, S_IFLNK, S_IFREG};

use super::attr::{Attributes, SetAttributes, StatFs};
use super::disk::Begun;
use super::file::{DirEntry, DirSink, dots, entry_kind};
use super::inode::{Caching, FileSystem, Inode, Link, next_device, simple_statfs};
use super::{FileOps, OpenFile};
use crate::errno::{Errno, Result};
use crate::fs::Caller;
use crate::io::IoBuffer;
use crate::sync::Mutex;
use crate::task::{self, Process, Thread, current};

/// What a file reads as, for the thread that reads it.
pub type Read = Box<dyn Fn(&Arc<Thread>) -> Result<Vec<u8>> + Send + Sync>;
/// Takes what was written at an offset.
pub type Write = Box<dyn Fn(&Arc<Thread>, &[u8]) -> Result + Send + Sync>;
/// Where a link leads.
pub type Follow = Box<dyn Fn(&Arc<Thread>) -> Result<Link> + Send + Sync>;

/// Opens a file.
pub type Open = Box<dyn Fn(&Arc<Thread>) -> Result<Arc<dyn FileOps>> + Send + Sync>;

/// A made-up object.
pub enum Node {
    /// A directory.
    Dir(Arc<dyn Dir>),
    /// A file with its permission bits, what it reads as, and what becomes of writes (EACCES
    /// without).
    File(u32, Read, Option<Write>),
    /// A symbolic link with its permission bits.
    Link(u32, Follow),
    /// A file with its permission bits and operations of its own.
    Own(u32, Open),
}

/// Names that are listed at a time.
pub const LISTED: usize = 256;

/// A name in a made-up directory.
pub struct Listed {
    /// The name.
    pub name: Vec<u8>,
    /// S_IF*.
    pub kind: u32,
    /// Where the listing goes on after it. What goes or comes before it moves nothing.
    pub next: u64,
}

/// The first [`LISTED`] of names that are ascending numbers, after `before` other names of the
/// directory. The position of each is its number's.
pub fn numbered(numbers: impl IntoIterator<Item = u32>, before: u64, kind: u32) -> Vec<Listed> {
    let listed = |number: u32| {
        let next = before + u64::from(number) + 1;
        Listed { name: number.to_string().into_bytes(), kind, next }
    };
    numbers.into_iter().take(LISTED).map(listed).collect()
}

/// The positions of "." and "..".
const DOTS: u64 = 2;

/// A made-up directory.
pub trait Dir: Send + Sync {
    /// The object of this name.
    fn find(&self, name: &[u8]) -> Option<Node>;
    /// All names with the S_IF* type of each, in a lasting order. Not asked for where
    /// [`Dir::list_from`] is.
    fn list(&self) -> Vec<(Vec<u8>, u32)> {
        Vec::new()
    }
    /// At most [`LISTED`] of them, from a position on; none at the end. Directories whose names
    /// come and go, or that may be very long, have positions of their own.
    fn list_from(&self, from: u64) -> Vec<Listed> {
        let names =
            self.list().into_iter().zip(1..).skip(usize::try_from(from).unwrap_or(usize::MAX));
        names.take(LISTED).map(|((name, kind), next)| Listed { name, kind, next }).collect()
    }
    /// Owner and group of it and what is in it.
    fn owner(&self) -> (u32, u32) {
        (0, 0)
    }
    /// Checks beyond the permission bits when the directory itself is opened.
    fn check_open(&self, _thread: &Arc<Thread>) -> Result {
        Ok(())
    }
    /// Permission bits.
    fn mode(&self) -> u32 {
        0o555
    }
    /// True if it never has any.
    fn is_always_empty(&self) -> bool {
        false
    }
    /// True if names come and go.
    fn is_fleeting(&self) -> bool {
        false
    }
    /// The process that it is /proc/PID of. ESRCH if that is gone.
    fn process(&self) -> Option<Result<Arc<Process>>> {
        None
    }
}

impl Node {
    fn kind(&self) -> u32 {
        match self {
            Node::Dir(_) => S_IFDIR,
            Node::File(..) | Node::Own(..) => S_IFREG,
            Node::Link(..) => S_IFLNK,
        }
    }
}

/// A file that reads as what `read` gives.
pub fn file(read: impl Fn(&Arc<Thread>) -> Result<Vec<u8>> + Send + Sync + 'static) -> Node {
    Node::File(0o444, Box::new(read), None)
}

/// A file with an unchanging content.
pub fn text(content: &'static str) -> Node {
    file(move |_| Ok(content.as_bytes().to_vec()))
}

/// A link to a fixed path.
pub fn link(target: &'static str) -> Node {
    link_by(move |_| Ok(Link::Path(target.as_bytes().to_vec())))
}

/// A link that leads where `follow` says.
pub fn link_by(follow: impl Fn(&Arc<Thread>) -> Result<Link> + Send + Sync + 'static) -> Node {
    Node::Link(0o777, Box::new(follow))
}

/// The names of a directory that never change, and what makes each.
pub type Names = &'static [(&'static str, fn() -> Node)];

/// A directory of fixed names.
pub struct Table(pub Names);

impl Dir for Table {
    fn find(&self, name: &[u8]) -> Option<Node> {
        self.0.iter().find(|(n, _)| n.as_bytes() == name).map(|(_, make)| make())
    }

    fn list(&self) -> Vec<(Vec<u8>, u32)> {
        self.0.iter().map(|(n, make)| (n.as_bytes().to_vec(), make().kind())).collect()
    }

    fn is_always_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A directory of fixed names.
pub fn dir(table: Names) -> Node {
    Node::Dir(Arc::new(Table(table)))
}

/// A file system of made-up files.
pub struct SynthFs {
    type_name: &'static str,
    magic: u32,
    device: u64,
    root: Arc<dyn Dir>,
}

impl SynthFs {
    /// With `root` as its root; `magic` as statfs(2) reports it.
    pub fn new(type_name: &'static str, magic: u32, root: Arc<dyn Dir>) -> Arc<Self> {
        Arc::new(SynthFs { type_name, magic, device: next_device(), root })
    }
}

impl FileSystem for SynthFs {
    fn type_name(&self) -> &'static str {
        self.type_name
    }

    fn has_fixed_names(&self) -> bool {
        self.magic == PROC_SUPER_MAGIC
    }

    fn root(&self) -> Arc<dyn Inode> {
        SynthInode::new(Node::Dir(self.root.clone()), &*self.root, self.device, 1, false)
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(simple_statfs(self.magic))
    }
}

/// An inode of a made-up object.
pub struct SynthInode {
    node: Node,
    device: u64,
    ino: u64,
    owner: (u32, u32),
    fleeting: bool,
}

impl SynthInode {
    fn new(node: Node, parent: &dyn Dir, device: u64, ino: u64, fleeting: bool) -> Arc<Self> {
        let owner = match &node {
            Node::Dir(dir) => dir.owner(),
            _ => parent.owner(),
        };
        Arc::new(SynthInode { node, device, ino, owner, fleeting })
    }

    /// The inode number of a name: the same each time.
    fn child_ino(&self, name: &[u8]) -> u64 {
        // FNV-1a over the parent's number and the name.
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        let start = self.ino.to_le_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step);
        name.iter().fold(start, step) >> 16 | 2
    }
}

impl Inode for SynthInode {
    fn is_always_empty(&self) -> bool {
        matches!(&self.node, Node::Dir(dir) if dir.is_always_empty())
    }

    fn kind(&self) -> u32 {
        self.node.kind()
    }

    fn attributes(&self) -> Result<Attributes> {
        let mode = match &self.node {
            Node::Dir(dir) => S_IFDIR | dir.mode(),
            Node::File(mode, ..) | Node::Own(mode, _) => S_IFREG | mode,
            Node::Link(mode, _) => S_IFLNK | mode,
        };
        let nlink = if mode & S_IFDIR != 0 { 2 } else { 1 };
        let (uid, gid) = self.owner;
        Ok(Attributes {
            nlink,
            block_size: 1024,
            ..Attributes::new(mode, uid, gid, self.device, self.ino)
        })
    }

    fn caching(&self) -> Caching {
        if self.fleeting { Caching::Never } else { Caching::Keep }
    }

    fn lookup(self: Arc<Self>, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let Node::Dir(dir) = &self.node else { return Err(Errno::ENOTDIR) };
        let node = dir.find(name).ok_or(Errno::ENOENT)?;
        let fleeting =
            self.fleeting || dir.is_fleeting() && name.first().is_some_and(u8::is_ascii_digit);
        let ino = self.child_ino(name);
        Ok(SynthInode::new(node, &**dir, self.device, ino, fleeting))
    }

    fn open(self: Arc<Self>, caller: &dyn Caller, flags: u32) -> Result<Arc<dyn FileOps>> {
        let thread = task::thread_of(caller)?;
        match &self.node {
            Node::Own(_, open) => return open(thread),
            Node::Dir(dir) => dir.check_open(thread)?,
            _ => {}
        }
        if let Node::File(_, _, None) = &self.node
            && flags & O_ACCMODE != O_RDONLY
        {
            return Err(Errno::EACCES);
        }
        Ok(Arc::new(SynthFile {
            inode: self,
            opener: Arc::downgrade(thread),
            content: Mutex::default(),
        }))
    }

    fn read_link(&self, caller: Option<&dyn Caller>) -> Result<Link> {
        match &self.node {
            Node::Link(_, follow) => follow(task::thread_of(caller.ok_or(Errno::EINVAL)?)?),
            _ => Err(Errno::EINVAL),
        }
    }

    fn set_attributes(&self, _change: &SetAttributes) -> Result {
        Err(Errno::EPERM)
    }

    fn truncate(&self, _size: u64) -> Result {
        // Shells open with O_TRUNC what they write settings to.
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The process of which an open file is the directory in /proc; `None` for any other file. ESRCH if
/// it is gone.
pub fn process_of(file: &OpenFile) -> Option<Result<Arc<Process>>> {
    match &file.downcast::<SynthFile>()?.inode.node {
        Node::Dir(dir) => dir.process(),
        _ => None,
    }
}

/// An open made-up file or directory.
struct SynthFile {
    inode: Arc<SynthInode>,
    opener: alloc::sync::Weak<Thread>,
    /// What it read as at offset 0, for the reads that follow.
    content: Mutex<Arc<Vec<u8>>>,
}

impl SynthFile {
    /// Who uses the file now: its opener may have become a program with other rights since.
    fn user(&self) -> Result<Arc<Thread>> {
        current::get().or_else(|| self.opener.upgrade()).ok_or(Errno::EIO)
    }
}

impl FileOps for SynthFile {
    fn held_bytes(&self) -> u64 {
        self.content.lock().len() as u64
    }

    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        let Node::File(_, read, _) = &self.inode.node else { return Err(Errno::EISDIR) };
        if offset == 0 || self.content.lock().is_empty() {
            let content = Arc::new(read(&self.user()?)?);
            *self.content.lock() = content;
        }
        let content = self.content.lock().clone();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        buffer.put(&content[start..])
    }

    fn write(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        let Node::File(_, _, Some(write)) = &self.inode.node else { return Err(Errno::EIO) };
        let user = self.user()?;
        let bytes = buffer.take_vec(4096)?;
        write(&user, &bytes)?;
        Ok(bytes.len())
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn has_end(&self, file: &OpenFile) -> bool {
        // What /proc makes up is read in order; settings are files of no length.
        let is_made_up = matches!(self.inode.node, Node::File(_, _, None));
        let place = file.path.as_ref();
        !(is_made_up && place.is_some_and(|place| place.dentry.fs.type_name() == "proc"))
    }

    fn attributes(&self, _file: &OpenFile) -> Result<Attributes> {
        self.inode.attributes()
    }

    fn truncate(&self, _file: &OpenFile, _size: u64) -> Result {
        Ok(())
    }

    fn sync(&self, _file: &OpenFile, _data_only: bool) -> Result<Begun> {
        Err(Errno::EINVAL)
    }

    fn read_dir(&self, file: &OpenFile, position: u64, sink: &mut DirSink<'_>) -> Result<u64> {
        let Node::Dir(dir) = &self.inode.node else { return Err(Errno::ENOTDIR) };
        let mut position = match dots(file, position, sink)? {
            Ok(position) => position,
            Err(full) => return Ok(full),
        };
        loop {
            let names = dir.list_from(position - DOTS);
            let is_last = names.len() < LISTED;
            for Listed { name, kind, next } in names {
                let (ino, next) = (self.inode.child_ino(&name), next.saturating_add(DOTS));
                if !sink(DirEntry { ino, next, kind: entry_kind(kind), name: &name }) {
                    return Ok(position);
                }
                position = next;
            }
            if is_last {
                return Ok(position);
            }
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
