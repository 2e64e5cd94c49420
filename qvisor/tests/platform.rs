//! The process platform against a mock kernel.

mod platform_common;

use std::time::Duration;

use platform_common::*;
use qlib::Va;
use qlib::platform::*;

/// Runs a test as the host allows, and as the oldest host does it.
macro_rules! both_ways {
    ($name:ident) => {
        mod $name {
            use super::platform_common::{Mock, OLDEST};

            #[test]
            fn best() {
                super::$name(&Mock::new());
            }

            #[test]
            fn oldest() {
                super::$name(&Mock::with(OLDEST));
            }
        }
    };
}

guest_code!(
    calls,
    "mov $0x123, %eax",
    "mov $1, %edi",
    "mov $2, %esi",
    "mov $3, %edx",
    "mov $4, %r10d",
    "mov $5, %r8d",
    "movabs $0x8877665544332211, %r9",
    "syscall",
    "1:",
    "mov %rax, %rdi",
    "mov $0x124, %eax",
    "syscall",
    "jmp 1b",
);

both_ways!(system_calls_and_their_values);
fn system_calls_and_their_values(mock: &Mock) {
    let program = mock.start(calls());
    let trap = mock.syscall(0x123);
    assert_eq!(trap.token, program.token);
    assert_eq!(trap.args, [1, 2, 3, 4, 5, 0x8877_6655_4433_2211]);
    let mut last = 0;
    mock.give(program.thread, last);
    for value in
        [1, -1, -2, -511, -4095, -4096, i64::MIN, i64::MAX, 0x7fff_f7a0_0000, 0x1_0000_0000]
    {
        let trap = mock.syscall(0x124);
        assert_eq!(trap.args[0] as i64, last);
        last = value;
        mock.give(program.thread, value);
    }
    assert_eq!(mock.syscall(0x124).args[0] as i64, last);
    mock.end(program.space);
}

guest_code!(
    toucher,
    "mov $0x700000, %rbx",
    "mov $0x1122334455667788, %rax",
    "mov %rax, 8(%rbx)",
    "mov 8(%rbx), %rdi",
    "mov $0x200, %eax",
    "syscall",
    "mov 0x3000(%rbx), %rdi",
    "mov $0x201, %eax",
    "syscall",
    "movb $1, (%rbx)",
    "mov $0x202, %eax",
    "syscall",
    "mov $11, %eax", // munmap(0x700000, 0x1800)
    "mov %rbx, %rdi",
    "mov $0x1800, %esi",
    "syscall",
    "mov %rax, %rdi",
    "mov (%rbx), %rax",
    "ud2",
);

both_ways!(faults_mappings_and_unmapping);
fn faults_mappings_and_unmapping(mock: &Mock) {
    let p = mock.start(toucher());
    let trap = mock.fault(0x70_0008);
    assert_eq!(trap.code & 3, 2, "a write to nothing");
    assert_eq!(trap.regs.rbx, 0x70_0000);
    let gpa = mock.frames(0x4000);
    mock.go(p.thread, RESUME_GO, &[map(0x70_0000, 0x1000, gpa, RW)]);
    assert_eq!(mock.syscall(0x200).args[0], 0x1122_3344_5566_7788);
    assert_eq!(mock.read_u64(gpa + 8), 0x1122_3344_5566_7788);
    mock.give(p.thread, 0);
    let trap = mock.fault(0x70_3000);
    assert_eq!(trap.code & 3, 0);
    // Several operations, one of which takes the write permission of an existing mapping away.
    mock.go(
        p.thread,
        RESUME_GO,
        &[map(0x70_1000, 0x3000, gpa + 0x1000, R), protect(0x70_0000, 0x1000, R)],
    );
    assert_eq!(mock.syscall(0x201).args[0], 0);
    mock.give(p.thread, 0);
    let trap = mock.fault(0x70_0000);
    assert_eq!(trap.code & 3, 3, "a write to a page that is there");
    mock.go(p.thread, RESUME_GO, &[protect(0x70_0000, 0x1000, RW)]);
    mock.syscall(0x202);
    mock.give(p.thread, 0);
    // Its own munmap, continued as it is.
    let trap = mock.syscall(libc::SYS_munmap);
    assert_eq!(trap.args[..2], [0x70_0000, 0x1800]);
    mock.give_after(p.thread, 0, &[unmap(0x70_0000, 0x2000)]);
    let trap = mock.fault(0x70_0000);
    assert_eq!(trap.code & 3, 0);
    assert_eq!(trap.regs.rdi, 0);
    mock.go(p.thread, RESUME_GO, &[map(0x70_0000, 0x1000, gpa, R)]);
    let trap = mock.trap(TRAP_EXCEPTION);
    assert_eq!(trap.signo, libc::SIGILL);
    assert_eq!(trap.addr, trap.regs.rip);
    mock.end(p.space);
}

