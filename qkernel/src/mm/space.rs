//! An address space: its ranges, its page table, and the platform's copy of it.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use qlib::pagetable::{Action, Pte};
use qlib::platform::DeferredOp;
use qlib::{Gpa, PAGE_SIZE, Va};

use super::deferred_free::DeferredFree;
use super::emptied::Emptied;
use super::frames::{self, counted_frame};
use super::freeze::Freezer;
use super::given::{Given, Share, Wanted};
use super::mmu::{self, Mmu, is_mapped};
use super::patch::Patches;
use super::ranges::Ranges;
use super::reclaim;
use super::rewritten::Rewritten;
use super::swap::Usage;
use super::tables::{self, Table};
use super::thread::UserThread;
use super::userfault::{Context, Event};
use super::vma::VmaSet;
use crate::account;
use crate::arch::{self, user::SpaceHandle};
use crate::errno::{Errno, Result};
use crate::sync::{Mutex, MutexGuard, mutex};
use crate::time::breath::Breath;
use crate::wait::{self, PollMask, WaitQueue};
use crate::{executor, host};

/// A user address space. Shared by threads, and by processes made with CLONE_VM.
pub struct AddressSpace {
    inner: Mutex<Inner>,
    /// The platform's side; `None` while it is detached, or [taken down](super::thread::shed).
    handle: Mutex<Option<SpaceHandle>>,
    /// CPU time that the host gave to platform sides that it has had before, in ns.
    earlier_ns: AtomicU64,
    /// What that comes to for its threads.
    given: Mutex<Given>,
    /// It has a platform side, or will have one again, and is charged for that to its end.
    is_charged: bool,
    /// See [`super::freeze`].
    pub(super) freezer: Mutex<Freezer>,
    pub(super) thaw: WaitQueue,
    /// The threads that live in it.
    threads: Mutex<Vec<Arc<UserThread>>>,
    /// It was made on the platform anew in the last life: the next one will want it too.
    pub(super) is_wanted: AtomicBool,
    /// Programs that it has held: counts the calls of [`AddressSpace::replace_content`].
    programs: AtomicU64,
    /// See [`super::deny`].
    pub(super) denied: AtomicU32,
}

/// The memory of one program: it does not follow the address space to the next one (/proc/PID/mem).
/// It keeps no memory alive.
#[derive(Clone)]
pub struct ProgramMemory {
    mm: Weak<AddressSpace>,
    program: u64,
}

impl ProgramMemory {
    /// The address space, if it still holds this program.
    pub fn get(&self) -> Option<Arc<AddressSpace>> {
        self.mm.upgrade().filter(|mm| mm.programs.load(Ordering::Relaxed) == self.program)
    }

    /// True if `mm` holds this program.
    pub fn is_in(&self, mm: &Arc<AddressSpace>) -> bool {
        self.get().is_some_and(|own| Arc::ptr_eq(&own, mm))
    }
}

/// What the lock of an address space guards.
pub(super) struct Inner {
    pub vmas: VmaSet,
    pub table: Option<Table>,
    /// What makes CPUs follow it.
    pub mmu: Box<dyn Mmu>,
    /// The kernel resolves an address for itself.
    pub kernel_access: bool,
    /// Whoever resolves one can wait for a [huge page](super::huge).
    pub takes_huge: bool,
    /// brk(2): start and current end of the heap.
    pub brk: (Va, Va),
    /// Where the search for a gap for mmap(2) begins.
    pub mmap_top: Va,
    /// Patched call sites.
    pub patches: Patches,
    /// What was written to after the last forks.
    pub rewritten: Rewritten,
    /// What was emptied and not used again.
    pub emptied: Emptied,
    /// What programs are yet to be told of this memory ([`crate::mm::userfault`]), by the call that
    /// did it.
    pub untold: Vec<(Arc<Context>, Event)>,
}

/// Frames of address spaces that the platform still has mapped, by space handle, and the page table
/// where the space itself has ended.
static DYING: Mutex<BTreeMap<u64, (Option<Table>, DeferredFree)>> = mutex(BTreeMap::new());

/// Notified when the platform has nothing left of one.
static GONE: WaitQueue = WaitQueue::new();

/// True if the frames of some ended address space are on their way to be free.
pub fn some_are_dying() -> bool {
    !DYING.lock().is_empty() || LEAVING.load(Ordering::Relaxed) > 0
}

/// Spaces whose frames are being freed by a task, piece by piece.
static LEAVING: AtomicU32 = AtomicU32::new(0);

/// Pages that are freed at a stretch, a few ms of work: others wait for the kernel meanwhile.
const PIECE_PAGES: usize = 2048;

