//! System calls about memory.

use alloc::sync::Arc;
use core::ops::Range;

use linux_raw_sys::general::{
    __NR_brk, __NR_ioctl, __NR_madvise, __NR_mmap, __NR_mprotect, __NR_munmap, CAP_IPC_LOCK,
    FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, MADV_COLD, MADV_COLLAPSE, MADV_DODUMP, MADV_DOFORK,
    MADV_DONTDUMP, MADV_DONTFORK, MADV_DONTNEED, MADV_DONTNEED_LOCKED, MADV_FREE, MADV_HUGEPAGE,
    MADV_KEEPONFORK, MADV_MERGEABLE, MADV_NOHUGEPAGE, MADV_NORMAL, MADV_PAGEOUT,
    MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_RANDOM, MADV_REMOVE, MADV_SEQUENTIAL,
    MADV_UNMERGEABLE, MADV_WILLNEED, MADV_WIPEONFORK, MAP_32BIT, MAP_ANONYMOUS, MAP_DENYWRITE,
    MAP_DROPPABLE, MAP_EXECUTABLE, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_GROWSDOWN, MAP_HUGETLB,
    MAP_LOCKED, MAP_NONBLOCK, MAP_NORESERVE, MAP_POPULATE, MAP_PRIVATE, MAP_SHARED,
    MAP_SHARED_VALIDATE, MAP_STACK, MAP_TYPE, MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE,
    MS_ASYNC, MS_INVALIDATE, MS_SYNC, PROT_GROWSDOWN, PROT_GROWSUP, PROT_SEM, RLIMIT_AS,
    RLIMIT_DATA, RLIMIT_MEMLOCK,
};
use linux_raw_sys::ioctl::{UFFDIO_REGISTER, UFFDIO_WRITEPROTECT};
use qlib::{PAGE_SHIFT, PAGE_SIZE, Va};

use crate::errno::{Errno, Result};
use crate::fs::disk::finished;
use crate::fs::file::file_of;
use crate::fs::{self, Fd};
use crate::mm::freeze::EVERYTHING;
use crate::mm::map::{Limits, Placement, user_range};
use crate::mm::vma::FileMapping;
use crate::mm::{AddressSpace, Prot, Vma, VmaFlags};
use crate::task::Thread;
use crate::time::Breath;
use crate::wait::Sleeper;

/// The range that a call takes pages away from, or changes the protection of: no other thread of
/// the space may map anything there meanwhile. All that it may be, if the arguments make no sense.
#[allow(non_upper_case_globals, reason = "the names of the calls are constants of the header")]
pub fn taken_away(mm: &AddressSpace, nr: u64, args: &[u64; 6]) -> Option<Range<Va>> {
    let [addr, length, third, fourth, ..] = *args;
    let range =
        || match user_range(Va(addr).page_floor(), length.saturating_add(Va(addr).page_offset())) {
            Ok((start, end)) => start..end,
            Err(_) => EVERYTHING,
        };
    match nr as u32 {
        __NR_mmap if fourth as u32 & MAP_FIXED == 0 => None,
        // It may go on down to the beginning of a stack.
        __NR_mprotect if third & u64::from(PROT_GROWSDOWN) != 0 => Some(EVERYTHING),
        __NR_mmap | __NR_munmap | __NR_mprotect => Some(range()),
        __NR_madvise => match third as u32 {
            MADV_DONTNEED | MADV_DONTNEED_LOCKED | MADV_FREE => {
                // Asked only where it matters.
                Some(range()).filter(|range| mm.must_freeze() && !mm.is_emptied(range.clone()))
            }
            _ => None,
        },
        __NR_brk => mm.lost_by_brk(Va(addr)),
        // Pages that were only reserved go, or may be written to no longer.
        __NR_ioctl => {
            matches!(length as u32, UFFDIO_REGISTER | UFFDIO_WRITEPROTECT).then_some(EVERYTHING)
        }
        _ => Some(EVERYTHING),
    }
}

fn limits(thread: &Thread) -> Limits {
    let limits = thread.process.rlimits.lock();
    Limits { total: limits.soft(RLIMIT_AS), data: limits.soft(RLIMIT_DATA) }
}

/// How much the thread may have locked, in bytes: RLIMIT_MEMLOCK, or anything with CAP_IPC_LOCK.
pub(super) fn lockable_bytes(thread: &Thread) -> u64 {
    let limit = thread.process.rlimit(RLIMIT_MEMLOCK);
    let is_limited = limit != u64::MAX && !thread.creds().capable(CAP_IPC_LOCK);
    if is_limited { limit } else { u64::MAX }
}

