//! Hibernation tests: containers that sleep and wake, and a program in them that knows every byte
//! of its memory.

mod admission;
mod answers;
mod background;
mod busy;
mod durable;
mod faults;
mod idle;
mod images;
mod kept;
mod moments;
mod pressure;
mod rw_dirs;
mod snapshots;
mod stubs;
#[path = "../support/mod.rs"]
mod support;
mod templates;
mod watch;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use qlib::control::Request;
use support::container::{Connection, Container, FORCE, HIBERNATE, alive, children, put_to_sleep};
use support::limit;

/// Starts the memory program and waits until it serves.
fn memory(megabytes: &str) -> Container {
    memory_as(&[], megabytes)
}

/// The same by a command with options.
fn memory_as(options: &[&str], megabytes: &str) -> Container {
    let args = ["/mnt/apps/memory", "--tcp", "{port}", "--udp", "{port}", "--mb", megabytes];
    let container = Container::start_as(options, &[], "busybox", &args);
    ready(&container);
    container
}

/// Waits until the program has filled its memory, and verified it once.
pub fn ready(container: &Container) {
    support::eventually("the program is ready", limit(), || {
        let output = container.output();
        assert!(!output.contains("BAD"), "before any sleep: {output}");
        assert!(alive(container.pid()), "the container has ended: {output}");
        output.contains("ready")
    });
}

fn verified(answer: &str) {
    let bytes = answer.strip_prefix("ok ").and_then(|n| n.parse::<u64>().ok());
    assert!(bytes.is_some_and(|n| n > 0), "{answer}");
}

fn count(container: &Container, name: &str) -> u64 {
    container.stats()["counts"][name].as_u64().unwrap_or_else(|| panic!("no count {name}"))
}

#[test]
fn the_program_verifies_natively_and_sees_one_bit() {
    let program = support::test_apps("hibernation").join("memory");
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(r#"printf 'verify\nchange\nverify\ncorrupt\nverify\nquit\n' | "$0" --mb 4"#)
        .arg(program);
    let outcome = support::run(&mut command, limit());
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines.len(), 6, "{lines:?} {}", outcome.describe());
    verified(lines[1]);
    verified(lines[3]);
    assert!(lines[5].starts_with("BAD "), "{lines:?}");
}

#[test]
fn every_byte_survives_a_sleep() {
    let c = memory("32");
    verified(&c.ask("verify"));
    c.hibernate();
    verified(&c.ask("verify"));
    assert_eq!(count(&c, "deflates"), 1);
    assert_eq!(count(&c, "wakes_by_socket"), 1);
    assert!(count(&c, "swap_ins") > 0);
}

/// What comes back from the store one by one are the program's major faults (getrusage(2)).
#[test]
fn pages_that_come_back_are_major_faults() {
    let c = memory("8");
    let faults = || {
        let stat = c.must(&["exec", &c.id, "cat", "/proc/1/stat"]);
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        (fields[7].parse::<u64>().unwrap(), fields[9].parse::<u64>().unwrap())
    };
    let (minor, major) = faults();
    assert!(minor > 0, "its memory was touched");
    assert_eq!(major, 0);
    c.hibernate();
    verified(&c.ask("verify"));
    let (later, major) = faults();
    assert!(later >= minor, "{later} after {minor}");
    let pages = count(&c, "swap_ins");
    assert!((1..=pages).contains(&major), "{major} faults for {pages} pages");
}

#[test]
fn ten_sleeps_in_a_row() {
    let c = memory("16");
    for round in 0..10 {
        verified(&c.ask(if round % 2 == 0 { "peek" } else { "verify" }));
        c.hibernate();
        assert_eq!(c.ask("change"), "ok 0");
        c.hibernate();
        verified(&c.ask("verify"));
    }
    assert_eq!(count(&c, "deflates"), 20);
    assert!(count(&c, "reap_pages") > 0);
    // A client's end of a connection may come on the way there, seldom.
    assert!(count(&c, "deflates_failed") <= 4);
}

