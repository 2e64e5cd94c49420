//! User threads, as the platform's operations see them.

use alloc::sync::{Arc, Weak};
use core::cell::{Cell, UnsafeCell};

use qlib::Gpa;
use qlib::platform::{
    DeferredOp, EVENT_TRAP, Event, OP_SET_FS, OP_SET_GS, RESUME_EXIT, RESUME_GO, RESUME_HOLD,
    RESUME_REGS, RESUME_RETURN, Resume, TRAP_STOPPED, TRAP_SYNCED, Trap,
};
use x86_64::registers::model_specific::{FsBase, KernelGsBase};

use super::entry::{SYSCALL, UserContext, canonical};
use super::fpu::FpState;
use super::queues::{Place, Waits};
use super::{cpu, msr, sched};
use crate::arch::boot;
use crate::arch::upcalls::{Owner, UPCALLS};
use crate::errno::Errno;

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// The kernel has it.
    Stopped,
    /// Waits for a vCPU.
    Ready,
    /// Runs user code on this vCPU, or is about to, or just has.
    Running(u32),
    /// Never runs again.
    Ended,
}

/// Registers, and below them room that is used only by an interrupt that comes although interrupts
/// are off (see [`super::entry`]).
#[repr(C)]
#[derive(Debug, Default)]
struct Saved {
    slack: [u64; 16],
    context: UserContext,
}

/// One user thread. Everything here is touched under the kernel lock alone, but for the context,
/// which is the vCPU's while it runs.
pub struct KvmThread {
    token: u64,
    /// The kernel's side of it, once it was looked for.
    owner: UnsafeCell<Option<Weak<dyn Owner>>>,
    saved: UnsafeCell<Saved>,
    fp: FpState,
    fs_base: Cell<u64>,
    gs_base: Cell<u64>,
    /// Root of the page table that it runs with.
    pub root: Cell<Gpa>,
    /// Where it is.
    pub run_state: Cell<RunState>,
    /// A system call of it is not answered yet.
    pub in_syscall: Cell<bool>,
    /// Only %rax has changed since its system call, so SYSRET will do.
    pub fast: Cell<bool>,
    /// How often it was resumed: see [`Trap::resumes`].
    pub resumes: Cell<u64>,
    /// The kernel wants it stopped.
    pub stop_asked: Cell<bool>,
    /// The kernel wants [`qlib::platform::TRAP_PREEMPTED`]s of it.
    watched: Cell<bool>,
    /// The vCPU that the kernel was last notified of, if the thread was not preempted since.
    notified: Cell<Option<u32>>,
    /// It goes before all others when it is ready next.
    pub keeps_turn: Cell<bool>,
    place: Place,
}

impl Waits for KvmThread {
    fn place(&self) -> &Place {
        &self.place
    }
}

// SAFETY: see the type: the kernel lock orders all access.
unsafe impl Send for KvmThread {}
// SAFETY: as above.
unsafe impl Sync for KvmThread {}

impl KvmThread {
    /// Its registers. Not while a vCPU runs it.
    pub fn context(&self) -> *mut UserContext {
        // SAFETY: a field of an object that lives.
        unsafe { &raw mut (*self.saved.get()).context }
    }

    /// The kernel's side of it, if it has not ended.
    pub fn owner(&self) -> Option<Arc<dyn Owner>> {
        // SAFETY: the kernel lock is held, and nothing in here comes back to this thread.
        let owner = unsafe { &mut *self.owner.get() };
        owner.as_ref().and_then(Weak::upgrade).or_else(|| {
            let found = (UPCALLS.owner_of)(self.token)?;
            *owner = Some(Arc::downgrade(&found));
            Some(found)
        })
    }

    /// A trap of it, with what every trap has.
    pub fn trap(&self, kind: u32) -> Trap {
        Trap { kind, token: self.token, resumes: self.resumes.get(), ..Trap::default() }
    }

    /// Its registers in the kernel's form.
    pub fn regs(&self) -> qlib::platform::UserRegs {
        if self.is_live() {
            self.save_bases();
        }
        // SAFETY: it is not running, and the kernel lock is held.
        unsafe { (*self.context()).regs(self.fs_base.get(), self.gs_base.get()) }
    }

    fn save_bases(&self) {
        // SAFETY: the registers exist. In kernel mode the user's GS base is in the second one.
        unsafe {
            self.fs_base.set(msr::read(FsBase::MSR));
            self.gs_base.set(msr::read(KernelGsBase::MSR));
        }
    }

