//! The files in /proc/PID/ns, which stand for namespaces (namespaces(7), ioctl_ns(2)).

use alloc::sync::Arc;
use core::any::Any;

use linux_raw_sys::general::{O_ACCMODE, O_RDONLY, RLIMIT_NOFILE, S_IFREG};

use super::attr::{Attributes, SetAttributes, StatFs};
use super::dentry::Dentry;
use super::inode::{FileSystem, Inode, Link, next_device, simple_statfs};
use super::mount::{Mount, MountFlags};
use super::{Caller, FileOps, Location, OpenFile};
use crate::errno::{Errno, Result};
use crate::sync::Once;
use crate::task::namespaces::Namespace;
use crate::task::thread_of;
use crate::user_namespace::UserNs;

/// NSFS_MAGIC (linux/magic.h).
const MAGIC: u32 = 0x6e73_6673;
/// _IO(NSIO, …) of linux/nsfs.h.
const NS_GET_USERNS: u32 = 0xb701;
const NS_GET_PARENT: u32 = 0xb702;
const NS_GET_NSTYPE: u32 = 0xb703;
const NS_GET_OWNER_UID: u32 = 0xb704;

/// The file system of all of them, which has no place in the tree.
struct NsFs {
    device: u64,
}

impl FileSystem for NsFs {
    fn type_name(&self) -> &'static str {
        "nsfs"
    }

    fn root(&self) -> Arc<dyn Inode> {
        let namespace = Namespace::User(UserNs::default());
        Arc::new(NsInode { device: self.device, namespace })
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(simple_statfs(MAGIC))
    }
}

fn mount() -> Arc<Mount> {
    static MOUNT: Once<Arc<Mount>> = Once::new();
    let make = || NsFs { device: next_device() };
    MOUNT.get_or_set(|| Mount::hidden(Arc::new(make()), MountFlags::empty())).clone()
}

/// Where the file of a namespace is.
fn place_of(namespace: Namespace) -> Location {
    let mount = mount();
    let device = mount.root.inode.attributes().map_or(0, |a| a.dev);
    let label = namespace.label();
    let inode = Arc::new(NsInode { device, namespace });
    let dentry = Dentry::unnamed(mount.fs.clone(), inode, label.as_bytes());
    Location { mount, dentry }
}

/// Where a magic link of /proc/PID/ns leads.
pub fn link_to(namespace: Namespace) -> Link {
    Link::Place(place_of(namespace))
}

/// Opens a further one for whoever asks an open one about it.
fn open(caller: &dyn Caller, namespace: Namespace) -> Result<usize> {
    let thread = thread_of(caller)?;
    let ops = Arc::new(NsFile(namespace.clone()));
    let file = OpenFile::at(ops, O_RDONLY, Some(place_of(namespace)));
    let fd = thread.files().insert(file, true, 0, thread.process.rlimit(RLIMIT_NOFILE))?;
    Ok(fd as usize)
}

/// As [`open`], of a user namespace: EPERM if there is none, or it does not lie in that of who
/// asks.
fn open_user(caller: &dyn Caller, user: Option<UserNs>) -> Result<usize> {
    let seen = user.filter(|user| caller.creds().user.contains(user));
    open(caller, Namespace::User(seen.ok_or(Errno::EPERM)?))
}

/// The namespace that an open file stands for: EINVAL if it is none of these.
pub fn namespace_of(file: &OpenFile) -> Result<&Namespace> {
    file.downcast::<NsFile>().map(|file| &file.0).ok_or(Errno::EINVAL)
}

struct NsInode {
    device: u64,
    namespace: Namespace,
}

impl Inode for NsInode {
    fn kind(&self) -> u32 {
        S_IFREG
    }

    fn attributes(&self) -> Result<Attributes> {
        Ok(Attributes {
            mode: S_IFREG | 0o444,
            nlink: 1,
            ino: self.namespace.number(),
            block_size: 4096,
            dev: self.device,
            ..Attributes::default()
        })
    }

    fn is_namespace(&self) -> bool {
        true
    }

    fn mount_namespace(&self) -> Option<u64> {
        let is_mount = matches!(self.namespace, Namespace::Mnt(_));
        is_mount.then(|| self.namespace.number())
    }

    fn open(self: Arc<Self>, _caller: &dyn Caller, flags: u32) -> Result<Arc<dyn FileOps>> {
        if flags & O_ACCMODE != O_RDONLY {
            return Err(Errno::EPERM);
        }
        Ok(Arc::new(NsFile(self.namespace.clone())))
    }

    fn set_attributes(&self, _change: &SetAttributes) -> Result {
        Err(Errno::EPERM)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An open one.
struct NsFile(Namespace);

impl FileOps for NsFile {
    fn ioctl(
        &self,
        caller: &dyn Caller,
        _file: &OpenFile,
        command: u32,
        argument: u64,
    ) -> Result<usize> {
        match command {
            NS_GET_NSTYPE => Ok(self.0.kind().flag() as usize),
            // What is above the container's own is nobody's business here, nor what is above the
            // caller's.
            NS_GET_USERNS => open_user(caller, self.0.owner()),
            NS_GET_PARENT => match &self.0 {
                Namespace::Pid(pid) => {
                    let own = &thread_of(caller)?.process.pid_namespace;
                    let seen = pid.parent.clone().filter(|parent| own.contains(parent));
                    open(caller, Namespace::Pid(seen.ok_or(Errno::EPERM)?))
                }
                Namespace::User(user) => open_user(caller, user.parent.clone()),
                _ => Err(Errno::EINVAL),
            },
            NS_GET_OWNER_UID => {
                let Namespace::User(user) = &self.0 else { return Err(Errno::EINVAL) };
                let shown = caller.creds().uid_shown(user.owner.0);
                caller.mm().write(qlib::Va(argument), &shown)?;
                Ok(0)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
