//! A host's procfs in a volume. What it lets a process see and change of others it decides by who
//! opens a file, and that is us: the memory and the environment of every process of the host, our
//! own too, would be the guest's.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, Stat};
use rustix::io::Errno;

/// PROC_SUPER_MAGIC.
const MAGIC: u64 = 0x9fa0;
/// S_IROTH.
const OTHERS_READ: u32 = 0o004;
/// Files that everybody may open by their mode, and whose contents depend on whether the opener may
/// trace the process (proc(5)).
const TRACED: &[&[u8]] =
    &[b"maps", b"smaps", b"smaps_rollup", b"numa_maps", b"wchan", b"stat", b"timerslack_ns"];

/// Lets a regular file pass that was opened with `flags`, unless it lies on a procfs and is not for
/// everybody to read: EACCES.
pub(super) fn check(
    fd: BorrowedFd<'_>,
    stat: &Stat,
    flags: OFlags,
    proc_fd: &OwnedFd,
) -> Result<(), Errno> {
    // Its files are empty and on no disk; few others are.
    if stat.st_size != 0 || stat.st_blocks != 0 || rustix::fs::major(stat.st_dev) != 0 {
        return Ok(());
    }
    if rustix::fs::fstatfs(fd)?.f_type as u64 != MAGIC {
        return Ok(());
    }
    if flags & OFlags::RWMODE != OFlags::RDONLY || stat.st_mode & OTHERS_READ == 0 {
        return Err(Errno::ACCESS);
    }
    let path = rustix::fs::readlinkat(proc_fd, fd.as_raw_fd().to_string(), Vec::new())?;
    let mut parts = path.as_bytes().rsplit(|b| *b == b'/');
    let name = parts.next().unwrap_or_default();
    // /proc/stat is the host's, /proc/PID/stat a process's.
    let of_process =
        parts.next().is_some_and(|p| !p.is_empty() && p.iter().all(u8::is_ascii_digit));
    if TRACED.contains(&name) && (of_process || name != b"stat") {
        Err(Errno::ACCESS)
    } else {
        Ok(())
    }
}
