//! The kernel's log: lines for the sandbox's log, by host calls.

use alloc::string::String;

use qlib::host::Op;

use crate::arch;
use crate::host::Call;

/// Severity, as in [`Op::Log`].
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Level {
    Error = 1,
    Warn = 2,
    Info = 3,
    Debug = 4,
    Trace = 5,
}

/// True if lines of this level are worth formatting.
pub fn is_kept(level: Level) -> bool {
    level as u32 <= arch::boot().log_level
}

/// Writes one line.
pub fn write(level: Level, line: String) {
    // A log line that cannot be written has nowhere else to go.
    let _ = Call::new(Op::Log).arg(0, level as u64).bytes(line.as_bytes()).run();
}

/// Logs one formatted line: `log!(Warn, "…", …)`.
#[macro_export]
macro_rules! klog {
    ($level:ident, $($arg:tt)*) => {
        if $crate::log::is_kept($crate::log::Level::$level) {
            $crate::log::write($crate::log::Level::$level, alloc::format!($($arg)*))
        }
    };
}
