//! Snapshots of running containers, to which they are taken back in place, and branches of them.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::support::container::{Container, alive, children};
use crate::support::{eventually, limit, run};
use crate::{held, memory, ready, verified};

fn snapshot(c: &Container, name: &str) {
    c.must(&["checkpoint", "--name", name, &c.id]);
}

fn rollback(c: &Container, name: &str) {
    c.must(&["rollback", &c.id, name]);
}

/// Where snapshots of a container lie.
fn snapshots_dir(c: &Container) -> PathBuf {
    c.images().join("snapshots").join(&c.id)
}

fn listed(c: &Container) -> Vec<Value> {
    let text = c.must(&["snapshots", "--format", "json", &c.id]);
    serde_json::from_str(&text).expect("JSON")
}

/// Asks it in its own network namespace, wherever that is.
pub fn asked_inside(c: &Container, id: &str, request: &str) -> String {
    let port = c.port.to_string();
    let ask = format!("echo {request} | nc 127.0.0.1 {port}");
    let answer = c.must(&["exec", id, "sh", "-c", &ask]);
    answer.trim().to_owned()
}

#[test]
fn every_byte_comes_back_as_often_as_it_is_asked_for() {
    let c = memory("24");
    snapshot(&c, "first");
    let pid = c.pid();
    for round in 0..12 {
        assert_eq!(c.ask("corrupt"), "ok");
        assert!(c.ask("verify").starts_with("BAD"), "round {round}: it was to be damaged");
        rollback(&c, "first");
        assert_eq!(c.pid(), pid, "the process of the host is the same");
        verified(&c.ask("verify"));
        if round % 3 == 0 {
            // What it does after that is its own again.
            assert!(c.ask("change").starts_with("ok"));
            c.hibernate();
            verified(&c.ask("verify"));
        }
    }
    c.hibernate();
    verified(&c.ask("verify"));
}

/// What a snapshot has lies in the store alone until it is used again.
#[test]
fn what_a_snapshot_has_takes_no_memory() {
    let c = memory("64");
    verified(&c.ask("verify"));
    let warm = held(&c);
    snapshot(&c, "one");
    eventually("the host has its memory back", limit(), || held(&c) * 3 <= warm);
    verified(&c.ask("verify"));
}

#[test]
fn snapshots_of_snapshots_are_a_tree_and_share_what_they_have() {
    let c = memory("24");
    snapshot(&c, "a");
    for (i, name) in ["b", "c", "d"].iter().enumerate() {
        c.kill("USR1");
        eventually("the signal is counted", limit(), || c.ask("signals") == (i + 1).to_string());
        snapshot(&c, name);
    }
    for (name, signals) in [("b", "1"), ("d", "3"), ("a", "0"), ("c", "2")] {
        rollback(&c, name);
        assert_eq!(c.ask("signals"), signals, "{name}");
        verified(&c.ask("verify"));
    }
    snapshot(&c, "e");
    let all = listed(&c);
    let of = |name: &str| all.iter().find(|one| one["name"] == name).expect(name);
    for (name, parent) in [("b", "a"), ("c", "b"), ("d", "c"), ("e", "c")] {
        assert_eq!(of(name)["parent"], parent);
    }
    assert!(of("a")["parent"].is_null());
    assert_eq!(of("e")["current"], true);
    let bytes = |name| of(name)["bytes"].as_u64().expect("a number");
    assert!(bytes("b") < bytes("a") / 4, "{all:?}");
    let tree = c.must(&["snapshots", &c.id]);
    for line in ["a ", "  b ", "    c ", "      d ", "      e *"] {
        assert!(tree.lines().any(|one| one.starts_with(line)), "{line:?}: {tree}");
    }
    // Each is whole without the others.
    for name in ["a", "b", "d"] {
        c.must(&["snapshots", "--remove", name, &c.id]);
    }
    rollback(&c, "c");
    assert_eq!(c.ask("signals"), "2");
    verified(&c.ask("verify"));
    snapshot(&c, "a");
    assert_eq!(listed(&c).len(), 3);
    let dir = snapshots_dir(&c);
    assert!(dir.is_dir(), "{}", dir.display());
    c.must(&["delete", "--force", &c.id]);
    assert!(!dir.exists(), "they go with the container");
}

