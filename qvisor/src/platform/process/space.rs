//! One guest address space: its stub process, its threads, and the state machine that takes
//! notifications in and lets threads go on. Nothing here calls the kernel: [`SpaceState::notified`]
//! hands back the event to deliver, if any.

use std::sync::Arc;

use foldhash::HashMap;
use qlib::platform::*;
use tracing::{debug, warn};

use super::Shared;
use super::answers::{self, Answer};
use super::area::{Area, Slots};
use super::frame::FrameAt;
use super::layout::*;
use super::proof::host_error;
use super::thread::*;
use super::{asleep, fast};
use crate::sandbox::log_limit::Seldom;
use crate::sys::ordered::{Condvar, Mutex, MutexGuard, place};
use crate::sys::{self, Listener, Notification};

// What guests bring about, as often as they like.
static KILLED: Seldom = Seldom::new();
static TAKEN_AWAY: Seldom = Seldom::new();
static RESUMED_RUNNING: Seldom = Seldom::new();

/// An address space.
pub struct Space {
    /// Its handle.
    pub id: u32,
    /// The slots of its threads.
    pub area: Area,
    state: Mutex<SpaceState, place::Space>,
    /// Signalled when [`SpaceState::dropped`] becomes true.
    pub was_dropped: Condvar,
}

/// What changes.
pub struct SpaceState {
    /// The stub process, once it exists and until it is reaped.
    pub pid: Option<u32>,
    /// Its listener.
    pub listener: Option<Arc<Listener>>,
    /// Calls that wait are not torn by signals, so answers may come after those (see
    /// [`super::answers`]).
    pub answers_may_wait: bool,
    threads: HashMap<u32, Thread>,
    tids: HashMap<u32, u32>,
    /// Threads by the kernel's names for them.
    tokens: HashMap<u64, u32>,
    /// Threads that have not arrived, by their slots.
    unborn: HashMap<u32, u32>,
    last_thread: u32,
    slots: Slots,
    /// The kernel has dropped the space.
    pub dropped: bool,
    /// It was killed.
    killed: bool,
    /// The first host thread (and its notification), arrived before the kernel has made a guest
    /// thread for it.
    early: Option<(u32, u64)>,
    /// An upper bound of the stub's host mappings.
    pub(super) mappings: u64,
}

impl Space {
    /// A space whose stub is yet to be made.
    pub fn new(id: u32, area: Area) -> Self {
        Self {
            id,
            area,
            state: Mutex::new(SpaceState {
                pid: None,
                listener: None,
                answers_may_wait: false,
                threads: HashMap::default(),
                tids: HashMap::default(),
                tokens: HashMap::default(),
                unborn: HashMap::default(),
                last_thread: 0,
                slots: Slots::default(),
                dropped: false,
                killed: false,
                early: None,
                mappings: 16,
            }),
            was_dropped: Condvar::new(),
        }
    }

