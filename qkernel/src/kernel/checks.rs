//! Processes from outside that only ask whether the container lives (Docker's HEALTHCHECK, the exec
//! probes of Kubernetes). They keep it awake while they run, and do not count as use of it.

use alloc::string::String;
use alloc::vec::Vec;

use qlib::control::is_command;

use crate::input;
use crate::net::probes;
use crate::sync::{Counted, Mutex, mutex};

/// Their command lines, as [`qlib::control::SleepSpec::ignore_exec`] has them.
static PATTERNS: Mutex<Vec<String>> = mutex(Vec::new());
/// Those that run, by process.
static RUNNING: Mutex<Vec<(u32, Counted)>> = mutex(Vec::new());

/// Processes from outside with these command lines are health checks.
pub(super) fn are(patterns: &[String]) {
    *PATTERNS.lock() = patterns.to_vec();
}

/// Process `pid` from outside begins.
pub(super) fn begins(pid: u32, args: &[String]) {
    let is_check = PATTERNS.lock().iter().any(|pattern| is_command(pattern, args));
    input::note_taken(is_check);
    if is_check {
        RUNNING.lock().push((pid, probes::check_begins()));
    }
}

/// Process `pid` has ended.
pub(super) fn ends(pid: u32) {
    RUNNING.lock().retain(|(running, _)| *running != pid);
}
