//! Credentials: user and group ids, capabilities (credentials(7), capabilities(7)).

use alloc::vec::Vec;

use linux_raw_sys::general::{CAP_CHECKPOINT_RESTORE as CAP_LAST_CAP, CAP_SETUID};

use crate::errno::{Errno, Result};

/// The credentials of a thread. Immutable: a change makes a new value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Creds {
    pub uid: u32,
    pub euid: u32,
    pub suid: u32,
    pub fsuid: u32,
    pub gid: u32,
    pub egid: u32,
    pub sgid: u32,
    pub fsgid: u32,
    pub groups: Vec<u32>,
    /// Capability sets as bit masks.
    pub cap_bounding: u64,
    pub cap_effective: u64,
    pub cap_inheritable: u64,
    pub cap_permitted: u64,
    pub cap_ambient: u64,
    pub securebits: u32,
    pub no_new_privs: bool,
    pub keep_caps: bool,
}

impl Creds {
    /// True if capability number `cap` is effective.
    pub fn has_cap(&self, cap: u32) -> bool {
        cap < 64 && self.cap_effective >> cap & 1 != 0
    }

    /// True if it gives the same effective ids as `old`, and no capability that `old` lacks.
    pub fn is_within(&self, old: &Creds) -> bool {
        (self.euid, self.egid, self.fsuid, self.fsgid) == (old.euid, old.egid, old.fsuid, old.fsgid)
            && self.cap_permitted & !old.cap_permitted == 0
    }

    /// True if all ids of `its` are those of `self`, and it has no capability that `self` lacks.
    pub fn covers(&self, its: &Creds, mode: AccessMode) -> bool {
        let (uid, gid, caps) = match mode {
            AccessMode::Real => (self.uid, self.gid, self.cap_permitted),
            AccessMode::FileSystem => (self.fsuid, self.fsgid, self.cap_effective),
        };
        [its.uid, its.euid, its.suid].iter().all(|id| *id == uid)
            && [its.gid, its.egid, its.sgid].iter().all(|id| *id == gid)
            && its.cap_permitted & !caps == 0
    }

    /// True if `gid` is the file-system group or among the further groups.
    pub fn in_group(&self, gid: u32) -> bool {
        self.fsgid == gid || self.groups.contains(&gid)
    }

    /// The rest of what execve(2) does to credentials (Linux's cap_bprm_creds_from_file). `self`
    /// has the effective ids of the program that is executed, and else what `old` has; `of_file`:
    /// the program's own capabilities; `unsafe_sharing`: others could meddle with what the program
    /// sees. Whether it runs with rights that its caller lacks. EPERM if it may not have all
    /// capabilities that it relies upon.
    pub fn finish_exec(
        &mut self,
        old: &Creds,
        of_file: Option<&FileCaps>,
        unsafe_sharing: bool,
    ) -> Result<bool> {
        let mut is_effective = false;
        self.cap_permitted = 0;
        if let Some(file) = of_file {
            self.cap_permitted =
                old.cap_bounding & file.permitted | old.cap_inheritable & file.inheritable;
            is_effective = file.is_effective;
            if is_effective && file.permitted & !self.cap_permitted != 0 {
                return Err(Errno::EPERM);
            }
        }
        // A set-user-id program of root with capabilities of its own has those for others, no more.
        let is_limited = of_file.is_some() && self.uid != 0 && self.euid == 0;
        if self.securebits & SECBIT_NOROOT == 0 && !is_limited {
            if self.euid == 0 || self.uid == 0 {
                self.cap_permitted = old.cap_bounding | old.cap_inheritable;
            }
            is_effective |= self.euid == 0;
        }
        let is_setid = self.euid != old.uid || self.egid != old.gid;
        let gains = self.cap_permitted & !old.cap_permitted != 0;
        if (is_setid || gains) && (unsafe_sharing || old.no_new_privs) {
            // They get no more than they had.
            if !old.has_cap(CAP_SETUID) || old.no_new_privs {
                (self.euid, self.egid) = (self.uid, self.gid);
            }
            self.cap_permitted &= old.cap_permitted;
        }
        (self.suid, self.fsuid, self.sgid, self.fsgid) =
            (self.euid, self.euid, self.egid, self.egid);
        if is_setid || of_file.is_some() {
            self.cap_ambient = 0;
        }
        self.cap_permitted |= self.cap_ambient;
        self.cap_effective = if is_effective { self.cap_permitted } else { self.cap_ambient };
        self.keep_caps = false;
        self.securebits &= !SECBIT_KEEP_CAPS;
        let is_secure =
            self.uid != 0 && (is_effective || self.cap_permitted & !self.cap_ambient != 0);
        Ok(is_setid || is_secure)
    }

