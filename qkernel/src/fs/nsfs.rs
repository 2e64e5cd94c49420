//! The files in /proc/PID/ns, which stand for namespaces (namespaces(7), ioctl_ns(2)).

use alloc::sync::Arc;
use core::any::Any;

use linux_raw_sys::general::{CAP_SYS_ADMIN, O_ACCMODE, O_RDONLY, RLIMIT_NOFILE, S_IFREG};
use qlib::Va;

use super::attr::{Attributes, SetAttributes, StatFs};
use super::dentry::Dentry;
use super::inode::{FileSystem, Inode, Link, next_device, simple_statfs};
use super::mount::namespace::MountNamespace;
use super::mount::{Mount, MountFlags};
use super::{Caller, FileOps, Location, OpenFile};
use crate::abi::abi_struct;
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
const NS_GET_MNTNS_ID: u32 = 0x8008_b705;
const NS_GET_PID_FROM_PIDNS: u32 = 0x8004_b706;
const NS_GET_TGID_FROM_PIDNS: u32 = 0x8004_b707;
const NS_GET_PID_IN_PIDNS: u32 = 0x8004_b708;
const NS_GET_TGID_IN_PIDNS: u32 = 0x8004_b709;
const NS_MNT_GET_INFO: u32 = 0x8010_b70a;
const NS_MNT_GET_NEXT: u32 = 0x8010_b70b;
const NS_MNT_GET_PREV: u32 = 0x8010_b70c;

abi_struct! {
    /// struct mnt_ns_info.
    pub struct MntNsInfo { pub size: u32, pub nr_mounts: u32, pub mnt_ns_id: u64, }
}

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

/// Opens one for whoever asks an open one about it, or a process's descriptor: its number.
pub fn open(caller: &dyn Caller, namespace: Namespace) -> Result<usize> {
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

/// NS_GET_*_PIDNS: what a process or thread is called that is called `number` elsewhere, in
/// `namespace` or where the caller is. EINVAL if it is no PID namespace, ESRCH if there is no such
/// process, or it has no number there.
fn translate(
    caller: &dyn Caller,
    namespace: &Namespace,
    command: u32,
    number: u64,
) -> Result<usize> {
    let Namespace::Pid(asked) = namespace else { return Err(Errno::EINVAL) };
    let own = &thread_of(caller)?.process.pid_namespace;
    let goes_in = matches!(command, NS_GET_PID_IN_PIDNS | NS_GET_TGID_IN_PIDNS);
    let (from, to) = if goes_in { (own, asked) } else { (asked, own) };
    let thread = u32::try_from(number).ok().and_then(|number| from.thread(number));
    let thread = thread.ok_or(Errno::ESRCH)?;
    let is_of_process = matches!(command, NS_GET_TGID_FROM_PIDNS | NS_GET_TGID_IN_PIDNS);
    match to.number_of(if is_of_process { thread.process.pid } else { thread.tid() }) {
        0 => Err(Errno::ESRCH),
        number => Ok(number as usize),
    }
}

/// NS_MNT_GET_*: what is to be known of a mount namespace, or the next one that the caller has all
/// rights in, opened. ENOENT if there is none.
fn mount_namespace(
    caller: &dyn Caller,
    namespace: &Namespace,
    command: u32,
    at: Va,
) -> Result<usize> {
    let Namespace::Mnt(asked) = namespace else { return Err(Errno::EINVAL) };
    let tell = |mnt: &MountNamespace| {
        let info = MntNsInfo {
            size: size_of::<MntNsInfo>() as u32,
            nr_mounts: mnt.mount_count() as u32,
            mnt_ns_id: mnt.number,
        };
        caller.mm().write(at, &info)
    };
    if command == NS_MNT_GET_INFO {
        if at.0 == 0 {
            return Err(Errno::EINVAL);
        }
        return tell(asked).map(|()| 0);
    }
    let creds = caller.creds();
    let mut others = asked.others(command == NS_MNT_GET_NEXT);
    let next = others.find(|mnt| creds.capable_in(&mnt.user, CAP_SYS_ADMIN));
    let next = next.ok_or(Errno::ENOENT)?;
    if at.0 != 0 {
        tell(&next)?;
    }
    open(caller, Namespace::Mnt(next))
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
            NS_GET_MNTNS_ID => {
                let Namespace::Mnt(mnt) = &self.0 else { return Err(Errno::EINVAL) };
                caller.mm().write(Va(argument), &mnt.number)?;
                Ok(0)
            }
            NS_GET_PID_FROM_PIDNS
            | NS_GET_TGID_FROM_PIDNS
            | NS_GET_PID_IN_PIDNS
            | NS_GET_TGID_IN_PIDNS => translate(caller, &self.0, command, argument),
            NS_MNT_GET_INFO | NS_MNT_GET_NEXT | NS_MNT_GET_PREV => {
                mount_namespace(caller, &self.0, command, Va(argument))
            }
            NS_GET_OWNER_UID => {
                let Namespace::User(user) = &self.0 else { return Err(Errno::EINVAL) };
                let shown = caller.creds().uid_shown(user.owner.0);
                caller.mm().write(Va(argument), &shown)?;
                Ok(0)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
