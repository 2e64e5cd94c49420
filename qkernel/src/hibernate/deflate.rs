//! Deflate: let what has just come be served, pause, write application memory to the store, give
//! everything free back to the host.
//!
//! Nothing is changed before everything has been written, so a failure or a wake on the way loses
//! nothing. The first time all pages go to the swap file and their entries are marked; from the
//! second time on the pages that are present are the recorded working set: they go to the REAP
//! file, are moved to dense runs of frames, and keep their entries, but for those that were
//! prefetched and not used for some sleeps ([`crate::mm::swap::Usage`]), which go to the swap file.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;

use qlib::control::{SleepCause, Timers, WakeCause};
use qlib::host::Op;

use super::busy::{self, Busy};
use super::inflate;
use super::keep::Keep;
use super::pages::{Aging, Pages, yield_to_events};
use super::quiesce::{self, Patience};
use super::state::{Input, State};
use super::{background, history, join, stats, step, told};
use crate::errno::{Errno, Result};
use crate::fs::hostfs::handle_cache;
use crate::fs::{Shmem, dentry};
use crate::host::Call;
use crate::mm::swap::{kept, slots};
use crate::mm::thread::shed::stop_all;
use crate::mm::{AddressSpace, UserThread, frames, space};
use crate::net::unix::rights;
use crate::pieces::Pieces;
use crate::sync::{Mutex, mutex};
use crate::task::pause::{self, Held, Reason};
use crate::time::Rest;
use crate::{arch, executor, input, time};

/// Why a deflate did not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// EBUSY: it is not idle; EINTR: something woke it meanwhile; else the store's.
    pub errno: Errno,
    /// A line for the user.
    pub reason: String,
}

impl Failure {
    /// It is not idle.
    pub(super) fn busy(busy: &Busy) -> Failure {
        Failure { errno: Errno::EBUSY, reason: format!("it is not idle: {busy}; it stays awake") }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        let why = match errno {
            Errno::EINTR => "something woke it while it was going to sleep",
            Errno::ENOSPC => "the disk of the swap store is full: free some space",
            Errno::ENOMEM => "there is no memory left for the books of a sleep: end some processes",
            Errno::EDQUOT => "the swap store's quota is used up: raise it",
            Errno::EROFS => "the file system of the swap store is read-only",
            other => {
                let reason = format!("the swap store failed ({}): it stays awake", other.name());
                return Failure { errno, reason };
            }
        };
        Failure { errno, reason: format!("{why}; it stays awake") }
    }
}

/// Why the sandbox goes to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// SIGSTOP: somebody wants it to sleep until something comes, when it is idle.
    Asked(Patience),
    /// Nothing happened for long enough. Nobody may notice it: timers go off as ever.
    Idle,
    /// The same while the host is short of memory.
    Pressure,
}

impl Why {
    fn patience(self) -> Patience {
        match self {
            Why::Asked(patience) => patience,
            Why::Idle | Why::Pressure => Patience { ns: 0, force: false, stay: false },
        }
    }

    fn cause(self) -> SleepCause {
        match self {
            Why::Asked(_) => SleepCause::Asked,
            Why::Idle => SleepCause::Idle,
            Why::Pressure => SleepCause::Pressure,
        }
    }

    /// What timers do in such a sleep. Who waits for an answer may be waiting for one.
    pub(super) fn rest_of_timers(self) -> Rest {
        match (self, *TIMERS.lock()) {
            (_, Timers::Wake) | (Why::Idle | Why::Pressure, Timers::Usual) => Rest::UntilDue,
            _ if busy::owes_an_answer() => Rest::UntilDue,
            _ => Rest::Whole,
        }
    }
}

/// How often one that is forced is tried when something comes in the middle each time.
const TRIES: u32 = 8;
/// Half of the time from the first such moment to the next try; it doubles from one to the next.
const FIRST_REST_NS: u64 = 1_000_000;

/// What timers do while it sleeps, as its maker wants it.
pub(super) static TIMERS: Mutex<Timers> = mutex(Timers::Usual);
/// The same for the sleep that begins, or is under way.
static REST: Mutex<Rest> = mutex(Rest::Whole);

/// What timers do while it sleeps.
pub fn let_timers(timers: Timers) {
    *TIMERS.lock() = timers;
}

/// What timers do in this sleep.
pub(super) fn rest_of_timers() -> Rest {
    *REST.lock()
}

