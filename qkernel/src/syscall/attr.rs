//! Attributes and contents of files: chmod(2), chown(2), utimensat(2), truncate(2), fallocate(2),
//! advice.

use alloc::sync::Arc;

use linux_raw_sys::general::{
    AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW, CAP_CHOWN, CAP_FSETID, IN_ATTRIB, IN_MODIFY,
    POSIX_FADV_NOREUSE, RLIM64_INFINITY, RLIMIT_FSIZE, S_ISGID, S_ISUID, S_IXGRP, UTIME_NOW,
    UTIME_OMIT,
};
use qlib::Va;

use super::open::{path_at, path_or_null};
use crate::abi::{TimeSpec, TimeVal};
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, SetAttributes, SetTime};
use crate::fs::busy::Claim;
use crate::fs::{self, Fd, Location, OpenFile, disk, lease, notify, perm};
use crate::task::Thread;

/// What attributes are changed of.
enum Subject {
    Place(Location),
    File(Arc<OpenFile>),
}

impl Subject {
    fn at(thread: &Arc<Thread>, dirfd: Fd, path: &[u8], at_flags: u32) -> Result<Self> {
        if path.is_empty() && at_flags & AT_EMPTY_PATH != 0 && dirfd != AT_FDCWD {
            return Ok(Subject::File(thread.files().get(dirfd)?));
        }
        Ok(Subject::Place(fs::lookup(thread, dirfd, path, at_flags)?))
    }

    fn fd(thread: &Arc<Thread>, fd: Fd) -> Result<Self> {
        thread.files().opened(fd).map(Subject::File)
    }

    fn attributes(&self) -> Result<Attributes> {
        match self {
            Subject::Place(place) => place.attributes(),
            Subject::File(file) => file.attributes(),
        }
    }

    fn change(&self, change: &SetAttributes) -> Result {
        let place = match self {
            Subject::Place(place) => Some(place),
            Subject::File(file) => file.path.as_ref(),
        };
        if let Some(place) = place {
            place.mount.check_writable()?;
        }
        match self {
            Subject::Place(place) => place.inode().set_attributes(change)?,
            Subject::File(file) => file.ops.set_attributes(file, change)?,
        }
        if let Some(place) = place {
            notify::event(place, IN_ATTRIB);
        }
        Ok(())
    }
}

