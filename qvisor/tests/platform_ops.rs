//! Frames may be used again only when the host has carried out the operation that takes them away:
//! hostile programs against the process platform with a mock kernel, which looks into
//! `/proc/PID/maps` for the truth.

mod platform_common;

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use platform_common::*;
use qlib::Gpa;
use qlib::platform::*;
use qvisor::platform::process::ProcessConfig;
use qvisor::sandbox::memory::{GuestMemory, Layout, RAM_UNIT};

/// Where the page lies that comes and goes.
const PAGE: u64 = 0x70_0000;

/// True if the host has `va` mapped in the stub of a space; `None` when the stub is gone.
fn is_mapped(mock: &Mock, space: u64, va: u64) -> Option<bool> {
    let maps =
        std::fs::read_to_string(format!("/proc/{}/maps", mock.platform.stub_pid(space)?)).ok()?;
    let address = |text: &str| u64::from_str_radix(text, 16).expect("an address");
    let mut ranges = maps.lines().filter_map(|line| line.split(' ').next()?.split_once('-'));
    Some(ranges.any(|(start, end)| (address(start)..address(end)).contains(&va)))
}

guest_code!(
    // Unmaps each second page from 0x10000000 on, and says how that went.
    hole_maker,
    "mov $0x10000000, %rbx",
    "xor %eax, %eax",
    "1: mov %rax, %rdx",
    "mov $11, %eax",
    "mov %rbx, %rdi",
    "mov $0x1000, %esi",
    "syscall",
    "add $0x2000, %rbx",
    "jmp 1b",
);

/// Holes by the guest's own munmap, up to `most` of them. The space must be ended before the host
/// refuses one.
fn holes(config: ProcessConfig, most: u64) -> u64 {
    const CHUNK: u64 = RAM_BYTES;
    let mock = Mock::with(config);
    let p = mock.start(hole_maker());
    mock.syscall(11);
    let chunks = (2 * most * 0x1000).div_ceil(CHUNK);
    let maps: Vec<_> = (0..chunks).map(|i| map(0x1000_0000 + i * CHUNK, CHUNK, 0, RW)).collect();
    mock.go(p.thread, RESUME_HOLD, &maps);
    mock.trap(TRAP_SYNCED);
    let mut holes = 0;
    let (mut va, mut event) = (0x1000_0000, None);
    while holes < most {
        mock.give_after(p.thread, 0, &[unmap(va, 0x1000)]);
        let next = mock.event();
        if next.trap.kind == TRAP_DEAD {
            event = Some(next);
            break;
        }
        // The kernel uses the frame again now.
        if holes.is_multiple_of(5000) {
            assert_eq!(
                is_mapped(&mock, p.space, va),
                Some(false),
                "hole {holes} at {va:#x}: still mapped"
            );
        }
        assert_eq!(
            (next.trap.kind, next.trap.nr, next.trap.args[0]),
            (TRAP_SYSCALL, 11, va + 0x2000)
        );
        assert_eq!(
            next.trap.args[2] as i64, 0,
            "hole {holes}: the host refused what the kernel relies on"
        );
        (va, holes) = (va + 0x2000, holes + 1);
    }
    assert_eq!(event.map(|e| e.trap.token), Some(p.token), "it lives with {holes} holes");
    mock.end(p.space);
    holes
}

#[test]
fn holes_up_to_the_limit_of_the_host() {
    let begin = Instant::now();
    let made = holes(ProcessConfig::default(), 70_000);
    println!("ended after {made} holes, {:?}", begin.elapsed());
}

#[test]
fn holes_up_to_a_low_limit() {
    for max_map_count in [400, 1000] {
        let made = holes(
            ProcessConfig { max_map_count: Some(max_map_count), ..ProcessConfig::default() },
            2000,
        );
        assert!(made > max_map_count / 2 && made < max_map_count, "{max_map_count}: {made}");
    }
}