/// RLIMIT_MEMLOCK, for those without CAP_IPC_LOCK: EPERM if nothing may be locked, `error` if
/// `more` bytes (`None`: everything) may not.
fn check_locked(thread: &Thread, more: Option<u64>, error: Errno) -> Result {
    let limit = lockable_bytes(thread);
    if limit == u64::MAX {
        return Ok(());
    }
    if limit == 0 {
        return Err(Errno::EPERM);
    }
    let (total, locked) = thread.mm().mapped_and_locked();
    let wanted = more.map_or(total, |more| locked.saturating_add(more));
    if wanted > limit { Err(error) } else { Ok(()) }
}

fn prot_from(bits: u64) -> Result<Prot> {
    let known = u64::from(Prot::all().bits() | PROT_SEM);
    if bits & !known != 0 { Err(Errno::EINVAL) } else { Ok(Prot::from_bits_truncate(bits as u32)) }
}

/// The flags of mmap(2) that MAP_SHARED_VALIDATE lets pass (LEGACY_MAP_MASK of Linux).
const KNOWN_FLAGS: u32 = MAP_TYPE
    | MAP_FIXED
    | MAP_FIXED_NOREPLACE
    | MAP_ANONYMOUS
    | MAP_DENYWRITE
    | MAP_EXECUTABLE
    | MAP_UNINITIALIZED
    | MAP_GROWSDOWN
    | MAP_LOCKED
    | MAP_NORESERVE
    | MAP_POPULATE
    | MAP_NONBLOCK
    | MAP_STACK
    | MAP_HUGETLB
    | MAP_32BIT;
/// Of machines without memory protection only.
const MAP_UNINITIALIZED: u32 = 0x400_0000;

/// What a mapping that may be dropped cannot be besides.
const NOT_DROPPABLE: u32 = MAP_LOCKED | MAP_HUGETLB | MAP_GROWSDOWN;

/// mmap(2).
pub fn mmap(
    thread: &Arc<Thread>,
    addr: Va,
    length: u64,
    prot: u64,
    flags: u32,
    fd: Fd,
    offset: u64,
) -> Result<usize> {
    let prot = prot_from(prot & !u64::from(PROT_GROWSDOWN | PROT_GROWSUP))?;
    if length == 0 || offset & (PAGE_SIZE - 1) != 0 {
        return Err(Errno::EINVAL);
    }
    let is_droppable = flags & MAP_TYPE == MAP_DROPPABLE;
    if is_droppable && (flags & MAP_ANONYMOUS == 0 || flags & NOT_DROPPABLE != 0) {
        return Err(Errno::EINVAL);
    }
    if flags & MAP_HUGETLB != 0 {
        // No huge page pool: as on a machine with nr_hugepages = 0.
        return Err(Errno::ENOMEM);
    }
    let shared = match flags & MAP_TYPE {
        MAP_SHARED | MAP_SHARED_VALIDATE => true,
        MAP_PRIVATE | MAP_DROPPABLE => false,
        _ => return Err(Errno::EINVAL),
    };
    // It promises that no flag is ignored; for a mapping without a file it is no type.
    if flags & MAP_TYPE == MAP_SHARED_VALIDATE {
        if flags & MAP_ANONYMOUS != 0 {
            return Err(Errno::EINVAL);
        }
        if flags & !KNOWN_FLAGS != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
    }
    let mut vma_flags = VmaFlags::empty();
    vma_flags.set(VmaFlags::SHARED, shared);
    vma_flags.set(VmaFlags::GROWS_DOWN, flags & MAP_GROWSDOWN != 0);
    vma_flags.set(VmaFlags::NO_RESERVE, flags & MAP_NORESERVE != 0);
    vma_flags.set(VmaFlags::LOCKED, flags & MAP_LOCKED != 0);
    // That it may be dropped is a permission, of which no use is made.
    let droppable =
        VmaFlags::DROPPABLE | VmaFlags::NO_RESERVE | VmaFlags::WIPE_ON_FORK | VmaFlags::DONT_DUMP;
    if is_droppable {
        vma_flags |= droppable;
    }
    let vma = if flags & MAP_ANONYMOUS != 0 {
        if shared {
            let mapping = fs::shared_memory(length)?;
            let backing = FileMapping { mapping, file: None, first_page: 0 };
            Vma::of_file(prot, Prot::all(), vma_flags, backing)
        } else {
            Vma::anonymous(prot, vma_flags)
        }
    } else {
        let file = thread.files().get(fd)?;
        if !file.is_readable() {
            return Err(Errno::EACCES);
        }
        let may_write = !shared || file.is_writable();
        if prot.contains(Prot::WRITE) && !may_write {
            return Err(Errno::EACCES);
        }
        if (offset.checked_add(length).ok_or(Errno::EOVERFLOW)?) >> 63 != 0 {
            return Err(Errno::EOVERFLOW);
        }
        if prot.contains(Prot::EXEC) && fs::open::is_noexec(&file) {
            return Err(Errno::EPERM);
        }
        let writable = shared && file.is_writable();
        let (mapping, first_page) = file.ops.mapping_at(&file, writable, offset, length)?;
        let max_prot = if may_write { Prot::all() } else { Prot::READ | Prot::EXEC };
        let backing = FileMapping { mapping, file: Some(file), first_page };
        Vma::of_file(prot, max_prot, vma_flags, backing)
    };
    let low = flags & MAP_32BIT != 0;
    let place = if flags & MAP_FIXED_NOREPLACE != 0 {
        Placement::FixedNoReplace(addr)
    } else if flags & MAP_FIXED != 0 {
        Placement::Fixed(addr)
    } else if low {
        Placement::Low(addr)
    } else {
        Placement::Hint(addr)
    };
    let mm = thread.mm();
    mm.check_denied(prot, prot)?;
    if flags & MAP_LOCKED != 0 {
        check_locked(thread, Some(length), Errno::EAGAIN)?;
    }
    let start = mm.map(place, length, vma, limits(thread))?;
    if flags & (MAP_POPULATE | MAP_LOCKED) != 0 {
        // Failing to fault pages in is not a failure of mmap.
        let _ = mm.populate(start, length, prot.contains(Prot::WRITE));
    }
    Ok(start.0 as usize)
}

