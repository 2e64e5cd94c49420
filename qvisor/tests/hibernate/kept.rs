//! Images of containers that go on: what was in memory at one moment is written while programs
//! change it.

use std::fs::File;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::ready;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::container::{Container, alive};
use crate::support::{eventually, limit, run, test_apps};

/// Starts the program that writes to all of its memory without rest.
fn writer(megabytes: &str) -> Container {
    let c = Container::start("busybox", &["/mnt/apps/writer", megabytes]);
    ready(&c);
    c
}

/// The rounds that it has written.
fn rounds(c: &Container) -> Vec<u64> {
    let output = c.output();
    assert!(!output.contains("BAD"), "{output}");
    assert!(alive(c.pid()), "it has ended: {output}");
    output.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Waits until it has written some more of them.
fn goes_on(c: &Container) {
    let before = rounds(c).len();
    eventually("it goes on", limit(), || rounds(c).len() > before + 3);
}

#[test]
fn an_image_is_of_one_moment() {
    let c = writer("48");
    for name in ["one", "two", "three"] {
        c.must(&["checkpoint", "--name", name, &c.id]);
        goes_on(&c);
    }
    for name in ["one", "three", "two"] {
        c.must(&["rollback", &c.id, name]);
        goes_on(&c);
        // What is kept for an image is kept no longer than it is made.
        c.must(&["checkpoint", "--name", &format!("after-{name}"), &c.id]);
        goes_on(&c);
        c.must(&["rollback", &c.id, &format!("after-{name}")]);
        goes_on(&c);
    }
    let leaps = rounds(&c).windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
    assert_eq!(leaps, 6, "one for each rollback");
    // It sleeps as ever.
    c.must(&["--timeout", "1ms", "hibernate", "--force", &c.id]);
    goes_on(&c);
}

#[test]
fn branches_are_of_one_moment() {
    let c = writer("24");
    let branch = format!("{}-f", c.id);
    for _ in 0..3 {
        c.must(&["fork", "--new-network", &c.id, &branch]);
        goes_on(&c);
        assert_eq!(c.must(&["list"]).matches(&branch).count(), 1);
        c.must(&["delete", "--force", &branch]);
    }
}

/// Whoever writes an image is killed, or has no room: the container goes on as if nothing had been.
#[test]
fn one_that_is_not_written_is_forgotten() {
    let c = writer("32");
    let mut written = 0;
    for round in 0..12u64 {
        let name = format!("n{round}");
        let mut quark = c.quark(&["checkpoint", "--name", &name, &c.id]);
        let mut child = quark.stderr(Stdio::null()).spawn().expect("start quark");
        sleep(Duration::from_millis(4 * round * round));
        child.kill().expect("kill");
        child.wait().expect("wait");
        goes_on(&c);
        if c.command(&["rollback", &c.id, &name]).success() {
            written += 1;
            goes_on(&c);
        }
    }
    assert!(written < 12, "some were killed in time");
    // So much is less than its memory.
    let quark = c.quark(&["checkpoint", "--name", "large", &c.id]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 16384 && exec \"$@\"", "sh"]);
    limited.arg(quark.get_program()).args(quark.get_args());
    let outcome = run(&mut limited, limit());
    assert!(!outcome.success() && outcome.stderr.contains("not saved"), "{}", outcome.describe());
    goes_on(&c);
    c.must(&["checkpoint", "--name", "whole", &c.id]);
    goes_on(&c);
    c.must(&["rollback", &c.id, "whole"]);
    goes_on(&c);
}

/// A command that stands still in the middle keeps the container from nothing: its image comes to
/// nothing where the container has to sleep.
#[test]
fn a_command_that_stands_still_holds_nobody_up() {
    let c = writer("64");
    // For how long the container is held, and how long the rest takes, is the host's affair: the
    // moment between is looked for until it is met.
    let mut let_go = 0;
    for round in 0..96u64 {
        if round >= 16 && let_go > 0 {
            break;
        }
        let name = format!("n{round}");
        let image = c.images().join("snapshots").join(&c.id).join(&name);
        let mut quark = c.quark(&["--timeout", "50ms", "checkpoint", "--name", &name, &c.id]);
        let mut child = quark.stderr(Stdio::null()).spawn().expect("start quark");
        let mut has_ended = || child.try_wait().expect("its state").is_some();
        // The container has been held from then on.
        eventually("the image is begun", limit(), || image.is_dir() || has_ended());
        sleep(Duration::from_millis(5 * (round % 32)));
        let pid = Pid::from_raw(child.id() as i32);
        kill(pid, Signal::SIGSTOP).ok();
        let is_under_way = child.try_wait().expect("its state").is_none();
        let before = rounds(&c).len();
        // A round of copies of all pages takes as long as the machine needs for it. If there is
        // none, it is held yet, as long as the command lives.
        let goes_on_meanwhile = (0..20).any(|_| {
            sleep(Duration::from_millis(50));
            rounds(&c).len() > before
        });
        if is_under_way && goes_on_meanwhile {
            let_go += 1;
            c.must(&["--timeout", "200ms", "hibernate", "--force", &c.id]);
            goes_on(&c);
        }
        kill(pid, Signal::SIGCONT).ok();
        let is_saved = child.wait().expect("its end").success();
        goes_on(&c);
        assert_eq!(c.command(&["rollback", &c.id, &name]).success(), is_saved, "{name}");
        goes_on(&c);
    }
    assert!(let_go > 0, "no command was stopped after it had let the container go on");
}

/// One that cannot be saved for what the host knows of it alone says so each time, and goes on.
#[test]
fn who_waits_for_a_file_of_the_host_is_not_saved() {
    const WAITS: &str = "import fcntl\n\
        file = open('/mnt/apps/writer')\n\
        print('ready', flush=True)\n\
        fcntl.flock(file, fcntl.LOCK_EX)\n\
        print('never')";
    let file = File::open(test_apps("hibernation").join("writer")).expect("a program of the tests");
    let _locked = Flock::lock(file, FlockArg::LockShared).map_err(|(_, e)| e).expect("a lock");
    let c = Container::start("python", &["python3", "-c", WAITS]);
    ready(&c);
    sleep(Duration::from_millis(300));
    for name in ["one", "two"] {
        let outcome = c.command(&["--timeout", "100ms", "checkpoint", "--name", name, &c.id]);
        let why = "a program waits for a file of the host";
        assert!(!outcome.success() && outcome.stderr.contains(why), "{}", outcome.describe());
        assert_eq!(c.must(&["exec", &c.id, "echo", "up"]), "up\n");
    }
}
