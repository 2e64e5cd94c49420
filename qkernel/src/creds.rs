//! Credentials: user and group ids, capabilities (credentials(7), capabilities(7)).

pub mod keys;
pub mod landlock;

use alloc::vec::Vec;

use linux_raw_sys::general::{CAP_CHECKPOINT_RESTORE as CAP_LAST_CAP, CAP_SETUID};

use self::keys::Rings;
use self::landlock::Domain;
use crate::errno::{Errno, Result};
use crate::user_namespace::{OVERFLOW_ID, UserNs};

/// The credentials of a thread. Immutable: a change makes a new value.
///
/// All ids are kernel ids ([`crate::user_namespace`]). A capability counts in the user namespace
/// that the thread is in, and in those below it: who asks for one says of which namespace what it
/// is about is, or it is the container's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Creds {
    /// The user namespace that they are of.
    pub user: UserNs,
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
    /// What its thread has forbidden itself.
    pub domain: Domain,
    /// Its keyrings.
    pub rings: Rings,
}

impl Creds {
    /// True if capability number `cap` is effective in the container's own user namespace: for
    /// whatever belongs to the container as a whole.
    pub fn capable(&self, cap: u32) -> bool {
        self.user.is_initial() && self.is_effective(cap)
    }

    /// True if capability number `cap` is effective in `target`, to which belongs what it is about:
    /// in the namespace itself and those below it, and for who made a namespace, in those below the
    /// one where it did.
    pub fn capable_in(&self, target: &UserNs, cap: u32) -> bool {
        let mut at = target;
        loop {
            if *at == self.user {
                return self.is_effective(cap);
            }
            let Some(parent) = at.parent.as_ref().filter(|_| at.level > self.user.level) else {
                return false;
            };
            if *parent == self.user && at.owner.0 == self.euid {
                return true;
            }
            at = parent;
        }
    }

    /// True if capability number `cap` is effective in its own user namespace: for what concerns
    /// nobody but the thread itself.
    pub fn capable_here(&self, cap: u32) -> bool {
        self.is_effective(cap)
    }

    /// True if capability number `cap` counts for a file of this owner and group: its own user
    /// namespace must have numbers for both.
    pub fn capable_over(&self, (uid, gid): (u32, u32), cap: u32) -> bool {
        self.is_effective(cap) && self.user.maps_both(uid, gid)
    }

    /// The set of those that [`Self::capable`] has.
    pub fn host_caps(&self) -> u64 {
        if self.user.is_initial() { self.cap_effective } else { 0 }
    }

    fn is_effective(&self, cap: u32) -> bool {
        cap < 64 && self.cap_effective >> cap & 1 != 0
    }

    /// What it calls a user, by the kernel id.
    pub fn uid_shown(&self, uid: u32) -> u32 {
        self.user.uid_in(uid).unwrap_or(OVERFLOW_ID)
    }

    /// What it calls a group, by the kernel id.
    pub fn gid_shown(&self, gid: u32) -> u32 {
        self.user.gid_in(gid).unwrap_or(OVERFLOW_ID)
    }

    /// As who has made a user namespace has them in that: with all capabilities.
    pub fn in_new(&self, user: UserNs) -> Creds {
        Creds {
            user,
            cap_bounding: ALL_CAPS,
            cap_effective: ALL_CAPS,
            cap_permitted: ALL_CAPS,
            cap_inheritable: 0,
            cap_ambient: 0,
            securebits: 0,
            keep_caps: false,
            ..self.clone()
        }
    }

    /// True if it gives the same effective ids as `old`, and no capability that `old` lacks.
    pub fn is_within(&self, old: &Creds) -> bool {
        (self.euid, self.egid, self.fsuid, self.fsgid) == (old.euid, old.egid, old.fsuid, old.fsgid)
            && self.has_no_more_caps(old)
    }

    /// True if `old` has all of its capabilities, or made a namespace around all that they count
    /// in.
    fn has_no_more_caps(&self, old: &Creds) -> bool {
        if self.user == old.user {
            return self.cap_permitted & !old.cap_permitted == 0;
        }
        let mut at = &self.user;
        while let Some(parent) = &at.parent {
            if *parent == old.user && at.owner.0 == old.euid {
                return true;
            }
            at = parent;
        }
        false
    }

    /// True if all ids of `its` are those that `self` goes by.
    pub fn has_ids_of(&self, its: &Creds, mode: AccessMode) -> bool {
        let (uid, gid) = match mode {
            AccessMode::Real => (self.uid, self.gid),
            AccessMode::FileSystem => (self.fsuid, self.fsgid),
        };
        [its.uid, its.euid, its.suid].iter().all(|id| *id == uid)
            && [its.gid, its.egid, its.sgid].iter().all(|id| *id == gid)
    }

