//! Images that are made at a moment: when a container has written something, or has answered.

use std::fs::{self, OpenOptions};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use crate::images::{checkpoint, image, restored, text};
use crate::support::container::{Container, alive};
use crate::support::{eventually, limit, run};
use crate::{memory, ready, verified};

/// Says "ready" in two pieces, and counts. (One that ends by itself is no container for a test.)
const COUNTS: &str = "printf 'quite rea'; sleep 0.2; printf 'dy now\n'; i=0; \
                      while :; do i=$((i+1)); echo $i; sleep 0.02; done";

fn counting() -> Container {
    let c = Container::start("busybox", &["sh", "-c", COUNTS]);
    clear(&c);
    c
}

/// Ends it, and forgets what it has written.
fn clear(c: &Container) {
    c.must(&["delete", "--force", &c.id]);
    fs::remove_file(c.directory.join("output")).expect("its output");
}

/// Changes its configuration.
fn configure(c: &Container, change: impl FnOnce(&mut Value)) {
    let config = c.directory.join("config.json");
    let mut json = serde_json::from_slice(&fs::read(&config).expect("config.json")).expect("JSON");
    change(&mut json);
    fs::write(&config, json.to_string()).expect("config.json");
}

/// A command on its bundle with these words after it, whose output goes where the container's does.
fn on_bundle(c: &Container, command: &[&str]) -> Command {
    let output = OpenOptions::new().append(true).create(true).open(c.directory.join("output"));
    let output = output.expect("its output");
    let mut quark = c.quark(command);
    quark.arg("--bundle").arg(&c.directory).arg("--pid-file").arg(c.directory.join("pid"));
    quark.arg(&c.id);
    quark.stdin(Stdio::null()).stdout(output.try_clone().expect("output")).stderr(output);
    quark
}

fn code(command: &mut Command) -> Option<i32> {
    let mut child = command.spawn().expect("start quark");
    crate::support::wait(&mut child, limit()).and_then(|status| status.code())
}

fn is_saved(c: &Container) -> bool {
    image(c).join("manifest.json").exists()
}

/// True if a command waits for a moment of it.
fn is_awaited(c: &Container) -> bool {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok()).any(|line| {
        let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
        words.contains(&b"--when-told".as_slice()) && words.contains(&c.id.as_bytes())
    })
}

/// What it has counted, after having said once that it is ready.
fn counted(c: &Container) -> Vec<u64> {
    let output = c.output();
    assert_eq!(output.matches("quite ready now\n").count(), 1, "{output}");
    output.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Restores it: it counts on, with nothing twice and nothing left out.
fn goes_on(c: &Container) {
    let before = counted(c).len();
    restored(c);
    eventually("it counts on", limit(), || counted(c).len() > before + 3);
    let numbers = counted(c);
    let expected: Vec<u64> = (1..=numbers.len() as u64).collect();
    assert_eq!(numbers, expected);
}

#[test]
fn run_saves_one_that_has_said_so() {
    let c = counting();
    let place = image(&c);
    let options = ["run", "--checkpoint-when", "e ready n", "--image-path", text(&place)];
    assert_eq!(code(&mut on_bundle(&c, &options)), Some(0), "{}", c.output());
    assert!(is_saved(&c));
    assert!(!c.command(&["state", &c.id]).success(), "it is deleted");
    goes_on(&c);
    // There is one now.
    c.must(&["delete", "--force", &c.id]);
    let outcome = run(on_bundle(&c, &options).stderr(Stdio::piped()), limit());
    assert!(outcome.stderr.contains("there is an image in"), "{}", outcome.describe());
}

#[test]
fn what_was_never_said_is_told() {
    let c = counting();
    let place = image(&c);
    let options = ["run", "--checkpoint-when", "ready", "--image-path", text(&place)];
    for (program, expected) in [("echo read; echo y", 1), ("printf rea; exit 7", 7)] {
        configure(&c, |json| json["process"]["args"] = json!(["sh", "-c", program]));
        let mut command = on_bundle(&c, &options);
        let outcome = run(command.stdout(Stdio::piped()).stderr(Stdio::piped()), limit());
        assert_eq!(outcome.status.and_then(|s| s.code()), Some(expected), "{}", outcome.describe());
        assert!(outcome.stderr.contains("ended before it was to be saved"), "{}", outcome.stderr);
        assert!(!is_saved(&c));
    }
}

#[test]
fn one_that_is_left_alone_is_saved_when_it_has_said_so() {
    let c = counting();
    let place = image(&c);
    let options = ["run", "--detach", "--checkpoint-when", "ready", "--image-path", text(&place)];
    assert_eq!(code(&mut on_bundle(&c, &options)), Some(0), "{}", c.output());
    eventually("it has ended", limit(), || !alive(c.pid()));
    assert!(is_saved(&c));
    eventually("nobody is left behind", limit(), || !is_awaited(&c));
    c.must(&["delete", &c.id]);
    goes_on(&c);
}

#[test]
fn annotations_have_it_saved_and_go_on() {
    let c = counting();
    let place = image(&c);
    configure(&c, |json| {
        json["annotations"] = json!({
            "io.quark.checkpoint-when": "ready",
            "io.quark.checkpoint-path": text(&place),
            "io.quark.checkpoint-leave-running": "true",
        });
    });
    assert_eq!(code(&mut on_bundle(&c, &["create"])), Some(0), "{}", c.output());
    assert!(!is_awaited(&c) && !is_saved(&c), "it has not been started");
    c.must(&["start", &c.id]);
    eventually("it is saved", limit(), || is_saved(&c));
    eventually("nobody is left behind", limit(), || !is_awaited(&c));
    assert!(alive(c.pid()), "it goes on");
    let before = counted(&c).len();
    eventually("it counts on", limit(), || counted(&c).len() > before + 3);
    // Once is enough.
    c.must(&["delete", "--force", &c.id]);
    assert_eq!(code(&mut on_bundle(&c, &["run", "--detach"])), Some(0), "{}", c.output());
    assert!(!is_awaited(&c));
}

/// The connection that waits goes with the container.
#[test]
fn who_waits_in_vain_ends_with_the_container() {
    let c = counting();
    let place = image(&c);
    let options =
        ["run", "--detach", "--checkpoint-when", "not that", "--image-path", text(&place)];
    assert_eq!(code(&mut on_bundle(&c, &options)), Some(0), "{}", c.output());
    eventually("it counts", limit(), || c.output().lines().count() > 5);
    assert!(is_awaited(&c));
    c.must(&["delete", "--force", &c.id]);
    eventually("nobody is left behind", limit(), || !is_awaited(&c));
    assert!(!is_saved(&c));
}

#[test]
fn one_is_saved_after_its_first_request() {
    let c = memory("8");
    clear(&c);
    let place = image(&c);
    let options =
        ["run", "--detach", "--checkpoint-after-first-request", "--image-path", text(&place)];
    assert_eq!(code(&mut on_bundle(&c, &options)), Some(0), "{}", c.output());
    ready(&c);
    drop(c.connect().expect("connect"));
    c.must(&["exec", &c.id, "true"]);
    sleep(Duration::from_millis(300));
    assert!(!is_saved(&c) && alive(c.pid()), "nobody has asked");
    verified(&c.ask("verify"));
    eventually("it has ended", limit(), || !alive(c.pid()));
    assert!(is_saved(&c));
    c.must(&["delete", &c.id]);
    restored(&c);
    verified(&c.ask("verify"));
    // It is one like any other: it is saved when it is told to, and not by itself.
    verified(&c.ask("verify"));
    assert!(alive(c.pid()));
    checkpoint(&c);
}