    /// True if the kernel has to be notified before it runs on vCPU `index`; from now on it has
    /// been.
    pub fn must_notify(&self, index: u32) -> bool {
        self.watched.get() && self.notified.replace(Some(index)) != Some(index)
    }

    /// Takes its state out of the registers, which others are to have. Who made a system call has
    /// given way itself.
    pub fn save(&self) {
        // SAFETY: it is not running, and the kernel lock is held.
        if unsafe { (*self.context()).vector } != SYSCALL {
            self.notified.set(None);
        }
        self.save_bases();
        self.fp.save();
    }

    /// Puts its state into the registers.
    pub fn load(&self) {
        self.load_bases();
        self.fp.restore();
    }

    fn load_bases(&self) {
        // SAFETY: the registers take every canonical address.
        unsafe {
            msr::write(FsBase::MSR, canonical(self.fs_base.get()));
            msr::write(KernelGsBase::MSR, canonical(self.gs_base.get()));
        }
    }

    fn is_live(&self) -> bool {
        cpu::this().is_live(self)
    }

    fn set_bases(&self, fs: Option<u64>, gs: Option<u64>) {
        if self.is_live() {
            self.save_bases();
        }
        if let Some(fs) = fs {
            self.fs_base.set(fs);
        }
        if let Some(gs) = gs {
            self.gs_base.set(gs);
        }
        if self.is_live() {
            self.load_bases();
        }
    }

    /// Has a [`TRAP_STOPPED`] come.
    pub fn post_stopped(&self) {
        let trap = Trap {
            in_syscall: u32::from(self.in_syscall.get()),
            regs: self.regs(),
            ..self.trap(TRAP_STOPPED)
        };
        sched::post(Event { kind: EVENT_TRAP, trap, ..Event::default() });
    }
}

/// A thread's number: its place in guest physical memory, for numbers that look negative are
/// errors.
fn handle_of(thread: *const KvmThread) -> u64 {
    thread as u64 - boot().phys_base
}

fn pointer_of(handle: u64) -> *const KvmThread {
    (handle + boot().phys_base) as *const KvmThread
}

/// # Safety
/// `handle` is one that [`thread_new`] gave and [`thread_drop`] has not taken.
unsafe fn of(handle: u64) -> Arc<KvmThread> {
    let pointer = pointer_of(handle);
    // SAFETY: as the caller promises: the handle holds a count.
    unsafe {
        Arc::increment_strong_count(pointer);
        Arc::from_raw(pointer)
    }
}

/// See [`qlib::platform::PlatformOps::thread_new`].
pub(super) unsafe extern "C" fn thread_new(_space: u64, _creator: u64, token: u64) -> i64 {
    let Some(fp) = FpState::new() else { return -i64::from(Errno::ENOMEM.0) };
    let thread = Arc::new(KvmThread {
        token,
        owner: UnsafeCell::default(),
        saved: UnsafeCell::default(),
        fp,
        fs_base: Cell::new(0),
        gs_base: Cell::new(0),
        root: Cell::new(Gpa(0)),
        run_state: Cell::new(RunState::Stopped),
        in_syscall: Cell::new(false),
        fast: Cell::new(false),
        resumes: Cell::new(0),
        stop_asked: Cell::new(false),
        watched: Cell::new(false),
        notified: Cell::new(None),
        keeps_turn: Cell::new(false),
        place: Place::anywhere(),
    });
    handle_of(Arc::into_raw(thread)) as i64
}

/// See [`qlib::platform::PlatformOps::thread_drop`].
pub(super) unsafe extern "C" fn thread_drop(handle: u64) {
    // SAFETY: the kernel gives the handle up.
    let thread = unsafe { Arc::from_raw(pointer_of(handle)) };
    thread.run_state.set(RunState::Ended);
    sched::forget(&thread);
}