/// The one mapping that a whole range lies in.
fn part_with(mm: &AddressSpace, range: Range<Va>) -> Option<Vma> {
    let part = mm.range_after(range.start)?;
    (part.start <= range.start && range.end <= part.end).then_some(part)
}

/// remap_file_pages(2), as Linux has done it since 4.0: a part of a shared mapping becomes one of
/// its own, of another part of the file. `pgoff` is in pages; `prot` is 0.
pub fn remap_file_pages(
    thread: &Arc<Thread>,
    addr: Va,
    size: u64,
    prot: u64,
    pgoff: u64,
    _flags: u32,
) -> Result<usize> {
    let (start, size) = (addr.page_floor(), size & !(PAGE_SIZE - 1));
    let end = start.checked_add(size).filter(|end| *end > start).ok_or(Errno::EINVAL)?;
    let end_page = pgoff.checked_add(size >> PAGE_SHIFT).filter(|_| prot == 0);
    let end_page = end_page.ok_or(Errno::EINVAL)?;
    let mm = thread.mm();
    let part = part_with(&mm, start..end).filter(|part| part.is_shared()).ok_or(Errno::EINVAL)?;
    let backing = part.backing.as_ref().ok_or(Errno::EINVAL)?;
    // File offsets are positive numbers of 63 bits.
    if end_page > i64::MAX as u64 >> PAGE_SHIFT {
        return Err(Errno::EOVERFLOW);
    }
    let backing = FileMapping { first_page: pgoff, ..backing.clone() };
    let vma = Vma::of_file(part.prot, part.max_prot, part.flags, backing);
    mm.map(Placement::Fixed(start), size, vma, limits(thread))?;
    Ok(0)
}

/// munmap(2).
pub fn munmap(thread: &Arc<Thread>, addr: Va, length: u64) -> Result<usize> {
    thread.mm().unmap(addr, length).map(|()| 0)
}

/// mprotect(2).
pub fn mprotect(thread: &Arc<Thread>, addr: Va, length: u64, prot: u64) -> Result<usize> {
    if prot & u64::from(PROT_GROWSUP) != 0 {
        return Err(Errno::EINVAL);
    }
    let grows_down = prot & u64::from(PROT_GROWSDOWN) != 0;
    let prot = prot_from(prot & !u64::from(PROT_GROWSDOWN))?;
    let mm = thread.mm();
    if prot.contains(Prot::EXEC) {
        let parts = mm.parts(addr, length)?.0;
        for part in &parts {
            mm.check_denied(part.prot, prot)?;
        }
        // Only here: mostly nobody asks, and it is a question to the host.
        let files = parts.into_iter().filter(|p| !p.prot.contains(Prot::EXEC));
        let mut files = files.filter_map(|part| file_of(&part.backing?));
        if files.any(|file| fs::open::is_noexec(&file)) {
            return Err(Errno::EACCES);
        }
    }
    mm.protect(addr, length, prot, grows_down, thread.process.rlimit(RLIMIT_DATA)).map(|()| 0)
}

