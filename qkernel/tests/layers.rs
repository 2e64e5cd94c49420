//! The layers of the kernel: each room uses those below it only, and inside of a room only few
//! files use each other in a circle. There is no exception: what a room needs of those above it is
//! given to it (a trait, a table of functions), or it returns a value on which they act.

#[path = "support/uses.rs"]
mod uses;

use std::path::Path;

use uses::{Layers, Modules, code_of, layer_of, uses_of};

/// From the bottom to the top.
const LAYERS: Layers = &[
    ("arch", &["errno", "abi", "sync", "arch"]),
    (
        "base",
        &[
            "account",
            "creds",
            "executor",
            "host",
            "input",
            "log",
            "namespace",
            "pieces",
            "random",
            "time",
            "urgent",
            "user_namespace",
            "utsname",
            "wait",
        ],
    ),
    ("mm", &["io", "mm"]),
    ("vfs", &["fs"]),
    ("task", &["task"]),
    (
        "drivers",
        &[
            "fs::cpu",
            "fs::dev",
            "fs::devpts",
            "fs::hostfs",
            "fs::memfd",
            "fs::mounter",
            "fs::nsfs",
            "fs::overlay",
            "fs::proc",
            "fs::setup",
            "fs::shmem",
            "fs::special",
            "fs::synth",
            "fs::sysfs",
            "fs::syscache",
            "fs::sysnet",
            "fs::tmpfs",
            "ipc",
            "net",
        ],
    ),
    ("syscall", &["syscall"]),
    ("hibernate", &["hibernate"]),
    ("kernel", &["kernel"]),
];

/// The code of every module of the kernel.
fn modules() -> Modules {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    uses::modules(&root, |module| {
        module == "lib" || module == "arch::image" || module.ends_with("tests")
    })
}

#[test]
fn each_layer_uses_only_those_below() {
    uses::assert_only_downward(LAYERS, &modules());
}

#[test]
fn circles_are_small() {
    uses::assert_small_circles(&modules(), "kernel::control", "mm::fault");
}

#[test]
fn uses_are_understood() {
    let code = code_of(
        "use super::{a, b::{c, self}};\nuse crate::fs; // use crate::not;\nfn f() { \
        crate::net::x() }\n",
    );
    let uses: Vec<_> = uses_of("mm::fault", &code).into_iter().collect();
    assert_eq!(uses, ["fs", "mm::a", "mm::b::c", "mm::b::self", "net::x"]);
    assert_eq!(
        (layer_of(LAYERS, "fs::proc::pid"), layer_of(LAYERS, "fs::open"), layer_of(LAYERS, "fsx")),
        (Some(5), Some(3), None)
    );
}
