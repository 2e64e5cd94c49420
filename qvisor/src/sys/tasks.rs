//! Processes and threads other than this one: stubs, their zygote.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;

use qlib::Va;

use super::procfs;

/// Sends `signal` to thread `tid` of process `pid`.
pub fn tgkill(pid: u32, tid: u32, signal: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    match unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The signal that takes a thread out of a system call; see [`take_interrupts`]. (It also brings a
/// stub's thread out of user code, but that is another process.)
pub const INTERRUPT: i32 = libc::SIGURG;

/// Has [`INTERRUPT`] interrupt a blocking system call, and do nothing else.
///
/// # Errors
/// Those of sigaction(2).
pub fn take_interrupts() -> io::Result<()> {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: all-zero is a valid sigaction, and the handler has the signature of one without
    // SA_SIGINFO. Without SA_RESTART the interrupted call fails with EINTR.
    let rc = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigaction(INTERRUPT, &action, std::ptr::null_mut())
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The number of this thread.
pub fn gettid() -> u32 {
    rustix::thread::gettid().as_raw_pid().cast_unsigned()
}

/// Kills child process `pid`, which has not been reaped yet (so the number cannot mean another).
pub fn kill(pid: u32) {
    // SAFETY: plain numbers.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
}

/// Reaps child `pid`. Stubs send no signal at their end, so they need `__WALL` and an unaware
/// `wait` never takes one.
pub fn reap(pid: u32) {
    loop {
        let options = libc::WEXITED | libc::__WALL;
        // SAFETY: a null pointer to a siginfo_t is allowed.
        let r = unsafe { libc::waitid(libc::P_PID, pid, std::ptr::null_mut(), options) };
        if r == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return;
        }
    }
}

/// What can be read from the end of process `pid` on, with all its threads (pidfd_open(2)).
pub fn end_of(pid: u32) -> io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid as i32).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?)
}

/// True if child `pid` has ended but is not reaped.
pub fn has_ended(pid: u32) -> bool {
    // SAFETY: siginfo_t is plain data that waitid fills in.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: a valid pointer to it.
    let r = unsafe {
        libc::waitid(
            libc::P_PID,
            pid,
            &raw mut info,
            libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL,
        )
    };
    // SAFETY: waitid succeeded, so the field is valid; 0 means that nothing has ended.
    r != 0 || unsafe { info.si_pid() } != 0
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, with this status.
    Exit(i32),
    /// By this signal.
    Signal(i32),
}

/// Waits for the end of child `pid` without reaping it. Of all of it: the host lets nobody wait for
/// a process whose first thread has ended before its other threads have, each of which has then let
/// go of the memory. Says what it ended by; `None` if somebody else has reaped it.
pub fn wait_end(pid: u32) -> Option<End> {
    loop {
        // SAFETY: siginfo_t is plain data that waitid fills in.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: a valid pointer to it.
        let r = unsafe {
            libc::waitid(
                libc::P_PID,
                pid,
                &raw mut info,
                libc::WEXITED | libc::WNOWAIT | libc::__WALL,
            )
        };
        if r == 0 {
            // SAFETY: waitid succeeded, so the fields of SIGCHLD are valid.
            let status = unsafe { info.si_status() };
            return Some(match info.si_code {
                libc::CLD_EXITED => End::Exit(status),
                _ => End::Signal(status),
            });
        }
        if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return None;
        }
    }
}

/// Processor time that thread `tid` of process `pid` has used outside of the host's kernel, in
/// clock ticks; `None` if /proc does not say.
pub fn thread_user_ticks(pid: u32, tid: u32) -> Option<u64> {
    thread_stat(pid, tid, 14)?.parse().ok()
}

