//! Containers that go to sleep when the host is short of memory.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::support::container::Container;
use super::support::{eventually, limit, skip, slowed};
use super::{count, ready, verified};

/// Who was used within this time does not sleep for it.
const UNUSED: Duration = Duration::from_secs(10);

/// A FIFO that stands for the host's trigger.
struct Trigger {
    path: PathBuf,
    file: File,
}

impl Trigger {
    fn new(name: &str) -> Trigger {
        let name = format!("quark-trigger-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open(&path).expect("the FIFO");
        Trigger { path, file }
    }

    /// The host is short of memory at this moment.
    fn pull(&mut self) {
        self.file.write_all(b"!").expect("write");
        thread::sleep(Duration::from_millis(20));
        self.file.read_exact(&mut [0]).expect("read");
    }

    /// The same every two seconds, as the kernel does it, until `done`.
    fn pull_until(&mut self, what: &str, mut done: impl FnMut() -> bool) {
        let mut last = None::<Instant>;
        eventually(what, limit(), || {
            if last.is_none_or(|last| last.elapsed() >= Duration::from_secs(2)) {
                self.pull();
                last = Some(Instant::now());
            }
            done()
        });
    }

    /// A container that listens to it, in the state directory of another if there is one.
    fn container(&self, other: Option<&Container>, options: &[&str]) -> Container {
        let environment = format!("QUARK_TEST_PRESSURE={}", self.path.display());
        let program = ["/mnt/apps/memory", "--tcp", "{port}", "--mb", "4"];
        let options = [&["--hibernate-on-pressure"], options].concat();
        let c =
            Container::start_beside(other, &["env", &environment], &options, "busybox", &program);
        ready(&c);
        c
    }
}

impl Drop for Trigger {
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok();
    }
}

fn is_asleep(c: &Container) -> bool {
    c.hibernation() == "Hibernated"
}

#[test]
fn pressure_puts_what_is_idle_to_sleep_and_not_what_is_used() {
    let mut trigger = Trigger::new("idle");
    let c = trigger.container(None, &[]);
    assert_eq!(c.ask("peek").get(..3), Some("ok "));
    let why = c.must(&["why", &c.id]);
    assert!(why.contains("or when the host is short of memory"), "{why}");
    for round in 1..=2 {
        // What was just used stays awake, and what nobody wants memory of does, too.
        let begin = Instant::now();
        while begin.elapsed() < UNUSED / 2 {
            trigger.pull();
            thread::sleep(Duration::from_secs(2));
        }
        assert_eq!((count(&c, "deflates"), is_asleep(&c)), (round - 1, false));
        thread::sleep(UNUSED.saturating_sub(begin.elapsed()) + Duration::from_secs(1));
        assert_eq!(count(&c, "deflates"), round - 1);
        trigger.pull_until("it sleeps", || is_asleep(&c));
        assert_eq!(count(&c, "deflates_pressure"), round);
        let sleeps = c.stats()["sleeps"].clone();
        assert_eq!(sleeps["last_sleep_cause"], "pressure", "{sleeps}");
        let why = c.must(&["why", &c.id]);
        assert!(why.starts_with("asleep, as the host was short of memory"), "{why}");
        // Asleep it hears nothing of it.
        trigger.pull();
        assert!(is_asleep(&c));
        verified(&c.ask("verify"));
        assert_eq!(count(&c, "wakes_by_socket"), round);
    }
    let metrics = c.must(&["metrics"]);
    let of_pressure = |line: &&str| {
        line.starts_with("quark_container_sleeps_total{") && line.contains("cause=\"pressure\"")
    };
    let line = metrics.lines().find(of_pressure).unwrap_or_else(|| panic!("{metrics}"));
    assert!(line.ends_with(" 2"), "{line}");
    assert_eq!(count(&c, "deflates"), 2);
}

#[test]
fn those_used_longest_ago_sleep_first() {
    let mut trigger = Trigger::new("order");
    let mut all: Vec<Container> = Vec::new();
    for _ in 0..5 {
        let next = trigger.container(all.first(), &[]);
        all.push(next);
    }
    // Used in another order than they were made in.
    let order = [3, 0, 4, 1, 2];
    for at in order {
        assert_eq!(all[at].ask("peek").get(..3), Some("ok "));
        thread::sleep(Duration::from_millis(20));
    }
    thread::sleep(UNUSED + Duration::from_secs(1));
    trigger.pull_until("all sleep", || all.iter().all(is_asleep));
    let slept = |c: &Container| {
        let stats = c.stats();
        let end = stats["sleeps"]["last_sleep_at_ns"].as_u64().expect("it has slept");
        end - stats["counts"]["last_deflate_ns"].as_u64().expect("it took some time")
    };
    let began: Vec<u64> = order.iter().map(|at| slept(&all[*at])).collect();
    // The first two do so at once, and so do two at any time.
    for (at, began_ns) in began.iter().enumerate().skip(2) {
        assert!(began[..at - 1].iter().all(|before| before < began_ns), "{began:?}");
    }
    for c in &all {
        assert_eq!((count(c, "deflates_pressure"), count(c, "deflates_failed")), (1, 0));
    }
    // The first has the state of all in its directory, and goes last.
    while all.pop().is_some() {}
}

