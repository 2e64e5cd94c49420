//! Credentials: user and group ids, capabilities (credentials(7), capabilities(7)).

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::Thread;
use crate::errno::{Errno, Result};

/// CAP_SYS_PTRACE (capabilities(7)).
const CAP_SYS_PTRACE: u32 = 19;

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
    /// Whether capability number `cap` is effective.
    pub fn has_cap(&self, cap: u32) -> bool {
        cap < 64 && self.cap_effective >> cap & 1 != 0
    }

    /// Whether it gives the same effective ids as `old`, and no capability that `old` lacks.
    pub fn is_within(&self, old: &Creds) -> bool {
        (self.euid, self.egid, self.fsuid, self.fsgid) == (old.euid, old.egid, old.fsuid, old.fsgid)
            && self.cap_permitted & !old.cap_permitted == 0
    }

    /// Whether `gid` is the file-system group or among the further groups.
    pub fn in_group(&self, gid: u32) -> bool {
        self.fsgid == gid || self.groups.contains(&gid)
    }

    /// What a change of user ids does to the capability sets (capabilities(7), "Effect of user ID changes"). `self` has the new ids
    /// and still the sets of `old`.
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

const SECBIT_NO_SETUID_FIXUP: u32 = 1 << 2;
/// CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, LINUX_IMMUTABLE, MKNOD, MAC_OVERRIDE.
const FS_CAPS: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 9 | 1 << 27 | 1 << 32;

/// EPERM unless `thread` may attach to `other` by its real ids (ptrace(2), "Ptrace access mode checking",
/// PTRACE_MODE_ATTACH_REALCREDS).
pub fn check_attach(thread: &Thread, other: &Thread) -> Result {
    /// SUID_DUMP_USER of prctl(2)'s PR_SET_DUMPABLE.
    const DUMPABLE: u32 = 1;
    if Arc::ptr_eq(&thread.process, &other.process) {
        return Ok(());
    }
    let (own, its) = (thread.creds(), other.creds());
    let dumpable = other.process.traits.lock().dumpable;
    let alike = [its.uid, its.euid, its.suid].iter().all(|id| *id == own.uid)
        && [its.gid, its.egid, its.sgid].iter().all(|id| *id == own.gid)
        && its.cap_permitted & !own.cap_permitted == 0
        && dumpable == DUMPABLE;
    if alike || own.has_cap(CAP_SYS_PTRACE) { Ok(()) } else { Err(Errno::EPERM) }
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
}
