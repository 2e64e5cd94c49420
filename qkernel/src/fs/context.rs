//! What a thread's path look-ups start from: root, working directory, umask (CLONE_FS shares it).

use crate::fs::Location;

/// Root, working directory and umask.
#[derive(Clone)]
pub struct FsContext {
    /// chroot(2).
    pub root: Location,
    /// chdir(2).
    pub cwd: Location,
    /// umask(2).
    pub umask: u32,
    /// Threads that are about to execute a program: until they have, clone(2) with CLONE_FS is
    /// refused (EAGAIN).
    pub executing: u32,
}
