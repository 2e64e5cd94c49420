//! The adversary of test-apps/ against the process platform with a mock kernel: whatever it does
//! arrives at the kernel as a system call, a fault or the death of that one process.

mod platform_common;

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use platform_common::*;
use qlib::platform::*;

const PID: i64 = 0x51ab;

/// Builds the program, once.
fn adversary() -> &'static [u8] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("adversary");
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../test-apps/adversary");
        let made = Command::new("make")
            .arg("-s")
            .arg("-C")
            .arg(source)
            .arg(format!("OUT={}", out.display()))
            .status();
        assert!(made.expect("make").success(), "build the adversary: make and gcc are needed");
        std::fs::read(out.join("adversary/adversary")).expect("the adversary")
    })
}

fn word(image: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(image[at..at + 8].try_into().expect("8 bytes"))
}

/// How an attack ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Exit(u64),
    Signal(i32),
    Dead,
    /// Goes round and round in stub code.
    Endless,
}

/// A process of the mock kernel.
struct Process<'a> {
    mock: &'a Mock,
    space: u64,
    thread: u64,
    token: u64,
    pages: Vec<(u64, u64, u64)>,
    handler: u64,
    calls: HashMap<u64, u64>,
    output: String,
}

impl<'a> Process<'a> {
    /// Starts `adversary NAME`.
    fn new(mock: &'a Mock, name: &str) -> Self {
        let image = adversary();
        let (mut pages, mut ops) = (Vec::new(), Vec::new());
        let headers = word(image, 32) as usize;
        for i in 0..usize::from(image[56]) {
            let h = headers + 56 * i;
            if word(image, h) as u32 != 1 {
                continue;
            }
            let flags = (word(image, h) >> 32) as u32;
            let (offset, va, filed, size) = (
                word(image, h + 8) as usize,
                word(image, h + 16),
                word(image, h + 32) as usize,
                word(image, h + 40),
            );
            let (start, end) = (va & !0xfff, (va + size).next_multiple_of(0x1000));
            let gpa = mock.frames(end - start);
            mock.ram
                .write_all_at(&image[offset..offset + filed], gpa + (va - start))
                .expect("load");
            pages.push((start, end, gpa));
            let prot = if flags & 2 != 0 {
                RW
            } else if flags & 1 != 0 {
                RX
            } else {
                R
            };
            ops.push(map(start, end - start, gpa, prot));
        }
        let gpa = mock.frames(0x1_0000);
        pages.push((STACK_TOP - 0x1_0000, STACK_TOP, gpa));
        ops.push(map(STACK_TOP - 0x1_0000, 0x1_0000, gpa, RW));
        let sp = STACK_TOP - 0x1000;
        let stack = [2, sp + 256, sp + 512, 0, 0, 33, mock.platform.vdso().0, 0, 0];
        for (i, value) in stack.iter().enumerate() {
            mock.ram
                .write_all_at(&value.to_le_bytes(), gpa + 0xf000 + 8 * i as u64)
                .expect("stack");
        }
        mock.ram.write_all_at(b"adversary\0", gpa + 0xf000 + 256).expect("stack");
        mock.ram.write_all_at(format!("{name}\0").as_bytes(), gpa + 0xf000 + 512).expect("stack");
        let space = mock.platform.space_new().expect("space");
        let token = mock.token();
        let thread = mock.platform.thread_new(space, 0, token).expect("thread");
        let regs = UserRegs { rip: word(image, 24), rsp: sp, rflags: 0x202, ..UserRegs::default() };
        mock.set(thread, regs, &ops);
        Self {
            mock,
            space,
            thread,
            token,
            pages,
            handler: 0,
            calls: HashMap::new(),
            output: String::new(),
        }
    }

    fn read(&self, va: u64, len: usize) -> Option<Vec<u8>> {
        let end = va.checked_add(len as u64)?;
        let (start, _, gpa) = self.pages.iter().find(|(s, e, _)| va >= *s && end <= *e)?;
        let mut bytes = vec![0; len];
        self.mock.ram.read_exact_at(&mut bytes, gpa + (va - start)).ok()?;
        Some(bytes)
    }

