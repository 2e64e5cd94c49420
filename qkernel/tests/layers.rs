//! The layers of the kernel: each room uses those below it only. There is no exception: what a room needs
//! of those above it is given to it (a trait, a table of functions), or it returns a value on which they act.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom to the top. A module belongs to the layer that has the longest prefix of its path.
const LAYERS: &[(&str, &[&str])] = &[
    ("arch", &["errno", "abi", "sync", "arch"]),
    (
        "base",
        &[
            "account", "creds", "executor", "host", "input", "log", "pieces", "random", "time", "urgent", "utsname",
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
            "fs::overlay",
            "fs::proc",
            "fs::setup",
            "fs::shmem",
            "fs::special",
            "fs::synth",
            "fs::sysfs",
            "fs::tmpfs",
            "ipc",
            "net",
        ],
    ),
    ("syscall", &["syscall"]),
    ("hibernate", &["hibernate"]),
    ("kernel", &["kernel"]),
];

/// The path of a module from its file.
fn module_of(file: &Path) -> String {
    let path = file.with_extension("").to_string_lossy().replace('/', "::");
    path.strip_suffix("::mod").unwrap_or(&path).to_owned()
}

/// The layer of a path, counted from the bottom.
fn layer_of(path: &str) -> Option<usize> {
    let is_below =
        |module: &str| path == module || path.strip_prefix(module).is_some_and(|rest| rest.starts_with("::"));
    let longest = |modules: &[&str]| modules.iter().filter(|m| is_below(m)).map(|m| m.len()).max();
    let fitting = LAYERS.iter().enumerate().filter_map(|(index, (_, modules))| Some((longest(modules)?, index)));
    fitting.max().map(|(_, index)| index)
}

/// Source without comments, strings left alone, and without what is for tests only.
fn code_of(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The single paths of a tree of uses ("a::{b, c::{d}}").
fn leaves(tree: &str) -> Vec<String> {
    let tree: String = tree.split_whitespace().collect();
    let Some((head, rest)) = tree.split_once('{') else { return vec![tree] };
    let inner = rest.strip_suffix('}').unwrap_or(rest);
    let (mut depth, mut from, mut parts) = (0, 0, Vec::new());
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inner[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[from..]);
    parts.iter().filter(|p| !p.is_empty()).flat_map(|p| leaves(p)).map(|leaf| format!("{head}{leaf}")).collect()
}

/// A path as seen from the crate's root; `None` when it leads out of the crate.
fn absolute(module: &str, path: &str) -> Option<String> {
    if let Some(path) = path.strip_prefix("crate::") {
        return Some(path.to_owned());
    }
    let (mut at, mut rest) = (module, path);
    while let Some(shorter) = rest.strip_prefix("super::") {
        at = at.rsplit_once("::").map_or("", |(parent, _)| parent);
        rest = shorter;
    }
    (rest.len() < path.len())
        .then(|| [at, rest].iter().filter(|p| !p.is_empty()).copied().collect::<Vec<_>>().join("::"))
}

/// What a module uses of the crate: in `use` and by whole paths.
fn uses_of(module: &str, code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut rest = code;
    while let Some((before, after)) = rest.split_once("use ") {
        rest = after;
        let begins = before.is_empty() || before.ends_with(['\n', ' ', ')', '\t']);
        if let (true, Some((tree, _))) = (begins, after.split_once(';')) {
            found.extend(leaves(tree).iter().filter_map(|leaf| absolute(module, leaf)));
        }
    }
    let mut rest = code;
    while let Some((_, after)) = rest.split_once("crate::") {
        rest = after;
        let end = after.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(after.len());
        found.insert(after[..end].trim_end_matches(':').to_owned());
    }
    found
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("the sources") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => files(&path, found),
            false if path.extension().is_some_and(|e| e == "rs") => found.push(path),
            false => {}
        }
    }
}

#[test]
fn each_layer_uses_only_those_below() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    files(&root, &mut all);
    assert!(all.len() > 100, "the sources are somewhere else: {}", root.display());
    let mut upward = BTreeSet::new();
    for file in all {
        let module = module_of(file.strip_prefix(&root).expect("below the root"));
        if module == "lib" || module == "arch::image" || module.ends_with("tests") {
            continue;
        }
        let own = layer_of(&module).unwrap_or_else(|| panic!("{module} is in no layer"));
        for used in uses_of(&module, &code_of(&fs::read_to_string(&file).expect("a source"))) {
            if layer_of(&used).is_some_and(|layer| layer > own) {
                // The module that is used, not what in it.
                let short: Vec<&str> = used
                    .split("::")
                    .take_while(|p| p.starts_with(char::is_lowercase) && *p != "self")
                    .take(2)
                    .collect();
                upward.insert((module.clone(), short.join("::")));
            }
        }
    }
    assert!(upward.is_empty(), "they use something above them: {upward:#?}");
}

#[test]
fn uses_are_understood() {
    let code =
        code_of("use super::{a, b::{c, self}};\nuse crate::fs; // use crate::not;\nfn f() { crate::net::x() }\n");
    let uses: Vec<_> = uses_of("mm::fault", &code).into_iter().collect();
    assert_eq!(uses, ["fs", "mm::a", "mm::b::c", "mm::b::self", "net::x"]);
    assert_eq!((layer_of("fs::proc::pid"), layer_of("fs::open"), layer_of("fsx")), (Some(5), Some(3), None));
}
