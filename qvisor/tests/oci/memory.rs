//! Memory used up, as programs and engines see it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};

use super::shared::{skip, test_apps};
use super::support::{Place, is_kvm, place};

/// A container with this limit, in MiB, and `hungry` in it.
fn limited(mib: u64, args: &[&str]) -> Option<Place> {
    let p = place()?;
    let hungry = test_apps("bombs").join("hungry");
    fs::copy(hungry, p.rootfs().join("bin/hungry")).expect("hungry is missing; make test-apps");
    p.configure(args, |c| {
        let limit = mib << 20;
        c["linux"]["resources"] = json!({"memory": {"limit": limit, "swap": limit}});
    });
    Some(p)
}

/// A copy to memory that cannot be had is what a fault there would be: no call fails for it.
#[test]
fn a_call_that_uses_memory_up_is_killed_and_does_not_fail() {
    const KINDS: &str = "zeros zeros-long tmpfs tmpfs-long file file-long file-parts pipe stream message \
                         tcp udp getrandom stat getdents wait clock signal exec";
    let all = format!(
        "ip link set lo up; for kind in {KINDS}; do hungry $kind; echo $kind $?; done; echo over"
    );
    let Some(p) = limited(64, &["sh", "-c", &all]) else { return };
    let output = p.output(&["run", &p.id]);
    let said = String::from_utf8_lossy(&output.stdout);
    let expected: String = KINDS.split_whitespace().map(|kind| format!("{kind} 137\n")).collect();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, expected + "over\n", "{complaints}");
}

/// A list of sockets is as long as a program likes. It may be killed for that; the kernel goes on.
#[test]
fn lists_of_many_sockets_do_not_end_the_kernel() {
    let script = "for count in 5000 12000; do hungry sockets $count; echo $?; done; echo over";
    let Some(p) = limited(64, &["sh", "-c", script]) else { return };
    p.reconfigure(|config| {
        config["process"]["rlimits"] =
            json!([{"type": "RLIMIT_NOFILE", "soft": 1_048_576, "hard": 1_048_576}]);
    });
    let output = p.output(&["run", &p.id]);
    let said = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(!complaints.contains("panic"), "{complaints}");
    let is_right = |line: &str| ["listed", "0", "137", "over"].contains(&line);
    assert!(said.ends_with("over\n") && said.lines().all(is_right), "{said}{complaints}");
}

/// A copy of a message is memory that nobody has paid for yet: whoever makes one when there is none
/// left does not end the container.
#[test]
fn copies_of_long_messages_do_not_end_the_container() {
    let script = "hungry copies 40; echo $?; echo over";
    let Some(p) = limited(400, &["sh", "-c", script]) else { return };
    p.reconfigure(|config| {
        config["linux"]["namespaces"] =
            json!([{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}]);
        config["linux"]["sysctl"] =
            json!({"kernel.msgmax": "50000000", "kernel.msgmnb": "90000000"});
    });
    let output = p.output(&["run", &p.id]);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "137\nover\n", "{complaints}");
}

/// Where the container's cgroup is that limits its memory.
fn cgroup(p: &Place) -> PathBuf {
    let event = p.events(&p.id);
    event["data"]["quark"]["cgroup"]["path"].as_str().unwrap().into()
}

