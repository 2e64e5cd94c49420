//! Path resolution (path_resolution(7)).

use alloc::borrow::Cow;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use bitflags::bitflags;
use linux_raw_sys::general::{CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, S_ISVTX, S_IWOTH};

use super::inode::{self, Link};
use super::mount::MountFlags;
use super::perm;
use super::{Caller, Location};
use crate::creds::Creds;
use crate::errno::{Errno, Result};

/// Symbolic links followed in one walk before ELOOP.
const MAX_LINKS: u32 = 40;
/// The longest name of one component, in bytes.
pub const NAME_MAX: usize = linux_raw_sys::general::NAME_MAX as usize;
/// The longest path, in bytes, its NUL included.
pub const PATH_MAX: usize = linux_raw_sys::general::PATH_MAX as usize;

bitflags! {
    /// How a path is resolved.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WalkFlags: u32 {
        /// A symbolic link as the last component is followed.
        const FOLLOW = 1;
        /// An empty path is the starting place itself (AT_EMPTY_PATH).
        const EMPTY = 2;
        /// RESOLVE_NO_XDEV: no mount is crossed.
        const NO_XDEV = 4;
        /// RESOLVE_NO_MAGICLINKS.
        const NO_MAGICLINKS = 8;
        /// RESOLVE_NO_SYMLINKS.
        const NO_SYMLINKS = 16;
        /// RESOLVE_BENEATH: the walk may not leave the starting place.
        const BENEATH = 32;
        /// RESOLVE_IN_ROOT: the starting place is the root.
        const IN_ROOT = 64;
        /// What is there counts, not what it is called: [`Target::Place`] may stand for a name that
        /// was found.
        const EXISTING = 128;
        /// The name itself is meant, to be made or taken away: what it leads to does not count, not
        /// even with a slash behind it.
        const NAME = 256;
        /// A name that can never be made is found missing too: the caller has to say first that it
        /// lies on another mount (rename(2)).
        const NEVER_MADE = 512;
    }
}

/// What a walk starts from.
pub struct Walk<'a> {
    /// Whose permissions count.
    pub creds: &'a Creds,
    /// For magic links; `None`: the kernel itself.
    pub caller: Option<&'a dyn Caller>,
    /// Where absolute paths begin and ".." ends.
    pub root: Location,
    /// How.
    pub flags: WalkFlags,
}

/// Where a walk led.
pub enum Target {
    /// A name in a directory, which may exist.
    Name(NameTarget),
    /// A place that was not reached by a name ("/", "..", a magic link, an empty path).
    Place(Location),
}

/// A name in a directory.
pub struct NameTarget {
    /// The directory.
    pub parent: Location,
    /// The name in it.
    pub name: Vec<u8>,
    /// What it leads to, mounts on it included.
    pub found: Option<Location>,
    /// The path ended in a slash: it means a directory.
    pub wants_dir: bool,
}

impl Target {
    /// What is there; ENOENT if nothing is.
    pub fn existing(self) -> Result<Location> {
        match self {
            Target::Place(place) => Ok(place),
            Target::Name(NameTarget { found, wants_dir, .. }) => {
                let found = found.ok_or(Errno::ENOENT)?;
                if wants_dir && !found.inode().is_dir() {
                    return Err(Errno::ENOTDIR);
                }
                Ok(found)
            }
        }
    }

    /// The name; `otherwise` if the path does not end in one.
    pub fn name(self, otherwise: Errno) -> Result<NameTarget> {
        match self {
            Target::Name(name) => Ok(name),
            Target::Place(_) => Err(otherwise),
        }
    }
}

