//! Handles of files: name_to_handle_at(2), open_by_handle_at(2). Those of a file system in guest
//! memory are as on Linux a generation, which is 0 as numbers are not used again, and the number of
//! the inode. What is found by one has to have a name still.

use alloc::sync::Arc;

use linux_raw_sys::general::{
    AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_FOLLOW, AT_SYMLINK_NOFOLLOW, CAP_DAC_READ_SEARCH, O_CLOEXEC,
};
use qlib::Va;

use super::open::{install, path_at};
use crate::abi::abi_struct;
use crate::errno::{Errno, Result};
use crate::fs::open::open_below;
use crate::fs::{self, Fd};
use crate::ipc::pipe;
use crate::task::Thread;

/// MAX_HANDLE_SZ.
const MAX_BYTES: u32 = 128;
/// Those that a handle has here.
const BYTES: u32 = 12;
/// FILEID_INO32_GEN, which Linux's tmpfs calls its own.
const KIND: i32 = 1;
/// FILEID_INVALID.
const NO_KIND: i32 = 0xff;

abi_struct! {
    /// struct file_handle, without what it holds.
    pub struct Head { pub bytes: u32, pub kind: i32, }
}
abi_struct! {
    /// What it holds.
    pub struct Body { pub generation: u32, pub low: u32, pub high: u32, }
}

/// name_to_handle_at(2). EOPNOTSUPP where the files are the host's.
pub fn name_to_handle_at(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: Va,
    handle: Va,
    mount_id: Va,
    flags: u32,
) -> Result<usize> {
    if flags & !(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = path_at(thread, path)?;
    let follow = if flags & AT_SYMLINK_FOLLOW == 0 { AT_SYMLINK_NOFOLLOW } else { 0 };
    let place = fs::lookup(thread, dirfd, &path, flags & AT_EMPTY_PATH | follow)?;
    if !place.dentry.fs.has_handles() {
        return Err(Errno::EOPNOTSUPP);
    }
    let mm = thread.mm();
    let room = mm.read::<Head>(handle)?.bytes;
    if room > MAX_BYTES {
        return Err(Errno::EINVAL);
    }
    mm.write(mount_id, &place.mount.id)?;
    if room < BYTES {
        mm.write(handle, &Head { bytes: BYTES, kind: NO_KIND })?;
        return Err(Errno::EOVERFLOW);
    }
    let ino = place.attributes()?.ino;
    mm.write(handle, &Head { bytes: BYTES, kind: KIND })?;
    let body = Body { generation: 0, low: ino as u32, high: (ino >> 32) as u32 };
    mm.write(Va(handle.0 + size_of::<Head>() as u64), &body)?;
    Ok(0)
}

/// open_by_handle_at(2).
pub async fn open_by_handle_at(
    thread: &Arc<Thread>,
    mount_fd: Fd,
    handle: Va,
    flags: u32,
) -> Result<usize> {
    if !thread.creds().capable(CAP_DAC_READ_SEARCH) {
        return Err(Errno::EPERM);
    }
    let mm = thread.mm();
    let Head { bytes, kind } = mm.read(handle)?;
    if bytes == 0 || bytes > MAX_BYTES {
        return Err(Errno::EINVAL);
    }
    let mount = if mount_fd == AT_FDCWD {
        thread.fs().cwd.mount.clone()
    } else {
        let file = thread.files().get(mount_fd)?;
        file.path.as_ref().ok_or(Errno::ESTALE)?.mount.clone()
    };
    if bytes != BYTES || kind != KIND {
        return Err(Errno::ESTALE);
    }
    let body: Body = mm.read(Va(handle.0 + size_of::<Head>() as u64))?;
    if body.generation != 0 {
        return Err(Errno::ESTALE);
    }
    let ino = u64::from(body.high) << 32 | u64::from(body.low);
    let root = mount.location();
    let path = root.dentry.fs.path_of(root.inode(), ino).ok_or(Errno::ESTALE)?;
    let file = open_below(thread, &root, &path, flags)?;
    pipe::finish_open(thread, &file).await?;
    install(thread, file, flags & O_CLOEXEC != 0)
}
