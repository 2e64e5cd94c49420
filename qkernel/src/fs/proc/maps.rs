//! /proc/PID/maps, smaps, smaps_rollup.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;

use qlib::PAGE_SHIFT;

use super::pid::Subject;
use crate::errno::Result;
use crate::fs::attr::device_parts;
use crate::mm::{Prot, Vma, VmaFlags};
use crate::task::Thread;

fn line(out: &mut Vec<u8>, vma: &Vma, reader: &Arc<Thread>) {
    let bit = |on: bool, letter: char| if on { letter } else { '-' };
    let (mut offset, mut device, mut ino) = (0, 0, 0);
    let mut path = Vec::new();
    match &vma.backing {
        Some(backing) => {
            offset = backing.first_page << PAGE_SHIFT;
            match backing.file.as_ref().and_then(|f| f.path.as_ref()) {
                Some(place) => {
                    if let Ok(attributes) = place.inode().permissions() {
                        (device, ino) = (attributes.dev, attributes.ino);
                    }
                    path = place.path_from(&reader.fs().root);
                }
                None => path.extend_from_slice(backing.mapping.name().unwrap_or(b"/dev/zero (deleted)")),
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

/// maps.
pub fn maps(subject: &Subject, reader: &Arc<Thread>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for vma in subject.process()?.mm().ranges() {
        line(&mut out, &vma, reader);
    }
    Ok(out)
}

/// The rows of smaps for `size` bytes, `resident` of them present. Pages that several share count as private.
fn rows(out: &mut String, size: Option<u64>, resident: u64, anonymous: bool, swapped: u64) {
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
    row("Swap", swapped);
    row("SwapPss", swapped);
    row("Locked", 0);
}

/// smaps.
pub fn smaps(subject: &Subject, reader: &Arc<Thread>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let mm = subject.process()?.mm();
    for vma in mm.ranges() {
        line(&mut out, &vma, reader);
        let present =
            mm.resident(vma.start, vma.len()).map_or(0, |pages| pages.iter().filter(|p| **p & 1 != 0).count());
        let mut text = String::new();
        rows(&mut text, Some(vma.len()), (present as u64) << PAGE_SHIFT, vma.backing.is_none(), 0);
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
            (vma.flags.contains(VmaFlags::WIPE_ON_FORK), " wf"),
        ] {
            text.push_str(if on { flag } else { "" });
        }
        text.push('\n');
        out.extend_from_slice(text.as_bytes());
    }
    Ok(out)
}

/// smaps_rollup.
pub fn smaps_rollup(subject: &Subject, _reader: &Arc<Thread>) -> Result<Vec<u8>> {
    let mm = subject.process()?.mm();
    let ranges = mm.ranges();
    let (start, end) = (ranges.first().map_or(0, |v| v.start.0), ranges.last().map_or(0, |v| v.end.0));
    let (_, resident, swapped) = mm.sizes();
    let mut text = format!("{start:08x}-{end:08x} ---p 00000000 00:00 0{:>34}\n", "[rollup]");
    rows(&mut text, None, resident, true, swapped);
    Ok(text.into_bytes())
}
