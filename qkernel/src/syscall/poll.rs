//! poll(2) and select(2).

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{O_PATH, RLIMIT_NOFILE};
use qlib::Va;
use zerocopy::IntoBytes;

use crate::abi::{TimeSpec, TimeVal, abi_struct};
use crate::account;
use crate::errno::{Errno, Result};
use crate::fs::OpenFile;
use crate::fs::fdtable::MAX_FDS;
use crate::task::{SigSet, Thread, signal};
use crate::time::{self, Breath};
use crate::wait::{PollMask, Registered, Sleeper, Turn, WaitQueue, block_on};

abi_struct! {
    /// struct pollfd.
    pub struct PollFd { pub fd: i32, pub events: i16, pub revents: i16, }
}
abi_struct! {
    /// The last argument of pselect6(2).
    pub struct MaskArgument { pub mask: u64, pub size: u64, }
}

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// Not at all.
    Now,
    /// Until this time of CLOCK_MONOTONIC in nanoseconds.
    At(u64),
    /// For ever.
    Never,
}

impl Timeout {
    /// From milliseconds; negative: for ever.
    pub fn from_ms(ms: i32) -> Timeout {
        match u64::try_from(ms) {
            Ok(ms) => Timeout::from_ns(ms * 1_000_000),
            Err(_) => Timeout::Never,
        }
    }

    /// From nanoseconds.
    pub fn from_ns(ns: u64) -> Timeout {
        if ns == 0 { Timeout::Now } else { Timeout::At(time::deadline_after(ns)) }
    }

    /// What is left of it, in nanoseconds.
    fn left_ns(self) -> u64 {
        match self {
            Timeout::At(deadline) => deadline.saturating_sub(time::monotonic_ns()),
            _ => 0,
        }
    }
}

/// Takes on a signal mask for a wait, if one is given; [`reset_mask`] ends that.
pub fn set_mask(thread: &Arc<Thread>, mask: Va, size: usize) -> Result {
    if mask.0 == 0 {
        return Ok(());
    }
    if size != 8 {
        return Err(Errno::EINVAL);
    }
    let mask = SigSet(thread.mm().read::<u64>(mask)?);
    signal::swap_mask_for_wait(thread, mask);
    Ok(())
}

/// Ends what [`set_mask`] began.
pub fn reset_mask<T>(thread: &Arc<Thread>, mask: Va, result: &Result<T>) {
    if mask.0 != 0 {
        signal::restore_mask(thread, result);
    }
}

/// What waiting for a file takes, about, in bytes: itself here, its queue, the observer there.
const WATCHED_BYTES: u64 = 112;

/// A file that is waited for, and for what.
struct Watched {
    file: Arc<OpenFile>,
    mask: PollMask,
}

/// Waits until `scan` counts something. 0 at the timeout; ERESTARTSYS when interrupted.
async fn wait(
    thread: &Arc<Thread>,
    files: &[Option<Watched>],
    timeout: Timeout,
    mut scan: impl FnMut() -> usize,
) -> Result<usize> {
    let deadline = match timeout {
        Timeout::Now => return Ok(scan()),
        Timeout::At(deadline) => Some(deadline),
        Timeout::Never => None,
    };
    let mut attempt = || match scan() {
        0 => Err(Errno::EAGAIN),
        count => Ok(count),
    };
    if let Ok(count) = attempt() {
        return Ok(count);
    }
    let mask = files.iter().flatten().fold(PollMask::empty(), |all, w| all | w.mask);
    let mut queues: Vec<&WaitQueue> = account::vec_for(files.len())?;
    queues.extend(files.iter().flatten().filter_map(|w| w.file.ops.queue()));
    match block_on(thread, &queues, mask, deadline, attempt).await {
        Err(Errno::ETIMEDOUT) => Ok(0),
        result => result,
    }
}

/// More files than these are looked at in pieces of so many, between which others get the kernel.
const MANY: usize = 4096;

/// As [`wait`], for so many files that each step is taken in pieces.
async fn wait_for_many(
    thread: &Arc<Thread>,
    list: &mut [PollFd],
    files: &[Option<Watched>],
    timeout: Timeout,
) -> Result<usize> {
    let mut breath = Breath::new();
    let ready = look_at_many(list, files, &mut breath).await;
    let deadline = match timeout {
        Timeout::Now => return Ok(ready),
        _ if ready > 0 => return Ok(ready),
        Timeout::At(deadline) => Some(deadline),
        Timeout::Never => None,
    };
    let wakeup = thread.wakeup();
    let mut registered = Registered::new(files.len())?;
    for piece in files.chunks(MANY) {
        for watched in piece.iter().flatten() {
            if let Some(queue) = watched.file.ops.queue() {
                let id = queue.try_register(watched.mask, Turn::Always, wakeup.clone())?;
                registered.add(queue, id);
            }
        }
        breath.take().await;
    }
    registered.set_deadline(deadline, &wakeup);
    let result = loop {
        wakeup.clear();
        match look_at_many(list, files, &mut breath).await {
            0 => {}
            ready => break Ok(ready),
        }
        if thread.is_interrupted() {
            break Err(Errno::ERESTARTSYS);
        }
        if deadline.is_some_and(|deadline| time::monotonic_ns() >= deadline) {
            break Ok(0);
        }
        thread.sleeps();
        wakeup.wait().await;
    };
    while registered.undo(MANY) {
        breath.take().await;
    }
    result
}