    /// Locks the state. Never held while the kernel runs.
    pub fn lock(&self) -> MutexGuard<'_, SpaceState> {
        self.state.lock()
    }

    pub(super) fn frame_address(&self, shared: &Shared, frame: FrameAt) -> u64 {
        self.slot_address(shared, frame.slot) + frame.offset
    }

    /// Where a slot lies in the stub.
    pub(super) fn slot_address(&self, shared: &Shared, slot: u32) -> u64 {
        shared.stub_area() + u64::from(slot) * SLOT_BYTES
    }

    /// Writes an operation to a slot's table.
    pub(super) fn put_op(&self, slot: u32, entry: usize, op: &HostOp) {
        for (i, word) in op.words.iter().enumerate() {
            self.area.write_u64(slot, SLOT_OPS + OP_BYTES * entry as u64 + 8 * i as u64, *word);
        }
    }

    /// Makes a thread; its number.
    pub fn thread_new(&self, shared: &Shared, creator: u32, token: u64) -> Result<u32, i32> {
        let mut state = self.lock();
        let state = &mut *state;
        if state.dropped || state.killed {
            return Err(libc::ESRCH);
        }
        if creator == 0 && state.last_thread != 0 {
            return Err(libc::EINVAL);
        }
        if creator != 0 && state.threads.get(&creator).is_none_or(|t| t.phase == Phase::Gone) {
            return Err(libc::ESRCH);
        }
        let number = state.last_thread.checked_add(1).ok_or(libc::EAGAIN)?;
        let slot = state
            .slots
            .take(&self.area, &shared.threads)
            .map_err(|e| e.raw_os_error().unwrap_or(libc::EAGAIN))?;
        // Its stub's first thread has one already.
        let room = match creator {
            0 => None,
            _ => match shared.room_for_thread() {
                Ok(room) => Some(Arc::new(room)),
                Err(e) => {
                    state.slots.give(&self.area, slot);
                    return Err(e);
                }
            },
        };
        state.last_thread = number;
        let frame = FrameAt { slot, offset: prepared_frame(shared.fp.frame_bytes() as u64) };
        frame.set_fpstate(&self.area, shared.stub_area(), None);
        frame.set_regs(
            &self.area,
            shared.stub_area(),
            &UserRegs { rflags: 0x202, ..UserRegs::default() },
        );
        let mut thread = Thread {
            token,
            slot,
            tid: 0,
            resumes: 0,
            phase: Phase::Unborn,
            frame,
            call: None,
            parked_unasked: false,
            pending: None,
            ops: Default::default(),
            after: After::Go,
            batch_reports: false,
            bases: true,
            stop_wanted: false,
            kick_out: false,
            watched: false,
            since_kick: None,
            clones: Vec::new(),
            room,
            unproven: None,
            yields: None,
            answered_inside: false,
            answer: None,
            dropped: false,
        };
        if let Some((tid, id)) = state.early.take() {
            thread.tid = tid;
            thread.phase = Phase::Parked(id);
            state.tids.insert(tid, number);
        } else {
            state.unborn.insert(slot, number);
        }
        state.threads.insert(number, thread);
        state.tokens.insert(token, number);
        if let Some(creator) = state.threads.get_mut(&creator) {
            creator.clones.push(number);
        }
        Ok(number)
    }

    /// Lets a thread go on.
    pub fn thread_resume(&self, shared: &Shared, number: u32, plan: Plan) {
        let mut state = self.lock();
        let Some(thread) = state.threads.get_mut(&number) else { return };
        thread.resumes += 1;
        // A stop that was asked for and not reported happens after it has gone on.
        let unreported = matches!(thread.pending, Some(Pending::ReportStopped))
            || matches!(thread.phase, Phase::Ops(_)) && thread.after == After::Stop;
        thread.stop_wanted |= unreported && !matches!(plan.kind, RESUME_HOLD | RESUME_EXIT);
        match thread.phase {
            Phase::Unborn | Phase::Kicked => thread.pending = Some(Pending::Resume(Box::new(plan))),
            Phase::Asleep => {
                thread.pending = Some(Pending::Resume(Box::new(plan)));
                asleep::wake_up(shared, self, number, thread);
            }
            Phase::Parked(_) => state.execute(self, shared, number, plan),
            Phase::Call(id) => state.resume_call(self, shared, number, id, plan),
            Phase::Fast => state.resume_fast(self, shared, number, plan),
            Phase::Ops(_) if thread.after == After::Stop => {
                thread.pending = Some(Pending::Resume(Box::new(plan)))
            }
            Phase::Repeating { .. } if thread.call.is_some() => {
                thread.pending = Some(Pending::Resume(Box::new(plan)))
            }
            Phase::User | Phase::Ops(_) | Phase::Repeating { .. } => {
                if RESUMED_RUNNING.count().is_some() {
                    warn!(space = self.id, number, "resume of a running thread")
                }
            }
            Phase::Gone => {}
        }
    }

    /// See [`PlatformOps::thread_answers`].
    pub fn thread_answers(&self, number: u32, tid: u32, pid: u32) {
        let mut state = self.lock();
        if let Some(thread) = state.threads.get_mut(&number)
            && thread.phase != Phase::Gone
        {
            fast::answer_alone(self, thread, tid, pid);
        }
    }

    /// Asks for a thread to be stopped.
    pub fn thread_stop(&self, shared: &Shared, number: u32) {
        let mut state = self.lock();
        let Some(thread) = state.threads.get_mut(&number) else { return };
        match thread.phase {
            Phase::Parked(_) if thread.parked_unasked => {
                thread.parked_unasked = false;
                thread.after = After::Stop;
                state.send_batch(self, shared, number);
            }
            Phase::Parked(_) | Phase::Gone => {}
            // Stopped as long as nothing has let it go. Then it comes soon, unless the thread that
            // is to make it sees to that it does not.
            Phase::Unborn => {
                thread.stop_wanted = thread.pending.is_some();
                if thread.stop_wanted {
                    thread.since_kick = None;
                    look_after(shared, self.id, number, thread);
                }
            }
            Phase::User => {
                thread.stop_wanted = true;
                state.kick(shared, self.id, number);
            }
            // The kernel has let it go on before it heard that it was stopped.
            Phase::Ops(_) if thread.after == After::Stop && thread.pending.is_some() => {
                thread.stop_wanted = true
            }
            // The report is a trap of its own.
            Phase::Ops(_) if thread.after != After::Go => {}
            Phase::Ops(_) => {
                thread.stop_wanted = true;
                state.kick(shared, self.id, number);
            }
            // A report comes.
            Phase::Repeating { .. } if thread.call.is_none() => thread.stop_wanted = true,
            Phase::Kicked | Phase::Repeating { .. } | Phase::Asleep => {
                match &thread.pending {
                    Some(Pending::Resume(plan)) => {
                        thread.stop_wanted = plan.kind != RESUME_HOLD && plan.kind != RESUME_EXIT
                    }
                    _ => thread.pending = Some(Pending::ReportStopped),
                }
                if thread.phase == Phase::Asleep {
                    asleep::wake_up(shared, self, number, thread);
                }
            }
            Phase::Call(id) => {
                state.kick_out_of_call(self, shared, number, id, Pending::ReportStopped)
            }
            Phase::Fast => state.kick_out(self, shared, number, Pending::ReportStopped),
        }
    }

    /// Forgets a thread; its host thread ends.
    pub fn thread_drop(&self, shared: &Shared, number: u32) {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(thread) = state.threads.get_mut(&number) else { return };
        thread.dropped = true;
        match thread.phase {
            Phase::Gone => state.forget(self, number),
            Phase::Parked(_) => state.execute(self, shared, number, Plan::exit()),
            Phase::Call(id) => state.resume_call(self, shared, number, id, Plan::exit()),
            Phase::Fast => state.resume_fast(self, shared, number, Plan::exit()),
            Phase::Kicked => thread.pending = Some(Pending::Resume(Box::new(Plan::exit()))),
            Phase::Asleep => {
                thread.pending = Some(Pending::Resume(Box::new(Plan::exit())));
                asleep::wake_up(shared, self, number, thread);
            }
            Phase::Repeating { .. } if thread.call.is_some() => {
                thread.pending = Some(Pending::Resume(Box::new(Plan::exit())));
            }
            Phase::Ops(_) if thread.after == After::Stop => {
                thread.pending = Some(Pending::Resume(Box::new(Plan::exit())));
            }
            Phase::Unborn => {
                thread.pending = Some(Pending::Resume(Box::new(Plan::exit())));
                // Not made yet? Then it never will be.
                let mut unmade = false;
                for other in state.threads.values_mut() {
                    let before = other.clones.len();
                    other.clones.retain(|n| *n != number);
                    unmade |= other.clones.len() != before;
                }
                if unmade {
                    state.forget(self, number);
                }
            }
            Phase::User | Phase::Ops(_) | Phase::Repeating { .. } => {}
        }
    }

    /// Ends the space.
    pub fn drop_space(&self) {
        let mut state = self.lock();
        state.dropped = true;
        if let Some(pid) = state.pid {
            sys::kill(pid);
        }
        self.was_dropped.notify_all();
    }

    /// Looks after a thread that was kicked, or awaited, some time ago. Stub code never blocks the
    /// kick in guest code, but a guest can, by a forged signal frame; then it can only be ended. So
    /// can one whose thread is not made as ordered. True to look again later.
    pub fn check_kick(&self, number: u32) -> bool {
        /// Clock ticks (of 10 ms) on a processor that nobody needs to leave the handler, nor for
        /// the next of the operations that it carries out there. What the host's kernel takes for
        /// one does not count.
        const PLENTY: u64 = 5;
        /// Looks after which not knowing is enough.
        const PATIENCE: u32 = 100;
        let mut state = self.lock();
        let (Some(pid), Some(thread)) = (state.pid, state.threads.get_mut(&number)) else {
            return false;
        };
        if asleep::wake_up_again(self, thread) {
            return true;
        }
        let waiting = match thread.phase {
            Phase::Unborn => thread.stop_wanted,
            Phase::User | Phase::Ops(_) => thread.stop_wanted && thread.kick_out,
            Phase::Kicked => thread.kick_out,
            _ => false,
        };
        if !waiting {
            thread.watched = false;
            return false;
        }
        let born = thread.phase != Phase::Unborn;
        if !born && state.is_one_starved(pid) {
            return true;
        }
        let Some(thread) = state.threads.get_mut(&number) else { return false };
        let now = if born { sys::thread_user_ticks(pid, thread.tid) } else { None };
        let (then, looks) = thread.since_kick.unwrap_or((now.unwrap_or(0), 0));
        thread.since_kick = Some((then, looks + 1));
        let blocked = if born { sys::blocks_signal(pid, thread.tid, KICK) } else { None };
        let evades = match (now, blocked) {
            (Some(now), Some(true)) => now >= then + PLENTY,
            (_, Some(false)) => false,
            _ => looks >= PATIENCE,
        };
        if evades {
            state.kill(self.id, "it does not let itself be stopped");
        }
        !evades
    }

    /// Copies the vector state of a stopped thread.
    pub fn fpstate_read(&self, shared: &Shared, number: u32) -> Result<Vec<u8>, i32> {
        let state = self.lock();
        let frame = state.stopped_frame(number)?;
        let offset = match frame.fpstate(&self.area, shared.stub_area()) {
            None => return Ok(Vec::new()),
            Some(offset) => offset.map_err(|()| libc::EFAULT)?,
        };
        let mut image = vec![0; shared.fp.frame_bytes()];
        if offset + image.len() as u64 > SLOT_BYTES {
            return Err(libc::EFAULT);
        }
        self.area.read(frame.slot, offset, &mut image);
        shared.fp.sanitize(&image).ok_or(libc::EFAULT)
    }

    /// Sets the vector state of a stopped thread.
    pub fn fpstate_write(&self, shared: &Shared, number: u32, image: &[u8]) -> Result<(), i32> {
        let state = self.lock();
        let frame = state.stopped_frame(number)?;
        if image.is_empty() {
            frame.set_fpstate(&self.area, shared.stub_area(), None);
            return Ok(());
        }
        let image = shared.fp.sanitize(image).ok_or(libc::EINVAL)?;
        // The top of the slot: where the host puts it, too, unless guest code ran on the signal
        // stack.
        let offset = (SLOT_BYTES - image.len() as u64) & !63;
        if frame.offset + super::frame::FRAME_BYTES > offset {
            return Err(libc::EFAULT);
        }
        self.area.write(frame.slot, offset, &image);
        frame.set_fpstate(&self.area, shared.stub_area(), Some(offset));
        Ok(())
    }
}

