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
    /// There is none to ask: it is being made, has ended, or is another container's.
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
            // One that shares a kernel has no numbers of its own: they are the first one's.
            .filter(|at| found[*at].2.pod.is_none())
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use qlib::control::ProcessSpec;

    use super::super::client::listen;
    use super::super::state::start_time;
    use super::*;
    use crate::image::host::ClockShift;

    /// A container whose sandbox is this process.
    fn claim(store: &Store, id: &str) -> Entry {
        let pid = std::process::id() as i32;
        let state = State {
            id: id.to_owned(),
            oci_version: "1.0.2".to_owned(),
            pid,
            start_time: start_time(pid).unwrap(),
            step: Status::Running,
            bundle: "/".into(),
            rootfs: "/".into(),
            created: String::new(),
            owner: String::new(),
            annotations: Default::default(),
            platform: PlatformKind::Process,
            hub: None,
            layer: None,
            clocks: ClockShift::default(),
            rw_dirs: Vec::new(),
            is_shared: false,
            pod: None,
            cgroup: None,
            hooks: None,
            process: ProcessSpec::default(),
            init: 1,
        };
        let entry = store.claim_as_owner(id).unwrap().0;
        entry.save(&state).unwrap();
        entry
    }

    /// Answers each that comes with these bytes.
    fn serve(entry: &Entry, answer: Vec<u8>) {
        let listener = listen(entry).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream: UnixStream = stream.unwrap();
                assert!(stream.read(&mut [0; 64]).unwrap() > 0);
                stream.write_all(&answer).ok();
            }
        });
    }

    fn frame(body: &[u8]) -> Vec<u8> {
        [&(body.len() as u32).to_le_bytes(), body].concat()
    }

    fn watcher(root: &Path, timeout: Duration) -> Watcher {
        Watcher { scope: Scope::One(root.to_owned()), timeout, silent: HashSet::new() }
    }

    #[test]
    fn each_that_does_not_answer_well_is_silent_and_holds_nobody_up() {
        let root = std::env::temp_dir().join(format!("quark-watch-{}", std::process::id()));
        let store = Store::new(&root).unwrap();
        let reply = |stats| postcard::to_allocvec(&Reply::Stats(Box::new(stats))).unwrap();
        let mut told = Stats::default();
        told.memory.ram = 4096;
        // The last in the order of asking.
        serve(&claim(&store, "z-well"), frame(&reply(told.clone())));
        serve(&claim(&store, "garbage"), frame(&[0xff; 40]));
        serve(&claim(&store, "huge"), u32::MAX.to_le_bytes().to_vec());
        serve(&claim(&store, "other"), frame(&postcard::to_allocvec(&Reply::Done).unwrap()));
        serve(&claim(&store, "half"), frame(&reply(told.clone()))[..9].to_vec());
        claim(&store, "nobody");
        let silent = claim(&store, "silent");
        let _silent = listen(&silent).unwrap();
        // Its queue is full: not even a connection comes about.
        let full = claim(&store, "full");
        let _full = listen(&full).unwrap();
        let mut queue = Vec::new();
        while let Ok(connection) = Connection::open(&full, Duration::ZERO) {
            queue.push(connection);
        }

        let mut watcher = watcher(&root, Duration::from_millis(300));
        for _ in 0..2 {
            let look = watcher.look();
            assert!(look.took < Duration::from_secs(3), "{:?}", look.took);
            assert_eq!(look.samples.len(), 8);
            for sample in &look.samples {
                let well = sample.id == "z-well";
                assert_eq!(sample.answer.stats(), well.then_some(&told), "{}", sample.id);
                assert_eq!(matches!(sample.answer, Answer::Silence), !well, "{}", sample.id);
                assert_eq!(sample.status, Status::Running);
            }
            assert_eq!(watcher.silent.len(), 7);
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
