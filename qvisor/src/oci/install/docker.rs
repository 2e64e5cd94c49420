//! Docker's configuration, `daemon.json`: strict JSON, of which only what is ours is touched.

use anyhow::{Context, Result, bail};
use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use serde_json::Value;

use super::{Registered, Runtime};

/// Where it is.
pub const CONFIG: &str = "/etc/docker/daemon.json";

/// The text with `runtime` in it.
///
/// # Errors
/// When `text` is nothing that Docker would read.
pub fn with(text: Option<&str>, runtime: &Runtime) -> Result<String> {
    let text = text.filter(|text| !text.trim().is_empty()).unwrap_or("{}\n");
    let path = runtime.binary.to_str().context("the binary's path is not UTF-8")?;
    let mut fields = vec![("path".to_owned(), CstInputValue::String(path.to_owned()))];
    if !runtime.args.is_empty() {
        let args = runtime.args.iter().cloned().map(CstInputValue::String).collect();
        fields.push(("runtimeArgs".to_owned(), CstInputValue::Array(args)));
    }
    let value = CstInputValue::Object(fields);
    let (root, top) = parse(text)?;
    let runtimes = top.object_value_or_create("runtimes").context("\"runtimes\" is no object")?;
    match runtimes.get(&runtime.name) {
        Some(there) => there.set_value(value),
        None => drop(runtimes.append(&runtime.name, value)),
    }
    Ok(root.to_string())
}

/// The text without the runtime `name`; `before` is what it was before that was in it.
///
/// # Errors
/// As [`with`].
pub fn without(text: &str, name: &str, before: Option<&str>) -> Result<String> {
    let (root, top) = parse(text)?;
    let Some(runtimes) = top.object_value("runtimes") else { return Ok(text.to_owned()) };
    if let Some(there) = runtimes.get(name) {
        there.remove();
    }
    let had_runtimes =
        before.and_then(|b| parse(b).ok()).is_some_and(|(_, top)| top.get("runtimes").is_some());
    if runtimes.properties().is_empty()
        && !had_runtimes
        && let Some(property) = top.get("runtimes")
    {
        property.remove();
    }
    Ok(root.to_string())
}

/// What the runtime `name` is there.
///
/// # Errors
/// As [`with`].
pub fn registered(text: &str, name: &str) -> Result<Option<Registered>> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    parse(text)?;
    let value: Value = serde_json::from_str(text).context("reading it again")?;
    let Some(runtime) = value.get("runtimes").and_then(|r| r.get(name)) else { return Ok(None) };
    let args = runtime.get("runtimeArgs").and_then(Value::as_array).into_iter().flatten();
    Ok(Some(Registered {
        binary: runtime.get("path").and_then(Value::as_str).map(Into::into),
        args: args.filter_map(Value::as_str).map(str::to_owned).collect(),
        has_shim: false,
    }))
}

/// The names of the runtimes that are there, in their order.
///
/// # Errors
/// As [`with`].
pub fn names(text: &str) -> Result<Vec<String>> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let (_, top) = parse(text)?;
    let runtimes = top.object_value("runtimes").map(|runtimes| runtimes.properties());
    let names = runtimes.into_iter().flatten().map(|property| {
        let name = property.name().context("a runtime without a name")?;
        name.decoded_value().ok().context("a runtime's name is not understood")
    });
    names.collect()
}

/// True if the runtime `name` is the one that containers have without `--runtime`.
pub fn is_default(text: &str, name: &str) -> bool {
    let value = serde_json::from_str::<Value>(text).unwrap_or_default();
    value.get("default-runtime").and_then(Value::as_str) == Some(name)
}

/// The document and its object.
fn parse(text: &str) -> Result<(CstRootNode, CstObject)> {
    // What Docker's own parser takes.
    if let Err(e) = serde_json::from_str::<Value>(text) {
        bail!("not valid JSON, which knows no comments ({e}): mend it first");
    }
    let strict = ParseOptions {
        allow_comments: false,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        ..ParseOptions::default()
    };
    let root = CstRootNode::parse(text, &strict).map_err(|e| {
        let said = e.to_string().replace('\n', " ");
        anyhow::anyhow!("not valid JSON ({said}): mend it first")
    })?;
    let top = root.object_value().context("not a JSON object: mend it first")?;
    Ok((root, top))
}
