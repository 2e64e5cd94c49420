//! Finding and opening files on behalf of a caller.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{
    AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH,
    CAP_FSETID, CAP_MKNOD, IN_MODIFY, IN_OPEN, O_ACCMODE, O_CLOEXEC, O_CREAT, O_DIRECT,
    O_DIRECTORY, O_EXCL, O_NOATIME, O_NOCTTY, O_NOFOLLOW, O_PATH, O_RDONLY, O_RDWR, O_TMPFILE,
    O_TRUNC, O_WRONLY, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_ISGID, S_ISUID, S_ISVTX,
    S_IWGRP, S_IWOTH, S_IXGRP,
};

use super::attr::{Attributes, SetAttributes, SetTime, is_device};
use super::busy::Claim;
use super::dentry::Dentry;
use super::inode::{Inode, NewNode, begin_walk};
use super::mount::MountFlags;
use super::perm;
use super::walk::{NameTarget, Target, Walk, WalkFlags};
use super::{Fd, FileOps, Location, OpenFile, ask, dnotify, landlock, lease, lock, notify};
use crate::creds::{Creds, FileCaps};
use crate::errno::{Errno, Result};
use crate::fs::Caller;
use crate::host::Handle;
use crate::user_namespace::UserNs;

/// How to open (open(2), openat2(2)).
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenHow {
    /// O_*.
    pub flags: u32,
    /// Permission bits of a new file, before the umask.
    pub mode: u32,
    /// RESOLVE_* as walk flags.
    pub resolve: WalkFlags,
}

/// The directory `dirfd` is open on.
fn directory_of(caller: &dyn Caller, root: &Location, dirfd: Fd, path: &[u8]) -> Result<Location> {
    let file = caller.files().get(dirfd)?;
    match path {
        [] => file.place(root).ok_or(Errno::EBADF),
        _ => file.path.clone().ok_or(Errno::ENOTDIR),
    }
}

/// Resolves `path` for `thread` with `creds`.
pub fn walk_as(
    caller: &dyn Caller,
    creds: &Creds,
    dirfd: Fd,
    path: &[u8],
    flags: WalkFlags,
) -> Result<Target> {
    // An absolute path begins at the root, whatever `dirfd` is, unless that is to be the root
    // itself.
    let from_root = path.first() == Some(&b'/') && !flags.contains(WalkFlags::IN_ROOT);
    let (root, cwd) = caller.with_fs(|fs| {
        let from_cwd = !from_root && dirfd == AT_FDCWD;
        (fs.root.clone(), from_cwd.then(|| fs.cwd.clone()))
    });
    let start = match cwd {
        None if !from_root => Some(directory_of(caller, &root, dirfd, path)?),
        start => start,
    };
    let walk = Walk { creds, caller: Some(caller), root, flags };
    walk.resolve(start.as_ref().unwrap_or(&walk.root), path)
}

/// Resolves `path`; the last component may be missing.
pub fn walk(caller: &dyn Caller, dirfd: Fd, path: &[u8], flags: WalkFlags) -> Result<Target> {
    walk_as(caller, &caller.creds(), dirfd, path, flags)
}

/// AT_* flags of a call as walk flags: follows links unless AT_SYMLINK_NOFOLLOW.
pub fn walk_flags(at_flags: u32) -> WalkFlags {
    let mut flags = WalkFlags::empty();
    flags.set(WalkFlags::FOLLOW, at_flags & AT_SYMLINK_NOFOLLOW == 0);
    flags.set(WalkFlags::EMPTY, at_flags & AT_EMPTY_PATH != 0);
    flags
}

/// A descriptor of `file` was closed by `caller`.
pub fn closed(caller: &dyn Caller, file: &OpenFile) {
    lock::closed(caller, file);
    if !dnotify::is_unused() {
        dnotify::closed(file, &caller.files());
    }
    file.ops.closed_by(caller.pid());
}

/// The place `path` leads to from `dirfd`; `at_flags`: AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH.
pub fn lookup(caller: &dyn Caller, dirfd: Fd, path: &[u8], at_flags: u32) -> Result<Location> {
    walk(caller, dirfd, path, walk_flags(at_flags) | WalkFlags::EXISTING)?.existing()
}

