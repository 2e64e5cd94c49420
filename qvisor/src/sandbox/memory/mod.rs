//! Guest physical memory: one sparse memfd for RAM, and above it *file windows*, ranges behind
//! which host files are mapped. Both lie in one linear mapping of the sandbox process, so that
//! kernel virtual address = base + guest physical address.
//!
//! A room that may use `unsafe`: everything that turns a guest physical address into a pointer
//! lives here behind checked types; what hands such a pointer to the host kernel is [`crate::sys`].
#![allow(unsafe_code)]

pub mod copy;
mod user_blocks;
mod windows;

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};

use qlib::host::Segment;
use qlib::platform::BootInfo;
use qlib::{Frames, Gpa, PAGE_SIZE};
use rustix::io::Errno;
use smallvec::SmallVec;
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

use user_blocks::UserBlocks;
use windows::WindowTable;
pub use windows::{Window, WindowError};

use crate::sys;
use crate::sys::ordered::{Mutex, MutexGuard, place};
pub use crate::sys::{GuestRange, Protection};

/// Where the linear mapping of guest physical memory may begin in the sandbox process: at a
/// multiple of [`RAM_UNIT`] from the first on, before the second. That leaves the host's own
/// mappings alone, which are higher, as are executables and, above all, stubs' regions.
const GUEST_BASES: Range<u64> = 0x0800_0000_0000..0x4000_0000_0000;
/// RAM comes in units of this many bytes (one block of the page allocator).
pub const RAM_UNIT: u64 = 4 << 20;

/// The shape of guest physical memory.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Where to map it; `None` lets the host choose.
    pub base: Option<u64>,
    /// Bytes of RAM: a multiple of [`RAM_UNIT`], at least one.
    pub ram_bytes: u64,
    /// Bytes of address space for file windows; page aligned.
    pub window_bytes: u64,
}

/// Why guest memory could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The size is zero, too large or not a multiple of 4 MiB.
    #[error("guest RAM of {0} bytes is not a positive multiple of 4 MiB")]
    BadSize(u64),
    /// The host refused.
    #[error("cannot {what}: {source}")]
    Host {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// Guest physical memory, as the sandbox process sees it.
pub struct GuestMemory {
    base: usize,
    ram_bytes: u64,
    window_bytes: u64,
    memfd: Arc<OwnedFd>,
    windows: Mutex<WindowTable, place::Windows>,
    user_blocks: UserBlocks,
    reach: OnceLock<Reach>,
    dropped: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Makes guest physical addresses below the given one reachable for the guest.
type Reach = Box<dyn Fn(Gpa) -> Result<(), Errno> + Send + Sync>;

impl fmt::Debug for GuestMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestMemory")
            .field("base", &self.base)
            .field("ram_bytes", &self.ram_bytes)
            .finish_non_exhaustive()
    }
}

/// The ranges of one scatter/gather operation.
pub type Ranges<'m> = SmallVec<[GuestRange<'m>; 8]>;

fn host(what: &'static str) -> impl FnOnce(io::Error) -> MemoryError {
    move |source| MemoryError::Host { what, source }
}

impl GuestMemory {
    /// Makes guest memory: nothing of it is committed yet.
    pub fn new(layout: Layout) -> Result<GuestMemory, MemoryError> {
        let Layout { base, ram_bytes, window_bytes } = layout;
        if ram_bytes == 0 || !ram_bytes.is_multiple_of(RAM_UNIT) || ram_bytes > 1 << 44 {
            return Err(MemoryError::BadSize(ram_bytes));
        }
        let memfd = sys::memfd_unsealable(c"quark-ram", ram_bytes)
            .map_err(host("make the memory file for guest RAM"))?;
        let total = ram_bytes
            .checked_add(window_bytes)
            .filter(|t| t.is_multiple_of(PAGE_SIZE))
            .and_then(|t| usize::try_from(t).ok())
            .ok_or(MemoryError::BadSize(ram_bytes))?;
        let base = sys::reserve(base, total, RAM_UNIT as usize)
            .map_err(host("reserve guest address space"))?;
        let memory = GuestMemory {
            base,
            ram_bytes,
            window_bytes,
            memfd: Arc::new(memfd),
            windows: Mutex::new(WindowTable::new(Gpa(ram_bytes), window_bytes)),
            user_blocks: UserBlocks::new(ram_bytes),
            reach: OnceLock::new(),
            dropped: OnceLock::new(),
        };
        // SAFETY: [base, base + total) was just reserved for this object and nothing refers into it
        // yet.
        unsafe { sys::map_fixed(memory.base, ram_bytes as usize, true, memory.memfd.as_fd(), 0) }
            .map_err(host("map guest RAM"))?;
        copy::install_handlers(memory.base, total)
            .map_err(host("install the memory fault handlers"))?;
        Ok(memory)
    }

