//! Receivers that look at slots for [fast calls](super::fast) instead of waiting in the host.
//!
//! One that looks needs a processor, so there may be few. Others whose calls come in rows meanwhile
//! *lend* it their spaces: it serves all of them in turns, and they sleep. Else they would wait for
//! the kernel that it is in most of the time, and it for waking them up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use qlib::platform::*;
use smallvec::SmallVec;

use super::answers;
use super::attending::{Attendant, Outside};
use super::fast::{self, Outcome, Pace, Row, ThreadAt};
use super::layout::*;
use super::space::Space;
use super::{FastCalls, Shared};
use crate::sys::ordered::{Condvar, Mutex, MutexGuard, place};
use crate::sys::{self, Listener, Processors, Wait};

/// Spaces that one receiver looks at.
const MOST_SEATS: usize = 4;
/// Threads of each.
const MOST_THREADS: usize = 4;
/// How long a receiver looks without finding anything. Long enough for the threads to get to
/// another processor, and for a client nearby to ask again.
const LINGER: Duration = Duration::from_micros(500);
/// How long it looks without finding anything before it sleeps until there is something.
const PATIENCE: Duration = Duration::from_micros(60);
/// A receiver that did not run for this long has no processor to spare.
const TAKEN_AWAY: Duration = Duration::from_micros(300);
/// Looks at the slots between two looks at the clock, and between two looks at what costs a host
/// call.
const LOOKS: u32 = 16;
const LOOKS_HOST: u32 = 64;
/// Events in a row that did not come by a slot, after which looking at slots ends.
const MOST_DRY: u32 = 8;
/// How long one looks before it may turn out that its threads are kept from processors.
const FAIR: Duration = Duration::from_millis(4);
/// That they are if it has nothing to do but to wait for them in this part of the time.
const CROWDED: u32 = 5;
/// Calls that had to wait, and not for anything from outside, after which it ends: they wait for
/// another process of the guest, which this receiver only keeps from a processor.
const MOST_INSIDE: u32 = 4;

/// What one that looks and its threads may run on. They are kept on different processors
/// meanwhile, for the host's scheduler, left alone, has one wait for the other.
struct Apart {
    cpu: usize,
    receiver: Processors,
}

impl Apart {
    /// `None` if the host does not say where the receiver runs.
    fn begin() -> Option<Self> {
        let cpu = sys::current_processor()?;
        let own = Processors::of(0)?;
        own.without(cpu)?;
        let receiver = own.to_give_back();
        receiver.keep(cpu);
        Some(Self { cpu, receiver })
    }

    fn end(&self) {
        self.receiver.let_go();
    }
}

/// A space whose calls the receiver takes that looks: its own, or one that was lent to it.
struct Seat {
    space: Arc<Space>,
    listener: Arc<Listener>,
    loan: Option<Arc<Loan>>,
    /// The threads whose slots are looked at.
    threads: SmallVec<[ThreadAt; MOST_THREADS]>,
    /// Taken from slots.
    calls: u64,
    /// Those, and what could have been.
    paced: u64,
    /// Events in a row that did not come by a slot.
    dry: u32,
    /// Calls that had to wait, since something last came from outside.
    inside: u32,
    /// When its last event came.
    last: Instant,
}

impl Seat {
    fn new(space: Arc<Space>, listener: Arc<Listener>, loan: Option<Arc<Loan>>) -> Self {
        // The threads must wake up elsewhere, as this processor is busy looking.
        listener.set_sync_wake_up(false);
        let threads = SmallVec::new();
        Self {
            space,
            listener,
            loan,
            threads,
            calls: 0,
            paced: 0,
            dry: 0,
            inside: 0,
            last: Instant::now(),
        }
    }

    /// Looks at a thread's slot from now on. The thread waits in the host.
    fn add(&mut self, apart: &Apart, place: ThreadAt) {
        if self.threads.len() < MOST_THREADS && !self.threads.iter().any(|t| t.tid == place.tid) {
            if let Some(others) = apart.receiver.without(apart.cpu) {
                others.give_to(place.tid);
            }
            self.threads.push(place);
            // Who had the slot before may have left it in the middle of a call.
            self.space.area.word(place.slot, FAST_SEEN).store(1, Ordering::Relaxed);
            self.space.area.word(place.slot, FAST_ON).store(1, Ordering::Relaxed);
        }
    }