/// Has the watch look after a thread.
pub(super) fn look_after(shared: &Shared, space: u32, number: u32, thread: &mut Thread) {
    if !std::mem::replace(&mut thread.watched, true) {
        shared.watch.add(space, number);
    }
}

pub(super) fn trap(thread: &Thread, trap: Trap) -> Option<Event> {
    let trap = Trap { token: thread.token, resumes: thread.resumes, ..trap };
    Some(Event { kind: EVENT_TRAP, trap, ..Event::default() })
}

impl SpaceState {
    /// Tokens of threads that end without being asked to.
    pub fn live_threads(&self) -> Vec<u64> {
        let alive = |t: &&Thread| !t.dropped && t.phase != Phase::Gone && t.after != After::Exit;
        self.threads.values().filter(alive).map(|t| t.token).collect()
    }

    /// CPU time of a space that has no stub process: none before there was one. `None` if there was
    /// one that has ended.
    pub fn time_without_stub_ns(&self) -> Option<u64> {
        (!self.killed).then_some(0)
    }

    /// All threads are gone.
    pub fn mark_exited(&mut self) {
        self.pid = None;
        self.listener = None;
        self.killed = true;
        self.tids.clear();
        for thread in self.threads.values_mut() {
            thread.phase = Phase::Gone;
            thread.unproven = None;
            thread.ops.clear();
        }
    }

