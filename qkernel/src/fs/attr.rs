//! Attributes of files, and the ABI structures that carry them: stat(2), statx(2), statfs(2).

use linux_raw_sys::general::{
    S_IFBLK, S_IFCHR, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, STATX_BASIC_STATS, STATX_BTIME,
    STATX_MNT_ID, STATX_MNT_ID_UNIQUE,
};

use crate::abi::{TimeSpec, abi_struct};
use crate::time;

abi_struct! {
    /// struct statx_timestamp.
    pub struct StatxTime { pub sec: i64, pub nsec: u32, pub pad: u32, }
}

abi_struct! {
    /// struct statx (statx(2)).
    pub struct Statx {
        pub mask: u32,
        pub blksize: u32,
        pub attributes: u64,
        pub nlink: u32,
        pub uid: u32,
        pub gid: u32,
        pub mode: u16,
        pub pad0: u16,
        pub ino: u64,
        pub size: u64,
        pub blocks: u64,
        pub attributes_mask: u64,
        pub atime: StatxTime,
        pub btime: StatxTime,
        pub ctime: StatxTime,
        pub mtime: StatxTime,
        pub rdev_major: u32,
        pub rdev_minor: u32,
        pub dev_major: u32,
        pub dev_minor: u32,
        pub mnt_id: u64,
        pub dio_mem_align: u32,
        pub dio_offset_align: u32,
        pub spare: [u64; 12],
    }
}

abi_struct! {
    /// struct stat of x86-64 (stat(2)).
    pub struct Stat {
        pub dev: u64,
        pub ino: u64,
        pub nlink: u64,
        pub mode: u32,
        pub uid: u32,
        pub gid: u32,
        pub pad0: u32,
        pub rdev: u64,
        pub size: i64,
        pub blksize: i64,
        pub blocks: i64,
        pub atime: TimeSpec,
        pub mtime: TimeSpec,
        pub ctime: TimeSpec,
        pub unused: [i64; 3],
    }
}

abi_struct! {
    /// struct statfs of x86-64 (statfs(2)).
    pub struct StatFs {
        pub kind: i64,
        pub bsize: i64,
        pub blocks: u64,
        pub bfree: u64,
        pub bavail: u64,
        pub files: u64,
        pub ffree: u64,
        pub fsid: [i32; 2],
        pub namelen: i64,
        pub frsize: i64,
        pub flags: i64,
        pub spare: [i64; 4],
    }
}

/// What stat(2) reports of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Attributes {
    /// S_IF* type and permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    /// Device of the file system, as `major << 32 | minor`.
    pub dev: u64,
    pub ino: u64,
    /// Device that a device node stands for, as `major << 32 | minor`.
    pub rdev: u64,
    /// Length in bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Preferred transfer size in bytes.
    pub block_size: u32,
    pub atime: TimeSpec,
    pub mtime: TimeSpec,
    pub ctime: TimeSpec,
    pub btime: TimeSpec,
}

/// The number of a mount, of either kind that statx(2) tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountNumber {
    /// STATX_MNT_ID.
    Plain(u64),
    /// STATX_MNT_ID_UNIQUE.
    Unique(u64),
}

/// True if a mode, or the S_IF* type of one, is a device node's.
pub const fn is_device(mode: u32) -> bool {
    matches!(mode & S_IFMT, S_IFCHR | S_IFBLK)
}

/// A device number in the form of [`Attributes::rdev`].
pub const fn device(major: u32, minor: u32) -> u64 {
    (major as u64) << 32 | minor as u64
}

/// Major and minor of a device number.
pub const fn device_parts(device: u64) -> (u32, u32) {
    ((device >> 32) as u32, device as u32)
}

/// A device number as user programs see it (makedev(3)).
pub const fn device_to_user(device: u64) -> u64 {
    let (major, minor) = device_parts(device);
    let (major, minor) = (major as u64, minor as u64);
    (major & 0xfff) << 8 | (major & !0xfff) << 32 | minor & 0xff | (minor & !0xff) << 12
}

/// The inverse of [`device_to_user`].
pub const fn device_from_user(device_number: u64) -> u64 {
    let major = device_number >> 8 & 0xfff | device_number >> 32 & !0xfff;
    let minor = device_number & 0xff | device_number >> 12 & !0xff;
    device(major as u32, minor as u32)
}

impl Attributes {
    /// Sets the times of access, modification and change to now.
    pub fn touch(&mut self) {
        let now = SetTime::Now.resolve();
        (self.atime, self.mtime, self.ctime) = (now, now, now);
    }

    /// Which file it is: device and inode number.
    pub fn id(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }

