//! Page faults: what a touched page gets.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use linux_raw_sys::general::{SIGBUS, SIGKILL, SIGSEGV, UFFD_FEATURE_SIGBUS};
use qlib::pagetable::{Pte, PteFlags};
use qlib::{Gpa, PAGE_SIZE, Va};

use super::frames::{self, counted_frame};
use super::layout::STACK_GAP_BYTES;
use super::mapped::MappedPage;
use super::mmu::is_mapped;
use super::space::Inner;
use super::swap::{self, Usage};
use super::userfault::Registration;
use super::vma::{Prot, Vma, VmaFlags};
use super::{Access, AddressSpace, reclaim};
use crate::arch;
use crate::arch::heap;
use crate::arch::upcalls::UPCALLS;
use crate::errno::Errno;

/// si_code of SIGSEGV: nothing is mapped there.
const SEGV_MAPERR: i32 = 1;
/// si_code of SIGSEGV: the protection forbids it.
const SEGV_ACCERR: i32 = 2;
/// si_code of SIGBUS: nothing lies behind the mapping.
const BUS_ADRERR: i32 = 2;
/// Frames that a first touch reserves (64 KiB); they are committed one by one as they are touched.
const RESERVE_PAGES: u64 = 16;
/// Pages around a touched one of shared memory that are mapped too if they are there: as on Linux
/// (fault_around_bytes, 64 KiB).
const AROUND_PAGES: usize = 16;
/// The most that a touch in an ascending row reserves (2 MiB).
const MAX_RUN_PAGES: u64 = 512;

/// A fault that the program gets as a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Signal number.
    pub signo: u32,
    /// si_code.
    pub si_code: i32,
}

impl Failure {
    const UNMAPPED: Failure = Failure { signo: SIGSEGV, si_code: SEGV_MAPERR };
    const FORBIDDEN: Failure = Failure { signo: SIGSEGV, si_code: SEGV_ACCERR };
    /// The mapped object has no such page.
    pub const NOTHING_BEHIND: Failure = Failure { signo: SIGBUS, si_code: BUS_ADRERR };
    /// Not for the program: guest memory is used up.
    pub const NO_MEMORY: Failure = Failure { signo: SIGKILL, si_code: 0 };
    /// Nor this: it is to wait until another thread has seen to the page
    /// ([`AddressSpace::awaits`]).
    pub const AWAITED: Failure = Failure { signo: 0, si_code: 0 };
    /// Nor this: it is to have a huge page ([`AddressSpace::take_huge`]), and come again.
    pub const HUGE: Failure = Failure { signo: 0, si_code: 1 };
}

static FAULTS: AtomicU64 = AtomicU64::new(0);
/// The same of accesses by the kernel, since somebody asked.
static COPIED: AtomicU64 = AtomicU64::new(0);

/// Page faults of user threads so far.
pub fn count() -> u64 {
    FAULTS.load(Relaxed)
}

/// What a fault took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// No disk (a minor fault of getrusage(2)). What a file's window reads the host knows.
    FromMemory,
    /// A page came back from the store (a major one).
    FromStore,
}

/// How many times the kernel's own accesses found no page since the last call of this.
pub fn take_copied() -> u64 {
    COPIED.swap(0, Relaxed)
}

/// Serves a page fault of a user thread, whose limits let the stack grow so far: afterwards the
/// page is there, and the platform has an operation to show it (and its neighbours). Where it
/// `takes_huge`, [`Failure::HUGE`] says that it may have a huge page first.
pub fn handle(
    mm: &AddressSpace,
    growth: Growth,
    (va, access): (Va, Access),
    takes_huge: bool,
) -> Result<Served, Failure> {
    FAULTS.fetch_add(1, Relaxed);
    // Nobody else is in the kernel meanwhile.
    let before = swap::swap_ins();
    let mut inner = mm.lock();
    inner.takes_huge = takes_huge;
    let resolved = inner.resolve(va, access, growth);
    inner.takes_huge = false;
    resolved?;
    inner.show(va);
    Ok(if swap::swap_ins() == before { Served::FromMemory } else { Served::FromStore })
}

impl AddressSpace {
    /// The guest physical address of a user byte, with its page faulted in for `access`. For the
    /// kernel's own accesses. The stack grows by them as by those of the thread that the kernel
    /// works for.
    pub(super) fn translate(&self, va: Va, access: Access) -> Result<Gpa, Errno> {
        self.translate_with(va, access, Spare::Some)
    }

