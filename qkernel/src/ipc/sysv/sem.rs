//! Semaphore sets (semget(2), semop(2), semctl(2)).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use qlib::Va;

use super::{EIDRM, IPC_NOWAIT, Kind, Object, PermAbi, READ, Tables, WRITE, find, now};
use crate::abi::abi_struct;
use crate::account::{self, Lasting};
use crate::errno::{Errno, Result};
use crate::fs::proc::sys;
use crate::sync::{Mutex, mutex};
use crate::task::{Thread, current};
use crate::wait::{PollMask, WaitQueue, block_on};

/// The highest value (SEMVMX), which also bounds what is undone (SEMAEM).
const MAX_VALUE: i32 = 32767;
const SEM_UNDO: u16 = 0x1000;
const GETPID: u32 = 11;
const GETVAL: u32 = 12;
const GETALL: u32 = 13;
const GETNCNT: u32 = 14;
const GETZCNT: u32 = 15;
const SETVAL: u32 = 16;
const SETALL: u32 = 17;
const SEM_STAT: u32 = 18;
const SEM_INFO: u32 = 19;
const SEM_STAT_ANY: u32 = 20;

abi_struct! {
    /// struct sembuf.
    pub struct SemBuf { pub number: u16, pub change: i16, pub flags: u16, }
}
abi_struct! {
    /// struct semid64_ds of x86-64.
    pub struct SemIdDs {
        pub perm: PermAbi, pub otime: i64, pub unused1: u64, pub ctime: i64, pub unused2: u64,
        pub count: u64, pub unused3: [u64; 2],
    }
}
abi_struct! {
    /// struct seminfo.
    pub struct SemInfo {
        pub map: i32, pub mni: i32, pub mns: i32, pub mnu: i32, pub msl: i32, pub opm: i32,
        pub ume: i32, pub usz: i32, pub vmx: i32, pub aem: i32,
    }
}

/// Limits (kernel.sem): semaphores in a set, in all, operations in a call, sets.
fn limits() -> [u64; 4] {
    <[u64; 4]>::try_from(sys::numbers("kernel/sem")).unwrap_or([32000, 1_024_000_000, 500, 32000])
}

#[derive(Clone, Copy, Debug, Default)]
struct Semaphore {
    value: i32,
    /// Who changed it last.
    pid: u32,
}

/// One who waits: for which semaphore, and whether for it to be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    number: u16,
    for_zero: bool,
}

struct Inner {
    semaphores: Vec<Semaphore>,
    /// What is added at the end of a process (SEM_UNDO), for each semaphore.
    undo: BTreeMap<u32, Vec<i32>>,
    /// The memory that `undo` takes, for each process.
    undo_lasting: BTreeMap<u32, Lasting>,
    /// By token.
    waiting: BTreeMap<u64, Waiting>,
    last_token: u64,
    is_removed: bool,
    otime: i64,
    ctime: i64,
}

/// A set.
pub struct Set {
    inner: Mutex<Inner>,
    queue: WaitQueue,
    _lasting: Lasting,
}

/// What a set takes besides its semaphores, about, in bytes.
const SET_BYTES: u64 = 512;
/// What a process that has something to undo in a set takes besides that.
const UNDO_BYTES: u64 = 96;

static TABLES: Mutex<Tables<Set>> = mutex(Tables::empty());
/// Semaphores of all sets.
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// Processes, each with the sets in which it may have something to undo: their namespaces and
/// identifiers.
static UNDOING: Mutex<BTreeSet<(u32, u64, i32)>> = mutex(BTreeSet::new());

impl Drop for Set {
    fn drop(&mut self) {
        IN_USE.fetch_sub(self.inner.lock().semaphores.len(), Relaxed);
    }
}

