//! What is true of the kvm platform alone: when the guest is left, how fast user code is
//! interrupted, what an idle or sleeping sandbox costs, and how a broken guest ends. Skipped where
//! KVM does not work; `scripts/test-kvm kvm` runs them in an emulated machine then. Numbers that
//! are measured go to standard error, whether a test passes or not.

mod support;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use object::{Object, ObjectSymbol};
use qlib::control::{Reply, Request};
use qvisor::sandbox::loader::{IMAGE_START, embedded_image};
use serde_json::{Value, json};
use support::container::{Connection, Container, alive, children};
use support::{eventually, limit, slowed};

/// True if the platform under test is kvm.
fn is_kvm() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    *IS.get_or_init(|| match std::env::var("QUARK_PLATFORM") {
        Ok(name) => name == "kvm",
        // What "auto" takes.
        Err(_) => {
            let doctor = support::run(support::quark().arg("doctor"), limit());
            doctor.stdout.lines().any(|l| l.contains(" auto ") && l.contains("takes kvm"))
        }
    })
}

macro_rules! needs_kvm {
    () => {
        if !is_kvm() {
            return support::skip("the platform under test is not kvm");
        }
    };
}

/// Reports a measurement, past the capture of test output.
fn report(text: &str) {
    writeln!(std::io::stderr(), "measured: {text}").ok();
}

/// The program of test-apps/hibernation/exits.c in a container, and a connection to it.
fn exits() -> (Container, Connection) {
    let c = Container::start("busybox", &["/mnt/apps/exits", "--tcp", "{port}"]);
    c.listening();
    let connection = c.connect().expect("connect");
    (c, connection)
}

/// What is counted of a sandbox's exits: qvisor's loop and KVM, summed over the vCPUs.
#[derive(Clone, Debug, Default)]
struct Counts {
    own: BTreeMap<String, u64>,
    kvm: BTreeMap<String, u64>,
}

impl Counts {
    fn of(c: &Container) -> Counts {
        // What is under way ends first.
        sleep(slowed(Duration::from_millis(5)));
        let Reply::Platform(stats) = c.control().call(&Request::Platform, &[]).expect("statistics")
        else {
            panic!("an answer of another kind");
        };
        assert_eq!(stats.name, "kvm");
        Counts { own: stats.exits.into_iter().collect(), kvm: stats.kvm.into_iter().collect() }
    }

    /// Exits for the guest's sake: all but those that interrupts of the host itself make.
    fn exits(&self) -> u64 {
        let value = |name: &str| {
            self.kvm.get(name).copied().unwrap_or_else(|| panic!("KVM does not count {name}"))
        };
        value("exits") - value("irq_exits")
    }

    fn since(&self, before: &Counts) -> Counts {
        let minus = |after: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
            after.iter().map(|(k, v)| (k.clone(), v - before.get(k).unwrap_or(&0))).collect()
        };
        Counts { own: minus(&self.own, &before.own), kvm: minus(&self.kvm, &before.kvm) }
    }

    /// What is not zero.
    fn describe(&self) -> String {
        let list = |all: &BTreeMap<String, u64>| {
            let some: Vec<String> =
                all.iter().filter(|(_, v)| **v > 0).map(|(k, v)| format!("{k} {v}")).collect();
            some.join(", ")
        };
        format!("own: {}; KVM's: {}", list(&self.own), list(&self.kvm))
    }
}

/// Does a job; the exits meanwhile, and the nanoseconds that the program measured.
fn cost(c: &Container, connection: &mut Connection, request: &str) -> (Counts, u64) {
    let before = Counts::of(c);
    let answer = connection.ask(request);
    let after = Counts::of(c);
    let ns = answer.strip_prefix("ok ").and_then(|n| n.parse().ok());
    (after.since(&before), ns.unwrap_or_else(|| panic!("{request}: {answer}")))
}

