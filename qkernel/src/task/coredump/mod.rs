//! Core dumps (core(5)): what a process leaves behind that ends by one of the signals that say so.
//!
//! The thread that takes the signal writes the file. The others are on their way to their end
//! meanwhile: each hands over its registers when it is out of user mode, and waits there
//! ([`parks`]), so that memory does not change any more.

mod elf;
mod name;
mod notes;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use linux_raw_sys::general::{AT_FDCWD, O_CREAT, O_EXCL, O_NOFOLLOW, O_WRONLY, RLIMIT_CORE};
use qlib::PAGE_SIZE;
use qlib::platform::UserRegs;

use super::run::{may_sync, start_newborn};
use super::signal::{Death, SigInfo};
use super::{Process, Thread, exit};
use crate::arch::heap;
use crate::errno::{Errno, Result};
use crate::executor;
use crate::fs::open::OpenHow;
use crate::fs::{self, OpenFile};
use crate::io::IoBuffer;
use crate::sync::{Mutex, mutex};
use crate::wait::{self, PollMask, Sleeper, WaitQueue, block_until_killed};

/// Bytes of memory that are written at a time.
const PIECE_BYTES: u64 = 64 << 10;
/// The longest kernel.core_pattern, with its end.
const PATTERN_BYTES: usize = 128;

/// kernel.core_pattern, once it was set: else it is "core".
static PATTERN: Mutex<Option<Vec<u8>>> = mutex(None);
/// kernel.core_uses_pid.
pub static USES_PID: AtomicU64 = AtomicU64::new(0);

/// kernel.core_pattern.
pub fn pattern() -> Vec<u8> {
    PATTERN.lock().clone().unwrap_or_else(|| b"core".to_vec())
}

/// Sets kernel.core_pattern. EINVAL for what is not a file's name: there are no programs and no
/// sockets here that take dumps.
pub fn set_pattern(pattern: &[u8]) -> Result {
    if pattern.starts_with(b"|") || pattern.starts_with(b"@") {
        return Err(Errno::EINVAL);
    }
    let new = pattern.get(..PATTERN_BYTES - 1).unwrap_or(pattern).to_vec();
    let old = PATTERN.lock().replace(new);
    drop(old);
    Ok(())
}

/// What is known of a thread.
struct Stopped {
    thread: Arc<Thread>,
    regs: UserRegs,
    /// The number of the call that it is in, -1 for none.
    call: i64,
    fpstate: Vec<u8>,
}

/// A dump that is being written.
#[derive(Default)]
pub struct Dump {
    /// The other threads, as far as they are there.
    stopped: Mutex<Vec<Stopped>>,
    is_over: AtomicBool,
    /// Notified when it is over.
    queue: WaitQueue,
}

/// A thread of a process is to end, and out of user mode: waits while its process is dumped.
pub async fn parks(thread: &Arc<Thread>) {
    let Some(dump) = thread.process.dump.lock().clone() else { return };
    let Ok(dump) = dump.downcast::<Dump>() else { return };
    if dump.is_over.load(Relaxed) {
        return;
    }
    if let Ok(regs) = thread.user.registers().await {
        let fpstate = thread.user.fpstate().unwrap_or_default();
        let stopped = Stopped { thread: thread.clone(), regs, call: -1, fpstate };
        dump.stopped.lock().push(stopped);
    }
    thread.process.thread_events.wake(PollMask::READ);
    while !dump.is_over.load(Relaxed) {
        wait::notified(&dump.queue, PollMask::READ, None).await;
    }
}

/// The process of `thread` ends by the signal that the thread takes, with a core dump if it may
/// have one.
pub async fn end(thread: &Arc<Thread>, death: &Death) {
    let Death { info, regs, call } = death;
    let process = &thread.process;
    let limit = process.rlimit(RLIMIT_CORE);
    let (dumpable, filter) = {
        let traits = process.traits.lock();
        (traits.dumpable == 1, traits.coredump_filter)
    };
    let pattern = pattern();
    let may_dump = dumpable && limit >= PAGE_SIZE && !pattern.is_empty() && !heap::is_low();
    let signo = info.signal() as i32;
    let Some(dump) = may_dump.then(|| begin(process, thread, signo)).flatten() else {
        return exit::group_exit(process, signo);
    };
    let first = Stopped {
        thread: thread.clone(),
        regs: *regs,
        call: *call,
        fpstate: thread.user.fpstate().unwrap_or_default(),
    };
    let is_dumped = write(&dump, first, info, &pattern, (limit, filter)).await.is_ok();
    if is_dumped && let Some(status) = &mut process.tree.lock().exiting {
        *status |= exit::DUMPED;
    }
    dump.is_over.store(true, Relaxed);
    let stopped = core::mem::take(&mut *dump.stopped.lock());
    drop(stopped);
    dump.queue.wake(PollMask::READ);
    exit::group_exit(process, signo);
}

