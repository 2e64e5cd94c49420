//! Handles of files: name_to_handle_at(2), open_by_handle_at(2). What is found by one has to have a
//! name still.

use alloc::sync::Arc;

use linux_raw_sys::general::{
    AT_EMPTY_PATH, AT_FDCWD, AT_HANDLE_FID, AT_HANDLE_MNT_ID_UNIQUE, AT_SYMLINK_FOLLOW,
    AT_SYMLINK_NOFOLLOW, CAP_DAC_READ_SEARCH, O_CLOEXEC,
};
use qlib::Va;

use super::open::{install, path_at};
use crate::abi::abi_struct;
use crate::errno::{Errno, Result};
use crate::fs::ask::Inquiry;
use crate::fs::handle::{self, BYTES, KIND, KIND_TO_COMPARE};
use crate::fs::mount;
use crate::fs::open::open_below;
use crate::fs::{self, Fd};
use crate::ipc::pipe;
use crate::task::Thread;

/// MAX_HANDLE_SZ.
const MAX_BYTES: u32 = 128;
/// FILEID_INVALID.
const NO_KIND: i32 = 0xff;

abi_struct! {
    /// struct file_handle, without what it holds.
    pub struct Head { pub bytes: u32, pub kind: i32, }
}

/// name_to_handle_at(2). EOPNOTSUPP where the files are the host's, unless the handle is only to
/// compare (AT_HANDLE_FID).
pub fn name_to_handle_at(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: Va,
    handle_at: Va,
    mount_id: Va,
    flags: u32,
) -> Result<usize> {
    const KNOWN: u32 = AT_SYMLINK_FOLLOW | AT_EMPTY_PATH | AT_HANDLE_FID | AT_HANDLE_MNT_ID_UNIQUE;
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let path = path_at(thread, path)?;
    let follow = if flags & AT_SYMLINK_FOLLOW == 0 { AT_SYMLINK_NOFOLLOW } else { 0 };
    let place = fs::lookup(thread, dirfd, &path, flags & AT_EMPTY_PATH | follow)?;
    let opens = place.dentry.fs.has_handles();
    if !opens && flags & AT_HANDLE_FID == 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let mm = thread.mm();
    let room = mm.read::<Head>(handle_at)?.bytes;
    if room > MAX_BYTES {
        return Err(Errno::EINVAL);
    }
    match flags & AT_HANDLE_MNT_ID_UNIQUE {
        0 => mm.write(mount_id, &place.mount.id)?,
        _ => mm.write(mount_id, &mount::unique_id(place.mount.id))?,
    }
    if room < BYTES {
        mm.write(handle_at, &Head { bytes: BYTES, kind: NO_KIND })?;
        return Err(Errno::EOVERFLOW);
    }
    let ino = place.attributes()?.ino;
    // Elsewhere it tells files apart, and that is all.
    let (kind, body) =
        if opens { (KIND, handle::body(ino)) } else { (KIND_TO_COMPARE, handle::to_compare(ino)) };
    mm.write(handle_at, &Head { bytes: BYTES, kind })?;
    mm.write(Va(handle_at.0 + size_of::<Head>() as u64), &body)?;
    Ok(0)
}

/// open_by_handle_at(2).
pub async fn open_by_handle_at(
    thread: &Arc<Thread>,
    mount_fd: Fd,
    handle_at: Va,
    flags: u32,
) -> Result<usize> {
    if !thread.creds().capable(CAP_DAC_READ_SEARCH) {
        return Err(Errno::EPERM);
    }
    let mm = thread.mm();
    let Head { bytes, kind } = mm.read(handle_at)?;
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
    let body = mm.read(Va(handle_at.0 + size_of::<Head>() as u64))?;
    let ino = handle::number(body).ok_or(Errno::ESTALE)?;
    let root = mount.location();
    let path = root.dentry.fs.path_of(root.inode(), ino).ok_or(Errno::ESTALE)?;
    let open = || open_below(thread, &root, &path, flags);
    let file = Inquiry::begin().attempts(thread, open).await?;
    pipe::finish_open(thread, &file).await?;
    install(thread, file, flags & O_CLOEXEC != 0)
}
