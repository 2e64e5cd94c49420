//! Memory of another process: process_vm_readv(2), process_vm_writev(2), process_madvise(2),
//! process_mrelease(2).

use alloc::sync::Arc;

use linux_raw_sys::general::{CAP_SYS_NICE, MADV_COLD, MADV_COLLAPSE, MADV_PAGEOUT, MADV_WILLNEED};
use qlib::Va;

use super::memory;
use super::rw::{ranges, vectored, vectored_elsewhere};
use crate::creds::AccessMode;
use crate::errno::{Errno, Result};
use crate::fs::Fd;
use crate::io::IoBuffer;
use crate::mm::AddressSpace;
use crate::task::pidfd::process_of;
use crate::task::{Process, Thread, access, run, table};
use crate::time::Breath;
use crate::wait::{PollMask, Sleeper, block_on};

/// The memory of the process that `pid` (also a thread's id) names, if `thread` may look into it:
/// ESRCH, EPERM.
fn target(thread: &Thread, pid: i32) -> Result<Arc<AddressSpace>> {
    let found = thread.find_thread(u32::try_from(pid).map_err(|_| Errno::ESRCH)?)?;
    access::check(thread, &found, AccessMode::Real)?;
    Ok(found.mm())
}

/// The memory to copy from or to; `None` when nothing is to be copied, whoever `pid` is.
fn target_of(
    thread: &Thread,
    pid: i32,
    local: &IoBuffer<'_>,
    remote: &IoBuffer<'_>,
) -> Result<Option<Arc<AddressSpace>>> {
    let empty = local.remaining() == 0 || remote.remaining() == 0;
    if empty { Ok(None) } else { target(thread, pid).map(Some) }
}

/// Copies as much as there is, while the memory of the process `pid` is still `mm`, with the
/// program that it holds now.
async fn copy(
    thread: &Thread,
    (pid, mm): (i32, &Arc<AddressSpace>),
    from: &mut IoBuffer<'_>,
    to: &mut IoBuffer<'_>,
) -> Result<usize> {
    let program = mm.program();
    let mut breath = Breath::new();
    let before = to.done();
    while from.remaining() > 0 && to.remaining() > 0 {
        // Page by page, so that what was copied before a hole counts.
        let wanted = from.in_page().min(to.in_page());
        let moved = from.take_vec(wanted).and_then(|bytes| {
            let stored = to.put(&bytes)?;
            Ok(stored.min(bytes.len()))
        });
        match moved {
            Ok(moved) if moved == wanted && !thread.is_dying() => {
                breath.take().await;
                // Others have had their turn. It may have ended, or execute a program that the
                // caller has no right to.
                if !target(thread, pid).is_ok_and(|now| program.is_in(&now)) {
                    break;
                }
            }
            Err(error) if to.done() == before => return Err(error),
            _ => break,
        }
    }
    Ok(to.done() - before)
}

/// process_vm_readv(2).
pub async fn process_vm_readv(
    thread: &Arc<Thread>,
    pid: i32,
    local: Va,
    local_count: usize,
    remote: Va,
    remote_count: usize,
    flags: u64,
) -> Result<usize> {
    let (mut local, remote) = buffers(thread, local, local_count, remote, remote_count, flags)?;
    let Some(mm) = target_of(thread, pid, &local, &remote)? else { return Ok(0) };
    copy(thread, (pid, &mm), &mut remote.in_space(mm.clone()), &mut local).await
}

/// process_vm_writev(2). What is written is seen by all threads of the other process when the call
/// returns.
pub async fn process_vm_writev(
    thread: &Arc<Thread>,
    pid: i32,
    local: Va,
    local_count: usize,
    remote: Va,
    remote_count: usize,
    flags: u64,
) -> Result<usize> {
    let (mut local, remote) = buffers(thread, local, local_count, remote, remote_count, flags)?;
    let Some(mm) = target_of(thread, pid, &local, &remote)? else { return Ok(0) };
    if Arc::ptr_eq(&mm, &thread.mm()) {
        return copy(thread, (pid, &mm), &mut local, &mut remote.in_space(mm.clone())).await;
    }
    let halted = mm.halt(&thread.user).await;
    // Meanwhile it may have ended, or execute a program that the caller has no right to.
    if !Arc::ptr_eq(&mm, &target(thread, pid)?) {
        return Err(Errno::ESRCH);
    }
    let result = copy(thread, (pid, &mm), &mut local, &mut remote.in_space(mm.clone())).await;
    // Nothing is shown to anybody while the container sleeps.
    run::may_sync(thread).await;
    mm.carry_out_ops().await;
    drop(halted);
    result
}

fn buffers(
    thread: &Arc<Thread>,
    local: Va,
    local_count: usize,
    remote: Va,
    remote_count: usize,
    flags: u64,
) -> Result<(IoBuffer<'static>, IoBuffer<'static>)> {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let local = vectored(thread, local, local_count)?;
    if local.remaining() == 0 {
        return Ok((local, IoBuffer::user(thread.mm(), alloc::vec::Vec::new())));
    }
    Ok((local, vectored_elsewhere(thread, remote, remote_count)?))
}

/// process_madvise(2).
pub fn process_madvise(
    thread: &Arc<Thread>,
    pidfd: Fd,
    vectors: Va,
    count: usize,
    advice: u32,
    flags: u32,
) -> Result<usize> {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let ranges = ranges(thread, vectors, count)?;
    let process = process_of(thread, pidfd)?;
    if !matches!(advice, MADV_COLD | MADV_PAGEOUT | MADV_WILLNEED | MADV_COLLAPSE) {
        return Err(Errno::EINVAL);
    }
    let other = process.each_thread().next().ok_or(Errno::ESRCH)?;
    access::check(thread, &other, AccessMode::FileSystem).map_err(|_| Errno::EACCES)?;
    if !thread.creds().capable(CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    let mm = other.mm();
    let mut done = 0;
    for (start, length) in ranges {
        let advised = match advice {
            // Not configured, as in madvise(2).
            MADV_COLLAPSE => Err(Errno::EINVAL),
            _ => memory::hint(&mm, start, length as u64),
        };
        match advised {
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
            Ok(()) => done += length,
        }
    }
    Ok(done)
}

/// process_mrelease(2). Who is to end gives its memory back by itself: that is waited for.
pub async fn process_mrelease(thread: &Arc<Thread>, pidfd: Fd, flags: u32) -> Result<usize> {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let process = process_of(thread, pidfd)?;
    let other = process.each_thread().next().ok_or(Errno::ESRCH)?;
    let mm = other.mm();
    let is_ending = |one: &Process| one.each_thread().all(|thread| thread.is_dying());
    let mut sharing = table::processes().filter(|one| Arc::ptr_eq(&one.mm(), &mm));
    if !sharing.all(|one| is_ending(&one)) {
        return Err(Errno::EINVAL);
    }
    drop((other, mm));
    let ended = || if process.is_zombie() { Ok(0) } else { Err(Errno::EAGAIN) };
    block_on(thread, &[&process.exit_events], PollMask::READ, None, ended).await
}
