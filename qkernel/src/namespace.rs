//! The numbers of namespaces (namespaces(7)), by which programs know whether two are the same: the
//! inode numbers of their files in /proc/PID/ns.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::sync::Once;
use crate::user_namespace::UserNs;

/// Those of the container's own namespaces, which Linux gives to its first ones
/// (linux/proc_ns.h).
pub const INITIAL_TIME: u64 = 4_026_531_834;
/// See [`INITIAL_TIME`].
pub const INITIAL_CGROUP: u64 = 4_026_531_835;
/// See [`INITIAL_TIME`].
pub const INITIAL_PID: u64 = 4_026_531_836;
/// See [`INITIAL_TIME`].
pub const INITIAL_USER: u64 = 4_026_531_837;
/// See [`INITIAL_TIME`].
pub const INITIAL_UTS: u64 = 4_026_531_838;
/// See [`INITIAL_TIME`].
pub const INITIAL_IPC: u64 = 4_026_531_839;
/// See [`INITIAL_TIME`].
pub const INITIAL_NET: u64 = 4_026_531_840;
/// See [`INITIAL_TIME`].
pub const INITIAL_MNT: u64 = 4_026_531_841;

/// A number for a new namespace of any kind, never given twice.
pub fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(4_026_532_160);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A cgroup namespace (cgroup_namespaces(7)). There is one cgroup, which is the root in each.
pub struct CgroupNamespace {
    /// The inode number of its file in /proc/PID/ns.
    pub number: u64,
    /// The user namespace that it belongs to.
    pub user: UserNs,
}

impl CgroupNamespace {
    /// That of the container.
    pub fn initial() -> Arc<Self> {
        static INITIAL: Once<Arc<CgroupNamespace>> = Once::new();
        let make = || CgroupNamespace { number: INITIAL_CGROUP, user: UserNs::default() };
        INITIAL.get_or_set(|| Arc::new(make())).clone()
    }

    /// A new one of this user namespace.
    pub fn new(user: &UserNs) -> Arc<Self> {
        Arc::new(CgroupNamespace { number: next_number(), user: user.clone() })
    }
}

/// An IPC namespace (ipc_namespaces(7)): whose System V objects and message queues a thread sees.
/// The room that has those keeps them by its number.
pub struct IpcNamespace {
    /// The inode number of its file in /proc/PID/ns.
    pub number: u64,
    /// The user namespace that it belongs to.
    pub user: UserNs,
    /// What is told when it ends.
    ended: fn(u64),
}

impl IpcNamespace {
    /// That of the container, which does not end.
    pub fn initial() -> Arc<Self> {
        static INITIAL: Once<Arc<IpcNamespace>> = Once::new();
        let make = || IpcNamespace { number: INITIAL_IPC, user: UserNs::default(), ended: |_| {} };
        INITIAL.get_or_set(|| Arc::new(make())).clone()
    }

    /// An empty one of this user namespace; `ended` is told when nobody is in it any more.
    pub fn new(user: &UserNs, ended: fn(u64)) -> Arc<Self> {
        Arc::new(IpcNamespace { number: next_number(), user: user.clone(), ended })
    }
}

impl Drop for IpcNamespace {
    fn drop(&mut self) {
        (self.ended)(self.number);
    }
}

/// A network namespace (network_namespaces(7)): whose interfaces and internet sockets a thread has.
/// The room that has those keeps them by its number; those of the container are the host's.
pub struct NetNamespace {
    /// The inode number of its file in /proc/PID/ns.
    pub number: u64,
    /// The user namespace that it belongs to.
    pub user: UserNs,
    /// What is told when it ends.
    ended: fn(u64),
}

impl NetNamespace {
    /// That of the container, which does not end.
    pub fn initial() -> Arc<Self> {
        static INITIAL: Once<Arc<NetNamespace>> = Once::new();
        let make = || NetNamespace { number: INITIAL_NET, user: UserNs::default(), ended: |_| {} };
        INITIAL.get_or_set(|| Arc::new(make())).clone()
    }

    /// One of this user namespace that has nothing yet; `ended` is told when nobody is in it any
    /// more, and none of its sockets is open.
    pub fn new(user: &UserNs, ended: fn(u64)) -> Arc<Self> {
        Arc::new(NetNamespace { number: next_number(), user: user.clone(), ended })
    }

    /// True for that of the container.
    pub fn is_initial(&self) -> bool {
        self.number == INITIAL_NET
    }
}

impl Drop for NetNamespace {
    fn drop(&mut self) {
        (self.ended)(self.number);
    }
}
