//! Permission checks, by the guest's own credentials: the host side acts as root and checks nothing
//! of the kind.

use linux_raw_sys::general::{
    CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID, S_ISGID, S_ISVTX, S_IXGRP,
};

use super::attr::Attributes;
use crate::creds::Creds;
use crate::errno::{Errno, Result};

/// May read.
pub const READ: u32 = 4;
/// May write.
pub const WRITE: u32 = 2;
/// May execute, or search a directory.
pub const EXEC: u32 = 1;

/// True if `creds` may access a file in the ways `want` (READ, WRITE, EXEC): EACCES if not.
pub fn check(creds: &Creds, file: &Attributes, want: u32) -> Result {
    let bits = if creds.fsuid == file.uid {
        file.mode >> 6
    } else if creds.in_group(file.gid) {
        file.mode >> 3
    } else {
        file.mode
    };
    if want & !bits & 7 == 0 {
        return Ok(());
    }
    if creds.capable_over(file.owner(), CAP_DAC_OVERRIDE)
        && (want & EXEC == 0 || file.is_dir() || file.mode & 0o111 != 0)
    {
        return Ok(());
    }
    if creds.capable_over(file.owner(), CAP_DAC_READ_SEARCH)
        && (want == READ || file.is_dir() && want & WRITE == 0)
    {
        return Ok(());
    }
    Err(Errno::EACCES)
}

/// True if `creds` act as the owner of a file: EPERM if not.
pub fn check_owner(creds: &Creds, file: &Attributes) -> Result {
    // Of the owner alone the user namespace must have a number.
    let owns = creds.fsuid == file.uid
        || creds.capable_here(CAP_FOWNER) && creds.user.uid_in(file.uid).is_some();
    if owns { Ok(()) } else { Err(Errno::EPERM) }
}

/// True if `creds` may remove `child` from `directory` in view of the sticky bit: EPERM if not.
pub fn check_sticky(creds: &Creds, directory: &Attributes, child: &Attributes) -> Result {
    if directory.mode & S_ISVTX == 0
        || creds.fsuid == child.uid
        || creds.fsuid == directory.uid
        || creds.capable_over(child.owner(), CAP_FOWNER)
    {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// The mode and group of a new file in `directory`: a set-group-id directory hands down its group
/// (and, to directories, the bit).
pub fn inherit(creds: &Creds, directory: &Attributes, mode: u32, is_dir: bool) -> (u32, u32) {
    if directory.mode & S_ISGID == 0 {
        return (mode, creds.fsgid);
    }
    if is_dir {
        return (mode | S_ISGID, directory.gid);
    }
    let foreign =
        !creds.in_group(directory.gid) && !creds.capable_over(directory.owner(), CAP_FSETID);
    let mode = if foreign && mode & S_IXGRP != 0 { mode & !S_ISGID } else { mode };
    (mode, directory.gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mode: u32) -> Attributes {
        Attributes { mode, uid: 10, gid: 20, ..Attributes::default() }
    }

    #[test]
    fn the_first_class_that_matches_decides() {
        let owner = Creds { fsuid: 10, fsgid: 20, ..Creds::default() };
        assert_eq!(check(&owner, &file(0o100_077), READ), Err(Errno::EACCES));
        assert_eq!(check(&owner, &file(0o100_600), READ | WRITE), Ok(()));
        let member = Creds { fsuid: 11, fsgid: 9, groups: alloc::vec![20], ..Creds::default() };
        assert_eq!(check(&member, &file(0o100_640), READ), Ok(()));
        assert_eq!(check(&member, &file(0o100_646), WRITE), Err(Errno::EACCES));
        let other = Creds { fsuid: 11, fsgid: 9, ..Creds::default() };
        assert_eq!(check(&other, &file(0o100_644), READ), Ok(()));
        assert_eq!(check(&other, &file(0o100_644), EXEC), Err(Errno::EACCES));
    }

    #[test]
    fn root_may_not_execute_what_nobody_may() {
        let root = Creds { cap_effective: 1 << CAP_DAC_OVERRIDE, ..Creds::default() };
        assert_eq!(check(&root, &file(0o100_000), READ | WRITE), Ok(()));
        assert_eq!(check(&root, &file(0o100_600), EXEC), Err(Errno::EACCES));
        assert_eq!(check(&root, &file(0o100_001), EXEC), Ok(()));
        assert_eq!(check(&root, &file(0o040_000), EXEC), Ok(()));
    }
}
