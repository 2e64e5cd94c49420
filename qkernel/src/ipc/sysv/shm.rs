//! Shared memory segments (shmget(2), shmat(2), shmctl(2)).
//!
//! A segment's memory is a memory object as a tmpfs file's is. What is mapped is the segment
//! itself, so that it lives as long as somebody has it attached, after its identifier is gone too.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use linux_raw_sys::general::{CAP_IPC_LOCK, RLIMIT_AS, RLIMIT_MEMLOCK};
use qlib::{Gpa, PAGE_SIZE, Va};

use super::{IPC_PRIVATE, Kind, Object, PermAbi, READ, Tables, WRITE, each, find, now};
use crate::abi::abi_struct;
use crate::account::Lasting;
use crate::errno::{Errno, Result};
use crate::fs::proc::sys;
use crate::fs::shmem::{Quota, Shmem};
use crate::mm::map::Placement;
use crate::mm::mapped::{MappedFile, MappedPage};
use crate::mm::vma::FileMapping;
use crate::mm::{Prot, Vma, VmaFlags};
use crate::sync::{Mutex, mutex};
use crate::task::pid_namespace::shown;
use crate::task::{Thread, current, table};

const SHM_HUGETLB: u32 = 0o4000;
const SHM_RDONLY: u32 = 0o10000;
const SHM_RND: u32 = 0o20000;
const SHM_REMAP: u32 = 0o40000;
const SHM_EXEC: u32 = 0o100000;
const SHM_LOCK: u32 = 11;
const SHM_UNLOCK: u32 = 12;
const SHM_STAT: u32 = 13;
const SHM_INFO: u32 = 14;
const SHM_STAT_ANY: u32 = 15;
/// Mode bits: it goes when nobody has it attached any more; SHM_LOCK was called.
const SHM_DEST: u32 = 0o1000;
const SHM_LOCKED: u32 = 0o2000;

