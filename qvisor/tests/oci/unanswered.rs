//! Commands to a sandbox that does not answer: one line after a bounded time, and signals end them.
//! And `delete --force` still works.

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use qvisor::oci::state::CONTROL_SOCKET;

use super::support::{Place, finish, place};

/// A running container, and its sandbox process.
fn running() -> Option<(Place, Pid)> {
    let p = place()?;
    p.configure(&["sh", "-c", "while :; do sleep 0.2; done"], |_| {});
    p.create(&[]);
    p.good(&["start", &p.id]);
    let pid = Pid::from_raw(i32::try_from(p.state()["pid"].as_i64().unwrap()).unwrap());
    assert!(pid.as_raw() > 1);
    Some((p, pid))
}

/// The same, the sandbox process stopped by a signal of the host.
fn stopped() -> Option<(Place, Pid)> {
    let (p, pid) = running()?;
    kill(pid, Signal::SIGSTOP).unwrap();
    Some((p, pid))
}

/// Standard output and error go to files: what the streams of an `exec` are stays open in the
/// socket of a sandbox that does not take it.
fn spawn(p: &Place, args: &[&str]) -> Child {
    let file = |name: &str| fs::File::create(p.dir.join(name)).unwrap();
    p.quark(args).stdout(file("out")).stderr(file("err")).spawn().unwrap()
}

/// Waits for the end of a command: its exit code, output and errors.
fn end(p: &Place, child: Child, args: &[&str]) -> (Option<i32>, String, String) {
    let read = |name: &str| fs::read_to_string(p.dir.join(name)).unwrap();
    let status = finish(child, args).status;
    (status.code(), read("out"), read("err"))
}

/// The command fails within about a second with one line that says what to do; what it printed on
/// standard output.
fn gives_up(p: &Place, args: &[&str], code: i32) -> String {
    gives_up_after(p, args, code, 1)
}

fn gives_up_after(p: &Place, args: &[&str], code: i32, seconds: u64) -> String {
    let begin = Instant::now();
    let (status, stdout, stderr) = end(p, spawn(p, args), args);
    let took = begin.elapsed();
    assert_eq!(status, Some(code), "{args:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{args:?}: not one line: {stderr}");
    let says = [
        "does not answer",
        &format!("waited {seconds}s"),
        &format!("quark delete --force {}", p.id),
    ];
    assert!(says.iter().all(|s| stderr.contains(s)), "{args:?}: {stderr}");
    assert!(
        took >= Duration::from_secs(seconds) && took < crate::shared::limit(),
        "{args:?} took {took:?}"
    );
    stdout
}

#[test]
fn commands_give_up_on_a_sandbox_that_does_not_answer() {
    let Some((p, pid)) = stopped() else { return };
    let id = p.id.as_str();
    for args in [
        &["--timeout", "1", "ps", id][..],
        &["kill", "--timeout", "1s", id, "USR1"],
        &["kill", "--timeout", "1", id, "CONT"],
        &["pause", "--timeout", "1", id],
        &["events", "--timeout", "1", "--stats", id],
        &["events", "--timeout", "1", id],
    ] {
        gives_up(&p, args, 1);
    }
    // There the option is about something else.
    gives_up_after(&p, &["kill", "--timeout", "1", id, "STOP"], 1, 10);
    gives_up(&p, &["exec", "--timeout", "1", id, "true"], 255);
    gives_up(&p, &["exec", "--detach", "--timeout", "1", id, "true"], 255);
    let state: serde_json::Value =
        serde_json::from_str(&gives_up(&p, &["state", "--timeout", "1", id], 1))
            .expect("what is known all the same");
    assert_eq!(
        (state["status"].as_str(), state["pid"].as_i64()),
        (Some("running"), Some(pid.as_raw().into()))
    );
    // Nothing of that has spoilt it.
    kill(pid, Signal::SIGCONT).unwrap();
    assert_eq!(p.good(&["exec", id, "echo", "well"]), "well\n");
    kill(pid, Signal::SIGSTOP).unwrap();
    p.good(&["delete", "--force", id]);
    assert_eq!(p.leftovers(id), [""; 0]);
}

#[test]
fn a_full_queue_of_connections_holds_nobody_up() {
    let Some((p, _)) = stopped() else { return };
    let path = p.root.join(&p.id).join(CONTROL_SOCKET);
    let filler = std::thread::spawn(move || {
        let mut all = Vec::new();
        let address = nix::sys::socket::UnixAddr::new(&path).unwrap();
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, connect, socket};
        use std::os::fd::AsRawFd;
        loop {
            let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_NONBLOCK, None)
                .unwrap();
            match connect(fd.as_raw_fd(), &address) {
                Ok(()) => all.push(UnixStream::from(fd)),
                Err(nix::errno::Errno::EAGAIN) => return all,
                Err(e) => panic!("{e}"),
            }
        }
    });
    let all = filler.join().unwrap();
    gives_up(&p, &["ps", "--timeout", "1", &p.id], 1);
    drop(all);
    p.good(&["delete", "--force", &p.id]);
}

