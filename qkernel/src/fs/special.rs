//! Opening what is not a regular file or a directory: the room on top knows which driver serves
//! which device.

use alloc::sync::Arc;

use super::attr::Attributes;
use super::{Caller, FileOps};
use crate::errno::Result;
use crate::task;

/// Opens a special file, for which a driver serves `caller`.
pub fn open(caller: &dyn Caller, node: &Attributes, flags: u32) -> Result<Arc<dyn FileOps>> {
    let thread = task::thread_of(caller)?;
    (thread.process.upcalls.open_special)(thread, node, flags)
}