    /// Owner and group (kernel ids).
    pub fn owner(&self) -> (u32, u32) {
        (self.uid, self.gid)
    }

    /// The S_IF* type.
    pub fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }

    /// True if it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == S_IFDIR
    }

    /// True if it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.kind() == S_IFREG
    }

    /// True if it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind() == S_IFLNK
    }

    /// Of an object of the kernel's own, made now.
    pub fn new(mode: u32, uid: u32, gid: u32, dev: u64, ino: u64) -> Self {
        let now = TimeSpec::from_ns(time::realtime_ns());
        let (atime, mtime, ctime, btime) = (now, now, now, now);
        Attributes {
            mode,
            uid,
            gid,
            nlink: 1,
            dev,
            ino,
            block_size: 4096,
            atime,
            mtime,
            ctime,
            btime,
            ..Attributes::default()
        }
    }

    /// From the host's answer.
    pub fn from_statx(x: &Statx) -> Self {
        let time = |t: StatxTime| TimeSpec { sec: t.sec, nsec: i64::from(t.nsec) };
        Attributes {
            mode: u32::from(x.mode),
            uid: x.uid,
            gid: x.gid,
            nlink: x.nlink,
            dev: device(x.dev_major, x.dev_minor),
            ino: x.ino,
            rdev: device(x.rdev_major, x.rdev_minor),
            size: x.size,
            blocks: x.blocks,
            block_size: x.blksize,
            atime: time(x.atime),
            mtime: time(x.mtime),
            ctime: time(x.ctime),
            btime: time(x.btime),
        }
    }

    /// For stat(2).
    pub fn to_stat(&self) -> Stat {
        Stat {
            dev: device_to_user(self.dev),
            ino: self.ino,
            nlink: u64::from(self.nlink),
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            pad0: 0,
            rdev: device_to_user(self.rdev),
            size: self.size as i64,
            blksize: i64::from(self.block_size),
            blocks: self.blocks as i64,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            unused: [0; 3],
        }
    }

    /// For statx(2); `mount` is the mount's number, or that which no other mount will ever have.
    pub fn to_statx(&self, mount: MountNumber) -> Statx {
        let time = |t: TimeSpec| StatxTime { sec: t.sec, nsec: t.nsec as u32, pad: 0 };
        let ((rdev_major, rdev_minor), (dev_major, dev_minor)) =
            (device_parts(self.rdev), device_parts(self.dev));
        let (mnt_id, mount_mask) = match mount {
            MountNumber::Plain(number) => (number, STATX_MNT_ID),
            MountNumber::Unique(number) => (number, STATX_MNT_ID_UNIQUE),
        };
        // If it is known.
        let birth = if self.btime == TimeSpec::default() { 0 } else { STATX_BTIME };
        Statx {
            mask: STATX_BASIC_STATS | mount_mask | birth,
            blksize: self.block_size,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            mode: self.mode as u16,
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: time(self.atime),
            btime: time(self.btime),
            ctime: time(self.ctime),
            mtime: time(self.mtime),
            rdev_major,
            rdev_minor,
            dev_major,
            dev_minor,
            mnt_id,
            ..Statx::default()
        }
    }
}

/// A change of attributes: what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits, without type.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time.
    Now,
    /// This time.
    At(TimeSpec),
}

impl SetTime {
    /// As a time.
    pub fn resolve(self) -> TimeSpec {
        match self {
            SetTime::Now => TimeSpec::from_ns(time::realtime_ns()),
            SetTime::At(time) => time,
        }
    }
}

impl SetAttributes {
    /// Applies the change to attributes held in memory.
    pub fn apply(&self, attributes: &mut Attributes) {
        if let Some(mode) = self.mode {
            attributes.mode = attributes.mode & S_IFMT | mode & 0o7777;
        }
        attributes.uid = self.uid.unwrap_or(attributes.uid);
        attributes.gid = self.gid.unwrap_or(attributes.gid);
        if let Some(time) = self.atime {
            attributes.atime = time.resolve();
        }
        if let Some(time) = self.mtime {
            attributes.mtime = time.resolve();
        }
        attributes.ctime = SetTime::Now.resolve();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_abi() {
        assert_eq!(size_of::<Stat>(), 144);
        assert_eq!(size_of::<Statx>(), 256);
        assert_eq!(size_of::<StatFs>(), 120);
    }

    #[test]
    fn device_numbers_survive_the_round_trip() {
        for (major, minor) in [(1, 3), (136, 0), (0, 0x80001), (4095, 255), (0x12345, 0xabcde)] {
            let number = device(major, minor);
            assert_eq!(device_from_user(device_to_user(number)), number);
        }
        assert_eq!(device_to_user(device(1, 3)), 0x103);
    }
}
