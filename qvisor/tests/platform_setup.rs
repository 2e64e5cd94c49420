//! The set-up of zygote and stubs: each step that fails ends what it was part of, before any byte
//! of the guest's is in it.

mod platform_common;

use std::process::Command;
use std::sync::Arc;

use platform_common::*;
use qlib::platform::*;
use qvisor::platform::process::{ProcessConfig, ProcessPlatform, Step, Test};

guest_code!(call, "1: mov $0x300, %eax", "syscall", "jmp 1b");

/// Runs an ignored test of this binary in a process of its own, whose descriptors are its own to
/// use up.
fn alone(test: &str) {
    let exe = std::env::current_exe().expect("own path");
    let status = Command::new(exe)
        .args(["--exact", test, "--ignored", "--nocapture"])
        .status()
        .expect("run the test");
    assert!(status.success(), "{test}: {status}");
}

fn failing(step: Step) -> ProcessConfig {
    ProcessConfig {
        test: Test { fail_step: Some(step), ..Test::default() },
        ..ProcessConfig::default()
    }
}

fn is_open(fd: i32) -> bool {
    // SAFETY: plain numbers.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

/// The vector state of a thread, all registers full of `word`.
fn vectors_full_of(mock: &Mock, word: u64) -> Vec<u8> {
    const XSTATE_BV: usize = 512;
    let program = mock.start(call());
    mock.syscall(0x300);
    mock.platform.thread_stop(program.thread);
    mock.trap(TRAP_STOPPED);
    let mut image = mock.platform.fpstate_read(program.thread).expect("vector state");
    mock.end(program.space);
    let x87_and_sse = 32..416;
    let extended = 576..image.len() - 8;
    for at in x87_and_sse.step_by(8).chain(extended.step_by(8)) {
        image[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    image[XSTATE_BV] |= 7;
    image
}

/// Not a test of its own: the descriptors of the sandbox process are used up but for a few when a
/// stub is made, and its vector registers (as fork(2) passes them on) would close descriptor 3,
/// were they taken as operations.
#[test]
#[ignore = "run by the test below"]
fn no_descriptors() {
    const VICTIM: i32 = 3;
    // It believes that there are many.
    let mock = Mock::new();
    // SAFETY: plain numbers and a valid rlimit.
    unsafe {
        let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
    assert!(is_open(VICTIM));
    let vectors = vectors_full_of(&mock, VICTIM as u64);
    let mut filling = Vec::new();
    for left in [1, 2, 3, 4] {
        while let Ok(file) = std::fs::File::open("/dev/null") {
            filling.push(file);
        }
        filling.truncate(filling.len() - left);
        for round in 0..50 {
            let space = match mock.platform.space_new() {
                Ok(space) => space,
                Err(e) => {
                    assert_eq!(e, libc::EAGAIN);
                    continue;
                }
            };
            let token = mock.token();
            // A refused stub may be gone already.
            if let Ok(thread) = mock.platform.thread_new(space, 0, token) {
                let _ = mock.platform.fpstate_write(thread, &vectors);
                mock.set(thread, UserRegs { rip: CODE, ..UserRegs::default() }, &[]);
                let event = mock.event();
                assert_eq!(event.kind, EVENT_TRAP);
                // It came into being, and faults; or not, and is dead.
                assert!(matches!(event.trap.kind, TRAP_DEAD | TRAP_FAULT), "{event:?}");
                if !is_open(VICTIM) {
                    println!(
                        "with {left} left, in round {round}, a stub has carried out what its \
                        registers say"
                    );
                    std::process::abort();
                }
            }
            mock.end(space);
        }
    }
    drop(filling);
    let program = mock.start(call());
    mock.syscall(0x300);
    mock.end(program.space);
}

#[test]
fn a_stub_without_its_filter_carries_nothing_out() {
    alone("no_descriptors");
}

#[test]
fn a_failed_step_of_the_zygote_is_told_and_leaves_nothing() {
    for step in Step::ALL.iter().copied().filter(|s| !s.is_of_stub() && !s.may_be_missing()) {
        let config = failing(step);
        let fd = ram().into();
        let error = match ProcessPlatform::new(Arc::new(Ram(Arc::new(fd))), config) {
            Ok(_) => panic!("{step:?} failed and was passed over"),
            Err(e) => format!("{e:#}"),
        };
        assert!(
            error.contains("set up the zygote") && error.contains("Input/output error"),
            "{step:?}: {error}"
        );
    }
}

#[test]
fn a_failed_step_of_a_stub_ends_that_stub_only() {
    for step in Step::ALL.iter().copied().filter(|s| s.is_of_stub()) {
        let mock = Mock::with(failing(step));
        for _ in 0..3 {
            // Its end may be known before it has a thread: then there is none.
            let (space, token) = match mock.try_start(call()) {
                Ok(program) => (program.space, Some(program.token)),
                Err((space, e)) => {
                    assert_eq!(e, libc::ESRCH, "{step:?}");
                    (space, None)
                }
            };
            if let Some(token) = token {
                assert_eq!(mock.trap(TRAP_DEAD).token, token, "{step:?}");
            }
            assert_eq!(mock.platform.stub_pid(space), None, "{step:?}");
            mock.end(space);
        }
    }
}

#[test]
fn a_shortage_of_processes_ends_nobody() {
    let mock = Mock::new();
    let (zygote, _) = mock.platform.zygote_pids().expect("zygote");
    let first = mock.start(call());
    mock.syscall(0x300);
    // The soft limit only: to get the hard one back takes a capability that not every root has.
    let limit_to = |most: Option<u64>| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let (pid, kind) = (zygote as i32, libc::RLIMIT_NPROC);
        // SAFETY: valid limits.
        let done = unsafe {
            libc::prlimit(pid, kind, std::ptr::null(), &raw mut limit) == 0 && {
                limit.rlim_cur = most.unwrap_or(limit.rlim_max);
                libc::prlimit(pid, kind, &raw const limit, std::ptr::null_mut()) == 0
            }
        };
        assert!(done, "{}", std::io::Error::last_os_error());
    };
    limit_to(Some(1));
    let second = mock.start(call());
    mock.no_event(std::time::Duration::from_millis(500));
    // It can be told now that there is no further one.
    assert_eq!(mock.platform.space_new(), Err(libc::EAGAIN));
    limit_to(None);
    assert_eq!(mock.syscall(0x300).token, second.token);
    let third = mock.start(call());
    assert_eq!(mock.syscall(0x300).token, third.token);
    for program in [first, second, third] {
        mock.end(program.space);
    }
}