/// Hibernates the sandbox. A task of its own calls this; on success nothing runs any more until a
/// wake, which comes at once where it was forced. Who comes while another deflate is under way
/// [joins](super::join) it. EINTR when it is [called off](inflate::called_off), which it had been
/// so often when the sleep was asked for.
pub async fn deflate(why: Why, called_off: u64) -> core::result::Result<(), Failure> {
    let asked_ns = time::monotonic_ns();
    let mut tries = 0;
    // Something that came in the middle is served, and then it sleeps. Each try costs it something.
    let mut is_put_off = |failure: &Failure, left: Patience| {
        tries += 1;
        let is_put_off = failure.errno == Errno::EINTR && matches!(why, Why::Asked(_));
        let goes_on = is_put_off && (left.ns > 0 || left.force && tries < TRIES);
        goes_on.then_some(FIRST_REST_NS << tries.min(TRIES))
    };
    loop {
        if inflate::called_off() != called_off {
            return Err(Errno::EINTR.into());
        }
        let outcome = match super::current() {
            State::Hibernated => {
                let rest = why.rest_of_timers();
                *REST.lock() = rest;
                time::rest(rest);
                return Ok(());
            }
            State::Awake { .. } => {
                let patience = why.patience().since(asked_ns);
                if kept::is_any() {
                    // An image is being made of what it was.
                    if matches!(why, Why::Idle | Why::Pressure) {
                        return Err(Failure::busy(&Busy::Image));
                    }
                    // Who makes another image waits for the end of the first.
                    let deadline_ns = time::deadline_after(patience.ns);
                    kept::until_none((!patience.stay).then_some(deadline_ns)).await;
                    if kept::is_any() && !patience.force {
                        return Err(Failure::busy(&Busy::Image));
                    }
                    kept::take_back();
                    kept::until_none(None).await;
                    continue;
                }
                let attempt = join::begin();
                let outcome = deflate_awake(why, patience).await;
                join::end(&attempt, &outcome);
                outcome
            }
            State::Settling { .. } | State::Deflating { .. } | State::Inflating => {
                let Some(outcome) = join::join(why.patience().since(asked_ns)).await else {
                    let reason = "it is changing its state already: try again".into();
                    return Err(Failure { errno: Errno::EBUSY, reason });
                };
                let is_left = why.patience().since(asked_ns).is_left();
                match outcome {
                    // Its timers do what this sleep wants of them, if it lasts.
                    Ok(()) if super::current() == State::Hibernated => continue,
                    // Whoever waits for longer, or forces it, tries again.
                    Err(Failure { errno: Errno::EBUSY, .. }) if is_left => continue,
                    outcome => outcome,
                }
            }
        };
        let Err(failure) = outcome else { return Ok(()) };
        match is_put_off(&failure, why.patience().since(asked_ns)) {
            Some(rest_ns) => time::pass(rest_ns).await,
            None => return Err(failure),
        }
    }
}

/// The same of a sandbox that is awake.
async fn deflate_awake(why: Why, patience: Patience) -> core::result::Result<(), Failure> {
    step(Input::Stop);
    background::stop();
    let mut begin_ns = 0;
    let held_bytes = history::ram_held();
    match attempt(why, patience, &mut begin_ns).await {
        Ok(left) => {
            stats::DEFLATES.fetch_add(1, Relaxed);
            stats::DEFLATES_IDLE.fetch_add(u64::from(why == Why::Idle), Relaxed);
            stats::DEFLATES_PRESSURE.fetch_add(u64::from(why == Why::Pressure), Relaxed);
            stats::LAST_DEFLATE_NS.store(time::elapsed_ns(begin_ns), Relaxed);
            history::slept(why.cause(), held_bytes);
            // Threads stay held: entries name frames that the host has back now, and which the wake
            // fills.
            step(Input::Deflated);
            told::fell_asleep();
            if left.is_some() && !patience.stay {
                inflate::wake(WakeCause::Unfinished);
            }
            Ok(())
        }
        Err(failure) => {
            stats::DEFLATES_FAILED.fetch_add(1, Relaxed);
            step(Input::Abandoned);
            pause::resume(Reason::Sleep);
            Err(failure)
        }
    }
}

/// What there was left to do when it began.
async fn attempt(
    why: Why,
    patience: Patience,
    begin_ns: &mut u64,
) -> core::result::Result<Option<Busy>, Failure> {
    // Sockets in flight that nobody can receive any more are memory too, and so are names that
    // nobody asks for. What that wakes is served before the sleep.
    rights::collect();
    dentry::age();
    let left = quiesce::quiesce(&Held::intend(Reason::Sleep), patience).await?;
    *REST.lock() = why.rest_of_timers();
    step(Input::Settled);
    *begin_ns = time::monotonic_ns();
    // System calls that were about to end do so now, fork(2) in some steps: from here on, until the
    // wake, nobody but this task looks at memory or changes it, also when it lets other events in
    // (memory comes back to somebody who waits for it).
    let held = loop {
        let held = pause::pause(Reason::Sleep).await?;
        yield_to_events(&held).await?;
        if !pause::is_stirred() {
            break held;
        }
    };
    executor::hold_threads();
    let spaces = AddressSpace::all();
    // A wake waits for the end of this: what comes off the platform and what is made anew may not
    // find room beside each other.
    let kept = executor::keep_held();
    let stored = match hide(&spaces, &held).await {
        Ok(()) => store(&spaces, patience, &held).await,
        Err(error) => Err(error),
    };
    if let Err(error) = stored {
        gone().await;
        return Err(error.into());
    }
    drop(kept);
    input::begin_life();
    // From here on nothing fails. Windows come back by themselves at the next touch.
    handle_cache::give_up_all();
    let _ = Call::new(Op::WindowsRelease).run();
    drop(spaces);
    slots::give_back();
    release_free();
    Ok(left)
}

