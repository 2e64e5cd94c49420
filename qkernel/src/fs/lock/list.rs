//! /proc/locks: what is held, a line for each lock (proc_locks(5)). Who waits is not listed.

use alloc::format;
use alloc::vec::Vec;

use super::TABLE;
use super::table::{Key, Lock, Owner};
use crate::fs::attr::device_parts;
use crate::fs::records::RecordFile;
use crate::sync::{Mutex, mutex};

/// An open /proc/locks. `shown`: what who reads calls a process, 0 if it does not see it.
pub fn open(shown: fn(u32) -> u32) -> RecordFile {
    let last = mutex(None);
    RecordFile::new(move |cursor| Ok(next(&last, cursor, shown)))
}

/// The line of the next lock after `last` whose holder is seen, and the next cursor; `cursor` lines
/// have been read.
fn next(
    last: &Mutex<Option<(Key, Lock)>>,
    cursor: u64,
    shown: fn(u32) -> u32,
) -> Option<(Vec<u8>, u64)> {
    let mut before = if cursor == 0 { None } else { Some((*last.lock())?) };
    loop {
        let (key, lock, taker) = {
            let table = TABLE.lock();
            let (key, lock) = table.after(before)?;
            (key, lock, table.taker_of(lock.owner))
        };
        before = Some((key, lock));
        *last.lock() = before;
        let (kind, holder) = match lock.owner {
            Owner::Process(pid) => ("POSIX ", i64::from(shown(pid))),
            // Nobody is known to have called flock(2).
            Owner::File(_) if key.whole_file && taker == 0 => ("FLOCK ", 0),
            Owner::File(_) if key.whole_file => ("FLOCK ", i64::from(shown(taker))),
            Owner::File(_) => ("OFDLCK", -1),
        };
        if holder != 0 || taker == 0 && key.whole_file {
            return Some((line(cursor + 1, key, &lock, kind, holder), cursor + 1));
        }
    }
}

/// A line.
fn line(number: u64, key: Key, lock: &Lock, kind: &str, pid: i64) -> Vec<u8> {
    let access = if lock.exclusive { "WRITE" } else { "READ" };
    let (major, minor) = device_parts(key.dev);
    let (ino, start) = (key.ino, lock.start);
    let mut line =
        format!("{number}: {kind} ADVISORY  {access} {pid} {major:02x}:{minor:02x}:{ino} {start} ");
    match lock.end {
        u64::MAX => line.push_str("EOF\n"),
        end => line.push_str(&format!("{}\n", end - 1)),
    }
    line.into_bytes()
}
