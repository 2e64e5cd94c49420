//! Which slots of the swap file are in use, and their checksums: 4 bytes and two bits for each slot
//! in use. Numbers of slots go up with each image, and a hostile one may have high ones: what is
//! not in use takes nothing.

use std::collections::BTreeMap;
use std::ops::Range;

use qlib::PAGE_SIZE;

use super::file::HiddenFile;

/// Checksums in one piece of the table.
const CHUNK: u64 = 1024;
/// A hole is filled when it takes so many pages of a request, or all that are left of it: a few
/// long writes are better than many short ones.
const MIN_HOLE: u64 = 32;

/// The slots. Slot `n` is page `n` of the file.
#[derive(Debug, Default)]
pub struct Slots {
    used: Bits,
    /// Free, but may still take disk space.
    stale: Bits,
    /// By number of the piece.
    sums: BTreeMap<u64, Box<[u32; CHUNK as usize]>>,
    end: u64,
    /// Slots below it lie in files that are not written any more, and are not used again.
    floor: u64,
    used_count: u64,
    stale_count: u64,
}

/// A set of numbers: words of bits that are not zero, by their number.
#[derive(Debug, Default)]
struct Bits(BTreeMap<u64, u64>);

impl Slots {
    /// Slots in use.
    pub fn used(&self) -> u64 {
        self.used_count
    }

    /// Free slots that may still take disk space.
    pub fn stale(&self) -> u64 {
        self.stale_count
    }

    /// All slots in use are below this one.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// From now on none below `floor`, which is not below the end, is used again.
    pub fn keep_below(&mut self, floor: u64) {
        self.floor = floor;
        self.end = self.end.max(floor);
    }

    /// The checksums of the slots in use, in runs: the first slot of each.
    pub fn runs(&self) -> Vec<(u64, Vec<u32>)> {
        let mut runs = Vec::new();
        let mut at = 0;
        loop {
            let start = self.used.next(true, at, self.end);
            if start >= self.end {
                return runs;
            }
            at = self.used.next(false, start, self.end);
            runs.push((start, (start..at).filter_map(|slot| self.sum(slot)).collect()));
        }
    }

    /// True if one of these slots is in use.
    pub fn any(&self, slots: Range<u64>) -> bool {
        self.used.next(true, slots.start, slots.end) < slots.end
    }

    /// The checksum of a slot in use.
    pub fn sum(&self, slot: u64) -> Option<u32> {
        let chunk = self.sums.get(&(slot / CHUNK)).filter(|_| self.used.get(slot))?;
        Some(chunk[(slot % CHUNK) as usize])
    }

    /// Where `pages` pages may go: holes that are long enough, lowest first, and the end of the
    /// file. Changes nothing.
    pub fn choose(&self, pages: u64) -> Vec<Range<u64>> {
        let mut places = Vec::new();
        let mut left = pages;
        let mut at = self.floor;
        while left > 0 && at < self.end {
            let start = self.used.next(false, at, self.end);
            at = self.used.next(true, start, self.end);
            let len = (at - start).min(left);
            if len > 0 && len >= MIN_HOLE.min(left) {
                places.push(start..start + len);
                left -= len;
            }
        }
        if left > 0 {
            places.push(self.end..self.end + left);
        }
        places
    }

    /// Marks a free slot as in use.
    pub fn occupy(&mut self, slot: u64, sum: u32) {
        let chunk = self.sums.entry(slot / CHUNK).or_insert_with(|| Box::new([0; CHUNK as usize]));
        chunk[(slot % CHUNK) as usize] = sum;
        self.used_count += u64::from(self.used.set(slot, true));
        self.stale_count -= u64::from(self.stale.set(slot, false));
        self.end = self.end.max(slot + 1);
    }

    /// Marks `count` slots from `first` on, which is not below the end, as in use: their checksums
    /// are not known yet.
    pub fn occupy_run(&mut self, first: u64, count: u64) {
        let end = first + count;
        for chunk in first / CHUNK..end.div_ceil(CHUNK) {
            self.sums.entry(chunk).or_insert_with(|| Box::new([0; CHUNK as usize]));
        }
        self.used.set_run(first, end);
        self.used_count += count;
        self.end = self.end.max(end);
    }

    /// Marks a slot in use as free.
    pub fn vacate(&mut self, slot: u64) {
        self.used_count -= u64::from(self.used.set(slot, false));
        self.stale_count += u64::from(slot >= self.floor && self.stale.set(slot, true));
        let start = slot - slot % CHUNK;
        if !self.any(start..start + CHUNK) {
            self.sums.remove(&(slot / CHUNK));
        }
    }

    /// Gives the disk space of free slots, and the memory of those at the end, back.
    pub fn give_back(&mut self, file: &HiddenFile) {
        let old_end = self.end;
        while self.end > self.floor && !self.used.get(self.end - 1) {
            self.end -= 1;
        }
        if self.end < old_end {
            file.truncate(self.end * PAGE_SIZE);
        }
        let mut at = 0;
        while self.stale_count > 0 && at < self.end {
            let start = self.stale.next(true, at, self.end);
            at = self.stale.next(false, start, self.end);
            if start < at {
                file.punch(start * PAGE_SIZE, (at - start) * PAGE_SIZE);
            }
        }
        self.stale = Bits::default();
        self.stale_count = 0;
    }
}

impl Bits {
    fn word(&self, number: u64) -> u64 {
        self.0.get(&number).copied().unwrap_or(0)
    }

    fn get(&self, at: u64) -> bool {
        self.word(at / 64) >> (at % 64) & 1 != 0
    }

    /// Sets a bit; whether it changed.
    fn set(&mut self, at: u64, value: bool) -> bool {
        let (number, mask) = (at / 64, 1 << (at % 64));
        let old = self.word(number);
        let new = if value { old | mask } else { old & !mask };
        match new {
            0 => self.0.remove(&number),
            _ => self.0.insert(number, new),
        };
        new != old
    }

    /// Sets the bits in `[at, end)`.
    fn set_run(&mut self, mut at: u64, end: u64) {
        while at < end {
            let (number, shift) = (at / 64, at % 64);
            let count = (end - at).min(64 - shift);
            *self.0.entry(number).or_default() |= u64::MAX >> (64 - count) << shift;
            at += count;
        }
    }

    /// The first bit with `value` in `[at, end)`, else `end`.
    fn next(&self, value: bool, at: u64, end: u64) -> u64 {
        let first = at / 64;
        let here = |number: u64, word: u64| {
            let word = if number == first { word >> (at % 64) << (at % 64) } else { word };
            (word != 0).then(|| number * 64 + u64::from(word.trailing_zeros()))
        };
        let found = match value {
            true => self.0.range(first..).find_map(|(number, word)| here(*number, *word)),
            false => (first..=end / 64).find_map(|number| here(number, !self.word(number))),
        };
        found.map_or(end, |found| found.min(end))
    }
}