#[test]
fn what_is_under_way_keeps_it_awake_under_pressure() {
    let mut trigger = Trigger::new("busy");
    let environment = format!("QUARK_TEST_PRESSURE={}", trigger.path.display());
    let of = |program: &str| {
        let args = ["sh", "-c", program];
        let wrapper = ["env", &environment];
        let options = ["--hibernate-on-pressure=some 100000 2000000"];
        Container::start_beside(None, &wrapper, &options, "busybox", &args)
    };
    // Computes; is about to; and has nothing to do for an hour.
    let busy = [of("while :; do :; done"), of("while :; do sleep 2; done")];
    let idle = of("sleep 3600");
    thread::sleep(UNUSED + Duration::from_secs(1));
    trigger.pull_until("the idle one sleeps", || is_asleep(&idle));
    trigger.pull();
    thread::sleep(slowed(Duration::from_secs(1)));
    for c in &busy {
        assert_eq!((count(c, "deflates"), count(c, "deflates_failed")), (0, 0));
    }
}

#[test]
fn a_dry_run_tells_of_sleeps_for_the_hosts_memory() {
    let mut trigger = Trigger::new("dry");
    let c = trigger.container(None, &["--hibernate-dry-run"]);
    thread::sleep(UNUSED + Duration::from_secs(1));
    let dry_asleep = || c.stats()["dry_run"]["is_asleep"] == true;
    trigger.pull_until("it would sleep", dry_asleep);
    verified(&c.ask("verify"));
    eventually("it would be woken", limit(), || {
        c.stats()["dry_run"]["wakes"]["socket"].as_u64() == Some(1)
    });
    assert_eq!(count(&c, "deflates"), 0, "it has not slept");
}

#[test]
fn a_host_that_does_not_tell_is_warned_of_and_it_runs() {
    let nowhere = ["env", "QUARK_TEST_PRESSURE=/nowhere/memory"];
    let options = ["--hibernate-on-pressure", "--log", "/dev/stderr"];
    let args = ["sleep", "3600"];
    let c = Container::start_beside(None, &nowhere, &options, "busybox", &args);
    let output = c.output();
    let warnings =
        output.lines().filter(|line| line.contains("of which it cannot be told")).count();
    assert_eq!(warnings, 1, "{output}");
    assert!(output.contains("/nowhere/memory: "), "{output}");
    let why = c.must(&["why", &c.id]);
    assert!(!why.contains("short of memory"), "{why}");
}

/// A memory cgroup of its own, too small for what its processes read.
struct Small(PathBuf);

impl Small {
    /// `None` where this host does not let one be made.
    fn new() -> Option<Small> {
        let name = format!("quark-pressure-{}", std::process::id());
        let (v1, v2) = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup");
        for (root, limit) in [(v1, "memory.limit_in_bytes"), (v2, "memory.max")] {
            let small = Small(Path::new(root).join(&name));
            if fs::create_dir(&small.0).is_ok() && fs::write(small.0.join(limit), "8M").is_ok() {
                return Some(small);
            }
        }
        None
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Its last process may still be on its way out.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn the_hosts_kernel_tells_of_real_pressure() {
    let trigger = ["--hibernate-on-pressure=some 500 2000000", "--log", "/dev/stderr"];
    let c = Container::start_beside(None, &[], &trigger, "busybox", &["sleep", "3600"]);
    let small = Small::new();
    let (Some(small), false) = (small, c.output().contains("of which it cannot be told")) else {
        return skip("this host tells of no pressure, or has no memory cgroups to make some in");
    };
    thread::sleep(UNUSED + Duration::from_secs(1));
    let file = c.directory.join("data");
    let script = "echo $$ > \"$0/cgroup.procs\"; dd if=/dev/zero of=\"$1\" bs=1M count=64; \
                  while :; do dd if=\"$1\" of=/dev/null bs=1M; done";
    let mut reader = Command::new("sh");
    reader.args(["-c", script]).arg(&small.0).arg(&file).stderr(Stdio::null());
    let mut reader = reader.spawn().expect("sh");
    let end = Instant::now() + slowed(Duration::from_secs(30));
    while !is_asleep(&c) && Instant::now() < end {
        thread::sleep(Duration::from_millis(100));
    }
    // Its dd ends by itself.
    reader.kill().and_then(|()| reader.wait()).expect("the end of sh");
    assert!(is_asleep(&c));
    assert_eq!(c.stats()["sleeps"]["last_sleep_cause"], "pressure");
}
