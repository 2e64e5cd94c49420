//! The life of a guest thread: run user code, take its trap, serve it, look at signals, and again.

use alloc::sync::Arc;
use core::future::poll_fn;
use core::ops::Range;
use core::pin::{Pin, pin};
use core::result;
use core::sync::atomic::Ordering;
use core::task::Poll;

use linux_raw_sys::general::{
    __NR_getpid, __NR_gettid, __NR_sched_yield, SIGSEGV, SIGSYS, SYS_USER_DISPATCH,
};
use linux_raw_sys::ptrace::PTRACE_EVENT_EXIT;
use qlib::platform::{TRAP_DEAD, TRAP_EXCEPTION, TRAP_FAULT, TRAP_PREEMPTED, TRAP_SYSCALL, Trap};
use qlib::seccomp::{ARCH, Call};
use qlib::{PAGE_SIZE, Va};

use super::{containers, vsyscall};
use crate::arch::heap;
use crate::arch::upcalls::{Next, Owner};
use crate::arch::user::Go;
use crate::errno::{Errno, Result};
use crate::fs::{disk, hostfs};
use crate::mm::AddressSpace;
use crate::mm::freeze::{Frozen, MustWait};
use crate::mm::reclaim;
use crate::mm::thread::{Arrived, Concern};
use crate::syscall::table::Traits;
use crate::task::dispatch::Verdict as Dispatched;
use crate::task::outcome::Outcome;
use crate::task::run::{Gone, go_on, start_newborn};
use crate::task::signal::{SigAction, SigInfo};
use crate::task::trace::stops::{self, Instead};
use crate::task::{
    Thread, coredump, current, exit, lost, oom, owed, pause, rseq, seccomp, share, signal, table,
    userfault,
};
use crate::wait::Sleeper;
use crate::{executor, klog, log, mm, syscall, time, urgent};

const SCHED_YIELD: u64 = __NR_sched_yield as u64;

/// A trap of some thread arrived: served here and now if nothing is to be waited for, else by the
/// thread's task.
pub fn on_trap(trap: &Trap) {
    if let Some(thread) = table::thread_by_token(trap.token)
        && let Concern::Thread { alone } = thread.user.on_trap(trap)
    {
        take(&thread, trap, alone);
    }
    pause::recheck();
}

/// Serves a trap. `alone`: nobody else waits for the thread to be out of user mode.
fn take(thread: &Arc<Thread>, trap: &Trap, alone: bool) {
    let is_call = trap.kind == TRAP_SYSCALL;
    // What comes by a fast call comes from a patched site.
    let pays = is_call
        && trap.unproven == 0
        && !thread.trace.is_on()
        && thread.process.with_mm(|mm| mm::patch::pays(mm, trap.nr, Va(trap.ip)))
        && !thread.process.each_thread().any(|thread| thread.trace.is_on());
    if trap.kind == TRAP_DEAD {
        taken_away(thread);
    }
    let next = match trap.kind {
        _ if !alone || pays || pause::is_paused() || thread.is_dying() => Next::Task(None),
        TRAP_SYSCALL if trap.nr == SCHED_YIELD => yield_now(thread, &call_of(trap)),
        TRAP_SYSCALL => match freeze_now(thread, trap.nr, &trap.args) {
            Ok(frozen) => call_now(thread, &call_of(trap), frozen, may_go_now),
            Err(MustWait) => Next::Task(None),
        },
        TRAP_FAULT => fault_now(thread, Va(trap.addr), trap.code, may_go_now),
        _ => Next::Task(None),
    };
    match next {
        Next::Go(value) if is_call => {
            have_it_answer(thread, &call_of(trap));
            thread.user.resume(&thread.mm(), Go::Return(value));
        }
        Next::Go(_) => thread.user.resume(&thread.mm(), Go::Continue),
        Next::Task(served) => thread.user.notify(Arrived { trap: *trap, served, pays }),
    }
}

/// Serves sched_yield(2) where each thread has one of the host's: others run while it waits for the
/// answer.
fn yield_now(thread: &Arc<Thread>, call: &Call) -> Next {
    if is_watched(thread, call) || !thread.lost.lock().is_empty() || !may_go_now(thread) {
        return Next::Task(None);
    }
    claim(thread);
    thread.count_syscall();
    trace(thread, call.nr, &call.args, &Outcome::Returns(Ok(0)));
    Next::Go(0)
}

