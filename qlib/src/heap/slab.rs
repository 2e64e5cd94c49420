//! Slabs: small objects of one size class in one or four frames, behind a header that says which
//! slots are free.

use crate::bitmap::FrameAllocator;
use crate::phys::PhysMap;
use crate::{Frames, Gpa, PAGE_SIZE};

/// The size classes in bytes: powers of two, and halfway between.
const SIZES: [u16; 15] = [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048];
const CLASSES: usize = SIZES.len();
/// The largest of them.
pub const LARGEST: usize = SIZES[CLASSES - 1] as usize;
/// "No slab" in lists.
const NONE: u64 = u64::MAX;
const MAGIC: u32 = 0x514b_534c;
/// How far a slab is carried to its place by address when it enters a list.
const SORT_STEPS: u32 = 16;

/// Begins each slab.
#[repr(C)]
struct Header {
    magic: u32,
    class: u16,
    free_count: u16,
    /// Neighbours in the list of slabs with free slots.
    next: u64,
    prev: u64,
    /// Bit set: slot free.
    free: [u64; 4],
}

const HEADER: usize = 64;
const _: () = assert!(size_of::<Header>() <= HEADER);

/// Frames of a slab of `class`: few slots of a large class fit beside a header in one.
const fn pages(class: usize) -> usize {
    if SIZES[class] <= 512 { 1 } else { 4 }
}

/// The alignment of all slots of `class`: the largest power of two that divides its size.
const fn alignment(class: usize) -> usize {
    1 << SIZES[class].trailing_zeros()
}

/// Where the first slot begins.
const fn first_slot(class: usize) -> usize {
    HEADER.next_multiple_of(alignment(class))
}

/// Slots of a slab.
const fn capacity(class: usize) -> usize {
    (pages(class) * PAGE_SIZE as usize - first_slot(class)) / SIZES[class] as usize
}

/// The class for each size in units of 8 bytes, rounded up.
const BY_SIZE: [u8; LARGEST / 8 + 1] = {
    let mut table = [0; LARGEST / 8 + 1];
    let mut at = 0;
    while at < table.len() {
        let mut class = 0;
        while (SIZES[class] as usize) < at * 8 {
            class += 1;
        }
        table[at] = class as u8;
        at += 1;
    }
    table
};

/// The class of objects with this size and alignment; `None` when they are too large for a slab.
pub fn class_of(size: usize, align: usize) -> Option<usize> {
    let class = usize::from(*BY_SIZE.get(size.div_ceil(8))?);
    (class..CLASSES).find(|&c| alignment(c) >= align)
}

/// The slabs with free slots, by class.
pub struct Slabs {
    lists: [List; CLASSES],
}

#[derive(Clone, Copy)]
struct List {
    head: u64,
    /// A slab without any object that is kept, or [`NONE`].
    spare: u64,
}

impl Slabs {
    pub const fn new() -> Self {
        Self { lists: [List { head: NONE, spare: NONE }; CLASSES] }
    }

    /// A slot of `class`; `None` when memory is used up.
    pub fn alloc(&mut self, class: usize, frames: &FrameAllocator) -> Option<*mut u8> {
        if self.lists[class].head == NONE {
            let slab = frames.alloc_run(pages(class))?;
            let free_count = capacity(class) as u16;
            let mut free = [0; 4];
            (0..capacity(class)).for_each(|slot| free[slot / 64] |= 1 << (slot % 64));
            *header(frames.phys(), slab) = Header {
                magic: MAGIC,
                class: class as u16,
                free_count,
                next: NONE,
                prev: NONE,
                free,
            };
            self.lists[class].head = slab.0;
        }
        let slab = Gpa(self.lists[class].head);
        if self.lists[class].spare == slab.0 {
            self.lists[class].spare = NONE;
        }
        let head = header(frames.phys(), slab);
        let word = head.free.iter().position(|&w| w != 0)?;
        let slot = word * 64 + head.free[word].trailing_zeros() as usize;
        head.free[word] &= head.free[word] - 1;
        head.free_count -= 1;
        if head.free_count == 0 {
            self.unlink(class, slab, frames);
        }
        frames.phys().ptr(slab + (first_slot(class) + slot * usize::from(SIZES[class])) as u64, 1)
    }