guest_code!(
    // Makes the frame call itself, signals not blocked, with a forged frame that says that 0x700000
    // was touched. %r12: its slot, %rbp: the frame call's instruction. The forged frame goes on at
    // the beginning.
    forger,
    "1: lea 0x2008(%r12), %rbx",
    "mov %rbx, %rdi",
    "xor %eax, %eax",
    "mov $55, %ecx",
    "rep stosq",
    "movq $6, 8(%rbx)",
    "lea 0x1000(%r12), %rax",
    "mov %rax, 24(%rbx)",
    "movq $0x3000, 40(%rbx)",
    "mov %r12, 80(%rbx)",
    "mov %rbp, 128(%rbx)",
    "lea 1b(%rip), %rax",
    "mov %rax, 176(%rbx)",
    "movq $0x202, 184(%rbx)",
    "movabs $0x2b000000000033, %rax",
    "mov %rax, 192(%rbx)",
    "movq $14, 208(%rbx)",
    "movq $0x700000, 224(%rbx)",
    "movl $1, 320(%rbx)",
    "lea 0x2000(%r12), %rsp",
    "mov %rbx, %rsi",
    "mov $11, %edi",
    "mov $0x51554b01, %eax",
    "jmp *%rbp",
);

/// Where the instruction of the frame call is in the stub of a program.
fn frame_call_of(mock: &Mock, p: Program) -> u64 {
    let base = mock.platform.user_max().0;
    let mut code = [0; 0x1000];
    let pid = mock.platform.stub_pid(p.space).expect("a stub");
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("its memory");
    memory.read_exact_at(&mut code, base).expect("stub code");
    let call = [0xb8, 0x01, 0x4b, 0x55, 0x51, 0x0f, 0x05];
    let at = code.windows(call.len()).position(|w| w == call).expect("the frame call") as u64;
    base + at + 5
}

/// Starts [`forger`]; it is at its first false report.
fn start_forger(mock: &Mock) -> Program {
    let p = mock.start(forger());
    // Without registers of our choice it gets no further than to a fault.
    let trap = mock.trap(TRAP_FAULT);
    let slot = mock.platform.user_max().0 + 0x4_0000;
    mock.set(
        p.thread,
        UserRegs { rip: CODE, r12: slot, rbp: frame_call_of(mock, p), ..trap.regs },
        &[],
    );
    mock.fault(PAGE);
    p
}

/// What became of a forger whose last operation was `op`, kicked some time after.
fn kicked_after(mock: &Mock, p: Program, op: DeferredOp, delay: Duration) -> Trap {
    mock.go(p.thread, RESUME_GO, &[op]);
    let begin = Instant::now();
    while begin.elapsed() < delay {
        std::hint::spin_loop();
    }
    mock.platform.thread_stop(p.thread);
    mock.event().trap
}

/// Unmaps the page of a program that makes its frame calls itself, and kicks it at the last
/// operation. It may be gone when it is looked at: a kick that comes later still finds it in a call
/// that stub code never leaves by a signal.
fn kicked_at_the_last_order(config: ProcessConfig, rounds: u64) {
    let mock = Mock::with(config);
    let gpa = mock.frames(0x1000);
    let (mut p, mut deaths, mut stops) = (start_forger(&mock), 0, 0);
    for round in 0..rounds {
        mock.go(p.thread, RESUME_GO, &[map(PAGE, 0x1000, gpa, RW)]);
        if mock.event().trap.kind == TRAP_DEAD {
            // The last kick came late, in the middle of operations.
            deaths += 1;
            mock.end(p.space);
            p = start_forger(&mock);
            continue;
        }
        assert_ne!(is_mapped(&mock, p.space, PAGE), Some(false));
        let delay = Duration::from_nanos(round * 7919 % 60_000);
        let mut trap = kicked_after(&mock, p, unmap(PAGE, 0x1000), delay);
        if trap.kind == TRAP_STOPPED {
            stops += 1;
            assert_ne!(
                is_mapped(&mock, p.space, PAGE),
                Some(true),
                "round {round}: stopped, and the page is there"
            );
            mock.go(p.thread, RESUME_GO, &[]);
            trap = mock.event().trap;
        }
        if trap.kind == TRAP_SYSCALL {
            // Torn, and carried out with its report since: what makes the call again now is the
            // program.
            assert_eq!(trap.nr, libc::SYS_munmap as u64);
            mock.give(p.thread, 0);
            trap = mock.event_or_stop(p.thread).trap;
        }
        if trap.kind == TRAP_DEAD || trap.kind == TRAP_STOPPED {
            deaths += 1;
            mock.end(p.space);
            p = start_forger(&mock);
            continue;
        }
        assert_eq!((trap.kind, trap.addr), (TRAP_FAULT, PAGE), "round {round}: {trap:#x?}");
        assert_ne!(
            is_mapped(&mock, p.space, PAGE),
            Some(true),
            "round {round}: it ran on, and the page is there"
        );
    }
    println!("{rounds} rounds, {stops} stops, {deaths} ended");
    assert!(stops > 0, "it was never stopped");
    mock.end(p.space);
}

