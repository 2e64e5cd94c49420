//! Probes that are answered without a wake.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::support::container::Container;
use super::support::{eventually, limit, slowed};
use super::{count, ready, verified};

const LOCAL: &str = "--hibernate-ignore-from=127.0.0.0/8";
/// For how long a connection may say nothing.
const HOLD: Duration = Duration::from_secs(1);

fn memory(options: &[&str]) -> Container {
    let program = ["/mnt/apps/memory", "--tcp", "{port}", "--mb", "4"];
    let c = Container::start_as(options, &[], "busybox", &program);
    ready(&c);
    c
}

fn connect(c: &Container) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", c.port)).expect("connect");
    stream.set_read_timeout(Some(limit())).expect("set timeout");
    stream
}

fn is_asleep(c: &Container) -> bool {
    c.hibernation() == "Hibernated"
}

fn wakes(c: &Container) -> u64 {
    count(c, "wakes_by_socket")
}

/// Waits until so many probes have been answered; it still sleeps then.
fn answered(c: &Container, probes: u64) {
    eventually("the probes are answered", limit(), || count(c, "probes_answered") == probes);
    assert!(is_asleep(c));
}

#[test]
fn connections_that_say_nothing_do_not_wake() {
    let c = memory(&[LOCAL, "--hibernate-answer-probes=tcp"]);
    c.hibernate();
    for probes in 1..=20 {
        drop(connect(&c));
        answered(&c, probes);
    }
    // One after another, and all at once.
    let at_once: Vec<TcpStream> = (0..5).map(|_| connect(&c)).collect();
    drop(at_once);
    answered(&c, 25);
    // Whoever breaks it off is none the worse.
    let broken = connect(&c);
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    nix::sys::socket::setsockopt(&broken, nix::sys::socket::sockopt::Linger, &linger)
        .expect("linger");
    drop(broken);
    answered(&c, 26);
    assert_eq!(wakes(&c), 0);
    let metrics = c.must(&["metrics"]);
    let line = metrics.lines().find(|l| l.starts_with("quark_container_probes_answered_total{"));
    assert!(line.is_some_and(|line| line.ends_with(" 26")), "{metrics}");

    // Whoever says something is answered by the program, also after a while.
    verified(&c.ask("verify"));
    assert_eq!(wakes(&c), 1);
    c.hibernate();
    let mut slow = c.connect().expect("connect");
    thread::sleep(HOLD / 4);
    verified(&slow.ask("verify"));
    assert_eq!((wakes(&c), count(&c, "probes_answered")), (2, 26));
}

#[test]
fn whoever_waits_for_the_program_to_speak_is_served() {
    let c = memory(&[LOCAL, "--hibernate-answer-probes=tcp"]);
    c.hibernate();
    let begin = Instant::now();
    let mut silent = c.connect().expect("connect");
    eventually("it wakes", limit(), || !is_asleep(&c));
    assert!(begin.elapsed() >= HOLD, "{:?}", begin.elapsed());
    assert!(begin.elapsed() < HOLD + slowed(Duration::from_secs(2)), "{:?}", begin.elapsed());
    verified(&silent.ask("verify"));
    drop(silent);
    // Too many are for the program at once, and none of them is lost. (More than its queue takes
    // would come a second later.)
    c.hibernate();
    let begin = Instant::now();
    let mut many: Vec<_> = (0..12).map(|_| c.connect().expect("connect")).collect();
    eventually("it wakes", limit(), || !is_asleep(&c));
    assert!(begin.elapsed() < slowed(HOLD), "{:?}", begin.elapsed());
    for one in &mut many {
        assert_eq!(one.ask("ping"), "pong");
    }
    drop(many);
    // Something else wakes it while one is held.
    c.hibernate();
    let mut held = c.connect().expect("connect");
    c.kill("CONT");
    assert_eq!(held.ask("ping"), "pong");
    assert_eq!(count(&c, "probes_answered"), 0);
}

#[test]
fn unknown_peers_and_paused_containers_are_not_answered_for() {
    let elsewhere = "--hibernate-ignore-from=10.0.0.1";
    for options in [&[LOCAL][..], &[elsewhere, "--hibernate-answer-probes=tcp,/healthz"]] {
        let c = memory(options);
        c.hibernate();
        drop(connect(&c));
        eventually("it wakes", limit(), || wakes(&c) == 1);
        assert_eq!(count(&c, "probes_answered"), 0);
    }
    let c = memory(&[LOCAL, "--hibernate-answer-probes=tcp"]);
    c.hibernate();
    c.must(&["pause", &c.id]);
    drop(connect(&c));
    eventually("it wakes", limit(), || wakes(&c) == 1);
    assert_eq!(count(&c, "probes_answered"), 0);
    c.must(&["resume", &c.id]);
}

/// Answers with the number of the request; /bad with 503; /long without a length.
const SERVER: &str = r#"
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
count = 0
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    def do_GET(self):
        global count
        count += 1
        body = b"%d" % count
        self.send_response(503 if count in (6, 10) else 200)
        self.send_header("Content-Length", len(body))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()
    def log_message(self, *_):
        pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

const HEALTHZ: &str = "GET /healthz HTTP/1.1\r\nHost: a\r\nUser-Agent: probe\r\n";
const CLOSE: &str = "Connection: close\r\n\r\n";

