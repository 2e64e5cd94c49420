//! Descriptors: dup(2), fcntl(2), flock(2), ioctl(2).

use alloc::sync::Arc;

use linux_raw_sys::general::{
    DN_MULTISHOT, F_ADD_SEALS, F_CREATED_QUERY, F_DUPFD, F_DUPFD_CLOEXEC, F_DUPFD_QUERY,
    F_GET_SEALS, F_GETFD, F_GETFL, F_GETLEASE, F_GETOWN, F_GETOWN_EX, F_GETPIPE_SZ, F_GETSIG,
    F_NOTIFY, F_RDLCK, F_SETFD, F_SETFL, F_SETLEASE, F_SETOWN, F_SETOWN_EX, F_SETPIPE_SZ, F_SETSIG,
    F_UNLCK, F_WRLCK, FD_CLOEXEC, O_APPEND, O_CLOEXEC, O_DIRECT, O_NOATIME, O_NONBLOCK, O_PATH,
    RLIMIT_NOFILE,
};
use linux_raw_sys::ioctl::{FIOASYNC, FIOCLEX, FIONBIO, FIONCLEX};
use qlib::Va;

use super::extents;
use super::listener;
use super::lock::{is_lock_command, record_lock};
use crate::errno::{Errno, Result};
use crate::fs::{Fd, OpenFile, dnotify, lease, memfd, perm};
use crate::ipc::pipe::PipeEnd;
use crate::ipc::sigio::{self, Named, Who};
use crate::net::{Side, Socket};
use crate::task::Thread;
use crate::task::listener::Listener;

/// O_ASYNC (fcntl.h).
const O_ASYNC: u32 = 0o20000;
/// ioctls of sockets (asm-generic/sockios.h).
const FIOSETOWN: u32 = 0x8901;
const SIOCSPGRP: u32 = 0x8902;
const FIOGETOWN: u32 = 0x8903;
const SIOCGPGRP: u32 = 0x8904;
/// _IOR(0x15, 0, struct fsuuid2) of linux/fs.h.
const FS_IOC_GETFSUUID: u32 = 0x8011_1500;
const FS_IOC_FIEMAP: u32 = 0xc020_660b;

/// dup(2).
pub fn dup(thread: &Arc<Thread>, fd: Fd) -> Result<usize> {
    let files = thread.files();
    let file = files.get(fd)?;
    files.insert(file, false, 0, thread.process.rlimit(RLIMIT_NOFILE)).map(|fd| fd as usize)
}

/// dup2(2).
pub fn dup2(thread: &Arc<Thread>, old: Fd, new: Fd) -> Result<usize> {
    if old == new {
        thread.files().get(old)?;
        return Ok(new as usize);
    }
    dup3(thread, old, new, 0)
}

/// dup3(2).
pub fn dup3(thread: &Arc<Thread>, old: Fd, new: Fd, flags: u32) -> Result<usize> {
    if old == new || flags & !O_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let files = thread.files();
    let file = files.get(old)?;
    let limit = thread.process.rlimit(RLIMIT_NOFILE);
    let replaced = files.replace(new, file, flags & O_CLOEXEC != 0, limit)?;
    if let Some(replaced) = replaced {
        super::open::closed(thread, &replaced);
    }
    Ok(new as usize)
}

