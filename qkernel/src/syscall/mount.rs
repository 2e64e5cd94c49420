//! mount(2), umount2(2), pivot_root(2), sysfs(2).

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    AT_FDCWD, AT_SYMLINK_NOFOLLOW, CAP_SYS_ADMIN, MNT_DETACH, MNT_FORCE, MS_BIND, MS_MOVE,
    MS_PRIVATE, MS_REC, MS_REMOUNT, MS_SHARED, MS_SILENT, MS_SLAVE, MS_UNBINDABLE,
};
use qlib::Va;

use super::open::path_at;
use crate::errno::{Errno, Result};
use crate::fs::inode::FileSystem;
use crate::fs::mount::locked::{Locks, check_revealing};
use crate::fs::mount::namespace::MountNamespace;
use crate::fs::mount::{Mount, MountFlags, check_room, peers};
use crate::fs::mounter::Mounter;
use crate::fs::options::{Options, TYPE_NAMES};
use crate::fs::{self, Location, setup, tmpfs};
use crate::task::{Thread, table};
use crate::user_namespace::UserNs;

/// UMOUNT_NOFOLLOW (umount(2)).
const UMOUNT_NOFOLLOW: u32 = 8;
/// A new file system, and its user namespace.
pub(super) type Made = (Arc<dyn FileSystem>, UserNs);

/// What says how a mount propagates.
pub(super) const PROPAGATION: u32 = MS_SHARED | MS_PRIVATE | MS_SLAVE | MS_UNBINDABLE;

fn text_at(thread: &Arc<Thread>, va: Va) -> Result<Vec<u8>> {
    if va.0 == 0 { Ok(Vec::new()) } else { thread.mm().read_cstr(va, 4096) }
}

/// EPERM unless the thread may change its mount namespace, which is the affair of the user
/// namespace that this belongs to.
pub(super) fn check_admin(thread: &Arc<Thread>) -> Result {
    check_admin_in(thread, &thread.namespaces().mnt.user)
}

fn check_admin_in(thread: &Arc<Thread>, user: &UserNs) -> Result {
    let creds = thread.creds();
    // The rules of landlock(7) go by the tree, which nobody changes that they hold for.
    let may = creds.capable_in(user, CAP_SYS_ADMIN) && creds.domain.is_free();
    if may { Ok(()) } else { Err(Errno::EPERM) }
}

/// The user namespace that a new file system of this type is of: that which has what it shows.
///
/// # Errors
/// EPERM if the thread may not mount one there. Types that Linux does not let the root of a user
/// namespace mount (FS_USERNS_MOUNT) are for who has the capability in the container's own.
fn user_of_new(thread: &Arc<Thread>, kind: &str) -> Result<UserNs> {
    let namespaces = thread.namespaces();
    let user = match kind {
        "tmpfs" | "devpts" => thread.creds().user.clone(),
        "proc" => thread.process.pid_namespace.user.clone(),
        "mqueue" => namespaces.ipc.user.clone(),
        _ => UserNs::default(),
    };
    check_admin_in(thread, &user)?;
    Ok(user)
}

/// EINVAL for a mount that is not in the thread's mount namespace.
pub(super) fn check_own(thread: &Arc<Thread>, mount: &Mount) -> Result {
    thread.namespaces().mnt.check_in(mount)
}

/// mount(2).
pub fn mount(
    thread: &Arc<Thread>,
    source: Va,
    target: Va,
    kind: Va,
    flags: u32,
    data: Va,
) -> Result<usize> {
    check_admin(thread)?;
    let source = text_at(thread, source)?;
    let target = path_at(thread, target)?;
    let kind = text_at(thread, kind)?;
    let place = fs::lookup(thread, AT_FDCWD, &target, 0)?;
    // The old magic number may be in the upper half.
    let flags = if flags >> 16 == 0xc0ed { flags & 0xffff } else { flags } & !MS_SILENT;
    if flags & MS_REMOUNT != 0 {
        remount(thread, &place, flags, data)?;
    } else if flags & MS_BIND != 0 {
        let from = fs::lookup(thread, AT_FDCWD, &source, 0)?;
        bind(thread, &from, place, flags & MS_REC != 0)?;
    } else if flags & PROPAGATION != 0 {
        // The root of another user namespace changes its own mounts only.
        if !thread.creds().capable(CAP_SYS_ADMIN) {
            check_own(thread, &place.mount)?;
        }
        change_propagation(&place, flags)?;
    } else if flags & MS_MOVE != 0 {
        let from = fs::lookup(thread, AT_FDCWD, &source, 0)?;
        let is_fit = from.is_mount_root() && from.inode().is_dir() == place.inode().is_dir();
        if !is_fit {
            return Err(Errno::EINVAL);
        }
        check_place(&from, &place)?;
        check_own(thread, &from.mount)?;
        check_own(thread, &place.mount)?;
        from.mount.move_to(place)?;
    } else {
        let data = text_at(thread, data)?;
        let data = core::str::from_utf8(&data).map_err(|_| Errno::EINVAL)?;
        let kind = core::str::from_utf8(&kind).map_err(|_| Errno::EINVAL)?;
        check_own(thread, &place.mount)?;
        check_room(1, place.mount.owner())?;
        let options = Options::parse(data.split(','));
        let made = make_fs(thread, kind, &options)?;
        let asked = MountFlags::from_bits_truncate(flags);
        let is_readonly = asked.contains(MountFlags::RDONLY);
        let mounted = whole_mount(thread, made, &source, asked.settle(None), is_readonly)?;
        check_place(&mounted.location(), &place)?;
        mounted.graft(place)?;
    }
    Ok(0)
}

