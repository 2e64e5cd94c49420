//! System V IPC (sysvipc(7)): what shared memory, semaphore sets and message queues have in common:
//! keys, identifiers, permissions, the commands of the control calls, the lists in /proc/sysvipc.

pub mod msg;
pub mod sem;
pub mod shm;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;

use linux_raw_sys::general::{CAP_IPC_OWNER, CAP_SYS_ADMIN};
use qlib::Va;

use crate::abi::{Pod, abi_struct};
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::sync::Mutex;
use crate::task::{Thread, current};
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
/// All permissions to read, and to write.
pub const READ: u32 = 0o444;
/// See [`READ`].
pub const WRITE: u32 = 0o222;

abi_struct! {
    /// struct ipc64_perm of x86-64.
    pub struct PermAbi {
        pub key: i32, pub uid: u32, pub gid: u32, pub cuid: u32, pub cgid: u32, pub mode: u32,
        pub seq: u16, pub pad0: u16, pub pad1: u32, pub unused: [u64; 2],
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
        if wanted & !granted == 0 || creds.capable_in(&current::ipc_user(), CAP_IPC_OWNER) {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    /// EPERM unless `creds` may change or remove it.
    pub fn check_owner(&self, creds: &Creds) -> Result {
        let may = creds.euid == self.cuid
            || creds.euid == self.uid
            || creds.capable_in(&current::ipc_user(), CAP_SYS_ADMIN);
        if may { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// IPC_SET by who has these credentials. EINVAL for users that it does not know.
    pub fn set(&mut self, creds: &Creds, new: &PermAbi) -> Result {
        (self.uid, self.gid) = (creds.user.uid_of(new.uid)?, creds.user.gid_of(new.gid)?);
        self.mode = self.mode & !0o777 | new.mode & 0o777;
        Ok(())
    }

    /// As the program sees it that the kernel works for.
    pub fn to_abi(self) -> PermAbi {
        let creds = current::get().map(|thread| thread.creds()).unwrap_or_default();
        let (user, group) = (|id| creds.uid_shown(id), |id| creds.gid_shown(id));
        PermAbi {
            key: self.key,
            uid: user(self.uid),
            gid: group(self.gid),
            cuid: user(self.cuid),
            cgid: group(self.cgid),
            mode: self.mode,
            seq: (self.id as u32 / PLACES) as u16,
            ..PermAbi::default()
        }
    }
}

/// What the kinds of objects differ in where they are controlled and listed.
pub trait Kind: Sized + 'static {
    /// SHM_STAT, SEM_STAT or MSG_STAT.
    const STAT: u32;
    /// As [`Kind::STAT`], without permission to read.
    const STAT_ANY: u32;
    /// SHM_INFO, SEM_INFO or MSG_INFO.
    const INFO: u32;
    /// The first line of its list in /proc/sysvipc.
    const HEADER: &'static str;
    /// What another line takes at most, about, in bytes.
    const LINE_BYTES: usize;
    /// What IPC_STAT gives and IPC_SET takes.
    type Abi: Pod;

    /// All there are.
    fn tables() -> &'static Mutex<Tables<Self>>;
    /// As programs see it. EINVAL when it is about to go.
    fn describe(object: &Object<Self>) -> Result<Self::Abi>;
    /// The permissions in a description.
    fn perm(described: &Self::Abi) -> &PermAbi;
    /// IPC_INFO, or [`Kind::INFO`] if `in_use`, but for what it returns.
    fn information(thread: &Thread, in_use: bool, buffer: Va) -> Result;
    /// True if IPC_SET may set besides permissions what `new` says: EPERM.
    fn may_set(_creds: &Creds, _new: &Self::Abi) -> Result {
        Ok(())
    }
    /// IPC_SET, but for permissions.
    fn set(object: &Object<Self>, new: &Self::Abi);
    /// IPC_RMID.
    fn remove(object: Arc<Object<Self>>);
    /// Its line in /proc/sysvipc, with its identifier and its owners' ids as they are printed.
    fn line(object: &Object<Self>, described: &Self::Abi, id: i32, owners: &str) -> String;
}

/// An object with an identifier.
pub struct Object<T> {
    perm: Mutex<Perm>,
    content: T,
}

impl<T> Object<T> {
    /// Its permissions now.
    pub fn perm(&self) -> Perm {
        *self.perm.lock()
    }
}

impl<T> Deref for Object<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.content
    }
}

/// All objects of a kind, by IPC namespace.
pub struct Tables<T>(BTreeMap<u64, Table<T>>);

impl<T> Tables<T> {
    /// None.
    pub const fn empty() -> Self {
        Tables(BTreeMap::new())
    }

    /// Those of the namespace that the kernel works for now.
    pub fn own(&mut self) -> &mut Table<T> {
        self.0.entry(current::ipc_namespace()).or_insert_with(Table::empty)
    }

    /// Those of a namespace, if it has had any.
    pub fn of(&mut self, namespace: u64) -> Option<&mut Table<T>> {
        self.0.get_mut(&namespace)
    }
}

/// Nobody is in an IPC namespace any more: its objects go.
pub fn namespace_ended(namespace: u64) {
    fn end<T: Kind>(namespace: u64) {
        let table = T::tables().lock().0.remove(&namespace);
        drop(table);
    }
    sem::namespace_ended(namespace);
    end::<msg::Queue>(namespace);
    end::<sem::Set>(namespace);
    end::<shm::Entry>(namespace);
}

/// The objects of a kind in a namespace, by their place.
pub struct Table<T> {
    places: BTreeMap<u32, Arc<Object<T>>>,
    /// The places of those that have a key.
    by_key: BTreeMap<i32, u32>,
    /// Free places below `end`; from there on all are.
    free: BTreeSet<u32>,
    end: u32,
    sequence: u32,
    /// Where the last new object went.
    last: Option<u32>,
    /// The identifier that the next object is to have, or one after it (msg_next_id and its like of
    /// proc_sys_kernel(5)); -1 for any.
    pub next_id: i32,
}

impl<T> Table<T> {
    /// An empty one.
    pub const fn empty() -> Self {
        Table {
            places: BTreeMap::new(),
            by_key: BTreeMap::new(),
            free: BTreeSet::new(),
            end: 0,
            sequence: 0,
            last: None,
            next_id: -1,
        }
    }

    fn first_from(&self, place: u32) -> Option<(u32, Arc<Object<T>>)> {
        self.places.range(place..).next().map(|(place, object)| (*place, object.clone()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The highest place in use, as the information calls return it.
    pub fn highest(&self) -> usize {
        self.places.keys().next_back().copied().unwrap_or(0) as usize
    }

    /// The object with identifier `id`: EINVAL.
    pub fn find(&self, id: i32) -> Result<Arc<Object<T>>> {
        let place = u32::try_from(id).map_err(|_| Errno::EINVAL)? % PLACES;
        let found = self.places.get(&place).ok_or(Errno::EINVAL)?;
        if found.perm().id == id { Ok(found.clone()) } else { Err(Errno::EINVAL) }
    }

    /// The object in a place (the *_STAT commands count through them): EINVAL.
    pub fn at(&self, place: i32) -> Result<Arc<Object<T>>> {
        u32::try_from(place)
            .ok()
            .and_then(|place| self.places.get(&place))
            .cloned()
            .ok_or(Errno::EINVAL)
    }

    /// What the get calls do: the object with this key if there is one and `fits` says nothing
    /// against it, else a new one, which is told its identifier, if the flags allow and there are
    /// fewer than `most`.
    pub fn get(
        &mut self,
        creds: &Creds,
        key: i32,
        flags: u32,
        most: u64,
        fits: impl FnOnce(&T) -> Result,
        make: impl FnOnce(i32) -> Result<T>,
    ) -> Result<i32> {
        if let Some(known) = self.by_key.get(&key).and_then(|place| self.places.get(place)) {
            if flags & IPC_CREAT != 0 && flags & IPC_EXCL != 0 {
                return Err(Errno::EEXIST);
            }
            fits(known)?;
            let perm = known.perm();
            perm.check(creds, flags & 0o777)?;
            return Ok(perm.id);
        }
        if key != IPC_PRIVATE && flags & IPC_CREAT == 0 {
            return Err(Errno::ENOENT);
        }
        if self.places.len() as u64 >= most {
            return Err(Errno::ENOSPC);
        }
        let (place, sequence) = self.next_place()?;
        let (uid, gid) = (creds.euid, creds.egid);
        let id = (sequence * PLACES + place) as i32;
        let perm = Perm { id, key, uid, gid, cuid: uid, cgid: gid, mode: flags & 0o777 };
        let object = Object { perm: Mutex::new(perm), content: make(id)? };
        self.places.insert(place, Arc::new(object));
        self.free.remove(&place);
        self.free.extend(self.end..place);
        self.end = self.end.max(place + 1);
        if key != IPC_PRIVATE {
            self.by_key.insert(key, place);
        }
        Ok(id)
    }

    /// Where the next object goes, and the number of times that its place counts as used. ENOSPC.
    fn next_place(&mut self) -> Result<(u32, u32)> {
        if let Ok(asked) = u32::try_from(core::mem::replace(&mut self.next_id, -1)) {
            let is_free = |place: &u32| !self.places.contains_key(place);
            let place = (asked % PLACES..PLACES).find(is_free).ok_or(Errno::ENOSPC)?;
            return Ok((place, asked / PLACES));
        }
        let place = self.free.first().copied().unwrap_or(self.end);
        if place >= PLACES {
            return Err(Errno::ENOSPC);
        }
        if self.last.is_some_and(|last| place <= last) {
            // A place is used again: its old identifier must not name the new object.
            self.sequence = (self.sequence + 1) % SEQUENCES;
        }
        self.last = Some(place);
        Ok((place, self.sequence))
    }

    /// Takes an object out.
    pub fn remove(&mut self, id: i32) -> Option<Arc<Object<T>>> {
        let place = id as u32 % PLACES;
        let removed = self.places.remove(&place)?;
        self.forget_key(removed.perm().key);
        self.free.insert(place);
        if self.places.is_empty() {
            self.free.clear();
            self.end = 0;
        }
        Some(removed)
    }

    /// The object with this key is not to be found by it any more.
    pub fn forget_key(&mut self, key: i32) {
        self.by_key.remove(&key);
    }
}

/// msg_next_id and its like of the own namespace, as /proc/sys/kernel has it.
pub fn next_id<T: Kind>() -> Vec<u8> {
    format!("{}", T::tables().lock().own().next_id).into_bytes()
}

/// Sets it. EINVAL for what is no identifier.
pub fn set_next_id<T: Kind>(value: &[u8]) -> Result {
    let text = core::str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
    let id = text.trim_ascii().parse().ok().filter(|id| *id >= 0).ok_or(Errno::EINVAL)?;
    T::tables().lock().own().next_id = id;
    Ok(())
}

/// All objects of the own namespace, by place, one after the other: a list of them might need more
/// memory than there is when a process ends.
pub fn each<T: Kind>() -> impl Iterator<Item = Arc<Object<T>>> {
    let mut next = 0;
    core::iter::from_fn(move || {
        let (place, object) = T::tables().lock().own().first_from(next)?;
        next = place + 1;
        Some(object)
    })
}

/// The object with identifier `id`: EINVAL.
pub fn find<T: Kind>(id: i32) -> Result<Arc<Object<T>>> {
    T::tables().lock().own().find(id)
}

/// shmctl(2), semctl(2), msgctl(2). `other`: serves the commands that are of this kind alone.
pub fn control<T: Kind>(
    thread: &Thread,
    id: i32,
    command: u32,
    buffer: Va,
    other: impl FnOnce() -> Result<usize>,
) -> Result<usize> {
    match command {
        IPC_INFO => information::<T>(thread, false, buffer),
        command if command == T::INFO => information::<T>(thread, true, buffer),
        IPC_STAT => stat::<T>(thread, &*find(id)?, true, buffer).map(|_| 0),
        command if command == T::STAT || command == T::STAT_ANY => {
            let object = T::tables().lock().own().at(id)?;
            let id = stat::<T>(thread, &object, command == T::STAT, buffer)?;
            Ok(id as usize)
        }
        IPC_SET => {
            let new = thread.mm().read::<T::Abi>(buffer)?;
            let object = find::<T>(id)?;
            let creds = thread.creds();
            object.perm().check_owner(&creds)?;
            T::may_set(&creds, &new)?;
            object.perm.lock().set(&creds, T::perm(&new))?;
            T::set(&object, &new);
            Ok(0)
        }
        IPC_RMID => {
            let object = find::<T>(id)?;
            object.perm().check_owner(&thread.creds())?;
            T::remove(object);
            Ok(0)
        }
        _ => other(),
    }
}

fn information<T: Kind>(thread: &Thread, in_use: bool, buffer: Va) -> Result<usize> {
    T::information(thread, in_use, buffer)?;
    Ok(T::tables().lock().own().highest())
}

/// Describes an object: its identifier.
fn stat<T: Kind>(thread: &Thread, object: &Object<T>, checks: bool, buffer: Va) -> Result<i32> {
    let perm = object.perm();
    if checks {
        perm.check(&thread.creds(), READ)?;
    }
    thread.mm().write(buffer, &T::describe(object)?)?;
    Ok(perm.id)
}

/// /proc/sysvipc/shm, sem or msg.
pub fn list<T: Kind>() -> Result<String> {
    let mut out = String::from(T::HEADER);
    out.try_reserve(T::tables().lock().own().len() * T::LINE_BYTES).map_err(|_| Errno::ENOMEM)?;
    for object in each::<T>() {
        let Ok(it) = T::describe(&object) else { continue };
        let perm = T::perm(&it);
        let owners = format!("{:5} {:5} {:5} {:5}", perm.uid, perm.gid, perm.cuid, perm.cgid);
        out.push_str(&T::line(&object, &it, object.perm().id, &owners));
    }
    Ok(out)
}

/// The time that objects keep, in seconds.
pub fn now() -> i64 {
    (time::realtime_ns() / 1_000_000_000) as i64
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

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

    #[test]
    fn objects_are_found_by_key_and_places_are_used_again() {
        let mut table: Table<i32> = Table::empty();
        let get = |table: &mut Table<i32>, key, flags| {
            table.get(&Creds::default(), key, flags, 4, |_| Ok(()), Ok)
        };
        let ids: Vec<i32> =
            [7, IPC_PRIVATE, 9].map(|key| get(&mut table, key, IPC_CREAT).unwrap()).to_vec();
        assert_eq!(get(&mut table, 9, 0), Ok(ids[2]));
        assert_eq!(get(&mut table, 9, IPC_CREAT | IPC_EXCL), Err(Errno::EEXIST));
        assert_eq!(get(&mut table, 8, 0), Err(Errno::ENOENT));
        assert_eq!(**table.find(ids[1]).unwrap(), ids[1], "it is told its identifier");
        // The lowest free place is taken, and its old identifier names nothing.
        for id in &ids[..2] {
            assert!(table.remove(*id).is_some() && table.remove(*id).is_none());
        }
        assert_eq!(get(&mut table, 7, 0), Err(Errno::ENOENT));
        let again = get(&mut table, 7, IPC_CREAT).unwrap();
        assert_eq!(again as u32 % PLACES, 0);
        assert!(again != ids[0] && table.find(ids[0]).is_err());
        for place in [1, 3] {
            assert_eq!(get(&mut table, IPC_PRIVATE, 0).map(|id| id as u32 % PLACES), Ok(place));
        }
        assert_eq!(get(&mut table, IPC_PRIVATE, 0), Err(Errno::ENOSPC));
        table.forget_key(9);
        assert_eq!(get(&mut table, 9, 0), Err(Errno::ENOENT));
        assert!(table.find(ids[2]).is_ok());
    }
}
