//! /proc/PID/stat, statm, status, limits, io.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;

use linux_raw_sys::general::RLIMIT_SIGPENDING;
use qlib::{PAGE_SIZE, Va};

use super::pid::Subject;
use super::system::TICK_NS;
use crate::errno::Result;
use crate::ipc::tty::device as tty;
use crate::mm::discard::Resident;
use crate::mm::{Prot, VmaFlags};
use crate::task::trace::{self, stops};
use crate::task::{Process, Thread, affinity, signal};

/// Sizes of an address space in bytes, by kind of range.
#[derive(Default)]
struct Sizes {
    total: u64,
    locked: u64,
    resident: Resident,
    /// The most of total and resident.
    peaks: (u64, u64),
    swapped: u64,
    data: u64,
    stack: u64,
    text: u64,
}

fn sizes(process: &Process) -> Sizes {
    let mm = process.mm();
    let (total, _, swapped) = mm.sizes();
    let (_, locked) = mm.mapped_and_locked();
    let (resident, peaks) = (mm.resident_by_kind(), mm.peaks());
    let mut sizes = Sizes { total, locked, resident, peaks, swapped, ..Sizes::default() };
    mm.for_each_range(|vma| {
        if vma.flags.contains(VmaFlags::STACK) {
            sizes.stack += vma.len();
        } else if vma.prot.contains(Prot::EXEC) && vma.backing.is_some() {
            sizes.text += vma.len();
        } else if vma.prot.contains(Prot::WRITE) && !vma.is_shared() {
            sizes.data += vma.len();
        }
    });
    sizes
}

fn state(subject: &Subject, process: &Arc<Process>, reader: &Arc<Thread>) -> char {
    match subject.thread() {
        Ok(thread) if stops::with(&thread, |_| ()).is_ok() => 't',
        Ok(thread) if subject.is_thread() && !process.is_zombie() => {
            // Who reads runs.
            if thread.user.is_in_user_mode() || Arc::ptr_eq(&thread, reader) { 'R' } else { 'S' }
        }
        _ => process.state_letter(),
    }
}

/// stat.
pub fn stat(subject: &Subject, reader: &Arc<Thread>) -> Result<Vec<u8>> {
    let process = subject.process()?;
    let thread = subject.thread().ok();
    let sizes = sizes(&process);
    let used = match &thread {
        Some(thread) if subject.is_thread() => thread.usage(),
        _ => process.usage(),
    };
    let traits = process.traits.lock().clone();
    let (exit_signal, exit_status, threads) = {
        let links = process.tree.lock();
        (links.exit_signal, links.exit_status.unwrap_or(0), links.threads.len())
    };
    let (name, nice, pending, blocked) = match &thread {
        Some(t) => (t.name(), t.attrs.lock().nice, signal::pending(t).0, t.signals.lock().mask.0),
        None => (String::from("exited"), 0, 0, 0),
    };
    let (ignored, caught) = process.signals.lock().ignored_and_caught();
    let id = thread.as_ref().filter(|_| subject.is_thread()).map_or(process.pid, |t| t.tid());
    // Where things lie is for those who may look into the process.
    let ((text, stack), args, env) = match subject.check_access(reader) {
        Ok(_) => {
            let image = process.image.lock();
            let (args, env) = (image.args.clone(), image.env.clone());
            drop(image);
            (process.mm().text_and_stack(), args, env)
        }
        Err(_) => (((1, 1), 0), Va(0)..Va(0), Va(0)..Va(0)),
    };
    let tick = |ns: u64| ns / TICK_NS;
    let terminal = tty::terminal(&process).unwrap_or((0, -1));
    let foreground = u32::try_from(terminal.1);
    let foreground = foreground.map_or(-1, |pgid| subject.number_of(pgid) as i32);
    let mut out = format!(
        "{} ({name}) {} {} {} {} {} {} 0 {} {} {} {} ",
        subject.number_of(id),
        state(subject, &process, reader),
        subject.number_of(process.ppid()),
        subject.number_of(process.pgid()),
        subject.number_of(process.sid()),
        terminal.0,
        foreground,
        used.minor_faults,
        traits.children_usage.minor_faults,
        used.major_faults,
        traits.children_usage.major_faults,
    );
    let _ = write!(
        out,
        "{} {} {} {} {} {nice} {threads} 0 {} {} {} {} ",
        tick(used.user_ns),
        tick(used.system_ns),
        tick(traits.children_usage.user_ns),
        tick(traits.children_usage.system_ns),
        20 + nice,
        tick(process.start_ns),
        sizes.total,
        sizes.resident.all() / PAGE_SIZE,
        u64::MAX,
    );
    let _ = write!(
        out,
        "{} {} {stack} 0 0 {pending} {blocked} {} {} 0 0 0 {exit_signal} 0 0 0 0 0 0 0 0 0 {} {} \
        {} {} {exit_status}",
        text.0, text.1, ignored.0, caught.0, args.start.0, args.end.0, env.start.0, env.end.0,
    );
    out.push('\n');
    Ok(out.into_bytes())
}

