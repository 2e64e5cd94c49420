//! Limits: OCI's `linux.resources` to the files of either version.

use anyhow::{Context, Result, bail};
use oci_spec::runtime::{LinuxCpu, LinuxMemory, LinuxResources};

use super::{Cgroup, Version};

/// What to do when the host refuses a value of `cpuset.cpus` or `cpuset.mems`.
fn refused_cpuset(file: &str, value: &str) -> String {
    let list = match file {
        "cpuset.cpus" => "/sys/devices/system/cpu/online",
        _ => "/sys/devices/system/node/online",
    };
    let online = std::fs::read_to_string(list).unwrap_or_else(|_| "0".to_owned());
    format!("{file} {value:?} is refused; use numbers and ranges among {}, as 0-1,3", online.trim())
}

impl Cgroup {
    /// Sets what `resources` asks for. Device rules are not for us: a guest reaches no host device.
    ///
    /// # Errors
    /// When a controller is missing or refuses a value.
    pub fn set_limits(&self, resources: &LinuxResources) -> Result<()> {
        if let Some(memory) = resources.memory() {
            match self.version {
                Version::V1 => self.memory_v1(memory)?,
                Version::V2 => self.memory_v2(memory)?,
            }
        }
        if let Some(cpu) = resources.cpu() {
            match self.version {
                Version::V1 => self.cpu_v1(cpu)?,
                Version::V2 => self.cpu_v2(cpu)?,
            }
            for (file, value) in [("cpuset.cpus", cpu.cpus()), ("cpuset.mems", cpu.mems())] {
                if let Some(value) = value.as_deref().filter(|v| !v.is_empty()) {
                    self.write("cpuset", file, value)
                        .with_context(|| refused_cpuset(file, value))?;
                }
            }
        }
        if let Some(limit) = resources.pids().as_ref().map(oci_spec::runtime::LinuxPids::limit)
            && limit != 0
        {
            self.write("pids", "pids.max", &max_or(limit))?;
        }
        if let Some(weight) =
            resources.block_io().as_ref().and_then(|b| b.weight()).filter(|w| *w != 0)
        {
            match self.version {
                Version::V1 => {
                    let file = ["blkio.weight", "blkio.bfq.weight"]
                        .into_iter()
                        .find(|f| self.has("blkio", f));
                    match file {
                        Some(file) => self.write("blkio", file, &weight.to_string())?,
                        None => tracing::warn!(
                            "this host cannot weigh block I/O; blockIO.weight is not applied"
                        ),
                    }
                }
                Version::V2 => {
                    let weight = 1 + (u64::from(weight).saturating_sub(10)) * 9999 / 990;
                    self.write("io", "io.weight", &weight.to_string())?;
                }
            }
        }
        for (file, value) in resources.unified().iter().flatten() {
            if self.version == Version::V1 {
                bail!(
                    "resources.unified ({file}) needs cgroup version 2, and this host has version 1"
                );
            }
            if file.contains('/') || file.starts_with("cgroup.") {
                bail!("resources.unified: {file:?} is not the name of a limit");
            }
            self.write("", file, value)?;
        }
        Ok(())
    }

    fn memory_v1(&self, memory: &LinuxMemory) -> Result<()> {
        let limit = memory.limit().filter(|l| *l != 0);
        let swap = memory.swap().filter(|s| *s != 0);
        let swap_file = "memory.memsw.limit_in_bytes";
        // The kernel wants limit <= memsw at every moment: raise the outer one first, lower it
        // last.
        let swap_first = swap.is_some_and(|s| {
            s == -1 || self.number("memory", swap_file).is_some_and(|now| s as u64 > now)
        });
        let set_swap = || match swap {
            Some(swap) if self.has("memory", swap_file) => {
                self.write("memory", swap_file, &swap.to_string())
            }
            Some(_) => {
                tracing::warn!("this host does not account swap; memory.swap is not applied");
                Ok(())
            }
            None => Ok(()),
        };
        if swap_first {
            set_swap()?;
        }
        if let Some(limit) = limit {
            self.write("memory", "memory.limit_in_bytes", &limit.to_string())?;
        }
        if !swap_first {
            set_swap()?;
        }
        if let Some(soft) = memory.reservation().filter(|r| *r != 0) {
            self.write("memory", "memory.soft_limit_in_bytes", &soft.to_string())?;
        }
        if let Some(swappiness) = memory.swappiness().filter(|s| *s <= 100) {
            self.write("memory", "memory.swappiness", &swappiness.to_string())?;
        }
        if memory.disable_oom_killer() == Some(true) {
            self.write("memory", "memory.oom_control", "1")?;
        }
        Ok(())
    }

