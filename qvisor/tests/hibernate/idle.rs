//! Containers that go to sleep by themselves, and whose timers wake them.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use super::support::container::Container;
use super::support::{eventually, limit, quark, run, slowed};
use super::{count, memory_as, verified};

/// A container of busybox with the shell program `program`, under these options and annotations.
fn shell(options: &[&str], annotations: &[&str], program: &str) -> Container {
    Container::start_as(options, annotations, "busybox", &["sh", "-c", program])
}

fn sleeps(c: &Container) {
    eventually("it sleeps", limit(), || c.hibernation() == "Hibernated");
}

/// True if it is never seen asleep for some time.
fn stays_awake(c: &Container) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(3) {
        if c.hibernation() == "Hibernated" {
            return false;
        }
        thread::sleep(Duration::from_millis(50));
    }
    count(c, "deflates") == 0
}

const SOON: &str = "--hibernate-after=300ms";

#[test]
fn an_idle_container_sleeps_by_itself_and_answers() {
    let c = memory_as(&[SOON], "8");
    for round in 1..=3 {
        sleeps(&c);
        verified(&c.ask("verify"));
        let counts = [count(&c, "wakes_by_socket"), count(&c, "wakes_by_timer")];
        assert_eq!(counts, [round, 0]);
    }
    sleeps(&c);
    // Nobody has used it, so it sleeps again.
    c.kill("CONT");
    sleeps(&c);
    assert_eq!(count(&c, "deflates_idle"), count(&c, "deflates"));
}

