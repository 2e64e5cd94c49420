//! The kernel's own heap, inside guest RAM.
//!
//! Small objects lie in slabs of one size class each, which begin with a header; larger ones are
//! whole frames, and the largest whole blocks. The frames come from an allocator of the heap's own,
//! so kernel and user frames are not mixed, and a slab without objects goes back to it: giving the
//! heap's free memory back to the host is giving back the free frames. Nothing is kept in free
//! memory.
//!
//! What an object is follows from its layout alone, as `GlobalAlloc` gives the same one at the end.
//! One spin lock; it is never held while anything else than the page allocators runs. The panic
//! handler must not allocate.
#![allow(unsafe_code)]

mod slab;

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::{fmt, ptr};

use spin::mutex::SpinMutex;

use self::slab::Slabs;
use crate::bitmap::{FrameAllocator, MAX_RUN};
use crate::blocks::{BLOCK_SIZE, BlockHeap};
use crate::pagetable::TableAlloc;
use crate::phys::PhysMap;
use crate::{Frames, Gpa, PAGE_SIZE};

const PAGE: usize = PAGE_SIZE as usize;
const BLOCK: usize = BLOCK_SIZE as usize;
/// The largest object that lies in a slab, in bytes: larger ones are whole frames.
pub const MOST_IN_SLAB_BYTES: u64 = slab::LARGEST as u64;

/// The heap. `#[global_allocator]` of the kernel image; an ordinary object in tests.
pub struct KernelHeap {
    inner: SpinMutex<Option<Inner>>,
    /// Free frames of the blocks that it holds, for those who look without the lock.
    free_frames: AtomicU64,
    /// Pages handed out as page tables, likewise.
    table_pages: AtomicU64,
    /// Pages that it holds, and free ones that may hold host memory, likewise.
    held_pages: AtomicU64,
    dirty_pages: AtomicU64,
}

struct Inner {
    frames: FrameAllocator,
    blocks: &'static BlockHeap,
    slabs: Slabs,
    handed_out: u64,
    whole_blocks: u64,
    tables: u64,
}

/// Counts of a [`KernelHeap`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapStats {
    /// Bytes of live objects, as they were asked for.
    pub handed_out_bytes: u64,
    /// Pages the heap holds: slabs, large objects, control pages and page tables.
    pub pages_held: u64,
    /// Pages handed out as page tables.
    pub table_pages: u64,
}

/// How an object of some layout is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// In a slab of this class.
    Slab(usize),
    /// `pages` frames at the beginning of an aligned run of `run`.
    Pages { pages: usize, run: usize },
    /// Whole blocks.
    Blocks(usize),
}

fn kind_of(layout: Layout) -> Option<Kind> {
    if let Some(class) = slab::class_of(layout.size(), layout.align()) {
        return Some(Kind::Slab(class));
    }
    let pages = layout.size().div_ceil(PAGE).max(1);
    let run = pages.checked_next_power_of_two()?.max(layout.align().div_ceil(PAGE));
    if run <= MAX_RUN {
        return Some(Kind::Pages { pages, run });
    }
    (layout.align() <= BLOCK).then(|| Kind::Blocks(layout.size().div_ceil(BLOCK).max(1)))
}

impl KernelHeap {
    /// A heap without memory: it gives nothing until [`Self::init`].
    pub const fn empty() -> Self {
        Self {
            inner: SpinMutex::new(None),
            free_frames: AtomicU64::new(0),
            table_pages: AtomicU64::new(0),
            held_pages: AtomicU64::new(0),
            dirty_pages: AtomicU64::new(0),
        }
    }

    /// Lets it take memory from `blocks`. Panics when called twice.
    pub fn init(&self, phys: PhysMap, blocks: &'static BlockHeap) {
        let mut inner = self.inner.lock();
        assert!(inner.is_none(), "the kernel heap is initialized already");
        let frames = FrameAllocator::new(phys, blocks, u32::from_le_bytes(*b"heap"));
        *inner = Some(Inner {
            frames,
            blocks,
            slabs: Slabs::new(),
            handed_out: 0,
            whole_blocks: 0,
            tables: 0,
        });
    }