    /// A thread with a call in its slot.
    fn caller(&self) -> Option<ThreadAt> {
        let calls = |t: &&ThreadAt| fast::is_in_state(&self.space, t.slot, FAST_REQUEST);
        self.threads.iter().find(calls).copied()
    }

    /// The call in the slot of a thread that [has one](Self::caller).
    fn take(&mut self, caller: ThreadAt) -> Option<Event> {
        let mut state = self.space.lock();
        if !state.is_at(caller) {
            // It has ended, and its slot is another's.
            self.threads.retain(|t| t.slot != caller.slot);
            return None;
        }
        let event = state.take_fast(&self.space, caller.number);
        self.calls += u64::from(event.is_some());
        event
    }

    /// Tells the threads whether somebody looks at their slots; where nobody does, their calls are
    /// ordinary ones.
    fn switch(&self, is_on: bool) {
        for thread in &self.threads {
            self.space.area.word(thread.slot, FAST_ON).store(is_on.into(), Ordering::SeqCst);
        }
    }

    /// True if looking at its slots does not pay.
    fn is_in_vain(&self) -> bool {
        self.dry > MOST_DRY || self.inside > MOST_INSIDE
    }

    /// True if a thread has an answer, and no processor to find it.
    fn keeps_waiting(&self) -> bool {
        self.threads.iter().any(|thread| fast::is_kept_waiting(&self.space, thread.slot))
    }

    /// `why`: what else ended it, for the receiver's own space.
    fn outcome(&self, why: Outcome) -> Outcome {
        match why {
            _ if self.inside > MOST_INSIDE => Outcome::Inside,
            // The pace of the receiver's own calls says nothing of others.
            Outcome::Crowded(_) if self.loan.is_some() => Outcome::Over,
            why => why,
        }
    }
}

/// How much of its time a receiver waits for threads that have their answers and no processor.
/// Where all processors have something else to do, such as the clients of what it serves, they may
/// do better by ordinary calls, for which they have this very processor.
struct Share {
    began: Instant,
    /// Of the receiver's own space, by then.
    calls: u64,
    waited: Duration,
}

impl Share {
    fn begin(now: Instant, calls: u64) -> Self {
        Self { began: now, calls, waited: Duration::ZERO }
    }

    /// It has found nothing for `spent`, until `now`; `waits`: while such threads were there. The
    /// pace of its calls if that is much by now.
    fn note(&mut self, now: Instant, calls: u64, spent: Duration, waits: bool) -> Option<Pace> {
        if waits {
            self.waited += spent;
        }
        let time = now.duration_since(self.began);
        if time < FAIR {
            return None;
        }
        let is_crowded = self.waited * CROWDED > time;
        let pace = Pace { time, calls: calls - self.calls };
        *self = Self::begin(now, calls);
        is_crowded.then_some(pace)
    }
}

/// A space that its receiver has lent to one that looks, and waits for.
pub(super) struct Loan {
    space: Arc<Space>,
    listener: Arc<Listener>,
    /// What had been received.
    first: Event,
    back: Mutex<Option<Back>, place::Loan>,
    is_back: Condvar,
}

/// What comes back with a space.
struct Back {
    /// Calls that were taken from its slots.
    calls: u64,
    outcome: Outcome,
    /// What has been received and not served.
    event: Option<Event>,
}

impl Loan {
    fn give_back(&self, back: Back) {
        *self.back.lock() = Some(back);
        self.is_back.notify_one();
    }

    /// As it was.
    fn refuse(&self) {
        self.give_back(Back { calls: 0, outcome: Outcome::Lost, event: Some(self.first) });
    }

    fn wait(&self) -> Back {
        let mut back = self.back.lock();
        loop {
            match back.take() {
                Some(back) => return back,
                None => back = self.is_back.wait(back),
            }
        }
    }
}

