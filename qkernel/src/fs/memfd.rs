//! Anonymous files in memory (memfd_create(2)) and their seals.

use alloc::sync::Arc;

use linux_raw_sys::general::{O_RDWR, S_IFREG};

use super::dentry::Dentry;
use super::inode::NewNode;
use super::mount::{Mount, MountFlags};
use super::tmpfs::{TmpFile, TmpFs};
use super::{Location, OpenFile};
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::sync::Once;

/// F_SEAL_SEAL and its kin (fcntl(2)).
pub const SEAL_SEAL: u32 = 1;
/// F_SEAL_SHRINK.
pub const SEAL_SHRINK: u32 = 2;
/// F_SEAL_GROW.
pub const SEAL_GROW: u32 = 4;
/// F_SEAL_WRITE.
pub const SEAL_WRITE: u32 = 8;
/// F_SEAL_FUTURE_WRITE.
pub const SEAL_FUTURE_WRITE: u32 = 16;
/// F_SEAL_EXEC.
pub const SEAL_EXEC: u32 = 32;
/// All of them.
pub const SEAL_ALL: u32 = 63;

/// The hidden tmpfs that the files lie in.
fn mount() -> Arc<Mount> {
    static MOUNT: Once<Arc<Mount>> = Once::new();
    MOUNT.get_or_set(|| Mount::hidden(TmpFs::nameless(), MountFlags::empty())).clone()
}

/// A new empty file, open for reading and writing, with these seals.
pub fn create(creds: &Creds, name: &[u8], mode: u32, seals: u32) -> Result<Arc<OpenFile>> {
    let mount = mount();
    let new = NewNode { mode: S_IFREG | mode, uid: creds.fsuid, gid: creds.fsgid, rdev: 0 };
    let (inode, _) = mount.fs.root().create_unnamed(&new, O_RDWR)?;
    let ops = inode.clone().open_data()?;
    let mut label = b"/memfd:".to_vec();
    label.extend_from_slice(name);
    label.extend_from_slice(b" (deleted)");
    let dentry = Dentry::unnamed(mount.fs.clone(), inode, &label);
    let file = OpenFile::at(ops, O_RDWR, Some(Location { mount, dentry }));
    data(&file)?.set_seals(seals);
    Ok(file)
}

fn data(file: &OpenFile) -> Result<&Arc<super::shmem::Shmem>> {
    file.downcast::<TmpFile>().ok_or(Errno::EINVAL)?.data()
}

/// F_GET_SEALS.
pub fn seals(file: &OpenFile) -> Result<u32> {
    Ok(data(file)?.seals())
}

/// F_ADD_SEALS. EBUSY for F_SEAL_WRITE while the file is mapped.
pub fn add_seals(file: &OpenFile, seals: u32) -> Result {
    if !file.is_writable() {
        return Err(Errno::EPERM);
    }
    if seals & !SEAL_ALL != 0 {
        return Err(Errno::EINVAL);
    }
    let data = data(file)?;
    if data.seals() & SEAL_SEAL != 0 {
        return Err(Errno::EPERM);
    }
    // The inode has one reference; each mapping another.
    if seals & SEAL_WRITE != 0 && data.seals() & SEAL_WRITE == 0 && Arc::strong_count(data) > 1 {
        return Err(Errno::EBUSY);
    }
    data.set_seals(data.seals() | seals);
    Ok(())
}
