//! What zygote and stubs own, seen from outside: nothing but what they need.

mod platform_common;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use platform_common::*;
use qlib::platform::*;
use qlib::{Gpa, Va};
use qvisor::platform::process::{ProcessConfig, ProcessPlatform, Step, Test};
use qvisor::sandbox::memory::GuestPhys;

guest_code!(call, "1: mov $0x300, %eax", "syscall", "jmp 1b");

fn status(pid: u32) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    text.lines()
        .filter_map(|l| l.split_once(':'))
        .map(|(k, v)| (k.to_owned(), v.trim().to_owned()))
        .collect()
}

fn namespaces(pid: &str) -> BTreeMap<String, String> {
    let list = std::fs::read_dir(format!("/proc/{pid}/ns")).expect("namespaces").flatten();
    list.map(|e| {
        (
            e.file_name().into_string().unwrap(),
            std::fs::read_link(e.path()).unwrap().display().to_string(),
        )
    })
    .collect()
}

/// Its descriptors: number and what is there.
fn descriptors(pid: u32) -> BTreeMap<i32, String> {
    let list = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").flatten();
    list.filter_map(|e| {
        // One that is just being closed is none.
        let what = std::fs::read_link(e.path()).ok()?.display().to_string();
        Some((
            e.file_name().to_str().unwrap().parse().unwrap(),
            what.split([':', ' ']).next().unwrap().to_owned(),
        ))
    })
    .collect()
}

/// Waits until that is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn owns_nothing(mock: &Mock, name: &str, pid: u32) {
    let status = status(pid);
    let missing = mock.platform.missing();
    let is = |key: &str, value: &str| {
        assert_eq!(status.get(key).map(String::as_str), Some(value), "{name}: {key}");
    };
    if !missing.has(Step::Ids) {
        is("Uid", "65534\t65534\t65534\t65534");
        is("Gid", "65534\t65534\t65534\t65534");
    }
    if !missing.has(Step::Groups) {
        is("Groups", "");
    }
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        if set != "CapBnd" || !missing.has(Step::BoundingSet) {
            is(set, "0000000000000000");
        }
    }
    is("NoNewPrivs", "1");
    is("Seccomp", "2");
    let (own, theirs) = (namespaces("self"), namespaces(&pid.to_string()));
    for (kind, step) in [
        ("user", Step::UserNamespace),
        ("mnt", Step::MountNamespace),
        ("net", Step::NetworkNamespace),
        ("ipc", Step::IpcNamespace),
        ("uts", Step::UtsNamespace),
        ("cgroup", Step::CgroupNamespace),
        ("pid", Step::PidNamespace),
    ] {
        assert_eq!(own[kind] == theirs[kind], missing.has(step), "{name}: {kind} namespace");
    }
    if !missing.has(Step::Root) {
        assert_eq!(
            std::fs::read_dir(format!("/proc/{pid}/root/")).expect("its root").count(),
            0,
            "{name}"
        );
        assert_eq!(
            std::fs::read_dir(format!("/proc/{pid}/cwd/")).expect("its directory").count(),
            0,
            "{name}"
        );
        let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("its mounts");
        assert!(mounts.lines().count() == 1 && mounts.contains(" / / ro,"), "{name}: {mounts}");
    }
    let core = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("its limits");
    assert!(
        core.lines().any(|l| l.split_whitespace().eq("Max core file size 0 0 bytes".split(' '))),
        "{core}"
    );
}

/// Nothing of the sandbox process is mapped there.
fn maps_only_its_own(pid: u32, also: &[&str]) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    for line in maps.lines() {
        let name = line.split_whitespace().nth(5).unwrap_or("anonymous");
        let known = name.starts_with("[v") || name == "/memfd:quark-stub" || also.contains(&name);
        assert!(known, "{line}");
    }
}