/// A file that is open only as a place (O_PATH).
struct PathOnly;

impl FileOps for PathOnly {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Opens `path` (open(2)); the mode's umask is applied here. ELEASED while a lease stands in the
/// way ([`lease::when_broken`]), EASKED while somebody is asked ([`ask`]).
pub fn open(caller: &dyn Caller, dirfd: Fd, path: &[u8], how: &OpenHow) -> Result<Arc<OpenFile>> {
    let creds = caller.creds();
    let mut flags = how.flags;
    if flags & O_PATH != 0 {
        flags &= O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    }
    let unnamed = flags & O_TMPFILE == O_TMPFILE;
    if unnamed && flags & O_ACCMODE == O_RDONLY {
        return Err(Errno::EINVAL);
    }
    let creates = flags & O_CREAT != 0 && !unnamed;
    if creates && flags & O_DIRECTORY != 0 {
        return Err(Errno::EINVAL);
    }
    let mut walk_flags = how.resolve;
    let exclusive = creates && flags & O_EXCL != 0;
    walk_flags.set(WalkFlags::FOLLOW, flags & O_NOFOLLOW == 0 && !exclusive);
    walk_flags.set(WalkFlags::EXISTING, !creates);
    for _ in 0..3 {
        let target = walk_as(caller, &creds, dirfd, path, walk_flags)?;
        if unnamed {
            return open_unnamed(caller, &creds, target.existing()?, how);
        }
        let place = match target {
            Target::Name(NameTarget { found: None, wants_dir, parent, name }) if creates => {
                if wants_dir {
                    return Err(Errno::EISDIR);
                }
                match create(caller, &creds, &parent, &name, how) {
                    // Somebody on the host made it meanwhile.
                    Err(Errno::EEXIST) if !exclusive => {
                        begin_walk();
                        continue;
                    }
                    result => return result,
                }
            }
            Target::Name(NameTarget { found: Some(_), .. }) | Target::Place(_) if exclusive => {
                return Err(Errno::EEXIST);
            }
            Target::Name(NameTarget { found: Some(found), wants_dir: true, .. })
                if creates && !found.inode().is_dir() =>
            {
                return Err(Errno::ENOTDIR);
            }
            target => target.existing()?,
        };
        return open_place(caller, &creds, place, flags, creates);
    }
    Err(Errno::EAGAIN)
}

/// Opens `path` in the mount whose root is `root`, wherever that lies, and follows nothing out of
/// it.
pub fn open_below(
    caller: &dyn Caller,
    root: &Location,
    path: &[u8],
    flags: u32,
) -> Result<Arc<OpenFile>> {
    let creds = caller.creds();
    let walk_flags = WalkFlags::EXISTING | WalkFlags::NO_XDEV | WalkFlags::NO_SYMLINKS;
    let walk = Walk { creds: &creds, caller: Some(caller), root: root.clone(), flags: walk_flags };
    let place = walk.resolve(root, path)?.existing()?;
    open_place(caller, &creds, place, flags & !(O_CREAT | O_EXCL), false)
}

/// Opens what is at `place`, with the permission checks of open(2).
pub fn open_place(
    caller: &dyn Caller,
    creds: &Creds,
    place: Location,
    flags: u32,
    creates: bool,
) -> Result<Arc<OpenFile>> {
    let inode = place.inode().clone();
    let kind = inode.kind();
    if flags & O_DIRECTORY != 0 && kind != S_IFDIR {
        return Err(Errno::ENOTDIR);
    }
    if flags & O_PATH != 0 {
        return Ok(OpenFile::at(Arc::new(PathOnly), flags, Some(place)));
    }
    if kind == S_IFLNK {
        return Err(Errno::ELOOP);
    }
    let access = flags & O_ACCMODE;
    let writes = access == O_WRONLY || access == O_RDWR || flags & O_TRUNC != 0;
    if kind == S_IFDIR && (writes || creates) {
        return Err(Errno::EISDIR);
    }
    if kind == S_IFDIR && flags & O_DIRECT != 0 {
        return Err(Errno::EINVAL);
    }
    if writes && matches!(kind, S_IFREG | S_IFDIR) {
        place.mount.check_writable()?;
    }
    if is_device(kind) && !place.mount.opens_devices() {
        return Err(Errno::EACCES);
    }
    let attributes = inode.permissions()?;
    let want = match access {
        O_RDONLY => perm::READ,
        O_WRONLY => perm::WRITE,
        _ => perm::READ | perm::WRITE,
    } | if flags & O_TRUNC != 0 { perm::WRITE } else { 0 };
    perm::check(creds, &attributes, want)?;
    if creates {
        check_protected_create(creds, &place, &attributes)?;
    }
    if flags & O_NOATIME != 0 {
        perm::check_owner(creds, &attributes)?;
    }
    landlock::check_open(creds, &place, flags)?;
    ask::ask(&place, ask::OPEN)?;
    // Also if it is only cut off: then for the length of this call.
    let claim = writes.then(|| writes_to(&attributes)).transpose()?.flatten();
    lease::break_for(&attributes, access != O_RDONLY)?;
    let ops = inode.open(caller, flags)?;
    if flags & O_TRUNC != 0 {
        drop_suid_at(creds, &place, &attributes)?;
        notify::event(&place, IN_MODIFY);
    }
    notify::open_event(&place, IN_OPEN);
    let claim = if access == O_RDONLY { reads(&attributes) } else { claim };
    Ok(OpenFile::claimed(ops, status_flags(flags), Some(place), claim))
}

/// Opens what is at `place` for who is told what happens to it, and so may see it (fanotify(7));
/// nobody is told of that, nor has to give up a lease for it. `flags`: O_* access mode and status
/// flags. A directory is opened for reading in any case.
pub fn open_unseen(caller: &dyn Caller, place: &Location, flags: u32) -> Result<Arc<OpenFile>> {
    let inode = place.inode().clone();
    let flags = if inode.is_dir() { flags & !O_ACCMODE } else { flags };
    let attributes = inode.permissions()?;
    let claim = if flags & O_ACCMODE == O_RDONLY {
        reads(&attributes)
    } else {
        place.mount.check_writable()?;
        writes_to(&attributes)?
    };
    let ops = inode.open(caller, flags)?;
    Ok(OpenFile::unseen(ops, status_flags(flags), place.clone(), claim))
}

/// The claim of who writes to what has these attributes: ETXTBSY if it is executed.
fn writes_to(file: &Attributes) -> Result<Option<Claim>> {
    file.is_regular().then(|| Claim::to_write(file)).transpose()
}

/// The claim of who only reads what has these attributes.
fn reads(file: &Attributes) -> Option<Claim> {
    file.is_regular().then(|| Claim::to_read(file))
}

/// The claim to a file that was just made and is opened with O_* `flags`.
fn claim_to_new(file: &Arc<dyn Inode>, flags: u32) -> Result<Option<Claim>> {
    let file = file.permissions()?;
    if flags & O_ACCMODE == O_RDONLY { Ok(reads(&file)) } else { writes_to(&file) }
}

/// The flags that fcntl(F_GETFL) reports.
fn status_flags(flags: u32) -> u32 {
    flags & !(O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC | O_CLOEXEC)
}

/// fs.protected_regular = 2 and fs.protected_fifos = 1 (proc(5)): O_CREAT does not open another's
/// file or FIFO in a sticky directory that all may write, nor another's file in one that its group
/// may.
fn check_protected_create(creds: &Creds, place: &Location, file: &Attributes) -> Result {
    let is_fifo = file.kind() == S_IFIFO;
    if !(file.is_regular() || is_fifo) || file.uid == creds.fsuid {
        return Ok(());
    }
    let directory = place.parent().inode().permissions()?;
    let open_to = if is_fifo { S_IWOTH } else { S_IWOTH | S_IWGRP };
    let shared = directory.mode & S_ISVTX != 0 && directory.mode & open_to != 0;
    if shared && file.uid != directory.uid { Err(Errno::EACCES) } else { Ok(()) }
}

/// Checks that names may be made and removed in `directory`: its attributes.
pub fn check_may_change(creds: &Creds, directory: &Location) -> Result<Attributes> {
    directory.mount.check_writable()?;
    let attributes = directory.attributes()?;
    perm::check(creds, &attributes, perm::WRITE | perm::EXEC)?;
    if directory.dentry.is_unlinked() {
        return Err(Errno::ENOENT);
    }
    Ok(attributes)
}

/// What a new object in `directory` is to be: mode (with type) less the umask, owner and group.
pub fn new_node(
    caller: &dyn Caller,
    creds: &Creds,
    directory: &Attributes,
    mode: u32,
    rdev: u64,
) -> NewNode {
    let is_dir = mode & S_IFMT == S_IFDIR;
    let mode = if mode & S_IFMT == S_IFLNK { mode } else { mode & !caller.with_fs(|fs| fs.umask) };
    let (mode, gid) = perm::inherit(creds, directory, mode, is_dir);
    NewNode { mode, uid: creds.fsuid, gid, rdev }
}

fn create(
    caller: &dyn Caller,
    creds: &Creds,
    parent: &Location,
    name: &[u8],
    how: &OpenHow,
) -> Result<Arc<OpenFile>> {
    let directory = check_may_change(creds, parent)?;
    landlock::check_make(creds, parent, S_IFREG)?;
    let new = new_node(caller, creds, &directory, S_IFREG | how.mode & 0o7777, 0);
    let (inode, ops) = parent.inode().clone().create(name, &new, how.flags)?;
    let dentry = parent.dentry.insert(name, inode.clone());
    let place = Location { mount: parent.mount.clone(), dentry };
    landlock::check_open(creds, &place, how.flags)?;
    let ops = match ops {
        Some(ops) => ops,
        None => inode.clone().open(caller, how.flags & !O_TRUNC)?,
    };
    let claim = claim_to_new(&inode, how.flags)?;
    notify::created(parent, name, &place.dentry);
    notify::open_event(&place, IN_OPEN);
    ask::ask_later(&place);
    let file = OpenFile::claimed(ops, status_flags(how.flags), Some(place), claim);
    file.note_created();
    Ok(file)
}

/// Makes a file, FIFO, socket or device node at `path`: where it is. EEXIST if there is something.
/// For mknod(2) and bind(2).
pub fn make_node(
    caller: &dyn Caller,
    dirfd: Fd,
    path: &[u8],
    mode: u32,
    rdev: u64,
) -> Result<Location> {
    let creds = caller.creds();
    if is_device(mode) && !creds.capable(CAP_MKNOD) {
        return Err(Errno::EPERM);
    }
    let make = |parent: &Location, name: &[u8], new: &NewNode| {
        parent.inode().clone().make_node(name, new).map(|inode| (inode, ()))
    };
    make_named(caller, dirfd, path, (mode, rdev), make).map(|(place, ())| place)
}

/// bind(2) of an AF_UNIX socket of type `kind`: its file, and the host's socket if it is bound
/// there.
pub fn bind_node(
    caller: &dyn Caller,
    path: &[u8],
    mode: u32,
    kind: u32,
) -> Result<(Location, Option<Handle>)> {
    make_named(caller, AT_FDCWD, path, (mode, 0), |parent, name, new| {
        parent.inode().clone().bind_socket(name, new, kind)
    })
}

/// Has a new name made, and what `make` gives besides. `what`: mode with type, and device.
fn make_named<T>(
    caller: &dyn Caller,
    dirfd: Fd,
    path: &[u8],
    what: (u32, u64),
    make: impl FnOnce(&Location, &[u8], &NewNode) -> Result<(Arc<dyn Inode>, T)>,
) -> Result<(Location, T)> {
    let creds = caller.creds();
    let NameTarget { parent, name, found, wants_dir } =
        walk(caller, dirfd, path, WalkFlags::NAME)?.name(Errno::EEXIST)?;
    if found.is_some() {
        return Err(Errno::EEXIST);
    }
    if wants_dir {
        return Err(Errno::ENOENT);
    }
    let directory = check_may_change(&creds, &parent)?;
    landlock::check_make(&creds, &parent, what.0)?;
    let new = new_node(caller, &creds, &directory, what.0, what.1);
    let (inode, more) = make(&parent, &name, &new)?;
    let dentry = parent.dentry.insert(&name, inode);
    notify::created(&parent, &name, &dentry);
    Ok((Location { mount: parent.mount, dentry }, more))
}

fn open_unnamed(
    caller: &dyn Caller,
    creds: &Creds,
    directory: Location,
    how: &OpenHow,
) -> Result<Arc<OpenFile>> {
    if !directory.inode().is_dir() {
        return Err(Errno::ENOTDIR);
    }
    let attributes = check_may_change(creds, &directory)?;
    landlock::check_unnamed(creds, &directory, how.flags)?;
    let new = new_node(caller, creds, &attributes, S_IFREG | how.mode & 0o7777, 0);
    let (inode, ops) = directory.inode().clone().create_unnamed(&new, how.flags)?;
    let label = alloc::format!("/#{} (deleted)", inode.attributes()?.ino);
    let dentry = Dentry::unnamed_in(&directory.dentry, inode.clone(), label.as_bytes());
    let ops = match ops {
        Some(ops) => ops,
        None => {
            let flags = how.flags & !(O_TRUNC | O_CREAT | O_EXCL | O_DIRECTORY);
            inode.clone().open(caller, flags)?
        }
    };
    let claim = claim_to_new(&inode, how.flags)?;
    let place = Location { mount: directory.mount, dentry };
    Ok(OpenFile::claimed(ops, status_flags(how.flags & !O_TMPFILE), Some(place), claim))
}

/// As [`open_exec`] by a path from the working directory, where nobody can wait for a lease: EAGAIN
/// then.
pub fn open_exec_now(caller: &dyn Caller, path: &[u8]) -> Result<Arc<OpenFile>> {
    lease::or_fail(open_exec(caller, AT_FDCWD, path, 0))
}

/// Opens a program for execve(2): a regular file with execute permission. `at_flags` as for
/// execveat(2). ELEASED as of [`open`].
pub fn open_exec(
    caller: &dyn Caller,
    dirfd: Fd,
    path: &[u8],
    at_flags: u32,
) -> Result<Arc<OpenFile>> {
    let creds = caller.creds();
    let place = lookup(caller, dirfd, path, at_flags)?;
    let inode = place.inode().clone();
    if inode.is_symlink() {
        return Err(Errno::ELOOP);
    }
    if !inode.is_regular() {
        return Err(Errno::EACCES);
    }
    let attributes = inode.attributes()?;
    perm::check(&creds, &attributes, perm::EXEC)?;
    landlock::check(&creds, &place, landlock::EXECUTE | landlock::READ_FILE)?;
    ask::ask(&place, ask::OPEN_EXEC)?;
    ask::ask(&place, ask::OPEN)?;
    lease::break_for(&attributes, false)?;
    let ops = inode.open(caller, O_RDONLY)?;
    notify::open_event(&place, IN_OPEN | notify::OPEN_EXEC);
    let file = OpenFile::claimed(ops, O_RDONLY, Some(place), reads(&attributes));
    if is_noexec(&file) { Err(Errno::EACCES) } else { Ok(file) }
}

/// The claim of who executes a file: ETXTBSY if it is open for writing.
pub fn executes(file: &OpenFile) -> Result<Claim> {
    match &file.path {
        Some(place) => Claim::to_execute(&place.inode().permissions()?),
        None => Claim::to_execute(&file.attributes()?),
    }
}

/// True if nothing of a file may be executed: it lies on a noexec mount, here or on the host.
pub fn is_noexec(file: &OpenFile) -> bool {
    file.path.as_ref().is_some_and(|p| p.mount.flags().contains(MountFlags::NOEXEC))
        || file.ops.is_noexec(file)
}

/// True if `creds` may read a file, not only execute it.
pub fn is_readable(creds: &Creds, file: &OpenFile) -> Result<bool> {
    if creds.capable(CAP_DAC_OVERRIDE) || creds.capable(CAP_DAC_READ_SEARCH) {
        return Ok(true);
    }
    Ok(perm::check(creds, &file.attributes()?, perm::READ).is_ok())
}

/// The credentials of a program that is executed.
pub struct ExecCreds {
    /// What the thread has from then on.
    pub creds: Creds,
    /// It has rights that its caller lacks (AT_SECURE).
    pub is_secure: bool,
}

/// The credentials that `thread` has after executing `file`: set-user-id and set-group-id bits, and
/// the rules of capabilities(7). `unsafe_sharing`: other processes share the thread's root and
/// working directory, so the program gets no more rights than the thread has (unless that may have
/// any). EPERM for a file that relies on capabilities which it may not have.
pub fn exec_creds(caller: &dyn Caller, file: &OpenFile, unsafe_sharing: bool) -> Result<ExecCreds> {
    let old = caller.creds();
    let mut new = Creds::clone(&old);
    let mut caps = None;
    // What lies on no mount of the tree (memfd_create(2), a detached mount) has nobody who answers
    // for it, and for what lies in another mount namespace others do.
    let namespace = caller.mount_namespace();
    let may_suid = |p: &Location| {
        // What a namespace below has mounted is of those who are in it.
        p.mount.namespace() == namespace
            && !p.mount.flags().contains(MountFlags::NOSUID)
            && p.mount.user().contains(&old.user)
    };
    if file.path.as_ref().is_some_and(may_suid) {
        caps = file_caps(file, &old.user)?;
        if let Ok(attributes) = file.attributes()
            && !old.no_new_privs
            // Whoever its user namespace has no number for cannot be in it.
            && old.user.maps_both(attributes.uid, attributes.gid)
        {
            if attributes.mode & S_ISUID != 0 {
                new.euid = attributes.uid;
            }
            if attributes.mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP {
                new.egid = attributes.gid;
            }
        }
    }
    let is_secure = new.finish_exec(&old, caps.as_ref(), unsafe_sharing)?;
    Ok(ExecCreds { creds: new, is_secure })
}

/// The capabilities of a file, if it has any: of the very one that is executed, which may have lost
/// its name to another meanwhile.
fn file_caps(file: &OpenFile, user: &UserNs) -> Result<Option<FileCaps>> {
    match file.ops.get_xattr(file, FileCaps::ATTRIBUTE) {
        Ok(value) => FileCaps::for_user(&value, user),
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The mode without the bits that a write by somebody without CAP_FSETID takes away; `None` if it
/// stays.
fn without_suid(creds: &Creds, attributes: &Attributes) -> Option<SetAttributes> {
    if creds.capable(CAP_FSETID)
        || !attributes.is_regular()
        || attributes.mode & (S_ISUID | S_ISGID) == 0
    {
        return None;
    }
    let mut mode = attributes.mode & !S_ISUID;
    if mode & S_IXGRP != 0 {
        mode &= !S_ISGID;
    }
    Some(SetAttributes { mode: Some(mode & 0o7777), ..SetAttributes::default() })
}

/// Takes the set-user-id and set-group-id bits away after a file was written by somebody without
/// CAP_FSETID.
pub fn drop_suid(creds: &Creds, file: &OpenFile) -> Result {
    // What was given open by others keeps its attributes.
    if creds.capable(CAP_FSETID) || file.ops.shares_position() {
        return Ok(());
    }
    match without_suid(creds, &file.attributes()?) {
        Some(change) => file.ops.set_attributes(file, &change),
        None => Ok(()),
    }
}

/// As [`drop_suid`], for a file that was truncated by name.
pub fn drop_suid_at(creds: &Creds, place: &Location, attributes: &Attributes) -> Result {
    match without_suid(creds, attributes) {
        Some(change) => place.inode().set_attributes(&change),
        None => Ok(()),
    }
}

/// Both times set to now.
pub fn touch() -> SetAttributes {
    SetAttributes {
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::Now),
        ..SetAttributes::default()
    }
}

/// The canonical path of a place as `thread` sees it.
pub fn path_of(caller: &dyn Caller, place: &Location) -> Vec<u8> {
    place.path_from(&caller.with_fs(|fs| fs.root.clone()))
}
