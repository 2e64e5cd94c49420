//! What was asked is answered: a container that is asked to sleep in the middle of something
//! finishes it first, or refuses and says why, or is forced and goes on at once.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use qlib::control::Request;

use super::support::container::{Connection, Container, HIBERNATE};
use super::support::{eventually, limit, repeats, slowed};
use super::{count, memory, patience, restless};

/// Asks it to sleep, for which it has a second: why it does not.
fn refusal(c: &Container) -> String {
    let refused = c.command(&["hibernate", "--timeout=1s", &c.id]);
    assert!(!refused.success(), "it sleeps");
    assert_eq!(refused.stderr.trim().lines().count(), 1, "one line: {}", refused.stderr);
    refused.stderr
}

/// Forces it to sleep, and goes on to see that it was woken at once.
fn forced(c: &Container) {
    let before = count(c, "wakes_by_unfinished");
    c.must(&["hibernate", "--force", "--timeout=100ms", &c.id]);
    assert_ne!(c.hibernation(), "Hibernated");
    assert_eq!(count(c, "wakes_by_unfinished"), before + 1);
}

/// A Python program with the container's port as its argument.
fn python(program: &str) -> Container {
    Container::start("python", &["python3", "-c", program, "{port}"])
}

/// One that goes on so, once it has the listening socket `s`.
fn python_server(rest: &str) -> Container {
    let c = python(&format!(
        "import socket, sys, time\n\
         s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n\
         print('listens', flush=True)\n\
         {rest}"
    ));
    eventually("it listens", limit(), || c.output().contains("listens"));
    c
}

#[test]
fn a_request_that_has_just_begun_is_answered_before_the_sleep() {
    let c = restless(&[]);
    let mut control = c.control();
    let mut open = c.connect().expect("connect");
    open.set_patience(patience());
    for _ in 0..5 {
        open.send("spin 150");
        thread::sleep(Duration::from_millis(30));
        control.order(&HIBERNATE).expect("hibernate");
        assert_eq!(open.try_answer().as_deref(), Some("spun"));
    }
}

/// One that comes in the middle of the sleep is served, and then it sleeps.
#[test]
fn requests_put_a_sleep_off_but_not_out() {
    let c = memory("4");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Some pauses are long enough to fall asleep in, however slow the machine is.
            for pause_ms in [20, 60, 200, 40, 500].into_iter().cycle() {
                if is_over.load(Relaxed) {
                    break;
                }
                assert_eq!(c.ask("ping"), "pong");
                thread::sleep(Duration::from_millis(pause_ms));
            }
        });
        let outcomes: Vec<_> = (0..40).map(|_| c.command(&["hibernate", &c.id])).collect();
        is_over.store(true, Relaxed);
        for outcome in outcomes {
            assert!(outcome.success(), "{}", outcome.describe());
        }
    });
}

#[test]
fn a_request_in_one_long_call_is_answered_before_the_sleep() {
    let c = restless(&["--mb", "8"]);
    let mut control = c.control();
    let mut open = c.connect().expect("connect");
    open.set_patience(patience());
    // So long that the STOP comes in the middle of it.
    let mut takes_long = |read: &String| {
        let begin = Instant::now();
        assert_eq!(open.ask(read), "read");
        begin.elapsed() > Duration::from_millis(60)
    };
    let mut reads = (0..6).map(|power| format!("read {}", 1 << power));
    let read = reads.find(&mut takes_long).unwrap_or_else(|| "read 64".to_owned());
    for round in 0..repeats(20) {
        open.send(&read);
        // Somewhere in the call.
        thread::sleep(Duration::from_millis(2 + u64::from(round)));
        let stop = control.order(&HIBERNATE);
        let told = format!("round {round}, {read}, STOP: {stop:?}");
        assert_eq!(open.try_answer().as_deref(), Some("read"), "{told}");
    }
}

