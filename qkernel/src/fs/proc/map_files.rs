//! /proc/PID/map_files: a link to the file of each mapping that has one (proc_pid_map_files(5)).

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::S_IFLNK;
use qlib::Va;

use super::fd::place_of;
use super::pid::Subject;
use crate::errno::Errno;
use crate::fs::OpenFile;
use crate::fs::file::file_of;
use crate::fs::inode::Link;
use crate::fs::synth::{Dir, Listed, Node};
use crate::mm::{AddressSpace, Vma};

/// How many are listed at once.
const LISTED: usize = 64;

/// The directory.
pub struct MapFiles(pub Subject);

/// The file of a mapping, if that has a name.
fn file(vma: &Vma) -> Option<Arc<OpenFile>> {
    file_of(vma.backing.as_ref()?).filter(|file| file.path.is_some())
}

/// The mapping of a name, as "start-end".
fn find(mm: &AddressSpace, name: &[u8]) -> Option<Vma> {
    let (start, end) = core::str::from_utf8(name).ok()?.split_once('-')?;
    let number = |text: &str| {
        let is_plain = !text.is_empty() && (text == "0" || !text.starts_with(['0', '+']));
        u64::from_str_radix(text, 16).ok().filter(|_| is_plain)
    };
    let (start, end) = (number(start)?, number(end)?);
    mm.range_after(Va(start)).filter(|vma| (vma.start, vma.end) == (Va(start), Va(end)))
}

impl Dir for MapFiles {
    fn find(&self, name: &[u8]) -> Option<Node> {
        let mm = self.0.living().ok()?.mm();
        file(&find(&mm, name)?)?;
        let (subject, name) = (self.0.clone(), name.to_vec());
        Some(Node::Link(
            0o500,
            alloc::boxed::Box::new(move |reader| {
                let thread = subject.check_living(reader)?;
                let vma = find(&thread.mm(), &name).ok_or(Errno::ENOENT)?;
                let file = file(&vma).ok_or(Errno::ENOENT)?;
                Ok(Link::Place(place_of(&file, &thread.fs().root)))
            }),
        ))
    }

    /// The positions are the ends of mappings, in pages.
    fn list_from(&self, from: u64) -> Vec<Listed> {
        let Ok(thread) = self.0.living() else { return Vec::new() };
        let (mm, mut listed) = (thread.mm(), Vec::new());
        let mut next = Va(from << qlib::PAGE_SHIFT);
        while let Some(vma) = mm.range_after(next) {
            next = vma.end;
            if file(&vma).is_some() {
                let name = format!("{:x}-{:x}", vma.start.0, vma.end.0).into_bytes();
                listed.push(Listed { name, kind: S_IFLNK, next: vma.end.0 >> qlib::PAGE_SHIFT });
            }
            if listed.len() == LISTED {
                break;
            }
        }
        listed
    }

    fn owner(&self) -> (u32, u32) {
        self.0.thread().map_or((0, 0), |thread| {
            let creds = thread.creds();
            (creds.euid, creds.egid)
        })
    }

    fn mode(&self) -> u32 {
        0o500
    }

    fn is_fleeting(&self) -> bool {
        true
    }
}