/// What `memory.oom_control` or `memory.events` of a container's cgroup says.
fn host_kills(cgroup: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(cgroup.join(name)).unwrap_or_default();
    let text = read("memory.events") + &read("memory.oom_control");
    text.lines().find_map(|l| l.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// Engines ask the cgroup why a container ended: it is there that memory was used up in the end.
#[test]
fn a_container_that_ends_for_memory_has_met_its_limit() {
    let Some(p) = limited(64, &["hungry", "zeros"]) else { return };
    p.create(&[]);
    let cgroup = cgroup(&p);
    let Some(before) = host_kills(&cgroup) else {
        p.good(&["delete", "--force", &p.id]);
        return skip("the host counts no kills for memory");
    };
    assert_eq!(before, 0);
    p.good(&["start", &p.id]);
    p.wait_for("it has ended", || p.status() == "stopped");
    // The cgroup goes with the container, when that is deleted.
    let kills = host_kills(&cgroup);
    assert_eq!(p.good(&["wait", &p.id]), "137\n");
    p.good(&["delete", &p.id]);
    assert!(kills.is_some_and(|n| n > 0), "{kills:?}");
}

/// Bytes that the host's kernel holds for a container and can give back, or all that it holds,
/// where it counts either.
fn host_kernel_bytes(p: &Place) -> Option<u64> {
    let dir = cgroup(p);
    let v1 = fs::read_to_string(dir.join("memory.kmem.usage_in_bytes"));
    v1.ok().and_then(|text| text.trim().parse().ok()).or_else(|| {
        let text = fs::read_to_string(dir.join("memory.stat")).ok()?;
        text.lines().find_map(|l| l.strip_prefix("slab_reclaimable "))?.trim().parse().ok()
    })
}

/// The host remembers each name that a guest looked up in vain, and frees that too late for who
/// uses memory up.
#[test]
fn the_host_does_not_remember_any_number_of_names_for_a_guest() {
    let Some(p) = limited(64, &["sh", "-c", "while :; do sleep 1; done"]) else { return };
    p.create(&[]);
    p.good(&["start", &p.id]);
    if host_kernel_bytes(&p).is_none() {
        return skip("the host does not count its kernel's memory");
    }
    let script = "i=0; while [ $i -lt 40000 ]; do test -e /bin/none$i; i=$((i+1)); done";
    p.good(&["exec", &p.id, "sh", "-c", script]);
    p.wait_for("the host has dropped them", || host_kernel_bytes(&p).unwrap() < 4 << 20);
}

/// What the sandbox process had for its guest's processes it has no more when they have ended.
#[test]
fn processes_that_have_ended_leave_the_sandbox_no_larger() {
    let script = "i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i+1)); done; kill $(jobs -p); \
                  wait";
    let Some(p) = limited(128, &["sh", "-c", "while :; do sleep 1; done"]) else { return };
    p.create(&[]);
    p.good(&["start", &p.id]);
    let pid = p.state()["pid"].as_u64().unwrap();
    let own = || -> u64 {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap();
        line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
    };
    let before = own();
    p.good(&["exec", &p.id, "sh", "-c", script]);
    // Some 5 KiB for each of the most that there were stay with the allocator until it sleeps.
    p.wait_for("they are gone", || own() < before + 200 * 8);
    p.good(&["kill", &p.id, "STOP"]);
    p.wait_for("it gives the rest back", || own() < before + 400);
}

/// A handler's frame that finds no memory waits for some, as a fault there would.
#[test]
fn signals_come_when_memory_is_used_up() {
    let script = "i=0; while [ $i -lt 20 ]; do sleep 1 & i=$((i+1)); done; wait; echo over";
    let Some(p) = limited(if is_kvm() { 24 } else { 6 }, &["sh", "-c", script]) else { return };
    let output = p.output(&["run", &p.id]);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 137)), "{}: {complaints}", output.status);
}

/// Who has a score above others' goes before those that hold more (proc(5), oom_score_adj).
#[test]
fn who_is_to_be_killed_first_is() {
    let script = "(echo 1000 >/proc/self/oom_score_adj; sleep 1000) & other=$!; sleep 0.5; hungry \
                  zeros; echo $?; grep -q 'State:.*S' /proc/$other/status || echo gone";
    let Some(p) = limited(64, &["sh", "-c", script]) else { return };
    let output = p.output(&["run", &p.id]);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "137\ngone\n", "{complaints}");
}

/// The first process and each exec have the score of the configuration.
#[test]
fn programs_see_the_score_of_the_configuration() {
    let Some(p) = limited(64, &["sh", "-c", "cat /proc/self/oom_score_adj; sleep 1000"]) else {
        return;
    };
    p.reconfigure(|config| {
        config["process"]["oomScoreAdj"] = json!(300);
    });
    p.create(&[]);
    p.good(&["start", &p.id]);
    assert_eq!(p.good(&["exec", &p.id, "cat", "/proc/self/oom_score_adj"]), "300\n");
    p.wait_for("it prints its own", || p.log() == "300\n");
    p.good(&["kill", &p.id, "KILL"]);
}

/// A process that is killed for memory is an event, as of runc.
#[test]
fn who_watches_events_is_told_of_kills() {
    let Some(p) = limited(64, &["sh", "-c", "sleep 1000"]) else { return };
    p.create(&[]);
    p.good(&["start", &p.id]);
    let mut command = p.quark(&["events", "--interval", "1", &p.id]);
    let mut events = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(events.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["type"], "stats");
    assert_eq!(p.output(&["exec", &p.id, "hungry", "zeros"]).status.code(), Some(137));
    let told = (0..20).map(|_| next()).find(|event| event["type"] == "oom");
    p.good(&["kill", &p.id, "KILL"]);
    events.kill().ok();
    events.wait().unwrap();
    assert_eq!(told.expect("it is told of")["id"], p.id.as_str());
}

