//! Where it is told what happens to files: those who watch them by inotify(7), by F_NOTIFY of
//! fcntl(2) or by fanotify(7) learn it from here. Only what goes through this kernel is seen.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use linux_raw_sys::general::{
    IN_ATTRIB, IN_CREATE, IN_DELETE, IN_DELETE_SELF, IN_ISDIR, IN_MOVE_SELF, IN_MOVED_FROM,
    IN_MOVED_TO,
};

use super::ask::Question;
use super::busy::Id;
use super::dentry::Dentry;
use super::mount::Mount;
use super::{Location, OpenFile, dnotify, inotify};
use crate::sync::{Mutex, mutex};

/// Events besides those of inotify(7), with the values of fanotify(7): a file is opened to be
/// executed.
pub const OPEN_EXEC: u32 = 0x1000;
/// A name became another one.
pub const RENAME: u32 = 0x1000_0000;

/// A file, and a name of it.
#[derive(Clone, Copy)]
pub struct Object<'a> {
    /// Which file.
    pub id: Id,
    /// The name.
    pub dentry: &'a Arc<Dentry>,
}

/// A name in a directory.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    /// The directory.
    pub directory: Object<'a>,
    /// The name.
    pub name: &'a [u8],
}

/// Something that happened, as fanotify(7) sees it.
#[derive(Clone, Copy)]
pub struct Happening<'a> {
    /// What: IN_* and the events above, or what permission is asked for.
    pub mask: u32,
    /// It happened to this. `None`: nobody knows which file that was.
    pub object: Option<Object<'a>>,
    /// That is a directory.
    pub is_dir: bool,
    /// Its name, and the directory in which it has that.
    pub entry: Option<Entry<'a>>,
    /// It happened to the directory: the name came or went.
    pub is_of_entry: bool,
    /// Of [`RENAME`], what the name became.
    pub to: Option<Entry<'a>>,
    /// The mount through which somebody has the file open, or is about to.
    pub mount: Option<&'a Arc<Mount>>,
}

