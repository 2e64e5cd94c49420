//! Paths that come from the guest. They are plain: relative, no `..`, no symbolic link followed.
//! The host kernel enforces it again with openat2(2).

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::super::memory::GuestRange;
use super::table::{Kind, Object};

/// PATH_MAX, without the NUL.
const MAX_PATH: usize = 4095;

/// How every path is walked.
pub const RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// A checked path, with a NUL at its end.
#[derive(Clone, Debug)]
pub struct GuestPath {
    bytes: SmallVec<[u8; 128]>,
}

/// A directory that is either the handle's own or one opened for this call.
#[derive(Debug)]
pub enum Parent<'a> {
    /// The handle's own.
    Root(BorrowedFd<'a>),
    /// Opened on the way.
    Below(OwnedFd),
}

impl AsFd for Parent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Parent::Root(fd) => *fd,
            Parent::Below(fd) => fd.as_fd(),
        }
    }
}

impl GuestPath {
    /// Copies a path out of guest memory and checks its form: EINVAL for an absolute path, an empty
    /// component, `.`, `..` or a NUL; ENAMETOOLONG.
    pub fn read(range: GuestRange<'_>) -> Result<GuestPath, Errno> {
        if range.len() > MAX_PATH {
            return Err(Errno::NAMETOOLONG);
        }
        let mut bytes = SmallVec::from_elem(0, range.len());
        range.read(&mut bytes)?;
        GuestPath::new(bytes)
    }

    fn new(mut bytes: SmallVec<[u8; 128]>) -> Result<GuestPath, Errno> {
        let plain = |c: &[u8]| !c.is_empty() && c != b"." && c != b"..";
        if !bytes.is_empty() && (bytes.contains(&0) || !bytes.split(|b| *b == b'/').all(plain)) {
            return Err(Errno::INVAL);
        }
        bytes.push(0);
        Ok(GuestPath { bytes })
    }

    /// True if it names the root itself.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == 1
    }

    /// True if it is a single name, for which a directory descriptor and AT_SYMLINK_NOFOLLOW are
    /// enough.
    pub fn is_name(&self) -> bool {
        !self.is_empty() && !self.bytes.contains(&b'/')
    }

    /// As a C string.
    pub fn as_c(&self) -> &CStr {
        // The constructor put the only NUL at the end.
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }

    /// The directory in which the last component lies, and that component. EINVAL for the empty
    /// path.
    pub fn parent<'a>(&self, root: &'a Object) -> Result<(Parent<'a>, &CStr), Errno> {
        if self.is_empty() {
            return Err(Errno::INVAL);
        }
        let root = directory(root)?;
        let Some(slash) = self.bytes.iter().rposition(|b| *b == b'/') else {
            return Ok((Parent::Root(root), self.as_c()));
        };
        let name =
            CStr::from_bytes_until_nul(&self.bytes[slash + 1..]).map_err(|_| Errno::INVAL)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat2(root, &self.bytes[..slash], flags, Mode::empty(), RESOLVE)?;
        Ok((Parent::Below(dir), name))
    }

    /// An O_PATH descriptor of what it names (a symbolic link itself). EINVAL for the empty path.
    pub fn open_path(&self, root: &Object) -> Result<OwnedFd, Errno> {
        if self.is_empty() {
            return Err(Errno::INVAL);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if self.is_name() {
            // openat2 refuses a link in the last place with O_PATH | O_NOFOLLOW and
            // RESOLVE_NO_SYMLINKS; a single name needs none of its care.
            return rustix::fs::openat(directory(root)?, self.as_c(), flags, Mode::empty());
        }
        let (parent, name) = self.parent(root)?;
        rustix::fs::openat(parent, name, flags, Mode::empty())
    }
}

/// The descriptor of a directory handle; ENOTDIR for others.
pub fn directory(root: &Object) -> Result<BorrowedFd<'_>, Errno> {
    match root.kind() {
        Kind::Dir { .. } => Ok(root.as_fd()),
        _ => Err(Errno::NOTDIR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_relative_paths_pass() {
        for good in ["", "a", "a/b", "...", "a/..b", ".a"] {
            assert!(GuestPath::new(SmallVec::from_slice(good.as_bytes())).is_ok(), "{good}");
        }
        for bad in ["/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a\0b"] {
            assert!(GuestPath::new(SmallVec::from_slice(bad.as_bytes())).is_err(), "{bad}");
        }
    }
}