    /// As [`GuestMemory::new`], at a random base: who finds a way to write somewhere must first
    /// find out where.
    pub fn at_random_base(ram_bytes: u64, window_bytes: u64) -> Result<GuestMemory, MemoryError> {
        const TRIES: u32 = 16;
        let mut tries = 0;
        loop {
            let mut random = [0; 8];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
                .map_err(|e| host("get random bytes")(e.into()))?;
            let places = (GUEST_BASES.end - GUEST_BASES.start) / RAM_UNIT;
            let base = GUEST_BASES.start + u64::from_le_bytes(random) % places * RAM_UNIT;
            tries += 1;
            match GuestMemory::new(Layout { base: Some(base), ram_bytes, window_bytes }) {
                // Something lies there.
                Err(MemoryError::Host { source, .. })
                    if tries < TRIES
                        && matches!(
                            source.kind(),
                            io::ErrorKind::AlreadyExists | io::ErrorKind::AddrInUse
                        ) => {}
                other => return other,
            }
        }
    }

    /// As [`GuestMemory::new`], where another sandbox had it. EINVAL for where none can have it.
    pub fn again(base: u64, ram_bytes: u64, window_bytes: u64) -> Result<GuestMemory, MemoryError> {
        if !GUEST_BASES.contains(&base) || !base.is_multiple_of(RAM_UNIT) {
            return Err(host("put guest RAM where the image has it")(Errno::INVAL.into()));
        }
        GuestMemory::new(Layout { base: Some(base), ram_bytes, window_bytes })
    }

    /// The address in the sandbox process at which guest physical address 0 lies.
    pub fn base(&self) -> u64 {
        self.base as u64
    }

    /// RAM as the type that rust-vmm crates take. It must not outlive this object.
    pub fn vm_memory(&self) -> Result<GuestMemoryMmap<()>, MemoryError> {
        let invalid = |e: &dyn std::fmt::Display| MemoryError::Host {
            what: "describe guest RAM",
            source: io::Error::other(e.to_string()),
        };
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: RAM is mapped at `base` for `ram_bytes` bytes with these attributes; the region
        // does not own the mapping.
        let region = unsafe {
            MmapRegion::build_raw(self.base as *mut u8, self.ram_bytes as usize, prot, flags)
        }
        .map_err(|e| invalid(&e))?;
        let region = GuestRegionMmap::new(region, GuestAddress(0))
            .ok_or_else(|| invalid(&"it overflows"))?;
        GuestMemoryMmap::from_regions(vec![region]).map_err(|e| invalid(&e))
    }

    /// Bytes of RAM.
    pub fn ram_bytes(&self) -> u64 {
        self.ram_bytes
    }