/// True if somebody may want to see this call, or others of its number: a tracer, a filter that
/// does not always allow it, a handler of the program's own.
fn is_watched(thread: &Thread, call: &Call) -> bool {
    !thread.seccomp.lets_all_pass(call) || thread.trace.is_on() || thread.dispatch.is_on()
}

/// After a call that a thread can answer itself: it does so from here on, if nobody watches.
/// Whoever begins to has [`mm::UserThread::answers`] end that.
fn have_it_answer(thread: &Thread, call: &Call) {
    const OWN: [u64; 3] = [SCHED_YIELD, __NR_gettid as u64, __NR_getpid as u64];
    if OWN.contains(&call.nr)
        && OWN.iter().all(|nr| !is_watched(thread, &Call { nr: *nr, ..*call }))
    {
        let number = |of| thread.number_of(of);
        thread.user.answers(Some((number(thread.tid()), number(thread.process.pid))));
    }
}

/// The system call of a trap.
fn call_of(trap: &Trap) -> Call {
    Call { nr: trap.nr, ip: trap.ip, args: trap.args }
}

/// The host took the thread away (out of memory, or a program sabotaged its own stub). That may
/// come while it waits in a call, which is to end.
fn taken_away(thread: &Thread) {
    containers::process_taken_away(&thread.process);
    exit::group_exit(&thread.process, linux_raw_sys::general::SIGKILL as i32);
}

/// What a call takes away from the threads of its space.
fn taken_by(thread: &Thread, nr: u64, args: &[u64; 6]) -> Option<Range<Va>> {
    let takes = syscall::table::traits(nr).contains(Traits::TAKES_PAGES_AWAY);
    let range = || thread.process.with_mm(|mm| syscall::memory::taken_away(mm, nr, args));
    takes.then(range).flatten()
}

/// Freezes what a call takes away, if it is to be frozen.
fn freeze_now(
    thread: &Thread,
    nr: u64,
    args: &[u64; 6],
) -> result::Result<Option<Frozen>, MustWait> {
    let Some(range) = taken_by(thread, nr, args) else { return Ok(None) };
    let mm = thread.mm();
    // Such a call has its operations carried out before it is over.
    if moves_pages(nr) && mm.must_freeze() {
        return Err(MustWait);
    }
    mm.freeze_now(&thread.user, range)
}

/// True if a call moves pages to other addresses.
fn moves_pages(nr: u64) -> bool {
    nr == u64::from(linux_raw_sys::general::__NR_mremap)
}

impl Owner for Thread {
    fn serve_now(self: Arc<Self>, call: &Call) -> Next {
        // It sees the timers that are due.
        time::advance();
        call_now(&self, call, None, may_go_on_now)
    }

    fn fault_now(self: Arc<Self>, va: Va, code: u64) -> Next {
        fault_now(&self, va, code, may_go_on_now)
    }

    fn served(self: Arc<Self>, trap: &Trap, served: Option<Result<usize>>) {
        if let Concern::Thread { .. } = self.user.on_trap(trap) {
            self.user.notify(Arrived { trap: *trap, served, pays: false });
        }
        pause::recheck();
    }

    fn gives_way(&self) {
        self.count_preemption();
    }

    fn runs(&self, stolen_ns: u64) {
        self.cpu_time.runs(stolen_ns);
    }

    fn rests(&self, stolen_ns: u64) {
        self.cpu_time.rests(stolen_ns);
    }
}

/// The kernel's side of the thread with this token.
pub fn owner_of(token: u64) -> Option<Arc<dyn Owner>> {
    table::thread_by_token(token).map(|thread| thread as Arc<dyn Owner>)
}