/// semget(2).
pub fn get(thread: &Thread, key: i32, count: i32, flags: u32) -> Result<i32> {
    let [per_set, in_all, _, sets] = limits();
    let count =
        usize::try_from(count).ok().filter(|n| *n as u64 <= per_set).ok_or(Errno::EINVAL)?;
    let fits = |set: &Set| {
        if set.inner.lock().semaphores.len() < count { Err(Errno::EINVAL) } else { Ok(()) }
    };
    let make = |_| {
        if count == 0 {
            return Err(Errno::EINVAL);
        }
        if (IN_USE.load(Relaxed) + count) as u64 > in_all {
            return Err(Errno::ENOSPC);
        }
        let lasting = Lasting::take(SET_BYTES + (count * size_of::<Semaphore>()) as u64)?;
        account::ask_for::<Semaphore>(count)?;
        Ok(Set::new(count, lasting))
    };
    TABLES.lock().own().get(&thread.creds(), key, flags, sets, fits, make)
}

impl Inner {
    /// Undoes what the process has to: false if there is nothing.
    fn undo_all_of(&mut self, pid: u32) -> bool {
        drop(self.undo_lasting.remove(&pid));
        let Some(undo) = self.undo.remove(&pid) else { return false };
        for (semaphore, change) in self.semaphores.iter_mut().zip(&undo) {
            if *change != 0 {
                *semaphore =
                    Semaphore { value: (semaphore.value + change).clamp(0, MAX_VALUE), pid };
            }
        }
        true
    }

    /// Does all of `operations` or nothing: the index of the first that has to wait.
    fn apply(
        &mut self,
        operations: &[SemBuf],
        pid: u32,
    ) -> Result<core::result::Result<(), usize>> {
        let undoes = operations.iter().any(|o| o.flags & SEM_UNDO != 0);
        if undoes && !self.undo.contains_key(&pid) {
            let count = self.semaphores.len();
            let lasting = Lasting::take(UNDO_BYTES + (count * size_of::<i32>()) as u64)?;
            let mut undo = account::vec_for(count)?;
            undo.resize(count, 0);
            self.undo.insert(pid, undo);
            self.undo_lasting.insert(pid, lasting);
        }
        for (index, operation) in operations.iter().enumerate() {
            match self.change(operation, pid) {
                Ok(true) => {}
                other => {
                    for done in operations[..index].iter().rev() {
                        self.take_back(done, pid);
                    }
                    return other.map(|_| Err(index));
                }
            }
        }
        for operation in operations {
            self.semaphores[usize::from(operation.number)].pid = pid;
        }
        self.otime = now();
        Ok(Ok(()))
    }

    /// Does one operation: false if it has to wait.
    fn change(&mut self, operation: &SemBuf, pid: u32) -> Result<bool> {
        let (number, change) = (usize::from(operation.number), i32::from(operation.change));
        let semaphore = self.semaphores.get_mut(number).ok_or(Errno::EFBIG)?;
        if (change == 0 && semaphore.value != 0) || semaphore.value + change < 0 {
            return Ok(false);
        }
        if semaphore.value + change > MAX_VALUE {
            return Err(Errno::ERANGE);
        }
        if operation.flags & SEM_UNDO != 0
            && let Some(undo) = self.undo.get_mut(&pid)
        {
            if !(-MAX_VALUE - 1..=MAX_VALUE).contains(&(undo[number] - change)) {
                return Err(Errno::ERANGE);
            }
            undo[number] -= change;
        }
        semaphore.value += change;
        Ok(true)
    }

    /// Takes back what [`Inner::change`] did.
    fn take_back(&mut self, operation: &SemBuf, pid: u32) {
        let (number, change) = (usize::from(operation.number), i32::from(operation.change));
        self.semaphores[number].value -= change;
        if operation.flags & SEM_UNDO != 0
            && let Some(undo) = self.undo.get_mut(&pid)
        {
            undo[number] += change;
        }
    }
}