    /// As [`AddressSpace::translate`], where no frame is to be had from what `spare` says.
    /// ERESTARTNOMEM when there is none.
    pub(super) fn translate_with(
        &self,
        va: Va,
        access: Access,
        spare: Spare,
    ) -> Result<Gpa, Errno> {
        let mut inner = self.lock();
        let pte = inner.table().get(va);
        if allows(pte, access) {
            if Usage::of(pte).is_unseen() {
                inner.emptied.forget(u64::from(Usage::of(pte).is_emptied()));
                inner.table().update(va, |pte| Usage::of(pte).seen().put(pte));
            }
            return Ok(pte.gpa() + va.page_offset());
        }
        if access == Access::Read
            && let Some(offset) = vdso_offset(va, 1)
        {
            return Ok(arch::boot().vdso_copy + offset);
        }
        COPIED.fetch_add(1, Relaxed);
        inner.kernel_access = true;
        let growth = Growth::of_current();
        let mut pte = inner.resolve(va, access, growth);
        if pte == Err(Failure::NO_MEMORY) {
            reclaim::note_short();
            if spare == Spare::Some && frames::may_copy_to_kept() {
                pte = heap::on_reserve(|| inner.resolve(va, access, growth));
            }
        }
        inner.kernel_access = false;
        drop(inner);
        let pte = pte.map_err(|failure| match failure {
            Failure::NO_MEMORY => Errno::ERESTARTNOMEM,
            Failure::AWAITED => self.missed(va, access),
            _ => Errno::EFAULT,
        })?;
        Ok(pte.gpa() + va.page_offset())
    }

    /// The kernel needs a page that is a program's to see to: what becomes of the call.
    /// ERESTARTNOMEM if its thread waits for that as it would for memory.
    #[cold]
    fn missed(&self, va: Va, access: Access) -> Errno {
        let served = self.lock().served_by(va).filter(|served| served.context.serves_kernel());
        let space = core::ptr::from_ref(self).addr();
        if served.is_some() && (UPCALLS.page_missed)(space, va, access == Access::Write) {
            return Errno::ERESTARTNOMEM;
        }
        Errno::EFAULT
    }

    /// Who sees to the page at `va` for an access that waits for that now, and whether that is
    /// because it is written to, not because it is missing; `None` if it need not wait.
    pub fn awaits(&self, va: Va, access: Access) -> Option<(Registration, bool)> {
        let mut inner = self.lock();
        let vma = inner.vmas.find(va).cloned()?;
        let pte = inner.table().get(va);
        let failure = vma.prot.allows(access).then(|| vma.is_awaited(pte, access)).flatten();
        let is_write = pte.is_present();
        vma.served_by.filter(|_| failure == Some(Failure::AWAITED)).map(|by| (by, is_write))
    }

    /// The guest physical address of a byte that is about to be written to, whatever the program
    /// itself may do there. EFAULT where it is others' memory, too.
    pub(super) fn translate_forced(&self, va: Va) -> Result<Gpa, Errno> {
        let page = va.page_floor();
        let may_write = {
            let mut inner = self.lock();
            let vma = inner.vmas.find(va).ok_or(Errno::EFAULT)?;
            let (may_write, is_shared) = (vma.prot.contains(Prot::WRITE), vma.is_shared());
            if !may_write && is_shared {
                return Err(Errno::EFAULT);
            }
            inner.unpatch(page..page + PAGE_SIZE);
            may_write
        };
        if may_write {
            return self.translate(va, Access::Write);
        }
        let mut inner = self.lock();
        let mut vma = inner.vmas.find(va).cloned().ok_or(Errno::EFAULT)?;
        let readable = vma.prot;
        vma.prot |= Prot::WRITE;
        inner.kernel_access = true;
        let resolved = inner.resolve_in(&vma, va, Access::Write);
        inner.kernel_access = false;
        let pte = resolved.map_err(|failure| match failure {
            Failure::NO_MEMORY => Errno::ENOMEM,
            _ => Errno::EFAULT,
        })?;
        // Its own from now on, and as little to be written to as before.
        vma.prot = readable;
        let flags = entry_flags(&vma, false) | pte.flags() & PteFlags::ACCESSED;
        inner.replace(page, pte, Pte::new(pte.gpa(), flags)).map_err(|_| Errno::ENOMEM)?;
        Ok(pte.gpa() + va.page_offset())
    }

