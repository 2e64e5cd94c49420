//! Credentials: user and group ids, capabilities (credentials(7), capabilities(7)).

use alloc::vec::Vec;

use linux_raw_sys::general::CAP_SETUID;

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
    /// has the effective ids of the program that is executed, and else what `old` has;
    /// `unsafe_sharing`: others could meddle with what the program sees. Whether it runs with
    /// rights that its caller lacks.
    pub fn finish_exec(&mut self, old: &Creds, unsafe_sharing: bool) -> bool {
        let mut is_effective = false;
        self.cap_permitted = 0;
        if self.securebits & SECBIT_NOROOT == 0 && (self.euid == 0 || self.uid == 0) {
            self.cap_permitted = old.cap_bounding | old.cap_inheritable;
            is_effective = self.euid == 0;
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
        if is_setid {
            self.cap_ambient = 0;
        }
        self.cap_permitted |= self.cap_ambient;
        self.cap_effective = if is_effective { self.cap_permitted } else { self.cap_ambient };
        self.keep_caps = false;
        self.securebits &= !SECBIT_KEEP_CAPS;
        is_setid || self.uid != 0 && (is_effective || self.cap_permitted & !self.cap_ambient != 0)
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
        let is_secure = new.finish_exec(old, unsafe_sharing);
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