    /// Bytes of address space for file windows, which begin where RAM ends.
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// The memory file behind RAM; offset = guest physical address.
    pub fn memfd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    /// The range `[gpa, gpa+len)`, if it lies wholly in RAM or wholly in the window area. Zero
    /// length is in range wherever its start is.
    pub fn slice(&self, gpa: Gpa, len: u64) -> Option<GuestRange<'_>> {
        let end = gpa.0.checked_add(len)?;
        let total = self.ram_bytes + self.window_bytes;
        if end > total || (gpa.0 < self.ram_bytes && end > self.ram_bytes) {
            return None;
        }
        // SAFETY: the range lies in this object's reservation, and Rust code never holds references
        // into it.
        Some(unsafe { GuestRange::new(self.base + gpa.0 as usize, len as usize) })
    }

    /// The range `[gpa, gpa+len)` if it lies in RAM.
    pub fn ram_slice(&self, gpa: Gpa, len: u64) -> Option<GuestRange<'_>> {
        let end = gpa.0.checked_add(len)?;
        if end > self.ram_bytes { None } else { self.slice(gpa, len) }
    }

    /// The guest physical address of `len` bytes at `addr` of the sandbox process, if they lie in
    /// RAM.
    pub fn gpa_of(&self, addr: usize, len: u64) -> Option<Gpa> {
        let gpa = (addr as u64).checked_sub(self.base as u64)?;
        self.ram_slice(Gpa(gpa), len).map(|_| Gpa(gpa))
    }

    /// The ranges of `segments`; EFAULT when one is outside guest memory.
    pub fn ranges(&self, segments: &[Segment]) -> Result<Ranges<'_>, Errno> {
        segments.iter().map(|s| self.slice(s.gpa, s.len).ok_or(Errno::FAULT)).collect()
    }

    /// Copies guest memory at `gpa` to `out`; EFAULT when it is outside or has no memory behind it.
    pub fn read(&self, gpa: Gpa, out: &mut [u8]) -> Result<(), Errno> {
        self.slice(gpa, out.len() as u64).ok_or(Errno::FAULT)?.read(out)
    }

    /// Copies `bytes` to guest memory at `gpa`; EFAULT as [`GuestMemory::read`].
    pub fn write(&self, gpa: Gpa, bytes: &[u8]) -> Result<(), Errno> {
        self.slice(gpa, bytes.len() as u64).ok_or(Errno::FAULT)?.write(bytes)
    }

    /// The word of RAM at `gpa`, for futex(2); `None` when it lies elsewhere or is not aligned.
    /// What it holds changes under our feet.
    pub fn word(&self, gpa: Gpa) -> Option<&AtomicU32> {
        let range = self.ram_slice(gpa, 4).filter(|_| gpa.0.is_multiple_of(4))?;
        // SAFETY: it is mapped and aligned as long as this object lives; no Rust code has another
        // reference into RAM but of this kind.
        Some(unsafe { AtomicU32::from_ptr(range.addr() as *mut u32) })
    }

    /// Writes the boot information to `gpa`.
    pub fn write_boot_info(&self, gpa: Gpa, info: &BootInfo) -> Result<(), Errno> {
        // SAFETY: BootInfo is plain data without padding that matters; it is only read.
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const *info).cast::<u8>(), size_of::<BootInfo>())
        };
        self.write(gpa, bytes)
    }

    /// True if what a kernel was told at its boot, and has at `gpa`, is what `info` says of this
    /// host; how much of it the kernel may use is its own affair.
    pub fn has_boot_info(&self, gpa: Gpa, info: &BootInfo) -> Result<bool, Errno> {
        let mut then = MaybeUninit::<BootInfo>::zeroed();
        // SAFETY: BootInfo is plain data, of which any bytes are a value; it is only written.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(then.as_mut_ptr().cast::<u8>(), size_of::<BootInfo>())
        };
        self.read(gpa, bytes)?;
        // SAFETY: see above.
        let then = unsafe { then.assume_init() };
        let of_host = |i: &BootInfo| {
            let memory = (i.magic, i.version, i.platform, i.phys_base, i.ram_bytes, i.free_start);
            let image = (i.image_start, i.mailbox, i.mailbox_bytes);
            let vdso = (i.vdso, i.vdso_bytes, i.vdso_copy);
            let user = (i.user_min, i.user_max, vdso, i.fast_entry);
            (memory, image, user, i.hwcap, i.hwcap2, i.fpstate_bytes)
        };
        Ok(of_host(&then) == of_host(info))
    }

    /// Gives the memory of `frames` back to the host; they read as zeros afterwards. EINVAL when a
    /// range is not RAM. Neighbouring ranges that follow each other in the list are given back in
    /// one call.
    pub fn release(&self, frames: impl IntoIterator<Item = Frames>) -> Result<(), Errno> {
        let mut run: Option<(u64, u64)> = None;
        for f in frames {
            let len = f.count.checked_mul(PAGE_SIZE).ok_or(Errno::INVAL)?;
            if !f.start.is_page_aligned() || self.ram_slice(f.start, len).is_none() {
                return Err(Errno::INVAL);
            }
            run = match run {
                Some((start, n)) if start + n == f.start.0 => Some((start, n + len)),
                Some((start, n)) => {
                    sys::punch_hole(self.memfd.as_fd(), start, n)?;
                    Some((f.start.0, len))
                }
                None => Some((f.start.0, len)),
            };
        }
        match run {
            Some((start, len)) => sys::punch_hole(self.memfd.as_fd(), start, len),
            None => Ok(()),
        }
    }

    /// Calls `each(first page, pages)` (relative to `gpa`) for every run of pages of the RAM range
    /// that holds memory of the host, in core or in its swap. The end of the range, or of the run
    /// that goes on there. EINVAL when the range is not page-aligned RAM.
    pub fn committed(
        &self,
        gpa: Gpa,
        len: u64,
        mut each: impl FnMut(u64, u64),
    ) -> Result<u64, Errno> {
        if !gpa.is_page_aligned()
            || !len.is_multiple_of(PAGE_SIZE)
            || self.ram_slice(gpa, len).is_none()
        {
            return Err(Errno::INVAL);
        }
        let end = gpa.0 + len;
        let (mut at, mut goes_on) = (gpa.0, end);
        while at < end {
            // Not mincore(2): that does not see what the host has swapped out.
            let Some(data) = sys::seek_data(self.memfd.as_fd(), at)?.filter(|d| *d < end) else {
                break;
            };
            // The host looks for it page by page: what it finds beyond `end` is not thrown away.
            let hole = sys::seek_hole(self.memfd.as_fd(), data)?;
            goes_on = hole.clamp(end, self.ram_bytes().max(end));
            let hole = hole.min(end);
            let first = (data.max(gpa.0) - gpa.0) / PAGE_SIZE;
            let last = (hole - gpa.0).div_ceil(PAGE_SIZE);
            each(first, last - first);
            at = hole.max(data + 1);
        }
        Ok(goes_on)
    }

    /// Bytes of host memory that RAM holds.
    pub fn resident_bytes(&self) -> u64 {
        rustix::fs::fstat(self.memfd.as_fd())
            .map(|s| (s.st_blocks as u64).saturating_mul(512))
            .unwrap_or(0)
    }

    /// Shows the sandbox process what `file` has at `offset` at a page-aligned range of RAM, so
    /// that every sandbox shares one copy of it in the host's page cache; the RAM behind it goes
    /// back to the host. For what is never written.
    pub fn share(
        &self,
        gpa: Gpa,
        len: u64,
        executable: bool,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> io::Result<()> {
        let range =
            self.ram_slice(gpa, len).filter(|_| gpa.is_page_aligned()).ok_or(Errno::INVAL)?;
        // SAFETY: the range belongs to this object; Rust code never holds references into guest
        // memory.
        unsafe { sys::map_file(range.addr(), range.len(), executable, file, offset)? };
        Ok(sys::punch_hole(self.memfd.as_fd(), gpa.0, len)?)
    }

    /// Has the sandbox process see `bytes`, and zeros behind them, at a page-aligned range of RAM
    /// for ever, in memory that is not the file behind RAM; what the file had there goes back to
    /// the host. `protection` must not be one to write.
    pub fn set_apart(
        &self,
        gpa: Gpa,
        len: u64,
        bytes: &[u8],
        protection: Protection,
    ) -> Result<(), Errno> {
        let range =
            self.ram_slice(gpa, len).filter(|_| gpa.is_page_aligned()).ok_or(Errno::INVAL)?;
        if protection == Protection::ReadWrite || !len.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::INVAL);
        }
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the range belongs to this object; Rust code never holds references into guest
        // memory.
        unsafe { sys::map_bytes(range.addr(), range.len(), bytes, protection)? };
        sys::punch_hole(self.memfd.as_fd(), gpa.0, len)
    }

    /// Has the host refuse every later change of the sandbox process' mapping of a range of RAM,
    /// this process' own requests included. Hosts before Linux 6.10 cannot.
    pub fn seal(&self, gpa: Gpa, len: u64) -> Result<(), Errno> {
        let range =
            self.ram_slice(gpa, len).filter(|_| gpa.is_page_aligned()).ok_or(Errno::INVAL)?;
        match sys::seal(range.addr(), range.len()) {
            // The second and third where a filter around quark does not know the call.
            Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => Ok(()),
            other => other,
        }
    }

    /// Says where RAM begins that the guest kernel divides among itself and user memory. Once;
    /// until then no block is one of user memory.
    pub fn keep_apart(&self, free_start: Gpa) {
        self.user_blocks.begin(free_start);
    }

    /// See [`qlib::platform::PlatformOps::user_block`].
    pub fn set_user_block(&self, block: Gpa, is_user: bool) -> Result<(), Errno> {
        self.user_blocks.set(block, is_user)
    }

    /// The numbers of the blocks that hold user memory.
    pub fn user_blocks(&self) -> Vec<u64> {
        self.user_blocks.all()
    }

    /// Makes the blocks with these numbers those of user memory, and no others, when nobody uses
    /// any. EINVAL when one is none.
    pub fn become_user_blocks(&self, blocks: &[u64]) -> Result<(), Errno> {
        let place = |number: &u64| Gpa(number.saturating_mul(RAM_UNIT));
        for number in self.user_blocks() {
            self.set_user_block(place(&number), false)?;
        }
        blocks.iter().try_for_each(|number| self.set_user_block(place(number), true))
    }

    /// Maps `[offset, offset+len)` of `file` (which must stay what it is) as a window. See
    /// [`WindowError`].
    pub fn window_map(
        &self,
        file: Arc<OwnedFd>,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<Gpa, WindowError> {
        let mut windows = self.windows();
        let gpa = windows.insert(file, offset, len, writable)?;
        let reached = self.reach.get().map_or(Ok(()), |reach| reach(gpa + len));
        if let Err(e) = reached.and_then(|()| self.window_place(&windows, gpa)) {
            windows.remove(gpa);
            return Err(WindowError::Host(e));
        }
        Ok(gpa)
    }

    /// Makes a window at `gpa`, where another sandbox had it. See [`WindowError`].
    pub fn window_put(
        &self,
        gpa: Gpa,
        file: Arc<OwnedFd>,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<(), WindowError> {
        let mut windows = self.windows();
        windows.put(gpa, Window { file, offset, len, writable })?;
        self.window_place(&windows, gpa).map_err(|e| {
            windows.remove(gpa);
            WindowError::Host(e)
        })
    }

    /// What `f` makes of each window, in ascending order.
    pub fn each_window<T>(&self, mut f: impl FnMut(Gpa, &Window) -> T) -> Vec<T> {
        self.windows().iter().map(|(gpa, window)| f(gpa, window)).collect()
    }

    /// Has `reach` called with the end of each window before it is used, for a platform on which
    /// the guest does not reach all addresses from the start.
    pub fn set_reach(&self, reach: impl Fn(Gpa) -> Result<(), Errno> + Send + Sync + 'static) {
        // There is one platform.
        let _ = self.reach.set(Box::new(reach));
    }

    /// Has `dropped` called after each window that is dropped, for a platform that holds files of
    /// windows.
    pub fn set_dropped(&self, dropped: impl Fn() + Send + Sync + 'static) {
        // There is one platform.
        let _ = self.dropped.set(Box::new(dropped));
    }

    /// Has no window made in `range` from now on.
    pub fn exclude_windows(&self, range: Range<Gpa>) {
        self.windows().exclude(range);
    }

    /// Drops the window that begins at `gpa`; `false` when there is none.
    pub fn window_drop(&self, gpa: Gpa) -> bool {
        let mut windows = self.windows();
        let Some(window) = windows.get(gpa) else { return false };
        let len = window.len as usize;
        // SAFETY: the range is a window of this object, inside its reservation.
        let cleared = unsafe { sys::unmap_fixed(self.base + gpa.0 as usize, len) };
        // If the host could not take the mapping away, its addresses must not be given to another
        // window.
        if cleared.is_ok() {
            windows.remove(gpa);
        }
        drop(windows);
        if let Some(dropped) = self.dropped.get() {
            dropped();
        }
        true
    }

    /// Takes the host's mappings of all windows away and makes them anew, untouched: their pages
    /// leave the process, and so do the page tables that named them.
    pub fn windows_release(&self) -> Result<(), Errno> {
        let windows = self.windows();
        let mut span: Option<(u64, u64)> = None;
        for (gpa, w) in windows.iter() {
            span = Some((span.map_or(gpa.0, |s| s.0), gpa.0 + w.len));
        }
        let Some((start, end)) = span else { return Ok(()) };
        // SAFETY: the span lies in the window area of this object's reservation.
        unsafe { sys::unmap_fixed(self.base + start as usize, (end - start) as usize) }?;
        let mut result = Ok(());
        for (gpa, _) in windows.iter() {
            if let Err(e) = self.window_place(&windows, gpa) {
                // The window stays a hole: touching it is then a checked fault, not a crash.
                result = Err(e);
            }
        }
        result
    }

    /// How many windows there are.
    pub fn window_count(&self) -> usize {
        self.windows().count()
    }

    /// Bytes of guest physical addresses that windows occupy.
    pub fn window_bytes_mapped(&self) -> u64 {
        self.windows().iter().map(|(_, w)| w.len).sum()
    }

    fn window_place(&self, windows: &WindowTable, gpa: Gpa) -> Result<(), Errno> {
        let w = windows.get(gpa).ok_or(Errno::INVAL)?;
        // SAFETY: the table hands out disjoint ranges inside the window area of this object's
        // reservation.
        unsafe {
            sys::map_fixed(
                self.base + gpa.0 as usize,
                w.len as usize,
                w.writable,
                w.file.as_fd(),
                w.offset,
            )
        }
        .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }

    fn windows(&self) -> MutexGuard<'_, WindowTable> {
        self.windows.lock()
    }

    fn backing(&self, gpa: Gpa, len: u64) -> Option<(Arc<OwnedFd>, u64)> {
        if self.ram_slice(gpa, len).is_some() {
            return Some((self.memfd.clone(), gpa.0));
        }
        let windows = self.windows();
        let (start, w) = windows.containing(gpa)?;
        let delta = gpa.0 - start.0;
        if delta.checked_add(len)? > w.len {
            return None;
        }
        Some((w.file.clone(), w.offset + delta))
    }
}

