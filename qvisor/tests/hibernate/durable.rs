//! Sleeps that outlast a boot of the host. To a command a host has been booted that has another
//! boot ID, clocks that begin anew, and nothing in its state directory.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::container::{Connection, Container, alive};
use crate::support::{Outcome, eventually, limit, run, wait};
use crate::{memory, ready, verified};

/// How long ago the host was booted that [`Booted`] shows, in seconds.
const UPTIME: u64 = 20;

/// The host as it is after a boot.
struct Booted {
    boot_id: PathBuf,
    /// By how much its clocks are behind, in seconds.
    behind: u64,
}

impl Booted {
    /// Ends the container as the end of the host would, and what lies in memory.
    fn without(c: &Container) -> Booted {
        let booted = Booted::keeping(c);
        fs::remove_dir_all(c.root()).expect("the state directory");
        booted
    }

    /// The same where the state directory is on the disk.
    fn keeping(c: &Container) -> Booted {
        end(c);
        let boot_id = c.directory.join("boot_id");
        fs::write(&boot_id, "3d5c5a0e-0000-4000-8000-000000000000\n").expect("a boot ID");
        let uptime = fs::read_to_string("/proc/uptime").expect("uptime");
        let (seconds, _) = uptime.split_once('.').expect("seconds");
        let behind = seconds.parse::<u64>().expect("a number").saturating_sub(UPTIME);
        Booted { boot_id, behind }
    }

    /// A quark command there.
    fn quark(&self, c: &Container, args: &[&str]) -> Command {
        let quark = c.quark(args);
        let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--time", "--fork"]);
        for clock in ["--monotonic", "--boottime"] {
            command.arg(format!("{clock}=-{}", self.behind));
        }
        command.args(["sh", "-c", script]).arg(&self.boot_id);
        command.arg(quark.get_program()).args(quark.get_args());
        command
    }

    fn must(&self, c: &Container, args: &[&str]) -> String {
        let outcome = run(&mut self.quark(c, args), limit());
        assert!(outcome.success(), "{args:?}: {}\n{}", outcome.describe(), c.output());
        outcome.stdout
    }

    /// `quark restore --durable`.
    fn restore(&self, c: &Container, options: &[&str]) -> Outcome {
        let log = c.directory.join("restore");
        let log_path = log.to_str().expect("text");
        let args = [&["--log", log_path, "restore", "--durable", "--detach"], options, &[&c.id]];
        let mut command = self.quark(c, &args.concat());
        c.on_its_streams(&mut command);
        let status = wait(&mut command.spawn().expect("unshare"), limit());
        let stderr = fs::read_to_string(&log).unwrap_or_default();
        fs::remove_file(&log).ok();
        Outcome { status, stdout: String::new(), stderr }
    }

    fn restored(&self, c: &Container) {
        let outcome = self.restore(c, &[]);
        assert!(outcome.success(), "{}\n{}", outcome.describe(), c.output());
    }

    fn uptime(&self, c: &Container) -> f64 {
        seconds(&self.must(c, &["exec", &c.id, "cat", "/proc/uptime"]))
    }
}

fn seconds(uptime: &str) -> f64 {
    uptime.split(' ').next().and_then(|word| word.parse().ok()).expect("seconds")
}

fn end(c: &Container) {
    let pid = nix::unistd::Pid::from_raw(c.pid());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("kill");
    eventually("its end", limit(), || !alive(c.pid()));
}

fn durable(c: &Container) {
    c.must(&["hibernate", "--durable", &c.id]);
    assert_eq!(c.hibernation(), "Hibernated");
}

fn kept_in(c: &Container) -> PathBuf {
    c.images().join("durable").join(&c.id)
}

fn refused(outcome: &Outcome, why: &str) {
    assert!(!outcome.success() && outcome.stderr.contains(why), "{why}: {}", outcome.describe());
}

#[test]
fn every_byte_and_the_time_go_on_after_a_boot() {
    let c = memory("24");
    assert!(c.ask("change").starts_with("ok"));
    durable(&c);
    // Once more is no more.
    durable(&c);
    let before = seconds(&fs::read_to_string("/proc/uptime").unwrap());
    let booted = Booted::without(&c);
    let list = booted.must(&c, &["list", "--format", "json"]);
    let list: Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!((&list[0]["id"], &list[0]["status"]), (&c.id.clone().into(), &"kept".into()));
    let fresh = ["run", "--detach", "--bundle", c.directory.to_str().unwrap(), &c.id];
    refused(&run(&mut booted.quark(&c, &fresh), limit()), "restore --durable");
    booted.restored(&c);
    verified(&c.ask("verify"));
    let uptime = booted.uptime(&c);
    assert!((before..before + 60.0).contains(&uptime), "{before}, and then {uptime}");
    assert!(booted.must(&c, &["ps", &c.id]).contains("00:00:"), "not for hours");
    assert!(!kept_in(&c).exists(), "it goes on once");
    // It sleeps and is kept as any other, and its clocks go on again: nothing has been booted.
    for _ in 0..2 {
        booted.must(&c, &["hibernate", "--durable", &c.id]);
        let pid = booted.must(&c, &["ps", "--format", "json", &c.id]);
        let pid: Vec<i32> = serde_json::from_str(&pid).expect("JSON");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid[0]), nix::sys::signal::SIGKILL)
            .expect("kill");
        eventually("its end", limit(), || !alive(pid[0]));
        booted.restored(&c);
        verified(&c.ask("verify"));
        let again = booted.uptime(&c);
        assert!((uptime..uptime + 60.0).contains(&again), "{uptime}, and then {again}");
    }
    booted.must(&c, &["delete", "--force", &c.id]);
}