/// `update --memory` reaches the guest in both directions.
#[test]
fn a_limit_that_changes_is_the_guests_too() {
    let Some(p) = limited(128, &["sh", "-c", "while :; do sleep 1; done"]) else { return };
    p.reconfigure(|config| {
        let more = [("/sys", "sysfs"), ("/sys/fs/cgroup", "cgroup")];
        config["mounts"].as_array_mut().unwrap().extend(
            more.map(|(place, kind)| json!({"destination": place, "type": kind, "source": kind})),
        );
    });
    p.create(&[]);
    p.good(&["start", &p.id]);
    let guests = || {
        let limit = p.good(&["exec", &p.id, "cat", "/sys/fs/cgroup/memory.max"]);
        let free = p.good(&["exec", &p.id, "busybox", "free", "-m"]);
        let total = free.lines().nth(1).unwrap().split_whitespace().nth(1).unwrap().to_owned();
        (limit.trim().parse::<u64>().unwrap() >> 20, total.parse::<u64>().unwrap())
    };
    let takes_70 =
        || p.output(&["exec", &p.id, "hungry", "zeros", "70"]).status.code().unwrap_or(-1);
    assert_eq!((guests(), takes_70()), ((128, 120), 0));
    p.good(&["update", "--memory", "64M", "--memory-swap", "64M", &p.id]);
    assert_eq!((guests(), takes_70()), ((64, 56), 137));
    p.good(&["update", "--memory-swap", "128M", "--memory", "128M", &p.id]);
    assert_eq!((guests(), takes_70()), ((128, 120), 0));
    // More than it was made with, and then a size that leaves no whole block of 4 MiB.
    p.good(&["update", "--memory-swap", "1008M", "--memory", "1008M", &p.id]);
    assert_eq!(guests(), (1008, 945));
    assert_eq!(p.output(&["exec", &p.id, "hungry", "zeros", "300"]).status.code(), Some(0));
    p.good(&["update", "--memory", "128M", "--memory-swap", "128M", &p.id]);
    assert_eq!((guests(), takes_70()), ((128, 120), 0));
    // What is in use stays.
    let fill = "busybox head -c 59000000 /dev/zero > /tmp/file";
    p.good(&["exec", &p.id, "sh", "-c", fill]);
    let refused = p.output(&["update", "--memory", "62M", "--memory-swap", "62M", &p.id]);
    let says = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && says.contains("memory limit of 65011712 bytes"), "{says}");
    assert_eq!(says.lines().count(), 1, "{says}");
    assert_eq!(guests(), (128, 120));
    // As long as it is.
    p.good(&["exec", &p.id, "busybox", "rm", "/tmp/file"]);
    p.good(&["update", "--memory", "62M", "--memory-swap", "62M", &p.id]);
    assert_eq!(guests(), (62, 54));
}

/// With the least limit a container starts and works; what it says is available can be had; the
/// host never has to kill.
#[test]
fn a_small_container_can_use_what_it_is_given() {
    // MiB of the limit, and how much of it a program gets.
    let all = [(6, 0), (8, 1), (16, 6), (32, 20), (64, 49)];
    // In a virtual machine the kernel is the container's memory too.
    let (smallest, image) = if is_kvm() { (24, 9) } else { (0, 0) };
    for (limit, least) in all.into_iter().filter(|(limit, _)| *limit >= smallest) {
        let least = least - image;
        let Some(p) = limited(limit, &["sh", "-c", "while :; do sleep 1; done"]) else { return };
        p.create(&[]);
        p.good(&["start", &p.id]);
        let meminfo = p.good(&["exec", &p.id, "cat", "/proc/meminfo"]);
        let of = |name: &str| -> u64 {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
        };
        let (total, available) = (of("MemTotal:") >> 10, of("MemAvailable:") >> 10);
        assert!((limit / 2..limit).contains(&total), "{limit}: {meminfo}");
        assert!((least..total).contains(&available), "{limit}: {meminfo}");
        let takes = |mib: u64| {
            p.output(&["exec", &p.id, "hungry", "zeros", &mib.to_string()]).status.code()
        };
        if available > 1 {
            assert_eq!(takes(available - 1), Some(0), "{limit}: {meminfo}");
        }
        assert_eq!(takes(available + 2), Some(137), "{limit}: {meminfo}");
        assert_eq!(p.good(&["exec", &p.id, "echo", "whole"]), "whole\n");
        assert!(matches!(host_kills(&cgroup(&p)), None | Some(0)), "{limit}");
    }
}
