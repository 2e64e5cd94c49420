//! Copies of directories, with all that is in them: by reference where the file system can, so that
//! they take neither time nor space.
//!
//! What is copied is hostile: it belongs to programs of a container. No name in it leads out of it,
//! and what another file system is mounted on is not entered.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;
use rustix::path::Arg;

use super::directory::{copy_part, listed};
use crate::sys;

/// The most that the names of extended attributes of a file take, and the value of one
/// (`linux/limits.h`), in bytes.
const MAX_XATTR: usize = 64 << 10;
/// How deep directories may lie in each other: whoever removes an image may have one open for each
/// level.
const MAX_DEPTH: usize = 512;

/// Makes a directory that nobody else may enter, and opens it.
///
/// # Errors
/// With its path.
pub fn make(path: &Path) -> Result<File> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(path);
    made.and_then(|()| File::open(path)).with_context(|| format!("making {}", path.display()))
}

/// Opens a directory of `dir`, which is no link.
///
/// # Errors
/// Those of the file system.
pub fn open(dir: BorrowedFd<'_>, name: impl Arg) -> rustix::io::Result<OwnedFd> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, how, Mode::empty())
}

/// Copies the directory `from` to the empty directory `to`. Ownership, permissions, times, links,
/// holes and extended attributes stay, but for labels of security modules, which the host gives.
///
/// # Errors
/// With the name of what cannot be copied. What has been copied is left.
pub fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<()> {
    let mut links = HashMap::new();
    let mut dirs = vec![PathBuf::from(".")];
    let mut done = 0;
    while let Some(path) = dirs.get(done).cloned() {
        done += 1;
        let naming = || format!("copying {}", path.display());
        ensure!(path.components().count() <= MAX_DEPTH, "its directories are nested too deep");
        let source = below(from, &path, OFlags::RDONLY | OFlags::DIRECTORY).with_context(naming)?;
        let target = below(to, &path, OFlags::RDONLY | OFlags::DIRECTORY).with_context(naming)?;
        for item in Dir::read_from(&source).with_context(naming)? {
            let item = item.with_context(naming)?;
            let name = item.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let path = path.join(OsStr::from_bytes(name.to_bytes()));
            let one = One { source: source.as_fd(), target: target.as_fd(), name, path: &path };
            let is_dir = one.copy(to, &mut links);
            if is_dir.with_context(|| format!("copying {}", path.display()))? {
                dirs.push(path);
            }
        }
    }
    // What is in a directory changes its times, and may not be written once it is as it was.
    for path in dirs.iter().rev() {
        let finish = || -> Result<()> {
            let source = below(from, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
            let target = below(to, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
            finish(&source, &target, &rustix::fs::fstat(&source)?)
        };
        finish().with_context(|| format!("copying {}", path.display()))?;
    }
    Ok(())
}

/// Removes a directory with all that is in it, however deep that is, and whoever may write to it.
///
/// # Errors
/// Those of the file system, NOENT if there is none.
pub fn remove(dir: &Path) -> io::Result<()> {
    let top = open(rustix::fs::CWD, dir)?;
    // What lies in a directory of it is moved up, so nothing lies deeper than that.
    let mut number: u64 = 0;
    let mut left = clear(&top, &top, &mut number)?;
    while let Some(name) = left.pop() {
        let inner = open(top.as_fd(), &*name)?;
        left.extend(clear(&inner, &top, &mut number)?);
        rustix::fs::unlinkat(&top, &*name, AtFlags::REMOVEDIR)?;
    }
    std::fs::remove_dir(dir)
}

/// Removes what is in `dir` but for directories, which get new names in `top`: those.
fn clear(dir: &OwnedFd, top: &OwnedFd, number: &mut u64) -> io::Result<Vec<CString>> {
    let all = Mode::RWXU;
    rustix::fs::fchmod(dir, all).ok();
    let names: Vec<CString> = Dir::read_from(dir)?
        .map(|item| item.map(|item| item.file_name().to_owned()))
        .collect::<Result<_, _>>()?;
    let mut dirs = Vec::new();
    for name in names.iter().filter(|name| ![c".", c".."].contains(&name.as_c_str())) {
        let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(inner) = rustix::fs::openat(dir, name, how, Mode::empty()) else {
            rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
            continue;
        };
        // Who moves a directory writes to it.
        rustix::fs::chmod(listed("fd", &inner), all).ok();
        loop {
            *number += 1;
            let new = CString::new(format!("{number}:"))?;
            let flags = rustix::fs::RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(dir, name, top, &new, flags) {
                Err(Errno::EXIST) => {}
                moved => {
                    moved?;
                    dirs.push(new);
                    break;
                }
            }
        }
    }
    Ok(dirs)
}

/// Opens what lies at a path below a directory, in its file system; no link is followed.
fn below(dir: BorrowedFd<'_>, path: &Path, how: OFlags) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    // Whatever it is by now, opening it must not wait.
    let how = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match rustix::fs::openat2(dir, path, how, Mode::empty(), resolve) {
        Err(Errno::XDEV) => bail!("another file system is mounted there"),
        opened => Ok(opened?),
    }
}

/// A name in a directory that is copied.
struct One<'a> {
    source: BorrowedFd<'a>,
    target: BorrowedFd<'a>,
    name: &'a CStr,
    /// The whole path, from the directory that is copied.
    path: &'a Path,
}

impl One<'_> {
    /// Copies it; whether it is a directory, whose content is left. `links` has the first name of
    /// each file that has several, in `to`.
    fn copy(&self, to: BorrowedFd<'_>, links: &mut HashMap<(u64, u64), PathBuf>) -> Result<bool> {
        let stat = rustix::fs::statat(self.source, self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            rustix::fs::mkdirat(self.target, self.name, Mode::from_raw_mode(0o700))?;
            return Ok(true);
        }
        if stat.st_nlink > 1 {
            if let Some(first) = links.get(&(stat.st_dev, stat.st_ino)) {
                rustix::fs::linkat(to, first, self.target, self.name, AtFlags::empty())?;
                return Ok(false);
            }
            links.insert((stat.st_dev, stat.st_ino), self.path.to_owned());
        }
        match kind {
            FileType::RegularFile => return self.copy_file().map(|()| false),
            FileType::Symlink => {
                let to = rustix::fs::readlinkat(self.source, self.name, Vec::new())?;
                rustix::fs::symlinkat(&to, self.target, self.name)?;
            }
            FileType::Fifo | FileType::Socket => {
                rustix::fs::mknodat(self.target, self.name, kind, Mode::from_raw_mode(0o600), 0)?;
            }
            FileType::CharacterDevice | FileType::BlockDevice => {
                bail!("it is a device, and such are not copied: remove it, or leave it elsewhere")
            }
            other => bail!("it is no kind of file that can be copied ({other:?})"),
        }
        self.finish_special(&stat, kind)
    }

    fn copy_file(&self) -> Result<()> {
        let name = Path::new(OsStr::from_bytes(self.name.to_bytes()));
        let source = File::from(below(self.source, name, OFlags::RDONLY)?);
        let stat = rustix::fs::fstat(&source)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        ensure!(is_file, "it is another file than a moment ago");
        let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(0o600);
        let how = how | OFlags::CLOEXEC;
        let target = File::from(rustix::fs::openat(self.target, self.name, how, mode)?);
        copy_content(&source, &target)?;
        finish(source.as_fd(), target.as_fd(), &stat)
    }

    /// Gives something that cannot be opened what else it has.
    fn finish_special(&self, stat: &Stat, kind: FileType) -> Result<bool> {
        let (target, name, flags) = (self.target, self.name, AtFlags::SYMLINK_NOFOLLOW);
        rustix::fs::chownat(target, name, owner(stat).0, owner(stat).1, flags)?;
        let path =
            |dir: BorrowedFd<'_>| listed("fd", dir).join(OsStr::from_bytes(self.name.to_bytes()));
        let (from, to) = (path(self.source), path(self.target));
        copy_xattrs(
            &|names| rustix::fs::llistxattr(&from, names),
            &|name, value| rustix::fs::lgetxattr(&from, name, value),
            &|name, value| rustix::fs::lsetxattr(&to, name, value, XattrFlags::empty()),
        )?;
        if kind != FileType::Symlink {
            let mode = Mode::from_raw_mode(stat.st_mode);
            rustix::fs::chmodat(target, name, mode, AtFlags::empty())?;
        }
        rustix::fs::utimensat(target, name, &times(stat), flags)?;
        Ok(false)
    }
}

