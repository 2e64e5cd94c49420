//! What somebody who comes from runc and Docker tries first, and what they are told where a guest
//! is different.

use std::fs;
use std::io::{BufRead, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::json;

use super::support::{Place, finish, master_of, place};
use crate::shared::slowness;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn sh(p: &Place, script: &str) {
    p.configure(&["sh", "-c", script], |_| {});
}

/// Runs the container and gives what it printed; its exit code must be 0.
fn run(p: &Place) -> String {
    p.good(&["run", &p.id])
}

#[test]
fn ambient_capabilities_need_permitted_and_inheritable_ones() {
    let Some(p) = place() else { return };
    std::os::unix::fs::symlink("busybox", p.rootfs().join("bin/grep")).unwrap();
    // What `runc spec` writes, and KILL (5) where inheritable.
    let all = ["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"];
    let sets = |inheritable: &[&str], permitted: &[&str]| {
        p.configure(&["sh", "-c", "grep -E 'Cap(Prm|Eff|Amb)' /proc/self/status"], |c| {
            c["process"]["user"] = json!({"uid": 1000, "gid": 1000});
            c["process"]["capabilities"] = json!({
                "bounding": all, "effective": all, "permitted": permitted, "ambient": all, "inheritable": inheritable});
        });
        let output = run(&p);
        output
            .lines()
            .map(|l| u64::from_str_radix(l.rsplit('\t').next().unwrap(), 16).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(sets(&[], &all), [0, 0, 0]);
    assert_eq!(sets(&["CAP_KILL"], &all), [1 << 5; 3]);
    assert_eq!(sets(&["CAP_KILL"], &["CAP_AUDIT_WRITE"]), [0, 0, 0]);
    // Beyond the bounding set nothing is inherited.
    assert_eq!(sets(&["CAP_KILL", "CAP_SYS_ADMIN"], &["CAP_KILL", "CAP_SYS_ADMIN"]), [1 << 5; 3]);

    p.configure(&["sleep", "1000"], |c| {
        c["process"]["capabilities"] =
            json!({"bounding": all, "effective": all, "permitted": all, "ambient": all});
    });
    p.create(&[]);
    p.good(&["start", &p.id]);
    let status = ["grep", "CapEff", "/proc/self/status"];
    let exec =
        |options: &[&str]| p.good(&[&["exec"][..], options, &[p.id.as_str()], &status].concat());
    assert_eq!(
        exec(&["--user", "1000:1000", "--cap", "CAP_NET_RAW"]),
        "CapEff:\t0000000000000000\n"
    );
    assert_eq!(exec(&["--cap", "CAP_NET_RAW"]), "CapEff:\t0000000020002420\n");
}

/// One that comes before the program has installed its handler waits for that, for a while.
#[test]
fn a_signal_right_after_the_start_is_not_lost() {
    let Some(p) = place() else { return };
    let handles = format!(
        "i=0; while [ $i -lt {} ]; do i=$((i+1)); done; trap 'echo told; exit 3' TERM; \
         while :; do sleep 0.05; done",
        3000 / slowness()
    );
    sh(&p, &handles);
    for _ in 0..5 {
        p.create(&[]);
        p.good(&["start", &p.id]);
        p.good(&["kill", &p.id, "TERM"]);
        p.wait_for("the end", || p.status() == "stopped");
        assert!(p.log().ends_with("told\n"), "{}", p.log());
        p.good(&["delete", &p.id]);
    }
    // A process without a handler never gets it, as it is the first of its container.
    sh(&p, "sleep 1000");
    p.create(&[]);
    p.good(&["start", &p.id]);
    // More than the sandbox takes connections: none of them is held for it.
    let count = if slowness() == 1 { 100 } else { 5 };
    let kill = |_| p.quark(&["kill", &p.id, "TERM"]).spawn().unwrap();
    let kills: Vec<_> = (0..count).map(kill).collect();
    for mut kill in kills {
        assert!(kill.wait().unwrap().success());
    }
    p.good(&["exec", &p.id, "true"]);
    // It sleeps when the signal need not wait any more.
    p.good(&["kill", &p.id, "STOP"]);
    assert_eq!(p.status(), "running");
    p.good(&["delete", "--force", &p.id]);
}

#[test]
fn signals_to_a_created_container_are_runcs() {
    let Some(p) = place() else { return };
    p.configure(&["echo", "ran"], |_| {});
    for signal in ["0", "CONT", "USR1", "USR2", "WINCH", "CHLD", "PIPE", "ALRM", "RTMIN+3"] {
        p.create(&[]);
        p.good(&["kill", &p.id, signal]);
        assert_eq!(p.status(), "created", "{signal}");
        p.good(&["start", &p.id]);
        p.wait_for("the end", || p.status() == "stopped");
        assert_eq!(p.log(), "ran\n", "{signal}");
        p.good(&["delete", &p.id]);
    }
    p.create(&[]);
    let refused = p.output(&["kill", &p.id, "STOP"]);
    assert!(
        !refused.status.success() && text(&refused.stderr).contains("quark start"),
        "{refused:?}"
    );
    p.good(&["start", &p.id]);
    p.wait_for("the end", || p.status() == "stopped");
    p.good(&["delete", &p.id]);
    for signal in ["TERM", "INT", "HUP", "QUIT", "SEGV", "KILL"] {
        p.create(&[]);
        p.good(&["kill", &p.id, signal]);
        assert_eq!(p.status(), "stopped", "{signal}");
        assert_eq!(p.output(&["start", &p.id]).status.code(), Some(1));
        let probe = p.output(&["kill", &p.id, "0"]);
        assert!(text(&probe.stderr).contains("container not running"), "{signal}: {probe:?}");
        p.good(&["delete", &p.id]);
    }
    assert_eq!(p.leftovers(&p.id), [""; 0]);
    p.configure(&["sleep", "1000"], |_| {});
    p.create(&[]);
    p.good(&["start", &p.id]);
    p.good(&["kill", &p.id, "0"]);
    assert_eq!(p.status(), "running");
}

#[test]
fn what_runc_makes_up_for_is_made_up_for() {
    let Some(p) = place() else { return };
    // A directory that is not there.
    p.configure(&["sh", "-c", "pwd; stat -c '%a %u' . .."], |c| {
        c["process"]["cwd"] = json!("/srv/not/there");
        c["process"]["user"] = json!({"uid": 1000, "gid": 1000});
    });
    assert_eq!(run(&p), "/srv/not/there\n755 0\n755 0\n");
    p.configure(&["true"], |c| c["process"]["cwd"] = json!("/etc/passwd"));
    let refused = p.output(&["run", &p.id]);
    assert!(text(&refused.stderr).contains("chdir to cwd (\"/etc/passwd\") failed"), "{refused:?}");

    // A process without a user, and a capability from the future.
    let output = p.dir.join("log");
    p.configure(&["id", "-u"], |c| {
        c["process"].as_object_mut().unwrap().remove("user");
        c["process"]["capabilities"] = json!({"bounding": ["CAP_KILL", "CAP_TELEPORT"]});
    });
    assert_eq!(p.good(&["--log", output.to_str().unwrap(), "run", &p.id]), "0\n");
    let log = fs::read_to_string(&output).unwrap();
    assert!(log.contains("CAP_TELEPORT") && log.contains("not known"), "{log}");

    p.configure(&["sleep", "1000"], |_| {});
    p.create(&[]);
    p.good(&["start", &p.id]);
    let process = p.dir.join("process.json");
    fs::write(&process, r#"{"cwd":"/","args":["id","-u"],"env":["PATH=/bin"]}"#).unwrap();
    assert_eq!(p.good(&["exec", "--process", process.to_str().unwrap(), &p.id]), "0\n");
    // But for a further process no directory is made.
    let refused = p.output(&["exec", "--cwd", "/not/there", &p.id, "true"]);
    assert!(text(&refused.stderr).contains("chdir to cwd"), "{refused:?}");
    p.good(&["update", "--memory", "64M", &p.id]);
    let event: serde_json::Value =
        serde_json::from_str(&p.good(&["events", "--stats", &p.id])).unwrap();
    assert_eq!(event["data"]["memory"]["usage"]["limit"], 64 << 20);
    let ps = p.good(&["ps", &p.id]);
    assert!(ps.contains("ELAPSED") && ps.contains("00:00:") && !ps.contains("-00:"), "{ps}");
}

#[test]
fn what_a_guest_has_no_use_for_is_told() {
    let Some(p) = place() else { return };
    let log = p.dir.join("log");
    p.configure(&["true"], |c| {
        c["linux"]["devices"] = json!([
            {"path": "/dev/null", "type": "c", "major": 1, "minor": 3}, {"path": "/dev/kvm", "type": "c", "major": 10, "minor": 232}]);
        // As `docker run --privileged` has it.
        c["linux"]["resources"] = json!({"devices": [{"allow": true, "access": "rwm"}]});
        c["process"]["apparmorProfile"] = json!("docker-default");
    });
    p.good(&["--log", log.to_str().unwrap(), "run", &p.id]);
    let log = fs::read_to_string(&log).unwrap();
    for says in ["no device of the host, and 1 are left out", "docker-default"] {
        assert!(log.contains(says), "{says}: {log}");
    }
    assert!(log.lines().all(|l| l.contains("level=warning")), "{log}");
}

#[test]
fn debugging_without_a_log_ends_with_the_command() {
    let Some(p) = place() else { return };
    let output = p.output(&["do", "true"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    let output = p.output(&["--debug", "do", "true"]);
    assert!(text(&output.stderr).contains("debug: request"), "{}", text(&output.stderr));
    // Standard error of a detached container is its program's.
    sh(&p, "echo mine >&2; sleep 1000");
    let file = fs::File::create(p.dir.join("output")).unwrap();
    let mut run = p.quark(&["--debug", "run", "--detach", &p.id]);
    run.stdout(file.try_clone().unwrap()).stderr(file);
    assert!(run.status().unwrap().success());
    p.wait_for("its line", || p.log().contains("mine\n"));
    let before = p.log();
    p.good(&["exec", &p.id, "true"]);
    p.good(&["kill", &p.id, "STOP"]);
    assert_eq!(p.log(), before);
}

#[test]
fn hooks_run_in_the_bundle_with_the_callers_environment() {
    let Some(p) = place() else { return };
    let record = p.dir.join("record");
    let hook = |env: Option<&str>| {
        let script = format!("echo $PWD $MARK >> {}", record.display());
        let mut hook = json!({"path": "/bin/sh", "args": ["sh", "-c", script]});
        if let Some(env) = env {
            hook["env"] = json!([env]);
        }
        json!([hook])
    };
    p.configure(&["true"], |c| {
        c["hooks"] =
            json!({"createRuntime": hook(None), "createContainer": hook(None), "poststop": hook(Some("MARK=own"))});
    });
    let mut command = p.quark(&["run", "--bundle", p.bundle.to_str().unwrap(), &p.id]);
    assert!(command.current_dir("/").env("MARK", "callers").status().unwrap().success());
    let text = fs::read_to_string(&record).unwrap();
    let (bundle, rootfs) = (p.bundle.display(), p.rootfs());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], format!("{bundle} callers"));
    // The sandbox process has no environment of its own.
    assert_eq!(lines[1], rootfs.display().to_string());
    assert_eq!(lines[2], format!("{bundle} own"));
}

/// Reads what is shown on a terminal until it contains `what`, or for a bounded time.
fn shows(master: &mut fs::File, screen: &mut String, what: &str) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let end = Instant::now() + crate::shared::limit();
    while !screen.contains(what) && Instant::now() < end {
        let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        if poll(&mut [PollFd::new(&*master, PollFlags::IN)], Some(&wait)).unwrap() > 0 {
            let mut bytes = [0; 1024];
            let Ok(count @ 1..) = master.read(&mut bytes) else { break };
            screen.push_str(&text(&bytes[..count]));
        }
    }
    screen.contains(what)
}

fn set_window(master: impl AsFd, rows: u16, columns: u16) {
    tcsetwinsize(master, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
        .unwrap();
}

#[test]
fn a_detached_terminal_has_the_size_that_its_owner_sets() {
    let Some(p) = place() else { return };
    let script = "trap 'echo changed' WINCH; while :; do read line || sleep 0.05; stty size; done";
    p.configure(&["sh", "-c", script], |c| c["process"]["terminal"] = json!(true));
    let path = p.dir.join("console");
    let listener = UnixListener::bind(&path).unwrap();
    let receiver = std::thread::spawn(move || fs::File::from(master_of(&listener)));
    p.create(&["--console-socket", path.to_str().unwrap()]);
    let mut master = receiver.join().unwrap();
    p.good(&["start", &p.id]);
    let mut screen = String::new();
    set_window(&master, 41, 132);
    master.write_all(b"\n").unwrap();
    assert!(shows(&mut master, &mut screen, "41 132\r\n"), "{screen:?}");
    set_window(&master, 24, 80);
    master.write_all(b"\n").unwrap();
    assert!(shows(&mut master, &mut screen, "24 80\r\n"), "{screen:?}");
    assert!(shows(&mut master, &mut screen, "changed\r\n"), "{screen:?}");
    // What the guest sets itself stays until the owner sets another.
    let set = "stty rows 7 cols 9 < /dev/pts/0; stty size < /dev/pts/0; stty size < /dev/pts/0";
    assert_eq!(p.good(&["exec", &p.id, "sh", "-c", set]), "7 9\n7 9\n");
}

/// Starts `quark do` of a program that says when it is there, and gives it a signal: exit code, and
/// how long its end took.
fn end_by(p: &Place, args: &[&str], signal: nix::sys::signal::Signal) -> (Option<i32>, Duration) {
    let mut command = p.quark(args);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    let begin = Instant::now();
    nix::sys::signal::kill(pid, signal).unwrap();
    (finish(child, args).status.code(), begin.elapsed())
}

#[test]
fn a_signal_ends_what_do_runs() {
    use nix::sys::signal::Signal;
    let Some(p) = place() else { return };
    let long = crate::shared::slowed(Duration::from_secs(8));
    let program = "echo up; exec sleep 10";
    for signal in
        [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1]
    {
        let (code, took) = end_by(&p, &["do", "--", "/bin/sh", "-c", program], signal);
        assert_eq!(code, Some(128 + signal as i32));
        assert!(took < long, "{signal}: {took:?}");
    }
    // Handlers and ignored signals count as ever.
    let handled = "trap 'exit 5' TERM; echo up; while :; do sleep 0.1; done";
    assert_eq!(end_by(&p, &["do", "--", "/bin/sh", "-c", handled], Signal::SIGTERM).0, Some(5));
    let ignored = "trap '' TERM; echo up; sleep 1; exit 6";
    assert_eq!(end_by(&p, &["do", "--", "/bin/sh", "-c", ignored], Signal::SIGTERM).0, Some(6));
    // In a container the first process is an init.
    sh(&p, "echo up; exec sleep 1");
    assert_eq!(end_by(&p, &["run", &p.id], Signal::SIGTERM).0, Some(0));
}

#[test]
fn signals_of_all_kinds_are_handed_on() {
    let Some(p) = place() else { return };
    // All that runc hands on, but for those about a terminal's size and use, by number: the guest's
    // shell knows no names of real-time signals.
    let signals = [1, 2, 3, 6, 8, 10, 11, 12, 13, 14, 15, 18, 20, 23, 24, 29, 30, 34, 40, 64];
    let traps = signals.map(|signo| format!("trap 'echo got {signo}' {signo}; ")).concat();
    let script = format!("{traps} trap 'exit 7' 31; echo up; while :; do sleep 0.05; done");
    sh(&p, &script);
    for args in [&["run", &p.id][..], &["do", "--", "/bin/busybox", "sh", "-c", &script]] {
        let mut child = p.quark(args).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(output.next().unwrap().unwrap(), "up");
        let send = |signo: i32| {
            let mut kill = Command::new("/bin/kill");
            kill.arg(format!("-{signo}")).arg(child.id().to_string());
            assert!(kill.status().unwrap().success());
        };
        for signo in signals {
            send(signo);
            let mut next =
                || output.next().unwrap_or_else(|| panic!("{args:?}: ended by {signo}")).unwrap();
            let got = |signo| format!("got {signo}");
            if signo == 20 && args[0] == "do" {
                // It stops like a program without a sandbox.
                let stat = format!("/proc/{}/stat", child.id());
                p.wait_for("a stop", || fs::read_to_string(&stat).unwrap().contains(") T "));
                send(18);
                let mut both = [next(), next()];
                both.sort();
                assert_eq!(both, [got(18), got(20)]);
            } else {
                assert_eq!(next(), got(signo), "{args:?}");
            }
        }
        send(31);
        assert_eq!(child.wait().unwrap().code(), Some(7));
    }
}

#[test]
fn a_job_stops_and_goes_on() {
    let Some(p) = place() else { return };
    let script = "echo up; while :; do echo on; sleep 0.05; done";
    let mut child = p
        .quark(&["do", "--", "/bin/busybox", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0; 6]).unwrap();
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTSTP).unwrap();
    let stat = format!("/proc/{pid}/stat");
    p.wait_for("a stop", || fs::read_to_string(&stat).unwrap().contains(") T "));
    // What it wrote before that; then it writes nothing.
    rustix::io::ioctl_fionbio(&output, true).unwrap();
    let mut block = [0; 4096];
    std::thread::sleep(Duration::from_millis(200));
    while output.read(&mut block).is_ok() {}
    std::thread::sleep(Duration::from_millis(500));
    assert!(output.read(&mut block).is_err(), "it goes on");
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
    p.wait_for("it to go on", || output.read(&mut block).is_ok_and(|n| n > 0));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 2));
}

#[test]
fn ctrl_c_and_a_hang_up_end_what_do_runs() {
    let Some(p) = place() else { return };
    let quark = p.quark(&["do", "--", "/bin/sh", "-c", "echo up; exec sleep 10"]);
    // True if the terminal gets a Ctrl-C or is closed; both by a session of its own.
    let session = r#"
import os, pty, sys, time
pid, master = pty.fork()
if pid == 0: os.execv(sys.argv[2], sys.argv[2:])
seen = b""
while b"up" not in seen: seen += os.read(master, 100)
os.write(master, b"\x03") if sys.argv[1] == "key" else os.close(master)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;
    let long = crate::shared::slowed(Duration::from_secs(8));
    for (how, code) in [("key", "130\n"), ("close", "129\n")] {
        let mut command = Command::new("python3");
        command.args(["-c", session, how]).arg(quark.get_program()).args(quark.get_args());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let begin = Instant::now();
        let output = finish(child, &["do"]);
        assert_eq!(text(&output.stdout), code, "{how}: {output:?}");
        assert!(begin.elapsed() < long, "{how}");
    }
}

#[test]
fn a_signal_that_comes_twice_is_no_news() {
    let Some(p) = place() else { return };
    p.configure(&["sleep", "1000"], |_| {});
    p.create(&[]);
    p.good(&["start", &p.id]);
    // timeout(1) sends it to its child and to its process group.
    for _ in 0..2 {
        let exec = p.quark(&["exec", &p.id, "sh", "-c", "exec sleep 60"]);
        let mut command = Command::new("timeout");
        command.arg("2").arg(exec.get_program()).args(exec.get_args()).process_group(0);
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(124), String::new()));
    }
}

