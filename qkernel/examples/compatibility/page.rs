//! The text of `doc/compatibility.md`, for the example that writes it and the test that compares it.

use std::fmt::Write;

use qkernel::syscall::table::TABLE;

/// Where the page lies, from the crate's directory.
pub const PATH: &str = "../doc/compatibility.md";

/// The whole page.
pub fn text() -> String {
    let served = TABLE.iter().filter(|(_, _, kind)| *kind != "none").count();
    let blocking = TABLE.iter().filter(|(_, _, kind)| *kind == "r#async").count();
    let mut out = format!(
        "# System calls\n\n\
         Generated from `qkernel/src/syscall/table.rs` by `cargo run -p qkernel --example compatibility`; do not edit.\n\n\
         - {} x86-64 calls in the table\n\
         - {served} served, {blocking} of which may block\n\
         - {} not served: ENOSYS, as is every number that is not in the table\n\n\
         \"Served\" says that a function stands behind the number. It may still refuse a flag, an option or a whole\n\
         feature with the errno that Linux has for it: `ptrace` and `kcmp` are served by a function that only refuses.\n\n\
         `rseq` is served on the `kvm` platform, where the guest kernel schedules user threads. On `process` it answers ENOSYS,\n\
         as Linux without CONFIG_RSEQ does. A restartable sequence must be aborted when its thread is preempted or migrated.\n\
         There the host schedules user threads, and would have to know of the registration: it would write to a page of the\n\
         guest at each return to user code, and end the process when that page is not there, as it is not before its first\n\
         touch and after each sleep. `getcpu` tells the CPU on `kvm`; on `process` it gives each thread a number that stays.\n\
         `sched_setaffinity` keeps the set and tells it back; no platform is bound by it.\n\n\
         | number | name | served | may block |\n|---:|---|---|---|\n",
        TABLE.len(),
        TABLE.len() - served,
    );
    for (number, name, kind) in TABLE {
        let (served, blocks) = match *kind {
            "none" => ("ENOSYS", ""),
            "r#async" => ("yes", "yes"),
            _ => ("yes", ""),
        };
        let _ = writeln!(out, "| {number} | {name} | {served} | {blocks} |");
    }
    out
}