/// statm: in pages.
pub fn statm(subject: &Subject, _reader: &Arc<Thread>) -> Result<Vec<u8>> {
    let sizes = sizes(&*subject.process()?);
    let pages = |bytes: u64| bytes / PAGE_SIZE;
    let data = pages(sizes.data + sizes.stack);
    Ok(format!(
        "{} {} {} {} 0 {data} 0\n",
        pages(sizes.total),
        pages(sizes.resident.all()),
        pages(sizes.resident.file + sizes.resident.shared),
        pages(sizes.text)
    )
    .into_bytes())
}

/// status.
pub fn status(subject: &Subject, reader: &Arc<Thread>) -> Result<Vec<u8>> {
    let process = subject.process()?;
    let mut out = String::new();
    let letter = state(subject, &process, reader);
    let word = match letter {
        'R' => "running",
        'T' => "stopped",
        't' => "tracing stop",
        'Z' => "zombie",
        _ => "sleeping",
    };
    let thread = subject.thread().ok();
    let id = thread.as_ref().filter(|_| subject.is_thread()).map_or(process.pid, |t| t.tid());
    let name = thread.as_ref().map_or(String::from("exited"), |t| t.name());
    let umask = thread.as_ref().map_or(0o22, |t| t.fs().umask);
    let _ = write!(
        out,
        "Name:\t{name}\nUmask:\t{umask:04o}\nState:\t{letter} ({word})\nTgid:\t{}\n",
        subject.number_of(process.pid)
    );
    let tracer =
        thread.as_ref().and_then(|t| trace::tracer_of(t)).map_or(0, |p| subject.number_of(p.pid));
    let (number, parent) = (subject.number_of(id), subject.number_of(process.ppid()));
    let _ = write!(out, "Ngid:\t0\nPid:\t{number}\nPPid:\t{parent}\nTracerPid:\t{tracer}\n");
    let creds = thread.as_ref().map(|t| t.creds()).unwrap_or_default();
    let reads = reader.creds();
    let [uid, euid, suid, fsuid] =
        [creds.uid, creds.euid, creds.suid, creds.fsuid].map(|id| reads.uid_shown(id));
    let [gid, egid, sgid, fsgid] =
        [creds.gid, creds.egid, creds.sgid, creds.fsgid].map(|id| reads.gid_shown(id));
    let _ = writeln!(out, "Uid:\t{uid}\t{euid}\t{suid}\t{fsuid}");
    let _ = writeln!(out, "Gid:\t{gid}\t{egid}\t{sgid}\t{fsgid}");
    let slots = thread.as_ref().map_or(0, |t| t.files().end());
    let _ = write!(out, "FDSize:\t{}\nGroups:\t", slots.next_multiple_of(64));
    for group in &creds.groups {
        let _ = write!(out, "{} ", reads.gid_shown(*group));
    }
    let _ = writeln!(
        out,
        "\nNStgid:\t{}\nNSpid:\t{}\nNSpgid:\t{}\nNSsid:\t{}",
        subject.numbers_of(&process, process.pid),
        subject.numbers_of(&process, id),
        subject.numbers_of(&process, process.pgid()),
        subject.numbers_of(&process, process.sid()),
    );
    if !process.is_zombie() {
        memory_rows(&mut out, &sizes(&process));
    }
    let _ = writeln!(out, "Threads:\t{}", process.thread_count().max(1));
    let (pending, blocked) =
        thread.as_ref().map_or((0, 0), |t| (signal::pending(t).0, t.signals.lock().mask.0));
    let queued = thread.as_ref().map_or(0, |thread| signal::queued(thread));
    let shared = process.signals.lock().pending().0;
    let (ignored, caught) = process.signals.lock().ignored_and_caught();
    let _ = writeln!(
        out,
        "SigQ:\t{queued}/{}\nSigPnd:\t{:016x}\nShdPnd:\t{shared:016x}",
        process.rlimit(RLIMIT_SIGPENDING),
        pending & !shared
    );
    let _ = writeln!(
        out,
        "SigBlk:\t{blocked:016x}\nSigIgn:\t{:016x}\nSigCgt:\t{:016x}",
        ignored.0, caught.0
    );
    for (name, set) in [
        ("CapInh", creds.cap_inheritable),
        ("CapPrm", creds.cap_permitted),
        ("CapEff", creds.cap_effective),
        ("CapBnd", creds.cap_bounding),
        ("CapAmb", creds.cap_ambient),
    ] {
        let _ = writeln!(out, "{name}:\t{set:016x}");
    }
    let cpus = thread.as_deref().map_or_else(affinity::all, affinity::of);
    let (mode, filters) =
        thread.as_ref().map_or((0, 0), |t| (t.seccomp.mode() as u8, t.seccomp.count()));
    let _ = writeln!(
        out,
        "NoNewPrivs:\t{}\nSeccomp:\t{mode}\nSeccomp_filters:\t{filters}",
        u32::from(creds.no_new_privs)
    );
    let _ = writeln!(out, "Cpus_allowed:\t{cpus:x}\nCpus_allowed_list:\t{}", affinity::list(cpus));
    let used = thread.as_ref().map(|thread| thread.usage()).unwrap_or_default();
    let _ = writeln!(
        out,
        "Mems_allowed:\t1\nMems_allowed_list:\t0\nvoluntary_ctxt_switches:\t{}\n\
        nonvoluntary_ctxt_switches:\t{}",
        used.voluntary_switches, used.other_switches
    );
    Ok(out.into_bytes())
}