/// brk(2).
pub fn brk(thread: &Arc<Thread>, addr: Va) -> Result<usize> {
    Ok(thread.mm().brk(addr, limits(thread)).0 as usize)
}

/// mremap(2).
pub fn mremap(
    thread: &Arc<Thread>,
    addr: Va,
    old_size: u64,
    new_size: u64,
    flags: u32,
    new_addr: Va,
) -> Result<usize> {
    if flags & !(MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP) != 0 {
        return Err(Errno::EINVAL);
    }
    let may_move = flags & MREMAP_MAYMOVE != 0;
    let fixed = (flags & MREMAP_FIXED != 0).then_some(new_addr);
    if flags & (MREMAP_FIXED | MREMAP_DONTUNMAP) != 0 && !may_move {
        return Err(Errno::EINVAL);
    }
    if flags & MREMAP_DONTUNMAP != 0 {
        if old_size != new_size || old_size == 0 {
            return Err(Errno::EINVAL);
        }
        return move_pages_out(thread, addr, old_size, new_addr, fixed.is_some());
    }
    thread
        .mm()
        .remap(addr, old_size, new_size, may_move, fixed, limits(thread))
        .map(|va| va.0 as usize)
}

/// MREMAP_DONTUNMAP: the pages move, and the private anonymous mapping that they were in stays,
/// empty. `to`: where they go (MREMAP_FIXED), or else a hint.
fn move_pages_out(
    thread: &Arc<Thread>,
    old: Va,
    size: u64,
    to: Va,
    is_fixed: bool,
) -> Result<usize> {
    let mm = thread.mm();
    let (start, end) = user_range(old, size).map_err(|_| Errno::EINVAL)?;
    // Linux wants even a hint to be a place where they could go.
    let (to_start, to_end) = user_range(to, size).map_err(|_| Errno::EINVAL)?;
    if to_start < end && start < to_end {
        return Err(Errno::EINVAL);
    }
    let part = part_with(&mm, start..end).filter(|_| start < end).ok_or(Errno::EFAULT)?;
    if part.backing.is_some() || part.is_shared() {
        return Err(Errno::EINVAL);
    }
    if part.flags.contains(VmaFlags::SEALED) {
        return Err(Errno::EPERM);
    }
    let (len, empty) = (end - start, || Vma::anonymous(part.prot, part.flags - VmaFlags::LOCKED));
    let (new, is_ours) = match is_fixed {
        true => (to, false),
        false => (mm.map(Placement::Hint(to), len, empty(), limits(thread))?, true),
    };
    if let Err(error) = mm.remap(start, len, len, true, Some(new), limits(thread)) {
        if is_ours {
            let _ = mm.unmap(new, len);
        }
        return Err(error);
    }
    mm.tell_of_no_unmapping();
    // If there is no memory for one mapping more, the pages are where they are wanted all the same.
    // Who is told of faults there is told of those that come now.
    let left = Vma { served_by: part.served_by.clone(), ..empty() };
    let _ = mm.map(Placement::FixedNoReplace(start), len, left, limits(thread));
    Ok(new.0 as usize)
}

