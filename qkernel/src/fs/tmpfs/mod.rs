//! tmpfs(5): files in guest memory. It also holds what is in /dev, and memfd_create(2)'s files.

mod file;
mod inodes;
mod node;

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::{AtomicU64, Ordering};

use linux_raw_sys::general::{S_IFDIR, TMPFS_MAGIC};
use qlib::PAGE_SIZE;

pub use file::TmpFile;
pub use node::TmpNode;

use self::inodes::Inodes;
use super::attr::{Attributes, StatFs};
use super::inode::{FileSystem, Inode, next_device, simple_statfs};
use super::options::Options;
use super::shmem::Quota;
use crate::account;
use crate::errno::{Errno, Result};
use crate::random;
use crate::sync::Mutex;

/// Permission bits of a root for which nobody says.
pub const DEFAULT_MODE: u32 = 0o1777;
/// As a limit in bytes: there is none.
pub const NO_LIMIT: u64 = u64::MAX - PAGE_SIZE;

/// What one may hold for which nobody says: half of RAM, in bytes.
pub fn default_bytes() -> u64 {
    account::memory_bytes() / 2
}

/// The options that it has; of those about huge pages and NUMA none has an effect.
pub const OPTIONS: [&str; 11] = [
    "size",
    "nr_blocks",
    "nr_inodes",
    "mode",
    "uid",
    "gid",
    "huge",
    "mpol",
    "inode32",
    "inode64",
    "noswap",
];

/// EINVAL if there is another option among them.
pub fn check_options(options: &Options<'_>) -> Result {
    let is_known = |o: &&str| OPTIONS.contains(&o.split('=').next().unwrap_or_default());
    if options.rest.iter().all(is_known) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// EINVAL if one of these options has a value that it cannot have.
pub fn check_values(options: &Options<'_>) -> Result {
    limit(options)?;
    most_inodes(options)?;
    options.octal("mode", 0)?;
    options.number("uid", 0)?;
    options.number("gid", 0)?;
    Ok(())
}

/// The limit that options set, in bytes; 0 is none. Of several the last counts.
pub fn limit(options: &Options<'_>) -> Result<u64> {
    let says = |o: &&str| ["size=", "nr_blocks="].into_iter().find(|name| o.starts_with(name));
    let limit = match options.rest.iter().rev().find_map(says) {
        Some("nr_blocks=") => {
            let blocks = options.size_of_whole("nr_blocks", 0)?;
            blocks.checked_mul(PAGE_SIZE).ok_or(Errno::EINVAL)?
        }
        _ => options.size("size", default_bytes())?,
    };
    if limit == 0 { Ok(NO_LIMIT) } else { Ok(limit) }
}

/// The most inodes that options allow; 0: no limit.
fn most_inodes(options: &Options<'_>) -> Result<u64> {
    options.size_of_whole("nr_inodes", default_inodes())
}

/// The most inodes of one for which nobody says: one for each other page of RAM.
fn default_inodes() -> u64 {
    account::memory_bytes() / 2 / PAGE_SIZE
}

/// A file system in guest memory.
pub struct TmpFs {
    device: u64,
    last_ino: AtomicU64,
    quota: Arc<Quota>,
    inodes: Arc<Inodes>,
    /// Mode and owner that its root was made with.
    made: (u32, u32, u32),
    root: Mutex<Option<Arc<TmpNode>>>,
    /// Its UUID, once somebody has asked for it.
    uuid: Mutex<Option<[u8; 16]>>,
}

impl TmpFs {
    /// One for files that have no names, and so do not outlive those who have them open or mapped.
    pub fn nameless() -> Arc<Self> {
        let quota = Quota::new(u64::MAX / PAGE_SIZE);
        Self::with_quota((quota, Inodes::new(0)), 0o1777, 0, 0)
    }

    /// An empty one as these options say, but for the owner of its root (kernel ids).
    pub fn with_options(options: &Options<'_>, (uid, gid): (u32, u32)) -> Result<Arc<Self>> {
        let limits = (
            Quota::lasting(limit(options)?.div_ceil(PAGE_SIZE)),
            Inodes::new(most_inodes(options)?),
        );
        Ok(Self::with_quota(limits, options.octal("mode", DEFAULT_MODE)?, uid, gid))
    }

    /// An empty one that may hold `limit_bytes` of file content; `mode` and owner are its root's.
    pub fn new(limit_bytes: u64, mode: u32, uid: u32, gid: u32) -> Arc<Self> {
        let quota = Quota::lasting(limit_bytes.div_ceil(PAGE_SIZE));
        Self::with_quota((quota, Inodes::new(default_inodes())), mode, uid, gid)
    }

    /// As [`TmpFs::new`], with files that lie on the host's disk ([`Quota::on_disk`]).
    pub fn on_disk(limit_bytes: u64, mode: u32, uid: u32, gid: u32) -> Arc<Self> {
        let quota = Quota::on_disk(limit_bytes.div_ceil(PAGE_SIZE));
        Self::with_quota((quota, Inodes::new(default_inodes())), mode, uid, gid)
    }

    fn with_quota(
        (quota, inodes): (Arc<Quota>, Arc<Inodes>),
        mode: u32,
        uid: u32,
        gid: u32,
    ) -> Arc<Self> {
        let fs = Arc::new(TmpFs {
            device: next_device(),
            last_ino: AtomicU64::new(0),
            quota,
            inodes,
            made: (mode & 0o7777, uid, gid),
            root: Mutex::new(None),
            uuid: Mutex::new(None),
        });
        // As on Linux it counts. Others are refused, it never is.
        let _ = fs.inodes.take();
        let root = TmpNode::new(
            &fs,
            fs.attributes(S_IFDIR | mode & 0o7777, uid, gid),
            node::Content::dir(),
        );
        *fs.root.lock() = Some(root);
        fs
    }

    /// Attributes of a new object.
    fn attributes(&self, mode: u32, uid: u32, gid: u32) -> Attributes {
        let ino = self.last_ino.fetch_add(1, Ordering::Relaxed) + 1;
        let nlink = if mode & linux_raw_sys::general::S_IFMT == S_IFDIR { 2 } else { 1 };
        Attributes { nlink, ..Attributes::new(mode, uid, gid, self.device, ino) }
    }

    /// What limits its size.
    pub fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }
}

