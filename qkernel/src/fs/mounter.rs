//! Who mounts a file system: what some show depends on it.

use alloc::sync::Arc;

use crate::task::Thread;
use crate::task::namespaces::Namespaces;
use crate::task::pid_namespace::PidNamespace;
use crate::user_namespace::UserNs;

/// Of whom a file system shows something.
pub struct Mounter {
    /// The container, whose terminals are seen.
    pub container: u32,
    /// Whose processes are seen.
    pub pid_namespace: Arc<PidNamespace>,
    /// The number of the IPC namespace, whose message queues are seen.
    pub ipc_namespace: u64,
    /// Its user namespace.
    pub user: UserNs,
    /// The owner of what it makes (kernel ids).
    pub owner: (u32, u32),
}

impl Mounter {
    /// A container that is set up, whose processes will be in `namespaces`.
    pub fn container(number: u32, namespaces: &Namespaces) -> Self {
        Mounter {
            container: number,
            pid_namespace: namespaces.pid_for_children.clone(),
            ipc_namespace: namespaces.ipc.number,
            user: UserNs::default(),
            owner: (0, 0),
        }
    }

    /// A thread that calls mount(2).
    pub fn thread(thread: &Thread) -> Self {
        let creds = thread.creds();
        Mounter {
            container: thread.process.container,
            pid_namespace: thread.process.pid_namespace.clone(),
            ipc_namespace: thread.namespaces().ipc.number,
            user: creds.user.clone(),
            owner: (creds.fsuid, creds.fsgid),
        }
    }
}