#[test]
fn a_request_that_waits_for_a_timer_is_answered_before_the_sleep() {
    let c = memory("8");
    for _ in 0..5 {
        let mut slow = c.connect().expect("connect");
        slow.set_patience(patience());
        slow.send("slow 300");
        // By now it is being served, or about to be.
        thread::sleep(Duration::from_millis(50));
        c.hibernate();
        assert_eq!(slow.try_answer().as_deref(), Some("slept"));
    }
    assert_eq!(count(&c, "wakes_by_timer"), 0);
    let mut slow = c.connect().expect("connect");
    slow.send("slow 4000");
    thread::sleep(Duration::from_millis(300));
    let why = refusal(&c);
    assert!(why.contains("waits for an answer, and a timer goes off in"), "{why}");
    forced(&c);
    assert_eq!(slow.answer(), "slept");
    c.hibernate();
}

#[test]
fn who_has_waited_for_long_is_answered_by_a_timer_that_wakes() {
    let c = memory("8");
    let mut slow = c.connect().expect("connect");
    let begin = Instant::now();
    slow.send("slow 25000");
    // Longer than a request is believed to take.
    thread::sleep(Duration::from_secs(11));
    c.command(&["hibernate", "--timeout=1s", &c.id]);
    while c.hibernation() != "Hibernated" && begin.elapsed() < Duration::from_secs(20) {
        c.command(&["hibernate", "--timeout=1s", &c.id]);
    }
    assert_eq!(c.hibernation(), "Hibernated");
    slow.set_patience(patience() + Duration::from_secs(15));
    assert_eq!(slow.try_answer().as_deref(), Some("slept"));
    assert!(begin.elapsed() < slowed(Duration::from_secs(1)) + Duration::from_secs(25));
    assert_eq!(count(&c, "wakes_by_timer"), 1);
}

#[test]
fn what_computes_does_not_sleep_but_by_force() {
    let c = restless(&[]);
    let mut open = c.connect().expect("connect");
    open.send("spin 6000");
    thread::sleep(Duration::from_millis(50));
    let why = refusal(&c);
    assert!(why.contains("process 1 (restless) runs"), "{why}");
    let told = c.must(&["why", &c.id]);
    assert!(told.contains("awake: process 1 (restless) runs"), "{told}");
    forced(&c);
    assert_eq!(open.answer(), "spun");
    c.hibernate();
    assert_eq!(c.must(&["why", &c.id]), "asleep, as it was asked to; last woken by: unfinished\n");
    c.must(&["wake", &c.id]);
    assert!(c.must(&["why", &c.id]).contains("awake, and idle"));
}

#[test]
fn a_client_that_nobody_accepts_is_not_slept_over() {
    let c = restless(&[]);
    let mut open = c.connect().expect("connect");
    assert!(open.ask("check").starts_with("ok "));
    let waiting: Vec<Connection> = (0..4)
        .map(|_| {
            let mut one = c.connect().expect("connect");
            one.send("check");
            one
        })
        .collect();
    for _ in 0..2 {
        let why = refusal(&c);
        assert!(why.contains(&format!(":{} has not been accepted", c.port)), "{why}");
        forced(&c);
        assert!(open.ask("check").starts_with("ok "));
    }
    drop(open);
    for mut one in waiting {
        assert!(one.answer().starts_with("ok "));
    }
    c.hibernate();
}

#[test]
fn data_that_nobody_has_read_is_not_slept_over() {
    let c = python_server(
        "c = s.accept()[0]; time.sleep(5)\n\
         c.sendall(c.recv(100)); time.sleep(1e6)",
    );
    let mut open = c.connect().expect("connect");
    open.send("here it lies");
    thread::sleep(Duration::from_millis(300));
    let why = refusal(&c);
    assert!(why.contains("data from 127.0.0.1:") && why.contains("has not been read"), "{why}");
    assert_eq!(open.answer(), "here it lies");
    c.hibernate();
}

