//! POSIX message queues: the calls behind mq_open(3), mq_unlink(3), mq_send(3), mq_receive(3),
//! mq_notify(3), mq_getattr(3) and mq_setattr(3).

use alloc::boxed::Box;
use alloc::sync::Arc;

use linux_raw_sys::general::{O_NONBLOCK, SIGEV_NONE, SIGEV_SIGNAL, SIGEV_THREAD};
use qlib::Va;

use super::timers::SigEvent;
use super::{install, open, socket};
use crate::abi::TimeSpec;
use crate::account;
use crate::errno::{Errno, Result};
use crate::fs::{Fd, OpenFile};
use crate::ipc::mqueue::{self, How, MOST_PRIORITIES, MqAttr, OpenQueue, Queue};
use crate::net::{Family, HostSocket};
use crate::task::{Thread, oom};
use crate::time::Clock;

const LAST_SIGNAL: u32 = 64;
/// What the C library has sent to its own socket for SIGEV_THREAD: so many bytes, the last of which
/// says what has happened (NOTIFY_COOKIE_LEN and the like in linux/mqueue.h).
const COOKIE_BYTES: usize = 32;
const WOKEN_UP: u8 = 1;
const REMOVED: u8 = 2;

/// The open queue behind a descriptor, which is open for reading or writing. EBADF.
fn queue_of(
    thread: &Thread,
    fd: Fd,
    is_open: fn(&OpenFile) -> bool,
) -> Result<(Arc<OpenFile>, Arc<Queue>)> {
    let file = thread.files().opened(fd)?;
    let queue = file.downcast::<OpenQueue>().map(|open| open.0.clone()).ok_or(Errno::EBADF)?;
    if is_open(&file) { Ok((file, queue)) } else { Err(Errno::EBADF) }
}

/// A time on CLOCK_REALTIME as a deadline on CLOCK_MONOTONIC; `None` without a pointer.
fn deadline(thread: &Thread, timeout: Va) -> Result<Option<u64>> {
    if timeout.0 == 0 {
        return Ok(None);
    }
    let at_ns = thread.mm().read::<TimeSpec>(timeout)?.to_ns()?;
    Ok(Some(Clock::Realtime.to_monotonic_ns(at_ns)))
}

/// mq_open(2).
pub fn mq_open(thread: &Arc<Thread>, name: Va, oflag: u32, mode: u32, attr: Va) -> Result<usize> {
    let attr = match attr.0 {
        0 => None,
        _ => Some(thread.mm().read::<MqAttr>(attr)?),
    };
    let name = open::path_at(thread, name)?;
    let (file, is_new) = mqueue::open(thread, &name, oflag, mode, attr.as_ref())?;
    // Queues are closed by execve(2), as on Linux.
    install::one(thread, file, true).inspect_err(|_| {
        // Whoever tries again finds what there was.
        if is_new {
            let _ = mqueue::unlink(thread, &name);
        }
    })
}

/// mq_unlink(2).
pub fn mq_unlink(thread: &Arc<Thread>, name: Va) -> Result<usize> {
    mqueue::unlink(thread, &open::path_at(thread, name)?).map(|()| 0)
}

/// mq_timedsend(2).
pub async fn mq_timedsend(
    thread: &Arc<Thread>,
    mqdes: Fd,
    msg_ptr: Va,
    msg_len: u64,
    msg_prio: u32,
    abs_timeout: Va,
) -> Result<usize> {
    let deadline_ns = deadline(thread, abs_timeout)?;
    if msg_prio >= MOST_PRIORITIES {
        return Err(Errno::EINVAL);
    }
    let (file, queue) = queue_of(thread, mqdes, OpenFile::is_writable)?;
    if msg_len > queue.message_bytes() {
        return Err(Errno::EMSGSIZE);
    }
    account::ask_for::<u8>(msg_len as usize)?;
    let mut bytes = alloc::vec![0; msg_len as usize];
    thread.mm().read_bytes(msg_ptr, &mut bytes)?;
    let may_wait = !file.is_nonblocking();
    queue.send(thread, (msg_prio, bytes), may_wait, deadline_ns).await.map(|()| 0)
}

