use std::boxed::Box;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::blocks::{BLOCK_SIZE, BlockHeap};
use crate::phys::testing::TestRam;

/// Frames for tables, at most `left` more.
struct Limited {
    frames: FrameAllocator,
    left: Cell<u64>,
}

impl TableAlloc for Limited {
    fn alloc_table(&self) -> Option<Gpa> {
        self.left.set(self.left.get().checked_sub(1)?);
        self.frames.alloc_zeroed()
    }
    fn free_table(&self, table: Gpa) {
        self.left.set(self.left.get() + 1);
        self.frames.free(table);
    }
}

fn limited(ram: &TestRam, left: u64) -> Limited {
    let blocks = Box::leak(Box::new(BlockHeap::empty()));
    blocks.init(Gpa(0), ram.map().bytes());
    Limited { frames: FrameAllocator::new(ram.map(), blocks, 0), left: Cell::new(left) }
}

const RW: PteFlags =
    PteFlags::PRESENT.union(PteFlags::WRITE).union(PteFlags::USER).union(PteFlags::NX);

fn pte(page: u64) -> Pte {
    Pte::new(Gpa(page << 12), RW)
}

#[test]
fn entries_have_the_hardware_format() {
    let entry = Pte::new(Gpa(0x1234_5000), RW);
    assert_eq!(entry.0, 0x8000_0000_1234_5007);
    assert!(entry.is_present() && !entry.is_swapped() && entry.slot().is_none());
    assert_eq!(entry.without(PteFlags::WRITE).with(PteFlags::COW).0, 0x8000_0000_1234_5405);
    let swapped = Pte::swapped(SLOT_END - 1, RW | PteFlags::COW);
    assert_eq!(swapped.slot(), Some(SLOT_END - 1));
    assert!(!swapped.is_present() && swapped.has(PteFlags::WRITE | PteFlags::COW | PteFlags::NX));
    assert!(!Pte::swapped(0, PteFlags::empty()).is_empty(), "slot 0 is not nothing");
    assert_eq!(entry.with_gpa(Gpa(0x7000)).0, 0x8000_0000_0000_7007);
}

#[test]
fn tables_come_and_go_with_their_entries() {
    let ram = TestRam::new(BLOCK_SIZE);
    let alloc = limited(&ram, 100);
    let mut table = PageTable::new(ram.map(), &alloc).unwrap();
    assert_eq!(table.set(Va(0x1000), pte(5)), Ok(Pte::EMPTY));
    assert_eq!(table.table_pages(), 4);
    assert_eq!(table.set(Va(0x7fff_ffff_f000), pte(6)), Ok(Pte::EMPTY));
    assert_eq!(table.table_pages(), 7);
    assert_eq!(table.get(Va(0x1fff)), pte(5));
    assert_eq!(table.get(Va(0x2000)), Pte::EMPTY);
    assert_eq!(table.set(Va(0x1000), Pte::EMPTY), Ok(pte(5)));
    assert_eq!(table.table_pages(), 4);
    assert_eq!(table.set(Va(0x1000), Pte::EMPTY), Ok(Pte::EMPTY));
    assert_eq!(
        table.update(Va(0x7fff_ffff_f000), |p| p.with(PteFlags::COW)).unwrap().1,
        pte(6).with(PteFlags::COW)
    );
    assert_eq!(table.update(Va(0x1000), |_| unreachable!()), None);
    drop(table);
    assert_eq!(alloc.left.get(), 100);
    assert_eq!(alloc.frames.stats().frames_used, 0);
}

#[test]
fn the_most_pages_that_were_present_are_known() {
    let ram = TestRam::new(BLOCK_SIZE);
    let alloc = limited(&ram, 100);
    let mut table = PageTable::new(ram.map(), &alloc).unwrap();
    table.map_run(Va(0x1000), pte(5), 3).unwrap();
    table.set(Va(0x8000), Pte::swapped(1, RW)).unwrap();
    table.set(Va(0x1000), pte(9)).unwrap();
    assert_eq!(table.peak_pages(), 3);
    table.for_each(Va(0x1000)..Va(0x3000), &mut |_, _| Action::Replace(Pte::swapped(2, RW)));
    table.set(Va(0x9000), pte(6)).unwrap();
    table.update(Va(0x8000), |_| pte(7)).unwrap();
    assert_eq!(table.peak_pages(), 3, "two went meanwhile");
    table.set(Va(0xa000), pte(8)).unwrap();
    assert_eq!(table.peak_pages(), 4);
    table.drop_all();
    table.set(Va(0x1000), pte(5)).unwrap();
    assert_eq!(table.peak_pages(), 4);
}

