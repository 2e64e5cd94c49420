//! flock(2), and the record locks of fcntl(2).

use alloc::sync::Arc;

use linux_raw_sys::general::{
    F_GETLK, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_RDLCK, F_SETLK, F_SETLKW, F_UNLCK, F_WRLCK,
    LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, SEEK_CUR, SEEK_END, SEEK_SET,
};
use qlib::Va;

use crate::abi::abi_struct;
use crate::errno::{Errno, Result};
use crate::fs::lock::{self, Key, Lock, Owner};
use crate::fs::{Fd, OpenFile};
use crate::task::Thread;

abi_struct! {
    /// struct flock of x86-64.
    pub struct UserLock {
        pub kind: i16, pub whence: i16, pub pad: u32, pub start: i64, pub len: i64, pub pid: i32,
        pub pad2: u32,
    }
}

/// True if `command` of fcntl(2) is about record locks.
pub fn is_lock_command(command: u32) -> bool {
    matches!(command, F_GETLK | F_SETLK | F_SETLKW | F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW)
}

/// The bytes that a program means, as a half-open range.
fn range(file: &OpenFile, user: &UserLock) -> Result<(u64, u64)> {
    let base = match user.whence as u32 {
        SEEK_SET => 0,
        SEEK_CUR => file.tell()? as i64,
        SEEK_END => file.attributes()?.size as i64,
        _ => return Err(Errno::EINVAL),
    };
    let start = base.checked_add(user.start).ok_or(Errno::EOVERFLOW)?;
    let end = start.checked_add(user.len).ok_or(Errno::EOVERFLOW)?;
    let (start, end) = match user.len {
        0 => (start, i64::MAX),
        1.. => (start, end),
        _ => (end, start),
    };
    let start = u64::try_from(start).map_err(|_| Errno::EINVAL)?;
    Ok((start, if end == i64::MAX { u64::MAX } else { end as u64 }))
}

/// The record locks of fcntl(2), of `file`, which `fd` is.
pub async fn record_lock(
    thread: &Arc<Thread>,
    fd: Fd,
    file: &Arc<OpenFile>,
    command: u32,
    argument: Va,
) -> Result<usize> {
    let mut user: UserLock = thread.mm().read(argument)?;
    let of_file = matches!(command, F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW);
    if of_file && user.pid != 0 {
        return Err(Errno::EINVAL);
    }
    let owner = if of_file { Owner::of_file(file) } else { Owner::Process(thread.process.pid) };
    let (start, end) = range(file, &user)?;
    let key = Key::of(file, false)?;
    let exclusive = match user.kind as u32 {
        F_RDLCK => false,
        F_WRLCK => true,
        F_UNLCK if !matches!(command, F_GETLK | F_OFD_GETLK) => {
            lock::try_unlock(key, owner, start, end)?;
            return Ok(0);
        }
        _ => return Err(Errno::EINVAL),
    };
    let wanted = Lock { owner, start, end, exclusive };
    if matches!(command, F_GETLK | F_OFD_GETLK) {
        match lock::test(file, key, &wanted)? {
            None => user.kind = F_UNLCK as i16,
            Some(held) => {
                user.kind = if held.exclusive { F_WRLCK } else { F_RDLCK } as i16;
                user.whence = SEEK_SET as i16;
                user.start = held.start as i64;
                user.len = if held.end == u64::MAX { 0 } else { (held.end - held.start) as i64 };
                user.pid = seen(thread, held.pid);
            }
        }
        thread.mm().write(argument, &user)?;
        return Ok(0);
    }
    if if exclusive { !file.is_writable() } else { !file.is_readable() } {
        return Err(Errno::EBADF);
    }
    if matches!(command, F_SETLKW | F_OFD_SETLKW) {
        lock::lock(thread, file, key, wanted).await?;
        let is_open = thread.files().get(fd).is_ok_and(|now| Arc::ptr_eq(&now, file));
        if !of_file && !is_open {
            // Closed meanwhile: that has given up what the process had of the file then, and no
            // close would ever give this up.
            lock::unlock(key, owner, start, end);
            return Err(Errno::EBADF);
        }
    } else {
        lock::try_lock(file, key, wanted)?;
    }
    Ok(0)
}

/// What the thread calls the holder of a lock; negative numbers are no processes of the container.
fn seen(thread: &Thread, pid: i32) -> i32 {
    u32::try_from(pid).map_or(pid, |pid| thread.number_of(pid) as i32)
}

/// flock(2).
pub async fn flock(thread: &Arc<Thread>, fd: Fd, operation: u32) -> Result<usize> {
    let file = thread.files().opened(fd)?;
    let (key, owner) = (Key::of(&file, true)?, Owner::of_file(&file));
    let exclusive = match operation & !LOCK_NB {
        LOCK_SH => false,
        LOCK_EX => true,
        LOCK_UN => {
            lock::unlock(key, owner, 0, u64::MAX);
            return Ok(0);
        }
        _ => return Err(Errno::EINVAL),
    };
    let wanted = Lock { owner, start: 0, end: u64::MAX, exclusive };
    let mut result = lock::try_lock(&file, key, wanted);
    if result == Err(Errno::EAGAIN) {
        // A conversion gives the old lock up before it tries to have the new one (flock(2)).
        lock::unlock(key, owner, 0, u64::MAX);
        if operation & LOCK_NB == 0 {
            result = lock::lock(thread, &file, key, wanted).await;
        }
    }
    result?;
    lock::taken_by(owner, thread.process.pid);
    Ok(0)
}
