//! exit(2), exit_group(2), reboot(2).

use alloc::sync::Arc;

use linux_raw_sys::general::{
    CAP_SYS_BOOT, LINUX_REBOOT_CMD_HALT, LINUX_REBOOT_CMD_POWER_OFF, LINUX_REBOOT_CMD_RESTART,
    LINUX_REBOOT_CMD_RESTART2, LINUX_REBOOT_MAGIC1, LINUX_REBOOT_MAGIC2, LINUX_REBOOT_MAGIC2A,
    LINUX_REBOOT_MAGIC2B, LINUX_REBOOT_MAGIC2C, SIGHUP, SIGINT,
};

use crate::errno::{Errno, Result};
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

/// The second magic numbers that reboot(2) takes.
const SECOND: [u32; 4] =
    [LINUX_REBOOT_MAGIC2, LINUX_REBOOT_MAGIC2A, LINUX_REBOOT_MAGIC2B, LINUX_REBOOT_MAGIC2C];

/// reboot(2), as from within a PID namespace (pid_namespaces(7)): its first process ends, as if by
/// a signal that says what was asked for, and all others with it.
pub fn reboot(thread: &Arc<Thread>, magic: u32, magic2: u32, op: u32) -> Result<usize> {
    let namespace = &thread.process.pid_namespace;
    if !thread.creds().capable_in(&namespace.user, CAP_SYS_BOOT) {
        return Err(Errno::EPERM);
    }
    if magic != LINUX_REBOOT_MAGIC1 || !SECOND.contains(&magic2) {
        return Err(Errno::EINVAL);
    }
    let signal = match op {
        LINUX_REBOOT_CMD_RESTART | LINUX_REBOOT_CMD_RESTART2 => SIGHUP,
        LINUX_REBOOT_CMD_HALT | LINUX_REBOOT_CMD_POWER_OFF => SIGINT,
        _ => return Err(Errno::EINVAL),
    };
    if let Some(first) = namespace.process(1) {
        end::group_exit(&first, signal as i32);
    }
    end::group_exit(&thread.process, end::status_of_code(0));
    Ok(0)
}
