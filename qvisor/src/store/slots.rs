//! Which slots of the swap file are in use, and their checksums: 4 bytes and two bits for each slot
//! in use. Numbers of slots go up with each image, and a hostile one may have high ones: what is
//! not in use takes nothing.

use std::collections::BTreeMap;
use std::ops::Range;

use qlib::PAGE_SIZE;

use super::file::HiddenFile;

/// Checksums in one piece of the table.
const CHUNK: u64 = 1024;
/// Free slots in a row whose disk space is given back at once. Shorter rows are, so many at a time:
/// each is a call of the host, which takes as long for one page as for many.
const MIN_PUNCH: u64 = 16;
const SHORT_PUNCHES: usize = 32;
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
    /// Below it no hole is long enough for a request that is not small.
    full_below: u64,
    used_count: u64,
    stale_count: u64,
    /// Free slots that have become so since disk space was last given back.
    freed: u64,
    /// Where short rows are looked for next.
    next_short: u64,
}

/// A set of numbers: words of bits that are not zero, by their number.
#[derive(Debug, Default)]
struct Bits(BTreeMap<u64, u64>);

impl Slots {
    /// Slots in use.
    pub fn used(&self) -> u64 {
        self.used_count
    }

    /// True if disk space is to be given back, as more than `least` slots have become free since
    /// that was done last: it is to look through all of them, so the more there are, the rarer.
    pub fn are_many_free(&self, least: u64) -> bool {
        const FEW: u64 = 8192;
        let share = if self.stale_count > FEW { self.stale_count / 8 } else { 0 };
        self.freed > least.max(share) || self.used_count == 0
    }

    /// All slots in use are below this one.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// From now on none below `floor`, which is not below the end, is used again.
    pub fn keep_below(&mut self, floor: u64) {
        self.floor = floor;
        self.end = self.end.max(floor);
        // Those files are somebody else's to cut.
        self.stale = Bits::default();
        (self.stale_count, self.freed, self.next_short) = (0, 0, 0);
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
            runs.push((start, self.sums(start..at)));
        }
    }

    /// The checksums of these slots, which are in use.
    fn sums(&self, slots: Range<u64>) -> Vec<u32> {
        let mut sums = Vec::with_capacity((slots.end - slots.start) as usize);
        let mut at = slots.start;
        while at < slots.end {
            let (piece, first) = (at / CHUNK, (at % CHUNK) as usize);
            let count = (CHUNK as usize - first).min((slots.end - at) as usize);
            if let Some(piece) = self.sums.get(&piece) {
                sums.extend_from_slice(&piece[first..first + count]);
            }
            at += count as u64;
        }
        sums
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
        let mut at = if pages < MIN_HOLE { self.floor } else { self.floor.max(self.full_below) };
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

    /// Notes that `places` are in use, which [`Self::choose`] gave for so many pages.
    pub fn chosen(&mut self, pages: u64, places: &[Range<u64>]) {
        // The last place is at the end if no other was left.
        if let Some(last) = places.last().filter(|last| pages >= MIN_HOLE && last.end == self.end) {
            self.full_below = last.start;
        }
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
        self.full_below = self.full_below.min(slot.saturating_sub(MIN_HOLE));
        let is_new = u64::from(slot >= self.floor && self.stale.set(slot, true));
        (self.freed, self.stale_count) = (self.freed + is_new, self.stale_count + is_new);
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
        self.freed = 0;
        self.stale_count -= self.stale.cut(self.end);
        let (mut at, mut short) = (self.floor, Vec::new());
        while at < self.end {
            let start = self.stale.next(true, at, self.end);
            at = self.stale.next(false, start, self.end);
            match at - start {
                0 => {}
                len if len < MIN_PUNCH => {
                    if start >= self.next_short && short.len() < SHORT_PUNCHES {
                        short.push(start..at);
                    }
                }
                _ => self.punch(file, start..at),
            }
        }
        // From the beginning again, if the end has been reached.
        let is_end = short.len() < SHORT_PUNCHES;
        self.next_short = short.last().filter(|_| !is_end).map_or(0, |last| last.end);
        short.into_iter().for_each(|row| self.punch(file, row));
    }

    fn punch(&mut self, file: &HiddenFile, row: Range<u64>) {
        file.punch(row.start * PAGE_SIZE, (row.end - row.start) * PAGE_SIZE);
        for slot in row {
            self.stale_count -= u64::from(self.stale.set(slot, false));
        }
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

    /// Clears the bits from `end` on: how many there were.
    fn cut(&mut self, end: u64) -> u64 {
        let mut above = self.0.split_off(&(end / 64));
        let word = above.remove(&(end / 64)).unwrap_or(0);
        let kept = word & !(u64::MAX << (end % 64));
        if kept != 0 {
            self.0.insert(end / 64, kept);
        }
        let gone = above.into_values().chain([word & !kept]);
        gone.map(|word| u64::from(word.count_ones())).sum()
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
