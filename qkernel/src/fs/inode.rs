//! What a kind of file system supplies: inodes, and the file system they belong to.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linux_raw_sys::general::{S_IFDIR, S_IFLNK, S_IFREG};

use super::attr::{Attributes, SetAttributes, StatFs, device};
use super::disk::Begun;
use super::options::Options;
use super::{Caller, FileOps, Location};
use crate::errno::{Errno, Result};
use crate::host::Handle;

/// How long a name that was found stays good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Names change only through this kernel.
    Keep,
    /// Others may change names: a path's last component is looked up each time, a directory on the
    /// way is believed.
    Check,
    /// Every look-up makes the object anew.
    Never,
}

/// A file system that can be mounted.
pub trait FileSystem: Send + Sync {
    /// The type's name, for /proc/mounts.
    fn type_name(&self) -> &'static str;
    /// True if a name that is not there can never be made: looking for one fails, whatever for.
    fn has_fixed_names(&self) -> bool {
        false
    }
    /// Its root.
    fn root(&self) -> Arc<dyn Inode>;
    /// statfs(2), without mount flags.
    fn statfs(&self) -> Result<StatFs>;
    /// Further mount options to show in /proc/mounts, each preceded by a comma.
    fn options(&self) -> Vec<u8> {
        Vec::new()
    }
    /// Takes other options (MS_REMOUNT). EINVAL for those that it cannot have.
    fn remount(&self, _options: &Options<'_>) -> Result {
        Ok(())
    }
    /// What tells it from all others (FS_IOC_GETFSUUID), if it has something.
    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }
    /// True if it tells which parts of a file have data to who asks for extents (FS_IOC_FIEMAP).
    fn tells_extents(&self) -> bool {
        false
    }
    /// True if what is in it can be found by its number: it gives out handles
    /// (name_to_handle_at(2)).
    fn has_handles(&self) -> bool {
        false
    }
    /// A path from `root` to the object with this number; `None` if no name leads to it from there.
    fn path_of(&self, _root: &Arc<dyn Inode>, _ino: u64) -> Option<Vec<u8>> {
        None
    }
    /// Its last mount is gone: what it keeps for later is given up.
    fn unmounted(&self) {}
    /// Begins to flush everything (syncfs(2)): what is to be waited for.
    fn sync(&self) -> Result<Begun> {
        Ok(None)
    }
}

/// Where a link leads.
pub enum Link {
    /// To this path.
    Path(Vec<u8>),
    /// A magic link of /proc: right there.
    Place(Location),
}

/// What a new file is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// S_IF* type and permission bits (the umask is applied already).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// For device nodes.
    pub rdev: u64,
}