impl Set {
    fn new(count: usize, lasting: Lasting) -> Self {
        let inner = Inner {
            semaphores: alloc::vec![Semaphore::default(); count],
            undo: BTreeMap::new(),
            undo_lasting: BTreeMap::new(),
            waiting: BTreeMap::new(),
            last_token: 0,
            is_removed: false,
            otime: 0,
            ctime: now(),
        };
        IN_USE.fetch_add(count, Relaxed);
        Set { inner: Mutex::new(inner), queue: WaitQueue::new(), _lasting: lasting }
    }

    fn changed(&self) {
        self.queue.wake(PollMask::READ);
    }

    fn stop_waiting(&self, token: u64) {
        self.inner.lock().waiting.remove(&token);
    }

    /// Tries `operations`; one that has to wait is noted under `token`. EAGAIN.
    fn attempt(&self, operations: &[SemBuf], pid: u32, token: u64) -> Result {
        self.stop_waiting(token);
        let outcome = {
            let mut inner = self.inner.lock();
            if inner.is_removed {
                return Err(EIDRM);
            }
            inner.apply(operations, pid)?
        };
        let Err(index) = outcome else {
            self.changed();
            return Ok(());
        };
        let SemBuf { number, change, .. } = operations[index];
        self.inner.lock().waiting.insert(token, Waiting { number, for_zero: change == 0 });
        Err(Errno::EAGAIN)
    }

    /// True if the operation that has to wait may not.
    fn refuses(&self, operations: &[SemBuf], token: u64) -> bool {
        let inner = self.inner.lock();
        let Some(waiting) = inner.waiting.get(&token) else { return false };
        let nowait = |o: &&SemBuf| u32::from(o.flags) & IPC_NOWAIT != 0;
        operations
            .iter()
            .filter(nowait)
            .any(|o| o.number == waiting.number && (o.change == 0) == waiting.for_zero)
    }
}

/// Forgets who waited, however the wait ends.
struct Waits<'a>(&'a Set, u64);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.stop_waiting(self.1);
    }
}

/// semop(2), semtimedop(2).
pub async fn operate(
    thread: &Arc<Thread>,
    id: i32,
    operations: &[SemBuf],
    deadline_ns: Option<u64>,
) -> Result {
    let set = find::<Set>(id)?;
    let highest = operations.iter().map(|o| usize::from(o.number)).max().ok_or(Errno::EINVAL)?;
    if highest >= set.inner.lock().semaphores.len() {
        return Err(Errno::EFBIG);
    }
    let alters = operations.iter().any(|o| o.change != 0);
    set.perm().check(&thread.creds(), if alters { WRITE } else { READ })?;
    let token = {
        let mut inner = set.inner.lock();
        inner.last_token += 1;
        inner.last_token
    };
    let pid = thread.process.pid;
    let _waits = Waits(&set, token);
    let first = set.attempt(operations, pid, token);
    if set.inner.lock().undo.contains_key(&pid) {
        UNDOING.lock().insert((pid, current::ipc_namespace(), id));
    }
    match first {
        Err(Errno::EAGAIN) if !set.refuses(operations, token) => {}
        result => return result,
    }
    let mut refused = false;
    let attempt = || match set.attempt(operations, pid, token) {
        Err(Errno::EAGAIN) if set.refuses(operations, token) => {
            refused = true;
            Ok(())
        }
        result => result,
    };
    let result = block_on(thread, &[&set.queue], PollMask::READ, deadline_ns, attempt).await;
    match result {
        // Never restarted (signal(7)).
        Err(Errno::ERESTARTSYS) => Err(Errno::EINTR),
        Err(Errno::ETIMEDOUT) => Err(Errno::EAGAIN),
        Ok(()) if refused => Err(Errno::EAGAIN),
        result => result,
    }
}

/// The most operations of one call.
pub fn max_operations() -> u64 {
    limits()[2]
}

/// A process has ended: what it did with SEM_UNDO is undone.
pub fn process_ended(pid: u32) {
    loop {
        let next = UNDOING.lock().range((pid, 0, 0)..=(pid, u64::MAX, i32::MAX)).next().copied();
        let Some(entry) = next else { return };
        UNDOING.lock().remove(&entry);
        let (_, namespace, id) = entry;
        let found = TABLES.lock().of(namespace).and_then(|table| table.find(id).ok());
        if let Some(set) = found
            && set.inner.lock().undo_all_of(pid)
        {
            set.changed();
        }
    }
}

