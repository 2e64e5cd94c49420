//! Commands about all containers: `list --all-roots`, `metrics`, `top`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::pipes::terminal;
use super::shared;
use super::support::{Place, finish, place};

/// A running container.
fn running() -> Option<Place> {
    let p = place()?;
    p.configure(&["sleep", "1000000"], |_| {});
    p.create(&[]);
    p.good(&["start", &p.id]);
    Some(p)
}

/// A command without `--root`; its output and errors.
fn without_root(args: &[&str]) -> (String, String) {
    let child = shared::quark()
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = finish(child, args);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{args:?}: {err}");
    (out, err)
}

#[test]
fn all_roots_are_listed_and_one_that_cannot_be_read_is_told_of() {
    let Some(a) = running() else { return };
    let b = running().unwrap();
    let (table, _) = without_root(&["list", "--all-roots"]);
    let head = table.lines().next().unwrap();
    assert!(head.starts_with("ID ") && head.ends_with(" ROOT"), "{head}");
    for p in [&a, &b] {
        let line = table.lines().find(|line| line.starts_with(&p.id)).unwrap();
        assert!(line.ends_with(p.root.to_str().unwrap()) && line.contains(" running "), "{line}");
    }
    let (json, _) = without_root(&["list", "--all-roots", "--format", "json"]);
    let all: Vec<Value> = serde_json::from_str(&json).unwrap();
    let found: Vec<&Value> = all.iter().filter(|c| c["id"] == a.id.as_str()).collect();
    assert_eq!(found.len(), 1, "{json}");
    assert_eq!(found[0]["root"], a.root.to_str().unwrap());
    let (ids, _) = without_root(&["list", "--all-roots", "-q"]);
    assert!(ids.lines().any(|id| id == a.id) && ids.lines().any(|id| id == b.id), "{ids}");
    // As ever.
    assert_eq!(a.good(&["list", "-q"]), format!("{}\n", a.id));
    assert!(!a.good(&["list"]).contains("ROOT"));

    fs::set_permissions(&b.root, fs::Permissions::from_mode(0o777)).unwrap();
    let (ids, told) = without_root(&["list", "--all-roots", "-q"]);
    assert!(ids.lines().any(|id| id == a.id) && !ids.lines().any(|id| id == b.id), "{ids}");
    assert!(told.contains(b.root.to_str().unwrap()), "{told}");
    let (text, _) = without_root(&["metrics"]);
    let readable = |p: &Place| series(&text, "quark_root_readable", &[("root", &p.root_text())]);
    assert_eq!((readable(&a), readable(&b)), (Some(1.0), Some(0.0)));
    fs::set_permissions(&b.root, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_root_that_is_gone_is_forgotten() {
    let Some(p) = running() else { return };
    let root = p.root.clone();
    drop(p);
    let (text, told) = without_root(&["metrics"]);
    assert!(!text.contains(root.to_str().unwrap()) && !told.contains(root.to_str().unwrap()));
}

impl Place {
    fn root_text(&self) -> String {
        self.root.display().to_string()
    }
}

/// The value of a metric with these labels and no others.
fn series(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let wanted: HashMap<String, String> =
        labels.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    let all = text.lines().filter(|line| !line.starts_with('#')).map(parse);
    all.into_iter().find(|(n, l, _)| n == name && *l == wanted).map(|(_, _, value)| value)
}

/// A sample line: name, labels, value.
fn parse(line: &str) -> (String, HashMap<String, String>, f64) {
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
    let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
    let Some((name, rest)) = series.split_once('{') else {
        return (series.to_owned(), HashMap::new(), value);
    };
    let inside = rest.strip_suffix('}').unwrap_or_else(|| panic!("{line}"));
    let mut labels = HashMap::new();
    let mut rest = inside;
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
        let mut text = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next() {
                Some((at, '"')) => break at,
                Some((_, '\\')) => match chars.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, c @ ('\\' | '"'))) => text.push(c),
                    other => panic!("{line}: escape {other:?}"),
                },
                Some((_, c)) => text.push(c),
                None => panic!("{line}: no end of a label"),
            }
        };
        assert!(labels.insert(label.to_owned(), text).is_none(), "{line}: a label twice");
        rest = after[end + 1..].trim_start_matches(',');
    }
    (name.to_owned(), labels, value)
}

