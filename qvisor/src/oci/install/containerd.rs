//! containerd's configuration, `config.toml`: the runtimes of its CRI plugin, which Kubernetes
//! uses. Comments and order stay.
//!
//! The versions of its format that there are differ in the plugin's name: 2 (containerd 1.3 to 1.7)
//! and 3 (containerd 2).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use toml_edit::{Array, DocumentMut, Item, Table, TableLike, value};

use super::{Registered, Runtime};

/// Where it is.
pub const CONFIG: &str = "/etc/containerd/config.toml";
/// The shim that starts quark without a detour.
pub const SHIM: &str = "containerd-shim-quark-v1";
const SHIM_TYPE: &str = "io.containerd.quark.v1";
/// containerd's own shim, which can start what has runc's command line.
const RUNC_TYPE: &str = "io.containerd.runc.v2";

/// A version of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// containerd 1.3 to 1.7.
    Two,
    /// containerd 2.
    Three,
}

impl Version {
    fn number(self) -> i64 {
        match self {
            Version::Two => 2,
            Version::Three => 3,
        }
    }

    /// The plugin that has runtimes.
    fn plugin(self) -> &'static str {
        match self {
            Version::Two => "io.containerd.grpc.v1.cri",
            Version::Three => "io.containerd.cri.v1.runtime",
        }
    }

    /// That of the containerd that is installed; 2 if there is none that could say.
    pub fn installed() -> Version {
        let output = Command::new("containerd").arg("--version").stdin(Stdio::null()).output();
        let said = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        said.map_or(Version::Two, |said| Version::of(&said))
    }

    /// That of a containerd that says this of itself ("containerd NAME VERSION REVISION").
    fn of(said: &str) -> Version {
        let major = said.split_whitespace().find_map(|word| {
            let word = word.trim_start_matches('v');
            word.split_once('.')?.0.parse::<u32>().ok()
        });
        if major.is_some_and(|major| major >= 2) { Version::Three } else { Version::Two }
    }
}

/// The text with `runtime` in it; `fresh` is the version of one that is made.
///
/// # Errors
/// When `text` is nothing that containerd would read, or has a runtime that Kubernetes would not
/// come to.
pub fn with(text: Option<&str>, runtime: &Runtime, fresh: Version) -> Result<String> {
    let (mut document, version) = parse(text.unwrap_or_default(), Some(fresh))?;
    let plugin = version.plugin();
    let disabled = document.get("disabled_plugins").and_then(Item::as_array);
    if disabled.is_some_and(|d| d.iter().any(|p| p.as_str().is_some_and(|p| is_cri(p, plugin)))) {
        bail!(
            "it disables the CRI plugin (disabled_plugins), by which Kubernetes would come to \
             quark: Docker does not need it, else take it out of that list first"
        );
    }
    let binary = runtime.binary.to_str().context("the binary's path is not UTF-8")?;
    let mut table = Table::new();
    let all = || value(Array::from_iter(["io.quark.*"]));
    table.insert("runtime_type", value(if runtime.has_shim { SHIM_TYPE } else { RUNC_TYPE }));
    // So that annotations of pods and containers come to quark.
    table.insert("pod_annotations", all());
    table.insert("container_annotations", all());
    if !runtime.has_shim {
        let mut options = Table::new();
        options.insert("BinaryName", value(binary));
        table.insert("options", Item::Table(options));
    }
    let runtimes = runtimes(&mut document, plugin, true)?.context("no table of runtimes")?;
    runtimes.insert(&runtime.name, Item::Table(table));
    Ok(document.to_string())
}

/// The text without the runtime `name`.
///
/// # Errors
/// As [`with`].
pub fn without(text: &str, name: &str) -> Result<String> {
    let (mut document, version) = parse(text, None)?;
    if let Some(runtimes) = runtimes(&mut document, version.plugin(), false)? {
        runtimes.remove(name);
    }
    Ok(document.to_string())
}

/// What the runtime `name` is there, and the version of the format.
///
/// # Errors
/// As [`with`].
pub fn registered(text: &str, name: &str) -> Result<Option<(Registered, Version)>> {
    let Ok((mut document, version)) = parse(text, Some(Version::Two)) else {
        return parse(text, Some(Version::Two)).map(|_| None);
    };
    let Some(runtimes) = runtimes(&mut document, version.plugin(), false)? else {
        return Ok(None);
    };
    let Some(runtime) = runtimes.get(name) else { return Ok(None) };
    let text = |item: Option<&Item>| item.and_then(Item::as_str).map(str::to_owned);
    let has_shim = text(runtime.get("runtime_type")).is_some_and(|kind| kind == SHIM_TYPE);
    let binary = runtime.get("options").and_then(|options| text(options.get("BinaryName")));
    let found = Registered { binary: binary.map(Into::into), args: Vec::new(), has_shim };
    Ok(Some((found, version)))
}

