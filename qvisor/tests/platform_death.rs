//! SIGKILL of a sandbox process at any moment leaves no stub and no zygote behind.

mod platform_common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use platform_common::*;
use qlib::platform::*;

guest_code!(spin, "1: inc %rbx", "jmp 1b");
guest_code!(blocked, "mov $0x300, %eax", "syscall", "1: jmp 1b");

/// Not a test of its own: the sandbox process that is killed. It makes and ends processes without
/// pause.
#[test]
#[ignore = "run by the test below"]
fn sandbox() {
    println!("\nstarting");
    let mock = Mock::new();
    println!("zygote");
    let spinning = mock.start(spin());
    let waiting = mock.start(blocked());
    mock.syscall(0x300);
    println!("running");
    loop {
        let more = mock.start(blocked());
        mock.syscall(0x300);
        mock.platform.space_drop(more.space);
        while mock.event().kind != EVENT_SPACE_GONE {}
        let _ = (spinning, waiting);
    }
}

/// Live descendants that were handed to this process when their parent died.
fn children() -> Vec<String> {
    let mut out = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").expect("tasks").flatten() {
        let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for pid in list.split_whitespace() {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if !stat.is_empty() {
                out.push(stat);
            }
        }
    }
    out
}

#[test]
fn nothing_survives_the_sandbox_process() {
    // SAFETY: plain numbers.
    unsafe { assert_eq!(libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0) };
    let exe = std::env::current_exe().expect("own path");
    for round in 0..40u64 {
        let mut child = Command::new(&exe)
            .args(["--exact", "sandbox", "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("run the sandbox");
        // From its start on, its end on, or in the middle of its work.
        let wanted = ["starting", "zygote", "running", "running"][round as usize % 4];
        let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
        assert!(lines.any(|l| l.expect("line") == wanted), "{wanted}");
        std::thread::sleep(Duration::from_micros(round * 137 % 3000));
        child.kill().expect("kill");
        child.wait().expect("wait");
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            // SAFETY: reaps whatever dead process came to us.
            while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) }
                > 0
            {}
            let left = children();
            if left.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "round {round} ({wanted}): {left:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