guest_code!(
    caller_by_signal,
    "mov $0x77, %ebx",
    "mov $5, %r8d",
    "mov $6, %r9d",
    "mov $4, %r10d",
    "mov $3, %edx",
    "mov $2, %esi",
    "mov $1, %edi",
    "movabs $0x1234567800000038, %rax", // clone: of the number half of the register counts
    "syscall",
    "mov %rax, %rdi",
    "mov %rbx, %rsi",
    "mov $0x300, %eax",
    "syscall",
    "mov $0x40000038, %eax", // another table's
    "syscall",
    "mov $11, %eax", // munmap(0x700000, 0x8000)
    "mov $0x700000, %edi",
    "mov $0x8000, %esi",
    "syscall",
    "mov %rax, %rdi",
    "mov $0x301, %eax",
    "syscall",
    "ud2",
);

both_ways!(calls_that_come_with_registers);
fn calls_that_come_with_registers(mock: &Mock) {
    let p = mock.start(caller_by_signal());
    let trap = mock.syscall(libc::SYS_clone);
    assert_eq!(trap.in_syscall, 1);
    assert_eq!(trap.args, [1, 2, 3, 4, 5, 6]);
    assert_eq!((trap.regs.rbx, trap.regs.rsp, trap.regs.rip), (0x77, STACK_TOP, trap.ip));
    // It is stopped.
    mock.platform.thread_stop(p.thread);
    mock.no_event(Duration::from_millis(20));
    mock.give(p.thread, -0x1234_5678_9abc);
    let trap = mock.syscall(0x300);
    assert_eq!(trap.in_syscall, 0);
    assert_eq!((trap.args[0] as i64, trap.args[1]), (-0x1234_5678_9abc, 0x77));
    mock.give(p.thread, 0);
    assert_eq!(mock.syscall(0x4000_0038).in_syscall, 0);
    mock.give(p.thread, 0);
    let trap = mock.syscall(libc::SYS_munmap);
    assert_eq!((trap.in_syscall, trap.args[0], trap.args[1]), (1, 0x70_0000, 0x8000));
    let gpa = mock.frames(0x8000);
    mock.go(p.thread, RESUME_HOLD, &[map(0x70_0000, 0x8000, gpa, RW)]);
    mock.trap(TRAP_SYNCED);
    mock.give_after(p.thread, 7, &[unmap(0x70_0000, 0x8000)]);
    assert_eq!(mock.syscall(0x301).args[0], 7);
    mock.end(p.space);
}

guest_code!(
    chooser,
    "mov $0x800000, %rbx",
    "mov $0x200, %eax",
    "syscall",
    "movb $1, 0x2000(%rbx)",
    "mov 0x28000(%rbx), %rdi",
    "mov $0x201, %eax",
    "syscall",
    "ud2",
);

both_ways!(what_user_code_touched_is_known);
fn what_user_code_touched_is_known(mock: &Mock) {
    let touched =
        |space| mock.platform.space_touched(space, Va(0x80_0000), 100).expect("the host tells");
    let p = mock.start(chooser());
    mock.syscall(0x200);
    let gpa = mock.frames(0x4_0000);
    mock.give_after(p.thread, 0, &[map(0x80_0000, 0x4_0000, gpa, RW)]);
    mock.syscall(0x201);
    let bits = touched(p.space);
    assert_eq!(bits.len(), 2);
    // Page 2 was written, page 40 read; no other is in the 64 KiB around one of them.
    assert_eq!((bits[0] >> 2 & 1, bits[0] >> 40 & 1), (1, 1), "{bits:x?}");
    assert_eq!((bits[0] & 0xffff_0000_ffff_0000 & !(0xffff << 32), bits[1]), (0, 0), "{bits:x?}");
    mock.give_after(p.thread, 0, &[unmap(0x80_0000, 0x4_0000)]);
    mock.trap(TRAP_EXCEPTION);
    assert_eq!(touched(p.space), [0, 0]);
    assert_eq!(mock.platform.space_touched(p.space + 1000, Va(0x80_0000), 1), Err(libc::ESRCH));
    mock.end(p.space);
}

