//! What a thread's own rules allow it to do with files (landlock(7)), besides what permissions say.
//!
//! A rule is about a directory and all below it, or about a file, and follows what it is about
//! through renames. So each question leads up from the file to the root, whatever the thread's own
//! root is; what is allowed by each ruleset on that way adds up, and each has to allow all of it.
//! Which kinds of access there are is what version 2 of the interface has, that of Linux 6.1.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    O_ACCMODE, O_RDONLY, O_WRONLY, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFSOCK,
};

use super::Location;
use crate::creds::Creds;
use crate::creds::landlock::{Domain, Rules};
use crate::errno::{Errno, Result};

/// The version of the interface (LANDLOCK_CREATE_RULESET_VERSION).
pub const VERSION: usize = 2;

/// LANDLOCK_ACCESS_FS_EXECUTE of linux/landlock.h.
pub const EXECUTE: u64 = 1;
/// LANDLOCK_ACCESS_FS_WRITE_FILE.
pub const WRITE_FILE: u64 = 1 << 1;
/// LANDLOCK_ACCESS_FS_READ_FILE.
pub const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const REMOVE_DIR: u64 = 1 << 4;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_CHAR: u64 = 1 << 6;
const MAKE_DIR: u64 = 1 << 7;
const MAKE_REG: u64 = 1 << 8;
const MAKE_SOCK: u64 = 1 << 9;
const MAKE_FIFO: u64 = 1 << 10;
const MAKE_BLOCK: u64 = 1 << 11;
const MAKE_SYM: u64 = 1 << 12;
const REFER: u64 = 1 << 13;
/// All of them.
pub const ALL: u64 = (REFER << 1) - 1;
/// Those that mean something for what is no directory.
pub const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE;

/// What is yet to be allowed, of each ruleset.
type Missing = Vec<u64>;

/// What tells a file from others, as long as its dentry lives.
fn key(place: &Location) -> usize {
    Arc::as_ptr(place.inode()).addr()
}

/// Has rules allow something at a place and below it. ENOMEM.
pub fn allow(rules: &mut Rules, place: &Location, allowed: u64) -> Result {
    // Names that nobody refers to are forgotten, and what they lead to is another object then.
    rules.allow(key(place), place.dentry.clone(), allowed)
}

/// What the rules of a domain handle of `wanted`.
fn handled(domain: &Domain, wanted: u64) -> Missing {
    // Whether it handles that or not, each forbids to give files other parents.
    domain.layers().map(|rules| wanted & (rules.handled() | REFER)).collect()
}

/// The directory that a place is in: of a file without a name the one in which it was made.
pub fn parent(place: &Location) -> Location {
    match place.dentry.home() {
        Some(dentry) => Location { mount: place.mount.clone(), dentry },
        None => place.parent(),
    }
}

/// Takes what is allowed at `place`, or above it, from what is missing.
fn look_up(domain: &Domain, place: &Location, missing: &mut Missing) {
    // What has no place in the tree (pipes, memfd_create(2)) is whoever's has a descriptor.
    if place.mount.is_hidden() {
        missing.fill(0);
    }
    let mut at = place.clone();
    while missing.iter().any(|bits| *bits != 0) {
        let key = key(&at);
        for (bits, rules) in missing.iter_mut().zip(domain.layers()) {
            *bits &= !rules.allowed(key);
        }
        let parent = parent(&at);
        if parent.is_same(&at) {
            break;
        }
        at = parent;
    }
}

/// EACCES unless all of `wanted` is allowed at `place`.
pub fn check(creds: &Creds, place: &Location, wanted: u64) -> Result {
    if creds.domain.is_free() {
        return Ok(());
    }
    let mut missing = handled(&creds.domain, wanted);
    look_up(&creds.domain, place, &mut missing);
    if missing.iter().all(|bits| *bits == 0) { Ok(()) } else { Err(Errno::EACCES) }
}

/// The same for who opens what is there with O_* `flags`.
pub fn check_open(creds: &Creds, place: &Location, flags: u32) -> Result {
    let read = if place.inode().is_dir() { READ_DIR } else { READ_FILE };
    check(creds, place, opening(read, flags))
}