#[test]
fn a_request_with_the_end_right_behind_is_not_slept_over() {
    let c = python_server(
        "c = s.accept()[0]; time.sleep(5)\n\
         c.sendall(c.recv(100)); c.recv(100); time.sleep(1e6)",
    );
    let mut open = TcpStream::connect(("127.0.0.1", c.port)).expect("connect");
    open.set_read_timeout(Some(limit())).unwrap();
    open.write_all(b"all of it").unwrap();
    open.shutdown(Shutdown::Write).unwrap();
    thread::sleep(Duration::from_millis(300));
    let why = refusal(&c);
    assert!(why.contains("data from 127.0.0.1:") && why.contains("has not been read"), "{why}");
    let mut answer = [0; 9];
    open.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"all of it");
    // The end alone keeps nobody awake.
    c.hibernate();
}

#[test]
fn who_comes_before_anybody_waits_wakes_it() {
    let c = python_server("time.sleep(5); c = s.accept()[0]; c.sendall(c.recv(100))");
    c.hibernate();
    let mut open = c.connect().expect("connect");
    open.send("a word");
    assert_eq!(open.answer(), "a word");
}

#[test]
fn a_process_from_outside_is_not_slept_over() {
    let c = memory("8");
    let mut exec = c.quark(&["exec", &c.id, "sh", "-c", "read line; echo $line"]);
    let exec = exec.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut exec = exec.spawn().expect("exec");
    eventually("it runs", limit(), || c.must(&["ps", &c.id]).contains("read line"));
    let why = refusal(&c);
    assert!(why.contains("(sh) of an exec has not ended"), "{why}");
    forced(&c);
    std::io::Write::write_all(&mut exec.stdin.take().expect("pipe"), b"word\n").expect("write");
    let mut said = String::new();
    exec.stdout.take().expect("pipe").read_to_string(&mut said).expect("read");
    assert_eq!(said, "word\n");
    exec.wait().expect("exec");
    c.hibernate();
}

#[test]
fn an_exec_that_comes_while_it_waits_to_sleep_is_served() {
    let c = restless(&[]);
    let mut open = c.connect().expect("connect");
    open.send("spin 1500");
    thread::sleep(Duration::from_millis(50));
    thread::scope(|scope| {
        let stop = scope.spawn(|| c.command(&["kill", &c.id, "STOP"]));
        thread::sleep(Duration::from_millis(300));
        assert_eq!(c.must(&["exec", &c.id, "/bin/echo", "served"]), "served\n");
        let stop = stop.join().expect("thread");
        assert!(stop.success(), "{}", stop.describe());
    });
    assert_eq!(open.answer(), "spun");
    assert_eq!((count(&c, "deflates"), count(&c, "deflates_failed")), (1, 0));
}

#[test]
fn sigcont_takes_a_stop_back_that_waits() {
    let c = restless(&[]);
    let mut open = c.connect().expect("connect");
    open.send("spin 3000");
    thread::sleep(Duration::from_millis(50));
    thread::scope(|scope| {
        let stop = scope.spawn(|| c.command(&["kill", &c.id, "STOP"]));
        thread::sleep(Duration::from_millis(300));
        c.kill("CONT");
        let stop = stop.join().expect("thread");
        assert!(stop.stderr.contains("something woke it"), "{}", stop.describe());
    });
    assert_eq!(open.answer(), "spun");
}

#[test]
fn a_timer_that_goes_off_ever_again_is_work_and_one_that_is_far_is_not() {
    let c = restless(&["--timers", "6"]);
    let why = refusal(&c);
    // Or it is on its way from the one to the other.
    let reasons = ["runs", "a timer goes off in", "a system call is at work"];
    assert!(reasons.iter().any(|reason| why.contains(reason)), "{why}");
    let c = python("import time\nprint('up', flush=True)\nwhile True: time.sleep(0.1)");
    eventually("it runs", limit(), || c.output().contains("up"));
    c.hibernate();
}

