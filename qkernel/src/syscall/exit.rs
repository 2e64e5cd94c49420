//! exit(2) and exit_group(2).

use alloc::sync::Arc;

use crate::errno::Result;
use crate::task::Thread;
use crate::task::exit as end;

/// exit(2): ends the calling thread.
pub fn exit(thread: &Arc<Thread>, status: i32) -> Result<usize> {
    end::thread_exit(thread, status);
    Ok(0)
}

/// exit_group(2): ends the process.
pub fn exit_group(thread: &Arc<Thread>, status: i32) -> Result<usize> {
    end::group_exit(&thread.process, end::status_of_code(status));
    Ok(0)
}
