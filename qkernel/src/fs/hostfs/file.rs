//! An open host file or directory.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{DT_REG, DT_UNKNOWN, O_ACCMODE, RWF_APPEND, SEEK_DATA, SEEK_HOLE};
use qlib::PAGE_SIZE;
use qlib::host::{MAX_SEGMENTS, Op};

use super::handle_cache::FileHandle;
use super::lock::HostLocks;
use super::window::HostMapping;
use super::{HostNode, disk, node, stat_handle};
use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, SetAttributes, StatFs};
use crate::fs::disk::Begun;
use crate::fs::file::{Cached, DirEntry, DirSink};
use crate::fs::inode::Inode;
use crate::fs::outside::OutsideLocks;
use crate::fs::{FileOps, OpenFile};
use crate::host::Call;
use crate::io::IoBuffer;
use crate::mm::Access;
use crate::mm::mapped::MappedFile;

/// Of a noexec mount, in statfs(2)'s f_flags.
const ST_NOEXEC: i64 = 8;

/// The flags of open(2) that the host is to know of: the others are the guest kernel's business.
pub(super) fn host_flags(flags: u32) -> u32 {
    flags & O_ACCMODE
}

/// True if `bytes` from `offset` on end where a page does.
fn is_cut(offset: u64, bytes: usize) -> bool {
    offset.wrapping_add(bytes as u64).is_multiple_of(PAGE_SIZE)
}

/// An open host file or directory.
pub struct HostFile {
    handle: Arc<FileHandle>,
    node: Arc<HostNode>,
}

impl HostFile {
    pub(super) fn new(handle: Arc<FileHandle>, node: Arc<HostNode>) -> Arc<Self> {
        Arc::new(HostFile { handle, node })
    }

    fn number(&self) -> u32 {
        self.handle.number()
    }

    /// Moves data in pieces that grow, so that a short file does not fault a large buffer in.
    fn transfer(
        &self,
        buffer: &mut IoBuffer<'_>,
        access: Access,
        mut step: impl FnMut(Call, usize) -> Result<u64>,
        op: Op,
    ) -> Result<usize> {
        let start = buffer.done();
        let mut piece = 128 << 10;
        while buffer.remaining() > 0 {
            let result =
                buffer.segments(access, piece, MAX_SEGMENTS as usize).and_then(|segments| {
                    let wanted: u64 = segments.iter().map(|s| s.len).sum();
                    let moved = step(
                        Call::on(op, self.number()).segments(&segments),
                        buffer.done() - start,
                    )?;
                    Ok((moved.min(wanted), wanted))
                });
            match result {
                Ok((moved, wanted)) => {
                    buffer.advance(moved as usize);
                    if moved < wanted || wanted == 0 {
                        break;
                    }
                }
                Err(error) if buffer.done() == start => return Err(error),
                Err(_) => break,
            }
            piece = (piece * 4).min(4 << 20);
        }
        Ok(buffer.done() - start)
    }

    /// The result of a read from `offset`, also where that failed for its buffer: at a file's end
    /// nothing is read, wherever to.
    fn or_end(&self, result: Result<usize>, offset: u64) -> Result<usize> {
        match result {
            Err(Errno::EFAULT) if offset >= stat_handle(self.number())?.size => Ok(0),
            result => result,
        }
    }
}

