//! Statistics of a container in the messages that containerd's clients know.

use anyhow::{Context, Result};
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::{cgroups::metrics as v1, cgroups_v2::metrics as v2};
use serde_json::Value;

use crate::cgroup::{Cgroup, field};

/// The clock's ticks a second, in which cgroup v1 counts the kinds of CPU time (`USER_HZ`).
const TICKS: u64 = 100;

/// What the programs of a container use that shares the kernel of its pod: they run in the sandbox
/// of the pod's first container, so its cgroup tells of nothing but the process that stands for it.
#[derive(Clone, Copy)]
pub struct Usage {
    /// CPU time in user mode and in the kernel, in nanoseconds.
    cpu_ns: (u64, u64),
    /// Resident sets in bytes; what several processes share counts for each.
    memory_bytes: u64,
    threads: u64,
}

impl Usage {
    /// Reads what `quark events --stats` prints.
    ///
    /// # Errors
    /// When it is something else.
    pub fn parse(event: &str) -> Result<Self> {
        let event: Value = serde_json::from_str(event).context("statistics of quark")?;
        let number = |place: &str| {
            let number = event.pointer(place).and_then(Value::as_u64);
            number.with_context(|| format!("statistics of quark without {place}"))
        };
        Ok(Self {
            cpu_ns: (number("/data/cpu/usage/user")?, number("/data/cpu/usage/kernel")?),
            memory_bytes: number("/data/memory/usage/usage")?,
            threads: number("/data/pids/current")?,
        })
    }
}

/// Those of a cgroup; `usage` goes before what it tells.
///
/// # Errors
/// When the message cannot be made.
pub fn collect(cgroup: &Cgroup, usage: Option<&Usage>) -> Result<Any> {
    let (name, value) = if cgroup.is_unified() {
        let mut metrics = unified(cgroup);
        if let Some(usage) = usage {
            tell_unified(&mut metrics, usage);
        }
        ("io.containerd.cgroups.v2.Metrics", metrics.write_to_bytes()?)
    } else {
        let mut metrics = legacy(cgroup);
        if let Some(usage) = usage {
            tell_legacy(&mut metrics, usage);
        }
        ("io.containerd.cgroups.v1.Metrics", metrics.write_to_bytes()?)
    };
    Ok(Any { type_url: name.to_owned(), value, ..Any::new() })
}

fn tell_legacy(metrics: &mut v1::Metrics, usage: &Usage) {
    let cpu = metrics.cpu.mut_or_insert_default().usage.mut_or_insert_default();
    (cpu.user, cpu.kernel) = usage.cpu_ns;
    cpu.total = cpu.user + cpu.kernel;
    cpu.per_cpu.clear();
    let memory = metrics.memory.mut_or_insert_default();
    (memory.rss, memory.total_rss) = (usage.memory_bytes, usage.memory_bytes);
    // Clients take cache that is not in use off the usage, and of that this is none.
    (memory.inactive_file, memory.total_inactive_file) = (0, 0);
    let all = memory.usage.mut_or_insert_default();
    all.usage = usage.memory_bytes;
    all.max = all.max.max(all.usage);
    metrics.pids.mut_or_insert_default().current = usage.threads;
}

fn tell_unified(metrics: &mut v2::Metrics, usage: &Usage) {
    let cpu = metrics.cpu.mut_or_insert_default();
    (cpu.user_usec, cpu.system_usec) = (usage.cpu_ns.0 / 1000, usage.cpu_ns.1 / 1000);
    cpu.usage_usec = cpu.user_usec + cpu.system_usec;
    let memory = metrics.memory.mut_or_insert_default();
    (memory.anon, memory.usage) = (usage.memory_bytes, usage.memory_bytes);
    // As above.
    memory.inactive_file = 0;
    memory.max_usage = memory.max_usage.max(memory.usage);
    metrics.pids.mut_or_insert_default().current = usage.threads;
}

