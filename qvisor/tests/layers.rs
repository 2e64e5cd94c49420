//! The layers of the host's side: each room uses those below it only, without exception, and inside
//! of a room only few files use each other in a circle. What a room needs of those above it is
//! given to it: a sandbox gets its platform as a trait object (`sandbox/platform.rs`).

#[path = "../../qkernel/tests/support/uses.rs"]
mod uses;

use std::path::Path;

use uses::{Layers, Modules};

/// From the bottom to the top.
const LAYERS: Layers = &[
    ("host system calls", &["sys"]),
    ("store, cgroups, terminals", &["store", "cgroup", "console", "streams"]),
    ("sandbox", &["sandbox"]),
    ("platform", &["platform"]),
    ("OCI", &["oci", "main"]),
];

fn modules() -> Modules {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    uses::modules(&root, |module| {
        module == "lib" || module.split("::").any(|part| part.ends_with("tests"))
    })
}

#[test]
fn each_layer_uses_only_those_below() {
    uses::assert_only_downward(LAYERS, &modules());
}

#[test]
fn circles_are_small() {
    uses::assert_small_circles(&modules(), "oci::child", "sandbox::memory");
}