/// The names of the runtimes that are there, in their order.
///
/// # Errors
/// As [`with`].
pub fn names(text: &str) -> Result<Vec<String>> {
    let (mut document, version) = parse(text, Some(Version::Two))?;
    let runtimes = runtimes(&mut document, version.plugin(), false)?;
    let names = runtimes
        .into_iter()
        .flat_map(|runtimes| runtimes.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>());
    Ok(names.collect())
}

/// True if the runtime `name` is the one that pods have without a RuntimeClass.
pub fn is_default(text: &str, name: &str) -> bool {
    let Ok((document, version)) = parse(text, None) else { return false };
    let plugin = document.get("plugins").and_then(|plugins| plugins.get(version.plugin()));
    let default = plugin.and_then(|plugin| plugin.get("containerd")?.get("default_runtime_name"));
    default.and_then(Item::as_str) == Some(name)
}

/// True if this name in `disabled_plugins` means the plugin that has runtimes, or all of CRI.
fn is_cri(name: &str, plugin: &str) -> bool {
    name == plugin || name == "cri" || name == "io.containerd.grpc.v1.cri"
}

/// The document and its version; an empty one gets the version `fresh`.
fn parse(text: &str, fresh: Option<Version>) -> Result<(DocumentMut, Version)> {
    let mut document: DocumentMut = text.parse().map_err(|e: toml_edit::TomlError| {
        let said = e.message().replace('\n', " ");
        let line = e.span().map_or(1, |span| text[..span.start].lines().count().max(1));
        anyhow::anyhow!("not valid TOML (line {line}: {said}): mend it first")
    })?;
    let version = match (document.get("version").map(Item::as_integer), fresh) {
        (Some(Some(2)), _) => Version::Two,
        (Some(Some(3)), _) => Version::Three,
        (None, Some(fresh)) if document.is_empty() => {
            document.insert("version", value(fresh.number()));
            fresh
        }
        (None | Some(Some(1)), _) => bail!(
            "its format is of version 1: `containerd config migrate` prints it in a newer one; put \
             that in its place first"
        ),
        (Some(other), _) => bail!(
            "its format is of version {}, and only 2 and 3 are known: edit it yourself",
            other.map_or("?".to_owned(), |v| v.to_string())
        ),
    };
    Ok((document, version))
}

/// The table of runtimes; made, if there is none and `make` says so.
fn runtimes<'a>(
    document: &'a mut DocumentMut,
    plugin: &str,
    make: bool,
) -> Result<Option<&'a mut dyn TableLike>> {
    let mut at: &mut dyn TableLike = document.as_table_mut();
    for key in ["plugins", plugin, "containerd", "runtimes"] {
        if !at.contains_key(key) {
            if !make {
                return Ok(None);
            }
            let mut table = Table::new();
            table.set_implicit(true);
            at.insert(key, Item::Table(table));
        }
        let item = at.get_mut(key).with_context(|| format!("no {key:?}"))?;
        at = item.as_table_like_mut().with_context(|| format!("{key:?} is no table"))?;
    }
    Ok(Some(at))
}

/// True if containerd would find the shim.
pub fn finds_shim() -> bool {
    shims().next().is_some()
}

/// True if the first shim that containerd would find lies beside `binary`, or if it finds none.
pub fn finds_shim_of(binary: &Path) -> bool {
    let Some(first) = shims().next() else { return true };
    let dir = |path: &Path| path.parent().and_then(|dir| std::fs::canonicalize(dir).ok());
    dir(&first) == dir(binary)
}

/// The shims where containerd looks: in PATH, or where services have their PATH as a rule.
fn shims() -> impl Iterator<Item = PathBuf> {
    const USUAL: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let path = std::env::var("PATH").unwrap_or_default();
    let dirs = format!("{path}:{USUAL}");
    let shims: Vec<PathBuf> = dirs.split(':').map(|dir| Path::new(dir).join(SHIM)).collect();
    shims.into_iter().filter(|shim| shim.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_containerd_says_its_version() {
        for (said, version) in [
            (
                "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+b1",
                Version::Two,
            ),
            ("containerd containerd.io 1.7.27 05044ec0a9a7", Version::Two),
            ("containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4", Version::Three),
            ("containerd containerd.io v2.2.0-rc.1 75cb", Version::Three),
            ("", Version::Two),
        ] {
            assert_eq!(Version::of(said), version, "{said}");
        }
    }
}
