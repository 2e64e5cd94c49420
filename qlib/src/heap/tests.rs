use std::boxed::Box;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::phys::testing::TestRam;

const RAM: u64 = 64 << 20;

struct Fixture {
    heap: KernelHeap,
    blocks: &'static BlockHeap,
    ram: TestRam,
}

fn fixture(ram_bytes: u64) -> Fixture {
    let ram = TestRam::new(ram_bytes);
    let blocks = Box::leak(Box::new(BlockHeap::empty()));
    blocks.init(Gpa(0), ram_bytes);
    let heap = KernelHeap::empty();
    heap.init(ram.map(), blocks);
    Fixture { heap, blocks, ram }
}

impl Fixture {
    fn alloc(&self, size: usize, align: usize) -> *mut u8 {
        // SAFETY: no test asks for a size of 0.
        unsafe { self.heap.alloc(Layout::from_size_align(size, align).unwrap()) }
    }

    fn free(&self, pointer: *mut u8, size: usize, align: usize) {
        // SAFETY: tests free what they allocated, with the same layout (or expect the panic).
        unsafe { self.heap.dealloc(pointer, Layout::from_size_align(size, align).unwrap()) }
    }

    /// Deflates; the pages given back.
    fn release_all(&self) -> u64 {
        let mut pages = 0;
        let mut release = |ranges: &[Frames]| {
            for range in ranges {
                self.ram.release(*range);
                pages += range.count;
            }
            true
        };
        self.heap.free_ranges(&mut release);
        self.blocks.free_ranges(&mut release);
        pages
    }
}

#[test]
fn nothing_before_init() {
    let heap = KernelHeap::empty();
    // SAFETY: the layout is not empty.
    assert!(unsafe { heap.alloc(Layout::new::<u64>()) }.is_null());
    assert_eq!(heap.stats(), HeapStats::default());
}

#[test]
fn every_size_and_alignment_fits() {
    let f = fixture(RAM);
    for size in [
        1,
        7,
        16,
        17,
        24,
        25,
        33,
        100,
        200,
        513,
        1025,
        2047,
        2048,
        2049,
        4096,
        4097,
        12288,
        70_000,
        2 << 20,
    ] {
        for align in [1, 8, 16, 64, 256, 1024, 2048, 4096, 65536, 2 << 20] {
            let objects: Vec<_> = (0..3).map(|_| f.alloc(size, align)).collect();
            for (i, &object) in objects.iter().enumerate() {
                assert!(!object.is_null() && object.addr().is_multiple_of(align), "{size} {align}");
                // SAFETY: the object has `size` bytes.
                unsafe { ptr::write_bytes(object, i as u8 + 1, size) };
            }
            for (i, &object) in objects.iter().enumerate() {
                // SAFETY: as above.
                let bytes = unsafe { core::slice::from_raw_parts(object, size) };
                assert!(bytes.iter().all(|&b| b == i as u8 + 1), "{size} {align} overlap");
                f.free(object, size, align);
            }
        }
    }
    assert_eq!(f.heap.stats().handed_out_bytes, 0);
}

#[test]
fn larger_than_a_block() {
    let f = fixture(RAM);
    let object = f.alloc(9 << 20, 8);
    assert_eq!(f.heap.stats().pages_held, 3 * 1024);
    let layout = Layout::from_size_align(9 << 20, 8).unwrap();
    // SAFETY: the object is live and has this layout.
    let smaller = unsafe { f.heap.realloc(object, layout, 5 << 20) };
    assert_eq!(smaller, object);
    assert_eq!(f.heap.stats().pages_held, 2 * 1024);
    f.free(object, 5 << 20, 8);
    assert_eq!(f.heap.stats(), HeapStats::default());
    assert!(f.alloc(65 << 20, 8).is_null());
    assert!(f.alloc(isize::MAX as usize - 4096, 1).is_null());
}

