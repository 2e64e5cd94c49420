//! /proc/PID/maps, smaps, smaps_rollup.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;

use qlib::{PAGE_SHIFT, PAGE_SIZE, Va};

use crate::errno::Result;
use crate::fs::Location;
use crate::fs::attr::device_parts;
use crate::fs::file::file_of;
use crate::mm::policy::Policy;
use crate::mm::{AddressSpace, Prot, VSYSCALL, Vma, VmaFlags};
use crate::task::vdso;

/// Makes the record at a cursor (see [`crate::fs::records`]), of a memory, with paths as seen from
/// a root.
pub type Next = fn(&Arc<AddressSpace>, &Location, u64) -> Result<Option<(Vec<u8>, u64)>>;

fn line(out: &mut Vec<u8>, vma: &Vma, root: &Location) {
    let bit = |on: bool, letter: char| if on { letter } else { '-' };
    let (mut offset, mut device, mut ino) = (0, 0, 0);
    let mut path = Vec::new();
    match &vma.backing {
        Some(backing) => {
            offset = backing.first_page << PAGE_SHIFT;
            match file_of(backing).as_ref().and_then(|f| f.path.as_ref()) {
                Some(place) => {
                    if let Ok(attributes) = place.inode().permissions() {
                        (device, ino) = attributes.id();
                    }
                    path = place.path_from(root);
                }
                None => {
                    path.extend_from_slice(backing.mapping.name().unwrap_or(b"/dev/zero (deleted)"))
                }
            }
        }
        None if vma.flags.contains(VmaFlags::STACK) => path.extend_from_slice(b"[stack]"),
        None if vma.flags.contains(VmaFlags::PADS) => path.extend_from_slice(b"[calls]"),
        None if vma.flags.contains(VmaFlags::HEAP) => path.extend_from_slice(b"[heap]"),
        None => {}
    }
    let (major, minor) = device_parts(device);
    let head = format!(
        "{:08x}-{:08x} {}{}{}{} {offset:08x} {major:02x}:{minor:02x} {ino}",
        vma.start.0,
        vma.end.0,
        bit(vma.prot.contains(Prot::READ), 'r'),
        bit(vma.prot.contains(Prot::WRITE), 'w'),
        bit(vma.prot.contains(Prot::EXEC), 'x'),
        if vma.is_shared() { 's' } else { 'p' },
    );
    out.extend_from_slice(head.as_bytes());
    if !path.is_empty() {
        // The name begins in column 74.
        out.resize(out.len() + 73_usize.saturating_sub(head.len()).max(1), b' ');
        for byte in path {
            match byte {
                b'\n' => out.extend_from_slice(b"\\012"),
                other => out.push(other),
            }
        }
    }
    out.push(b'\n');
}

/// What follows the last range: the page of vsyscall functions, with `more` behind its line.
fn after_last(cursor: u64, more: &str) -> Option<(Vec<u8>, u64)> {
    let end = VSYSCALL.0 + PAGE_SIZE;
    let line = || {
        let head = format!("{:08x}-{end:08x} --xp 00000000 00:00 0", VSYSCALL.0);
        format!("{head:<73}[vsyscall]\n{more}").into_bytes()
    };
    (cursor < end).then(|| (line(), end))
}

/// The range that the record at a cursor is about.
fn range_at(mm: &AddressSpace, cursor: u64) -> Option<Vma> {
    let above = || vdso::of_platform().filter(|vma| cursor < vma.end.0);
    mm.range_after(Va(cursor)).or_else(above)
}

/// maps: the cursor is the address from which on ranges are still to be listed.
pub fn maps(
    mm: &Arc<AddressSpace>,
    root: &Location,
    cursor: u64,
) -> Result<Option<(Vec<u8>, u64)>> {
    let Some(vma) = range_at(mm, cursor) else { return Ok(after_last(cursor, "")) };
    let mut out = Vec::new();
    line(&mut out, &vma, root);
    Ok(Some((out, vma.end.0)))
}

/// What is there of a range, or of all.
#[derive(Default)]
struct Shown {
    /// In bytes, as all others.
    resident: u64,
    /// Whether that is no file's.
    anonymous: bool,
    huge: u64,
    swapped: u64,
}

/// The rows of smaps for `size` bytes, some of them present. Pages that several share count
/// as private.
fn rows(out: &mut String, size: Option<u64>, shown: &Shown) {
    let Shown { resident, anonymous, huge, swapped } = *shown;
    let kib = |bytes: u64| bytes / 1024;
    let mut row = |name: &str, bytes: u64| {
        let _ = writeln!(out, "{:<16}{:>8} kB", format!("{name}:"), kib(bytes));
    };
    if let Some(size) = size {
        row("Size", size);
        row("KernelPageSize", 4096);
        row("MMUPageSize", 4096);
    }
    row("Rss", resident);
    row("Pss", resident);
    row("Shared_Clean", if anonymous { 0 } else { resident });
    row("Shared_Dirty", 0);
    row("Private_Clean", 0);
    row("Private_Dirty", if anonymous { resident } else { 0 });
    row("Referenced", resident);
    row("Anonymous", if anonymous { resident } else { 0 });
    row("AnonHugePages", huge);
    row("Swap", swapped);
    row("SwapPss", swapped);
    row("Locked", 0);
}