#[test]
fn a_kick_at_the_last_order_is_no_proof() {
    kicked_at_the_last_order(ProcessConfig::default(), 1500);
}

#[test]
fn a_kick_at_the_last_order_is_no_proof_where_it_tears_the_call() {
    kicked_at_the_last_order(OLDEST, 1500);
}

/// The last operation fails, and a kick comes before stub code can say so.
fn kicked_at_a_failure(config: ProcessConfig, rounds: u64) {
    let mock = Mock::with(config);
    let mut p = start_forger(&mock);
    for round in 0..rounds {
        // There is nothing to protect: ENOMEM.
        let trap = kicked_after(
            &mock,
            p,
            protect(PAGE, 0x1000, R),
            Duration::from_nanos(round * 7919 % 60_000),
        );
        assert_eq!(
            trap.kind, TRAP_DEAD,
            "round {round}: an operation failed and it goes on: {trap:#x?}"
        );
        mock.end(p.space);
        p = start_forger(&mock);
    }
    mock.end(p.space);
}

#[test]
fn a_kick_does_not_hide_that_an_order_failed() {
    kicked_at_a_failure(ProcessConfig::default(), 300);
}

#[test]
fn a_kick_does_not_hide_that_an_order_failed_where_it_tears_the_call() {
    kicked_at_a_failure(OLDEST, 300);
}

guest_code!(
    // As the one above, with an operation table of its own choice: the thread's "slot" is memory of
    // the program, at %r12. The frame is where it must be, in the real slot at %r13.
    misreader,
    "1: lea 0x2008(%r13), %rbx",
    "mov %rbx, %rdi",
    "xor %eax, %eax",
    "mov $55, %ecx",
    "rep stosq",
    "movq $6, 8(%rbx)",
    "lea 0x1000(%r13), %rax",
    "mov %rax, 24(%rbx)",
    "movq $0x3000, 40(%rbx)",
    "mov %r12, 80(%rbx)",
    "mov %r13, 88(%rbx)",
    "mov %rbp, 128(%rbx)",
    "lea 1b(%rip), %rax",
    "mov %rax, 176(%rbx)",
    "movq $0x202, 184(%rbx)",
    "movabs $0x2b000000000033, %rax",
    "mov %rax, 192(%rbx)",
    "movq $14, 208(%rbx)",
    "movq $0x700000, 224(%rbx)",
    "movl $1, 320(%rbx)",
    "lea 0x2000(%r12), %rsp",
    "mov %rbx, %rsi",
    "mov $11, %edi",
    "mov $0x51554b01, %eax",
    "jmp *%rbp",
);

/// What a thread that reads its operations from `table` comes to when it is told to protect a page,
/// then to unmap it.
fn misread(mock: &Mock, table: &[[u64; 7]]) -> Trap {
    const FAKE: u64 = 0x7100_0000;
    let forged = start_forger(mock);
    let (base, site) = (mock.platform.user_max().0, frame_call_of(mock, forged));
    mock.end(forged.space);
    let p = mock.start(misreader());
    let trap = mock.trap(TRAP_FAULT);
    let fake = mock.frames(0x4000);
    for (i, word) in table.iter().flatten().enumerate() {
        mock.ram.write_all_at(&word.to_le_bytes(), fake + 64 + 8 * i as u64).expect("a table");
    }
    let regs = UserRegs { rip: CODE, r12: FAKE, r13: base + 0x4_0000, rbp: site, ..trap.regs };
    let gpa = mock.frames(0x1000);
    mock.set(p.thread, regs, &[map(FAKE, 0x4000, fake, RW), map(PAGE, 0x1000, gpa, RW)]);
    mock.fault(PAGE);
    mock.go(p.thread, RESUME_GO, &[protect(PAGE, 0x1000, R), unmap(PAGE, 0x1000)]);
    let trap = mock.event().trap;
    if trap.kind == TRAP_FAULT {
        assert_eq!(is_mapped(mock, p.space, PAGE), Some(false), "{table:x?}");
    }
    mock.end(p.space);
    trap
}