/// Has all other threads of the process come to their end; `None` if it is ending already.
fn begin(process: &Arc<Process>, own: &Arc<Thread>, status: i32) -> Option<Arc<Dump>> {
    {
        let mut links = process.tree.lock();
        if links.exiting.is_some() {
            return None;
        }
        links.exiting = Some(status);
    }
    // They come to their end too.
    start_newborn(own);
    let dump = Arc::new(Dump::default());
    *process.dump.lock() = Some(dump.clone());
    for thread in process.each_thread().filter(|thread| !Arc::ptr_eq(thread, own)) {
        thread.kill();
    }
    Some(dump)
}

/// Writes the dump. An error: there is none.
async fn write(
    dump: &Dump,
    first: Stopped,
    info: &SigInfo,
    pattern: &[u8],
    (limit, filter): (u64, u32),
) -> Result {
    let thread = first.thread.clone();
    let process = &thread.process;
    let is_there = |other: &Arc<Thread>| {
        Arc::ptr_eq(other, &thread)
            || dump.stopped.lock().iter().any(|stopped| Arc::ptr_eq(&stopped.thread, other))
    };
    block_until_killed(&thread, &[&process.thread_events], PollMask::READ, || {
        let all = process.each_thread().all(|other| is_there(&other));
        if all { Ok(()) } else { Err(Errno::EAGAIN) }
    })
    .await?;
    let mut threads = alloc::vec![first];
    threads.append(&mut dump.stopped.lock());
    let name = name::expand(pattern, &thread, info, limit);
    let file = open(&thread, &name)?;
    let mm = thread.mm();
    let mut segments = elf::segments(&mm, filter);
    let notes = notes::all(&threads, info, &mm);
    elf::lay_out(&mut segments, &notes);
    let head = elf::head(&segments, &notes);
    let mut out = Output { file, written: 0, limit };
    // What does not fit any more is left out.
    let Ok(()) = out.write(&head, 0) else { return Ok(()) };
    let mut end = head.len() as u64;
    for segment in &segments {
        let mut done = 0;
        while done < segment.bytes {
            executor::give_way().await;
            may_sync(&thread).await;
            if thread.is_dying() {
                return Err(Errno::EINTR);
            }
            let take = PIECE_BYTES.min(segment.bytes - done);
            for (at, bytes) in elf::content(&mm, segment, done, take) {
                if out.write(&bytes, segment.offset + at).is_err() {
                    return Ok(());
                }
            }
            done += take;
        }
        end = segment.offset + segment.bytes;
    }
    // Its last pages may be holes.
    out.file.ops.truncate(&out.file, end)
}

/// Makes the file, which nobody else can have open: one that is there loses its name.
fn open(thread: &Arc<Thread>, name: &[u8]) -> Result<Arc<OpenFile>> {
    // There is none as a rule.
    let _ = fs::remove::remove(thread, AT_FDCWD, name, false);
    let flags = O_CREAT | O_WRONLY | O_NOFOLLOW | O_EXCL;
    fs::open(thread, AT_FDCWD, name, &OpenHow { flags, mode: 0o600, ..OpenHow::default() })
}

/// The file, and how much of it there may be (RLIMIT_CORE).
struct Output {
    file: Arc<OpenFile>,
    written: u64,
    limit: u64,
}

impl Output {
    fn write(&mut self, bytes: &[u8], at: u64) -> Result {
        if self.written + bytes.len() as u64 > self.limit {
            return Err(Errno::EFBIG);
        }
        let mut done = 0;
        while done < bytes.len() {
            let mut buffer = IoBuffer::kernel_const(&bytes[done..]);
            match self.file.ops.write(&self.file, &mut buffer, at + done as u64)? {
                0 => return Err(Errno::EIO),
                count => done += count,
            }
        }
        self.written += bytes.len() as u64;
        Ok(())
    }
}
