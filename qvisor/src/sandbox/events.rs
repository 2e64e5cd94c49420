//! The event loop: one thread that sleeps in epoll_wait(2) until a watched socket or stream, the
//! timer or a control connection has something, and notifies the kernel. This is also what wakes a
//! hibernated sandbox.

use std::cell::Cell;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use qlib::platform::{ANY_TOKEN, EVENT_PRESSURE, EVENT_READY, EVENT_TIMER, Event};
use rustix::event::{EventfdFlags, PollFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::sys;
use crate::sys::ordered::{Mutex, place};

/// Keys of the loop's own descriptors have this bit; tokens of the guest may not.
pub const INTERNAL: u64 = 1 << 63;
const KEY_TIMER: u64 = INTERNAL;
const KEY_WAKE: u64 = INTERNAL | 1;
const KEY_GUEST: u64 = INTERNAL | 2;
const KEY_PRESSURE: u64 = INTERNAL | 3;
/// The first key free for [`Sources`].
pub const KEY_FIRST: u64 = INTERNAL | 16;

/// No exit has been asked for.
const NO_EXIT: i32 = -1;
/// Events that are taken from epoll together.
const MOST_AT_ONCE: usize = 32;
/// Wake-ups in a row for something of the guest's that others had taken by then, after which the
/// loop looks at intervals only: processes of the guest talk to each other, and who serves the
/// sender looks himself.
const MOST_VAIN: u32 = 16;
/// Such an interval. What comes from outside meanwhile is that much later, if no process of the
/// guest sends anything.
const INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000 };
/// How often others take something in an interval, at least, for another one to follow.
const OFTEN: u32 = 4;

thread_local! {
    /// How often this thread has taken something.
    static TAKEN_HERE: Cell<u32> = const { Cell::new(0) };
}

/// Events that may wait here, apart from those that epoll keeps.
const MAX_PENDING: usize = 65_536;

/// Gives an event to the kernel.
pub type Dispatch<'a> = &'a dyn Fn(&Event);

/// The half of the event loop that host calls reach from any thread.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    /// What the guest watches. The loop's own set holds it, unless somebody else looks at it
    /// ([`Poller::look_begin`]).
    guest: OwnedFd,
    timer: OwnedFd,
    wake: OwnedFd,
    /// The deadline that the timer is armed for; `u64::MAX` when it is not.
    deadline: AtomicU64,
    pending: Mutex<VecDeque<Event>, place::PendingEvents>,
    exit: AtomicI32,
    /// The kernel takes what is ready itself ([`Poller::be_asked`]).
    is_asked: AtomicBool,
    /// How often anybody has taken something of what the guest watches.
    taken: AtomicU32,
    /// How many look at what the guest watches themselves.
    lookers: Mutex<u32, place::Lookers>,
}

/// What a [turn](Poller::turn) of the loop was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing of the guest's.
    Other,
    /// Something of the guest's, and others had taken it.
    Vain,
    /// Something of the guest's, which it has taken.
    Found,
}

