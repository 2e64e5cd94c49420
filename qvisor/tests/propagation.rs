//! What some mount namespaces have mounted, after each of some hundred random mounts, moves,
//! umounts and changes of propagation in them, is what Linux says (`test-apps/propagation`).
//!
//! Environment: `QUARK_PROPAGATION_SEED`, for a run of that seed alone.

mod support;

use std::process::Command;
use std::time::Duration;

/// Of each four, the last has no copies of namespaces, but unbindable mounts.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=32;
const STEPS: &str = "400";

/// What the program prints.
fn output(command: &mut Command, seed: u64) -> String {
    let command = command.args([&seed.to_string(), STEPS]).current_dir(support::workspace());
    let outcome = support::run(command, support::slowed(Duration::from_secs(60)));
    assert!(outcome.success(), "{}\n{}", outcome.describe(), outcome.stdout);
    outcome.stdout
}

#[test]
fn mounts_are_propagated_as_on_linux() {
    let program = support::test_apps("propagation").join("propagation");
    assert!(program.is_file(), "{}: missing; run: make test-apps", program.display());
    let seed = std::env::var("QUARK_PROPAGATION_SEED").ok().map(|s| s.parse().expect("a number"));
    // On an emulated machine a few of them take as long as all of them elsewhere.
    let seeds = if support::slowed(Duration::from_secs(1)).as_secs() > 1 { 1..=4 } else { SEEDS };
    for seed in seed.map_or(seeds, |seed| seed..=seed) {
        let linux = output(&mut Command::new(&program), seed);
        let here = output(support::quark().arg("do").arg("--").arg(&program), seed);
        assert!(linux.lines().count() > 1000, "seed {seed}: there is little to compare");
        let differs = linux.lines().zip(here.lines()).position(|(want, have)| want != have);
        let Some(line) = differs else {
            assert_eq!(linux.lines().count(), here.lines().count(), "seed {seed}");
            continue;
        };
        let (want, have) = (excerpt(&linux, line), excerpt(&here, line));
        panic!("seed {seed}, line {line}: Linux says\n{want}\nand quark\n{have}");
    }
}

/// The lines around this one.
fn excerpt(text: &str, line: usize) -> String {
    text.lines().skip(line.saturating_sub(40)).take(60).collect::<Vec<_>>().join("\n")
}
