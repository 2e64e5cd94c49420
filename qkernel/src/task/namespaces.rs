//! The namespaces of a thread (namespaces(7)): what it sees of the system that others may see
//! otherwise.
//!
//! The time namespace is that of the container; there is no other. The user namespace is part of a
//! thread's credentials.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use linux_raw_sys::general::{
    CAP_SETFCAP, CAP_SYS_ADMIN, CAP_SYS_CHROOT, CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET,
    CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWTIME, CLONE_NEWUSER, CLONE_NEWUTS,
};

use super::Thread;
use super::pid_namespace::PidNamespace;
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::fs::mount::namespace::MountNamespace;
use crate::fs::{FsContext, Location};
use crate::namespace::{CgroupNamespace, INITIAL_TIME, IpcNamespace, NetNamespace};
use crate::user_namespace::UserNs;
use crate::utsname::UtsNamespace;

/// The flags of clone(2), unshare(2) and setns(2) that stand for namespaces.
pub const FLAGS: u32 = CLONE_NEWNS
    | CLONE_NEWUTS
    | CLONE_NEWIPC
    | CLONE_NEWUSER
    | CLONE_NEWPID
    | CLONE_NEWNET
    | CLONE_NEWCGROUP
    | CLONE_NEWTIME;

/// Those of which there may be new ones.
const NEW: u32 = FLAGS & !CLONE_NEWTIME;

/// A kind of namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Cgroup,
    Ipc,
    Mnt,
    Net,
    Pid,
    Time,
    User,
    Uts,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 8] = [
        Kind::Cgroup,
        Kind::Ipc,
        Kind::Mnt,
        Kind::Net,
        Kind::Pid,
        Kind::Time,
        Kind::User,
        Kind::Uts,
    ];

    /// Its flag, CLONE_NEW*.
    pub fn flag(self) -> u32 {
        match self {
            Kind::Cgroup => CLONE_NEWCGROUP,
            Kind::Ipc => CLONE_NEWIPC,
            Kind::Mnt => CLONE_NEWNS,
            Kind::Net => CLONE_NEWNET,
            Kind::Pid => CLONE_NEWPID,
            Kind::Time => CLONE_NEWTIME,
            Kind::User => CLONE_NEWUSER,
            Kind::Uts => CLONE_NEWUTS,
        }
    }

    /// What it is called in /proc/PID/ns.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Cgroup => "cgroup",
            Kind::Ipc => "ipc",
            Kind::Mnt => "mnt",
            Kind::Net => "net",
            Kind::Pid => "pid",
            Kind::Time => "time",
            Kind::User => "user",
            Kind::Uts => "uts",
        }
    }
}

/// One namespace, as a file of /proc/PID/ns stands for it.
#[derive(Clone)]
pub enum Namespace {
    /// A cgroup namespace.
    Cgroup(Arc<CgroupNamespace>),
    /// An IPC namespace.
    Ipc(Arc<IpcNamespace>),
    /// A PID namespace.
    Pid(Arc<PidNamespace>),
    /// A mount namespace.
    Mnt(Arc<MountNamespace>),
    /// A network namespace.
    Net(Arc<NetNamespace>),
    /// A user namespace.
    User(UserNs),
    /// A UTS namespace.
    Uts(Arc<UtsNamespace>),
    /// The only time namespace.
    Time,
}

impl Namespace {
    /// Of what kind it is.
    pub fn kind(&self) -> Kind {
        match self {
            Namespace::Cgroup(_) => Kind::Cgroup,
            Namespace::Ipc(_) => Kind::Ipc,
            Namespace::Pid(_) => Kind::Pid,
            Namespace::Mnt(_) => Kind::Mnt,
            Namespace::Net(_) => Kind::Net,
            Namespace::User(_) => Kind::User,
            Namespace::Uts(_) => Kind::Uts,
            Namespace::Time => Kind::Time,
        }
    }

    /// The inode number of its file.
    pub fn number(&self) -> u64 {
        match self {
            Namespace::Cgroup(cgroup) => cgroup.number,
            Namespace::Ipc(ipc) => ipc.number,
            Namespace::Pid(pid) => pid.number,
            Namespace::Mnt(mnt) => mnt.number,
            Namespace::Net(net) => net.number,
            Namespace::User(user) => user.number,
            Namespace::Uts(uts) => uts.number,
            Namespace::Time => INITIAL_TIME,
        }
    }