/// The recorded working set in pages.
fn working_set(container: &Container) -> u64 {
    container.stats()["memory"]["working_set"].as_u64().expect("working_set") / 4096
}

/// Pages of a half of the private memory of `memory("16")` that surely have content: a quarter are
/// zeros or were never touched.
const HALF_PAGES: u64 = 4096 / 2 * 5 / 8;

#[test]
fn the_working_set_follows_what_is_used() {
    let c = memory("16");
    c.hibernate();
    let faults = count(&c, "faults");
    verified(&c.ask("part 0 1 2"));
    let faults = count(&c, "faults") - faults;
    let came = count(&c, "swap_ins");
    // The pages without content fault as well, and leave only a third of the aligned groups of four
    // whole: without neighbours these would be 1,900 faults, and 1,340 if a page brought one
    // neighbour at most.
    assert!(
        HALF_PAGES < came && faults < HALF_PAGES,
        "{faults} faults for {came} pages: neighbours come along"
    );
    c.hibernate();
    let first = working_set(&c);
    assert!(first > HALF_PAGES, "{first} pages");
    for _ in 0..5 {
        verified(&c.ask("part 1 2 2"));
        c.hibernate();
    }
    // The first half has left, the second is there.
    let later = working_set(&c);
    assert!(count(&c, "reap_left") > HALF_PAGES, "{} pages have left", count(&c, "reap_left"));
    assert!(HALF_PAGES < later && later < first + HALF_PAGES / 2, "{later} pages, {first} before");
    let before = count(&c, "swap_ins");
    verified(&c.ask("part 1 2 2"));
    assert!(count(&c, "swap_ins") < before + 50, "what is used is prefetched");
    verified(&c.ask("part 0 1 2"));
    assert!(count(&c, "swap_ins") > before + HALF_PAGES, "what has left is not");
    verified(&c.ask("verify"));
}

/// Pages that the processes of `memory` share (anonymous memory, a file mapped from memory, a
/// memfd, a System V segment, a tmpfs file), and how many processes there are.
const SHARED_PAGES: u64 = 512 + 200 + 100 + 100 + 150;
const PROCESSES: u64 = 4;

#[test]
fn what_processes_share_is_prefetched_for_all_of_them() {
    let c = memory("1");
    verified(&c.ask("verify"));
    c.hibernate();
    assert_eq!(working_set(&c), 0);
    let faults = count(&c, "faults");
    // 100 pages of the memfd are mapped twice.
    let bytes = format!("ok {}", (SHARED_PAGES + 100) * PROCESSES * 4096);
    assert_eq!(c.ask("shared"), bytes);
    let swap_ins = count(&c, "swap_ins");
    assert!(swap_ins >= SHARED_PAGES, "{swap_ins}");
    let faults = count(&c, "faults") - faults;
    assert!(faults < SHARED_PAGES * (PROCESSES - 1), "{faults} faults: neighbours are mapped too");
    for round in 1..=3 {
        c.hibernate();
        assert!(working_set(&c) >= SHARED_PAGES, "{} pages", working_set(&c));
        let (faults, before) = (count(&c, "faults"), count(&c, "swap_ins"));
        assert_eq!(c.ask("shared"), bytes, "round {round}");
        assert!(
            count(&c, "reap_pages") >= round * SHARED_PAGES,
            "{} pages",
            count(&c, "reap_pages")
        );
        assert!(
            count(&c, "swap_ins") - before < 30,
            "{} pages came one by one",
            count(&c, "swap_ins") - before
        );
        assert!(count(&c, "faults") - faults < 300, "{} faults", count(&c, "faults") - faults);
        assert_eq!(c.ask("change"), "ok 0");
        verified(&c.ask("verify"));
    }
    // Not used any more: all of it leaves, and comes back whole.
    for _ in 0..4 {
        c.hibernate();
        assert_eq!(c.ask("ping"), "pong");
    }
    c.hibernate();
    assert!(working_set(&c) < SHARED_PAGES, "{} pages", working_set(&c));
    let before = count(&c, "swap_ins");
    assert_eq!(c.ask("shared"), bytes);
    assert!(count(&c, "swap_ins") - before > SHARED_PAGES / 2);
    verified(&c.ask("verify"));
}