impl FileSystem for TmpFs {
    fn type_name(&self) -> &'static str {
        "tmpfs"
    }

    fn root(&self) -> Arc<dyn Inode> {
        let root = self.root.lock().clone();
        root.expect("a tmpfs has a root from its making on")
    }

    fn statfs(&self) -> Result<StatFs> {
        let (limit, used) = self.quota.state();
        let free = limit.saturating_sub(used);
        Ok(StatFs {
            blocks: limit,
            bfree: free,
            bavail: free,
            files: self.inodes.limit(),
            ffree: self.inodes.free(),
            // Not 0: who watches files tells file systems apart by it (fanotify(7)).
            fsid: [self.device as i32, (self.device >> 32) as i32],
            ..simple_statfs(TMPFS_MAGIC)
        })
    }

    /// A random one (RFC 9562, version 4), as on Linux.
    fn uuid(&self) -> Option<[u8; 16]> {
        let known = *self.uuid.lock();
        Some(known.unwrap_or_else(|| {
            let mut uuid = [0; 16];
            random::fill(&mut uuid);
            uuid[6] = uuid[6] & 0x0f | 0x40;
            uuid[8] = uuid[8] & 0x3f | 0x80;
            *self.uuid.lock() = Some(uuid);
            uuid
        }))
    }

    fn has_handles(&self) -> bool {
        true
    }

    fn path_of(&self, root: &Arc<dyn Inode>, ino: u64) -> Option<Vec<u8>> {
        node::arc_of(root).ok()?.path_to(ino)
    }

    /// Size and number of inodes are what can be changed. EINVAL if more is used.
    fn remount(&self, options: &Options<'_>) -> Result {
        check_options(options)?;
        let sets = |name| options.value(name).is_some();
        let pages = (sets("size") || sets("nr_blocks"))
            .then(|| limit(options).map(|limit| limit.div_ceil(PAGE_SIZE)))
            .transpose()?;
        let inodes = sets("nr_inodes").then(|| most_inodes(options)).transpose()?;
        if pages.is_some_and(|pages| pages < self.quota.state().1) {
            return Err(Errno::EINVAL);
        }
        if let Some(inodes) = inodes {
            self.inodes.check_limit(inodes)?;
            self.inodes.set_limit(inodes);
        }
        if let Some(pages) = pages {
            self.quota.set_limit(pages);
        }
        Ok(())
    }

    fn options(&self) -> Vec<u8> {
        // As on Linux what is not the default, and how wide inode numbers are.
        let (limit, _) = self.quota.state();
        let (mode, uid, gid) = self.made;
        let size_k = if limit >= NO_LIMIT / PAGE_SIZE { 0 } else { limit * (PAGE_SIZE / 1024) };
        let mut out = String::new();
        for (shown, name, value) in [
            (limit != default_bytes().div_ceil(PAGE_SIZE), "size", alloc::format!("{size_k}k")),
            (self.inodes.limit() != default_inodes(), "nr_inodes", self.inodes.limit().to_string()),
            (mode != DEFAULT_MODE, "mode", alloc::format!("{mode:03o}")),
            (uid != 0, "uid", uid.to_string()),
            (gid != 0, "gid", gid.to_string()),
        ] {
            if shown {
                let _ = write!(out, ",{name}={value}");
            }
        }
        out.push_str(",inode64");
        out.into_bytes()
    }
}