/// fcntl(2).
pub async fn fcntl(thread: &Arc<Thread>, fd: Fd, command: u32, argument: u64) -> Result<usize> {
    let files = thread.files();
    let file = files.get(fd)?;
    let is_path = file.flags() & O_PATH != 0;
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC => {
            let limit = thread.process.rlimit(RLIMIT_NOFILE);
            let minimum = Fd::try_from(argument as u32).map_err(|_| Errno::EINVAL)?;
            if minimum as u64 >= limit {
                return Err(Errno::EINVAL);
            }
            files.insert(file, command == F_DUPFD_CLOEXEC, minimum, limit).map(|fd| fd as usize)
        }
        F_DUPFD_QUERY => {
            let other = files.get(argument as Fd)?;
            Ok(usize::from(Arc::ptr_eq(&file, &other)))
        }
        F_CREATED_QUERY => Ok(usize::from(file.is_created())),
        F_GETFD => Ok(if files.close_on_exec(fd)? { FD_CLOEXEC as usize } else { 0 }),
        F_SETFD => files.set_close_on_exec(fd, argument as u32 & FD_CLOEXEC != 0).map(|()| 0),
        // O_LARGEFILE is always on for 64-bit programs.
        F_GETFL => Ok((file.flags() | if is_path { 0 } else { 0o100000 }) as usize),
        _ if is_path => Err(Errno::EBADF),
        _ if is_lock_command(command) => {
            record_lock(thread, fd, &file, command, Va(argument)).await
        }
        F_GETPIPE_SZ => Ok(file.downcast::<PipeEnd>().ok_or(Errno::EBADF)?.capacity()),
        F_SETPIPE_SZ => file
            .downcast::<PipeEnd>()
            .ok_or(Errno::EBADF)?
            .set_capacity(thread, argument as u32 as usize),
        F_GET_SEALS => memfd::seals(&file).map(|seals| seals as usize),
        F_ADD_SEALS => memfd::add_seals(&file, argument as u32).map(|()| 0),
        F_GETOWN => Ok(sigio::owner(thread, &file).signed() as usize),
        F_SETOWN => set_owner(thread, &file, argument as i32),
        F_GETOWN_EX => {
            let Named { kind, number } = sigio::owner(thread, &file);
            thread.mm().write(Va(argument), &[kind, number])?;
            Ok(0)
        }
        F_SETOWN_EX => {
            let [kind, number]: [u32; 2] = thread.mm().read(Va(argument))?;
            give_owner(thread, &file, Who::find(thread, Named { kind, number })?);
            Ok(0)
        }
        F_GETLEASE => lease::get(&file).map(|kind| kind as usize),
        F_SETLEASE => set_lease(thread, &file, fd, argument as u32).map(|()| 0),
        F_NOTIFY => {
            let asked = argument as u32;
            let is_dir = file.path.as_ref().is_some_and(|place| place.inode().is_dir());
            if asked & !DN_MULTISHOT != 0 && !is_dir {
                return Err(Errno::ENOTDIR);
            }
            dnotify::watch(&file, &files, asked, sigio::messages(thread, &file, fd)).map(|()| 0)
        }
        F_GETSIG => Ok(sigio::signal(&file) as usize),
        F_SETSIG => sigio::set_signal(&file, argument as u32).map(|()| 0),
        F_SETFL => {
            let changeable = O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME;
            let wanted = argument as u32;
            set_flags(thread, &file, file.flags() & !changeable | wanted & changeable)?;
            // What cannot tell does without it.
            set_async(thread, &file, fd, wanted & O_ASYNC != 0)?;
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// F_SETLEASE: F_RDLCK, F_WRLCK or F_UNLCK.
fn set_lease(thread: &Thread, file: &OpenFile, fd: Fd, kind: u32) -> Result {
    let creds = thread.creds();
    match kind {
        F_RDLCK | F_WRLCK => {
            lease::set(&creds, file, kind == F_WRLCK, || sigio::messages(thread, file, fd))
        }
        F_UNLCK => {
            lease::give_up(&creds, file)?;
            sigio::forget_owner(file);
            Ok(())
        }
        _ => Err(Errno::EINVAL),
    }
}

/// F_SETOWN: a process, or minus a group of them.
fn set_owner(thread: &Thread, file: &OpenFile, owner: i32) -> Result<usize> {
    if owner == i32::MIN {
        return Err(Errno::EINVAL);
    }
    give_owner(thread, file, Who::find(thread, Named::from_signed(owner))?);
    Ok(0)
}

fn give_owner(thread: &Thread, file: &OpenFile, who: Who) {
    sigio::set_owner(thread, file, who);
    if let Some(Side::Here(unix)) = file.downcast::<Socket>().map(Socket::side) {
        unix.set_owner(&sigio::of(file));
    }
}

/// FIOSETOWN, FIOGETOWN and their kin, which sockets have (socket(7)).
fn owner_of_socket(thread: &Thread, file: &OpenFile, command: u32, argument: u64) -> Result<usize> {
    if matches!(command, FIOSETOWN | SIOCSPGRP) {
        return set_owner(thread, file, thread.mm().read(Va(argument))?);
    }
    thread.mm().write(Va(argument), &sigio::owner(thread, file).signed())?;
    Ok(0)
}

fn set_flags(thread: &Arc<Thread>, file: &OpenFile, flags: u32) -> Result<usize> {
    if flags & !file.flags() & O_NOATIME != 0 {
        perm::check_owner(&thread.creds(), &file.attributes()?)?;
    }
    file.set_flags(flags);
    Ok(0)
}

/// Switches O_ASYNC on or off: whether the file can tell.
fn set_async(thread: &Thread, file: &OpenFile, fd: Fd, on: bool) -> Result<bool> {
    if on == (file.flags() & O_ASYNC != 0) {
        return Ok(true);
    }
    let can_tell = sigio::switch(thread, file, fd, on)?;
    if can_tell {
        file.set_flags(file.flags() ^ O_ASYNC);
    }
    Ok(can_tell)
}

/// A call of ioctl(2).
pub struct Ioctl<'a> {
    thread: &'a Arc<Thread>,
    file: Arc<OpenFile>,
    fd: Fd,
    command: u32,
    argument: u64,
}

/// ioctl(2).
pub fn ioctl(thread: &Arc<Thread>, fd: Fd, command: u32, argument: u64) -> Result<Ioctl<'_>> {
    let file = thread.files().opened(fd)?;
    Ok(Ioctl { thread, file, fd, command, argument })
}