    /// True if `its` has no capability that `self` lacks, in the same user namespace.
    pub fn has_caps_of(&self, its: &Creds, mode: AccessMode) -> bool {
        let caps = match mode {
            AccessMode::Real => self.cap_permitted,
            AccessMode::FileSystem => self.cap_effective,
        };
        self.user == its.user && its.cap_permitted & !caps == 0
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
        // Of a user namespace its own root counts.
        let (is_root, acts_as_root) = (self.user.is_root(self.uid), self.user.is_root(self.euid));
        // A set-user-id program of root with capabilities of its own has those for others, no more.
        let is_limited = of_file.is_some() && !is_root && acts_as_root;
        if self.securebits & SECBIT_NOROOT == 0 && !is_limited {
            if acts_as_root || is_root {
                self.cap_permitted = old.cap_bounding | old.cap_inheritable;
            }
            is_effective |= acts_as_root;
        }
        let is_setid = self.euid != old.uid || self.egid != old.gid;
        let gains = self.cap_permitted & !old.cap_permitted != 0;
        if (is_setid || gains) && (unsafe_sharing || old.no_new_privs) {
            // They get no more than they had.
            if !old.capable_here(CAP_SETUID) || old.no_new_privs {
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
        let is_secure = !is_root && (is_effective || self.cap_permitted & !self.cap_ambient != 0);
        Ok(is_setid || is_secure)
    }

    /// What a change of user ids does to the capability sets (capabilities(7), "Effect of user ID
    /// changes"). `self` has the new ids and still the sets of `old`.
    pub fn adjust_caps(&mut self, old: &Creds) {
        if self.securebits & SECBIT_NO_SETUID_FIXUP != 0 {
            return;
        }
        let root = |uid: u32| self.user.is_root(uid);
        let was_root = root(old.uid) || root(old.euid) || root(old.suid);
        let is_root = root(self.uid) || root(self.euid) || root(self.suid);
        let (acted, acts) = (root(old.euid), root(self.euid));
        let (filed, files) = (root(old.fsuid), root(self.fsuid));
        if was_root && !is_root {
            if !self.keep_caps {
                self.cap_permitted = 0;
                self.cap_effective = 0;
            }
            self.cap_ambient = 0;
        }
        if acted && !acts {
            self.cap_effective = 0;
        }
        if !acted && acts {
            self.cap_effective = self.cap_permitted;
        }
        if filed && !files {
            self.cap_effective &= !FS_CAPS;
        }
        if !filed && files {
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

    /// From the attribute's value, a struct vfs_cap_data of any version (linux/capability.h), with
    /// the kernel id of the root of the namespaces that they are for. EINVAL for anything else.
    pub fn parse(value: &[u8]) -> Result<(FileCaps, u32)> {
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
        let root = if magic & VERSION_MASK == 0x0300_0000 { word(5)? } else { 0 };
        let both = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let caps = FileCaps {
            permitted: both(sets[0], sets[2]) & ALL_CAPS,
            inheritable: both(sets[1], sets[3]) & ALL_CAPS,
            is_effective: magic & EFFECTIVE != 0,
        };
        Ok((caps, root))
    }

    /// The attribute's value as a thread in `user`, a namespace below the container's own, gives
    /// it, in the form in which the kernel keeps it: always with the kernel id of the root.
    pub fn from_user(value: &[u8], user: &UserNs) -> Result<Vec<u8>> {
        let (_, root) = Self::parse(value)?;
        Ok(with_root(value, Some(user.uid_of(root)?)))
    }

    /// The reverse. EOVERFLOW if `user` has no number for that root.
    pub fn to_user(value: &[u8], user: &UserNs) -> Result<Vec<u8>> {
        let (_, root) = Self::parse(value)?;
        match user.uid_in(root) {
            _ if Self::for_user(value, user)?.is_some() => Ok(with_root(value, None)),
            Some(root) => Ok(with_root(value, Some(root))),
            None => Err(Errno::EOVERFLOW),
        }
    }

    /// As [`Self::parse`], for a thread in `user`: `None` if this and no namespace around it has
    /// that root.
    pub fn for_user(value: &[u8], user: &UserNs) -> Result<Option<FileCaps>> {
        let (caps, root) = Self::parse(value)?;
        let mut at = user;
        loop {
            if at.is_root(root) {
                return Ok(Some(caps));
            }
            let Some(parent) = &at.parent else { return Ok(None) };
            at = parent;
        }
    }
}

/// The sets of a valid struct vfs_cap_data, of version 3 for this root, or of version 2.
fn with_root(value: &[u8], root: Option<u32>) -> Vec<u8> {
    let version = if root.is_some() { 0x0300_0000u32 } else { 0x0200_0000 };
    let flags = value.first_chunk().map_or(0, |word| u32::from_le_bytes(*word)) & 0x00ff_ffff;
    let mut out = (version | flags).to_le_bytes().to_vec();
    out.extend_from_slice(value.get(4..20.min(value.len())).unwrap_or_default());
    out.resize(20, 0);
    out.extend(root.into_iter().flat_map(u32::to_le_bytes));
    out
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
    use crate::user_namespace::{Extent, Ids};

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
            assert_eq!(FileCaps::parse(&value(words)), Ok((found, 0)), "{words:x?}");
        }
        let foreign = value(&[0x0300_0001, 0x2000, 1, 0, 0, 1000]);
        assert_eq!(FileCaps::parse(&foreign), Ok((found, 1000)));
        assert_eq!(FileCaps::for_user(&foreign, &UserNs::default()), Ok(None));
        assert_eq!(FileCaps::for_user(&foreign, &namespace("0 1000 1")), Ok(Some(found)));
        assert_eq!(FileCaps::for_user(&foreign, &namespace("1 1000 1")), Ok(None));
        // As the root of a namespace gives and gets them.
        let user = namespace("0 1000 1\n7 50 1");
        let own = value(&[0x0200_0001, 0x2000, 1, 0, 0]);
        assert_eq!(FileCaps::from_user(&own, &user), Ok(foreign.clone()));
        assert_eq!(FileCaps::to_user(&foreign, &user), Ok(own.clone()));
        let of_seven = value(&[0x0300_0001, 0x2000, 1, 0, 0, 7]);
        let of_fifty = value(&[0x0300_0001, 0x2000, 1, 0, 0, 50]);
        assert_eq!(FileCaps::from_user(&of_seven, &user), Ok(of_fifty.clone()));
        assert_eq!(FileCaps::to_user(&of_fifty, &user), Ok(of_seven));
        assert_eq!(FileCaps::to_user(&foreign, &namespace("0 1 1")), Err(Errno::EOVERFLOW));
        assert_eq!(FileCaps::from_user(&own, &namespace("1 1 1")), Err(Errno::EINVAL));
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
        let covers = |own: &Creds, its: &Creds, mode| {
            own.has_ids_of(its, mode) && own.has_caps_of(its, mode)
        };
        let modes = [AccessMode::Real, AccessMode::FileSystem];
        assert!(modes.into_iter().all(|mode| covers(&own, &its, mode)));
        for other in [
            Creds { suid: 0, ..its.clone() },
            Creds { sgid: 0, ..its.clone() },
            Creds { cap_permitted: 1, ..its.clone() },
            // Capabilities of other namespaces cannot be compared.
            Creds { user: namespace("0 9 1"), ..its.clone() },
        ] {
            assert!(!modes.into_iter().any(|mode| covers(&own, &other, mode)));
        }
        assert!(!covers(&Creds { fsuid: 1, ..own.clone() }, &its, AccessMode::FileSystem));
    }

    /// A user namespace that user 9 made and in which users and groups are mapped so.
    fn namespace(map: &str) -> UserNs {
        let new = UserNs::default().within((9, 9), false).unwrap();
        for ids in [Ids::Users, Ids::Groups] {
            new.set_map(ids, Extent::parse(map.as_bytes()).unwrap()).unwrap();
        }
        new
    }

    #[test]
    fn capabilities_count_in_ones_own_namespace_and_below() {
        let inner = namespace("0 9 1");
        let innermost = inner.within((9, 9), false).unwrap();
        let (root, maker) = (root(), user());
        let made = maker.in_new(inner.clone());
        let (initial, other) = (UserNs::default(), namespace("0 9 1"));
        let in_all = |creds: &Creds, cap| {
            [&initial, &inner, &innermost, &other].map(|user| creds.capable_in(user, cap))
        };
        assert_eq!(in_all(&root, 1), [true; 4]);
        assert_eq!(in_all(&root, 9), [false; 4]);
        // Who made it has all of them in it, but not in the one where it is.
        assert_eq!(in_all(&maker, 1), [false, true, true, true]);
        assert_eq!(in_all(&Creds { euid: 8, ..maker.clone() }, 1), [false; 4]);
        assert_eq!(in_all(&made, 1), [false, true, true, false]);
        assert!(!made.capable(1) && made.capable_here(1) && root.capable(1));
        // Of the root of a namespace, who is in it without capabilities has none in it, nor below.
        let weak = Creds { cap_effective: 0, euid: 7, ..made.clone() };
        assert_eq!(in_all(&weak, 1), [false; 4]);
        assert!(made.capable_over((9, 9), 1));
        assert!(!made.capable_over((9, 0), 1) && !made.capable_over((0, 9), 1));
        assert!(made.is_within(&maker) && !maker.is_within(&made));
        assert!(!made.is_within(&Creds { euid: 8, ..maker }));
        assert_eq!((made.uid_shown(9), made.gid_shown(0)), (0, OVERFLOW_ID));
    }

    #[test]
    fn the_root_of_a_namespace_is_whom_it_calls_so() {
        let made = user().in_new(namespace("0 9 1\n1 100 50"));
        let (new, is_secure) = execute(&made, 9, false);
        assert_eq!((new.cap_effective, is_secure), (ALL_CAPS, false));
        // Another user of it has none after an execve; the container's root is nobody in it.
        for uid in [100, 0] {
            let other = Creds { uid, euid: uid, suid: uid, fsuid: uid, ..made.clone() };
            assert_eq!(execute(&other, uid, false).0.cap_effective, 0);
        }
        let mut left = Creds { uid: 100, euid: 100, suid: 100, fsuid: 100, ..made.clone() };
        left.adjust_caps(&made);
        assert_eq!((left.cap_permitted, left.cap_effective), (0, 0));
    }
}
