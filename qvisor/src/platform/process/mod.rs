//! The `process` platform: one host process (a *stub*) for each guest address space, one host
//! thread for each guest thread. See `doc/architecture.md`.
//!
//! A stub's seccomp filter sends every system call to the sandbox process, where one thread for
//! each stub receives them and runs the guest kernel. Faults and exceptions enter the stub's signal
//! handler, which reports them with a private system call and carries out the changes of mappings
//! that the kernel wants. The sandbox lets a stub's system call reach the host only if it equals
//! the operation outstanding for that thread, number and arguments.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use foldhash::HashMap;
use qlib::fpstate::FpFormat;
use qlib::platform::*;
use qlib::{Gpa, PAGE_SIZE, Va};
use tracing::error;

use crate::sandbox::memory::GuestPhys;
use crate::sandbox::platform::Leave;
use crate::sys::ordered::{Mutex, MutexGuard, RwLock, place};
use crate::sys::{self, Listener, Received};

mod answers;
mod area;
mod asleep;
mod attending;
mod boot;
#[cfg(test)]
mod boot_tests;
mod config;
pub mod cost;
mod crowd;
mod fast;
mod files;
mod fpstate;
mod frame;
mod isolate;
mod kernel;
mod layout;
mod looking;
mod ops;
mod proof;
mod room;
mod space;
mod steps;
mod stub;
mod thread;
mod watch;
mod zygote;

use answers::Later;
use area::{Area, Limit};
use asleep::Waiting;
pub use attending::Outside;
use attending::{Attendant, Attended};
pub use config::{FastCalls, ProcessConfig, Test};
use crowd::Crowd;
use fast::Row;
use files::Files;
use layout::*;
use looking::Pollers;
use room::Room;
use space::Space;
pub use steps::{Missing, Step};
use thread::{Backing, Plan};
use watch::Watch;
use zygote::Zygote;

/// What the platform takes the events to.
pub type Dispatch = Box<dyn Fn(&Event) + Send + Sync>;

/// What tells of a stub.
struct Stub {
    listener: Arc<Listener>,
    /// Of its end, where the listener does not.
    end: Option<OwnedFd>,
}

/// The platform of a sandbox process.
pub struct ProcessPlatform(Arc<Shared>);

/// What all spaces share.
pub(crate) struct Shared {
    zygote: Arc<Zygote>,
    files: Files,
    phys: Arc<dyn GuestPhys>,
    fp: FpFormat,
    wait_killable: bool,
    receive_ends: bool,
    sync_wake_up: bool,
    stack_bytes: usize,
    /// With more mappings of the host than this a space is ended, well before the host refuses one.
    most_mappings: u64,
    fast_calls: FastCalls,
    pollers: Pollers,
    attended: Attended,
    dispatch: OnceLock<Dispatch>,
    outside: OnceLock<Box<dyn Outside>>,
    spaces: RwLock<HashMap<u32, Arc<Space>>, place::Spaces>,
    last_space: AtomicU32,
    watch: Watch,
    sync_works: AtomicBool,
    /// Stubs.
    processes: Limit,
    /// Slots of threads.
    threads: Limit,
    /// Spaces whose stub could not be made for want of something, and is tried again.
    waiting: AtomicU32,
    /// What the host limits besides.
    limits: room::Limits,
    /// Who takes one of the last places that the host has for tasks: a place that is given up for a
    /// stub may be promised to nobody else before that is made.
    last_places: Mutex<(), place::Places>,
}

impl ProcessPlatform {
    /// As [`Self::begin`] and [`Self::finish`].
    pub fn new(phys: Arc<dyn GuestPhys>, config: ProcessConfig) -> Result<Self> {
        let platform = Self::begin(phys, config, None)?;
        platform.finish()?;
        Ok(platform)
    }

    /// Waits until the zygote serves.
    pub fn finish(&self) -> Result<()> {
        self.0.zygote.finish().map(drop)
    }

