//! Calls that take long by a number of the caller's choice keep nobody else in the sandbox waiting
//! (`test-apps/adversary/long.c`).
//!
//! A program of its own: Cargo runs those one after the other, so nothing else of these tests takes
//! the processors meanwhile.

mod support;

use std::time::Duration;

use support::attack::{attack, passed, skipped};

/// What others may have to wait. On two idle processors they wait for a third of it at most;
/// without pieces it were 700 ms for getrandom(2), and longer with more bytes.
const MOST: Duration = Duration::from_millis(250);

#[test]
fn no_call_keeps_the_others_waiting() {
    if skipped() {
        return;
    }
    let most = support::slowed(MOST).as_millis().to_string();
    let lines =
        attack(&mut support::quark(), "long", &["128".into(), most], Duration::from_secs(120));
    assert!(passed(&lines) >= 20, "{} passed", passed(&lines));
}
