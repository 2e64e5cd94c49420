//! proc(5): what the kernel reports of processes and of itself.

mod fd;
mod maps;
mod mounts;
mod net;
mod pid;
mod status;
pub mod sys;
mod system;

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{PROC_SUPER_MAGIC, S_IFDIR};

pub use sys::set as set_sysctl;

use super::inode::{FileSystem, Link};
use super::lock;
use super::options::Options;
use super::synth::{Dir, Listed, Node, SynthFs, Table, file, link, link_by, numbered};
use crate::errno::Result;
use crate::ipc::sysv;
use crate::task::table;

/// Makes a file system of type proc.
pub fn make(_options: &Options<'_>) -> Result<Arc<dyn FileSystem>> {
    Ok(SynthFs::new("proc", PROC_SUPER_MAGIC, Arc::new(Root)))
}

/// The root: fixed names, and a directory for each process.
struct Root;

static FIXED: Table = Table(&[
    ("self", || link_by(|t| Ok(Link::Path(t.process.pid.to_string().into_bytes())))),
    ("thread-self", || {
        link_by(|t| {
            Ok(Link::Path(alloc::format!("{}/task/{}", t.process.pid, t.tid()).into_bytes()))
        })
    }),
    ("cmdline", system::cmdline),
    ("cpuinfo", system::cpuinfo),
    ("devices", system::devices),
    ("filesystems", system::filesystems),
    ("loadavg", system::loadavg),
    ("locks", || Node::Own(0o444, Box::new(|_| Ok(Arc::new(lock::list::open()))))),
    ("meminfo", system::meminfo),
    ("mounts", || link("self/mounts")),
    ("net", || link("self/net")),
    ("stat", system::stat),
    ("swaps", system::swaps),
    ("sys", sys::SysDir::root),
    ("sysvipc", || Node::Dir(Arc::new(SYSVIPC))),
    ("uptime", system::uptime),
    ("version", system::version),
    ("vmstat", system::vmstat),
]);

/// /proc/sysvipc.
const SYSVIPC: Table = Table(&[
    ("msg", || file(|_| Ok(sysv::list::<sysv::msg::Queue>()?.into_bytes()))),
    ("sem", || file(|_| Ok(sysv::list::<sysv::sem::Set>()?.into_bytes()))),
    ("shm", || file(|_| Ok(sysv::shm::list()?.into_bytes()))),
]);

impl Dir for Root {
    fn find(&self, name: &[u8]) -> Option<Node> {
        if let Some(node) = FIXED.find(name) {
            return Some(node);
        }
        // Threads that are no leaders are found but not listed, as on Linux.
        let tid = number(name)?;
        let process = match table::process(tid) {
            Some(process) => process,
            None => table::thread(tid)?.process.clone(),
        };
        Some(Node::Dir(Arc::new(pid::PidDir::of_process(&process))))
    }

    fn list_from(&self, from: u64) -> Vec<Listed> {
        let before = FIXED.0.len() as u64;
        let mut names = FIXED.list_from(from);
        if let Ok(first) = u32::try_from(from.saturating_sub(before)) {
            let pids = table::processes_from(first).map(|process| process.pid);
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
