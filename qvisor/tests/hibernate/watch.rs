//! What is told of sleeps and wakes, and that asking for it costs a sleeper nothing.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use qlib::control::{Reply, Request, SleepStats, Stats, WakeCause};

use super::support::container::Container;
use super::support::{eventually, limit};
use super::{memory, verified};

fn ask(c: &Container) -> Stats {
    match c.control().call(&Request::Stats, &[]).expect("stats") {
        Reply::Stats(stats) => *stats,
        other => panic!("{other:?}"),
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970")
}

#[test]
fn asking_a_sleeper_wakes_it_not_and_costs_nothing_that_lasts() {
    let c = memory("8");
    c.hibernate();
    let before = ask(&c);
    for _ in 0..300 {
        ask(&c);
        c.control().call(&Request::Processes { container: 0 }, &[]).expect("processes");
    }
    let after = ask(&c);
    assert_eq!(c.hibernation(), "Hibernated");
    assert_eq!(after.memory, before.memory);
    assert_eq!(after.counts, before.counts);
    let told = |stats: &Stats| SleepStats { in_state_ns: 0, asleep_ns: 0, ..stats.sleeps.clone() };
    assert_eq!(told(&after), told(&before));
    assert!(after.sleeps.in_state_ns > before.sleeps.in_state_ns);
}

#[test]
fn the_last_sleep_and_wake_are_told() {
    let c = memory("8");
    let awake = ask(&c);
    assert!(awake.sleeps.in_state_ns > 0);
    let nothing = SleepStats { in_state_ns: awake.sleeps.in_state_ns, ..SleepStats::default() };
    assert_eq!(awake.sleeps, nothing);

    let began = now();
    c.hibernate();
    thread::sleep(Duration::from_millis(200));
    let asleep = ask(&c);
    let at = Duration::from_nanos(asleep.sleeps.last_sleep_at_ns.expect("it sleeps"));
    assert!(began <= at && at + Duration::from_millis(200) <= now(), "{at:?} after {began:?}");
    assert!(Duration::from_nanos(asleep.sleeps.in_state_ns) >= Duration::from_millis(200));
    assert_eq!(asleep.sleeps.asleep_ns, asleep.sleeps.in_state_ns);
    let memory = &asleep.memory;
    // 8 MiB, of which a quarter are zeros or were never touched.
    let (before, after) = (memory.ram_held_before_sleep, memory.ram_held_after_sleep);
    assert!(before > after + (5 << 20) && after > 0, "{before} before, {after} after");
    assert_eq!(memory.ram_held, after);

    let woken = |cause, wakes: u64| {
        let stats = ask(&c).sleeps;
        assert_eq!(stats.last_wake_cause, Some(cause));
        assert_eq!(stats.wake_histogram.iter().sum::<u64>(), wakes);
        assert!(stats.last_wake_at_ns > stats.last_sleep_at_ns);
        assert!(stats.asleep_ns > 0 && stats.wakes_ns > 0);
        stats
    };
    verified(&c.ask("verify"));
    let first = woken(WakeCause::Socket, 1);
    assert!(first.asleep_ns >= asleep.sleeps.asleep_ns);
    c.hibernate();
    c.kill("CONT");
    let second = woken(WakeCause::Sigcont, 2);
    assert!(second.asleep_ns > first.asleep_ns && second.wakes_ns > first.wakes_ns);
    c.hibernate();
    c.must(&["exec", &c.id, "true"]);
    woken(WakeCause::Exec, 3);
    let told = c.stats()["sleeps"].take();
    assert_eq!(told["last_wake_cause"], "exec");
}

#[test]
fn a_timer_is_told_as_the_cause() {
    let program = "while :; do sleep 2; done";
    let annotations = ["io.quark.hibernate.after=300ms"];
    let c = Container::start_as(&[], &annotations, "busybox", &["sh", "-c", program]);
    eventually("a timer wakes it", limit(), || {
        ask(&c).sleeps.last_wake_cause == Some(WakeCause::Timer)
    });
}
