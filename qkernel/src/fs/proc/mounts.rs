//! /proc/PID/mounts and mountinfo.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::errno::Result;
use crate::fs::attr::device_parts;
use crate::fs::mount::{self, Mount, MountFlags};
use crate::task::Thread;

/// Spaces and the like as octal escapes, as getmntent(3) reads them.
fn escape(out: &mut Vec<u8>, text: &[u8]) {
    for byte in text {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => out.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
            other => out.push(*other),
        }
    }
}

fn flags(flags: MountFlags) -> Vec<u8> {
    let mut out = if flags.contains(MountFlags::RDONLY) { b"ro".to_vec() } else { b"rw".to_vec() };
    for (flag, name) in [
        (MountFlags::NOSUID, &b",nosuid"[..]),
        (MountFlags::NODEV, b",nodev"),
        (MountFlags::NOEXEC, b",noexec"),
        (MountFlags::NOATIME, b",noatime"),
        (MountFlags::NODIRATIME, b",nodiratime"),
        (MountFlags::RELATIME, b",relatime"),
    ] {
        if flags.contains(flag) {
            out.extend_from_slice(name);
        }
    }
    out
}

/// The mounts that the thread can reach, with their mount points as it sees them, in an order in which parents come first.
fn visible(thread: &Arc<Thread>) -> Vec<(Arc<Mount>, Vec<u8>)> {
    let root = thread.fs().root;
    let mut found = Vec::new();
    for mount in mount::all() {
        let place = mount.location();
        let is_root = place.mount.point().is_none() && !Arc::ptr_eq(&mount, &root.mount);
        let (path, reachable) = place.path_and_reach(&root);
        if !is_root && reachable {
            found.push((mount, path));
        }
    }
    found
}

fn source(mount: &Mount) -> &[u8] {
    if mount.source.is_empty() { b"none" } else { &mount.source }
}

/// mounts.
pub fn mounts(thread: &Arc<Thread>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for (mount, path) in visible(thread) {
        escape(&mut out, source(&mount));
        out.push(b' ');
        escape(&mut out, &path);
        out.push(b' ');
        out.extend_from_slice(mount.fs.type_name().as_bytes());
        out.push(b' ');
        out.extend(flags(mount.flags()));
        out.extend(mount.fs.options());
        out.extend_from_slice(b" 0 0\n");
    }
    Ok(out)
}

/// mountinfo.
pub fn mountinfo(thread: &Arc<Thread>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for (mount, path) in visible(thread) {
        let parent = mount.point().map_or(1, |p| p.mount.id);
        let (major, minor) = device_parts(mount.root.inode.permissions().map_or(0, |a| a.dev));
        out.extend_from_slice(format!("{} {parent} {major}:{minor} ", mount.id).as_bytes());
        escape(&mut out, &inner_root(&mount));
        out.push(b' ');
        escape(&mut out, &path);
        out.push(b' ');
        out.extend(flags(mount.flags()));
        out.extend_from_slice(format!(" - {} ", mount.fs.type_name()).as_bytes());
        escape(&mut out, source(&mount));
        out.push(b' ');
        out.extend(flags(mount.flags() & MountFlags::RDONLY));
        out.extend(mount.fs.options());
        out.push(b'\n');
    }
    Ok(out)
}

/// The path in its file system of what is mounted.
fn inner_root(mount: &Mount) -> Vec<u8> {
    let mut names = Vec::new();
    let mut at = mount.root.clone();
    while let Some(parent) = at.parent() {
        names.push(at.name());
        at = parent;
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    if path.is_empty() { b"/".to_vec() } else { path }
}
