//! User namespaces (user_namespaces(7)): who is called what, and over what capabilities count.
//!
//! Inside of the kernel each user and group has the number that it has in the container, the
//! *kernel id*. A further namespace has a map from its own numbers to those. They are translated
//! where programs give and get them, and nowhere else: [`UserNamespace::uid_of`],
//! [`Creds::uid_shown`].
//!
//! [`Creds::uid_shown`]: crate::creds::Creds::uid_shown

mod map;

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt::{self, Write};
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

pub use map::{Extent, IdMap};

use crate::errno::{Errno, Result};
use crate::namespace::{self, INITIAL_USER};
use crate::sync::{Mutex, Once};

/// How deep namespaces may lie in each other.
const MAX_LEVEL: u32 = 32;
/// What an id is shown as that the reader's namespace has no number for.
pub const OVERFLOW_ID: u32 = 65534;
/// The most namespaces that all of a user's processes may make in one (max_user_namespaces), unless
/// it is set otherwise.
const MOST: u32 = 1024;

/// What is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// Users.
    Users,
    /// Groups.
    Groups,
    /// Projects, by which disk quotas go: nothing here has one.
    Projects,
}

/// A user namespace.
pub struct UserNamespace {
    /// The inode number of its file in /proc/PID/ns.
    pub number: u64,
    /// How many lie around it.
    pub level: u32,
    /// The one that it was made in; `None`: it is the container's own.
    pub parent: Option<UserNs>,
    /// Who made it (kernel ids): the effective ids.
    pub owner: (u32, u32),
    /// Its maker might have given files capabilities where it was made (CAP_SETFCAP).
    pub maker_sets_capabilities: bool,
    maps: Mutex<Maps>,
    /// How many namespaces the processes of each user have made in it.
    made: Mutex<BTreeMap<u32, u32>>,
    /// The most that those may be.
    most: AtomicU32,
    /// The keyrings of its users, by the kernel id (`syscall/keys.rs`).
    pub user_rings: Mutex<BTreeMap<u32, Arc<dyn Any + Send + Sync>>>,
}

#[derive(Default)]
struct Maps {
    users: IdMap,
    groups: IdMap,
    projects: IdMap,
    /// setgroups(2) is refused.
    denies_setgroups: bool,
}

impl Maps {
    fn of(&mut self, ids: Ids) -> &mut IdMap {
        match ids {
            Ids::Users => &mut self.users,
            Ids::Groups => &mut self.groups,
            Ids::Projects => &mut self.projects,
        }
    }
}

/// A reference to a user namespace. By default it is the container's own; two are equal if they are
/// the same.
#[derive(Clone)]
pub struct UserNs(Arc<UserNamespace>);

impl Deref for UserNs {
    type Target = UserNamespace;

    fn deref(&self) -> &UserNamespace {
        &self.0
    }
}

impl PartialEq for UserNs {
    fn eq(&self, other: &UserNs) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for UserNs {}

impl fmt::Debug for UserNs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user:[{}]", self.number)
    }
}

impl Default for UserNs {
    fn default() -> Self {
        static INITIAL: Once<UserNs> = Once::new();
        let make = || {
            let whole = IdMap::whole();
            UserNs(Arc::new(UserNamespace {
                number: INITIAL_USER,
                level: 0,
                parent: None,
                owner: (0, 0),
                maker_sets_capabilities: true,
                maps: Mutex::new(Maps {
                    users: whole.clone(),
                    groups: whole.clone(),
                    projects: whole,
                    denies_setgroups: false,
                }),
                made: Mutex::default(),
                most: AtomicU32::new(MOST),
                user_rings: Mutex::default(),
            }))
        };
        INITIAL.get_or_set(make).clone()
    }
}

impl UserNs {
    /// A new one in this one, made by whoever has these effective ids; nothing is mapped in it.
    /// ENOSPC if it would be too deep, or one too many.
    pub fn within(&self, owner: (u32, u32), maker_sets_capabilities: bool) -> Result<UserNs> {
        if self.level >= MAX_LEVEL {
            return Err(Errno::ENOSPC);
        }
        self.count(owner.0)?;
        let denies_setgroups = self.maps.lock().denies_setgroups;
        Ok(UserNs(Arc::new(UserNamespace {
            number: namespace::next_number(),
            level: self.level + 1,
            parent: Some(self.clone()),
            owner,
            maker_sets_capabilities,
            maps: Mutex::new(Maps { denies_setgroups, ..Maps::default() }),
            made: Mutex::default(),
            most: AtomicU32::new(i32::MAX as u32),
            user_rings: Mutex::default(),
        })))
    }

    /// Counts one that this user makes in it, in it and those around it.
    fn count(&self, user: u32) -> Result {
        let (mut at, mut who) = (self, user);
        loop {
            let is_full = {
                let mut made = at.made.lock();
                let count = made.entry(who).or_default();
                let is_full = *count >= at.most.load(Relaxed);
                if !is_full {
                    *count += 1;
                } else if *count == 0 {
                    made.remove(&who);
                }
                is_full
            };
            if is_full {
                self.discount(user, Some(at));
                return Err(Errno::ENOSPC);
            }
            let Some(parent) = &at.parent else { return Ok(()) };
            (who, at) = (at.owner.0, parent);
        }
    }

