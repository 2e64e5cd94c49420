//! The life of a guest thread: run user code, take its trap, serve it, look at signals, and again.

use alloc::sync::Arc;

use qlib::Va;
use qlib::platform::{TRAP_DEAD, TRAP_EXCEPTION, TRAP_FAULT, TRAP_PREEMPTED, TRAP_SYSCALL, Trap};

use super::control;
use crate::arch::heap;
use crate::arch::upcalls::{Next, Owner};
use crate::arch::user::Go;
use crate::errno::{Errno, Result};
use crate::syscall::table::Traits;
use crate::task::run::{REGISTERS_REPLACED, go_on, may_go, start_newborn};
use crate::task::{Thread, current, exit, lost, oom, pause, rseq, signal, table};
use crate::wait::Sleeper;
use crate::{executor, klog, log, mm, syscall, time, urgent};

/// A trap of some thread arrived.
pub fn on_trap(trap: &Trap) {
    if let Some(thread) = table::thread_by_token(trap.token) {
        thread.user.on_trap(trap, None);
    }
    pause::recheck();
}

impl Owner for Thread {
    fn serve_now(self: Arc<Self>, nr: u64, args: [u64; 6]) -> Next {
        serve_now(&self, nr, args)
    }

    fn fault_now(self: Arc<Self>, va: Va, code: u64) -> Next {
        if heap::is_low() {
            return Next::Task(None);
        }
        match self.fault(va, access_of(code)) {
            Ok(()) if may_go_now(&self) => Next::Go(0),
            _ => Next::Task(None),
        }
    }

    fn served(self: Arc<Self>, trap: &Trap, served: Option<Result<usize>>) {
        self.user.on_trap(trap, served);
        pause::recheck();
    }
}

/// The kernel's side of the thread with this token.
pub fn owner_of(token: u64) -> Option<Arc<dyn Owner>> {
    table::thread_by_token(token).map(|thread| thread as Arc<dyn Owner>)
}

fn serve_now(thread: &Arc<Thread>, nr: u64, args: [u64; 6]) -> Next {
    if heap::is_low() {
        return Next::Task(None);
    }
    let Some(result) = current::call(thread, || syscall::dispatch_now(thread, nr, args)) else {
        return Next::Task(None);
    };
    thread.count_syscall();
    trace(thread, nr, &args, &result);
    match result {
        Err(errno) if errno.is_internal() => Next::Task(Some(result)),
        _ if thread.lost.lock().is_empty() && may_go_now(thread) => Next::Go(signal::to_return_value(result)),
        _ => Next::Task(Some(result)),
    }
}

/// Does what a task does before its thread goes back to user mode; whether nothing keeps the thread from that.
fn may_go_now(thread: &Arc<Thread>) -> bool {
    // Others have been woken, or a timer set.
    if !executor::is_drained() || time::needs_rearming() {
        executor::run();
        time::rearm();
    }
    let (has_orders, is_frozen) = thread.process.with_mm(|mm| (mm.has_orders(), mm.is_frozen()));
    if has_orders {
        thread.user.claim_orders(&thread.mm());
    }
    let paused = pause::is_paused() || pause::is_watched() || is_frozen;
    !paused && !thread.is_dying() && signal::is_quiet(thread) && thread.user.may_go_on()
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
            // Somebody else's orders are carried out to their end first.
            thread.user.settled().await;
            // Nobody waits for its orders any more when it has ended.
            thread.user.proven().await;
            urgent::end(thread.user.token);
            exit::thread_ended(&thread);
        }),
    );
}

