//! What a cgroup has used.

use std::collections::BTreeMap;
use std::fs;

use serde::Serialize;

use super::{Cgroup, Version};

/// Numbers of a cgroup. What a host does not tell is 0.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CgroupStats {
    /// CPU time in nanoseconds: all, in user mode, in the kernel.
    pub cpu_ns: (u64, u64, u64),
    /// CPU time by CPU, in nanoseconds (version 1).
    pub percpu_ns: Vec<u64>,
    /// Periods, throttled periods, throttled nanoseconds.
    pub throttling: (u64, u64, u64),
    /// Memory in bytes: now, most ever, limit; how often the limit was hit.
    pub memory: (u64, u64, u64, u64),
    /// Kernel memory in bytes: now, most ever.
    pub kernel: (u64, u64),
    /// memory.stat.
    pub memory_stat: BTreeMap<String, u64>,
    /// Processes now, and the limit (0 = none).
    pub pids: (u64, u64),
}

impl CgroupStats {
    /// Page cache in bytes.
    pub fn cache_bytes(&self) -> u64 {
        self.first(&["total_cache", "cache", "file"])
    }

    /// Clean page cache in bytes: what the host takes back without asking, so it does not count as
    /// held. Shared memory is page cache to the kernel's books, but guest RAM to us, and counts.
    pub fn clean_cache_bytes(&self) -> u64 {
        let shmem = self.first(&["total_shmem", "shmem"]);
        let dirty = self.first(&["total_dirty", "dirty", "file_dirty"]);
        self.cache_bytes().saturating_sub(shmem).saturating_sub(dirty)
    }

    fn first(&self, names: &[&str]) -> u64 {
        names.iter().find_map(|n| self.memory_stat.get(*n)).copied().unwrap_or(0)
    }
}

impl Cgroup {
    /// Reads the numbers.
    pub fn stats(&self) -> CgroupStats {
        let mut s = CgroupStats {
            memory_stat: self.table("memory", "memory.stat"),
            pids: (
                self.number("pids", "pids.current").unwrap_or(0),
                self.number("pids", "pids.max").unwrap_or(0),
            ),
            ..CgroupStats::default()
        };
        let cpu = self.table("cpu", "cpu.stat");
        let of = |table: &BTreeMap<String, u64>, name: &str| table.get(name).copied().unwrap_or(0);
        let n = |c: &str, f: &str| self.number(c, f).unwrap_or(0);
        match self.version {
            Version::V1 => {
                // cpuacct.stat counts in USER_HZ, which is 100 on every Linux ABI.
                let ticks = self.table("cpuacct", "cpuacct.stat");
                s.cpu_ns = (
                    n("cpuacct", "cpuacct.usage"),
                    of(&ticks, "user").saturating_mul(10_000_000),
                    of(&ticks, "system").saturating_mul(10_000_000),
                );
                if let Some(text) = self.text("cpuacct", "cpuacct.usage_percpu") {
                    s.percpu_ns = text.split_whitespace().filter_map(|v| v.parse().ok()).collect();
                }
                s.throttling =
                    (of(&cpu, "nr_periods"), of(&cpu, "nr_throttled"), of(&cpu, "throttled_time"));
                s.memory = (
                    n("memory", "memory.usage_in_bytes"),
                    n("memory", "memory.max_usage_in_bytes"),
                    n("memory", "memory.limit_in_bytes"),
                    n("memory", "memory.failcnt"),
                );
                s.kernel = (
                    n("memory", "memory.kmem.usage_in_bytes"),
                    n("memory", "memory.kmem.max_usage_in_bytes"),
                );
            }
            Version::V2 => {
                let us = |name| of(&cpu, name).saturating_mul(1000);
                s.cpu_ns = (us("usage_usec"), us("user_usec"), us("system_usec"));
                s.throttling =
                    (of(&cpu, "nr_periods"), of(&cpu, "nr_throttled"), us("throttled_usec"));
                let events = self.table("memory", "memory.events");
                s.memory = (
                    n("memory", "memory.current"),
                    n("memory", "memory.peak"),
                    self.number("memory", "memory.max").unwrap_or(u64::MAX),
                    of(&events, "max"),
                );
                s.kernel = (of(&s.memory_stat, "kernel"), 0);
            }
        }
        s
    }

    /// What it holds in bytes, kernel memory included, without clean page cache; `None` when it is
    /// gone or the host does not count memory.
    pub fn held_bytes(&self) -> Option<u64> {
        let file = match self.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        let usage = self.number("memory", file)?;
        let memory_stat = self.table("memory", "memory.stat");
        let stats = CgroupStats { memory_stat, ..CgroupStats::default() };
        Some(usage.saturating_sub(stats.clean_cache_bytes()))
    }

    fn text(&self, controller: &str, file: &str) -> Option<String> {
        fs::read_to_string(self.dir(controller)?.join(file)).ok()
    }

    /// A file with one number; `None` for "max".
    pub(super) fn number(&self, controller: &str, file: &str) -> Option<u64> {
        self.text(controller, file)?.trim().parse().ok()
    }

    /// A file with "name value" lines.
    fn table(&self, controller: &str, file: &str) -> BTreeMap<String, u64> {
        let text = self.text(controller, file).unwrap_or_default();
        let pair = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        };
        text.lines().filter_map(pair).collect()
    }
}