guest_code!(spin, "1: inc %rbx", "jmp 1b");

both_ways!(stop_in_user_mode_keeps_all_registers);
fn stop_in_user_mode_keeps_all_registers(mock: &Mock) {
    let p = mock.start(spin());
    mock.running(p.thread);
    std::thread::sleep(Duration::from_millis(20));
    mock.platform.thread_stop(p.thread);
    let trap = mock.trap(TRAP_STOPPED);
    assert_eq!(trap.in_syscall, 0);
    assert!(trap.regs.rbx > 0 && (CODE..CODE + 8).contains(&trap.regs.rip));
    // Harmless on a stopped thread.
    mock.platform.thread_stop(p.thread);
    mock.no_event(Duration::from_millis(50));
    let mut regs = UserRegs {
        r15: 1,
        r14: 2,
        r13: 3,
        r12: 4,
        rbp: 5,
        rbx: 6,
        r11: 7,
        r10: 8,
        r9: 9,
        r8: 10,
        rax: 11,
        rcx: 12,
        rdx: 13,
        rsi: 14,
        rdi: 15,
        rip: CODE + 3,
        rflags: 0x246,
        rsp: 0xdead_0000,
        fs_base: 0x1234_5000,
        gs_base: 0x7fff_0000_1000,
    };
    for _ in 0..20 {
        mock.set(p.thread, regs, &[]);
        mock.platform.thread_stop(p.thread);
        let trap = mock.trap(TRAP_STOPPED);
        let expected =
            UserRegs { rbx: trap.regs.rbx, rip: trap.regs.rip, rflags: trap.regs.rflags, ..regs };
        assert_eq!(trap.regs, expected);
        regs.rbx = trap.regs.rbx;
    }
    mock.end(p.space);
}

guest_code!(
    blocked,
    "mov $0x77, %ebx",
    "mov $0x300, %eax",
    "syscall",
    "mov %rax, %rdi",
    "mov %rbx, %rsi",
    "mov $0x301, %eax",
    "syscall",
    "1: jmp 1b",
);

both_ways!(stop_in_a_system_call);
fn stop_in_a_system_call(mock: &Mock) {
    let p = mock.start(blocked());
    let call = mock.syscall(0x300);
    mock.platform.thread_stop(p.thread);
    let trap = mock.trap(TRAP_STOPPED);
    assert_eq!(trap.in_syscall, 1);
    assert_eq!(trap.regs.rip, call.ip);
    assert_eq!((trap.regs.rbx, trap.regs.rsp), (0x77, STACK_TOP));
    // Operations without an end of the call, then its end.
    let gpa = mock.frames(0x1000);
    mock.go(p.thread, RESUME_HOLD, &[map(0x70_0000, 0x1000, gpa, RW)]);
    mock.trap(TRAP_SYNCED);
    mock.platform.thread_stop(p.thread);
    mock.no_event(Duration::from_millis(20));
    mock.give(p.thread, -0x1234_5678_9abc);
    let trap = mock.syscall(0x301);
    assert_eq!(trap.args[0] as i64, -0x1234_5678_9abc);
    assert_eq!(trap.args[1], 0x77);
    // Hold straight from a system call, with more operations than one batch; then other registers
    // altogether.
    let many: Vec<_> = (0..200).map(|i| map(0x80_0000 + 0x2000 * i, 0x1000, gpa, R)).collect();
    mock.go(p.thread, RESUME_HOLD, &many);
    let trap = mock.trap(TRAP_SYNCED);
    mock.set(p.thread, UserRegs { rip: CODE, rbx: 0, ..trap.regs }, &[]);
    mock.syscall(0x300);
    // An answer with an operation: registers are needed after all.
    mock.give_after(p.thread, 42, &[protect(0x70_0000, 0x1000, R)]);
    let trap = mock.syscall(0x301);
    assert_eq!(trap.args[..2], [42, 0x77]);
    // A stop that the answer overtakes: the thread is stopped after its call, unless the report was
    // on its way.
    mock.platform.thread_stop(p.thread);
    let before = trap.resumes + 1;
    mock.give(p.thread, 0);
    let mut trap = mock.trap(TRAP_STOPPED);
    if trap.resumes != before {
        assert_eq!(trap.in_syscall, 1);
        mock.platform.thread_stop(p.thread);
        trap = mock.trap(TRAP_STOPPED);
    }
    assert_eq!((trap.in_syscall, trap.resumes), (0, before));
    mock.end(p.space);
}