/// Serves a system call, if it need not wait; `may_go` says whether the thread may go on then.
/// `frozen`: what it takes away, where that is to be frozen.
fn call_now(
    thread: &Arc<Thread>,
    call: &Call,
    frozen: Option<Frozen>,
    may_go: impl Fn(&Arc<Thread>) -> bool,
) -> Next {
    let passes = thread.seccomp.lets_pass(call)
        && !thread.trace.stops_at_calls()
        && (!thread.dispatch.is_on() || is_not_dispatched(thread, call.ip));
    if heap::is_low() || reclaim::is_short() || !passes {
        return Next::Task(None);
    }
    let Call { nr, args, .. } = *call;
    let number = thread.syscalls.load(Ordering::Relaxed);
    thread.missed.lock().set_in_call(true);
    let served = thread
        .cpu_time
        .on_the_spot(number, || current::call(thread, || syscall::dispatch_now(thread, nr, args)));
    thread.missed.lock().set_in_call(false);
    if syscall::table::traits(nr).contains(Traits::TAKES_PAGES_AWAY) {
        thread.process.with_mm(|mm| userfault::collect(thread, mm));
    }
    let Some(result) = served else { return Next::Task(None) };
    drop(frozen);
    claim(thread);
    if result == Err(Errno::ERESTARTNOMEM) {
        // It is made again, by the thread's task, when there is memory.
        return Next::Task(None);
    }
    thread.count_syscall();
    share::called(&thread.process);
    trace(thread, nr, &args, &Outcome::Returns(result));
    match result {
        Err(errno) if errno.is_internal() => Next::Task(Some(result)),
        Err(_) if vsyscall::contains(Va(call.ip)) => Next::Task(Some(result)),
        _ if thread.missed.lock().is_unfinished() => Next::Task(Some(result)),
        _ if thread.lost.lock().is_empty() && may_go(thread) => {
            Next::Go(signal::to_return_value(result))
        }
        _ => Next::Task(Some(result)),
    }
}

/// Serves a page fault, if nothing need be waited for, as [`call_now`] does a call.
fn fault_now(
    thread: &Arc<Thread>,
    va: Va,
    code: u64,
    may_go: impl Fn(&Arc<Thread>) -> bool,
) -> Next {
    let access = access_of(code);
    if heap::is_low() {
        return Next::Task(None);
    }
    let mm = thread.mm();
    let frozen = match taken_by_fault(&mm, va, access) {
        Some(range) => mm.freeze_now(&thread.user, range),
        None => Ok(None),
    };
    let Ok(frozen) = frozen else { return Next::Task(None) };
    if resolve(thread, &mm, (va, access), takes_huge(thread)).is_err() {
        return Next::Task(None);
    }
    drop(frozen);
    claim(thread);
    if may_go(thread) { Next::Go(0) } else { Next::Task(Some(Ok(0))) }
}

/// Binds to the thread what it has just caused, whoever else of its space goes on meanwhile.
fn claim(thread: &Thread) {
    if thread.process.with_mm(AddressSpace::has_ops) {
        thread.user.claim_ops(&thread.mm());
    }
}

fn resolve(
    thread: &Thread,
    mm: &AddressSpace,
    at: (Va, mm::Access),
    takes_huge: bool,
) -> core::result::Result<(), mm::fault::Failure> {
    let served = mm::fault::handle(mm, thread.process.growth(), at, takes_huge)?;
    thread.count_fault(served == mm::fault::Served::FromStore);
    share::grown(&thread.process, share::FAULT_PAGES);
    Ok(())
}

/// True unless it said otherwise (PR_SET_THP_DISABLE).
fn takes_huge(thread: &Thread) -> bool {
    !thread.process.traits.lock().thp_disable
}

/// How long a thread waits for a huge page, in ns. Small ones take some 2 ms; a host that moves
/// memory to find room was seen to take 248.
const HUGE_PAGE_NS: u64 = 10_000_000;

/// Gives a thread that touches `va` a huge page, as far as there is one to be had.
async fn huge_page(thread: &Arc<Thread>, mm: &AddressSpace, va: Va) {
    let Some(mut page) = mm.take_huge(va) else { return };
    if let Some(extent) = page.wanted() {
        let since = time::monotonic_ns();
        let outcome = match hostfs::begin_huge_page(extent) {
            Ok(begun) => disk::finished_by(&**thread, begun, since + HUGE_PAGE_NS).await,
            Err(errno) => Err(errno),
        };
        page.note(outcome, since);
    }
    mm.enter_huge(page);
    share::grown(&thread.process, share::HUGE_PAGES);
}

