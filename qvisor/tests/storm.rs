//! Requests of six kinds to a container that is told to sleep all the time (`test-apps/storm`):
//! each is answered. A short part of what `make storm` does. Needs root, as the other tests that
//! start sandboxes.
//!
//! Environment: `QUARK_STORM_REQUESTS` (1500), and `QUARK_STORM_SEED` to repeat what failed.

mod support;

use std::process::Command;
use std::time::Duration;

#[test]
fn no_request_waits_for_another() {
    let setting = |name: &str| std::env::var(name).ok();
    let mut command = Command::new("python3");
    command
        .arg(support::workspace().join("test-apps/storm/run.py"))
        .arg("--quark")
        .arg(support::quark_binary());
    let requests = setting("QUARK_STORM_REQUESTS").unwrap_or_else(|| "1500".to_owned());
    command.args(["--requests", &requests]);
    if let Some(seed) = setting("QUARK_STORM_SEED") {
        command.args(["--seed", &seed]);
    }
    let outcome = support::run(&mut command, support::slowed(Duration::from_secs(300)));
    assert!(outcome.success(), "{}\n{}", outcome.describe(), outcome.stdout);
    println!("{}", outcome.stdout);
}