    /// Calls `release` with batches of ranges of frames that hold no object but may hold host
    /// memory, as [`FrameAllocator::free_ranges`] does. `release` must not allocate. Call the
    /// [`BlockHeap`]'s afterwards.
    pub fn free_ranges(&self, release: &mut dyn FnMut(&[Frames]) -> bool) {
        self.with(|inner| {
            inner.slabs.trim(&inner.frames);
            inner.frames.free_ranges(release);
        });
    }

    /// Frames that it can use without taking another block, free slots of its slabs not counted.
    /// Takes no lock.
    pub fn free_frames(&self) -> u64 {
        self.free_frames.load(Relaxed)
    }

    /// Pages handed out as page tables. Takes no lock.
    pub fn table_pages(&self) -> u64 {
        self.table_pages.load(Relaxed)
    }

    /// As [`HeapStats::pages_held`]. Takes no lock.
    pub fn held_pages(&self) -> u64 {
        self.held_pages.load(Relaxed)
    }

    /// Free pages of the blocks that it holds that may hold host memory. Takes no lock.
    pub fn dirty_pages(&self) -> u64 {
        self.dirty_pages.load(Relaxed)
    }

    /// True if there is an aligned run of `pages` free pages (a power of two, at most [`MAX_RUN`])
    /// in the blocks that it holds.
    pub fn has_run(&self, pages: usize) -> bool {
        self.inner.lock().as_ref().is_some_and(|inner| inner.frames.has_run(pages))
    }

    /// Does something to the heap, if it has been given memory.
    fn with<R>(&self, change: impl FnOnce(&mut Inner) -> R) -> Option<R> {
        let mut guard = self.inner.lock();
        let inner = guard.as_mut()?;
        let result = change(inner);
        self.free_frames.store(inner.frames.free_frames(), Relaxed);
        self.table_pages.store(inner.tables, Relaxed);
        self.held_pages.store(inner.held_pages(), Relaxed);
        self.dirty_pages.store(inner.frames.dirty_frames(), Relaxed);
        Some(result)
    }

    /// What it holds.
    pub fn stats(&self) -> HeapStats {
        match self.inner.lock().as_ref() {
            None => HeapStats::default(),
            Some(inner) => HeapStats {
                handed_out_bytes: inner.handed_out,
                pages_held: inner.held_pages(),
                table_pages: inner.tables,
            },
        }
    }
}

impl Inner {
    fn held_pages(&self) -> u64 {
        self.frames.held_frames() + self.whole_blocks * (BLOCK_SIZE / PAGE_SIZE)
    }

    fn pointer(&self, gpa: Gpa) -> *mut u8 {
        self.frames.phys().ptr(gpa, 1).unwrap_or(ptr::null_mut())
    }

    fn gpa(&self, pointer: *mut u8) -> Gpa {
        self.frames.phys().gpa_of(pointer).expect("an object of the kernel heap")
    }

    fn alloc(&mut self, layout: Layout, zeroed: bool) -> Option<*mut u8> {
        let pointer = match kind_of(layout)? {
            Kind::Slab(class) => {
                let pointer = self.slabs.alloc(class, &self.frames)?;
                if zeroed {
                    // SAFETY: a slot of this class has at least layout.size() bytes and is ours
                    // alone.
                    unsafe { ptr::write_bytes(pointer, 0, layout.size()) };
                }
                pointer
            }
            Kind::Pages { pages, run } => {
                let phys = self.frames.phys();
                let gpa = self.frames.alloc_run_with(run, &mut |dirty| {
                    for i in (0..dirty.count).filter(|_| zeroed) {
                        phys.zero_frame(dirty.start + i * PAGE_SIZE);
                    }
                })?;
                if pages < run {
                    let tail =
                        Frames { start: gpa + (pages * PAGE) as u64, count: (run - pages) as u64 };
                    self.frames.free_untouched(tail);
                }
                self.pointer(gpa)
            }
            Kind::Blocks(count) => {
                let block = self.blocks.alloc_contiguous(count)?;
                self.whole_blocks += count as u64;
                let pointer = self.pointer(block.gpa);
                if zeroed && !block.clean {
                    // SAFETY: the blocks are RAM, ours alone, and hold at least layout.size()
                    // bytes.
                    unsafe { ptr::write_bytes(pointer, 0, layout.size()) };
                }
                pointer
            }
        };
        self.handed_out += layout.size() as u64;
        Some(pointer)
    }