    /// Makes the platform and begins to make its zygote, which takes a while without this thread.
    /// The calling thread must live as long as the process (see [`Zygote::start`]). The sandbox
    /// process should be in its cgroup and namespaces already: stubs inherit them, and what `leave`
    /// leaves (see [`Zygote::start`]).
    pub fn begin(
        phys: Arc<dyn GuestPhys>,
        config: ProcessConfig,
        leave: Option<&dyn Leave>,
    ) -> Result<Self> {
        let fp = fpstate::detect().context("the process platform needs a CPU with XSAVE")?;
        let min_stack = sys::min_signal_stack();
        if !sys::has_fsgsbase() {
            bail!(
                "the process platform needs FSGSBASE (Linux 5.9 on a CPU since Ivy Bridge or Zen)"
            );
        }
        if min_stack > STACK_BYTES {
            bail!(
                "signal frames of this CPU take {min_stack} bytes, more than the process platform \
                has room for"
            );
        }
        let wait_killable =
            config.wait_killable && sys::filter_flag_known(sys::FILTER_WAIT_KILLABLE);
        let flags =
            sys::FILTER_NEW_LISTENER | if wait_killable { sys::FILTER_WAIT_KILLABLE } else { 0 };
        let (ram, _) = phys.host_backing(Gpa(0), PAGE_SIZE).context("no guest RAM at address 0")?;
        // Read while the host's /proc is there.
        let most_mappings = config.max_map_count.unwrap_or_else(sys::max_map_count) / 8 * 7;
        let zygote =
            Arc::new(Zygote::start(flags, fp.frame_bytes() as u64, &ram, config.test, leave)?);
        let shared = Arc::new(Shared {
            files: Files::new(ram, zygote.clone()),
            zygote,
            phys,
            fp,
            wait_killable,
            receive_ends: config.receive_ends && sys::receive_ends(),
            sync_wake_up: config.sync_wake_up,
            stack_bytes: config.stack_bytes,
            most_mappings,
            fast_calls: config.fast_calls,
            pollers: Pollers::new(if why_not_fast(config.sync_wake_up).is_none() {
                config.fast_calls
            } else {
                FastCalls::Off
            }),
            attended: Attended::default(),
            dispatch: OnceLock::new(),
            outside: OnceLock::new(),
            spaces: RwLock::default(),
            last_space: AtomicU32::new(0),
            watch: Watch::default(),
            sync_works: AtomicBool::new(false),
            processes: Limit::new(cost::max_processes(config.memory_limit_bytes)),
            threads: Limit::new(cost::max_threads(config.memory_limit_bytes)),
            waiting: AtomicU32::new(0),
            limits: room::Limits::of_process(config.tasks_limit),
            last_places: Mutex::default(),
        });
        shared.watch.attach(&shared);
        Ok(Self(shared))
    }

    /// True if the host wakes synchronously; known once a stub has been made.
    pub fn wakes_synchronously(&self) -> bool {
        self.0.sync_works.load(Ordering::Relaxed)
    }

    /// Says where events go. Once, before the first space.
    pub fn set_dispatch(&self, dispatch: Dispatch) {
        let _ = self.0.dispatch.set(dispatch);
    }

    /// Says what receivers may look at besides. Once, before the first space.
    pub fn set_outside(&self, outside: Box<dyn Outside>) {
        let _ = self.0.outside.set(outside);
    }

    /// Says where events go: a kernel image's function.
    ///
    /// # Safety
    /// `dispatch` must be callable from any thread, with any event, as long as the process lives.
    pub unsafe fn set_kernel_dispatch(&self, dispatch: unsafe extern "C" fn(event: *const Event)) {
        // SAFETY: as the caller promises.
        self.set_dispatch(Box::new(move |event| unsafe { dispatch(event) }));
    }

    /// Fills in the entries `space_*`, `thread_*` and `fpstate_*`, and makes this the platform that
    /// they act on.
    pub fn fill_ops(&self, ops: &mut PlatformOps) {
        ops::install(self.0.clone(), ops);
    }

    /// For [`BootInfo`].
    pub fn user_min(&self) -> Va {
        Va(USER_MIN)
    }

    /// For [`BootInfo`].
    pub fn user_max(&self) -> Va {
        Va(self.0.user_max())
    }

