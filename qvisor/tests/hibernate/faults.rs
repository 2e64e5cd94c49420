//! Page faults that a program serves itself, across sleeps, images and a way back.

use crate::ready;
use crate::support::container::{Container, alive};
use crate::support::{eventually, limit};

fn start() -> Container {
    let c = Container::start("busybox", &["/mnt/apps/faults"]);
    ready(&c);
    c
}

/// How often the program has said that its threads wait, and how many rounds it has made.
fn counts(c: &Container) -> (usize, usize) {
    let output = c.output();
    assert!(!output.contains("BAD"), "{output}");
    assert!(alive(c.pid()), "it has ended: {output}");
    let count = |is_one: &dyn Fn(&str) -> bool| output.lines().filter(|line| is_one(line)).count();
    (count(&|line| line == "waits"), count(&|line| line.parse::<u64>().is_ok()))
}

/// Has the program serve those who wait: they get what they waited for.
fn serve(c: &Container) {
    let (waits, rounds) = counts(c);
    c.must(&["kill", &c.id, "USR1"]);
    let has_served = || counts(c) >= (waits + 1, rounds + 1);
    eventually("the program serves, and waits again", limit(), has_served);
}

#[test]
fn faults_that_wait_outlast_a_sleep_and_what_was_placed_is_there() {
    let c = start();
    for _ in 0..3 {
        c.must(&["kill", &c.id, "STOP"]);
        c.must(&["kill", &c.id, "CONT"]);
        serve(&c);
        c.must(&["kill", &c.id, "STOP"]);
        // A signal wakes it.
        serve(&c);
    }
}

#[test]
fn they_are_in_images() {
    let c = start();
    c.must(&["checkpoint", "--name", "one", &c.id]);
    serve(&c);
    serve(&c);
    c.must(&["rollback", &c.id, "one"]);
    serve(&c);
}
