//! Open files and directories of a tmpfs.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE};

use super::TmpNode;
use super::node::Content;
use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, SetAttributes};
use crate::fs::disk::Begun;
use crate::fs::file::{DirEntry, DirSink, dots, entry_kind};
use crate::fs::inode::Inode;
use crate::fs::shmem::Shmem;
use crate::fs::{FileOps, OpenFile, memfd};
use crate::io::IoBuffer;
use crate::mm::mapped::MappedFile;

/// An open file or directory of a tmpfs.
pub struct TmpFile {
    node: Arc<TmpNode>,
}

impl TmpFile {
    pub(super) fn new(node: Arc<TmpNode>) -> Arc<Self> {
        Arc::new(TmpFile { node })
    }

    /// Its memory, if it is a regular file.
    pub fn data(&self) -> Result<&Arc<Shmem>> {
        self.node.data()
    }
}

impl FileOps for TmpFile {
    fn held_bytes(&self) -> u64 {
        // What has a name stays.
        let is_unlinked = self.node.attributes.lock().nlink == 0;
        self.node.data().map_or(0, |data| if is_unlinked { data.held_bytes() } else { 0 })
    }

    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        self.node.data()?.read(buffer, offset)
    }

    fn write(&self, file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        let data = self.node.data()?;
        let offset = if file.is_append() { data.size() } else { offset };
        if buffer.remaining() == 0 {
            return Ok(0);
        }
        let written = data.write(buffer, offset)?;
        self.node.drop_capabilities();
        self.node.is_modified();
        Ok(written)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn attributes(&self, _file: &OpenFile) -> Result<Attributes> {
        Inode::attributes(&*self.node)
    }

    fn set_attributes(&self, _file: &OpenFile, change: &SetAttributes) -> Result {
        Inode::set_attributes(&*self.node, change)
    }

    fn get_xattr(&self, _file: &OpenFile, name: &[u8]) -> Result<Vec<u8>> {
        Inode::get_xattr(&*self.node, name)
    }

    fn truncate(&self, _file: &OpenFile, size: u64) -> Result {
        Inode::truncate(&*self.node, size)
    }

    fn allocate(&self, _file: &OpenFile, mode: u32, offset: u64, len: u64) -> Result {
        let data = self.node.data()?;
        match mode {
            0 | FALLOC_FL_KEEP_SIZE => data.reserve(offset, len, mode == 0)?,
            _ if mode == FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE => data.punch(offset, len)?,
            _ if mode & !FALLOC_FL_KEEP_SIZE == FALLOC_FL_ZERO_RANGE => {
                data.punch(offset, len)?;
                data.reserve(offset, len, mode & FALLOC_FL_KEEP_SIZE == 0)?;
            }
            _ => return Err(Errno::EOPNOTSUPP),
        }
        self.node.drop_capabilities();
        self.node.is_modified();
        Ok(())
    }

    fn sync(&self, _file: &OpenFile, _data_only: bool) -> Result<Begun> {
        Ok(None)
    }

    fn seek_data(&self, _file: &OpenFile, offset: u64, data: bool) -> Result<u64> {
        self.node.data()?.seek_data(offset, data)
    }

    fn read_dir(&self, file: &OpenFile, position: u64, sink: &mut DirSink<'_>) -> Result<u64> {
        let names = self.node.names()?;
        let mut position = match dots(file, position, sink)? {
            Ok(position) => position,
            Err(full) => return Ok(full),
        };
        loop {
            let Some((next, name, node)) = names.lock().after(position) else {
                return Ok(position);
            };
            let attributes = *node.attributes.lock();
            let kind = entry_kind(attributes.mode);
            if !sink(DirEntry { ino: attributes.ino, next, kind, name: &name }) {
                return Ok(position);
            }
            position = next;
        }
    }

    fn mapping(&self, _file: &OpenFile, writable: bool) -> Result<Arc<dyn MappedFile>> {
        match &self.node.content {
            Content::File(data)
                if writable
                    && data.seals() & (memfd::SEAL_WRITE | memfd::SEAL_FUTURE_WRITE) != 0 =>
            {
                Err(Errno::EPERM)
            }
            Content::File(data) => Ok(data.clone()),
            _ => Err(Errno::ENODEV),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
