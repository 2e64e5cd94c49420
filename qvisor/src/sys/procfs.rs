//! The host's proc(5) as this process reaches it: by path at first; once the process is confined
//! ([`crate::sandbox::confine`]), below a mount of its own that no path leads to. That one shows
//! the processes of this PID namespace and nothing else, and cannot be written.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

static OWN: OnceLock<OwnedFd> = OnceLock::new();
/// It is the working directory.
static IS_HERE: AtomicBool = AtomicBool::new(false);

/// Makes the mount. Needs CAP_SYS_ADMIN, once, in the PID namespace that it is to show.
///
/// # Errors
/// Those of fsopen(2) and fsmount(2); EEXIST the second time.
pub fn make_own() -> Result<(), Errno> {
    // Without it there would be sys/kernel/core_pattern and sysrq-trigger, which a process of user
    // 0 may write.
    let mount = super::new_mount("proc", &[("subset", "pid")])?;
    OWN.set(mount).map_err(|_| Errno::EXIST)
}

/// The mount of [`make_own`], if there is one.
pub fn own() -> Option<&'static OwnedFd> {
    OWN.get()
}

/// Makes the own mount the working directory, from where [`path`] begins from now on.
///
/// # Errors
/// Those of fchdir(2); ENOENT when there is none.
pub fn be_there() -> Result<(), Errno> {
    rustix::process::fchdir(OWN.get().ok_or(Errno::NOENT)?)?;
    IS_HERE.store(true, Ordering::Release);
    Ok(())
}

/// The path of `rest` below /proc.
pub fn path(rest: &str) -> PathBuf {
    if IS_HERE.load(Ordering::Acquire) { rest.into() } else { PathBuf::from("/proc").join(rest) }
}

/// The host kernel's own mappings in this process, the vDSO and its data, as /proc/self/maps tells
/// them: start, end, name.
///
/// # Errors
/// Those of reading that.
pub fn special_mappings() -> io::Result<Vec<(u64, u64, String)>> {
    let maps = std::fs::read_to_string(path("self/maps"))?;
    let address = |digits: &str| u64::from_str_radix(digits, 16).map_err(io::Error::other);
    let mut out = Vec::new();
    for line in maps.lines() {
        let Some(name) =
            line.split_whitespace().nth(5).filter(|n| n.starts_with("[v") && *n != "[vsyscall]")
        else {
            continue;
        };
        let Some((start, end)) = line.split(' ').next().and_then(|r| r.split_once('-')) else {
            continue;
        };
        out.push((address(start)?, address(end)?, name.to_owned()));
    }
    Ok(out)
}

/// The directory in which this process's descriptors can be opened anew.
///
/// # Errors
/// Those of openat(2).
pub fn descriptors() -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match OWN.get() {
        Some(own) => rustix::fs::openat(own, "self/fd", flags, Mode::empty()),
        None => rustix::fs::open("/proc/self/fd", flags, Mode::empty()),
    }
}
