//! Random system calls in a sandbox that is put to sleep every few seconds (`test-apps/fuzz`): it
//! lives, and answers. A minute of what `make fuzz-syscalls` does for as long as one likes. Needs
//! root, as the other tests that start sandboxes.
//!
//! Environment: `QUARK_FUZZ_SECONDS` (60), and `QUARK_FUZZ_SEED` to repeat what failed.

mod support;

use std::process::Command;
use std::time::Duration;

#[test]
fn a_minute_of_random_system_calls() {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).map_or(otherwise, |v| v.parse().expect("a number"))
    };
    let seconds = number("QUARK_FUZZ_SECONDS", 60);
    // Another one each time: what CI finds in the course of time is worth more than the same minute
    // again and again.
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let seed = number("QUARK_FUZZ_SEED", now);
    let program = support::test_apps("fuzz").join("fuzz");
    assert!(program.is_file(), "{}: missing; run: make test-apps", program.display());
    let mut command = Command::new("python3");
    command
        .arg(support::workspace().join("test-apps/fuzz/run.py"))
        .arg("--quark")
        .arg(support::quark_binary());
    command.args(["--seconds", &seconds.to_string(), "--seed", &seed.to_string()]);
    // Beside other tests an answer may take long; a hang takes for ever.
    let patience = support::slowed(Duration::from_secs(30)).as_secs();
    command.args(["--patience", &patience.to_string()]);
    let outcome = support::run(&mut command, support::slowed(Duration::from_secs(seconds + 240)));
    assert!(outcome.success(), "{}\n{}", outcome.describe(), outcome.stdout);
}