#[test]
fn pages_grow_and_shrink_in_place() {
    let f = fixture(RAM);
    let object = f.alloc(3 * 4096, 8);
    assert_eq!(f.heap.stats().pages_held, 3 + 1, "the fourth page of the run is not held");
    let layout = |pages: usize| Layout::from_size_align(pages * 4096, 8).unwrap();
    // SAFETY: the object is live and has this layout.
    let grown = unsafe { f.heap.realloc(object, layout(3), 20 * 4096) };
    assert_eq!(grown, object);
    // SAFETY: as above.
    let shrunk = unsafe { f.heap.realloc(object, layout(20), 2 * 4096) };
    assert_eq!(shrunk, object);
    let neighbour = f.alloc(4096, 8);
    assert_eq!(neighbour, object.wrapping_sub(3 * 4096), "the lowest free page");
    f.free(object, 2 * 4096, 8);
    f.free(neighbour, 4096, 8);
    assert_eq!(f.heap.stats().handed_out_bytes, 0);
}

#[test]
fn zeroed_memory_is_zero_after_use_and_untouched_when_new() {
    let f = fixture(RAM);
    for size in [48, 5000, 1 << 20, 5 << 20] {
        let layout = Layout::from_size_align(size, 8).unwrap();
        // SAFETY: the layouts are not empty; objects are freed once.
        unsafe {
            let committed = |f: &Fixture| f.ram.committed().iter().filter(|&&c| c).count();
            let before = committed(&f);
            let first = f.heap.alloc_zeroed(layout);
            assert!(committed(&f) <= before + 2, "{size} new bytes were touched");
            first.write_bytes(0xaa, size);
            f.heap.dealloc(first, layout);
            let second = f.heap.alloc_zeroed(layout);
            assert_eq!(first, second, "memory is reused");
            assert!(core::slice::from_raw_parts(second, size).iter().all(|&b| b == 0), "{size}");
            second.write_bytes(0xaa, size);
            f.heap.dealloc(second, layout);
            f.release_all();
        }
    }
}

#[test]
fn an_idle_heap_commits_little_and_gives_everything_back() {
    let f = fixture(RAM);
    let keep: Vec<_> = (0..50).map(|_| f.alloc(64, 8)).collect();
    let objects: Vec<_> = (0..20_000).map(|i| (f.alloc(16 + i % 2000, 8), 16 + i % 2000)).collect();
    for &(object, size) in &objects {
        // SAFETY: the object has `size` bytes.
        unsafe { object.write_bytes(0xff, size) };
    }
    for (object, size) in objects {
        f.free(object, size, 8);
    }
    assert!(f.release_all() > 3000);
    let committed = f.ram.committed().iter().filter(|&&c| c).count();
    assert!(committed <= 2 + f.blocks.stats().held, "{committed} pages committed");
    assert_eq!(f.release_all(), 0, "nothing is given back twice");
    keep.into_iter().for_each(|o| f.free(o, 64, 8));
    f.release_all();
    assert_eq!(f.ram.committed().iter().filter(|&&c| c).count(), 0);
    assert_eq!(f.heap.stats(), HeapStats::default());
    // And it still works afterwards.
    assert!(!f.alloc(100, 8).is_null());
}

#[test]
fn page_tables_are_counted() {
    let f = fixture(RAM);
    let table = f.heap.alloc_table().unwrap();
    assert_eq!(f.heap.stats(), HeapStats { handed_out_bytes: 0, pages_held: 2, table_pages: 1 });
    f.heap.free_table(table);
    assert_eq!(f.heap.stats().table_pages, 0);
}

#[test]
#[should_panic(expected = "freed twice")]
fn double_free_of_a_slot_is_a_bug() {
    let f = fixture(RAM);
    let (a, _b) = (f.alloc(64, 8), f.alloc(64, 8));
    f.free(a, 64, 8);
    f.free(a, 64, 8);
}

#[test]
#[should_panic(expected = "freed while shared or free")]
fn double_free_of_pages_is_a_bug() {
    let f = fixture(RAM);
    let (a, _b) = (f.alloc(8192, 8), f.alloc(64, 8));
    f.free(a, 8192, 8);
    f.free(a, 8192, 8);
}