/// What a fault takes away from other threads: a page that is shown read-only, and written to.
fn taken_by_fault(mm: &AddressSpace, va: Va, access: mm::Access) -> Option<Range<Va>> {
    let page = va.page_floor();
    (access == mm::Access::Write && mm.shows(va)).then(|| page..page + PAGE_SIZE)
}

/// True if nothing keeps the thread from going back to user mode.
fn may_go_now(thread: &Arc<Thread>) -> bool {
    let is_held_back = thread.process.with_mm(|mm| mm.holds_back(&thread.user));
    let paused = pause::is_paused() || pause::is_watched() || is_held_back;
    !paused && !thread.is_dying() && signal::is_quiet(thread)
}

/// The same where the platform has the thread go on itself, and nobody else serves those who have
/// been woken.
fn may_go_on_now(thread: &Arc<Thread>) -> bool {
    if !executor::is_drained() || time::needs_rearming() {
        executor::run();
        time::rearm();
    }
    may_go_now(thread) && thread.user.may_go_on()
}

/// Starts the task of a new thread, which is stopped; `first` are its registers.
pub fn start(thread: Arc<Thread>, first: qlib::platform::UserRegs) {
    let token = thread.user.token;
    executor::spawn_for(
        token,
        current::with(thread.clone(), async move {
            thread.user.set_registers(&first);
            main(&thread, first).await;
            start_newborn(&thread);
            stops::for_event(&thread, PTRACE_EVENT_EXIT, exit::status_of(&thread)).await;
            coredump::parks(&thread).await;
            // Somebody else's operations are carried out to their end first, and its own: nobody
            // waits for them any more when it has ended.
            thread.user.at_rest().await;
            urgent::end(thread.user.token);
            exit::thread_ended(&thread);
        }),
    );
}

async fn main(thread: &Arc<Thread>, first: qlib::platform::UserRegs) {
    // It may have to stop before its first instruction.
    match go_on(thread, Some((first.rax, Outcome::RegistersReplaced))).await {
        Gone::On => {}
        Gone::Ends => return,
        Gone::Dumps(death) => return coredump::end(thread, &death).await,
    }
    loop {
        thread.cpu_time.enters_user_mode();
        let Arrived { trap, served, pays } = thread.user.next_trap().await;
        thread.cpu_time.left_user_mode();
        let call = match trap.kind {
            TRAP_SYSCALL => {
                let (nr, outcome) = match served {
                    Some(result) => (trap.nr, owed::settle(thread, Outcome::Returns(result)).await),
                    None if thread.dispatch.is_on() && is_dispatched(thread, &trap).await => {
                        (trap.nr, Outcome::Returns(Ok(trap.nr as usize)))
                    }
                    None if thread.trace.stops_at_calls() => serve_traced(thread, trap).await,
                    None => serve(thread, trap).await,
                };
                lost::unmap(thread).await;
                if thread.missed.lock().is_unfinished() {
                    userfault::tell(thread, matches!(outcome, Outcome::Returns(Ok(_)))).await;
                }
                if vsyscall::contains(Va(trap.ip)) {
                    vsyscall::finish(thread, outcome);
                }
                if pays && outcome != Outcome::RegistersReplaced {
                    mm::patch::patch(&thread.mm(), &thread.user, trap.nr, Va(trap.ip)).await;
                }
                let outcome = match thread.trace.is_on() {
                    true => stops::at_exit(thread, nr, outcome).await,
                    false => outcome,
                };
                Some((nr, outcome))
            }
            // Served, but something kept the thread from going on.
            TRAP_FAULT if served.is_some() => None,
            TRAP_FAULT => match vsyscall::call_of(thread, &trap, access_of(trap.code)) {
                Some(call) => {
                    let served = async |call| serve(thread, call).await.1;
                    vsyscall::fault(thread, call, served).await
                }
                None => {
                    fault(thread, &trap).await;
                    None
                }
            },
            TRAP_EXCEPTION => {
                klog!(
                    Debug,
                    "process {}: exception {} at {:#x}, {:x?}",
                    thread.process.pid,
                    trap.signo,
                    trap.addr,
                    trap.regs
                );
                signal::force_exception(thread, trap.signo as u32, trap.si_code, Va(trap.addr));
                None
            }
            // Its registers are others now if a restartable sequence is aborted.
            TRAP_PREEMPTED => rseq::on_preempted(thread, &trap)
                .await
                .then_some((trap.nr, Outcome::RegistersReplaced)),
            TRAP_DEAD => {
                // The platform may have been unable to make it anew.
                if !thread.is_dying() {
                    taken_away(thread);
                }
                return;
            }
            _ => None,
        };
        stops::leaves_call(thread, call);
        match go_on(thread, call).await {
            Gone::On => {}
            Gone::Ends => return,
            Gone::Dumps(death) => return coredump::end(thread, &death).await,
        }
        start_newborn(thread);
    }
}