    /// True if the platform may show the page at `va`.
    pub fn shows(&self, va: Va) -> bool {
        is_mapped(self.lock().table().get(va))
    }
}

/// Whether a copy may have some of the frames that are kept: what a call has begun, as having taken
/// a message, is not undone for want of a page. Who makes the next call sees to it that there is
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spare {
    /// It may, as long as half of them are left.
    Some,
    /// It is a long one, and goes on when there is memory.
    None,
}

/// How far a fault may extend the stack.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// RLIMIT_STACK: its length.
    pub stack_bytes: u64,
    /// RLIMIT_AS: all that is mapped.
    pub total_bytes: u64,
}

impl Growth {
    /// Not at all.
    pub(super) const NONE: Growth = Growth { stack_bytes: 0, total_bytes: 0 };

    /// As far as for the thread that the kernel works for.
    fn of_current() -> Self {
        let (stack_bytes, total_bytes) = (UPCALLS.memory_limits)();
        Growth { stack_bytes, total_bytes }
    }
}

/// Where `len` bytes from `va` on lie in the vDSO that the platform has in each address space,
/// above all that programs may map: it is no range of theirs, and the kernel reads its own copy.
/// `None` if they do not.
pub(super) fn vdso_offset(va: Va, len: u64) -> Option<u64> {
    let boot = arch::boot();
    let offset = va.0.checked_sub(boot.vdso.0)?;
    offset.checked_add(len).filter(|end| *end <= boot.vdso_bytes).map(|_| offset)
}

/// True if an entry lets user mode do this.
pub(super) fn allows(pte: Pte, access: Access) -> bool {
    pte.has(PteFlags::PRESENT | PteFlags::USER)
        && match access {
            Access::Read => true,
            Access::Write => pte.has(PteFlags::WRITE),
            Access::Execute => !pte.has(PteFlags::NX),
        }
}

/// The flags of an entry of a range: accessible as its protection says; `writable` if a write needs
/// no fault.
pub(super) fn entry_flags(vma: &Vma, writable: bool) -> PteFlags {
    let mut flags = PteFlags::PRESENT;
    flags.set(PteFlags::USER, !vma.prot.is_empty());
    flags.set(PteFlags::WRITE, writable && vma.prot.contains(Prot::WRITE));
    flags.set(PteFlags::NX, !vma.prot.contains(Prot::EXEC));
    flags
}

impl Vma {
    /// Why an access is not the kernel's to see to, if the page has this entry, which does not
    /// allow it.
    fn is_awaited(&self, pte: Pte, access: Access) -> Option<Failure> {
        let served = self.served()?;
        let is_awaited = match pte {
            Pte::EMPTY => served.missing,
            _ => served.writes && access == Access::Write && pte.has(PteFlags::WATCHED),
        };
        is_awaited.then(|| match served.context.has(UFFD_FEATURE_SIGBUS) {
            true => Failure::NOTHING_BEHIND,
            false => Failure::AWAITED,
        })
    }
}

impl Inner {
    /// What the range at `va` has to do with a userfaultfd.
    fn served_by(&self, va: Va) -> Option<Registration> {
        self.vmas.find(va)?.served().cloned()
    }

    /// Makes the page at `va` fit for `access`: its entry.
    pub(super) fn resolve(
        &mut self,
        va: Va,
        access: Access,
        growth: Growth,
    ) -> Result<Pte, Failure> {
        let page = va.page_floor();
        let vma = match self.vmas.find(va) {
            Some(vma) => vma.clone(),
            None => self.grow_stack(page, growth)?,
        };
        self.resolve_in(&vma, va, access)
    }

    /// The same in its range.
    pub(super) fn resolve_in(&mut self, vma: &Vma, va: Va, access: Access) -> Result<Pte, Failure> {
        let page = va.page_floor();
        if !vma.prot.allows(access) {
            return Err(Failure::FORBIDDEN);
        }
        let pte = self.table().get(page);
        if let Some(slot) = pte.slot() {
            self.bring_back(vma, page, slot)?;
            return self.resolve_in(vma, va, access);
        }
        if allows(pte, access) {
            return match Usage::of(pte).is_unseen() {
                true => self.set(page, Usage::of(pte).seen().put(pte)),
                false => Ok(pte),
            };
        }
        if let Some(failure) = vma.is_awaited(pte, access) {
            return Err(failure);
        }
        if pte.is_present() {
            return self.upgrade(vma, page, pte, access);
        }
        if self.takes_huge && self.wants_huge(vma, page, access) {
            return Err(Failure::HUGE);
        }
        match (&vma.backing, vma.is_shared()) {
            (None, _) => self.first_touch(vma, page),
            (Some(_), true) => self.map_shared(vma, page, access == Access::Write),
            (Some(_), false) => self.map_private(vma, page, access == Access::Write),
        }
    }

