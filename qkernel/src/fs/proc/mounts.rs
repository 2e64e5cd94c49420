//! /proc/PID/mounts and mountinfo.

use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use super::pid::Subject;
use crate::errno::Result;
use crate::fs::attr::device_parts;
use crate::fs::mount::peers::{self, PeerGroup};
use crate::fs::mount::{self, Mount, MountFlags};
use crate::fs::records::RecordFile;
use crate::fs::walk::PATH_MAX;
use crate::fs::{FileOps, Location};
use crate::sync::Mutex;

/// What stands as octal escapes in paths, for getmntent(3) to read them.
const IN_PATHS: &[u8] = b" \t\n\\";
/// And in the names of sources, which could look like comments.
const IN_SOURCES: &[u8] = b" \t\n\\#";

fn escape(out: &mut Vec<u8>, text: &[u8], special: &[u8]) {
    for byte in text {
        if special.contains(byte) {
            out.extend_from_slice(format!("\\{byte:03o}").as_bytes());
        } else {
            out.push(*byte);
        }
    }
}

fn access(readonly: bool) -> &'static [u8] {
    if readonly { b"ro" } else { b"rw" }
}

/// The flags of a mount besides RDONLY.
fn flags(flags: MountFlags) -> Vec<u8> {
    let mut out = Vec::new();
    for (flag, name) in [
        (MountFlags::NOSUID, &b",nosuid"[..]),
        (MountFlags::NODEV, b",nodev"),
        (MountFlags::NOEXEC, b",noexec"),
        (MountFlags::NOATIME, b",noatime"),
        (MountFlags::NODIRATIME, b",nodiratime"),
        (MountFlags::RELATIME, b",relatime"),
        (MountFlags::NOSYMFOLLOW, b",nosymfollow"),
    ] {
        if flags.contains(flag) {
            out.extend_from_slice(name);
        }
    }
    out
}

/// One mount as a line, with its path, as seen from a root.
type Line = fn(&Mount, &[u8], &Location) -> Vec<u8>;

/// A mount whose path and reach were found last: one that lies right on it has them too.
type Known = (Weak<Mount>, Vec<u8>, bool);

/// Opens one of the lists, of the mounts in the subject's mount namespace that it can reach, with
/// their mount points as it sees them, in the order in which they were made. A line at a time: all
/// together could have any length.
pub fn open(subject: &Subject, line: Line) -> Result<Arc<dyn FileOps>> {
    let subject = subject.clone();
    // Known by a weak reference only: an open list keeps no file system mounted.
    let last: Mutex<Option<Known>> = Mutex::default();
    subject.thread()?;
    Ok(Arc::new(RecordFile::new(move |cursor| {
        let thread = subject.thread()?;
        let (root, namespace) = (thread.fs().root, thread.namespaces().mnt.number);
        if cursor == 0 {
            *last.lock() = None;
        }
        let mut id = cursor as u32;
        while let Some(mount) = mount::in_namespace_after(namespace, id) {
            id = mount.id;
            let known = last
                .lock()
                .take()
                .filter(|(below, ..)| lies_on(&mount, below) && !mount.location().is_same(&root));
            let (path, reachable) = match known {
                Some((_, path, reachable)) => (path, reachable),
                None => mount.location().path_and_reach(&root),
            };
            *last.lock() = Some((Arc::downgrade(&mount), path.clone(), reachable));
            if reachable {
                return Ok(Some((line(&mount, &path, &root), u64::from(id))));
            }
        }
        Ok(None)
    })))
}

/// True if `mount` hides all of `below`: mounts may lie on one another many thousands deep.
fn lies_on(mount: &Mount, below: &Weak<Mount>) -> bool {
    mount.point().is_some_and(|point| {
        point.is_mount_root() && core::ptr::eq(Arc::as_ptr(&point.mount), below.as_ptr())
    })
}

/// What is mounted, as its mounter has called it.
pub fn source(mount: &Mount) -> &[u8] {
    if mount.source.is_empty() { b"none" } else { &mount.source }
}

/// A line of mounts.
pub fn mounts(mount: &Mount, path: &[u8], _root: &Location) -> Vec<u8> {
    let mut out = Vec::new();
    escape(&mut out, source(mount), IN_SOURCES);
    out.push(b' ');
    escape(&mut out, path, IN_PATHS);
    out.push(b' ');
    out.extend_from_slice(mount.fs.type_name().as_bytes());
    out.push(b' ');
    out.extend_from_slice(access(mount.check_writable().is_err()));
    out.extend(flags(mount.flags()));
    out.extend(mount.fs.options());
    out.extend_from_slice(b" 0 0\n");
    out
}

/// A line of mountinfo.
pub fn mountinfo(mount: &Mount, path: &[u8], root: &Location) -> Vec<u8> {
    let parent = mount.point().map_or(1, |p| p.mount.id);
    let (major, minor) = device_parts(mount.root.inode.permissions().map_or(0, |a| a.dev));
    let mut out = format!("{} {parent} {major}:{minor} ", mount.id).into_bytes();
    escape(&mut out, &inner_root(mount), IN_PATHS);
    out.push(b' ');
    escape(&mut out, path, IN_PATHS);
    out.push(b' ');
    out.extend_from_slice(access(mount.flags().contains(MountFlags::RDONLY)));
    out.extend(flags(mount.flags()));
    out.extend(propagation(mount, root));
    out.extend_from_slice(format!(" - {} ", mount.fs.type_name()).as_bytes());
    escape(&mut out, source(mount), IN_SOURCES);
    out.push(b' ');
    out.extend_from_slice(access(mount.is_fs_readonly()));
    out.extend(mount.fs.options());
    out.push(b'\n');
    out
}

/// What mountinfo says of the propagation of a mount, seen from `root`.
fn propagation(mount: &Mount, root: &Location) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(group) = mount.peer_group() {
        out.extend_from_slice(format!(" shared:{}", group.id).as_bytes());
    }
    if let Some(master) = peers::master_of(mount) {
        out.extend_from_slice(format!(" master:{}", master.id).as_bytes());
        if let Some(id) = propagates_from(mount, root).filter(|id| *id != master.id) {
            out.extend_from_slice(format!(" propagate_from:{id}").as_bytes());
        }
    }
    if mount.is_unbindable() {
        out.extend_from_slice(b" unbindable");
    }
    out
}

/// The number of the nearest group above a slave that has a mount which can be reached from `root`.
pub fn propagates_from(mount: &Mount, root: &Location) -> Option<u32> {
    nearest_seen(peers::master_of(mount)?, mount.namespace(), root)
}

/// The number of the nearest of `group` and those above it that has a mount which can be reached
/// from `root` in this namespace.
fn nearest_seen(group: Arc<PeerGroup<Mount>>, namespace: u64, root: &Location) -> Option<u32> {
    let mut group = Some(group);
    while let Some(at) = group {
        let mut id = 0;
        while let Some((next, member)) = at.member_after(id) {
            if member.namespace() == namespace && member.location().is_below(root) {
                return Some(at.id);
            }
            id = next;
        }
        group = at.master();
    }
    None
}

/// The path in its file system of what is mounted.
pub fn inner_root(mount: &Mount) -> Vec<u8> {
    if mount.root.inode.is_namespace() {
        return mount.root.name();
    }
    let mut names = Vec::new();
    let mut at = mount.root.clone();
    // As deep as a path could name; of what lies deeper the end is reported.
    while let Some(parent) = at.parent().filter(|_| names.len() < PATH_MAX) {
        names.push(at.name());
        at = parent;
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    if mount.root.is_unlinked() {
        path.extend_from_slice(b"//deleted");
    }
    path
}
