//! The end of a sandbox whose guest kernel cannot go on.

use std::io::Write;

use super::ended;
use crate::sys;

/// Exit status of a sandbox whose kernel found a bug in itself.
pub const PANIC_STATUS: i32 = 70;

/// Reports to record, log and standard error what happened in the kernel, and ends the sandbox at
/// once.
pub fn end_with_report(what: &str, message: &str, trace: &str) -> ! {
    ended::ended(PANIC_STATUS, &format!("{what}: {message}"));
    tracing::error!(target: "kernel", "{what}: {message}\n{trace}");
    writeln!(std::io::stderr(), "quark: {what}: {message}\n{trace}").ok();
    sys::exit_now(PANIC_STATUS)
}