/// CPU time of process `pid`, all its threads and those that have ended, in nanoseconds; `None`
/// if there is no such process.
pub fn process_time_ns(pid: u32) -> Option<u64> {
    // As clock_getcpuclockid(3) makes it: ~pid << 3, with 2 for what the scheduler counts.
    const SCHEDULED: i32 = 2;
    let clock = !i32::try_from(pid).ok()? << 3 | SCHEDULED;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a plain number, and a place for the answer.
    let rc = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (rc == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// True if that thread runs, or would if it were given a processor.
pub fn is_ready_to_run(pid: u32, tid: u32) -> bool {
    thread_stat(pid, tid, 3).is_some_and(|state| state == "R")
}

/// Field `number` of its stat file, from the third on (proc(5)).
fn thread_stat(pid: u32, tid: u32, number: usize) -> Option<String> {
    let stat = std::fs::read_to_string(procfs::path(&format!("{pid}/task/{tid}/stat"))).ok()?;
    // The name in field 2 may hold anything but ends at the last parenthesis.
    let field = stat.rsplit_once(')')?.1.split_whitespace().nth(number.checked_sub(3)?)?;
    Some(field.to_owned())
}

/// The threads of process `pid`; none if /proc does not say.
pub fn threads_of(pid: u32) -> Vec<u32> {
    let Ok(list) = std::fs::read_dir(procfs::path(&format!("{pid}/task"))) else {
        return Vec::new();
    };
    list.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// True if that thread blocks `signal`; `None` if /proc does not say.
pub fn blocks_signal(pid: u32, tid: u32, signal: i32) -> Option<bool> {
    let status = std::fs::read_to_string(procfs::path(&format!("{pid}/task/{tid}/status"))).ok()?;
    is_in_mask(&status, "SigBlk:", signal)
}

/// True if `signal` is in one of the sets of a status file; `None` if that is not there.
fn is_in_mask(status: &str, set: &str, signal: i32) -> Option<bool> {
    let mask = status.lines().find_map(|line| line.strip_prefix(set))?;
    Some(u64::from_str_radix(mask.trim(), 16).ok()? >> (signal - 1) & 1 == 1)
}

/// True if process `pid` has ended, or is about to: it has been killed, or all of its threads end.
pub fn is_ending(pid: u32) -> bool {
    /// PF_EXITING of the host's kernel, in field 9 of proc_pid_stat(5).
    const EXITING: u64 = 4;
    let ends = |tid| {
        let flags = thread_stat(pid, tid, 9).and_then(|flags| flags.parse::<u64>().ok());
        flags.is_none_or(|flags| flags & EXITING != 0)
    };
    if threads_of(pid).into_iter().all(ends) {
        return true;
    }
    let Ok(status) = std::fs::read_to_string(procfs::path(&format!("{pid}/status"))) else {
        return true;
    };
    let mut pending = ["SigPnd:", "ShdPnd:"].into_iter();
    pending.any(|set| is_in_mask(&status, set, libc::SIGKILL) == Some(true))
}

/// Which of `pages` pages from `va` on process `pid` has in its host page table, as a bitmap. The
/// host fills an entry in when its page is touched, for a read together with those of its
/// neighbours in the aligned 64 KiB that are in memory too.
pub fn mapped_pages(pid: u32, va: Va, pages: u64) -> io::Result<Vec<u64>> {
    /// "Present", and "swapped", which a page on the move is too.
    const THERE: u64 = 3 << 62;
    let mut entries = vec![0; pages as usize * 8];
    let file = std::fs::File::open(procfs::path(&format!("{pid}/pagemap")))?;
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut entries, va.0 / qlib::PAGE_SIZE * 8)?;
    let mut bitmap = vec![0; (pages as usize).div_ceil(64)];
    for (page, entry) in entries.as_chunks::<8>().0.iter().enumerate() {
        bitmap[page / 64] |= u64::from(u64::from_le_bytes(*entry) & THERE != 0) << (page % 64);
    }
    Ok(bitmap)
}

/// How many mappings process `pid` has.
pub fn count_mappings(pid: u32) -> io::Result<u64> {
    let mut file = std::fs::File::open(procfs::path(&format!("{pid}/maps")))?;
    let mut block = vec![0; 64 << 10];
    let mut lines = 0;
    loop {
        match io::Read::read(&mut file, &mut block)? {
            0 => return Ok(lines),
            n => lines += block[..n].iter().filter(|b| **b == b'\n').count() as u64,
        }
    }
}