#[test]
fn what_every_second_request_uses_stays_in_the_working_set() {
    let c = memory("16");
    c.hibernate();
    let mut settled = 0;
    for round in 0..10 {
        verified(&c.ask(if round % 2 == 0 { "part 0 1 2" } else { "part 1 2 2" }));
        c.hibernate();
        if round == 1 {
            settled = count(&c, "swap_ins");
            assert!(working_set(&c) > 2 * HALF_PAGES);
        }
    }
    let more = count(&c, "swap_ins") - settled;
    assert!(more < HALF_PAGES / 8, "{more} pages went to and fro");
}

#[test]
fn a_wake_without_a_request_leaves_the_working_set_alone() {
    let c = memory("16");
    for _ in 0..2 {
        c.hibernate();
        verified(&c.ask("part 0 1 2"));
    }
    for _ in 0..5 {
        c.hibernate();
        c.kill("CONT");
    }
    let before = count(&c, "swap_ins");
    verified(&c.ask("part 0 1 2"));
    assert!(count(&c, "swap_ins") < before + 50, "it was prefetched");
}

/// Starts the restless program and waits until it serves.
fn restless(args: &[&str]) -> Container {
    let container =
        Container::start("busybox", &[&["/mnt/apps/restless", "--tcp", "{port}"], args].concat());
    ready(&container);
    container
}

/// Sets its threads going and makes `requests` in the same moment, `rounds` times.
fn stirred(rounds: u32, requests: [Request; 2]) {
    let c = restless(&[]);
    let mut open = c.connect().expect("connect");
    let mut control = c.control();
    for round in 0..support::repeats(rounds) {
        assert_eq!(open.ask("stir"), "ok");
        for request in &requests {
            control.order(request).unwrap_or_else(|e| panic!("round {round}, {request:?}: {e:#}"));
        }
    }
}

#[test]
fn threads_that_leave_user_mode_by_themselves_hold_up_no_pause() {
    stirred(300, [Request::Pause, Request::Resume]);
}

#[test]
fn an_answer_just_given_does_not_keep_it_awake() {
    stirred(100, [HIBERNATE, Request::Wake]);
}

#[test]
fn what_timers_write_during_a_deflate_is_not_lost() {
    let c = restless(&["--mb", "32", "--timers", "6"]);
    let mut open = c.connect().expect("connect");
    let mut control = c.control();
    for _ in 0..10 {
        // They go off all the time. What still comes of the last request may wake it in the middle.
        support::eventually("it has slept", limit(), || match control.order(&FORCE) {
            Ok(_) => true,
            Err(e) => {
                assert!(e.to_string().contains("something woke it"), "{e:#}");
                false
            }
        });
        let answer = open.ask("check");
        assert!(answer.starts_with("ok "), "{answer}");
    }
    support::eventually("timers expire", limit(), || open.ask("check") != "ok 0");
}

/// All that the program does it waits for by requests of a ring (io_uring(7)).
#[test]
fn requests_of_a_ring_wait_through_sleeps() {
    let c = Container::start("busybox", &["/mnt/apps/uring", "--tcp", "{port}"]);
    c.listening();
    assert_eq!(c.ask("before"), "before");
    let mut open = c.connect().expect("connect");
    assert_eq!(open.ask("awake"), "awake");
    for round in 0..3 {
        c.hibernate();
        assert_eq!(open.ask("a connection that was open"), "a connection that was open");
        c.hibernate();
        assert_eq!(c.ask("a new one"), "a new one", "round {round}");
    }
    assert_eq!((count(&c, "deflates"), count(&c, "wakes_by_socket")), (6, 6));
}