/// A group of fanotify(7).
pub trait Listener: Send + Sync {
    /// Something happened.
    fn happened(&self, event: &Happening<'_>);
    /// The file with this number is gone.
    fn is_gone(&self, id: Id);
    /// True if `dentry` lives on because it watches file `id`.
    fn keeps(&self, id: Id, dentry: &Arc<Dentry>) -> bool;
    /// Among those that are asked for permission, the larger is asked first; 0: it is not asked.
    fn rank(&self) -> u32;
    /// Asks for permission; `None` if it does not care.
    fn ask(&self, event: &Happening<'_>) -> Option<Arc<Question>>;
}

/// All groups.
static LISTENERS: Mutex<Vec<Weak<dyn Listener>>> = mutex(Vec::new());

/// Tells `listener` too from now on.
pub fn listen(listener: Weak<dyn Listener>) {
    let mut listeners = LISTENERS.lock();
    listeners.retain(|other| other.strong_count() > 0);
    listeners.push(listener);
}

/// Those that there are.
pub fn listeners() -> Vec<Arc<dyn Listener>> {
    let list = LISTENERS.lock();
    if list.is_empty() { Vec::new() } else { list.iter().filter_map(Weak::upgrade).collect() }
}

/// True if nobody is told of anything.
fn is_unused() -> bool {
    let has_listener = LISTENERS.lock().iter().any(|listener| listener.strong_count() > 0);
    !has_listener && inotify::is_unused() && dnotify::is_unused()
}

fn id_of(dentry: &Arc<Dentry>) -> Option<Id> {
    dentry.inode.permissions().ok().map(|attributes| attributes.id())
}

fn object(dentry: &Arc<Dentry>) -> Option<Object<'_>> {
    Some(Object { id: id_of(dentry)?, dentry })
}

fn entry<'a>(directory: &'a Arc<Dentry>, name: &'a [u8]) -> Option<Entry<'a>> {
    Some(Entry { directory: object(directory)?, name })
}

fn tell(event: &Happening<'_>) {
    for listener in listeners() {
        listener.happened(event);
    }
}

/// Has `use_it` see what concerns what lies at `place`, and its directory.
pub fn with_happening<T>(
    place: &Location,
    mask: u32,
    is_by_mount: bool,
    use_it: impl FnOnce(&Happening<'_>) -> T,
) -> T {
    let (parent, name) = (place.dentry.parent(), place.dentry.name());
    use_it(&Happening {
        mask,
        object: object(&place.dentry),
        is_dir: place.inode().is_dir(),
        entry: parent.as_ref().and_then(|parent| entry(parent, &name)),
        is_of_entry: false,
        to: None,
        mount: is_by_mount.then_some(&place.mount),
    })
}

/// Something (IN_*) happened to what lies at `place`: notifies its watchers and those of its
/// directory.
pub fn event(place: &Location, mask: u32) {
    happened(place, mask, false);
}

/// The same of what somebody has opened there, or has open, so that it counts for its mount too.
pub fn open_event(place: &Location, mask: u32) {
    happened(place, mask, true);
}

fn happened(place: &Location, mask: u32, is_by_mount: bool) {
    if is_unused() {
        return;
    }
    with_happening(place, mask, is_by_mount, |event| {
        let own = event.object.map(|object| object.id);
        let above = event.entry.map(|entry| entry.directory.id);
        for id in above.into_iter().chain(own) {
            dnotify::happened(id, mask);
        }
        let is_unlinked = place.dentry.is_unlinked();
        let told = mask & !OPEN_EXEC | if event.is_dir { IN_ISDIR } else { 0 };
        for instance in inotify::instances() {
            let tells = |id: &Id| !(is_unlinked && instance.leaves_out_unlinked(*id));
            if let (Some(id), Some(entry)) = (above.filter(tells), event.entry) {
                instance.notify(id, told, 0, entry.name);
            }
            if let Some(id) = own {
                instance.notify(id, told, 0, b"");
            }
        }
        tell(event);
    });
}

/// The same for an open file.
pub fn file_event(file: &OpenFile, mask: u32) {
    if let Some(place) = file.path.as_ref().filter(|_| !file.is_unseen()) {
        open_event(place, mask);
    }
}

/// A name came (IN_CREATE) or went (IN_DELETE) in `directory`.
fn name_event(directory: &Location, name: &[u8], mask: u32, child: &Arc<Dentry>) {
    if is_unused() {
        return;
    }
    let Some(entry) = entry(&directory.dentry, name) else { return };
    let is_dir = child.inode.is_dir();
    dnotify::happened(entry.directory.id, mask);
    for instance in inotify::instances() {
        let told = mask | if is_dir { IN_ISDIR } else { 0 };
        instance.notify(entry.directory.id, told, 0, name);
    }
    tell(&Happening {
        mask,
        object: object(child),
        is_dir,
        entry: Some(entry),
        is_of_entry: true,
        to: None,
        mount: None,
    });
}

/// `name` was made in `directory`: it leads to `child`.
pub fn created(directory: &Location, name: &[u8], child: &Arc<Dentry>) {
    name_event(directory, name, IN_CREATE, child);
}

/// Something happened to a file itself, whichever names it has.
fn self_event(dentry: &Arc<Dentry>, mask: u32) {
    let is_dir = dentry.inode.is_dir();
    let event = Happening {
        mask,
        object: object(dentry),
        is_dir,
        entry: None,
        is_of_entry: false,
        to: None,
        mount: None,
    };
    tell(&event);
}

/// What lies at `place` has one name more, or less. Its directory's watchers hear nothing of that.
pub fn links_changed(place: &Location) {
    if is_unused() {
        return;
    }
    let Some(id) = id_of(&place.dentry) else { return };
    dnotify::happened(id, IN_ATTRIB);
    for instance in inotify::instances() {
        instance.notify(id, IN_ATTRIB, 0, b"");
    }
    self_event(&place.dentry, IN_ATTRIB);
}

/// `child` was removed from `directory`.
pub fn removed(directory: &Location, name: &[u8], child: &Location) {
    if !child.inode().is_dir() {
        links_changed(child);
    }
    name_event(directory, name, IN_DELETE, &child.dentry);
    is_gone(child);
}

/// What lies at `place` is gone if it has no name any more, and nobody has it but the caller: its
/// watchers are told, and watch nothing from now on.
pub fn is_gone(place: &Location) {
    if !place.dentry.is_unlinked() {
        return;
    }
    let (instances, listeners) = (inotify::instances(), listeners());
    if instances.is_empty() && listeners.is_empty() {
        return;
    }
    let Some(id) = id_of(&place.dentry) else { return };
    let watches = instances.iter().filter(|instance| instance.keeps(id, &place.dentry)).count();
    let marks = listeners.iter().filter(|listener| listener.keeps(id, &place.dentry)).count();
    let has_name = || place.attributes().is_ok_and(|a| a.nlink > 0);
    if Arc::strong_count(&place.dentry) > 1 + watches + marks
        || (!place.inode().is_dir() && has_name())
    {
        return;
    }
    for instance in instances {
        instance.is_gone(id);
    }
    self_event(&place.dentry, IN_DELETE_SELF);
    for listener in listeners {
        listener.is_gone(id);
    }
}

/// `child` got another name.
pub fn moved(from: (&Location, &[u8]), to: (&Location, &[u8]), child: &Location) {
    if is_unused() {
        return;
    }
    static COOKIE: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);
    let cookie = COOKIE.fetch_add(1, core::sync::atomic::Ordering::Relaxed).wrapping_add(1);
    let is_dir = child.inode().is_dir();
    let ways = [(from, IN_MOVED_FROM), (to, IN_MOVED_TO)]
        .map(|((directory, name), mask)| (entry(&directory.dentry, name), mask));
    if let [(Some(old), _), (Some(new), _)] = ways {
        let (old, new) = (old.directory.id, new.directory.id);
        dnotify::happened(old, dnotify::RENAME);
        if old != new {
            dnotify::happened(new, dnotify::RENAME);
        }
        dnotify::happened(old, IN_MOVED_FROM);
        dnotify::happened(new, IN_MOVED_TO);
    }
    let own = object(&child.dentry);
    for instance in inotify::instances() {
        for (entry, mask) in ways {
            if let Some(entry) = entry {
                let told = mask | if is_dir { IN_ISDIR } else { 0 };
                instance.notify(entry.directory.id, told, cookie, entry.name);
            }
        }
        if let Some(own) = own {
            instance.notify(own.id, IN_MOVE_SELF, 0, b"");
        }
    }
    let event = |entry, mask, to| Happening {
        mask,
        object: own,
        is_dir,
        entry,
        is_of_entry: true,
        to,
        mount: None,
    };
    let [(old, _), (new, _)] = ways;
    tell(&event(old, RENAME, new));
    for (entry, mask) in ways {
        tell(&event(entry, mask, None));
    }
    self_event(&child.dentry, IN_MOVE_SELF);
}
