//! Commands that tell: state, ps, events, features.

use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use qlib::control::{
    DryStats, PlatformStats, ProcessInfo, Reply, Request, Stats, Usage, WakeCause,
};
use serde_json::{Value, json};

use super::cli::{self, Format};
use super::client::{ANSWER_TIMEOUT, Connection, unexpected};
use super::error::ContainerError;
use super::life;
use super::pod;
use super::seccomp;
use super::state::{Entry, State, Status, Store, default_root};
use crate::cgroup::Cgroup;
use crate::platform;
use crate::sandbox::ended::{Ended, TAKEN_AWAY};
use crate::sys::utc::Utc;

/// `quark state`. What is known without the sandbox is printed in any case.
///
/// # Errors
/// When there is no such container, or its sandbox does not answer.
pub fn state(store: &Store, id: &str, timeout: Option<Duration>) -> Result<()> {
    let (entry, state) = store.load(id)?;
    let stats = match state.status() {
        Status::Running | Status::Paused => stats(&entry, timeout).map(Some),
        _ => Ok(None),
    };
    // It may have ended instead of answering.
    let status = match &stats {
        Err(error) => life::status_after(&state, error),
        Ok(_) => state.status(),
    };
    let mut value = state.oci(pod::shown(status, &state, store));
    if let Some(fields) = value.as_object_mut() {
        let hibernation =
            stats.as_ref().ok().and_then(Option::as_ref).map(|s| format!("{:?}", s.state));
        fields.insert("rootfs".into(), json!(state.rootfs));
        fields.insert("created".into(), json!(state.created));
        fields.insert("owner".into(), json!(state.owner));
        fields.insert("platform".into(), json!(state.platform));
        if let Some(pod) = &state.pod {
            fields.insert("pod".into(), json!(pod));
        }
        fields.insert("hibernation".into(), json!(hibernation));
        let (ended, incidents) = entry.ended();
        if status == Status::Stopped {
            fields.insert(
                "ended".into(),
                ended.map_or_else(|| killed(&state), |ended| as_json(&ended, &state)),
            );
        }
        if let Some(i) = incidents {
            let at = Utc::from(UNIX_EPOCH + Duration::from_nanos(i.at_ns)).to_string();
            fields.insert("incidents".into(), json!({"count": i.count, "at": at, "last": i.last}));
        }
    }
    print_json(&value)?;
    if status == Status::Stopped { Ok(()) } else { stats.map(drop) }
}

/// How a sandbox ended, as it says itself; why the host killed its first process, its cgroup knows.
fn as_json(ended: &Ended, state: &State) -> Value {
    let Ended { status, at_ns, reason, out_of_memory } = ended;
    let out_of_memory = *out_of_memory || reason == TAKEN_AWAY && killed_for_memory(state);
    let at = Utc::from(UNIX_EPOCH + Duration::from_nanos(*at_ns)).to_string();
    json!({"status": status, "at": at, "reason": reason, "out_of_memory": out_of_memory})
}

/// True if the host has killed a process of it for want of memory.
fn killed_for_memory(state: &State) -> bool {
    state.cgroup.as_ref().is_some_and(Cgroup::was_out_of_memory)
}

/// How one ended that could not say it.
pub(super) fn killed(state: &State) -> Value {
    let by_host = killed_for_memory(state);
    let reason = if by_host {
        "the host's out-of-memory handling killed it: raise its memory limit"
    } else {
        "it was killed, or ended without a word: its log may say more"
    };
    json!({"status": 128 + libc::SIGKILL, "reason": reason, "out_of_memory": by_host})
}

/// `quark ps`: the guest's processes. With JSON runc's callers expect host process ids, and look
/// those up themselves: they get the ones in the container's cgroup.
///
/// # Errors
/// When the container does not run.
pub fn ps(
    (store, id): &(Store, String),
    options: &cli::Ps,
    timeout: Option<Duration>,
) -> Result<()> {
    let (entry, state) = running(store, id)?;
    if options.format == Format::Json {
        // Without a cgroup the one that is known has to do.
        let members = state.cgroup.as_ref().map_or(Ok(vec![state.pid]), Cgroup::members)?;
        return print(&format!("{}\n", json!(members)));
    }
    let processes =
        match ask(&entry, &Request::Processes { container: state.process.container }, timeout)? {
            Reply::Processes(p) => p,
            other => return Err(unexpected(&other)),
        };
    let now_ns = monotonic_ns().saturating_add_signed(state.clocks.monotonic_ns);
    let mut rows = vec![
        ["UID", "PID", "PPID", "STAT", "NLWP", "RSS", "ELAPSED", "TIME", "CMD"].map(str::to_owned),
    ];
    rows.extend(processes.iter().map(|p| row(p, now_ns)));
    print(&table(&rows))
}