    /// Kills the stub: it did what stub code never does, or an operation failed.
    pub fn kill(&mut self, space: u32, why: &str) {
        if !self.killed {
            self.killed = true;
            if let Some(count) = KILLED.count() {
                warn!(space, "guest process killed: {why} ({count} so far)");
            }
            crate::sandbox::ended::incident(why);
            if let Some(pid) = self.pid {
                sys::kill(pid);
            }
        }
    }

    /// True if the host has a thread that has not said yet that it is there, and gives it no
    /// processor.
    fn is_one_starved(&self, pid: u32) -> bool {
        /// Clock ticks in which it would have said so.
        const FEW: u64 = 2;
        let is_starved = |tid: u32| {
            !self.tids.contains_key(&tid)
                && sys::is_ready_to_run(pid, tid)
                && sys::thread_user_ticks(pid, tid).is_some_and(|ticks| ticks < FEW)
        };
        sys::threads_of(pid).into_iter().any(is_starved)
    }

    /// Its process has ended: says how, unless that was asked for. A program that breaks its own
    /// stub, and the host when it has no memory, bring it about.
    pub fn note_end(&self, space: u32, end: sys::End) {
        if !self.killed
            && !self.dropped
            && !self.live_threads().is_empty()
            && let Some(count) = TAKEN_AWAY.count()
        {
            warn!(space, "guest process taken away by the host: {end:?} ({count} so far)");
        }
    }

    /// A thread by its number.
    pub(super) fn thread(&self, number: u32) -> Option<&Thread> {
        self.threads.get(&number)
    }

    /// A thread by its number.
    pub(super) fn thread_mut(&mut self, number: u32) -> Option<&mut Thread> {
        self.threads.get_mut(&number)
    }

    /// The call in which host thread `tid` waits: its thread's number, and the notification's id.
    pub(super) fn waiting_call(&self, tid: u32) -> Option<(u32, u64)> {
        let number = *self.tids.get(&tid)?;
        match self.threads.get(&number)?.phase {
            Phase::Call(id) => Some((number, id)),
            _ => None,
        }
    }

    /// The number of the thread that the kernel calls so.
    pub(super) fn number_of(&self, token: u64) -> Option<u32> {
        self.tokens.get(&token).copied()
    }

    /// The number of a thread.
    pub(super) fn find_thread(&self, is_it: impl Fn(&Thread) -> bool) -> Option<u32> {
        self.threads.iter().find(|(_, t)| is_it(t)).map(|(number, _)| *number)
    }

    /// How many mappings the operations can still add that were let through and are not proven.
    pub(super) fn unproven_mappings(&self) -> u64 {
        self.threads.values().filter_map(|t| t.unproven.as_ref()).map(HostOp::new_mappings).sum()
    }

    /// Gives slots back that no thread uses; see [`Slots::trim`].
    pub fn trim(&mut self, space: &Space, shared: &Shared) {
        self.slots.trim(&space.area, &shared.threads);
    }

    /// Slots that count for the limit of threads.
    pub fn slot_count(&self) -> u32 {
        self.slots.count()
    }

    /// True if it was killed.
    pub(super) fn is_killed(&self) -> bool {
        self.killed
    }

    fn forget(&mut self, space: &Space, number: u32) {
        let Some(thread) = self.threads.remove(&number) else { return };
        self.tokens.remove(&thread.token);
        if thread.phase == Phase::Unborn {
            self.unborn.remove(&thread.slot);
        }
        if thread.phase != Phase::Gone {
            self.slots.give(&space.area, thread.slot);
        }
    }

