//! Puts the container's tree together from its specification, and makes file systems by their type's name.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use linux_raw_sys::general::{S_IFCHR, S_IFDIR, S_IFREG};
use qlib::PAGE_SIZE;
use qlib::control::{ContainerSpec, MountSpec};

use super::attr::device;
use super::hostfs::HostFs;
use super::inode::{FileSystem, NewNode};
use super::mount::{Mount, MountFlags};
use super::overlay::OverlayFs;
use super::tmpfs::TmpFs;
use super::walk::{Target, Walk, WalkFlags};
use super::{FsContext, Location, dev, devpts, proc, sysfs};
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::{arch, klog};

/// Makes a file system of one type from its mount options.
pub type Maker = fn(options: &Options<'_>) -> Result<Arc<dyn FileSystem>>;

/// The types by name. Constant, as every table of functions that can be: what is read-only no stray write changes.
static TYPES: [(&str, Maker); 8] = [
    ("cgroup", sysfs::make_cgroup),
    ("cgroup2", sysfs::make_cgroup),
    ("devpts", devpts::make),
    ("devtmpfs", make_devtmpfs),
    ("mqueue", make_mqueue),
    ("proc", proc::make),
    ("sysfs", sysfs::make),
    ("tmpfs", make_tmpfs),
];

/// The types, for /proc/filesystems.
pub fn type_names() -> impl Iterator<Item = &'static str> {
    TYPES.iter().map(|(name, _)| *name)
}

/// Mount options as mount(8) writes them, split into flags of the mount and options of the file system.
#[derive(Clone, Debug, Default)]
pub struct Options<'a> {
    /// Flags of the mount.
    pub flags: MountFlags,
    /// "name=value" and other options, for the file system.
    pub rest: Vec<&'a str>,
}

impl<'a> Options<'a> {
    /// Takes options apart. Those about propagation and binding have been dealt with before.
    pub fn parse(options: impl Iterator<Item = &'a str>) -> Self {
        let mut parsed = Options::default();
        for option in options {
            let (flag, on) = match option {
                "ro" => (MountFlags::RDONLY, true),
                "rw" => (MountFlags::RDONLY, false),
                "nosuid" => (MountFlags::NOSUID, true),
                "suid" => (MountFlags::NOSUID, false),
                "nodev" => (MountFlags::NODEV, true),
                "dev" => (MountFlags::NODEV, false),
                "noexec" => (MountFlags::NOEXEC, true),
                "exec" => (MountFlags::NOEXEC, false),
                "noatime" => (MountFlags::NOATIME, true),
                "nodiratime" => (MountFlags::NODIRATIME, true),
                "relatime" => (MountFlags::RELATIME, true),
                "strictatime" => (MountFlags::STRICTATIME, true),
                "" | "defaults" | "bind" | "rbind" | "atime" | "diratime" | "async" | "sync" => continue,
                other => {
                    parsed.rest.push(other);
                    continue;
                }
            };
            parsed.flags.set(flag, on);
        }
        parsed
    }

    /// The value of `name=value`.
    pub fn value(&self, name: &str) -> Option<&'a str> {
        self.rest.iter().rev().find_map(|o| o.strip_prefix(name)?.strip_prefix('='))
    }

    /// A value in octal.
    pub fn octal(&self, name: &str, default: u32) -> Result<u32> {
        self.value(name).map_or(Ok(default), |v| u32::from_str_radix(v, 8).map_err(|_| Errno::EINVAL))
    }

    /// A value in decimal.
    pub fn number(&self, name: &str, default: u32) -> Result<u32> {
        self.value(name).map_or(Ok(default), |v| v.parse().map_err(|_| Errno::EINVAL))
    }

    /// A size in bytes with a suffix k, m, g, or % of RAM.
    pub fn size(&self, name: &str, default: u64) -> Result<u64> {
        self.value(name).map_or(Ok(default), |v| parse_size(v, arch::boot().ram_bytes).ok_or(Errno::EINVAL))
    }
}

fn parse_size(text: &str, whole: u64) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u64 = digits.parse().ok()?;
    match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => Some(number),
        "k" => number.checked_mul(1 << 10),
        "m" => number.checked_mul(1 << 20),
        "g" => number.checked_mul(1 << 30),
        "%" => Some((u128::from(whole) * u128::from(number) / 100).try_into().ok()?),
        _ => None,
    }
}

fn make_tmpfs(options: &Options<'_>) -> Result<Arc<dyn FileSystem>> {
    // As on Linux: half of RAM unless said otherwise, and 0 means no limit.
    let half = arch::boot().ram_bytes / 2;
    let size = match options.size("size", half)? {
        0 => u64::MAX - PAGE_SIZE,
        size => size,
    };
    let (uid, gid) = (options.number("uid", 0)?, options.number("gid", 0)?);
    Ok(TmpFs::new("tmpfs", size, options.octal("mode", 0o1777)?, uid, gid))
}