/// What lies behind guest physical addresses on the host.
pub trait GuestPhys: Send + Sync {
    /// The file descriptor, and the offset in it in bytes, behind `[gpa, gpa+len)`: the RAM memfd,
    /// or the file of a window. `None` when the range is not guest memory or is not contiguous in
    /// one file. The platform keeps the descriptor alive until the mapping has been made, so a
    /// window may be dropped at any time.
    fn host_backing(&self, gpa: Gpa, len: u64) -> Option<(Arc<OwnedFd>, u64)>;

    /// True if user code may be shown `[gpa, gpa+len)`: none of it is memory of the guest kernel's
    /// own, by what is known outside of guest memory.
    fn is_for_users(&self, gpa: Gpa, len: u64) -> bool;
}

impl GuestPhys for GuestMemory {
    fn host_backing(&self, gpa: Gpa, len: u64) -> Option<(Arc<OwnedFd>, u64)> {
        self.backing(gpa, len)
    }

    fn is_for_users(&self, gpa: Gpa, len: u64) -> bool {
        // Windows are files, and none of the kernel's.
        gpa.0 >= self.ram_bytes || self.user_blocks.contain(gpa, len)
    }
}

impl Drop for GuestMemory {
    fn drop(&mut self) {
        let total = (self.ram_bytes + self.window_bytes) as usize;
        // SAFETY: the reservation belongs to this object; every GuestRange borrowed from it is
        // gone.
        unsafe { sys::unmap(self.base, total) };
    }
}