/// A platform side.
fn new_handle(urgent: bool) -> Result<SpaceHandle> {
    let mut handle = SpaceHandle::new(urgent);
    // It takes descriptors: those that are only kept are in the way.
    if handle == Err(Errno::EAGAIN) && host::give_up_handles() {
        handle = SpaceHandle::new(urgent);
    }
    handle
}

/// Those that threads live in.
static LIVED_IN: Mutex<Vec<Weak<AddressSpace>>> = mutex(Vec::new());

/// See [`AddressSpace::placeholder`].
static PLACEHOLDER: Mutex<Option<Arc<AddressSpace>>> = mutex(None);

/// The platform says that nothing of this space is mapped any more.
pub fn on_gone(handle: u64) {
    let Some((table, deferred)) = DYING.lock().remove(&handle) else { return };
    frames::free_frames(deferred);
    GONE.wake(PollMask::IN);
    // Else it is to be made anew.
    if let Some(table) = table {
        account::space_gone();
        free_table(table);
    }
}

/// Frees what the page table of a space holds that is gone.
fn free_table(mut table: Table) {
    let next = frames::free_some(&mut table, Va(0), PIECE_PAGES);
    reclaim::note_freed();
    if let Some(next) = next {
        LEAVING.fetch_add(1, Ordering::Relaxed);
        executor::spawn(leave(table, next));
    }
}

/// Waits until the platform has nothing left of any space that has ended.
pub async fn until_gone() {
    while !DYING.lock().is_empty() {
        wait::notified(&GONE, PollMask::IN, None).await;
    }
}

/// Frees the rest of a large space that is gone.
async fn leave(mut table: Table, mut next: Va) {
    let mut breath = Breath::new();
    loop {
        breath.take().await;
        match frames::free_some(&mut table, next, PIECE_PAGES) {
            Some(at) => next = at,
            None => break,
        }
        reclaim::note_freed();
    }
    LEAVING.fetch_sub(1, Ordering::Relaxed);
    reclaim::note_freed();
}

impl AddressSpace {
    fn make(handle: impl FnOnce() -> Result<Option<SpaceHandle>>) -> Result<Self> {
        // First what fails without a trace.
        let inner = Inner::new()?;
        let handle = handle()?;
        let is_charged = handle.is_some();
        if is_charged {
            account::space_made();
        }
        Ok(AddressSpace {
            inner: Mutex::new(inner),
            handle: Mutex::new(handle),
            earlier_ns: AtomicU64::new(0),
            given: Mutex::default(),
            is_charged,
            freezer: Mutex::default(),
            thaw: WaitQueue::new(),
            threads: Mutex::default(),
            is_wanted: AtomicBool::new(false),
            programs: AtomicU64::new(0),
            denied: AtomicU32::new(0),
        })
    }

    /// An empty one; `urgent`: the platform makes it before others that are on their way.
    pub fn new(urgent: bool) -> Result<Arc<Self>> {
        Self::make(|| new_handle(urgent).map(Some)).map(Arc::new)
    }

    /// Every one that some thread lives in.
    pub fn all() -> Vec<Arc<Self>> {
        let known: Vec<Arc<Self>> = LIVED_IN.lock().iter().filter_map(Weak::upgrade).collect();
        known
            .into_iter()
            .filter(|mm| mm.threads.lock().iter().any(|thread| !thread.is_dead()))
            .collect()
    }

    /// A thread lives in it from now on.
    pub fn join(self: &Arc<Self>, thread: &Arc<UserThread>) {
        let mut threads = self.threads.lock();
        threads.push(thread.clone());
        if threads.len() == 1 {
            LIVED_IN.lock().push(Arc::downgrade(self));
        }
    }

    /// A thread lives in it no longer.
    pub fn leave(self: &Arc<Self>, thread: &UserThread) {
        let mut threads = self.threads.lock();
        threads.retain(|other| other.token != thread.token);
        if threads.is_empty() {
            LIVED_IN.lock().retain(|mm| mm.as_ptr() != Arc::as_ptr(self));
        }
    }

    /// The threads that live in it.
    pub fn threads(&self) -> Vec<Arc<UserThread>> {
        self.threads.lock().clone()
    }

    /// True if a single thread lives in it.
    pub fn has_one_thread(&self) -> bool {
        self.threads.lock().len() == 1
    }

    /// One without a platform side, to be filled before it becomes visible
    /// ([`AddressSpace::attach`], [`AddressSpace::replace_content`]).
    pub fn detached() -> Result<Arc<Self>> {
        Self::make(|| Ok(None)).map(Arc::new)
    }

