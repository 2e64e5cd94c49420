//! Guest memory used up: what is only kept to be fast goes first, then what was reserved and never
//! touched, then a process is killed.
//!
//! # Who waits for whom
//!
//! A thread comes here with a fault that found no frame, or with a system call or fault while the
//! kernel heap is *low* ([`crate::arch::heap`]), before the call has begun: it holds nothing then.
//! It stays in [`relieve`] until there is memory again, or until it is to die itself.
//!
//! What it holds for a while is its own frozen address space, in [`take_back_untouched`], or others
//! that it has halted one by one, in [`lost::unmap`], and then it waits for the platform only: for
//! threads of that space that leave user mode or carry out operations. That needs no memory and
//! nobody else's task. It waits for another process
//! in [`relieve`] alone, where it holds nothing, with a deadline, and its own end wakes it
//! ([`block_until_killed`]).
//!
//! So whoever is killed ends: its threads in user mode are interrupted, those in system calls are
//! woken (each wait for something but the platform ends for a dying thread), those in here return.
//! What they allocate on their way out comes from the reserve. Should one not end all the same (a
//! disk that does not answer), another is killed at the deadline. Pid 1 is last; if even its end
//! does not come, the sandbox ends itself. Each step kills one more of finitely many, and a new
//! process cannot be made while memory is low.

use alloc::collections::BTreeSet;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use linux_raw_sys::general::SIGKILL;
use qlib::PAGE_SIZE;
use qlib::host::Op;
use qlib::pagetable::Pte;

use super::{Process, Thread, exit, lost, pause, run, seccomp, share, table, userfault};
use crate::account;
use crate::arch::{self, heap};
use crate::errno::{Errno, Result};
use crate::fs::dentry;
use crate::host::Call;
use crate::klog;
use crate::mm::committed::Committed;
use crate::mm::swap::kept;
use crate::mm::{frames, reclaim, space};
use crate::sync::{Mutex, mutex};
use crate::time;
use crate::urgent;
use crate::wait::{self, PollMask, Sleeper, block_until_killed_or};

/// How long a victim has before another one is killed. Every step of its end starts this anew. As
/// long as nothing comes of that it doubles, up to eight times.
const PATIENCE_NS: u64 = 100_000_000;
/// The same before pid 1 is killed, with which the container ends, or a small process that has just
/// come by `quark exec`.
const PATIENCE_BEFORE_LAST_NS: u64 = 2_000_000_000;
/// The most that somebody waits before that, whatever is freed meanwhile: what comes and goes by
/// `quark exec` frees memory all the time.
const LONGEST_PATIENCE_NS: u64 = 6_000_000_000;
/// How long pid 1 has to end, when nobody else is left, before the sandbox ends without it.
const LAST_PATIENCE_NS: u64 = 10_000_000_000;
/// Untouched pages in a space that are worth that all of it faults in again.
const WORTHWHILE_PAGES: u64 = 64;
/// A process that has just come from outside and holds less than this part of memory is spared
/// while there are others.
const VISITOR_SHARE: u64 = 16;
/// What a shell or a small tool holds at most, in bytes.
const SHELL_BYTES: u64 = 4 << 20;
/// From so many in one process group on, small ones are killed together: they are a fork bomb,
/// which makes two for each that is killed alone.
const MANY: usize = 16;
/// Together they give back at least this part of memory, if they have it.
const TOGETHER_SHARE: u64 = 32;
/// Of a process that is not to be killed (proc(5)).
const OOM_SCORE_ADJ_MIN: i32 = -1000;
/// The status of a container that was ended for want of memory, as of a program killed by SIGKILL.
const KILLED_STATUS: u64 = 128 + SIGKILL as u64;

/// When somebody was killed last, CLOCK_MONOTONIC.
static LAST_KILL_NS: AtomicU64 = AtomicU64::new(0);
/// Kills until then since something was freed.
static IN_VAIN: AtomicU32 = AtomicU32::new(0);
/// Processes killed for want of memory.
static KILLS: AtomicU64 = AtomicU64::new(0);
/// The one killed last.
static VICTIM: Mutex<Option<Weak<Process>>> = mutex(None);

/// What there is too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// A user frame.
    Frame,
    /// Kernel memory.
    Heap,
}

impl Want {
    fn is_met(self) -> bool {
        !heap::is_low() && (self == Want::Heap || frames::are_some_left())
    }
}

/// How many processes were killed for want of memory.
pub fn kills() -> u64 {
    KILLS.load(Relaxed)
}