fn legacy(cgroup: &Cgroup) -> v1::Metrics {
    let number = |controller: &str, file: &str| cgroup.number(controller, file);
    let stat = cgroup.read("memory", "memory.stat");
    let of = |name| field(&stat, name);
    let entry = |kind: &str| {
        let file = |what| format!("memory.{kind}{what}");
        MessageField::some(v1::MemoryEntry {
            usage: number("memory", &file("usage_in_bytes")),
            max: number("memory", &file("max_usage_in_bytes")),
            limit: number("memory", &file("limit_in_bytes")),
            failcnt: number("memory", &file("failcnt")),
            ..v1::MemoryEntry::new()
        })
    };
    let memory = v1::MemoryStat {
        cache: of("cache"),
        rss: of("rss"),
        rss_huge: of("rss_huge"),
        mapped_file: of("mapped_file"),
        dirty: of("dirty"),
        writeback: of("writeback"),
        pg_pg_in: of("pgpgin"),
        pg_pg_out: of("pgpgout"),
        pg_fault: of("pgfault"),
        pg_maj_fault: of("pgmajfault"),
        inactive_anon: of("inactive_anon"),
        active_anon: of("active_anon"),
        inactive_file: of("inactive_file"),
        active_file: of("active_file"),
        unevictable: of("unevictable"),
        hierarchical_memory_limit: of("hierarchical_memory_limit"),
        hierarchical_swap_limit: of("hierarchical_memsw_limit"),
        total_cache: of("total_cache"),
        total_rss: of("total_rss"),
        total_rss_huge: of("total_rss_huge"),
        total_mapped_file: of("total_mapped_file"),
        total_dirty: of("total_dirty"),
        total_writeback: of("total_writeback"),
        total_pg_pg_in: of("total_pgpgin"),
        total_pg_pg_out: of("total_pgpgout"),
        total_pg_fault: of("total_pgfault"),
        total_pg_maj_fault: of("total_pgmajfault"),
        total_inactive_anon: of("total_inactive_anon"),
        total_active_anon: of("total_active_anon"),
        total_inactive_file: of("total_inactive_file"),
        total_active_file: of("total_active_file"),
        total_unevictable: of("total_unevictable"),
        usage: entry(""),
        swap: entry("memsw."),
        kernel: entry("kmem."),
        kernel_tcp: entry("kmem.tcp."),
        ..v1::MemoryStat::new()
    };
    let oom = cgroup.read("memory", "memory.oom_control");
    let times = cgroup.read("cpuacct", "cpuacct.stat");
    let per_cpu = cgroup.read("cpuacct", "cpuacct.usage_percpu");
    let throttling = cgroup.read("cpu", "cpu.stat");
    let ns = |ticks: u64| ticks * (1_000_000_000 / TICKS);
    let cpu = v1::CPUStat {
        usage: MessageField::some(v1::CPUUsage {
            total: number("cpuacct", "cpuacct.usage"),
            kernel: ns(field(&times, "system")),
            user: ns(field(&times, "user")),
            per_cpu: per_cpu.split_whitespace().filter_map(|n| n.parse().ok()).collect(),
            ..v1::CPUUsage::new()
        }),
        throttling: MessageField::some(v1::Throttle {
            periods: field(&throttling, "nr_periods"),
            throttled_periods: field(&throttling, "nr_throttled"),
            throttled_time: field(&throttling, "throttled_time"),
            ..v1::Throttle::new()
        }),
        ..v1::CPUStat::new()
    };
    v1::Metrics {
        pids: MessageField::some(v1::PidsStat {
            current: number("pids", "pids.current"),
            limit: limit(number("pids", "pids.max")),
            ..v1::PidsStat::new()
        }),
        cpu: MessageField::some(cpu),
        memory: MessageField::some(memory),
        memory_oom_control: MessageField::some(v1::MemoryOomControl {
            oom_kill_disable: field(&oom, "oom_kill_disable"),
            under_oom: field(&oom, "under_oom"),
            oom_kill: field(&oom, "oom_kill"),
            ..v1::MemoryOomControl::new()
        }),
        blkio: MessageField::some(v1::BlkIOStat {
            io_service_bytes_recursive: block(cgroup, "blkio.throttle.io_service_bytes_recursive"),
            io_serviced_recursive: block(cgroup, "blkio.throttle.io_serviced_recursive"),
            ..v1::BlkIOStat::new()
        }),
        ..v1::Metrics::new()
    }
}

/// 0 stands for no limit of processes.
fn limit(number: u64) -> u64 {
    if number == u64::MAX { 0 } else { number }
}

/// Lines like `8:0 Read 4096`.
fn block(cgroup: &Cgroup, file: &str) -> Vec<v1::BlkIOEntry> {
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let (major, minor) = words.next()?.split_once(':')?;
        Some(v1::BlkIOEntry {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
            op: words.next()?.to_owned(),
            value: words.next()?.parse().ok()?,
            ..v1::BlkIOEntry::new()
        })
    };
    cgroup.read("blkio", file).lines().filter_map(parse).collect()
}