/// What the host counts as its memory, in bytes.
fn held(c: &Container) -> u64 {
    c.stats()["cgroup"]["held_bytes"].as_u64().expect("held_bytes")
}

#[test]
fn asleep_it_holds_little_memory() {
    let c = memory("64");
    verified(&c.ask("verify"));
    let warm = held(&c);
    c.hibernate();
    let asleep = held(&c);
    assert!(asleep * 4 <= warm, "{asleep} bytes asleep, {warm} warm");
    verified(&c.ask("verify"));
}

#[test]
fn names_that_nobody_asks_for_are_forgotten_by_a_sleep() {
    let c = Container::start("python", &["/usr/bin/sleep", "1000"]);
    let heap =
        |c: &Container| c.stats()["memory"]["kernel_heap_held"].as_u64().expect("kernel_heap_held");
    c.must(&["exec", &c.id, "/usr/bin/find", "/usr", "/etc", "-perm", "7777"]);
    let warm = heap(&c);
    assert!(warm > 1 << 20, "{warm} bytes for thousands of names");
    // The first forgets what was asked for once, the second what was not asked for between them.
    c.hibernate();
    let first = heap(&c);
    c.kill("CONT");
    support::eventually("it is awake", limit(), || c.hibernation() != "Hibernated");
    c.hibernate();
    let asleep = heap(&c);
    assert!(first < warm && asleep * 3 < warm, "{asleep} bytes asleep, {first}, {warm} warm");
}

#[test]
fn data_on_an_open_connection_wakes() {
    let c = memory("8");
    let mut open: Connection = c.connect().expect("connect");
    assert_eq!(open.ask("ping"), "pong");
    for _ in 0..3 {
        c.hibernate();
        assert_eq!(open.ask("ping"), "pong");
    }
    verified(&open.ask("verify"));
    assert_eq!(count(&c, "wakes_by_socket"), 3);
}

#[test]
fn a_datagram_wakes() {
    let c = memory("8");
    c.hibernate();
    assert_eq!(c.ask_datagram("ping").as_deref(), Some("pong"));
    c.hibernate();
    verified(&c.ask_datagram("verify").expect("an answer"));
}

#[test]
fn sigcont_wakes() {
    let c = memory("8");
    c.hibernate();
    c.kill("CONT");
    assert_ne!(c.hibernation(), "Hibernated");
    assert_eq!(count(&c, "wakes_by_sigcont"), 1);
    verified(&c.ask("verify"));
}

#[test]
fn another_signal_wakes_and_is_delivered() {
    let c = memory("8");
    c.hibernate();
    c.kill("USR1");
    support::eventually("the signal is handled", limit(), || c.ask("signals") == "1");
    assert_eq!(count(&c, "wakes_by_signal"), 1);
    verified(&c.ask("verify"));
}

#[test]
fn exec_wakes() {
    let c = memory("8");
    c.hibernate();
    assert_eq!(c.must(&["exec", &c.id, "/bin/echo", "awake"]).trim(), "awake");
    assert_eq!(count(&c, "wakes_by_exec"), 1);
    verified(&c.ask("verify"));
}

#[test]
fn a_wake_in_the_middle_of_a_deflate() {
    let c = memory("32");
    for round in 0..15u64 {
        thread::scope(|scope| {
            let stop = scope.spawn(|| c.command(&["kill", &c.id, "STOP"]));
            // From before the deflate to after it.
            thread::sleep(Duration::from_millis(round * 3));
            let mut open = c.connect().expect("connect");
            open.send("ping");
            // Abandoned or done: both are fine, hanging is not.
            assert!(stop.join().expect("thread").status.is_some());
            assert_eq!(open.answer(), "pong", "round {round}");
        });
    }
    verified(&c.ask("verify"));
}

/// How long an answer may take that no second request hastens.
fn patience() -> Duration {
    support::slowed(Duration::from_secs(10))
}

