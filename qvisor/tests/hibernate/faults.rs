//! Page faults that a program serves itself, across sleeps, images and a way back.

use crate::ready;
use crate::support::container::{Container, alive};
use crate::support::{eventually, limit};

/// The rounds that the program has made.
fn rounds(c: &Container) -> usize {
    let output = c.output();
    assert!(!output.contains("BAD"), "{output}");
    assert!(alive(c.pid()), "it has ended: {output}");
    output.lines().filter(|line| line.parse::<u64>().is_ok()).count()
}

fn goes_on(c: &Container) {
    let before = rounds(c);
    eventually("it goes on", limit(), || rounds(c) > before + 2);
}

#[test]
fn faults_that_wait_outlast_a_sleep_and_what_was_placed_is_there() {
    let c = Container::start("busybox", &["/mnt/apps/faults"]);
    ready(&c);
    for _ in 0..8 {
        c.must(&["--timeout", "1ms", "hibernate", "--force", &c.id]);
        goes_on(&c);
    }
    c.must(&["kill", &c.id, "STOP"]);
    c.must(&["kill", &c.id, "CONT"]);
    goes_on(&c);
}

#[test]
fn they_are_in_images() {
    let c = Container::start("busybox", &["/mnt/apps/faults"]);
    ready(&c);
    for name in ["one", "two"] {
        c.must(&["checkpoint", "--name", name, &c.id]);
        goes_on(&c);
    }
    c.must(&["rollback", &c.id, "one"]);
    goes_on(&c);
}
