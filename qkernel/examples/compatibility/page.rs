//! The text of `doc/compatibility.md`, for the example that writes it and the test that compares
//! it.

use std::fmt::Write;

use qkernel::syscall::table::TABLE;

/// Where the page lies, from the crate's directory.
pub const PATH: &str = "../doc/compatibility.md";

/// The whole page.
pub fn text() -> String {
    let served = TABLE.iter().filter(|entry| entry.kind != "none").count();
    let may_block = |kind| matches!(kind, "r#async" | "transfer");
    let blocking = TABLE.iter().filter(|entry| may_block(entry.kind)).count();
    let mut out = format!(
        "# System calls\n\n\
         Generated from `qkernel/src/syscall/table.rs` by `cargo run -p qkernel --example compatibility`; do not edit.\n\n\
         - {} x86-64 calls in the table\n\
         - {served} served, {blocking} of which may block\n\
         - {} not served: ENOSYS, as is every number that is not in the table\n\n\
         \"Served\" says that a function stands behind the number. It may still refuse a flag, an \
             option or a whole\n\
         feature with the errno that Linux has for it; the last column says so of what is known.\n\n\
         `rseq` is served on the `kvm` platform, where the guest kernel schedules user threads. On `process` it answers ENOSYS,\n\
         as Linux without CONFIG_RSEQ does. A restartable sequence must be aborted when its thread is preempted or migrated.\n\
         There the host schedules user threads, and would have to know of the registration: it would write to a page of the\n\
         guest at each return to user code, and end the process when that page is not there, as it is not before its first\n\
         touch and after each sleep.\n\n\
         | number | name | served | may block | but |\n|---:|---|---|---|---|\n",
        TABLE.len(),
        TABLE.len() - served,
    );
    for entry in TABLE {
        let (served, blocks) = match entry.kind {
            "none" => ("ENOSYS", ""),
            kind if may_block(kind) => ("yes", "yes"),
            _ => ("yes", ""),
        };
        let _ = writeln!(
            out,
            "| {} | {} | {served} | {blocks} | {} |",
            entry.nr, entry.name, entry.partial
        );
    }
    out
}