/// `rounds` times a client comes in the moment of a STOP, a little earlier or later each time, and
/// `answered` must be true of it. Between them nobody comes, and it must go to sleep.
fn clients_that_come_with_the_stop(
    c: &Container,
    rounds: u32,
    answered: impl Fn(Connection) -> bool + Sync,
) {
    let rounds = support::repeats(rounds);
    let mut control = c.control();
    let (mut slept, mut refused) = (0, 0);
    for round in 0..rounds {
        let barrier = Barrier::new(2);
        thread::scope(|scope| {
            let client = scope.spawn(|| {
                barrier.wait();
                // From 2 ms before to 2 ms after.
                thread::sleep(Duration::from_micros(u64::from(round) * 4000 / u64::from(rounds)));
                let mut open = c.connect().expect("connect");
                open.set_patience(patience());
                answered(open)
            });
            barrier.wait();
            thread::sleep(Duration::from_millis(2));
            match control.order(&HIBERNATE) {
                Ok(()) => slept += 1,
                Err(_) => refused += 1,
            }
            assert!(
                client.join().expect("thread"),
                "round {round}: no answer; {slept} sleeps, {refused} refused; {}",
                c.stats()
            );
        });
        if round % 10 == 9 {
            put_to_sleep(|| {
                let order = control.order(&HIBERNATE);
                order.map_err(|e| format!("round {round}, nobody comes: {e:#}"))
            });
        }
    }
    println!("{rounds} clients answered: {slept} STOPs put it to sleep, {refused} were abandoned");
}

#[test]
fn a_client_that_comes_with_the_stop_is_answered_by_poll() {
    let c = memory("8");
    clients_that_come_with_the_stop(&c, 150, |mut open| {
        open.send("ping");
        open.try_answer().as_deref() == Some("pong")
    });
    verified(&c.ask("verify"));
}

#[test]
fn a_client_that_comes_with_the_stop_is_answered_by_blocking_calls() {
    let c = restless(&[]);
    clients_that_come_with_the_stop(&c, 150, |mut open| {
        // Accepted first, with nothing to read yet.
        thread::sleep(Duration::from_micros(300));
        open.send("check");
        open.try_answer().is_some_and(|a| a.starts_with("ok "))
    });
}

#[test]
fn a_client_that_comes_with_the_stop_is_answered_by_python() {
    let c = Container::start(
        "python",
        &["/usr/bin/python3", "/mnt/functions/hello.py", "--port", "{port}"],
    );
    c.listening();
    clients_that_come_with_the_stop(&c, 50, |mut open| {
        open.send("GET / HTTP/1.0\r\n\r");
        open.try_answer().is_some_and(|a| a.starts_with("HTTP/1.1 200"))
    });
}

/// Runs cases of a system-call program, each of which checks what it finds, while the container is
/// put to sleep and woken up all the time; over and over until it has slept often enough, for a
/// quick machine is done with them before.
fn sleeps_through(program: &str, cases: &str) {
    const ENOUGH: u32 = 4;
    let script = format!(
        "enough=; trap enough=1 USR1; export QUARK_TEST_LIMIT_S=300; \
         while /mnt/apps/{program} {cases}; code=$?; [ $code = 0 -a -z \"$enough\" ]; do :; done; \
         echo all $code; exec sleep 1000"
    );
    let c = Container::start("busybox", &["sh", "-c", &script]);
    let (begin, mut sleeps) = (Instant::now(), 0);
    while !c.output().contains("all ") {
        assert!(begin.elapsed() < 10 * limit(), "{program} does not end: {}", c.output());
        // Refused as often as a pause finds something going on.
        let stopped = c.command(&["hibernate", "--force", "--timeout=1ms", &c.id]);
        sleeps += u32::from(stopped.success());
        // In a moment in which all wait for a timer it sleeps on.
        c.kill("CONT");
        // Once: the shell has a handler only until the last round is over.
        if stopped.success() && sleeps == ENOUGH {
            c.kill("USR1");
        }
        thread::sleep(Duration::from_millis(u64::from(sleeps % 5) * 20));
    }
    assert!(c.output().contains("all 0"), "{}", c.output());
    assert!(sleeps > 3, "{sleeps} sleeps in {:?}: {}", begin.elapsed(), c.output());
}

