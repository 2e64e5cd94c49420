//! Pages that have places in a store and were not written: the guest keeps them in their frames
//! until whoever makes an image of the sandbox has written them ([`write()`]).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use qlib::host::Segment;
use qlib::{Gpa, PAGE_SIZE};
use serde::{Deserialize, Serialize};

use super::file;
use super::{Kind, PAGE, Stored, checksum};

/// Bytes that are moved at once.
const BATCH_PAGES: u64 = 256;

/// Pages in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The slot of the first, or its index in the REAP file.
    pub place: u64,
    /// Its frame.
    pub gpa: Gpa,
    /// How many.
    pub pages: u64,
}

impl Run {
    pub(super) fn end(&self) -> u64 {
        self.place + self.pages
    }
}

/// All of them, by place, lowest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Pages with slots.
    pub swap: Vec<Run>,
    /// Pages of the REAP file.
    pub reap: Vec<Run>,
}

impl Kept {
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.swap.is_empty() && self.reap.is_empty()
    }

    /// Their frames as ranges of guest memory, lowest first.
    pub fn frames(&self) -> Vec<(u64, u64)> {
        let all = self.swap.iter().chain(&self.reap);
        let mut frames: Vec<(u64, u64)> = all
            .map(|run| (run.gpa.0, run.gpa.0.saturating_add(run.pages.saturating_mul(PAGE_SIZE))))
            .collect();
        frames.sort_unstable();
        frames
    }

    /// True if this fits a store that holds `stored`, and guest memory of `ram_bytes`.
    pub fn is_of(&self, stored: &Stored, ram_bytes: u64) -> bool {
        let fits = |runs: &[Run], most: u64| {
            let mut from = 0;
            runs.iter().all(|run| {
                let end = run.place.checked_add(run.pages).filter(|end| *end <= most);
                let bytes = run.pages.checked_mul(PAGE_SIZE);
                let top = bytes.and_then(|bytes| run.gpa.0.checked_add(bytes));
                let is_next = run.place >= from && run.pages > 0 && run.gpa.is_page_aligned();
                from = end.unwrap_or(0);
                is_next && end.is_some() && top.is_some_and(|top| top <= ram_bytes)
            })
        };
        let reap = stored.reap.as_ref().map_or(0, Vec::len);
        fits(&self.swap, stored.end().unwrap_or(0)) && fits(&self.reap, reap as u64)
    }

    /// The first slot from `slot` on that is not kept, and where the kept ones go on after that.
    pub fn gap_from(&self, slot: u64) -> (u64, u64) {
        let next = self.swap.partition_point(|run| run.end() <= slot);
        let mut runs = self.swap[next..].iter();
        let mut start = slot;
        for run in &mut runs {
            if run.place > start {
                return (start, run.place);
            }
            start = run.end();
        }
        (start, u64::MAX)
    }
}

/// Adds pages to runs of them: those of `ranges` have places from `place` on.
pub(super) fn add(runs: &mut Vec<Run>, mut place: u64, ranges: &[Segment]) {
    for range in ranges {
        let pages = range.len / PAGE_SIZE;
        match runs.last_mut() {
            Some(last) if last.end() == place && last.gpa + last.pages * PAGE_SIZE == range.gpa => {
                last.pages += pages;
            }
            _ => runs.push(Run { place, gpa: range.gpa, pages }),
        }
        place += pages;
    }
}

/// Writes pages with slots from guest memory to their places in all of `files`, and their checksums
/// to `stored`. They have left for the disk when this returns, and no error was seen.
///
/// # Errors
/// Those of the files; EINVAL for a page that has no slot.
pub fn write_slots(
    kept: &Kept,
    ram: &File,
    files: &[&File],
    stored: &mut Stored,
) -> io::Result<()> {
    let Stored { seed, swap, .. } = stored;
    each(&kept.swap, ram, files, |place, page| {
        let run = swap.partition_point(|(first, _)| *first <= place).checked_sub(1);
        let sum = run.and_then(|run| {
            let (first, sums) = &mut swap[run];
            sums.get_mut((place - *first) as usize)
        });
        *sum.ok_or(io::ErrorKind::InvalidInput)? = checksum(*seed, Kind::Swap, place, page);
        Ok(())
    })
}

/// The same for pages of the REAP file.
///
/// # Errors
/// As there.
pub fn write_reap(kept: &Kept, ram: &File, file: &File, stored: &mut Stored) -> io::Result<()> {
    if kept.reap.is_empty() {
        return Ok(());
    }
    let Stored { seed, reap, .. } = stored;
    let sums = reap.as_mut().ok_or(io::ErrorKind::InvalidInput)?;
    each(&kept.reap, ram, &[file], |place, page| {
        let sum = sums.get_mut(place as usize).ok_or(io::ErrorKind::InvalidInput)?;
        *sum = checksum(*seed, Kind::Reap, place, page);
        Ok(())
    })
}

/// Writes pages to their places in all of `files`; `note` sees each once.
fn each(
    runs: &[Run],
    ram: &File,
    files: &[&File],
    mut note: impl FnMut(u64, &[u8; PAGE]) -> io::Result<()>,
) -> io::Result<()> {
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Ok(()) };
    let (start, end) = (first.place * PAGE_SIZE, last.end() * PAGE_SIZE);
    for file in files {
        // Pages of zeros are holes, also at the end.
        if file.metadata()?.len() < end {
            file.set_len(end)?;
        }
    }
    let mut bytes = vec![0; (BATCH_PAGES * PAGE_SIZE) as usize];
    for run in runs {
        let mut done = 0;
        while done < run.pages {
            let count = (run.pages - done).min(BATCH_PAGES);
            let batch = &mut bytes[..(count * PAGE_SIZE) as usize];
            ram.read_exact_at(batch, run.gpa.0 + done * PAGE_SIZE)?;
            let place = run.place + done;
            let (pages, _) = batch.as_chunks::<PAGE>();
            for (page, place) in pages.iter().zip(place..) {
                note(place, page)?;
            }
            let mut at = place;
            for same in pages.chunk_by(|one, other| is_zero(one) == is_zero(other)) {
                let (offset, same_bytes) = (at * PAGE_SIZE, same.as_flattened());
                for file in files {
                    // Something that was given up may have been there.
                    let is_hole = is_zero(&same[0])
                        && file::punch(file, offset, same_bytes.len() as u64).is_ok();
                    if !is_hole {
                        file.write_all_at(same_bytes, offset)?;
                    }
                }
                at += same.len() as u64;
            }
            for file in files {
                file::start_writeback(file, place * PAGE_SIZE, count * PAGE_SIZE);
            }
            done += count;
        }
    }
    files.iter().try_for_each(|file| file::sync(file, start, end - start))
}

/// True if there is nothing in a page.
pub fn is_zero(page: &[u8; PAGE]) -> bool {
    // As a whole: byte by byte that takes a hundred times as long.
    *page == [0; PAGE]
}