    /// Serves it until it ends.
    fn run(&mut self) -> End {
        let mut faults = 0;
        loop {
            let event = self.mock.event();
            assert_eq!((event.kind, event.trap.token), (EVENT_TRAP, self.token), "{event:#x?}");
            let trap = event.trap;
            match trap.kind {
                TRAP_SYSCALL if self.calls.values().sum::<u64>() > 5000 => return End::Endless,
                TRAP_SYSCALL => {
                    *self.calls.entry(trap.nr).or_default() += 1;
                    let a = trap.args;
                    let value = match trap.nr {
                        1 if a[0] == 1 && a[2] < 4096 => match self.read(a[1], a[2] as usize) {
                            Some(text) => {
                                self.output += &String::from_utf8_lossy(&text);
                                a[2] as i64
                            }
                            None => -i64::from(libc::EFAULT),
                        },
                        13 => match self.read(a[1], 8) {
                            Some(b) => {
                                self.handler = word(&b, 0);
                                0
                            }
                            None => -i64::from(libc::EFAULT),
                        },
                        39 => PID,
                        131 => 0,
                        9 | 10 | 11 | 25 => -i64::from(libc::EINVAL),
                        60 | 231 => return End::Exit(a[0]),
                        _ => -i64::from(libc::ENOSYS),
                    };
                    self.mock.give(self.thread, value);
                }
                TRAP_FAULT | TRAP_EXCEPTION if self.handler == 0 => return End::Signal(trap.signo),
                TRAP_FAULT | TRAP_EXCEPTION if faults > 5000 => return End::Endless,
                TRAP_FAULT | TRAP_EXCEPTION => {
                    faults += 1;
                    let regs = UserRegs { rip: self.handler, rflags: 0x202, ..trap.regs };
                    self.mock.set(self.thread, regs, &[]);
                }
                TRAP_DEAD => return End::Dead,
                _ => panic!("{event:#x?}"),
            }
        }
    }
}

guest_code!(
    witness,
    "mov $0x1234567, %ebx",
    "1: mov $0x600, %eax",
    "mov %rbx, %rdi",
    "mov 0x500000, %rsi",
    "syscall",
    "mov %rax, 0x500000",
    "jmp 1b",
);

fn names() -> Vec<String> {
    // Listing does nothing that a host would mind.
    adversary();
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("adversary/adversary/adversary");
    let out = Command::new(path).arg("list").output().expect("list");
    String::from_utf8(out.stdout).expect("text").lines().map(str::to_owned).collect()
}

fn attack_all(mock: &Mock) {
    let other = mock.start(witness());
    let mut said = 0;
    assert_eq!(mock.syscall(0x600).args[..2], [0x123_4567, 0]);
    let mut attack = |name: &str| {
        let mut process = Process::new(mock, name);
        let end = process.run();
        println!("{name}: {end:?} after {} calls", process.calls.values().sum::<u64>());
        mock.end(process.space);
        said += 1;
        mock.give(other.thread, said);
        assert_eq!(
            mock.syscall(0x600).args[..2],
            [0x123_4567, said as u64],
            "the witness after {name}"
        );
        (end, process.calls)
    };
    let names = names();
    assert!(names.len() > 30);
    for name in names {
        let (end, calls) = attack(&name);
        assert!(!matches!(end, End::Exit(1..)), "{name} got through");
        // What it tried must have been tried.
        let wanted: &[u64] = match name.as_str() {
            "numbers" | "jump_every_number" => {
                &[0, 1, 2, 9, 13, 41, 59, 62, 101, 157, 317, 322, 434, 511]
            }
            "numbers_x32" => &[0x4000_0000, 0x4000_0201, 0x4000_03ff],
            "vsyscall" => &[96, 201, 309],
            _ => &[],
        };
        for nr in wanted {
            assert!(calls.contains_key(nr), "{name}: no call {nr:#x} arrived, {end:?}");
        }
        let harmless = [
            "numbers",
            "numbers_x32",
            "numbers_large",
            "code32_int80",
            "jump_every_number",
            "map_over",
            "flags",
        ];
        if harmless.contains(&name.as_str()) {
            assert_eq!(end, End::Exit(0), "{name}");
        }
    }
    for nr in [39, 1000, 11, 0x5155_4b01, 0x5155_4b02] {
        let mut arrived = 0;
        for site in 0.. {
            let (end, calls) = attack(&format!("{nr}:{site}"));
            if end == End::Exit(4) {
                assert!(site > 20, "{site} sites");
                // At one of them it is a frame call, and a false one; at the others it is a call
                // like any other.
                assert!(arrived >= site - 1, "{arrived} of {site} arrived");
                break;
            }
            arrived += i32::from(calls.get(&nr).is_some_and(|n| *n > u64::from(nr == 39)));
        }
    }
    mock.end(other.space);
}