/// A connection that was there is there still; one that came later ends.
#[test]
fn connections_stay_if_they_were_there() {
    let c = memory("8");
    let mut before = c.connect().expect("connect");
    assert_eq!(before.ask("ping"), "pong");
    snapshot(&c, "one");
    for _ in 0..3 {
        let mut after = c.connect().expect("connect");
        assert_eq!(after.ask("ping"), "pong");
        rollback(&c, "one");
        assert_eq!(after.try_answer().unwrap_or_default(), "", "its end is told");
        assert_eq!(before.ask("ping"), "pong");
        assert_eq!(c.ask_datagram("ping").as_deref(), Some("pong"));
    }
}

/// What was begun after it ends, and kills nobody who has its number now.
#[test]
fn processes_of_exec_end_that_came_later() {
    let c = memory("8");
    snapshot(&c, "one");
    for _ in 0..3 {
        let mut quark = c.quark(&["exec", &c.id, "sleep", "1000"]);
        let mut child = quark.stdin(Stdio::null()).spawn().expect("start quark");
        let sleeps = |c: &Container| c.must(&["ps", &c.id]).contains("sleep 1000");
        eventually("it runs", limit(), || sleeps(&c));
        rollback(&c, "one");
        let end = crate::support::wait(&mut child, limit());
        assert!(end.is_some_and(|end| !end.success()), "{end:?}");
        assert!(!sleeps(&c));
        verified(&c.ask("verify"));
        assert_eq!(c.must(&["exec", &c.id, "echo", "up"]), "up\n");
    }
}

/// One that is never idle goes back in the middle of what it does, and its clock goes on.
#[test]
fn who_is_never_idle_goes_back() {
    let counts = "echo ready; i=0; while :; do i=$((i+1)); usleep 1000; echo $i; done";
    let c = Container::start("busybox", &["sh", "-c", counts]);
    ready(&c);
    let counted = || c.output().lines().filter_map(|n| n.parse::<u64>().ok()).collect::<Vec<_>>();
    eventually("it counts", limit(), || counted().len() > 3);
    snapshot(&c, "one");
    for round in 1..4 {
        let before = counted().len();
        eventually("it counts on", limit(), || counted().len() > before + 20);
        rollback(&c, "one");
        let back = counted().len();
        eventually("it counts on", limit(), || counted().len() > back + 3);
        let numbers = counted();
        let falls = numbers.windows(2).filter(|pair| pair[1] <= pair[0]);
        assert_eq!(falls.count(), round, "{numbers:?}");
        assert!(numbers.windows(2).all(|pair| pair[1] <= pair[0] + 1), "{numbers:?}");
    }
    // So it does while it is paused in the middle of that.
    c.must(&["pause", &c.id]);
    snapshot(&c, "paused");
    rollback(&c, "one");
    let before = counted();
    sleep(Duration::from_millis(100));
    assert_eq!(counted(), before);
    c.must(&["resume", &c.id]);
    eventually("it counts on", limit(), || counted().len() > before.len() + 3);
    rollback(&c, "paused");
    let back = counted().len();
    eventually("it counts on", limit(), || counted().len() > back + 3);
}

/// A program that keeps what must be used only once is told that it goes on in another life.
#[test]
fn who_watches_its_generation_is_told() {
    const WATCHES: &str = "import select\n\
        f = open('/proc/quark/generation', 'rb', 0)\n\
        p = select.poll()\n\
        p.register(f, select.POLLPRI)\n\
        while True:\n \
            f.seek(0)\n \
            print(f.read().decode().strip(), flush=True)\n \
            p.poll()";
    let c = Container::start("python", &["python3", "-c", WATCHES]);
    let lives = || c.output().lines().map(str::to_owned).collect::<Vec<_>>();
    eventually("it watches", limit(), || lives().len() == 1);
    // A sleep alone is none.
    c.must(&["kill", &c.id, "STOP"]);
    c.must(&["kill", &c.id, "CONT"]);
    snapshot(&c, "one");
    for round in 1..4 {
        rollback(&c, "one");
        eventually("it is told", limit(), || lives().len() == 1 + round);
    }
    let mut all = lives();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4, "{all:?}");
    assert!(all.iter().all(|life| life.len() == 36), "{all:?}");
}