    /// For [`BootInfo`].
    pub fn vdso(&self) -> Va {
        Va(self.0.zygote.vdso)
    }

    /// What lies there, in whole pages.
    pub fn vdso_image(&self) -> &'static [u8] {
        self.0.zygote.vdso_image
    }

    /// For [`BootInfo`]: without FSGSBASE, as the GS base of a thread may be the platform's.
    pub fn hwcap2(&self) -> u64 {
        if self.0.pollers.possible() {
            sys::hwcap2() & !sys::HWCAP2_FSGSBASE
        } else {
            sys::hwcap2()
        }
    }

    /// For [`BootInfo`].
    pub fn fast_entry(&self) -> Va {
        Va(if self.0.pollers.possible() { self.0.zygote.addresses.fast.entry } else { 0 })
    }

    /// For [`BootInfo`].
    pub fn fast_after(&self) -> u32 {
        /// A patched page costs a copy of it: the site must have been used that often, in rows.
        const OFTEN: u32 = 64;
        if self.0.fast_calls == FastCalls::Eager { 1 } else { OFTEN }
    }

    /// For [`BootInfo`].
    pub fn max_mappings(&self) -> u64 {
        self.0.most_mappings
    }

    /// For [`BootInfo`].
    pub fn fpstate_bytes(&self) -> u64 {
        self.0.fp.frame_bytes() as u64
    }

    /// For [`BootInfo`].
    pub fn max_processes(&self) -> u32 {
        self.0.processes.most()
    }

    /// For [`BootInfo`].
    pub fn max_threads(&self) -> u32 {
        self.0.threads.most()
    }

    /// For [`BootInfo`].
    pub fn max_tasks(&self) -> u32 {
        self.0.limits.most_tasks()
    }

    /// The sandbox's cgroup has so many tasks at most from now on, 0 for no limit.
    pub fn limit_tasks(&self, limit: u32) {
        self.0.limits.tasks.store(limit, Ordering::Relaxed);
    }

    /// See [`PlatformOps::space_new`].
    pub fn space_new(&self) -> Result<u64, i32> {
        self.0.space_new(false)
    }

    /// See [`PlatformOps::space_drop`].
    pub fn space_drop(&self, space: u64) {
        if let Some(space) = self.0.space(space) {
            space.drop_space();
        }
    }

    /// See [`PlatformOps::space_touched`].
    pub fn space_touched(&self, space: u64, va: Va, pages: u64) -> Result<Vec<u64>, i32> {
        self.0.space_touched(space, va, pages)
    }

    /// See [`PlatformOps::thread_new`].
    pub fn thread_new(&self, space: u64, creator: u64, token: u64) -> Result<u64, i32> {
        self.0.thread_new(space, creator, token)
    }

    /// See [`PlatformOps::thread_drop`].
    pub fn thread_drop(&self, thread: u64) {
        self.0.with_thread(thread, |space, number| space.thread_drop(&self.0, number));
    }

    /// See [`PlatformOps::thread_resume`].
    pub fn thread_resume(&self, thread: u64, resume: &Resume, ops: &[DeferredOp]) {
        self.0.thread_resume(thread, resume, ops);
    }

    /// See [`PlatformOps::thread_stop`].
    pub fn thread_stop(&self, thread: u64) {
        self.0.with_thread(thread, |space, number| space.thread_stop(&self.0, number));
    }

    /// See [`PlatformOps::fpstate_read`].
    pub fn fpstate_read(&self, thread: u64) -> Result<Vec<u8>, i32> {
        self.0.fpstate_read(thread)
    }

    /// See [`PlatformOps::fpstate_write`].
    pub fn fpstate_write(&self, thread: u64, image: &[u8]) -> Result<(), i32> {
        self.0.fpstate_write(thread, image)
    }

    /// What the host refuses zygote and stubs of the surroundings that they should have.
    pub fn missing(&self) -> Missing {
        self.0.zygote.finish().map_or(Missing::default(), |up| up.missing)
    }

    /// What gives up descriptors of stubs for files of windows that are gone.
    pub fn file_sweeper(&self) -> impl Fn() + Send + Sync + use<> {
        let shared = Arc::downgrade(&self.0);
        move || {
            if let Some(shared) = shared.upgrade() {
                shared.files.sweep();
            }
        }
    }

    /// The zygote, and the init process of its PID namespace.
    pub fn zygote_pids(&self) -> Option<(u32, Option<u32>)> {
        self.0.zygote.finish().ok().map(|up| (up.pid, up.init))
    }

    /// The host process behind a space, for measurements.
    pub fn stub_pid(&self, space: u64) -> Option<u32> {
        self.0.space(space)?.lock().pid
    }
}