#[test]
fn every_attack_comes_to_nothing() {
    attack_all(&Mock::new());
}

#[test]
fn every_attack_comes_to_nothing_on_an_old_host() {
    attack_all(&Mock::with(OLDEST));
}

guest_code!(
    // Thread 1 writes over the slots of both threads without pause.
    scribbler,
    "1: mov %r12, %rdi",
    "mov $0x1000, %ecx", // both slots, in words
    "2: mov %rax, (%rdi)",
    "add $8, %rdi",
    "add $0x1357, %rax",
    "loop 2b",
    "jmp 1b",
);

/// One thread scribbles over the slot of another while that one calls and faults: only their
/// process can be hurt.
fn scribbled(mock: &Mock) {
    let other = mock.start(witness());
    mock.syscall(0x600);
    let area = mock.platform.user_max().0 + 0x4_0000;
    let (mut deaths, mut survived) = (0, 0);
    for round in 0..30u64 {
        let p = mock.start(calls_and_faults());
        mock.syscall(0x700);
        mock.platform.thread_stop(p.thread);
        let trap = mock.trap(TRAP_STOPPED);
        let second = mock.platform.thread_new(p.space, p.thread, 4242).expect("thread");
        let code = mock.frames_with(scribbler());
        let regs = UserRegs { rip: 0x42_0000, r12: area, rax: round, ..trap.regs };
        mock.set(second, regs, &[]);
        mock.give_after(p.thread, 0, &[map(0x42_0000, 0x1000, code, RX)]);
        let mut calls = 0;
        let mut dead = 0;
        while dead == 0 && calls < 200 {
            let event = mock.event();
            let thread = if event.trap.token == 4242 { second } else { p.thread };
            match event.trap.kind {
                TRAP_SYSCALL => mock.give(thread, 0),
                // Whatever the registers are now.
                TRAP_FAULT | TRAP_EXCEPTION if thread == second => mock.set(second, regs, &[]),
                TRAP_FAULT | TRAP_EXCEPTION => {
                    mock.set(p.thread, UserRegs { rip: CODE, ..UserRegs::default() }, &[]);
                }
                TRAP_DEAD => dead += 1,
                _ => panic!("{event:#x?}"),
            }
            calls += 1;
        }
        deaths += dead;
        survived += 1 - dead;
        mock.end(p.space);
        mock.give(other.thread, round as i64);
        assert_eq!(mock.syscall(0x600).args[..2], [0x123_4567, round]);
    }
    println!("{deaths} died, {survived} lived");
    mock.end(other.space);
}

guest_code!(
    calls_and_faults,
    "1: mov $0x700, %eax",
    "syscall",
    "mov $0x701, %eax",
    "syscall",
    "mov 8, %rax",
    "jmp 1b",
);

#[test]
fn scribbling_over_the_slots() {
    scribbled(&Mock::new());
}

#[test]
fn scribbling_over_the_slots_on_an_old_host() {
    scribbled(&Mock::with(OLDEST));
}

#[test]
fn a_thread_that_blocks_the_kick_cannot_evade_a_stop() {
    let mock = Mock::new();
    let mut process = Process::new(&mock, "block_signals_spin");
    assert_eq!(mock.syscall(39).token, process.token);
    mock.give(process.thread, PID);
    mock.no_event(Duration::from_millis(100));
    mock.platform.thread_stop(process.thread);
    assert_eq!(process.run(), End::Dead);
    mock.end(process.space);
}

#[test]
fn a_thread_that_is_not_made_is_not_waited_for_without_end() {
    let mock = Mock::new();
    let p = mock.start(calls_and_faults());
    mock.syscall(0x700);
    let second = mock.platform.thread_new(p.space, p.thread, 4242).expect("thread");
    mock.set(second, UserRegs { rip: CODE, ..UserRegs::default() }, &[]);
    // Here nobody lets the thread go on that is to make it; a program can have it not do so.
    mock.platform.thread_stop(second);
    mock.no_event(Duration::from_secs(5));
    mock.trap(TRAP_DEAD);
    mock.end(p.space);
}
