//! A few ranges of addresses, of which it is enough to know too much.

use alloc::vec::Vec;
use core::ops::Range;

use qlib::Va;

use super::mmu::overlap;

/// All that were added, and perhaps more: what would be more than `N` is joined.
#[derive(Clone, Default)]
pub struct Ranges<const N: usize = 4>(Vec<Range<Va>>);

impl<const N: usize> Ranges<N> {
    /// More are joined.
    const MOST: usize = N;

    /// Adds one.
    pub fn add(&mut self, range: Range<Va>) {
        let is_full = self.0.len() == Self::MOST;
        match self.0.last_mut() {
            Some(last) if is_full || last.end == range.start => {
                *last = last.start.min(range.start)..last.end.max(range.end);
            }
            _ => self.0.push(range),
        }
    }

    /// Takes all out.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All.
    pub fn iter(&self) -> impl Iterator<Item = &Range<Va>> {
        self.0.iter()
    }

    /// True if one of them has a page in common with `range`.
    pub fn overlaps(&self, range: &Range<Va>) -> bool {
        self.0.iter().any(|own| overlap(own, range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_become_few_that_hold_all() {
        let page = |n: u64| Va(n << 12)..Va((n + 1) << 12);
        let mut ranges: Ranges = Ranges::default();
        ranges.add(page(5));
        ranges.add(page(6));
        assert_eq!(ranges.iter().count(), 1);
        for n in [1, 9, 20, 15, 30] {
            ranges.add(page(n));
        }
        assert_eq!(ranges.iter().count(), <Ranges>::MOST);
        assert!([1, 5, 6, 9, 15, 20, 30].iter().all(|n| ranges.overlaps(&page(*n))));
        assert!(!ranges.overlaps(&page(7)));
        ranges.clear();
        assert!(ranges.is_empty());
    }
}