/// Nobody is in a namespace any more: there is nothing left to be undone in it.
pub fn namespace_ended(namespace: u64) {
    UNDOING.lock().retain(|(_, number, _)| *number != namespace);
}

impl Kind for Set {
    const STAT: u32 = SEM_STAT;
    const STAT_ANY: u32 = SEM_STAT_ANY;
    const INFO: u32 = SEM_INFO;
    const HEADER: &'static str = "       key      semid perms      nsems   uid   gid  cuid  \
        cgid      \
        otime      ctime\n";
    const LINE_BYTES: usize = 120;
    type Abi = SemIdDs;

    fn tables() -> &'static Mutex<Tables<Self>> {
        &TABLES
    }

    fn describe(set: &Object<Self>) -> Result<SemIdDs> {
        let perm = set.perm().to_abi();
        let inner = set.inner.lock();
        let (otime, ctime, count) = (inner.otime, inner.ctime, inner.semaphores.len() as u64);
        Ok(SemIdDs { perm, otime, ctime, count, ..SemIdDs::default() })
    }

    fn perm(described: &SemIdDs) -> &PermAbi {
        &described.perm
    }

    fn information(thread: &Thread, in_use: bool, buffer: Va) -> Result {
        let [msl, mns, opm, mni] = limits().map(|n| i32::try_from(n).unwrap_or(i32::MAX));
        let mut info = SemInfo {
            map: mns,
            mni,
            mns,
            mnu: mns,
            msl,
            opm,
            ume: opm,
            usz: 20,
            vmx: MAX_VALUE,
            aem: MAX_VALUE,
        };
        if in_use {
            info.usz = TABLES.lock().own().len() as i32;
            info.aem = i32::try_from(IN_USE.load(Relaxed)).unwrap_or(i32::MAX);
        }
        thread.mm().write(buffer, &info)
    }

    fn set(set: &Object<Self>, _: &SemIdDs) {
        set.inner.lock().ctime = now();
    }

    fn remove(set: Arc<Object<Self>>) {
        let id = set.perm().id;
        drop(TABLES.lock().own().remove(id));
        {
            let mut inner = set.inner.lock();
            inner.is_removed = true;
            let mut undoing = UNDOING.lock();
            inner.undo.keys().for_each(|pid| {
                undoing.remove(&(*pid, current::ipc_namespace(), id));
            });
        }
        set.changed();
    }

    fn line(_: &Object<Self>, it: &SemIdDs, id: i32, owners: &str) -> String {
        format!(
            "{:10} {id:10}  {:4o} {:10} {owners} {:10} {:10}\n",
            it.perm.key, it.perm.mode, it.count, it.otime, it.ctime
        )
    }
}

/// semctl(2). `argument`: the union semun.
pub fn control(
    thread: &Thread,
    id: i32,
    number: i32,
    command: u32,
    argument: u64,
) -> Result<usize> {
    super::control::<Set>(thread, id, command, Va(argument), || {
        control_values(thread, id, number, command, argument)
    })
}

