//! What waits for the host's disk keeps nobody else waiting. QUARK_SLOW_SYNC has the host
//! take three seconds more for each fsync(2) and syncfs(2).

use std::fs;
use std::process::Stdio;

use crate::life::configure_cases;
use crate::support::{Place, finish, place};

/// Starts `sh -c script` on a host whose disk is slow.
fn start(p: &Place, script: &str) {
    p.configure(&["sh", "-c", script], |_| {});
    let log = fs::File::create(p.dir.join("output")).unwrap();
    let args = ["create", &p.id];
    let mut command = p.quark(&args);
    command.env("QUARK_SLOW_SYNC", "1").stdout(log.try_clone().unwrap()).stderr(log);
    let output = finish(command.spawn().unwrap(), &args);
    assert!(output.status.success(), "{}: {}", output.status, p.log());
    p.good(&["start", &p.id]);
    p.wait_for("it begins", || p.log().contains("begin"));
}

#[test]
fn others_go_on_while_the_disk_is_busy() {
    let Some(p) = place() else { return };
    // Six in a row, eighteen seconds: long enough for commands on a busy machine.
    let syncs = "sync; sync; sync; sync; sync; sync; echo synced $?";
    start(&p, &format!("echo begin; ({syncs}) & while :; do sleep 1; echo tick; done"));
    for _ in 0..3 {
        assert_eq!(p.good(&["exec", &p.id, "echo", "here"]), "here\n");
    }
    p.wait_for("ticks", || p.log().matches("tick").count() >= 3);
    assert!(!p.log().contains("synced"), "others waited: {}", p.log());
    p.wait_for("its end", || p.log().contains("synced 0"));
}

#[test]
fn who_waits_for_the_disk_can_be_killed() {
    let Some(p) = place() else { return };
    let script = "echo begin; read a x < /proc/uptime
        sync & sleep 0.2; kill -9 $!; wait $!; echo killed $?
        read b x < /proc/uptime; echo took $a $b";
    start(&p, script);
    p.wait_for("its end", || p.log().contains("took"));
    let log = p.log();
    assert!(log.contains("killed 137"), "{log}");
    let took = log.lines().find_map(|l| l.strip_prefix("took ")).unwrap();
    let at: Vec<f64> = took.split(' ').map(|s| s.parse().unwrap()).collect();
    assert!(at[1] - at[0] < 2.5, "it was killed after {took}");
}

#[test]
fn who_waits_for_the_disk_is_not_interrupted() {
    let Some(p) = place() else { return };
    let volume = p.dir.join("volume");
    fs::create_dir(&volume).unwrap();
    configure_cases(&p, &volume, &["files", "fsync_is_not_interrupted"], "A=B");
    let args = ["run", &p.id];
    let mut command = p.quark(&args);
    command.env("QUARK_SLOW_SYNC", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = finish(command.spawn().unwrap(), &args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("ok fsync_is_not"), "{text} {output:?}");
}

#[test]
fn a_container_that_waits_for_the_disk_sleeps_and_wakes_for_it() {
    let Some(p) = place() else { return };
    start(&p, "echo begin; sync; echo synced $?; sleep 1000");
    p.good(&["kill", &p.id, "STOP"]);
    p.wait_for("its end", || p.log().contains("synced 0"));
    // It is well, whether it was still asleep then or not.
    p.good(&["kill", &p.id, "STOP"]);
    assert_eq!(p.state()["hibernation"], "Hibernated");
    assert_eq!(p.good(&["exec", &p.id, "echo", "here"]), "here\n");
}