/// smaps: the cursor is as in [`maps`].
pub fn smaps(
    mm: &Arc<AddressSpace>,
    root: &Location,
    cursor: u64,
) -> Result<Option<(Vec<u8>, u64)>> {
    let Some(vma) = range_at(mm, cursor) else {
        let mut text = String::new();
        rows(&mut text, Some(PAGE_SIZE), &Shown::default());
        return Ok(after_last(cursor, &(text + "VmFlags: ex\n")));
    };
    let mut out = Vec::new();
    line(&mut out, &vma, root);
    let present = mm.resident_pages(vma.start, vma.end);
    let mut text = String::new();
    let anonymous = vma.backing.is_none();
    let shown = Shown {
        resident: present << PAGE_SHIFT,
        anonymous,
        huge: if anonymous { mm.huge_bytes(vma.start..vma.end) } else { 0 },
        swapped: 0,
    };
    rows(&mut text, Some(vma.len()), &shown);
    text.push_str("VmFlags:");
    for (on, flag) in [
        (vma.prot.contains(Prot::READ), " rd"),
        (vma.prot.contains(Prot::WRITE), " wr"),
        (vma.prot.contains(Prot::EXEC), " ex"),
        (vma.is_shared(), " sh"),
        (vma.max_prot.contains(Prot::READ), " mr"),
        (vma.max_prot.contains(Prot::WRITE), " mw"),
        (vma.max_prot.contains(Prot::EXEC), " me"),
        (vma.flags.contains(VmaFlags::GROWS_DOWN), " gd"),
        (vma.flags.contains(VmaFlags::LOCKED), " lo"),
        (vma.flags.contains(VmaFlags::NO_RESERVE), " nr"),
        (vma.flags.contains(VmaFlags::DONT_FORK), " dc"),
        (vma.flags.contains(VmaFlags::DONT_DUMP), " dd"),
        (vma.flags.contains(VmaFlags::WIPE_ON_FORK), " wf"),
        (vma.flags.contains(VmaFlags::HUGE), " hg"),
        (vma.flags.contains(VmaFlags::NO_HUGE), " nh"),
        (vma.flags.contains(VmaFlags::DROPPABLE), " dp"),
        (vma.flags.contains(VmaFlags::SEALED), " sl"),
    ] {
        text.push_str(if on { flag } else { "" });
    }
    text.push('\n');
    out.extend_from_slice(text.as_bytes());
    Ok(Some((out, vma.end.0)))
}

/// numa_maps: the cursor is as in [`maps`]; `own` is the policy of the thread.
pub fn numa_maps(
    mm: &Arc<AddressSpace>,
    root: &Location,
    own: Policy,
    cursor: u64,
) -> Result<Option<(Vec<u8>, u64)>> {
    let Some(vma) = mm.range_after(Va(cursor)) else { return Ok(None) };
    let policy = if vma.policy.is_set() { vma.policy } else { own };
    let mut out = format!("{:08x} {}", vma.start.0, policy.text()).into_bytes();
    let place = vma.backing.as_ref().and_then(file_of).and_then(|file| file.path.clone());
    match place {
        Some(place) => {
            out.extend_from_slice(b" file=");
            for byte in place.path_from(root) {
                match byte {
                    b'\n' | b'\t' | b' ' | b'=' => {
                        out.extend_from_slice(format!("\\{byte:03o}").as_bytes())
                    }
                    other => out.push(other),
                }
            }
        }
        None if vma.flags.contains(VmaFlags::HEAP) => out.extend_from_slice(b" heap"),
        None if vma.flags.contains(VmaFlags::STACK) => out.extend_from_slice(b" stack"),
        None => {}
    }
    let pages = mm.resident_pages(vma.start, vma.end);
    if pages > 0 {
        let kind = if vma.backing.is_none() { "anon" } else { "mapped" };
        out.extend_from_slice(format!(" {kind}={pages} N0={pages} kernelpagesize_kB=4").as_bytes());
    }
    out.push(b'\n');
    Ok(Some((out, vma.end.0)))
}

/// smaps_rollup: one record.
pub fn smaps_rollup(
    mm: &Arc<AddressSpace>,
    _root: &Location,
    cursor: u64,
) -> Result<Option<(Vec<u8>, u64)>> {
    if cursor != 0 {
        return Ok(None);
    }
    let (mut start, mut end) = (None, 0);
    let mut without_file = Vec::new();
    mm.for_each_range(|vma| {
        start.get_or_insert(vma.start.0);
        end = vma.end.0;
        if vma.backing.is_none() {
            without_file.push(vma.start..vma.end);
        }
    });
    let huge = without_file.into_iter().map(|range| mm.huge_bytes(range)).sum();
    let (resident, (_, _, swapped)) = (mm.resident_bytes(), mm.sizes());
    let mut text =
        format!("{:08x}-{end:08x} ---p 00000000 00:00 0{:>34}\n", start.unwrap_or(0), "[rollup]");
    rows(&mut text, None, &Shown { resident, anonymous: true, huge, swapped });
    Ok(Some((text.into_bytes(), 1)))
}
