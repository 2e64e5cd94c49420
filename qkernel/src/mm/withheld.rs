//! A memory limit below what the sandbox was made with: as many blocks of RAM belong to nobody, and
//! the host has them back.

use alloc::vec::Vec;

use qlib::blocks::{BLOCK_FRAMES, BLOCK_SIZE};
use qlib::{Frames, Gpa};

use super::reclaim;
use crate::account;
use crate::arch::{self, heap};
use crate::errno::{Errno, Result};
use crate::sync::{Mutex, mutex};

/// The blocks that are withheld.
static BLOCKS: Mutex<Vec<Gpa>> = mutex(Vec::new());

/// Has the guest get along with `bytes` from now on, or with all of RAM if that is less. `shrink`
/// gives up what is only kept to be fast. EBUSY when more is in use, and then nothing has changed.
pub fn set_limit(bytes: u64, shrink: impl FnOnce()) -> Result {
    let wanted = arch::ram_bytes().saturating_sub(bytes).div_ceil(BLOCK_SIZE) as usize;
    let had = BLOCKS.lock().len();
    heap::resize(wanted);
    give_back(wanted);
    if let Err(error) = withhold(wanted, shrink) {
        give_back(had);
        heap::resize(had);
        return Err(error);
    }
    account::note_memory_limit(bytes);
    Ok(())
}

/// Withholds no more than `most`.
fn give_back(most: usize) {
    loop {
        let block = {
            let mut blocks = BLOCKS.lock();
            if blocks.len() <= most { None } else { blocks.pop() }
        };
        let Some(block) = block else { break };
        heap::BLOCKS.free(block, 1, true);
    }
    reclaim::note_freed();
}

/// Withholds at least `count`.
fn withhold(count: usize, shrink: impl FnOnce()) -> Result {
    let mut shrink = Some(shrink);
    while BLOCKS.lock().len() < count {
        if !heap::has_block_to_spare() {
            let Some(shrink) = shrink.take() else { return Err(Errno::EBUSY) };
            shrink();
            reclaim::reclaim();
            continue;
        }
        account::room_in(&mut *BLOCKS.lock())?;
        let block = heap::BLOCKS.alloc().ok_or(Errno::EBUSY)?;
        let frames = Frames { start: block.gpa, count: BLOCK_FRAMES };
        if !block.clean && arch::release(&[frames]).is_err() {
            heap::BLOCKS.free(block.gpa, 1, false);
            return Err(Errno::EBUSY);
        }
        BLOCKS.lock().push(block.gpa);
    }
    Ok(())
}