/// Makes a file system of this type, and says of which user namespace it is.
pub(super) fn make_fs(thread: &Arc<Thread>, kind: &str, options: &Options<'_>) -> Result<Made> {
    if kind == "tmpfs" {
        tmpfs::check_options(options)?;
    }
    let user = user_of_new(thread, kind)?;
    Ok((setup::make(kind, &Mounter::thread(thread), options)?, user))
}

/// A mount of all of a new file system, which lies nowhere yet. EPERM if it would show what is
/// hidden.
pub(super) fn whole_mount(
    thread: &Arc<Thread>,
    (fs, user): Made,
    source: &[u8],
    flags: MountFlags,
    is_readonly: bool,
) -> Result<Arc<Mount>> {
    let mnt = thread.namespaces().mnt.clone();
    // What of /proc and /sys is hidden where it is mounted already, another one would show.
    let locks = match fs.type_name() {
        kind @ ("proc" | "sysfs") if !mnt.user.is_initial() => {
            check_revealing(mnt.number, kind, flags)?
        }
        _ => Locks::empty(),
    };
    let mounted = Mount::whole_in(fs, source, flags, user);
    mounted.set_locks(locks);
    mounted.set_fs_readonly(is_readonly);
    Ok(mounted)
}

/// MS_REMOUNT.
fn remount(thread: &Arc<Thread>, place: &Location, flags: u32, data: Va) -> Result {
    check_own(thread, &place.mount)?;
    if !place.is_mount_root() {
        return Err(Errno::EINVAL);
    }
    let asked = MountFlags::from_bits_truncate(flags);
    let whole = flags & MS_BIND == 0;
    let is_readonly = match whole {
        true => place.mount.is_fs_readonly(),
        false => place.mount.flags().contains(MountFlags::RDONLY),
    };
    if asked.contains(MountFlags::RDONLY) && !is_readonly {
        place.mount.check_no_writers(whole)?;
    }
    place.mount.check_locks(asked.settle(Some(place.mount.flags())))?;
    if whole {
        let data = text_at(thread, data)?;
        let data = core::str::from_utf8(&data).map_err(|_| Errno::EINVAL)?;
        let options = Options::parse(data.split(','));
        reconfigure(thread, &place.mount, &options, Some(asked.contains(MountFlags::RDONLY)))?;
    }
    place.mount.set_flags(asked.settle(Some(place.mount.flags())));
    Ok(())
}

/// Has a file system take other options, and be read-only or not, through whichever mount.
pub(super) fn reconfigure(
    thread: &Arc<Thread>,
    mount: &Mount,
    options: &Options<'_>,
    is_readonly: Option<bool>,
) -> Result {
    check_admin_in(thread, mount.user())?;
    if is_readonly == Some(true) && !mount.is_fs_readonly() {
        mount.check_no_writers(true)?;
    }
    mount.fs.remount(options)?;
    if let Some(on) = is_readonly {
        mount.set_fs_readonly(on);
    }
    Ok(())
}

/// EINVAL for the file of a mount namespace that could hold `own`: one that holds itself, through
/// others or not, would never end, so each holds only what was made after it.
pub(super) fn check_younger(own: &MountNamespace, from: &Location) -> Result {
    let number = from.inode().mount_namespace();
    if number.is_some_and(|number| number <= own.number) { Err(Errno::EINVAL) } else { Ok(()) }
}

/// EINVAL for what must not be bound by who is in the namespace `own`, as it is in another one.
pub(super) fn check_source(own: &MountNamespace, from: &Location) -> Result {
    if from.inode().is_namespace() { Ok(()) } else { own.check_in(&from.mount) }
}

