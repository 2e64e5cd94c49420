//! Which frames the host has memory for.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use qlib::host::Op;
use qlib::{Gpa, PAGE_SIZE};

use crate::host::Call;

/// Pages of a block of the page allocator.
pub const BLOCK_PAGES: u64 = 1024;

/// Which frames hold memory of the host, asked for by the block.
#[derive(Default)]
pub struct Committed {
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Committed {
    /// True if the frame does. When the host does not say, yes.
    pub fn contains(&mut self, frame: Gpa) -> bool {
        let block = frame.align_down(BLOCK_PAGES * PAGE_SIZE);
        let bitmap = self.blocks.entry(block.0).or_insert_with(|| {
            let mut bitmap = alloc::vec![0xff; (BLOCK_PAGES / 8) as usize];
            let call = Call::new(Op::Committed).arg(0, block.0).arg(1, BLOCK_PAGES * PAGE_SIZE);
            if call.bytes_out(&mut bitmap).run().is_err() {
                bitmap.fill(0xff);
            }
            bitmap
        });
        let index = ((frame - block) / PAGE_SIZE) as usize;
        bitmap[index / 8] >> (index % 8) & 1 != 0
    }
}
