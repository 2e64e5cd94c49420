//! What a vCPU does: attend to events, run a ready thread until its next trap, give the trap to the
//! kernel; with nothing ready, idle.
//!
//! Threads that are ready wait in queues ([`super::queues`]). A vCPU that runs one while others
//! wait looks up after a time slice: then one that idles is woken, or the threads take turns. That
//! is late enough for two threads that wait for each other to stay on one vCPU. A thread that is
//! bound to other vCPUs has one of those take it at once.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linux_raw_sys::general::{
    BUS_ADRALN, BUS_ADRERR, CLOCK_MONOTONIC, FPE_FLTDIV, FPE_FLTINV, FPE_FLTOVF, FPE_FLTRES,
    FPE_FLTUND, FPE_INTDIV, ILL_ILLOPN, SI_KERNEL, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP,
    TRAP_TRACE,
};
use qlib::Va;
use qlib::kvm::{VECTOR_FLUSH, VECTOR_KICK, VECTOR_TIMER};
use qlib::platform::{
    EVENT_TIMER, EVENT_TRAP, Event, TRAP_EXCEPTION, TRAP_FAULT, TRAP_PREEMPTED, TRAP_SYSCALL, Trap,
};
use qlib::seccomp::Call;

use super::cpu::{self, PerCpu};
use super::entry::{self, MACHINE_CHECK, PAGE_FAULT, SYSCALL, UserContext};
use super::queues::{Queues, Waits};
use super::thread::{KvmThread, RunState};
use super::{apic, host, msr, space};
use crate::arch::lock::{lock_untimed, unlock};
use crate::arch::upcalls::{Next, Owner, UPCALLS};
use crate::arch::{boot, now_ns};
use crate::errno::Result;
use crate::sync::{Mutex, mutex};

/// How long a thread runs while others wait.
const SLICE_NS: u64 = 1_000_000;
/// How long an idle vCPU looks around before it waits.
const SPIN_TICKS: u64 = 50_000;
/// So many page tables that are out of use may wait to be freed while a thread runs.
const TABLES_KEPT: usize = 64;

static READY: Queues<KvmThread> = Queues::empty();
/// Events that the kernel has caused for itself.
static EVENTS: Mutex<VecDeque<Event>> = mutex(VecDeque::new());
/// When the kernel wants [`EVENT_TIMER`]: CLOCK_MONOTONIC in nanoseconds.
static DEADLINE: AtomicU64 = AtomicU64::new(u64::MAX);
/// vCPUs that have been started.
static ONLINE: AtomicU32 = AtomicU32::new(1);

/// How many vCPUs there are to talk to.
pub fn online() -> u32 {
    ONLINE.load(Ordering::Acquire)
}

/// Has an event of the kernel's own come, after this one.
pub fn post(event: Event) {
    EVENTS.lock().push_back(event);
}

/// A thread may run.
pub fn ready(thread: Arc<KvmThread>) {
    let this = cpu::this().index;
    let is_first = thread.keeps_turn.take();
    let index = if thread.place().may_be(this) { this } else { another_for(&thread) };
    thread.run_state.set(RunState::Ready);
    READY.put(thread, index, msr::tsc(), is_first);
    if index != this {
        while online() <= index {
            host::start(ONLINE.fetch_add(1, Ordering::AcqRel));
        }
        kick(index);
    }
}

/// The vCPU that is to take a thread which may not run on this one: one that idles, or the first.
fn another_for(thread: &KvmThread) -> u32 {
    let mut usable = (0..boot().cpus).filter(|index| thread.place().may_be(*index));
    let idles = |index: &u32| *index < online() && cpu::of(*index).idle.load(Ordering::Acquire);
    let first = usable.next().expect("a set with a CPU that exists");
    core::iter::once(first).chain(usable).find(idles).unwrap_or(first)
}

/// A thread that was ready may not run.
pub fn unready(thread: &Arc<KvmThread>) {
    READY.remove(thread);
}

/// Nothing of a thread that has ended is needed any more.
pub fn forget(thread: &Arc<KvmThread>) {
    unready(thread);
    let cpu = cpu::this();
    if cpu.is_live(Arc::as_ptr(thread)) {
        cpu.set_live(None);
    }
}

/// Has vCPU `index` look around.
pub fn kick(index: u32) {
    let cpu = cpu::of(index);
    cpu.kick.store(true, Ordering::SeqCst);
    if index == cpu::this().index {
        return;
    }
    if cpu.idle.load(Ordering::SeqCst) {
        cpu.wake.store(1, Ordering::SeqCst);
        host::wake(index);
    } else if cpu.in_user.load(Ordering::SeqCst) != 0 {
        apic::interrupt(index, VECTOR_KICK);
    }
}