both_ways!(stops_and_traps_race);
fn stops_and_traps_race(mock: &Mock) {
    let p = mock.start(calls());
    mock.syscall(0x123);
    let mut answered = -7;
    mock.give(p.thread, answered);
    let (mut stops, mut in_calls, mut resumes) = (0, 0, 2);
    for i in 0..3000i64 {
        if i % 3 == 0 {
            mock.platform.thread_stop(p.thread);
        }
        let event = mock.event();
        match event.trap.kind {
            TRAP_SYSCALL => {
                assert_eq!(event.trap.args[0] as i64, answered, "round {i}");
                assert_eq!(event.trap.resumes, resumes);
                if i % 7 == 0 {
                    mock.platform.thread_stop(p.thread);
                    let trap = mock.trap(TRAP_STOPPED);
                    assert_eq!((trap.in_syscall, trap.resumes), (1, resumes));
                    in_calls += 1;
                }
                answered = i;
                mock.give(p.thread, answered);
                resumes += 1;
            }
            // Overtaken by the answer.
            TRAP_STOPPED if event.trap.resumes < resumes => assert_eq!(event.trap.in_syscall, 1),
            TRAP_STOPPED => {
                assert_eq!((event.trap.in_syscall, event.trap.resumes), (0, resumes));
                stops += 1;
                mock.go(p.thread, RESUME_GO, &[]);
                resumes += 1;
            }
            _ => panic!("{event:#x?}"),
        }
    }
    assert!(stops > 10 && in_calls > 10, "{stops} {in_calls}");
    mock.end(p.space);
}

guest_code!(
    vectors,
    "pcmpeqd %xmm3, %xmm3",
    "mov $0x0123456789abcdef, %rax",
    "movq %rax, %xmm5",
    "movq %rax, %mm2",
    "movl $0x1fa0, -8(%rsp)", // all exceptions masked, one flag
    "ldmxcsr -8(%rsp)",
    "1: cmpl $0, 0x500000",
    "je 1b",
    "movq %xmm5, %rdi",
    "movq %xmm3, %rsi",
    "stmxcsr -8(%rsp)",
    "mov -8(%rsp), %edx",
    "movq %mm2, %r10",
    "mov $0x400, %eax",
    "syscall",
    "movq %xmm5, %rdi",
    "movq %mm2, %r10",
    "mov $0x401, %eax",
    "syscall",
);

both_ways!(vector_state);
fn vector_state(mock: &Mock) {
    let p = mock.start(vectors());
    mock.running(p.thread);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(mock.platform.fpstate_read(p.thread), Err(libc::EBUSY));
    mock.platform.thread_stop(p.thread);
    let trap = mock.trap(TRAP_STOPPED);
    let image = mock.platform.fpstate_read(p.thread).expect("vector state");
    assert_eq!(image.len() as u64, mock.platform.fpstate_bytes());
    assert_eq!(image[160 + 16 * 5..][..8], 0x0123_4567_89ab_cdefu64.to_le_bytes());
    assert_eq!(image[160 + 16 * 3..][..16], [0xff; 16]);
    // A second process with the same state, as fork makes it.
    let child = mock.platform.space_new().expect("space");
    let child_thread = mock.platform.thread_new(child, 0, 99).expect("thread");
    mock.platform.fpstate_write(child_thread, &image).expect("write vector state");
    let one = mock.frames_with(&[1, 0, 0, 0]);
    let code = mock.frames_with(vectors());
    let stack = mock.frames(0x1000);
    let ops = [
        map(CODE, 0x1000, code, RX),
        map(DATA, 0x1000, one, RW),
        map(STACK_TOP - 0x1000, 0x1000, stack, RW),
    ];
    mock.set(child_thread, trap.regs, &ops);
    let seen = mock.syscall(0x400);
    assert_eq!(seen.token, 99);
    assert_eq!(seen.args[..4], [0x0123_4567_89ab_cdef, u64::MAX, 0x1fa0, 0x0123_4567_89ab_cdef]);
    // The parent goes on with another value of one register.
    let mut other = image.clone();
    other[160 + 16 * 5..][..8].copy_from_slice(&7u64.to_le_bytes());
    mock.platform.fpstate_write(p.thread, &other).expect("write vector state");
    mock.go(p.thread, RESUME_GO, &[map(DATA, 0x1000, one, RW)]);
    assert_eq!(mock.syscall(0x400).args[..2], [7, u64::MAX]);
    // In a stopped system call; then the state of a new program.
    mock.platform.thread_stop(p.thread);
    mock.trap(TRAP_STOPPED);
    assert_eq!(
        mock.platform.fpstate_read(p.thread).expect("vector state")[160 + 16 * 5..][..8],
        7u64.to_le_bytes()
    );
    mock.platform.fpstate_write(p.thread, &[]).expect("reset");
    assert!(mock.platform.fpstate_read(p.thread).expect("vector state").is_empty());
    mock.give(p.thread, 0);
    assert_eq!(mock.syscall(0x401).args[0], 0);
    // Rubbish is made valid, and too little is refused.
    mock.platform.thread_stop(p.thread);
    mock.trap(TRAP_STOPPED);
    assert_eq!(mock.platform.fpstate_write(p.thread, &[0xff; 100]), Err(libc::EINVAL));
    mock.platform.fpstate_write(p.thread, &vec![0xff; 5000]).expect("write rubbish");
    mock.set(p.thread, UserRegs { rip: CODE, ..trap.regs }, &[protect(DATA, 0x1000, R)]);
    assert_eq!(mock.syscall(0x400).args[0], 0x0123_4567_89ab_cdef);
    mock.end(p.space);
    mock.end(child);
}