/// The same for who makes a file without a name in `directory` (O_TMPFILE).
pub fn check_unnamed(creds: &Creds, directory: &Location, flags: u32) -> Result {
    check(creds, directory, opening(READ_FILE, flags))
}

/// What opening with O_* `flags` is, where to read is `read`.
fn opening(read: u64, flags: u32) -> u64 {
    match flags & O_ACCMODE {
        O_RDONLY => read,
        O_WRONLY => WRITE_FILE,
        _ => read | WRITE_FILE,
    }
}

/// What making something of this mode in a directory is.
fn making(mode: u32) -> u64 {
    match mode & S_IFMT {
        S_IFDIR => MAKE_DIR,
        S_IFLNK => MAKE_SYM,
        S_IFSOCK => MAKE_SOCK,
        S_IFIFO => MAKE_FIFO,
        S_IFCHR => MAKE_CHAR,
        S_IFBLK => MAKE_BLOCK,
        _ => MAKE_REG,
    }
}

/// What taking something out of a directory is.
fn removing(is_dir: bool) -> u64 {
    if is_dir { REMOVE_DIR } else { REMOVE_FILE }
}

/// EACCES unless something of this mode may be made in `directory`.
pub fn check_make(creds: &Creds, directory: &Location, mode: u32) -> Result {
    check(creds, directory, making(mode))
}

/// EACCES unless a file, or a directory, may be taken out of `directory`.
pub fn check_remove(creds: &Creds, directory: &Location, is_dir: bool) -> Result {
    check(creds, directory, removing(is_dir))
}

/// A name that is made of another one: by link(2), or by rename(2).
pub struct Move<'a> {
    /// What has the name.
    pub child: &'a Location,
    /// The directory that it is in.
    pub from: &'a Location,
    /// The one that it gets to.
    pub to: &'a Location,
    /// What has that name there already.
    pub replaced: Option<&'a Location>,
    /// link(2): the old name stays.
    pub is_link: bool,
    /// RENAME_EXCHANGE: what has the new name gets the old one.
    pub exchanges: bool,
}

/// Checks that a name may be made of another one: EACCES unless both directories may be changed
/// so, EXDEV if their difference is what is in the way: no file gets to where it may be used in
/// more ways.
pub fn check_move(creds: &Creds, names: &Move<'_>) -> Result {
    let domain = &creds.domain;
    if domain.is_free() {
        return Ok(());
    }
    let Move { child, from, to, replaced, is_link, exchanges } = *names;
    let is_dir = child.inode().is_dir();
    let mut at_source = if is_link { 0 } else { removing(is_dir) };
    let mut at_target = making(child.inode().kind());
    if let Some(replaced) = replaced {
        at_target |= removing(replaced.inode().is_dir());
        if exchanges {
            at_source |= making(replaced.inode().kind());
        }
    }
    if from.is_same(to) {
        return check(creds, from, at_source | at_target);
    }
    let mut is_far = false;
    for (directory, wanted) in [(from, at_source), (to, at_target)] {
        let mut missing = handled(domain, wanted | REFER);
        look_up(domain, directory, &mut missing);
        let missing = missing.iter().fold(0, |all, bits| all | bits);
        if missing & !REFER != 0 {
            return Err(Errno::EACCES);
        }
        is_far |= missing != 0;
    }
    let back = replaced.filter(|_| exchanges);
    let gains =
        gains(domain, child, from, to) || back.is_some_and(|it| gains(domain, it, to, from));
    if is_far || gains { Err(Errno::EXDEV) } else { Ok(()) }
}

/// True if a child of `from` may be used in more ways as one of `to`.
fn gains(domain: &Domain, child: &Location, from: &Location, to: &Location) -> bool {
    let kinds = if child.inode().is_dir() { ALL & !REFER } else { OF_FILES };
    let own = key(child);
    let forbidden = |directory: &Location| {
        let mut missing = handled(domain, kinds);
        for (bits, rules) in missing.iter_mut().zip(domain.layers()) {
            *bits &= !rules.allowed(own);
        }
        look_up(domain, directory, &mut missing);
        missing
    };
    let (before, after) = (forbidden(from), forbidden(to));
    before.iter().zip(&after).any(|(before, after)| before & !after != 0)
}