#[test]
fn the_layout_is_what_hardware_walks() {
    let ram = TestRam::new(BLOCK_SIZE);
    let alloc = limited(&ram, 100);
    let mut table = PageTable::new(ram.map(), &alloc).unwrap();
    let va = Va(3 << 39 | 5 << 30 | 7 << 21 | 9 << 12);
    table.set(va, pte(0x77)).unwrap();
    let mut at = table.root();
    for index in [3, 5, 7] {
        let entry = ram.map().read_u64(at + index * 8).unwrap();
        assert_eq!(entry & 7, 7);
        assert_eq!(entry & (1 << 63 | 1 << 7), 0);
        at = Gpa(entry & ADDRESS);
    }
    assert_eq!(ram.map().read_u64(at + 9 * 8), Some(pte(0x77).0));
}

#[test]
fn addresses_outside_are_refused() {
    let ram = TestRam::new(BLOCK_SIZE);
    let alloc = limited(&ram, 100);
    let mut table = PageTable::new(ram.map(), &alloc).unwrap();
    for va in [Va(1 << 47), Va(u64::MAX - 4095), Va(0xffff_8000_0000_0000), Va(0x1001)] {
        assert_eq!(table.set(va, pte(1)), Err(MapError::BadAddress));
    }
    assert_eq!(table.get(Va(u64::MAX)), Pte::EMPTY);
    assert_eq!(table.map_run(Va(USER_END.0 - 4096), pte(1), 2), Err(MapError::BadAddress));
    assert_eq!(table.map_run(Va(4096), pte(1), u64::MAX), Err(MapError::BadAddress));
    assert_eq!(table.table_pages(), 1);
}

#[test]
fn no_memory_leaves_the_table_as_it_was() {
    for limit in 1..8 {
        let ram = TestRam::new(BLOCK_SIZE);
        let alloc = limited(&ram, limit);
        let mut table = PageTable::new(ram.map(), &alloc).unwrap();
        let needed = 1 + 2 + 3; // root, two upper levels, three leaf tables
        let done = table.map_run(Va(0x3f_f000), pte(100), 600);
        let expected = if limit >= needed { Ok(()) } else { Err(MapError::NoMemory) };
        assert_eq!(done, expected, "{limit}");
        assert_eq!(table.table_pages(), if limit >= needed { needed } else { 1 });
        let mut count = 0;
        table.visit(Va(0)..USER_END, &mut |va, p| {
            assert_eq!(p, pte(100 + (va.0 >> 12) - 0x3ff));
            count += 1;
            true
        });
        assert_eq!(count, if done.is_ok() { 600 } else { 0 });
        drop(table);
        assert_eq!(alloc.frames.stats().frames_used, 0);
    }
}

#[test]
#[should_panic(expected = "was not empty")]
fn a_run_over_an_entry_is_a_bug() {
    let ram = TestRam::new(BLOCK_SIZE);
    let alloc = limited(&ram, 100);
    let mut table = PageTable::new(ram.map(), &alloc).unwrap();
    table.set(Va(0x5000), pte(1)).unwrap();
    let _ = table.map_run(Va(0x4000), pte(2), 4);
}

#[test]
fn hardware_bits_survive_a_replacement() {
    let ram = TestRam::new(BLOCK_SIZE);
    let alloc = limited(&ram, 100);
    let mut table = PageTable::new(ram.map(), &alloc).unwrap();
    table.set(Va(0x5000), pte(1)).unwrap();
    let path = table.walk(Va(0x5000)).unwrap();
    table.for_each(Va(0)..USER_END, &mut |_, seen| {
        // The CPU writes to the page just now.
        path[0].fetch_or((PteFlags::ACCESSED | PteFlags::DIRTY).bits(), Ordering::SeqCst);
        Action::Replace(seen.without(PteFlags::WRITE))
    });
    assert!(table.get(Va(0x5000)).has(PteFlags::ACCESSED | PteFlags::DIRTY));
    assert!(!table.get(Va(0x5000)).has(PteFlags::WRITE));
}

#[derive(Clone, Debug)]
enum Step {
    Set(u64, u64),
    Clear(u64),
    Run(u64, u64),
    ClearRange(u64, u64),
    Protect(u64, u64),
    FirstOnly(u64),
}

/// Page numbers in clusters, so that steps meet: near boundaries of each level.
fn page() -> impl Strategy<Value = u64> {
    let cluster = prop_oneof![
        Just(0u64),
        Just(512),
        Just(512 * 512),
        Just(5 * 512 * 512 * 512),
        Just((1 << 35) - 1024)
    ];
    (cluster, 0..1023u64).prop_map(|(c, p)| c + p)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (page(), 1..1u64 << 30).prop_map(|(p, f)| Step::Set(p, f)),
        3 => page().prop_map(Step::Clear),
        3 => (page(), 1..1200u64).prop_map(|(p, n)| Step::Run(p, n)),
        3 => (page(), 1..300_000u64).prop_map(|(p, n)| Step::ClearRange(p, n)),
        2 => (page(), 1..2000u64).prop_map(|(p, n)| Step::Protect(p, n)),
        1 => page().prop_map(Step::FirstOnly),
    ]
}