/// When something was freed last, or somebody killed, CLOCK_MONOTONIC.
fn last_step_ns() -> u64 {
    LAST_KILL_NS.load(Relaxed).max(reclaim::last_freed_ns())
}

/// Kills since something was freed last.
fn in_vain() -> u32 {
    if reclaim::last_freed_ns() > LAST_KILL_NS.load(Relaxed) { 0 } else { IN_VAIN.load(Relaxed) }
}

/// Waits until there is what `thread` wants, and sees to that. EINTR when the thread is to die.
/// ENOMEM when there is, so that it was something else that failed.
pub async fn relieve(thread: &Arc<Thread>, want: Want) -> Result {
    if want.is_met() {
        if want == Want::Frame {
            reclaim::not_short();
        }
        return Err(Errno::ENOMEM);
    }
    let begin_ns = time::monotonic_ns();
    let awaiting = reclaim::begin_waiting();
    let result = wait_for(thread, want).await;
    drop(awaiting);
    if thread.process.is_visitor() {
        let waited_us = time::elapsed_ns(begin_ns) / 1000;
        klog!(
            Debug,
            "process {}, from outside, waited {waited_us} us for memory ({want:?})",
            thread.process.pid
        );
    }
    result
}

/// A copy for a call of `thread` found no frame ([`Errno::ERESTARTNOMEM`], or less than all): waits
/// until there are some. True if the copy may go on: false when the thread is to die.
pub async fn copy_may_go_on(thread: &Arc<Thread>) -> bool {
    if userfault::wait_for_missed(thread).await {
        return !thread.is_dying();
    }
    // An error: there is memory already, or it dies.
    let _ = relieve(thread, Want::Frame).await;
    !thread.is_dying()
}

/// EAGAIN when there may not be one more thread, or process ([`account::check_clone`]). What an
/// ended process held is waited for, for a moment: on Linux it is free before anybody hears of the
/// end.
pub async fn room_for_clone(thread: &Arc<Thread>, new_space: bool) -> Result {
    let deadline_ns = time::monotonic_ns() + 2 * PATIENCE_NS;
    let _awaiting = reclaim::begin_waiting();
    let attempt = || account::check_clone(new_space);
    while space::some_are_dying() && time::monotonic_ns() < deadline_ns && !thread.is_dying() {
        let pause_ns = deadline_ns.min(time::monotonic_ns() + PATIENCE_NS / 4);
        let freed = [reclaim::freed()];
        let made = block_until_killed_or(thread, &freed, PollMask::IN, pause_ns, attempt).await;
        if made.is_ok() {
            return Ok(());
        }
    }
    attempt()
}

async fn wait_for(thread: &Arc<Thread>, want: Want) -> Result {
    let begin_ns = time::monotonic_ns();
    reclaim::reclaim();
    (thread.process.upcalls.shrink)();
    dentry::shrink();
    // An image can be made again.
    kept::take_back();
    page_out(thread, want).await?;
    let mut may_take_back = !urgent::is_urgent(thread.user.token);
    while !want.is_met() {
        if thread.is_dying() {
            return Err(Errno::EINTR);
        }
        if core::mem::take(&mut may_take_back)
            && take_back_untouched(thread).await? >= WORTHWHILE_PAGES
        {
            reclaim::reclaim();
            continue;
        }
        let now_ns = time::monotonic_ns();
        page_out(thread, want).await?;
        if want.is_met() {
            break;
        }
        // Nobody can end while everything is stopped, and nobody can take more.
        let is_to_come = somebody_is_ending(now_ns) || kept::is_any();
        if !pause::is_paused() && !is_to_come {
            kill_one(now_ns, begin_ns);
        }
        let deadline_ns = time::monotonic_ns() + PATIENCE_NS / 2;
        let _ =
            block_until_killed_or(thread, &[reclaim::freed()], PollMask::IN, deadline_ns, || {
                match want.is_met() {
                    true => Ok(()),
                    false => Err(Errno::EAGAIN),
                }
            })
            .await;
        reclaim::reclaim();
    }
    if want == Want::Frame {
        reclaim::not_short();
    }
    Ok(())
}

/// Has files that need not be in memory written out until there is what `thread` wants, or nothing
/// more to write. EINTR when it is to die.
async fn page_out(thread: &Arc<Thread>, want: Want) -> Result {
    // Who uses what was taken out of its space has it come back.
    const TIMES: u32 = 64;
    for _ in 0..TIMES {
        if want.is_met() || !(thread.process.upcalls.page_out)() {
            break;
        }
        lost::unmap(thread).await;
        // What it had itself goes back when the host has carried that out.
        let _ = thread.user.flush(&thread.mm()).await;
        if thread.is_dying() {
            return Err(Errno::EINTR);
        }
    }
    Ok(())
}

