//! sysfs(5) and cgroup hierarchies, as far as C libraries and language runtimes look at them.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use linux_raw_sys::general::{CGROUP2_SUPER_MAGIC, S_IFDIR, SYSFS_MAGIC};
use qlib::PAGE_SIZE;

use super::inode::FileSystem;
use super::mounter::Mounter;
use super::options::Options;
use super::synth::{Dir, Names, Node, SynthFs, Table, dir, file, text};
use super::syscache::Caches;
use super::sysnet;
use crate::account;
use crate::errno::Result;
use crate::task::pid_namespace::shown;
use crate::task::{affinity, oom, table};
use crate::{arch, mm};

/// Makes a file system of type sysfs.
pub fn make(_: &Mounter, _: &Options<'_>) -> Result<Arc<dyn FileSystem>> {
    Ok(SynthFs::new("sysfs", SYSFS_MAGIC, Arc::new(Table(ROOT))))
}

/// Makes a file system of type cgroup2, in which the container sees its limits. Nothing can be
/// changed in it.
pub fn make_cgroup(_: &Mounter, _: &Options<'_>) -> Result<Arc<dyn FileSystem>> {
    Ok(SynthFs::new("cgroup2", CGROUP2_SUPER_MAGIC, Arc::new(Table(CGROUP))))
}

const ROOT: Names = &[
    ("block", || dir(&[])),
    ("bus", || dir(&[])),
    ("class", || dir(&[("net", || Node::Dir(Arc::new(sysnet::Class))), ("tty", || dir(&[]))])),
    ("devices", || {
        dir(&[
            ("system", || dir(&[("cpu", || Node::Dir(Arc::new(Cpus))), ("node", || dir(NODES))])),
            ("virtual", || dir(&[("net", || Node::Dir(Arc::new(sysnet::Devices)))])),
        ])
    }),
    ("fs", || dir(&[("cgroup", || dir(&[]))])),
    ("kernel", || dir(KERNEL)),
    ("module", || dir(&[])),
];

const NODES: Names = &[
    ("node0", || {
        dir(&[
            ("cpulist", || file(|_| Ok(line(cpu_list())))),
            ("cpumap", || file(|_| Ok(line(format!("{:x}", affinity::all()))))),
            ("distance", || text("10\n")),
        ])
    }),
    ("online", || text("0\n")),
    ("possible", || text("0\n")),
];

const KERNEL: Names = &[("mm", || {
    dir(&[
        ("hugepages", || dir(&[])),
        ("transparent_hugepage", || {
            dir(&[
                ("defrag", || text("always defer defer+madvise [madvise] never\n")),
                ("enabled", || text("always [madvise] never\n")),
                ("hpage_pmd_size", || text("2097152\n")),
                ("shmem_enabled", || text("always within_size advise [never] deny force\n")),
            ])
        }),
    ])
})];

fn line(text: String) -> Vec<u8> {
    (text + "\n").into_bytes()
}

/// The CPUs as a list ("0-3").
pub(super) fn cpu_list() -> String {
    match arch::boot().cpus {
        0 | 1 => "0".to_string(),
        count => format!("0-{}", count - 1),
    }
}

/// devices/system/cpu.
struct Cpus;

const CPU_FILES: Table = Table(&[
    ("isolated", || text("\n")),
    ("kernel_max", || text("63\n")),
    ("offline", || text("\n")),
    ("online", || file(|_| Ok(line(cpu_list())))),
    ("possible", || file(|_| Ok(line(cpu_list())))),
    ("present", || file(|_| Ok(line(cpu_list())))),
]);

impl Dir for Cpus {
    fn find(&self, name: &[u8]) -> Option<Node> {
        if let Some(node) = CPU_FILES.find(name) {
            return Some(node);
        }
        let index: u32 = core::str::from_utf8(name.strip_prefix(b"cpu")?).ok()?.parse().ok()?;
        (index < arch::boot().cpus).then(|| Node::Dir(Arc::new(Cpu(index))))
    }

    fn list(&self) -> Vec<(Vec<u8>, u32)> {
        let mut names = CPU_FILES.list();
        names.extend((0..arch::boot().cpus).map(|i| (format!("cpu{i}").into_bytes(), S_IFDIR)));
        names
    }
}

/// devices/system/cpu/cpuN.
struct Cpu(u32);

impl Dir for Cpu {
    fn find(&self, name: &[u8]) -> Option<Node> {
        match name {
            b"online" => Some(text("1\n")),
            b"topology" => Some(Node::Dir(Arc::new(Lines { of: self.0, files: TOPOLOGY }))),
            b"cache" => Some(Node::Dir(Arc::new(Caches(self.0)))),
            _ => None,
        }
    }