#[test]
fn zygote_and_stubs_own_nothing() {
    let mock = Mock::new();
    let program = mock.start(call());
    mock.syscall(0x300);
    let stub = mock.platform.stub_pid(program.space).expect("a stub");
    let (zygote, init) = mock.platform.zygote_pids().expect("a zygote");
    for (name, pid) in [("stub", Some(stub)), ("zygote", Some(zygote)), ("init", init)] {
        let Some(pid) = pid else { continue };
        println!("{name}: missing {:?}", mock.platform.missing());
        owns_nothing(&mock, name, pid);
        until("its descriptors are those of guest RAM and the zygote's socket", || {
            let expected = BTreeMap::from([(0, "socket".to_owned()), (1, "/memfd".to_owned())]);
            descriptors(pid) == expected
        });
    }
    maps_only_its_own(stub, &["/memfd:quark-threads", "/memfd:test-ram"]);
    maps_only_its_own(zygote, &["/memfd:quark-zygote"]);
    mock.end(program.space);
}

#[test]
fn a_host_that_refuses_something_is_told_of() {
    for step in Step::ALL.iter().copied().filter(|s| s.may_be_missing()) {
        let test = Test { fail_step: Some(step), ..Test::default() };
        let mock = Mock::with(ProcessConfig { test, ..ProcessConfig::default() });
        assert!(mock.platform.missing().has(step), "{step:?}");
        let program = mock.start(call());
        mock.syscall(0x300);
        // Stopped, looked at and killed all the same.
        mock.platform.thread_stop(program.thread);
        mock.trap(TRAP_STOPPED);
        mock.platform.space_touched(program.space, Va(CODE), 1).expect("what it touched");
        mock.end(program.space);
    }
}

#[test]
fn a_stub_without_its_own_filter_can_do_nothing() {
    const PROBES: usize = 11;
    const AREA: u64 = 0x4_0000;
    let test = Test { bare_stubs: true, ..Test::default() };
    let mock = Mock::with(ProcessConfig { test, ..ProcessConfig::default() });
    let space = mock.platform.space_new().expect("a space");
    until("the stub is there", || mock.platform.stub_pid(space).is_some());
    let pid = mock.platform.stub_pid(space).expect("a stub");
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("its memory");
    let slot = mock.platform.user_max().0 + AREA;
    let word = |at: u64| {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, slot + at).map(|()| u64::from_le_bytes(bytes)).unwrap_or(0)
    };
    until("it has tried everything", || word(0) == PROBES as u64);
    for i in 0..PROBES as u64 {
        assert_eq!(word(64 + 8 * i) as i64, -i64::from(libc::ENOSYS), "probe {i}");
    }
    mock.platform.space_drop(space);
}

/// Guest RAM, and windows above it, each a page of a file.
struct Windows(Arc<OwnedFd>, Mutex<Vec<Option<Arc<OwnedFd>>>>);

struct Shared(Arc<Windows>);

impl GuestPhys for Shared {
    fn host_backing(&self, gpa: Gpa, len: u64) -> Option<(Arc<OwnedFd>, u64)> {
        if gpa.0.checked_add(len)? <= RAM_BYTES {
            return Some((self.0.0.clone(), gpa.0));
        }
        let window = (gpa.0 - RAM_BYTES) / 0x1000;
        (len == 0x1000)
            .then(|| self.0.1.lock().unwrap().get(window as usize)?.clone().map(|f| (f, 0)))?
    }

    fn is_for_users(&self, _gpa: Gpa, _len: u64) -> bool {
        true
    }
}

guest_code!(
    touch,
    "1: mov $0x700000, %eax",
    "mov (%rax), %edi",
    "mov $0x300, %eax",
    "syscall",
    "jmp 1b"
);

