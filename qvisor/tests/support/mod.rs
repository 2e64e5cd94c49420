//! What the integration tests share: where things are, and commands that always end.
//!
//! Environment: `QUARK_BIN` and `QUARK_PLATFORM` say what is tested, `QUARK_TEST_WORKSPACE` in
//! which other directory the built test programs lie. `QUARK_TEST_SLOWNESS` is how
//! many times slower than usual the machine is, a whole number (1): limits of time are as many
//! times longer, and what is repeated often is repeated less.
#![allow(dead_code)]

pub mod attack;
pub mod container;
mod skip;

pub use skip::skip;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The directory of the workspace.
pub fn workspace() -> PathBuf {
    if let Some(other) = std::env::var_os("QUARK_TEST_WORKSPACE") {
        return other.into();
    }
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate lies in the workspace")
        .to_owned()
}

/// Where `make test-apps` puts the programs of `kind` ("syscalls", "hibernation").
pub fn test_apps(kind: &str) -> PathBuf {
    workspace().join("target/test-apps").join(kind)
}

/// The quark binary under test: `QUARK_BIN`, or the one cargo built with the tests.
pub fn quark_binary() -> PathBuf {
    std::env::var_os("QUARK_BIN")
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_quark")), PathBuf::from)
}

/// `quark` with the platform that `QUARK_PLATFORM` names, if it does.
pub fn quark() -> Command {
    let mut command = Command::new(quark_binary());
    if let Some(platform) = std::env::var_os("QUARK_PLATFORM") {
        command.arg("--platform").arg(platform);
    }
    command
}

/// How many times slower than usual this machine is.
///
/// # Panics
/// When `QUARK_TEST_SLOWNESS` is not a number from 1 up.
pub fn slowness() -> u32 {
    static SLOWNESS: OnceLock<u32> = OnceLock::new();
    *SLOWNESS.get_or_init(|| match std::env::var("QUARK_TEST_SLOWNESS") {
        Err(_) => 1,
        Ok(text) => text
            .parse()
            .ok()
            .filter(|n| *n >= 1)
            .unwrap_or_else(|| panic!("QUARK_TEST_SLOWNESS={text}")),
    })
}

/// A limit of time that is enough on a machine of the usual speed, for this one.
pub fn slowed(limit: Duration) -> Duration {
    limit * slowness()
}

/// How often to repeat what is done `usual` times to meet a rare moment: less often on a slow
/// machine, where it takes as much longer.
pub fn repeats(usual: u32) -> u32 {
    (usual / slowness()).max(usual.min(12))
}

/// How long any one command or answer may take: reached by hangs only.
pub fn limit() -> Duration {
    slowed(Duration::from_secs(60))
}

/// How a command ended.
#[derive(Debug)]
pub struct Outcome {
    /// `None` when it was killed because its time was over.
    pub status: Option<ExitStatus>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Outcome {
    /// It ended by itself with exit code 0.
    pub fn success(&self) -> bool {
        self.status.is_some_and(|s| s.success())
    }

    /// One line about the end, and the last lines of standard error.
    pub fn describe(&self) -> String {
        let how = match self.status {
            None => "did not end in time".to_owned(),
            Some(s) => match (s.code(), s.signal()) {
                (Some(code), _) => format!("exit code {code}"),
                (None, signal) => format!("killed by signal {}", signal.unwrap_or(0)),
            },
        };
        let tail: Vec<&str> = self.stderr.lines().rev().take(15).collect();
        tail.into_iter().rev().fold(how, |text, line| text + "\n    " + line)
    }
}

/// Runs a command without standard input, at most for `limit`; then it is killed.
///
/// # Panics
/// When it cannot be started.
pub fn run(command: &mut Command, limit: Duration) -> Outcome {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{}: {e}", command.get_program().display()));
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let status = wait(&mut child, limit);
    // What it left running may hold the pipes open: what has come by then is what counts.
    let rest = slowed(Duration::from_secs(5));
    Outcome { status, stdout: gather(&stdout, rest), stderr: gather(&stderr, rest) }
}

/// Waits for a child, at most for `limit`; kills it then and gives `None`.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait().expect("wait for a child") {
            return Some(status);
        }
        if Instant::now() >= end {
            child.kill().ok();
            child.wait().ok();
            return None;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Waits until the condition holds.
///
/// # Panics
/// When it does not within `limit`.
pub fn eventually(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < end, "{what}: not within {limit:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn collect(stream: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let Some(mut stream) = stream else { return };
        let mut block = [0; 8192];
        while let Ok(n @ 1..) = stream.read(&mut block) {
            if sender.send(block[..n].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}

fn gather(blocks: &Receiver<Vec<u8>>, limit: Duration) -> String {
    let end = Instant::now() + limit;
    let mut bytes = Vec::new();
    while let Ok(block) = blocks.recv_timeout(end.saturating_duration_since(Instant::now())) {
        bytes.extend(block);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
