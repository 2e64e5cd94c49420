//! The namespaces of a thread (namespaces(7)): what it sees of the system that others may see
//! otherwise.
//!
//! Network, user, cgroup and time namespaces are those of the container; there are no others.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use linux_raw_sys::general::{
    CAP_SYS_ADMIN, CAP_SYS_CHROOT, CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS,
    CLONE_NEWPID, CLONE_NEWTIME, CLONE_NEWUSER, CLONE_NEWUTS,
};

use super::Thread;
use super::pid_namespace::PidNamespace;
use crate::errno::{Errno, Result};
use crate::fs::mount::namespace::MountNamespace;
use crate::fs::{FsContext, Location};
use crate::namespace::{
    INITIAL_CGROUP, INITIAL_IPC, INITIAL_MNT, INITIAL_NET, INITIAL_PID, INITIAL_TIME, INITIAL_USER,
    INITIAL_UTS, IpcNamespace,
};
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
const NEW: u32 = CLONE_NEWIPC | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS;

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
    /// An IPC namespace.
    Ipc(Arc<IpcNamespace>),
    /// A PID namespace.
    Pid(Arc<PidNamespace>),
    /// A mount namespace.
    Mnt(Arc<MountNamespace>),
    /// A UTS namespace.
    Uts(Arc<UtsNamespace>),
    /// The only one of its kind.
    Only(Kind),
}

impl Namespace {
    /// Of what kind it is.
    pub fn kind(&self) -> Kind {
        match self {
            Namespace::Ipc(_) => Kind::Ipc,
            Namespace::Pid(_) => Kind::Pid,
            Namespace::Mnt(_) => Kind::Mnt,
            Namespace::Uts(_) => Kind::Uts,
            Namespace::Only(kind) => *kind,
        }
    }

    /// The inode number of its file.
    pub fn number(&self) -> u64 {
        match self {
            Namespace::Ipc(ipc) => ipc.number,
            Namespace::Pid(pid) => pid.number,
            Namespace::Mnt(mnt) => mnt.number,
            Namespace::Uts(uts) => uts.number,
            Namespace::Only(kind) => match kind {
                Kind::Cgroup => INITIAL_CGROUP,
                Kind::Ipc => INITIAL_IPC,
                Kind::Mnt => INITIAL_MNT,
                Kind::Net => INITIAL_NET,
                Kind::Pid => INITIAL_PID,
                Kind::Time => INITIAL_TIME,
                Kind::User => INITIAL_USER,
                Kind::Uts => INITIAL_UTS,
            },
        }
    }

    /// What its link in /proc/PID/ns reads as.
    pub fn label(&self) -> String {
        format!("{}:[{}]", self.kind().name(), self.number())
    }
}

/// The namespaces of a thread.
#[derive(Clone)]
pub struct Namespaces {
    /// System V objects and message queues.
    pub ipc: Arc<IpcNamespace>,
    /// Where its child processes will be. (A process stays where it was made.)
    pub pid_for_children: Arc<PidNamespace>,
    /// Mounts.
    pub mnt: Arc<MountNamespace>,
    /// Host and domain name.
    pub uts: Arc<UtsNamespace>,
}

impl Namespaces {
    /// Those of the container's first process.
    pub fn initial() -> Self {
        Namespaces {
            ipc: IpcNamespace::initial(),
            mnt: MountNamespace::initial(),
            pid_for_children: PidNamespace::initial(),
            uts: UtsNamespace::initial(),
        }
    }

    /// That of this kind; of PID namespaces that of its children.
    pub fn of_kind(&self, kind: Kind) -> Namespace {
        match kind {
            Kind::Ipc => Namespace::Ipc(self.ipc.clone()),
            Kind::Pid => Namespace::Pid(self.pid_for_children.clone()),
            Kind::Mnt => Namespace::Mnt(self.mnt.clone()),
            Kind::Uts => Namespace::Uts(self.uts.clone()),
            _ => Namespace::Only(kind),
        }
    }