impl FileOps for HostFile {
    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        let step = |call: Call, done: usize| call.arg(0, offset.wrapping_add(done as u64)).run();
        self.or_end(self.transfer(buffer, Access::Write, step, Op::Read), offset)
    }

    fn read_cached(
        &self,
        file: &OpenFile,
        buffer: &mut IoBuffer<'_>,
        offset: u64,
    ) -> Result<Cached> {
        let fs = self.node.fs();
        let start = buffer.done();
        let found = |bytes, is_all| Ok(Cached { bytes, is_all });
        while fs.tells_what_is_cached() {
            let at = offset.wrapping_add((buffer.done() - start) as u64);
            let step =
                |call: Call, done: usize| call.arg(0, at.wrapping_add(done as u64)).arg(1, 1).run();
            let result = self.transfer(buffer, Access::Write, step, Op::Read);
            let bytes = buffer.done() - start;
            match result {
                Err(Errno::EAGAIN) => return found(bytes, false),
                Err(Errno::EOPNOTSUPP) => fs.cannot_tell_what_is_cached(),
                Err(error) if bytes == 0 => {
                    return self.or_end(Err(error), offset).map(Cached::all);
                }
                // The host caches whole pages: what ends within one ends with the file.
                Ok(more) if more > 0 && is_cut(offset, bytes) && buffer.remaining() > 0 => {}
                _ => return found(bytes, true),
            }
        }
        self.read(file, buffer, offset.wrapping_add((buffer.done() - start) as u64))?;
        found(buffer.done() - start, true)
    }

    fn write(&self, file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        let append = if file.is_append() { u64::from(RWF_APPEND) } else { 0 };
        let step = |call: Call, done: usize| {
            call.arg(0, offset.wrapping_add(done as u64)).arg(1, append).run()
        };
        self.node.is_changed();
        self.transfer(buffer, Access::Read, step, Op::Write)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn attributes(&self, _file: &OpenFile) -> Result<Attributes> {
        stat_handle(self.number())
    }

    fn set_attributes(&self, _file: &OpenFile, change: &SetAttributes) -> Result {
        self.node.is_changed();
        node::set_attributes(self.number(), b"", change)
    }

    fn get_xattr(&self, _file: &OpenFile, name: &[u8]) -> Result<Vec<u8>> {
        node::get_xattr(Call::on(Op::GetXattr, self.number()).bytes(b""), name)
    }

    fn truncate(&self, _file: &OpenFile, size: u64) -> Result {
        self.node.is_changed();
        Call::on(Op::Truncate, self.number()).arg(0, size).run()?;
        Ok(())
    }

    fn allocate(&self, _file: &OpenFile, mode: u32, offset: u64, len: u64) -> Result {
        self.node.is_changed();
        Call::on(Op::Allocate, self.number())
            .arg(0, u64::from(mode))
            .arg(1, offset)
            .arg(2, len)
            .run()?;
        Ok(())
    }

    fn seek_data(&self, _file: &OpenFile, offset: u64, data: bool) -> Result<u64> {
        let whence = if data { SEEK_DATA } else { SEEK_HOLE };
        let found =
            Call::on(Op::Seek, self.number()).arg(0, offset).arg(1, u64::from(whence)).run();
        // Directories can be sought in, but have no holes.
        found.map_err(|e| if e == Errno::ESPIPE { Errno::EINVAL } else { e })
    }

    fn nameless(&self) -> Option<Arc<dyn Inode>> {
        self.node.nameless(&self.handle)
    }

    fn outside_locks(&self, file: &OpenFile) -> Result<Option<Arc<dyn OutsideLocks>>> {
        match self.node.fs().is_shared() {
            true => HostLocks::open(self.number(), file).map(Some),
            false => Ok(None),
        }
    }

    fn sync(&self, _file: &OpenFile, data_only: bool) -> Result<Begun> {
        disk::begin(Op::Sync, self.number(), &[u64::from(data_only)])
    }

    fn sync_range(&self, _file: &OpenFile, offset: u64, len: u64, flags: u32) -> Result<Begun> {
        disk::begin(Op::Sync, self.number(), &[2, offset, len, u64::from(flags)])
    }

    fn sync_fs(&self, _file: &OpenFile) -> Result<Begun> {
        // Not of the root: a mount of the host may lie beneath it. And the errors that this very
        // file has not been told of.
        disk::begin(Op::SyncFs, self.number(), &[])
    }

    fn fetch(&self, _file: &OpenFile, offset: u64, len: usize) -> Result<Begun> {
        disk::begin(Op::Fetch, self.number(), &[offset, len as u64])
    }

    fn statfs(&self, _file: &OpenFile) -> Result<StatFs> {
        // Not of the root: a mount of the host may lie beneath it.
        super::statfs(self.number())
    }

    fn is_noexec(&self, file: &OpenFile) -> bool {
        // What cannot be asked may be tried.
        self.statfs(file).is_ok_and(|s| s.flags & ST_NOEXEC != 0)
    }

    fn read_dir(&self, _file: &OpenFile, position: u64, sink: &mut DirSink<'_>) -> Result<u64> {
        let may_hold_devices = self.node.may_hold_devices();
        let mut position = position;
        let mut buffer = alloc::vec![0; 32 << 10];
        loop {
            let len = Call::on(Op::ReadDir, self.number())
                .arg(0, position)
                .bytes_out(&mut buffer)
                .run()?;
            let mut rest = buffer.get(..len as usize).ok_or(Errno::EIO)?;
            if rest.is_empty() {
                return Ok(position);
            }
            let before = position;
            while let Some((mut entry, len)) = parse(rest) {
                let next = entry.next;
                if may_hold_devices && entry.kind == DT_REG as u8 {
                    entry.kind = DT_UNKNOWN as u8;
                }
                if !sink(entry) {
                    return Ok(position);
                }
                position = next;
                rest = &rest[len..];
            }
            if position == before {
                return Err(Errno::EIO);
            }
        }
    }

    fn mapping(&self, _file: &OpenFile, writable: bool) -> Result<Arc<dyn MappedFile>> {
        let attributes = stat_handle(self.number())?;
        if !attributes.is_regular() {
            return Err(Errno::ENODEV);
        }
        Ok(HostMapping::of(self.node.fs(), &self.handle, &attributes, writable))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The first `struct linux_dirent64` of the host's answer, and its length.
fn parse(bytes: &[u8]) -> Option<(DirEntry<'_>, usize)> {
    let word =
        |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    let (ino, next) = (word(0)?, word(8)?);
    let len = usize::from(u16::from_le_bytes(bytes.get(16..18)?.try_into().ok()?));
    let kind = *bytes.get(18)?;
    let name = bytes.get(19..len)?;
    let end = name.iter().position(|b| *b == 0)?;
    Some((DirEntry { ino, next, kind, name: &name[..end] }, len))
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn record(ino: u64, next: u64, name: &[u8]) -> Vec<u8> {
        let len = (19 + name.len() + 1).next_multiple_of(8);
        let mut bytes = Vec::new();
        bytes.extend(ino.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        bytes.extend((len as u16).to_le_bytes());
        bytes.push(8);
        bytes.extend(name);
        bytes.resize(len, 0);
        bytes
    }

    #[test]
    fn directory_records_are_parsed_and_bad_ones_end_the_list() {
        let mut bytes = record(7, 1, b"alpha");
        let first = bytes.len();
        bytes.extend(record(8, 2, b"b"));
        let (entry, len) = parse(&bytes).unwrap();
        assert_eq!((entry.ino, entry.next, entry.name, len), (7, 1, &b"alpha"[..], first));
        let (entry, _) = parse(&bytes[first..]).unwrap();
        assert_eq!(entry.name, b"b");
        assert!(parse(&[]).is_none());
        // A length that is too long, and one of zero.
        let mut bad = record(1, 1, b"x");
        bad[16] = 255;
        assert!(parse(&bad).is_none());
        bad[16] = 0;
        assert!(parse(&bad).is_none());
    }
}