/// What else the loop serves: the control socket.
pub trait Sources {
    /// A descriptor added under `key` is ready.
    fn ready(&mut self, key: u64, dispatch: Dispatch<'_>);
}

impl Poller {
    /// A poller that watches nothing yet.
    pub fn new() -> Result<Poller, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let guest = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = rustix::time::timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        // Edge triggered: each expiry is one edge, so the timer needs no read(2).
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(KEY_TIMER), edge)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(KEY_WAKE), edge)?;
        epoll::add(&epoll, &guest, epoll::EventData::new_u64(KEY_GUEST), epoll::EventFlags::IN)?;
        Ok(Poller {
            epoll,
            guest,
            timer,
            wake,
            deadline: AtomicU64::new(u64::MAX),
            pending: Mutex::default(),
            exit: AtomicI32::new(NO_EXIT),
            is_asked: AtomicBool::new(false),
            taken: AtomicU32::new(0),
            lookers: Mutex::default(),
        })
    }

    /// From now on an event says only that something is ready, and the kernel [takes](Self::take)
    /// it: so nothing is ever on its way to a kernel that asks.
    pub fn be_asked(&self) {
        self.is_asked.store(true, Ordering::Release);
    }

    /// True if the kernel asks.
    pub fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }

    /// Reports what `fd` becomes ready for, edge triggered, with `token` from now on, beginning
    /// with its state now. A second call changes the token and reports anew. EINVAL for a token
    /// with the highest bit, EPERM for what cannot be watched.
    pub fn watch(&self, fd: BorrowedFd<'_>, token: u64) -> Result<(), Errno> {
        if token & INTERNAL != 0 {
            return Err(Errno::INVAL);
        }
        use epoll::EventFlags as F;
        let (data, flags) =
            (epoll::EventData::new_u64(token), F::IN | F::OUT | F::PRI | F::RDHUP | F::ET);
        match epoll::add(&self.guest, fd, data, flags) {
            Err(Errno::EXIST) => epoll::modify(&self.guest, fd, data, flags),
            other => other,
        }
    }

    /// Stops watching `fd`.
    pub fn unwatch(&self, fd: BorrowedFd<'_>) {
        // It fails only if the descriptor is not watched, which is what is wanted.
        epoll::delete(&self.guest, fd).ok();
    }

    /// Adds a descriptor of the VMM itself, level triggered, under `key` (which has [`INTERNAL`]
    /// set).
    pub fn add_source(&self, fd: BorrowedFd<'_>, key: u64) -> Result<(), Errno> {
        epoll::add(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(key | INTERNAL),
            epoll::EventFlags::IN,
        )
    }

    /// Has an EVENT_PRESSURE tell that `fd` became ready for `flags`, or, with none, no longer. Not
    /// in the guest's set: who asks that one whether something is ready would use up what a trigger
    /// of PSI tells once.
    pub fn watch_pressure(
        &self,
        fd: BorrowedFd<'_>,
        flags: Option<epoll::EventFlags>,
    ) -> Result<(), Errno> {
        let done = match flags {
            Some(flags) => {
                epoll::add(&self.epoll, fd, epoll::EventData::new_u64(KEY_PRESSURE), flags)
            }
            None => epoll::delete(&self.epoll, fd),
        };
        match done {
            Err(Errno::EXIST | Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    /// Queues an EVENT_READY for an object that is always ready.
    pub fn post_ready(&self, token: u64, mask: u32) -> Result<(), Errno> {
        if token & INTERNAL != 0 {
            return Err(Errno::INVAL);
        }
        let mut pending = self.pending.lock();
        if pending.len() >= MAX_PENDING {
            return Err(Errno::AGAIN);
        }
        pending.push_back(Event {
            kind: EVENT_READY,
            a: token,
            b: u64::from(mask),
            ..Event::default()
        });
        drop(pending);
        self.wake();
        Ok(())
    }

    /// Has the loop dispatch `event` soon, for those who are inside a host call and cannot dispatch
    /// themselves. They see to it that there are few.
    pub fn post(&self, event: Event) {
        self.pending.lock().push_back(event);
        self.wake();
    }

    /// Arms the timer for `deadline_ns` of CLOCK_MONOTONIC; `u64::MAX` disarms it.
    pub fn set_timer(&self, deadline_ns: u64) {
        if self.deadline.swap(deadline_ns, Ordering::AcqRel) == deadline_ns {
            return;
        }
        let value = match deadline_ns {
            u64::MAX => Timespec { tv_sec: 0, tv_nsec: 0 },
            // Zero would disarm.
            ns => Timespec {
                tv_sec: (ns / 1_000_000_000) as i64,
                tv_nsec: (ns % 1_000_000_000).max(u64::from(ns == 0)) as i64,
            },
        };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // The arguments are valid, so it cannot fail.
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec).ok();
    }

    /// Ends the event loop with `status`. The first call counts.
    pub fn request_exit(&self, status: i32) {
        self.exit
            .compare_exchange(NO_EXIT, status.max(0), Ordering::AcqRel, Ordering::Acquire)
            .ok();
        self.wake();
    }

    /// The status given to [`Poller::request_exit`].
    pub fn exit_status(&self) -> Option<i32> {
        Some(self.exit.load(Ordering::Acquire)).filter(|s| *s != NO_EXIT)
    }

    fn wake(&self) {
        // EAGAIN means that the counter is full, and then the loop is awake.
        rustix::io::write(&self.wake, &1u64.to_ne_bytes()).ok();
    }

    /// Waits once, at most `timeout`, and dispatches everything that happened.
    pub fn turn(
        &self,
        timeout: Option<Timespec>,
        dispatch: Dispatch<'_>,
        sources: &mut dyn Sources,
    ) -> Result<Turn, Errno> {
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; MOST_AT_ONCE];
        let events = match epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(Turn::Other),
            Err(e) => return Err(e),
        };
        let mut turn = Turn::Other;
        for event in events {
            if self.exit_status().is_some() {
                break;
            }
            // A packed structure: its fields are copied out.
            let data = event.data;
            match data.u64() {
                KEY_TIMER => {
                    // What the timer was armed for is over: the same deadline may be set again.
                    self.deadline.store(u64::MAX, Ordering::Release);
                    dispatch(&Event { kind: EVENT_TIMER, ..Event::default() });
                }
                KEY_WAKE => self.drain(dispatch),
                // A trigger whose file is gone says so once, and nothing more.
                KEY_PRESSURE if { event.flags }.contains(epoll::EventFlags::ERR) => {}
                KEY_PRESSURE => {
                    dispatch(&Event { kind: EVENT_PRESSURE, ..Event::default() });
                }
                KEY_GUEST => {
                    let before = TAKEN_HERE.get();
                    self.look(dispatch);
                    turn = if TAKEN_HERE.get() == before { Turn::Vain } else { Turn::Found };
                }
                key => sources.ready(key, dispatch),
            }
        }
        Ok(turn)
    }

    /// Dispatches what is ready of what the guest watches, without waiting. True if anything was.
    pub fn look(&self, dispatch: Dispatch<'_>) -> bool {
        if self.is_asked() {
            let is_ready = sys::poll_now(&self.guest, PollFlags::IN).is_ok_and(|f| !f.is_empty());
            if is_ready {
                dispatch(&Event { kind: EVENT_READY, a: ANY_TOKEN, ..Event::default() });
            }
            return is_ready;
        }
        self.take(MOST_AT_ONCE, |token, mask| {
            dispatch(&Event { kind: EVENT_READY, a: token, b: mask.into(), ..Event::default() })
        })
    }

    /// Takes what is ready of what the guest watches, tokens and masks, at most `most` of them,
    /// without waiting. True if anything was.
    pub fn take(&self, most: usize, mut each: impl FnMut(u64, u32)) -> bool {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; MOST_AT_ONCE];
        let Some(space) = space.get_mut(..most.min(MOST_AT_ONCE)).filter(|s| !s.is_empty()) else {
            return false;
        };
        let Ok((events, _)) = epoll::wait(&self.guest, space, Some(&NOW)) else {
            return false;
        };
        for event in &*events {
            // A packed structure: its fields are copied out.
            let (data, flags) = (event.data, event.flags);
            each(data.u64(), flags.bits());
        }
        if !events.is_empty() {
            self.taken.fetch_add(1, Ordering::Relaxed);
            TAKEN_HERE.set(TAKEN_HERE.get().wrapping_add(1));
        }
        !events.is_empty()
    }

    /// What can be read when [`Self::look`] would find something.
    pub fn guest_fd(&self) -> BorrowedFd<'_> {
        self.guest.as_fd()
    }

    /// From now on the caller [`Self::look`]s often at what the guest watches, and the loop sleeps
    /// on.
    pub fn look_begin(&self) {
        let mut lookers = self.lookers.lock();
        *lookers += 1;
        if *lookers == 1 {
            self.loop_watches_guest(epoll::EventFlags::empty());
        }
    }

    /// The caller does so no more. When nobody does, the loop watches again what the guest watches.
    pub fn look_end(&self) {
        let mut lookers = self.lookers.lock();
        *lookers -= 1;
        if *lookers == 0 {
            self.loop_watches_guest(epoll::EventFlags::IN);
        }
    }

    fn loop_watches_guest(&self, flags: epoll::EventFlags) {
        // The descriptor is in the set, so it cannot fail.
        epoll::modify(&self.epoll, &self.guest, epoll::EventData::new_u64(KEY_GUEST), flags).ok();
    }

    fn drain(&self, dispatch: Dispatch<'_>) {
        rustix::io::read(&self.wake, &mut [0u8; 8]).ok();
        // Only what is there now: an event may cause another.
        let events = std::mem::take(&mut *self.pending.lock());
        for event in events {
            dispatch(&event);
        }
    }

    /// Runs until [`Poller::request_exit`]; the status.
    pub fn run(&self, dispatch: Dispatch<'_>, sources: &mut dyn Sources) -> Result<i32, Errno> {
        let mut vain = 0;
        loop {
            if let Some(status) = self.exit_status() {
                return Ok(status);
            }
            match self.turn(None, dispatch, sources)? {
                Turn::Other => {}
                Turn::Found => vain = 0,
                Turn::Vain => vain += 1,
            }
            if vain == MOST_VAIN {
                vain = 0;
                self.look_begin();
                let result = self.run_slowly(dispatch, sources);
                self.look_end();
                result?;
            }
        }
    }

    /// Looks at what the guest watches at intervals, as long as others take it all the time.
    fn run_slowly(&self, dispatch: Dispatch<'_>, sources: &mut dyn Sources) -> Result<(), Errno> {
        loop {
            let (all, here) = (self.taken.load(Ordering::Relaxed), TAKEN_HERE.get());
            self.turn(Some(INTERVAL), dispatch, sources)?;
            self.look(dispatch);
            let by_others = self.taken.load(Ordering::Relaxed).wrapping_sub(all);
            let others_look = *self.lookers.lock() > 1;
            if TAKEN_HERE.get() != here
                || by_others < OFTEN
                || others_look
                || self.exit_status().is_some()
            {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::{Duration, Instant};

    use super::*;

    struct NoSources;
    impl Sources for NoSources {
        fn ready(&mut self, key: u64, _: Dispatch<'_>) {
            panic!("nothing was added under {key:#x}");
        }
    }

    fn monotonic_ns() -> u64 {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    }

    /// Turns until `done`, or panics after two seconds.
    fn until(poller: &Poller, seen: &RefCell<Vec<Event>>, done: impl Fn(&[Event]) -> bool) {
        let end = Instant::now() + Duration::from_secs(2);
        let push = |e: &Event| seen.borrow_mut().push(*e);
        while !done(&seen.borrow()) {
            assert!(Instant::now() < end, "saw only {:?}", seen.borrow());
            let step = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            poller.turn(Some(step), &push, &mut NoSources).unwrap();
        }
    }

    #[test]
    fn readiness_comes_once_per_edge() {
        let poller = Poller::new().unwrap();
        let seen = RefCell::new(Vec::new());
        let (r, w) = rustix::pipe::pipe().unwrap();
        poller.watch(r.as_fd(), 7).unwrap();
        rustix::io::write(&w, b"x").unwrap();
        until(&poller, &seen, |e| e.iter().any(|e| e.a == 7 && e.b & 1 != 0));
        seen.borrow_mut().clear();
        let push = |e: &Event| seen.borrow_mut().push(*e);
        poller
            .turn(Some(Timespec { tv_sec: 0, tv_nsec: 1_000_000 }), &push, &mut NoSources)
            .unwrap();
        assert!(seen.borrow().is_empty(), "no second report without a change");
        // Watching again reports the state again, under the new token.
        poller.watch(r.as_fd(), 8).unwrap();
        until(&poller, &seen, |e| e.iter().any(|e| e.a == 8 && e.b & 1 != 0));
        assert_eq!(poller.watch(r.as_fd(), INTERNAL), Err(Errno::INVAL));
    }

    #[test]
    fn timer_fires_at_its_deadline_and_can_be_moved() {
        let poller = Poller::new().unwrap();
        let seen = RefCell::new(Vec::new());
        let start = monotonic_ns();
        poller.set_timer(start + 10_000_000_000);
        poller.set_timer(start + 30_000_000);
        until(&poller, &seen, |e| e.iter().any(|e| e.kind == EVENT_TIMER));
        assert!(monotonic_ns() >= start + 30_000_000);
        // A deadline in the past fires at once, also the same one again.
        for _ in 0..2 {
            seen.borrow_mut().clear();
            poller.set_timer(start);
            until(&poller, &seen, |e| e.iter().any(|e| e.kind == EVENT_TIMER));
        }
        seen.borrow_mut().clear();
        poller.set_timer(monotonic_ns() + 20_000_000);
        poller.set_timer(u64::MAX);
        let push = |e: &Event| seen.borrow_mut().push(*e);
        poller
            .turn(Some(Timespec { tv_sec: 0, tv_nsec: 50_000_000 }), &push, &mut NoSources)
            .unwrap();
        assert!(seen.borrow().is_empty());
    }

    #[test]
    fn it_looks_at_intervals_while_others_take_all_there_is() {
        let poller = Poller::new().unwrap();
        let (r, w) = rustix::pipe::pipe().unwrap();
        poller.watch(r.as_fd(), 7).unwrap();
        let slowly = |seen: &RefCell<Vec<Event>>| {
            let begin = Instant::now();
            poller.run_slowly(&|e| seen.borrow_mut().push(*e), &mut NoSources).unwrap();
            begin.elapsed()
        };
        // What nobody takes is the loop's, and ends it, as does that nobody takes anything.
        let seen = RefCell::default();
        rustix::io::write(&w, b"x").unwrap();
        assert!(slowly(&seen) < Duration::from_secs(1));
        assert!(seen.borrow().iter().all(|e| e.a == 7) && !seen.borrow().is_empty());
        assert!(slowly(&seen) < Duration::from_secs(1));

        // Each reads what it takes, and lets it come again.
        let others = |until: Instant| {
            while Instant::now() < until {
                rustix::io::write(&w, b"x").unwrap();
                poller.take(MOST_AT_ONCE, |_, _| {});
                rustix::io::read(&r, &mut [0; 64]).unwrap();
            }
        };
        let seen = RefCell::default();
        let lasted = std::thread::scope(|s| {
            let end = Instant::now() + Duration::from_millis(300);
            s.spawn(move || others(end));
            while poller.taken.load(Ordering::Relaxed) < 100 {
                std::thread::sleep(Duration::from_micros(100));
            }
            let mut longest = Duration::ZERO;
            while Instant::now() < end {
                longest = longest.max(slowly(&seen));
            }
            longest
        });
        // What the loop finds in between ends an interval, and so does a host that is busy.
        assert!(lasted >= Duration::from_micros(500), "{lasted:?}");
    }

    #[test]
    fn posted_events_and_exit_reach_the_loop_from_another_thread() {
        let poller = Poller::new().unwrap();
        let seen = RefCell::new(Vec::new());
        let status = std::thread::scope(|s| {
            s.spawn(|| {
                poller.post_ready(3, 5).unwrap();
                std::thread::sleep(Duration::from_millis(20));
                poller.request_exit(42);
                poller.request_exit(1);
            });
            poller.run(&|e| seen.borrow_mut().push(*e), &mut NoSources)
        });
        assert_eq!(status, Ok(42));
        assert_eq!(
            seen.borrow().iter().map(|e| (e.kind, e.a, e.b)).collect::<Vec<_>>(),
            [(EVENT_READY, 3, 5)]
        );
    }
}