#[test]
fn threads_against_each_other_are_forced_to_sleep() {
    let cases = "fork_while_threads_write map_and_unmap_in_threads dontneed_races_with_writers \
                 protection_changes_while_others_fault signals_into_working_threads \
                 pipeline_of_processes futexes_between_processes workers_on_one_epoll \
                 descriptor_table_races ranges_taken_away_beside_each_other";
    sleeps_through("stress", cases);
}

#[test]
fn a_crowd_of_threads_is_forced_to_sleep() {
    sleeps_through("threads", "a_crowd_that_waits a_crowd_that_is_left_behind");
}

#[test]
fn calls_that_wait_for_a_supervisor_are_forced_to_sleep() {
    let cases = "calls_in_a_row a_signal_has_it_made_again many_threads_wait readiness \
                 descriptors_are_given one_that_was_taken_outlasts_signals";
    sleeps_through("unotify", cases);
}

#[test]
fn a_sleep_does_not_end_a_pause() {
    let c = memory("32");
    let (mut control, mut sleeper) = (c.control(), c.control());
    let mut open = c.connect().expect("connect");
    let mut held = |open: &mut Connection, what: &str| {
        open.send("ping");
        open.set_patience(Duration::from_millis(150));
        assert_eq!(open.try_answer(), None, "{what}: paused, it must not answer");
        control.order(&Request::Resume).expect("resume");
        open.set_patience(patience());
        assert_eq!(open.try_answer().as_deref(), Some("pong"), "{what}");
    };
    let mut pauser = c.control();
    // The pause comes before, in and after a deflate, which the request abandons if it is not over.
    for round in 0..20u64 {
        thread::scope(|scope| {
            let stop = scope.spawn(|| sleeper.order(&HIBERNATE));
            thread::sleep(Duration::from_millis(round * 3));
            pauser.order(&Request::Pause).expect("pause");
            held(&mut open, &format!("round {round}"));
            // Put to sleep, or abandoned.
            let _ = stop.join().expect("thread");
        });
    }
    let mut sleeps_paused = || {
        // So that the pause finds it quiet, not on the way from its answer.
        for request in [HIBERNATE, Request::Wake, Request::Pause, HIBERNATE] {
            pauser.order(&request).unwrap_or_else(|e| panic!("{request:?}: {e:#}"));
        }
    };
    // A wake does not end a pause either.
    sleeps_paused();
    sleeper.order(&Request::Wake).expect("wake");
    held(&mut open, "woken");
    // Nor does the end of a pause end a sleep, but the next wake lets it go on.
    sleeps_paused();
    sleeper.order(&Request::Resume).expect("resume");
    assert_eq!(c.hibernation(), "Hibernated");
    assert_eq!(open.ask("ping"), "pong");
}

#[test]
fn many_connections_at_once_wake_it_once_each_answered() {
    let c = memory("8");
    c.hibernate();
    thread::scope(|scope| {
        let all: Vec<_> = (0..12).map(|_| scope.spawn(|| c.ask("ping"))).collect();
        for one in all {
            assert_eq!(one.join().expect("thread"), "pong");
        }
    });
    assert_eq!(count(&c, "deflates"), 1);
    verified(&c.ask("verify"));
}

/// Starts the memory program where the file system of the store has `size` bytes.
fn memory_with_disk(size: &str) -> Container {
    let script = format!("mount -t tmpfs -o size={size} tmpfs /var/tmp && exec \"$@\"");
    let wrapper = ["unshare", "--mount", "--propagation", "private", "sh", "-c", &script, "sh"];
    let args = ["/mnt/apps/memory", "--tcp", "{port}", "--mb", "16"];
    let container = Container::start_under(&wrapper, "busybox", &args);
    ready(&container);
    container
}

