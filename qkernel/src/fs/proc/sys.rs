//! /proc/sys: settings (sysctl(8), proc_sys(5)). Those that can be written have an effect: whoever
//! it concerns asks for the number here. What has none in this kernel is there for programs that
//! look at it, and cannot be written. Settings of the network ("net/…") that a container was given
//! have their effect on the host's side and are shown here as they were given.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use linux_raw_sys::general::{CAP_NET_ADMIN, CAP_SYS_ADMIN, S_IFDIR, S_IFREG};

use crate::errno::{Errno, Result};
use crate::fs::synth::{Dir, Node};
use crate::fs::{inotify, lease, mount};
use crate::ipc::sysv::msg::Queue;
use crate::ipc::sysv::sem::Set;
use crate::ipc::sysv::shm::Entry;
use crate::ipc::{aio, fanotify, sysv};
use crate::namespace::NetNamespace;
use crate::random;
use crate::sync::{Mutex, mutex};
use crate::task::{coredump, current};
use crate::user_namespace::UserNs;
use crate::utsname::{self, UtsNamespace};

/// What a setting reads as.
enum Value {
    /// Numbers that can be written, as many as there are, each between these: they are this, until
    /// they are set.
    Numbers(&'static str, RangeInclusive<u64>),
    /// The same, in network namespaces that programs made; in the container's it is always this.
    Inside(&'static str, RangeInclusive<u64>),
    /// A number between these that is kept elsewhere.
    Kept(&'static AtomicU64, RangeInclusive<u64>),
    /// What the first gives; the second sets it.
    Text(fn() -> Vec<u8>, fn(&[u8]) -> Result),
    /// This, always.
    Fixed(&'static str),
    /// What the function gives.
    Made(fn() -> String),
    /// What the first gives of the UTS namespace of who asks; the second sets it.
    Name(fn(&UtsNamespace) -> String, fn(&UtsNamespace, String)),
}

use Value::{Fixed as F, Inside as I, Kept as K, Made as M, Name, Numbers as N, Text as T};

/// Whether a network namespace passes on what is for others, of IPv4 and of IPv6.
pub const IP_FORWARD: &str = "net/ipv4/ip_forward";
/// See [`IP_FORWARD`].
pub const IP6_FORWARD: &str = "net/ipv6/conf/all/forwarding";

/// The largest value of a C int.
const INT: u64 = i32::MAX as u64;

const SETTINGS: &[(&str, Value)] = &[
    ("fs/aio-max-nr", M(|| aio::MOST_EVENTS.to_string())),
    ("fs/aio-nr", M(|| aio::events().to_string())),
    ("fs/fanotify/max_queued_events", K(&fanotify::MOST_EVENTS, 0..=INT)),
    ("fs/fanotify/max_user_groups", K(&fanotify::MOST_GROUPS, 0..=INT)),
    ("fs/fanotify/max_user_marks", M(|| fanotify::most_marks().to_string())),
    ("fs/file-max", F("9223372036854775807")),
    ("fs/file-nr", F("64\t0\t9223372036854775807")),
    ("fs/dir-notify-enable", F("1")),
    ("fs/inotify/max_queued_events", F("16384")),
    ("fs/inotify/max_user_instances", M(|| inotify::MAX_INSTANCES.to_string())),
    ("fs/inotify/max_user_watches", M(|| inotify::max_watches().to_string())),
    ("fs/lease-break-time", K(&lease::BREAK_TIME_S, 0..=INT)),
    ("fs/leases-enable", K(&lease::ENABLED, 0..=INT)),
    ("fs/mount-max", M(|| mount::most().to_string())),
    ("fs/mqueue/msg_default", N("10", 1..=65536)),
    ("fs/mqueue/msg_max", N("10", 1..=65536)),
    ("fs/mqueue/msgsize_default", N("8192", 128..=16 << 20)),
    ("fs/mqueue/msgsize_max", N("8192", 128..=16 << 20)),
    ("fs/mqueue/queues_max", N("256", 0..=INT)),
    ("fs/nr_open", F("1048576")),
    ("fs/pipe-max-size", F("1048576")),
    ("fs/protected_fifos", F("1")),
    ("fs/protected_hardlinks", F("1")),
    ("fs/protected_regular", F("2")),
    ("fs/protected_symlinks", F("1")),
    ("fs/suid_dumpable", F("0")),
    ("kernel/cap_last_cap", F("40")),
    ("kernel/core_pattern", T(coredump::pattern, coredump::set_pattern)),
    ("kernel/core_uses_pid", K(&coredump::USES_PID, 0..=INT)),
    ("kernel/domainname", Name(UtsNamespace::domainname, UtsNamespace::set_domainname)),
    ("kernel/hostname", Name(UtsNamespace::hostname, UtsNamespace::set_hostname)),
    ("kernel/keys/maxbytes", F("20000")),
    ("kernel/keys/maxkeys", F("200")),
    ("kernel/keys/root_maxbytes", F("4000000")),
    ("kernel/keys/root_maxkeys", F("1000000")),
    ("kernel/msgmax", N("8192", 0..=INT)),
    ("kernel/msgmnb", N("16384", 0..=INT)),
    ("kernel/msgmni", N("32000", 0..=32768)),
    ("kernel/msg_next_id", T(sysv::next_id::<Queue>, sysv::set_next_id::<Queue>)),
    ("kernel/ngroups_max", F("65536")),
    ("kernel/osrelease", M(|| utsname::RELEASE.to_string())),
    ("kernel/ostype", F("Linux")),
    ("kernel/tainted", F("0")),
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
    ("kernel/sem_next_id", T(sysv::next_id::<Set>, sysv::set_next_id::<Set>)),
    ("kernel/shm_next_id", T(sysv::next_id::<Entry>, sysv::set_next_id::<Entry>)),
    ("kernel/sem", N("32000\t1024000000\t500\t32000", 0..=INT)),
    ("kernel/shm_rmid_forced", N("0", 0..=1)),
    ("kernel/shmall", N("18446744073692774399", 0..=u64::MAX)),
    ("kernel/shmmax", N("18446744073692774399", 0..=u64::MAX)),
    ("kernel/shmmni", N("4096", 0..=32768)),
    ("kernel/threads-max", F("30000")),
    ("kernel/version", M(|| utsname::VERSION.to_string())),
    ("net/core/netdev_max_backlog", F("1000")),
    ("net/core/optmem_max", F("131072")),
    ("net/core/rmem_default", F("212992")),
    ("net/core/rmem_max", N("212992", 2304..=INT)),
    ("net/core/somaxconn", N("4096", 0..=INT)),
    ("net/core/wmem_default", F("212992")),
    ("net/core/wmem_max", N("212992", 4608..=INT)),
    (IP_FORWARD, I("0", 0..=1)),
    ("net/ipv4/ip_local_port_range", F("32768\t60999")),
    ("net/ipv4/ip_unprivileged_port_start", N("1024", 0..=65535)),
    ("net/ipv4/ping_group_range", N("1\t0", 0..=u32::MAX as u64 - 1)),
    ("net/ipv4/tcp_congestion_control", F("cubic")),
    ("net/ipv4/tcp_fin_timeout", F("60")),
    ("net/ipv4/tcp_keepalive_intvl", F("75")),
    ("net/ipv4/tcp_keepalive_probes", F("9")),
    ("net/ipv4/tcp_keepalive_time", F("7200")),
    ("net/ipv4/tcp_max_syn_backlog", F("1024")),
    ("net/ipv4/tcp_rmem", F("4096\t131072\t6291456")),
    ("net/ipv4/tcp_sack", F("1")),
    ("net/ipv4/tcp_syncookies", F("1")),
    ("net/ipv4/tcp_timestamps", F("1")),
    ("net/ipv4/tcp_tw_reuse", F("2")),
    ("net/ipv4/tcp_window_scaling", F("1")),
    ("net/ipv4/tcp_wmem", F("4096\t16384\t4194304")),
    ("net/ipv6/bindv6only", F("0")),
    ("net/ipv6/conf/all/disable_ipv6", F("0")),
    (IP6_FORWARD, I("0", 0..=1)),
    ("net/ipv6/conf/default/disable_ipv6", F("0")),
    ("net/unix/max_dgram_qlen", N("10", 0..=INT)),
    ("user/max_user_namespaces", T(most_user_namespaces, set_most_user_namespaces)),
    ("vm/dirty_background_ratio", F("10")),
    ("vm/dirty_ratio", F("20")),
    ("vm/drop_caches", F("0")),
    ("vm/max_map_count", F("65530")),
    ("vm/min_free_kbytes", F("67584")),
    ("vm/mmap_min_addr", F("65536")),
    ("vm/nr_hugepages", F("0")),
    ("vm/overcommit_memory", F("1")),
    ("vm/overcommit_ratio", F("50")),
    ("vm/panic_on_oom", F("0")),
    ("vm/swappiness", F("60")),
    ("vm/unprivileged_userfaultfd", N("0", 0..=1)),
    ("vm/vfs_cache_pressure", F("100")),
];

/// Values that were set: by the number of the IPC or network namespace, if it has them of its own
/// (else 0), and their path.
static SET: Mutex<BTreeMap<(u64, String), Vec<u8>>> = mutex(BTreeMap::new());

/// The settings that each IPC namespace has of its own (ipc_namespaces(7)).
fn is_of_ipc(path: &str) -> bool {
    let names = ["kernel/msg", "kernel/sem", "kernel/shm", "fs/mqueue/"];
    names.iter().any(|name| path.starts_with(name))
}

/// Where a value of the setting is kept.
fn key_of(path: &str) -> (u64, String) {
    let namespace = if is_of_ipc(path) {
        current::ipc_namespace()
    } else if is_of_network(path) {
        network().map_or(0, |network| network.number)
    } else {
        0
    };
    (namespace, path.to_string())
}

fn is_of_network(path: &str) -> bool {
    path.starts_with("net/")
}

/// The network namespace of who asks, if a program made it.
fn network() -> Option<Arc<NetNamespace>> {
    let network = current::get()?.namespaces().net.clone();
    (!network.is_initial()).then_some(network)
}

/// An IPC or network namespace has ended: what was set in it goes.
pub fn namespace_ended(namespace: u64) {
    SET.lock().retain(|(number, _), _| *number != namespace);
}

/// Sets a setting by its sysctl(8) name ("net.core.somaxconn"), as the container's specification
/// has it. ENOENT when there is none, EINVAL for a value that it cannot have, EPERM when it has no
/// effect here and is not what it is anyway.
pub fn set(name: &str, value: &str) -> Result {
    let path = name.replace('.', "/");
    match write(&path, value) {
        // The host has set it in the network namespace, or refused.
        Err(Errno::ENOENT | Errno::EPERM) if path.starts_with("net/") => {
            SET.lock().insert(key_of(&path), value.as_bytes().to_vec());
            Ok(())
        }
        Err(Errno::EPERM) if words(&String::from_utf8_lossy(&read(&path)?)).eq(words(value)) => {
            Ok(())
        }
        result => result,
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_ascii_whitespace()
}

/// The UTS namespace of who asks, or of the container when it is set up.
fn uts() -> Arc<UtsNamespace> {
    current::get().map_or_else(UtsNamespace::initial, |thread| thread.namespaces().uts.clone())
}

/// Sets a setting of the list by its path.
fn write(path: &str, value: &str) -> Result {
    match SETTINGS.iter().find(|(p, _)| *p == path).map(|(_, value)| value) {
        None => Err(Errno::ENOENT),
        Some(Value::Fixed(_) | Value::Made(_)) => Err(Errno::EPERM),
        Some(Value::Inside(..)) if network().is_none() => Err(Errno::EPERM),
        Some(Value::Name(_, set)) => {
            // As proc_dostring does: one line, as long as uname(2) can report.
            let line = value.split('\n').next().unwrap_or_default();
            let end = (0..=line.len().min(utsname::NAME_BYTES))
                .rev()
                .find(|end| line.is_char_boundary(*end));
            set(&uts(), line[..end.unwrap_or(0)].to_string());
            Ok(())
        }
        Some(Value::Text(_, set)) => set(value.as_bytes()),
        Some(Value::Kept(number, range)) => {
            let new = value.trim_ascii().parse().map_err(|_| Errno::EINVAL)?;
            if !range.contains(&new) {
                return Err(Errno::EINVAL);
            }
            number.store(new, Relaxed);
            Ok(())
        }
        Some(Value::Numbers(default, range) | Value::Inside(default, range)) => {
            let text = with_new_numbers(value, &numbers(path), default, range)?;
            SET.lock().insert(key_of(path), text.into_bytes());
            Ok(())
        }
    }
}

/// The numbers of a setting after `value` was written to it: as on Linux, the first ones only may
/// be given.
fn with_new_numbers(
    value: &str,
    old: &[u64],
    default: &str,
    range: &RangeInclusive<u64>,
) -> Result<String> {
    let new = value.split_ascii_whitespace().map(|word| word.parse().map_err(|_| Errno::EINVAL));
    let new = new.collect::<Result<Vec<u64>>>()?;
    let count = default.split_ascii_whitespace().count();
    if new.is_empty() || new.len() > count || new.iter().any(|n| !range.contains(n)) {
        return Err(Errno::EINVAL);
    }
    let all = new.iter().chain(old.iter().skip(new.len())).map(u64::to_string);
    Ok(all.collect::<Vec<_>>().join("\t"))
}

/// The user namespace of who asks.
fn user() -> UserNs {
    current::get().map_or_else(UserNs::default, |thread| thread.creds().user.clone())
}

fn most_user_namespaces() -> Vec<u8> {
    user().most().to_string().into_bytes()
}

fn set_most_user_namespaces(value: &[u8]) -> Result {
    let text = core::str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
    let most: u32 = text.trim().parse().map_err(|_| Errno::EINVAL)?;
    if u64::from(most) > INT {
        return Err(Errno::EINVAL);
    }
    user().set_most(most);
    Ok(())
}

/// A random UUID.
pub(super) fn uuid() -> String {
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

static BOOT_ID: Mutex<Option<String>> = mutex(None);

fn boot_id() -> String {
    BOOT_ID.lock().get_or_insert_with(uuid).clone()
}

/// This kernel is another one from now on than it was, or has just begun: what it is called is
/// settled now, so that no image is without it.
pub fn renew_boot_id() {
    *BOOT_ID.lock() = Some(uuid());
}

/// A directory of settings: its path beneath /proc/sys, with a slash at its end unless it is the
/// root.
pub struct SysDir(String);

impl SysDir {
    /// /proc/sys.
    pub fn root() -> Node {
        Node::Dir(Arc::new(SysDir(String::new())))
    }

    /// All paths beneath this directory, without its own.
    fn paths(&self) -> Vec<String> {
        let set = SET.lock();
        let set = set.keys().map(|(_, path)| path.as_str());
        let known = SETTINGS.iter().map(|(p, _)| *p).chain(set);
        let mut below: Vec<String> =
            known.filter_map(|p| p.strip_prefix(self.0.as_str())).map(String::from).collect();
        below.sort();
        below.dedup();
        below
    }
}

fn read(path: &str) -> Result<Vec<u8>> {
    let default = SETTINGS.iter().find(|(p, _)| *p == path).map(|(_, value)| value);
    let key = key_of(path);
    let set = SET.lock().get(&key).cloned();
    let mut value = match (default, set) {
        (Some(Value::Kept(number, _)), _) => number.load(Relaxed).to_string().into_bytes(),
        (Some(Value::Text(text, _)), _) => text(),
        (Some(Value::Made(make)), _) => make().into_bytes(),
        (Some(Value::Name(name, _)), _) => name(&uts()).into_bytes(),
        (_, Some(set)) => set,
        (Some(Value::Numbers(text, _) | Value::Inside(text, _) | Value::Fixed(text)), None) => {
            text.as_bytes().to_vec()
        }
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

/// True if a network namespace, by its number, passes on what is for others.
pub fn forwards(namespace: u64, is_six: bool) -> bool {
    let path = if is_six { IP6_FORWARD } else { IP_FORWARD };
    SET.lock().get(&(namespace, path.to_string())).is_some_and(|value| value == b"1")
}

/// Has it do so.
#[cfg(test)]
pub fn set_forwards(namespace: u64) {
    SET.lock().insert((namespace, IP_FORWARD.to_string()), b"1".to_vec());
}

/// The number that a setting of the list holds now; if somebody wrote there what is no number,
/// `otherwise`.
pub fn number(path: &str, otherwise: u64) -> u64 {
    numbers(path).first().copied().unwrap_or(otherwise)
}

fn setting(path: String) -> Node {
    let value = SETTINGS.iter().find(|(p, _)| *p == path).map(|(_, value)| value);
    let is_fixed = matches!(value, None | Some(Value::Fixed(_) | Value::Made(_)));
    if is_fixed || matches!(value, Some(Value::Inside(..))) && network().is_none() {
        return Node::File(0o444, Box::new(move |_| read(&path)), None);
    }
    let target = path.clone();
    Node::File(
        0o644,
        Box::new(move |_| read(&path)),
        Some(Box::new(move |thread, bytes| {
            let creds = thread.creds();
            let administers = |network: Arc<NetNamespace>| {
                is_of_network(&target) && creds.capable_in(&network.user, CAP_NET_ADMIN)
            };
            if !creds.capable(CAP_SYS_ADMIN) && !network().is_some_and(administers) {
                return Err(Errno::EPERM);
            }
            let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
            write(&target, text.trim_end_matches(['\n', '\0']))
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
        paths
            .iter()
            .any(|p| p.starts_with(&prefix))
            .then(|| Node::Dir(Arc::new(SysDir(format!("{}{prefix}", self.0)))))
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