    fn memory_v2(&self, memory: &LinuxMemory) -> Result<()> {
        let limit = memory.limit().filter(|l| *l != 0);
        if let Some(limit) = limit {
            self.write("memory", "memory.max", &max_or(limit))?;
        }
        if let Some(swap) = memory.swap().filter(|s| *s != 0) {
            // OCI's number is memory and swap together.
            let value = match (swap, limit) {
                (-1, _) => "max".to_owned(),
                (swap, Some(limit)) if limit > 0 && swap >= limit => (swap - limit).to_string(),
                _ => bail!(
                    "memory.swap ({swap}) must be set together with memory.limit and not be below \
                    it"
                ),
            };
            if self.has("memory", "memory.swap.max") {
                self.write("memory", "memory.swap.max", &value)?;
            } else {
                tracing::warn!("this host does not account swap; memory.swap is not applied");
            }
        }
        if let Some(low) = memory.reservation().filter(|r| *r != 0) {
            self.write("memory", "memory.low", &max_or(low))?;
        }
        Ok(())
    }

    fn cpu_v1(&self, cpu: &LinuxCpu) -> Result<()> {
        if let Some(shares) = cpu.shares().filter(|s| *s != 0) {
            self.write("cpu", "cpu.shares", &shares.to_string())?;
        }
        let period = cpu.period().filter(|p| *p != 0);
        let quota = cpu.quota().filter(|q| *q != 0);
        let set_period = || match period {
            Some(period) => self.write("cpu", "cpu.cfs_period_us", &period.to_string()),
            None => Ok(()),
        };
        let set_quota = || match quota {
            Some(quota) => self.write("cpu", "cpu.cfs_quota_us", &quota.to_string()),
            None => Ok(()),
        };
        // The old quota may be too much of the new period for the cgroup above: only both fit.
        if set_period().is_ok() {
            return set_quota();
        }
        set_quota().and_then(|()| set_period())
    }

    fn cpu_v2(&self, cpu: &LinuxCpu) -> Result<()> {
        if let Some(shares) = cpu.shares().filter(|s| *s != 0) {
            self.write("cpu", "cpu.weight", &weight_of_shares(shares).to_string())?;
        }
        let file = "cpu.max";
        let period = cpu.period().filter(|p| *p != 0);
        match (cpu.quota().filter(|q| *q != 0), period) {
            (None, None) => {}
            (quota, period) => {
                // Both are in one file: what is not given stays.
                let now = self.dir("cpu").and_then(|d| std::fs::read_to_string(d.join(file)).ok());
                let now = now.unwrap_or_default();
                let mut now = now.split_whitespace();
                let quota_now = now.next().unwrap_or("max");
                let period_now = now.next().unwrap_or("100000");
                let quota = quota.map_or_else(|| quota_now.to_owned(), max_or);
                let period = period.map_or_else(|| period_now.to_owned(), |p| p.to_string());
                self.write("cpu", file, &format!("{quota} {period}"))?;
            }
        }
        Ok(())
    }
}

/// Negative means no limit.
fn max_or(value: i64) -> String {
    if value < 0 { "max".to_owned() } else { value.to_string() }
}

/// The conversion that runc, crun and systemd agree on: 2..=262144 to 1..=10000.
pub(super) fn weight_of_shares(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}