/// Has one process killed for a request from outside that found no memory, unless one is ending
/// already, and waits until something has come of it, or a moment. `shrink` gives up what is only
/// kept to be fast.
pub async fn relieve_request(deadline_ns: u64, shrink: fn()) {
    let now_ns = time::monotonic_ns();
    let _awaiting = reclaim::begin_waiting();
    shrink();
    kept::take_back();
    reclaim::reclaim();
    // Who asks has not got what it wanted, so that memory is not low is not enough: in between
    // nobody would be killed, and nobody could begin.
    let is_met = Want::Frame.is_met() && account::has_room_for_process();
    let is_to_come = somebody_is_ending(now_ns) || kept::is_any();
    if !is_met && !pause::is_paused() && !is_to_come {
        // The container does not end for a request, unless its first process holds all of it.
        kill_one(now_ns, now_ns);
    }
    let deadline_ns = deadline_ns.min(now_ns + PATIENCE_NS / 4);
    wait::notified(reclaim::freed(), PollMask::IN, Some(deadline_ns)).await;
}

/// True if some process is on its way to its end, or its memory on its way back, and has not taken
/// too long for it.
fn somebody_is_ending(now_ns: u64) -> bool {
    if now_ns > last_step_ns() + (PATIENCE_NS << in_vain().min(3)) {
        return false;
    }
    let victim = VICTIM.lock().as_ref().and_then(Weak::upgrade);
    space::some_are_dying() || victim.is_some_and(|p| !p.is_zombie())
}

/// Kills the process whose end gives back most, with those who share its memory; pid 1 only when
/// nobody else is left, and, where it holds little or others end by themselves, not before that had
/// time to help. Who wants memory has waited for it since `begin_ns`.
fn kill_one(now_ns: u64, begin_ns: u64) {
    // What several hold each would give back counts for each: how much comes back when only one of
    // them ends cannot be known.
    let over = containers_over();
    let rank = |p: &Arc<Process>| {
        let held = held_bytes(p);
        let (score_adj, _) = p.traits.lock().oom_score_adj;
        // A container that has more than it may goes before those that have not.
        let is_over = over.contains(&p.container);
        // Whoever is not to be killed is all the same when nobody else is left: else nothing would
        // ever end.
        let may_be = score_adj != OOM_SCORE_ADJ_MIN;
        (p.pid != 1, is_over, !is_spared(p, held), may_be, badness(held, score_adj), p.pid)
    };
    let last_step_ns = last_step_ns();
    let victim = living().max_by_key(rank);
    // Whoever is left now need not have used memory up.
    let is_last = |p: &&Arc<Process>| p.pid == 1 || is_small_visitor(p);
    if let Some(last) = victim.as_ref().filter(is_last) {
        let is_innocent = is_small(last) || space::some_are_dying();
        let others_may_end = is_innocent || KILLS.load(Relaxed) > 0;
        if others_may_end && now_ns < patience_end_ns(is_innocent, begin_ns, last_step_ns) {
            return;
        }
    }
    let Some(victim) = victim else {
        if now_ns > last_step_ns + LAST_PATIENCE_NS {
            klog!(
                Error,
                "out of memory: nothing is left to kill, and what was killed does not end; the \
                container ends"
            );
            let _ = Call::new(Op::Exit).arg(0, KILLED_STATUS).run();
        }
        return;
    };
    IN_VAIN.store(in_vain() + 1, Relaxed);
    LAST_KILL_NS.store(now_ns, Relaxed);
    *VICTIM.lock() = Some(Arc::downgrade(&victim));
    if victim.pid == 1 {
        klog!(
            Error,
            "out of memory: the container ends, for its first process is the only one left"
        );
        // As long as its memory is taken.
        let _ = Call::new(Op::MemoryUsedUp).run();
    }
    kill(&victim);
    if victim.pid == 1 {
        return;
    }
    let together = held_bytes(&victim);
    let enough = account::memory_bytes() / TOGETHER_SHARE;
    if together >= enough {
        return;
    }
    let pgid = victim.tree.lock().pgid;
    let others = || {
        living()
            .filter(|p| p.pid != 1 && !Arc::ptr_eq(p, &victim) && p.tree.lock().pgid == pgid)
            .map(|p| (held_bytes(&p), p))
            .filter(|(held, p)| !is_spared(p, *held))
    };
    let mut group: Vec<(u64, Arc<Process>)> = Vec::new();
    if group.try_reserve_exact(others().count()).is_err() {
        // One at a time, then.
        return;
    }
    group.extend(others());
    group.sort_unstable_by_key(|(held, p)| core::cmp::Reverse((*held, p.pid)));
    let count = killed_together(enough - together, group.iter().map(|(held, _)| *held));
    group.iter().take(count).for_each(|(_, process)| kill(process));
}