/// madvise(2).
pub fn madvise(thread: &Arc<Thread>, addr: Va, length: u64, advice: u32) -> Result<usize> {
    let mm = thread.mm();
    let (start, end) = user_range(addr, length)?;
    if start == end {
        return Ok(0);
    }
    if DISCARDS.contains(&advice) {
        mm.check_discard(addr, length)?;
    }
    let set = |set, clear| mm.update_flags(addr, length, set, clear);
    match advice {
        MADV_DONTNEED | MADV_DONTNEED_LOCKED => mm.discard(addr, length),
        MADV_FREE => {
            let (parts, _) = mm.parts(addr, length)?;
            if parts.iter().any(|p| p.backing.is_some()) {
                return Err(Errno::EINVAL);
            }
            mm.discard(addr, length)
        }
        MADV_REMOVE => remove(thread, addr, length),
        MADV_DONTFORK => set(VmaFlags::DONT_FORK, VmaFlags::empty()),
        MADV_DOFORK => set(VmaFlags::empty(), VmaFlags::DONT_FORK),
        MADV_WIPEONFORK => {
            let (parts, _) = mm.parts(addr, length)?;
            if parts.iter().any(|p| p.backing.is_some() || p.is_shared()) {
                return Err(Errno::EINVAL);
            }
            set(VmaFlags::WIPE_ON_FORK, VmaFlags::empty())
        }
        MADV_DONTDUMP => set(VmaFlags::DONT_DUMP, VmaFlags::empty()),
        MADV_KEEPONFORK | MADV_DODUMP => {
            let (parts, _) = mm.parts(addr, length)?;
            if parts.iter().any(|p| p.flags.contains(VmaFlags::DROPPABLE)) {
                return Err(Errno::EINVAL);
            }
            let dumps = advice == MADV_DODUMP;
            set(VmaFlags::empty(), if dumps { VmaFlags::DONT_DUMP } else { VmaFlags::WIPE_ON_FORK })
        }
        MADV_POPULATE_READ => mm.populate(addr, length, false),
        MADV_POPULATE_WRITE => mm.populate(addr, length, true),
        MADV_HUGEPAGE => set(VmaFlags::HUGE, VmaFlags::NO_HUGE),
        MADV_NOHUGEPAGE => set(VmaFlags::NO_HUGE, VmaFlags::HUGE),
        MADV_NORMAL | MADV_RANDOM | MADV_SEQUENTIAL | MADV_WILLNEED | MADV_COLD | MADV_PAGEOUT => {
            hint(&mm, addr, length)
        }
        // Not configured, as on a kernel without KSM or shmem huge pages.
        MADV_MERGEABLE | MADV_UNMERGEABLE | MADV_COLLAPSE => Err(Errno::EINVAL),
        _ => Err(Errno::EINVAL),
    }
    .map(|()| 0)
}

/// Advice about performance only: it is about what is mapped.
pub(super) fn hint(mm: &AddressSpace, addr: Va, length: u64) -> Result {
    if mm.parts(addr, length)?.1 { Ok(()) } else { Err(Errno::ENOMEM) }
}

/// Advice that loses what pages hold, or what a child would have of them.
const DISCARDS: [u32; 6] =
    [MADV_FREE, MADV_DONTNEED, MADV_DONTNEED_LOCKED, MADV_REMOVE, MADV_DONTFORK, MADV_WIPEONFORK];

/// mseal(2).
pub fn mseal(thread: &Arc<Thread>, addr: Va, len: u64, flags: u64) -> Result<usize> {
    if flags != 0 || !addr.is_page_aligned() {
        return Err(Errno::EINVAL);
    }
    let end = addr.checked_add(len).and_then(Va::page_ceil).ok_or(Errno::EINVAL)?;
    if end > addr {
        thread.mm().seal(addr, len)?;
    }
    Ok(0)
}

/// MADV_REMOVE: a hole in the file of a shared mapping that may be written.
fn remove(thread: &Arc<Thread>, addr: Va, length: u64) -> Result {
    let mm = thread.mm();
    let (parts, covered) = mm.parts(addr, length)?;
    for part in parts {
        if part.flags.contains(VmaFlags::LOCKED) || part.backing.is_none() {
            return Err(Errno::EINVAL);
        }
        if !part.is_shared() || !part.max_prot.contains(Prot::WRITE) {
            return Err(Errno::EACCES);
        }
        let backing = part.backing.as_ref().ok_or(Errno::EINVAL)?;
        let (offset, length) = (backing.first_page << PAGE_SHIFT, part.end - part.start);
        match file_of(backing) {
            Some(file) => {
                let mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
                file.ops.allocate(&file, mode, offset, length)?;
            }
            // Shared memory without a name, or of System V.
            None => backing.mapping.clone().punch_hole(offset, length)?,
        }
    }
    if covered { Ok(()) } else { Err(Errno::ENOMEM) }
}

/// What mincore(2) reports of at a time: 4,096 pages.
const MINCORE_BYTES: u64 = 16 << 20;

/// mincore(2).
pub async fn mincore(thread: &Arc<Thread>, addr: Va, length: u64, vec: Va) -> Result<usize> {
    let mm = thread.mm();
    let (start, end) = user_range(addr, length)?;
    if !mm.covers(start, end - start) {
        return Err(Errno::ENOMEM);
    }
    let (mut at, mut out) = (start, vec);
    let mut breath = Breath::new();
    while at < end && !thread.is_dying() {
        let take = (end - at).min(MINCORE_BYTES);
        let resident = mm.resident(at, take)?;
        mm.write_bytes(out, &resident)?;
        at = at + take;
        out = Va(out.0.wrapping_add(resident.len() as u64));
        breath.take().await;
    }
    Ok(0)
}