    /// EPERM for a thread that may not make new ones of the kinds in `flags` (CLONE_NEW*): without
    /// CAP_SYS_ADMIN, and of kinds of which there is only one.
    pub fn check_renewal(thread: &Thread, flags: u32) -> Result {
        let may = flags == 0 || flags & !NEW == 0 && thread.creds().has_cap(CAP_SYS_ADMIN);
        if may { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// Those of `thread` with a new one in the place of each kind in `flags` (CLONE_NEW*), as
    /// clone(2) and unshare(2) make them. `fs` are the root and the working directory of who gets
    /// them: what they are in its mount namespace, they are in the new one.
    ///
    /// # Errors
    /// As [`Self::check_renewal`]; EINVAL for a second PID namespace for children; ENOSPC if that
    /// would be too deep, or when there would be too many mounts.
    pub fn renewed(thread: &Thread, flags: u32, fs: &mut FsContext) -> Result<Namespaces> {
        Self::check_renewal(thread, flags)?;
        let old = thread.namespaces();
        let mut own = Namespaces::clone(&old);
        if flags & CLONE_NEWPID != 0 {
            let active = &thread.process.pid_namespace;
            if !Arc::ptr_eq(active, &old.pid_for_children) {
                return Err(Errno::EINVAL);
            }
            own.pid_for_children = active.within()?;
        }
        if flags & CLONE_NEWIPC != 0 {
            own.ipc = IpcNamespace::new(thread.process.upcalls.ipc_namespace_ended);
        }
        if flags & CLONE_NEWNS != 0 {
            own.mnt = old.mnt.copy(fs)?;
        }
        if flags & CLONE_NEWUTS != 0 {
            own.uts = old.uts.copy();
        }
        Ok(own)
    }
}

/// setns(2): `thread` enters `chosen`, all or none.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN, and for a mount namespace without CAP_SYS_CHROOT; EINVAL for the
/// user namespace that it is in, for a PID namespace that does not lie in its own, and for a mount
/// namespace when others share its root and working directory.
pub fn enter(thread: &Thread, chosen: &[Namespace]) -> Result {
    if chosen.iter().any(|namespace| namespace.kind() == Kind::User) {
        return Err(Errno::EINVAL);
    }
    if !thread.creds().has_cap(CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let mut own = Namespaces::clone(&thread.namespaces());
    let mut entered = None;
    for namespace in chosen {
        match namespace {
            Namespace::Ipc(ipc) => own.ipc = ipc.clone(),
            Namespace::Pid(pid) if !thread.process.pid_namespace.contains(pid) => {
                return Err(Errno::EINVAL);
            }
            Namespace::Pid(pid) => own.pid_for_children = pid.clone(),
            Namespace::Mnt(mnt) => {
                entered = Some(thread.entrance_of(mnt)?);
                own.mnt = mnt.clone();
            }
            Namespace::Uts(uts) => own.uts = uts.clone(),
            Namespace::Only(_) => {}
        }
    }
    thread.set_namespaces(own);
    if let Some(root) = entered {
        thread.enter_root(&root);
    }
    Ok(())
}

impl Thread {
    /// That of this kind that it is in.
    pub fn namespace(&self, kind: Kind) -> Namespace {
        match kind {
            Kind::Pid => Namespace::Pid(self.process.pid_namespace.clone()),
            kind => self.namespaces().of_kind(kind),
        }
    }

    /// Where it finds itself in `mnt` when it has entered that.
    fn entrance_of(&self, mnt: &MountNamespace) -> Result<Location> {
        if !self.creds().has_cap(CAP_SYS_CHROOT) {
            return Err(Errno::EPERM);
        }
        // Another than the thread's own reference is that of a thread which shares them.
        if Arc::strong_count(&self.fs.lock()) > 1 {
            return Err(Errno::EINVAL);
        }
        mnt.root().ok_or(Errno::EINVAL)
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
