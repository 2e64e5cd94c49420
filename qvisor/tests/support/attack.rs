//! Programs of `test-apps/adversary`, which judge themselves: a line for each thing tried, which
//! begins with PASS, FAIL or SKIP.

use std::process::Command;
use std::time::Duration;

use super::{run, test_apps, workspace};

/// True if there are no sandboxes to attack in this build; says so.
pub fn skipped() -> bool {
    let without = option_env!("QUARK_KERNEL_IMAGE") == Some("none")
        && std::env::var_os("QUARK_BIN").is_none();
    if without {
        super::skip("built without the kernel image");
    }
    without
}

/// Runs a program in a sandbox, at most for `limit`: its lines, which must all say PASS or SKIP.
pub fn attack(
    quark: &mut Command,
    program: &str,
    arguments: &[String],
    limit: Duration,
) -> Vec<String> {
    let path = test_apps("adversary").join(program);
    assert!(path.exists(), "{}: not there; run: make test-apps", path.display());
    let command = quark.args(["do", "--"]).arg(path).args(arguments);
    let outcome = run(command.current_dir(workspace()), limit);
    let lines: Vec<String> = outcome.stdout.lines().map(str::to_owned).collect();
    lines.iter().for_each(|line| println!("{line}"));
    let failed: Vec<_> = lines.iter().filter(|line| line.starts_with("FAIL")).collect();
    assert!(
        outcome.success() && failed.is_empty(),
        "{program}: {failed:#?} {}",
        outcome.describe()
    );
    lines
}

/// How many of them passed.
pub fn passed(lines: &[String]) -> usize {
    lines.iter().filter(|line| line.starts_with("PASS")).count()
}
