//! `update`: other limits for a running container.

use std::io::Read;

use anyhow::{Context, Result, bail};
use oci_spec::runtime::LinuxResources;
use serde_json::{Map, Value, json};

use super::bundle::read_bounded;
use super::cli::Update;
use super::error::ContainerError;
use super::state::{Status, Store};

/// Sets limits of the container's cgroup. The guest keeps the amount of memory that it was told
/// when it was created.
///
/// # Errors
/// When the container has stopped or a limit is refused.
pub fn update(store: &Store, options: &Update) -> Result<()> {
    let (_, state) = store.load(&options.id)?;
    if state.status() == Status::Stopped {
        return Err(ContainerError::NotRunning.into());
    }
    let resources = match &options.resources {
        Some(path) if path.as_os_str() == "-" => {
            let mut text = Vec::new();
            std::io::stdin().take(1 << 20).read_to_end(&mut text)?;
            serde_json::from_slice(&text)
                .context("standard input is not an OCI resources object")?
        }
        Some(path) => serde_json::from_slice(&read_bounded(path)?)
            .with_context(|| format!("{} is not an OCI resources object", path.display()))?,
        None => from_options(options)?,
    };
    match &state.cgroup {
        Some(cgroup) => cgroup.set_limits(&resources),
        None => bail!("container {} has no cgroup", options.id),
    }
}

fn from_options(o: &Update) -> Result<LinuxResources> {
    let section = |fields: &[(&str, Value)]| {
        let set: Map<String, Value> = fields
            .iter()
            .filter(|(_, v)| !v.is_null())
            .map(|(k, v)| ((*k).to_owned(), v.clone()))
            .collect();
        (!set.is_empty()).then_some(Value::Object(set))
    };
    let memory = section(&[
        ("limit", json!(o.memory)),
        ("reservation", json!(o.memory_reservation)),
        ("swap", json!(o.memory_swap)),
    ]);
    let cpu = section(&[
        ("period", json!(o.cpu_period)),
        ("quota", json!(o.cpu_quota)),
        ("shares", json!(o.cpu_share)),
        ("cpus", json!(o.cpuset_cpus)),
        ("mems", json!(o.cpuset_mems)),
    ]);
    let mut all = Map::new();
    for (name, value) in [
        ("memory", memory),
        ("cpu", cpu),
        ("blockIO", section(&[("weight", json!(o.blkio_weight))])),
        ("pids", section(&[("limit", json!(o.pids_limit))])),
    ] {
        if let Some(value) = value {
            all.insert(name.to_owned(), value);
        }
    }
    if all.is_empty() {
        bail!("nothing to update: give --resources or a limit");
    }
    serde_json::from_value(Value::Object(all)).context("the limits")
}