async fn look_at_many(
    list: &mut [PollFd],
    files: &[Option<Watched>],
    breath: &mut Breath,
) -> usize {
    let mut ready = 0;
    for (entries, files) in list.chunks_mut(MANY).zip(files.chunks(MANY)) {
        ready += look(entries, files);
        breath.take().await;
    }
    ready
}

/// Fills in what happened to each file: how many have something.
fn look(list: &mut [PollFd], files: &[Option<Watched>]) -> usize {
    let mut ready = 0;
    for (entry, watched) in list.iter_mut().zip(files) {
        let mask = match watched {
            Some(watched) => watched.file.poll() & watched.mask,
            None if entry.fd >= 0 => PollMask::NVAL,
            None => PollMask::empty(),
        };
        entry.revents = mask.bits() as i16;
        ready += usize::from(!mask.is_empty());
    }
    ready
}

fn open_file(thread: &Thread, fd: i32) -> Option<Arc<OpenFile>> {
    thread.files().get(fd).ok().filter(|file| file.flags() & O_PATH == 0)
}

/// Polls `fds` and fills in what happened: how many have something. ERESTARTSYS when interrupted.
async fn poll_fds(thread: &Arc<Thread>, fds: Va, count: u32, timeout: Timeout) -> Result<usize> {
    if u64::from(count) > thread.process.rlimit(RLIMIT_NOFILE) || count as usize > MAX_FDS {
        return Err(Errno::EINVAL);
    }
    account::ask(u64::from(count) * WATCHED_BYTES)?;
    let mut list: Vec<PollFd> = thread.mm().read_array(fds, count as usize)?;
    let wanted = |entry: &PollFd| PollMask::from_bits_truncate(u32::from(entry.events as u16));
    let mut files: Vec<Option<Watched>> = account::vec_for(list.len())?;
    files.extend(list.iter().map(|entry| {
        let file = open_file(thread, entry.fd)?;
        Some(Watched { file, mask: wanted(entry) | PollMask::ALWAYS })
    }));
    let ready = match list.len() {
        ..=MANY => wait(thread, &files, timeout, || look(&mut list, &files)).await?,
        _ => wait_for_many(thread, &mut list, &files, timeout).await?,
    };
    let mut breath = (list.len() > MANY).then(Breath::new);
    // Only the results are stored: another thread may change the rest meanwhile.
    for (index, entry) in list.iter().enumerate() {
        let at = fds.0.wrapping_add((index * size_of::<PollFd>() + 6) as u64);
        thread.mm().write(Va(at), &entry.revents)?;
        if let Some(breath) = breath.as_mut().filter(|_| index.is_multiple_of(MANY)) {
            breath.take().await;
        }
    }
    Ok(ready)
}

/// poll(2).
pub async fn poll(thread: &Arc<Thread>, fds: Va, count: u32, timeout: i32) -> Result<usize> {
    let timeout = match signal::take_restart_deadline(thread) {
        Some(deadline) => Timeout::At(deadline),
        None => Timeout::from_ms(timeout),
    };
    match (poll_fds(thread, fds, count, timeout).await, timeout) {
        (Err(Errno::ERESTARTSYS), Timeout::At(deadline)) => {
            Err(signal::restart_until(thread, deadline))
        }
        (Err(Errno::ERESTARTSYS), _) => Err(Errno::ERESTARTNOHAND),
        (result, _) => result,
    }
}

/// ppoll(2).
pub async fn ppoll(
    thread: &Arc<Thread>,
    fds: Va,
    count: u32,
    timeout: Va,
    sigmask: Va,
    size: usize,
) -> Result<usize> {
    let wait_for = match timeout.0 {
        0 => Timeout::Never,
        _ => Timeout::from_ns(thread.mm().read::<TimeSpec>(timeout)?.to_ns()?),
    };
    set_mask(thread, sigmask, size)?;
    let result = not_restarted(poll_fds(thread, fds, count, wait_for).await);
    reset_mask(thread, sigmask, &result);
    write_rest(thread, timeout, wait_for, false);
    result
}

fn not_restarted(result: Result<usize>) -> Result<usize> {
    match result {
        Err(Errno::ERESTARTSYS) => Err(Errno::ERESTARTNOHAND),
        result => result,
    }
}

