//! Wakes that wait for each other.

use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};

use super::support::container::Container;
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
