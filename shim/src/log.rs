//! The shim's own log: a FIFO in the bundle, which containerd copies to its own log.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;

use rustix::fs::OFlags;

/// The FIFO, once somebody has it open for reading.
static FIFO: Mutex<Option<File>> = Mutex::new(None);

/// Opens the FIFO `log` in the working directory. A reader that is not there, or does not read,
/// must not hold up containers: lines are lost then.
pub fn open() {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = File::options().write(true).custom_flags(flags).open(Path::new("log")).ok();
    *FIFO.lock().unwrap_or_else(|e| e.into_inner()) = file;
}

/// Writes a line as containerd's own shims do (logfmt).
pub fn warn(message: &str) {
    if let Some(file) = &mut *FIFO.lock().unwrap_or_else(|e| e.into_inner()) {
        writeln!(file, "level=warning msg={message:?} runtime={}", super::RUNTIME).ok();
    }
}
