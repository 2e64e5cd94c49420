//! Committing guest memory ahead of a bulk read. What an inflate costs is populating pages: a
//! preadv into absent pages of a memory file takes about 3 µs a page, most of it for allocating and
//! mapping them one by one. Dense parts of the range are made huge pages first (touch one page of
//! each 2 MiB, then MADV_COLLAPSE; Linux 6.1), which with the read takes a quarter of that. The
//! rest is left to the read itself: allocating it ahead with fallocate(2) gains nothing.
//!
//! Everything here is a hint: bytes are never changed, and what fails is left for the read to do.

use std::collections::BTreeMap;
use std::time::Duration;

use qlib::host::Segment;
use qlib::{Gpa, PAGE_SIZE};
use rustix::time::{ClockId, clock_gettime};

use crate::sys;

/// Bytes of a huge page.
pub const HUGE: u64 = 2 << 20;
/// A huge page is made where so many of its 512 pages will be filled: the others are committed for
/// nothing.
const DENSE_PAGES: u64 = 448;
/// A huge page that took more of the CPU than this cost more than 512 small ones: the host has to
/// move memory to find room (or, itself a virtual machine, gets memory that it never used before).
const TOO_LONG: Duration = Duration::from_micros(1800);

/// Guest RAM as the host sees it: guest physical address `x` lies at `base + x` of this process,
/// where a memory file is mapped shared at a multiple of 2 MiB of it.
#[derive(Clone, Copy, Debug)]
pub struct MappedRam {
    /// Address of guest physical address 0; a multiple of 2 MiB, or there are no huge pages.
    pub base: usize,
    /// Size of RAM in bytes.
    pub bytes: u64,
}

/// Makes huge pages behind the dense parts of `ranges`; how many. Ranges that are not RAM are
/// ignored.
pub fn populate(ram: MappedRam, ranges: &[Segment]) -> u64 {
    let mut made = 0;
    for extent in dense(ram.bytes, ranges) {
        match make_huge(ram, extent) {
            Ok(Pace::Fast) => made += 1,
            // The next one would fare no better.
            Ok(Pace::Slow) => return made + 1,
            Err(error) => {
                tracing::debug!(%error, "no huge page for guest memory");
                break;
            }
        }
    }
    made
}

/// How long a huge page took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Less than small pages take.
    Fast,
    /// More than that.
    Slow,
}

/// Makes a huge page behind an extent of RAM.
///
/// # Errors
/// EINVAL for what is none; what the host says.
pub fn make_huge(ram: MappedRam, extent: Gpa) -> std::io::Result<Pace> {
    let is_in_ram = extent.0.checked_add(HUGE).is_some_and(|end| end <= ram.bytes);
    if !(ram.base as u64 | extent.0).is_multiple_of(HUGE) || !is_in_ram {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let start = cpu_time();
    let at = ram.base + extent.0 as usize;
    // An extent without any page cannot be collapsed.
    sys::populate(at, PAGE_SIZE as usize)?;
    sys::collapse(at, HUGE as usize)?;
    Ok(if cpu_time().saturating_sub(start) > TOO_LONG { Pace::Slow } else { Pace::Fast })
}

/// The 2 MiB extents that `ranges` cover nearly.
fn dense(ram_bytes: u64, ranges: &[Segment]) -> Vec<Gpa> {
    let mut covered: BTreeMap<u64, u64> = BTreeMap::new();
    for range in ranges {
        let Some(end) = range.gpa.checked_add(range.len).filter(|end| end.0 <= ram_bytes) else {
            continue;
        };
        let mut at = range.gpa;
        while at < end {
            let stop = (at.align_down(HUGE) + HUGE).min(end);
            *covered.entry(at.align_down(HUGE).0).or_default() += (stop - at) / PAGE_SIZE;
            at = stop;
        }
    }
    let dense = covered
        .into_iter()
        .filter(|(extent, pages)| *pages >= DENSE_PAGES && extent + HUGE <= ram_bytes);
    dense.map(|(extent, _)| Gpa(extent)).collect()
}

/// What this thread used of the CPU. On a busy host the clock would count what others use.
pub(super) fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(page: u64, pages: u64) -> Segment {
        Segment { gpa: Gpa(page * PAGE_SIZE), len: pages * PAGE_SIZE }
    }

    #[test]
    fn only_dense_extents_in_ram_become_huge() {
        let ranges = [
            segment(100, 412),
            segment(512, 1024),
            segment(1536, 450),
            segment(2048, 447),
            segment(4096, 512),
        ];
        assert_eq!(dense(4096 * PAGE_SIZE, &ranges), [Gpa(HUGE), Gpa(2 * HUGE), Gpa(3 * HUGE)]);
        assert_eq!(
            dense(4096 * PAGE_SIZE, &[Segment { gpa: Gpa(u64::MAX - 4095), len: 1 << 30 }]),
            []
        );
        assert_eq!(
            dense(500 * PAGE_SIZE, &[segment(0, 500)]),
            [],
            "the rest of the extent is not RAM"
        );
    }

    #[test]
    fn scattered_pieces_of_an_extent_count_together() {
        let pieces: Vec<_> =
            (0..512).filter(|p| p % 10 != 3).rev().map(|p| segment(512 + p, 1)).collect();
        assert_eq!(dense(1 << 30, &pieces), [Gpa(HUGE)]);
    }
}
