//! Writing pages to the swap file.

use alloc::vec::Vec;

use qlib::host::{Op, Segment};
use qlib::{Gpa, PAGE_SIZE};

use super::slots;
use crate::arch;
use crate::errno::Result;
use crate::host::Call;

/// Writes pages to the swap file: their slots, each with one reference. EDQUOT, ENOSPC, EIO.
pub fn write(pages: &[Gpa]) -> Result<Vec<u64>> {
    write_as(pages, 0)
}

/// As [`write`], without waiting for the disk until more are written so.
pub fn write_soon(pages: &[Gpa]) -> Result<Vec<u64>> {
    write_as(pages, 3)
}

fn write_as(pages: &[Gpa], how: u64) -> Result<Vec<u64>> {
    if pages.is_empty() {
        return Ok(Vec::new());
    }
    let mut slots = alloc::vec![0u64; pages.len()];
    let call = Call::new(Op::SwapOut).arg(0, arch::gpa_of(slots.as_mut_ptr().cast()).0);
    call.arg(1, how).segments(&segments_of(pages)).run()?;
    slots::count_used(slots.len());
    slots.iter_mut().for_each(|slot| *slot += 1);
    Ok(slots)
}

/// Contiguous frames joined to segments.
pub fn segments_of(pages: &[Gpa]) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for &gpa in pages {
        match segments.last_mut() {
            Some(last) if last.gpa + last.len == gpa => last.len += PAGE_SIZE,
            _ => segments.push(Segment { gpa, len: PAGE_SIZE }),
        }
    }
    segments
}
