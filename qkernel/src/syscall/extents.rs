//! FS_IOC_FIEMAP of ioctl(2) (Documentation/filesystems/fiemap.rst of Linux): which parts of a file
//! have data. Where they lie on the host's disk is not told: FIEMAP_EXTENT_UNKNOWN.

use qlib::Va;

use crate::abi::abi_struct;
use crate::errno::{Errno, Result};
use crate::fs::OpenFile;
use crate::task::Thread;

/// FIEMAP_FLAG_SYNC and FIEMAP_FLAG_CACHE: nothing has to be written or read for what is told.
const KNOWN_FLAGS: u32 = 1 | 4;
/// FIEMAP_MAX_EXTENTS.
const MAX_COUNT: u32 = u32::MAX / EXTENT_BYTES as u32;
/// Extents told of by one call: each is two calls of the host. Who wants more asks from there on.
const MOST_AT_ONCE: u32 = 4096;
/// FIEMAP_EXTENT_LAST: nothing comes after it.
const LAST: u32 = 1;
/// FIEMAP_EXTENT_UNKNOWN: its place is not known.
const UNKNOWN: u32 = 2;
const HEAD_BYTES: u64 = size_of::<Fiemap>() as u64;
const EXTENT_BYTES: u64 = size_of::<FiemapExtent>() as u64;

abi_struct! {
    /// struct fiemap, without what comes after it.
    pub struct Fiemap {
        pub start: u64, pub length: u64, pub flags: u32, pub mapped_extents: u32,
        pub extent_count: u32, pub reserved: u32,
    }
}
abi_struct! {
    /// struct fiemap_extent.
    pub struct FiemapExtent {
        pub logical: u64, pub physical: u64, pub length: u64, pub reserved64: [u64; 2],
        pub flags: u32, pub reserved: [u32; 3],
    }
}

/// The next part of a file with data at or after `from`, and where it ends.
fn next_data(file: &OpenFile, from: u64) -> Result<Option<(u64, u64)>> {
    let start = file.ops.seek_data(file, from, true);
    match start.and_then(|start| Ok((start, file.ops.seek_data(file, start, false)?))) {
        Ok(part) => Ok(Some(part)),
        // It may have become shorter in between.
        Err(Errno::ENXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The request with `at` as its argument. EOPNOTSUPP: the file system cannot tell, as tmpfs.
pub(super) fn fiemap(thread: &Thread, file: &OpenFile, at: Va) -> Result<usize> {
    let place = file.path.as_ref().ok_or(Errno::ENOTTY)?;
    let attributes = file.attributes()?;
    if !attributes.is_regular() || !place.dentry.fs.tells_extents() {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut asked: Fiemap = thread.mm().read(at)?;
    if asked.extent_count > MAX_COUNT || asked.length == 0 {
        return Err(Errno::EINVAL);
    }
    let end = asked.start.saturating_add(asked.length).min(attributes.size);
    if asked.start > i64::MAX as u64 {
        return Err(Errno::EFBIG);
    }
    let unknown = asked.flags & !KNOWN_FLAGS;
    asked.mapped_extents = 0;
    if unknown != 0 {
        asked.flags = unknown;
        thread.mm().write(at, &asked)?;
        return Err(Errno::EBADR);
    }
    let most = if asked.extent_count == 0 { MOST_AT_ONCE } else { asked.extent_count };
    let mut next = next_data(file, asked.start)?;
    while let Some((start, stop)) = next
        && start < end
        && asked.mapped_extents < most.min(MOST_AT_ONCE)
    {
        next = next_data(file, stop)?;
        let flags = if next.is_none() { UNKNOWN | LAST } else { UNKNOWN };
        let extent =
            FiemapExtent { logical: start, length: stop - start, flags, ..Default::default() };
        if asked.extent_count != 0 {
            let offset = HEAD_BYTES + EXTENT_BYTES * u64::from(asked.mapped_extents);
            thread.mm().write(at + offset, &extent)?;
        }
        asked.mapped_extents += 1;
    }
    thread.mm().write(at, &asked)?;
    Ok(0)
}
