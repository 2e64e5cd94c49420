//! Where nothing is mapped: an index of the gaps between ranges, by size.

use alloc::collections::BTreeMap;
use core::ops::Range;

use qlib::Va;

use super::Vma;

/// Powers of two that a gap's length can have.
const CLASSES: usize = 64;
/// Gaps of one class that are tried for something that may not fit into each of them.
const TRIES: usize = 32;

/// All gaps. Each is in the class of the highest power of two that is not more than its length.
#[derive(Clone, Default)]
pub(super) struct Gaps {
    /// Ends, by class and start.
    gaps: BTreeMap<(u8, u64), u64>,
    /// A bit for each class that has a gap.
    classes: u64,
}

fn class_of(len: u64) -> u8 {
    len.ilog2() as u8
}

impl Gaps {
    /// Those between ranges, which come by address.
    pub(super) fn between<'a>(ranges: impl Iterator<Item = &'a Vma>) -> Self {
        let mut gaps = Gaps::default();
        let mut end = 0;
        for range in ranges {
            gaps.add(end..range.start.0);
            end = range.end.0;
        }
        gaps.add(end..u64::MAX);
        gaps
    }

    /// Nothing lies in `gap`, and something, or nothing more, at both of its ends.
    pub(super) fn add(&mut self, gap: Range<u64>) {
        if gap.start < gap.end {
            let class = class_of(gap.end - gap.start);
            self.gaps.insert((class, gap.start), gap.end);
            self.classes |= 1 << class;
        }
    }

    /// Takes back what [`Self::add`] said.
    pub(super) fn remove(&mut self, gap: Range<u64>) {
        if gap.start < gap.end {
            let class = class_of(gap.end - gap.start);
            self.gaps.remove(&(class, gap.start));
            if self.gaps.range((class, 0)..=(class, u64::MAX)).next().is_none() {
                self.classes &= !(1 << class);
            }
        }
    }

    /// The highest place for `len` bytes between `low` and `high`. Where very many gaps are hardly
    /// large enough, not all of them are tried if a larger one is there.
    pub(super) fn highest(&self, len: u64, low: Va, high: Va, align: u64) -> Option<Va> {
        self.highest_of(TRIES, len, low, high, align)
            .or_else(|| self.highest_of(usize::MAX, len, low, high, align))
    }

    fn highest_of(&self, tries: usize, len: u64, low: Va, high: Va, align: u64) -> Option<Va> {
        let first = class_of(len.max(1)) as usize;
        let present = (first..CLASSES).filter(|class| self.classes >> class & 1 == 1);
        let in_class = |class: usize| {
            let class = class as u8;
            // The last of these may go on beyond `high`.
            let gaps = self.gaps.range((class, 0)..(class, high.0)).rev().take(tries);
            let mut fitting = gaps.filter_map(|(&(_, start), &end)| {
                let top = end.min(high.0).checked_sub(len)?;
                let at = Va(top).align_down(align);
                (at >= low && at.0 >= start).then_some(at)
            });
            fitting.next()
        };
        present.filter_map(in_class).max()
    }
}
