//! The flags of mounts (mount(2)).

use bitflags::bitflags;
use linux_raw_sys::general::{
    MS_NOATIME, MS_NODEV, MS_NODIRATIME, MS_NOEXEC, MS_NOSUID, MS_NOSYMFOLLOW, MS_RDONLY,
    MS_RELATIME, MS_STRICTATIME,
};

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

/// ST_VALID (linux/statfs.h).
pub const ST_VALID: u32 = 0x20;

/// What times of access a mount keeps.
const ATIME: MountFlags =
    MountFlags::NOATIME.union(MountFlags::NODIRATIME).union(MountFlags::RELATIME);

impl MountFlags {
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
