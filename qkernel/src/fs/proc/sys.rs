//! /proc/sys: settings. Those that a container may have been given by its specification, and what programs look at to learn about the
//! kernel. A value that is written is kept and read back; only where said does it change anything.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{S_IFDIR, S_IFREG};

use crate::errno::{Errno, Result};
use crate::fs::synth::{Dir, Node};
use crate::fs::{mount, notify};
use crate::random;
use crate::sync::{Mutex, Once, mutex};
use crate::syscall::sysinfo;

/// What a setting reads as.
enum Value {
    /// This, until it is set to something else.
    Default(&'static str),
    /// This, always.
    Fixed(&'static str),
    /// What the function gives.
    Made(fn() -> String),
}

use Value::{Default as D, Fixed as F, Made as M};

const SETTINGS: &[(&str, Value)] = &[
    ("fs/aio-max-nr", D("65536")),
    ("fs/file-max", D("9223372036854775807")),
    ("fs/file-nr", F("64\t0\t9223372036854775807")),
    ("fs/inotify/max_queued_events", D("16384")),
    ("fs/inotify/max_user_instances", M(|| notify::MAX_INSTANCES.to_string())),
    ("fs/inotify/max_user_watches", M(|| notify::max_watches().to_string())),
    ("fs/mount-max", M(|| mount::most().to_string())),
    ("fs/mqueue/msg_max", D("10")),
    ("fs/nr_open", D("1048576")),
    ("fs/pipe-max-size", D("1048576")),
    ("fs/protected_fifos", F("1")),
    ("fs/protected_hardlinks", F("1")),
    ("fs/protected_regular", F("2")),
    ("fs/protected_symlinks", F("1")),
    ("fs/suid_dumpable", F("0")),
    ("kernel/cap_last_cap", F("40")),
    ("kernel/core_pattern", D("core")),
    ("kernel/domainname", D("(none)")),
    ("kernel/hostname", M(sysinfo::hostname)),
    ("kernel/keys/root_maxkeys", D("1000000")),
    ("kernel/msgmax", D("8192")),
    ("kernel/msgmnb", D("16384")),
    ("kernel/msgmni", D("32000")),
    ("kernel/ngroups_max", F("65536")),
    ("kernel/osrelease", M(|| sysinfo::RELEASE.to_string())),
    ("kernel/ostype", F("Linux")),
    ("kernel/overflowgid", F("65534")),
    ("kernel/overflowuid", F("65534")),
    ("kernel/perf_event_paranoid", F("4")),
    ("kernel/pid_max", F("32768")),
    ("kernel/printk", F("4\t4\t1\t7")),
    ("kernel/random/boot_id", M(boot_id)),
    ("kernel/random/entropy_avail", F("256")),
    ("kernel/random/poolsize", F("256")),
    ("kernel/random/uuid", M(uuid)),
    ("kernel/randomize_va_space", F("2")),
    ("kernel/sched_child_runs_first", F("0")),
    ("kernel/sem", D("32000\t1024000000\t500\t32000")),
    ("kernel/shmall", D("18446744073692774399")),
    ("kernel/shmmax", D("18446744073692774399")),
    ("kernel/shmmni", D("4096")),
    ("kernel/threads-max", D("30000")),
    ("kernel/version", M(|| sysinfo::VERSION.to_string())),
    ("net/core/netdev_max_backlog", D("1000")),
    ("net/core/optmem_max", D("131072")),
    ("net/core/rmem_default", D("212992")),
    ("net/core/rmem_max", D("212992")),
    ("net/core/somaxconn", D("4096")),
    ("net/core/wmem_default", D("212992")),
    ("net/core/wmem_max", D("212992")),
    ("net/ipv4/ip_forward", D("0")),
    ("net/ipv4/ip_local_port_range", D("32768\t60999")),
    ("net/ipv4/ip_unprivileged_port_start", D("1024")),
    ("net/ipv4/ping_group_range", D("1\t0")),
    ("net/ipv4/tcp_congestion_control", D("cubic")),
    ("net/ipv4/tcp_fin_timeout", D("60")),
    ("net/ipv4/tcp_keepalive_intvl", D("75")),
    ("net/ipv4/tcp_keepalive_probes", D("9")),
    ("net/ipv4/tcp_keepalive_time", D("7200")),
    ("net/ipv4/tcp_max_syn_backlog", D("1024")),
    ("net/ipv4/tcp_rmem", D("4096\t131072\t6291456")),
    ("net/ipv4/tcp_sack", D("1")),
    ("net/ipv4/tcp_syncookies", D("1")),
    ("net/ipv4/tcp_timestamps", D("1")),
    ("net/ipv4/tcp_tw_reuse", D("2")),
    ("net/ipv4/tcp_window_scaling", D("1")),
    ("net/ipv4/tcp_wmem", D("4096\t16384\t4194304")),
    ("net/ipv6/bindv6only", D("0")),
    ("net/ipv6/conf/all/disable_ipv6", D("0")),
    ("net/ipv6/conf/default/disable_ipv6", D("0")),
    ("net/unix/max_dgram_qlen", D("10")),
    ("vm/dirty_background_ratio", D("10")),
    ("vm/dirty_ratio", D("20")),
    ("vm/drop_caches", D("0")),
    ("vm/max_map_count", D("65530")),
    ("vm/min_free_kbytes", D("67584")),
    ("vm/mmap_min_addr", F("65536")),
    ("vm/nr_hugepages", F("0")),
    ("vm/overcommit_memory", D("1")),
    ("vm/overcommit_ratio", D("50")),
    ("vm/panic_on_oom", F("0")),
    ("vm/swappiness", D("60")),
    ("vm/vfs_cache_pressure", D("100")),
];

/// Values that were set.
static SET: Mutex<BTreeMap<String, Vec<u8>>> = mutex(BTreeMap::new());

/// Sets a setting by its sysctl(8) name ("net.core.somaxconn"): also one that is not in the list.
pub fn set(name: &str, value: &str) -> Result {
    let path = name.replace('.', "/");
    if path == "kernel/hostname" {
        sysinfo::set_hostname(value.to_string());
    }
    SET.lock().insert(path, value.as_bytes().to_vec());
    Ok(())
}

fn uuid() -> String {
    let mut bytes = alloc::vec![0u8; 16];
    random::fill(&mut bytes);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut out = String::new();
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        out.push_str(&format!("{byte:02x}"));
    }
    out
}

fn boot_id() -> String {
    static ID: Once<String> = Once::new();
    match ID.try_get() {
        Some(id) => id.clone(),
        None => ID.set(uuid()).clone(),
    }
}

/// A directory of settings: its path beneath /proc/sys, with a slash at its end unless it is the root.
pub struct SysDir(String);

impl SysDir {
    /// /proc/sys.
    pub fn root() -> Node {
        Node::Dir(Arc::new(SysDir(String::new())))
    }

