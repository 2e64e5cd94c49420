//! Fast calls of the process platform: system calls handed over in shared memory. The kernel of
//! these tests answers on the receiver's own thread, as the real one does.

mod platform_common;
#[path = "support/skip.rs"]
mod skip;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use platform_common::*;
use qlib::platform::*;
use qvisor::platform::process::{FastCalls, ProcessConfig, ProcessPlatform, why_not_fast};

const GETPPID: u64 = 39;
/// Not fast: it reports to the test, which answers.
const REPORT: u64 = 0x323;

/// Receivers that look at slots want a processor for themselves.
static ALONE: Mutex<()> = Mutex::new(());

/// A platform whose kernel answers getppid with the number of the call so far, and passes
/// everything else to the test.
struct Fast {
    platform: Arc<ProcessPlatform>,
    ram: std::fs::File,
    events: Receiver<Event>,
    counts: Arc<Counts>,
    /// The thread that was started last.
    thread: Arc<AtomicU64>,
}

/// Programs of one test.
const MOST: usize = 2;

#[derive(Default)]
struct Counts {
    calls: AtomicU64,
    fast: AtomicU64,
    /// The thread of each program.
    threads: [AtomicU64; MOST],
    /// Of so many fast calls one is left for the test to answer.
    pass_every: AtomicU64,
    /// The guest writes over its slots.
    hostile: AtomicBool,
}

fn kernel(
    platform: &OnceLock<Weak<ProcessPlatform>>,
    counts: &Counts,
    sender: &Mutex<Sender<Event>>,
    event: &Event,
) {
    let Some(platform) = platform.get().and_then(Weak::upgrade) else { return };
    if event.kind == EVENT_TRAP && event.trap.kind == TRAP_SYSCALL && event.trap.nr == GETPPID {
        let n = counts.calls.fetch_add(1, Ordering::SeqCst) + 1;
        counts.fast.fetch_add(u64::from(event.trap.unproven), Ordering::SeqCst);
        let every = counts.pass_every.load(Ordering::SeqCst);
        if every == 0 || !n.is_multiple_of(every) {
            assert!(counts.hostile.load(Ordering::SeqCst) || event.trap.args == [1, 2, 3, 4, 5, 6]);
            let answer = Resume { value: n as i64, ..resume(RESUME_RETURN) };
            let thread = counts.threads[event.trap.token as usize - 1].load(Ordering::SeqCst);
            return platform.thread_resume(thread, &answer, &[]);
        }
    }
    let _ = sender.lock().expect("no panic here").send(*event);
}

impl Fast {
    fn new(fast_calls: FastCalls) -> Option<Self> {
        if let Some(why) = why_not_fast(true) {
            skip::skip(format!("no fast calls here: {why}"));
            return None;
        }
        let ram = ram();
        let fd: OwnedFd = ram.try_clone().expect("clone RAM").into();
        let config = ProcessConfig { fast_calls, ..ProcessConfig::default() };
        let platform =
            Arc::new(ProcessPlatform::new(Arc::new(Ram(Arc::new(fd))), config).expect("platform"));
        let (sender, events) = channel();
        let (sender, known) = (Mutex::new(sender), OnceLock::new());
        let _ = known.set(Arc::downgrade(&platform));
        let (counts, thread) = (Arc::<Counts>::default(), Arc::<AtomicU64>::default());
        let c = counts.clone();
        platform.set_dispatch(Box::new(move |event| kernel(&known, &c, &sender, event)));
        Some(Self { platform, ram, events, counts, thread })
    }

    /// Starts `code` with the address of the fast call in %rbx and `rounds` in %r12; the space.
    fn start(&self, code: &[u8], rounds: u64) -> u64 {
        self.start_nth(0, code, rounds)
    }