#[test]
fn one_that_is_used_does_not_sleep() {
    let after = slowed(Duration::from_secs(1));
    let c = memory_as(&[&format!("--hibernate-after={}ms", after.as_millis())], "1");
    let begin = Instant::now();
    while begin.elapsed() < 3 * after {
        assert!(c.ask("peek").starts_with("ok "));
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(count(&c, "deflates"), 0);
    sleeps(&c);
}

#[test]
fn a_timer_that_is_due_soon_keeps_it_awake() {
    let c = shell(&["--hibernate-after=2s"], &[], "while :; do sleep 1.7; done");
    assert!(stays_awake(&c));
}

#[test]
fn what_computes_is_not_idle() {
    let c = shell(&[SOON], &[], "while :; do :; done");
    assert!(stays_awake(&c));
}

#[test]
fn a_process_from_outside_keeps_it_awake() {
    let after = slowed(Duration::from_millis(500));
    let c = shell(&[&format!("--hibernate-after={}ms", after.as_millis())], &[], "sleep 1000000");
    sleeps(&c);
    let program = format!("sleep {}; echo done", (4 * after).as_secs());
    let mut exec = c.quark(&["exec", &c.id, "sh", "-c", &program]);
    let exec = exec.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("exec");
    eventually("exec wakes it", limit(), || c.hibernation() != "Hibernated");
    let deflates = count(&c, "deflates");
    thread::sleep(2 * after);
    assert_eq!(count(&c, "deflates"), deflates);
    let output = exec.wait_with_output().expect("exec");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n");
    sleeps(&c);
}

#[test]
fn a_client_that_nobody_accepts_keeps_it_awake() {
    let program = "import socket, sys, time\n\
                   s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n\
                   time.sleep(1e6)";
    let c = Container::start_as(&[SOON], &[], "python", &["python3", "-c", program, "{port}"]);
    sleeps(&c);
    let waits = c.connect().expect("it listens");
    eventually("the connection wakes it", limit(), || c.hibernation() != "Hibernated");
    let deflates = count(&c, "deflates");
    thread::sleep(Duration::from_secs(2));
    assert_eq!(count(&c, "deflates"), deflates);
    drop(waits);
}

/// When a program of the container said so, in seconds of its clock.
fn ticks(c: &Container) -> Vec<f64> {
    let first = |line: &str| line.split(' ').next().and_then(|word| word.parse().ok());
    c.output().lines().filter_map(first).collect()
}

const TICKS: &str = "while :; do cat /proc/uptime; sleep 3; done";

/// Waits until timers have woken it twice, and looks at when its program ran.
fn goes_on_in_time(c: &Container) {
    let woken = || count(c, "wakes_by_timer") >= 2;
    eventually("timers wake it", limit(), || woken() && ticks(c).len() >= 3);
    let ticks = ticks(c);
    let late = slowed(Duration::from_secs(1)).as_secs_f64();
    for pair in ticks.windows(2) {
        assert!((3.0..3.0 + late).contains(&(pair[1] - pair[0])), "{ticks:?}");
    }
}

#[test]
fn its_timers_go_off_in_time_while_it_sleeps() {
    let c = shell(&[], &["io.quark.hibernate.after=300ms"], TICKS);
    goes_on_in_time(&c);
    assert!(count(&c, "deflates_idle") >= 2);
}

#[test]
fn timers_rest_in_a_sleep_that_was_asked_for() {
    // Asked for while it sleeps by itself, too.
    for options in [&[][..], &[SOON]] {
        let c = shell(options, &[], TICKS);
        eventually("it runs", limit(), || !ticks(&c).is_empty());
        if !options.is_empty() {
            sleeps(&c);
        }
        c.hibernate();
        let before = ticks(&c).len();
        thread::sleep(Duration::from_secs(5));
        assert_eq!((ticks(&c).len(), c.hibernation().as_str()), (before, "Hibernated"));
        c.kill("CONT");
        eventually("it goes on", limit(), || ticks(&c).len() > before);
    }
}

#[test]
fn timers_wake_from_a_sleep_that_was_asked_for_if_told() {
    let c = shell(&[], &["io.quark.hibernate.timers=wake"], TICKS);
    eventually("it runs", limit(), || !ticks(&c).is_empty());
    c.hibernate();
    eventually("a timer wakes it", limit(), || count(&c, "wakes_by_timer") == 1);
    c.hibernate();
    goes_on_in_time(&c);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let refused = run(quark().args(["--hibernate-after=soon", "list"]), limit());
    assert!(!refused.success());
    assert!(
        refused.stderr.contains("\"soon\" is no time: write for example"),
        "{}",
        refused.stderr
    );
}

/// A container that is asked all the time whether it lives, for seven times as long as it may be
/// idle: how often it sleeps in between, and whether all questions came in time to prevent it.
fn asked(annotation: &str, ask: impl Fn(&Container)) -> (u64, bool) {
    let after = slowed(Duration::from_secs(1));
    let program = ["/mnt/apps/memory", "--tcp", "{port}", "--mb", "1"];
    let option = format!("--hibernate-after={}ms", after.as_millis());
    let c = Container::start_as(&[&option], &[annotation], "busybox", &program);
    let (begin, mut last, mut latest) = (Instant::now(), Instant::now(), Duration::ZERO);
    super::ready(&c);
    while begin.elapsed() < 7 * after {
        ask(&c);
        latest = latest.max(last.elapsed());
        last = Instant::now();
        thread::sleep(after * 3 / 10);
    }
    let sleeps = count(&c, "deflates_idle");
    // The count comes as late as the command that asks for it.
    (sleeps, latest.max(last.elapsed()) < after / 2)
}

/// Questions keep it awake under the annotation `other`, and not under `known`.
fn keeps_awake_unless_known(known: &str, other: &str, ask: impl Fn(&Container)) {
    assert!(asked(known, &ask).0 > 0);
    // On a busy machine they may come so late that it may sleep.
    let in_time = (0..5).map(|_| asked(other, &ask)).find(|(_, in_time)| *in_time);
    assert_eq!(in_time, Some((0, true)));
}

#[test]
fn probes_from_known_addresses_do_not_keep_it_awake() {
    let ping = |c: &Container| assert_eq!(c.ask("ping"), "pong");
    keeps_awake_unless_known(
        "io.quark.hibernate.ignore-from=127.0.0.0/8",
        "io.quark.hibernate.ignore-from=10.0.0.0/8,::1",
        ping,
    );
}

#[test]
fn health_checks_by_exec_do_not_keep_it_awake() {
    // It asks over the loopback device, as they do.
    let check = |c: &Container| {
        let script = format!("echo ping | nc 127.0.0.1 {}", c.port);
        assert_eq!(c.must(&["exec", &c.id, "sh", "-c", &script]), "pong\n");
    };
    keeps_awake_unless_known(
        "io.quark.hibernate.ignore-exec=sh -c echo ping*",
        "io.quark.hibernate.ignore-exec=sh -c echo other*",
        check,
    );
}

#[test]
fn timers_that_are_told_to_rest_do_not_keep_it_awake() {
    let options = ["--hibernate-after=2s"];
    let ticks = "while :; do cat /proc/uptime; sleep 0.5; done";
    let c = shell(&options, &["io.quark.hibernate.timers=rest"], ticks);
    sleeps(&c);
    let before = c.output().lines().count();
    thread::sleep(Duration::from_secs(3));
    assert_eq!(c.output().lines().count(), before);
    assert_eq!(count(&c, "wakes_by_timer"), 0);
}

#[test]
fn timers_that_are_told_to_rest_do_not_refuse_a_sleep_that_is_asked_for() {
    let program = "import time\nprint('up', flush=True)\nwhile True: time.sleep(0.005)";
    let rest = "io.quark.hibernate.timers=rest";
    let c = Container::start_as(&[], &[rest], "python", &["python3", "-c", program]);
    eventually("it runs", limit(), || c.output().contains("up"));
    for _ in 0..3 {
        c.hibernate();
        thread::sleep(Duration::from_millis(200));
        assert_eq!(c.hibernation(), "Hibernated");
        c.must(&["wake", &c.id]);
    }
    assert_eq!(count(&c, "wakes_by_timer"), 0);
}

/// A number of the dry run.
fn dry(c: &Container, name: &str) -> u64 {
    let stats = c.stats();
    stats["dry_run"][name].as_u64().unwrap_or_else(|| panic!("no {name}: {stats}"))
}

fn dry_asleep(c: &Container) -> bool {
    c.stats()["dry_run"]["is_asleep"] == true
}

#[test]
fn a_dry_run_tells_of_sleeps_and_has_none() {
    let c = memory_as(&[SOON, "--hibernate-dry-run"], "16");
    for round in 1..=2 {
        eventually("it would sleep", limit(), || dry_asleep(&c));
        let why = c.must(&["why", &c.id]);
        assert!(why.contains("would be asleep now"), "{why}");
        verified(&c.ask("verify"));
        eventually("it would be woken", limit(), || {
            c.stats()["dry_run"]["wakes"]["socket"].as_u64() == Some(round)
        });
    }
    eventually("it would sleep", limit(), || dry_asleep(&c));
    c.must(&["exec", &c.id, "true"]);
    eventually("it would sleep", limit(), || dry(&c, "sleeps") == 4 && dry_asleep(&c));
    let stats = c.stats();
    assert_eq!(stats["dry_run"]["wakes"]["exec"], 1, "{stats}");
    assert_eq!(stats["dry_run"]["last_wake_cause"], "exec");
    assert!(dry(&c, "asleep_ns") > 0);
    assert_eq!(count(&c, "deflates"), 0, "it has not slept");
    let metrics = c.must(&["metrics"]);
    assert!(metrics.contains("quark_container_dry_sleeps_total{"), "{metrics}");
    assert!(c.must(&["top", "--once"]).contains("dry sleep"));

    // The estimate is what a sleep gives back.
    let told = dry(&c, "last_freed_bytes");
    c.hibernate();
    let memory = c.stats()["memory"].clone();
    let held = |name: &str| memory[name].as_u64().expect("bytes");
    let freed = held("ram_held_before_sleep") - held("ram_held_after_sleep");
    assert!(told > 8 << 20 && told.abs_diff(freed) < freed / 10, "{told} told, {freed} freed");
}

#[test]
fn a_dry_run_knows_which_timer_would_wake() {
    let c = shell(&[SOON, "--hibernate-dry-run"], &[], TICKS);
    eventually("timers would wake it", limit(), || {
        c.stats()["dry_run"]["wakes"]["timer"].as_u64() >= Some(2)
    });
    let stats = c.stats();
    for cause in ["socket", "unfinished", "exec", "disk"] {
        assert_eq!(stats["dry_run"]["wakes"][cause], 0, "{stats}");
    }
    // Where they rest, what programs do for them is no use of it.
    let rest = "io.quark.hibernate.timers=rest";
    let c = shell(&[SOON], &[rest, "io.quark.hibernate.dry-run=true"], TICKS);
    eventually("it would sleep", limit(), || dry_asleep(&c));
    let before = ticks(&c).len();
    eventually("its timers go on", limit(), || ticks(&c).len() > before + 1);
    assert!(dry_asleep(&c));
    assert_eq!(dry(&c, "sleeps"), 1);
}