/// Copies what is not a hole, or has both have it.
fn copy_content(from: &File, to: &File) -> Result<()> {
    match rustix::fs::ioctl_ficlone(to, from) {
        Err(e @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => return Err(e.into()),
        Err(_) => {}
        Ok(()) => return Ok(()),
    }
    to.set_len(from.metadata()?.len())?;
    for extent in sys::extents(from.as_fd()) {
        let (start, end) = extent?;
        match copy_part(from, to, start, end - start) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                bail!("it has become shorter meanwhile")
            }
            copied => copied?,
        }
    }
    Ok(())
}

/// Gives a file or directory that is open what it has besides its content.
fn finish(from: impl AsFd, to: impl AsFd, stat: &Stat) -> Result<()> {
    let (uid, gid) = owner(stat);
    rustix::fs::fchown(&to, uid, gid)?;
    copy_xattrs(
        &|names| rustix::fs::flistxattr(&from, names),
        &|name, value| rustix::fs::fgetxattr(&from, name, value),
        &|name, value| rustix::fs::fsetxattr(&to, name, value, XattrFlags::empty()),
    )?;
    rustix::fs::fchmod(&to, Mode::from_raw_mode(stat.st_mode))?;
    Ok(rustix::fs::futimens(&to, &times(stat))?)
}