#[derive(Clone, Debug)]
enum Step {
    Alloc { size: usize, align_log2: u32, zeroed: bool },
    Free(usize),
    Resize(usize, usize),
    Deflate,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        6 => 1..300usize, 3 => 300..9000usize, 2 => 9000..300_000usize,
        1 => 300_000..6_000_000usize,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (size(), 0..13u32, any::<bool>())
            .prop_map(|(size, align_log2, zeroed)| Step::Alloc { size, align_log2, zeroed }),
        5 => any::<usize>().prop_map(Step::Free),
        4 => (any::<usize>(), size()).prop_map(|(i, s)| Step::Resize(i, s)),
        1 => Just(Step::Deflate),
    ]
}

/// A live object: its bytes are `seed` in the first and last 64 bytes.
struct Object {
    pointer: *mut u8,
    layout: Layout,
    seed: u8,
}

impl Object {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the object is live and ours.
        unsafe { core::slice::from_raw_parts_mut(self.pointer, self.layout.size()) }
    }
    fn mark(&mut self) {
        let (seed, len) = (self.seed, self.layout.size());
        self.bytes()[..len.min(64)].fill(seed);
        self.bytes()[len - len.min(64)..].fill(seed);
    }
    fn check(&mut self, len: usize) {
        let seed = self.seed;
        assert!(
            self.bytes()[..len.min(64)].iter().all(|&b| b == seed),
            "an object was overwritten"
        );
    }
    fn check_all(&mut self) {
        let (seed, len) = (self.seed, self.layout.size());
        self.check(len);
        assert!(
            self.bytes()[len - len.min(64)..].iter().all(|&b| b == seed),
            "an object was overwritten"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn objects_keep_their_bytes(steps in prop::collection::vec(step(), 1..150)) {
        let f = fixture(RAM);
        let mut live: Vec<Object> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            let seed = number as u8 | 1;
            match step {
                Step::Alloc { size, align_log2, zeroed } => {
                    let layout = Layout::from_size_align(size, 1 << align_log2).unwrap();
                    // SAFETY: the layout is not empty.
                    let pointer = unsafe {
                        if zeroed { f.heap.alloc_zeroed(layout) } else { f.heap.alloc(layout) }
                    };
                    if pointer.is_null() {
                        continue;
                    }
                    prop_assert!(pointer.addr().is_multiple_of(layout.align()));
                    let mut object = Object { pointer, layout, seed };
                    prop_assert!(!zeroed || object.bytes().iter().all(|&b| b == 0));
                    object.mark();
                    live.push(object);
                }
                Step::Free(i) if !live.is_empty() => {
                    let mut object = live.swap_remove(i % live.len());
                    object.check_all();
                    // SAFETY: it is live and not used again.
                    unsafe { f.heap.dealloc(object.pointer, object.layout) };
                }
                Step::Resize(i, size) if !live.is_empty() => {
                    let i = i % live.len();
                    let object = &mut live[i];
                    // SAFETY: it is live and its new place is noted.
                    let pointer = unsafe { f.heap.realloc(object.pointer, object.layout, size) };
                    if !pointer.is_null() {
                        let kept = size.min(object.layout.size());
                        object.pointer = pointer;
                        let align = object.layout.align();
                        object.layout = Layout::from_size_align(size, align).unwrap();
                        object.check(kept);
                        object.mark();
                    }
                }
                Step::Deflate => { f.release_all(); }
                _ => {}
            }
            let sum: usize = live.iter().map(|o| o.layout.size()).sum();
            prop_assert_eq!(f.heap.stats().handed_out_bytes, sum as u64);
        }
        for mut object in live {
            object.check_all();
            // SAFETY: as above.
            unsafe { f.heap.dealloc(object.pointer, object.layout) };
        }
        f.release_all();
        prop_assert_eq!(f.heap.stats(), HeapStats::default());
        prop_assert_eq!(f.blocks.stats().held, 0);
        prop_assert!(f.ram.committed().iter().all(|&c| !c), "memory was not given back");
    }
}
