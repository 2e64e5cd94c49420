//! Wakes that wait for each other.

use std::fs::File;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::support::container::{Container, alive};
use super::support::{repeats, slowed};
use super::{count, memory_as, verified};

/// How long a wake waits for a place.
const PATIENCE: Duration = Duration::from_secs(2);

/// Takes the only place that there is, until the result is dropped.
fn take(c: &Container) -> File {
    let path = c.root().join("wakes:places");
    let file = File::options().read(true).write(true).open(path).expect("the file of places");
    let place = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_OFD_SETLK(&place)).expect("the place is free");
    file
}

#[test]
fn a_wake_waits_for_a_place_and_not_for_ever() {
    let c = memory_as(&["--wake-concurrency=1"], "8");
    // The first wake reads no working set.
    c.hibernate();
    verified(&c.ask("verify"));
    for _ in 0..repeats(2) {
        c.hibernate();
        let place = take(&c);
        let begin = Instant::now();
        thread::scope(|scope| {
            let answer = scope.spawn(|| {
                verified(&c.ask("verify"));
                begin.elapsed()
            });
            thread::sleep(Duration::from_millis(500));
            assert!(!answer.is_finished(), "it did not wait");
            drop(place);
            let took = answer.join().expect("thread");
            assert!(took < slowed(PATIENCE), "{took:?}: it does not see that the place is free");
        });
    }
    c.hibernate();
    let _place = take(&c);
    let begin = Instant::now();
    verified(&c.ask("verify"));
    assert!(begin.elapsed() >= PATIENCE, "{:?}", begin.elapsed());
    assert!(count(&c, "reap_pages") > 0);
}

/// As [`take`], for a process of its own that is then killed.
fn take_elsewhere(c: &Container) -> Child {
    let path = c.root().join("wakes:places");
    let script = "import fcntl, struct, sys, time\n\
                  file = open(sys.argv[1], 'r+b')\n\
                  fcntl.fcntl(file, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 1, 0))\n\
                  print(flush=True)\n\
                  time.sleep(1000)";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script]).arg(path).stdout(Stdio::piped());
    let mut child = command.spawn().expect("python3");
    child.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("it has the place");
    child
}

#[test]
fn no_wake_is_lost_when_others_are_killed_in_the_line_or_in_their_turn() {
    let options = &["--wake-concurrency=1"];
    let mut all = vec![memory_as(options, "4")];
    while all.len() < repeats(20) as usize {
        let args = ["/mnt/apps/memory", "--tcp", "{port}", "--udp", "{port}", "--mb", "4"];
        let next = Container::start_beside(all.first(), &[], options, "busybox", &args);
        super::ready(&next);
        all.push(next);
    }
    let pids: Vec<i32> = all.iter().map(Container::pid).collect();
    for c in &all {
        c.hibernate();
        verified(&c.ask("verify"));
        c.hibernate();
    }
    let mut holder = take_elsewhere(&all[0]);
    let mut waiting: Vec<_> = all
        .iter()
        .map(|c| {
            let mut connection = c.connect().expect("a connection");
            connection.try_send("verify");
            (c, connection)
        })
        .collect();
    // Among them the first and the last of the line.
    for c in all.iter().step_by(3).chain(all.last()) {
        kill(Pid::from_raw(c.pid()), Signal::SIGKILL).ok();
    }
    waiting.retain(|(c, _)| {
        let at = all.iter().position(|other| other.id == c.id).expect("one of them");
        at % 3 != 0 && at + 1 != all.len()
    });
    holder.kill().expect("killed");
    holder.wait().expect("its end");
    let begin = Instant::now();
    for (_, connection) in &mut waiting {
        verified(&connection.answer());
    }
    assert!(begin.elapsed() < slowed(Duration::from_secs(10)), "{:?}", begin.elapsed());
    for (c, _) in &waiting {
        assert!(count(c, "reap_pages") > 0, "{}", c.id);
    }
    drop(waiting);
    drop(all);
    assert!(!pids.into_iter().any(alive), "sandboxes are left over");
}