#[test]
fn on_a_full_disk_it_stays_awake_and_whole() {
    let c = memory_with_disk("1m");
    verified(&c.ask("verify"));
    for _ in 0..3 {
        let refused = c.command(&["kill", &c.id, "STOP"]);
        assert!(refused.status.is_some_and(|s| !s.success()), "kill STOP: {}", refused.describe());
        assert_eq!(refused.stderr.lines().count(), 1, "one clear line: {}", refused.stderr);
        assert_ne!(c.hibernation(), "Hibernated");
        verified(&c.ask("verify"));
        assert_eq!(c.ask("change"), "ok 0");
    }
    assert_eq!(count(&c, "deflates_failed"), 3);
}

#[test]
fn a_damaged_store_kills_rather_than_runs_on() {
    let c = memory_with_disk("1g");
    verified(&c.ask("verify"));
    c.hibernate();
    let files = store_files(c.pid());
    assert!(!files.is_empty(), "the store has no file");
    for path in files {
        let file = OpenOptions::new().write(true).open(&path).expect("open the store");
        let length = file.metadata().expect("size of the store").len();
        for at in (0..length).step_by(4096) {
            file.write_all_at(b"damage", at + 100).expect("damage the store");
        }
    }
    // It may not answer "ok": it dies before it can, or the connection breaks.
    if let Some(mut connection) = c.connect() {
        connection.try_send("verify");
        assert_eq!(connection.try_answer().filter(|a| !a.is_empty()), None);
    }
    support::eventually("the container ends", limit(), || c.state()["status"] == "stopped");
}

/// How a page of the store is made useless.
#[derive(Clone, Copy, Debug)]
enum Harm {
    /// It cannot be read.
    Gone,
    /// It is not what was stored.
    Damaged,
}

/// Starts the program that tells by its output whether it ran on, has it use its working set, and
/// puts it to sleep after `requests`.
fn sleeping_canary(requests: &[&str]) -> Container {
    let script = "mount -t tmpfs -o size=1g tmpfs /var/tmp && exec \"$@\"";
    let wrapper = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"];
    let c = Container::start_under(&wrapper, "busybox", &["/mnt/apps/canary", "--tcp", "{port}"]);
    c.listening();
    // The first sleep learns what is used.
    assert_eq!(c.ask("ping"), "pong");
    c.hibernate();
    assert_eq!(c.ask("ping"), "pong");
    for request in requests {
        assert_eq!(c.ask(request), "ok");
    }
    c.hibernate();
    c
}

/// Does harm to every page of the store that begins with `begin`.
fn harm(c: &Container, begin: &str, harm: Harm) {
    let mut pages = 0;
    for path in store_files(c.pid()) {
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("open the store");
        let length = file.metadata().expect("size of the store").len();
        let found = (0..length).step_by(4096).filter(|at| {
            let mut bytes = vec![0; begin.len()];
            file.read_exact_at(&mut bytes, *at).is_ok() && bytes == begin.as_bytes()
        });
        let found: Vec<u64> = found.collect();
        pages += found.len();
        match (harm, found.first()) {
            (_, None) => {}
            (Harm::Gone, Some(first)) => file.set_len(*first).expect("cut the store off"),
            (Harm::Damaged, Some(_)) => {
                for at in found {
                    file.write_all_at(b"damage", at + 2048).expect("damage the store");
                }
            }
        }
    }
    assert!(pages >= 32, "{begin}: {pages} pages in the store");
}

/// The container ends as one whose memory is lost does.
fn ends_by_loss(c: &Container) {
    support::eventually("the container ends", limit(), || c.state()["status"] == "stopped");
    let ended = &c.state()["ended"];
    assert!(
        ended["reason"].as_str().is_some_and(|r| r.contains("could not be read back")),
        "{}",
        c.state()
    );
}