/// Stores what is left of a timeout, as Linux does; a place that cannot be written is not an error.
fn write_rest(thread: &Thread, place: Va, timeout: Timeout, is_timeval: bool) {
    if place.0 == 0 {
        return;
    }
    let left = timeout.left_ns();
    let _ = if is_timeval {
        thread.mm().write(place, &TimeVal::from_ns(left))
    } else {
        thread.mm().write(place, &TimeSpec::from_ns(left))
    };
}

const SELECT_IN: PollMask = PollMask::READ.union(PollMask::RDBAND).union(PollMask::ALWAYS);
const SELECT_OUT: PollMask = PollMask::WRITE.union(PollMask::WRBAND).union(PollMask::ERR);
const SELECT_EXCEPTIONAL: PollMask = PollMask::PRI;
const WORD_BITS: usize = 64;

/// The three sets of select(2), as bitmaps.
type Sets = [Vec<u64>; 3];

async fn select_fds(
    thread: &Arc<Thread>,
    count: i32,
    places: [Va; 3],
    timeout: Timeout,
) -> Result<usize> {
    let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?.min(MAX_FDS);
    let words = count.div_ceil(WORD_BITS);
    account::ask(count as u64 * WATCHED_BYTES)?;
    let mm = thread.mm();
    let mut wanted: Sets = Sets::default();
    for (set, place) in wanted.iter_mut().zip(places) {
        *set = match place.0 {
            0 => alloc::vec![0; words],
            _ => mm.read_array(place, words)?,
        };
    }
    let kinds = [SELECT_IN, SELECT_OUT, SELECT_EXCEPTIONAL];
    let mut fds: Vec<usize> = Vec::new();
    let mut files: Vec<Option<Watched>> = Vec::new();
    for word in 0..words {
        let mut any = wanted.iter().fold(0, |all, set| all | set[word]);
        while any != 0 {
            let bit = any.trailing_zeros() as usize;
            any &= any - 1;
            let fd = word * WORD_BITS + bit;
            if fd >= count {
                break;
            }
            let file = open_file(thread, fd as i32).ok_or(Errno::EBADF)?;
            let asked = wanted.iter().zip(kinds).filter(|(set, _)| set[word] >> bit & 1 != 0);
            let mask = asked.fold(PollMask::empty(), |all, (_, kind)| all | kind);
            fds.push(fd);
            files.push(Some(Watched { file, mask }));
        }
    }
    let mut result: Sets = [(); 3].map(|()| alloc::vec![0; words]);
    let scan = || {
        let mut ready = 0;
        for (fd, watched) in fds.iter().zip(files.iter().flatten()) {
            let mask = watched.file.poll();
            for ((found, asked), kind) in result.iter_mut().zip(&wanted).zip(kinds) {
                let (word, bit) = (fd / WORD_BITS, fd % WORD_BITS);
                if asked[word] >> bit & 1 != 0 && mask.intersects(kind) {
                    found[word] |= 1 << bit;
                    ready += 1;
                }
            }
        }
        ready
    };
    let ready = wait(thread, &files, timeout, scan).await?;
    for (set, place) in result.iter().zip(places) {
        if place.0 != 0 {
            mm.write_bytes(place, set.as_bytes())?;
        }
    }
    Ok(ready)
}

/// select(2).
pub async fn select(
    thread: &Arc<Thread>,
    count: i32,
    read: Va,
    write: Va,
    exceptional: Va,
    timeout: Va,
) -> Result<usize> {
    let wait_for = match timeout.0 {
        0 => Timeout::Never,
        _ => {
            let value = thread.mm().read::<TimeVal>(timeout)?;
            // Linux takes more than a second's worth of microseconds here.
            if value.sec < 0 || value.usec < 0 {
                return Err(Errno::EINVAL);
            }
            let whole = (value.sec as u64).saturating_mul(1_000_000_000);
            Timeout::from_ns(whole.saturating_add((value.usec as u64).saturating_mul(1000)))
        }
    };
    let result =
        not_restarted(select_fds(thread, count, [read, write, exceptional], wait_for).await);
    write_rest(thread, timeout, wait_for, true);
    result
}

/// pselect6(2).
pub async fn pselect6(
    thread: &Arc<Thread>,
    count: i32,
    read: Va,
    write: Va,
    exceptional: Va,
    timeout: Va,
    sigmask: Va,
) -> Result<usize> {
    let wait_for = match timeout.0 {
        0 => Timeout::Never,
        _ => Timeout::from_ns(thread.mm().read::<TimeSpec>(timeout)?.to_ns()?),
    };
    let mask = match sigmask.0 {
        0 => MaskArgument::default(),
        _ => thread.mm().read::<MaskArgument>(sigmask)?,
    };
    set_mask(thread, Va(mask.mask), mask.size as usize)?;
    let result =
        not_restarted(select_fds(thread, count, [read, write, exceptional], wait_for).await);
    reset_mask(thread, Va(mask.mask), &result);
    write_rest(thread, timeout, wait_for, false);
    result
}
