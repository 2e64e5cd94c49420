//! A container under test: a bundle, the quark command line on it, and its requests over TCP, UDP
//! and HTTP.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf, StripPrefixError};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use qlib::control::Request;
use qvisor::oci::client::Connection as Control;
use qvisor::oci::state::CONTROL_SOCKET;
use serde_json::Value;

use super::{Outcome, eventually, limit, run, workspace};

/// To sleep, when it is idle.
pub const HIBERNATE: Request =
    Request::Hibernate { patience_ms: 10_000, force: false, stay: false };
/// To sleep now, and go on at once with what is under way.
pub const FORCE: Request = Request::Hibernate { patience_ms: 0, force: true, stay: false };

/// A running container; deleted when dropped.
pub struct Container {
    pub id: String,
    /// Scratch directory: the bundle, `--root`, the container's output.
    pub directory: PathBuf,
    /// The loopback port its program was told.
    pub port: u16,
    /// Its `--root`.
    root: PathBuf,
    /// Keep its directory, and the one that its `--root` is in.
    homes: [Arc<Home>; 2],
}

/// A directory that goes when nobody uses it any more.
struct Home(PathBuf);

impl Drop for Home {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
        // And what quark keeps for a state directory in it: the name may come again.
        if let Some(kept) = images_of(&self.0).ok().filter(|kept| kept.exists()) {
            fs::remove_dir_all(kept).ok();
        }
    }
}

/// Where quark keeps images of a state directory itself.
fn images_of(root: &Path) -> Result<PathBuf, StripPrefixError> {
    Ok(Path::new("/var/lib/quark").join(root.strip_prefix("/")?))
}