/// mq_timedreceive(2).
pub async fn mq_timedreceive(
    thread: &Arc<Thread>,
    mqdes: Fd,
    msg_ptr: Va,
    msg_len: u64,
    msg_prio: Va,
    abs_timeout: Va,
) -> Result<usize> {
    let deadline_ns = deadline(thread, abs_timeout)?;
    let (file, queue) = queue_of(thread, mqdes, OpenFile::is_readable)?;
    if msg_len < queue.message_bytes() {
        return Err(Errno::EMSGSIZE);
    }
    let may_wait = !file.is_nonblocking();
    let (priority, bytes) = queue.receive(thread, may_wait, deadline_ns).await?;
    let store = || {
        if msg_prio.0 != 0 {
            thread.mm().write(msg_prio, &priority)?;
        }
        thread.mm().write_bytes(msg_ptr, &bytes)
    };
    // It is in the queue no more, so the call must not begin anew.
    loop {
        match store() {
            Err(Errno::ERESTARTNOMEM) if oom::copy_may_go_on(thread).await => {}
            result => return result.map(|()| bytes.len()),
        }
    }
}

/// How the C library's thread is told by what it reads from a socket of its own: `event.signo`.
fn by_socket(thread: &Thread, event: &SigEvent) -> Result<How> {
    let mut cookie = [0; COOKIE_BYTES];
    thread.mm().read_bytes(Va(event.value), &mut cookie)?;
    let file = socket::file(thread, event.signo)?;
    netlink_of(&file).ok_or(Errno::EINVAL)?;
    // Who closes it, or ends, is told no more.
    let socket = Arc::downgrade(&file);
    Ok(How::Thread(Box::new(move |is_message| {
        let mut packet = cookie;
        packet[COOKIE_BYTES - 1] = if is_message { WOKEN_UP } else { REMOVED };
        if let Some(host) = socket.upgrade().as_deref().and_then(netlink_of) {
            // It has much unread, and its thread does not look.
            let _ = host.deliver(packet.to_vec());
        }
    })))
}

/// The netlink socket behind a file.
fn netlink_of(file: &OpenFile) -> Option<&HostSocket> {
    match &socket::of(file).ok()?.family {
        Family::Host(host) if host.is_netlink() => Some(host),
        _ => None,
    }
}

/// mq_notify(2).
pub fn mq_notify(thread: &Arc<Thread>, mqdes: Fd, sevp: Va) -> Result<usize> {
    let how = match sevp.0 {
        0 => None,
        _ => {
            let event: SigEvent = thread.mm().read(sevp)?;
            Some(match event.notify as u32 {
                SIGEV_NONE => How::Nobody,
                SIGEV_SIGNAL if event.signo as u32 <= LAST_SIGNAL => {
                    How::Signal(event.signo as u32, event.value)
                }
                SIGEV_THREAD => by_socket(thread, &event)?,
                _ => return Err(Errno::EINVAL),
            })
        }
    };
    let (_, queue) = queue_of(thread, mqdes, |_| true)?;
    queue.notify(&thread.process, how).map(|()| 0)
}

/// mq_getsetattr(2).
pub fn mq_getsetattr(thread: &Arc<Thread>, mqdes: Fd, newattr: Va, oldattr: Va) -> Result<usize> {
    let new = match newattr.0 {
        0 => None,
        _ => Some(thread.mm().read::<MqAttr>(newattr)?.flags),
    };
    if new.is_some_and(|flags| flags & !i64::from(O_NONBLOCK) != 0) {
        return Err(Errno::EINVAL);
    }
    let (file, queue) = queue_of(thread, mqdes, |_| true)?;
    let flags = file.flags();
    let old = MqAttr { flags: i64::from(flags & O_NONBLOCK), ..queue.attr() };
    if let Some(new) = new {
        file.set_flags(flags & !O_NONBLOCK | new as u32);
    }
    if oldattr.0 != 0 {
        thread.mm().write(oldattr, &old)?;
    }
    Ok(0)
}