fn memory_rows(out: &mut String, sizes: &Sizes) {
    for (name, bytes) in [
        ("VmPeak", sizes.peaks.0),
        ("VmSize", sizes.total),
        ("VmLck", sizes.locked),
        ("VmPin", 0),
        ("VmHWM", sizes.peaks.1),
        ("VmRSS", sizes.resident.all()),
        ("RssAnon", sizes.resident.anonymous),
        ("RssFile", sizes.resident.file),
        ("RssShmem", sizes.resident.shared),
        ("VmData", sizes.data),
        ("VmStk", sizes.stack),
        ("VmExe", sizes.text),
        ("VmLib", 0),
        ("VmPTE", 0),
        ("VmSwap", sizes.swapped),
    ] {
        let _ = writeln!(out, "{name}:\t{:>8} kB", bytes / 1024);
    }
}

/// limits.
pub fn limits(subject: &Subject, _reader: &Arc<Thread>) -> Result<Vec<u8>> {
    const ROWS: [(&str, &str); 16] = [
        ("Max cpu time", "seconds"),
        ("Max file size", "bytes"),
        ("Max data size", "bytes"),
        ("Max stack size", "bytes"),
        ("Max core file size", "bytes"),
        ("Max resident set", "bytes"),
        ("Max processes", "processes"),
        ("Max open files", "files"),
        ("Max locked memory", "bytes"),
        ("Max address space", "bytes"),
        ("Max file locks", "locks"),
        ("Max pending signals", "signals"),
        ("Max msgqueue size", "bytes"),
        ("Max nice priority", ""),
        ("Max realtime priority", ""),
        ("Max realtime timeout", "us"),
    ];
    let limits = subject.process()?.rlimits.lock().clone();
    let mut out =
        format!("{:<25} {:<20} {:<20} {:<10}\n", "Limit", "Soft Limit", "Hard Limit", "Units");
    let show =
        |limit: u64| if limit == u64::MAX { String::from("unlimited") } else { format!("{limit}") };
    for ((name, unit), (soft, hard)) in ROWS.iter().zip(limits.0) {
        let _ = writeln!(out, "{name:<25} {:<20} {:<20} {unit:<10}", show(soft), show(hard));
    }
    Ok(out.into_bytes())
}

/// io. Bytes are not counted.
pub fn io() -> Vec<u8> {
    let zeros =
        ["rchar", "wchar", "syscr", "syscw", "read_bytes", "write_bytes", "cancelled_write_bytes"];
    zeros.iter().map(|n| format!("{n}: 0\n")).collect::<String>().into_bytes()
}