#[test]
fn branches_go_their_own_ways() {
    let c = memory("8");
    assert_eq!(c.ask("signals"), "0");
    c.kill("USR1");
    eventually("the signal is counted", limit(), || c.ask("signals") == "1");
    let ids: Vec<String> = (1..=3).map(|n| format!("{}-f-{n}", c.id)).collect();
    let name = format!("{}-f", c.id);
    c.must(&["fork", "--new-network", "--count", "3", &c.id, &name]);
    verified(&c.ask("verify"));
    for (i, id) in ids.iter().enumerate() {
        for _ in 0..i {
            c.must(&["kill", id, "USR1"]);
        }
        eventually("signals are counted", limit(), || {
            asked_inside(&c, id, "signals") == (1 + usize::from(i > 0)).to_string()
                || asked_inside(&c, id, "signals") == (1 + i).to_string()
        });
        verified(&asked_inside(&c, id, "verify"));
    }
    assert_eq!(c.ask("signals"), "1");
    c.kill("KILL");
    eventually("it ends", limit(), || !alive(c.pid()));
    c.must(&["delete", "--force", &c.id]);
    for id in &ids {
        assert!(asked_inside(&c, id, "change").starts_with("ok"));
        verified(&asked_inside(&c, id, "verify"));
        // A branch has snapshots, and branches, of its own.
        c.must(&["checkpoint", "--name", "one", id]);
        assert_eq!(asked_inside(&c, id, "corrupt"), "ok");
        c.must(&["rollback", id, "one"]);
        verified(&asked_inside(&c, id, "verify"));
    }
    let branch = format!("{name}-1-b");
    c.must(&["fork", "--new-network", &ids[0], &branch]);
    verified(&asked_inside(&c, &branch, "verify"));
    for id in ids.iter().chain([&branch]) {
        c.must(&["delete", "--force", id]);
    }
    let left = fs::read_dir(c.images().join("forks")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "nothing is left of the image");
}

/// As many layers as there may be, and more.
#[test]
fn a_long_chain_is_forked() {
    let c = memory("8");
    for number in 0..20 {
        assert!(c.ask("change").starts_with("ok"));
        snapshot(&c, &format!("n{number}"));
        if number % 4 == 3 {
            let branch = format!("{}-f", c.id);
            c.must(&["fork", "--new-network", &c.id, &branch]);
            verified(&asked_inside(&c, &branch, "verify"));
            if number == 11 {
                // Its network is that of its original, not what the configuration says.
                let further = format!("{branch}-f");
                c.must(&["fork", &branch, &further]);
                verified(&asked_inside(&c, &further, "verify"));
                c.must(&["delete", "--force", &further]);
            }
            c.must(&["delete", "--force", &branch]);
        }
    }
    rollback(&c, "n9");
    verified(&c.ask("verify"));
}

#[test]
fn what_cannot_be_is_told_and_changes_nothing() {
    let c = memory("8");
    let fails = |args: &[&str], why: &str| {
        let outcome = c.command(args);
        assert!(!outcome.success() && outcome.stderr.contains(why), "{}", outcome.describe());
    };
    fails(&["rollback", &c.id, "none"], "it has none (quark checkpoint --name NAME makes one)");
    snapshot(&c, "one");
    fails(&["rollback", &c.id, "none"], "it has one");
    fails(&["checkpoint", "--name", "one", &c.id], "has a snapshot one already");
    fails(&["snapshots", "--remove", "two", &c.id], "has no snapshot two");
    for name in ["../x", "", ".", "a/b", ".current"] {
        fails(&["checkpoint", "--name", name, &c.id], "is no name for a snapshot");
        fails(&["rollback", &c.id, name], "is no name for a snapshot");
    }
    // Where it listens somebody does already.
    let name = format!("{}-f", c.id);
    fails(&["fork", &c.id, &name], "give the container a network namespace of its own");
    fails(&["fork", "--new-network", &c.id, &c.id], "already");
    fails(&["fork", "--new-network", "nobody", &name], "does not exist");
    let ram = snapshots_dir(&c).join("one/ram");
    let kept = fs::read(&ram).expect("guest memory");
    fs::write(&ram, &kept[..kept.len() / 2]).expect("write");
    fails(&["rollback", &c.id, "one"], "ram does not check out");
    fs::write(&ram, kept).expect("write");
    verified(&c.ask("verify"));
    assert_eq!(listed(&c).len(), 1);
}

