//! Which driver serves which special file: device nodes lead to the kernel's own drivers, whatever
//! file system they lie in, and FIFOs and sockets to their families. A host device is never opened.

use alloc::sync::Arc;

use linux_raw_sys::general::{S_IFBLK, S_IFCHR, S_IFIFO, S_IFSOCK};

use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, device_parts};
use crate::fs::{FileOps, dev};
use crate::ipc::pipe;
use crate::ipc::tty::device as tty;
use crate::task::Thread;
use crate::task::upcalls::Opener;

/// The drivers of character devices: of one minor number, or of all of a major number. Constant:
/// see [`crate::fs::setup`].
static CHAR_DRIVERS: [(u32, Option<u32>, Opener); 9] = [
    (1, Some(3), dev::open_memory),
    (1, Some(5), dev::open_memory),
    (1, Some(7), dev::open_memory),
    (1, Some(8), dev::open_memory),
    (1, Some(9), dev::open_memory),
    (tty::TTY_MAJOR, Some(0), tty::open_current),
    (tty::TTY_MAJOR, Some(1), tty::open_console),
    (tty::TTY_MAJOR, Some(2), tty::open_ptmx),
    (tty::SLAVE_MAJOR, None, tty::open_slave),
];

/// Opens a special file.
pub fn open(thread: &Arc<Thread>, node: &Attributes, flags: u32) -> Result<Arc<dyn FileOps>> {
    let opener = match node.kind() {
        S_IFCHR => {
            let (major, minor) = device_parts(node.rdev);
            CHAR_DRIVERS
                .iter()
                .find(|(of, which, _)| *of == major && which.is_none_or(|which| which == minor))
        }
        S_IFIFO => return pipe::open_fifo(node.dev, node.ino, flags),
        S_IFBLK => None,
        S_IFSOCK => return Err(Errno::ENXIO),
        _ => return Err(Errno::EINVAL),
    };
    // As where the devices of a container are limited to these.
    let (_, _, opener) = opener.ok_or(Errno::EPERM)?;
    opener(thread, node, flags)
}