/// The containers that hold more than they may.
fn containers_over() -> BTreeSet<u32> {
    let all: BTreeSet<u32> = living().map(|process| process.container).collect();
    all.into_iter().filter(|container| share::is_over(*container)).collect()
}

/// Kills the process of a container that is at its own limit whose end gives back most.
pub(super) fn kill_one_of(container: u32) {
    let rank = |p: &Arc<Process>| {
        let (score_adj, _) = p.traits.lock().oom_score_adj;
        (score_adj != OOM_SCORE_ADJ_MIN, badness(held_bytes(p), score_adj), p.pid)
    };
    if let Some(victim) = living().filter(|p| p.container == container).max_by_key(rank) {
        kill(&victim);
    }
}

/// How much a process that holds so many bytes asks to be killed, in bytes: each point of its
/// oom_score_adj (proc(5)) is a thousandth of memory.
fn badness(held: u64, score_adj: i32) -> i64 {
    let thousandth = i64::try_from(account::memory_bytes() / 1000).unwrap_or(i64::MAX);
    let held = i64::try_from(held).unwrap_or(i64::MAX);
    held.saturating_add(thousandth.saturating_mul(i64::from(score_adj)))
}

/// Until when the last process lives, for whoever has waited for memory since `begin_ns`. One that
/// is innocent always has some time: it may be all that anybody else's end would have needed.
fn patience_end_ns(is_innocent: bool, begin_ns: u64, last_step_ns: u64) -> u64 {
    let since_ns = if is_innocent { last_step_ns.max(begin_ns) } else { last_step_ns };
    (since_ns + PATIENCE_BEFORE_LAST_NS).min(begin_ns + LONGEST_PATIENCE_NS)
}

/// How many of a process group that hold so much each, the most first, are killed together with the
/// one that was chosen: until they give back `wanted` bytes, and none of a group of few.
fn killed_together(wanted: u64, held: impl ExactSizeIterator<Item = u64>) -> usize {
    if held.len() < MANY {
        return 0;
    }
    let mut together = 0u64;
    held.take_while(|held| {
        let more = together < wanted;
        together = together.saturating_add(*held);
        more
    })
    .count()
}

/// Who has just come by `quark exec`, perhaps to see what is wrong, goes after all others but
/// pid 1. Later it is one of them, for it may be what is wrong.
fn is_spared(process: &Process, held: u64) -> bool {
    process.is_visitor()
        && held < account::memory_bytes() / VISITOR_SHARE
        && process.first_thread().is_some_and(|thread| urgent::is_urgent(thread.user.token))
}

/// True if a process has just come from outside and is so small that it is loaded on the reserve.
pub fn is_small_visitor(process: &Process) -> bool {
    is_spared(process, held_bytes(process))
}

/// True if a process holds so little that it may have some of the reserve.
pub fn is_small(process: &Process) -> bool {
    held_bytes(process) < small_bytes(account::memory_bytes())
}

/// What a small process holds less than: a shell holds some 2 MiB, however small memory is.
fn small_bytes(memory: u64) -> u64 {
    (memory / (4 * VISITOR_SHARE)).max(SHELL_BYTES).min(memory / VISITOR_SHARE)
}

/// Those whose end has not begun.
pub(super) fn living() -> impl Iterator<Item = Arc<Process>> {
    table::processes().filter(|p| {
        let links = p.tree.lock();
        links.exit_status.is_none() && links.exiting.is_none()
    })
}