/// See [`qlib::platform::PlatformOps::set_timer`].
pub(super) unsafe extern "C" fn set_timer(deadline_ns: u64) {
    if deadline_ns == 0 {
        DEADLINE.store(u64::MAX, Ordering::Relaxed);
        return post(Event { kind: EVENT_TIMER, ..Event::default() });
    }
    DEADLINE.store(deadline_ns, Ordering::Relaxed);
    arm(cpu::this(), deadline_ns);
}

/// Has the timer of this vCPU fire no later than `deadline_ns`.
fn arm(cpu: &PerCpu, deadline_ns: u64) {
    let now = now_ns(CLOCK_MONOTONIC);
    // One that should have fired is armed anew: were its interrupt lost, nothing else would.
    let armed = now..=deadline_ns;
    if armed.contains(&cpu.armed_ns.get()) {
        return;
    }
    // One that is further away than the hardware counts fires early, and is armed again then.
    let wait = deadline_ns.saturating_sub(now).clamp(1, u64::from(u32::MAX));
    cpu.armed_ns.set(now + wait);
    apic::set_timer(wait);
}

/// The loop. The kernel lock is free.
pub fn run() -> ! {
    let cpu = cpu::this();
    lock_untimed();
    loop {
        attend(cpu);
        match READY.take(cpu.index, slice_ticks()) {
            Some(thread) => run_thread(cpu, &thread),
            None => idle(cpu),
        }
    }
}

/// Takes all events there are.
fn attend(cpu: &PerCpu) {
    loop {
        if cpu.timer_fired.swap(false, Ordering::Acquire) {
            cpu.armed_ns.set(u64::MAX);
            let now = now_ns(CLOCK_MONOTONIC);
            let deadline = DEADLINE.load(Ordering::Relaxed);
            if deadline <= now {
                DEADLINE.store(u64::MAX, Ordering::Relaxed);
                post(Event { kind: EVENT_TIMER, ..Event::default() });
            } else if deadline != u64::MAX {
                arm(cpu, deadline);
            }
            let slice = cpu.slice_ns.get();
            if slice <= now {
                cpu.slice_ns.set(u64::MAX);
                wake_another(cpu);
            } else if slice != u64::MAX {
                // The timer and the clock are two: it may fire a little too early. Were it not
                // armed again, a thread that only computes would never give way.
                arm(cpu, slice);
            }
        }
        cpu.kick.store(false, Ordering::SeqCst);
        host::take_events();
        let Some(event) = EVENTS.lock().pop_front() else { break };
        (UPCALLS.serve)(&event);
    }
    (UPCALLS.release_tables)(1);
    host::flush();
}

/// A slice in ticks of the time stamp counter.
fn slice_ticks() -> u64 {
    boot().kvm.tsc_khz * (SLICE_NS / 1_000_000)
}

/// If a thread has waited here for most of a slice, has another vCPU take one, if one idles or has
/// not been started. Threads that wait for each other never do, and stay on one vCPU.
fn wake_another(this: &PerCpu) {
    let Some(first) = READY.first(this.index) else { return };
    if msr::tsc().saturating_sub(first.place().since_tsc()) <= slice_ticks() / 2 {
        return;
    }
    let is_idle = |i: &u32| *i != this.index && cpu::of(*i).idle.load(Ordering::Acquire);
    let idle = (0..online()).filter(is_idle).find(|i| first.place().may_be(*i));
    if let Some(index) = idle {
        kick(index);
    } else if online() < boot().cpus && first.place().may_be(online()) {
        host::start(ONLINE.fetch_add(1, Ordering::AcqRel));
    }
}

/// Makes `thread`'s state the one in the registers, or nobody's.
fn make_live(cpu: &PerCpu, thread: Option<&Arc<KvmThread>>) {
    if thread.is_some_and(|thread| cpu.is_live(Arc::as_ptr(thread))) {
        return;
    }
    if let Some(old) = cpu.set_live(None) {
        old.save();
    }
    if let Some(new) = thread {
        new.load();
        cpu.set_live(Some(new.clone()));
    }
}