/// True if the kernel has too little memory to go on with this thread. Who is urgent lives on a
/// part of the reserve.
fn is_low_for(thread: &Thread) -> bool {
    heap::is_low()
        && !(urgent::is_urgent(thread.user.token)
            && heap::has_some_left()
            && oom::is_small(&thread.process))
}

/// Waits until memory is no longer low, and copies find some.
#[cold]
async fn memory_for(thread: &Arc<Thread>) {
    // An error says that the thread is to die, or that somebody else's memory came back meanwhile.
    let _ = oom::relieve(thread, oom::Want::Heap).await;
    if reclaim::is_short() && !thread.is_dying() {
        let _ = oom::relieve(thread, oom::Want::Frame).await;
    }
}

/// True if a copy for a call has found no memory, and this thread's calls are to wait for some.
fn is_short_for(thread: &Thread) -> bool {
    reclaim::is_short() && !(urgent::is_urgent(thread.user.token) && oom::is_small(&thread.process))
}

/// Serves a system call of a thread whose tracer is told of its calls, and may have it make others:
/// the number of the call that it has made (-1: none), and its outcome.
#[cold]
async fn serve_traced(thread: &Arc<Thread>, trap: Trap) -> (u64, Outcome) {
    match stops::at_entry(thread, trap.nr).await {
        None => serve(thread, trap).await,
        Some(Instead::Makes(nr, args)) => serve(thread, Trap { nr, args, ..trap }).await,
        Some(Instead::Skips(value)) => (u64::MAX, Outcome::Returns(Errno::check(value))),
        Some(Instead::Emulated(value)) => (trap.nr, Outcome::Returns(Errno::check(value))),
    }
}

/// True if a call is made as far as the program itself is asked, which needs no waiting.
#[cold]
fn is_not_dispatched(thread: &Thread, ip: u64) -> bool {
    let verdict = || thread.dispatch.verdict(&thread.mm(), ip);
    vsyscall::contains(Va(ip)) || verdict() == Ok(Dispatched::Made)
}

/// True if a call is not made, but has become a signal.
#[cold]
async fn is_dispatched(thread: &Arc<Thread>, trap: &Trap) -> bool {
    if vsyscall::contains(Va(trap.ip)) {
        return false;
    }
    let verdict = loop {
        match thread.dispatch.verdict(&thread.mm(), trap.ip) {
            Ok(verdict) => break verdict,
            Err(_) if oom::relieve(thread, oom::Want::Frame).await.is_ok() => {}
            Err(_) => break Dispatched::Ends(SIGSEGV),
        }
        if thread.is_dying() {
            return true;
        }
    };
    match verdict {
        Dispatched::Made => return false,
        Dispatched::Caught => {
            let mut info = SigInfo::call(SIGSYS, trap.ip, trap.nr as u32, ARCH, 0);
            info.code = SYS_USER_DISPATCH as i32;
            signal::force(thread, info);
        }
        // No handler sees it.
        Dispatched::Ends(signo) => {
            thread.process.signals.lock().set_action(signo, SigAction::default());
            signal::force(thread, SigInfo::kernel(signo));
        }
    }
    true
}

