use std::boxed::Box;
use std::collections::BTreeMap;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::blocks::BLOCK_SIZE;
use crate::phys::testing::TestRam;

struct Fixture {
    frames: FrameAllocator,
    blocks: &'static BlockHeap,
    ram: TestRam,
}

fn fixture(blocks_in_ram: u64) -> Fixture {
    let ram = TestRam::new(blocks_in_ram * BLOCK_SIZE);
    let blocks = Box::leak(Box::new(BlockHeap::empty()));
    blocks.init(Gpa(0), blocks_in_ram * BLOCK_SIZE);
    Fixture { frames: FrameAllocator::new(ram.map(), blocks, 7), blocks, ram }
}

impl Fixture {
    fn release_all(&self) -> Vec<Frames> {
        let mut all = Vec::new();
        let mut release = |ranges: &[Frames]| {
            ranges.iter().for_each(|r| self.ram.release(*r));
            all.extend_from_slice(ranges);
            true
        };
        self.frames.free_ranges(&mut release);
        self.blocks.free_ranges(&mut release);
        all
    }

    fn fill(&self, gpa: Gpa, value: u64) {
        self.ram.map().write_u64(gpa + 2048, value).unwrap();
    }

    fn value(&self, gpa: Gpa) -> u64 {
        self.ram.map().read_u64(gpa + 2048).unwrap()
    }
}

#[test]
fn every_frame_but_the_control_pages_lowest_first() {
    let f = fixture(3);
    let all: Vec<_> = core::iter::from_fn(|| f.frames.alloc()).collect();
    let expected: Vec<_> =
        (0..3 * 1024).filter(|i| i % 1024 != 0).map(|i| Gpa(i * PAGE_SIZE)).collect();
    assert_eq!(all, expected);
    assert_eq!(f.frames.stats(), FrameStats { frames_used: 3 * 1023, blocks: 3 });
    for &gpa in all.iter().rev() {
        f.frames.free(gpa);
    }
    assert_eq!(
        f.frames.stats(),
        FrameStats { frames_used: 0, blocks: 1 },
        "one empty block is kept"
    );
    assert_eq!(f.frames.alloc(), Some(Gpa(PAGE_SIZE)), "the lowest");
    f.frames.free(Gpa(PAGE_SIZE));
    f.release_all();
    assert_eq!(f.frames.stats(), FrameStats::default());
}

#[test]
fn what_processes_leave_is_whole_blocks() {
    let f = fixture(4);
    let mut passing = Vec::new();
    let mut lasting = Vec::new();
    // In turns, and most of them pass.
    for i in 0..2000 {
        match i % 5 {
            0 => lasting.push(f.frames.alloc_zeroed_for(Stay::Lasting).unwrap()),
            _ => passing.push(f.frames.alloc().unwrap()),
        }
    }
    assert_eq!(f.frames.stats(), FrameStats { frames_used: 2000, blocks: 3 });
    passing.drain(..).for_each(|gpa| f.frames.free(gpa));
    f.frames.give_back_spare();
    assert_eq!(f.frames.stats(), FrameStats { frames_used: 400, blocks: 1 });
    // When there are no more blocks, either sort has what is left in those of the other.
    while let Some(gpa) = f.frames.alloc_zeroed_for(Stay::Lasting) {
        lasting.push(gpa);
    }
    assert_eq!(lasting.len(), 4 * 1023);
    lasting.drain(..).for_each(|gpa| f.frames.free(gpa));
    while let Some(gpa) = f.frames.alloc() {
        passing.push(gpa);
    }
    assert_eq!(passing.len(), 4 * 1023);
    f.frames.free(passing.pop().unwrap());
    assert!(f.frames.alloc_zeroed_for(Stay::Lasting).is_some());
}

#[test]
fn runs_are_aligned_and_stay_out_of_each_others_way() {
    let f = fixture(2);
    for pages in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] {
        let mut taken = Vec::new();
        while let Some(run) = f.frames.alloc_run(pages) {
            assert!(run.0.is_multiple_of(pages as u64 * PAGE_SIZE), "{pages}");
            taken.push(run);
        }
        assert_eq!(taken.len(), 2 * (1024 / pages - 1), "{pages}");
        taken.dedup();
        assert_eq!(taken.len(), 2 * (1024 / pages - 1));
        for run in taken {
            f.frames.free_run(Frames { start: run, count: pages as u64 });
        }
        assert_eq!(f.frames.stats().frames_used, 0);
    }
}