/// MS_BIND.
fn bind(thread: &Arc<Thread>, from: &Location, place: Location, recursive: bool) -> Result {
    let own = thread.namespaces().mnt.clone();
    check_younger(&own, from)?;
    if place.dentry.is_unlinked() {
        return Err(Errno::ENOENT);
    }
    own.check_in(&place.mount)?;
    check_source(&own, from)?;
    check_place(from, &place)?;
    // What lies on a file of another namespace is of that one.
    Mount::bind(from, place, recursive && own.check_in(&from.mount).is_ok())
}

/// MS_SHARED and the like, also of mounts in other namespaces.
pub(super) fn change_propagation(place: &Location, flags: u32) -> Result {
    let kind = flags & !MS_REC;
    let is_one = kind & !PROPAGATION == 0 && kind.is_power_of_two();
    if !is_one || !place.is_mount_root() || !place.mount.is_in_tree() {
        return Err(Errno::EINVAL);
    }
    let change = |mount: &Arc<Mount>| match kind {
        MS_SHARED => peers::make_shared(mount),
        MS_SLAVE => peers::make_slave(mount),
        _ => peers::make_private(mount, kind == MS_UNBINDABLE),
    };
    if flags & MS_REC == 0 {
        change(&place.mount);
    } else if kind == MS_PRIVATE {
        peers::make_all_private(place.mount.tree());
    } else {
        place.mount.tree().for_each(|mount| change(&mount));
    }
    Ok(())
}

/// Directories go on directories, other things on other things, and nothing on what has no name any
/// more.
fn check_place(what: &Location, place: &Location) -> Result {
    if place.dentry.is_unlinked() && !place.inode().is_namespace() {
        return Err(Errno::ENOENT);
    }
    if what.inode().is_dir() == place.inode().is_dir() { Ok(()) } else { Err(Errno::ENOTDIR) }
}

/// umount2(2).
pub fn umount2(thread: &Arc<Thread>, target: Va, flags: u32) -> Result<usize> {
    if flags & !(MNT_FORCE | MNT_DETACH | UMOUNT_NOFOLLOW) != 0 {
        return Err(Errno::EINVAL);
    }
    check_admin(thread)?;
    if flags & MNT_FORCE != 0 {
        check_admin_in(thread, &UserNs::default())?;
    }
    let target = path_at(thread, target)?;
    let at_flags = if flags & UMOUNT_NOFOLLOW != 0 { AT_SYMLINK_NOFOLLOW } else { 0 };
    // What covers "." goes first.
    let place = fs::lookup(thread, AT_FDCWD, &target, at_flags)?.through_mounts();
    check_own(thread, &place.mount)?;
    if !place.is_mount_root() {
        return Err(Errno::EINVAL);
    }
    let mount = place.mount;
    drop(place.dentry);
    mount.detach(flags & MNT_DETACH != 0)?;
    Ok(0)
}

/// pivot_root(2). Who has the old root as root or working directory has the new one then.
pub fn pivot_root(thread: &Arc<Thread>, new_root: Va, put_old: Va) -> Result<usize> {
    check_admin(thread)?;
    let directory = |path: Va| {
        let place = fs::lookup(thread, AT_FDCWD, &path_at(thread, path)?, 0)?;
        if place.inode().is_dir() { Ok(place) } else { Err(Errno::ENOTDIR) }
    };
    let (new, old) = (directory(new_root)?, directory(put_old)?);
    let root = thread.fs().root;
    thread.namespaces().mnt.pivot(&root, &new, &old)?;
    for other in table::threads() {
        other.update_fs(|fs| {
            // What they were is still held here.
            for place in [&mut fs.root, &mut fs.cwd] {
                if place.is_same(&root) {
                    *place = new.clone();
                }
            }
        });
    }
    Ok(0)
}

/// sysfs(2): the types of file systems by number.
pub fn sysfs(thread: &Arc<Thread>, option: i32, arg1: u64, arg2: Va) -> Result<usize> {
    match option {
        1 => {
            let name = thread.mm().read_cstr(Va(arg1), 4096)?;
            TYPE_NAMES.iter().position(|known| known.as_bytes() == name).ok_or(Errno::EINVAL)
        }
        2 => {
            let index = usize::try_from(arg1).map_err(|_| Errno::EINVAL)?;
            let name = TYPE_NAMES.get(index).ok_or(Errno::EINVAL)?;
            thread.mm().write_bytes(arg2, &[name.as_bytes(), b"\0"].concat())?;
            Ok(0)
        }
        3 => Ok(TYPE_NAMES.len()),
        _ => Err(Errno::EINVAL),
    }
}