/// Runs user code of `thread`, and serves its traps, as long as it need not wait for anything; then
/// has its task take over.
fn run_thread(cpu: &PerCpu, thread: &Arc<KvmThread>) {
    if thread.must_notify(cpu.index) {
        return preempted(cpu, thread);
    }
    thread.run_state.set(RunState::Running(cpu.index));
    make_live(cpu, Some(thread));
    space::load(thread.root.get());
    let owner = thread.owner();
    if let Some(owner) = &owner {
        owner.runs(cpu.stolen.ns());
    }
    let rests = |owner: &Option<Arc<dyn Owner>>| {
        if let Some(owner) = owner {
            owner.rests(cpu.stolen.ns());
        }
    };
    loop {
        if READY.have_some(cpu.index) && cpu.slice_ns.get() == u64::MAX {
            let slice = now_ns(CLOCK_MONOTONIC) + SLICE_NS;
            cpu.slice_ns.set(slice);
            arm(cpu, slice);
        }
        unlock();
        let vector = enter_user(cpu, thread);
        // Read before another fault can happen.
        let address = if vector == PAGE_FAULT { msr::cr2() } else { 0 };
        lock_untimed();
        // SAFETY: user mode has been left, and the kernel lock is held.
        let context = unsafe { &mut *thread.context() };
        let next = match (vector, &owner) {
            (SYSCALL, Some(owner)) => owner.clone().serve_now(&context.call()),
            (PAGE_FAULT, Some(owner)) => owner.clone().fault_now(Va(address), context.error),
            _ => Next::Task(None),
        };
        match next {
            Next::Go(answer) => {
                if vector == SYSCALL {
                    context.rax = answer as u64;
                }
                (UPCALLS.release_tables)(TABLES_KEPT);
                host::flush();
                if !EVENTS.lock().is_empty() || !thread.place().may_be(cpu.index) {
                    rests(&owner);
                    return ready(thread.clone());
                }
            }
            Next::Task(served) => {
                rests(&owner);
                return leave(thread, owner, vector, address, served);
            }
        }
    }
}

/// Enters user mode: what ended it.
fn enter_user(cpu: &PerCpu, thread: &KvmThread) -> u64 {
    let context = thread.context();
    loop {
        cpu.in_user.store(thread.root.get().0 | 1, Ordering::SeqCst);
        if cpu.flush.load(Ordering::SeqCst) && cpu.flush.swap(false, Ordering::SeqCst) {
            // SAFETY: the table in use.
            unsafe { msr::set_cr3(thread.root.get().0) }
        }
        if cpu.kick.load(Ordering::SeqCst) {
            cpu.in_user.store(0, Ordering::SeqCst);
            return u64::from(VECTOR_KICK);
        }
        // SAFETY: the thread's page table and state were just loaded.
        unsafe { entry::enter_user(cpu, context, thread.fast.get()) };
        cpu.in_user.store(0, Ordering::SeqCst);
        // SAFETY: user mode has been left.
        let vector = unsafe { (*context).vector };
        thread.fast.set(vector == SYSCALL);
        if vector >= u64::from(VECTOR_TIMER) && vector != SYSCALL {
            entry::note_interrupt(vector);
        }
        if vector != u64::from(VECTOR_FLUSH) {
            return vector;
        }
    }
}

/// The kernel's side takes over a thread that has left user mode by `vector`. `served`: the result
/// of its system call, if that has been served already.
fn leave(
    thread: &Arc<KvmThread>,
    owner: Option<Arc<dyn Owner>>,
    vector: u64,
    address: u64,
    served: Option<Result<usize>>,
) {
    // SAFETY: it is not in user mode, and the kernel lock is held.
    let context = unsafe { &*thread.context() };
    let trap = match vector {
        SYSCALL => {
            thread.in_syscall.set(true);
            let Call { nr, args, ip } = context.call();
            Trap { nr, args, ip, ..thread.trap(TRAP_SYSCALL) }
        }
        PAGE_FAULT => Trap {
            addr: address,
            code: context.error,
            regs: thread.regs(),
            ..thread.trap(TRAP_FAULT)
        },
        vector if vector < u64::from(VECTOR_TIMER) => {
            let (signo, si_code, addr) = signal_of(vector, context);
            Trap {
                signo: signo as i32,
                si_code: si_code as i32,
                addr,
                regs: thread.regs(),
                ..thread.trap(TRAP_EXCEPTION)
            }
        }
        _ => {
            if let Some(owner) = owner.filter(|_| READY.have_some(cpu::this().index)) {
                owner.gives_way();
            }
            return interrupted(thread);
        }
    };
    thread.run_state.set(RunState::Stopped);
    // This trap answers a request to stop, too.
    thread.stop_asked.set(false);
    if let Some(owner) = owner {
        owner.served(&trap, served);
    }
    (UPCALLS.run_tasks)();
}