    fn stopped_frame(&self, number: u32) -> Result<FrameAt, i32> {
        let thread = self.threads.get(&number).ok_or(libc::ESRCH)?;
        match thread.phase {
            Phase::Parked(_) | Phase::Unborn => Ok(thread.frame),
            Phase::Gone => Err(libc::ESRCH),
            _ => Err(libc::EBUSY),
        }
    }

    pub(super) fn answer(&self, id: u64, value: i64) {
        self.send(Answer::Value(id, value));
    }

    pub(super) fn let_continue(&self, id: u64) {
        self.send(Answer::Continue(id));
    }

    fn send(&self, answer: Answer) {
        if let Some(listener) = &self.listener {
            answers::send(listener, answer, self.answers_may_wait);
        }
    }

    /// Interrupts a thread. Where it has been given an answer, that is sent before, if it has not
    /// been: hosts before Linux 6.18 may make a call anew that is answered after a signal.
    fn kick(&mut self, shared: &Shared, space: u32, number: u32) {
        let Some(thread) = self.threads.get_mut(&number) else { return };
        if let Some(pid) = self.pid
            && !thread.kick_out
            && thread.tid != 0
        {
            if let (Some(answer), Some(listener)) = (thread.answer.take(), &self.listener) {
                answer.send(listener);
            }
            thread.kick_out = sys::tgkill(pid, thread.tid, KICK).is_ok();
            thread.since_kick = None;
            look_after(shared, space, number, thread);
        }
    }

    /// Interrupts a thread that has made a call and has no answer, so that its registers come; then
    /// `pending`.
    pub(super) fn kick_out(
        &mut self,
        space: &Space,
        shared: &Shared,
        number: u32,
        pending: Pending,
    ) {
        self.kick(shared, space.id, number);
        let Some(thread) = self.threads.get_mut(&number) else { return };
        if !thread.kick_out {
            debug!(space = space.id, number, "no thread to kick");
        }
        thread.phase = Phase::Kicked;
        thread.pending = Some(pending);
    }

    /// Gives a system call up that waits in the host.
    pub(super) fn kick_out_of_call(
        &mut self,
        space: &Space,
        shared: &Shared,
        number: u32,
        id: u64,
        pending: Pending,
    ) {
        self.kick_out(space, shared, number, pending);
        // Where a signal tears a waiting call, the kick has done it already, or will.
        if shared.wait_killable {
            self.answer(id, 0);
        }
    }

    /// Lets a thread go on that waits in a system call.
    fn resume_call(&mut self, space: &Space, shared: &Shared, number: u32, id: u64, plan: Plan) {
        let Some(thread) = self.threads.get_mut(&number) else { return };
        let Some(call) = thread.call else { return };
        // The kick may tear the call even where the host says that it does not (Linux before 6.18,
        // if the answer comes too fast).
        let torn = thread.kick_out;
        if thread.clones.is_empty() && !torn && plan.is_plain_answer() {
            thread.call = None;
            thread.phase = Phase::User;
            thread.answered_inside = answers::answers_another(space.id);
            fast::after_yield(space, thread, call.nr);
            if call.fast {
                fast::answer_in_slot(space, thread.slot, plan.value);
            }
            thread.answer = Some(Answer::Value(id, plan.value));
            return self.answer(id, plan.value);
        }
        if thread.clones.is_empty() && !torn && !call.fast {
            if plan.kind == RESUME_EXIT && plan.ops.is_empty() && call.nr == libc::SYS_exit as u64 {
                self.gone(space, number);
                return self.let_continue(id);
            }
            if plan.kind == RESUME_RETURN
                && plan.value == 0
                && self.sets_own_base(shared, call, &plan)
            {
                if let Some(thread) = self.threads.get_mut(&number) {
                    thread.call = None;
                    thread.phase = Phase::User;
                    thread.answer = Some(Answer::Continue(id));
                }
                return self.let_continue(id);
            }
        }
        self.kick_out_of_call(space, shared, number, id, Pending::Resume(Box::new(plan)));
    }

    /// True if the plan is to set the FS base as the guest's own call does, which cannot fail. No
    /// call that changes mappings is let through as the guest made it: nobody would learn that the
    /// host refused it.
    fn sets_own_base(&self, shared: &Shared, call: GuestCall, plan: &Plan) -> bool {
        const ARCH_SET_FS: u64 = 0x1002;
        plan.ops.is_empty()
            && plan.name.is_none()
            && plan.gs.is_none()
            && plan.fs == Some(call.args[1])
            && call.nr == libc::SYS_arch_prctl as u64
            && call.args[0] == ARCH_SET_FS
            && call.args[1] < shared.user_max()
    }