#[test]
fn no_instruction_runs_after_the_working_set_is_lost() {
    for how in [Harm::Gone, Harm::Damaged] {
        let c = sleeping_canary(&["sing"]);
        let before = c.output();
        assert!(before.contains("alive"), "{before}");
        harm(&c, "canary-used", how);
        // Refused or not: what counts is what it did.
        c.command(&["kill", &c.id, "CONT"]);
        ends_by_loss(&c);
        assert_eq!(c.output(), before, "{how:?}: it ran on");
    }
}

#[test]
fn no_instruction_runs_on_a_page_that_is_lost() {
    for area in ["canary-lone", "canary-run", "canary-shared", "canary-passed"] {
        for how in [Harm::Gone, Harm::Damaged] {
            let c = sleeping_canary(&[]);
            let before = c.output();
            harm(&c, area, how);
            let mut connection = c.connect().expect("connect");
            connection.try_send(area);
            assert_eq!(connection.try_answer().filter(|a| !a.is_empty()), None, "{area}, {how:?}");
            ends_by_loss(&c);
            assert_eq!(c.output(), before, "{area}, {how:?}: it ran on");
        }
    }
}

/// The nameless regular files that a sandbox process keeps open.
fn store_files(pid: i32) -> Vec<PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors of the sandbox");
    let files = descriptors.flatten().map(|d| d.path()).filter(|path| {
        let memory = fs::read_link(path).is_ok_and(|t| t.to_string_lossy().starts_with("/memfd:"));
        !memory && fs::metadata(path).is_ok_and(|m| m.is_file() && m.nlink() == 0 && m.len() > 0)
    });
    files.collect()
}

#[test]
fn killed_asleep_it_leaves_nothing() {
    let c = memory("8");
    let pid = c.pid();
    c.hibernate();
    let stubs = children(pid);
    c.kill("KILL");
    support::eventually("the sandbox ends", limit(), || !alive(pid));
    support::eventually("its stubs end", limit(), || !stubs.iter().any(|&p| alive(p)));
    assert_eq!(c.state()["status"], "stopped");
    c.must(&["delete", &c.id]);
    assert!(!c.command(&["state", &c.id]).success());
}

#[test]
fn sigkill_to_the_sandbox_leaves_no_stub() {
    for asleep in [false, true] {
        let c = memory("8");
        if asleep {
            c.hibernate();
        }
        let pid = c.pid();
        let stubs = children(pid);
        assert!(
            support::run(Command::new("kill").args(["-KILL", &pid.to_string()]), limit()).success()
        );
        support::eventually("the sandbox ends", limit(), || !alive(pid));
        support::eventually("its stubs end", limit(), || !stubs.iter().any(|&p| alive(p)));
        assert_eq!(c.state()["status"], "stopped");
    }
}

#[test]
fn a_python_function_sleeps_and_answers() {
    let c = Container::start(
        "python",
        &["/usr/bin/python3", "/mnt/functions/hello.py", "--port", "{port}"],
    );
    c.listening();
    assert_eq!(c.get("/"), "hello 1\n");
    for n in 2..8 {
        c.hibernate();
        assert_eq!(c.get("/"), format!("hello {n}\n"));
    }
}

/// Each answer has the digest of what the function computed.
#[test]
fn functions_of_functionbench_answer_the_same_after_each_sleep() {
    for function in ["float_operation", "gzip_compression"] {
        let path = format!("/mnt/bench/functions/{function}.py");
        let frame = "/mnt/bench/frame.py";
        let c = Container::start("python", &["/usr/bin/python3", frame, &path, "--port", "{port}"]);
        c.listening();
        let ask = |served: u64| {
            let text = c.get("/");
            let answer: serde_json::Value =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{function}: {e}: {text}"));
            assert_eq!(answer["function"], function);
            assert_eq!(answer["served"], served, "{function}");
            answer["digest"].as_str().expect("a digest").to_owned()
        };
        let first = ask(1);
        assert_eq!(first.len(), 64, "{function}: {first}");
        for served in [2, 4, 6] {
            c.hibernate();
            assert_eq!(ask(served), first, "{function}, woken");
            assert_eq!(ask(served + 1), first, "{function}, the next time");
        }
    }
}
