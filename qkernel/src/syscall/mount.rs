//! mount(2), umount2(2), pivot_root(2).

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    AT_FDCWD, AT_SYMLINK_NOFOLLOW, CAP_SYS_ADMIN, MNT_DETACH, MNT_FORCE, MS_BIND, MS_MOVE,
    MS_PRIVATE, MS_REC, MS_REMOUNT, MS_SHARED, MS_SILENT, MS_SLAVE, MS_UNBINDABLE,
};
use qlib::Va;

use super::open::path_at;
use crate::errno::{Errno, Result};
use crate::fs::mount::{Mount, MountFlags, check_room, peers};
use crate::fs::mounter::Mounter;
use crate::fs::options::Options;
use crate::fs::{self, Location, setup, tmpfs};
use crate::task::{Thread, table};

/// UMOUNT_NOFOLLOW (umount(2)).
const UMOUNT_NOFOLLOW: u32 = 8;
/// What says how a mount propagates.
const PROPAGATION: u32 = MS_SHARED | MS_PRIVATE | MS_SLAVE | MS_UNBINDABLE;

fn text_at(thread: &Arc<Thread>, va: Va) -> Result<Vec<u8>> {
    if va.0 == 0 { Ok(Vec::new()) } else { thread.mm().read_cstr(va, 4096) }
}

fn check_admin(thread: &Arc<Thread>) -> Result {
    if thread.creds().has_cap(CAP_SYS_ADMIN) { Ok(()) } else { Err(Errno::EPERM) }
}

/// EINVAL for a mount that is not in the thread's mount namespace.
fn check_own(thread: &Arc<Thread>, mount: &Mount) -> Result {
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
        check_room(1)?;
        let options = Options::parse(data.split(','));
        if kind == "tmpfs" {
            tmpfs::check_options(&options)?;
        }
        let fs = setup::make(kind, &Mounter::thread(thread), &options)?;
        let asked = MountFlags::from_bits_truncate(flags);
        let mounted = Mount::whole(fs, &source, asked.settle(None));
        mounted.set_fs_readonly(asked.contains(MountFlags::RDONLY));
        check_place(&mounted.location(), &place)?;
        mounted.graft(place)?;
    }
    Ok(0)
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
    if whole {
        let data = text_at(thread, data)?;
        let data = core::str::from_utf8(&data).map_err(|_| Errno::EINVAL)?;
        place.mount.fs.remount(&Options::parse(data.split(',')))?;
        place.mount.set_fs_readonly(asked.contains(MountFlags::RDONLY));
    }
    place.mount.set_flags(asked.settle(Some(place.mount.flags())));
    Ok(())
}

/// MS_BIND.
fn bind(thread: &Arc<Thread>, from: &Location, place: Location, recursive: bool) -> Result {
    let own = thread.namespaces().mnt.clone();
    // A mount namespace that holds itself, through others or not, would never end: each holds only
    // what was made after it.
    if from.inode().mount_namespace().is_some_and(|number| number <= own.number) {
        return Err(Errno::EINVAL);
    }
    if place.dentry.is_unlinked() {
        return Err(Errno::ENOENT);
    }
    own.check_in(&place.mount)?;
    if !from.inode().is_namespace() {
        own.check_in(&from.mount)?;
    }
    check_place(from, &place)?;
    // What lies on a file of another namespace is of that one.
    Mount::bind(from, place, recursive && own.check_in(&from.mount).is_ok())
}

/// MS_SHARED and the like, also of mounts in other namespaces.
fn change_propagation(place: &Location, flags: u32) -> Result {
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
