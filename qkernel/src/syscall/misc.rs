//! System calls that belong to no family, and those that are refused on purpose.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    CAP_SYS_ADMIN, CAP_SYS_TTY_CONFIG, CAP_SYSLOG, GRND_INSECURE, GRND_NONBLOCK, GRND_RANDOM,
};
use qlib::Va;

use crate::errno::{Errno, Result};
use crate::random;
use crate::task::{Thread, oom};
use crate::time::breath::{Breath, PIECE_BYTES};
use crate::wait::Sleeper;

/// getrandom(2).
pub async fn getrandom(thread: &Arc<Thread>, buf: Va, buflen: usize, flags: u32) -> Result<usize> {
    const CHUNK_BYTES: usize = 4096;
    if flags & !(GRND_NONBLOCK | GRND_RANDOM | GRND_INSECURE) != 0
        || flags & (GRND_RANDOM | GRND_INSECURE) == GRND_RANDOM | GRND_INSECURE
    {
        return Err(Errno::EINVAL);
    }
    let total = buflen.min(crate::io::MAX_TRANSFER_BYTES);
    let mm = thread.mm();
    let mut bytes = alloc::vec![0; total.min(CHUNK_BYTES)];
    let mut breath = (total > PIECE_BYTES).then(Breath::new);
    let mut done = 0;
    while done < total {
        if let Some(breath) = &mut breath {
            breath.take().await;
        }
        // Long ones are cut short by a signal, as on Linux.
        if done >= 256 && thread.is_interrupted() {
            break;
        }
        let length = (total - done).min(CHUNK_BYTES);
        random::fill(&mut bytes[..length]);
        match mm.write_bytes(buf.checked_add(done as u64).ok_or(Errno::EFAULT)?, &bytes[..length]) {
            Ok(()) => done += length,
            Err(Errno::ERESTARTNOMEM) if oom::copy_may_go_on(thread).await => {}
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// personality(2): flags that change how memory is laid out or numbers are reported are kept;
/// others than Linux's own are refused.
pub fn personality(thread: &Arc<Thread>, persona: u32) -> Result<usize> {
    const QUERY: u32 = u32::MAX;
    const DOMAIN: u32 = 0xff;
    let mut traits = thread.process.traits.lock();
    let old = traits.personality;
    if persona != QUERY {
        if persona & DOMAIN != 0 {
            return Err(Errno::EINVAL);
        }
        traits.personality = persona;
    }
    Ok(old as usize)
}

/// syslog(2): the kernel's own log is the host's business; what there is to read is empty.
pub fn syslog(thread: &Arc<Thread>, r#type: i32, _bufp: Va, len: i32) -> Result<usize> {
    let creds = thread.creds();
    match r#type {
        // SYSLOG_ACTION_READ_ALL, SYSLOG_ACTION_SIZE_BUFFER.
        3 | 10 => {}
        _ if creds.capable(CAP_SYSLOG) || creds.capable(CAP_SYS_ADMIN) => {}
        _ => return Err(Errno::EPERM),
    }
    match r#type {
        3 | 4 if len < 0 => Err(Errno::EINVAL),
        // Close, open, read what there is, unread size, size of the buffer.
        0 | 1 | 3 | 4 | 9 | 10 => Ok(0),
        _ => Err(Errno::EPERM),
    }
}

/// membarrier(2). A barrier on all threads of a process: its running threads pass through the
/// kernel's platform, which orders their memory accesses, when they are interrupted.
pub async fn membarrier(thread: &Arc<Thread>, cmd: i32, flags: u32, _cpu_id: i32) -> Result<usize> {
    const QUERY: i32 = 0;
    const GLOBAL: i32 = 1;
    const GLOBAL_EXPEDITED: i32 = 2;
    const REGISTER_GLOBAL_EXPEDITED: i32 = 4;
    const PRIVATE_EXPEDITED: i32 = 8;
    const REGISTER_PRIVATE_EXPEDITED: i32 = 16;
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    match cmd {
        QUERY => Ok((GLOBAL
            | GLOBAL_EXPEDITED
            | REGISTER_GLOBAL_EXPEDITED
            | PRIVATE_EXPEDITED
            | REGISTER_PRIVATE_EXPEDITED) as usize),
        REGISTER_GLOBAL_EXPEDITED => {
            thread.process.traits.lock().membarrier |= GLOBAL_EXPEDITED as u32;
            Ok(0)
        }
        GLOBAL_EXPEDITED => {
            let registered =
                |t: &Arc<Thread>| t.process.traits.lock().membarrier & GLOBAL_EXPEDITED as u32 != 0;
            barrier(thread, crate::task::table::threads().filter(registered)).await;
            Ok(0)
        }
        REGISTER_PRIVATE_EXPEDITED => {
            thread.process.traits.lock().membarrier |= PRIVATE_EXPEDITED as u32;
            Ok(0)
        }
        PRIVATE_EXPEDITED => {
            if thread.process.traits.lock().membarrier & PRIVATE_EXPEDITED as u32 == 0 {
                return Err(Errno::EPERM);
            }
            barrier(thread, thread.process.threads().into_iter()).await;
            Ok(0)
        }
        GLOBAL => {
            barrier(thread, crate::task::table::threads()).await;
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Has every thread of `others` that is in user mode leave it once.
async fn barrier(thread: &Arc<Thread>, others: impl Iterator<Item = Arc<Thread>>) {
    let running: Vec<_> =
        others.filter(|t| t.tid() != thread.tid() && t.user.is_in_user_mode()).collect();
    // All at once, then one after the other.
    for other in &running {
        other.user.interrupt();
    }
    for other in running {
        other.user.leaves_user_mode().await;
    }
}

/// vhangup(2).
pub fn vhangup(thread: &Arc<Thread>) -> Result<usize> {
    if !thread.creds().capable(CAP_SYS_TTY_CONFIG) {
        return Err(Errno::EPERM);
    }
    crate::ipc::tty::hang_up_session(&thread.process);
    Ok(0)
}