    fn list(&self) -> Vec<(Vec<u8>, u32)> {
        use linux_raw_sys::general::S_IFREG;
        let names = [("cache", S_IFDIR), ("online", S_IFREG), ("topology", S_IFDIR)];
        names.iter().map(|(n, kind)| (n.as_bytes().to_vec(), *kind)).collect()
    }
}

/// A directory of files of one line, by what each holds for `of`.
pub(super) struct Lines<T: 'static> {
    pub of: T,
    pub files: Files<T>,
}

/// Their names, and what they hold.
pub(super) type Files<T> = &'static [(&'static str, fn(&T) -> String)];

impl<T: Copy + Send + Sync> Dir for Lines<T> {
    fn find(&self, name: &[u8]) -> Option<Node> {
        let (_, content) = self.files.iter().find(|(n, _)| n.as_bytes() == name)?;
        let of = self.of;
        Some(file(move |_| Ok(line(content(&of)))))
    }

    fn list(&self) -> Vec<(Vec<u8>, u32)> {
        use linux_raw_sys::general::S_IFREG;
        self.files.iter().map(|(name, _)| (name.as_bytes().to_vec(), S_IFREG)).collect()
    }
}

/// devices/system/cpu/cpuN/topology: each CPU a core of its own in one package.
const TOPOLOGY: Files<u32> = &[
    ("core_cpus", |cpu| cpu_mask(*cpu..cpu + 1)),
    ("core_cpus_list", |cpu| cpu.to_string()),
    ("core_id", |cpu| cpu.to_string()),
    ("core_siblings", |_| cpu_mask(0..arch::boot().cpus)),
    ("core_siblings_list", |_| cpu_list()),
    ("die_cpus", |_| cpu_mask(0..arch::boot().cpus)),
    ("die_cpus_list", |_| cpu_list()),
    ("die_id", |_| "0".to_string()),
    ("package_cpus", |_| cpu_mask(0..arch::boot().cpus)),
    ("package_cpus_list", |_| cpu_list()),
    ("physical_package_id", |_| "0".to_string()),
    ("thread_siblings", |cpu| cpu_mask(*cpu..cpu + 1)),
    ("thread_siblings_list", |cpu| cpu.to_string()),
];

/// A set of CPUs as a bit mask in hexadecimal, in words of 32 bits, as Linux prints one (`%*pb`).
pub(super) fn cpu_mask(set: Range<u32>) -> String {
    let cpus = arch::boot().cpus;
    let mut out = String::new();
    for word in (0..cpus.div_ceil(32)).rev() {
        let first = word * 32;
        let bits = (first..first + 32).filter(|cpu| set.contains(cpu));
        let mask = bits.fold(0u32, |mask, cpu| mask | 1 << (cpu - first));
        let digits = (cpus - first).min(32).div_ceil(4) as usize;
        let comma = if out.is_empty() { "" } else { "," };
        out.push_str(&format!("{comma}{mask:0digits$x}"));
    }
    out
}

const CGROUP: Names = &[
    ("cgroup.controllers", || text("cpu memory pids\n")),
    ("cgroup.events", || text("populated 1\nfrozen 0\n")),
    ("cgroup.procs", || {
        file(|_| {
            let numbers = table::processes().map(|p| shown(p.pid)).filter(|number| *number != 0);
            Ok(numbers.map(|number| format!("{number}\n")).collect::<String>().into_bytes())
        })
    }),
    ("cgroup.subtree_control", || text("\n")),
    ("cgroup.type", || text("domain\n")),
    ("cpu.max", || {
        file(|_| Ok(line(format!("{} 100000", u64::from(arch::boot().cpus) * 100_000))))
    }),
    ("cpu.stat", || {
        file(|_| {
            let user: u64 = table::processes().map(|p| p.usage().user_ns / 1000).sum();
            Ok(format!("usage_usec {user}\nuser_usec {user}\nsystem_usec 0\n").into_bytes())
        })
    }),
    ("cpu.weight", || text("100\n")),
    ("memory.current", || file(|_| Ok(line(account::charged_bytes().to_string())))),
    ("memory.events", || {
        file(|_| {
            let kills = oom::kills();
            Ok(format!("low 0\nhigh 0\nmax 0\noom {kills}\noom_kill {kills}\n").into_bytes())
        })
    }),
    ("memory.high", || text("max\n")),
    ("memory.max", || {
        file(|_| {
            Ok(line(match account::memory_limit().whole {
                0 => "max".to_string(),
                limit => limit.to_string(),
            }))
        })
    }),
    ("memory.stat", || {
        file(|_| {
            Ok(format!("anon {}\nfile 0\n", mm::frames::stats().frames_used * PAGE_SIZE)
                .into_bytes())
        })
    }),
    ("memory.swap.current", || text("0\n")),
    ("memory.swap.max", || text("0\n")),
    ("pids.current", || file(|_| Ok(line(table::thread_count().to_string())))),
    ("pids.max", || text("max\n")),
];