    /// One with a platform side of its own, for what a detached one holds; that is empty
    /// afterwards.
    pub fn attach(detached: &Self) -> Result<Arc<Self>> {
        let fresh = Self::make(|| new_handle(false).map(Some))?;
        core::mem::swap(&mut *fresh.lock(), &mut *detached.lock());
        Ok(Arc::new(fresh))
    }

    /// What it holds now, as a thing that stays as long as the program does.
    pub fn program(self: &Arc<Self>) -> ProgramMemory {
        ProgramMemory { mm: Arc::downgrade(self), program: self.programs.load(Ordering::Relaxed) }
    }

    /// Takes over what a detached one holds, in place of what is here (execve of a process that
    /// shares its space with nobody).
    pub fn replace_content(&self, detached: &AddressSpace) {
        self.programs.fetch_add(1, Ordering::Relaxed);
        self.unmap_all();
        let mut inner = self.lock();
        // CPUs may still see the old table.
        inner.flush();
        let mut fresh = detached.lock();
        core::mem::swap(&mut *inner, &mut *fresh);
        // What is yet to be carried out, and what CPUs may see until then, stays.
        core::mem::swap(&mut inner.mmu, &mut fresh.mmu);
        inner.mmu.start_anew();
    }

    /// The one that stands for those of ended processes: empty, and nothing ever runs in it.
    pub fn placeholder() -> Arc<Self> {
        let known = PLACEHOLDER.lock().clone();
        known.unwrap_or_else(|| {
            let space = Self::detached().expect("first called while there is memory for certain");
            *PLACEHOLDER.lock() = Some(space.clone());
            space
        })
    }

    /// What `f` makes of the platform's side. ESRCH if there is none.
    pub(super) fn with_handle<T>(&self, f: impl FnOnce(&SpaceHandle) -> Result<T>) -> Result<T> {
        f(self.handle.lock().as_ref().ok_or(Errno::ESRCH)?)
    }

    /// True if the platform has a side of it.
    pub(super) fn is_on_platform(&self) -> bool {
        self.handle.lock().is_some()
    }

    /// CPU time that the host has given to those who live in it, in ns. `None` where that is not
    /// told, or not any more.
    fn host_time_ns(&self) -> Option<u64> {
        if !self.is_charged {
            return None;
        }
        let now_ns = match &*self.handle.lock() {
            Some(handle) => handle.time_ns().ok()?,
            None => 0,
        };
        Some(now_ns.saturating_add(self.earlier_ns.load(Ordering::Relaxed)))
    }

    /// Looks at that: the share of what its threads wanted since the last look.
    pub fn look_at_given(&self, now_ns: u64, wanted: Wanted) -> Share {
        let host_ns = self.host_time_ns();
        self.given.lock().look(host_ns, now_ns, wanted)
    }

    /// The share that the last look found.
    pub fn share(&self) -> Share {
        self.given.lock().share()
    }

    /// True if that is good enough for one of its threads.
    pub fn is_share_fresh(&self, now_ns: u64) -> bool {
        self.given.lock().is_fresh(now_ns)
    }

    /// How many threads live in it.
    pub fn thread_count(&self) -> usize {
        self.threads.lock().len()
    }

    /// Gives a space that the platform knows nothing of a side there, an empty one.
    pub(super) fn make_on_platform(&self) -> Result {
        let made = new_handle(true)?;
        *self.handle.lock() = Some(made);
        self.given.lock().goes_on_from(self.earlier_ns.load(Ordering::Relaxed));
        Ok(())
    }

