//! System V IPC (sysvipc(7)): what shared memory, semaphore sets and message queues have in common: keys, identifiers, permissions.

pub mod msg;
pub mod sem;
pub mod shm;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use crate::abi::abi_struct;
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::sync::Mutex;
use crate::task::Thread;
use crate::time;

/// The key that never names anything.
pub const IPC_PRIVATE: i32 = 0;
/// Flags of the get calls and of those that may wait.
pub const IPC_CREAT: u32 = 0o1000;
/// See [`IPC_CREAT`].
pub const IPC_EXCL: u32 = 0o2000;
/// See [`IPC_CREAT`].
pub const IPC_NOWAIT: u32 = 0o4000;
/// Commands of all control calls.
pub const IPC_RMID: u32 = 0;
/// See [`IPC_RMID`].
pub const IPC_SET: u32 = 1;
/// See [`IPC_RMID`].
pub const IPC_STAT: u32 = 2;
/// See [`IPC_RMID`].
pub const IPC_INFO: u32 = 3;
/// EIDRM: it was removed while somebody waited.
pub const EIDRM: Errno = Errno(linux_raw_sys::errno::EIDRM as i32);
/// Identifiers are a place in the table and how often places were used.
const PLACES: u32 = 32768;
const SEQUENCES: u32 = 65536;
const CAP_IPC_OWNER: u32 = 15;
const CAP_SYS_ADMIN: u32 = 21;
/// All permissions to read, and to write.
pub const READ: u32 = 0o444;
/// See [`READ`].
pub const WRITE: u32 = 0o222;

abi_struct! {
    /// struct ipc64_perm of x86-64.
    pub struct PermAbi {
        pub key: i32, pub uid: u32, pub gid: u32, pub cuid: u32, pub cgid: u32, pub mode: u32, pub seq: u16, pub pad0: u16,
        pub pad1: u32, pub unused: [u64; 2],
    }
}

/// Who owns an object, and who may use it.
#[derive(Clone, Copy, Debug)]
pub struct Perm {
    /// Its identifier.
    pub id: i32,
    /// [`IPC_PRIVATE`] once it is to go.
    pub key: i32,
    /// Owner.
    pub uid: u32,
    /// Owner.
    pub gid: u32,
    /// Creator.
    pub cuid: u32,
    /// Creator.
    pub cgid: u32,
    /// Permission bits, and SHM_DEST and SHM_LOCKED.
    pub mode: u32,
}

