//! How a sandbox ended is kept, and an attack is called one.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::life::configure_cases;
use super::shared::{skip, slowed};
use super::support::{Place, place};

/// A program that does to its stub what no honest program does, into the container's /bin.
fn add_adversary(p: &Place) {
    let program =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-apps/adversary/adversary");
    assert!(program.exists(), "{} is missing; run: make test-apps", program.display());
    fs::copy(program, p.rootfs().join("bin/adversary")).unwrap();
}

/// True if guest programs have stubs at all.
fn has_stubs(p: &Place) -> bool {
    let is = p.state()["platform"] == "process";
    if !is {
        skip("guest programs have no stubs on this platform");
    }
    is
}

fn ended(p: &Place) -> (i64, String) {
    let state = p.state();
    assert_eq!(state["status"], "stopped");
    let reason = state["ended"]["reason"].as_str().unwrap_or_else(|| panic!("no reason: {state}"));
    (state["ended"]["status"].as_i64().unwrap(), reason.to_owned())
}

#[test]
fn a_vmm_that_crashed_says_so() {
    let Some(p) = place() else { return };
    p.configure(&["sleep", "1000"], |_| {});
    p.create(&[]);
    p.good(&["start", &p.id]);
    let pid = p.state()["pid"].as_i64().expect("a pid");
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::SEGV).expect("kill");
    p.wait_for("the end", || p.status() == "stopped");
    let (status, reason) = ended(&p);
    assert_eq!(status, 139, "{reason}");
    assert!(reason.contains("the VMM crashed: signal 11"), "{reason}");
}

/// The processes below `pid` that have `threads` threads.
fn below(pid: i32, threads: usize, found: &mut Vec<i32>) {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
    let mut count = 0;
    for task in tasks.flatten() {
        count += 1;
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.split_whitespace().for_each(|c| below(c.parse().unwrap(), threads, found));
    }
    if count == threads {
        found.push(pid);
    }
}

#[test]
fn a_process_whose_stub_goes_while_it_waits_ends() {
    let Some(p) = place() else { return };
    let volume = p.volume();
    let case = ["threads", "who_waits_when_its_memory_goes_ends"];
    configure_cases(&p, &volume, &case, "STUB_GOES=1");
    p.create(&[]);
    if !has_stubs(&p) {
        return;
    }
    p.good(&["start", &p.id]);
    p.wait_for("the wait", || p.log().contains("waiting"));
    let mut stubs = Vec::new();
    let sandbox = p.state()["pid"].as_i64().expect("a pid") as i32;
    p.wait_for("its stub", || {
        stubs.clear();
        below(sandbox, 2, &mut stubs);
        stubs.retain(|stub| *stub != sandbox);
        stubs.len() == 1
    });
    let stub = rustix::process::Pid::from_raw(stubs[0]).expect("a pid");
    rustix::process::kill_process(stub, rustix::process::Signal::KILL).expect("kill");
    // While data comes for it, the kernel has time for others.
    p.wait_for("the end", || {
        if p.status() != "running" {
            return true;
        }
        p.output(&["exec", &p.id, "/bin/true"]);
        false
    });
    assert!(p.log().contains("ok who_waits"), "{}", p.log());
}

/// Nobody waits for what is left in namespaces of the container's own making.
#[test]
fn the_end_does_not_wait_for_pid_namespaces() {
    let Some(p) = place() else { return };
    let script = "unshare -p -f sh -c 'sleep 1000 & sleep 1000' & sleep 1; echo ending";
    p.configure(&["sh", "-c", script], |c| {
        for set in ["bounding", "effective", "permitted"] {
            c["process"]["capabilities"][set] = serde_json::json!(["CAP_SYS_ADMIN"]);
        }
    });
    p.create(&[]);
    p.good(&["start", &p.id]);
    p.wait_for("the program", || p.log().contains("ending"));
    let begin = Instant::now();
    p.wait_for("the end", || p.status() == "stopped");
    // What is left has two seconds to end by itself, and has ended at once.
    let took = begin.elapsed();
    assert!(took < slowed(Duration::from_millis(1500)), "{took:?}");
}

#[test]
fn a_sandbox_that_was_ended_for_an_attack_says_so() {
    let Some(p) = place() else { return };
    add_adversary(&p);
    p.configure(&["adversary", "report_done"], |_| {});
    let log = p.dir.join("log");
    let options = |rest: &[&'static str]| [&["--log", "LOG"][..], rest].concat();
    let with_log = |args: &[&str]| -> Vec<String> {
        args.iter()
            .map(|a| if *a == "LOG" { log.display().to_string() } else { (*a).to_owned() })
            .collect()
    };
    let args = with_log(&options(&["create"]));
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    args.push(&p.id);
    let output = fs::File::create(p.dir.join("output")).unwrap();
    assert!(
        p.quark(&args)
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .status()
            .unwrap()
            .success(),
        "{}",
        p.log()
    );
    if !has_stubs(&p) {
        return;
    }
    assert!(p.state()["ended"].is_null());
    p.good(&["start", &p.id]);
    p.wait_for("the end", || p.status() == "stopped");
    let (status, reason) = ended(&p);
    assert_eq!(status, 159, "{reason}");
    assert!(reason.contains("attacked"), "{reason}");
    let incidents = &p.state()["incidents"];
    assert_eq!(incidents["count"], 1, "{incidents}");
    assert!(incidents["last"].as_str().is_some_and(|l| !l.is_empty()), "{incidents}");
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("guest process killed: "), "{text}");
    p.good(&["delete", &p.id]);

    // The same in the exit status of who stays with it.
    assert_eq!(p.output(&["run", &p.id]).status.code(), Some(159));
}

#[test]
fn an_attack_of_another_process_is_an_incident() {
    let Some(p) = place() else { return };
    add_adversary(&p);
    p.configure(
        &[
            "sh",
            "-c",
            "adversary report_done; adversary report_done; trap 'exit 4' TERM; echo up; while :; \
            do sleep 0.1; done",
        ],
        |_| {},
    );
    p.create(&[]);
    if !has_stubs(&p) {
        return;
    }
    p.good(&["start", &p.id]);
    p.wait_for("the attacks", || p.log().contains("up"));
    let state = p.state();
    assert_eq!(
        (state["status"].as_str(), state["incidents"]["count"].as_i64()),
        (Some("running"), Some(2)),
        "{state}"
    );
    assert!(state["ended"].is_null(), "{state}");
    p.good(&["kill", &p.id, "TERM"]);
    p.wait_for("the end", || p.status() == "stopped");
    assert_eq!(ended(&p), (4, "its program ended".to_owned()));
}

#[test]
fn who_was_killed_from_outside_could_not_say_it() {
    let Some(p) = place() else { return };
    p.configure(&["sleep", "1000"], |_| {});
    p.create(&[]);
    p.good(&["start", &p.id]);
    p.good(&["kill", &p.id, "KILL"]);
    let (status, reason) = ended(&p);
    assert!(status == 137 && reason.contains("killed"), "{status}: {reason}");
    // A record that is not one is none.
    fs::write(p.root.join(&p.id).join("ended"), [0xff; 9000]).unwrap();
    assert_eq!(ended(&p).0, 137);
    let hostile = r#"{"status":1,"at_ns":18446744073709551615,"reason":"a\u001b[2J\nb"}"#;
    fs::write(p.root.join(&p.id).join("ended"), hostile).unwrap();
    let (status, reason): (i64, Value) = (ended(&p).0, p.state()["ended"]["reason"].clone());
    assert_eq!((status, reason.as_str()), (1, Some("a[2Jb")));
}