/// All that is answered to `parts`, sent one after another.
fn exchange(c: &Container, parts: &[&str]) -> String {
    let mut stream = connect(c);
    for (at, part) in parts.iter().enumerate() {
        if at > 0 {
            thread::sleep(Duration::from_millis(30));
        }
        stream.write_all(part.as_bytes()).expect("send");
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the answer");
    answer
}

/// The bodies in what was answered.
fn bodies(answer: &str) -> Vec<&str> {
    let body = |part: &'_ str| part.len() - part.trim_start_matches(char::is_numeric).len();
    answer.split("\r\n\r\n").skip(1).map(|part| &part[..body(part)]).collect()
}

#[test]
fn a_probe_is_told_what_the_program_said_last() {
    let options = [LOCAL, "--hibernate-answer-probes=/healthz"];
    let program = ["python3", "-c", SERVER, "{port}"];
    let c = Container::start_as(&options, &[], "python", &program);
    c.listening();
    let probe = [HEALTHZ, CLOSE].concat();
    let woken_for = |parts: &[&str], expected: &[&str]| {
        c.hibernate();
        let before = (wakes(&c), count(&c, "probes_answered"));
        let answer = exchange(&c, parts);
        assert_eq!(bodies(&answer), expected, "{parts:?}: {answer}");
        assert_eq!((wakes(&c), count(&c, "probes_answered")), (before.0 + 1, before.1));
        answer
    };
    // Nothing is known yet.
    woken_for(&[&probe], &["1"]);
    c.hibernate();
    for probes in 1..=5 {
        let answer = exchange(&c, &[&probe]);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("\r\nContent-Length: 1\r\nConnection: close\r\n\r\n"), "{answer}");
        assert_eq!(bodies(&answer), ["1"]);
        answered(&c, probes);
    }
    // However it comes, and if the peer has said that this is all.
    assert_eq!(bodies(&exchange(&c, &["GET /hea", &HEALTHZ[8..], CLOSE])), ["1"]);
    answered(&c, 6);
    let mut stream = connect(&c);
    stream.write_all(probe.as_bytes()).expect("send");
    stream.shutdown(Shutdown::Write).expect("shutdown");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the answer");
    assert_eq!(bodies(&answer), ["1"]);
    answered(&c, 7);

    // Everything else is the program's, whole: another path, method, header; two at once.
    let other = "GET /healthzz HTTP/1.1\r\nHost: a\r\n";
    woken_for(&[other, CLOSE], &["2"]);
    let post = "POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n";
    woken_for(&[post, CLOSE, "ab"], &["3"]);
    let two = [HEALTHZ, "\r\n", &probe].concat();
    woken_for(&[&two], &["4", "5"]);
    // Whoever asked those may have been told something worse: what was known is forgotten. A bad
    // answer is given once, and then it is asked anew.
    assert!(woken_for(&[&probe], &["6"]).starts_with("HTTP/1.1 503 "));
    woken_for(&[&probe], &["7"]);
    c.hibernate();
    assert_eq!(bodies(&exchange(&c, &[&probe])), ["7"]);
    answered(&c, 8);

    // What is said on a connection that stays counts too, each time.
    c.kill("CONT");
    let kept = [HEALTHZ, "\r\n"].concat();
    let ask = |stream: &mut TcpStream| {
        stream.write_all(kept.as_bytes()).expect("send");
        let mut answer = String::new();
        while bodies(&answer).first().is_none_or(|body| body.is_empty()) {
            let mut some = [0; 1000];
            let count = stream.read(&mut some).expect("the answer");
            assert!(count > 0, "{answer}");
            answer += std::str::from_utf8(&some[..count]).expect("text");
        }
        answer
    };
    let mut stays = connect(&c);
    assert_eq!([(); 3].map(|()| bodies(&ask(&mut stays))[0].to_owned()), ["8", "9", "10"]);
    c.hibernate();
    let before = wakes(&c);
    assert_eq!(bodies(&ask(&mut connect(&c))), ["11"]);
    assert_eq!((wakes(&c), count(&c, "probes_answered")), (before + 1, 8));
}

/// Accepts nothing, and listens anew at SIGUSR1.
const RELOADS: &str = r#"
import signal, socket, sys
def listen():
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", int(sys.argv[1])))
    s.listen(16)
    return s
def again(*_):
    global server
    server.close()
    server = listen()
signal.signal(signal.SIGUSR1, again)
server = listen()
while True: signal.pause()
"#;

#[test]
fn connections_to_a_socket_that_listens_no_more_are_reset() {
    let options = [LOCAL, "--hibernate-answer-probes=tcp"];
    let c = Container::start_as(&options, &[], "python", &["python3", "-c", RELOADS, "{port}"]);
    let reset = |mut stream: TcpStream| {
        let read = stream.read(&mut [0]);
        assert!(matches!(&read, Err(e) if e.kind() == ErrorKind::ConnectionReset), "{read:?}");
    };
    eventually("it listens", limit(), || {
        TcpStream::connect(("127.0.0.1", c.port)).is_ok_and(|one| {
            c.kill("USR1");
            reset(one);
            true
        })
    });
    for says in [&b""[..], b"something"] {
        c.hibernate();
        let held: Vec<TcpStream> = (0..3).map(|_| connect(&c)).collect();
        thread::sleep(HOLD / 4);
        c.kill("USR1");
        held.into_iter().for_each(|mut one| {
            // A write that finds it reset has told that already.
            if one.write_all(says).is_ok() {
                reset(one);
            }
        });
    }
    // Nothing keeps it awake.
    c.hibernate();
}
