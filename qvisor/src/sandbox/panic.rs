//! The end of a sandbox whose guest kernel, or the process itself, cannot go on.

use std::io::{Cursor, Write};

use super::ended;
use crate::sys;

/// Exit status of a sandbox whose kernel found a bug in itself.
pub const PANIC_STATUS: i32 = 70;

/// Reports to record, log and standard error what happened in the kernel, and ends the sandbox at
/// once.
pub fn end_with_report(what: &str, message: &str, trace: &str) -> ! {
    ended::ended(PANIC_STATUS, &format!("{what}: {message}"));
    tracing::error!(target: "kernel", "{what}: {message}\n{trace}");
    sys::say_without_waiting(format!("quark: {what}: {message}\n{trace}\n").as_bytes());
    sys::exit_now(PANIC_STATUS)
}

/// For [`super::memory::copy::set_crash_hook`]: records and says that the process took a signal
/// which it has no use for, and ends it as that would. Runs in the signal handler: it takes no lock
/// and no memory.
pub fn crash(rip: u64, _frame: u64, addr: u64, signo: i32) {
    let mut line = Cursor::new([0u8; 128]);
    // What does not fit is left out.
    write!(line, "the VMM crashed: signal {signo} at {rip:#x}, address {addr:#x}").ok();
    let end = line.position() as usize;
    let text = line.get_ref().get(..end).and_then(|text| str::from_utf8(text).ok()).unwrap_or("");
    ended::ended(128 + signo, text);
    for part in ["quark: ", text, "\n"] {
        sys::say_without_waiting(part.as_bytes());
    }
    sys::exit_now(128 + signo)
}
