//! Puts the container's tree together from its specification, and makes file systems by their
//! type's name.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{S_IFCHR, S_IFDIR, S_IFREG};
use qlib::control::{ContainerSpec, DeviceSpec, MountSpec};

use super::attr::device;
use super::hostfs::HostFs;
use super::inode::{FileSystem, NewNode};
use super::mount::namespace::MountNamespace;
use super::mount::{Mount, MountFlags};
use super::mounter::Mounter;
use super::options::Options;
use super::overlay::OverlayFs;
use super::tmpfs::{self, TmpFs};
use super::walk::{Target, Walk, WalkFlags};
use super::{FsContext, Location, dev, devpts, proc, sysfs};
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::host::Handle;
use crate::ipc::mqueue;
use crate::klog;
use crate::task::namespaces::Namespaces;

/// Makes a file system of one type, for who mounts it, from its mount options.
pub type Maker = fn(mounter: &Mounter, options: &Options<'_>) -> Result<Arc<dyn FileSystem>>;

/// What makes each of [`TYPE_NAMES`](super::options::TYPE_NAMES).
fn maker_of(type_name: &str) -> Option<Maker> {
    Some(match type_name {
        "cgroup" | "cgroup2" => sysfs::make_cgroup,
        "devpts" => devpts::make,
        "devtmpfs" => make_devtmpfs,
        "mqueue" => mqueue::make,
        "proc" => proc::make,
        "sysfs" => sysfs::make,
        "tmpfs" => make_tmpfs,
        _ => return None,
    })
}

fn make_tmpfs(mounter: &Mounter, options: &Options<'_>) -> Result<Arc<dyn FileSystem>> {
    let owner = |name: &str| options.value(name).map(|_| options.number(name, 0)).transpose();
    let (uid, gid) = (owner("uid")?, owner("gid")?);
    let uid = uid.map_or(Ok(mounter.owner.0), |uid| mounter.user.uid_of(uid))?;
    let gid = gid.map_or(Ok(mounter.owner.1), |gid| mounter.user.gid_of(gid))?;
    Ok(TmpFs::with_options(options, (uid, gid))?)
}

fn make_devtmpfs(_: &Mounter, options: &Options<'_>) -> Result<Arc<dyn FileSystem>> {
    let size = options.size("size", tmpfs::default_bytes())?;
    let fs = TmpFs::new(size, options.octal("mode", 0o755)?, 0, 0);
    dev::populate(&fs)?;
    Ok(fs)
}

/// Makes a file system of type `type_name`: ENODEV if there is no such type.
pub fn make(
    type_name: &str,
    mounter: &Mounter,
    options: &Options<'_>,
) -> Result<Arc<dyn FileSystem>> {
    maker_of(type_name).ok_or(Errno::ENODEV)?(mounter, options)
}

/// The host's files that a container's specification names: its root, and what its mounts show.
/// What of them does not come to be mounted is closed.
pub struct Sources {
    root: Handle,
    mounts: Vec<Option<Handle>>,
}

impl Sources {
    /// Those of `spec`, which nobody else has.
    pub fn of(spec: &ContainerSpec) -> Self {
        let of_host = |mount: &MountSpec| (mount.fstype == "host").then(|| Handle::new(mount.host));
        Sources { root: Handle::new(spec.root), mounts: spec.mounts.iter().map(of_host).collect() }
    }
}

/// Mounts the root of a container, which has this number, and everything on it, in its mount
/// namespace.
///
/// # Errors
/// With the place in the container that it is about.
pub fn mount_container(
    spec: &ContainerSpec,
    sources: Sources,
    number: u32,
    namespaces: &Namespaces,
) -> core::result::Result<FsContext, (Errno, String)> {
    let Sources { root, mounts } = sources;
    let mounter = Mounter::container(number, namespaces);
    let root = mount_root(spec, root, &namespaces.mnt).map_err(|errno| (errno, "/".to_string()))?;
    for (mount, source) in spec.mounts.iter().zip(mounts) {
        add_mount(&root, mount, source, &mounter)
            .map_err(|errno| (errno, mount.destination.clone()))?;
    }
    for node in &spec.devices {
        add_device(&root, node).map_err(|errno| (errno, node.path.clone()))?;
    }
    for path in &spec.masked_paths {
        mask(&root, path.as_bytes()).map_err(|errno| (errno, path.clone()))?;
    }
    for path in &spec.readonly_paths {
        make_read_only(&root, path.as_bytes()).map_err(|errno| (errno, path.clone()))?;
    }
    if spec.root_readonly {
        root.mount.set_flags(root.mount.flags() | MountFlags::RDONLY);
    }
    Ok(FsContext { root: root.clone(), cwd: root, umask: 0o022, executing: 0 })
}

fn mount_root(
    spec: &ContainerSpec,
    source: Handle,
    namespace: &MountNamespace,
) -> Result<Location> {
    let host = HostFs::owned(source)?;
    let (root, source): (Arc<dyn FileSystem>, &[u8]) = match &spec.root_layer {
        Some(layer) => (OverlayFs::new(host, layer)?, b"overlay"),
        None => (host, b"/"),
    };
    let root = Mount::whole(root, source, MountFlags::empty().settle(None)).location();
    namespace.set_root(&root.mount);
    Ok(root)
}

/// The place of a path of the specification, if it exists.
fn existing(root: &Location, path: &[u8]) -> Result<Option<Location>> {
    let creds = root_creds();
    let walk = Walk { creds: &creds, caller: None, root: root.clone(), flags: WalkFlags::FOLLOW };
    match walk.resolve(root, path).and_then(Target::existing) {
        Ok(place) => Ok(Some(place)),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Hides a path: a directory behind an empty one, a file behind one that reads as empty.
fn mask(root: &Location, path: &[u8]) -> Result {
    let Some(place) = existing(root, path)? else { return Ok(()) };
    let fs = TmpFs::new(0, 0o555, 0, 0);
    let flags = MountFlags::empty().settle(None);
    let whole = Mount::whole(fs.clone(), b"tmpfs", flags | MountFlags::RDONLY);
    if place.inode().is_dir() {
        whole.set_fs_readonly(true);
        whole.attach(place);
        return Ok(());
    }
    let null = NewNode { mode: S_IFCHR | 0o666, uid: 0, gid: 0, rdev: device(1, 3) };
    let inode = fs.root().make_node(b"null", &null)?;
    let dentry = whole.root.insert(b"null", inode);
    whole.of_same(dentry, flags).attach(place);
    Ok(())
}

/// Makes a path read-only by mounting it on itself.
fn make_read_only(root: &Location, path: &[u8]) -> Result {
    let Some(place) = existing(root, path)? else { return Ok(()) };
    let flags = place.mount.flags() | MountFlags::RDONLY;
    place.mount.of_same(place.dentry.clone(), flags).attach(place.clone());
    Ok(())
}

fn add_mount(
    root: &Location,
    spec: &MountSpec,
    source: Option<Handle>,
    mounter: &Mounter,
) -> Result {
    let options = Options::parse(spec.options.iter().map(String::as_str));
    let fs: Arc<dyn FileSystem> = match (source, spec.fstype.as_str()) {
        (Some(source), _) => HostFs::new(source)?,
        (None, other) => match make(other, mounter, &options) {
            Err(Errno::ENODEV) => {
                klog!(
                    Warn,
                    "no file system of type {other:?}: {} is not mounted",
                    spec.destination
                );
                return Ok(());
            }
            made => made?,
        },
    };
    let is_dir = fs.root().is_dir();
    let point = mount_point(root, spec.destination.as_bytes(), is_dir)?;
    if point.inode().is_dir() != is_dir {
        return Err(Errno::ENOTDIR);
    }
    let mount = Mount::whole(fs, spec.source.as_bytes(), options.flags.settle(None));
    // Of the host it shows a part, for which alone the option counts.
    let is_own = spec.fstype != "host";
    mount.set_fs_readonly(is_own && options.flags.contains(MountFlags::RDONLY));
    mount.attach(point);
    Ok(())
}

/// Makes a device node, and the directories above it.
fn add_device(root: &Location, spec: &DeviceSpec) -> Result {
    let path = spec.path.as_bytes();
    if existing(root, path)?.is_some() {
        return Err(Errno::EEXIST);
    }
    let at = path.iter().rposition(|b| *b == b'/').ok_or(Errno::EINVAL)?;
    let (parent, name) = (mount_point(root, &path[..at], true)?, &path[at + 1..]);
    let ((major, minor), (uid, gid)) = (spec.number, spec.owner);
    let node = NewNode { mode: S_IFCHR | spec.mode, uid, gid, rdev: device(major, minor) };
    let inode = parent.inode().clone().make_node(name, &node)?;
    parent.dentry.insert(name, inode);
    Ok(())
}

/// The container's own credentials for setting itself up.
pub(super) fn root_creds() -> Creds {
    Creds { cap_effective: u64::MAX, cap_permitted: u64::MAX, ..Creds::default() }
}

/// Makes a directory of the container's root, and those above it, as the container's own set-up
/// would: it belongs to root.
pub fn make_directory(root: &Location, path: &[u8]) -> Result {
    mount_point(root, path, true).map(|_| ())
}

/// Finds a mount point, making it (and the directories above it) if it is missing.
fn mount_point(root: &Location, path: &[u8], is_dir: bool) -> Result<Location> {
    let creds = root_creds();
    let walk = Walk { creds: &creds, caller: None, root: root.clone(), flags: WalkFlags::FOLLOW };
    let mut at = root.clone();
    let mut names = path.split(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".").peekable();
    while let Some(name) = names.next() {
        let last = names.peek().is_none();
        at = match walk.resolve(&at, name)? {
            Target::Place(place) => place,
            Target::Name(target) => match target.found {
                Some(found) => found,
                None => {
                    let kind = if last && !is_dir { S_IFREG | 0o644 } else { S_IFDIR | 0o755 };
                    let new = NewNode { mode: kind, uid: 0, gid: 0, rdev: 0 };
                    let parent = target.parent.inode().clone();
                    let inode = match kind & S_IFDIR {
                        S_IFDIR => parent.make_dir(&target.name, &new)?,
                        _ => parent.make_node(&target.name, &new)?,
                    };
                    let dentry = target.parent.dentry.insert(&target.name, inode);
                    Location { mount: target.parent.mount, dentry }
                }
            },
        };
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::options::TYPE_NAMES;

    #[test]
    fn every_type_that_is_listed_can_be_made() {
        assert!(TYPE_NAMES.iter().all(|name| maker_of(name).is_some()));
    }
}