impl Ioctl<'_> {
    /// Does it, if it need not wait.
    pub fn attempt(self) -> Option<Result<usize>> {
        match listener::may_wait(&self.file, self.command) {
            true => None,
            false => Some(ioctl_now(&self)),
        }
    }

    /// Does it, and waits as it must.
    pub async fn complete(self) -> Result<usize> {
        match listener::may_wait(&self.file, self.command) {
            true => listener::wait(self.thread, &self.file, self.argument).await,
            false => ioctl_now(&self),
        }
    }
}

/// FS_IOC_GETFSUUID: struct fsuuid2, which is a length and as many bytes. ENOTTY where the file
/// system has none.
fn give_uuid(thread: &Thread, file: &OpenFile, at: Va) -> Result<usize> {
    let uuid = file.path.as_ref().and_then(|place| place.dentry.fs.uuid()).ok_or(Errno::ENOTTY)?;
    let mut out = [0; 17];
    out[0] = uuid.len() as u8;
    out[1..].copy_from_slice(&uuid);
    thread.mm().write_bytes(at, &out)?;
    Ok(0)
}

fn ioctl_now(call: &Ioctl<'_>) -> Result<usize> {
    let Ioctl { thread, ref file, fd, command, argument } = *call;
    let files = thread.files();
    let switch = |bit: u32| {
        let on: i32 = thread.mm().read(Va(argument))?;
        let flags = if on != 0 { file.flags() | bit } else { file.flags() & !bit };
        set_flags(thread, file, flags)
    };
    match command {
        FIOCLEX => files.set_close_on_exec(fd, true).map(|()| 0),
        FS_IOC_GETFSUUID => give_uuid(thread, file, Va(argument)),
        FS_IOC_FIEMAP => extents::fiemap(thread, file, Va(argument)),
        FIONCLEX => files.set_close_on_exec(fd, false).map(|()| 0),
        FIONBIO => switch(O_NONBLOCK),
        FIOASYNC => {
            let on = thread.mm().read::<i32>(Va(argument))? != 0;
            if set_async(thread, file, fd, on)? { Ok(0) } else { Err(Errno::ENOTTY) }
        }
        FIOSETOWN | SIOCSPGRP | FIOGETOWN | SIOCGPGRP if file.downcast::<Socket>().is_some() => {
            owner_of_socket(thread, file, command, argument)
        }
        _ => match file.downcast::<Listener>() {
            Some(listener) => listener::ioctl(thread, listener, command, argument),
            None => file.ops.ioctl(thread, file, command, argument),
        },
    }
}