fn make_devtmpfs(options: &Options<'_>) -> Result<Arc<dyn FileSystem>> {
    let half = arch::boot().ram_bytes / 2;
    let fs = TmpFs::new("tmpfs", options.size("size", half)?, options.octal("mode", 0o755)?, 0, 0);
    dev::populate(&fs)?;
    Ok(fs)
}

fn make_mqueue(_options: &Options<'_>) -> Result<Arc<dyn FileSystem>> {
    Ok(TmpFs::new("mqueue", 0, 0o1777, 0, 0))
}

/// Makes a file system of type `type_name`: ENODEV if there is no such type.
pub fn make(type_name: &str, options: &Options<'_>) -> Result<Arc<dyn FileSystem>> {
    let (_, maker) = TYPES.iter().find(|(name, _)| *name == type_name).ok_or(Errno::ENODEV)?;
    maker(options)
}

/// Mounts the container's root and everything on it.
pub fn mount_container(spec: &ContainerSpec) -> Result<FsContext> {
    let host = HostFs::owned(spec.root)?;
    let root: Arc<dyn FileSystem> =
        if spec.root_overlay { OverlayFs::new(host, arch::boot().ram_bytes / 2)? } else { host };
    let source = if spec.root_overlay { b"overlay" } else { &b"/"[..] };
    let root = Mount::whole(root, source, MountFlags::empty()).location();
    root.mount.become_root();
    MEMORY_BYTES.store(spec.memory_limit_bytes, Ordering::Relaxed);
    for mount in &spec.mounts {
        add_mount(&root, mount)?;
    }
    for path in &spec.masked_paths {
        mask(&root, path.as_bytes())?;
    }
    for path in &spec.readonly_paths {
        make_read_only(&root, path.as_bytes())?;
    }
    if spec.root_readonly {
        root.mount.set_flags(MountFlags::RDONLY);
    }
    Ok(FsContext { root: root.clone(), cwd: root, umask: 0o022, executing: 0 })
}

/// The container's memory limit in bytes; 0: all of RAM.
static MEMORY_BYTES: AtomicU64 = AtomicU64::new(0);

/// How much memory the container is told that it has, in bytes.
pub fn memory_bytes() -> u64 {
    let ram = arch::boot().ram_bytes;
    match MEMORY_BYTES.load(Ordering::Relaxed) {
        0 => ram,
        limit => limit.min(ram),
    }
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
    let fs = TmpFs::new("tmpfs", 0, 0o555, 0, 0);
    let whole = Mount::whole(fs.clone(), b"tmpfs", MountFlags::RDONLY);
    if place.inode().is_dir() {
        whole.attach(place);
        return Ok(());
    }
    let null = NewNode { mode: S_IFCHR | 0o666, uid: 0, gid: 0, rdev: device(1, 3) };
    let inode = fs.root().make_node(b"null", &null)?;
    let dentry = whole.root.insert(b"null", inode);
    Mount::new(fs, dentry, b"tmpfs".to_vec(), MountFlags::empty()).attach(place);
    Ok(())
}

/// Makes a path read-only by mounting it on itself.
fn make_read_only(root: &Location, path: &[u8]) -> Result {
    let Some(place) = existing(root, path)? else { return Ok(()) };
    let flags = place.mount.flags() | MountFlags::RDONLY;
    let mount = Mount::new(place.mount.fs.clone(), place.dentry.clone(), place.mount.source.clone(), flags);
    mount.attach(place);
    Ok(())
}

fn add_mount(root: &Location, spec: &MountSpec) -> Result {
    let options = Options::parse(spec.options.iter().map(String::as_str));
    let fs: Arc<dyn FileSystem> = match spec.fstype.as_str() {
        "host" => HostFs::new(spec.host)?,
        other => match make(other, &options) {
            Err(Errno::ENODEV) => {
                klog!(Warn, "no file system of type {other:?}: {} is not mounted", spec.destination);
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
    Mount::whole(fs, spec.source.as_bytes(), options.flags).attach(point);
    Ok(())
}

/// The container's own credentials for setting itself up.
pub(super) fn root_creds() -> Creds {
    Creds { cap_effective: u64::MAX, cap_permitted: u64::MAX, ..Creds::default() }
}

/// Makes a directory of the container's root, and those above it, as the container's own set-up would: it belongs to root.
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

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(parse_size("64k", 0), Some(65536));
        assert_eq!(parse_size("2M", 0), Some(2 << 20));
        assert_eq!(parse_size("10%", 1000), Some(100));
        assert_eq!(parse_size("123", 0), Some(123));
        for bad in ["", "k", "1x", "99999999999999999999", "18446744073709551615g"] {
            assert_eq!(parse_size(bad, 0), None, "{bad}");
        }
    }

    #[test]
    fn options_are_split_into_flags_and_values() {
        let options = Options::parse("nosuid,ro,mode=755,rw,noexec,size=1k".split(','));
        assert_eq!(options.flags, MountFlags::NOSUID | MountFlags::NOEXEC);
        assert_eq!(options.octal("mode", 0), Ok(0o755));
        assert_eq!(options.value("size"), Some("1k"));
        assert_eq!(options.number("uid", 7), Ok(7));
    }
}