#[test]
fn a_run_is_found_again_after_frees() {
    let f = fixture(1);
    let all: Vec<_> = core::iter::from_fn(|| f.frames.alloc()).collect();
    assert_eq!(f.frames.alloc_run(16), None);
    for &gpa in &all[40..56] {
        f.frames.free(gpa);
    }
    assert_eq!(f.frames.alloc_run(16), None, "41 to 56 hold no aligned 16");
    for &gpa in &all[56..63] {
        f.frames.free(gpa);
    }
    assert_eq!(f.frames.alloc_run(16), Some(all[47]));
}

#[test]
fn claims_are_exact() {
    let f = fixture(1);
    let run = f.frames.alloc_run(16).unwrap();
    let next = Frames { start: run + 16 * PAGE_SIZE, count: 100 };
    assert!(f.frames.try_claim(next));
    assert!(!f.frames.try_claim(Frames { start: next.start + 99 * PAGE_SIZE, count: 2 }));
    assert!(
        !f.frames.try_claim(Frames { start: Gpa(1023 * PAGE_SIZE), count: 2 }),
        "it would leave the block"
    );
    assert_eq!(f.frames.stats().frames_used, 116);
    assert_eq!(f.frames.ref_count(next.start + 99 * PAGE_SIZE), 1);
}

#[test]
fn references_saturate_and_the_last_one_frees() {
    let f = fixture(1);
    let gpa = f.frames.alloc().unwrap();
    for _ in 1..u16::MAX {
        assert_eq!(f.frames.ref_inc(gpa), Ok(()));
    }
    assert_eq!(f.frames.ref_inc(gpa), Err(Saturated));
    assert_eq!(f.frames.ref_count(gpa), u16::MAX);
    for _ in 1..u16::MAX {
        assert!(!f.frames.ref_dec(gpa));
    }
    assert!(f.frames.ref_dec(gpa));
    assert_eq!(f.frames.ref_count(gpa), 0);
    assert_eq!(f.frames.stats().frames_used, 0);
}

#[test]
fn untouched_frames_are_not_committed_by_zeroing() {
    let f = fixture(2);
    let run = f.frames.alloc_run_zeroed(512).unwrap();
    let single = f.frames.alloc_zeroed().unwrap();
    assert_eq!(f.ram.committed().iter().filter(|&&c| c).count(), 1, "only the control page");
    f.fill(run, 1);
    f.fill(single, 2);
    f.frames.free_run(Frames { start: run, count: 512 });
    f.frames.free(single);
    let run = f.frames.alloc_run_zeroed(512).unwrap();
    let single = f.frames.alloc_zeroed().unwrap();
    assert_eq!((f.value(run), f.value(single)), (0, 0));
    let mut dirty = Vec::new();
    f.frames.free_untouched(Frames { start: run, count: 512 });
    f.frames.free_clean(Frames { start: single, count: 1 });
    assert_eq!(f.frames.alloc_run_with(512, &mut |r| dirty.push(r)), Some(run));
    assert_eq!(
        dirty,
        [Frames { start: run, count: 512 }],
        "still as dirty as when they were handed out"
    );
    assert_eq!(f.frames.alloc(), Some(single));
}

#[test]
fn a_huge_page_is_known_until_memory_behind_it_goes_back() {
    let f = fixture(2);
    let first = f.frames.alloc_run(MAX_RUN).unwrap();
    assert!(!f.frames.is_huge(first));
    f.frames.note_huge(first);
    f.frames.free_run(Frames { start: first, count: MAX_RUN as u64 });
    let again = f.frames.alloc_run(MAX_RUN).unwrap();
    assert_eq!((again, f.frames.is_huge(again)), (first, true));
    // What lies below it in its block has nothing to do with it.
    let other = f.frames.alloc_run(256).unwrap();
    f.frames.note_released(Frames { start: other, count: 256 });
    assert!(f.frames.is_huge(first + 511 * PAGE_SIZE) && !f.frames.is_huge(other));
    f.frames.note_released(Frames { start: first + 7 * PAGE_SIZE, count: 1 });
    assert!(!f.frames.is_huge(first));
    f.frames.note_huge(first);
    f.frames.free(first + 511 * PAGE_SIZE);
    f.release_all();
    assert!(!f.frames.is_huge(first), "a page of it went back");
}