fn owner(stat: &Stat) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))
}

fn times(stat: &Stat) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: stat.st_atime, tv_nsec: stat.st_atime_nsec as _ },
        last_modification: Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as _ },
    }
}

type List<'a> = &'a dyn Fn(&mut [u8]) -> rustix::io::Result<usize>;
type Get<'a> = &'a dyn Fn(&CStr, &mut [u8]) -> rustix::io::Result<usize>;
type Set<'a> = &'a dyn Fn(&CStr, &[u8]) -> rustix::io::Result<()>;

fn copy_xattrs(list: List<'_>, get: Get<'_>, set: Set<'_>) -> Result<()> {
    let mut names = vec![0; MAX_XATTR];
    let length = match list(&mut names) {
        // A file system that has none.
        Err(Errno::OPNOTSUPP) => return Ok(()),
        listed => listed?,
    };
    let mut value = vec![0; MAX_XATTR];
    for name in names[..length].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        if is_label(name.to_bytes()) {
            continue;
        }
        let naming = || format!("its extended attribute {}", name.to_string_lossy());
        let length = match get(name, &mut value) {
            // It is gone meanwhile.
            Err(Errno::NODATA) => continue,
            got => got.with_context(naming)?,
        };
        set(name, &value[..length]).with_context(naming)?;
    }
    Ok(())
}