/// An object of a file system, as one of its names leads to it. Names are single components, never
/// "." or "..". Permissions have been checked by the caller.
#[allow(unused_variables)]
pub trait Inode: Send + Sync + Any {
    /// S_IF* type; never changes.
    fn kind(&self) -> u32;
    /// stat(2).
    fn attributes(&self) -> Result<Attributes>;
    /// Attributes of which mode and owner count, for the directories of a path; they may be a
    /// little old.
    fn permissions(&self) -> Result<Attributes> {
        self.attributes()
    }
    /// How long this inode's name stays good.
    fn caching(&self) -> Caching {
        Caching::Keep
    }
    /// With [`Caching::Check`]: whether the name still leads to this inode. ENOENT when the name is
    /// gone.
    fn revalidate(&self) -> Result<bool> {
        Ok(true)
    }
    /// True if it stands for a namespace (/proc/PID/ns): though it has no place in the tree, it may
    /// be bound to one.
    fn is_namespace(&self) -> bool {
        false
    }
    /// The number of the mount namespace that it stands for.
    fn mount_namespace(&self) -> Option<u64> {
        None
    }
    /// True if it is a directory that has nothing in it, ever: to mount something on.
    fn is_always_empty(&self) -> bool {
        false
    }
    /// The child `name`, or ENOENT.
    fn lookup(self: Arc<Self>, name: &[u8]) -> Result<Arc<dyn Inode>> {
        Err(Errno::ENOTDIR)
    }
    /// Opens it. `flags`: O_*.
    fn open(self: Arc<Self>, caller: &dyn Caller, flags: u32) -> Result<Arc<dyn FileOps>>;
    /// Opens a regular file for reading, or a directory, for the kernel itself.
    fn open_data(self: Arc<Self>) -> Result<Arc<dyn FileOps>> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Where a symbolic link leads, for `caller` (`None`: the kernel itself).
    fn read_link(&self, caller: Option<&dyn Caller>) -> Result<Link> {
        Err(Errno::EINVAL)
    }
    /// Makes and opens a regular file; EEXIST if there is one. The operations are `None` when
    /// [`Inode::open`] is to be used.
    fn create(self: Arc<Self>, name: &[u8], new: &NewNode, flags: u32) -> Result<Created> {
        Err(Errno::EPERM)
    }
    /// Makes a regular file without a name in this directory's file system (O_TMPFILE).
    fn create_unnamed(self: Arc<Self>, new: &NewNode, flags: u32) -> Result<Created> {
        Err(Errno::EOPNOTSUPP)
    }
    /// mkdir(2).
    fn make_dir(self: Arc<Self>, name: &[u8], new: &NewNode) -> Result<Arc<dyn Inode>> {
        Err(Errno::EPERM)
    }
    /// mknod(2): anything but a directory or a link.
    fn make_node(self: Arc<Self>, name: &[u8], new: &NewNode) -> Result<Arc<dyn Inode>> {
        Err(Errno::EPERM)
    }
    /// bind(2) of an AF_UNIX socket of type `kind` to a new name: the file, and the socket of the
    /// host's if it is bound there.
    fn bind_socket(
        self: Arc<Self>,
        name: &[u8],
        new: &NewNode,
        kind: u32,
    ) -> Result<(Arc<dyn Inode>, Option<Handle>)> {
        let _ = kind;
        Ok((self.make_node(name, new)?, None))
    }
    /// symlink(2).
    fn make_symlink(
        self: Arc<Self>,
        name: &[u8],
        target: &[u8],
        new: &NewNode,
    ) -> Result<Arc<dyn Inode>> {
        Err(Errno::EPERM)
    }
    /// link(2): a further name for `target`, which is of the same file system.
    fn link(self: Arc<Self>, name: &[u8], target: &Arc<dyn Inode>) -> Result<Arc<dyn Inode>> {
        Err(Errno::EPERM)
    }
    /// unlink(2) or, for a directory, rmdir(2) of `child`, which is what `name` leads to.
    fn unlink(&self, name: &[u8], child: &Arc<dyn Inode>) -> Result {
        Err(Errno::EPERM)
    }
    /// renameat2(2) of this directory's `name`.
    fn rename(&self, name: &[u8], rename: &Rename<'_>) -> Result {
        Err(Errno::EPERM)
    }
    /// chmod(2), chown(2), utimensat(2).
    fn set_attributes(&self, change: &SetAttributes) -> Result {
        Err(Errno::EPERM)
    }
    /// truncate(2): the new length in bytes.
    fn truncate(&self, size: u64) -> Result {
        Err(Errno::EINVAL)
    }
    /// getxattr(2): ENODATA when there is none of that name.
    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::EOPNOTSUPP)
    }
    /// setxattr(2).
    fn set_xattr(&self, name: &[u8], value: &[u8], flags: u32) -> Result {
        Err(Errno::EOPNOTSUPP)
    }
    /// listxattr(2): names, each ended by NUL.
    fn list_xattr(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
    /// removexattr(2).
    fn remove_xattr(&self, name: &[u8]) -> Result {
        Err(Errno::EOPNOTSUPP)
    }
    /// For a file system to know its own.
    fn as_any(&self) -> &dyn Any;
}

/// What [`Inode::create`] made.
pub type Created = (Arc<dyn Inode>, Option<Arc<dyn FileOps>>);

/// The other half of a rename.
pub struct Rename<'a> {
    /// What is renamed.
    pub child: &'a Arc<dyn Inode>,
    /// The directory it goes to, of the same file system.
    pub to: &'a Arc<dyn Inode>,
    /// Its new name.
    pub to_name: &'a [u8],
    /// What has that name now.
    pub replaced: Option<&'a Arc<dyn Inode>>,
    /// RENAME_*.
    pub flags: u32,
}

/// Shorthands that every inode has.
impl dyn Inode {
    /// True if it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == S_IFDIR
    }

    /// True if it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind() == S_IFLNK
    }

    /// True if it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.kind() == S_IFREG
    }

    /// As a concrete kind.
    pub fn downcast<T: Inode>(&self) -> Option<&T> {
        self.as_any().downcast_ref()
    }
}

/// A device number for a file system that lives in the kernel (major 0, apart from the host's).
pub fn next_device() -> u64 {
    static NEXT: AtomicU32 = AtomicU32::new(0x8_0001);
    device(0, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// An answer to statfs(2) for a file system without blocks; `magic` as in statfs(2).
pub fn simple_statfs(magic: u32) -> StatFs {
    StatFs { kind: i64::from(magic), bsize: 4096, frsize: 4096, namelen: 255, ..StatFs::default() }
}

static WALKS: AtomicU64 = AtomicU64::new(1);

/// A path walk begins: what was learnt before it is old.
pub fn begin_walk() {
    WALKS.fetch_add(1, Ordering::Relaxed);
}

/// The number of the walk that began last. What an inode learnt in it need not be asked again until
/// the next.
pub fn current_walk() -> u64 {
    WALKS.load(Ordering::Relaxed)
}
