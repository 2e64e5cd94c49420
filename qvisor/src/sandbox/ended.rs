//! Why a sandbox ended, for those who come after: `quark state` shows it when nobody is left to
//! ask.
//!
//! Two records of fixed length in a file of the container's state directory: how it ended, and the
//! last *incident*, which is the end of a guest process that did what no honest one does. The file
//! is opened before the sandbox process gives up its view of the host, and costs it nothing but
//! pwritev2(2). All of this may be called from a signal handler: it takes no lock and no memory.

use std::io::{IoSlice, Write};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use qlib::host::{EXIT_MEMORY_LOST, EXIT_TAKEN_AWAY};
use rustix::io::{ReadWriteFlags, pwritev2};
use serde::{Deserialize, Serialize};

/// Bytes of one record: JSON, filled up with spaces.
pub const RECORD_BYTES: usize = 1024;
/// What a reason may take of that, in bytes.
const REASON_BYTES: usize = 768;

/// Exit status of a sandbox that was ended for an attack: as if by SIGSYS, which is how Linux ends
/// a process for a forbidden call.
pub const ATTACK_STATUS: i32 = 128 + libc::SIGSYS;

/// Why a sandbox ended whose first process the host killed, for want of memory or otherwise.
pub const TAKEN_AWAY: &str = "the host killed its first process";

static FILE: OnceLock<OwnedFd> = OnceLock::new();
static HAS_ENDED: AtomicBool = AtomicBool::new(false);
static INCIDENTS: AtomicU64 = AtomicU64::new(0);

/// How a sandbox ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The exit status of the sandbox process.
    pub status: i32,
    /// When, in nanoseconds since 1970.
    pub at_ns: u64,
    /// One line.
    pub reason: String,
    /// Its first process was killed because memory was used up.
    #[serde(default)]
    pub out_of_memory: bool,
}

/// The last incident.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incidents {
    /// How many there were.
    pub count: u64,
    /// When the last was, in nanoseconds since 1970.
    pub at_ns: u64,
    /// It in one line.
    pub last: String,
}

/// Where the records go. The first call counts; without one they go nowhere.
pub fn record_in(file: OwnedFd) {
    FILE.set(file).ok();
}

/// Records that the sandbox ends with `status`, and why. The first call counts: what follows from
/// it is not the reason.
pub fn ended(status: i32, reason: &str) {
    record(status, false, reason);
}

/// As [`ended`], for its first process was killed because memory was used up.
pub fn out_of_memory(status: i32, reason: &str) {
    record(status, true, reason);
}

fn record(status: i32, out_of_memory: bool, reason: &str) {
    if !HAS_ENDED.swap(true, Ordering::AcqRel) {
        let mut line = Line::new();
        write!(line, "{{\"status\":{status},\"at_ns\":{},", now_ns()).ok();
        write!(line, "\"out_of_memory\":{out_of_memory},\"reason\":\"").ok();
        line.finish(reason, 0);
    }
}

/// Records that a guest process was ended for what it did. The sandbox goes on.
pub fn incident(what: &str) {
    let count = INCIDENTS.fetch_add(1, Ordering::AcqRel) + 1;
    let mut line = Line::new();
    write!(line, "{{\"count\":{count},\"at_ns\":{},\"last\":\"", now_ns()).ok();
    line.finish(what, RECORD_BYTES as u64);
}

