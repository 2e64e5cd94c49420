//! Directories whose changes are told of by signals (fcntl(2), F_NOTIFY), as inotify(7) sees them.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    DN_ACCESS, DN_ATTRIB, DN_CREATE, DN_DELETE, DN_MODIFY, DN_MULTISHOT, DN_RENAME, IN_ACCESS,
    IN_ATTRIB, IN_CREATE, IN_DELETE, IN_MODIFY, IN_MOVED_FROM, IN_MOVED_TO,
};

use super::busy::Id;
use super::dentry::Dentry;
use super::lease::Told;
use super::{FdTable, OpenFile};
use crate::errno::{Errno, Result};
use crate::sync::{Mutex, mutex};

/// An event beside those of inotify(7): a name in a directory was changed, or it got one from
/// elsewhere.
pub const RENAME: u32 = 0x1000_0000;

/// What events there are, by what asks for them.
const EVENTS: [(u32, u32); 6] = [
    (DN_ACCESS, IN_ACCESS),
    (DN_MODIFY, IN_MODIFY),
    (DN_CREATE, IN_CREATE | IN_MOVED_TO),
    (DN_DELETE, IN_DELETE | IN_MOVED_FROM),
    (DN_RENAME, RENAME),
    (DN_ATTRIB, IN_ATTRIB),
];

/// Who asked: an open directory, and the descriptors of the process, by address.
type Asker = (usize, usize);

struct Watch {
    asker: Asker,
    /// DN_*.
    asked: u32,
    told: Arc<dyn Told>,
    /// Keeps the directory's number from being used again.
    _dentry: Arc<Dentry>,
}

/// By directory.
static WATCHES: Mutex<BTreeMap<Id, Vec<Watch>>> = mutex(BTreeMap::new());

/// True if nobody has asked for anything.
pub fn is_unused() -> bool {
    WATCHES.lock().is_empty()
}

fn asker(file: &OpenFile, files: &FdTable) -> Asker {
    (core::ptr::from_ref(file) as usize, core::ptr::from_ref(files) as usize)
}

/// F_NOTIFY: `asked` are DN_* bits, which come on top of what was asked for before; without any
/// nothing is told of any more. ENOTDIR.
pub fn watch(file: &OpenFile, files: &FdTable, asked: u32, told: Arc<dyn Told>) -> Result {
    if asked & !DN_MULTISHOT == 0 {
        closed(file, files);
        return Ok(());
    }
    let place = file.path.as_ref().filter(|place| place.inode().is_dir()).ok_or(Errno::ENOTDIR)?;
    let directory = place.inode().permissions()?.id();
    let asker = asker(file, files);
    let mut all = WATCHES.lock();
    let watches = all.entry(directory).or_default();
    let replaced = match watches.iter_mut().find(|watch| watch.asker == asker) {
        Some(watch) => {
            watch.asked |= asked;
            Some(core::mem::replace(&mut watch.told, told))
        }
        None => {
            watches.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            watches.push(Watch { asker, asked, told, _dentry: place.dentry.clone() });
            None
        }
    };
    drop(all);
    drop(replaced);
    Ok(())
}

/// The events that `asked` asks for.
fn events(asked: u32) -> u32 {
    EVENTS.iter().filter(|(bit, _)| asked & bit != 0).fold(0, |all, (_, events)| all | events)
}

/// Something happened to a directory, or in it: those who asked for that are told, once if they did
/// not say otherwise.
pub fn happened(directory: Id, event: u32) {
    let mut told = Vec::new();
    let mut over = Vec::new();
    {
        let mut all = WATCHES.lock();
        let Some(watches) = all.get_mut(&directory) else { return };
        for index in (0..watches.len()).rev() {
            let Some(watch) = watches.get(index) else { continue };
            if events(watch.asked) & event == 0 {
                continue;
            }
            told.push(watch.told.clone());
            if watch.asked & DN_MULTISHOT == 0 {
                over.push(watches.swap_remove(index));
            }
        }
        if watches.is_empty() {
            all.remove(&directory);
        }
    }
    for told in told {
        told.tell();
    }
    drop(over);
}

/// Takes out those that `is_over` names.
fn take_out(is_over: impl Fn(&Watch) -> bool) {
    let mut over = Vec::new();
    WATCHES.lock().retain(|_, watches| {
        while let Some(index) = watches.iter().position(&is_over) {
            over.push(watches.swap_remove(index));
        }
        !watches.is_empty()
    });
    drop(over);
}

/// A descriptor of the file among `files` was closed.
pub fn closed(file: &OpenFile, files: &FdTable) {
    if file.telling.lock().is_none() {
        return;
    }
    let asker = asker(file, files);
    take_out(|watch| watch.asker == asker);
}

/// The last descriptor of the file is gone.
pub fn file_gone(file: &OpenFile) {
    if is_unused() {
        return;
    }
    let address = core::ptr::from_ref(file) as usize;
    take_out(|watch| watch.asker.0 == address);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_asks_for_its_events() {
        assert_eq!(events(DN_MULTISHOT), 0);
        assert_eq!(events(DN_CREATE | DN_RENAME), IN_CREATE | IN_MOVED_TO | RENAME);
        assert_eq!(events(DN_DELETE) & events(DN_CREATE), 0);
    }
}