#[test]
fn what_was_due_comes_after_a_boot() {
    let script = "echo ready; sleep 8; echo due; sleep 1000";
    let c = Container::start("busybox", &["sh", "-c", script]);
    ready(&c);
    durable(&c);
    assert!(!c.output().contains("due"), "the machine is too slow for this test");
    let booted = Booted::without(&c);
    booted.restored(&c);
    eventually("what was due", limit(), || c.output().contains("due"));
    booted.must(&c, &["delete", "--force", &c.id]);
    assert!(!kept_in(&c).exists());
}

/// The clock that a program reads itself does not go back, and the program did not notice.
#[test]
fn clocks_that_programs_read_go_on() {
    let script = "import time\nwhile True: print(time.monotonic(), flush=True); time.sleep(.3)";
    let c = Container::start("python", &["python3", "-c", script]);
    let shown = || -> Vec<f64> { c.output().lines().filter_map(|t| t.parse().ok()).collect() };
    eventually("it shows the time", limit(), || shown().len() > 2);
    // It is never idle for long: a moment between two of its looks has to do.
    eventually("it sleeps", limit(), || {
        c.command(&["hibernate", "--durable", &c.id]).success() && c.hibernation() == "Hibernated"
    });
    let count = shown().len();
    let booted = Booted::without(&c);
    booted.restored(&c);
    eventually("it goes on", limit(), || shown().len() > count + 3);
    assert!(shown().is_sorted(), "{:?}", shown());
    let (last, next) = (shown()[count - 1], shown()[count]);
    assert!(next < last + 60.0, "{last}, and then {next}");
    booted.must(&c, &["delete", "--force", &c.id]);
}

/// An image that ends it, and a restore that comes to nothing late, leave nothing to go on from.
#[test]
fn nobody_goes_on_twice() {
    let c = memory("4");
    durable(&c);
    let image = c.directory.join("image");
    c.must(&["checkpoint", "--image-path", image.to_str().unwrap(), &c.id]);
    assert!(!kept_in(&c).exists(), "it goes on from that image");

    let c = memory("4");
    durable(&c);
    let config = c.directory.join("config.json");
    let text = fs::read_to_string(&config).expect("a configuration");
    let mut hooked: Value = serde_json::from_str(&text).expect("JSON");
    let fails = c.directory.join("fails");
    fs::write(&fails, "#!/bin/sh\nexit 1\n").expect("a hook");
    fs::set_permissions(&fails, fs::Permissions::from_mode(0o755)).expect("chmod");
    let booted = Booted::without(&c);
    // Before it goes on that is no matter.
    for (hook, goes_on) in [("createRuntime", false), ("poststart", true)] {
        hooked["hooks"] = serde_json::json!({hook: [{"path": fails}]});
        fs::write(&config, hooked.to_string()).expect("write");
        refused(&booted.restore(&c, &[]), hook);
        assert_eq!(kept_in(&c).exists(), !goes_on, "{hook}");
    }
}

/// The command is killed at any moment: it has gone on then, or can.
#[test]
fn a_restore_that_is_killed_can_be_done_again() {
    let c = memory("4");
    durable(&c);
    let mut booted = Booted::without(&c);
    for round in 0..24 {
        let args = ["restore", "--durable", "--detach", &c.id];
        let mut command = booted.quark(&c, &args);
        c.on_its_streams(&mut command);
        // Killed with its whole group, for unshare(1) stands between.
        let mut child = command.process_group(0).spawn().expect("unshare");
        std::thread::sleep(Duration::from_millis(4 + round * 2));
        let group = nix::unistd::Pid::from_raw(child.id().cast_signed());
        nix::sys::signal::killpg(group, nix::sys::signal::SIGKILL).ok();
        child.wait().expect("wait");
        // It may have gone on; what it made else ends a moment after it.
        let answers = |mut open: Connection| {
            open.try_send("ping");
            open.try_answer().is_some_and(|answer| answer == "pong")
        };
        let end = Instant::now() + limit();
        loop {
            let outcome = booted.restore(&c, &[]);
            if outcome.success() {
                break;
            }
            let connection = c.connect();
            let is_reached = connection.is_some();
            if connection.is_some_and(answers) {
                break;
            }
            assert!(
                Instant::now() < end,
                "round {round}, reached: {is_reached}, {}\n{}",
                outcome.describe(),
                booted.must(&c, &["list"])
            );
        }
        verified(&c.ask("verify"));
        let pid = booted.must(&c, &["ps", "--format", "json", &c.id]);
        let pid: Vec<i32> = serde_json::from_str(&pid).expect("JSON");
        booted.must(&c, &["hibernate", "--durable", &c.id]);
        fs::write(c.directory.join("pid"), pid[0].to_string()).expect("write");
        booted = Booted::without(&c);
    }
    booted.must(&c, &["delete", &c.id]);
}