    fn set(&mut self, va: Va, pte: Pte) -> Result<Pte, Failure> {
        self.table().set(va, pte).map_err(|_| Failure::NO_MEMORY)?;
        Ok(pte)
    }

    /// Replaces a present entry. What the platform may show of the old one is replaced too, and
    /// only then freed.
    pub(super) fn replace(&mut self, va: Va, old: Pte, new: Pte) -> Result<Pte, Failure> {
        let cached = self.mmu.may_be_cached(old);
        self.set(va, new)?;
        let frame = counted_frame(old).filter(|frame| *frame != new.gpa());
        if cached {
            let for_kernel = self.kernel_access;
            let (table, mmu) = self.parts();
            mmu.replace(table, va, frame, for_kernel);
            if for_kernel {
                // Other threads shall see what the kernel is about to write.
                self.flush();
            }
        } else if let Some(frame) = frame {
            frames::user().ref_dec(frame);
        }
        Ok(new)
    }

    /// The page is there but its entry does not allow the access that the range allows.
    fn upgrade(&mut self, vma: &Vma, page: Va, pte: Pte, access: Access) -> Result<Pte, Failure> {
        if access != Access::Write || pte.has(PteFlags::WRITE) {
            let mut flags = entry_flags(vma, pte.has(PteFlags::WRITE));
            flags |= pte.flags()
                & (PteFlags::COW
                    | PteFlags::WINDOW
                    | PteFlags::WRITE
                    | PteFlags::ACCESSED
                    | PteFlags::WATCHED);
            return self.set(page, Pte::new(pte.gpa(), flags));
        }
        if vma.is_shared() {
            return self.map_shared(vma, page, true);
        }
        let flags = entry_flags(vma, true);
        let owned = !pte.has(PteFlags::WINDOW) && frames::user().ref_count(pte.gpa()) == 1;
        if owned {
            return self.set(page, Pte::new(pte.gpa(), flags | (pte.flags() & PteFlags::ACCESSED)));
        }
        let frame = frames::alloc().map_err(|_| Failure::NO_MEMORY)?;
        if arch::copy_page(frame, pte.gpa()).is_err() {
            frames::user().ref_dec(frame);
            return Err(Failure::NOTHING_BEHIND);
        }
        if !pte.has(PteFlags::WINDOW) {
            self.rewritten.note(page);
        }
        self.replace(page, pte, Pte::new(frame, flags))
    }

    /// First touch of anonymous memory: reserves a run of frames that read as zeros.
    fn first_touch(&mut self, vma: &Vma, page: Va) -> Result<Pte, Failure> {
        let flags = entry_flags(vma, true);
        let mut pages = if self.follows_a_row(vma, page) { MAX_RUN_PAGES } else { RESERVE_PAGES };
        while pages > 1 {
            if let Some((start, count)) = self.empty_run(vma, page, pages)
                && frames::may_take(count)
                && let Some(first) = frames::alloc_run_zeroed(count)
            {
                if self.table().map_run(start, Pte::new(first, flags), count).is_ok() {
                    return Ok(self.table().get(page));
                }
                for index in 0..count {
                    frames::user().ref_dec(first + index * PAGE_SIZE);
                }
            }
            pages /= 2;
        }
        let frame = frames::alloc_zeroed().map_err(|_| Failure::NO_MEMORY)?;
        self.set(page, Pte::new(frame, flags)).inspect_err(|_| {
            frames::user().ref_dec(frame);
        })
    }

    /// True if the touch goes on where an ascending or descending row of touches stopped.
    fn follows_a_row(&mut self, vma: &Vma, page: Va) -> bool {
        let chunk = page.align_down(RESERVE_PAGES * PAGE_SIZE);
        let below = chunk > vma.start && self.table().get(chunk - PAGE_SIZE).is_present();
        let chunk_end = chunk + RESERVE_PAGES * PAGE_SIZE;
        let above = vma.flags.contains(VmaFlags::GROWS_DOWN)
            && chunk_end < vma.end
            && self.table().get(chunk_end).is_present();
        below || above
    }