    fn free(&mut self, pointer: *mut u8, layout: Layout) {
        match kind_of(layout) {
            Some(Kind::Slab(class)) => self.slabs.free(class, pointer, &self.frames),
            Some(Kind::Pages { pages, .. }) => {
                self.frames.free_run(Frames { start: self.gpa(pointer), count: pages as u64 });
            }
            Some(Kind::Blocks(count)) => {
                self.whole_blocks -= count as u64;
                self.blocks.free(self.gpa(pointer), count, false);
            }
            None => unreachable!("no object has this layout"),
        }
        self.handed_out -= layout.size() as u64;
    }

    /// Tries to make an object larger or smaller where it is; whether it worked.
    fn resize(&mut self, pointer: *mut u8, old: Layout, new: Layout) -> bool {
        let done = match (kind_of(old), kind_of(new)) {
            (Some(Kind::Slab(from)), Some(Kind::Slab(to))) => from == to,
            (Some(Kind::Pages { pages: from, .. }), Some(Kind::Pages { pages: to, .. })) => {
                let start = self.gpa(pointer);
                let edge = start + (from.min(to) * PAGE) as u64;
                let difference = Frames { start: edge, count: from.abs_diff(to) as u64 };
                if to < from {
                    self.frames.free_run(difference);
                }
                to <= from || self.frames.try_claim(difference)
            }
            (Some(Kind::Blocks(from)), Some(Kind::Blocks(to))) => {
                if to < from {
                    let edge = self.gpa(pointer) + (to * BLOCK) as u64;
                    self.blocks.free(edge, from - to, false);
                    self.whole_blocks -= (from - to) as u64;
                }
                to <= from
            }
            _ => false,
        };
        if done {
            self.handed_out = self.handed_out - old.size() as u64 + new.size() as u64;
        }
        done
    }
}

// SAFETY: memory handed out is RAM of the map given to `init`, taken from the page allocators or a
// slab until it is freed, so no two live objects overlap; alignment: slots of a class are aligned
// as `slab::class_of` promises, runs to their own size, blocks to 4 MiB. The lock makes it safe for
// several threads. It panics on a double free.
unsafe impl GlobalAlloc for KernelHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.with(|inner| inner.alloc(layout, false)).flatten().unwrap_or(ptr::null_mut())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.with(|inner| inner.alloc(layout, true)).flatten().unwrap_or(ptr::null_mut())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.with(|inner| inner.free(pointer, layout));
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Ok(new) = Layout::from_size_align(new_size, layout.align()) else {
            return ptr::null_mut();
        };
        let moved = self.with(|inner| {
            if inner.resize(pointer, layout, new) {
                return Some(pointer);
            }
            let moved = inner.alloc(new, false)?;
            // SAFETY: both objects are live, distinct, and hold at least the smaller of the two
            // sizes.
            unsafe { ptr::copy_nonoverlapping(pointer, moved, layout.size().min(new_size)) };
            inner.free(pointer, layout);
            Some(moved)
        });
        moved.flatten().unwrap_or(ptr::null_mut())
    }
}

/// Page tables from the heap's frames keep the blocks of user frames free for long runs.
impl TableAlloc for KernelHeap {
    fn alloc_table(&self) -> Option<Gpa> {
        let table = self.with(|inner| {
            let table = inner.frames.alloc_zeroed()?;
            inner.tables += 1;
            Some(table)
        });
        table.flatten()
    }

    fn free_table(&self, table: Gpa) {
        self.with(|inner| {
            inner.frames.free(table);
            inner.tables -= 1;
        });
    }
}

impl fmt::Debug for KernelHeap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KernelHeap").field(&self.stats()).finish()
    }
}

#[cfg(test)]
mod tests;
