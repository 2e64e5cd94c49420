//! ioctl(2) of listeners (seccomp_unotify(2)): what a supervisor asks. What they are lies in
//! [`crate::task::listener`].

use alloc::sync::Arc;

use linux_raw_sys::general::{O_CLOEXEC, RLIMIT_NOFILE};
use linux_raw_sys::ptrace::{
    SECCOMP_ADDFD_FLAG_SEND, SECCOMP_ADDFD_FLAG_SETFD, SECCOMP_USER_NOTIF_FLAG_CONTINUE,
};
use qlib::seccomp::{ARCH, Call};
use qlib::{PAGE_SIZE, Va};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{install, open};
use crate::errno::{Errno, Result};
use crate::fs::{Fd, OpenFile};
use crate::task::Thread;
use crate::task::listener::{Answer, Listener};
use crate::wait::{PollMask, block_on};

const RECV: u32 = 0xc050_2100;
const SEND: u32 = 0xc018_2101;
const ID_VALID: u32 = 0x4008_2102;
/// The same as old headers have it.
const ID_VALID_OLD: u32 = 0x8008_2102;
const SET_FLAGS: u32 = 0x4008_2104;
/// Without direction and size, which may be any.
const ADDFD: u32 = 0x2103;
const SIZE_SHIFT: u32 = 16;
const SIZE_MASK: u32 = 0x3fff;
const DIRECTION_MASK: u32 = 0xc000_0000;
/// SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP: who is woken runs on the processor of who has woken it. That
/// is for the scheduler to say, and may be said of any listener.
const SYNC_WAKE_UP: u64 = 1;

/// struct seccomp_notif.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Notification {
    id: u64,
    pid: u32,
    flags: u32,
    nr: u32,
    arch: u32,
    ip: u64,
    args: [u64; 6],
}

/// struct seccomp_notif_resp.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Response {
    id: u64,
    val: i64,
    error: i32,
    flags: u32,
}

/// struct seccomp_notif_addfd.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct AddFd {
    id: u64,
    flags: u32,
    srcfd: u32,
    newfd: u32,
    newfd_flags: u32,
}

/// SECCOMP_GET_NOTIF_SIZES: of the notification, the response, and what a filter sees.
pub const SIZES: [u16; 3] = [
    size_of::<Notification>() as u16,
    size_of::<Response>() as u16,
    (size_of::<Notification>() - 16) as u16,
];

/// True if a request waits for a call of the program.
pub fn may_wait(file: &OpenFile, command: u32) -> bool {
    command == RECV && file.downcast::<Listener>().is_some()
}

/// A request that may wait.
pub async fn wait(thread: &Arc<Thread>, file: &OpenFile, argument: u64) -> Result<usize> {
    let listener = file.downcast::<Listener>().ok_or(Errno::ENOTTY)?;
    let attempt = || receive(thread, listener, Va(argument));
    block_on(thread, &[&listener.queue], PollMask::READ, None, attempt).await
}

/// A request, at once: EAGAIN if it has to wait.
pub fn ioctl(
    thread: &Arc<Thread>,
    listener: &Listener,
    command: u32,
    argument: u64,
) -> Result<usize> {
    let at = Va(argument);
    let mm = thread.mm();
    match command {
        RECV => receive(thread, listener, at),
        SEND => send(listener, mm.read(at)?),
        ID_VALID | ID_VALID_OLD => {
            listener.taken(mm.read(at)?).map_err(|_| Errno::ENOENT)?;
            Ok(0)
        }
        SET_FLAGS if argument & !SYNC_WAKE_UP == 0 => Ok(0),
        _ if command & !(SIZE_MASK << SIZE_SHIFT | DIRECTION_MASK) == ADDFD => {
            let size = (command >> SIZE_SHIFT & SIZE_MASK) as usize;
            if size as u64 >= PAGE_SIZE {
                return Err(Errno::EINVAL);
            }
            add_fd(thread, listener, mm.read_sized(at, size, size_of::<AddFd>())?)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// SECCOMP_IOCTL_NOTIF_RECV. EINVAL unless all of the structure is 0.
fn receive(thread: &Arc<Thread>, listener: &Listener, at: Va) -> Result<usize> {
    let mm = thread.mm();
    let given: [u8; size_of::<Notification>()] = mm.read(at)?;
    if given.iter().any(|byte| *byte != 0) {
        return Err(Errno::EINVAL);
    }
    listener.receive(|id, other, &Call { nr, ip, args }| {
        let pid = other.downcast_ref::<Thread>().map_or(0, |other| thread.number_of(other.tid()));
        mm.write(at, &Notification { id, pid, flags: 0, nr: nr as u32, arch: ARCH, ip, args })
    })?;
    Ok(0)
}

/// SECCOMP_IOCTL_NOTIF_SEND.
fn send(listener: &Listener, response: Response) -> Result<usize> {
    let Response { id, val, error, flags } = response;
    let answer = match flags {
        0 if error != 0 => Answer::Returns(error.into()),
        0 => Answer::Returns(val),
        SECCOMP_USER_NOTIF_FLAG_CONTINUE if error == 0 && val == 0 => Answer::Made,
        _ => return Err(Errno::EINVAL),
    };
    listener.answer(id, answer)?;
    Ok(0)
}

/// SECCOMP_IOCTL_NOTIF_ADDFD: the number of the descriptor that the program has got.
fn add_fd(thread: &Arc<Thread>, listener: &Listener, request: AddFd) -> Result<usize> {
    let AddFd { id, flags, srcfd, newfd, newfd_flags } = request;
    let is_set = flags & SECCOMP_ADDFD_FLAG_SETFD != 0;
    if newfd_flags & !O_CLOEXEC != 0
        || flags & !(SECCOMP_ADDFD_FLAG_SETFD | SECCOMP_ADDFD_FLAG_SEND) != 0
        || newfd != 0 && !is_set
    {
        return Err(Errno::EINVAL);
    }
    let file = thread.files().opened(srcfd as Fd)?;
    let target = listener.taken(id)?.downcast::<Thread>().map_err(|_| Errno::ENOENT)?;
    let close_on_exec = newfd_flags & O_CLOEXEC != 0;
    let fd = if is_set {
        let limit = target.process.rlimit(RLIMIT_NOFILE);
        let fd = newfd as Fd;
        if let Some(replaced) = target.files().replace(fd, file, close_on_exec, limit)? {
            open::closed(&target, &replaced);
        }
        fd
    } else {
        install::fd(&target, file, close_on_exec)?
    };
    if flags & SECCOMP_ADDFD_FLAG_SEND != 0 {
        // What was closed may have been the listener itself: then the call has its answer.
        let _ = listener.answer(id, Answer::Returns(fd.into()));
    }
    Ok(fd as usize)
}