fn row(p: &ProcessInfo, now_ns: u64) -> [String; 9] {
    let age_s = now_ns.saturating_sub(p.start_ns) / 1_000_000_000;
    let clock = |s: u64| format!("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
    [
        p.uid.to_string(),
        p.pid.to_string(),
        p.ppid.to_string(),
        p.state.to_string(),
        p.threads.to_string(),
        format!("{}K", p.rss_bytes / 1024),
        clock(age_s),
        clock(p.utime_us / 1_000_000),
        p.cmdline.clone(),
    ]
}

fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// `quark events`: numbers once, or again and again until the container ends.
///
/// # Errors
/// When the container does not run.
pub fn events(
    (store, id): &(Store, String),
    options: &cli::Events,
    timeout: Option<Duration>,
) -> Result<()> {
    let interval = parse_seconds(&options.interval)
        .with_context(|| format!("--interval {:?}", options.interval))?;
    let mut killed_before = None;
    loop {
        let (entry, state) = match running(store, id) {
            Err(e) if !options.stats && e.downcast_ref() == Some(&ContainerError::NotRunning) => {
                return Ok(());
            }
            other => other?,
        };
        let event = event(&entry, &state, timeout)?;
        if !options.stats {
            // One for each time that is looked, as with runc.
            let killed = event["data"]["quark"]["counts"]["oom_kills"].as_u64();
            if killed_before.is_some() && killed > killed_before {
                print(&format!("{}\n", json!({"type": "oom", "id": entry.id})))?;
            }
            killed_before = killed.or(killed_before);
        }
        print(&format!("{event}\n"))?;
        if options.stats {
            return Ok(());
        }
        std::thread::sleep(interval);
    }
}

/// Reads a time in seconds, more than none.
///
/// # Errors
/// When it is something else.
pub fn parse_seconds(text: &str) -> Result<Duration> {
    let time = match text.parse() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => humantime::parse_duration(text),
    };
    match time {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => bail!("use seconds, or a time as 500ms or 2m"),
    }
}

/// runc's statistics event, with what only a sandbox can tell under "quark".
fn event(entry: &Entry, state: &State, timeout: Option<Duration>) -> Result<Value> {
    let c = state.cgroup.as_ref().map(Cgroup::stats).unwrap_or_default();
    let is_alive = matches!(state.status(), Status::Running | Status::Paused);
    let guest = if is_alive { Some(stats(entry, timeout)?) } else { None };
    let mut platform = json!({"name": state.platform});
    let counted = if is_alive { platform_stats(entry, timeout)? } else { PlatformStats::default() };
    if !counted.exits.is_empty() {
        let object =
            |counts: Vec<(String, u64)>| counts.into_iter().map(|(k, v)| (k, v.into())).collect();
        platform["exits"] = Value::Object(object(counted.exits));
        platform["kvm"] = Value::Object(object(counted.kvm));
    }
    let (mut total, mut user, mut kernel) = c.cpu_ns;
    let (mut usage, mut max, limit, failcnt) = c.memory;
    let mut tasks = c.pids.0;
    // The cgroup of a further container of a pod has no more than what stands for it.
    let own = match state.pod {
        Some(_) if is_alive => Some(usage_of(entry, state.process.container, timeout)?),
        _ => None,
    };
    let percpu = if own.is_none() { c.percpu_ns.as_slice() } else { &[] };
    let mut counts = guest.as_ref().map(|g| g.counts.clone());
    if let Some(own) = own {
        if let Some(counts) = &mut counts {
            counts.oom_kills = own.oom_kills;
        }
        (total, user, kernel) = (own.user_ns + own.system_ns, own.user_ns, own.system_ns);
        (usage, max, tasks) = (own.memory_bytes, max.max(own.memory_bytes), own.threads);
    }
    let data = json!({
        "cpu": {
            "usage": {"total": total, "percpu": percpu, "kernel": kernel, "user": user},
            "throttling": {"periods": c.throttling.0, "throttledPeriods": c.throttling.1, "throttledTime": c.throttling.2},
        },
        "cpuset": {},
        "memory": {
            "cache": c.cache_bytes(),
            "usage": {"limit": limit, "usage": usage, "max": max, "failcnt": failcnt},
            "kernel": {"limit": 0, "usage": c.kernel.0, "max": c.kernel.1, "failcnt": 0},
            "raw": c.memory_stat,
        },
        "pids": {"current": tasks, "limit": c.pids.1},
        "blkio": {},
        "hugetlb": {},
        "intel_rdt": {},
        "network_interfaces": null,
        "quark": {
            "hibernation": guest.as_ref().map(|g| g.state),
            "memory": guest.as_ref().map(|g| &g.memory),
            "counts": counts,
            "sleeps": guest.as_ref().map(|g| &g.sleeps),
            "dry_run": guest.as_ref().and_then(|g| g.dry_run.as_ref()).map(dry_run),
            "kernel_lock": guest.as_ref().map(|g| &g.kernel_lock),
            "platform": platform,
            "cgroup": {
                "path": state.cgroup.as_ref().and_then(|c| c.memory_dir()),
                "clean_cache_bytes": c.clean_cache_bytes(),
                "held_bytes": c.memory.0.saturating_sub(c.clean_cache_bytes()),
            },
        },
    });
    Ok(json!({"type": "stats", "id": entry.id, "data": data}))
}

