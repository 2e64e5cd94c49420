//! `linux.seccomp`: what a profile says of system calls counts for every process of a container.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use super::support::{Place, place};

/// What Docker sends with each container, about: a list of what is allowed, some of it with some
/// arguments only.
const PROFILE: &str = include_str!("profile.json");

fn profile() -> Value {
    serde_json::from_str(PROFILE).unwrap()
}

fn applet(p: &Place, name: &str) {
    symlink("busybox", p.rootfs().join("bin").join(name)).unwrap();
}

/// Configures a container that runs `script` under `profile`.
fn configure(p: &Place, script: &str, profile: &Value) {
    p.configure(&["sh", "-c", script], |c| c["linux"]["seccomp"] = profile.clone());
}

/// What a container prints that runs `script` under `profile`.
fn run(p: &Place, script: &str, profile: &Value) -> String {
    configure(p, script, profile);
    p.good(&["run", &p.id])
}

/// A profile that allows all but `names`, and has `action` for those.
fn all_but(names: &[&str], action: &Value) -> Value {
    let mut rule = action.clone();
    rule["names"] = json!(names);
    json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]})
}

#[test]
fn an_ordinary_profile_leaves_programs_what_they_need() {
    let Some(p) = place() else { return };
    applet(&p, "unshare");
    applet(&p, "mount");
    let said = run(
        &p,
        "echo one > /tmp/a; cat /tmp/a | wc -c; mkdir /tmp/d && ls /tmp; sleep 0.01 & wait && echo waited; \
         unshare -m true 2>&1; mount -t tmpfs none /tmp/d 2>&1; cat /proc/self/status",
        &profile(),
    );
    for line in [
        "4\na\nd\nwaited\n",
        "unshare: ",
        "Operation not permitted",
        "Seccomp:\t2\nSeccomp_filters:\t1\n",
    ] {
        assert!(said.contains(line), "{line:?}: {said}");
    }
}

#[test]
fn what_a_profile_does_not_name_is_forbidden() {
    let Some(p) = place() else { return };
    let mut without = profile();
    without["syscalls"][0]["names"]
        .as_array_mut()
        .unwrap()
        .retain(|n| n != "mkdir" && n != "mkdirat");
    let said = run(&p, "mkdir /tmp/d 2>&1; echo $?", &without);
    assert!(said.contains("Operation not permitted") && said.ends_with("1\n"), "{said}");
}

#[test]
fn every_process_of_a_container_is_restricted() {
    let Some(p) = place() else { return };
    let refused = all_but(
        &["mkdir", "mkdirat"],
        &json!({"action": "SCMP_ACT_ERRNO", "errnoRet": libc::EDQUOT}),
    );
    configure(&p, "mkdir /tmp/first 2>&1; sleep 1000", &refused);
    p.create(&[]);
    p.good(&["start", &p.id]);
    p.wait_for("its line", || p.log().contains("isk quota exceeded"));
    let fails = |args: &[&str]| {
        let output = p.output(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains("isk quota exceeded"), "{output:?}");
    };
    fails(&["exec", &p.id, "mkdir", "/tmp/second"]);
    let process = p.dir.join("process.json");
    fs::write(&process, r#"{"cwd":"/","args":["mkdir","/tmp/third"],"env":["PATH=/bin"]}"#)
        .unwrap();
    fails(&["exec", "--process", process.to_str().unwrap(), &p.id]);
    fails(&["exec", "--user", "1000", &p.id, "mkdir", "/tmp/fourth"]);
    // Sleep changes nothing.
    p.good(&["kill", &p.id, "STOP"]);
    fails(&["exec", &p.id, "mkdir", "/tmp/fifth"]);
    assert_eq!(p.good(&["exec", &p.id, "ls", "/tmp"]), "");
    let status = p.good(&["exec", &p.id, "cat", "/proc/1/status", "/proc/self/status"]);
    assert_eq!(status.matches("NoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\n").count(), 2);
}

#[test]
fn arguments_count() {
    let Some(p) = place() else { return };
    let args = json!([{"index": 1, "value": libc::SIGUSR1, "op": "SCMP_CMP_EQ"}]);
    let action = json!({"action": "SCMP_ACT_ERRNO", "errnoRet": libc::EDQUOT, "args": args});
    let said = run(
        &p,
        "kill -0 $$ && kill -CONT $$ && echo sent; kill -USR1 $$ 2>&1; echo $?",
        &all_but(&["kill"], &action),
    );
    assert!(said.starts_with("sent\n") && said.ends_with("1\n"), "{said}");
    assert!(said.contains("isk quota exceeded"), "{said}");
}

#[test]
fn whoever_is_killed_ends_by_sigsys() {
    let Some(p) = place() else { return };
    for action in ["SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_TRAP"] {
        let killed = all_but(&["mkdir", "mkdirat"], &json!({"action": action}));
        let said = run(&p, "mkdir /tmp/a; echo $?", &killed);
        assert_eq!(said, "159\n", "{action}");
        p.configure(&["mkdir", "/tmp/a"], |c| c["linux"]["seccomp"] = killed);
        assert_eq!(p.output(&["run", &p.id]).status.code(), Some(159), "{action}");
    }
}

#[test]
fn what_is_logged_is_in_the_log_and_goes_on() {
    let Some(p) = place() else { return };
    let log = p.dir.join("log");
    configure(
        &p,
        "mkdir /tmp/a && ls /tmp",
        &all_but(&["mkdir"], &json!({"action": "SCMP_ACT_LOG"})),
    );
    assert_eq!(p.good(&["--log", log.to_str().unwrap(), "run", &p.id]), "a\n");
    let log = fs::read_to_string(&log).unwrap();
    assert!(log.contains("seccomp: process") && log.contains("call 83 at"), "{log}");
    assert!(!log.contains("ignored"), "{log}");
}

#[test]
fn what_is_not_served_is_refused() {
    let Some(p) = place() else { return };
    let refused = |profile: Value, says: &str| {
        configure(&p, "true", &profile);
        let output = p.output(&["run", &p.id]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(says), "{says}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    };
    let mut notify = all_but(&["mkdir"], &json!({"action": "SCMP_ACT_NOTIFY"}));
    notify["listenerPath"] = json!("/run/listener.sock");
    refused(notify, "SCMP_ACT_NOTIFY is not supported");
    refused(
        json!({"defaultAction": "SCMP_ACT_ERRNO", "flags": ["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"]}),
        "listeners, which are not supported",
    );
}

#[test]
fn features_tell_of_it() {
    let Some(p) = place() else { return };
    let features: Value = serde_json::from_str(&p.good(&["features"])).unwrap();
    let seccomp = &features["linux"]["seccomp"];
    assert_eq!(seccomp["enabled"], true);
    for (field, holds) in [
        ("actions", "SCMP_ACT_ERRNO"),
        ("operators", "SCMP_CMP_MASKED_EQ"),
        ("archs", "SCMP_ARCH_X86_64"),
        ("knownFlags", "SECCOMP_FILTER_FLAG_LOG"),
        ("supportedFlags", "SECCOMP_FILTER_FLAG_TSYNC"),
    ] {
        assert!(seccomp[field].as_array().unwrap().contains(&json!(holds)), "{field}: {seccomp}");
    }
    assert!(!seccomp["actions"].to_string().contains("NOTIFY"));
}
