//! unshare(2) and setns(2).

use alloc::sync::Arc;

use linux_raw_sys::general::{
    CLONE_FILES, CLONE_FS, CLONE_NEWIPC, CLONE_NEWNS, CLONE_NEWUSER, CLONE_SIGHAND, CLONE_SYSVSEM,
    CLONE_THREAD, CLONE_VM,
};

use crate::errno::{Errno, Result};
use crate::fs::{Fd, nsfs};
use crate::ipc::sysv::sem;
use crate::sync::Mutex;
use crate::task::Thread;
use crate::task::namespaces::{self, FLAGS, Kind, Namespaces};
use crate::task::pidfd::{self, PidFd};

/// unshare(2).
pub fn unshare(thread: &Arc<Thread>, flags: u32) -> Result<usize> {
    const OF_SINGLE_THREADS: u32 = CLONE_THREAD | CLONE_SIGHAND | CLONE_VM;
    if flags & !(FLAGS | OF_SINGLE_THREADS | CLONE_FILES | CLONE_FS | CLONE_SYSVSEM) != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & (OF_SINGLE_THREADS | CLONE_NEWUSER) != 0 && thread.process.thread_count() > 1 {
        return Err(Errno::EINVAL);
    }
    let mut own = thread.fs();
    let renewed = match flags & FLAGS {
        0 => None,
        new => Some(Namespaces::renewed(thread, new, &mut own)?),
    };
    if flags & CLONE_FILES != 0 {
        thread.set_files(thread.files().duplicate()?);
    }
    // A mount namespace has places of its own for root and working directory.
    if flags & (CLONE_FS | CLONE_NEWNS | CLONE_NEWUSER) != 0 {
        let old = core::mem::replace(&mut *thread.fs.lock(), Arc::new(Mutex::new(own)));
        drop(old);
    }
    if let Some((renewed, creds)) = renewed {
        if flags & CLONE_NEWIPC != 0 {
            leave_semaphores(thread);
        }
        thread.set_namespaces(renewed);
        if let Some(creds) = creds {
            thread.set_creds(creds);
        }
    }
    Ok(0)
}

/// Who goes to another IPC namespace undoes what it did to the semaphores of its own, unless other
/// threads share that (SEM_UNDO of semop(2)).
fn leave_semaphores(thread: &Thread) {
    if thread.process.thread_count() == 1 {
        sem::process_ended(thread.process.pid);
    }
}

/// setns(2): enters a namespace by its file in /proc/PID/ns, or those of `kinds` of a process by
/// its descriptor.
pub fn setns(thread: &Arc<Thread>, fd: Fd, kinds: u32) -> Result<usize> {
    let file = thread.files().opened(fd)?;
    let chosen = match file.downcast::<PidFd>() {
        None => {
            let namespace = nsfs::namespace_of(&file)?;
            if kinds != 0 && kinds != namespace.kind().flag() {
                return Err(Errno::EINVAL);
            }
            alloc::vec![namespace.clone()]
        }
        Some(_) if kinds == 0 || kinds & !FLAGS != 0 => return Err(Errno::EINVAL),
        Some(other) => pidfd::namespaces_of(other, thread, kinds)?,
    };
    namespaces::enter(thread, &chosen)?;
    if chosen.iter().any(|namespace| namespace.kind() == Kind::Ipc) {
        leave_semaphores(thread);
    }
    Ok(0)
}