fn change_mode(creds: &Creds, subject: &Subject, mode: u32) -> Result<usize> {
    let attributes = subject.attributes()?;
    perm::check_owner(creds, &attributes)?;
    if attributes.is_symlink() {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut mode = mode & 0o7777;
    if !creds.in_group(attributes.gid) && !creds.capable_over(attributes.owner(), CAP_FSETID) {
        mode &= !S_ISGID;
    }
    subject.change(&SetAttributes { mode: Some(mode), ..SetAttributes::default() })?;
    Ok(0)
}

/// chmod(2).
pub fn chmod(thread: &Arc<Thread>, path: Va, mode: u32) -> Result<usize> {
    fchmodat(thread, AT_FDCWD, path, mode)
}

/// fchmod(2).
pub fn fchmod(thread: &Arc<Thread>, fd: Fd, mode: u32) -> Result<usize> {
    change_mode(&thread.creds(), &Subject::fd(thread, fd)?, mode)
}

/// fchmodat(2): the system call has no flags.
pub fn fchmodat(thread: &Arc<Thread>, dirfd: Fd, path: Va, mode: u32) -> Result<usize> {
    fchmodat2(thread, dirfd, path, mode, 0)
}

/// fchmodat2(2).
pub fn fchmodat2(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: Va,
    mode: u32,
    flags: u32,
) -> Result<usize> {
    if flags & !(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = path_or_null(thread, path, flags & AT_EMPTY_PATH != 0)?;
    change_mode(&thread.creds(), &Subject::at(thread, dirfd, &path, flags)?, mode)
}

fn change_owner(creds: &Creds, subject: &Subject, uid: u32, gid: u32) -> Result<usize> {
    let attributes = subject.attributes()?;
    let uid = (uid != u32::MAX).then(|| creds.user.uid_of(uid)).transpose()?;
    let gid = (gid != u32::MAX).then(|| creds.user.gid_of(gid)).transpose()?;
    let privileged = creds.capable_over(attributes.owner(), CAP_CHOWN);
    let owns = creds.fsuid == attributes.uid;
    let may_set_uid = |uid: u32| privileged || owns && uid == attributes.uid;
    let may_set_gid =
        |gid: u32| privileged || owns && (gid == attributes.gid || creds.in_group(gid));
    if !uid.is_none_or(may_set_uid) || !gid.is_none_or(may_set_gid) {
        return Err(Errno::EPERM);
    }
    let mut change = SetAttributes { uid, gid, ..SetAttributes::default() };
    // A program that changes hands runs with nobody's rights.
    if attributes.is_regular() && attributes.mode & (S_ISUID | S_ISGID) != 0 {
        let mut mode = attributes.mode & 0o7777 & !S_ISUID;
        if mode & S_IXGRP != 0 {
            mode &= !S_ISGID;
        }
        change.mode = Some(mode);
    }
    subject.change(&change)?;
    Ok(0)
}

/// chown(2).
pub fn chown(thread: &Arc<Thread>, path: Va, uid: u32, gid: u32) -> Result<usize> {
    fchownat(thread, AT_FDCWD, path, uid, gid, 0)
}

/// lchown(2).
pub fn lchown(thread: &Arc<Thread>, path: Va, uid: u32, gid: u32) -> Result<usize> {
    fchownat(thread, AT_FDCWD, path, uid, gid, AT_SYMLINK_NOFOLLOW)
}

/// fchown(2).
pub fn fchown(thread: &Arc<Thread>, fd: Fd, uid: u32, gid: u32) -> Result<usize> {
    change_owner(&thread.creds(), &Subject::fd(thread, fd)?, uid, gid)
}

/// fchownat(2).
pub fn fchownat(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: Va,
    uid: u32,
    gid: u32,
    flags: u32,
) -> Result<usize> {
    if flags & !(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = path_or_null(thread, path, flags & AT_EMPTY_PATH != 0)?;
    change_owner(&thread.creds(), &Subject::at(thread, dirfd, &path, flags)?, uid, gid)
}

fn change_times(
    thread: &Arc<Thread>,
    subject: &Subject,
    atime: Option<SetTime>,
    mtime: Option<SetTime>,
) -> Result<usize> {
    if atime.is_none() && mtime.is_none() {
        return Ok(0);
    }
    let creds = thread.creds();
    let attributes = subject.attributes()?;
    let both_now = atime == Some(SetTime::Now) && mtime == Some(SetTime::Now);
    if both_now {
        if perm::check_owner(&creds, &attributes).is_err() {
            perm::check(&creds, &attributes, perm::WRITE)?;
        }
    } else {
        perm::check_owner(&creds, &attributes)?;
    }
    subject.change(&SetAttributes { atime, mtime, ..SetAttributes::default() })?;
    Ok(0)
}

fn set_time(time: TimeSpec) -> Result<Option<SetTime>> {
    match time.nsec {
        n if n == i64::from(UTIME_NOW) => Ok(Some(SetTime::Now)),
        n if n == i64::from(UTIME_OMIT) => Ok(None),
        0..=999_999_999 => Ok(Some(SetTime::At(time))),
        _ => Err(Errno::EINVAL),
    }
}

/// utimensat(2). A null path means `dirfd` itself.
pub fn utimensat(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: Va,
    times: Va,
    flags: u32,
) -> Result<usize> {
    if flags & !(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let (atime, mtime) = if times.0 == 0 {
        (Some(SetTime::Now), Some(SetTime::Now))
    } else {
        let [atime, mtime]: [TimeSpec; 2] =
            thread.mm().read_array(times, 2)?.try_into().map_err(|_| Errno::EFAULT)?;
        (set_time(atime)?, set_time(mtime)?)
    };
    let subject = if path.0 == 0 {
        if dirfd == AT_FDCWD {
            return Err(Errno::EFAULT);
        }
        Subject::fd(thread, dirfd)?
    } else {
        Subject::at(thread, dirfd, &path_at(thread, path)?, flags)?
    };
    change_times(thread, &subject, atime, mtime)
}

/// The two times of a `struct timeval` array, or now.
fn two_timevals(thread: &Arc<Thread>, times: Va) -> Result<(Option<SetTime>, Option<SetTime>)> {
    if times.0 == 0 {
        return Ok((Some(SetTime::Now), Some(SetTime::Now)));
    }
    let [atime, mtime]: [TimeVal; 2] =
        thread.mm().read_array(times, 2)?.try_into().map_err(|_| Errno::EFAULT)?;
    let convert = |t: TimeVal| {
        if (0..1_000_000).contains(&t.usec) {
            Ok(Some(SetTime::At(TimeSpec { sec: t.sec, nsec: t.usec * 1000 })))
        } else {
            Err(Errno::EINVAL)
        }
    };
    Ok((convert(atime)?, convert(mtime)?))
}

/// futimesat(2).
pub fn futimesat(thread: &Arc<Thread>, dirfd: Fd, path: Va, times: Va) -> Result<usize> {
    let (atime, mtime) = two_timevals(thread, times)?;
    let subject = if path.0 == 0 {
        Subject::fd(thread, dirfd)?
    } else {
        Subject::at(thread, dirfd, &path_at(thread, path)?, 0)?
    };
    change_times(thread, &subject, atime, mtime)
}

/// utimes(2).
pub fn utimes(thread: &Arc<Thread>, path: Va, times: Va) -> Result<usize> {
    let (atime, mtime) = two_timevals(thread, times)?;
    change_times(thread, &Subject::at(thread, AT_FDCWD, &path_at(thread, path)?, 0)?, atime, mtime)
}

/// utime(2).
pub fn utime(thread: &Arc<Thread>, path: Va, times: Va) -> Result<usize> {
    let (atime, mtime) = if times.0 == 0 {
        (SetTime::Now, SetTime::Now)
    } else {
        let [atime, mtime]: [i64; 2] =
            thread.mm().read_array(times, 2)?.try_into().map_err(|_| Errno::EFAULT)?;
        let at = |sec| SetTime::At(TimeSpec { sec, nsec: 0 });
        (at(atime), at(mtime))
    };
    change_times(
        thread,
        &Subject::at(thread, AT_FDCWD, &path_at(thread, path)?, 0)?,
        Some(atime),
        Some(mtime),
    )
}

/// EFBIG past RLIMIT_FSIZE.
fn check_size_limit(thread: &Arc<Thread>, size: u64) -> Result {
    let limit = thread.process.rlimit(RLIMIT_FSIZE);
    if limit != RLIM64_INFINITY as u64 && size > limit {
        super::transfer::file_too_large(thread);
        return Err(Errno::EFBIG);
    }
    Ok(())
}

/// truncate(2).
pub async fn truncate(thread: &Arc<Thread>, path: Va, size: i64) -> Result<usize> {
    let size = u64::try_from(size).map_err(|_| Errno::EINVAL)?;
    let path = path_at(thread, path)?;
    lease::when_broken(thread, false, || truncate_now(thread, &path, size)).await
}

/// ELEASED as of [`fs::open()`].
fn truncate_now(thread: &Arc<Thread>, path: &[u8], size: u64) -> Result<usize> {
    let place = fs::lookup(thread, AT_FDCWD, path, 0)?;
    if place.inode().is_dir() {
        return Err(Errno::EISDIR);
    }
    if !place.inode().is_regular() {
        return Err(Errno::EINVAL);
    }
    place.mount.check_writable()?;
    let (creds, attributes) = (thread.creds(), place.attributes()?);
    perm::check(&creds, &attributes, perm::WRITE)?;
    check_size_limit(thread, size)?;
    let _claim = Claim::to_write(&attributes)?;
    lease::break_for(&attributes, true)?;
    place.inode().truncate(size)?;
    fs::open::drop_suid_at(&creds, &place, &attributes)?;
    notify::event(&place, IN_MODIFY);
    Ok(0)
}

/// ftruncate(2).
pub fn ftruncate(thread: &Arc<Thread>, fd: Fd, size: i64) -> Result<usize> {
    let size = u64::try_from(size).map_err(|_| Errno::EINVAL)?;
    let file = thread.files().opened(fd)?;
    if !file.is_writable() {
        return Err(Errno::EINVAL);
    }
    check_size_limit(thread, size)?;
    file.ops.truncate(&file, size)?;
    if let Some(place) = &file.path {
        notify::event(place, IN_MODIFY);
    }
    fs::open::drop_suid(&thread.creds(), &file)?;
    Ok(0)
}

/// fallocate(2).
pub async fn fallocate(
    thread: &Arc<Thread>,
    fd: Fd,
    mode: u32,
    offset: i64,
    len: i64,
) -> Result<usize> {
    let file = thread.files().get(fd)?;
    allocate(thread, &file, mode, offset, len).await
}

/// fallocate(2) of an open file.
pub(super) async fn allocate(
    thread: &Arc<Thread>,
    file: &OpenFile,
    mode: u32,
    offset: i64,
    len: i64,
) -> Result<usize> {
    if !file.is_writable() {
        return Err(Errno::EBADF);
    }
    if !file.ops.is_seekable() {
        return Err(Errno::ESPIPE);
    }
    let offset = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
    let len = u64::try_from(len).ok().filter(|l| *l > 0).ok_or(Errno::EINVAL)?;
    let end = offset.checked_add(len).filter(|end| *end <= i64::MAX as u64).ok_or(Errno::EFBIG)?;
    check_size_limit(thread, end)?;
    file.ops.allocate(file, mode, offset, len)?;
    notify::file_event(file, IN_MODIFY);
    fs::open::drop_suid(&thread.creds(), file)?;
    disk::settle(thread, file, file.flags(), len as usize).await?;
    Ok(0)
}

/// fadvise64(2): advice is for the host's page cache, which looks after itself.
pub fn fadvise64(
    thread: &Arc<Thread>,
    fd: Fd,
    _offset: i64,
    len: i64,
    advice: u32,
) -> Result<usize> {
    advise(&*thread.files().get(fd)?, len, advice)
}

/// posix_fadvise(2) of an open file.
pub(super) fn advise(file: &OpenFile, len: i64, advice: u32) -> Result<usize> {
    if file.ops.queue().is_some() && !file.ops.is_seekable() {
        return Err(Errno::ESPIPE);
    }
    if len < 0 || advice > POSIX_FADV_NOREUSE {
        return Err(Errno::EINVAL);
    }
    Ok(0)
}

/// readahead(2): as fadvise64(2).
pub fn readahead(thread: &Arc<Thread>, fd: Fd, _offset: i64, _count: usize) -> Result<usize> {
    let file = thread.files().get(fd)?;
    if !file.is_readable() {
        return Err(Errno::EBADF);
    }
    if file.ops.is_seekable() { Ok(0) } else { Err(Errno::EINVAL) }
}