    /// Frees a slot. Panics when it is not a live one of `class`.
    pub fn free(&mut self, class: usize, pointer: *mut u8, frames: &FrameAllocator) {
        let gpa = frames.phys().gpa_of(pointer).expect("an object of the kernel heap");
        let slab = gpa.align_down((pages(class) as u64) * PAGE_SIZE);
        let head = header(frames.phys(), slab);
        assert!(
            head.magic == MAGIC && usize::from(head.class) == class,
            "{gpa:?} is not of slab class {class}"
        );
        let offset =
            ((gpa - slab) as usize).checked_sub(first_slot(class)).expect("a slot, not the header");
        let (slot, size) = (offset / usize::from(SIZES[class]), usize::from(SIZES[class]));
        assert!(
            offset.is_multiple_of(size) && slot < capacity(class),
            "{gpa:?} is not the beginning of an object"
        );
        let bit = 1 << (slot % 64);
        assert_eq!(head.free[slot / 64] & bit, 0, "{gpa:?} freed twice");
        head.free[slot / 64] |= bit;
        head.free_count += 1;
        let free_count = usize::from(head.free_count);
        if free_count == 1 {
            self.link(class, slab, frames);
        }
        if free_count == capacity(class) {
            let spare = &mut self.lists[class].spare;
            if *spare == NONE {
                *spare = slab.0;
            } else {
                // Keep the lower one: the heap stays compact.
                let higher = Gpa(slab.0.max(*spare));
                *spare = slab.0.min(*spare);
                self.give_back(class, higher, frames);
            }
        }
    }

    /// Gives the spare slabs back to the page allocator.
    pub fn trim(&mut self, frames: &FrameAllocator) {
        for class in 0..CLASSES {
            let spare = core::mem::replace(&mut self.lists[class].spare, NONE);
            if spare != NONE {
                self.give_back(class, Gpa(spare), frames);
            }
        }
    }

    fn give_back(&mut self, class: usize, slab: Gpa, frames: &FrameAllocator) {
        self.unlink(class, slab, frames);
        header(frames.phys(), slab).magic = 0;
        frames.free_run(Frames { start: slab, count: pages(class) as u64 });
    }

    /// Puts a slab into the list of those with free slots, lower addresses first as far as is
    /// cheap.
    fn link(&mut self, class: usize, slab: Gpa, frames: &FrameAllocator) {
        let (mut prev, mut next) = (NONE, self.lists[class].head);
        for _ in 0..SORT_STEPS {
            if next == NONE || next > slab.0 {
                break;
            }
            prev = next;
            next = header(frames.phys(), Gpa(next)).next;
        }
        let head = header(frames.phys(), slab);
        (head.prev, head.next) = (prev, next);
        self.join(class, prev, slab.0, frames);
        self.join(class, slab.0, next, frames);
    }

    fn unlink(&mut self, class: usize, slab: Gpa, frames: &FrameAllocator) {
        let head = header(frames.phys(), slab);
        let (prev, next) = (head.prev, head.next);
        self.join(class, prev, next, frames);
    }

    fn join(&mut self, class: usize, prev: u64, next: u64, frames: &FrameAllocator) {
        if prev == NONE {
            self.lists[class].head = next;
        } else {
            header(frames.phys(), Gpa(prev)).next = next;
        }
        if next != NONE {
            header(frames.phys(), Gpa(next)).prev = prev;
        }
    }
}

/// The header of the slab at `slab`. Callers hold one of these at a time; the heap's lock keeps
/// others out.
fn header(phys: PhysMap, slab: Gpa) -> &'static mut Header {
    let pointer = phys.ptr(slab, HEADER as u64).expect("a slab in RAM");
    // SAFETY: a mapped frame of a slab (or of one being made) of this heap, aligned to a page; the
    // heap's lock is held and no caller keeps a reference while it makes another to the same slab.
    // Any bytes are a valid header.
    unsafe { &mut *pointer.cast::<Header>() }
}
