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
    ("images", &["image"]),
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

/// A lock of the standard library has no place in the order of `sys/ordered.rs`. The process that
/// serves metrics has no sandbox and one lock.
#[test]
fn locks_have_a_place_in_the_order() {
    const WITHOUT: [&str; 1] = ["oci::metrics::serve"];
    let takes_its_own = |code: &str| {
        let uses = code.split("use std::sync::").skip(1);
        uses.filter_map(|rest| rest.split(';').next()).any(|names| {
            names
                .split(|c: char| !c.is_alphanumeric())
                .any(|name| ["Mutex", "RwLock", "Condvar"].contains(&name))
        })
    };
    assert!(takes_its_own("use std::sync::{\n    Arc, Mutex,\n};"));
    assert!(!takes_its_own("use std::sync::{Arc, OnceLock};\nuse crate::sys::ordered::Mutex;"));
    let modules = modules();
    let found: Vec<_> = modules.iter().filter(|(_, code)| takes_its_own(code)).collect();
    let found: Vec<_> = found.iter().map(|(module, _)| module.as_str()).collect();
    assert_eq!(found, WITHOUT, "they use locks that have no place in the order");
}