impl Shared {
    /// Serves a row of calls by looking at the slots of the threads that make them, or has somebody
    /// do so who looks already. `first`: the call that was just received.
    pub(super) fn serve_slots(
        &self,
        space: &Arc<Space>,
        listener: &Arc<Listener>,
        row: &mut Row,
        first: &Event,
        attendant: &mut Attendant<'_>,
    ) {
        if self.pollers.enter() {
            attendant.end();
            match Apart::begin() {
                Some(apart) => self.look(&apart, space, listener, row, first),
                None => {
                    self.pollers.leave();
                    self.deliver(first);
                }
            }
        } else if let Some(loan) = self.pollers.lend(space, listener, first) {
            attendant.end();
            let back = loan.wait();
            if let Some(event) = back.event {
                self.deliver(&event);
            }
            row.judge(back.calls, back.outcome);
        } else {
            self.deliver(first);
        }
    }

    /// The receiver's loop while calls come in a row: looks at the slots of the threads that make
    /// them, and now and then at the listeners.
    fn look(
        &self,
        apart: &Apart,
        space: &Arc<Space>,
        listener: &Arc<Listener>,
        row: &mut Row,
        first: &Event,
    ) {
        let outside = self.outside.get().map(|outside| &**outside);
        if let Some(outside) = outside {
            outside.begin();
        }
        let mut seats: SmallVec<[Seat; MOST_SEATS]> = SmallVec::new();
        seats.push(Seat::new(space.clone(), listener.clone(), None));
        let mut event = Some((0, *first));
        let mut left = None;
        let mut turn = 0;
        let mut why = Outcome::Over;
        let mut last = Instant::now();
        let mut looked = last;
        let mut share = Share::begin(last, 0);
        let mut looks = 0u32;
        'looking: loop {
            if let Some((at, event)) = event.take() {
                let Some(seat) = seats.get_mut(at) else { break };
                let makes_threads = fast::makes_threads(&event);
                if !makes_threads {
                    self.deliver_watching(apart, seat, &event);
                    last = Instant::now();
                    looked = last;
                    seat.last = last;
                }
                if makes_threads || !row.eager && seat.is_in_vain() {
                    let unserved = makes_threads.then_some(event);
                    if at == 0 {
                        left = unserved;
                        break;
                    }
                    self.give_back(apart, seats.remove(at), unserved, Outcome::Over);
                }
            }
            if let Some(loan) = self.pollers.borrow() {
                if seats.len() < MOST_SEATS {
                    event = Some((seats.len(), loan.first));
                    let (space, listener) = (loan.space.clone(), loan.listener.clone());
                    seats.push(Seat::new(space, listener, Some(loan)));
                    continue;
                }
                loan.refuse();
            }
            for _ in 0..seats.len() {
                turn = (turn + 1) % seats.len();
                if let Some(caller) = seats[turn].caller()
                    && let Some(call) = seats[turn].take(caller)
                {
                    event = Some((turn, call));
                    continue 'looking;
                }
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS_HOST) {
                let ready =
                    sys::look_at(seats.iter().map(|seat| &*seat.listener), None, Wait::Never);
                for at in (0..seats.len()).rev().filter(|at| ready.gone & 1 << at != 0) {
                    if at == 0 {
                        break 'looking;
                    }
                    self.give_back(apart, seats.remove(at), None, Outcome::Over);
                }
                if ready.gone == 0
                    && let Some(at) = (0..seats.len()).find(|at| ready.calls & 1 << at != 0)
                    && let Some(n) = seats[at].listener.receive_waiting()
                {
                    let call = seats[at].space.lock().notified(&seats[at].space, self, &n);
                    event = call.map(|call| (at, call));
                    last = Instant::now();
                    continue;
                }
                // Whom it answers has waited for somebody outside.
                answers::be_receiver_of(0);
                if outside.is_some_and(Outside::look) {
                    last = Instant::now();
                    seats.iter_mut().for_each(|seat| seat.inside = 0);
                }
            }
            if looks.is_multiple_of(LOOKS) {
                let now = Instant::now();
                let spent = now.duration_since(looked);
                looked = now;
                let idle = now.duration_since(last);
                if spent > TAKEN_AWAY {
                    why = Outcome::Lost;
                    break;
                }
                if row.minds_crowds(now) {
                    let Some(own) = seats.first() else { break };
                    if let Some(pace) = share.note(now, own.paced, spent, own.keeps_waiting()) {
                        why = Outcome::Crowded(pace);
                        break;
                    }
                }
                if idle > LINGER {
                    break;
                }
                let sleeps = |seat: &Seat| now.duration_since(seat.last) > LINGER;
                if let Some(at) = (1..seats.len()).find(|at| sleeps(&seats[*at])) {
                    self.give_back(apart, seats.remove(at), None, Outcome::Over);
                }
                if idle > PATIENCE {
                    self.sleep_a_little(&seats, outside, LINGER - idle);
                    looked = Instant::now();
                    looks = LOOKS_HOST - 1;
                }
            }
            std::hint::spin_loop();
        }
        if let Some(outside) = outside {
            outside.end();
        }
        let own = seats.remove(0);
        for seat in seats {
            self.give_back(apart, seat, None, why);
        }
        answers::be_receiver_of(space.id);
        self.leave(apart, &own, left);
        apart.end();
        self.pollers.leave();
        let (calls, outcome) = (own.calls, own.outcome(why));
        row.judge(calls, outcome);
        tracing::debug!(space = space.id, calls, ?outcome, "looked at slots");
    }

    /// Sleeps until something comes, at most for `limit`. Whoever all wait for may want this very
    /// processor, which is his while this thread sleeps. Not by sched_yield(2): each call puts the
    /// caller's whole slice on its account (Linux 6.18), so after some seconds of it this thread,
    /// and all threads that wake up meanwhile, the host's own among them, would wait half a minute
    /// for their turn.
    fn sleep_a_little(&self, seats: &[Seat], outside: Option<&dyn Outside>, limit: Duration) {
        if !self.pollers.go_to_sleep() {
            return;
        }
        seats.iter().for_each(|seat| seat.switch(false));
        // One that came just before is taken first.
        if seats.iter().all(|seat| seat.caller().is_none()) {
            let listeners = seats.iter().map(|seat| &*seat.listener);
            sys::look_at(listeners, outside.map(Outside::as_fd), Wait::For(limit));
        }
        seats.iter().for_each(|seat| seat.switch(true));
        self.pollers.wake_up();
    }

    /// Gives a space back that was lent.
    fn give_back(&self, apart: &Apart, seat: Seat, event: Option<Event>, why: Outcome) {
        answers::be_receiver_of(seat.space.id);
        self.leave(apart, &seat, None);
        let back = Back { calls: seat.calls, outcome: seat.outcome(why), event };
        if let Some(loan) = &seat.loan {
            loan.give_back(back);
        }
    }

    /// Looks no more at the slots of a space, of which `event` has been received and not served.
    fn leave(&self, apart: &Apart, seat: &Seat, event: Option<Event>) {
        let space = &*seat.space;
        seat.switch(false);
        for thread in &seat.threads {
            apart.receiver.give_to(thread.tid);
        }
        if let Some(event) = event {
            self.deliver(&event);
        }
        // Whoever wrote a call before it could see that takes it back after a while; this is
        // sooner.
        loop {
            // Not in the loop's head, where the lock would be held while the kernel runs.
            let event = space.lock().take_any_fast(space);
            let Some(event) = event else { break };
            self.deliver(&event);
            space.lock().put_to_sleep(space, event.trap.token);
        }
        seat.listener.set_sync_wake_up(self.sync_wake_up);
    }

    /// Delivers an event, and looks at the slot of its thread from now on.
    fn deliver_watching(&self, apart: &Apart, seat: &mut Seat, event: &Event) {
        // What comes by the listener only is better received there.
        seat.dry = if event.trap.unproven != 0 { 0 } else { seat.dry + 1 };
        answers::be_receiver_of(seat.space.id);
        if event.trap.kind != TRAP_SYSCALL {
            return self.deliver(event);
        }
        seat.paced += u64::from(may_be_fast(event.trap.nr));
        let place = seat.space.lock().place_of(event.trap.token);
        if let Some(place) = place.filter(|_| event.trap.unproven == 0) {
            seat.add(apart, place);
        }
        self.deliver(event);
        let waits = seat.space.lock().put_to_sleep(&seat.space, event.trap.token);
        seat.inside += u32::from(waits);
    }
}

