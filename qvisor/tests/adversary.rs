//! Attacks in real sandboxes: single ones (`test-apps/adversary/adversary.c`), and races of
//! everything that frees or moves pages, with victims that know their own memory (`races.c`).
//! `QUARK_ADVERSARY_ROUNDS` is how often the races run (1); see `support` for the rest.

mod support;

use std::process::Command;
use std::time::Duration;

use support::attack::{attack, passed, skipped};
use support::slowed;

/// How often every race runs.
fn rounds() -> u32 {
    std::env::var("QUARK_ADVERSARY_ROUNDS")
        .map_or(1, |text| text.parse().expect("QUARK_ADVERSARY_ROUNDS"))
}

#[test]
fn no_single_attack_gets_through() {
    if skipped() {
        return;
    }
    let lines = attack(&mut support::quark(), "adversary", &[], slowed(Duration::from_secs(300)));
    assert!(passed(&lines) >= 10, "{} passed", passed(&lines));
}

#[test]
fn no_thread_keeps_control_of_stub_code() {
    if skipped() {
        return;
    }
    let rounds = 10 * rounds();
    let lines = attack(
        &mut support::quark(),
        "stubs",
        &[rounds.to_string()],
        slowed(Duration::from_secs(20) * rounds),
    );
    let there_are_none = lines.iter().any(|line| line.starts_with("SKIP"));
    assert!(there_are_none || passed(&lines) >= 3 * rounds as usize, "{} passed", passed(&lines));
}

fn race(quark: &mut Command, rounds: u32) {
    let lines =
        attack(quark, "races", &[rounds.to_string()], slowed(Duration::from_secs(300) * rounds));
    // The last line counts them.
    assert!(passed(&lines) >= 30 * rounds as usize, "{} passed", passed(&lines));
}

#[test]
fn no_frame_is_used_while_a_program_has_it_mapped() {
    if !skipped() {
        race(&mut support::quark(), rounds());
    }
}

#[test]
fn no_frame_is_used_while_a_program_has_it_mapped_with_fast_calls() {
    if !skipped() {
        race(support::quark().args(["--fast-calls", "eager"]), rounds());
    }
}
