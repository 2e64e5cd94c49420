//! /proc/locks: what is held, a line for each lock (proc_locks(5)). Who waits is not listed.

use alloc::format;
use alloc::vec::Vec;

use super::TABLE;
use super::table::{Key, Lock, Owner};
use crate::fs::attr::device_parts;
use crate::fs::records::RecordFile;
use crate::sync::{Mutex, mutex};

/// An open /proc/locks.
pub fn open() -> RecordFile {
    let last = mutex(None);
    RecordFile::new(move |cursor| Ok(next(&last, cursor)))
}

/// The line of the lock after `last`, which is the `cursor`th, and the next cursor.
fn next(last: &Mutex<Option<(Key, Lock)>>, cursor: u64) -> Option<(Vec<u8>, u64)> {
    let before = if cursor == 0 { None } else { Some((*last.lock())?) };
    let (key, lock, taker) = {
        let table = TABLE.lock();
        let (key, lock) = table.after(before)?;
        (key, lock, table.taker_of(lock.owner))
    };
    *last.lock() = Some((key, lock));
    Some((line(cursor + 1, key, &lock, taker), cursor + 1))
}

/// A line. `taker`: who called flock(2), 0 if nobody did.
fn line(number: u64, key: Key, lock: &Lock, taker: u32) -> Vec<u8> {
    let (kind, pid) = match lock.owner {
        Owner::Process(pid) => ("POSIX ", i64::from(pid)),
        Owner::File(_) if key.whole_file => ("FLOCK ", i64::from(taker)),
        Owner::File(_) => ("OFDLCK", -1),
    };
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