#[test]
fn files_come_and_go_with_their_windows() {
    let windows = Arc::new(Windows(Arc::new(ram().into()), Mutex::default()));
    let (sender, events) = std::sync::mpsc::channel();
    let platform =
        ProcessPlatform::new(Arc::new(Shared(windows.clone())), ProcessConfig::default())
            .expect("platform");
    platform.set_dispatch(Box::new(move |event| sender.send(*event).unwrap_or(())));
    let next = || events.recv_timeout(Duration::from_secs(10)).expect("an event").trap;
    windows.0.try_clone().map(std::fs::File::from).unwrap().write_all_at(touch(), 0).expect("code");
    let (zygote, _) = platform.zygote_pids().expect("a zygote");
    let sweep = platform.file_sweeper();
    let space = platform.space_new().expect("space");
    let thread = platform.thread_new(space, 0, 7).expect("thread");
    let regs = UserRegs { rip: CODE, rsp: STACK_TOP, rflags: 0x202, ..UserRegs::default() };
    let mut begin = vec![map(CODE, 0x1000, 0, RX)];
    for round in 0..100u32 {
        // A file whose first word is its number.
        let file = ram();
        file.write_all_at(&round.to_le_bytes(), 0).expect("write");
        windows.1.lock().unwrap().push(Some(Arc::new(file.into())));
        let gpa = RAM_BYTES + 0x1000 * u64::from(round);
        begin.push(map(0x70_0000, 0x1000, gpa, R));
        match round {
            0 => platform.thread_resume(thread, &Resume { regs, ..resume(RESUME_REGS) }, &begin),
            _ => platform.thread_resume(thread, &resume(RESUME_RETURN), &begin),
        }
        let trap = next();
        assert_eq!(
            (trap.kind, trap.nr, trap.args[0]),
            (TRAP_SYSCALL, 0x300, u64::from(round)),
            "{trap:?}"
        );
        begin.clear();
        // Some stay for a while.
        let keep = 5;
        until("a file for each window", || {
            descriptors(zygote).len() == 2 + (round as usize + 1).min(keep + 1)
        });
        if let Some(old) = (round as usize).checked_sub(keep) {
            windows.1.lock().unwrap()[old] = None;
            sweep();
            until("what no window has is closed", || descriptors(zygote).len() == 2 + keep);
        }
    }
    assert!(descriptors(zygote).keys().all(|number| *number < 32), "numbers are used again");
    platform.space_drop(space);
}

guest_code!(
    past_its_slots,
    // %rdi: an address. A word is read there and told.
    "mov (%rdi), %rsi",
    "mov $0x300, %eax",
    "syscall",
    "hlt",
);

#[test]
fn memory_of_slots_is_what_threads_use() {
    const AREA: u64 = 0x4_0000;
    const SLOT: u64 = 0x4000;
    let mock = Mock::new();
    for (address, there) in
        [(AREA, true), (AREA + SLOT - 8, true), (AREA + SLOT, false), (AREA + 4095 * SLOT, false)]
    {
        let space = mock.platform.space_new().expect("space");
        let thread = mock.platform.thread_new(space, 0, mock.token()).expect("thread");
        let rdi = mock.platform.user_max().0 + address;
        let regs =
            UserRegs { rip: CODE, rsp: STACK_TOP, rdi, rflags: 0x202, ..UserRegs::default() };
        mock.set(thread, regs, &[map(CODE, 0x1000, mock.frames_with(past_its_slots()), RX)]);
        if there {
            mock.syscall(0x300);
        } else {
            assert_eq!(mock.trap(TRAP_EXCEPTION).signo, libc::SIGBUS, "{address:#x}");
        }
        mock.end(space);
    }
}

#[test]
fn processes_and_threads_are_limited_by_memory() {
    // The least that there is: 16 processes, 64 threads.
    let mock =
        Mock::with(ProcessConfig { memory_limit_bytes: 1 << 20, ..ProcessConfig::default() });
    assert_eq!((mock.platform.max_processes(), mock.platform.max_threads()), (16, 64));
    let mut programs: Vec<Program> = (0..16).map(|_| mock.start(call())).collect();
    for _ in 0..16 {
        mock.syscall(0x300);
    }
    assert_eq!(mock.platform.space_new(), Err(libc::EAGAIN));
    let mut made = 16;
    let one = programs[0];
    mock.platform.thread_stop(one.thread);
    mock.trap(TRAP_STOPPED);
    while let Ok(_thread) = mock.platform.thread_new(one.space, one.thread, mock.token()) {
        made += 1;
    }
    assert_eq!(made, 64);
    assert_eq!(mock.platform.thread_new(one.space, one.thread, 0), Err(libc::EAGAIN));
    for program in programs.drain(..) {
        mock.end(program.space);
    }
    let again = mock.start(call());
    mock.syscall(0x300);
    mock.end(again.space);
}