    /// The user namespace that it belongs to; of one of those the one around it, if there is one.
    pub fn owner(&self) -> Option<UserNs> {
        Some(match self {
            Namespace::Cgroup(cgroup) => cgroup.user.clone(),
            Namespace::Ipc(ipc) => ipc.user.clone(),
            Namespace::Pid(pid) => pid.user.clone(),
            Namespace::Mnt(mnt) => mnt.user.clone(),
            Namespace::Net(net) => net.user.clone(),
            Namespace::User(user) => return user.parent.clone(),
            Namespace::Uts(uts) => uts.user.clone(),
            Namespace::Time => UserNs::default(),
        })
    }

    /// What its link in /proc/PID/ns reads as.
    pub fn label(&self) -> String {
        format!("{}:[{}]", self.kind().name(), self.number())
    }
}

/// The namespaces of a thread.
#[derive(Clone)]
pub struct Namespaces {
    /// What is the root of cgroups.
    pub cgroup: Arc<CgroupNamespace>,
    /// System V objects and message queues.
    pub ipc: Arc<IpcNamespace>,
    /// Where its child processes will be. (A process stays where it was made.)
    pub pid_for_children: Arc<PidNamespace>,
    /// Mounts.
    pub mnt: Arc<MountNamespace>,
    /// Interfaces and internet sockets.
    pub net: Arc<NetNamespace>,
    /// Host and domain name.
    pub uts: Arc<UtsNamespace>,
}

impl Namespaces {
    /// Those of the container's first process.
    pub fn initial() -> Self {
        Namespaces {
            cgroup: CgroupNamespace::initial(),
            ipc: IpcNamespace::initial(),
            mnt: MountNamespace::initial(),
            net: NetNamespace::initial(),
            pid_for_children: PidNamespace::initial(),
            uts: UtsNamespace::initial(),
        }
    }

    /// That of this kind; of PID namespaces that of its children. The user namespace is elsewhere.
    pub fn of_kind(&self, kind: Kind) -> Namespace {
        match kind {
            Kind::Cgroup => Namespace::Cgroup(self.cgroup.clone()),
            Kind::Ipc => Namespace::Ipc(self.ipc.clone()),
            Kind::Pid => Namespace::Pid(self.pid_for_children.clone()),
            Kind::Mnt => Namespace::Mnt(self.mnt.clone()),
            Kind::Net => Namespace::Net(self.net.clone()),
            Kind::Uts => Namespace::Uts(self.uts.clone()),
            Kind::Time => Namespace::Time,
            Kind::User => Namespace::User(UserNs::default()),
        }
    }

