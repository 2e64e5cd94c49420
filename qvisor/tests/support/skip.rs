//! Tests that this machine cannot run. Rust's harness knows no such verdict at run time and calls
//! them "ok": so they are written down, and `scripts/skips` counts them and compares them with
//! those that may be skipped.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Notes that the test of this thread is skipped, and why.
pub fn skip(why: impl std::fmt::Display) {
    let program = std::env::current_exe().ok();
    let program = program.as_ref().and_then(|p| p.file_stem()?.to_str()).unwrap_or("?");
    // Cargo adds a hash.
    let program = program.rsplit_once('-').map_or(program, |(name, _)| name);
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let why = why.to_string().replace('\n', " ");
    // In one piece, for others write too. Past the capture of output, which is shown of tests that
    // fail only.
    let line = format!("SKIPPED {program}::{test}: {why}\n");
    std::io::stderr().write_all(line.as_bytes()).ok();
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/skipped");
    // Where it cannot be written, the output is all there is.
    if let Ok(mut list) = OpenOptions::new().create(true).append(true).open(list) {
        list.write_all(line.as_bytes()).ok();
    }
}
