//! proc(5): what the kernel reports of processes and of itself.

mod config;
mod fd;
pub mod generation;
mod map_files;
mod maps;
pub mod mounts;
mod net;
mod pagemap;
mod pid;
mod status;
pub mod sys;
mod system;
mod user_ns;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{PROC_SUPER_MAGIC, S_IFDIR};

pub use fd::place_of;
pub use sys::set as set_sysctl;

use super::inode::{FileSystem, Link};
use super::lock;
use super::mounter::Mounter;
use super::options::Options;
use super::synth::{Dir, Listed, Node, SynthFs, Table, file, link, link_by, numbered};
use crate::creds::keys;
use crate::errno::{Errno, Result};
use crate::ipc::sysv;
use crate::task::pid_namespace::{PidNamespace, shown};

/// Makes a file system of type proc: of the PID namespace of who mounts it.
pub fn make(mounter: &Mounter, _: &Options<'_>) -> Result<Arc<dyn FileSystem>> {
    let namespace = mounter.pid_namespace.clone();
    Ok(SynthFs::new("proc", PROC_SUPER_MAGIC, Arc::new(Root(namespace))))
}

/// The root: fixed names, and a directory for each process of the namespace.
struct Root(Arc<PidNamespace>);

impl Root {
    /// The links to who asks, which lead nowhere if it is of another namespace.
    fn link_to_self(&self, name: &[u8]) -> Option<Node> {
        let with_thread = match name {
            b"self" => false,
            b"thread-self" => true,
            _ => return None,
        };
        let namespace = self.0.clone();
        Some(link_by(move |thread| {
            let number = match namespace.number_of(thread.process.pid) {
                0 => return Err(Errno::ENOENT),
                number => number,
            };
            Ok(Link::Path(match with_thread {
                true => format!("{number}/task/{}", namespace.number_of(thread.tid())).into_bytes(),
                false => number.to_string().into_bytes(),
            }))
        }))
    }
}

static FIXED: Table = Table(&[
    // Served by the root of each namespace itself.
    ("self", || link("")),
    ("thread-self", || link("")),
    ("cmdline", system::cmdline),
    ("config.gz", || file(|_| Ok(config::compressed()))),
    ("cpuinfo", system::cpuinfo),
    ("devices", system::devices),
    ("diskstats", || file(|_| Ok(Vec::new()))),
    ("execdomains", || file(|_| Ok(b"0-0\tLinux           \t[kernel]\n".to_vec()))),
    ("filesystems", system::filesystems),
    ("interrupts", system::interrupts),
    ("key-users", || {
        file(|reader| {
            let creds = reader.creds();
            Ok(keys::users(|uid| creds.uid_shown(uid)).into_bytes())
        })
    }),
    ("loadavg", system::loadavg),
    ("locks", || Node::Own(0o444, Box::new(|_| Ok(Arc::new(lock::list::open(shown)))))),
    ("meminfo", system::meminfo),
    // Drivers of this major have none: see `devices`.
    ("misc", || file(|_| Ok(Vec::new()))),
    ("mounts", || link("self/mounts")),
    ("net", || link("self/net")),
    // There are no block devices.
    ("partitions", || file(|_| Ok(b"major minor  #blocks  name\n\n".to_vec()))),
    ("quark", || Node::Dir(Arc::new(QUARK))),
    ("softirqs", system::softirqs),
    ("stat", system::stat),
    ("swaps", system::swaps),
    ("sys", sys::SysDir::root),
    ("sysvipc", || Node::Dir(Arc::new(SYSVIPC))),
    ("uptime", system::uptime),
    ("version", system::version),
    ("vmstat", system::vmstat),
]);

/// /proc/quark: what no other kernel has.
const QUARK: Table =
    Table(&[("generation", || Node::Own(0o444, Box::new(|_| Ok(generation::open()))))]);

/// /proc/sysvipc.
const SYSVIPC: Table = Table(&[
    ("msg", || file(|_| Ok(sysv::list::<sysv::msg::Queue>()?.into_bytes()))),
    ("sem", || file(|_| Ok(sysv::list::<sysv::sem::Set>()?.into_bytes()))),
    ("shm", || file(|_| Ok(sysv::shm::list()?.into_bytes()))),
]);

impl Dir for Root {
    fn find(&self, name: &[u8]) -> Option<Node> {
        if let Some(node) = self.link_to_self(name).or_else(|| FIXED.find(name)) {
            return Some(node);
        }
        // Threads that are no leaders are found but not listed, as on Linux.
        let tid = number(name)?;
        let process = match self.0.process(tid) {
            Some(process) => process,
            None => self.0.thread(tid)?.process.clone(),
        };
        Some(Node::Dir(Arc::new(pid::PidDir::of_process(&process, &self.0))))
    }

    fn list_from(&self, from: u64) -> Vec<Listed> {
        let before = FIXED.0.len() as u64;
        let mut names = FIXED.list_from(from);
        if let Ok(first) = u32::try_from(from.saturating_sub(before)) {
            let pids = self.0.processes_from(first).map(|(number, _)| number);
            names.extend(numbered(pids, before, S_IFDIR));
        }
        names
    }

    fn is_fleeting(&self) -> bool {
        true
    }
}

/// A name that is a decimal number without leading zeros.
fn number(name: &[u8]) -> Option<u32> {
    let text = core::str::from_utf8(name).ok()?;
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}
