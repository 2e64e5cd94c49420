//! Opening what is not a regular file or a directory: device nodes lead to the kernel's own drivers, whatever file system they lie
//! in, and FIFOs and sockets to their families. A host device is never opened.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use linux_raw_sys::general::{S_IFBLK, S_IFCHR, S_IFIFO, S_IFSOCK};

use super::FileOps;
use super::attr::{Attributes, device_parts};
use crate::errno::{Errno, Result};
use crate::ipc::pipe;
use crate::sync::{Mutex, mutex};
use crate::task::{Process, Thread};

/// Opens a device: its attributes (with the device number) and O_* flags.
pub type Opener = fn(thread: &Arc<Thread>, node: &Attributes, flags: u32) -> Result<Arc<dyn FileOps>>;

static CHAR_DRIVERS: Mutex<BTreeMap<(u32, Option<u32>), Opener>> = mutex(BTreeMap::new());

/// Registers the driver of a character device: of one minor number, or of all of a major number.
pub fn register_char(major: u32, minor: Option<u32>, opener: Opener) {
    CHAR_DRIVERS.lock().insert((major, minor), opener);
}

/// Opens a special file.
pub fn open(thread: &Arc<Thread>, node: &Attributes, flags: u32) -> Result<Arc<dyn FileOps>> {
    let opener = match node.kind() {
        S_IFCHR => {
            let (major, minor) = device_parts(node.rdev);
            let drivers = CHAR_DRIVERS.lock();
            drivers.get(&(major, Some(minor))).or_else(|| drivers.get(&(major, None))).copied()
        }
        S_IFIFO => return pipe::open_fifo(node.dev, node.ino, flags),
        S_IFBLK | S_IFSOCK => None,
        _ => return Err(Errno::EINVAL),
    };
    opener.ok_or(Errno::ENXIO)?(thread, node, flags)
}

/// Tells of a process's terminal: its device number as user programs see it, and its foreground process group.
pub type Terminal = fn(process: &Arc<Process>) -> Option<(u64, i32)>;

static TERMINAL: Mutex<Option<Terminal>> = mutex(None);

/// Registers what knows of terminals, for /proc/PID/stat.
pub fn register_terminal(terminal: Terminal) {
    *TERMINAL.lock() = Some(terminal);
}

/// A process's terminal as /proc/PID/stat tells it: 0 and -1 without one.
pub fn terminal(process: &Arc<Process>) -> (u64, i32) {
    let known = *TERMINAL.lock();
    known.and_then(|terminal| terminal(process)).unwrap_or((0, -1))
}