#[test]
fn a_request_that_a_pause_has_stopped_is_not_slept_over() {
    let c = memory("8");
    let mut control = c.control();
    let mut open = c.connect().expect("connect");
    open.set_patience(patience());
    assert_eq!(open.ask("ping"), "pong");
    for _ in 0..5 {
        control.order(&Request::Pause).expect("pause");
        open.send("ping");
        thread::sleep(Duration::from_millis(100));
        let refused = control.order(&HIBERNATE).expect_err("it would not be answered");
        assert!(format!("{refused:#}").contains("paused in the middle"), "{refused:#}");
        control.order(&Request::Resume).expect("resume");
        assert_eq!(open.try_answer().as_deref(), Some("pong"));
    }
    c.hibernate();
}

#[test]
fn an_answer_in_parts_is_not_slept_over() {
    let c = python_server(
        "c = s.accept()[0]\n\
         while c.recv(100): c.sendall(b'one\\n'); time.sleep(1.5); c.sendall(b'two\\n')\n\
         time.sleep(1e6)",
    );
    let mut open = c.connect().expect("connect");
    open.set_patience(patience());
    for _ in 0..2 {
        assert_eq!(open.ask("go"), "one");
        c.hibernate();
        assert_eq!(open.try_answer().as_deref(), Some("two"));
    }
    assert_eq!(count(&c, "wakes_by_timer"), 0);
}

/// Asks it to sleep while it has been asked for this already: how both end.
fn both(c: &Container, first: &[&str], second: &[&str]) -> [super::support::Outcome; 2] {
    thread::scope(|scope| {
        let stop = scope.spawn(|| c.command(first));
        thread::sleep(slowed(Duration::from_millis(200)));
        let second = c.command(second);
        [stop.join().expect("thread"), second]
    })
}

#[test]
fn a_second_stop_joins_the_first() {
    let c = restless(&[]);
    let mut open = c.connect().expect("connect");
    open.set_patience(patience());
    // The thread computes for longer than the second command takes to come.
    let spin = format!("spin {}", slowed(Duration::from_millis(1500)).as_millis());
    open.send(&spin);
    thread::sleep(Duration::from_millis(50));
    for outcome in both(&c, &["kill", &c.id, "STOP"], &["hibernate", &c.id]) {
        assert!(outcome.success(), "{}", outcome.describe());
    }
    // The answer that came was all that there was to do.
    assert_eq!(open.try_answer().as_deref(), Some("spun"));
    assert_eq!(count(&c, "deflates"), 1, "one sleep");

    // Who has less time is told so, and leaves the other to wait on; who has more tries again.
    open.send(&spin);
    thread::sleep(Duration::from_millis(50));
    let [long, short] = both(&c, &["hibernate", &c.id], &["hibernate", "--timeout=100ms", &c.id]);
    assert!(long.success(), "{}", long.describe());
    assert!(short.stderr.contains("it is not idle"), "{}", short.describe());
    assert_eq!(open.try_answer().as_deref(), Some("spun"));
    open.send(&spin);
    thread::sleep(Duration::from_millis(50));
    let first = ["hibernate", "--timeout=400ms", &c.id];
    let [short, long] = both(&c, &first, &["hibernate", &c.id]);
    assert!(short.stderr.contains("it is not idle"), "{}", short.describe());
    assert!(long.success(), "{}", long.describe());
    assert_eq!(open.try_answer().as_deref(), Some("spun"));

    // SIGCONT takes all of them back, which have come by then.
    let spin = format!("spin {}", slowed(Duration::from_millis(4000)).as_millis());
    open.send(&spin);
    thread::sleep(Duration::from_millis(50));
    thread::scope(|scope| {
        let joined = scope.spawn(|| both(&c, &["kill", &c.id, "STOP"], &["hibernate", &c.id]));
        thread::sleep(slowed(Duration::from_millis(1500)));
        c.kill("CONT");
        for outcome in joined.join().expect("thread") {
            assert!(outcome.stderr.contains("something woke it"), "{}", outcome.describe());
        }
    });
    assert_eq!(open.answer(), "spun");
}