    /// EPERM for a thread that may not make new ones of the kinds in `flags` (CLONE_NEW*): without
    /// CAP_SYS_ADMIN, which it will have if a user namespace is among them, and of kinds of which
    /// there is only one.
    pub fn check_renewal(thread: &Thread, flags: u32) -> Result {
        let may = flags & CLONE_NEWUSER != 0 || thread.creds().capable_here(CAP_SYS_ADMIN);
        if flags == 0 || flags & !NEW == 0 && may { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// Those of `thread` with a new one in the place of each kind in `flags` (CLONE_NEW*), as
    /// clone(2) and unshare(2) make them; for CLONE_NEWUSER also the credentials in that, to which
    /// the other new ones belong. `fs` are the root and the working directory of who gets them:
    /// what they are in its mount namespace, they are in the new one.
    ///
    /// # Errors
    /// As [`Self::check_renewal`] and [`new_user`]; EINVAL for a second PID namespace for children;
    /// ENOSPC if one would be too deep, or when there would be too many mounts.
    pub fn renewed(
        thread: &Thread,
        flags: u32,
        fs: &mut FsContext,
    ) -> Result<(Namespaces, Option<Creds>)> {
        Self::check_renewal(thread, flags)?;
        let old = thread.namespaces();
        let creds = match flags & CLONE_NEWUSER {
            0 => None,
            _ => Some(new_user(thread, &old, fs)?),
        };
        let user = creds.as_ref().map_or_else(|| thread.creds().user.clone(), |c| c.user.clone());
        let mut own = Namespaces::clone(&old);
        if flags & CLONE_NEWPID != 0 {
            let active = &thread.process.pid_namespace;
            if !Arc::ptr_eq(active, &old.pid_for_children) {
                return Err(Errno::EINVAL);
            }
            own.pid_for_children = active.within(&user)?;
        }
        if flags & CLONE_NEWCGROUP != 0 {
            own.cgroup = CgroupNamespace::new(&user);
        }
        if flags & CLONE_NEWIPC != 0 {
            own.ipc = IpcNamespace::new(&user, thread.process.upcalls.ipc_namespace_ended);
        }
        if flags & CLONE_NEWNS != 0 {
            own.mnt = old.mnt.copy(&user, fs)?;
        }
        if flags & CLONE_NEWNET != 0 {
            own.net = NetNamespace::new(&user, thread.process.upcalls.net_namespace_ended);
        }
        if flags & CLONE_NEWUTS != 0 {
            own.uts = old.uts.copy(&user);
        }
        Ok((own, creds))
    }
}

/// The credentials of `thread`, which is in `namespaces`, in a new user namespace.
///
/// # Errors
/// EPERM if its user or group has no number where it is, and in a chroot(2); ENOSPC if it would be
/// too deep, or one too many.
fn new_user(thread: &Thread, namespaces: &Namespaces, fs: &FsContext) -> Result<Creds> {
    let creds = thread.creds();
    // Its root could leave such a place.
    let is_whole = namespaces.mnt.root().is_some_and(|root| {
        fs.root.is_same(&root) || fs.root.clone().through_mounts().is_same(&root)
    });
    if !is_whole || !creds.user.maps_both(creds.euid, creds.egid) {
        return Err(Errno::EPERM);
    }
    let user = creds.user.within((creds.euid, creds.egid), creds.capable_here(CAP_SETFCAP))?;
    Ok(creds.in_new(user))
}

/// setns(2): `thread` enters `chosen`, all or none.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN in the user namespace that one belongs to, and in its own, or that
/// which it enters with the others, and for a mount namespace without CAP_SYS_CHROOT; EINVAL for
/// the user namespace that it is in, or when others share what it would see otherwise there, for a
/// PID namespace that does not lie in its own, and for a mount namespace when others share its root
/// and working directory.
pub fn enter(thread: &Thread, chosen: &[Namespace]) -> Result {
    let mut creds = thread.creds();
    let mut entered_user = false;
    for namespace in chosen {
        if let Namespace::User(user) = namespace {
            if *user == creds.user || thread.process.thread_count() > 1 || thread.shares_fs() {
                return Err(Errno::EINVAL);
            }
            if !creds.capable_in(user, CAP_SYS_ADMIN) {
                return Err(Errno::EPERM);
            }
            creds = Arc::new(creds.in_new(user.clone()));
            entered_user = true;
        }
    }
    let mut own = Namespaces::clone(&thread.namespaces());
    let mut entered = None;
    for namespace in chosen.iter().filter(|namespace| namespace.kind() != Kind::User) {
        let owner = namespace.owner().unwrap_or_default();
        if !creds.capable_in(&owner, CAP_SYS_ADMIN) || !creds.capable_here(CAP_SYS_ADMIN) {
            return Err(Errno::EPERM);
        }
        match namespace {
            Namespace::Cgroup(cgroup) => own.cgroup = cgroup.clone(),
            Namespace::Ipc(ipc) => own.ipc = ipc.clone(),
            Namespace::Pid(pid) if !thread.process.pid_namespace.contains(pid) => {
                return Err(Errno::EINVAL);
            }
            Namespace::Pid(pid) => own.pid_for_children = pid.clone(),
            Namespace::Mnt(mnt) => {
                if !creds.capable_here(CAP_SYS_CHROOT) {
                    return Err(Errno::EPERM);
                }
                entered = Some(thread.entrance_of(mnt)?);
                own.mnt = mnt.clone();
            }
            Namespace::Net(net) => own.net = net.clone(),
            Namespace::Uts(uts) => own.uts = uts.clone(),
            Namespace::User(_) | Namespace::Time => {}
        }
    }
    thread.set_namespaces(own);
    if let Some(root) = entered {
        thread.enter_root(&root);
    }
    if entered_user {
        thread.set_creds(Creds::clone(&creds));
    }
    Ok(())
}

impl Thread {
    /// That of this kind that it is in.
    pub fn namespace(&self, kind: Kind) -> Namespace {
        match kind {
            Kind::Pid => Namespace::Pid(self.process.pid_namespace.clone()),
            Kind::User => Namespace::User(self.creds().user.clone()),
            kind => self.namespaces().of_kind(kind),
        }
    }

    /// Where it finds itself in `mnt` when it has entered that.
    fn entrance_of(&self, mnt: &MountNamespace) -> Result<Location> {
        if self.shares_fs() {
            return Err(Errno::EINVAL);
        }
        mnt.root().ok_or(Errno::EINVAL)
    }

    /// True if another thread has its root and working directory too.
    fn shares_fs(&self) -> bool {
        // Another than the thread's own reference is that of such a thread.
        Arc::strong_count(&self.fs.lock()) > 1
    }

    /// `root` is its root and working directory now.
    fn enter_root(&self, root: &Location) {
        let (mut new_root, mut new_cwd) = (root.clone(), root.clone());
        self.update_fs(|fs| {
            core::mem::swap(&mut fs.root, &mut new_root);
            core::mem::swap(&mut fs.cwd, &mut new_cwd);
        });
        // What they were is let go of here, outside of the lock.
        drop((new_root, new_cwd));
    }
}
