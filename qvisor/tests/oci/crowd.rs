//! Processes and threads until there are no more to be had: that is EAGAIN for whoever asks, and
//! nobody who has begun is ended for it, or waits. `test-apps/bombs/crowd.c` looks.

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::shared::{quark_binary, test_apps};
use super::support::{Place, finish, place};

/// A container of `crowd` and these arguments.
fn crowd(args: &[&str], change: impl FnOnce(&mut Value)) -> Option<Place> {
    let p = place()?;
    let program = test_apps("bombs").join("crowd");
    fs::copy(program, p.rootfs().join("bin/crowd")).expect("crowd is missing; make test-apps");
    p.configure(&[&["crowd"], args].concat(), change);
    Some(p)
}

/// Runs it, by a command with at most so many descriptors.
fn limited(p: &Place, descriptors: u32) -> Output {
    let script = format!("ulimit -n {descriptors} && exec \"$@\"");
    let quark = p.quark(&["run", &p.id]);
    assert_eq!(quark.get_program(), quark_binary());
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).arg(quark.get_program()).args(quark.get_args());
    command.current_dir(&p.bundle).stdin(Stdio::null());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    finish(child, &["crowd"])
}

/// Runs it, by a command with at most so many descriptors: how many there were.
fn refused_after(p: &Place, descriptors: u32) -> u32 {
    let output = limited(p, descriptors);
    let (said, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {said}{complaint}", output.status);
    assert_eq!(complaint, "");
    said.trim().strip_prefix("refused after ").expect(&said).parse().unwrap()
}

/// The limit is odd: a process takes two tasks, and there is one.
fn at_a_pids_limit_of_21(kind: &str) -> Option<u32> {
    let limit = |c: &mut Value| c["linux"]["resources"] = json!({"pids": {"limit": 21}});
    crowd(&[kind], limit).map(|p| refused_after(&p, 1024))
}

#[test]
fn processes_at_the_limit_of_pids_are_refused() {
    let Some(made) = at_a_pids_limit_of_21("processes") else { return };
    assert!((5..=8).contains(&made), "{made}");
}

#[test]
fn threads_at_the_limit_of_pids_are_refused() {
    let Some(made) = at_a_pids_limit_of_21("threads") else { return };
    assert!((10..=16).contains(&made), "{made}");
}

#[test]
fn a_limit_of_pids_that_update_sets_refuses_too() {
    let Some(p) = crowd(&[], |_| {}) else { return };
    p.configure(&["sleep", "1000"], |_| {});
    p.create(&[]);
    p.good(&["start", &p.id]);
    let made = |kind| loop {
        let output = p.output(&["exec", &p.id, "crowd", kind]);
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let (said, complaint) = (text(&output.stdout), text(&output.stderr));
        // The guest does not know how few there are, and so does not wait for the host, where those
        // that have just ended are counted for a moment yet.
        if complaint.starts_with("again: ") {
            continue;
        }
        assert!(output.status.success(), "{}: {said}{complaint}", output.status);
        break said.trim().strip_prefix("refused after ").expect(&said).parse::<u32>().unwrap();
    };
    // There was none before; and then one above and one below it.
    for (limit, processes, threads) in [("25", 4..=11, 8..=20), ("61", 18..=30, 38..=56)] {
        for _ in 0..2 {
            p.good(&["update", "--pids-limit", limit, &p.id]);
            let mut tries = Vec::new();
            // Of those that were before some may be counted yet, on a busy host.
            let fits = (0..3).any(|_| {
                let made = (made("processes"), made("threads"));
                tries.push(made);
                processes.contains(&made.0) && threads.contains(&made.1)
            });
            assert!(fits, "{limit}: {tries:?}");
        }
    }
    // Nobody has ended for it.
    assert_eq!(p.status(), "running");
}

#[test]
fn processes_at_the_limit_of_descriptors_are_refused() {
    let Some(p) = crowd(&["processes"], |_| {}) else { return };
    let made = refused_after(&p, 400);
    assert!((100..200).contains(&made), "{made}");
}

#[test]
fn processes_and_threads_at_their_users_limit_are_refused() {
    let limit = |c: &mut Value| {
        c["process"]["user"] = json!({"uid": 1000, "gid": 1000});
        c["process"]["rlimits"] = json!([{"type": "RLIMIT_NPROC", "soft": 20, "hard": 20}]);
    };
    for kind in ["processes", "threads"] {
        let Some(p) = crowd(&[kind], limit) else { return };
        assert_eq!(refused_after(&p, 1024), 19, "{kind}");
    }
}

#[test]
fn a_limit_of_files_that_the_host_does_not_give_is_told() {
    let files = |c: &mut Value| {
        c["process"]["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 100, "hard": 2_000}]);
        c["linux"]["rootfsPropagation"] = json!("rslave");
        c["process"]["oomScoreAdj"] = json!(1000);
    };
    let Some(p) = crowd(&["processes", "1"], files) else { return };
    let run = |descriptors: u32| {
        let output = limited(&p, descriptors);
        assert!(output.status.success(), "{}", output.status);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let told = run(1_000);
    assert!(told.contains("RLIMIT_NOFILE of 2000 is more than the host lets"), "{told}");
    assert_eq!(run(2_000), "");
}