/// msync(2). Shared file pages are the host's page cache already; MS_SYNC has the host write them.
pub async fn msync(thread: &Arc<Thread>, addr: Va, length: u64, flags: u32) -> Result<usize> {
    let both = MS_ASYNC | MS_SYNC;
    if flags & !(both | MS_INVALIDATE) != 0 || flags & both == both {
        return Err(Errno::EINVAL);
    }
    let mm = thread.mm();
    let (mut at, end) = user_range(addr, length)?;
    let covered = mm.covers(addr, length);
    if flags & MS_INVALIDATE != 0 {
        let (parts, _) = mm.parts(addr, length)?;
        if parts.iter().any(|part| part.flags.contains(VmaFlags::LOCKED)) {
            return Err(Errno::EBUSY);
        }
    }
    let mut breath = Breath::new();
    let mut last = None;
    // One by one, for the disk may take long, and ranges may come and go meanwhile.
    while flags & MS_SYNC != 0
        && at < end
        && let Some(part) = mm.range_after(at).filter(|part| part.start < end)
    {
        at = part.end;
        let file = part.backing.as_ref().filter(|_| part.is_shared()).and_then(file_of);
        if let Some(file) = file
            && !last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &file))
        {
            finished(thread, file.ops.sync(&file, true)?).await?;
            last = Some(file);
        }
        breath.take().await;
    }
    if covered { Ok(0) } else { Err(Errno::ENOMEM) }
}

/// mlock(2).
pub fn mlock(thread: &Arc<Thread>, addr: Va, length: u64) -> Result<usize> {
    mlock2(thread, addr, length, 0)
}

/// mlock2(2). Nothing is ever swapped out while the container runs, so locking is only faulting in.
pub fn mlock2(thread: &Arc<Thread>, addr: Va, length: u64, flags: u32) -> Result<usize> {
    if flags & !1 != 0 {
        return Err(Errno::EINVAL);
    }
    let start = addr.page_floor();
    let length = length.checked_add(addr.page_offset()).ok_or(Errno::EINVAL)?;
    let mm = thread.mm();
    let locked = |part: &Vma| part.flags.contains(VmaFlags::LOCKED);
    let again: u64 = mm.parts(start, length)?.0.iter().filter(|p| locked(p)).map(Vma::len).sum();
    let length_in_pages =
        length.checked_add(PAGE_SIZE - 1).ok_or(Errno::EINVAL)? & !(PAGE_SIZE - 1);
    check_locked(thread, Some(length_in_pages.saturating_sub(again)), Errno::ENOMEM)?;
    mm.update_flags(start, length, VmaFlags::LOCKED, VmaFlags::empty())?;
    if flags & 1 == 0 {
        let (parts, _) = mm.parts(start, length)?;
        for part in parts.iter().filter(|p| !p.prot.is_empty()) {
            mm.populate(
                part.start,
                part.len(),
                part.prot.contains(Prot::WRITE) && !part.is_shared(),
            )?;
        }
    }
    Ok(0)
}

/// munlock(2).
pub fn munlock(thread: &Arc<Thread>, addr: Va, length: u64) -> Result<usize> {
    let start = addr.page_floor();
    let length = length.checked_add(addr.page_offset()).ok_or(Errno::EINVAL)?;
    thread.mm().update_flags(start, length, VmaFlags::empty(), VmaFlags::LOCKED).map(|()| 0)
}

/// mlockall(2).
pub fn mlockall(thread: &Arc<Thread>, flags: u32) -> Result<usize> {
    if flags == 0 || flags & !7 != 0 || flags == 4 {
        return Err(Errno::EINVAL);
    }
    check_locked(thread, None, Errno::ENOMEM)?;
    if flags & 1 != 0 {
        let mm = thread.mm();
        for range in mm.ranges().iter().filter(|r| !r.prot.is_empty()) {
            let _ = mm.populate(range.start, range.len(), false);
        }
    }
    Ok(0)
}

/// munlockall(2).
pub fn munlockall(thread: &Arc<Thread>) -> Result<usize> {
    let mm = thread.mm();
    for range in mm.ranges() {
        mm.update_flags(range.start, range.len(), VmaFlags::empty(), VmaFlags::LOCKED)?;
    }
    Ok(0)
}
