//! Calling the `quark` command.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use crate::options::Options;
use crate::reaper::Reaper;
use crate::start::TUNABLES;

/// More than a command says for itself, in bytes; the rest is not read.
const MAX_OUTPUT: u64 = 16 << 20;

/// The file in a bundle that `create` and `exec` write their log to.
pub const LOG: &str = "log.json";

/// The standard streams of a program that `quark` starts.
#[derive(Default)]
pub struct Streams {
    /// None of them: /dev/null.
    pub stdin: Option<OwnedFd>,
    /// As above.
    pub stdout: Option<OwnedFd>,
    /// As above.
    pub stderr: Option<OwnedFd>,
}

/// The command, as one container is to be driven by it.
pub struct Quark {
    options: Options,
    reaper: Arc<Reaper>,
}

impl Quark {
    /// The command with these options.
    pub fn new(options: Options, reaper: Arc<Reaper>) -> Self {
        Self { options, reaper }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.options.binary);
        command.arg("--root").arg(&self.options.root).args(&self.options.arguments);
        // It is for this process alone.
        command.env_remove(TUNABLES.0);
        command
    }

    /// Runs a command; what it prints.
    ///
    /// # Errors
    /// With what it says.
    pub async fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_with(arguments, &[]).await
    }

    /// As [`Quark::run`], with standard input, which is short enough for a pipe's buffer.
    ///
    /// # Errors
    /// As for [`Quark::run`].
    pub async fn run_with(&self, arguments: &[&str], input: &[u8]) -> Result<String> {
        let mut command = self.command();
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
        let mut child =
            command.spawn().with_context(|| self.options.binary.display().to_string())?;
        let ended = self.reaper.watch_child(&child);
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input).context("passing on the request")?;
        }
        let output = child.stdout.take().map(OwnedFd::from);
        let errors = child.stderr.take().map(OwnedFd::from);
        let (output, errors) = tokio::join!(read(output), read(errors));
        match ended.await.context("waiting for quark")? {
            0 => Ok(output?),
            _ => bail!("{}", message(&errors?)),
        }
    }

    /// Runs `create` or `exec`, whose standard streams are those of the new process, in a bundle.
    ///
    /// # Errors
    /// With what it wrote to its log.
    pub async fn launch(&self, bundle: &Path, arguments: &[&str], streams: Streams) -> Result<()> {
        let log = bundle.join(LOG);
        let before = std::fs::metadata(&log).map_or(0, |m| m.len());
        let mut command = self.command();
        command.arg("--log").arg(&log).args(["--log-format", "json"]).args(arguments);
        let stdio = |fd: Option<OwnedFd>| fd.map_or_else(Stdio::null, Stdio::from);
        command.stdin(stdio(streams.stdin));
        command.stdout(stdio(streams.stdout));
        command.stderr(stdio(streams.stderr));
        let child = command.spawn().with_context(|| self.options.binary.display().to_string())?;
        let ended = self.reaper.watch_child(&child);
        // The streams are open in it as long as it lives.
        drop(command);
        match ended.await.context("waiting for quark")? {
            0 => Ok(()),
            code => match last_error(&log, before) {
                Some(message) => bail!("{message}"),
                None => bail!("quark {} ended with code {code}", arguments.first().unwrap_or(&"")),
            },
        }
    }
}

async fn read(fd: Option<OwnedFd>) -> Result<String> {
    let mut bytes = Vec::new();
    if let Some(fd) = fd {
        pipe::Receiver::from_owned_fd(fd)?.take(MAX_OUTPUT).read_to_end(&mut bytes).await?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The line that says what failed.
fn message(errors: &str) -> &str {
    let last = errors.lines().rev().find_map(|line| line.strip_prefix("quark: "));
    last.unwrap_or(errors.trim())
}

#[derive(Deserialize)]
struct Line {
    level: String,
    #[serde(alias = "message")]
    msg: String,
}

/// The last error in a log, of what was written after the first `before` bytes.
fn last_error(log: &Path, before: u64) -> Option<String> {
    let mut file = File::open(log).ok()?;
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(before)).ok()?;
    let mut text = String::new();
    file.take(MAX_OUTPUT).read_to_string(&mut text).ok()?;
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    lines.rfind(|line| line.level.eq_ignore_ascii_case("error")).map(|line| line.msg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_what_failed() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let line =
            |level, text| format!("{{\"level\":\"{level}\",\"msg\":\"{text}\",\"time\":\"\"}}\n");
        let old = line("error", "old");
        std::fs::write(&log, format!("{old}{}{}", line("error", "this"), line("info", "that")))
            .unwrap();
        assert_eq!(last_error(&log, 0).as_deref(), Some("this"));
        assert_eq!(last_error(&log, u64::try_from(old.len()).unwrap()).as_deref(), Some("this"));
        std::fs::write(&log, &old).unwrap();
        assert_eq!(last_error(&log, u64::try_from(old.len()).unwrap()), None);
    }

    #[test]
    fn a_message_stands_alone() {
        assert_eq!(message("warning: x\nquark: no such thing\n"), "no such thing");
        assert_eq!(message("what?\n"), "what?");
    }
}