#[test]
fn do_finds_programs_without_an_environment() {
    let Some(p) = place() else { return };
    let output = p.quark(&["do", "--", "sh", "-c", "echo found"]).env_clear().output().unwrap();
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("found\n".to_owned(), String::new()));
}

#[test]
fn an_empty_current_directory_is_told() {
    let Some(p) = place() else { return };
    let output = p.quark(&["do", "--", "ls"]).current_dir("/tmp").output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), ""));
    let errors = text(&output.stderr);
    assert!(errors.lines().count() == 1 && errors.contains("--volume /tmp:/tmp"), "{errors}");
    let output =
        p.quark(&["do", "-v", "/tmp:/tmp:ro", "--", "ls"]).current_dir("/tmp").output().unwrap();
    assert!(text(&output.stdout).contains(&p.id) && output.stderr.is_empty(), "{output:?}");
    let program = std::path::Path::new("/tmp").join(format!("{}-program", p.id));
    fs::copy("/bin/true", &program).unwrap();
    let name = format!("./{}-program", p.id);
    let output = p.quark(&["do", "--", &name]).current_dir("/tmp").output().unwrap();
    fs::remove_file(&program).unwrap();
    let errors = text(&output.stderr);
    assert!(
        errors.contains("put it into a directory below") && !errors.contains("change to its"),
        "{errors}"
    );
}