abi_struct! {
    /// struct shmid64_ds.
    pub struct ShmIdDs {
        pub perm: PermAbi, pub size: u64, pub atime: i64, pub dtime: i64, pub ctime: i64,
        pub cpid: i32, pub lpid: i32, pub attached: u64, pub unused: [u64; 2],
    }
}
abi_struct! {
    /// struct shminfo64.
    pub struct ShmInfo64 {
        pub max: u64, pub min: u64, pub mni: u64, pub seg: u64, pub all: u64, pub unused: [u64; 4],
    }
}
abi_struct! {
    /// struct shm_info.
    pub struct ShmInfo {
        pub used_ids: i32, pub pad: i32, pub total: u64, pub resident: u64, pub swapped: u64,
        pub attempts: u64, pub successes: u64,
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    attached: i64,
    detached: i64,
    changed: i64,
    creator: u32,
    last: u32,
}

/// A segment.
pub struct Segment {
    namespace: u64,
    id: i32,
    size: u64,
    memory: Arc<Shmem>,
    times: Mutex<Times>,
    _lasting: Lasting,
}

impl Segment {
    fn pages(&self) -> u64 {
        self.size.div_ceil(PAGE_SIZE)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        PAGES_IN_USE.fetch_sub(self.pages(), Relaxed);
        SEGMENTS.lock().remove(&self.identity());
        GONE.lock().insert((self.namespace, self.id));
    }
}

impl MappedFile for Segment {
    fn punch_hole(self: Arc<Self>, offset: u64, length: u64) -> Result {
        // Held besides the segment's own: the object tells whoever has it mapped by that.
        let memory = self.memory.clone();
        memory.punch(offset, length)
    }

    fn page(&self, index: u64, write: bool) -> Result<MappedPage> {
        self.memory.page(index, write)
    }

    fn frames_in_use(&self, first: u64, frames: &mut [Option<Gpa>]) {
        self.memory.frames_in_use(first, frames);
    }

    fn identity(&self) -> usize {
        // As its memory, which finds by it whoever has it mapped.
        MappedFile::identity(&*self.memory)
    }
}

/// A place in the table: after IPC_RMID only those who have the segment attached keep it.
pub struct Entry {
    kept: Mutex<Option<Arc<Segment>>>,
    segment: Weak<Segment>,
}

static TABLES: Mutex<Tables<Entry>> = mutex(Tables::empty());

/// Segments that nobody keeps or has attached any more: their places in the table are to be given
/// up. Never more than there are places.
static GONE: Mutex<BTreeSet<(u64, i32)>> = mutex(BTreeSet::new());

/// What a segment takes besides its pages, in bytes: its object, and its places in the tables.
const SEGMENT_BYTES: u64 = 768;

/// All segments, by their identity as mapped objects.
static SEGMENTS: Mutex<BTreeMap<usize, Weak<Segment>>> = mutex(BTreeMap::new());

/// Of all segments together, whatever their namespace: what kernel.shmall bounds.
static PAGES_IN_USE: AtomicU64 = AtomicU64::new(0);

/// True if segments go with the last who has them attached (kernel.shm_rmid_forced, proc_sys(5)).
fn is_removal_forced() -> bool {
    sys::number("kernel/shm_rmid_forced", 0) != 0
}

/// A process ends: what it made and nobody has attached goes with it, if that is so set.
pub fn process_ended(pid: u32) {
    if is_removal_forced() {
        forget_orphans(Some(pid));
        prune();
    }
}

/// Gives up what nobody has attached any more, or nobody has had attached while its creator lived.
fn forget_orphans(ending: Option<u32>) {
    let lives = |pid| {
        Some(pid) != ending && table::process(pid).is_some_and(|process| !process.is_zombie())
    };
    for entry in each::<Entry>() {
        let Ok(segment) = segment(&entry) else { continue };
        let times = *segment.times.lock();
        let is_new = times.attached == 0 && lives(times.creator);
        if !is_new && attached(&entry, &segment) == 0 {
            let kept = entry.kept.lock().take();
            drop((kept, segment));
        }
    }
}

/// Takes those out of the table that nobody has attached any more since their removal.
fn prune() {
    if is_removal_forced() {
        forget_orphans(None);
    }
    loop {
        let Some((namespace, id)) = GONE.lock().pop_first() else { return };
        let removed = TABLES.lock().of(namespace).and_then(|table| table.remove(id));
        drop(removed);
    }
}

fn segment(entry: &Entry) -> Result<Arc<Segment>> {
    entry.segment.upgrade().ok_or(Errno::EINVAL)
}

/// The segment that is mapped there, if it is one.
fn segment_of(backing: &FileMapping) -> Option<Arc<Segment>> {
    SEGMENTS.lock().get(&backing.mapping.identity()).and_then(Weak::upgrade)
}

/// All segments.
fn segments() -> impl Iterator<Item = Arc<Segment>> {
    each::<Entry>().filter_map(|e| e.segment.upgrade())
}

/// shmget(2).
pub fn get(thread: &Thread, key: i32, size: u64, flags: u32) -> Result<i32> {
    prune();
    if flags & SHM_HUGETLB != 0 {
        // No huge page pool, as in mmap(2).
        return Err(Errno::ENOMEM);
    }
    let fits = |entry: &Entry| {
        let small = segment(entry).is_ok_and(|s| s.size < size);
        if small { Err(Errno::EINVAL) } else { Ok(()) }
    };
    let make = |id| {
        if size == 0 || size > sys::number("kernel/shmmax", u64::MAX) {
            return Err(Errno::EINVAL);
        }
        let pages = size.checked_add(PAGE_SIZE - 1).ok_or(Errno::EINVAL)? / PAGE_SIZE;
        if PAGES_IN_USE.load(Relaxed).saturating_add(pages) > sys::number("kernel/shmall", u64::MAX)
        {
            return Err(Errno::ENOSPC);
        }
        if size > crate::fs::shmem::MAX_BYTES {
            return Err(Errno::ENOMEM);
        }
        let lasting = Lasting::take(SEGMENT_BYTES)?;
        let times = Times { changed: now(), creator: thread.process.pid, ..Times::default() };
        let memory = Shmem::new(size, Quota::lasting(u64::MAX));
        PAGES_IN_USE.fetch_add(pages, Relaxed);
        let segment = Arc::new(Segment {
            namespace: current::ipc_namespace(),
            id,
            size,
            memory,
            times: Mutex::new(times),
            _lasting: lasting,
        });
        let weak = Arc::downgrade(&segment);
        SEGMENTS.lock().insert(segment.identity(), weak.clone());
        Ok(Entry { kept: Mutex::new(Some(segment)), segment: weak })
    };
    let most = sys::number("kernel/shmmni", 4096);
    TABLES.lock().own().get(&thread.creds(), key, flags, most, fits, make)
}

/// shmat(2): where it was attached.
pub fn attach(thread: &Thread, id: i32, addr: Va, flags: u32) -> Result<Va> {
    let entry = find::<Entry>(id)?;
    let segment = segment(&entry)?;
    let mut at = addr;
    if !at.is_page_aligned() {
        if flags & SHM_RND == 0 {
            return Err(Errno::EINVAL);
        }
        at = at.page_floor();
    }
    if at.0 == 0 && flags & SHM_REMAP != 0 {
        return Err(Errno::EINVAL);
    }
    let mut prot = Prot::READ;
    let mut wanted = READ;
    if flags & SHM_RDONLY == 0 {
        prot |= Prot::WRITE;
        wanted |= WRITE;
    }
    if flags & SHM_EXEC != 0 {
        prot |= Prot::EXEC;
        wanted |= 0o111;
    }
    entry.perm().check(&thread.creds(), wanted)?;
    let max_prot = if flags & SHM_RDONLY == 0 { Prot::all() } else { Prot::READ | Prot::EXEC };
    let backing = FileMapping { mapping: segment.clone(), file: None, first_page: 0 };
    let vma = Vma::of_file(prot, max_prot, VmaFlags::SHARED, backing);
    let place = match at.0 {
        0 => Placement::Hint(at),
        _ if flags & SHM_REMAP != 0 => Placement::Fixed(at),
        _ => Placement::FixedNoReplace(at),
    };
    let mm = thread.mm();
    mm.check_denied(prot, prot)?;
    let start = mm.map(place, segment.size, vma, thread.process.rlimit(RLIMIT_AS));
    let start = start.map_err(|e| if e == Errno::EEXIST { Errno::EINVAL } else { e })?;
    let mut times = segment.times.lock();
    (times.attached, times.last) = (now(), thread.process.pid);
    Ok(start)
}

/// shmdt(2): EINVAL when nothing is attached at `addr`.
pub fn detach(thread: &Thread, addr: Va) -> Result {
    if !addr.is_page_aligned() {
        return Err(Errno::EINVAL);
    }
    let mm = thread.mm();
    let mut found: Option<Arc<Segment>> = None;
    // Parts of it may have been unmapped or protected differently since.
    let mut next = addr;
    let is_beyond = |at: Va, found: &Option<Arc<Segment>>| {
        found.as_ref().is_some_and(|segment| at.0 - addr.0 >= segment.size)
    };
    while let Some(vma) = mm.range_after(next).filter(|vma| !is_beyond(vma.start, &found)) {
        next = vma.end;
        let Some(backing) = &vma.backing else { continue };
        let offset = backing.first_page.checked_mul(PAGE_SIZE);
        let begins = offset.and_then(|o| vma.start.0.checked_sub(o)) == Some(addr.0);
        let Some(segment) = Some(backing).filter(|_| begins).and_then(segment_of) else { continue };
        if found.as_ref().is_none_or(|f| Arc::ptr_eq(f, &segment)) {
            mm.unmap(vma.start, vma.len())?;
            found = Some(segment);
        }
    }
    let segment = found.ok_or(Errno::EINVAL)?;
    {
        let mut times = segment.times.lock();
        (times.detached, times.last) = (now(), thread.process.pid);
    }
    drop(segment);
    prune();
    Ok(())
}

/// How often a segment is attached, by all processes: as often as a range of theirs refers to it.
fn attached(entry: &Entry, segment: &Arc<Segment>) -> u64 {
    let others = 1 + usize::from(entry.kept.lock().is_some());
    Arc::strong_count(segment).saturating_sub(others) as u64
}

impl Kind for Entry {
    const STAT: u32 = SHM_STAT;
    const STAT_ANY: u32 = SHM_STAT_ANY;
    const INFO: u32 = SHM_INFO;
    const HEADER: &'static str = "       key      shmid perms                  size  cpid  lpid \
        nattch   \
        uid   gid  cuid  cgid      atime      dtime      ctime                   rss        \
        \x20         swap\n";
    const LINE_BYTES: usize = 220;
    type Abi = ShmIdDs;

    fn tables() -> &'static Mutex<Tables<Self>> {
        &TABLES
    }

    fn describe(entry: &Object<Self>) -> Result<ShmIdDs> {
        let segment = segment(entry)?;
        let times = *segment.times.lock();
        Ok(ShmIdDs {
            perm: entry.perm().to_abi(),
            size: segment.size,
            atime: times.attached,
            dtime: times.detached,
            ctime: times.changed,
            cpid: shown(times.creator) as i32,
            lpid: shown(times.last) as i32,
            attached: attached(entry, &segment),
            unused: [0; 2],
        })
    }

    fn perm(described: &ShmIdDs) -> &PermAbi {
        &described.perm
    }

    fn information(thread: &Thread, in_use: bool, buffer: Va) -> Result {
        if in_use {
            let resident = segments().map(|s| s.memory.page_count()).sum();
            let used_ids = TABLES.lock().own().len() as i32;
            let total = segments().map(|s| s.pages()).sum();
            return thread
                .mm()
                .write(buffer, &ShmInfo { used_ids, total, resident, ..ShmInfo::default() });
        }
        let limit = |name| sys::number(name, 0);
        let (max, mni, all) =
            (limit("kernel/shmmax"), limit("kernel/shmmni"), limit("kernel/shmall"));
        thread.mm().write(buffer, &ShmInfo64 { max, min: 1, mni, seg: mni, all, unused: [0; 4] })
    }

    fn set(entry: &Object<Self>, _: &ShmIdDs) {
        if let Ok(segment) = segment(entry) {
            segment.times.lock().changed = now();
        }
    }

    /// It stays in its place until nobody has it attached any more.
    fn remove(entry: Arc<Object<Self>>) {
        let key = {
            let mut perm = entry.perm.lock();
            perm.mode |= SHM_DEST;
            core::mem::replace(&mut perm.key, IPC_PRIVATE)
        };
        TABLES.lock().own().forget_key(key);
        let kept = entry.kept.lock().take();
        drop(kept);
        prune();
    }

    fn line(entry: &Object<Self>, it: &ShmIdDs, id: i32, owners: &str) -> String {
        let rss = segment(entry).map_or(0, |s| s.memory.page_count()) * PAGE_SIZE;
        let times = format!("{:10} {:10} {:10}", it.atime, it.dtime, it.ctime);
        format!(
            "{:10} {id:10}  {:4o} {:21} {:5} {:5}  {:5} {owners} {times} {rss:21} {:21}\n",
            it.perm.key, it.perm.mode, it.size, it.cpid, it.lpid, it.attached, 0
        )
    }
}