    /// The same, for a further program of a test.
    fn start_nth(&self, program: usize, code: &[u8], rounds: u64) -> u64 {
        std::os::unix::fs::FileExt::write_all_at(&self.ram, code, 0).expect("code");
        let space = self.platform.space_new().expect("space");
        let token = program as u64 + 1;
        let thread = self.platform.thread_new(space, 0, token).expect("thread");
        self.thread.store(thread, Ordering::SeqCst);
        self.counts.threads[program].store(thread, Ordering::SeqCst);
        let entry = self.platform.fast_entry().0;
        assert_ne!(entry, 0);
        let regs =
            UserRegs { rip: CODE, rbx: entry, r12: rounds, rflags: 0x202, ..UserRegs::default() };
        let ops = [map(CODE, 0x1000, 0, RX), map(DATA, 0x1000, 0x1_0000, RW)];
        self.platform.thread_resume(thread, &Resume { regs, ..resume(RESUME_REGS) }, &ops);
        space
    }

    fn event(&self) -> Trap {
        let event = self.events.recv_timeout(Duration::from_secs(20)).expect("an event");
        assert_eq!(event.kind, EVENT_TRAP);
        event.trap
    }

    fn report(&self) -> Trap {
        let trap = self.event();
        assert_eq!((trap.kind, trap.nr), (TRAP_SYSCALL, REPORT), "{trap:#x?}");
        trap
    }

    /// Stops the thread. A call that it makes just then makes the request void.
    fn stop(&self) -> Trap {
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            self.platform.thread_stop(self.thread.load(Ordering::SeqCst));
            if let Ok(event) = self.events.recv_timeout(Duration::from_millis(20)) {
                return event.trap;
            }
        }
        panic!("it does not stop");
    }

    fn resume(&self, r: &Resume) {
        self.platform.thread_resume(self.thread.load(Ordering::SeqCst), r, &[]);
    }
}

// %r12 calls, each of which must leave every register but %rax, %rcx and %r11 alone, and the flags:
// all set and all clear in turns. %rsi of the report: mistakes; %rdi: the last value.
guest_code!(
    caller,
    "xor %r13d, %r13d",
    "xor %r14d, %r14d",
    "3: mov $1, %edi",
    "mov $2, %esi",
    "mov $3, %edx",
    "mov $4, %r10d",
    "mov $5, %r8d",
    "mov $6, %r9d",
    "mov $0x7fffffff, %ebp",
    "mov $0x1234567, %r15d",
    "bt $0, %r12d",
    "jc 4f",
    "xor %eax, %eax", // ZF PF
    "jmp 5f",
    "4: add $0x7fffffff, %ebp", // SF OF AF
    "stc",
    "5: mov $39, %eax",
    "lea 6f(%rip), %r11",
    "jmp *%rbx",
    "6: syscall",
    "lahf", // into %ah: the value in %rax is needed below, so by way of %r15's place
    "seto %al",
    "movzwl %ax, %ebp",
    "bt $0, %r12d",
    "jc 7f",
    "cmp $0x4600, %ebp",
    "jne 8f",
    "jmp 9f",
    "7: cmp $0x9301, %ebp",
    "jne 8f",
    "9: cmp $1, %edi",
    "jne 8f",
    "cmp $2, %esi",
    "jne 8f",
    "cmp $3, %edx",
    "jne 8f",
    "cmp $4, %r10d",
    "jne 8f",
    "cmp $5, %r8d",
    "jne 8f",
    "cmp $6, %r9d",
    "jne 8f",
    "cmp $0x1234567, %r15d",
    "je 2f",
    "8: inc %r13",
    "mov %ebp, %r14d",
    "2: dec %r12",
    "jnz 3b",
    "mov %r13, %rsi",
    "mov %r14, %rdi",
    "mov $0x323, %eax",
    "syscall",
    "ud2",
);

#[test]
fn a_row_of_calls_stays_out_of_the_host() {
    const ROUNDS: u64 = 200_000;
    // Where others want the processors too, it may take more than one try.
    const TRIES: usize = 20;
    let _alone = ALONE.lock();
    for mode in [FastCalls::Auto, FastCalls::Eager] {
        let any =
            (0..TRIES).any(|_| row_of_calls(mode, ROUNDS).is_none_or(|fast| fast > ROUNDS / 10));
        assert!(any, "{mode:?}: calls are not fast");
    }
}