/// Records the end that the guest kernel asks for, and gives the status that the sandbox ends with:
/// the kernel knows that its first process was taken away, and this side knows whether that was for
/// an attack.
pub fn ended_by_kernel(status: i32, why: u64) -> i32 {
    let (status, reason) = match why {
        EXIT_TAKEN_AWAY
            if status == 128 + libc::SIGKILL && INCIDENTS.load(Ordering::Acquire) > 0 =>
        {
            (ATTACK_STATUS, "its first process attacked the sandbox (see incidents)")
        }
        EXIT_TAKEN_AWAY if status == 128 + libc::SIGKILL => (status, TAKEN_AWAY),
        EXIT_MEMORY_LOST => (status, "its memory could not be read back from the swap store"),
        _ => (status, "its program ended"),
    };
    ended(status, reason);
    status
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// One record, on the stack.
struct Line {
    bytes: [u8; RECORD_BYTES],
    len: usize,
}

impl Line {
    fn new() -> Line {
        Line { bytes: [b' '; RECORD_BYTES], len: 0 }
    }

    /// Adds `reason` as the rest of a JSON string, and writes the record to its place.
    fn finish(mut self, reason: &str, offset: u64) {
        let mut end = reason.len().min(REASON_BYTES);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        for byte in reason.as_bytes().iter().take(end) {
            let plain = match byte {
                b'"' => b'\'',
                b'\\' => b'/',
                0..0x20 | 0x7f => b' ',
                other => *other,
            };
            self.write_all(&[plain]).ok();
        }
        self.write_all(b"\"}").ok();
        if let Some(last) = self.bytes.last_mut() {
            *last = b'\n';
        }
        if let Some(file) = FILE.get() {
            // Who asks later finds nothing then.
            pwritev2(file, &[IoSlice::new(&self.bytes)], offset, ReadWriteFlags::empty()).ok();
        }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // The last byte is the end of the line.
        let room = RECORD_BYTES - 1 - self.len;
        let n = bytes.len().min(room);
        for (to, from) in self.bytes.iter_mut().skip(self.len).zip(bytes.iter().take(n)) {
            *to = *from;
        }
        self.len += n;
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Reads the two records of a file. What a sandbox wrote is believed in nothing but its form.
pub fn parse(bytes: &[u8]) -> (Option<Ended>, Option<Incidents>) {
    let record = |at: usize| bytes.get(at..(at + RECORD_BYTES).min(bytes.len()));
    let one_line = |text: String| {
        text.chars().take(REASON_BYTES).filter(|c| !c.is_control()).collect::<String>()
    };
    let ended = record(0).and_then(|r| serde_json::from_slice::<Ended>(r).ok());
    let incidents = record(RECORD_BYTES).and_then(|r| serde_json::from_slice::<Incidents>(r).ok());
    (
        ended.map(|e| Ended { reason: one_line(e.reason), ..e }),
        incidents.map(|i| Incidents { last: one_line(i.last), ..i }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn the_first_end_and_the_last_incident_are_kept() {
        let fd = crate::sys::memfd(c"ended", 0, false).unwrap();
        let file = std::fs::File::from(fd.try_clone().unwrap());
        record_in(fd);
        let read = || {
            let mut bytes = vec![0; 2 * RECORD_BYTES];
            let n = file.read_at(&mut bytes, 0).unwrap();
            bytes.truncate(n);
            parse(&bytes)
        };
        assert_eq!(read(), (None, None));
        incident("one");
        incident(&format!("\"two\" \\ \u{1b}[31m\n{}", "ä".repeat(1000)));
        let (ended_now, incidents) = read();
        assert_eq!(ended_now, None);
        let incidents = incidents.unwrap();
        assert_eq!(incidents.count, 2);
        assert!(
            incidents.last.starts_with("'two' /  [31m ää") && incidents.last.ends_with('ä'),
            "{incidents:?}"
        );
        assert!(incidents.at_ns > 1_700_000_000_000_000_000);
        assert_eq!(ended_by_kernel(137, EXIT_TAKEN_AWAY), ATTACK_STATUS);
        ended(70, "what follows");
        let kept = read().0.unwrap();
        assert_eq!((kept.status, kept.out_of_memory), (159, false));
        assert!(kept.reason.contains("attacked"), "{kept:?}");
        assert_eq!(file.metadata().unwrap().len(), 2 * RECORD_BYTES as u64);
    }

    #[test]
    fn what_a_hostile_sandbox_writes_is_no_more_than_a_line() {
        assert_eq!(parse(b""), (None, None));
        assert_eq!(parse(&[0xff; 5000]), (None, None));
        let mut bytes = br#"{"status":1,"at_ns":2,"reason":"a\nb\u001b[0m"}"#.to_vec();
        bytes.resize(RECORD_BYTES, b' ');
        let ended = parse(&bytes).0.unwrap();
        assert_eq!((ended.reason.as_str(), ended.out_of_memory), ("ab[0m", false));
    }
}