#[test]
fn who_has_been_awake_does_not_go_on_from_before() {
    let c = memory("8");
    durable(&c);
    verified(&c.ask("verify"));
    let booted = Booted::without(&c);
    let outcome = booted.restore(&c, &[]);
    refused(&outcome, "has been awake since");
    let list = booted.must(&c, &["list", "--quiet"]);
    assert_eq!(list, "");
    // Its ID is free.
    let mut fresh = booted.quark(&c, &["run", "--detach", "--bundle"]);
    fresh.arg(&c.directory).arg(&c.id);
    c.on_its_streams(&mut fresh);
    assert!(wait(&mut fresh.spawn().unwrap(), limit()).is_some_and(|s| s.success()));
    assert!(!kept_in(&c).exists());
    booted.must(&c, &["delete", "--force", &c.id]);
    refused(&booted.restore(&c, &[]), "was not kept");
}

#[test]
fn who_is_ended_does_not_go_on() {
    for ending in [&["kill", "KILL"][..], &["delete", "--force"]] {
        let c = memory("4");
        durable(&c);
        let args = match ending {
            [kill, signal] if *kill == "kill" => vec![*kill, &c.id, signal],
            _ => [ending, &[&*c.id]].concat(),
        };
        c.must(&args);
        assert!(!kept_in(&c).exists(), "{ending:?}");
    }
    let c = memory("4");
    durable(&c);
    let booted = Booted::without(&c);
    assert!(kept_in(&c).exists());
    booted.must(&c, &["delete", &c.id]);
    assert!(!kept_in(&c).exists());
}

#[test]
fn what_cannot_be_restored_is_kept() {
    let c = memory("8");
    durable(&c);
    let kept = kept_in(&c);
    // The state directory has outlived the boot.
    let booted = Booted::keeping(&c);
    let mut listener = None;
    eventually("its port is free", limit(), || {
        listener = std::net::TcpListener::bind(("127.0.0.1", c.port)).ok();
        listener.is_some()
    });
    refused(&booted.restore(&c, &[]), "in use");
    drop(listener);
    refused(&booted.restore(&c, &["--bundle", "/nowhere"]), "/nowhere");
    let manifest = kept.join("manifest.json");
    let text = fs::read_to_string(&manifest).expect("a manifest");
    // A number of 64 bits has no room for one more digit.
    let vdso = &text[text.find("\"vdso\": ").expect("the vDSO's sum")..];
    let vdso = &vdso[..vdso.find(',').expect("more")];
    for (from, to, why) in [
        ("\"processor\": [", "\"processor\": [1,", "on a processor that can do"),
        ("\"kernel\": \"", "\"kernel\": \"0", "made by another build"),
        (vdso, "\"vdso\": 1", "vDSO"),
    ] {
        assert!(text.contains(from), "{from}: {text}");
        fs::write(&manifest, text.replacen(from, to, 1)).expect("write");
        refused(&booted.restore(&c, &[]), why);
    }
    fs::write(&manifest, &text).expect("write");
    let nowhere = kept.join("bundle");
    let bundle = fs::read(&nowhere).expect("the bundle's path");
    assert_eq!(bundle, c.directory.as_os_str().as_bytes());
    booted.restored(&c);
    verified(&c.ask("verify"));
    booted.must(&c, &["delete", "--force", &c.id]);
}

/// Somebody asks it something while its image is written.
#[test]
fn who_is_woken_meanwhile_is_not_kept() {
    let c = memory("32");
    for _ in 0..12 {
        let mut child = c
            .quark(&["hibernate", "--durable", &c.id])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("quark");
        eventually("its sleep", limit(), || {
            c.hibernation() == "Hibernated" || child.try_wait().expect("wait").is_some()
        });
        verified(&c.ask("verify"));
        let status = wait(&mut child, limit()).expect("an end");
        // It may have been done before it was asked; then it knows that it was woken.
        let asleep = fs::read(kept_in(&c).join("asleep"));
        match status.success() {
            true => assert_eq!(asleep.expect("kept"), b"0"),
            false => assert!(asleep.is_err(), "nothing is left"),
        }
    }
    verified(&c.ask("verify"));
    durable(&c);
    let booted = Booted::without(&c);
    booted.restored(&c);
    verified(&c.ask("verify"));
    booted.must(&c, &["delete", "--force", &c.id]);
}