/// Only the operations themselves, whole and in turn, are carried out.
#[test]
fn orders_are_taken_word_by_word_and_in_turn() {
    let mock = Mock::new();
    let first = [libc::SYS_mprotect as u64, PAGE, 0x1000, 1, 0, 0, 0];
    let second = [libc::SYS_munmap as u64, PAGE, 0x1000, 0, 0, 0, 0];
    assert_eq!(misread(&mock, &[first, second]).kind, TRAP_FAULT, "what it was told");
    let ends = |table: &[[u64; 7]]| assert_eq!(misread(&mock, table).kind, TRAP_DEAD, "{table:x?}");
    for word in 0..7 {
        let mut other = first;
        other[word] ^= 0x1000 | 2;
        ends(&[other, second]);
        let mut other = second;
        other[word] ^= 0x1000 | 2;
        ends(&[first, other]);
    }
    ends(&[second, first]);
    ends(&[second, second]);
    // The same again is let through, as the host may have torn it; what is left out is not
    // forgotten.
    ends(&[first, first]);
    ends(&[first, [libc::SYS_exit as u64, 0, 0, 0, 0, 0, 0]]);
    ends(&[first, [libc::SYS_clone as u64, 0x50f00, PAGE, 0, 0, 0, 0]]);
    ends(&[[libc::SYS_getpid as u64, 0, 0, 0, 0, 0, 0], second]);
    ends(&[[libc::SYS_rt_sigreturn as u64, 0, 0, 0, 0, 0, 0], second]);
}

guest_code!(
    // One report of %rdi, after which it does nothing any more.
    reporter,
    "mov $0x51554b01, %eax",
    "jmp *%rbp",
);

/// A false report, made while its thread runs guest code: the end of the process, or what stub code
/// could have said as well.
#[test]
fn false_reports_in_guest_code() {
    let mock = Mock::new();
    let forged = start_forger(&mock);
    let (slot, site) = (mock.platform.user_max().0 + 0x4_0000, frame_call_of(&mock, forged));
    mock.end(forged.space);
    let report = |reason: u64, frame: u64| {
        let p = mock.start(reporter());
        let trap = mock.event().trap;
        let regs = UserRegs { rip: CODE, rbp: site, rdi: reason, rsi: frame, ..trap.regs };
        mock.set(p.thread, regs, &[]);
        let kind = mock.event().trap.kind;
        mock.end(p.space);
        kind
    };
    for reason in [0, 1, 9, 23 << 8, 0x100, 0x101, 0x102, u64::MAX] {
        assert_eq!(report(reason, slot + 0x2008), TRAP_DEAD, "reason {reason:#x}");
    }
    for frame in [0, slot, slot + 0x3f00, slot + 0x4000 + 0x2008, slot + 0x2009, u64::MAX] {
        assert_eq!(report(11, frame), TRAP_DEAD, "frame {frame:#x}");
    }
    assert_ne!(report(11, slot + 0x2008), TRAP_DEAD);
    // The frame says number 0, read(2), which does not come as a signal.
    assert_eq!(report(libc::SIGSYS as u64, slot + 0x2008), TRAP_DEAD);
}

guest_code!(two_calls, "mov $0x300, %eax", "syscall", "mov $0x301, %eax", "syscall", "1: jmp 1b");
guest_code!(spin, "1: inc %rbx", "jmp 1b");

