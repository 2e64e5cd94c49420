//! What zygote, user processes and user threads cost the host: time to start, and memory by the
//! memory cgroup, the host kernel's own included. `cargo test -p qvisor --test platform_cost --
//! --nocapture` prints it; as root, with a memory cgroup.

mod platform_common;
#[path = "support/skip.rs"]
mod skip;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use platform_common::*;
use qlib::platform::*;
use qvisor::platform::process::cost;

// A thread that makes another where it is told, and threads that wait.
guest_code!(call, "1: mov $0x300, %eax", "syscall", "jmp 1b");

/// A memory cgroup of this process' own.
struct Group {
    path: PathBuf,
    usage: PathBuf,
    home: PathBuf,
}

impl Group {
    fn new() -> Option<Self> {
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let v1 = own
            .lines()
            .find_map(|l| l.split_once(":memory:").map(|(_, path)| path.trim_start_matches('/')));
        let (home, usage) = match v1 {
            Some(path) => (Path::new("/sys/fs/cgroup/memory").join(path), "memory.usage_in_bytes"),
            None => {
                let path = own.lines().find_map(|l| l.strip_prefix("0::/"))?;
                (Path::new("/sys/fs/cgroup").join(path), "memory.current")
            }
        };
        let path = home.join(format!("quark-cost-{}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        let group = Self { usage: path.join(usage), path, home };
        std::fs::write(group.path.join("cgroup.procs"), std::process::id().to_string()).ok()?;
        group.usage.exists().then_some(group)
    }

    /// What it uses, when that has settled.
    fn bytes(&self) -> i64 {
        std::thread::sleep(Duration::from_millis(300));
        std::fs::read_to_string(&self.usage).expect("usage").trim().parse().expect("a number")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::write(self.home.join("cgroup.procs"), std::process::id().to_string());
        let _ = std::fs::remove_dir(&self.path);
    }
}

#[test]
fn cost() {
    const PROCESSES: i64 = 100;
    const THREADS: i64 = 200;
    let Some(group) = Group::new() else {
        return skip::skip("no memory cgroup to measure with");
    };
    let before = group.bytes();
    let mut mock = Mock::new();
    let mut starts = Vec::new();
    for _ in 0..20 {
        let start = Instant::now();
        let next = Mock::new();
        starts.push(start.elapsed());
        mock = next;
    }
    starts.sort();
    let one = group.bytes();
    println!("zygote: {:?} to start (median of 20), {} KiB", starts[10], (one - before) / 1024);
    let warm = mock.start(call());
    mock.syscall(0x300);
    let before = group.bytes();
    let start = Instant::now();
    let programs: Vec<Program> = (0..PROCESSES)
        .map(|_| {
            let program = mock.start(call());
            mock.syscall(0x300);
            program
        })
        .collect();
    let time = start.elapsed() / PROCESSES as u32;
    // Code, data and stack of the guest's that are touched are guest RAM.
    let guest = 4096;
    let process = (group.bytes() - before) / PROCESSES - guest;
    println!("process: {time:?} to its first call, {} KiB", process / 1024);

    let before = group.bytes();
    mock.platform.thread_stop(warm.thread);
    mock.trap(TRAP_STOPPED);
    for _ in 0..THREADS {
        let token = mock.token();
        let thread = mock.platform.thread_new(warm.space, warm.thread, token).expect("thread");
        let regs = UserRegs { rip: CODE, rsp: STACK_TOP, rflags: 0x202, ..UserRegs::default() };
        mock.set(thread, regs, &[]);
        mock.go(warm.thread, RESUME_HOLD, &[]);
        for _ in 0..2 {
            let trap = mock.event().trap;
            assert!(matches!(trap.kind, TRAP_SYNCED | TRAP_SYSCALL), "{trap:?}");
        }
    }
    let thread = (group.bytes() - before) / THREADS;
    println!("thread: {} KiB, of which a guest can make {} KiB more", thread / 1024, 8);
    for program in programs {
        mock.end(program.space);
    }
    mock.end(warm.space);
    drop(mock);
    assert!(process <= cost::PROCESS_BYTES as i64, "a process costs {process}");
    assert!(thread <= cost::THREAD_BYTES as i64, "a thread costs {thread}");
}
