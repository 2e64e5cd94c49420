//! `update`: other limits for a running container.

use std::io::Read;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use oci_spec::runtime::{LinuxMemory, LinuxPids, LinuxResources};
use qlib::control::Request;
use serde_json::{Map, Value, json};

use super::bundle::{check_limits, read_bounded};
use super::child::memory_limit;
use super::cli::Update;
use super::client::Refused;
use super::error::ContainerError;
use super::info;
use super::state::{Entry, State, Status, Store};
use crate::cgroup::{Cgroup, CgroupStats};

/// Sets limits of the container's cgroup. The guest has as much less memory, or more.
///
/// # Errors
/// When the container has stopped, or a limit is refused or less than what it holds.
pub fn update(store: &Store, options: &Update, timeout: Option<Duration>) -> Result<()> {
    let (entry, state) = store.load(&options.id)?;
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
    let Some(cgroup) = &state.cgroup else { bail!("container {} has no cgroup", options.id) };
    if state.pod.is_none() {
        check_limits(&resources, state.platform)?;
    }
    let tasks = resources.pids().as_ref().map(LinuxPids::limit).filter(|limit| *limit != 0);
    // Those of a pod are limited where its sandbox is.
    let tasks = tasks.filter(|_| state.pod.is_none());
    // One that is negative, or larger than this, is none.
    let tasks = tasks.map(|limit| u32::try_from(limit).unwrap_or(0));
    // It sees to a limit for longer than there is one, so that it never meets one unawares.
    if let Some(limit @ 1..) = tasks {
        tell_sandbox(&entry, limit, timeout);
    }
    set(&entry, &state, cgroup, &resources, timeout)?;
    if tasks == Some(0) {
        tell_sandbox(&entry, 0, timeout);
    }
    Ok(())
}

/// Has the sandbox refuse processes and threads that its cgroup has no room for.
fn tell_sandbox(entry: &Entry, limit: u32, timeout: Option<Duration>) {
    if let Err(e) = info::ask(entry, &Request::Tasks { limit }, timeout) {
        tracing::warn!("the sandbox is not told of its limit of processes: {e:#}");
    }
}

fn set(
    entry: &Entry,
    state: &State,
    cgroup: &Cgroup,
    resources: &LinuxResources,
    timeout: Option<Duration>,
) -> Result<()> {
    let limit = resources.memory().as_ref().and_then(LinuxMemory::limit).filter(|l| *l != 0);
    let Some(limit) = limit else { return cgroup.set_limits(resources) };
    // Negative: none.
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    // Who does not answer has its limits set all the same.
    let stats = info::stats(entry, timeout).ok();
    let (.., old_limit, _) = cgroup.stats().memory;
    let container = state.process.container;
    let tell = |limit| tell_guest(entry, container, limit, timeout);
    // The guest's is the lower one at every moment; of a container that shares a kernel it is the
    // only one that counts.
    if limit < old_limit || state.pod.is_some() {
        tell(limit)?;
        let stored = || stats.as_ref().map_or(0, |stats| stats.memory.swapped_raw);
        // It has given back what it could.
        let check = match &state.pod {
            None => check_need(limit, &cgroup.stats(), stored),
            // What it holds is charged to the first container of its pod.
            Some(_) => Ok(()),
        };
        let set = check.and_then(|()| cgroup.set_limits(resources));
        return set.inspect_err(|_| {
            let _ = tell(old_limit);
        });
    }
    cgroup.set_limits(resources)?;
    tell(limit)
}

/// How long a guest may take to have back what programs held that have just ended.
const PATIENCE: Duration = Duration::from_secs(2);

/// Has the guest get along with its part of a memory limit in bytes.
fn tell_guest(entry: &Entry, container: u32, limit: u64, timeout: Option<Duration>) -> Result<()> {
    let limit = memory_limit(limit);
    let request = Request::Limit { container, limit };
    let busy = rustix::io::Errno::BUSY.raw_os_error();
    let end = Instant::now() + PATIENCE;
    let (error, is_busy) = loop {
        let Err(error) = info::ask(entry, &request, timeout) else { return Ok(()) };
        let is_busy = error.downcast_ref::<Refused>().is_some_and(|refused| refused.errno == busy);
        if !is_busy || Instant::now() > end {
            break (error, is_busy);
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    if is_busy {
        bail!(
            "memory limit of {} bytes: Device or resource busy: the container's programs hold more \
            than the {} that they would have; have them use less first",
            limit.whole,
            limit.guest
        );
    }
    tracing::warn!("the guest is not told of its memory limit: {error:#}");
    Ok(())
}

/// Refuses a memory limit, in bytes, below what a container holds, and what is `stored` of it and
/// comes back when it wakes: the host would kill it, then or now. That is asked for lower limits
/// only.
fn check_need(limit: u64, now: &CgroupStats, stored: impl FnOnce() -> u64) -> Result<()> {
    let (usage, .., old_limit, _) = now.memory;
    if limit >= old_limit {
        return Ok(());
    }
    let held = usage.saturating_sub(now.clean_cache_bytes());
    let stored = stored();
    let need = held.saturating_add(stored);
    if limit >= need {
        return Ok(());
    }
    bail!(
        "memory limit of {limit} bytes is too small: the container holds {held} and has {stored} in \
        the store, so it would be killed; give at least {need}, or have it use less first"
    )
}

fn from_options(o: &Update) -> Result<LinuxResources> {
    for (option, value) in
        [("--l3-cache-schema", &o.l3_cache_schema), ("--mem-bw-schema", &o.mem_bw_schema)]
    {
        if value.as_deref().is_some_and(|value| !value.is_empty()) {
            bail!("{option}: Intel's RDT is not supported; leave it out");
        }
    }
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
        ("realtimePeriod", json!(o.cpu_rt_period)),
        ("realtimeRuntime", json!(o.cpu_rt_runtime)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_below_what_is_held_and_stored_is_refused() {
        let mut now = CgroupStats { memory: (30 << 20, 0, 256 << 20, 0), ..CgroupStats::default() };
        now.memory_stat.extend([("cache", 12 << 20), ("shmem", 8 << 20)].map(own));
        // 26 MiB are held, for 4 are clean page cache.
        assert!(check_need(26 << 20, &now, || 0).is_ok());
        assert!(check_need((26 << 20) - 1, &now, || 0).is_err());
        let refused = check_need(100 << 20, &now, || 80 << 20).unwrap_err().to_string();
        assert!(refused.contains(&format!("give at least {}", 106 << 20)), "{refused}");
        assert!(check_need(106 << 20, &now, || 80 << 20).is_ok());
        assert!(check_need(256 << 20, &now, || 800 << 20).is_ok(), "no less than it was");
    }

    fn own((name, bytes): (&str, u64)) -> (String, u64) {
        (name.to_owned(), bytes)
    }
}