    /// Ends the platform's side: what it had mapped, and was to map, is nowhere mapped once that is
    /// [gone](until_gone). Its threads are the caller's.
    pub(super) fn take_off_platform(&self) {
        let Some(handle) = self.handle.lock().take() else { return };
        self.earlier_ns.fetch_add(handle.time_ns().unwrap_or(0), Ordering::Relaxed);
        let (_, frames) = {
            let mut inner = self.lock();
            inner.mmu.take_copies();
            inner.mmu.take()
        };
        DYING.lock().insert(handle.number(), (None, frames));
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Says that from now on several threads use the space.
    pub fn set_shared(&self) {
        self.lock().mmu.share();
    }

    /// True if changes are carried out by threads of the space, which user code may disturb.
    pub fn depends_on_user_code(&self) -> bool {
        self.lock().mmu.needs_threads()
    }

    /// Carries out what needs no thread. The rest: what has to be done before a thread of this
    /// space goes on, the frames that are free afterwards, and the pages of the kernel's copying
    /// that are shown by that.
    pub fn take_ops(&self) -> (Vec<DeferredOp>, DeferredFree, Ranges) {
        let mut inner = self.lock();
        inner.flush();
        let (ops, frames) = inner.mmu.take();
        (ops, frames, inner.mmu.take_copies())
    }

    /// True if somebody is to be told what has become of this memory.
    pub fn has_untold(&self) -> bool {
        !self.lock().untold.is_empty()
    }

    /// Who, and what.
    pub fn take_untold(&self) -> Vec<(Arc<Context>, Event)> {
        core::mem::take(&mut self.lock().untold)
    }

    /// True if changes are yet to be carried out.
    pub fn has_ops(&self) -> bool {
        self.lock().mmu.is_pending()
    }

    /// True if the kernel has written to pages of its own copying that threads of this space may
    /// not see yet.
    pub fn has_unseen_copies(&self) -> bool {
        self.lock().mmu.has_unseen_copies()
    }

    /// The root of the page table.
    pub fn root(&self) -> Gpa {
        self.lock().table().root()
    }

    /// Gives back operations that the thread that had them will not carry out, before those that
    /// have come since.
    pub fn put_back(&self, ops: Vec<DeferredOp>, deferred: DeferredFree, copies: Ranges) {
        self.lock().mmu.put_back(ops, deferred, copies);
    }

    /// Frames that the platform may still have mapped, to be freed with later operations or with
    /// the space.
    pub fn defer_free(&self, frames: DeferredFree) {
        self.lock().mmu.free_later(frames);
    }
}

impl Inner {
    /// Carries out what needs no thread.
    pub(super) fn flush(&mut self) {
        let root = self.table().root();
        frames::free_frames(self.mmu.flush(root));
    }

    /// The page table, and what makes CPUs follow it.
    pub(super) fn parts(&mut self) -> (&mut Table, &mut dyn Mmu) {
        let table = self.table.as_mut().expect("taken only when the address space is dropped");
        (table, &mut *self.mmu)
    }

    /// Clears all entries of `range` and drops what they hold.
    pub(super) fn zap(&mut self, range: Range<Va>) {
        self.forget_patches(&range);
        let (table, mmu) = self.parts();
        let mut cached = false;
        let mut emptied = 0;
        let mut deferred = DeferredFree::default();
        table.for_each(range.clone(), &mut |_, pte| {
            emptied += u64::from(pte.is_present() && Usage::of(pte).is_emptied());
            if mmu.may_be_cached(pte) {
                cached = true;
                deferred.extend(counted_frame(pte));
            } else {
                frames::free_entry(pte);
            }
            Action::Replace(Pte::EMPTY)
        });
        if cached {
            mmu.free_later(deferred);
            mmu.unmap(range);
        }
        self.emptied.forget(emptied);
    }

    /// Changes present entries of `range` by `change`.
    pub(super) fn change(&mut self, range: Range<Va>, change: impl Fn(Pte) -> Pte) {
        let (table, mmu) = self.parts();
        let used = mmu.protect(table, range, &change);
        self.emptied.forget(used);
    }

    /// Has CPUs see the page at `va` as its entry says.
    pub(super) fn show(&mut self, va: Va) {
        let (table, mmu) = self.parts();
        mmu.map(table, va);
    }

    /// The same of all pages from `from` on that are there, up to the first that is not, or `end`.
    pub(super) fn show_row(&mut self, from: Va, end: Va) {
        let mut at = from;
        while at < end {
            let pte = self.table().get(at);
            if !pte.is_present() {
                break;
            }
            if !is_mapped(pte) {
                self.show(at);
            }
            at = at + PAGE_SIZE;
        }
    }

    /// The page table.
    pub(super) fn table(&mut self) -> &mut Table {
        self.table.as_mut().expect("taken only when the address space is dropped")
    }

    fn new() -> Result<Self> {
        let boot = arch::boot();
        Ok(Inner {
            vmas: VmaSet::default(),
            table: Some(tables::new_table()?),
            mmu: mmu::new(),
            kernel_access: false,
            takes_huge: false,
            brk: (Va(0), Va(0)),
            mmap_top: boot.user_max,
            patches: Patches::default(),
            rewritten: Rewritten::default(),
            emptied: Emptied::default(),
            untold: Vec::new(),
        })
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        let deferred = inner.mmu.take_frames();
        let Some(mut table) = inner.table.take() else { return };
        match self.handle.get_mut() {
            // Dropping the handle, after this, ends the platform's side; `on_gone` frees the
            // frames.
            Some(handle) => {
                DYING.lock().insert(handle.number(), (Some(table), deferred));
            }
            None if self.is_charged => {
                account::space_gone();
                frames::free_frames(deferred);
                free_table(table);
            }
            None => {
                frames::free_all(&mut table);
                frames::free_frames(deferred);
            }
        }
    }
}