/// shmctl(2).
pub fn control(thread: &Thread, id: i32, command: u32, buffer: Va) -> Result<usize> {
    prune();
    super::control::<Entry>(thread, id, command, buffer, || match command {
        SHM_LOCK | SHM_UNLOCK => lock(thread, id, command == SHM_LOCK),
        _ => Err(Errno::EINVAL),
    })
}

/// SHM_LOCK, SHM_UNLOCK.
fn lock(thread: &Thread, id: i32, locks: bool) -> Result<usize> {
    let entry = find::<Entry>(id)?;
    let segment = segment(&entry)?;
    let creds = thread.creds();
    if !creds.capable_in(&current::ipc_user(), CAP_IPC_LOCK) {
        let perm = entry.perm();
        if creds.euid != perm.uid && creds.euid != perm.cuid {
            return Err(Errno::EPERM);
        }
        match thread.process.rlimit(RLIMIT_MEMLOCK) {
            _ if !locks => {}
            0 => return Err(Errno::EPERM),
            limit if segment.size > limit => return Err(Errno::ENOMEM),
            _ => {}
        }
    }
    // Nothing but hibernation moves pages out, and it moves locked ones too, as those of mlock(2).
    let mut perm = entry.perm.lock();
    perm.mode = if locks { perm.mode | SHM_LOCKED } else { perm.mode & !SHM_LOCKED };
    Ok(0)
}

/// /proc/sysvipc/shm.
pub fn list() -> Result<String> {
    prune();
    super::list::<Entry>()
}