    /// The part of a range around `page`, which is empty, whose entries are all empty.
    pub(super) fn empty_around(&mut self, page: Va, range: Range<Va>) -> Range<Va> {
        let Range { start: mut low, end: mut high } = range;
        self.table().visit(range, &mut |va, _| {
            if va < page {
                low = va + PAGE_SIZE;
                true
            } else {
                high = va;
                false
            }
        });
        low..high
    }

    /// A run of empty entries around `page`, inside the range and the aligned chunk of `pages`
    /// pages: start and count. Where nothing is empty below, it is `pages` pages from there, for
    /// touches mostly ascend.
    fn empty_run(&mut self, vma: &Vma, page: Va, pages: u64) -> Option<(Va, u64)> {
        let bytes = pages * PAGE_SIZE;
        let is_large = pages > RESERVE_PAGES;
        let chunk = page.align_down(bytes);
        let end = if is_large { chunk } else { page } + bytes;
        let Range { start: low, end: mut high } =
            self.empty_around(page, chunk.max(vma.start)..end.min(vma.end));
        if low < page {
            high = high.min(chunk + bytes);
        }
        let count = (high - low) / PAGE_SIZE;
        if !is_large {
            return (count >= 2).then_some((low, count));
        }
        // A large run must be whole, or a few stray pages would reserve as much as a row.
        if count < pages / 2 {
            return None;
        }
        let count = 1 << count.ilog2();
        let start = if page < low + count * PAGE_SIZE { low } else { high - count * PAGE_SIZE };
        Some((start, count))
    }

    /// A page of a shared object.
    fn map_shared(&mut self, vma: &Vma, page: Va, write: bool) -> Result<Pte, Failure> {
        let Some(backing) = vma.backing.clone() else { return Err(Failure::NO_MEMORY) };
        let old = self.table().get(page);
        let mapped = backing.mapping.page(vma.object_page(page), write).map_err(|e| match e {
            Errno::ENOMEM => Failure::NO_MEMORY,
            _ => Failure::NOTHING_BEHIND,
        })?;
        let pte = match mapped {
            MappedPage::Window(gpa) => Pte::new(gpa, entry_flags(vma, write) | PteFlags::WINDOW),
            // Nobody keeps books of who writes to it: a read need not be followed by another fault.
            MappedPage::Frame(gpa) => Pte::new(gpa, entry_flags(vma, true)),
        };
        if old.is_present() {
            // The same frame comes with a reference of its own; the old entry's is dropped.
            if counted_frame(old) == Some(pte.gpa()) {
                frames::user().ref_dec(pte.gpa());
                return self.set(page, pte.with(old.flags() & PteFlags::ACCESSED));
            }
            return self.replace(page, old, pte);
        }
        self.set(page, pte)?;
        if pte.has(PteFlags::WINDOW) {
            self.map_around(vma, page, pte);
        } else {
            self.map_frames_around(vma, page);
        }
        Ok(pte)
    }

    /// Maps pages of a shared object around `page` that are in frames already, where nothing is
    /// mapped: whoever touches one of another process's pages touches its neighbours too.
    fn map_frames_around(&mut self, vma: &Vma, page: Va) {
        let Some(backing) = vma.backing.as_ref() else { return };
        let bytes = AROUND_PAGES as u64 * PAGE_SIZE;
        let chunk = page.align_down(bytes);
        let (low, high) = (chunk.max(vma.start), (chunk + bytes).min(vma.end));
        let mut frames = [None; AROUND_PAGES];
        let count = ((high - low) / PAGE_SIZE) as usize;
        let Some(frames) = frames.get_mut(..count) else { return };
        backing.mapping.frames_in_use(vma.object_page(low), frames);
        let mut va = low;
        for frame in frames {
            let at = va;
            va = va + PAGE_SIZE;
            // Present, or in the swap file, or another page by now.
            let Some(frame) = frame.filter(|_| self.table().get(at) == Pte::EMPTY) else {
                continue;
            };
            if frames::user().ref_inc(frame).is_ok()
                && self.table().set(at, Pte::new(frame, entry_flags(vma, true))).is_err()
            {
                frames::user().ref_dec(frame);
            }
        }
    }