#[test]
fn what_is_in_the_store_is_passed_over_where_only_present_pages_count() {
    let ram = TestRam::new(BLOCK_SIZE);
    let alloc = limited(&ram, 100);
    let mut table = PageTable::new(ram.map(), &alloc).unwrap();
    let va = |page: u64| Va(page << 12);
    for page in 0..6 {
        let entry = if page % 2 == 0 { pte(8) } else { Pte::swapped(page, RW) };
        table.set(va(page), entry).unwrap();
    }
    let mut seen = Vec::new();
    table.visit_present(va(1)..va(6), &mut |at, _| {
        seen.push(at);
        true
    });
    assert_eq!(seen, [va(2), va(4)]);
    table.for_each_present(va(0)..va(6), &mut |_, _| Action::Replace(Pte::EMPTY));
    let mut left = Vec::new();
    table.visit(va(0)..va(6), &mut |_, pte| {
        left.extend(pte.slot());
        true
    });
    assert_eq!(left, [1, 3, 5]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn behaves_like_a_map(steps in prop::collection::vec(step(), 1..60), limit in 5..40u64) {
        let ram = TestRam::new(BLOCK_SIZE);
        let alloc = limited(&ram, limit);
        let mut table = PageTable::new(ram.map(), &alloc).unwrap();
        let mut model: BTreeMap<u64, Pte> = BTreeMap::new();
        let end = USER_END.0 >> 12;
        let va = |page: u64| Va(page << 12);
        for step in steps {
            match step {
                Step::Set(page, frame) => match table.set(va(page), pte(frame)) {
                    Ok(old) => {
                        prop_assert_eq!(model.insert(page, pte(frame)).unwrap_or_default(), old)
                    }
                    Err(error) => prop_assert_eq!(error, MapError::NoMemory),
                },
                Step::Clear(page) => {
                    let old = table.set(va(page), Pte::EMPTY).unwrap();
                    prop_assert_eq!(model.remove(&page).unwrap_or_default(), old);
                }
                Step::Run(page, count) => {
                    if page + count > end || model.range(page..page + count).next().is_some() {
                        continue;
                    }
                    if table.map_run(va(page), pte(1 << 20), count).is_ok() {
                        model.extend((0..count).map(|i| (page + i, pte((1 << 20) + i))));
                    }
                }
                Step::ClearRange(page, count) => {
                    let mut seen = Vec::new();
                    table.for_each(va(page)..va(page + count), &mut |v, p| {
                        seen.push((v.0 >> 12, p));
                        Action::Replace(Pte::EMPTY)
                    });
                    let pages = model.range(page..page + count);
                    let expected: Vec<_> = pages.map(|(&p, &e)| (p, e)).collect();
                    prop_assert_eq!(&seen, &expected);
                    seen.iter().for_each(|(p, _)| { model.remove(p); });
                }
                Step::Protect(page, count) => {
                    let read_only = |p: Pte| p.without(PteFlags::WRITE);
                    table.for_each(va(page)..va(page + count), &mut |_, p| {
                        Action::Replace(read_only(p))
                    });
                    model.range_mut(page..page + count).for_each(|(_, p)| *p = read_only(*p));
                }
                Step::FirstOnly(page) => {
                    let mut seen = Vec::new();
                    table.for_each(va(page)..USER_END, &mut |v, p| {
                        seen.push((v.0 >> 12, p));
                        Action::Stop
                    });
                    let first = model.range(page..).next().map(|(&p, &e)| (p, e));
                    prop_assert_eq!(seen, first.into_iter().collect::<Vec<_>>());
                }
            }
            // No more tables than the model needs.
            let mut needed = 1;
            for shift in [9, 18, 27] {
                let mut last = None;
                for &page in model.keys() {
                    if last != Some(page >> shift) {
                        last = Some(page >> shift);
                        needed += 1;
                    }
                }
            }
            prop_assert_eq!(table.table_pages(), needed);
            prop_assert_eq!(alloc.frames.stats().frames_used, needed);
        }
        let mut all = Vec::new();
        table.visit(Va(0)..USER_END, &mut |v, p| { all.push((v.0 >> 12, p)); true });
        prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        table.drop_all();
        prop_assert_eq!(table.table_pages(), 1);
        prop_assert_eq!(table.get(va(0)), Pte::EMPTY);
    }
}