/// Whether it is paused is not what a snapshot says, and no command that is killed changes it.
#[test]
fn a_pause_is_the_containers_own() {
    let c = memory("8");
    let holds = |c: &Container| {
        assert_eq!(c.state()["status"], "paused");
        assert!(c.must(&["why", &c.id]).contains("it is paused"));
    };
    snapshot(&c, "awake");
    c.must(&["pause", &c.id]);
    snapshot(&c, "paused");
    holds(&c);
    rollback(&c, "awake");
    holds(&c);
    for round in 0..6u64 {
        let name = format!("n{round}");
        let mut quark = c.quark(&["checkpoint", "--name", &name, &c.id]);
        let mut child =
            quark.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start quark");
        sleep(Duration::from_millis(round * 3));
        child.kill().expect("kill");
        child.wait().expect("wait");
        holds(&c);
    }
    c.must(&["resume", &c.id]);
    verified(&c.ask("verify"));
    rollback(&c, "paused");
    assert_eq!(c.state()["status"], "running");
    verified(&c.ask("verify"));
    let branch = format!("{}-f", c.id);
    c.must(&["pause", &c.id]);
    c.must(&["fork", "--new-network", &c.id, &branch]);
    holds(&c);
    verified(&asked_inside(&c, &branch, "verify"));
    c.must(&["delete", "--force", &branch]);
}

/// What has the place of a socket of the snapshot, and is the container's own, gives way.
#[test]
fn sockets_that_came_later_give_way() {
    let program = "
import signal, socket, sys
port, made = int(sys.argv[1]), 0
def listen():
    global listener, made
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, made % 2)
    one.bind(('0.0.0.0' if made == 2 else '127.0.0.1', port))
    one.listen()
    made += 1
    return one
def anew(*_):
    global listener
    listener.close()
    listener = listen()
signal.signal(signal.SIGUSR1, anew)
listener = listen()
print('ready', flush=True)
while True:
    try: peer, _ = listener.accept()
    except OSError: continue
    peer.sendall(b'%d\\n' % made)
    peer.close()
";
    let c = Container::start("python", &["python3", "-c", program, "{port}"]);
    ready(&c);
    let made = || c.connect().and_then(|mut one| one.try_answer()).unwrap_or_default();
    assert_eq!(made(), "1");
    snapshot(&c, "one");
    for later in 2..5 {
        for made_then in 2..=later {
            c.kill("USR1");
            eventually("it listens anew", limit(), || made() == made_then.to_string());
        }
        rollback(&c, "one");
        assert_eq!(made(), "1", "after {later}");
    }
}

/// What a killed command left does not take a name, and a name that is taken again is another
/// snapshot than it was.
#[test]
fn names_can_be_taken_again() {
    let c = memory("8");
    snapshot(&c, "a");
    snapshot(&c, "b");
    c.must(&["snapshots", "--remove", "a", &c.id]);
    snapshot(&c, "a");
    let tree = c.must(&["snapshots", &c.id]);
    assert!(tree.contains("\nb ") && tree.contains("\n  a *"), "{tree}");
    let left = snapshots_dir(&c).join("left");
    fs::create_dir(&left).expect("a directory");
    fs::write(left.join("ram"), "half").expect("a part of an image");
    snapshot(&c, "left");
    rollback(&c, "left");
    verified(&c.ask("verify"));
    c.must(&["checkpoint", "--name", "last", "--keep", "2", &c.id]);
    let names: Vec<Value> = listed(&c).iter().map(|one| one["name"].clone()).collect();
    assert_eq!(names, ["left", "last"], "the oldest are gone");
    rollback(&c, "left");
    verified(&c.ask("verify"));
    fs::create_dir(snapshots_dir(&c).join("other")).expect("a directory");
    c.must(&["snapshots", "--remove", "other", &c.id]);
}

#[test]
fn commands_that_are_killed_leave_it_whole() {
    let c = memory("8");
    snapshot(&c, "one");
    verified(&c.ask("verify"));
    let before = children(c.pid()).len();
    for round in 0..24u64 {
        let new = format!("n{round}");
        let branch = format!("{}-f{round}", c.id);
        let args: &[&str] = match round % 3 {
            0 => &["rollback", &c.id, "one"],
            1 => &["checkpoint", "--name", &new, &c.id],
            _ => &["fork", "--new-network", &c.id, &branch],
        };
        let mut quark = c.quark(args);
        let mut child =
            quark.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start quark");
        sleep(Duration::from_millis(round / 3 * 3));
        child.kill().expect("kill");
        child.wait().expect("wait");
        eventually("it goes on", limit(), || c.hibernation() != "Hibernated");
        verified(&c.ask("verify"));
        if round % 3 == 2 {
            let gone = run(&mut c.quark(&["delete", "--force", &branch]), limit());
            assert!(gone.success(), "{}", gone.describe());
        }
    }
    rollback(&c, "one");
    verified(&c.ask("verify"));
    assert_eq!(children(c.pid()).len(), before);
}