    /// What a change of user ids does to the capability sets (capabilities(7), "Effect of user ID
    /// changes"). `self` has the new ids and still the sets of `old`.
    pub fn adjust_caps(&mut self, old: &Creds) {
        if self.securebits & SECBIT_NO_SETUID_FIXUP != 0 {
            return;
        }
        let was_root = old.uid == 0 || old.euid == 0 || old.suid == 0;
        let is_root = self.uid == 0 || self.euid == 0 || self.suid == 0;
        if was_root && !is_root {
            if !self.keep_caps {
                self.cap_permitted = 0;
                self.cap_effective = 0;
            }
            self.cap_ambient = 0;
        }
        if old.euid == 0 && self.euid != 0 {
            self.cap_effective = 0;
        }
        if old.euid != 0 && self.euid == 0 {
            self.cap_effective = self.cap_permitted;
        }
        if old.fsuid == 0 && self.fsuid != 0 {
            self.cap_effective &= !FS_CAPS;
        }
        if old.fsuid != 0 && self.fsuid == 0 {
            self.cap_effective |= self.cap_permitted & FS_CAPS;
        }
    }
}

/// The capabilities of a file (capabilities(7), "File capabilities").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCaps {
    /// Added to the permitted set, as far as the bounding set has them.
    pub permitted: u64,
    /// Kept of the inheritable set.
    pub inheritable: u64,
    /// All that it gets is effective at once.
    pub is_effective: bool,
}

impl FileCaps {
    /// The attribute that holds them.
    pub const ATTRIBUTE: &'static [u8] = b"security.capability";
    /// The longest value of it, in bytes.
    pub const MAX_BYTES: usize = 24;

    /// From the attribute's value, a struct vfs_cap_data of any version (linux/capability.h).
    /// `None`: they are for a user namespace with another root. EINVAL for anything else.
    pub fn parse(value: &[u8]) -> Result<Option<FileCaps>> {
        const VERSION_MASK: u32 = 0xff00_0000;
        const EFFECTIVE: u32 = 1;
        let word = |n: usize| {
            let bytes = value.get(n * 4..n * 4 + 4).and_then(|b| <[u8; 4]>::try_from(b).ok());
            bytes.map(u32::from_le_bytes).ok_or(Errno::EINVAL)
        };
        let magic = word(0)?;
        let sets = match (magic & VERSION_MASK, value.len()) {
            (0x0100_0000, 12) => [word(1)?, word(2)?, 0, 0],
            (0x0200_0000, 20) | (0x0300_0000, 24) => [word(1)?, word(2)?, word(3)?, word(4)?],
            _ => return Err(Errno::EINVAL),
        };
        if magic & VERSION_MASK == 0x0300_0000 && word(5)? != 0 {
            return Ok(None);
        }
        let both = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        Ok(Some(FileCaps {
            permitted: both(sets[0], sets[2]) & ALL_CAPS,
            inheritable: both(sets[1], sets[3]) & ALL_CAPS,
            is_effective: magic & EFFECTIVE != 0,
        }))
    }
}

/// Every capability there is.
const ALL_CAPS: u64 = (1 << (CAP_LAST_CAP + 1)) - 1;
const SECBIT_NOROOT: u32 = 1;
const SECBIT_NO_SETUID_FIXUP: u32 = 1 << 2;
const SECBIT_KEEP_CAPS: u32 = 1 << 4;
/// CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, LINUX_IMMUTABLE, MKNOD, MAC_OVERRIDE.
const FS_CAPS: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 9 | 1 << 27 | 1 << 32;