/// Counts the pages that have left the working set, and those that are in it.
fn note_plan(left: u64, set: u64) {
    stats::REAP_LEFT.fetch_add(left, Relaxed);
    stats::WORKING_SET_PAGES.store(set, Relaxed);
}

/// Writes the pages of memory objects, and keeps all others for whoever makes an image; false if
/// there may not be the memory for that.
async fn keep(
    spaces: &[Arc<AddressSpace>],
    objects: &Pieces<Arc<Shmem>>,
    aging: Aging,
    held: &Held,
) -> Result<bool> {
    let pages = Pages::of_objects(spaces, objects)?;
    let Ok(keep) = Keep::collect(spaces, &pages, aging) else { return Ok(false) };
    let places = keep.reserve()?;
    gone().await;
    held.still()?;
    let plan = pages.write(aging, keep.set(), held).await?;
    note_plan(plan.left + keep.left(), plan.set_pages() + keep.set().len() as u64);
    keep.commit(places);
    pages.commit(plan, spaces, objects);
    Ok(true)
}

/// Puts the pages of hidden spaces into the store, or keeps them for an image. When this succeeds
/// nothing of them is mapped any more, and nothing has come in between since all was written.
async fn store(spaces: &[Arc<AddressSpace>], patience: Patience, held: &Held) -> Result {
    held.still()?;
    let objects = crate::fs::memory_objects()?;
    let is_first = slots::used() == 0 && stats::DEFLATES.load(Relaxed) == 0;
    let aging = Aging { is_first, life_counts: super::life_counts() };
    if !(patience.stay && keep(spaces, &objects, aging, held).await?) {
        let pages = Pages::collect(spaces, &objects)?;
        gone().await;
        held.still()?;
        let plan = pages.write(aging, &Pieces::new(), held).await?;
        note_plan(plan.left, plan.set_pages());
        pages.commit(plan, spaces, &objects);
    }
    Ok(())
}

/// Hides all pages from user code, none of which runs.
async fn hide(spaces: &[Arc<AddressSpace>], held: &Held) -> Result {
    for mm in spaces {
        mm.hide_all();
        executor::give_way().await;
        held.still()?;
    }
    if sheds() {
        return shed(spaces, held).await;
    }
    for mm in spaces {
        unmap_from_user(mm).await?;
    }
    Ok(())
}

/// True if threads and address spaces cost the host something besides guest memory: a sleeping
/// sandbox has none at the platform.
fn sheds() -> bool {
    arch::boot().host_bytes_per_process > 0
}

/// Has the platform end all user threads and address spaces: it makes those anew that go on after
/// the wake. What they had mapped is [`gone`] some time later: nobody waits for that meanwhile, as
/// a thread that has been stopped and is not resumed sees nothing of it.
async fn shed(spaces: &[Arc<AddressSpace>], held: &Held) -> Result {
    for mm in spaces {
        stop_all(&mm.threads()).await;
    }
    held.still()?;
    for mm in spaces {
        mm.shed();
        mm.forget_ops();
    }
    Ok(())
}

/// Waits until nothing is mapped any more of what was [`shed`].
async fn gone() {
    if sheds() {
        space::until_gone().await;
    }
}

/// Has the platform unmap what a space [hides](hide).
async fn unmap_from_user(mm: &Arc<AddressSpace>) -> Result {
    // A thread may end before its turn comes; when none is left, nobody sees the pages.
    while let Some(thread) = carrier(mm) {
        match thread.flush(mm).await {
            Err(Errno::ESRCH) => {}
            result => return result,
        }
    }
    Ok(())
}

/// A thread that can carry operations for a space out. Not one that has not run yet, if there is
/// another: the platform may make it only when its creator goes on.
fn carrier(mm: &AddressSpace) -> Option<Arc<UserThread>> {
    let threads = mm.threads().into_iter().filter(|thread| !thread.is_dead());
    threads.max_by_key(|thread| thread.has_run())
}

/// Gives all free memory back to the host: user frames, kernel heap, whole blocks.
pub fn release_free() {
    frames::release_free();
    arch::heap::HEAP.free_ranges(&mut |ranges| arch::release(ranges).is_ok());
    arch::heap::release_blocks();
}