impl Walk<'_> {
    fn has(&self, flags: WalkFlags) -> bool {
        self.flags.intersects(flags)
    }

    /// Resolves `path` from `start`.
    pub fn resolve(&self, start: &Location, path: &[u8]) -> Result<Target> {
        if path.is_empty() {
            return if self.has(WalkFlags::EMPTY) {
                Ok(Target::Place(start.clone()))
            } else {
                Err(Errno::ENOENT)
            };
        }
        if path.len() >= PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        inode::begin_walk();
        let root =
            if self.has(WalkFlags::BENEATH | WalkFlags::IN_ROOT) { start } else { &self.root };
        // Where a link was found.
        let mut at: Option<Location> = None;
        // What is still to be walked; links are put in front of it.
        let mut rest = Cow::Borrowed(path);
        let mut links = 0;
        loop {
            let from = if rest.first() == Some(&b'/') {
                let here = at.as_ref().unwrap_or(start);
                if self.has(WalkFlags::BENEATH) {
                    return Err(Errno::EXDEV);
                }
                if self.has(WalkFlags::NO_XDEV) && !Arc::ptr_eq(&root.mount, &here.mount) {
                    return Err(Errno::EXDEV);
                }
                root.clone()
            } else {
                at.take().unwrap_or_else(|| start.clone())
            };
            match self.walk(root, from, &rest)? {
                Step::Done(target) => return Ok(target),
                Step::Link { from, link, rest: after, is_last, target } => {
                    links += 1;
                    if links > MAX_LINKS || self.has(WalkFlags::NO_SYMLINKS) {
                        return Err(Errno::ELOOP);
                    }
                    self.check_protected_link(&from, &link, is_last)?;
                    match target {
                        Link::Path(path) => {
                            if path.is_empty() {
                                return Err(Errno::ENOENT);
                            }
                            let mut longer = path;
                            longer.extend_from_slice(&after);
                            rest = Cow::Owned(longer);
                            at = Some(from);
                        }
                        Link::Place(place) => {
                            if self.has(WalkFlags::NO_MAGICLINKS) {
                                return Err(Errno::ELOOP);
                            }
                            if self
                                .has(WalkFlags::BENEATH | WalkFlags::IN_ROOT | WalkFlags::NO_XDEV)
                            {
                                return Err(Errno::EXDEV);
                            }
                            let trimmed = after.iter().position(|b| *b != b'/');
                            match trimmed {
                                None if after.is_empty() || place.inode().is_dir() => {
                                    return Ok(Target::Place(place));
                                }
                                None => return Err(Errno::ENOTDIR),
                                Some(skip) => {
                                    rest = Cow::Owned(after[skip..].to_vec());
                                    at = Some(place);
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    /// Walks until the end or the first link to be followed.
    fn walk(&self, root: &Location, mut at: Location, path: &[u8]) -> Result<Step> {
        let mut index = 0;
        loop {
            while path.get(index) == Some(&b'/') {
                index += 1;
            }
            if index == path.len() {
                return Ok(Step::Done(Target::Place(at)));
            }
            let end =
                path[index..].iter().position(|b| *b == b'/').map_or(path.len(), |n| index + n);
            let name = &path[index..end];
            let after = &path[end..];
            let is_last = after.iter().all(|b| *b == b'/');
            index = end;
            if !at.inode().is_dir() {
                return Err(Errno::ENOTDIR);
            }
            self.check_search(&at)?;
            match name {
                b"." => continue,
                b".." => {
                    at = self.up(root, at)?;
                    continue;
                }
                _ if name.len() > NAME_MAX => return Err(Errno::ENAMETOOLONG),
                _ => {}
            }
            let dentry = match at.dentry.lookup(name, is_last) {
                Ok(dentry) => dentry,
                Err(Errno::ENOENT)
                    if is_last
                        && (self.has(WalkFlags::NEVER_MADE) || !at.dentry.fs.has_fixed_names()) =>
                {
                    return Ok(Step::Done(Target::Name(NameTarget {
                        parent: at,
                        name: name.to_vec(),
                        found: None,
                        wants_dir: !after.is_empty(),
                    })));
                }
                Err(error) => return Err(error),
            };
            let is_plain = dentry.mounts.load(Ordering::Relaxed) == 0 && !dentry.inode.is_symlink();
            if is_plain && (!is_last || self.has(WalkFlags::EXISTING)) {
                // The usual case: the way there is not needed any more.
                at.dentry = dentry;
                if !is_last {
                    continue;
                }
                if !after.is_empty() && !at.inode().is_dir() {
                    return Err(Errno::ENOTDIR);
                }
                return Ok(Step::Done(Target::Place(at)));
            }
            let child = Location { mount: at.mount.clone(), dentry }.through_mounts();
            if self.has(WalkFlags::NO_XDEV) && !Arc::ptr_eq(&child.mount, &at.mount) {
                return Err(Errno::EXDEV);
            }
            if child.inode().is_symlink() && (!is_last || self.follows_last(after)) {
                let flags = child.mount.flags();
                if self.has(WalkFlags::NO_SYMLINKS) || flags.contains(MountFlags::NOSYMFOLLOW) {
                    return Err(Errno::ELOOP);
                }
                let target = child.inode().read_link(self.caller)?;
                return Ok(Step::Link {
                    from: at,
                    link: child,
                    rest: after.to_vec(),
                    is_last,
                    target,
                });
            }
            if is_last {
                return Ok(Step::Done(Target::Name(NameTarget {
                    parent: at,
                    name: name.to_vec(),
                    found: Some(child),
                    wants_dir: !after.is_empty(),
                })));
            }
            at = child;
        }
    }

    /// True if a link as the last component, with `slashes` behind it, is followed.
    fn follows_last(&self, slashes: &[u8]) -> bool {
        self.has(WalkFlags::FOLLOW) || (!slashes.is_empty() && !self.has(WalkFlags::NAME))
    }

    fn up(&self, root: &Location, at: Location) -> Result<Location> {
        // From the root of a mount to where that lies, and so on; never past the root, which may be
        // covered by what was mounted there later.
        let mut below = at.clone();
        while below.is_mount_root() && !below.is_same(root) {
            let Some(point) = below.mount.point() else { break };
            below = point;
        }
        let parent = match below.dentry.parent().filter(|_| !below.is_mount_root()) {
            Some(dentry) if !below.is_same(root) => Location { mount: below.mount, dentry },
            _ if self.has(WalkFlags::BENEATH) => return Err(Errno::EXDEV),
            _ => at.clone(),
        };
        if !parent.is_on_its_mount() {
            return Err(Errno::ENOENT);
        }
        let parent = parent.through_mounts();
        if self.has(WalkFlags::NO_XDEV) && !Arc::ptr_eq(&parent.mount, &at.mount) {
            return Err(Errno::EXDEV);
        }
        Ok(parent)
    }

    fn check_search(&self, directory: &Location) -> Result {
        // Those who may search everything need no attributes, which may cost a question to the
        // host.
        if self.creds.capable(CAP_DAC_OVERRIDE) || self.creds.capable(CAP_DAC_READ_SEARCH) {
            return Ok(());
        }
        perm::check(self.creds, &directory.inode().permissions()?, perm::EXEC)
    }

    /// fs.protected_symlinks (proc(5)): in a sticky world-writable directory only one's own links
    /// are followed.
    fn check_protected_link(&self, directory: &Location, link: &Location, is_last: bool) -> Result {
        if !is_last {
            return Ok(());
        }
        let place = directory.inode().permissions()?;
        if place.mode & (S_ISVTX | S_IWOTH) != S_ISVTX | S_IWOTH {
            return Ok(());
        }
        let owner = link.attributes()?.uid;
        if owner == self.creds.fsuid || owner == place.uid { Ok(()) } else { Err(Errno::EACCES) }
    }
}

enum Step {
    Done(Target),
    Link { from: Location, link: Location, rest: Vec<u8>, is_last: bool, target: Link },
}
