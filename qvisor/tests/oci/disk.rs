//! What waits for the host's disk keeps nobody else waiting. QUARK_SLOW_DISK has the host take
//! three seconds more for each fsync(2) and syncfs(2), and for what is read of a file.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::life::configure_cases;
use crate::support::{Place, finish, place};

/// Starts `sh -c script` on a host whose disk is slow.
fn start(p: &Place, script: &str) {
    p.configure(&["sh", "-c", script], |_| {});
    p.create_with(&[], |command| {
        command.env("QUARK_SLOW_DISK", "1");
    });
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

/// Runs a case of the program `sync` on a volume of such a host: how long it took.
fn run_case(p: &Place, case: &str) -> Duration {
    let volume = p.volume();
    configure_cases(p, &volume, &["sync", case], "A=B");
    let args = ["run", &p.id];
    let mut command = p.quark(&args);
    command.env("QUARK_SLOW_DISK", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    let begin = Instant::now();
    let output = finish(command.spawn().unwrap(), &args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains(&format!("ok {case}")), "{text} {output:?}");
    begin.elapsed()
}

#[test]
fn who_waits_for_the_disk_is_not_interrupted() {
    let Some(p) = place() else { return };
    run_case(&p, "fsync_is_not_interrupted");
}

#[test]
fn who_writes_synchronously_waits_alone() {
    let Some(p) = place() else { return };
    let took = run_case(&p, "others_go_on_beside_synchronous_writes");
    assert!(took > Duration::from_secs(9), "of three writes one did not wait: {took:?}");
}

#[test]
fn who_reads_from_the_disk_waits_alone() {
    let Some(p) = place() else { return };
    let took = run_case(&p, "others_go_on_beside_reads");
    assert!(took > Duration::from_secs(12), "of four pieces one was not waited for: {took:?}");
}

#[test]
fn what_the_host_evicts_is_read_all_the_same() {
    let Some(p) = place() else { return };
    let volume = p.volume();
    let content: Vec<u8> = (0..4 << 20).map(|i: u32| (i / 5) as u8).collect();
    fs::write(volume.join("f"), &content).unwrap();
    let file = fs::File::open(volume.join("f")).unwrap();
    file.sync_all().unwrap();
    let script = "echo begin; i=0
        while [ $i -lt 20 ]; do md5sum < /v/f; dd if=/v/f bs=5000 2>&- | md5sum; i=$((i+1)); done
        echo ended";
    p.configure(&["sh", "-c", script], |c| {
        let mount = json!({"destination": "/v", "type": "bind", "source": volume, "options": ["bind", "ro"]});
        c["mounts"].as_array_mut().unwrap().push(mount);
    });
    p.create(&[]);
    p.good(&["start", &p.id]);
    p.wait_for("its end", || {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        p.log().contains("ended")
    });
    let sum = std::process::Command::new("md5sum").arg(volume.join("f")).output().unwrap();
    let (log, sum) = (p.log(), String::from_utf8(sum.stdout).unwrap()[..32].to_string());
    assert_eq!(log.matches(&sum).count(), 40, "{sum}: {log}");
}

#[test]
fn what_the_disk_is_at_all_the_time_keeps_nobody_awake() {
    let Some(p) = place() else { return };
    // Something ends every 0.4 s.
    let script = "echo begin; for i in 0 1 2 3 4 5 6 7; do
        (sleep $((i * 4 / 10)).$((i * 4 % 10)); while :; do sync; done) & done
        sleep 1000";
    start(&p, script);
    std::thread::sleep(Duration::from_secs(4));
    p.good(&["kill", &p.id, "STOP"]);
    assert_eq!(p.good(&["exec", &p.id, "echo", "here"]), "here\n");
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