async fn main(thread: &Arc<Thread>, first: qlib::platform::UserRegs) {
    may_go(thread).await;
    if thread.is_dying() {
        return;
    }
    thread.user.resume(&thread.mm(), Go::Regs(&first));
    loop {
        thread.enters_user_mode();
        let (trap, served) = thread.user.next_trap().await;
        thread.left_user_mode();
        let call = match trap.kind {
            TRAP_SYSCALL => {
                let result = match served {
                    Some(result) => result,
                    None => serve(thread, &trap).await,
                };
                lost::settle(thread).await;
                if trap.unproven == 0 && mm::patch::may_pay(trap.nr) && !matches!(result, Err(REGISTERS_REPLACED)) {
                    mm::patch::consider(&thread.mm(), &thread.user, trap.nr, Va(trap.ip)).await;
                }
                Some((trap.nr, result))
            }
            TRAP_FAULT => {
                fault(thread, &trap).await;
                None
            }
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
            TRAP_PREEMPTED => rseq::on_preempted(thread, &trap).await.then_some((trap.nr, Err(REGISTERS_REPLACED))),
            TRAP_DEAD => {
                // The host took the thread away (out of memory, or the program sabotaged its own stub).
                control::process_taken_away(&thread.process);
                exit::group_exit(&thread.process, linux_raw_sys::general::SIGKILL as i32);
                return;
            }
            _ => None,
        };
        if !go_on(thread, call).await {
            return;
        }
        start_newborn(thread);
    }
}

/// Whether the kernel has too little memory to go on with this thread. Who is urgent lives on a part of the reserve.
fn is_low_for(thread: &Thread) -> bool {
    heap::is_low() && !(urgent::is_urgent(thread.user.token) && heap::has_some_left() && oom::is_small(&thread.process))
}

/// Waits until kernel memory is no longer low.
#[cold]
async fn memory_for(thread: &Arc<Thread>) {
    // An error says that the thread is to die, or that somebody else's memory came back meanwhile.
    let _ = oom::relieve(thread, oom::Want::Heap).await;
}

async fn serve(thread: &Arc<Thread>, trap: &Trap) -> Result<usize> {
    thread.count_syscall();
    let traits = syscall::table::traits(trap.nr);
    if is_low_for(thread) && !traits.contains(Traits::GIVES_MEMORY_BACK) {
        memory_for(thread).await;
        if thread.is_dying() {
            return Err(Errno::EINTR);
        }
    }
    let frozen = if traits.contains(Traits::TAKES_PAGES_AWAY) { thread.mm().freeze(&thread.user).await } else { None };
    let result = syscall::dispatch(thread, trap.nr, trap.args).await;
    if frozen.is_some() && trap.nr == u64::from(linux_raw_sys::general::__NR_mremap) && thread.mm().has_orders() {
        // Others may free what was moved by its new place, while this thread has yet to unmap the old one. An error: it died.
        thread.user.moves_pages();
        let _ = thread.user.flush(&thread.mm()).await;
    }
    drop(frozen);
    thread.user.claim_orders(&thread.mm());
    trace(thread, trap.nr, &trap.args, &result);
    result
}

fn trace(thread: &Thread, nr: u64, args: &[u64; 6], result: &Result<usize>) {
    #[cold]
    fn write(thread: &Thread, nr: u64, args: &[u64; 6], result: &Result<usize>) {
        klog!(Trace, "thread {}: {}({args:x?}) = {result:x?}", thread.tid(), syscall::table::name(nr));
    }
    if log::is_kept(log::Level::Trace) {
        write(thread, nr, args, result);
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
    let failure = loop {
        // A write to a page that is shown read-only takes that page away from the other threads. Asked anew each time, with nothing
        // waited for between the answer and what follows from it.
        let takes_away = access == mm::Access::Write && mm.shows(Va(trap.addr));
        let frozen = if takes_away { mm.freeze(&thread.user).await } else { None };
        let mut outcome = thread.fault(Va(trap.addr), access);
        // Who has come from outside is loaded on the reserve, and may be the next to use memory up.
        let may_use_reserve = || urgent::is_urgent(thread.user.token) && oom::is_small_visitor(&thread.process);
        if outcome == Err(mm::fault::Failure::NO_MEMORY) && may_use_reserve() {
            outcome = heap::on_reserve(|| thread.fault(Va(trap.addr), access));
        }
        drop(frozen);
        match outcome {
            Ok(()) => {
                thread.user.claim_orders(&mm);
                return;
            }
            // Nothing is held while others end for it.
            Err(mm::fault::Failure::NO_MEMORY) => match oom::relieve(thread, oom::Want::Frame).await {
                _ if thread.is_dying() => return,
                Ok(()) => {}
                // There is memory: the page cannot be had for another reason.
                Err(_) => break mm::fault::Failure::NOTHING_BEHIND,
            },
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
