//! /proc/PID/pagemap, as who has no CAP_SYS_ADMIN sees it: no frame numbers.

use alloc::vec::Vec;
use core::any::Any;

use qlib::{PAGE_SHIFT, Va};

use crate::arch;
use crate::errno::{Errno, Result};
use crate::fs::{FileOps, OpenFile};
use crate::io::IoBuffer;
use crate::mm::ProgramMemory;
use crate::mm::discard::PageState;

/// What is said of a page, in bytes.
const ENTRY_BYTES: u64 = 8;
/// So many pages are looked at at a time.
const PAGES: u64 = 512;
/// The page is there.
const PRESENT: u64 = 1 << 63;
/// It is in the store.
const SWAPPED: u64 = 1 << 62;
/// It is a file's, or shared memory.
const OF_FILE: u64 = 1 << 61;

/// The pages of the program that ran when the file was opened, which is when access is checked.
pub struct PageMap(pub ProgramMemory);

impl FileOps for PageMap {
    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        if !offset.is_multiple_of(ENTRY_BYTES)
            || !(buffer.remaining() as u64).is_multiple_of(ENTRY_BYTES)
        {
            return Err(Errno::EINVAL);
        }
        let Some(mm) = self.0.get() else { return Ok(0) };
        let (mut page, last) = (offset / ENTRY_BYTES, arch::boot().user_max.0 >> PAGE_SHIFT);
        let mut done = 0;
        while buffer.remaining() > 0 && page < last {
            let count = (buffer.remaining() as u64 / ENTRY_BYTES).min(PAGES).min(last - page);
            let states = mm.page_states(Va(page << PAGE_SHIFT), Va((page + count) << PAGE_SHIFT));
            let entries: Vec<u8> =
                states.into_iter().flat_map(|state| entry(state).to_le_bytes()).collect();
            done += buffer.put(&entries)?;
            page += count;
        }
        Ok(done)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn entry(state: PageState) -> u64 {
    match state {
        PageState::Nothing => 0,
        PageState::Anonymous => PRESENT,
        PageState::OfFile => PRESENT | OF_FILE,
        PageState::Swapped => SWAPPED,
    }
}