guest_code!(
    thread_main,
    "mov $0x500, %eax",
    "syscall",
    "mov %rax, %rdi",
    "1: mov %fs:0, %rsi",
    "mov $0x501, %eax",
    "syscall",
    "mov %rax, %rdi",
    "jmp 1b",
);

both_ways!(threads);
fn threads(mock: &Mock) {
    let p = mock.start(thread_main());
    let gpa = mock.frames(0x2000);
    mock.syscall(0x500);
    mock.platform.thread_stop(p.thread);
    let trap = mock.trap(TRAP_STOPPED);
    let mut handles = vec![p.thread];
    let mut tokens = vec![p.token];
    for i in 1..20u64 {
        let token = 1000 + i;
        let thread = mock.platform.thread_new(p.space, p.thread, token).expect("thread");
        let regs = UserRegs { rax: i, fs_base: DATA + 8 * i, gs_base: i, ..trap.regs };
        mock.set(thread, regs, &[]);
        handles.push(thread);
        tokens.push(token);
    }
    // One that is dropped before it exists.
    let never = mock.platform.thread_new(p.space, p.thread, 5).expect("thread");
    mock.platform.thread_drop(never);
    for i in 0..20u64 {
        mock.ram.set_len(RAM_BYTES).expect("size");
        std::os::unix::fs::FileExt::write_all_at(&mock.ram, &(100 + i).to_le_bytes(), gpa + 8 * i)
            .expect("write");
    }
    let regs = UserRegs { rax: 0, fs_base: DATA, ..trap.regs };
    mock.set(p.thread, regs, &[map(DATA, 0x1000, gpa, RW)]);
    let mut rounds = [0u64; 20];
    while rounds.iter().any(|r| *r < 50) {
        let trap = mock.syscall(0x501);
        let i = tokens.iter().position(|t| *t == trap.token).expect("token");
        assert_eq!(trap.args[1], 100 + i as u64, "each thread has its own FS base");
        assert_eq!(trap.args[0], if rounds[i] == 0 { i as u64 } else { rounds[i] });
        rounds[i] += 1;
        mock.give(handles[i], rounds[i] as i64);
    }
    // All stop; whatever they were doing.
    let mut waiting = 0;
    for thread in &handles {
        mock.platform.thread_stop(*thread);
        waiting += 1;
    }
    let mut stopped = std::collections::HashSet::new();
    while waiting > 0 {
        let event = mock.event();
        let i = tokens.iter().position(|t| *t == event.trap.token).expect("token");
        match event.trap.kind {
            TRAP_SYSCALL => mock.platform.thread_stop(handles[i]),
            TRAP_STOPPED => {
                waiting -= 1;
                assert!(stopped.insert(i));
            }
            _ => panic!("{event:?}"),
        }
    }
    // They end one by one, the first first; new ones take their slots.
    for thread in &handles[..19] {
        mock.go(*thread, RESUME_EXIT, &[]);
        mock.platform.thread_drop(*thread);
    }
    mock.no_event(Duration::from_millis(50));
    let pid = mock.platform.stub_pid(p.space).expect("pid");
    // The first host thread is a zombie until the last ends.
    let left = std::fs::read_dir(format!("/proc/{pid}/task")).expect("tasks").count();
    assert_eq!(left, 2);
    let again = mock.platform.thread_new(p.space, handles[19], 77).expect("thread");
    mock.set(again, UserRegs { rip: CODE, fs_base: DATA, ..trap.regs }, &[]);
    mock.go(handles[19], RESUME_HOLD, &[]);
    let mut seen = 0;
    while seen != 3 {
        let event = mock.event();
        match (event.trap.kind, event.trap.token) {
            (TRAP_SYNCED, t) if t == tokens[19] => seen |= 1,
            (TRAP_SYSCALL, 77) => seen |= 2,
            _ => panic!("{event:?}"),
        }
    }
    mock.end(p.space);
}

