//! The log: where runc's callers expect it (`--log`), in their format (`--log-format`).

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};

use crate::sys::ordered::{Mutex, place};
use crate::sys::utc::Utc;

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Format {
    /// `time=… level=… msg=…`.
    #[default]
    Text,
    /// An object a line with `level`, `msg`, `time`.
    Json,
}

/// Writes log lines to a file, or to standard error when there is none.
struct Lines {
    file: Option<Arc<Mutex<File, place::LogFile>>>,
    format: Format,
    /// See [`init_sandbox`].
    of_sandbox: bool,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: LayerContext<'_, S>) {
        let is_error = *event.metadata().level() == Level::ERROR;
        if self.of_sandbox && (is_error || QUIET.load(Ordering::Relaxed)) {
            return;
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.line(*event.metadata().level(), &text.0);
    }
}

impl Lines {
    fn line(&self, level: Level, message: &str) {
        let level = level_name(level);
        let time = Utc::now().to_string();
        let line = match self.format {
            Format::Json => {
                serde_json::json!({"level": level, "msg": message, "time": time}).to_string()
            }
            Format::Text => format!("time={time:?} level={level} msg={message:?}"),
        };
        // Nothing useful can be done when the log cannot be written.
        match &self.file {
            Some(file) => {
                file.lock().write_all(format!("{line}\n").as_bytes()).ok();
            }
            None => {
                writeln!(std::io::stderr(), "quark: {level}: {message}").ok();
            }
        }
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").ok();
        } else {
            write!(self.0, " {}={value:?}", field.name()).ok();
        }
    }
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// The log's file, for a line that cannot be written as others are, and whether its lines are JSON.
pub fn file() -> Option<(OwnedFd, bool)> {
    let (file, format) = FILE.get()?;
    Some((file.lock().try_clone().ok()?.into(), *format == Format::Json))
}

static FILE: OnceLock<(Arc<Mutex<File, place::LogFile>>, Format)> = OnceLock::new();

/// Begins the log of a sandbox process without `--log`: on its standard error, as that of a
/// command. Errors are left out: who waits for the sandbox says them, or [`fatal`] does.
///
/// # Errors
/// When there is a log already.
pub fn init_sandbox(debug: bool) -> Result<()> {
    tracing::subscriber::set_global_default(of_sandbox(debug)).context("starting the log")
}

fn of_sandbox(debug: bool) -> impl Subscriber {
    // No filter of another kind than the level: the guest kernel would trace all its calls.
    let lines = Lines { file: None, format: Format::Text, of_sandbox: true };
    tracing_subscriber::registry().with(lines.with_filter(level(debug)))
}

/// Ends what [`init_sandbox`] began: standard error is the container's alone from here on.
pub fn end_sandbox() {
    QUIET.store(true, Ordering::Relaxed);
}

static QUIET: AtomicBool = AtomicBool::new(false);

/// What is logged.
fn level(debug: bool) -> LevelFilter {
    // Every system call of the guest is a line at this level: for debugging only.
    let trace = std::env::var_os("QUARK_TRACE").is_some();
    match debug {
        true if trace => LevelFilter::TRACE,
        true => LevelFilter::DEBUG,
        false => LevelFilter::WARN,
    }
}

/// Begins logging.
///
/// # Errors
/// When the file cannot be opened.
pub fn init(path: Option<&Path>, format: Format, debug: bool) -> Result<()> {
    let file = match path {
        Some(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            Some(Arc::new(Mutex::new(
                file.with_context(|| format!("opening log {}", path.display()))?,
            )))
        }
        None => None,
    };
    if let Some(file) = &file {
        FILE.set((file.clone(), format)).ok();
    }
    let subscriber = tracing_subscriber::registry()
        .with(Lines { file, format, of_sandbox: false }.with_filter(level(debug)));
    tracing::subscriber::set_global_default(subscriber).context("starting the log")
}

/// Says why the program fails: one line on standard error, and one in the log when that is a file.
pub fn fatal(message: &str, has_file: bool) {
    let message = message.replace('\n', " ");
    if has_file {
        tracing::error!("{message}");
    }
    // In one write, so that it stays one line beside what others write there.
    std::io::stderr().write_all(format!("quark: {message}\n").as_bytes()).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_without_a_log_traces_nothing() {
        assert_eq!(of_sandbox(false).max_level_hint(), Some(LevelFilter::WARN));
    }
}
