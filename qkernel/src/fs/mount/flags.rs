//! The flags of mounts (mount(2)).

use bitflags::bitflags;
use linux_raw_sys::general::{
    MOUNT_ATTR__ATIME, MOUNT_ATTR_NOATIME, MOUNT_ATTR_NODEV, MOUNT_ATTR_NODIRATIME,
    MOUNT_ATTR_NOEXEC, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NOSYMFOLLOW, MOUNT_ATTR_RDONLY,
    MOUNT_ATTR_RELATIME, MOUNT_ATTR_STRICTATIME, MS_NOATIME, MS_NODEV, MS_NODIRATIME, MS_NOEXEC,
    MS_NOSUID, MS_NOSYMFOLLOW, MS_RDONLY, MS_RELATIME, MS_STRICTATIME,
};

use crate::errno::{Errno, Result};

bitflags! {
    /// Flags of one mount, with the bit values of mount(2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MountFlags: u32 {
        /// MS_RDONLY.
        const RDONLY = MS_RDONLY;
        /// MS_NOSUID.
        const NOSUID = MS_NOSUID;
        /// MS_NODEV.
        const NODEV = MS_NODEV;
        /// MS_NOEXEC.
        const NOEXEC = MS_NOEXEC;
        /// MS_NOSYMFOLLOW.
        const NOSYMFOLLOW = MS_NOSYMFOLLOW;
        /// MS_NOATIME.
        const NOATIME = MS_NOATIME;
        /// MS_NODIRATIME.
        const NODIRATIME = MS_NODIRATIME;
        /// MS_RELATIME.
        const RELATIME = MS_RELATIME;
        /// MS_STRICTATIME.
        const STRICTATIME = MS_STRICTATIME;
    }
}

/// Attributes of mount_setattr(2) that are one flag each.
const ATTRIBUTES: [(u32, MountFlags); 6] = [
    (MOUNT_ATTR_RDONLY, MountFlags::RDONLY),
    (MOUNT_ATTR_NOSUID, MountFlags::NOSUID),
    (MOUNT_ATTR_NODEV, MountFlags::NODEV),
    (MOUNT_ATTR_NOEXEC, MountFlags::NOEXEC),
    (MOUNT_ATTR_NODIRATIME, MountFlags::NODIRATIME),
    (MOUNT_ATTR_NOSYMFOLLOW, MountFlags::NOSYMFOLLOW),
];

/// ST_VALID (linux/statfs.h).
pub const ST_VALID: u32 = 0x20;

/// What times of access a mount keeps.
const ATIME: MountFlags =
    MountFlags::NOATIME.union(MountFlags::NODIRATIME).union(MountFlags::RELATIME);

impl MountFlags {
    /// What attributes of fsmount(2) say: EINVAL for those that there are not. Which times of
    /// access are kept is a number among them.
    pub fn from_attributes(attributes: u64) -> Result<MountFlags> {
        let flags = Self::from_single(attributes & !u64::from(MOUNT_ATTR__ATIME))?;
        let times = match attributes as u32 & MOUNT_ATTR__ATIME {
            MOUNT_ATTR_RELATIME => MountFlags::RELATIME,
            MOUNT_ATTR_NOATIME => MountFlags::NOATIME,
            MOUNT_ATTR_STRICTATIME => MountFlags::empty(),
            _ => return Err(Errno::EINVAL),
        };
        Ok(flags | times)
    }

    /// As [`Self::from_attributes`], of attributes that do not say that.
    pub fn from_single(attributes: u64) -> Result<MountFlags> {
        let (mut left, mut flags) = (attributes, MountFlags::empty());
        for (bit, flag) in ATTRIBUTES {
            flags.set(flag, left & u64::from(bit) != 0);
            left &= !u64::from(bit);
        }
        if left == 0 { Ok(flags) } else { Err(Errno::EINVAL) }
    }

    /// Its attributes, as statmount(2) has them.
    pub fn to_attributes(self) -> u64 {
        let single = ATTRIBUTES.into_iter().filter(|(_, flag)| self.contains(*flag));
        let times = match self {
            _ if self.contains(MountFlags::NOATIME) => MOUNT_ATTR_NOATIME,
            _ if self.contains(MountFlags::RELATIME) => MOUNT_ATTR_RELATIME,
            _ => MOUNT_ATTR_STRICTATIME,
        };
        single.fold(u64::from(times), |all, (bit, _)| all | u64::from(bit))
    }

    /// Those that say what times of access it keeps.
    pub fn times(self) -> MountFlags {
        self & ATIME
    }

    /// What a mount has that is made with flags of mount(2), or changed with them from `before`, as
    /// on Linux: RELATIME unless they say otherwise, and what it had of such before.
    pub fn settle(self, before: Option<MountFlags>) -> MountFlags {
        let says = self & (ATIME | MountFlags::STRICTATIME);
        let times = match before {
            Some(before) if says.is_empty() => before & ATIME,
            _ if says.contains(MountFlags::STRICTATIME) => says & MountFlags::NODIRATIME,
            _ if says.contains(MountFlags::NOATIME) => says - MountFlags::RELATIME,
            _ => says & ATIME | MountFlags::RELATIME,
        };
        (self - ATIME - MountFlags::STRICTATIME) | times
    }
}