    /// Carries out a plan on a parked thread.
    fn execute(&mut self, space: &Space, shared: &Shared, number: u32, plan: Plan) {
        let area = &space.area;
        let Some(thread) = self.threads.get_mut(&number) else { return };
        thread.parked_unasked = false;
        match plan.kind {
            RESUME_RETURN if thread.call.take().is_some() => {
                thread.frame.set_rax(area, plan.value as u64)
            }
            RESUME_REGS => {
                thread.call = None;
                thread.frame.set_regs(area, shared.stub_area(), &plan.regs);
                thread.bases = true;
            }
            RESUME_GO => thread.call = None,
            _ => {}
        }
        if let Some(fs) = plan.fs {
            area.write_u64(thread.slot, SLOT_FS, super::frame::canonical(fs));
            thread.bases = true;
        }
        if let Some(gs) = plan.gs {
            thread.frame.set_gs(area, gs);
            thread.bases = true;
        }
        thread.after = match plan.kind {
            RESUME_HOLD => After::Hold,
            RESUME_EXIT => After::Exit,
            _ => After::Go,
        };
        let clones = std::mem::take(&mut thread.clones);
        let mut ops = std::collections::VecDeque::from(plan.ops);
        if let Some(name) = plan.name {
            let slot = self.threads.get(&number).map_or(0, |thread| thread.slot);
            let at = shared.stub_area() + u64::from(slot) * SLOT_BYTES + SLOT_NAME;
            ops.push_back(HostOp::set_name(name, at));
        }
        for child in clones {
            if let Some(child) = self.threads.get_mut(&child) {
                let room = child.room.take();
                ops.push_back(HostOp::clone_thread(space.frame_address(shared, child.frame), room));
            }
        }
        if plan.kind == RESUME_EXIT {
            ops.push_back(HostOp::exit());
        }
        let Some(thread) = self.threads.get_mut(&number) else { return };
        thread.ops = ops;
        self.send_batch(space, shared, number);
    }

    /// Hands the next operations to a parked thread.
    fn send_batch(&mut self, space: &Space, shared: &Shared, number: u32) {
        let Some(thread) = self.threads.get_mut(&number) else { return };
        let Phase::Parked(id) = thread.phase else { return };
        let count = thread.ops.len().min(MAX_BATCH);
        for (i, op) in thread.ops.iter().take(count).enumerate() {
            space.put_op(thread.slot, i, op);
        }
        thread.batch_reports =
            count < thread.ops.len() || matches!(thread.after, After::Hold | After::Stop);
        let mut answer = count as u64;
        if thread.batch_reports {
            answer |= 1 << GO_HOLD_BIT;
        } else if std::mem::take(&mut thread.bases) {
            answer |= 1 << GO_BASES_BIT;
        }
        thread.phase =
            if count == 0 && !thread.batch_reports { Phase::User } else { Phase::Ops(count) };
        if thread.stop_wanted && thread.after == After::Go {
            self.kick(shared, space.id, number);
        } else {
            thread.answer = Some(Answer::Value(id, answer as i64));
        }
        self.answer(id, answer as i64);
    }

    /// The thread's host thread ends: its exit was let through.
    fn gone(&mut self, space: &Space, number: u32) {
        let Some(thread) = self.threads.get_mut(&number) else { return };
        thread.phase = Phase::Gone;
        thread.after = After::Exit;
        thread.unproven = None;
        self.tids.remove(&thread.tid);
        // exit(2) does not come back to stub code, so nothing uses the slot any more.
        self.slots.give(&space.area, thread.slot);
        if thread.dropped {
            self.forget(space, number);
        }
    }

    /// Takes a notification in. The event to deliver, if any.
    pub fn notified(&mut self, space: &Space, shared: &Shared, n: &Notification) -> Option<Event> {
        if self.killed {
            return None;
        }
        let ip = n.data.instruction_pointer;
        let nr = u64::from(n.data.nr as u32);
        let args = n.data.args;
        let frame_call = nr == FRAME_NR && ip == shared.zygote.addresses.frame_ip;
        let wait = fast::is_wait(shared, nr, ip);
        let Some(number) = self.tids.get(&n.pid).copied() else {
            if frame_call && args[0] == REASON_START {
                return self.started(space, shared, n);
            }
            self.kill(space.id, "a call from an unknown thread");
            return None;
        };
        if self.is_repeated(shared, number, n) {
            self.repeat(space, shared, number, n.id);
            return None;
        }
        let thread = self.threads.get_mut(&number)?;
        thread.answer = None;
        if !(frame_call && args[0] == KICK as u64) {
            thread.unproven = None;
        }
        match thread.phase {
            Phase::User if frame_call => self.frame_from_user(space, shared, number, n),
            // Its answer came just before it asked to wait for it, or its kick comes just after.
            Phase::User | Phase::Kicked
                if wait
                    && (thread.phase == Phase::Kicked || fast::is_answered(space, thread.slot)) =>
            {
                self.answer(n.id, 0);
                None
            }
            Phase::Fast | Phase::Call(_) if wait && thread.call.is_some_and(|c| c.fast) => {
                thread.phase = Phase::Call(n.id);
                None
            }
            Phase::User => {
                thread.phase = Phase::Call(n.id);
                thread.stop_wanted = false;
                let call = GuestCall { nr, args, ip, fast: false };
                thread.call = Some(call);
                trap(thread, Trap { kind: TRAP_SYSCALL, nr, args, ip, ..Trap::default() })
            }
            Phase::Kicked | Phase::Call(_) | Phase::Fast
                if frame_call && args[0] == KICK as u64 =>
            {
                self.kicked_frame(space, shared, number, n)
            }
            // A host that lets any stop or freeze tear a waiting call: the same call again.
            Phase::Call(_) if thread.call == Some(GuestCall { nr, args, ip, fast: false }) => {
                thread.phase = Phase::Call(n.id);
                None
            }
            Phase::Parked(_)
                if frame_call && args[1] == space.frame_address(shared, thread.frame) =>
            {
                thread.phase = Phase::Parked(n.id);
                None
            }
            Phase::Ops(left) => self.op_step(space, shared, number, left, n),
            Phase::Asleep => self.sleep_step(space, shared, number, n),
            Phase::Repeating { begun: true } if frame_call => {
                self.repeat_reported(space, shared, number, n)
            }
            phase => {
                self.kill(space.id, &format!("unexpected call {nr:#x} at {ip:#x} in {phase:?}"));
                None
            }
        }
    }