#[test]
fn free_memory_goes_back_in_few_ranges_and_only_once() {
    let f = fixture(2);
    let all: Vec<_> = (0..1023).map(|_| f.frames.alloc().unwrap()).collect();
    all.iter().for_each(|&g| f.fill(g, 5));
    for &gpa in all.iter().filter(|g| !(100..110).contains(&index_of(**g)) && index_of(**g) != 700)
    {
        f.frames.free(gpa);
    }
    let ranges = f.release_all();
    let expected = [(1, 99), (110, 590), (701, 323)];
    assert_eq!(ranges, expected.map(|(s, count)| Frames { start: Gpa(s * PAGE_SIZE), count }));
    assert!(all[99..109].iter().all(|&g| f.value(g) == 5));
    assert!(f.release_all().is_empty());
    let again = f.frames.alloc().unwrap();
    f.fill(again, 1);
    f.frames.free(again);
    assert_eq!(f.release_all(), [Frames { start: again, count: 1 }]);
    // A range that the host refused is offered again.
    let again = f.frames.alloc().unwrap();
    f.frames.free(again);
    f.frames.free_ranges(&mut |_| false);
    assert_eq!(f.release_all().len(), 1);
    // What the owner itself gave back is not offered.
    let again = f.frames.alloc().unwrap();
    f.frames.free(again);
    f.frames.mark_released(Frames { start: again, count: 1 });
    assert!(f.release_all().is_empty());
}

#[test]
fn more_ranges_than_a_batch() {
    let f = fixture(1);
    let all: Vec<_> = core::iter::from_fn(|| f.frames.alloc()).collect();
    all.iter().step_by(2).for_each(|&g| f.frames.free(g));
    assert_eq!(f.release_all().len(), 512);
    assert!(f.release_all().is_empty());
}

#[test]
fn mark_released_does_not_concern_frames_in_use() {
    let f = fixture(1);
    let gpa = f.frames.alloc().unwrap();
    f.frames.mark_released(Frames { start: gpa, count: 1 });
    f.fill(gpa, 3);
    f.frames.free(gpa);
    let again = f.frames.alloc_zeroed().unwrap();
    assert_eq!((again, f.value(again)), (gpa, 0));
}

#[test]
#[should_panic(expected = "freed while shared or free")]
fn freeing_a_shared_frame_is_a_bug() {
    let f = fixture(1);
    let gpa = f.frames.alloc().unwrap();
    f.frames.ref_inc(gpa).unwrap();
    f.frames.free(gpa);
}

#[test]
#[should_panic(expected = "is not a frame")]
fn the_control_page_is_not_a_frame() {
    let f = fixture(1);
    f.frames.alloc().unwrap();
    f.frames.ref_count(Gpa(0));
}

#[test]
#[should_panic(expected = "not a block of this allocator")]
fn a_frame_of_another_allocator_is_refused() {
    let f = fixture(2);
    let other = FrameAllocator::new(f.ram.map(), f.blocks, 8);
    f.frames.ref_dec(other.alloc().unwrap());
}

#[test]
fn threads_share_and_drop_frames() {
    let f = fixture(4);
    let shared: Vec<_> = (0..500).map(|_| f.frames.alloc().unwrap()).collect();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            shared.iter().for_each(|&g| f.frames.ref_inc(g).unwrap());
            let (f, shared) = (&f, &shared);
            scope.spawn(move || {
                for round in 0..20 {
                    let mine: Vec<_> = (0..100).map(|_| f.frames.alloc().unwrap()).collect();
                    mine.iter().for_each(|&g| f.fill(g, thread << 32 | g.0 >> 12));
                    for &gpa in shared.iter().skip(round).step_by(20) {
                        f.frames.ref_dec(gpa);
                    }
                    for &gpa in &mine {
                        assert_eq!(f.value(gpa), thread << 32 | gpa.0 >> 12);
                        f.frames.free(gpa);
                    }
                }
            });
        }
    });
    assert_eq!(f.frames.stats().frames_used, 500);
    shared.iter().for_each(|&g| f.frames.free(g));
}