/// Has a process end, with those who share its memory.
fn kill(victim: &Arc<Process>) {
    KILLS.fetch_add(1, Relaxed);
    table::note_oom_kill(victim.container);
    let held_kib = held_bytes(victim) >> 10;
    klog!(
        Warn,
        "out of memory: killed process {} ({held_kib} KiB) of {} processes",
        victim.pid,
        living().count()
    );
    klog!(
        Debug,
        "out of memory: {:?}, {:?}, {} free pages in blocks of the heap, user frames {:?}",
        heap::BLOCKS.stats(),
        heap::HEAP.stats(),
        heap::HEAP.free_frames(),
        frames::stats()
    );
    let mm = victim.mm();
    for process in living().filter(|p| Arc::ptr_eq(p, victim) || Arc::ptr_eq(&p.mm(), &mm)) {
        if process.pid != 1 || victim.pid == 1 {
            process.tree.lock().is_killed_for_memory = true;
            // Its threads pass others on their way out.
            process.each_thread().take(2).for_each(|thread| urgent::hasten_end(thread.user.token));
            exit::group_exit(&process, SIGKILL as i32);
        }
    }
}

/// What the end of a process would give back, about, in bytes: its pages and page tables, its
/// ranges, its timers, its filters of system calls, what its descriptors lead to, and what it costs
/// outside of guest memory.
pub fn held_bytes(process: &Process) -> u64 {
    let mm = process.mm();
    let (_, resident, _) = mm.sizes();
    let threads = process.thread_count();
    let files: u64 = process.first_thread().map_or(0, |thread| thread.files().held_bytes());
    resident
        + mm.table_pages() * PAGE_SIZE
        + mm.books_bytes()
        + files
        + process.timers.held_bytes()
        + seccomp::held_bytes(process)
        + account::charge_of(threads as u64)
}

/// Takes back what the thread's address space reserved and never touched, or has of huge pages
/// and has written nothing to: how many pages.
async fn take_back_untouched(thread: &Arc<Thread>) -> Result<u64> {
    let mm = thread.mm();
    let frozen = run::freeze_to_sync(thread).await;
    if thread.is_dying() {
        return Err(Errno::EINTR);
    }
    mm.hide_all();
    if thread.user.flush(&mm).await.is_err() {
        // The platform has lost the thread, and will say so.
        return Ok(0);
    }
    let mut committed = Committed::default();
    let mut freed = 0;
    let mut is_used = |frame| {
        let is_zero = || frames::user().is_huge(frame) && arch::phys().frame_is_zero(frame);
        committed.contains(frame) && !is_zero()
    };
    mm.rewrite_private(&mut |anonymous, pte| {
        if !anonymous || is_used(pte.gpa()) {
            return pte;
        }
        frames::user().ref_dec(pte.gpa());
        freed += 1;
        Pte::EMPTY
    });
    drop(frozen);
    Ok(freed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn a_shell_is_small_in_a_small_container() {
        assert_eq!(small_bytes(64 << 20), 4 << 20);
        assert_eq!(small_bytes(32 << 20), 2 << 20);
        assert_eq!(small_bytes(1 << 30), 16 << 20);
    }

    #[test]
    fn the_last_process_has_time_if_it_holds_little() {
        const S: u64 = 1_000_000_000;
        // Nobody has ended for long, or ever: others that end by themselves have two seconds.
        assert_eq!(patience_end_ns(true, 100 * S, 0), 102 * S);
        assert_eq!(patience_end_ns(true, 100 * S, 103 * S), 105 * S);
        assert_eq!(patience_end_ns(true, 100 * S, 109 * S), 106 * S);
        // A request begins now, each time.
        assert!((0..20).all(|now| now * S < patience_end_ns(true, now * S, 0)));
        // Who holds all of it itself has only what is left of others' ends.
        assert_eq!(patience_end_ns(false, 100 * S, 0), 2 * S);
        assert_eq!(patience_end_ns(false, 100 * S, 99 * S), 101 * S);
    }

    #[test]
    fn a_fork_bomb_is_killed_together_and_a_small_group_is_not() {
        let group = |count: usize, held: u64| alloc::vec![held; count].into_iter();
        assert_eq!(killed_together(1 << 20, group(MANY - 1, 64 * KIB)), 0);
        assert_eq!(killed_together(1 << 20, group(MANY, 64 * KIB)), 16);
        assert_eq!(killed_together(1 << 20, group(1000, 64 * KIB)), 16);
        // The last one may be more than is wanted, and all of them may be less.
        assert_eq!(killed_together((1 << 20) + 1, group(1000, 64 * KIB)), 17);
        assert_eq!(killed_together(1 << 30, group(1000, 64 * KIB)), 1000);
        assert_eq!(killed_together(0, group(1000, 64 * KIB)), 0);
        assert_eq!(killed_together(1, [u64::MAX; MANY].into_iter()), 1);
        assert_eq!(killed_together(u64::MAX, [u64::MAX / 2; MANY].into_iter()), 3);
    }
}