/// Serves a call: the number of that which has been made, which a tracer may have changed (-1:
/// none), and its outcome.
async fn serve(thread: &Arc<Thread>, mut trap: Trap) -> (u64, Outcome) {
    thread.count_syscall();
    thread.trace.set_call(Some((trap.nr, Err(Errno::ENOSYS))));
    let mut call = call_of(&trap);
    if let Some(outcome) = seccomp::enforce(thread, &mut call).await {
        trace(thread, call.nr, &call.args, &outcome);
        return (call.nr, outcome);
    }
    if call.nr != trap.nr {
        thread.trace.set_call(Some((call.nr, Err(Errno::ENOSYS))));
    }
    (trap.nr, trap.args) = (call.nr, call.args);
    (trap.nr, serve_allowed(thread, &trap).await)
}

/// Serves a call that nothing restricts.
async fn serve_allowed(thread: &Arc<Thread>, trap: &Trap) -> Outcome {
    let traits = syscall::table::traits(trap.nr);
    let waits = is_low_for(thread) || is_short_for(thread);
    if waits && !traits.contains(Traits::GIVES_MEMORY_BACK) {
        memory_for(thread).await;
        if thread.is_dying() {
            return Outcome::Returns(Err(Errno::EINTR));
        }
    }
    let mut is_again = false;
    let outcome = loop {
        let outcome = perform(thread, trap).await;
        if outcome != Outcome::Returns(Err(Errno::ERESTARTNOMEM)) {
            break outcome;
        }
        if userfault::wait_for_missed(thread).await && !thread.is_dying() {
            continue;
        }
        match oom::relieve(thread, oom::Want::Frame).await {
            _ if thread.is_dying() => break Outcome::Returns(Err(Errno::EINTR)),
            Ok(()) => is_again = false,
            // There is memory: the page cannot be had for another reason.
            Err(_) if is_again => break Outcome::Returns(Err(Errno::EFAULT)),
            Err(_) => is_again = true,
        }
    };
    let outcome = owed::settle(thread, outcome).await;
    share::called(&thread.process);
    trace(thread, trap.nr, &trap.args, &outcome);
    outcome
}

/// Makes a system call.
async fn perform(thread: &Arc<Thread>, trap: &Trap) -> Outcome {
    let frozen = match taken_by(thread, trap.nr, &trap.args) {
        Some(range) => loop {
            let frozen = thread.mm().freeze(&thread.user, range.clone()).await;
            // What somebody else has it carry out is over before pages move: the end of that would
            // look like the end of their unmapping.
            if !moves_pages(trap.nr) || thread.user.is_synced() {
                break frozen;
            }
            drop(frozen);
            thread.user.synced().await;
        },
        None => None,
    };
    thread.missed.lock().set_in_call(true);
    let mut call = pin!(syscall::dispatch(thread, trap.nr, trap.args));
    let outcome = match frozen {
        None => shown(thread, call.as_mut()).await,
        // Nothing may be mapped meanwhile.
        Some(_) => call.await,
    };
    thread.missed.lock().set_in_call(false);
    thread.process.with_mm(|mm| userfault::collect(thread, mm));
    if frozen.is_some() && moves_pages(trap.nr) && thread.mm().has_ops() {
        // Others may free what was moved by its new place, while this thread has yet to unmap the
        // old one. An error: it died.
        thread.user.moves_pages(&thread.mm());
        let _ = thread.user.flush(&thread.mm()).await;
    }
    drop(frozen);
    thread.user.claim_ops(&thread.mm());
    outcome
}

