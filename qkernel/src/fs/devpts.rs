//! devpts: /dev/pts, where the terminals of pseudoterminals appear (pts(4)).

use alloc::format;
use alloc::string::ToString;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{DEVPTS_SUPER_MAGIC, S_IFCHR, S_IFDIR, S_IFMT};

use super::attr::{Attributes, SetAttributes, StatFs, device};
use super::file::{DirEntry, DirSink, dots, entry_kind};
use super::inode::{Caching, FileSystem, Inode, simple_statfs};
use super::mounter::Mounter;
use super::options::Options;
use super::{FileOps, OpenFile, special};
use crate::errno::{Errno, Result};
use crate::fs::Caller;
use crate::ipc::tty::pty::{self, SLAVE_GROUP, SLAVE_MODE};
use crate::user_namespace::UserNs;

/// The device number of every devpts, which a terminal opened without a path reports too.
pub const DEVICE: u64 = device(0, 0x8_0000);
/// Inode numbers of the root and of ptmx; terminals follow.
const ROOT_INO: u64 = 1;
const PTMX_INO: u64 = 2;

/// The file system.
struct DevPts {
    /// The container whose terminals it shows.
    container: u32,
    /// The user namespace whose terminals it shows: others in there must not reach those outside.
    user: UserNs,
    ptmx_mode: u32,
    this: Weak<DevPts>,
}

/// Makes a file system of type devpts. Its option "ptmxmode" is the mode of ptmx; terminals have
/// group and mode of their own, whatever "gid" and "mode" say.
pub fn make(mounter: &Mounter, options: &Options<'_>) -> Result<Arc<dyn FileSystem>> {
    let ptmx_mode = options.octal("ptmxmode", 0)? & 0o777;
    let (container, user) = (mounter.container, mounter.user.clone());
    Ok(Arc::new_cyclic(|this| DevPts { container, user, ptmx_mode, this: this.clone() }))
}

impl DevPts {
    /// The numbers of the terminals that it shows.
    fn terminals(&self) -> Vec<u32> {
        pty::list_of(self.container, &self.user)
    }
}

impl FileSystem for DevPts {
    fn type_name(&self) -> &'static str {
        "devpts"
    }

    fn root(&self) -> Arc<dyn Inode> {
        let fs = self.this.upgrade().expect("a file system in use is alive");
        Arc::new(PtsInode { fs, what: What::Root })
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(simple_statfs(DEVPTS_SUPER_MAGIC))
    }

    fn options(&self) -> Vec<u8> {
        let ptmx_mode = self.ptmx_mode;
        format!(",gid={SLAVE_GROUP},mode={SLAVE_MODE:03o},ptmxmode={ptmx_mode:03o}").into_bytes()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Root,
    Ptmx,
    Terminal(u32),
}

/// An object of it.
struct PtsInode {
    fs: Arc<DevPts>,
    what: What,
}

impl Inode for PtsInode {
    fn kind(&self) -> u32 {
        if self.what == What::Root { S_IFDIR } else { S_IFCHR }
    }

    fn attributes(&self) -> Result<Attributes> {
        let new = |mode, ino| Attributes::new(mode, 0, 0, DEVICE, ino);
        Ok(match self.what {
            What::Root => Attributes { nlink: 2, ..new(S_IFDIR | 0o755, ROOT_INO) },
            What::Ptmx => {
                Attributes { rdev: device(5, 2), ..new(S_IFCHR | self.fs.ptmx_mode, PTMX_INO) }
            }
            What::Terminal(number) => pty::slave_attributes(number),
        })
    }

    fn set_attributes(&self, change: &SetAttributes) -> Result {
        match self.what {
            What::Terminal(number) => pty::set_slave_attributes(number, change),
            _ => Err(Errno::EPERM),
        }
    }

    fn caching(&self) -> Caching {
        if matches!(self.what, What::Terminal(_)) { Caching::Never } else { Caching::Keep }
    }

    fn lookup(self: Arc<Self>, name: &[u8]) -> Result<Arc<dyn Inode>> {
        if self.what != What::Root {
            return Err(Errno::ENOTDIR);
        }
        let what = match name {
            b"ptmx" => What::Ptmx,
            _ => {
                let text = core::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
                let mut numbers = self.fs.terminals().into_iter();
                let number = numbers.find(|n| n.to_string() == text).ok_or(Errno::ENOENT)?;
                What::Terminal(number)
            }
        };
        Ok(Arc::new(PtsInode { fs: self.fs.clone(), what }))
    }

    fn open(self: Arc<Self>, caller: &dyn Caller, flags: u32) -> Result<Arc<dyn FileOps>> {
        match self.what {
            What::Root => Ok(Arc::new(PtsDir(self))),
            _ => special::open(caller, &self.attributes()?, flags),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The open root.
struct PtsDir(Arc<PtsInode>);

impl FileOps for PtsDir {
    fn is_seekable(&self) -> bool {
        true
    }

    fn attributes(&self, _file: &OpenFile) -> Result<Attributes> {
        self.0.attributes()
    }

    fn read_dir(&self, file: &OpenFile, position: u64, sink: &mut DirSink<'_>) -> Result<u64> {
        let mut position = match dots(file, position, sink)? {
            Ok(position) => position,
            Err(full) => return Ok(full),
        };
        let kind = entry_kind(S_IFCHR & S_IFMT);
        if position == 2 {
            if !sink(DirEntry { ino: PTMX_INO, next: 3, kind, name: b"ptmx" }) {
                return Ok(position);
            }
            position = 3;
        }
        // Terminal N has position N + 4 behind it, so that a listing goes on whatever comes and
        // goes.
        for number in self.0.fs.terminals() {
            let next = u64::from(number) + 4;
            if next <= position {
                continue;
            }
            let name = number.to_string();
            if !sink(DirEntry { ino: u64::from(number) + 3, next, kind, name: name.as_bytes() }) {
                break;
            }
            position = next;
        }
        Ok(position)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