/// See [`qlib::platform::PlatformOps::thread_resume`].
pub(super) unsafe extern "C" fn thread_resume(handle: u64, resume: *const Resume) {
    // SAFETY: a live handle; a valid Resume, whose operations pointer and count describe an array.
    let (thread, resume, ops): (Arc<KvmThread>, &Resume, &[DeferredOp]) = unsafe {
        let resume = &*resume;
        let ops = match resume.op_count {
            0 => &[][..],
            count => core::slice::from_raw_parts(resume.ops, count as usize),
        };
        (of(handle), resume, ops)
    };
    debug_assert_eq!(thread.run_state.get(), RunState::Stopped);
    thread.resumes.set(thread.resumes.get() + 1);
    thread.root.set(resume.root);
    for op in ops {
        match op.kind {
            OP_SET_FS => thread.set_bases(Some(op.va.0), None),
            OP_SET_GS => thread.set_bases(None, Some(op.va.0)),
            // What changes mappings has been carried out when it came up.
            _ => {}
        }
    }
    match resume.kind {
        RESUME_RETURN => {
            // SAFETY: it is stopped, and the kernel lock is held.
            unsafe { (*thread.context()).rax = resume.value as u64 };
            thread.in_syscall.set(false);
            sched::ready(thread);
        }
        RESUME_REGS => {
            // SAFETY: as above.
            unsafe { (*thread.context()).set(&resume.regs) };
            thread.set_bases(Some(resume.regs.fs_base), Some(resume.regs.gs_base));
            thread.fast.set(false);
            thread.in_syscall.set(false);
            sched::ready(thread);
        }
        RESUME_GO => sched::ready(thread),
        RESUME_HOLD => {
            let trap = Trap { regs: thread.regs(), ..thread.trap(TRAP_SYNCED) };
            sched::post(Event { kind: EVENT_TRAP, trap, ..Event::default() });
        }
        RESUME_EXIT => {
            thread.run_state.set(RunState::Ended);
            sched::forget(&thread);
        }
        _ => panic!("resume of kind {}", resume.kind),
    }
}

/// See [`qlib::platform::PlatformOps::thread_stop`].
pub(super) unsafe extern "C" fn thread_stop(handle: u64) {
    // SAFETY: a live handle.
    let thread = unsafe { of(handle) };
    match thread.run_state.get() {
        RunState::Running(cpu) => {
            thread.stop_asked.set(true);
            sched::kick(cpu);
        }
        RunState::Ready => {
            sched::unready(&thread);
            thread.run_state.set(RunState::Stopped);
            thread.post_stopped();
        }
        RunState::Stopped if thread.in_syscall.get() => thread.post_stopped(),
        RunState::Stopped | RunState::Ended => {}
    }
}

/// See [`qlib::platform::PlatformOps::thread_watch`].
pub(super) unsafe extern "C" fn thread_watch(handle: u64, on: u32) -> i64 {
    // SAFETY: a live handle.
    let thread = unsafe { of(handle) };
    thread.watched.set(on != 0);
    thread.notified.set(thread.is_live().then(|| cpu::this().index));
    0
}

/// See [`qlib::platform::PlatformOps::thread_answers`]: here a call costs little more than that.
pub(super) unsafe extern "C" fn thread_answers(_handle: u64, _tid: u32, _pid: u32) {}

/// See [`qlib::platform::PlatformOps::thread_bind`].
pub(super) unsafe extern "C" fn thread_bind(handle: u64, cpus: u64) -> i64 {
    // SAFETY: a live handle.
    let thread = unsafe { of(handle) };
    sched::unready(&thread);
    thread.place.bind(cpus);
    match thread.run_state.get() {
        RunState::Ready => sched::ready(thread),
        // It looks by itself where it has made this call.
        RunState::Running(cpu) if !thread.place.may_be(cpu) => sched::kick(cpu),
        _ => {}
    }
    0
}

/// See [`qlib::platform::PlatformOps::fpstate_read`].
pub(super) unsafe extern "C" fn fpstate_read(handle: u64, buf: *mut u8, capacity: u64) -> i64 {
    // SAFETY: a live handle; the buffer has room for `capacity` bytes.
    let (thread, out) =
        unsafe { (of(handle), core::slice::from_raw_parts_mut(buf, capacity as usize)) };
    if thread.is_live() {
        thread.fp.save();
    }
    thread.fp.read(out).map_or_else(|e| -i64::from(e.0), |n| n as i64)
}

/// See [`qlib::platform::PlatformOps::fpstate_write`].
pub(super) unsafe extern "C" fn fpstate_write(handle: u64, buf: *const u8, len: u64) -> i64 {
    // SAFETY: a live handle.
    let thread = unsafe { of(handle) };
    let result = match len {
        0 => {
            thread.fp.reset();
            Ok(())
        }
        // SAFETY: the buffer holds `len` bytes.
        _ => thread.fp.set(unsafe { core::slice::from_raw_parts(buf, len as usize) }),
    };
    if thread.is_live() {
        thread.fp.restore();
    }
    result.map_or_else(|e| -i64::from(e.0), |()| 0)
}