/// Waits for a call. Pages that the kernel copied for it, before it had to wait, are shown to the
/// other threads of the space meanwhile: they see what the call has written so far, as on Linux,
/// and whichever goes on first would have it under way while this one returns.
async fn shown(thread: &Arc<Thread>, mut call: Pin<&mut impl Future<Output = Outcome>>) -> Outcome {
    // In a pause nobody looks, and who goes on after it carries out what there is. A thread that
    // the host took away shows nothing any more; the call ends.
    let is_unseen = || {
        !pause::is_paused()
            && !thread.user.is_dead()
            && thread.process.with_mm(|mm| mm.has_unseen_copies() || thread.user.shows_copies())
    };
    loop {
        let polled = poll_fn(|cx| match call.as_mut().poll(cx) {
            Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
            Poll::Pending if is_unseen() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        if let Some(outcome) = polled.await {
            return outcome;
        }
        let mm = thread.mm();
        // Nobody takes them along who has them under way when the call returns.
        thread.user.claim_ops(&mm);
        let mut may_show = pin!(async {
            while mm.is_frozen() || !thread.user.is_synced() {
                thread.user.synced().await;
                mm.thawed().await;
            }
        });
        // The call goes on meanwhile: it may be what has frozen the space.
        let polled = poll_fn(|cx| match call.as_mut().poll(cx) {
            Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
            Poll::Pending => may_show.as_mut().poll(cx).map(|()| None),
        });
        if let Some(outcome) = polled.await {
            return outcome;
        }
        if is_unseen() && !mm.is_frozen() && thread.user.is_synced() {
            // An error: it died, and the call sees that.
            let _ = thread.user.flush(&mm).await;
        }
    }
}

fn trace(thread: &Thread, nr: u64, args: &[u64; 6], outcome: &Outcome) {
    #[cold]
    fn write(thread: &Thread, nr: u64, args: &[u64; 6], outcome: &Outcome) {
        klog!(
            Trace,
            "thread {}: {}({args:x?}) = {outcome:x?}",
            thread.tid(),
            syscall::table::name(nr)
        );
    }
    if log::is_kept(log::Level::Trace) {
        write(thread, nr, args, outcome);
    }
}

/// What a page fault with this error code of the CPU was about.
fn access_of(code: u64) -> mm::Access {
    match code {
        code if code & 16 != 0 => mm::Access::Execute,
        code if code & 2 != 0 => mm::Access::Write,
        _ => mm::Access::Read,
    }
}

async fn fault(thread: &Arc<Thread>, trap: &Trap) {
    let access = access_of(trap.code);
    if is_low_for(thread) {
        memory_for(thread).await;
        if thread.is_dying() {
            return;
        }
    }
    let mm = thread.mm();
    let mut takes_huge = takes_huge(thread);
    let failure = loop {
        // Asked anew each time, with nothing waited for between the answer and what follows from
        // it.
        let frozen = match taken_by_fault(&mm, Va(trap.addr), access) {
            Some(range) => mm.freeze(&thread.user, range).await,
            None => None,
        };
        let at = (Va(trap.addr), access);
        let mut outcome = resolve(thread, &mm, at, takes_huge);
        // Who has come from outside is loaded on the reserve, and may be the next to use memory up.
        let may_use_reserve = || oom::is_small_visitor(&thread.process);
        if outcome == Err(mm::fault::Failure::NO_MEMORY) && may_use_reserve() {
            outcome = heap::on_reserve(|| resolve(thread, &mm, at, false));
        }
        drop(frozen);
        match outcome {
            Ok(()) => {
                thread.user.claim_ops(&mm);
                return;
            }
            Err(mm::fault::Failure::HUGE) => {
                huge_page(thread, &mm, Va(trap.addr)).await;
                // Small ones, where there was none.
                takes_huge = false;
                if thread.is_dying() {
                    return;
                }
            }
            // Nothing is held while others end for it.
            Err(mm::fault::Failure::NO_MEMORY) => {
                match oom::relieve(thread, oom::Want::Frame).await {
                    _ if thread.is_dying() => return,
                    Ok(()) => {}
                    // There is memory: the page cannot be had for another reason.
                    Err(_) => break mm::fault::Failure::NOTHING_BEHIND,
                }
            }
            // Nor while somebody else sees to the page.
            Err(mm::fault::Failure::AWAITED) => {
                let place = userfault::In::UserMode;
                let waited = userfault::wait(thread, &mm, Va(trap.addr), access, place).await;
                // A signal is to be handled first; the instruction is tried again after that.
                if waited.is_err() {
                    return;
                }
            }
            Err(failure) => break failure,
        }
    };
    klog!(
        Debug,
        "process {}: signal {} code {} at {:#x} ({access:?}), {:x?}",
        thread.process.pid,
        failure.signo,
        failure.si_code,
        trap.addr,
        trap.regs
    );
    signal::force_exception(thread, failure.signo, failure.si_code, Va(trap.addr));
}
