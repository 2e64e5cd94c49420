//! `quark list`: the containers of one state directory, or of all.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

use super::cli::{self, Format, Global};
use super::info::{print, table};
use super::roots::Roots;
use super::state::{State, Status, Store};
use super::{durable, pod};

/// What one is that can go on from what is kept of it ([`super::durable`]), and is not there.
const KEPT: &str = "kept";

/// A container, and the state directory it was found in.
struct Found {
    root: String,
    id: String,
    what: What,
}

enum What {
    There(Box<State>, Status),
    /// Of which this is the bundle.
    Kept(PathBuf),
}

/// `quark list`.
///
/// # Errors
/// When the state directory cannot be read. With all of them that is a warning.
pub fn list(global: &Global, options: &cli::List) -> Result<()> {
    let mut all = Vec::new();
    if options.all_roots {
        let (roots, failure) = Roots::of_caller().all(&global.root);
        if let Some((_, e)) = failure {
            tracing::warn!("other state directories are not known: {e:#}");
        }
        for root in roots {
            match of_root(&root) {
                Ok(found) => all.extend(found),
                Err(e) => tracing::warn!("not listed: {e:#}"),
            }
        }
    } else {
        all = of_root(&global.root)?;
    }
    if options.quiet {
        let ids: String = all.iter().map(|f| format!("{}\n", f.id)).collect();
        return print(&ids);
    }
    if options.format == Format::Json {
        let values: Vec<Value> = all.iter().map(|f| as_json(f, options.all_roots)).collect();
        return print(&format!("{}\n", Value::Array(values)));
    }
    const HEAD: [&str; 7] = ["ID", "PID", "STATUS", "BUNDLE", "CREATED", "OWNER", "ROOT"];
    let rows: Vec<[String; 7]> =
        std::iter::once(HEAD.map(str::to_owned)).chain(all.iter().map(row)).collect();
    if options.all_roots {
        return print(&table(&rows));
    }
    let rows: Vec<[String; 6]> =
        rows.into_iter().map(|[id, pid, status, b, c, o, _]| [id, pid, status, b, c, o]).collect();
    print(&table(&rows))
}

fn of_root(root: &Path) -> Result<Vec<Found>> {
    let store = Store::new(root)?;
    let root = root.display().to_string();
    let there = store.list()?.into_iter().map(|(entry, state)| {
        let status = pod::status(&state, &store);
        if status == Status::Stopped && durable::check(&entry).is_ok() {
            return Found { root: root.clone(), id: entry.id, what: What::Kept(state.bundle) };
        }
        Found { root: root.clone(), id: entry.id, what: What::There(Box::new(state), status) }
    });
    let mut all: Vec<Found> = there.collect();
    let kept = durable::all(&store).into_iter().filter(|(id, _)| store.load(id).is_err());
    let kept: Vec<Found> = kept
        .map(|(id, bundle)| Found { root: root.clone(), id, what: What::Kept(bundle) })
        .collect();
    all.extend(kept);
    Ok(all)
}

fn row(found: &Found) -> [String; 7] {
    let (state, status) = match &found.what {
        What::There(state, status) => (state, *status),
        What::Kept(bundle) => {
            let bundle = bundle.display().to_string();
            let [id, root] = [&found.id, &found.root].map(Clone::clone);
            let (created, owner) = (String::new(), String::new());
            return [id, 0.to_string(), KEPT.into(), bundle, created, owner, root];
        }
    };
    let pid = if status == Status::Stopped { 0 } else { state.pid };
    [
        found.id.clone(),
        pid.to_string(),
        status.name().to_owned(),
        state.bundle.display().to_string(),
        state.created.clone(),
        state.owner.clone(),
        found.root.clone(),
    ]
}

fn as_json(found: &Found, with_root: bool) -> Value {
    let (state, status) = match &found.what {
        What::There(state, status) => (state, *status),
        What::Kept(bundle) => {
            let bundle = bundle.to_string_lossy();
            let mut value = json!({"id": found.id, "pid": 0, "status": KEPT, "bundle": bundle});
            if with_root {
                value["root"] = json!(found.root);
            }
            return value;
        }
    };
    let mut value = state.oci(status);
    if let Some(fields) = value.as_object_mut() {
        fields.insert("rootfs".into(), json!(state.rootfs));
        fields.insert("created".into(), json!(state.created));
        fields.insert("owner".into(), json!(state.owner));
        fields.insert("platform".into(), json!(state.platform));
        if with_root {
            fields.insert("root".into(), json!(found.root));
        }
    }
    value
}
