//! Looking at many containers at once, for `metrics` and `top`.
//!
//! All sandboxes are asked before any answer is waited for, so that those that do not answer cost
//! the time of one. Who has not answered last time is asked last. Asking wakes nobody.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use qlib::control::{Reply, Request, Stats};

use super::cli::Global;
use super::client::{Connection, unexpected};
use super::roots::Roots;
use super::state::{Entry, State, Status, Store};
use crate::platform::PlatformKind;

/// How long all sandboxes of a row together may take to answer, unless `--timeout` says otherwise.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a look may take in all: Prometheus waits for 10 s.
const LOOK_TIMEOUT: Duration = Duration::from_secs(8);
/// How many are asked in a row: each takes a descriptor, of which a process commonly has 1024.
const ROW: usize = 256;

/// What a sandbox says of itself.
#[derive(Clone, Debug)]
pub enum Answer {
    /// There is none to ask: it is being made, or has ended.
    Nobody,
    /// Its numbers.
    Stats(Box<Stats>),
    /// It does not answer, or not so that it could be understood, or nobody had the time to ask.
    Silence,
}

impl Answer {
    /// Its numbers.
    pub fn stats(&self) -> Option<&Stats> {
        match self {
            Answer::Stats(stats) => Some(stats),
            Answer::Nobody | Answer::Silence => None,
        }
    }
}

/// What is seen of one container.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Its state directory.
    pub root: PathBuf,
    /// Its ID.
    pub id: String,
    /// Its status.
    pub status: Status,
    /// How its guest code runs.
    pub platform: PlatformKind,
    /// What its cgroup holds in bytes, without clean page cache.
    pub held_bytes: Option<u64>,
    /// What its sandbox says.
    pub answer: Answer,
}

/// What is seen of all of them.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// The state directories that could be read.
    pub read: Vec<PathBuf>,
    /// Those that could not, the notes of where they are too, and why.
    pub unreadable: Vec<(PathBuf, String)>,
    /// The containers, by state directory and ID.
    pub samples: Vec<Sample>,
    /// How long it took.
    pub took: Duration,
}

impl Look {
    /// Logs what could not be read.
    pub fn warn(&self) {
        for (_, why) in &self.unreadable {
            tracing::warn!("not looked at: {why}");
        }
    }
}

/// Where to look.
#[derive(Clone, Debug)]
enum Scope {
    One(PathBuf),
    All(Roots, PathBuf),
}

/// Looks again and again.
#[derive(Debug)]
pub struct Watcher {
    scope: Scope,
    timeout: Duration,
    /// Who did not answer last time.
    silent: HashSet<(PathBuf, String)>,
}

impl Watcher {
    /// Of the state directory that was given, or else of all that are known.
    pub fn new(global: &Global) -> Watcher {
        let root = global.root.clone();
        let scope =
            if global.root_given { Scope::One(root) } else { Scope::All(Roots::of_caller(), root) };
        let timeout = global.timeout.unwrap_or(ANSWER_TIMEOUT);
        Watcher { scope, timeout, silent: HashSet::new() }
    }

    /// Looks at all containers. It takes 8 s at most, or two `--timeout`s if that is more.
    pub fn look(&mut self) -> Look {
        let begin = Instant::now();
        let mut look = Look::default();
        let mut found = Vec::new();
        let roots = match &self.scope {
            Scope::One(root) => vec![root.clone()],
            Scope::All(roots, given) => {
                let (roots, failure) = roots.all(given);
                look.unreadable.extend(failure.map(|(notes, e)| (notes, format!("{e:#}"))));
                roots
            }
        };
        for root in roots {
            match Store::new(&root).and_then(|store| store.list()) {
                Ok(all) => {
                    found
                        .extend(all.into_iter().map(|(entry, state)| (root.clone(), entry, state)));
                    look.read.push(root);
                }
                Err(e) => look.unreadable.push((root, format!("{e:#}"))),
            }
        }
        let mut samples: Vec<Sample> = found.iter().map(sample).collect();
        let mut to_ask: Vec<usize> = (0..samples.len())
            .filter(|at| matches!(samples[*at].status, Status::Running | Status::Paused))
            .collect();
        let key = |sample: &Sample| (sample.root.clone(), sample.id.clone());
        to_ask.sort_by_key(|at| self.silent.contains(&key(&samples[*at])));
        let end = begin + LOOK_TIMEOUT.max(2 * self.timeout);
        for row in to_ask.chunks(ROW) {
            let limit = self.timeout.min(end.saturating_duration_since(Instant::now()));
            let entries: Vec<&Entry> = row.iter().map(|at| &found[*at].1).collect();
            for (at, answer) in row.iter().zip(ask_all(&entries, limit)) {
                samples[*at].answer = match answer {
                    Ok(stats) => Answer::Stats(stats),
                    Err(e) => {
                        tracing::debug!("{}: {e:#}", samples[*at].id);
                        // It may have ended instead.
                        samples[*at].status = found[*at].2.status();
                        match samples[*at].status {
                            Status::Stopped => Answer::Nobody,
                            _ => Answer::Silence,
                        }
                    }
                };
            }
        }
        let silent = samples.iter().filter(|s| matches!(s.answer, Answer::Silence));
        self.silent = silent.map(key).collect();
        look.samples = samples;
        look.took = begin.elapsed();
        look
    }
}

/// What is known without the sandbox.
fn sample((root, entry, state): &(PathBuf, Entry, State)) -> Sample {
    Sample {
        root: root.clone(),
        id: entry.id.clone(),
        status: state.status(),
        platform: state.platform,
        held_bytes: state.cgroup.as_ref().and_then(crate::cgroup::Cgroup::held_bytes),
        answer: Answer::Nobody,
    }
}

/// Asks all of them, and waits for their answers for as long as `limit` together.
fn ask_all(entries: &[&Entry], limit: Duration) -> Vec<Result<Box<Stats>>> {
    let end = Instant::now() + limit;
    let asked: Vec<Result<Connection>> = entries.iter().map(|entry| ask(entry, limit)).collect();
    let answer = |asked: Result<Connection>| {
        let mut connection = asked?;
        connection.wait_until(end);
        match connection.receive()? {
            Reply::Stats(stats) => Ok(stats),
            other => Err(unexpected(&other)),
        }
    };
    asked.into_iter().map(answer).collect()
}

/// Asks one. It does not wait for a place in the queue of a sandbox that accepts nobody.
fn ask(entry: &Entry, limit: Duration) -> Result<Connection> {
    let mut connection = Connection::open(entry, Duration::ZERO)?;
    connection.set_timeout(Some(limit));
    connection.send(&Request::Stats, &[])?;
    Ok(connection)
}
