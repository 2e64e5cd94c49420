//! Which frames the host has memory for.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

use qlib::host::Op;
use qlib::{Gpa, PAGE_SIZE};

use crate::host::Call;

/// Pages of a block of the page allocator.
pub const BLOCK_PAGES: u64 = 1024;

const BLOCK_BYTES: u64 = BLOCK_PAGES * PAGE_SIZE;

/// Which frames hold memory of the host, asked for by the block. Frames are better asked for in
/// ascending order: the host looks for the next hole page by page, and how far it got is known for
/// the blocks that follow. What is released meanwhile may still count.
#[derive(Default)]
pub struct Committed {
    blocks: BTreeMap<u64, Vec<u8>>,
    /// The block that was asked for last, and what is known of it: the next frame mostly lies
    /// there, too.
    recent: Option<(u64, Vec<u8>)>,
    /// Blocks that were not asked for, all frames of which do.
    full: Range<u64>,
}

impl Committed {
    /// True if the frame does. When the host does not say, yes.
    pub fn contains(&mut self, frame: Gpa) -> bool {
        let block = frame.align_down(BLOCK_BYTES);
        if self.full.contains(&block.0) {
            return true;
        }
        let bitmap = match &mut self.recent {
            Some((recent, bitmap)) if *recent == block.0 => bitmap,
            _ => self.turn_to(block),
        };
        let index = ((frame - block) / PAGE_SIZE) as usize;
        bitmap[index / 8] >> (index % 8) & 1 != 0
    }

    /// Makes a block the recent one: its bitmap.
    fn turn_to(&mut self, block: Gpa) -> &mut Vec<u8> {
        if let Some((last, bitmap)) = self.recent.take() {
            self.blocks.insert(last, bitmap);
        }
        let known = self.blocks.remove(&block.0);
        let bitmap = known.unwrap_or_else(|| self.ask(block));
        &mut self.recent.insert((block.0, bitmap)).1
    }

    /// What the host says of a block.
    fn ask(&mut self, block: Gpa) -> Vec<u8> {
        let mut bitmap = alloc::vec![0xff; (BLOCK_PAGES / 8) as usize];
        let call = Call::new(Op::Committed).arg(0, block.0).arg(1, BLOCK_BYTES);
        match call.bytes_out(&mut bitmap).run() {
            Ok(pages) => {
                let end = block.0.saturating_add(pages.saturating_mul(PAGE_SIZE));
                self.full = block.0 + BLOCK_BYTES..end - end % BLOCK_BYTES;
            }
            Err(_) => bitmap.fill(0xff),
        }
        bitmap
    }
}
