//! `quark wait`: those that are not a container's parent learn of its end.

use std::process::Stdio;
use std::time::Duration;

use super::support::place;

#[test]
fn any_number_may_wait_and_be_killed() {
    let Some(place) = place() else { return };
    place.configure(&["sh", "-c", "trap 'exit 7' TERM; while :; do sleep 0.1; done"], |_| {});
    place.create(&[]);
    let waiter = || {
        let mut command = place.quark(&["wait", &place.id]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    // More than a sandbox has connections; some of them wait before it is started.
    let mut waiters: Vec<_> = (0..40).map(|_| waiter()).collect();
    place.good(&["start", &place.id]);
    waiters.extend((0..40).map(|_| waiter()));
    std::thread::sleep(Duration::from_millis(300));
    for mut killed in waiters.drain(20..60) {
        killed.kill().unwrap();
        killed.wait().unwrap();
    }
    // The sandbox answers as before.
    place.good(&["exec", &place.id, "true"]);
    place.good(&["kill", &place.id, "TERM"]);
    for waiter in waiters {
        let output = waiter.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "7\n");
    }
    assert_eq!(place.good(&["wait", &place.id]), "7\n");
    place.good(&["delete", &place.id]);
    let output = place.output(&["wait", &place.id]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("does not exist"));
}

#[test]
fn few_may_wait_for_one_process() {
    let Some(place) = place() else { return };
    place.configure(&["sleep", "1000"], |_| {});
    place.create(&[]);
    place.good(&["start", &place.id]);
    let file = place.dir.join("internal");
    let file = file.to_str().unwrap();
    let script = "sleep 2; exit 5";
    let mut exec =
        place.quark(&["exec", "--internal-pid-file", file, &place.id, "sh", "-c", script]);
    let mut exec = exec.spawn().unwrap();
    while !std::path::Path::new(file).exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = std::fs::read_to_string(file).unwrap();
    let waiter = || {
        let mut command = place.quark(&["wait", "--pid", &pid, &place.id]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let waiters: Vec<_> = (0..20).map(|_| waiter()).collect();
    let mut refused = 0;
    for waiter in waiters {
        let output = waiter.wait_with_output().unwrap();
        if output.status.success() {
            assert_eq!(String::from_utf8_lossy(&output.stdout), "5\n");
        } else {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains("wait for processes of container"), "{said}");
            refused += 1;
        }
    }
    assert_eq!(refused, 4);
    assert_eq!(exec.wait().unwrap().code(), Some(5));
    let output = place.output(&["wait", "--pid", "999", &place.id]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("was not started from outside"));
}
