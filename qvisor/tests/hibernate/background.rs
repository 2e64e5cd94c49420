//! Containers of images whose memory comes back by itself once they are up.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::images::{checkpoint, restored_by, restoring_with};
use crate::support::container::{Container, alive};
use crate::support::{eventually, limit};
use crate::{count, memory, ready, verified, working_set};

/// Makes it anew of its image, with options of every command.
fn restored(c: &Container, global: &[&str]) {
    let outcome = restored_by(c, restoring_with(c, global, &["--background"]));
    assert!(outcome.success(), "{}\n{}", outcome.describe(), c.output());
}

/// What is yet to come, in pages.
fn left(c: &Container) -> u64 {
    c.stats()["memory"]["background_left"].as_u64().expect("background_left") / 4096
}

fn frames(c: &Container) -> u64 {
    c.stats()["memory"]["frames_used"].as_u64().expect("frames_used") / 4096
}

/// Waits until nothing more comes.
fn all_has_come(c: &Container) {
    eventually("the rest has come", limit(), || left(c) == 0);
}

/// Nothing more comes from now on.
fn nothing_comes(c: &Container) {
    assert_eq!(left(c), 0);
    let pages = count(c, "background_pages");
    sleep(Duration::from_millis(300));
    assert_eq!(count(c, "background_pages"), pages);
}

#[test]
fn what_nobody_asks_for_comes_while_requests_are_answered() {
    let c = memory("64");
    let before = frames(&c);
    for _ in 0..2 {
        checkpoint(&c);
        restored(&c, &[]);
        let mut answered = 0;
        let mut connection = c.connect().expect("connect");
        while left(&c) > 0 {
            assert_eq!(connection.ask("ping"), "pong");
            answered += 1;
        }
        assert!(answered > 2, "{answered} requests");
        assert!(count(&c, "background_pages") > 64 * 256 / 2);
        assert!(frames(&c) < before + 512, "{} pages, {before} before", frames(&c));
        let came = count(&c, "swap_ins");
        verified(&c.ask("verify"));
        assert_eq!(count(&c, "swap_ins"), came, "no fault waits for the store any more");
        assert!(c.ask("change").starts_with("ok"));
        verified(&c.ask("verify"));
    }
}

#[test]
fn what_comes_by_itself_is_no_working_set() {
    let c = memory("16");
    checkpoint(&c);
    restored(&c, &[]);
    all_has_come(&c);
    let pages = count(&c, "background_pages");
    verified(&c.ask("part 0 1 8"));
    c.hibernate();
    assert!(working_set(&c) < pages / 3, "{} of {pages} pages", working_set(&c));
    verified(&c.ask("part 0 1 8"));
    nothing_comes(&c);
    verified(&c.ask("verify"));
    c.hibernate();
    verified(&c.ask("verify"));
}

#[test]
fn a_sleep_ends_it_for_good() {
    let c = memory("64");
    checkpoint(&c);
    restored(&c, &[]);
    c.hibernate();
    c.must(&["wake", &c.id]);
    nothing_comes(&c);
    assert!(count(&c, "background_pages") < 64 * 256 / 2);
    verified(&c.ask("verify"));
    // In the middle of it.
    checkpoint(&c);
    restored(&c, &[]);
    let begun = count(&c, "background_pages");
    eventually("some have come", limit(), || count(&c, "background_pages") > begun);
    c.hibernate();
    assert_eq!(left(&c), 0);
    verified(&c.ask("verify"));
    // An image in the middle of it, and one that goes on.
    checkpoint(&c);
    restored(&c, &[]);
    let image = c.directory.join("other");
    let image = image.to_str().expect("a path of text");
    c.must(&["checkpoint", "--leave-running", "--image-path", image, &c.id]);
    nothing_comes(&c);
    verified(&c.ask("verify"));
}

#[test]
fn it_does_not_keep_a_container_from_sleeping_by_itself() {
    let c = memory("96");
    checkpoint(&c);
    restored(&c, &["--hibernate-after", "200ms"]);
    assert!(left(&c) > 0);
    eventually("it sleeps", limit(), || c.hibernation() == "Hibernated");
    assert_eq!(count(&c, "deflates_idle"), 1);
    assert_eq!(left(&c), 0);
    verified(&c.ask("verify"));
}

/// Changes the bundle's memory limit.
fn set_limit(c: &Container, bytes: u64) {
    let path = c.directory.join("config.json");
    let config = fs::read_to_string(&path).expect("a configuration");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    config["linux"]["resources"]["memory"]["limit"] = bytes.into();
    fs::write(&path, config.to_string()).expect("write");
}

#[test]
fn it_leaves_room_in_a_memory_limit() {
    let c = memory("96");
    checkpoint(&c);
    set_limit(&c, 64 << 20);
    restored(&c, &[]);
    all_has_come(&c);
    let pages = count(&c, "background_pages");
    assert!(pages > 0 && pages < 64 * 256, "{pages} pages");
    // An eighth of the limit, but for what is reckoned otherwise by then.
    verified(&c.ask("part 0 1 32"));
    assert_eq!(count(&c, "oom_kills"), 0);
    nothing_comes(&c);
}

#[test]
fn who_is_killed_meanwhile_ends() {
    let c = memory("64");
    checkpoint(&c);
    for pause_ms in [0, 60, 100] {
        restored(&c, &[]);
        let pid = c.pid();
        sleep(Duration::from_millis(pause_ms));
        c.must(&["delete", "--force", &c.id]);
        assert!(!alive(pid), "after {pause_ms} ms");
    }
    restored(&c, &[]);
    all_has_come(&c);
    verified(&c.ask("verify"));
}

#[test]
fn an_annotation_asks_for_it_too() {
    let args = ["/mnt/apps/memory", "--tcp", "{port}", "--udp", "{port}", "--mb", "8"];
    let background = ["io.quark.restore.background=true"];
    let c = Container::start_as(&[], &background, "busybox", &args);
    ready(&c);
    assert_eq!((left(&c), count(&c, "background_pages")), (0, 0), "it is of no image");
    checkpoint(&c);
    let outcome = restored_by(&c, restoring_with(&c, &[], &[]));
    assert!(outcome.success(), "{}\n{}", outcome.describe(), c.output());
    eventually("it comes", limit(), || count(&c, "background_pages") > 1024);
    verified(&c.ask("verify"));
}

/// A program that runs all the time has its memory too, more slowly.
#[test]
fn what_runs_all_the_time_has_it_too() {
    let fill = "a=$(head -c 3000000 /dev/zero | tr '\\0' x); echo ready; while :; do :; done";
    let c = Container::start("busybox", &["sh", "-c", fill]);
    ready(&c);
    c.must(&["checkpoint", "--image-path", &image(&c), &c.id]);
    c.must(&["delete", &c.id]);
    restored(&c, &[]);
    all_has_come(&c);
    assert!(count(&c, "background_pages") > 512);
}

fn image(c: &Container) -> String {
    c.directory.join("image").to_str().expect("a path of text").to_owned()
}