    /// A host thread has arrived.
    fn started(&mut self, space: &Space, shared: &Shared, n: &Notification) -> Option<Event> {
        // Where its frame lies says which one it is.
        let slot = n.data.args[1].wrapping_sub(shared.stub_area()) / SLOT_BYTES;
        let number = u32::try_from(slot).ok().and_then(|slot| self.unborn.get(&slot).copied());
        let is_it = |number: &u32| {
            self.threads.get(number).is_some_and(|t| {
                t.phase == Phase::Unborn && space.frame_address(shared, t.frame) == n.data.args[1]
            })
        };
        let Some(number) = number.filter(is_it) else {
            if self.last_thread == 0 && self.early.is_none_or(|(tid, _)| tid == n.pid) {
                self.early = Some((n.pid, n.id));
                return None;
            }
            self.kill(space.id, "a thread that nobody asked for");
            return None;
        };
        self.tids.insert(n.pid, number);
        let thread = self.threads.get_mut(&number)?;
        self.unborn.remove(&thread.slot);
        thread.tid = n.pid;
        thread.phase = Phase::Parked(n.id);
        self.run_pending(space, shared, number)
    }

    /// Does what was put off until the thread is parked.
    pub(super) fn run_pending(
        &mut self,
        space: &Space,
        shared: &Shared,
        number: u32,
    ) -> Option<Event> {
        let thread = self.threads.get_mut(&number)?;
        match thread.pending.take() {
            None => None,
            Some(Pending::ReportStopped) => {
                thread.stop_wanted = false;
                self.stopped_event(space, number)
            }
            Some(Pending::Resume(plan)) => {
                self.execute(space, shared, number, *plan);
                None
            }
            Some(Pending::Sleep) => {
                thread.parked_unasked = true;
                self.fall_asleep(space, number);
                None
            }
        }
    }

    fn stopped_event(&mut self, space: &Space, number: u32) -> Option<Event> {
        let thread = self.threads.get(&number)?;
        let in_syscall = u32::from(thread.call.is_some());
        let regs = thread.frame.regs(&space.area);
        trap(thread, Trap { kind: TRAP_STOPPED, in_syscall, regs, ..Trap::default() })
    }

    /// Checks the frame of a frame call and parks the thread on it.
    fn park(&mut self, space: &Space, shared: &Shared, number: u32, n: &Notification) -> bool {
        let Some(thread) = self.threads.get_mut(&number) else { return false };
        match FrameAt::check(shared.stub_area(), thread.slot, n.data.args[1]) {
            Some(frame) => {
                thread.frame = frame;
                thread.phase = Phase::Parked(n.id);
                self.finish_fast(space, shared, number, frame);
                true
            }
            None => {
                self.kill(space.id, "a signal frame outside its stack");
                false
            }
        }
    }

    /// The frame of a thread that was kicked out of its system call.
    fn kicked_frame(
        &mut self,
        space: &Space,
        shared: &Shared,
        number: u32,
        n: &Notification,
    ) -> Option<Event> {
        if !self.park(space, shared, number, n) {
            return None;
        }
        let thread = self.threads.get_mut(&number)?;
        thread.kick_out = false;
        // Torn rather than answered: the host would make the call again.
        if let Some(call) = thread.call
            && thread.frame.regs(&space.area).rip == call.ip.wrapping_sub(2)
        {
            thread.frame.set_rip(&space.area, call.ip);
        }
        self.kick_arrived(space, shared, number)
    }

    /// A thread is parked by its kick, and has proved that its operations are carried out.
    pub(super) fn proven_kick(
        &mut self,
        space: &Space,
        shared: &Shared,
        number: u32,
    ) -> Option<Event> {
        let thread = self.threads.get_mut(&number)?;
        if thread.call.is_some() {
            thread.parked_unasked = thread.pending.is_none();
            return self.run_pending(space, shared, number);
        }
        if std::mem::take(&mut thread.stop_wanted) {
            return self.stopped_event(space, number);
        }
        // Its stop was overtaken by a trap.
        self.execute(space, shared, number, Plan::go());
        None
    }

