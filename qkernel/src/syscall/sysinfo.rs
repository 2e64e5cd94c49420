//! What the system is and how much it has used: uname(2), sysinfo(2), getrusage(2), times(2),
//! getcpu(2).

use alloc::string::String;
use alloc::sync::Arc;

use linux_raw_sys::general::{CAP_SYS_ADMIN, RUSAGE_CHILDREN, RUSAGE_SELF, RUSAGE_THREAD};
use qlib::Va;

use crate::abi::{TimeVal, abi_struct};
use crate::errno::{Errno, Result};
use crate::task::process::Usage;
use crate::task::{Thread, affinity, table};
use crate::utsname::{NAME_BYTES, RELEASE, VERSION};
use crate::{account, arch, time};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Clock ticks a second (USER_HZ).
const TICK_NS: u64 = 10_000_000;

/// uname(2).
pub fn uname(thread: &Arc<Thread>, buf: Va) -> Result<usize> {
    let uts = thread.namespaces().uts.clone();
    let (host, domain) = (uts.hostname(), uts.domainname());
    let mut out = [0u8; 6 * (NAME_BYTES + 1)];
    for (field, text) in
        out.chunks_mut(NAME_BYTES + 1).zip(["Linux", &host, RELEASE, VERSION, "x86_64", &domain])
    {
        let length = text.len().min(NAME_BYTES);
        field[..length].copy_from_slice(&text.as_bytes()[..length]);
    }
    thread.mm().write_bytes(buf, &out)?;
    Ok(0)
}

fn read_name(thread: &Thread, name: Va, len: i32) -> Result<String> {
    let uts = thread.namespaces().uts.clone();
    if !thread.creds().capable_in(&uts.user, CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let len = usize::try_from(len).ok().filter(|l| *l <= NAME_BYTES).ok_or(Errno::EINVAL)?;
    let mut bytes = alloc::vec![0; len];
    thread.mm().read_bytes(name, &mut bytes)?;
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(len);
    Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// sethostname(2).
pub fn sethostname(thread: &Arc<Thread>, name: Va, len: i32) -> Result<usize> {
    let name = read_name(thread, name, len)?;
    thread.namespaces().uts.set_hostname(name);
    Ok(0)
}

/// setdomainname(2).
pub fn setdomainname(thread: &Arc<Thread>, name: Va, len: i32) -> Result<usize> {
    let name = read_name(thread, name, len)?;
    thread.namespaces().uts.set_domainname(name);
    Ok(0)
}

/// struct sysinfo.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct SysInfo {
    uptime: i64,
    loads: [u64; 3],
    totalram: u64,
    freeram: u64,
    sharedram: u64,
    bufferram: u64,
    totalswap: u64,
    freeswap: u64,
    procs: u16,
    pad: [u16; 3],
    totalhigh: u64,
    freehigh: u64,
    mem_unit: u32,
    pad2: u32,
}

/// sysinfo(2).
pub fn sysinfo(thread: &Arc<Thread>, info: Va) -> Result<usize> {
    let total = account::memory_bytes();
    let free = total - account::used_bytes();
    let out = SysInfo {
        uptime: (time::monotonic_ns() / 1_000_000_000) as i64,
        totalram: total,
        freeram: free,
        procs: u16::try_from(table::thread_count()).unwrap_or(u16::MAX),
        mem_unit: 1,
        ..SysInfo::default()
    };
    thread.mm().write(info, &out)?;
    Ok(0)
}

abi_struct! {
    /// struct rusage.
    pub struct RUsage {
        pub utime: TimeVal, pub stime: TimeVal, pub maxrss: i64, pub unused1: [i64; 3],
        pub minflt: i64, pub majflt: i64, pub nswap: i64, pub inblock: i64, pub oublock: i64,
        pub unused2: [i64; 3], pub nvcsw: i64, pub nivcsw: i64,
    }
}

impl RUsage {
    /// Of what is known of a thread or process.
    pub fn of(used: Usage) -> Self {
        RUsage {
            utime: TimeVal::from_ns(used.user_ns),
            stime: TimeVal::from_ns(used.system_ns),
            minflt: used.minor_faults as i64,
            majflt: used.major_faults as i64,
            nvcsw: used.voluntary_switches as i64,
            nivcsw: used.other_switches as i64,
            ..RUsage::default()
        }
    }
}

/// getrusage(2).
pub fn getrusage(thread: &Arc<Thread>, who: i32, usage: Va) -> Result<usize> {
    const SELF: i32 = RUSAGE_SELF as i32;
    const THREAD: i32 = RUSAGE_THREAD as i32;
    let resident_kib = || thread.process.note_resident() as i64;
    let out = match who {
        SELF => RUsage { maxrss: resident_kib(), ..RUsage::of(thread.process.usage()) },
        THREAD => RUsage { maxrss: resident_kib(), ..RUsage::of(thread.usage()) },
        RUSAGE_CHILDREN => {
            let traits = thread.process.traits.lock().clone();
            RUsage {
                maxrss: traits.children_max_rss_kib as i64,
                ..RUsage::of(traits.children_usage)
            }
        }
        _ => return Err(Errno::EINVAL),
    };
    thread.mm().write(usage, &out)?;
    Ok(0)
}

/// times(2).
pub fn times(thread: &Arc<Thread>, buf: Va) -> Result<usize> {
    if buf.0 != 0 {
        let own = thread.process.usage();
        let children = thread.process.traits.lock().children_usage;
        let ticks = [own.user_ns, own.system_ns, children.user_ns, children.system_ns]
            .map(|ns| ns / TICK_NS);
        thread.mm().write(buf, &ticks)?;
    }
    Ok((time::monotonic_ns() / TICK_NS) as usize)
}

/// getcpu(2). Where the host decides on which CPU a thread runs, one number is as true as another,
/// and the same one all the time serves the caches that are kept by it best.
pub fn getcpu(thread: &Arc<Thread>, cpu: Va, node: Va) -> Result<usize> {
    let mm = thread.mm();
    let number = arch::cpu().unwrap_or_else(|| affinity::pick(thread, thread.tid()));
    if cpu.0 != 0 {
        mm.write(cpu, &number)?;
    }
    if node.0 != 0 {
        mm.write(node, &0u32)?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_linux() {
        assert_eq!(size_of::<SysInfo>(), 112);
        assert_eq!(size_of::<RUsage>(), 144);
    }
}
