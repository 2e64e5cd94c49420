//! Open files and directories of an overlay.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{DT_DIR, O_RDONLY};

use super::OverlayNode;
use super::node::{lower_ino, overlay_ino};
use crate::account;
use crate::errno::Result;
use crate::fs::attr::{Attributes, SetAttributes};
use crate::fs::disk::Begun;
use crate::fs::file::{Cached, DirEntry, DirSink, dots};
use crate::fs::inode::Inode;
use crate::fs::{FileOps, OpenFile};
use crate::io::IoBuffer;
use crate::mm::mapped::MappedFile;
use crate::pieces::Pieces;
use crate::sync::Mutex;

/// An open regular file: that of the layer it was found in, with the overlay's attributes.
pub struct OverlayFile {
    node: Arc<OverlayNode>,
    inner: Arc<dyn FileOps>,
    from_upper: bool,
}

impl OverlayFile {
    pub(super) fn new(
        node: Arc<OverlayNode>,
        inner: Arc<dyn FileOps>,
        from_upper: bool,
    ) -> Arc<Self> {
        Arc::new(OverlayFile { node, inner, from_upper })
    }
}

impl FileOps for OverlayFile {
    fn read(&self, file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        self.inner.read(file, buffer, offset)
    }

    fn read_cached(
        &self,
        file: &OpenFile,
        buffer: &mut IoBuffer<'_>,
        offset: u64,
    ) -> Result<Cached> {
        self.inner.read_cached(file, buffer, offset)
    }

    fn fetch(&self, file: &OpenFile, offset: u64, len: usize) -> Result<Begun> {
        self.inner.fetch(file, offset, len)
    }

    fn write(&self, file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        self.inner.write(file, buffer, offset)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn attributes(&self, file: &OpenFile) -> Result<Attributes> {
        // A file opened before it was copied up has its new attributes in the upper layer.
        let was_copied = !self.from_upper && self.node.layers.lock().upper.is_some();
        if was_copied {
            return Inode::attributes(&*self.node);
        }
        Ok(self.node.as_own(self.inner.attributes(file)?))
    }

    fn get_xattr(&self, file: &OpenFile, name: &[u8]) -> Result<Vec<u8>> {
        let was_copied = !self.from_upper && self.node.layers.lock().upper.is_some();
        if was_copied { self.node.get_xattr(name) } else { self.inner.get_xattr(file, name) }
    }

    fn set_attributes(&self, _file: &OpenFile, change: &SetAttributes) -> Result {
        Inode::set_attributes(&*self.node, change)
    }

    fn truncate(&self, file: &OpenFile, size: u64) -> Result {
        self.inner.truncate(file, size)
    }

    fn allocate(&self, file: &OpenFile, mode: u32, offset: u64, len: u64) -> Result {
        self.inner.allocate(file, mode, offset, len)
    }

    fn sync(&self, _file: &OpenFile, _data_only: bool) -> Result<Begun> {
        // The upper layer goes with the sandbox, and nothing is written to the lower one.
        Ok(None)
    }

    fn seek_data(&self, file: &OpenFile, offset: u64, data: bool) -> Result<u64> {
        self.inner.seek_data(file, offset, data)
    }

    fn is_noexec(&self, file: &OpenFile) -> bool {
        self.inner.is_noexec(file)
    }

    fn mapping(&self, file: &OpenFile, writable: bool) -> Result<Arc<dyn MappedFile>> {
        self.inner.mapping(file, writable)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// One merged entry.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    ino: u64,
    kind: u8,
}

/// Names of one layer's directory.
fn names(inode: &Arc<dyn Inode>) -> Result<Pieces<Entry>> {
    let file = OpenFile::new(inode.clone().open_data()?, O_RDONLY);
    let mut entries = Pieces::new();
    let mut outcome = Ok(());
    // From position 2 on for those file systems that make up "." and ".."; the host has them among
    // its own.
    let start = if inode.downcast::<crate::fs::tmpfs::TmpNode>().is_some() { 2 } else { 0 };
    file.ops.read_dir(&file, start, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            if entries.len().is_multiple_of(ASK_NAMES) {
                outcome = account::ask((ASK_NAMES * NAME_BYTES) as u64);
            }
            let entry = Entry { name: entry.name.to_vec(), ino: entry.ino, kind: entry.kind };
            outcome = outcome.and_then(|()| entries.push(entry));
        }
        outcome.is_ok()
    })?;
    outcome.map(|()| entries)
}