    /// A page of a private mapping of a file: the file's own page until it is written.
    fn map_private(&mut self, vma: &Vma, page: Va, write: bool) -> Result<Pte, Failure> {
        if write && let Some(pte) = self.copy_run(vma, page) {
            return Ok(pte);
        }
        let Some(backing) = vma.backing.clone() else { return Err(Failure::NO_MEMORY) };
        let mapped = backing.mapping.page(vma.object_page(page), false).map_err(|e| match e {
            Errno::ENOMEM => Failure::NO_MEMORY,
            _ => Failure::NOTHING_BEHIND,
        })?;
        if write {
            let (MappedPage::Window(source) | MappedPage::Frame(source)) = mapped;
            let frame = frames::alloc().map_err(|_| Failure::NO_MEMORY)?;
            let copied = arch::copy_page(frame, source);
            if matches!(mapped, MappedPage::Frame(_)) {
                frames::user().ref_dec(source);
            }
            if copied.is_err() {
                frames::user().ref_dec(frame);
                return Err(Failure::NOTHING_BEHIND);
            }
            return self.set(page, Pte::new(frame, entry_flags(vma, true)));
        }
        let flags = entry_flags(vma, false) | PteFlags::COW;
        match mapped {
            MappedPage::Frame(gpa) => self.set(page, Pte::new(gpa, flags)),
            MappedPage::Window(gpa) => {
                let pte = self.set(page, Pte::new(gpa, flags | PteFlags::WINDOW))?;
                self.map_around(vma, page, pte);
                Ok(pte)
            }
        }
    }

    /// Maps the neighbours of a file page too, for they cost nothing: up to a 2 MiB chunk, as far
    /// as the window reaches and entries are empty.
    fn map_around(&mut self, vma: &Vma, page: Va, pte: Pte) {
        let Some(backing) = &vma.backing else { return };
        let chunk = page.align_down(MAX_RUN_PAGES * PAGE_SIZE);
        let (mut low, mut high) =
            (chunk.max(vma.start), (chunk + MAX_RUN_PAGES * PAGE_SIZE).min(vma.end));
        self.table().visit(low..high, &mut |va, _| {
            if va < page {
                low = va + PAGE_SIZE;
            } else if va > page {
                high = va;
            }
            va <= page
        });
        let forward = backing.mapping.run_pages(vma.object_page(page)).max(1);
        high = high.min(page + forward * PAGE_SIZE);
        // Backwards only as far as the window is the same one: its first page must reach this page.
        let back = (page - low) / PAGE_SIZE;
        if back > 0 && backing.mapping.run_pages(vma.object_page(low)) <= back {
            low = page;
        }
        let (before, after) = ((page - low) / PAGE_SIZE, (high - page) / PAGE_SIZE - 1);
        // What cannot be mapped for want of page tables faults later.
        if before > 0 {
            let _ = self.table().map_run(low, pte.with_gpa(pte.gpa() - before * PAGE_SIZE), before);
        }
        if after > 0 {
            let _ =
                self.table().map_run(page + PAGE_SIZE, pte.with_gpa(pte.gpa() + PAGE_SIZE), after);
        }
    }

    /// Extends a growing range down to `page`: the range.
    fn grow_stack(&mut self, page: Va, growth: Growth) -> Result<Vma, Failure> {
        let Some(above) = self.vmas.next_after(page).cloned() else {
            return Err(Failure::UNMAPPED);
        };
        if !above.flags.contains(VmaFlags::GROWS_DOWN) || above.end - page > growth.stack_bytes {
            return Err(Failure::UNMAPPED);
        }
        if growth.total_bytes != u64::MAX
            && self.vmas.total_bytes() + (above.start - page) > growth.total_bytes
        {
            return Err(Failure::UNMAPPED);
        }
        let floor = self.vmas.previous(page).map_or(Va(0), |below| below.end);
        if page < arch::boot().user_min || (page.0 < floor.0 + STACK_GAP_BYTES && floor.0 != 0) {
            return Err(Failure::UNMAPPED);
        }
        let mut extension = above.clone();
        extension.start = page;
        extension.end = above.start;
        self.vmas.insert(extension);
        self.vmas.find(page).cloned().ok_or(Failure::UNMAPPED)
    }
}
