//! Calls that take long by a number of the caller's choice keep nobody else in the sandbox waiting (`test-apps/adversary/long.c`).
//!
//! A program of its own: Cargo runs those one after the other, so nothing else of these tests takes the processors meanwhile.

mod support;

use std::time::Duration;

/// What others may have to wait. On two idle processors they wait for a third of it at most; without pieces it were 700 ms for
/// getrandom(2), and longer with more bytes.
const MOST: Duration = Duration::from_millis(250);

#[test]
fn no_call_keeps_the_others_waiting() {
    if option_env!("QUARK_KERNEL_IMAGE") == Some("none") && std::env::var_os("QUARK_BIN").is_none() {
        println!("skipped: built without the kernel image");
        return;
    }
    let path = support::test_apps("adversary").join("long");
    assert!(path.exists(), "{}: not there; run: make test-apps", path.display());
    let most = support::slowed(MOST).as_millis().to_string();
    let mut quark = support::quark();
    let outcome = support::run(quark.args(["do", "--"]).arg(path).args(["128", &most]), Duration::from_secs(120));
    println!("{}", outcome.stdout);
    assert!(outcome.success(), "{}", outcome.describe());
    assert!(outcome.stdout.lines().filter(|line| line.starts_with("PASS")).count() >= 20);
}
