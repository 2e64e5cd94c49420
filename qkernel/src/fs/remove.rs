//! Taking names away, on behalf of a caller.

use super::attr::Attributes;
use super::open::{check_may_change, walk};
use super::walk::{NameTarget, Target, WalkFlags};
use super::{Caller, Fd, Location, landlock, mount, notify, perm};
use crate::creds::Creds;
use crate::errno::{Errno, Result};

/// Checks that `creds` may take `child` out of `parent`, and that nothing is mounted on it in this
/// mount namespace: what others mount there goes with the name ([`mount::detach_from`]).
pub fn check_may_remove(creds: &Creds, parent: &Location, child: &Location) -> Result<Attributes> {
    let directory = check_may_change(creds, parent)?;
    if child.is_mount_root() || mount::is_mounted_on(child.mount.namespace(), &child.dentry) {
        return Err(Errno::EBUSY);
    }
    perm::check_sticky(creds, &directory, &child.attributes()?)?;
    Ok(directory)
}

/// unlink(2) or rmdir(2) of `path`.
pub fn remove(caller: &dyn Caller, dirfd: Fd, path: &[u8], is_rmdir: bool) -> Result {
    let target = walk(caller, dirfd, path, WalkFlags::NAME)?;
    let otherwise = if is_rmdir { not_a_name(path, &target) } else { Errno::EISDIR };
    let NameTarget { parent, name, found, wants_dir } = target.name(otherwise)?;
    let child = found.ok_or(Errno::ENOENT)?;
    let is_dir = child.inode().is_dir();
    if !is_dir && (is_rmdir || wants_dir) {
        return Err(Errno::ENOTDIR);
    }
    let creds = caller.creds();
    check_may_remove(&creds, &parent, &child)?;
    if is_dir && !is_rmdir {
        return Err(Errno::EISDIR);
    }
    landlock::check_remove(&creds, &parent, is_dir)?;
    parent.inode().unlink(&name, child.inode())?;
    parent.dentry.forget(&child.dentry);
    mount::detach_from(&child.dentry);
    notify::removed(&parent, &name, &child);
    Ok(())
}

/// The error for a path of rmdir(2) or rename(2) that does not end in a name.
pub fn not_a_name(path: &[u8], target: &Target) -> Errno {
    let trimmed = path.iter().rposition(|b| *b != b'/').map_or(&path[..0], |end| &path[..=end]);
    match target {
        _ if trimmed.ends_with(b"/..") || trimmed == b".." => Errno::ENOTEMPTY,
        _ if trimmed.ends_with(b"/.") || trimmed == b"." => Errno::EINVAL,
        _ => Errno::EBUSY,
    }
}