impl Drop for ProcessPlatform {
    fn drop(&mut self) {
        for space in self.0.spaces.read().values() {
            space.drop_space();
        }
    }
}

/// Why this host's system calls cannot be fast; `None` if they can. `sync_wake_up`: as configured.
pub fn why_not_fast(sync_wake_up: bool) -> Option<&'static str> {
    if std::thread::available_parallelism().map_or(1, |n| n.get()) < 2 {
        Some("there is one processor")
    } else if !fast::cpu_can() {
        Some("the CPU lacks BMI2 or LAHF")
    } else if !sync_wake_up || sys::host_release() < (6, 6) {
        // Without it, stub and receiver are kept on one processor.
        Some("Linux is older than 6.6")
    } else {
        None
    }
}

impl Shared {
    fn user_max(&self) -> u64 {
        self.zygote.addresses.base
    }

    /// Where the slots begin in a stub.
    fn stub_area(&self) -> u64 {
        self.zygote.addresses.base + AREA_OFFSET
    }

    fn space(&self, handle: u64) -> Option<Arc<Space>> {
        let id = u32::try_from(handle).ok()?;
        self.spaces.read().get(&id).cloned()
    }

    /// A thread's handle is its space's in the high half and its number there in the low half.
    fn with_thread<T>(&self, handle: u64, f: impl FnOnce(&Space, u32) -> T) -> Option<T> {
        let space = self.space(handle >> 32)?;
        Some(f(&space, handle as u32))
    }

    /// Tasks of the host for the guest's processes and threads, at least.
    fn tasks(&self) -> u32 {
        self.processes.used().saturating_add(self.threads.used())
    }

    /// A place for one more thread. EAGAIN.
    fn room_for_thread(&self) -> Result<Room, i32> {
        Room::for_thread(&self.limits, self.tasks())
            .map_err(|e| e.raw_os_error().unwrap_or(libc::EAGAIN))
    }