    /// All paths beneath this directory, without its own.
    fn paths(&self) -> Vec<String> {
        let set = SET.lock();
        let known = SETTINGS.iter().map(|(p, _)| *p).chain(set.keys().map(String::as_str));
        let mut below: Vec<String> = known.filter_map(|p| p.strip_prefix(self.0.as_str())).map(String::from).collect();
        below.sort();
        below.dedup();
        below
    }
}

fn read(path: &str) -> Result<Vec<u8>> {
    let default = SETTINGS.iter().find(|(p, _)| *p == path).map(|(_, value)| value);
    let set = SET.lock().get(path).cloned();
    let mut value = match (default, set) {
        (Some(Value::Made(make)), _) => make().into_bytes(),
        (_, Some(set)) => set,
        (Some(Value::Default(text) | Value::Fixed(text)), None) => text.as_bytes().to_vec(),
        (None, None) => return Err(Errno::ENOENT),
    };
    value.push(b'\n');
    Ok(value)
}

/// The numbers that a setting holds now; empty when it holds something else.
pub fn numbers(path: &str) -> Vec<u64> {
    let text = read(path).unwrap_or_default();
    let words = core::str::from_utf8(&text).unwrap_or_default().split_ascii_whitespace();
    words.map(str::parse).collect::<core::result::Result<_, _>>().unwrap_or_default()
}

/// The number that a setting of the list holds now; if somebody wrote there what is no number, `otherwise`.
pub fn number(path: &str, otherwise: u64) -> u64 {
    numbers(path).first().copied().unwrap_or(otherwise)
}

fn setting(path: String) -> Node {
    let entry = SETTINGS.iter().find(|(p, _)| *p == path);
    if matches!(entry, Some((_, Value::Fixed(_))))
        || matches!(entry, Some((p, Value::Made(_))) if *p != "kernel/hostname")
    {
        return Node::File(0o444, Box::new(move |_| read(&path)), None);
    }
    let target = path.clone();
    Node::File(
        0o644,
        Box::new(move |_| read(&path)),
        Some(Box::new(move |thread, bytes| {
            if !thread.creds().has_cap(crate::fs::perm::CAP_SYS_ADMIN) {
                return Err(Errno::EPERM);
            }
            let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
            set(&target.replace('/', "."), text.trim_end_matches(['\n', '\0']))
        })),
    )
}

impl Dir for SysDir {
    fn find(&self, name: &[u8]) -> Option<Node> {
        let name = core::str::from_utf8(name).ok()?;
        let paths = self.paths();
        if paths.iter().any(|p| p == name) {
            return Some(setting(format!("{}{name}", self.0)));
        }
        let prefix = format!("{name}/");
        paths.iter().any(|p| p.starts_with(&prefix)).then(|| Node::Dir(Arc::new(SysDir(format!("{}{prefix}", self.0)))))
    }

    fn list(&self) -> Vec<(Vec<u8>, u32)> {
        let mut names: Vec<(Vec<u8>, u32)> = Vec::new();
        for path in self.paths() {
            let (name, kind) = match path.split_once('/') {
                Some((first, _)) => (first, S_IFDIR),
                None => (path.as_str(), S_IFREG),
            };
            if names.last().is_none_or(|(last, _)| last != name.as_bytes()) {
                names.push((name.as_bytes().to_vec(), kind));
            }
        }
        names
    }
}