impl GuestRange<'_> {
    /// Copies the beginning of the range to `out`; EFAULT when it is shorter or memory is missing.
    pub fn read(&self, out: &mut [u8]) -> Result<(), Errno> {
        if out.len() > self.len() {
            return Err(Errno::FAULT);
        }
        // SAFETY: `out` is writable for its length; the source is guest memory, whose faults `copy`
        // survives.
        let left = unsafe { copy::copy(out.as_mut_ptr(), self.addr() as *const u8, out.len()) };
        if left == 0 { Ok(()) } else { Err(Errno::FAULT) }
    }

    /// Copies `bytes` to the beginning of the range; EFAULT when it is shorter or memory is
    /// missing.
    pub fn write(&self, bytes: &[u8]) -> Result<(), Errno> {
        if bytes.len() > self.len() {
            return Err(Errno::FAULT);
        }
        // SAFETY: `bytes` is readable for its length; the target is guest memory, whose faults
        // `copy` survives.
        let left = unsafe { copy::copy(self.addr() as *mut u8, bytes.as_ptr(), bytes.len()) };
        if left == 0 { Ok(()) } else { Err(Errno::FAULT) }
    }

    /// The whole range as bytes of our own; EFAULT when memory is missing, EINVAL when longer than
    /// `limit`.
    pub fn to_vec(&self, limit: usize) -> Result<Vec<u8>, Errno> {
        if self.len() > limit {
            return Err(Errno::INVAL);
        }
        let mut bytes = vec![0; self.len()];
        self.read(&mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests;