    /// Takes back what [`Self::count`] has counted, up to (not in) `end`.
    fn discount(&self, user: u32, end: Option<&UserNs>) {
        let (mut at, mut who) = (self, user);
        while end != Some(at) {
            {
                let mut made = at.made.lock();
                if let Some(count) = made.get_mut(&who) {
                    *count -= 1;
                    if *count == 0 {
                        made.remove(&who);
                    }
                }
            }
            let Some(parent) = &at.parent else { return };
            (who, at) = (at.owner.0, parent);
        }
    }

    /// True if it is the container's own.
    pub fn is_initial(&self) -> bool {
        self.level == 0
    }

    /// True if it is `inner`, or lies around it.
    pub fn contains(&self, inner: &UserNs) -> bool {
        let mut at = inner;
        loop {
            if at == self {
                return true;
            }
            let Some(parent) = &at.parent else { return false };
            at = parent;
        }
    }
}

impl UserNamespace {
    /// The kernel id of the user that it calls `uid`: EINVAL if it has none of this number.
    pub fn uid_of(&self, uid: u32) -> Result<u32> {
        match self.level {
            0 => Some(uid).filter(|uid| *uid != u32::MAX),
            _ => self.maps.lock().users.down(uid),
        }
        .ok_or(Errno::EINVAL)
    }

    /// As [`Self::uid_of`], for a group.
    pub fn gid_of(&self, gid: u32) -> Result<u32> {
        match self.level {
            0 => Some(gid).filter(|gid| *gid != u32::MAX),
            _ => self.maps.lock().groups.down(gid),
        }
        .ok_or(Errno::EINVAL)
    }

    /// What it calls a user, by the kernel id.
    pub fn uid_in(&self, uid: u32) -> Option<u32> {
        match self.level {
            0 => Some(uid).filter(|uid| *uid != u32::MAX),
            _ => self.maps.lock().users.up(uid),
        }
    }

    /// What it calls a group, by the kernel id.
    pub fn gid_in(&self, gid: u32) -> Option<u32> {
        match self.level {
            0 => Some(gid).filter(|gid| *gid != u32::MAX),
            _ => self.maps.lock().groups.up(gid),
        }
    }

    /// True if it has numbers for both.
    pub fn maps_both(&self, uid: u32, gid: u32) -> bool {
        self.uid_in(uid).is_some() && self.gid_in(gid).is_some()
    }

    /// True if this user is its root: whom it calls 0.
    pub fn is_root(&self, uid: u32) -> bool {
        self.uid_in(uid) == Some(0)
    }

    /// True if whoever has the capability may call setgroups(2): not before groups are mapped.
    pub fn allows_setgroups(&self) -> bool {
        let maps = self.maps.lock();
        !maps.denies_setgroups && !maps.groups.is_empty()
    }

    /// True if setgroups(2) is refused for ever (/proc/PID/setgroups).
    pub fn denies_setgroups(&self) -> bool {
        self.maps.lock().denies_setgroups
    }

    /// Refuses setgroups(2) from now on: EPERM once groups are mapped. To allow it says nothing,
    /// but is EPERM when it is refused.
    pub fn set_setgroups(&self, allow: bool) -> Result {
        let mut maps = self.maps.lock();
        let is_late = !maps.groups.is_empty() && !allow;
        if is_late || allow && maps.denies_setgroups {
            return Err(Errno::EPERM);
        }
        maps.denies_setgroups |= !allow;
        Ok(())
    }

    /// EPERM if these ids are mapped already.
    pub fn check_unmapped(&self, ids: Ids) -> Result {
        if self.maps.lock().of(ids).is_empty() { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// Maps these ids, for good: `extents` lead to numbers of its parent.
    ///
    /// # Errors
    /// EPERM if that is done already, or the parent has no such numbers.
    pub fn set_map(&self, ids: Ids, extents: Vec<Extent>) -> Result {
        let parent = self.parent.as_ref().ok_or(Errno::EPERM)?;
        let map = {
            let mut outer = parent.maps.lock();
            IdMap::through(extents, outer.of(ids)).ok_or(Errno::EPERM)?
        };
        let mut maps = self.maps.lock();
        if !maps.of(ids).is_empty() {
            return Err(Errno::EPERM);
        }
        *maps.of(ids) = map;
        Ok(())
    }

    /// The text of /proc/PID/uid_map and the like for a reader in `reader`'s namespace: where that
    /// is this one, by the numbers of its parent.
    pub fn map_text(&self, ids: Ids, reader: &UserNs) -> String {
        let own = self.maps.lock().of(ids).clone();
        let outer = match &self.parent {
            Some(parent) if reader.number == self.number => parent,
            _ => reader,
        };
        let mut text = String::new();
        for extent in own.extents() {
            let lower = match self.number == outer.number {
                true => Some(extent.lower),
                false => outer.maps.lock().of(ids).up(extent.lower),
            };
            let lower = lower.unwrap_or(u32::MAX);
            let _ = writeln!(text, "{:10} {:10} {:10}", extent.first, lower, extent.count);
        }
        text
    }

    /// The most namespaces that a user's processes may make in it.
    pub fn most(&self) -> u32 {
        self.most.load(Relaxed)
    }

    /// Sets that.
    pub fn set_most(&self, most: u32) {
        self.most.store(most, Relaxed);
    }
}

impl Drop for UserNamespace {
    fn drop(&mut self) {
        if let Some(parent) = &self.parent {
            parent.discount(self.owner.0, None);
        }
    }
}

#[cfg(test)]
mod tests;
