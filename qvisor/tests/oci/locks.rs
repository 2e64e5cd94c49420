//! Locks of files in a volume that two containers and a process of the host have open.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::json;

use crate::life::{cases_on, configure_cases};
use crate::shared::limit;
use crate::support::{Place, place};

const AGENT: &str = include_str!("locks.py");
const PYTHON: &str = "/usr/bin/python3";
const KINDS: [&str; 3] = ["flock", "posix", "ofd"];

/// Somebody who locks files: see `locks.py`.
struct Agent {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Agent {
    fn new(mut command: Command) -> Agent {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                sender.send(line).ok();
            }
        });
        let mut agent = Agent { child, stdin, lines };
        assert_eq!(agent.ask("'here'"), "here");
        agent
    }

    /// In a container of its own, whose /tmp is `volume`.
    fn contained(p: &Place, volume: &Path, id: &str) -> Agent {
        configure_agent(p, volume);
        Agent::new(p.quark(&["run", id]))
    }

    /// A process of the host.
    fn outside(volume: &Path) -> Agent {
        let mut command = Command::new(PYTHON);
        command.args(["-c", AGENT, &format!("{}/", volume.display())]);
        Agent::new(command)
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    fn answer(&self) -> String {
        self.lines.recv_timeout(limit()).unwrap_or_else(|e| panic!("no answer: {e}"))
    }

    fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }

    /// Begins what waits.
    fn begin(&mut self, line: &str) {
        assert_eq!(self.ask(line), "waits");
    }

    fn is_waiting(&self) -> bool {
        matches!(
            self.lines.recv_timeout(Duration::from_millis(200)),
            Err(RecvTimeoutError::Timeout)
        )
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Makes an agent whose /tmp is `volume` the place's program.
fn configure_agent(p: &Place, volume: &Path) {
    p.configure(&[PYTHON, "-c", AGENT, "/tmp/"], |c| {
        c["root"] = json!({"path": "/", "readonly": true});
        let many = json!([{"type": "RLIMIT_NOFILE", "soft": 1000, "hard": 100_000}]);
        c["process"]["rlimits"] = many;
        let tmp = json!({"destination": "/tmp", "type": "bind", "source": volume, "options": ["rbind", "rw"]});
        let mounts = c["mounts"].as_array_mut().unwrap();
        mounts.retain(|m| m["destination"] != "/tmp");
        mounts.push(tmp);
    });
}

/// Two containers and a process of the host.
struct Trio {
    agents: [Agent; 3],
    p: Place,
}

const A: usize = 0;
const B: usize = 1;
const HOST: usize = 2;

fn trio() -> Option<Trio> {
    let p = place()?;
    let volume = p.volume();
    fs::write(volume.join("f"), "").unwrap();
    let contained = |name| Agent::contained(&p, &volume, &format!("{}-{name}", p.id));
    let agents = [contained("a"), contained("b"), Agent::outside(&volume)];
    Some(Trio { agents, p })
}

impl Trio {
    /// Each in turn: who, what, and the answer.
    fn steps(&mut self, steps: &[(usize, &str, &str)]) {
        for (at, (who, line, expected)) in steps.iter().enumerate() {
            assert_eq!(
                self.agents[*who].ask(line),
                *expected,
                "step {at}: {who} {line}: {steps:?}"
            );
        }
    }

    fn id(&self, who: usize) -> String {
        format!("{}-{}", self.p.id, ["a", "b"][who])
    }
}

#[test]
fn each_kind_excludes_containers_and_the_host() {
    let Some(mut t) = trio() else { return };
    for (x, y, z) in [(A, B, HOST), (HOST, A, B), (B, HOST, A)] {
        for kind in KINDS {
            let [sh, ex, un] = ["sh", "ex", "un"].map(|how| format!("lock('{kind}', '{how}')"));
            let (sh, ex, un) = (sh.as_str(), ex.as_str(), un.as_str());
            // A conversion that fails has lost a lock of flock(2), and no other.
            let after = if kind == "flock" { "ok" } else { "EAGAIN" };
            t.steps(&[
                (x, ex, "ok"),
                (y, sh, "EAGAIN"),
                (z, ex, "EAGAIN"),
                (x, sh, "ok"),
                (y, sh, "ok"),
                (z, ex, "EAGAIN"),
                (x, ex, "EAGAIN"),
                (y, un, "ok"),
                (z, ex, after),
                (z, un, "ok"),
                (x, ex, "ok"),
                (z, sh, "EAGAIN"),
                (x, un, "ok"),
                (z, ex, "ok"),
                (y, sh, "EAGAIN"),
                (z, "close('f')", "ok"),
                (y, ex, "ok"),
                (y, un, "ok"),
            ]);
        }
    }
    // Two kinds do not see each other; those of processes and of open files do.
    t.steps(&[
        (A, "lock('flock', 'ex')", "ok"),
        (B, "lock('posix', 'ex')", "ok"),
        (HOST, "lock('ofd', 'sh')", "EAGAIN"),
        (HOST, "lock('flock', 'sh')", "EAGAIN"),
    ]);
}

#[test]
fn ranges_are_split_merged_and_told_of() {
    let Some(mut t) = trio() else { return };
    t.steps(&[
        (A, "lock('posix', 'ex', 'f', 0, 10)", "ok"),
        (B, "lock('ofd', 'ex', 'f', 5, 10)", "EAGAIN"),
        (B, "lock('ofd', 'ex', 'f', 10, 10)", "ok"),
        (HOST, "lock('posix', 'sh', 'f', 20, 0)", "ok"),
        // Whoever is elsewhere has no number here, or is an open file.
        (HOST, "test('posix')", "('ex', 0, 10, -1)"),
        (A, "test('posix')", "('ex', 10, 10, -1)"),
        (B, "test('posix', 'f', 20, 5)", "('sh', 20, 0, 0)"),
        (B, "lock('posix', 'sh', 'f', 25, 5)", "ok"),
        (A, "lock('posix', 'un', 'f', 3, 2)", "ok"),
        (HOST, "test('ofd', 'f', 0, 5)", "('ex', 0, 3, -1)"),
        (HOST, "test('ofd', 'f', 3, 5)", "('ex', 5, 5, -1)"),
        (HOST, "lock('posix', 'ex', 'f', 3, 2)", "ok"),
        (A, "lock('posix', 'ex', 'f', 3, 2)", "EAGAIN"),
        (HOST, "lock('posix', 'un', 'f', 0, 20)", "ok"),
        // What is in the middle is converted.
        (A, "lock('posix', 'sh', 'f', 2, 6)", "ok"),
        (HOST, "test('ofd', 'f', 1, 1)", "('ex', 0, 2, -1)"),
        (HOST, "test('ofd', 'f', 4, 1)", "('sh', 2, 6, -1)"),
        (HOST, "lock('posix', 'sh', 'f', 2, 6)", "ok"),
        (HOST, "test('ofd', 'f', 8, 1)", "('ex', 8, 2, -1)"),
        // Closing any of its descriptors gives up what a process has of a file.
        (A, "(fd('f2'), close('f2'))[1]", "ok"),
        (HOST, "lock('posix', 'ex', 'f', 0, 10)", "ok"),
        (B, "lock('ofd', 'ex', 'f', 10, 5)", "ok"),
        (B, "(fd('f2'), close('f2'))[1]", "ok"),
        (HOST, "lock('posix', 'ex', 'f', 10, 1)", "EAGAIN"),
    ]);
}

#[test]
fn owners_in_one_container_share_what_may_be_shared() {
    let Some(mut t) = trio() else { return };
    for kind in KINDS {
        let child = format!("child('{kind}', 'sh', 'f2')");
        let [first, second] = [0, 1].map(|_| t.agents[A].ask(&child));
        assert!(first.parse::<u32>().is_ok() && second.parse::<u32>().is_ok(), "{first} {second}");
        let [sh, ex] = ["sh", "ex"].map(|how| format!("lock('{kind}', '{how}')"));
        let kill = [first, second].map(|pid| format!("kill({pid})"));
        t.steps(&[
            (HOST, &sh, "ok"),
            (HOST, &ex, "EAGAIN"),
            (HOST, &sh, "ok"),
            (A, &kill[0], "ok"),
            (HOST, &ex, "EAGAIN"),
            (A, &kill[1], "ok"),
            (HOST, &ex, "ok"),
            (A, &sh, "EAGAIN"),
            (HOST, "close('f')", "ok"),
        ]);
    }
}

#[test]
fn the_end_of_a_container_gives_its_locks_up() {
    let Some(mut t) = trio() else { return };
    t.steps(&[
        (A, "lock('flock', 'ex')", "ok"),
        (A, "lock('posix', 'ex', 'f', 0, 10)", "ok"),
        (A, "lock('ofd', 'ex', 'f2', 10, 10)", "ok"),
        (B, "lock('ofd', 'ex', 'f', 100, 1)", "ok"),
        (HOST, "lock('flock', 'sh')", "EAGAIN"),
        (HOST, "lock('posix', 'sh', 'f', 9, 1)", "EAGAIN"),
        (HOST, "lock('posix', 'sh', 'f', 19, 1)", "EAGAIN"),
    ]);
    // It waits too when it is killed.
    let pid = t.agents[A].ask("waiting_child('ofd', 'ex', 'f3', 100, 1)");
    assert!(pid.parse::<u32>().is_ok(), "{pid}");
    t.p.good(&["kill", &t.id(A), "KILL"]);
    for line in ["lock('flock', 'ex')", "lock('posix', 'ex', 'f', 0, 100)"] {
        let (host, p) = (&mut t.agents[HOST], &t.p);
        p.wait_for("the lock", || host.ask(line) == "ok");
    }
    t.steps(&[(B, "lock('ofd', 'un')", "ok")]);
    std::thread::sleep(Duration::from_millis(200));
    t.steps(&[(HOST, "lock('posix', 'ex')", "ok")]);
}

#[test]
fn who_waits_gets_the_lock_when_it_is_free() {
    let Some(mut t) = trio() else { return };
    for (holder, waiter) in [(HOST, A), (B, A), (A, HOST)] {
        for kind in KINDS {
            let [ex, un, wait] = [
                format!("lock('{kind}', 'ex')"),
                format!("lock('{kind}', 'un')"),
                format!("wait('{kind}', 'sh')"),
            ];
            t.steps(&[(holder, &ex, "ok")]);
            t.agents[waiter].begin(&wait);
            assert!(t.agents[waiter].is_waiting());
            t.steps(&[(holder, &un, "ok")]);
            assert_eq!(t.agents[waiter].answer(), "ok");
            t.steps(&[(holder, &ex, "EAGAIN"), (waiter, &un, "ok")]);
        }
    }
}

#[test]
fn a_wait_that_ends_early_leaves_nothing() {
    let Some(mut t) = trio() else { return };
    for kind in KINDS {
        let [ex, un] = ["ex", "un"].map(|how| format!("lock('{kind}', '{how}')"));
        t.steps(&[(HOST, &ex, "ok")]);
        t.agents[A].begin(&format!("alarmed('{kind}', 'ex')"));
        assert_eq!(t.agents[A].answer(), "interrupted");
        let pid = t.agents[A].ask(&format!("waiting_child('{kind}', 'ex', 'f4')"));
        t.steps(&[(A, &format!("kill({pid})"), "ok"), (HOST, &un, "ok")]);
        // Longer than the host takes to look again.
        std::thread::sleep(Duration::from_millis(200));
        t.steps(&[(B, &ex, "ok"), (B, &un, "ok"), (A, &ex, "ok"), (A, &un, "ok")]);
    }
}

#[test]
fn a_container_that_sleeps_keeps_its_locks_and_wakes_for_those_it_waits_for() {
    let Some(mut t) = trio() else { return };
    let id = t.id(A);
    for kind in KINDS {
        let [ex, un] = ["ex", "un"].map(|how| format!("lock('{kind}', '{how}')"));
        t.steps(&[(A, &ex, "ok")]);
        t.p.good(&["kill", &id, "STOP"]);
        t.steps(&[(HOST, &ex, "EAGAIN"), (B, &ex, "EAGAIN")]);
        t.p.good(&["kill", &id, "CONT"]);
        t.steps(&[(A, &un, "ok"), (HOST, &ex, "ok")]);
        t.agents[A].begin(&format!("wait('{kind}', 'ex')"));
        assert!(t.agents[A].is_waiting());
        t.p.good(&["kill", &id, "STOP"]);
        let state = t.p.good(&["state", &id]);
        assert!(state.contains("\"Hibernated\""), "{state}");
        assert!(t.agents[A].is_waiting());
        let state = t.p.good(&["state", &id]);
        assert!(state.contains("\"Hibernated\""), "looking for the lock wakes nobody: {state}");
        t.steps(&[(HOST, &un, "ok")]);
        assert_eq!(t.agents[A].answer(), "ok");
        t.steps(&[(HOST, &ex, "EAGAIN"), (A, &un, "ok")]);
    }
}

#[test]
fn a_greedy_container_is_bounded_and_harms_nobody() {
    let Some(mut t) = trio() else { return };
    let answer = t.agents[A].ask("many_ranges('posix', 100000)");
    let (got, end) = answer.trim_matches(['(', ')']).split_once(", ").unwrap();
    let got: u32 = got.parse().unwrap();
    assert!((64..70_000).contains(&got) && end == "'ENOLCK'", "{answer}");
    let last = format!("test('posix', 'f', {}, 0)", 2 * (got - 1));
    t.steps(&[
        (HOST, &last, &format!("('ex', {}, 1, -1)", 2 * (got - 1))),
        (B, "lock('posix', 'ex', 'f', 1, 1)", "ok"),
        (B, "lock('flock', 'ex')", "ok"),
        (A, "lock('posix', 'un')", "ok"),
        (HOST, "lock('posix', 'ex', 'f', 2, 100000)", "ok"),
        (HOST, "lock('posix', 'un')", "ok"),
    ]);
}

#[test]
fn locks_of_many_files_end_with_the_hosts_descriptors() {
    let Some(p) = place() else { return };
    let volume = p.volume();
    configure_agent(&p, &volume);
    let run = p.quark(&["run", &p.id]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 1000; exec \"$0\" \"$@\""]).arg(run.get_program());
    limited.args(run.get_args()).current_dir(&p.bundle);
    let mut agent = Agent::new(limited);
    let answer = agent.ask("many_files(10000)");
    let (got, end) = answer.trim_matches(['(', ')']).split_once(", ").unwrap();
    let got: u32 = got.parse().unwrap();
    // Each takes one descriptor of the host as a file and one for its lock.
    assert!((250..750).contains(&got), "{answer}");
    assert!(["'ENOLCK'", "'ENFILE'", "'EMFILE'"].contains(&end), "{answer}");
    let mut host = Agent::outside(&volume);
    assert_eq!(host.ask("lock('flock', 'sh')"), "ok");
    assert_eq!(host.ask("lock('flock', 'ex')"), "EAGAIN");
    // Programs take descriptors too.
    for at in 0..20 {
        assert_eq!(agent.ask(&format!("close('f{at}')")), "ok");
    }
    assert_eq!(p.good(&["exec", &p.id, "/bin/echo", "here"]), "here\n");
    assert_eq!(agent.ask("lock('flock', 'sh', 'f0')"), "ok");
}

