//! Owners of files that the sandbox process's user namespace has no number for.
//!
//! The host shows all of them as one overflow id, so a set-ID program of such an owner would run as
//! that id. Linux gives its bits no effect (user_namespaces(7)); here the guest does not see them.

use std::mem::offset_of;
use std::ops::Range;

use crate::sys::StatxBytes;

const MODE: Range<usize> = field(offset_of!(libc::statx, stx_mode), 2);
const USER: Range<usize> = field(offset_of!(libc::statx, stx_uid), 4);
const GROUP: Range<usize> = field(offset_of!(libc::statx, stx_gid), 4);

const fn field(offset: usize, len: usize) -> Range<usize> {
    offset..offset + len
}

/// What stands for owners without a number.
#[derive(Debug)]
pub struct Owners {
    /// The ids of users and of groups, where the namespace leaves any out.
    overflow: [Option<u32>; 2],
}

impl Owners {
    /// Reads the maps of this process's user namespace.
    pub fn read() -> Owners {
        let ids = [("uid_map", "overflowuid"), ("gid_map", "overflowgid")];
        Owners {
            overflow: ids.map(|(map, id)| {
                let text = std::fs::read_to_string(format!("/proc/self/{map}")).unwrap_or_default();
                let overflow = std::fs::read_to_string(format!("/proc/sys/kernel/{id}"));
                let overflow = overflow.ok().and_then(|t| t.trim().parse().ok()).unwrap_or(65_534);
                (!maps_all(&text)).then_some(overflow)
            }),
        }
    }

    /// `stat` without the set-ID bits of owners that have no number. Directories keep theirs:
    /// there they do not say who runs.
    pub fn without_foreign_set_id(&self, mut stat: StatxBytes) -> StatxBytes {
        let mode = u16::from_ne_bytes([stat[MODE.start], stat[MODE.start + 1]]);
        if u32::from(mode) & libc::S_IFMT != libc::S_IFREG {
            return stat;
        }
        let mut cleared = mode;
        let bits = [libc::S_ISUID, libc::S_ISGID];
        for ((overflow, owner), bit) in self.overflow.iter().zip([USER, GROUP]).zip(bits) {
            if overflow.is_some_and(|id| stat[owner] == id.to_ne_bytes()) {
                cleared &= !(bit as u16);
            }
        }
        stat[MODE].copy_from_slice(&cleared.to_ne_bytes());
        stat
    }
}

/// True if a text as /proc/PID/uid_map maps every id there is.
fn maps_all(map: &str) -> bool {
    let counts = map.lines().filter_map(|l| l.split_whitespace().nth(2)?.parse::<u64>().ok());
    counts.sum::<u64>() >= u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(mode: u32, uid: u32, gid: u32) -> StatxBytes {
        let mut bytes = [0; size_of::<StatxBytes>()];
        bytes[MODE].copy_from_slice(&(mode as u16).to_ne_bytes());
        bytes[USER].copy_from_slice(&uid.to_ne_bytes());
        bytes[GROUP].copy_from_slice(&gid.to_ne_bytes());
        bytes
    }

    #[test]
    fn set_id_bits_of_owners_without_a_number_go() {
        let owners = Owners { overflow: [Some(65_534), Some(65_533)] };
        let seen = |mode, uid, gid| {
            let stat = owners.without_foreign_set_id(stat(mode, uid, gid));
            u32::from(u16::from_ne_bytes(stat[MODE].try_into().unwrap()))
        };
        let file = libc::S_IFREG | 0o755;
        assert_eq!(seen(file | 0o6000, 65_534, 65_533), file);
        assert_eq!(seen(file | 0o6000, 65_534, 0), file | 0o2000);
        assert_eq!(seen(file | 0o6000, 0, 65_533), file | 0o4000);
        assert_eq!(seen(file | 0o6000, 65_533, 65_534), file | 0o6000);
        let directory = libc::S_IFDIR | 0o2755;
        assert_eq!(seen(directory, 65_534, 65_533), directory);
        let owners = Owners { overflow: [None, None] };
        let all = stat(file | 0o6000, 65_534, 65_534);
        assert_eq!(owners.without_foreign_set_id(all), all);
    }

    #[test]
    fn a_map_of_all_ids_is_known() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(!maps_all("         0       1234          1\n         1    1000000       2000\n"));
        assert!(!maps_all(""));
    }
}