/// Notifies the kernel that the thread was preempted, or has moved to this vCPU. When it is ready
/// again, as it is at once if nothing holds it, its turn has come.
fn preempted(cpu: &PerCpu, thread: &Arc<KvmThread>) {
    thread.run_state.set(RunState::Stopped);
    thread.keeps_turn.set(true);
    let trap = Trap { cpu: cpu.index, regs: thread.regs(), ..thread.trap(TRAP_PREEMPTED) };
    (UPCALLS.serve)(&Event { kind: EVENT_TRAP, trap, ..Event::default() });
}

/// The thread has done nothing itself: it stops if somebody wants that, or waits for its next turn.
fn interrupted(thread: &Arc<KvmThread>) {
    if thread.stop_asked.replace(false) {
        thread.run_state.set(RunState::Stopped);
        thread.post_stopped();
    } else if thread.run_state.get() != RunState::Ended {
        ready(thread.clone());
    }
}

/// The signal of an exception as Linux sends it: number, si_code, address.
fn signal_of(vector: u64, context: &UserContext) -> (u32, u32, u64) {
    match vector {
        0 => (SIGFPE, FPE_INTDIV, context.rip),
        1 => (SIGTRAP, TRAP_TRACE, context.rip),
        3 => (SIGTRAP, SI_KERNEL, 0),
        6 => (SIGILL, ILL_ILLOPN, context.rip),
        11 | 12 => (SIGBUS, SI_KERNEL, 0),
        16 => (SIGFPE, fpe_code(x87_exceptions()), context.rip),
        17 => (SIGBUS, BUS_ADRALN, 0),
        MACHINE_CHECK => (SIGBUS, BUS_ADRERR, 0),
        19 => (SIGFPE, fpe_code(simd_exceptions()), context.rip),
        _ => (SIGSEGV, SI_KERNEL, 0),
    }
}

/// Unmasked pending exceptions of the x87 unit: the thread's state is still in the registers.
fn x87_exceptions() -> u16 {
    let (mut control, mut status) = (0u16, 0u16);
    // SAFETY: stores two words.
    unsafe {
        asm!("fnstcw [{}]", "fnstsw [{}]", in(reg) &mut control, in(reg) &mut status,
            options(nostack, preserves_flags))
    };
    status & !control
}

/// The same of SSE.
fn simd_exceptions() -> u16 {
    let mut mxcsr = 0u32;
    // SAFETY: stores a word.
    unsafe { asm!("stmxcsr [{}]", in(reg) &mut mxcsr, options(nostack, preserves_flags)) };
    (mxcsr & !(mxcsr >> 7)) as u16
}

/// si_code of SIGFPE.
fn fpe_code(exceptions: u16) -> u32 {
    match exceptions {
        e if e & 1 != 0 => FPE_FLTINV,
        e if e & 4 != 0 => FPE_FLTDIV,
        e if e & 8 != 0 => FPE_FLTOVF,
        // Underflow, or a denormal operand.
        e if e & 0x12 != 0 => FPE_FLTUND,
        e if e & 0x20 != 0 => FPE_FLTRES,
        _ => 0,
    }
}

/// Nothing is ready: looks around for a moment, then waits in a hypercall. There, unlike halted, it
/// is not woken by interrupts: those who have something for an idle vCPU set its wake word.
fn idle(cpu: &PerCpu) {
    make_live(cpu, None);
    space::leave();
    cpu.wake.store(0, Ordering::SeqCst);
    cpu.idle.store(true, Ordering::SeqCst);
    // Who gives an event looks after that who idles, and interrupts if nobody does. That interrupt
    // need not be waited for: the event is here by now.
    if host::has_events() {
        cpu.kick.store(true, Ordering::SeqCst);
    }
    unlock();
    let begin = msr::tsc();
    loop {
        // Interrupts that came before `idle` was seen are taken here, after the instruction that
        // follows STI. PAUSE must not be that one: older QEMUs then take none before CLI.
        // SAFETY: handlers of interrupts in kernel mode only take a note.
        unsafe { asm!("pause", "sti", "nop", "cli", options(nostack)) };
        let kicked = cpu.kick.load(Ordering::SeqCst) || cpu.wake.load(Ordering::SeqCst) != 0;
        if kicked || cpu.timer_fired.load(Ordering::SeqCst) || READY.have_some(cpu.index) {
            break;
        }
        if msr::tsc().wrapping_sub(begin) > SPIN_TICKS && host::wait(cpu.armed_ns.get()) {
            // The timer's own interrupt may still be on its way; then it comes for nothing.
            cpu.timer_fired.store(true, Ordering::SeqCst);
        }
    }
    cpu.idle.store(false, Ordering::SeqCst);
    lock_untimed();
}