impl Container {
    /// Starts `args` over the root file system `rootfs` ("busybox", "python"), detached; `{port}`
    /// in an argument becomes a free port.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(rootfs: &str, args: &[&str]) -> Container {
        Self::start_under(&[], rootfs, args)
    }

    /// The same by a command with `options`, with annotations "NAME=value".
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_as(
        options: &[&str],
        annotations: &[&str],
        rootfs: &str,
        args: &[&str],
    ) -> Container {
        let about: Vec<&str> = annotations.iter().flat_map(|a| ["--annotation", a]).collect();
        Self::start_by(None, (&[], options), &about, rootfs, args)
    }

    /// The same with options of what makes the bundle.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_about(about: &[&str], rootfs: &str, args: &[&str]) -> Container {
        Self::start_by(None, (&[], &[]), about, rootfs, args)
    }

    /// The same with the words of `wrapper` before the command that starts it.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_under(wrapper: &[&str], rootfs: &str, args: &[&str]) -> Container {
        Self::start_by(None, (wrapper, &[]), &[], rootfs, args)
    }

    /// The same by a command with `options`, in the state directory of another container if there
    /// is one.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_beside(
        other: Option<&Container>,
        wrapper: &[&str],
        options: &[&str],
        rootfs: &str,
        args: &[&str],
    ) -> Container {
        Self::start_by(other, (wrapper, options), &[], rootfs, args)
    }

    fn start_by(
        other: Option<&Container>,
        (wrapper, options): (&[&str], &[&str]),
        about: &[&str],
        rootfs: &str,
        args: &[&str],
    ) -> Container {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let id = format!("test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(format!("quark-{id}"));
        fs::DirBuilder::new().mode(0o700).create(&directory).expect("scratch directory");
        let port = free_port();
        let root = workspace().join("target/rootfs").join(rootfs);
        assert!(root.is_dir(), "{}: missing; run: make rootfs", root.display());
        let apps = workspace().join("target/test-apps/hibernation");
        let functions = workspace().join("test-apps/functions");
        let mut bundle = Command::new("python3");
        bundle
            .arg(workspace().join("rootfs/bundle.py"))
            .arg("--rootfs")
            .arg(root)
            .arg("--out")
            .arg(&directory);
        bundle
            .args(about)
            .args(["--readonly", "--bind"])
            .arg(format!("{}:/mnt/apps:ro", apps.display()));
        bundle.arg("--bind").arg(format!("{}:/mnt/functions:ro", functions.display()));
        if args.iter().any(|a| a.starts_with("/mnt/bench/")) {
            let bench = workspace().join("test-apps/functionbench");
            bundle.arg("--bind").arg(format!("{}:/mnt/bench:ro", bench.display()));
        }
        bundle.arg("--");
        bundle.args(args.iter().map(|a| a.replace("{port}", &port.to_string())));
        let made = run(&mut bundle, limit());
        assert!(made.success(), "making the bundle: {}", made.describe());
        let home = Arc::new(Home(directory.clone()));
        let root = other.map_or_else(|| directory.join("root"), Container::root);
        let root_home = other.map_or_else(|| home.clone(), |other| other.homes[1].clone());
        let container = Container { id, directory, port, root, homes: [home, root_home] };
        let output = File::create(container.directory.join("output")).expect("output file");
        let mut quark = container.quark(options);
        quark.args(["run", "--detach"]);
        quark
            .arg("--bundle")
            .arg(&container.directory)
            .arg("--pid-file")
            .arg(container.directory.join("pid"));
        quark.arg(&container.id);
        let mut command = match wrapper {
            [] => quark,
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(quark.get_program()).args(quark.get_args());
                command
            }
        };
        // Detached: the container keeps these streams, so they must not be pipes of ours.
        command.stdin(Stdio::null()).stdout(output.try_clone().expect("output")).stderr(output);
        let mut child = command.spawn().expect("start quark");
        let status = super::wait(&mut child, limit());
        assert!(
            status.is_some_and(|s| s.success()),
            "quark run: {status:?}\n{}",
            container.output()
        );
        container
    }

    /// What the container and the command that started it have written.
    pub fn output(&self) -> String {
        fs::read_to_string(self.directory.join("output")).unwrap_or_default()
    }

    /// A quark command with this container's `--root`.
    pub fn quark(&self, args: &[&str]) -> Command {
        let mut command = super::quark();
        command.arg("--root").arg(&self.root).args(args);
        command
    }

    /// Runs a quark command to its end.
    pub fn command(&self, args: &[&str]) -> Outcome {
        run(&mut self.quark(args), limit())
    }

    /// Runs a quark command that must succeed; its standard output.
    ///
    /// # Panics
    /// When it fails.
    pub fn must(&self, args: &[&str]) -> String {
        let outcome = self.command(args);
        assert!(
            outcome.success(),
            "quark {}: {}\n{}",
            args.join(" "),
            outcome.describe(),
            self.output()
        );
        outcome.stdout
    }

    /// Sends a signal to the first process; STOP hibernates, CONT wakes.
    pub fn kill(&self, signal: &str) {
        self.must(&["kill", &self.id, signal]);
    }

    /// `quark state`.
    pub fn state(&self) -> Value {
        serde_json::from_str(&self.must(&["state", &self.id])).expect("state is JSON")
    }

    /// The hibernation state, as "Hibernated".
    pub fn hibernation(&self) -> String {
        self.state()["hibernation"].as_str().unwrap_or_default().to_owned()
    }

    /// Hibernates and makes sure that it is; see [`put_to_sleep`].
    ///
    /// # Panics
    /// When it does not.
    pub fn hibernate(&self) {
        put_to_sleep(|| {
            let outcome = self.command(&["kill", &self.id, "STOP"]);
            match outcome.success() {
                true => Ok(()),
                false => Err(format!("{}\n{}", outcome.describe(), self.output())),
            }
        });
        assert_eq!(self.hibernation(), "Hibernated");
    }

    /// What quark tells under "quark" in `events --stats`. Does not wake.
    pub fn stats(&self) -> Value {
        let text = self.must(&["events", "--stats", &self.id]);
        let mut event: Value = serde_json::from_str(&text).expect("an event is JSON");
        event["data"]["quark"].take()
    }

    /// Has a command that makes a detached container give it the streams that this one has: it
    /// keeps them, so they must not be pipes of ours.
    pub fn on_its_streams(&self, quark: &mut Command) {
        let output = File::options().append(true).open(self.directory.join("output"));
        let output = output.expect("its output");
        quark.stdin(Stdio::null()).stdout(output.try_clone().expect("output")).stderr(output);
    }

    /// Where images of its state directory lie that quark keeps itself.
    pub fn images(&self) -> PathBuf {
        images_of(&self.root).expect("an absolute path")
    }

    /// Its state directory.
    pub fn root(&self) -> PathBuf {
        self.root.clone()
    }

    /// A connection to the sandbox: requests without the time that a command takes to start.
    ///
    /// # Panics
    /// When nobody listens.
    pub fn control(&self) -> Control {
        let socket = self.root().join(&self.id).join(CONTROL_SOCKET);
        let mut control =
            Control::from_stream(UnixStream::connect(socket).expect("connect to the sandbox"));
        control.set_timeout(Some(limit()));
        control
    }

    /// The process ID of the sandbox on the host.
    pub fn pid(&self) -> i32 {
        fs::read_to_string(self.directory.join("pid"))
            .expect("pid file")
            .trim()
            .parse()
            .expect("a number")
    }

    /// Waits until the program listens.
    pub fn listening(&self) {
        eventually("the program listens", limit(), || self.connect().is_some());
    }

    /// A connection to its port.
    pub fn connect(&self) -> Option<Connection> {
        let stream = TcpStream::connect(self.address()).ok()?;
        stream.set_read_timeout(Some(limit())).ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Connection { stream: BufReader::new(stream) })
    }

    /// One request on a new connection.
    ///
    /// # Panics
    /// When there is no answer.
    pub fn ask(&self, line: &str) -> String {
        self.connect().expect("connect").ask(line)
    }

    /// One request by datagram; `None` when no answer comes.
    pub fn ask_datagram(&self, line: &str) -> Option<String> {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
        socket.set_read_timeout(Some(limit())).expect("set timeout");
        socket.send_to(line.as_bytes(), self.address()).ok()?;
        let mut block = [0; 512];
        let n = socket.recv(&mut block).ok()?;
        Some(String::from_utf8_lossy(&block[..n]).trim_end().to_owned())
    }

    /// The body of a GET on a new connection.
    ///
    /// # Panics
    /// When it is not answered with 200.
    pub fn get(&self, path: &str) -> String {
        let mut connection = self.connect().expect("connect");
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        connection.stream.get_mut().write_all(request.as_bytes()).expect("send a request");
        let mut answer = String::new();
        connection.stream.read_to_string(&mut answer).expect("read an answer");
        assert!(answer.starts_with("HTTP/1.1 200 "), "GET {path}: {answer:?}");
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // With the branches that a test made which failed: they would go on beside the others.
        let branch = format!("{}-", self.id);
        let names = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        for id in names.filter(|name| name.starts_with(&branch)).chain([self.id.clone()]) {
            self.command(&["delete", "--force", &id]);
        }
    }
}

