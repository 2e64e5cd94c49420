//! epoll(7).

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, O_PATH, O_RDWR,
};
use qlib::Va;

use super::{install, poll};
use crate::abi::TimeSpec;
use crate::errno::{Errno, Result};
use crate::fs::OpenFile;
use crate::ipc::epoll::{Epoll, Fired, Round};
use crate::task::Thread;
use crate::wait::{PollMask, block_on};

/// Bytes of struct epoll_event, which is packed on x86-64.
const EVENT_BYTES: usize = 12;
/// The most events that one call can ask for.
const MAX_EVENTS: i32 = i32::MAX / EVENT_BYTES as i32;

/// epoll_create(2).
pub fn epoll_create(thread: &Arc<Thread>, size: u32) -> Result<usize> {
    if size as i32 <= 0 {
        return Err(Errno::EINVAL);
    }
    epoll_create1(thread, 0)
}

/// epoll_create1(2).
pub fn epoll_create1(thread: &Arc<Thread>, flags: u32) -> Result<usize> {
    if flags & !EPOLL_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    install::one(thread, OpenFile::new(Epoll::new(), O_RDWR), flags & EPOLL_CLOEXEC != 0)
}

/// epoll_ctl(2).
pub fn epoll_ctl(thread: &Arc<Thread>, epfd: i32, op: u32, fd: i32, event: Va) -> Result<usize> {
    let (events, data) = if op == EPOLL_CTL_DEL {
        (0, 0)
    } else {
        let raw = thread.mm().read::<[u8; EVENT_BYTES]>(event)?;
        let (events, data) = raw.split_at(4);
        (
            u32::from_ne_bytes(events.try_into().unwrap_or_default()),
            u64::from_ne_bytes(data.try_into().unwrap_or_default()),
        )
    };
    let files = thread.files();
    let (epoll, file) = (files.get(epfd)?, files.get(fd)?);
    if (epoll.flags() | file.flags()) & O_PATH != 0 {
        return Err(Errno::EBADF);
    }
    if file.ops.queue().is_none() {
        return Err(Errno::EPERM);
    }
    if Arc::ptr_eq(&epoll, &file) {
        return Err(Errno::EINVAL);
    }
    let epoll = epoll.downcast::<Epoll>().ok_or(Errno::EINVAL)?;
    match op {
        EPOLL_CTL_ADD => epoll.add(fd, &file, events, data)?,
        EPOLL_CTL_MOD => epoll.modify(fd, &file, events, data)?,
        EPOLL_CTL_DEL => epoll.remove(fd, &file)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// epoll_wait(2).
pub async fn epoll_wait(
    thread: &Arc<Thread>,
    epfd: i32,
    events: Va,
    maxevents: i32,
    timeout: i32,
) -> Result<usize> {
    wait(thread, epfd, events, maxevents, poll::Timeout::from_ms(timeout)).await
}

/// epoll_pwait(2).
pub async fn epoll_pwait(
    thread: &Arc<Thread>,
    epfd: i32,
    events: Va,
    maxevents: i32,
    timeout: i32,
    sigmask: Va,
    size: usize,
) -> Result<usize> {
    poll::set_mask(thread, sigmask, size)?;
    let result = wait(thread, epfd, events, maxevents, poll::Timeout::from_ms(timeout)).await;
    poll::reset_mask(thread, sigmask, &result);
    result
}

/// epoll_pwait2(2).
pub async fn epoll_pwait2(
    thread: &Arc<Thread>,
    epfd: i32,
    events: Va,
    maxevents: i32,
    timeout: Va,
    sigmask: Va,
    size: usize,
) -> Result<usize> {
    let timeout = match timeout.0 {
        0 => poll::Timeout::Never,
        _ => poll::Timeout::from_ns(thread.mm().read::<TimeSpec>(timeout)?.to_ns()?),
    };
    poll::set_mask(thread, sigmask, size)?;
    let result = wait(thread, epfd, events, maxevents, timeout).await;
    poll::reset_mask(thread, sigmask, &result);
    result
}

async fn wait(
    thread: &Arc<Thread>,
    epfd: i32,
    events: Va,
    maxevents: i32,
    timeout: poll::Timeout,
) -> Result<usize> {
    if maxevents <= 0 || maxevents > MAX_EVENTS {
        return Err(Errno::EINVAL);
    }
    let file = thread.files().get(epfd)?;
    let epoll = file.downcast::<Epoll>().ok_or(if file.flags() & O_PATH != 0 {
        Errno::EBADF
    } else {
        Errno::EINVAL
    })?;
    let max = maxevents as usize;
    let collect = || {
        let collected = epoll.collect(max);
        if collected.0.is_empty() { Err(Errno::EAGAIN) } else { Ok(collected) }
    };
    let deadline = match timeout {
        poll::Timeout::Now => {
            return collect().map_or(Ok(0), |first| store_all(thread, epoll, events, max, first));
        }
        poll::Timeout::At(deadline) => Some(deadline),
        poll::Timeout::Never => None,
    };
    match block_on(thread, &[epoll.events()], PollMask::READ, deadline, collect).await {
        Ok(first) => store_all(thread, epoll, events, max, first),
        Err(Errno::ETIMEDOUT) => Ok(0),
        // signal(7): never restarted.
        Err(Errno::ERESTARTSYS) => Err(Errno::EINTR),
        Err(error) => Err(error),
    }
}

/// Stores what was collected first, and what else there is in that round, piece by piece.
fn store_all(
    thread: &Thread,
    epoll: &Epoll,
    events: Va,
    max: usize,
    (mut fired, mut round): (Vec<Fired>, Round),
) -> Result<usize> {
    let mut stored = 0;
    loop {
        let place = Va(events.0.wrapping_add((stored * EVENT_BYTES) as u64));
        match store(thread, epoll, place, &fired) {
            Ok(count) => stored += count,
            // What could not be told of stays ready.
            Err(_) if stored > 0 => return Ok(stored),
            Err(error) => return Err(error),
        }
        if stored == max || round.is_over() {
            return Ok(stored);
        }
        fired = epoll.collect_more(max - stored, &mut round);
    }
}

fn store(thread: &Thread, epoll: &Epoll, events: Va, fired: &[Fired]) -> Result<usize> {
    let mut bytes = Vec::with_capacity(fired.len() * EVENT_BYTES);
    for event in fired {
        bytes.extend_from_slice(&event.events.to_ne_bytes());
        bytes.extend_from_slice(&event.data.to_ne_bytes());
    }
    if let Err(error) = thread.mm().write_bytes(events, &bytes) {
        epoll.give_back(fired);
        return Err(error);
    }
    Ok(fired.len())
}
