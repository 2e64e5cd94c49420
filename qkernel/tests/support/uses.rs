//! Which modules of a crate use which: read from the `use` lines of its sources, and from whole
//! paths. For the tests of layers of the kernel and of the host's side.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Layers from the bottom to the top, each with the modules that are in it. A module belongs to the
/// layer that has the longest prefix of its path.
pub type Layers = &'static [(&'static str, &'static [&'static str])];

/// The code of every module, by its path.
pub type Modules = BTreeMap<String, String>;

/// The most files that may use each other in a circle.
const MOST_IN_A_CIRCLE: usize = 8;

/// Fails if a module uses one of a layer above its own.
pub fn assert_only_downward(layers: Layers, modules: &Modules) {
    let upward = upward(layers, modules);
    assert!(upward.is_empty(), "they use something above them: {upward:#?}");
}

/// Fails if more than a few files use each other in a circle; `far` is what `from` uses through
/// others, so that what is seen is not nothing.
pub fn assert_small_circles(modules: &Modules, from: &str, far: &str) {
    let edges = edges(modules);
    for circle in circles(&edges) {
        assert!(
            circle.len() <= MOST_IN_A_CIRCLE,
            "{} files use each other: {circle:?}",
            circle.len()
        );
    }
    assert!(reached(&edges, from).contains(far));
}

/// The path of a module from its file.
fn module_of(file: &Path) -> String {
    let path = file.with_extension("").to_string_lossy().replace('/', "::");
    path.strip_suffix("::mod").unwrap_or(&path).to_owned()
}

/// The layer of a path, counted from the bottom.
pub fn layer_of(layers: Layers, path: &str) -> Option<usize> {
    let is_below = |module: &str| {
        path == module || path.strip_prefix(module).is_some_and(|rest| rest.starts_with("::"))
    };
    let longest = |modules: &[&str]| modules.iter().filter(|m| is_below(m)).map(|m| m.len()).max();
    let fitting = layers
        .iter()
        .enumerate()
        .filter_map(|(index, (_, modules))| Some((longest(modules)?, index)));
    fitting.max().map(|(_, index)| index)
}

/// Source without comments, strings left alone, and without what is for tests only.
pub fn code_of(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    source
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
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
    parts
        .iter()
        .filter(|p| !p.is_empty())
        .flat_map(|p| leaves(p))
        .map(|leaf| format!("{head}{leaf}"))
        .collect()
}

/// A path as seen from the crate's root; `None` when it leads out of the crate.
fn absolute(module: &str, path: &str) -> Option<String> {
    if let Some(path) = path.strip_prefix("crate::") {
        return Some(path.to_owned());
    }
    if let Some(path) = path.strip_prefix("self::") {
        return Some(format!("{module}::{path}"));
    }
    let (mut at, mut rest) = (module, path);
    while let Some(shorter) = rest.strip_prefix("super::") {
        at = at.rsplit_once("::").map_or("", |(parent, _)| parent);
        rest = shorter;
    }
    (rest.len() < path.len()).then(|| {
        [at, rest].iter().filter(|p| !p.is_empty()).copied().collect::<Vec<_>>().join("::")
    })
}

/// What a module uses of the crate: in `use` and by whole paths.
pub fn uses_of(module: &str, code: &str) -> BTreeSet<String> {
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
        let end = after
            .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
            .unwrap_or(after.len());
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

/// The code of every module of the crate whose sources lie in `root`, but of those for which `skip`
/// is true: it is given the module's path.
pub fn modules(root: &Path, skip: impl Fn(&str) -> bool) -> Modules {
    let mut all = Vec::new();
    files(root, &mut all);
    assert!(all.len() > 50, "the sources are somewhere else: {}", root.display());
    let named =
        all.into_iter().map(|f| (module_of(f.strip_prefix(root).expect("below the root")), f));
    named
        .filter(|(module, _)| !skip(module))
        .map(|(module, file)| (module, code_of(&fs::read_to_string(&file).expect("a source"))))
        .collect()
}

/// Who uses something of a layer above: module, and what it uses.
fn upward(layers: Layers, modules: &Modules) -> BTreeSet<(String, String)> {
    let mut upward = BTreeSet::new();
    for (module, code) in modules {
        let own = layer_of(layers, module).unwrap_or_else(|| panic!("{module} is in no layer"));
        let above = uses_of(module, code)
            .into_iter()
            .filter(|used| layer_of(layers, used).is_some_and(|layer| layer > own));
        upward.extend(above.map(|used| (module.clone(), used)));
    }
    upward
}

/// The names that modules hand on (`pub use`), and what they stand for.
fn handed_on(modules: &Modules) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for (module, code) in modules {
        for tree in code
            .split("pub use ")
            .skip(1)
            .filter_map(|rest| rest.split_once(';'))
            .map(|(tree, _)| tree)
        {
            for leaf in leaves(tree) {
                let name = leaf.rsplit("::").next().unwrap_or(&leaf).to_owned();
                let path = absolute(module, &leaf).unwrap_or_else(|| format!("{module}::{leaf}"));
                names.insert(format!("{module}::{name}"), path);
            }
        }
    }
    names
}

/// The modules that a module uses, where names are defined, not where they are handed on.
fn edges(modules: &Modules) -> BTreeMap<&str, BTreeSet<&str>> {
    let names = handed_on(modules);
    let home = |path: &str| {
        let mut path = names.get(path).map_or(path, String::as_str);
        loop {
            match modules.get_key_value(path) {
                Some((module, _)) => return Some(module.as_str()),
                None => path = path.rsplit_once("::")?.0,
            }
        }
    };
    let of = |module: &str, code: &str| {
        let mut used: BTreeSet<&str> =
            uses_of(module, code).iter().filter_map(|path| home(path)).collect();
        // A module names those inside of it without further ado.
        let own: String = code.split(';').filter(|part| !part.contains("pub use ")).collect();
        for inner in modules.keys() {
            let name = inner.strip_prefix(module).and_then(|rest| rest.strip_prefix("::"));
            if name.is_some_and(|name| {
                own.contains(&format!(" {name}::")) || own.contains(&format!("({name}::"))
            }) {
                used.insert(inner);
            }
        }
        used.remove(module);
        used
    };
    modules.iter().map(|(module, code)| (module.as_str(), of(module, code))).collect()
}

/// What can be reached from a module.
fn reached<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(module) = next.pop() {
        for used in edges.get(module.as_str()).into_iter().flatten() {
            if found.insert(*used) {
                next.push((*used).to_owned());
            }
        }
    }
    found
}

/// The sets of modules that use each other in a circle, each as large as it gets.
fn circles<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<BTreeSet<&'a str>> {
    let all: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|m| (*m, reached(edges, m))).collect();
    let circle = |(module, reached): (&&str, &BTreeSet<&'a str>)| -> BTreeSet<&'a str> {
        reached.iter().filter(|other| all[*other].contains(*module)).copied().collect()
    };
    all.iter().map(circle).filter(|circle| !circle.is_empty()).collect()
}