/// True for what a security module of the host keeps of a file.
fn is_label(name: &[u8]) -> bool {
    name.starts_with(b"security.") && name != b"security.capability"
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

    use rustix::fs::CWD;

    use super::*;

    fn scratch(name: &str) -> (PathBuf, PathBuf) {
        let dir = std::env::temp_dir().join(format!("quark-tree-{name}-{}", std::process::id()));
        fs::remove_dir_all(&dir).ok();
        let (from, to) = (dir.join("from"), dir.join("to"));
        fs::create_dir_all(&from).unwrap();
        fs::create_dir_all(&to).unwrap();
        (from, to)
    }

    fn copied(from: &Path, to: &Path) -> Result<()> {
        let (from, to) = (File::open(from).unwrap(), File::open(to).unwrap());
        copy(from.as_fd(), to.as_fd())
    }

    fn removed(from: &Path) {
        fs::remove_dir_all(from.parent().unwrap()).unwrap();
    }

    #[test]
    fn all_that_a_file_has_is_there_again() {
        let (from, to) = scratch("whole");
        fs::create_dir_all(from.join("deep/er")).unwrap();
        fs::write(from.join("deep/er/file"), "content").unwrap();
        fs::hard_link(from.join("deep/er/file"), from.join("again")).unwrap();
        symlink("/nowhere/at all", from.join("deep/link")).unwrap();
        let sparse = File::create(from.join("sparse")).unwrap();
        sparse.set_len(64 << 20).unwrap();
        sparse.write_all_at(b"in the middle", 32 << 20).unwrap();
        rustix::fs::mknodat(CWD, from.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
        drop(socket);
        fs::write(from.join("empty"), "").unwrap();
        fs::set_permissions(from.join("empty"), fs::Permissions::from_mode(0o4711)).unwrap();
        let file = from.join("again");
        let xattr = rustix::fs::setxattr(&file, c"user.note", b"kept", XattrFlags::empty());
        let has_xattr = xattr.is_ok();
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            std::os::unix::fs::chown(from.join("empty"), Some(1234), Some(4321)).unwrap();
            fs::set_permissions(from.join("empty"), fs::Permissions::from_mode(0o4711)).unwrap();
            std::os::unix::fs::lchown(from.join("deep/link"), Some(77), Some(78)).unwrap();
        }
        let long_ago = Timespec { tv_sec: 1_000_000, tv_nsec: 123_456_789 };
        let then = Timestamps { last_access: long_ago, last_modification: long_ago };
        for name in ["deep/link", "deep/er/file", "fifo", "deep/er", "deep", "."] {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::utimensat(CWD, from.join(name), &then, flags).unwrap();
        }
        fs::set_permissions(from.join("deep/er"), fs::Permissions::from_mode(0o500)).unwrap();
        copied(&from, &to).unwrap();
        for name in [
            ".",
            "deep",
            "deep/er",
            "deep/er/file",
            "deep/link",
            "again",
            "sparse",
            "fifo",
            "socket",
            "empty",
        ] {
            let stat = |dir: &Path| {
                let stat = fs::symlink_metadata(dir.join(name)).unwrap();
                let times = (stat.mtime(), stat.mtime_nsec());
                (stat.mode(), stat.uid(), stat.gid(), stat.nlink(), times)
            };
            assert_eq!(stat(&from), stat(&to), "{name}");
        }
        assert_eq!(fs::read(to.join("again")).unwrap(), b"content");
        let inode = |name: &str| fs::metadata(to.join(name)).unwrap().ino();
        assert_eq!(inode("again"), inode("deep/er/file"));
        assert_eq!(fs::read_link(to.join("deep/link")).unwrap(), Path::new("/nowhere/at all"));
        let sparse = File::open(to.join("sparse")).unwrap();
        let mut bytes = [0; 13];
        sparse.read_exact_at(&mut bytes, 32 << 20).unwrap();
        assert_eq!(&bytes, b"in the middle");
        let stat = sparse.metadata().unwrap();
        assert_eq!(stat.len(), 64 << 20);
        assert!(stat.blocks() * 512 < 8 << 20, "{} blocks", stat.blocks());
        if has_xattr {
            let mut value = [0; 16];
            let length = rustix::fs::getxattr(to.join("again"), c"user.note", &mut value).unwrap();
            assert_eq!(&value[..length], b"kept");
        }
        fs::set_permissions(from.join("deep/er"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::set_permissions(to.join("deep/er"), fs::Permissions::from_mode(0o700)).unwrap();
        removed(&from);
    }

    #[test]
    fn what_is_deep_is_refused_and_removed() {
        let (from, to) = scratch("deep");
        let mut at = File::open(&from).unwrap();
        for depth in 0..3000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            rustix::fs::openat(&at, "f", OFlags::CREATE | OFlags::RDWR, Mode::RUSR).unwrap();
            let how = OFlags::RDONLY | OFlags::DIRECTORY;
            at = File::from(rustix::fs::openat(&at, "d", how, Mode::empty()).unwrap());
            if depth == 100 {
                rustix::fs::fchmod(&at, Mode::RUSR | Mode::XUSR | Mode::WUSR).unwrap();
            }
        }
        let error = format!("{:#}", copied(&from, &to).unwrap_err());
        assert!(error.contains("too deep"), "{}", error.len());
        symlink("/etc", from.join("1:")).unwrap();
        fs::create_dir(from.join("2:")).unwrap();
        fs::set_permissions(from.join("2:"), fs::Permissions::from_mode(0o0)).unwrap();
        for dir in [&from, &to] {
            remove(dir).unwrap();
            assert!(!dir.exists());
        }
        assert_eq!(remove(&from).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(Path::new("/etc/passwd").exists());
        fs::remove_dir(from.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_device_is_refused_by_name() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (from, to) = scratch("device");
        fs::create_dir(from.join("dir")).unwrap();
        let device = rustix::fs::makedev(1, 3);
        let path = from.join("dir/null");
        rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::RUSR, device).unwrap();
        let error = format!("{:#}", copied(&from, &to).unwrap_err());
        assert!(error.contains("dir/null") && error.contains("is a device"), "{error}");
        removed(&from);
    }

    #[test]
    fn links_lead_nowhere() {
        let (from, to) = scratch("links");
        let outside = from.parent().unwrap().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), "secret").unwrap();
        symlink(&outside, from.join("dir")).unwrap();
        symlink("../outside/secret", from.join("file")).unwrap();
        copied(&from, &to).unwrap();
        for name in ["dir", "file"] {
            assert!(fs::symlink_metadata(to.join(name)).unwrap().is_symlink(), "{name}");
        }
        let root = File::open(&from).unwrap();
        for name in ["dir/secret", "file", "../outside/secret"] {
            assert!(below(root.as_fd(), Path::new(name), OFlags::RDONLY).is_err(), "{name}");
        }
        removed(&from);
    }
}