/// Checks a text as `promtool check metrics` does, as far as it matters here; by promtool too where
/// there is one.
fn check_format(text: &str) {
    let is_name = |name: &str| {
        name.starts_with("quark_") && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    };
    let (mut families, mut series) = (HashSet::new(), HashSet::new());
    let (mut family, mut kind, mut help) = (String::new(), String::new(), String::new());
    let mut last_bucket: Option<(String, f64)> = None;
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').unwrap().0.to_owned();
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, of) = rest.split_once(' ').unwrap();
            (family, kind) = (name.to_owned(), of.to_owned());
            assert_eq!(help, family, "a family without help");
            assert!(is_name(&family) && families.insert(family.clone()), "{line}");
            assert_eq!(kind == "counter", family.ends_with("_total"), "{line}");
            for unit in ["_ms", "_ns", "_kb", "_mb", "_milliseconds", "_count", "_sum", "_bucket"] {
                assert!(!family.ends_with(unit), "{line}");
            }
            continue;
        }
        let (name, labels, value) = parse(line);
        let mut key: Vec<_> = labels.iter().collect();
        key.sort();
        assert!(series.insert(format!("{name}{key:?}")), "twice: {line}");
        let suffix = name.strip_prefix(&family).unwrap_or_else(|| panic!("{family}: {line}"));
        if kind == "histogram" {
            let of = format!("{:?} {:?}", labels.get("id"), labels.get("root"));
            let before = last_bucket.take().filter(|(id, _)| *id == of).map_or(0.0, |(_, n)| n);
            match suffix {
                "_bucket" => {
                    assert!(value >= before, "{line}: not cumulative");
                    last_bucket = Some((of, value));
                }
                "_sum" => last_bucket = Some((of, before)),
                "_count" => assert_eq!(value, before, "{line}: not the last bucket"),
                _ => panic!("{line}"),
            }
        } else {
            assert_eq!(suffix, "", "{line}");
        }
        assert!(value.is_finite() && value >= 0.0, "{line}");
    }
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    if let Ok(mut promtool) = promtool {
        promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = promtool.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn metrics_tell_of_sleeps_and_wakes_in_prometheus_format() {
    let Some(p) = running() else { return };
    let get = |text: &str, name: &str, more: &[(&str, &str)]| {
        let root = p.root_text();
        let mut labels = vec![("id", p.id.as_str()), ("root", root.as_str())];
        labels.extend(more);
        series(text, &format!("quark_container_{name}"), &labels)
    };
    let before = p.good(&["metrics"]);
    check_format(&before);
    assert_eq!(get(&before, "up", &[]), Some(1.0));
    assert_eq!(get(&before, "status", &[("status", "running")]), Some(1.0));
    assert_eq!(get(&before, "status", &[("status", "stopped")]), Some(0.0));
    assert!(get(&before, "memory_held_bytes", &[]) > Some(0.0));
    assert!(get(&before, "ram_held_bytes", &[]) > Some(0.0));
    assert_eq!(get(&before, "ram_held_before_sleep_bytes", &[]), None, "there was none");
    assert_eq!(get(&before, "last_wake_timestamp_seconds", &[]), None);

    p.good(&["kill", &p.id, "STOP"]);
    let asleep = p.good(&["metrics"]);
    check_format(&asleep);
    assert_eq!(get(&asleep, "hibernation_state", &[("state", "Hibernated")]), Some(1.0));
    assert_eq!(get(&asleep, "sleeps_total", &[("cause", "asked")]), Some(1.0));
    let after = get(&asleep, "ram_held_after_sleep_bytes", &[]);
    assert!(after > Some(0.0) && after < get(&asleep, "ram_held_before_sleep_bytes", &[]));
    assert!(get(&asleep, "store_bytes", &[]) > Some(0.0));

    p.good(&["exec", &p.id, "true"]);
    let woken = p.good(&["metrics"]);
    check_format(&woken);
    assert_eq!(get(&woken, "wakes_total", &[("cause", "exec")]), Some(1.0));
    assert_eq!(get(&woken, "wakes_total", &[("cause", "socket")]), Some(0.0));
    assert_eq!(get(&woken, "wake_duration_seconds_count", &[]), Some(1.0));
    assert!(get(&woken, "wake_duration_seconds_sum", &[]) > Some(0.0));
    assert_eq!(get(&woken, "wake_duration_seconds_bucket", &[("le", "+Inf")]), Some(1.0));
    assert!(get(&woken, "asleep_seconds_total", &[]) > Some(0.0));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let since = |name| now.as_secs_f64() - get(&woken, name, &[]).unwrap();
    let (slept, woke) =
        (since("last_sleep_timestamp_seconds"), since("last_wake_timestamp_seconds"));
    assert!(
        slept >= woke && woke > -1.0 && slept < shared::limit().as_secs_f64(),
        "{slept} {woke}"
    );

    p.good(&["kill", &p.id, "KILL"]);
    p.wait_for("its end", || p.status() == "stopped");
    let ended = p.good(&["metrics"]);
    check_format(&ended);
    assert_eq!(get(&ended, "status", &[("status", "stopped")]), Some(1.0));
    assert_eq!(get(&ended, "up", &[]), None);
}

#[test]
fn who_does_not_answer_holds_nobody_up() {
    let Some(p) = running() else { return };
    let silent: Vec<String> = (0..3).map(|n| format!("{}-{n}", p.id)).collect();
    for id in &silent {
        let log = fs::File::create(p.dir.join("silent")).unwrap();
        let args = ["run", "--detach", id];
        let mut command = p.quark(&args);
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        assert!(finish(child, &args).status.success());
        let state: Value = serde_json::from_str(&p.good(&["state", id])).unwrap();
        kill(Pid::from_raw(state["pid"].as_i64().unwrap() as i32), Signal::SIGSTOP).unwrap();
    }
    let begin = Instant::now();
    let text = p.good(&["--timeout", "1", "metrics"]);
    let took = begin.elapsed();
    // All three together, not one after the other.
    let most = Duration::from_secs(1) + shared::slowed(Duration::from_millis(1500));
    assert!(Duration::from_secs(1) <= took && took < most, "{took:?}");
    check_format(&text);
    let root = p.root_text();
    let up = |id: &str| series(&text, "quark_container_up", &[("id", id), ("root", &root)]);
    assert_eq!(up(&p.id), Some(1.0));
    for id in &silent {
        assert_eq!(up(id), Some(0.0));
        let labels = [("id", id.as_str()), ("root", &root)];
        assert!(series(&text, "quark_container_memory_held_bytes", &labels) > Some(0.0));
        assert_eq!(series(&text, "quark_container_ram_bytes", &labels), None);
    }
    let top = p.good(&["--timeout", "1", "top", "--once"]);
    let line = top.lines().find(|line| line.starts_with(&silent[0])).unwrap();
    assert!(line.contains("no answer"), "{top}");
}

/// A server of metrics that is asked to end when it is dropped.
struct Server(Child);

impl Server {
    fn start(p: &Place, listen: &str) -> Server {
        let args = ["metrics", "--listen", listen];
        Server(p.quark(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn end(mut self) -> Option<i32> {
        kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM).unwrap();
        shared::wait(&mut self.0, shared::limit()).and_then(|status| status.code())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The answer to a request: status line and body.
fn answer(mut stream: impl Read + Write, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
    (head.to_owned(), body.to_owned())
}

const GET: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn metrics_are_served_over_tcp_to_hostile_clients_too() {
    let Some(p) = running() else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let server = Server::start(&p, &address.to_string());
    let connect = || {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(shared::limit())).unwrap();
        Some(stream)
    };
    p.wait_for("the server", || connect().is_some());
    // Some that say nothing, or too much, or nonsense.
    let idle: Vec<TcpStream> = (0..20).map(|_| connect().unwrap()).collect();
    let mut flood = connect().unwrap();
    flood.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    let long = format!("X: {}\r\n", "y".repeat(1000));
    while flood.write_all(long.as_bytes()).is_ok() {}
    let (head, _) = answer(connect().unwrap(), "\x16\x03\x01 nonsense\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");

    let (head, body) = answer(connect().unwrap(), GET);
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let kind = head.lines().find(|l| l.to_lowercase().starts_with("content-type:")).unwrap();
    assert!(kind.contains("text/plain; version=0.0.4"), "{kind}");
    check_format(&body);
    let labels = [("id", p.id.as_str()), ("root", &p.root_text())];
    assert_eq!(series(&body, "quark_container_up", &labels), Some(1.0));
    let (head, _) = answer(connect().unwrap(), "GET / HTTP/1.0\r\n\r\n");
    assert!(head.contains(" 404 "), "{head}");
    let post = "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    let (head, _) = answer(connect().unwrap(), post);
    assert!(head.contains(" 405 "), "{head}");
    let (_, body) = answer(connect().unwrap(), &GET.replace("GET", "HEAD"));
    assert_eq!(body, "");
    drop(idle);
    // More than there are places for, none of whom asks: they do not wait for each other's end.
    let silent: Vec<TcpStream> = (0..100).map(|_| connect().unwrap()).collect();
    let begin = Instant::now();
    let (head, _) = answer(connect().unwrap(), GET);
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let took = begin.elapsed();
    assert!(took < shared::slowed(Duration::from_secs(4)), "{took:?}: it waited for silent ones");
    drop(silent);
    // What it tells changes with the container.
    p.good(&["kill", &p.id, "STOP"]);
    let mut labels = labels.to_vec();
    labels.push(("state", "Hibernated"));
    p.wait_for("news", || {
        let (_, body) = answer(connect().unwrap(), GET);
        series(&body, "quark_container_hibernation_state", &labels) == Some(1.0)
    });
    assert_eq!(server.end(), Some(0));
}

#[test]
fn metrics_are_served_at_a_unix_socket() {
    let Some(p) = running() else { return };
    let path = p.dir.join("metrics.sock");
    let listen = format!("unix:{}", path.display());
    let serves = || {
        p.wait_for("the server", || UnixStream::connect(&path).is_ok());
        let stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(shared::limit())).unwrap();
        check_format(&answer(stream, GET).1);
    };
    let server = Server::start(&p, &listen);
    serves();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    let second = p.output(&["metrics", "--listen", &listen]);
    assert!(!second.status.success());
    assert!(String::from_utf8(second.stderr).unwrap().contains("another program listens there"));
    assert_eq!(server.end(), Some(0));
    assert!(!path.exists());
    // One that was killed leaves its socket, which gives way; anything else does not.
    drop(Server::start(&p, &listen));
    drop({
        let server = Server::start(&p, &listen);
        serves();
        server
    });
    assert!(path.exists());
    let server = Server::start(&p, &listen);
    serves();
    assert_eq!(server.end(), Some(0));
    fs::write(&path, "precious").unwrap();
    assert!(!p.output(&["metrics", "--listen", &listen]).status.success());
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    for wrong in ["", "unix:", "127.0.0.1", "127.0.0.1:http"] {
        assert!(!p.output(&["metrics", "--listen", wrong]).status.success(), "{wrong:?}");
    }
}

/// `quark top` at a terminal, and what it has written there.
struct Screen {
    child: Child,
    master: OwnedFd,
    slave: OwnedFd,
    before: rustix::termios::Termios,
    written: String,
}

impl Screen {
    fn start(p: &Place) -> Screen {
        let (master, slave) = terminal();
        qvisor::console::set_window(&slave, (24, 200));
        let before = rustix::termios::tcgetattr(&slave).unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        let child = p
            .quark(&["top", "--interval", "1"])
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        rustix::io::ioctl_fionbio(&master, true).unwrap();
        Screen { child, master, slave, before, written: String::new() }
    }

    /// Waits until this was written.
    fn shows(&mut self, p: &Place, what: &str) {
        p.wait_for(what, || {
            self.read();
            self.written.contains(what)
        });
    }

    fn read(&mut self) {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = rustix::io::read(&self.master, &mut bytes) {
            self.written.push_str(&String::from_utf8_lossy(&bytes[..n]));
        }
    }

    fn press(&self, keys: &str) {
        rustix::io::write(&self.master, keys.as_bytes()).unwrap();
    }

    /// Waits for its end: the exit code. The terminal is as it was.
    fn end(mut self, p: &Place) -> Option<i32> {
        let mut status = None;
        p.wait_for("the end of top", || {
            self.read();
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        self.read();
        let after = rustix::termios::tcgetattr(&self.slave).unwrap();
        assert_eq!(after.local_modes, self.before.local_modes);
        assert_eq!(after.input_modes, self.before.input_modes);
        assert_eq!(after.output_modes, self.before.output_modes);
        // The alternate screen is left, and the cursor shown.
        let left = self.written.rfind("\x1b[?1049l").expect("the alternate screen is left");
        assert!(Some(left) > self.written.rfind("\x1b[?1049h"));
        assert!(self.written.rfind("\x1b[?25h") > self.written.rfind("\x1b[?25l"));
        status.unwrap().code()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn top_is_a_screen_that_gives_the_terminal_back() {
    let Some(p) = running() else { return };
    for quit in ["q", "\x03", "\x1b"] {
        let mut screen = Screen::start(&p);
        screen.shows(&p, &p.id);
        screen.shows(&p, "(by HELD)");
        screen.press("s");
        screen.shows(&p, "SAVED)");
        screen.press("\x1b[B\x1b[A\x1b[6~");
        screen.press(quit);
        assert_eq!(screen.end(&p), Some(0), "{quit:?}");
    }
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut screen = Screen::start(&p);
        screen.shows(&p, &p.id);
        kill(Pid::from_raw(screen.child.id() as i32), signal).unwrap();
        assert_eq!(screen.end(&p), Some(1), "{signal}");
    }
    // A new size is drawn: the last line is in another place.
    let mut screen = Screen::start(&p);
    screen.shows(&p, "\x1b[24;1H");
    qvisor::console::set_window(&screen.slave, (11, 90));
    screen.shows(&p, "\x1b[11;1H");
    screen.press("q");
    assert_eq!(screen.end(&p), Some(0));
}

#[test]
fn without_a_terminal_top_is_a_table() {
    let Some(p) = running() else { return };
    for args in [&["top"][..], &["top", "--once"]] {
        let table = p.good(args);
        let mut lines = table.lines();
        assert!(lines.next().unwrap().starts_with("ID "), "{table}");
        let line = lines.next().unwrap();
        assert!(line.starts_with(&p.id) && line.ends_with(&p.root_text()), "{table}");
        assert_eq!(lines.next(), None);
        assert!(!table.contains('\x1b'));
    }
    p.good(&["kill", &p.id, "STOP"]);
    assert!(p.good(&["top"]).contains(" Hibernated "));
    p.good(&["kill", &p.id, "CONT"]);
    assert!(p.good(&["top"]).contains(" sigcont "));
    // To a device that is a terminal, too, if that is what is asked for.
    let (master, slave) = terminal();
    let output = Stdio::from(slave.try_clone().unwrap());
    let mut child = p.quark(&["top", "--once"]).stdin(slave).stdout(output).spawn().unwrap();
    assert!(shared::wait(&mut child, shared::limit()).unwrap().success());
    let mut bytes = [0; 4096];
    let n = rustix::io::read(&master, &mut bytes).unwrap();
    let text = String::from_utf8_lossy(&bytes[..n]);
    assert!(text.contains("ID ") && !text.contains('\x1b'), "{text:?}");
}