/// Whose ids a check of access goes by (ptrace(2), "Ptrace access mode checking").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// PTRACE_MODE_REALCREDS: system calls that name a process.
    Real,
    /// PTRACE_MODE_FSCREDS: files of /proc.
    FileSystem,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Creds {
        Creds { cap_permitted: 0xff, cap_effective: 0xff, cap_ambient: 1, ..Creds::default() }
    }

    #[test]
    fn leaving_root_drops_capabilities() {
        let old = root();
        let mut new = Creds { uid: 5, euid: 5, suid: 5, fsuid: 5, ..old.clone() };
        new.adjust_caps(&old);
        assert_eq!((new.cap_permitted, new.cap_effective, new.cap_ambient), (0, 0, 0));
        let mut kept = Creds { uid: 5, euid: 5, suid: 5, fsuid: 5, keep_caps: true, ..old.clone() };
        kept.adjust_caps(&old);
        assert_eq!((kept.cap_permitted, kept.cap_effective), (0xff, 0));
    }

    #[test]
    fn a_changed_effective_id_only_switches_them() {
        let old = root();
        let mut user = Creds { euid: 5, fsuid: 5, ..old.clone() };
        user.adjust_caps(&old);
        assert_eq!((user.cap_permitted, user.cap_effective), (0xff, 0));
        let mut back = Creds { euid: 0, fsuid: 0, ..user.clone() };
        back.adjust_caps(&user);
        assert_eq!(back.cap_effective, 0xff);
    }

    fn user() -> Creds {
        let (uid, gid) = (9, 9);
        Creds {
            uid,
            euid: uid,
            suid: uid,
            fsuid: uid,
            gid,
            egid: gid,
            sgid: gid,
            fsgid: gid,
            cap_bounding: 0xff,
            ..Creds::default()
        }
    }

    fn execute(old: &Creds, euid: u32, unsafe_sharing: bool) -> (Creds, bool) {
        let mut new = Creds { euid, ..old.clone() };
        let is_secure = new.finish_exec(old, None, unsafe_sharing).unwrap();
        (new, is_secure)
    }

    #[test]
    fn set_user_id_programs_get_rights_only_where_that_is_safe() {
        let (new, is_secure) = execute(&user(), 0, false);
        assert_eq!((new.euid, new.suid, new.cap_effective, is_secure), (0, 0, 0xff, true));
        let (new, _) = execute(&user(), 0, true);
        assert_eq!(
            (new.euid, new.suid, new.fsuid, new.cap_permitted, new.cap_effective),
            (9, 9, 9, 0, 0)
        );
        let (new, is_secure) = execute(&user(), 9, true);
        assert_eq!((new, is_secure), (user(), false));
    }

    #[test]
    fn root_gets_no_capabilities_back_with_no_new_privs() {
        let old =
            Creds { cap_bounding: 0xff, cap_permitted: 1, cap_effective: 1, ..Creds::default() };
        assert_eq!(execute(&old, 0, false).0.cap_effective, 0xff);
        assert_eq!(execute(&Creds { no_new_privs: true, ..old }, 0, false).0.cap_effective, 1);
    }

    #[test]
    fn capabilities_of_files_follow_the_rules() {
        let old = Creds { cap_bounding: 0b0111, cap_inheritable: 0b1100, cap_ambient: 0, ..user() };
        let file = FileCaps { permitted: 0b0001, inheritable: 0b0100, is_effective: true };
        let with = |old: &Creds, file: FileCaps| {
            let mut new = old.clone();
            new.finish_exec(old, Some(&file), false).map(|is_secure| (new, is_secure))
        };
        let (new, is_secure) = with(&old, file).unwrap();
        assert_eq!((new.cap_permitted, new.cap_effective, is_secure), (0b0101, 0b0101, true));
        let (new, is_secure) = with(&old, FileCaps { is_effective: false, ..file }).unwrap();
        assert_eq!((new.cap_permitted, new.cap_effective, is_secure), (0b0101, 0, true));
        // Beyond the bounding set: refused to who relies on all, and else left out.
        let beyond = FileCaps { permitted: 0b1_0001, ..file };
        assert_eq!(with(&old, beyond).unwrap_err(), Errno::EPERM);
        let (new, _) = with(&old, FileCaps { is_effective: false, ..beyond }).unwrap();
        assert_eq!(new.cap_permitted, 0b0101);
        // Of what no_new_privs leaves there is nothing; ambient ones go in any case.
        let bound = Creds { no_new_privs: true, cap_ambient: 0b0100, ..old.clone() };
        let (new, _) = with(&bound, file).unwrap();
        assert_eq!((new.cap_permitted, new.cap_ambient), (0, 0));
        // Root has all anyway, but with SECBIT_NOROOT.
        let root = Creds { cap_bounding: 0b0111, ..Creds::default() };
        assert_eq!(with(&root, FileCaps::default()).unwrap().0.cap_effective, 0b0111);
        let plain = Creds { securebits: SECBIT_NOROOT, ..root };
        assert_eq!(with(&plain, FileCaps::default()).unwrap().0.cap_effective, 0);
    }

    #[test]
    fn capabilities_of_files_are_read_in_each_version() {
        let value = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
        let found = FileCaps { permitted: 0x2000, inheritable: 1, is_effective: true };
        for words in [
            &[0x0100_0001, 0x2000, 1][..],
            &[0x0200_0001, 0x2000, 1, 0, 0],
            &[0x0300_0001, 0x2000, 1, 0, 0, 0],
            // Numbers that no capability has.
            &[0x0200_0001, 0x2000, 1, 0xffff_fe00, 0xffff_fe00],
        ] {
            assert_eq!(FileCaps::parse(&value(words)), Ok(Some(found)), "{words:x?}");
        }
        assert_eq!(FileCaps::parse(&value(&[0x0300_0001, 1, 0, 0, 0, 1000])), Ok(None));
        for bad in [
            &[][..],
            &[0x0200_0001],
            &[0x0200_0001, 1, 0, 0],
            &[0x0200_0001, 1, 0, 0, 0, 0],
            &[0x0400_0000, 1, 0, 0, 0, 0],
        ] {
            assert_eq!(FileCaps::parse(&value(bad)), Err(Errno::EINVAL), "{bad:x?}");
        }
    }

    #[test]
    fn access_needs_all_ids_and_no_fewer_capabilities() {
        let (own, its) = (user(), user());
        assert!(own.covers(&its, AccessMode::Real) && own.covers(&its, AccessMode::FileSystem));
        for other in [
            Creds { suid: 0, ..its.clone() },
            Creds { sgid: 0, ..its.clone() },
            Creds { cap_permitted: 1, ..its.clone() },
        ] {
            assert!(
                !own.covers(&other, AccessMode::Real)
                    && !own.covers(&other, AccessMode::FileSystem)
            );
        }
        assert!(!Creds { fsuid: 1, ..own.clone() }.covers(&its, AccessMode::FileSystem));
    }
}