/// The sleeps that there would have been.
fn dry_run(dry: &DryStats) -> Value {
    let mut value = json!(dry);
    let wakes = WakeCause::ALL.iter().zip(dry.wakes);
    value["wakes"] = wakes.map(|(cause, count)| (cause.name().to_owned(), json!(count))).collect();
    value
}

/// What the sandbox says of itself. Does not wake it.
///
/// # Errors
/// When it does not answer.
pub fn stats(entry: &Entry, timeout: Option<Duration>) -> Result<Stats> {
    match ask(entry, &Request::Stats, timeout)? {
        Reply::Stats(stats) => Ok(*stats),
        other => Err(unexpected(&other)),
    }
}

/// What the programs of one container of a sandbox use. Does not wake it.
fn usage_of(entry: &Entry, container: u32, timeout: Option<Duration>) -> Result<Usage> {
    match ask(entry, &Request::Usage { container }, timeout)? {
        Reply::Usage(usage) => Ok(usage),
        other => Err(unexpected(&other)),
    }
}

/// What the sandbox's platform counts. Does not wake it.
fn platform_stats(entry: &Entry, timeout: Option<Duration>) -> Result<PlatformStats> {
    match ask(entry, &Request::Platform, timeout)? {
        Reply::Platform(stats) => Ok(stats),
        other => Err(unexpected(&other)),
    }
}

/// Asks the sandbox, and has its answer.
///
/// # Errors
/// When it does not answer.
pub(super) fn ask(entry: &Entry, request: &Request, timeout: Option<Duration>) -> Result<Reply> {
    Connection::open(entry, timeout.unwrap_or(ANSWER_TIMEOUT))?.call(request, &[])
}

/// A container whose program may be running.
pub(super) fn running(store: &Store, id: &str) -> Result<(Entry, State)> {
    let (entry, state) = store.load(id)?;
    match state.status() {
        Status::Stopped => Err(ContainerError::NotRunning.into()),
        Status::Creating => bail!("container {id} is being created"),
        _ => Ok((entry, state)),
    }
}

/// `quark features` (OCI runtime specification, features.md).
///
/// # Errors
/// When standard output is closed.
pub fn features() -> Result<()> {
    print_json(&json!({
        "ociVersionMin": "1.0.0",
        "ociVersionMax": "1.2.0",
        "hooks": ["prestart", "createRuntime", "createContainer", "poststart", "poststop"],
        "mountOptions": ["bind", "rbind", "ro", "rw", "nosuid", "suid", "nodev", "dev", "noexec", "exec", "noatime",
            "relatime", "private", "rprivate", "shared", "rshared", "slave", "rslave"],
        "linux": {
            "namespaces": ["cgroup", "ipc", "mount", "network", "pid", "uts"],
            "cgroup": {"v1": true, "v2": true, "systemd": false, "systemdUser": false},
            "seccomp": seccomp::features(),
            "apparmor": {"enabled": false},
            "selinux": {"enabled": false},
        },
        "annotations": {"org.quark.hibernation": "true"},
    }))
}

/// `quark doctor`: what this host offers, and why not more.
///
/// # Errors
/// When standard output is closed.
pub fn doctor() -> Result<()> {
    let mut rows = vec![["", "WHAT", "DETAIL"].map(str::to_owned)];
    // First, while this process has one thread.
    let rootless = super::rootless::findings();
    let kvm = platform::probe_kvm(&default_root());
    for finding in platform::probe::findings(&kvm).into_iter().chain(rootless) {
        let mark = if finding.available { "yes" } else { "no" };
        rows.push([mark.to_owned(), finding.name.to_owned(), finding.detail.replace('\n', " ")]);
    }
    print(&table(&rows))
}

/// A text as a terminal may have it: anything can be in it.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Columns as wide as their widest cell. Guests choose command lines, and users paths: no control
/// characters to the terminal.
pub fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; N]| {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(c, w)| format!("{:w$}", printable(c))).collect();
        format!("{}\n", cells.join("   ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn print_json(value: &Value) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

/// Like print!, but a reader that went away is an error and no panic.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("writing to standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up() {
        let rows = [["A", "B"], ["long", "c"]].map(|r| r.map(str::to_owned));
        assert_eq!(table(&rows), "A      B\nlong   c\n");
        let rows = [["/\x1b[2J\n", "b"]].map(|r| r.map(str::to_owned));
        assert_eq!(table(&rows), "/?[2J?   b\n");
    }

    #[test]
    fn intervals_are_seconds() {
        assert_eq!(parse_seconds("5s").unwrap(), Duration::from_secs(5));
        assert_eq!(parse_seconds("1").unwrap(), Duration::from_secs(1));
        assert!(parse_seconds("0s").is_err() && parse_seconds("x").is_err());
    }
}