/// Runs a shell script in a mount namespace of its own, with the words of a quark command as its
/// arguments.
fn unshared(p: &Place, script: &str, args: &[&str]) -> Output {
    let quark = p.quark(args);
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    command.arg(quark.get_program()).args(quark.get_args()).current_dir(&p.bundle);
    finish(
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(),
        args,
    )
}

#[test]
fn without_cgroups_only_limits_are_refused() {
    let Some(p) = place() else { return };
    for hide in ["mount -t tmpfs none /sys/fs/cgroup", "mount -o ro -t tmpfs none /sys/fs/cgroup"] {
        let script = format!("{hide} && exec \"$@\"");
        let output = unshared(&p, &script, &["do", "--", "echo", "ran"]);
        let errors = text(&output.stderr);
        assert_eq!(
            (output.status.code(), text(&output.stdout).as_str()),
            (Some(0), "ran\n"),
            "{errors}"
        );
        assert!(errors.lines().count() == 1 && errors.contains("no cgroup of its own"), "{errors}");
        p.configure(&["true"], |c| c["linux"]["resources"] = json!({"pids": {"limit": 100}}));
        let output = unshared(&p, &script, &["run", &p.id]);
        let errors = text(&output.stderr);
        assert_eq!((output.status.code(), errors.lines().count()), (Some(1), 1), "{errors}");
        assert!(errors.contains("/sys/fs/cgroup") && errors.contains("mount"), "{errors}");
        assert_eq!(p.leftovers(&p.id), [""; 0]);
    }
}

#[test]
fn where_the_swap_store_lies_is_told_when_it_fails() {
    let Some(p) = place() else { return };
    sh(&p, "while :; do sleep 0.2; done");
    let script = "mount -o ro -t tmpfs none /var/tmp && \"$@\" run -d test-store > /dev/null 2>&1 \
        && \"$@\" kill test-store STOP; \
        code=$?; \"$@\" delete -f test-store; exit $code";
    let output = unshared(&p, script, &[]);
    let errors = text(&output.stderr);
    assert_eq!((output.status.code(), errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(
        errors.contains("/var/tmp")
            && errors.contains("read-only")
            && errors.contains("stays awake"),
        "{errors}"
    );
}