/// The commands of semctl(2) that read and set semaphores.
fn control_values(
    thread: &Thread,
    id: i32,
    number: i32,
    command: u32,
    argument: u64,
) -> Result<usize> {
    let set = find::<Set>(id)?;
    let (mm, creds, buffer) = (thread.mm(), thread.creds(), Va(argument));
    let count = set.inner.lock().semaphores.len();
    let perm = set.perm();
    let index = || usize::try_from(number).ok().filter(|n| *n < count).ok_or(Errno::EINVAL);
    match command {
        GETALL => {
            perm.check(&creds, READ)?;
            let values: Vec<u16> =
                set.inner.lock().semaphores.iter().map(|s| s.value as u16).collect();
            mm.write_bytes(buffer, zerocopy::IntoBytes::as_bytes(values.as_slice()))?;
        }
        SETALL => {
            perm.check(&creds, WRITE)?;
            let values: Vec<u16> = mm.read_array(buffer, count)?;
            if values.iter().any(|v| i32::from(*v) > MAX_VALUE) {
                return Err(Errno::ERANGE);
            }
            set_values(&set, values.iter().map(|v| i32::from(*v)).enumerate(), thread.process.pid);
        }
        SETVAL => {
            let index = index()?;
            perm.check(&creds, WRITE)?;
            let value = argument as u32 as i32;
            if !(0..=MAX_VALUE).contains(&value) {
                return Err(Errno::ERANGE);
            }
            set_values(&set, core::iter::once((index, value)), thread.process.pid);
        }
        GETVAL | GETPID | GETNCNT | GETZCNT => {
            let index = index()?;
            perm.check(&creds, READ)?;
            let inner = set.inner.lock();
            let waiting = |zero| {
                inner
                    .waiting
                    .values()
                    .filter(|w| usize::from(w.number) == index && w.for_zero == zero)
                    .count()
            };
            return Ok(match command {
                GETVAL => inner.semaphores[index].value as usize,
                GETPID => thread.number_of(inner.semaphores[index].pid) as usize,
                GETNCNT => waiting(false),
                _ => waiting(true),
            });
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// Sets values; what was to be undone there is forgotten.
fn set_values(set: &Set, values: impl Iterator<Item = (usize, i32)>, pid: u32) {
    {
        let mut inner = set.inner.lock();
        for (index, value) in values {
            inner.semaphores[index] = Semaphore { value, pid };
            inner.undo.values_mut().for_each(|undo| undo[index] = 0);
        }
        inner.ctime = now();
    }
    set.changed();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(number: u16, change: i16, flags: u16) -> SemBuf {
        SemBuf { number, change, flags }
    }

    #[test]
    fn operations_happen_together_or_not_at_all() {
        let set = Set::new(2, Lasting::default());
        let mut inner = set.inner.lock();
        assert_eq!(inner.apply(&[op(0, 2, 0), op(1, -1, 0)], 1), Ok(Err(1)));
        assert_eq!(inner.semaphores[0].value, 0);
        assert_eq!(
            inner.apply(&[op(0, 2, SEM_UNDO), op(0, -1, SEM_UNDO), op(1, 0, 0)], 1),
            Ok(Ok(()))
        );
        assert_eq!((inner.semaphores[0].value, inner.undo[&1][0]), (1, -1));
        assert_eq!(inner.apply(&[op(0, 0, 0)], 1), Ok(Err(0)));
        assert_eq!(inner.apply(&[op(0, i16::MAX, 0)], 1), Err(Errno::ERANGE));
        assert_eq!(inner.apply(&[op(2, 1, 0)], 1), Err(Errno::EFBIG));
        assert_eq!(inner.semaphores[0].value, 1);
        // What has to wait leaves neither values nor what is to be undone, nor a pid.
        let some = [op(0, 5, SEM_UNDO), op(1, 3, 0), op(0, -2, SEM_UNDO), op(1, 0, 0)];
        assert_eq!(inner.apply(&some, 2), Ok(Err(3)));
        assert_eq!(inner.semaphores.iter().map(|s| s.value).collect::<Vec<_>>(), [1, 0]);
        assert_eq!((inner.semaphores[0].pid, &inner.undo[&2][..]), (1, &[0, 0][..]));
        assert_eq!(inner.apply(&some[..3], 2), Ok(Ok(())));
        assert_eq!((inner.semaphores[0].value, inner.semaphores[1].pid), (4, 2));
        assert!(inner.undo_all_of(2) && !inner.undo_all_of(2));
        assert_eq!((inner.semaphores[0].value, inner.semaphores[1].value), (1, 3));
    }
}