#[derive(Clone, Debug)]
enum Step {
    Alloc { zeroed: bool },
    Run { order: u32, zeroed: bool },
    Share(usize),
    Drop(usize),
    DropMany(usize, usize),
    Deflate,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<bool>().prop_map(|zeroed| Step::Alloc { zeroed }),
        4 => (0..10u32, any::<bool>()).prop_map(|(order, zeroed)| Step::Run { order, zeroed }),
        2 => any::<usize>().prop_map(Step::Share),
        5 => any::<usize>().prop_map(Step::Drop),
        3 => (any::<usize>(), 1..600usize).prop_map(|(i, n)| Step::DropMany(i, n)),
        1 => Just(Step::Deflate),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// Against a map from frame to (references, bytes).
    #[test]
    fn behaves_like_a_map(steps in prop::collection::vec(step(), 1..120)) {
        let f = fixture(4);
        let mut model: BTreeMap<u64, (u16, u64)> = BTreeMap::new();
        let mut number = 0;
        for step in steps {
            number += 1;
            match step {
                Step::Alloc { .. } | Step::Run { .. } => {
                    let (pages, zeroed, got) = match step {
                        Step::Alloc { zeroed: true } => (1, true, f.frames.alloc_zeroed()),
                        Step::Alloc { zeroed: false } => (1, false, f.frames.alloc()),
                        Step::Run { order, zeroed } => {
                            let pages = 1usize << order;
                            let frames = &f.frames;
                            let run = match zeroed {
                                true => frames.alloc_run_zeroed(pages),
                                false => frames.alloc_run(pages),
                            };
                            (pages, zeroed, run)
                        }
                        _ => unreachable!(),
                    };
                    let size = pages as u64 * PAGE_SIZE;
                    match got {
                        Some(run) => {
                            prop_assert!(run.0.is_multiple_of(size));
                            prop_assert!(run.0 + size <= 4 * BLOCK_SIZE);
                            for i in 0..pages as u64 {
                                let gpa = run + i * PAGE_SIZE;
                                prop_assert!(index_of(gpa) != 0);
                                prop_assert_eq!(f.frames.ref_count(gpa), 1);
                                prop_assert!(!zeroed || f.ram.map().frame_is_zero(gpa));
                                f.fill(gpa, number);
                                prop_assert!(model.insert(gpa.0, (1, number)).is_none());
                            }
                        }
                        None => {
                            // Only when no aligned run is free in the model either.
                            let runs = (0..4 * BLOCK_SIZE).step_by(size as usize);
                            for start in runs.filter(|s| s % BLOCK_SIZE != 0) {
                                prop_assert!(
                                    model.range(start..start + size).next().is_some(),
                                    "a run at {start:#x} was overlooked",
                                );
                            }
                        }
                    }
                }
                Step::Share(i) if !model.is_empty() => {
                    let at = i % model.len();
                    let (&gpa, entry) = model.iter_mut().nth(at).unwrap();
                    f.frames.ref_inc(Gpa(gpa)).unwrap();
                    entry.0 += 1;
                }
                Step::Drop(i) if !model.is_empty() => {
                    let gpa = *model.keys().nth(i % model.len()).unwrap();
                    drop_one(&f, &mut model, gpa)?;
                }
                Step::DropMany(i, count) if !model.is_empty() => {
                    let skip = i % model.len();
                    let some: Vec<u64> = model.keys().skip(skip).take(count).copied().collect();
                    for gpa in some {
                        drop_one(&f, &mut model, gpa)?;
                    }
                }
                Step::Deflate => {
                    for range in f.release_all() {
                        let end = range.start.0 + range.len_bytes();
                        prop_assert!(
                            model.range(range.start.0..end).next().is_none(),
                            "a frame in use was given back",
                        );
                    }
                    let committed = f.ram.committed();
                    let blocks = committed.iter().enumerate();
                    for (i, _) in blocks.filter(|(i, c)| **c && i % 1024 != 0) {
                        let page = i as u64 * PAGE_SIZE;
                        prop_assert!(model.contains_key(&page), "a free frame is still committed");
                    }
                }
                _ => {}
            }
            prop_assert_eq!(f.frames.stats().frames_used, model.len() as u64);
        }
        for (&gpa, &(count, value)) in &model {
            prop_assert_eq!(f.value(Gpa(gpa)), value);
            prop_assert_eq!(f.frames.ref_count(Gpa(gpa)), count);
        }
    }
}

fn drop_one(
    f: &Fixture,
    model: &mut BTreeMap<u64, (u16, u64)>,
    gpa: u64,
) -> Result<(), TestCaseError> {
    let entry = model.get_mut(&gpa).unwrap();
    prop_assert_eq!(f.value(Gpa(gpa)), entry.1);
    entry.0 -= 1;
    let last = entry.0 == 0;
    prop_assert_eq!(f.frames.ref_dec(Gpa(gpa)), last);
    if last {
        model.remove(&gpa);
    }
    Ok(())
}