both_ways!(a_killed_stub);
fn a_killed_stub(mock: &Mock) {
    let (a, b) = (mock.start(spin()), mock.start(blocked()));
    mock.syscall(0x300);
    mock.running(a.thread);
    let pid = mock.platform.stub_pid(a.space).expect("pid");
    // SAFETY: our own child.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    assert_eq!(mock.trap(TRAP_DEAD).token, a.token);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    // Everything is harmless on the dead.
    mock.platform.thread_stop(a.thread);
    mock.go(a.thread, RESUME_GO, &[]);
    assert_eq!(mock.platform.fpstate_read(a.thread), Err(libc::ESRCH));
    assert_eq!(mock.platform.thread_new(a.space, a.thread, 3), Err(libc::ESRCH));
    mock.no_event(Duration::from_millis(20));
    mock.platform.thread_drop(a.thread);
    mock.end(a.space);
    // A space that is dropped before its stub can exist, and one with a thread in every state.
    for i in 0..20 {
        let space = mock.platform.space_new().expect("space");
        if i % 2 == 0 {
            let thread = mock.platform.thread_new(space, 0, 8).expect("thread");
            mock.go(thread, RESUME_GO, &[]);
        }
        mock.end(space);
    }
    mock.give(b.thread, 1);
    mock.syscall(0x301);
    mock.end(b.space);
    assert_eq!(mock.platform.thread_new(a.space, 0, 1), Err(libc::ESRCH));
}

both_ways!(a_stub_before_its_thread);
fn a_stub_before_its_thread(mock: &Mock) {
    let space = mock.platform.space_new().expect("space");
    std::thread::sleep(Duration::from_millis(200));
    let thread = mock.platform.thread_new(space, 0, 9).expect("thread");
    let regs = UserRegs { rip: CODE, rsp: STACK_TOP, ..UserRegs::default() };
    mock.set(thread, regs, &[map(CODE, 0x1000, mock.frames_with(blocked()), RX)]);
    assert_eq!(mock.syscall(0x300).token, 9);
    mock.end(space);
}

both_ways!(exit_by_its_own_call);
fn exit_by_its_own_call(mock: &Mock) {
    let p = mock.start(exits());
    mock.syscall(libc::SYS_exit);
    let pid = mock.platform.stub_pid(p.space).expect("pid");
    mock.go(p.thread, RESUME_EXIT, &[]);
    mock.no_event(Duration::from_millis(50));
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    mock.platform.thread_drop(p.thread);
    mock.end(p.space);
}

guest_code!(exits, "mov $60, %eax", "mov $3, %edi", "syscall", "ud2");

both_ways!(a_failed_order_ends_the_process);
fn a_failed_order_ends_the_process(mock: &Mock) {
    let p = mock.start(blocked());
    mock.syscall(0x300);
    // Nothing is mapped there.
    mock.give_after(p.thread, 0, &[protect(0x70_0000, 0x1000, R)]);
    assert_eq!(mock.trap(TRAP_DEAD).token, p.token);
    mock.end(p.space);
    // A kernel that asks for what it may not.
    for op in [
        map(mock.platform.user_max().0, 0x1000, 0, RW),
        map(mock.platform.user_max().0 - 0x1000, 0x2000, 0, RW),
        map(0, 0x1000, 0, RW),
        map(0x70_0000, 0, 0, RW),
        map(0x70_0000, 0x1001, 0, RW),
        map(0x70_0000, 0x1000, RAM_BYTES, RW),
        map(0x70_0000, 0x1000, 0, 8),
        unmap(0x70_0000, !0xfff),
    ] {
        let p = mock.start(blocked());
        mock.syscall(0x300);
        mock.give_after(p.thread, 0, &[op]);
        assert_eq!(mock.trap(TRAP_DEAD).token, p.token);
        mock.end(p.space);
    }
}