/// An open TCP connection that speaks lines.
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Sends a request.
    pub fn send(&mut self, line: &str) {
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes()).expect("send a request");
    }

    /// How long to wait for an answer from now on, instead of [`limit`].
    ///
    /// # Panics
    /// When the connection is broken.
    pub fn set_patience(&mut self, patience: Duration) {
        self.stream.get_ref().set_read_timeout(Some(patience)).expect("set timeout");
    }

    /// The next answer, without its newline.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("read an answer");
        line.trim_end().to_owned()
    }

    /// Sends a request to somebody who may be gone already.
    pub fn try_send(&mut self, line: &str) {
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes()).ok();
    }

    /// The next answer; `None` when the connection breaks or none comes in time.
    pub fn try_answer(&mut self) -> Option<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line).ok()?;
        Some(line.trim_end().to_owned())
    }

    /// A request and its answer.
    pub fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.answer()
    }
}

/// Has `stop` put a sandbox to sleep that nobody wants anything of. On a busy machine the end of
/// the connection of the last client may come only on the way there, which wakes it: then once
/// more.
///
/// # Panics
/// When it does not sleep.
pub fn put_to_sleep(mut stop: impl FnMut() -> Result<(), String>) {
    const TRIES: usize = 5;
    for _ in 0..TRIES {
        match stop() {
            Ok(()) => return,
            Err(error) => assert!(error.contains("something woke it"), "{error}"),
        }
    }
    panic!("something wakes it each time");
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port()
}

/// The children of a host process.
pub fn children(pid: i32) -> Vec<i32> {
    let tasks = Path::new("/proc").join(pid.to_string()).join("task");
    let Ok(tasks) = fs::read_dir(tasks) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|t| fs::read_to_string(t.path().join("children")).ok());
    lists
        .flat_map(|l| l.split_whitespace().filter_map(|p| p.parse().ok()).collect::<Vec<i32>>())
        .collect()
}

/// True if a host process is there (a zombie is not).
pub fn alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
