//! Costs of the process platform without a kernel above it. Run with
//! `cargo test --release -p qvisor --test platform_bench -- --ignored --nocapture`.

mod platform_common;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use platform_common::*;
use qlib::platform::*;
use qvisor::platform::process::{ProcessConfig, ProcessPlatform};

guest_code!(
    job,
    // rbx = rounds; calls, then faults on fresh pages
    "mov %rbx, %r12",
    "1: mov $0x123, %eax",
    "syscall",
    "dec %r12",
    "jnz 1b",
    "mov $0x200, %eax",
    "syscall",
    "mov %rbx, %r12",
    "mov $0x10000000, %r13",
    "2: movb $1, (%r13)",
    "add $0x1000, %r13",
    "dec %r12",
    "jnz 2b",
    "mov $0x201, %eax",
    "syscall",
);

fn measure(name: &str, config: ProcessConfig, run: u64) {
    const ROUNDS: u64 = 8192;
    let file = ram();
    let fd: OwnedFd = file.try_clone().expect("clone").into();
    let platform =
        Arc::new(ProcessPlatform::new(Arc::new(Ram(Arc::new(fd))), config).expect("platform"));
    let (sender, events) = channel();
    static THREAD: AtomicU64 = AtomicU64::new(0);
    let kernel: Arc<OnceLock<std::sync::Weak<ProcessPlatform>>> = Arc::default();
    kernel.set(Arc::downgrade(&platform)).expect("once");
    platform.set_dispatch(Box::new(move |event| {
        let Some(platform) = kernel.get().and_then(|p| p.upgrade()) else { return };
        let thread = THREAD.load(Ordering::SeqCst);
        match event.trap.kind {
            TRAP_SYSCALL => {
                if event.trap.nr != 0x123 {
                    let _ = sender.send(Instant::now());
                }
                platform.thread_resume(thread, &resume(RESUME_RETURN), &[]);
            }
            TRAP_FAULT if event.trap.addr >= 0x1000_0000 => {
                let page = event.trap.addr & !0xfff;
                let gpa = 0x10_0000 + (page - 0x1000_0000);
                platform.thread_resume(
                    thread,
                    &resume(RESUME_GO),
                    &[map(page, 0x1000 * run, gpa, RW)],
                );
            }
            _ => {}
        }
    }));
    std::os::unix::fs::FileExt::write_all_at(&file, job(), 0).expect("code");
    let begin = Instant::now();
    let space = platform.space_new().expect("space");
    let thread = platform.thread_new(space, 0, 1).expect("thread");
    THREAD.store(thread, Ordering::SeqCst);
    let regs = UserRegs { rip: CODE, rbx: ROUNDS, rflags: 0x202, ..UserRegs::default() };
    platform.thread_resume(
        thread,
        &Resume { regs, ..resume(RESUME_REGS) },
        &[map(CODE, 0x1000, 0, RX)],
    );
    let wait = || events.recv_timeout(Duration::from_secs(60)).expect("progress");
    let calls = wait();
    let faults = wait();
    println!(
        "{name}: system call {} ns (with the start of the process), fault of {run} page(s) {} ns",
        calls.duration_since(begin).as_nanos() as u64 / ROUNDS,
        faults.duration_since(calls).as_nanos() as u64 / (ROUNDS / run),
    );
    platform.space_drop(space);
}

#[test]
#[ignore = "a measurement"]
fn costs() {
    for _ in 0..3 {
        measure("best", ProcessConfig::default(), 1);
        measure("best", ProcessConfig::default(), 16);
        measure("oldest", OLDEST, 1);
    }
}

#[test]
#[ignore = "a measurement"]
fn start_of_a_process() {
    let mock = Mock::new();
    for _ in 0..5 {
        let begin = Instant::now();
        for _ in 0..100 {
            let p = mock.start(&[0xb8, 0, 3, 0, 0, 0x0f, 5]);
            mock.syscall(0x300);
            mock.end(p.space);
        }
        println!(
            "make a process, reach its first system call, end it: {} us",
            begin.elapsed().as_micros() / 100
        );
    }
}
