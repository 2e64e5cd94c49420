//! Mapped host files: windows of guest physical memory behind which qvisor maps the file.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use qlib::host::Op;
use qlib::{Gpa, PAGE_SHIFT, PAGE_SIZE};

use super::handle_cache::FileHandle;
use super::{HostFs, stat_handle};
use crate::errno::{Errno, Result};
use crate::fs::attr::Attributes;
use crate::host::Call;
use crate::mm::mapped::{MappedFile, MappedPage};
use crate::sync::{Mutex, mutex};

/// Windows begin at multiples of this, in pages.
const ALIGN_PAGES: u64 = 512;
/// The longest window, in pages.
const MAX_PAGES: u64 = 1 << 16;

/// Bytes of all windows.
static WINDOW_BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes of guest physical address space behind which host files are mapped.
pub fn window_bytes() -> u64 {
    WINDOW_BYTES.load(Ordering::Relaxed)
}

/// A host file that is mapped, read-only, writable, or both: its address is what futexes in it are
/// known by.
type Identity = u64;

/// Files that are mapped, by device and inode.
static IDENTITIES: Mutex<BTreeMap<(u64, u64), Weak<Identity>>> = mutex(BTreeMap::new());

fn identity_of(file: (u64, u64)) -> Arc<Identity> {
    let mut identities = IDENTITIES.lock();
    if let Some(known) = identities.get(&file).and_then(Weak::upgrade) {
        return known;
    }
    identities.retain(|_, i| i.strong_count() > 0);
    let new = Arc::new(file.1);
    identities.insert(file, Arc::downgrade(&new));
    new
}

/// The memory of one host file, shared by all who map it.
pub struct HostMapping {
    handle: Arc<FileHandle>,
    writable: bool,
    identity: Arc<Identity>,
    inner: Mutex<Inner>,
}

struct Inner {
    /// The file's size in bytes when it was asked last.
    size: u64,
    windows: Vec<Window>,
}

#[derive(Clone, Copy)]
struct Window {
    first: u64,
    pages: u64,
    gpa: Gpa,
}

impl HostMapping {
    /// The mapping of an open file, shared with others who map the same file the same way.
    pub(super) fn of(
        fs: &HostFs,
        handle: &Arc<FileHandle>,
        attributes: &Attributes,
        writable: bool,
    ) -> Arc<Self> {
        let key = (attributes.dev, attributes.ino, writable);
        let known = fs.mappings.lock().get(&key).and_then(|m| m.upgrade());
        if let Some(mapping) = known {
            mapping.inner.lock().size = attributes.size;
            return mapping;
        }
        let inner = Mutex::new(Inner { size: attributes.size, windows: Vec::new() });
        let identity = identity_of(attributes.id());
        let mapping = Arc::new(HostMapping { handle: handle.clone(), writable, identity, inner });
        let mut mappings = fs.mappings.lock();
        mappings.retain(|_, m| m.strong_count() > 0);
        mappings.insert(key, Arc::downgrade(&mapping));
        drop(mappings);
        mapping
    }

    fn known(&self, index: u64) -> Option<Window> {
        self.inner
            .lock()
            .windows
            .iter()
            .find(|w| index >= w.first && index - w.first < w.pages)
            .copied()
    }

    /// EFAULT if page `index` lies past the file's end.
    fn check_size(&self, index: u64) -> Result<u64> {
        let offset = index.checked_mul(PAGE_SIZE).ok_or(Errno::EFAULT)?;
        let known = self.inner.lock().size;
        if offset < known {
            return Ok(known);
        }
        let size = stat_handle(self.handle.number())?.size;
        self.inner.lock().size = size;
        if offset < size { Ok(size) } else { Err(Errno::EFAULT) }
    }

    fn window(&self, index: u64) -> Result<Window> {
        let size = self.check_size(index)?;
        if let Some(window) = self.known(index) {
            return Ok(window);
        }
        // Windows of a file never overlap: which pages lie side by side must not depend on who
        // asks.
        let first = index & !(ALIGN_PAGES - 1);
        let file_pages = size.div_ceil(PAGE_SIZE).next_multiple_of(ALIGN_PAGES);
        let next = self.inner.lock().windows.iter().map(|w| w.first).filter(|f| *f > index).min();
        let pages =
            (file_pages.min(next.unwrap_or(u64::MAX)) - first).clamp(ALIGN_PAGES, MAX_PAGES);
        let gpa = Call::on(Op::WindowMap, self.handle.number())
            .arg(0, first << PAGE_SHIFT)
            .arg(1, pages << PAGE_SHIFT)
            .arg(2, u64::from(self.writable))
            .run()?;
        let window = Window { first, pages, gpa: Gpa(gpa) };
        WINDOW_BYTES.fetch_add(pages << PAGE_SHIFT, Ordering::Relaxed);
        self.inner.lock().windows.push(window);
        Ok(window)
    }
}

impl MappedFile for HostMapping {
    fn page(&self, index: u64, _write: bool) -> Result<MappedPage> {
        let window = self.window(index)?;
        Ok(MappedPage::Window(window.gpa + ((index - window.first) << PAGE_SHIFT)))
    }

    fn run_pages(&self, index: u64) -> u64 {
        let Some(window) = self.known(index) else { return 1 };
        let end = self.inner.lock().size.div_ceil(PAGE_SIZE);
        (window.pages - (index - window.first)).min(end.saturating_sub(index)).max(1)
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(&self.identity) as usize
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        for window in core::mem::take(&mut self.inner.get_mut().windows) {
            WINDOW_BYTES.fetch_sub(window.pages << PAGE_SHIFT, Ordering::Relaxed);
            // The host forgets it in any case; there is nobody to report an error to.
            let _ = Call::on(Op::WindowDrop, self.handle.number()).arg(0, window.gpa.0).run();
        }
    }
}