impl Perm {
    /// EACCES unless `creds` may do all that `wanted` (S_I* bits, of any class) says.
    pub fn check(&self, creds: &Creds, wanted: u32) -> Result {
        let wanted = (wanted >> 6 | wanted >> 3 | wanted) & 7;
        let granted = if creds.euid == self.cuid || creds.euid == self.uid {
            self.mode >> 6
        } else if creds.in_group(self.cgid) || creds.in_group(self.gid) {
            self.mode >> 3
        } else {
            self.mode
        };
        if wanted & !granted == 0 || creds.has_cap(CAP_IPC_OWNER) { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// EPERM unless `creds` may change or remove it.
    pub fn check_owner(&self, creds: &Creds) -> Result {
        if creds.euid == self.cuid || creds.euid == self.uid || creds.has_cap(CAP_SYS_ADMIN) {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    }

    /// IPC_SET.
    pub fn set(&mut self, new: &PermAbi) {
        (self.uid, self.gid) = (new.uid, new.gid);
        self.mode = self.mode & !0o777 | new.mode & 0o777;
    }

    /// As programs see it.
    pub fn to_abi(self) -> PermAbi {
        PermAbi {
            key: self.key,
            uid: self.uid,
            gid: self.gid,
            cuid: self.cuid,
            cgid: self.cgid,
            mode: self.mode,
            seq: (self.id as u32 / PLACES) as u16,
            ..PermAbi::default()
        }
    }
}

/// An object with an identifier.
pub trait Object {
    /// Its permissions.
    fn perm(&self) -> &Mutex<Perm>;
}

/// All objects of a kind, by their place.
pub struct Table<T> {
    places: BTreeMap<u32, Arc<T>>,
    sequence: u32,
    last: u32,
}

impl<T: Object> Table<T> {
    /// An empty one.
    pub const fn empty() -> Self {
        Table { places: BTreeMap::new(), sequence: 0, last: 0 }
    }

    fn first_from(&self, place: u32) -> Option<(u32, Arc<T>)> {
        self.places.range(place..).next().map(|(place, object)| (*place, object.clone()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The highest place in use, as the information calls return it.
    pub fn highest(&self) -> usize {
        self.places.keys().next_back().copied().unwrap_or(0) as usize
    }

    /// The object with identifier `id`: EINVAL.
    pub fn find(&self, id: i32) -> Result<Arc<T>> {
        let place = u32::try_from(id).map_err(|_| Errno::EINVAL)? % PLACES;
        let found = self.places.get(&place).ok_or(Errno::EINVAL)?;
        if found.perm().lock().id == id { Ok(found.clone()) } else { Err(Errno::EINVAL) }
    }

    /// The object in a place (the *_STAT commands count through them): EINVAL.
    pub fn at(&self, place: i32) -> Result<Arc<T>> {
        u32::try_from(place).ok().and_then(|place| self.places.get(&place)).cloned().ok_or(Errno::EINVAL)
    }

    /// What the get calls do: the object with this key if there is one and `fits` says nothing against it, else a new one, if the
    /// flags allow and there are fewer than `most`.
    pub fn get(
        &mut self,
        thread: &Thread,
        key: i32,
        flags: u32,
        most: u64,
        fits: impl FnOnce(&T) -> Result,
        make: impl FnOnce(Perm) -> Result<T>,
    ) -> Result<i32> {
        let creds = thread.creds();
        let known = self.places.values().find(|o| key != IPC_PRIVATE && o.perm().lock().key == key);
        if let Some(known) = known {
            if flags & IPC_CREAT != 0 && flags & IPC_EXCL != 0 {
                return Err(Errno::EEXIST);
            }
            fits(known)?;
            let perm = *known.perm().lock();
            perm.check(&creds, flags & 0o777)?;
            return Ok(perm.id);
        }
        if key != IPC_PRIVATE && flags & IPC_CREAT == 0 {
            return Err(Errno::ENOENT);
        }
        if self.places.len() as u64 >= most {
            return Err(Errno::ENOSPC);
        }
        let place = (0..PLACES).find(|place| !self.places.contains_key(place)).ok_or(Errno::ENOSPC)?;
        if place <= self.last {
            // A place is used again: its old identifier must not name the new object.
            self.sequence = (self.sequence + 1) % SEQUENCES;
        }
        self.last = place;
        let (uid, gid) = (creds.euid, creds.egid);
        let id = (self.sequence * PLACES + place) as i32;
        let object = make(Perm { id, key, uid, gid, cuid: uid, cgid: gid, mode: flags & 0o777 })?;
        self.places.insert(place, Arc::new(object));
        Ok(id)
    }

    /// Takes an object out.
    pub fn remove(&mut self, id: i32) -> Option<Arc<T>> {
        self.places.remove(&(id as u32 % PLACES))
    }
}

/// All objects, by place, one after the other: a list of them might need more memory than there is when a process ends.
pub fn each<T: Object>(table: &Mutex<Table<T>>) -> impl Iterator<Item = Arc<T>> {
    let mut next = 0;
    core::iter::from_fn(move || {
        let (place, object) = table.lock().first_from(next)?;
        next = place + 1;
        Some(object)
    })
}

/// The time that objects keep, in seconds.
pub fn now() -> i64 {
    (time::realtime_ns() / 1_000_000_000) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_those_of_the_first_class_that_fits() {
        let perm = Perm { id: 0, key: 1, uid: 5, gid: 6, cuid: 7, cgid: 8, mode: 0o604 };
        let user = |uid, gid| Creds { euid: uid, fsgid: gid, ..Creds::default() };
        for owner in [5, 7] {
            assert_eq!(perm.check(&user(owner, 0), READ | WRITE), Ok(()));
            assert_eq!(perm.check_owner(&user(owner, 0)), Ok(()));
        }
        for group in [6, 8] {
            assert_eq!(perm.check(&user(1, group), READ), Err(Errno::EACCES));
        }
        assert_eq!(perm.check(&user(1, 1), READ), Ok(()));
        assert_eq!(perm.check(&user(1, 1), WRITE), Err(Errno::EACCES));
        assert_eq!(perm.check_owner(&user(1, 6)), Err(Errno::EPERM));
        let capable = Creds { cap_effective: 1 << CAP_IPC_OWNER, ..user(1, 1) };
        assert_eq!(perm.check(&capable, WRITE), Ok(()));
    }
}