#[test]
fn signals_end_a_waiting_exec() {
    let Some((p, _)) = stopped() else { return };
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let args = ["exec", &p.id, "true"];
        let child = spawn(&p, &args);
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        // Until it waits for the sandbox's answer.
        std::thread::sleep(Duration::from_millis(300));
        let begin = Instant::now();
        kill(pid, signal).unwrap();
        let (status, _, stderr) = end(&p, child, &args);
        assert_eq!(status, Some(255), "{stderr}");
        assert!(
            stderr.contains(&format!("interrupted by {signal}")) && stderr.lines().count() == 1,
            "{stderr}"
        );
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }
}

#[test]
fn an_exec_whose_process_cannot_be_told_gives_up() {
    let Some((p, sandbox)) = running() else { return };
    let args = ["exec", "--timeout", "1", &p.id, "sh", "-c", "echo up; sleep 1000"];
    let child = spawn(&p, &args);
    p.wait_for("its first line", || fs::read_to_string(p.dir.join("out")).unwrap() == "up\n");
    kill(sandbox, Signal::SIGSTOP).unwrap();
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGTERM).unwrap();
    let (status, _, stderr) = end(&p, child, &args);
    assert_eq!(status, Some(255), "{stderr}");
    assert!(
        stderr.contains("signal SIGTERM not passed on") && stderr.contains("does not answer"),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn a_second_signal_interrupts_the_first_that_waits_long_only() {
    let Some((p, sandbox)) = running() else { return };
    let args =
        ["exec", &p.id, "sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done"];
    let twice = |stays: bool| {
        let child = spawn(&p, &args);
        p.wait_for("its first line", || fs::read_to_string(p.dir.join("out")).unwrap() == "up\n");
        kill(sandbox, Signal::SIGSTOP).unwrap();
        let exec = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let begin = Instant::now();
        for _ in 0..2 {
            kill(exec, Signal::SIGTERM).unwrap();
            std::thread::sleep(Duration::from_millis(300));
        }
        if !stays {
            kill(sandbox, Signal::SIGCONT).unwrap();
        }
        let (status, _, stderr) = end(&p, child, &args);
        kill(sandbox, Signal::SIGCONT).unwrap();
        (status, stderr, begin.elapsed())
    };
    let (status, stderr, _) = twice(false);
    assert_eq!((status, stderr.as_str()), (Some(7), ""));
    let (status, stderr, took) = twice(true);
    assert_eq!(status, Some(255), "{stderr}");
    assert!(stderr.contains("interrupted by SIGTERM") && stderr.lines().count() == 1, "{stderr}");
    assert!(took > Duration::from_millis(800) && took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_do_whose_sandbox_does_not_answer_ends_with_it() {
    let Some(p) = place() else { return };
    let args = ["--timeout", "1", "do", "--", "/bin/sh", "-c", "echo up; sleep 1000"];
    let child = spawn(&p, &args);
    p.wait_for("its first line", || fs::read_to_string(p.dir.join("out")).unwrap() == "up\n");
    let ids = p.good(&["list", "-q"]);
    let state: serde_json::Value = serde_json::from_str(&p.good(&["state", ids.trim()])).unwrap();
    let sandbox = Pid::from_raw(i32::try_from(state["pid"].as_i64().unwrap()).unwrap());
    kill(sandbox, Signal::SIGSTOP).unwrap();
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
    let (status, _, stderr) = end(&p, child, &args);
    assert_eq!(status, Some(137), "{stderr}");
    assert!(stderr.contains("does not answer") && stderr.lines().count() == 1, "{stderr}");
    assert_eq!(std::fs::read_dir(&p.root).unwrap().count(), 0);
}

#[test]
fn what_an_exec_gave_up_on_does_not_run_later() {
    let Some((p, sandbox)) = stopped() else { return };
    let ran = p.rootfs().join("data/ran");
    gives_up(&p, &["exec", "--timeout", "1", &p.id, "sh", "-c", "sleep 2; echo > /data/ran"], 255);
    kill(sandbox, Signal::SIGCONT).unwrap();
    // It is there for a moment at most.
    p.wait_for("its end", || !p.good(&["ps", &p.id]).contains("data/ran"));
    std::thread::sleep(Duration::from_secs(3));
    assert!(!p.good(&["ps", &p.id]).contains("data/ran"));
    assert!(!ran.exists());
}
