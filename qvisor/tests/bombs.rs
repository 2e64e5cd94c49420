//! Memory bombs: programs that make as much of one thing as they can get. Whatever they are
//! refused, the sandbox lives, and a fresh `exec` answers. The driver is `test-apps/bombs/run.py`;
//! `make bombs` runs many more rounds of it. QUARK_BOMBS_SEED repeats one run.

#[path = "support/mod.rs"]
mod support;

use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use support::{quark_binary, run, slowed, test_apps, workspace};

/// Rounds are begun for this long.
const SECONDS: u64 = 25;

/// Rounds that ended a sandbox once, or kept others waiting. Memory is in pieces when a sleep needs
/// books; page tables of the host grow while what is free is still committed; memory is used up
/// when an exec comes, by one process or by a crowd; one call looks at very many files.
const KNOWN: &str = "mincore+shm+rights-cycle,mincore+shm+rights-cycle,memfd-small+shm,memfd-small+shm,threads+tables-shared+splice,threads+tables-shared+splice,two,touch-threads+tables,fork,\
                     proc-fd+touch,futex-waitv,poll-one,epoll-one,tables+epoll-one,dirs";

#[test]
fn the_sandbox_outlives_memory_bombs() {
    let seconds = SECONDS.to_string();
    drive(&["--time", &seconds], SECONDS);
}

#[test]
fn what_once_ended_a_sandbox_does_so_no_more() {
    let rounds = KNOWN.split(',').count() as u64;
    drive(&["--only", KNOWN, "--limit", "96"], 3 * rounds);
}

/// Runs the driver with these arguments, which takes about `seconds`.
fn drive(arguments: &[&str], seconds: u64) {
    let bombs = test_apps("bombs").join("bombs");
    assert!(bombs.exists(), "{}: missing; run: make test-apps", bombs.display());
    if !nix::unistd::geteuid().is_root() {
        return support::skip("memory limits are cgroups, and need root");
    }
    // One at a time: the machine's own memory is not what is to be used up.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut driver = Command::new("python3");
    driver.arg(workspace().join("test-apps/bombs/run.py")).arg("--bombs").arg(bombs);
    driver.arg("--quark").arg(quark_binary()).args(arguments);
    // `make bombs` asks for an answer within 1 s, of a release build on an idle machine. This is a
    // debug build beside other tests; but every first exec must succeed.
    driver.args(["--answer", "5", "--bomb-seconds", "1"]);
    if let Some(platform) = std::env::var_os("QUARK_PLATFORM") {
        driver.arg("--platform").arg(platform);
    }
    if let Some(seed) = std::env::var_os("QUARK_BOMBS_SEED") {
        driver.arg("--seed").arg(seed);
    }
    let outcome = run(&mut driver, slowed(Duration::from_secs(seconds + 120)));
    println!("{}", outcome.stdout);
    assert!(outcome.success(), "{}\n{}", outcome.describe(), outcome.stdout);
}
