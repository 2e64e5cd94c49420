//! A sleeping sandbox has no stub processes: what they knew of the guest's threads is kept in guest
//! memory, and they are made anew for those that go on.

use qlib::control::Request;

use crate::ready;
use crate::support::container::{Container, FORCE, children};
use crate::support::{eventually, limit};

/// Its processes: a server with eleven threads, one that waits for the child of its vfork(2), that
/// child (which lives in the same address space), and an idle one.
fn kept() -> Container {
    let args = ["/mnt/apps/kept", "--tcp", "{port}"];
    let container = Container::start("busybox", &args);
    ready(&container);
    container
}

/// Waits in system calls that found all registers as they had left them: nine threads' and one in
/// vfork(2).
const ALL: &str = "ok 10";

#[test]
fn registers_survive_a_sleep_in_every_kind_of_wait() {
    let c = kept();
    assert_eq!(c.ask("check"), ALL, "before any sleep");
    for round in 0..6 {
        c.hibernate();
        assert_eq!(c.ask("check"), ALL, "round {round}");
        if round % 2 == 0 {
            // A life in which most of them do nothing.
            c.hibernate();
            assert_eq!(c.ask("ping"), "pong");
        }
    }
    assert_eq!(c.ask("idle"), "ok");
}

#[test]
fn registers_survive_sleeps_that_are_over_at_once() {
    let c = kept();
    let mut open = c.connect().expect("connect");
    let mut control = c.control();
    for round in 0..20 {
        open.send("check");
        // In the middle of a check, more often than not.
        let _ = control.order(&FORCE);
        assert_eq!(open.answer(), ALL, "round {round}");
        eventually("it sleeps", limit(), || control.order(&FORCE).is_ok());
        control.order(&Request::Wake).expect("a wake");
    }
    assert_eq!(open.ask("check"), ALL);
}

/// The host has room for so many stubs only: those that are made anew keep theirs.
#[test]
fn new_processes_do_not_take_the_places_of_those_that_slept() {
    let few = ["sh", "-c", "ulimit -n 400 && exec \"$@\"", "sh"];
    let args = ["/mnt/apps/kept", "--tcp", "{port}"];
    let c = Container::start_under(&few, "busybox", &args);
    ready(&c);
    let crowd = || {
        let answer = c.ask("crowd");
        answer.strip_prefix("ok ").and_then(|n| n.parse::<u32>().ok()).expect(&answer)
    };
    let made = crowd();
    assert!((50..200).contains(&made), "{made}");
    for round in 0..2 {
        c.hibernate();
        let again = crowd();
        assert!(again.abs_diff(made) <= 5, "{again}, {made} before any sleep, round {round}");
        assert_eq!(c.ask("check"), ALL);
    }
}

#[test]
fn a_sleeper_has_no_stubs_and_gets_those_back_that_it_uses() {
    let c = kept();
    let pid = c.pid();
    assert_eq!(c.ask("check"), ALL);
    let awake = children(pid).len();
    for round in 0..2 {
        c.hibernate();
        let asleep = children(pid).len();
        assert_eq!(asleep, awake - 3, "three address spaces have no stub");
        assert_eq!(c.ask("ping"), "pong");
        assert_eq!(children(pid).len(), asleep + 1, "the server's, round {round}");
        assert_eq!(c.ask("idle"), "ok");
        assert_eq!(children(pid).len(), asleep + 2, "the idle process's too");
        assert_eq!(c.ask("check"), ALL);
        assert_eq!(children(pid).len(), awake);
        // The next wake expects what this life has used; the one after it the server alone.
        c.hibernate();
        assert_eq!(c.ask("ping"), "pong");
    }
    c.hibernate();
    assert_eq!(c.must(&["exec", &c.id, "echo", "up"]), "up\n");
    assert_eq!(c.ask("check"), ALL);
}