/// How many exits a round of each job makes: fewer than `most`. `rounds` must be many, so that what
/// else happens meanwhile does not count.
fn exits_of(jobs: &[&str], rounds: u64, most: f64) {
    let (c, mut connection) = exits();
    let mut wrong = Vec::new();
    for job in jobs {
        // The first time takes frames from the host, and whatever else the first time takes.
        connection.ask(&format!("{job} 600"));
        let idle = cost(&c, &mut connection, "nothing 0").0.exits();
        let (counts, ns) = cost(&c, &mut connection, &format!("{job} {rounds}"));
        // Threads that take turns have a tick each millisecond, however slow the machine is. One
        // makes four exits: that the interrupt can be taken, its end, and two for the next one.
        // KVM counts an injection anew whenever it puts off the entry that it had prepared, as it
        // does ten times a tick on a busy machine: ticks beyond these would be seen by their exits.
        let injections = counts.kvm.get("irq_injections").copied().unwrap_or(0);
        let ticks = injections.min(ns / 1_000_000 + 20);
        let each = counts.exits().saturating_sub(idle + 4 * ticks) as f64 / rounds as f64;
        let text = format!(
            "{job}: {each:.4} exits, {} ns a round ({idle} exits without it, {ticks} ticks in {} \
            ms)",
            ns / rounds,
            ns / 1_000_000
        );
        report(&text);
        if each >= most {
            wrong.push(format!("{text}; {rounds} rounds: {}", counts.describe()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// As good as none: what is left is not made by the rounds.
const NONE: f64 = 0.01;

#[test]
fn system_calls_make_no_exits() {
    needs_kvm!();
    exits_of(&["getppid"], 20_000, NONE);
}

#[test]
fn free_futexes_make_no_exits() {
    needs_kvm!();
    exits_of(&["wake", "mutex"], 20_000, NONE);
}

#[test]
fn mapping_and_unmapping_makes_no_exits() {
    needs_kvm!();
    exits_of(&["mmap"], 20_000, NONE);
}

#[test]
fn faults_on_frames_that_are_there_make_no_exits() {
    needs_kvm!();
    exits_of(&["fault"], 25_600, NONE);
}

#[test]
fn switches_between_threads_make_no_exits() {
    needs_kvm!();
    exits_of(&["pingpong"], 20_000, NONE);
}

#[test]
fn reading_the_clock_makes_no_exits() {
    needs_kvm!();
    exits_of(&["vdso", "clock"], 20_000, NONE);
}

#[test]
fn reading_a_byte_from_a_socket_makes_at_most_one_exit() {
    needs_kvm!();
    let (c, mut connection) = exits();
    let rounds = 4000;
    let request = |n: usize| format!("read {n}\n{}", "x".repeat(n));
    // The request's own newline is one of the bytes.
    connection.ask(&request(99)[..request(99).len() - 1]);
    let idle = cost(&c, &mut connection, "read 0").0.exits();
    let text = request(rounds);
    let (counts, ns) = cost(&c, &mut connection, &text[..text.len() - 1]);
    let each = counts.exits().saturating_sub(idle) as f64 / rounds as f64;
    report(&format!(
        "read of a byte: {each:.4} exits, {} ns ({idle} exits without it)",
        ns / rounds as u64
    ));
    assert!(each <= 1.0 + NONE, "{each} exits a round; {rounds} rounds: {}", counts.describe());
}

/// CLOCK_MONOTONIC, which is the guest's too.
fn now_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn numbers(answer: &str) -> Vec<u64> {
    let words = answer.strip_prefix("ok ").unwrap_or_else(|| panic!("{answer}"));
    words.split(' ').map(|n| n.parse().expect("a number")).collect()
}

/// How long user code may run on when it is to stop.
fn patience_ns() -> u64 {
    slowed(Duration::from_millis(1)).as_nanos() as u64
}

#[test]
fn a_signal_interrupts_a_thread_that_computes() {
    needs_kvm!();
    let (_c, mut connection) = exits();
    let times = numbers(&connection.ask("kick 100"));
    let [median, max] = times[..] else { panic!("{times:?}") };
    report(&format!(
        "a signal's handler in a thread that computes runs after {median} ns (median), {max} ns \
        (longest of 100)"
    ));
    assert!(median <= patience_ns(), "{median} ns");
}

#[test]
fn a_pause_stops_a_thread_that_computes() {
    needs_kvm!();
    let (c, mut connection) = exits();
    let mut control = c.control();
    let mut all = Vec::new();
    for _ in 0..5 {
        connection.send("watch 2500");
        sleep(Duration::from_millis(700));
        let begin = now_ns();
        control.order(&Request::Pause).expect("pause");
        let paused = now_ns();
        sleep(Duration::from_millis(600));
        let end = now_ns();
        control.order(&Request::Resume).expect("resume");
        let times = numbers(&connection.answer());
        let [before, after] = times[..] else { panic!("{times:?}") };
        assert!(
            before <= paused && after >= end,
            "it ran in a pause: {begin} {before} {paused} {end} {after}"
        );
        all.push(before.saturating_sub(begin));
    }
    all.sort_unstable();
    report(&format!(
        "a pause stops a thread that computes after {} ns (median), {} ns (longest of 5)",
        all[2], all[4]
    ));
    assert!(all[2] <= patience_ns(), "{all:?} ns");
}

#[test]
fn sigkill_ends_a_thread_that_computes() {
    needs_kvm!();
    let (c, mut connection) = exits();
    connection.send("watch 100000000");
    sleep(slowed(Duration::from_millis(20)));
    let pid = c.pid();
    let begin = Instant::now();
    c.control().order(&Request::Signal { pid: 1, all: false, signo: 9 }).expect("signal");
    eventually("the sandbox ends", limit(), || !alive(pid));
    report(&format!(
        "SIGKILL to the end of the sandbox process: {} us",
        begin.elapsed().as_micros()
    ));
}

/// Name and CPU time in nanoseconds of each thread of a process that lives.
fn threads_ns(pid: i32) -> Vec<(String, u64)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("tasks");
    let one = |task: fs::DirEntry| {
        let read = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let ns = read("schedstat").split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        (read("comm"), ns)
    };
    tasks.flatten().map(one).collect()
}

/// CPU time of all threads of a process that live, in nanoseconds.
fn cpu_ns(pid: i32) -> u64 {
    threads_ns(pid).iter().map(|(_, ns)| ns).sum()
}

#[test]
fn threads_that_compute_have_a_vcpu_each() {
    needs_kvm!();
    let c = Container::start("busybox", &["sh", "-c", "while :; do :; done & while :; do :; done"]);
    let second = Duration::from_secs(1).as_nanos() as u64;
    eventually("two vCPUs compute for a second each", limit(), || {
        let threads = threads_ns(c.pid());
        threads.iter().filter(|(name, ns)| name.starts_with("vcpu") && *ns > second).count() >= 2
    });
}

#[test]
fn threads_that_are_bound_to_a_vcpu_compute_on_that_one() {
    needs_kvm!();
    let loops = "while :; do :; done & while :; do :; done";
    let c = Container::start("busybox", &["taskset", "2", "sh", "-c", loops]);
    let second = Duration::from_secs(1).as_nanos() as u64;
    let of = |name: &str| {
        let threads = threads_ns(c.pid());
        threads.into_iter().find(|(thread, _)| thread.trim() == name).map_or(0, |(_, ns)| ns)
    };
    eventually("the second vCPU computes", limit(), || of("vcpu1") > second / 10);
    let first = of("vcpu0");
    eventually("the second vCPU computes for a second", limit(), || of("vcpu1") > second);
    assert!(of("vcpu0") < first + second / 4, "{:?}", threads_ns(c.pid()));
}

#[test]
fn a_sandbox_whose_tasks_all_wait_uses_no_cpu_time() {
    needs_kvm!();
    let (c, mut connection) = exits();
    connection.ask("pingpong 2000");
    sleep(slowed(Duration::from_millis(100)));
    let (before, counts) = (cpu_ns(c.pid()), Counts::of(&c));
    // The answer's connection is closed after it has come.
    sleep(slowed(Duration::from_millis(50)));
    let asked = cpu_ns(c.pid());
    sleep(Duration::from_secs(10));
    let used = Duration::from_nanos(cpu_ns(c.pid()) - asked);
    let exits = Counts::of(&c).since(&counts);
    report(&format!(
        "idle for 10 s: {used:?} of CPU time ({} ns for an answer); {}",
        asked - before,
        exits.describe()
    ));
    assert!(exits.exits() <= 20, "{}", exits.describe());
    // A tick of a timer, or a loop that asks now and then, would be seen above.
    assert!(used <= slowed(Duration::from_millis(4)), "{used:?}");
}

/// The file that is a sandbox's RAM.
fn ram(pid: i32) -> PathBuf {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors");
    let is_ram =
        |p: &PathBuf| fs::read_link(p).is_ok_and(|l| l.to_string_lossy().contains("quark-ram"));
    fds.flatten().map(|e| e.path()).find(is_ram).expect("the file of guest RAM")
}

#[test]
fn little_happens_before_the_first_instruction() {
    needs_kvm!();
    let c = Container::start("busybox", &["/mnt/apps/first"]);
    sleep(slowed(Duration::from_millis(50)));
    let counts = Counts::of(&c);
    let committed = fs::metadata(ram(c.pid())).expect("size").blocks() * 512;
    report(&format!(
        "boot: {} exits, {} KiB of RAM; {}",
        counts.exits(),
        committed >> 10,
        counts.describe()
    ));
    // Most of them are the pages of the kernel's image that it touches first.
    assert!(counts.exits() <= 420, "{} exits: {}", counts.exits(), counts.describe());
    assert!(committed <= 3 << 20, "{committed} bytes");
}

/// What a sandbox holds, in bytes by kind.
fn held(c: &Container) -> Value {
    let text = c.must(&["events", "--stats", &c.id]);
    let event: Value = serde_json::from_str(&text).expect("an event is JSON");
    let raw = &event["data"]["memory"]["raw"];
    let mut all = json!({"held": event["data"]["quark"]["cgroup"]["held_bytes"]});
    for name in [
        "anon",
        "shmem",
        "file",
        "kernel",
        "kernel_stack",
        "pagetables",
        "sec_pagetables",
        "slab",
        "percpu",
    ] {
        all[name] = raw[name].clone();
    }
    all["ram_blocks"] = (fs::metadata(ram(c.pid())).expect("size").blocks() * 512).into();
    let mut processes = children(c.pid());
    processes.push(c.pid());
    for name in ["Rss", "Pss", "Pss_Anon", "Pss_File", "Pss_Shmem"] {
        let of = |pid: &i32| {
            let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
            let line = text
                .lines()
                .find_map(|l| l.strip_prefix(name)?.strip_prefix(':').map(str::to_owned));
            line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0)
                << 10
        };
        all[name] = processes.iter().map(of).sum::<u64>().into();
    }
    all["processes"] = processes.len().into();
    all
}

/// The same once the host has settled its books: it brings a cgroup's numbers up to date every two
/// seconds.
fn held_at_last(c: &Container) -> Value {
    let looks = (0..5).map(|_| {
        sleep(Duration::from_secs(1));
        held(c)
    });
    looks.min_by_key(|held| held["held"].as_u64()).expect("some")
}

/// Not a test of its own: prints what containers hold awake and asleep on the platform of the
/// environment.
#[test]
#[ignore = "run by the test below, on each platform"]
fn child_holds() {
    let python = "import time\ntime.sleep(1000000)";
    let programs: [(&str, &[&str]); 2] =
        [("busybox", &["sleep", "1000000"]), ("python", &["/usr/bin/python3", "-c", python])];
    for (rootfs, args) in programs {
        let c = Container::start(rootfs, args);
        sleep(slowed(Duration::from_millis(if rootfs == "python" { 500 } else { 100 })));
        let awake = held(&c);
        c.hibernate();
        println!(
            "\nheld {}",
            json!({"program": rootfs, "awake": awake, "asleep": held_at_last(&c)})
        );
    }
}

#[test]
fn who_is_on_kvm_is_not_saved_and_told_why() {
    needs_kvm!();
    let c = Container::start("busybox", &["sleep", "1000000"]);
    let outcome = c.command(&["checkpoint", "--image-path", "/nowhere/image", &c.id]);
    let why = "it is on the kvm platform, and images are of the process platform";
    assert!(!outcome.success() && outcome.stderr.contains(why), "{}", outcome.describe());
    assert_eq!(c.state()["status"], "running");
}

#[test]
fn asleep_it_holds_about_as_much_as_on_the_process_platform() {
    needs_kvm!();
    let on = |platform: &str| -> Vec<Value> {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command
            .args(["--exact", "child_holds", "--ignored", "--nocapture"])
            .env("QUARK_PLATFORM", platform);
        let outcome = support::run(&mut command, limit() * 5);
        assert!(outcome.success(), "{platform}: {}\n{}", outcome.describe(), outcome.stdout);
        let lines = outcome.stdout.lines().filter_map(|l| l.strip_prefix("held "));
        lines.map(|l| serde_json::from_str(l).expect("JSON")).collect()
    };
    let (process, kvm) = (on("process"), on("kvm"));
    assert_eq!((process.len(), kvm.len()), (2, 2));
    let mut wrong = Vec::new();
    for (process, kvm) in process.iter().zip(&kvm) {
        report(&format!("process: {process}"));
        report(&format!("kvm: {kvm}"));
        // What each kind of memory has, not what is charged: that has reserves of the processors in
        // it, of 256 KiB each.
        let held = |of: &Value| -> u64 {
            let kinds = ["anon", "shmem", "kernel"].map(|kind| of["asleep"][kind].as_u64());
            kinds.into_iter().map(|bytes| bytes.expect("bytes")).sum()
        };
        let ratio = held(kvm) as f64 / held(process) as f64;
        let text = format!(
            "{} asleep: {} KiB on kvm, {} on process: {ratio:.2}",
            kvm["program"],
            held(kvm) >> 10,
            held(process) >> 10
        );
        report(&text);
        // A virtual machine costs the host's kernel half a megabyte, whatever is in it: too much
        // for a container that holds next to nothing to be within a fifth. A second vCPU costs as
        // much as 100 KiB more, in the host's kernel and in the guest's.
        if ratio > 1.2 && held(kvm) > held(process) + (768 << 10) {
            wrong.push(text);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// A host file that is there while the test runs, seen in containers as `inside`.
struct HostFile {
    path: PathBuf,
    inside: String,
}

impl HostFile {
    fn new(bytes: &[u8]) -> HostFile {
        let name = format!("cut-{}", std::process::id());
        let path = support::test_apps("hibernation").join(&name);
        fs::write(&path, bytes).expect("write a host file");
        HostFile { path, inside: format!("/mnt/apps/{name}") }
    }

    fn set_len(&self, len: u64) {
        OpenOptions::new().write(true).open(&self.path).and_then(|f| f.set_len(len)).expect("cut");
    }
}

impl Drop for HostFile {
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok();
    }
}

#[test]
fn a_mapped_file_that_the_host_cuts_short_is_a_bus_error() {
    needs_kvm!();
    let file = HostFile::new(&[7; 0x4000]);
    let (_c, mut connection) = exits();
    assert_eq!(connection.ask(&format!("map {}", file.inside)), "ok 16384");
    assert_eq!(connection.ask("touch 4196"), "ok 7");
    assert_eq!(connection.ask("pass 4196"), "ok");
    file.set_len(100);
    for _ in 0..3 {
        // A page that the guest has touched before, and one that it has not.
        for at in [4196, 12388] {
            assert_eq!(connection.ask(&format!("touch {at}")), format!("signal {}", libc::SIGBUS));
            assert_eq!(connection.ask(&format!("pass {at}")), format!("errno {}", libc::EFAULT));
        }
        assert_eq!(connection.ask("touch 50"), "ok 7");
        assert_eq!(connection.ask("pass 50"), "ok");
    }
    // It gets longer again.
    file.set_len(0x4000);
    assert_eq!(connection.ask("touch 4196"), "ok 0");
    assert_eq!(connection.ask("touch 12388"), "ok 0");
    assert_eq!(connection.ask("pass 12388"), "ok");
    numbers(&connection.ask("getppid 100"));
}

/// The offset of a function or variable in the kernel image.
fn symbol(wanted: &str) -> u64 {
    let image = object::File::parse(embedded_image()).expect("the kernel image");
    let is_it = |name: &str| format!("{:#}", rustc_demangle::demangle(name)) == wanted;
    let symbol = image.symbols().find(|s| s.name().is_ok_and(is_it));
    symbol.unwrap_or_else(|| panic!("{wanted} is not in the kernel image")).address()
}

/// The kernel's way to user mode.
const ENTER: &str = "quark_enter_user";
/// How it begins: `push rbp; mov rbp, rsp; push rbx`.
const ENTER_BYTES: [u8; 5] = [0x55, 0x48, 0x89, 0xe5, 0x53];

/// Breaks the kernel of a running sandbox: what lies at `offset` of its image becomes `bytes`. What
/// was there.
fn damage(pid: i32, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    // Guest RAM begins with the first mapping of its file.
    let line = maps.lines().find(|l| l.contains("quark-ram")).expect("guest RAM");
    let base =
        line.split('-').next().and_then(|a| u64::from_str_radix(a, 16).ok()).expect("an address");
    let at = base + IMAGE_START.0 + offset;
    let memory =
        OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem")).expect("memory");
    let mut old = vec![0; bytes.len()];
    memory.read_exact_at(&mut old, at).expect("read guest memory");
    // The image's code is a private mapping of a file: only this sandbox's copy changes.
    memory.write_all_at(bytes, at).expect("write guest memory");
    old
}

/// Has the kernel of one of two sandboxes break as `how` says: it ends with a report that has all
/// of `signs` in it, in its log and on standard error, and the other lives. The report.
fn broken(how: impl FnOnce(i32), signs: &[&str]) -> String {
    let (other, mut other_connection) = exits();
    let log =
        std::env::temp_dir().join(format!("quark-kvm-log-{}-{}", std::process::id(), other.port));
    let script = format!("quark=$1; shift; exec \"$quark\" --log {} \"$@\"", log.display());
    let c = Container::start_under(
        &["sh", "-c", &script, "sh"],
        "busybox",
        &["/mnt/apps/exits", "--tcp", "{port}"],
    );
    c.listening();
    let mut connection = c.connect().expect("connect");
    connection.ask("getppid 1");
    how(c.pid());
    connection.try_send("getppid 1");
    assert_eq!(connection.try_answer().filter(|a| !a.is_empty()), None, "the kernel works on");
    eventually("the sandbox ends", limit(), || !alive(c.pid()));
    let logged = fs::read_to_string(&log).unwrap_or_default();
    fs::remove_file(&log).ok();
    let output = c.output();
    for sign in signs {
        assert!(output.contains(sign), "{sign:?} is not on standard error: {output}");
        assert!(logged.contains(sign), "{sign:?} is not in the log: {logged}");
    }
    assert_eq!(c.state()["status"], "stopped");
    numbers(&other_connection.ask("getppid 100"));
    assert_eq!(other.state()["status"], "running");
    // And another can begin.
    let (_next, mut connection) = exits();
    numbers(&connection.ask("getppid 1"));
    output
}

fn damage_entry(pid: i32, bytes: [u8; 5]) {
    assert_eq!(
        damage(pid, symbol(ENTER), &bytes),
        ENTER_BYTES,
        "the image of quark is not that of this test"
    );
}

/// The kernel's functions are in it, by their names.
fn has_functions(report: &str) {
    let named = |line: &str| line.contains("quark_") || line.contains("qkernel::");
    assert!(
        report.lines().filter(|l| l.contains(": 0x") && named(l)).count() >= 2,
        "no functions of the kernel: {report}"
    );
}

#[test]
fn a_fault_of_the_kernel_ends_its_sandbox_with_a_report() {
    needs_kvm!();
    // ud2
    let report = broken(
        |pid| damage_entry(pid, [0x0f, 0x0b, 0x90, 0x90, 0x90]),
        &["kernel fault", "exception 6"],
    );
    has_functions(&report);
    assert!(report.contains("rsp 0x"), "no registers: {report}");
}

#[test]
fn a_panic_of_the_kernel_ends_its_sandbox_with_a_report() {
    needs_kvm!();
    // A jump to a function that panics.
    let to = symbol("alloc::raw_vec::capacity_overflow").wrapping_sub(symbol(ENTER) + 5) as u32;
    let mut jump = [0xe9, 0, 0, 0, 0];
    jump[1..].copy_from_slice(&to.to_le_bytes());
    let report = broken(
        |pid| damage_entry(pid, jump),
        &["kernel panic", "capacity overflow", "capacity_overflow"],
    );
    has_functions(&report);
}

#[test]
fn an_exit_that_makes_no_sense_ends_its_sandbox_with_a_report() {
    needs_kvm!();
    // mov dx, 0x1234; out dx, al
    let report = broken(
        |pid| damage_entry(pid, [0x66, 0xba, 0x34, 0x12, 0xee]),
        &["virtual machine error", "0x1234"],
    );
    has_functions(&report);
    assert!(report.contains("cr3 0x"), "no registers: {report}");
}

#[test]
fn a_triple_fault_ends_its_sandbox_with_a_report() {
    needs_kvm!();
    let break_it = |pid| {
        // No handler for any exception, and then one.
        damage(pid, symbol("qkernel::arch::kvm::entry::IDT"), &[0; 32 * 16]);
        damage_entry(pid, [0x0f, 0x0b, 0x90, 0x90, 0x90]);
    };
    let text = broken(break_it, &["virtual machine error", "cr3 0x"]);
    report(&format!("of a triple fault:\n{text}"));
}

#[test]
fn killing_the_sandbox_process_leaves_nothing() {
    needs_kvm!();
    let (c, mut connection) = exits();
    connection.ask("pingpong 100");
    let pid = c.pid();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).expect("a pid"),
        rustix::process::Signal::KILL,
    )
    .expect("kill");
    eventually("the sandbox ends", limit(), || !alive(pid));
    assert_eq!(children(pid), [] as [i32; 0]);
    assert_eq!(c.state()["status"], "stopped");
}