/// So many names are listed between two looks at whether there is memory for as many more.
const ASK_NAMES: usize = 128;
/// What a name may take, in bytes.
const NAME_BYTES: usize = 320;

/// What a directory holds: the upper layer's names, and those of the lower that they do not hide.
/// The numbers are those that stat(2) gives.
pub(super) fn list(node: &OverlayNode) -> Result<Pieces<Entry>> {
    let layers = node.layers();
    let mut upper = match &layers.upper {
        Some(upper) => names(upper)?,
        None => Pieces::new(),
    };
    let mut shown = Pieces::new();
    let mut merged = BTreeMap::new();
    if let Some(lower) = &layers.lower {
        account::ask((upper.len() * size_of::<(&[u8], u8)>() * 2) as u64)?;
        let known: BTreeMap<&[u8], u8> =
            upper.iter().map(|e| (e.name.as_slice(), e.kind)).collect();
        let dev = lower.permissions()?.dev;
        for entry in names(lower)? {
            let entry = Entry { ino: lower_ino(dev, entry.ino), ..entry };
            match known.get(entry.name.as_slice()) {
                // Only directories are merged; what else is there hides the lower layer's.
                Some(kind) if *kind != entry.kind || entry.kind != DT_DIR as u8 => {}
                _ if !node.shows_lower(&entry.name)? => {}
                Some(_) => drop(merged.insert(entry.name, entry.ino)),
                None => shown.push(entry)?,
            }
        }
    }
    let fs = node.fs()?;
    for index in 0..upper.len() {
        let Some(entry) = upper.get_mut(index) else { continue };
        entry.ino = overlay_ino(&fs, Some(entry.ino), || merged.get(&entry.name).copied());
    }
    for entry in shown {
        upper.push(entry)?;
    }
    Ok(upper)
}

/// An open directory.
pub struct OverlayDir {
    node: Arc<OverlayNode>,
    /// What it held when it was last read from its start.
    entries: Mutex<Arc<Pieces<Entry>>>,
}

impl OverlayDir {
    pub(super) fn new(node: Arc<OverlayNode>) -> Arc<Self> {
        Arc::new(OverlayDir { node, entries: Mutex::default() })
    }
}

impl FileOps for OverlayDir {
    fn held_bytes(&self) -> u64 {
        const SHORT_NAME_BYTES: usize = 32;
        (self.entries.lock().len() * (size_of::<Entry>() + SHORT_NAME_BYTES)) as u64
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

    fn sync(&self, _file: &OpenFile, _data_only: bool) -> Result<Begun> {
        Ok(None)
    }

    fn read_dir(&self, file: &OpenFile, position: u64, sink: &mut DirSink<'_>) -> Result<u64> {
        if position == 0 {
            let fresh = Arc::new(list(&self.node)?);
            *self.entries.lock() = fresh;
        }
        let mut position = match dots(file, position, sink)? {
            Ok(position) => position,
            Err(full) => return Ok(full),
        };
        let entries = self.entries.lock().clone();
        let skip = usize::try_from(position - 2).unwrap_or(usize::MAX);
        for entry in entries.iter().skip(skip) {
            if !sink(DirEntry {
                ino: entry.ino,
                next: position + 1,
                kind: entry.kind,
                name: &entry.name,
            }) {
                break;
            }
            position += 1;
        }
        Ok(position)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
