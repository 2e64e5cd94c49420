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
use crate::mm::{Access, AddressSpace, ProgramMemory};
use crate::task::pidfd::process_of;
use crate::task::{Process, Thread, access, run, table, userfault};
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

/// A copy between memory of the caller and that of a process.
struct Copy<'a> {
    thread: &'a Arc<Thread>,
    pid: i32,
    /// The memory of the process, and the program that it held when that was permitted.
    mm: &'a Arc<AddressSpace>,
    program: ProgramMemory,
    from: IoBuffer<'a>,
    to: IoBuffer<'a>,
}

impl Copy<'_> {
    /// True if the caller still has a right to that memory: it may have ended, or another program
    /// may have been executed.
    fn is_permitted(&self) -> bool {
        target(self.thread, self.pid).is_ok_and(|now| self.program.is_in(&now))
    }

    /// Copies as much as there is, while that is permitted.
    async fn go_on(&mut self) -> Result {
        let mut breath = Breath::new();
        while self.from.remaining() > 0 && self.to.remaining() > 0 {
            // Page by page, so that what was copied before a hole counts.
            let wanted = self.from.in_page().min(self.to.in_page());
            let start = self.from.done();
            let stored = self.from.take_vec(wanted).and_then(|bytes| self.to.put(&bytes));
            match stored {
                Ok(stored) if stored == wanted && !self.thread.is_dying() => {
                    breath.take().await;
                    // Others have had their turn.
                    if !self.is_permitted() {
                        return Ok(());
                    }
                }
                Ok(_) => return Ok(()),
                Err(error) => {
                    self.from.rewind(start);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Waits for the page at which it could not go on, if somebody else sees to that. True if it
    /// may go on.
    async fn waits(&self) -> bool {
        let read = self.from.next_missing(Access::Read).map(|missing| (missing, Access::Read));
        let write = || self.to.next_missing(Access::Write).map(|missing| (missing, Access::Write));
        let Some(((space, va), access)) = read.or_else(write) else { return false };
        let waited = userfault::wait(self.thread, &space, va, access, userfault::In::Kernel).await;
        waited.is_ok() && !self.thread.is_dying() && self.is_permitted()
    }

    /// What the call gives, when it has come to an end.
    fn settle(&self, outcome: Result) -> Result<usize> {
        match (self.to.done(), outcome) {
            (0, Err(error)) => Err(error),
            (bytes, _) => Ok(bytes),
        }
    }

    /// All of it, of memory that nobody has to be halted for.
    async fn complete(mut self) -> Result<usize> {
        loop {
            let outcome = self.go_on().await;
            if outcome.is_ok() || !self.waits().await {
                return self.settle(outcome);
            }
        }
    }

    /// All of it, to memory of another process, whose threads see it at once. They go on while the
    /// caller waits for one of them.
    async fn complete_halting(mut self) -> Result<usize> {
        loop {
            let halted = self.mm.halt(&self.thread.user).await;
            // Meanwhile it may have ended, or execute a program that the caller has no right to.
            let permitted = target(self.thread, self.pid).and_then(|now| {
                let is_same = Arc::ptr_eq(self.mm, &now) && self.program.is_in(&now);
                is_same.then_some(()).ok_or(Errno::ESRCH)
            });
            if permitted.is_err() {
                return self.settle(permitted);
            }
            let outcome = self.go_on().await;
            // Nothing is shown to anybody while the container sleeps.
            run::may_sync(self.thread).await;
            self.mm.carry_out_ops().await;
            drop(halted);
            if outcome.is_ok() || !self.waits().await {
                return self.settle(outcome);
            }
        }
    }
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
    let (to, remote) = buffers(thread, local, local_count, remote, remote_count, flags)?;
    let Some(mm) = target_of(thread, pid, &to, &remote)? else { return Ok(0) };
    let from = remote.in_space(mm.clone());
    Copy { thread, pid, mm: &mm, program: mm.program(), from, to }.complete().await
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
    let (from, remote) = buffers(thread, local, local_count, remote, remote_count, flags)?;
    let Some(mm) = target_of(thread, pid, &from, &remote)? else { return Ok(0) };
    let to = remote.in_space(mm.clone());
    let copy = Copy { thread, pid, mm: &mm, program: mm.program(), from, to };
    if Arc::ptr_eq(&mm, &thread.mm()) {
        return copy.complete().await;
    }
    copy.complete_halting().await
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
