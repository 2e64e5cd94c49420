//! What /proc reports of the whole system.

use alloc::format;
use alloc::string::String;
use core::fmt::Write;

use qlib::PAGE_SIZE;

use crate::account;
use crate::fs::options::TYPE_NAMES;
use crate::fs::shmem;
use crate::fs::synth::{Node, file, text};
use crate::task::table;
use crate::utsname::{RELEASE, VERSION};
use crate::{arch, mm, time};

/// USER_HZ: clock ticks a second, as user programs count them.
pub const TICK_NS: u64 = 10_000_000;

pub(super) fn cmdline() -> Node {
    text("quark\n")
}

pub(super) fn swaps() -> Node {
    text("Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")
}

pub(super) fn devices() -> Node {
    text(
        "Character devices:\n  1 mem\n  5 /dev/tty\n  5 /dev/console\n  5 /dev/ptmx\n136 \
        pts\n\nBlock devices:\n",
    )
}

pub(super) fn version() -> Node {
    file(|_| Ok(format!("Linux version {RELEASE} (quark) {VERSION}\n").into_bytes()))
}

pub(super) fn filesystems() -> Node {
    file(|_| {
        let mut out = String::new();
        for name in TYPE_NAMES {
            let _ = writeln!(out, "nodev\t{name}");
        }
        Ok(out.into_bytes())
    })
}

pub(super) fn uptime() -> Node {
    file(|_| {
        let now = time::monotonic_ns() / TICK_NS;
        let busy: u64 = table::processes().map(|p| p.usage().user_ns / TICK_NS).sum();
        let idle = (now * u64::from(arch::boot().cpus)).saturating_sub(busy);
        Ok(format!("{}.{:02} {}.{:02}\n", now / 100, now % 100, idle / 100, idle % 100)
            .into_bytes())
    })
}

pub(super) fn loadavg() -> Node {
    file(|reader| {
        let running = table::threads().filter(|t| t.user.is_in_user_mode()).count().max(1);
        let last = reader.process.pid_namespace.last();
        Ok(format!("0.00 0.00 0.00 {running}/{} {last}\n", table::threads().count()).into_bytes())
    })
}

pub(super) fn meminfo() -> Node {
    file(|_| {
        let total = account::memory_bytes();
        let used = account::used_bytes();
        let free = total - used;
        let shmem = shmem::resident_pages() * PAGE_SIZE;
        let tables = arch::heap::HEAP.stats().table_pages * PAGE_SIZE;
        let rows = [
            ("MemTotal", total),
            ("MemFree", free),
            ("MemAvailable", account::available_bytes()),
            ("Buffers", 0),
            ("Cached", shmem),
            ("SwapCached", 0),
            ("Active", used.min(total)),
            ("Inactive", 0),
            ("SwapTotal", 0),
            ("SwapFree", 0),
            ("Dirty", 0),
            ("Writeback", 0),
            ("AnonPages", used.saturating_sub(shmem).min(total)),
            ("Mapped", 0),
            ("Shmem", shmem),
            ("Slab", 0),
            ("SReclaimable", 0),
            ("SUnreclaim", 0),
            ("PageTables", tables),
            ("CommitLimit", total),
            ("Committed_AS", used.min(total)),
            ("VmallocTotal", 1 << 45),
            ("VmallocUsed", 0),
        ];
        let mut out = String::new();
        for (name, bytes) in rows {
            let _ = writeln!(out, "{:<16}{:>8} kB", format!("{name}:"), bytes / 1024);
        }
        out.push_str(
            "HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n",
        );
        Ok(out.into_bytes())
    })
}

/// No device interrupts this kernel; a column for each processor.
pub(super) fn interrupts() -> Node {
    file(|_| {
        let mut out = String::from("           ");
        for cpu in 0..arch::boot().cpus {
            let _ = write!(out, "CPU{cpu:<8}");
        }
        out.push('\n');
        Ok(out.into_bytes())
    })
}

/// No softirq is ever raised in this kernel.
pub(super) fn softirqs() -> Node {
    const KINDS: [&str; 10] = [
        "HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER",
        "RCU",
    ];
    file(|_| {
        let cpus = arch::boot().cpus;
        let mut out = String::from("                    ");
        for cpu in 0..cpus {
            let _ = write!(out, "CPU{cpu:<8}");
        }
        out.push('\n');
        for kind in KINDS {
            let _ = write!(out, "{kind:>12}:");
            for _ in 0..cpus {
                let _ = write!(out, " {:>10}", 0);
            }
            out.push('\n');
        }
        Ok(out.into_bytes())
    })
}

pub(super) fn stat() -> Node {
    file(|_| {
        let cpus = u64::from(arch::boot().cpus);
        let (mut user, mut system) = (0, 0);
        for process in table::processes() {
            let used = process.usage();
            user += used.user_ns / TICK_NS;
            system += used.system_ns / TICK_NS;
        }
        let idle = (time::monotonic_ns() / TICK_NS * cpus).saturating_sub(user + system);
        let mut out = format!("cpu  {user} 0 {system} {idle} 0 0 0 0 0 0\n");
        for cpu in 0..cpus {
            let _ = writeln!(
                out,
                "cpu{cpu} {} 0 {} {} 0 0 0 0 0 0",
                user / cpus,
                system / cpus,
                idle / cpus
            );
        }
        let boot_s = time::realtime_ns().saturating_sub(time::monotonic_ns()) / 1_000_000_000;
        let running = table::threads().filter(|t| t.user.is_in_user_mode()).count().max(1);
        let _ = writeln!(
            out,
            "intr 0\nctxt 0\nbtime {boot_s}\nprocesses {}",
            table::processes().count()
        );
        let _ = writeln!(
            out,
            "procs_running {running}\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0"
        );
        Ok(out.into_bytes())
    })
}

pub(super) fn vmstat() -> Node {
    file(|_| {
        let used = mm::frames::stats().frames_used;
        let free = (account::memory_bytes() - account::used_bytes()) / PAGE_SIZE;
        Ok(format!("nr_free_pages {free}\nnr_anon_pages {used}\npgfault 0\npgmajfault 0\n")
            .into_bytes())
    })
}

pub(super) fn cpuinfo() -> Node {
    file(|_| {
        let cpu = super::super::cpu::describe();
        let count = arch::boot().cpus;
        let mut out = String::new();
        for index in 0..count {
            let _ = write!(
                out,
                "processor\t: {index}\nvendor_id\t: {}\ncpu family\t: {}\nmodel\t\t: {}\nmodel \
                name\t: {}\nstepping\t: {}\n\
                 cpu MHz\t\t: 2000.000\ncache size\t: 1024 KB\nphysical id\t: 0\nsiblings\t: {count}\ncore id\t\t: {index}\n\
                 cpu cores\t: {count}\napicid\t\t: {index}\nfpu\t\t: yes\nfpu_exception\t: yes\ncpuid level\t: 13\nwp\t\t: yes\n\
                 flags\t\t: {}\nbogomips\t: 4000.00\nclflush size\t: 64\ncache_alignment\t: 64\n\
                 address sizes\t: 46 bits physical, 48 bits virtual\npower management:\n\n",
                cpu.vendor, cpu.family, cpu.model, cpu.name, cpu.stepping, cpu.flags,
            );
        }
        Ok(out.into_bytes())
    })
}