/// How many of so many calls were fast; `None` where none can be.
fn row_of_calls(mode: FastCalls, rounds: u64) -> Option<u64> {
    let fast = Fast::new(mode)?;
    let begin = Instant::now();
    let space = fast.start(caller(), rounds);
    let trap = fast.report();
    let took = begin.elapsed();
    let (calls, by_slot) =
        (fast.counts.calls.load(Ordering::SeqCst), fast.counts.fast.load(Ordering::SeqCst));
    println!(
        "{mode:?}: {calls} calls, {by_slot} of them fast, {} ns each",
        took.as_nanos() as u64 / rounds
    );
    assert_eq!(trap.args[1], 0, "mistakes; flags seen last: {:#x}", trap.args[0]);
    assert_eq!(calls, rounds);
    fast.platform.space_drop(space);
    Some(by_slot)
}

/// On two processors one receiver looks: also at the slots of another process. That one's own
/// receiver would have to wait for the kernel at each call, and more of them would not be fast.
#[test]
fn who_looks_serves_other_processes_too() {
    const ROUNDS: u64 = 200_000;
    // Where others want the processors too it takes longer to be given both at once.
    const PATIENCE: Duration = Duration::from_secs(90);
    let _alone = ALONE.lock();
    let begin = Instant::now();
    let ordinary = || {
        let fast = Fast::new(FastCalls::Auto)?;
        let spaces = [0, 1].map(|program| fast.start_nth(program, caller(), ROUNDS));
        for trap in [fast.report(), fast.report()] {
            assert_eq!(trap.args[1], 0, "mistakes; flags seen last: {:#x}", trap.args[0]);
        }
        assert_eq!(fast.counts.calls.load(Ordering::SeqCst), 2 * ROUNDS);
        spaces.into_iter().for_each(|space| fast.platform.space_drop(space));
        let ordinary = 2 * ROUNDS - fast.counts.fast.load(Ordering::SeqCst);
        println!("{ordinary} calls were not fast");
        Some(ordinary)
    };
    let few = 2 * ROUNDS * 3 / 200;
    let tries = std::iter::repeat_with(ordinary);
    let any = tries
        .take_while(|_| begin.elapsed() < PATIENCE)
        .any(|ordinary| ordinary.is_none_or(|ordinary| ordinary < few));
    assert!(any, "calls of two processes are not fast together");
}

// Calls like `caller`, with the register check left out, and reports each 100th; runs until it is
// ended.
guest_code!(
    forever,
    "1: mov $1, %edi",
    "mov $2, %esi",
    "mov $3, %edx",
    "mov $4, %r10d",
    "mov $5, %r8d",
    "mov $6, %r9d",
    "mov $39, %eax",
    "lea 6f(%rip), %r11",
    "jmp *%rbx",
    "6: syscall",
    "7: mov %rax, %r15",
    "jmp 1b",
);

#[test]
fn a_call_without_an_answer_waits_in_the_host() {
    let _alone = ALONE.lock();
    let Some(fast) = Fast::new(FastCalls::Eager) else { return };
    fast.counts.pass_every.store(64, Ordering::SeqCst);
    let space = fast.start(caller(), 64 * 50);
    for i in 1..=50 {
        let trap = fast.event();
        assert_eq!((trap.kind, trap.nr), (TRAP_SYSCALL, GETPPID));
        // Long enough for the thread to give up looking.
        std::thread::sleep(Duration::from_micros(i * 20));
        fast.resume(&Resume { value: 7, ..resume(RESUME_RETURN) });
    }
    assert_eq!(fast.report().args[1], 0, "mistakes");
    fast.platform.space_drop(space);
}