    /// A frame call of a thread that was in guest code.
    fn frame_from_user(
        &mut self,
        space: &Space,
        shared: &Shared,
        number: u32,
        n: &Notification,
    ) -> Option<Event> {
        let reason = n.data.args[0];
        if reason == REASON_FAIL {
            let error = host_error(n.data.args[2]);
            self.kill(space.id, &format!("its last change of mappings failed: {error}"));
            return None;
        }
        if reason > 31 || 1 << reason & super::stub::HANDLED == 0 {
            self.kill(space.id, "a false report from stub code");
            return None;
        }
        if !self.park(space, shared, number, n) {
            return None;
        }
        let thread = self.threads.get_mut(&number)?;
        let signal = reason as i32;
        if signal == KICK {
            thread.kick_out = false;
            return self.kick_arrived(space, shared, number);
        }
        thread.stop_wanted = false;
        let frame = thread.frame.load(&space.area);
        let regs = thread.frame.regs_of(&space.area, &frame);
        if signal == libc::SIGSYS {
            return self.call_by_signal(space, number, regs);
        }
        let cause = frame.cause();
        const PAGE_FAULT: u64 = 14;
        const FAULT_BITS: u64 = 1 | 2 | 4 | 16;
        let is_fault = signal == libc::SIGSEGV
            && cause.trapno == PAGE_FAULT
            && (1..0x80).contains(&cause.si_code);
        let what = if is_fault {
            Trap {
                kind: TRAP_FAULT,
                addr: cause.cr2,
                code: cause.err & FAULT_BITS,
                regs,
                ..Trap::default()
            }
        } else {
            Trap {
                kind: TRAP_EXCEPTION,
                signo: signal,
                si_code: cause.si_code,
                addr: cause.si_addr,
                regs,
                ..Trap::default()
            }
        };
        trap(thread, what)
    }

    /// A system call that came as a signal ([`super::stub::BY_SIGNAL`]): the host has not executed
    /// it, and the thread is parked with its registers.
    fn call_by_signal(&mut self, space: &Space, number: u32, regs: UserRegs) -> Option<Event> {
        // As the host takes it: half of the register.
        let nr = u64::from(regs.rax as u32);
        if !super::stub::BY_SIGNAL.iter().any(|by_signal| *by_signal as u64 == nr) {
            self.kill(space.id, "a false report of a system call");
            return None;
        }
        let thread = self.threads.get_mut(&number)?;
        let (ip, args) = (regs.rip, [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9]);
        thread.call = Some(GuestCall { nr, args, ip, fast: false });
        let what =
            Trap { kind: TRAP_SYSCALL, in_syscall: 1, nr, args, ip, regs, ..Trap::default() };
        trap(thread, what)
    }

    /// A call of a thread that carries out operations: the next operation, word by word, or the
    /// report at the end.
    fn op_step(
        &mut self,
        space: &Space,
        shared: &Shared,
        number: u32,
        left: usize,
        n: &Notification,
    ) -> Option<Event> {
        let thread = self.threads.get_mut(&number)?;
        let nr = u64::from(n.data.nr as u32);
        let ip = n.data.instruction_pointer;
        let addresses = &shared.zygote.addresses;
        let makes_thread = thread.ops.front().is_some_and(HostOp::is_clone);
        if left > 0 && ip == if makes_thread { addresses.clone_ip } else { addresses.op_ip } {
            let expected = thread.ops.front().map(|o| o.words);
            let [a, b, c, d, e, f] = n.data.args;
            if expected == Some([nr, a, b, c, d, e, f])
                && let Some(mut op) = thread.ops.pop_front()
            {
                // It does what it was told to: its kick comes when that is done.
                thread.since_kick = None;
                thread.phase = if left == 1 && !thread.batch_reports {
                    Phase::User
                } else {
                    Phase::Ops(left - 1)
                };
                if op.is_exit() {
                    self.gone(space, number);
                } else if let (Some(file), Some(place)) = (&op.file, &op.place)
                    && !place.is_there()
                    && let Some(listener) = &self.listener
                {
                    match listener.put_file(n.id, file, place.number) {
                        Ok(()) => place.set_there(),
                        // It is being killed.
                        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                        Err(e) => {
                            self.kill(space.id, &format!("give it a file to map: {e}"));
                            return None;
                        }
                    }
                }
                op.file = None;
                op.room = None;
                self.let_through(space, shared, number, n.id, op);
                return None;
            }
        }
        let report = nr == FRAME_NR && ip == shared.zygote.addresses.frame_ip;
        let reason = n.data.args[0];
        if report && reason == REASON_FAIL {
            let error = host_error(n.data.args[2]);
            self.kill(space.id, &format!("a change of its mappings failed: {error}"));
            return None;
        }
        let in_place = n.data.args[1] == space.frame_address(shared, thread.frame);
        if !(report && reason == REASON_DONE && left == 0 && in_place) {
            self.kill(space.id, &format!("call {nr:#x} at {ip:#x} instead of an operation"));
            return None;
        }
        thread.phase = Phase::Parked(n.id);
        if !thread.ops.is_empty() {
            self.send_batch(space, shared, number);
            return None;
        }
        if thread.after == After::Stop {
            return match thread.pending {
                Some(_) => self.run_pending(space, shared, number),
                None => self.stopped_event(space, number),
            };
        }
        let regs = thread.frame.regs(&space.area);
        trap(thread, Trap { kind: TRAP_SYNCED, regs, ..Trap::default() })
    }
}