    /// Who takes places for tasks alone has this, where they may be the last.
    fn last_places(&self) -> Option<MutexGuard<'_, ()>> {
        self.limits.is_near(self.tasks()).then(|| self.last_places.lock())
    }

    fn space_new(self: &Arc<Self>, urgent: bool) -> Result<u64, i32> {
        // What others wait for is not to be had; but who comes from outside may wait for it too.
        if self.waiting.load(Ordering::Relaxed) > 0 && !urgent || !self.processes.take() {
            return Err(libc::EAGAIN);
        }
        let errno = |e: std::io::Error| {
            self.processes.give(1);
            match e.raw_os_error() {
                // What a program knows as the limit of processes.
                Some(libc::EMFILE | libc::ENFILE) => libc::EAGAIN,
                other => other.unwrap_or(libc::ENOMEM),
            }
        };
        let id = self.last_space.fetch_add(1, Ordering::Relaxed) + 1;
        // With that for the thread that receives.
        let _last = self.last_places();
        // Better told now, as an error of fork(2), than later, as the end of a process.
        let room = Room::for_stub(&self.limits, self.tasks()).map_err(errno)?;
        let area =
            Area::new(if self.pollers.possible() { self.stub_area() } else { 0 }).map_err(errno)?;
        let space = Arc::new(Space::new(id, area));
        self.spaces.write().insert(id, space.clone());
        let shared = self.clone();
        let started = sys::spawn_thread(format!("space-{id}"), self.stack_bytes, move || {
            shared.serve(&space, urgent, room)
        });
        if let Err(e) = started {
            self.spaces.write().remove(&id);
            return Err(errno(e));
        }
        Ok(u64::from(id))
    }

    fn space_touched(&self, space: u64, va: Va, pages: u64) -> Result<Vec<u64>, i32> {
        let space = self.space(space).ok_or(libc::ESRCH)?;
        // Locked as long as the number is used: it cannot become that of another process.
        let state = space.lock();
        let pid = state.pid.ok_or(libc::ESRCH)?;
        sys::mapped_pages(pid, va, pages).map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))
    }

    fn space_time(&self, space: u64) -> Result<u64, i32> {
        let space = self.space(space).ok_or(libc::ESRCH)?;
        // Locked as long as the number is used, as above.
        let state = space.lock();
        match state.pid {
            Some(pid) => sys::process_time_ns(pid).ok_or(libc::ESRCH),
            None => state.time_without_stub_ns().ok_or(libc::ESRCH),
        }
    }

    fn thread_new(&self, space: u64, creator: u64, token: u64) -> Result<u64, i32> {
        if creator != 0 && creator >> 32 != space {
            return Err(libc::EINVAL);
        }
        let number =
            self.space(space).ok_or(libc::ESRCH)?.thread_new(self, creator as u32, token)?;
        Ok(space << 32 | u64::from(number))
    }

    fn thread_resume(&self, thread: u64, resume: &Resume, ops: &[DeferredOp]) {
        let plan = Plan::new(
            resume,
            ops,
            self.user_max(),
            &Backing { phys: &*self.phys, files: &self.files },
        );
        self.with_thread(thread, |space, number| match plan {
            Ok(plan) => space.thread_resume(self, number, plan),
            Err(why) => space.lock().kill(space.id, &why),
        });
    }

    fn fpstate_read(&self, thread: u64) -> Result<Vec<u8>, i32> {
        self.with_thread(thread, |space, number| space.fpstate_read(self, number))
            .unwrap_or(Err(libc::ESRCH))
    }

    fn fpstate_write(&self, thread: u64, image: &[u8]) -> Result<(), i32> {
        self.with_thread(thread, |space, number| space.fpstate_write(self, number, image))
            .unwrap_or(Err(libc::ESRCH))
    }

    fn deliver(&self, event: &Event) {
        if let Some(dispatch) = self.dispatch.get() {
            dispatch(event);
        }
    }

    /// The receiver of a space: from the making of its stub to its end.
    fn serve(&self, space: &Arc<Space>, urgent: bool, room: Room) {
        match self.start_stub_in_time(space, urgent, room) {
            Ok(Some(stub)) => self.receive(space, &stub),
            Ok(None) => {}
            Err(e) => {
                let state = space.lock();
                if !state.dropped {
                    error!(space = space.id, "make a stub: {e:#}");
                }
                if let Some(pid) = state.pid {
                    sys::kill(pid);
                }
            }
        }
        // The number must not be used for a signal once it is free again.
        let pid = space.lock().pid;
        let end = pid.and_then(sys::wait_end);
        let (orphans, dropped) = {
            let mut state = space.lock();
            if let Some(end) = end {
                state.note_end(space.id, end);
            }
            let orphans = state.live_threads();
            state.mark_exited();
            if let Some(pid) = pid {
                sys::reap(pid);
            }
            (orphans, state.dropped)
        };
        if !dropped {
            for token in orphans {
                let trap = Trap { kind: TRAP_DEAD, token, ..Trap::default() };
                self.deliver(&Event { kind: EVENT_TRAP, trap, ..Event::default() });
            }
        }
        let mut state = space.lock();
        while !state.dropped {
            state = space.was_dropped.wait(state);
        }
        self.threads.give(state.slot_count());
        self.processes.give(1);
        drop(state);
        self.spaces.write().remove(&space.id);
        self.deliver(&Event { kind: EVENT_SPACE_GONE, a: u64::from(space.id), ..Event::default() });
    }

    /// Takes notifications until the stub is gone.
    fn receive(&self, space: &Arc<Space>, stub: &Stub) {
        let listener = &stub.listener;
        let mut row = Row::new(self.fast_calls == FastCalls::Eager);
        let mut crowd = Crowd::default();
        let mut waiting = Waiting::default();
        answers::be_receiver_of(space.id);
        let outside = self.outside.get().map(|outside| &**outside);
        let mut attendant =
            Attendant::new(&self.attended, outside, space.id, listener, stub.end.as_ref());
        while let Received::Call(n) = attendant.receive() {
            crowd.received(&self.sync_works, listener, n.pid);
            let event = {
                let _later = Later::begin();
                space.lock().notified(space, self, &n)
            };
            let Some(event) = event else {
                if space.area.has_spare() {
                    space.lock().trim(space, self);
                }
                continue;
            };
            let call = self.pollers.possible() && self.could_be_fast(space, &mut row, &event);
            if call && row.goes_on(Instant::now()) {
                self.serve_slots(space, listener, &mut row, &event, &mut attendant);
                crowd = Crowd::default();
            } else {
                self.deliver(&event);
            }
            attendant.note(space.area.slots(), || space.lock().waiting_call(n.pid).is_some());
            waiting.note(space, self, n.pid);
            if space.area.has_spare() {
                space.lock().trim(space, self);
            }
        }
    }

    /// Makes the stub; again and again for a while where the host is short of processes, memory or
    /// descriptors: the guest has been told that it has a new process. Until it has, it gets no
    /// further ones.
    fn start_stub_in_time(&self, space: &Space, urgent: bool, room: Room) -> Result<Option<Stub>> {
        const PAUSE: Duration = Duration::from_millis(20);
        let begin = Instant::now();
        let goes_on = |made: &Result<_>| {
            let patience = made.as_ref().err().and_then(zygote::patience_with);
            patience.is_some_and(|patience| begin.elapsed() < patience) && !space.lock().dropped
        };
        let mut made = self.start_stub(space, urgent, Some(room));
        if !goes_on(&made) {
            return made;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        while goes_on(&made) {
            self.clear_away(space);
            std::thread::sleep(PAUSE);
            made = self.start_stub(space, urgent, None);
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        made
    }

    /// Ends what there is of a stub that could not be set up.
    fn clear_away(&self, space: &Space) {
        let Some(pid) = space.lock().pid else { return };
        sys::kill(pid);
        sys::wait_end(pid);
        let mut state = space.lock();
        state.pid = None;
        sys::reap(pid);
    }

    /// `None`: the kernel has dropped the space before it was its turn.
    /// Makes the stub, in the place of `room`.
    fn start_stub(&self, space: &Space, urgent: bool, room: Option<Room>) -> Result<Option<Stub>> {
        let born = |pid| {
            let mut state = space.lock();
            state.pid = Some(pid);
            if state.dropped {
                sys::kill(pid);
            }
        };
        let begin = Instant::now();
        let (room, last) = (Cell::new(room), Cell::new(None));
        let wanted = || {
            last.set(self.last_places());
            drop(room.take());
            !space.lock().dropped
        };
        let made = self.zygote.make_stub(space.area.file(), urgent, wanted, born);
        drop(last.take());
        tracing::debug!("space {}: a stub after {} us", space.id, begin.elapsed().as_micros());
        let Some(listener) = made? else { return Ok(None) };
        let listener = Arc::new(Listener::new(listener));
        let pid = space.lock().pid.context("a stub without a process id")?;
        let end = (!self.receive_ends).then(|| sys::end_of(pid)).transpose();
        let end = end.context("watch over the end of a stub")?;
        if self.sync_wake_up && listener.set_sync_wake_up(true) {
            self.sync_works.store(true, Ordering::Relaxed);
        } else {
            // A wake-up that crosses cores costs ten times as much as all the rest.
            sys::share_core(pid, space.id);
        }
        let mut state = space.lock();
        state.listener = Some(listener.clone());
        state.answers_may_wait = self.wait_killable;
        drop(state);
        Ok(Some(Stub { listener, end }))
    }
}