/// Has all three do the same at once.
fn all(t: &mut Trio, line: impl Fn(usize) -> String) {
    for who in [A, B, HOST] {
        t.agents[who].tell(&line(who));
    }
    for who in [A, B, HOST] {
        assert_eq!(t.agents[who].answer(), "ok");
    }
}

#[test]
fn counters_under_locks_lose_nothing() {
    let Some(mut t) = trio() else { return };
    for (kind, at) in KINDS.iter().zip(1..) {
        all(&mut t, |_| format!("add_under_lock('{kind}', 100)"));
        let value = fs::read_to_string(t.p.dir.join("volume/f")).unwrap();
        assert_eq!(value, (300 * at).to_string(), "{kind}");
    }
}

/// Transactions of all three on one database lose nothing.
fn sqlite_loses_nothing(journal: &str) {
    let Some(mut t) = trio() else { return };
    let base = t.p.dir.join("volume/base");
    let ask =
        |what: &str| format!("sqlite3.connect('{}').execute('{what}').fetchall()", base.display());
    t.steps(&[
        (HOST, &ask(&format!("PRAGMA journal_mode={journal}")), &format!("[('{journal}',)]")),
        (HOST, "prepare()", "ok"),
    ]);
    all(&mut t, |who| format!("count('{who}', 60)"));
    let rows = "SELECT who, COUNT(DISTINCT number) FROM entries GROUP BY who";
    t.steps(&[
        (HOST, &ask("SELECT value FROM counter"), "[(180,)]"),
        (HOST, &ask(rows), "[('0', 60), ('1', 60), ('2', 60)]"),
        (HOST, &ask("PRAGMA integrity_check"), "[('ok',)]"),
    ]);
}

#[test]
fn sqlite_with_a_rollback_journal_loses_nothing() {
    sqlite_loses_nothing("delete");
}

#[test]
fn sqlite_with_a_write_ahead_log_loses_nothing() {
    sqlite_loses_nothing("wal");
}

#[test]
fn system_calls_on_a_volume_lock_as_on_linux() {
    let Some(p) = place() else { return };
    let volume = p.volume();
    let cases: &[&[&str]] = &[
        &[
            "files",
            "fcntl_locks_between_processes",
            "fcntl_lock_waits",
            "ofd_locks",
            "flock_excludes",
            "flock_follows_the_description",
        ],
        &["reopen", "close_releases_locks"],
    ];
    for cases in cases {
        cases_on(&p, &volume, cases, "A=B");
    }
    configure_cases(&p, &volume, &["locks"], "A=B");
    let output = p.good(&["run", &p.id]);
    assert!(output.matches("ok ").count() >= 11 && !output.contains("FAIL"), "{output}");
}