/// Receivers that look at slots, counted so that they leave processors to the threads.
pub(super) struct Pollers {
    most: u32,
    /// There are loans that nobody has taken.
    is_asked: AtomicBool,
    state: Mutex<PollersState, place::Pollers>,
}

#[derive(Default)]
struct PollersState {
    /// Those that look, or sleep for a little while.
    count: u32,
    /// Those of them that sleep.
    asleep: u32,
    loans: Vec<Arc<Loan>>,
}

impl Pollers {
    /// None at all if `mode` or the number of processors forbids it.
    pub fn new(mode: FastCalls) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let most = if mode == FastCalls::Off { 0 } else { processors / 2 };
        Self { most, is_asked: AtomicBool::new(false), state: Mutex::default() }
    }

    /// True if any can ever be.
    pub fn possible(&self) -> bool {
        self.most > 0
    }

    fn lock(&self) -> MutexGuard<'_, PollersState> {
        self.state.lock()
    }

    /// One more looks, if it may.
    fn enter(&self) -> bool {
        let mut state = self.lock();
        let may = state.count < self.most;
        state.count += u32::from(may);
        may
    }

    /// It looks no more.
    fn leave(&self) {
        let mut state = self.lock();
        state.count -= 1;
        if state.count == state.asleep {
            self.refuse_all(&mut state);
        }
    }

    /// Offers a space to those that look. `None`: nobody does now.
    fn lend(
        &self,
        space: &Arc<Space>,
        listener: &Arc<Listener>,
        first: &Event,
    ) -> Option<Arc<Loan>> {
        let mut state = self.lock();
        if state.count == state.asleep {
            return None;
        }
        let loan = Arc::new(Loan {
            space: space.clone(),
            listener: listener.clone(),
            first: *first,
            back: Mutex::default(),
            is_back: Condvar::new(),
        });
        state.loans.push(loan.clone());
        self.is_asked.store(true, Ordering::Relaxed);
        Some(loan)
    }

    /// A space that is offered.
    fn borrow(&self) -> Option<Arc<Loan>> {
        if !self.is_asked.load(Ordering::Relaxed) {
            return None;
        }
        let mut state = self.lock();
        let loan = state.loans.pop();
        self.is_asked.store(!state.loans.is_empty(), Ordering::Relaxed);
        loan
    }

    /// One that looks is about to sleep, which it may unless it is asked for something.
    fn go_to_sleep(&self) -> bool {
        let mut state = self.lock();
        let may = state.loans.is_empty();
        state.asleep += u32::from(may);
        may
    }

    fn wake_up(&self) {
        self.lock().asleep -= 1;
    }

    /// Nobody is left who would take them.
    fn refuse_all(&self, state: &mut PollersState) {
        self.is_asked.store(false, Ordering::Relaxed);
        state.loans.drain(..).for_each(|loan| loan.refuse());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::process::area::Area;

    fn pollers() -> Pollers {
        Pollers { most: 1, is_asked: AtomicBool::new(false), state: Mutex::default() }
    }

    fn lend(pollers: &Pollers) -> Option<Arc<Loan>> {
        let space = Arc::new(Space::new(1, Area::new(0).expect("an area")));
        let file = std::fs::File::open("/dev/null").expect("/dev/null");
        pollers.lend(&space, &Arc::new(Listener::new(file.into())), &Event::default())
    }

    #[test]
    fn what_is_lent_is_taken_or_given_back() {
        let pollers = pollers();
        assert!(lend(&pollers).is_none(), "nobody looks");
        assert!(pollers.enter() && !pollers.enter());
        let loan = lend(&pollers).expect("somebody looks");
        assert!(!pollers.go_to_sleep(), "it is asked");
        assert!(pollers.borrow().is_some() && pollers.borrow().is_none());
        loan.give_back(Back { calls: 3, outcome: Outcome::Over, event: None });
        assert_eq!(loan.wait().calls, 3);

        assert!(pollers.go_to_sleep());
        assert!(lend(&pollers).is_none(), "it sleeps");
        pollers.wake_up();
        let loan = lend(&pollers).expect("somebody looks");
        pollers.leave();
        let back = loan.wait();
        assert!(back.event.is_some() && back.calls == 0, "as it was");
        assert!(pollers.borrow().is_none());
    }
}