/// The end of a process's first thread is not the end of the process: its frames stay its own while
/// another thread runs.
#[test]
fn a_space_is_not_gone_with_its_first_thread() {
    let mock = Mock::new();
    let p = mock.start(two_calls());
    mock.syscall(0x300);
    let pid = mock.platform.stub_pid(p.space).expect("a stub");
    mock.platform.thread_stop(p.thread);
    let trap = mock.trap(TRAP_STOPPED);
    let second = mock.platform.thread_new(p.space, p.thread, 4242).expect("a second thread");
    let code = mock.frames_with(spin());
    mock.set(second, UserRegs { rip: PAGE, ..trap.regs }, &[]);
    mock.give_after(p.thread, 0, &[map(PAGE, 0x1000, code, RX)]);
    mock.syscall(0x301);
    mock.running(second);
    mock.go(p.thread, RESUME_EXIT, &[]);
    let is_zombie =
        || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| s.contains(") Z "));
    let begin = Instant::now();
    while !is_zombie() {
        assert!(begin.elapsed() < Duration::from_secs(10), "its first thread does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    mock.no_event(Duration::from_millis(300));
    // The other one still runs, and is heard of.
    mock.platform.thread_stop(second);
    assert_eq!(mock.trap(TRAP_STOPPED).token, 4242);
    mock.end(p.space);
}

guest_code!(
    // Touches 0x700000 and says that it has.
    toucher,
    "1: mov $0x700000, %ebx",
    "mov (%rbx), %edi",
    "mov $0x300, %eax",
    "syscall",
    "jmp 1b",
);

/// What becomes of a program that faults and is shown `[gpa, gpa+len)`: whether it lives to say so.
fn is_shown(mock: &Mock, gpa: u64, len: u64) -> bool {
    let p = mock.start(toucher());
    mock.fault(PAGE);
    mock.go(p.thread, RESUME_GO, &[map(PAGE, len, gpa, RW)]);
    let event = mock.event();
    assert_eq!(event.trap.token, p.token);
    let lives = match event.trap.kind {
        TRAP_SYSCALL => true,
        TRAP_DEAD => false,
        other => panic!("trap {other} after {gpa:#x} + {len:#x}"),
    };
    mock.end(p.space);
    lives
}

#[test]
fn orders_that_name_memory_of_the_kernel_end_the_process() {
    const USER: u64 = 3 * RAM_UNIT;
    let layout = Layout { base: None, ram_bytes: RAM_BYTES, window_bytes: RAM_UNIT };
    let memory = Arc::new(GuestMemory::new(layout).expect("guest memory"));
    let ram = memory.memfd().try_clone_to_owned().expect("clone RAM").into();
    memory.keep_apart(Gpa(2 * RAM_UNIT));
    memory.set_user_block(Gpa(USER), true).expect("a block of user memory");
    let mock = Mock::on(memory.clone(), ram, USER + 0x1000, ProcessConfig::default());
    let frame = mock.frames(0x1000);
    assert!(is_shown(&mock, frame, 0x1000));
    assert!(is_shown(&mock, USER + 0x1000, RAM_UNIT - 0x1000), "a block but for its first page");
    for (what, gpa, len) in [
        ("null", 0, 0x1000),
        ("the kernel's image", 0x20_0000, 0x1000),
        ("a block of its heap", 2 * RAM_UNIT + 0x1000, 0x1000),
        ("a block that is free", 5 * RAM_UNIT + 0x1000, 0x1000),
        ("the books of a block of user memory", USER, 0x1000),
        ("the books and what follows", USER, 0x2000),
        ("a run into the next block", USER + RAM_UNIT - 0x1000, 0x2000),
        ("a run out of the block before", USER - 0x1000, 0x2000),
        ("the last page and what follows RAM", RAM_BYTES - 0x1000, 0x2000),
        ("all of it", 0, RAM_BYTES),
    ] {
        assert!(!is_shown(&mock, gpa, len), "{what} was shown");
    }
    // Only while the kernel says that it is.
    memory.set_user_block(Gpa(5 * RAM_UNIT), true).expect("another");
    assert!(is_shown(&mock, 5 * RAM_UNIT + 0x1000, 0x1000));
    memory.set_user_block(Gpa(5 * RAM_UNIT), false).expect("it goes back");
    assert!(!is_shown(&mock, 5 * RAM_UNIT + 0x1000, 0x1000));
}