fn unified(cgroup: &Cgroup) -> v2::Metrics {
    let number = |file| cgroup.number("", file);
    let (stat, events) = (cgroup.read("", "memory.stat"), cgroup.read("", "memory.events"));
    let cpu = cgroup.read("", "cpu.stat");
    let of = |name| field(&stat, name);
    let memory = v2::MemoryStat {
        anon: of("anon"),
        file: of("file"),
        kernel_stack: of("kernel_stack"),
        slab: of("slab"),
        sock: of("sock"),
        shmem: of("shmem"),
        file_mapped: of("file_mapped"),
        file_dirty: of("file_dirty"),
        file_writeback: of("file_writeback"),
        anon_thp: of("anon_thp"),
        inactive_anon: of("inactive_anon"),
        active_anon: of("active_anon"),
        inactive_file: of("inactive_file"),
        active_file: of("active_file"),
        unevictable: of("unevictable"),
        slab_reclaimable: of("slab_reclaimable"),
        slab_unreclaimable: of("slab_unreclaimable"),
        pgfault: of("pgfault"),
        pgmajfault: of("pgmajfault"),
        pgrefill: of("pgrefill"),
        pgscan: of("pgscan"),
        pgsteal: of("pgsteal"),
        pgactivate: of("pgactivate"),
        pgdeactivate: of("pgdeactivate"),
        pglazyfree: of("pglazyfree"),
        pglazyfreed: of("pglazyfreed"),
        thp_fault_alloc: of("thp_fault_alloc"),
        thp_collapse_alloc: of("thp_collapse_alloc"),
        usage: number("memory.current"),
        usage_limit: number("memory.max"),
        max_usage: number("memory.peak"),
        swap_usage: number("memory.swap.current"),
        swap_limit: number("memory.swap.max"),
        ..v2::MemoryStat::new()
    };
    v2::Metrics {
        pids: MessageField::some(v2::PidsStat {
            current: number("pids.current"),
            limit: limit(number("pids.max")),
            ..v2::PidsStat::new()
        }),
        cpu: MessageField::some(v2::CPUStat {
            usage_usec: field(&cpu, "usage_usec"),
            user_usec: field(&cpu, "user_usec"),
            system_usec: field(&cpu, "system_usec"),
            nr_periods: field(&cpu, "nr_periods"),
            nr_throttled: field(&cpu, "nr_throttled"),
            throttled_usec: field(&cpu, "throttled_usec"),
            ..v2::CPUStat::new()
        }),
        memory: MessageField::some(memory),
        memory_events: MessageField::some(v2::MemoryEvents {
            low: field(&events, "low"),
            high: field(&events, "high"),
            max: field(&events, "max"),
            oom: field(&events, "oom"),
            oom_kill: field(&events, "oom_kill"),
            ..v2::MemoryEvents::new()
        }),
        io: MessageField::some(v2::IOStat {
            usage: cgroup.read("", "io.stat").lines().filter_map(device).collect(),
            ..v2::IOStat::new()
        }),
        ..v2::Metrics::new()
    }
}

/// Lines like `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`.
fn device(line: &str) -> Option<v2::IOEntry> {
    let (device, rest) = line.split_once(' ')?;
    let (major, minor) = device.split_once(':')?;
    let of = |name: &str| {
        let mut pairs = rest.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).and_then(|(_, v)| v.parse().ok()).unwrap_or(0)
    };
    Some(v2::IOEntry {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
        rbytes: of("rbytes"),
        wbytes: of("wbytes"),
        rios: of("rios"),
        wios: of("wios"),
        ..v2::IOEntry::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_of_a_device_is_read() {
        let entry = device("8:16 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=9 dios=9").unwrap();
        let numbers =
            [entry.major, entry.minor, entry.rbytes, entry.wbytes, entry.rios, entry.wios];
        assert_eq!(numbers, [8, 16, 1, 2, 3, 4]);
    }

    #[test]
    fn this_process_has_statistics() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let any = collect(&Cgroup::of(pid), None).unwrap();
        if any.type_url.contains("v1") {
            let metrics = v1::Metrics::parse_from_bytes(&any.value).unwrap();
            assert!(metrics.cpu.usage.total > 0);
            assert!(metrics.memory.usage.usage > 0);
        } else {
            assert_eq!(any.type_url, "io.containerd.cgroups.v2.Metrics");
            let metrics = v2::Metrics::parse_from_bytes(&any.value).unwrap();
            assert!(metrics.cpu.usage_usec > 0);
        }
    }

    #[test]
    fn what_a_container_of_a_shared_pod_uses_goes_before_its_cgroup() {
        let event = r#"{"type":"stats","id":"c","data":{
            "cpu":{"usage":{"total":5000,"percpu":[],"kernel":2000,"user":3000}},
            "memory":{"usage":{"limit":9,"usage":4096,"max":1,"failcnt":0},"raw":{}},
            "pids":{"current":7,"limit":0}}}"#;
        let usage = Usage::parse(event).unwrap();
        let mut old = v1::Metrics::new();
        old.memory.mut_or_insert_default().total_inactive_file = 99;
        tell_legacy(&mut old, &usage);
        let cpu = &old.cpu.usage;
        assert_eq!((cpu.total, cpu.user, cpu.kernel), (5000, 3000, 2000));
        assert_eq!((old.memory.usage.usage, old.memory.usage.max), (4096, 4096));
        assert_eq!((old.memory.total_inactive_file, old.pids.current), (0, 7));
        let mut new = v2::Metrics::new();
        tell_unified(&mut new, &usage);
        assert_eq!((new.cpu.usage_usec, new.cpu.user_usec), (5, 3));
        assert_eq!((new.memory.usage, new.memory.anon, new.pids.current), (4096, 4096, 7));
        assert!(Usage::parse("{}").is_err());
    }
}
