//! The set of ranges against a model that keeps one protection for each page.

use alloc::collections::BTreeMap;

use proptest::prelude::*;
use qlib::{PAGE_SIZE, Va};

use super::{Prot, Vma, VmaFlags, VmaSet};

fn range(start: u64, pages: u64, prot: Prot) -> Vma {
    let mut vma = Vma::anonymous(prot, VmaFlags::empty());
    vma.start = Va(start * PAGE_SIZE);
    vma.end = Va((start + pages) * PAGE_SIZE);
    vma
}

fn page(number: u64) -> Va {
    Va(number * PAGE_SIZE)
}

#[test]
fn neighbours_join_and_split() {
    let mut set = VmaSet::default();
    set.insert(range(10, 5, Prot::READ));
    set.insert(range(15, 5, Prot::READ));
    assert_eq!(set.len(), 1);
    set.insert(range(20, 5, Prot::READ | Prot::WRITE));
    assert_eq!(set.len(), 2);
    assert!(set.covers(page(10), page(25)));
    let removed = set.remove(page(12), page(22));
    assert_eq!(removed.iter().map(Vma::len).sum::<u64>(), 10 * PAGE_SIZE);
    assert_eq!(set.len(), 2);
    assert!(
        set.find(page(11)).is_some()
            && set.find(page(12)).is_none()
            && set.find(page(22)).is_some()
    );
}

#[test]
fn a_gap_is_the_highest_that_fits() {
    let mut set = VmaSet::default();
    set.insert(range(90, 10, Prot::READ));
    set.insert(range(80, 5, Prot::READ));
    assert_eq!(set.find_gap(5 * PAGE_SIZE, page(1), page(100), PAGE_SIZE), Some(page(85)));
    assert_eq!(set.find_gap(6 * PAGE_SIZE, page(1), page(100), PAGE_SIZE), Some(page(74)));
    assert_eq!(set.find_gap(80 * PAGE_SIZE, page(1), page(100), PAGE_SIZE), None);
    assert_eq!(set.find_gap(5 * PAGE_SIZE, page(1), page(100), 8 * PAGE_SIZE), Some(page(72)));
}

proptest! {
    #[test]
    fn agrees_with_a_model(
        steps in proptest::collection::vec((0u8..3, 0u64..60, 1u64..20, 0u32..8), 1..60),
    ) {
        let mut set = VmaSet::default();
        let mut model: BTreeMap<u64, u32> = BTreeMap::new();
        for (what, start, pages, bits) in steps {
            let (from, to) = (page(start), page(start + pages));
            match what {
                0 => {
                    set.remove(from, to);
                    set.insert(range(start, pages, Prot::from_bits_truncate(bits)));
                    model.extend((start..start + pages).map(|p| (p, bits)));
                }
                1 => {
                    set.remove(from, to);
                    (start..start + pages).for_each(|p| { model.remove(&p); });
                }
                _ => {
                    set.update(from, to, |vma| vma.prot = Prot::from_bits_truncate(bits));
                    for page in start..start + pages {
                        model.entry(page).and_modify(|b| *b = bits);
                    }
                }
            }
            for number in 0..90 {
                let found = set.find(page(number)).map(|v| v.prot.bits());
                prop_assert_eq!(found, model.get(&number).copied());
            }
            prop_assert_eq!(set.total_bytes(), model.len() as u64 * PAGE_SIZE);
            let is_data = |bits: &&u32| **bits & Prot::WRITE.bits() != 0;
            let data = model.values().filter(is_data).count() as u64;
            prop_assert_eq!(set.data_bytes(), data * PAGE_SIZE);
            // Between two pages, of any length, at multiples of one and of four pages.
            for align in [1, 4] {
                let is_free = |at: &u64| (*at..at + pages).all(|p| !model.contains_key(&p));
                let high = 30 + start;
                let naive = (5..=high - pages).rev().filter(|at| at % align == 0).find(is_free);
                let found =
                    set.find_gap(pages * PAGE_SIZE, page(5), page(high), align * PAGE_SIZE);
                // A class of gaps is searched from above: what fits only lower in it is found all
                // the same.
                prop_assert_eq!(found, naive.map(page), "{} pages below {}", pages, high);
            }
            prop_assert_eq!(set.covers(from, to),
                (start..start + pages).all(|p| model.contains_key(&p)));
        }
    }
}