#[test]
fn a_stop_shows_the_registers_that_the_program_knows() {
    let _alone = ALONE.lock();
    let Some(fast) = Fast::new(FastCalls::Eager) else { return };
    let space = fast.start(forever(), 0);
    let syscall =
        CODE + forever().windows(2).position(|w| w == [0x0f, 0x05]).expect("syscall") as u64;
    let jump =
        CODE + forever().windows(2).position(|w| w == [0xff, 0xe3]).expect("jmp *%rbx") as u64;
    let inside = CODE..CODE + forever().len() as u64;
    let (mut before, mut after, mut elsewhere) = (0, 0, 0);
    for i in 0..400 {
        std::thread::sleep(Duration::from_micros(50 + i));
        let trap = fast.stop();
        assert_eq!(trap.kind, TRAP_STOPPED, "{trap:#x?}");
        assert!(inside.contains(&trap.regs.rip), "stub code shows: {:#x?}", trap.regs);
        assert_eq!(trap.regs.gs_base, 0);
        // What a system call may change is changed, but the address of its call in %r11, on which
        // the program counts at its jump.
        let mut regs = UserRegs { rcx: 0, ..trap.regs };
        if regs.rip != jump {
            regs.r11 = 0;
        }
        if regs.rip == syscall {
            assert_eq!(regs.rax, GETPPID);
            before += 1;
        } else if regs.rip == syscall + 2 {
            after += 1;
        } else {
            elsewhere += 1;
        }
        match trap.in_syscall {
            1 => fast.resume(&Resume { value: 5, ..resume(RESUME_RETURN) }),
            _ => fast.resume(&Resume { regs, ..resume(RESUME_REGS) }),
        }
    }
    println!("before the call {before}, after it {after}, elsewhere {elsewhere}");
    assert!(before + after > 0, "never stopped in a call");
    fast.platform.space_drop(space);
}

guest_code!(
    // Writes over both slots without pause: first what a call looks like, then anything.
    scribbler,
    "1: mov %r12, %rdi",
    "mov $0x1000, %ecx", // both slots, in words
    "2: mov %rax, (%rdi)",
    "add $8, %rdi",
    "add $0x1357, %rax",
    "loop 2b",
    "mov %r12, %rdi",
    "movl $39, 3768(%rdi)",
    "movl $1, 3772(%rdi)",
    "movl $4, 3772(%rdi)",
    "jmp 1b",
);

#[test]
fn a_thread_that_forges_calls_hurts_only_its_process() {
    let _alone = ALONE.lock();
    let Some(fast) = Fast::new(FastCalls::Eager) else { return };
    let area = fast.platform.user_max().0 + 0x4_0000;
    let (mut died, mut calls) = (0, 0);
    for _ in 0..20 {
        fast.counts.hostile.store(true, Ordering::SeqCst);
        let space = fast.start(forever(), 0);
        let trap = fast.stop();
        assert_eq!(trap.kind, TRAP_STOPPED);
        let first = fast.thread.load(Ordering::SeqCst);
        let second = fast.platform.thread_new(space, first, 2).expect("a second thread");
        std::os::unix::fs::FileExt::write_all_at(&fast.ram, scribbler(), 0x2_0000).expect("code");
        let regs = UserRegs { rip: 0x70_0000, r12: area, rflags: 0x202, ..UserRegs::default() };
        fast.platform.thread_resume(
            second,
            &Resume { regs, ..resume(RESUME_REGS) },
            &[map(0x70_0000, 0x1000, 0x2_0000, RX)],
        );
        match trap.in_syscall {
            1 => fast.resume(&Resume { value: 5, ..resume(RESUME_RETURN) }),
            _ => fast.resume(&resume(RESUME_GO)),
        }
        let before = fast.counts.calls.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(30));
        calls += fast.counts.calls.load(Ordering::SeqCst) - before;
        fast.platform.space_drop(space);
        // Whatever traps its threads had, this is the last that is heard of it.
        loop {
            let event = fast.events.recv_timeout(Duration::from_secs(20)).expect("its end");
            died += u64::from(event.kind == EVENT_TRAP && event.trap.kind == TRAP_DEAD);
            if event.kind == EVENT_SPACE_GONE {
                break;
            }
        }
        fast.counts.hostile.store(false, Ordering::SeqCst);
        let space = fast.start(caller(), 100);
        assert_eq!(fast.report().args[1], 0, "another process notices");
        fast.platform.space_drop(space);
        let gone = fast.events.recv_timeout(Duration::from_secs(20)).expect("its end");
        assert_eq!(gone.kind, EVENT_SPACE_GONE);
    }
    println!("{calls} calls, forged ones among them; {died} threads were ended for it");
}
