//! mount(2), umount2(2).

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    AT_FDCWD, AT_SYMLINK_NOFOLLOW, CAP_SYS_ADMIN, MNT_DETACH, MNT_FORCE, MS_BIND, MS_MOVE,
    MS_PRIVATE, MS_REC, MS_REMOUNT, MS_SHARED, MS_SILENT, MS_SLAVE, MS_UNBINDABLE,
};
use qlib::Va;

use super::open::path_at;
use crate::errno::{Errno, Result};
use crate::fs::mount::{Mount, MountFlags, check_room};
use crate::fs::options::Options;
use crate::fs::{self, Location, setup, tmpfs};
use crate::task::Thread;

/// UMOUNT_NOFOLLOW (umount(2)).
const UMOUNT_NOFOLLOW: u32 = 8;

fn text_at(thread: &Arc<Thread>, va: Va) -> Result<Vec<u8>> {
    if va.0 == 0 { Ok(Vec::new()) } else { thread.mm().read_cstr(va, 4096) }
}

fn check_admin(thread: &Arc<Thread>) -> Result {
    if thread.creds().has_cap(CAP_SYS_ADMIN) { Ok(()) } else { Err(Errno::EPERM) }
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
    let asked = MountFlags::from_bits_truncate(flags);
    if flags & MS_REMOUNT != 0 {
        if !place.is_mount_root() {
            return Err(Errno::EINVAL);
        }
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
    } else if flags & MS_BIND != 0 {
        let from = fs::lookup(thread, AT_FDCWD, &source, 0)?;
        check_place(&from, &place)?;
        Mount::bind(&from, place, flags & MS_REC != 0)?;
    } else if flags & (MS_SHARED | MS_PRIVATE | MS_SLAVE | MS_UNBINDABLE) != 0 {
        // There is one mount namespace, so propagation has nowhere to go: all mounts are private.
        if flags & MS_SHARED != 0 {
            return Err(Errno::EINVAL);
        }
        if !place.is_mount_root() {
            return Err(Errno::EINVAL);
        }
        let all = if flags & MS_REC != 0 {
            place.mount.tree(|_, _| true)
        } else {
            alloc::vec![place.mount]
        };
        for mount in all {
            mount.set_unbindable(flags & MS_UNBINDABLE != 0);
        }
    } else if flags & MS_MOVE != 0 {
        let from = fs::lookup(thread, AT_FDCWD, &source, 0)?;
        if !from.is_mount_root() || from.mount.point().is_none() || !place.mount.is_in_tree() {
            return Err(Errno::EINVAL);
        }
        check_place(&from, &place)?;
        if from.mount.is_above(&place.mount) {
            // Nobody could ever reach either again.
            return Err(Errno::ELOOP);
        }
        from.mount.move_to(place);
    } else {
        let data = text_at(thread, data)?;
        let data = core::str::from_utf8(&data).map_err(|_| Errno::EINVAL)?;
        let kind = core::str::from_utf8(&kind).map_err(|_| Errno::EINVAL)?;
        if !place.mount.is_in_tree() {
            return Err(Errno::EINVAL);
        }
        check_room(1)?;
        let options = Options::parse(data.split(','));
        if kind == "tmpfs" {
            tmpfs::check_options(&options)?;
        }
        let fs = setup::make(kind, &options)?;
        let mounted = Mount::whole(fs, &source, asked.settle(None));
        mounted.set_fs_readonly(asked.contains(MountFlags::RDONLY));
        check_place(&mounted.location(), &place)?;
        mounted.attach(place);
    }
    Ok(0)
}

/// Directories go on directories, other things on other things, and nothing on what has no name any
/// more.
fn check_place(what: &Location, place: &Location) -> Result {
    if place.dentry.is_unlinked() {
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
    let place = fs::lookup(thread, AT_FDCWD, &target, at_flags)?;
    if !place.is_mount_root() {
        return Err(Errno::EINVAL);
    }
    place.mount.detach(flags & MNT_DETACH != 0)?;
    Ok(0)
}
