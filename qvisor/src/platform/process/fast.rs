//! The fast call: a system call that a patched call site hands over in its thread's slot, without
//! entering the host.
//!
//! The kernel patches call sites to jump to stub code ([`super::stub`], `quark_stub_fast`). While a
//! receiver looks at the thread's slot ([`FAST_ON`]), that code writes the call there and looks for
//! the answer. Without a receiver, or when it takes too long, the call becomes an ordinary one. A
//! guest can write whatever it likes into its slots, and run on while its call is served: a fast
//! call is taken only from a thread that runs user code, is only ever *its* call, and proves
//! nothing ([`Trap::unproven`]).

use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use qlib::platform::*;

use super::frame::FrameAt;
use super::layout::*;
use super::space::{Space, SpaceState, trap};
use super::thread::*;
use super::{FastCalls, Shared};

/// Calls that come this soon after the last one are a row.
const ROW: Duration = Duration::from_micros(500);
/// The shortest row that makes a receiver look at slots.
const MIN_ROW: u32 = 32;
/// Times that looking may be in vain before longer rows are asked for: a program that starts has
/// many short ones.
const FEW_VAIN: u32 = 3;
/// The longest row that is asked for after looking has not paid.
const MAX_ROW: u32 = 1 << 10;
/// The same where looking cannot pay.
const MAX_ROW_INSIDE: u32 = 1 << 13;

/// The fewest calls of sched_yield(2) that a thread answers itself, and the most.
const MIN_YIELDS: u32 = 2;
const MAX_YIELDS: u32 = 1 << 10;
/// What a call takes that is answered from outside, and more.
const ANSWER: Duration = Duration::from_micros(10);

/// True if this CPU has what the stub's code uses besides RDGSBASE: RORX (BMI2) and LAHF in 64-bit
/// mode.
pub fn cpu_can() -> bool {
    const LAHF: u32 = 1;
    let extended = std::arch::x86_64::__cpuid(0x8000_0001);
    is_x86_feature_detected!("bmi2") && extended.ecx & LAHF != 0
}

/// When a receiver looks at slots: after a row of calls, longer rows after each time that it did
/// not pay.
#[derive(Debug)]
pub struct Row {
    /// At every call.
    pub eager: bool,
    length: u32,
    needed: u32,
    /// How often in succession looking did not pay.
    vain: u32,
    last: Option<Instant>,
    trial: Trial,
}

impl Row {
    /// `eager`: at every call.
    pub fn new(eager: bool) -> Self {
        let trial = Trial::default();
        Self { eager, length: 0, needed: MIN_ROW, vain: 0, last: None, trial }
    }

    /// A call that could be fast came at `now`, as a notification. Whether to look at slots from
    /// now on.
    pub fn goes_on(&mut self, now: Instant) -> bool {
        let soon = self.last.is_some_and(|last| now.duration_since(last) < ROW);
        self.last = Some(now);
        self.length = if soon { self.length + 1 } else { 1 };
        match self.trial.note(now, soon) {
            Some(Verdict::Ordinary) => self.needed = self.trial.row(),
            Some(Verdict::Fast) => self.needed = MIN_ROW,
            None => {}
        }
        self.eager || !self.trial.goes_on() && self.length >= self.needed
    }

    /// True if looking is to end when threads are kept waiting for a processor: ordinary calls have
    /// not turned out to be slower lately.
    pub fn minds_crowds(&self, now: Instant) -> bool {
        !self.eager && self.trial.minds_crowds(now)
    }

    /// `calls` were taken from slots; see [`Outcome`].
    pub fn judge(&mut self, calls: u64, outcome: Outcome) {
        self.length = 0;
        let paid = calls >= u64::from(4 * MIN_ROW);
        self.vain = if paid { 0 } else { self.vain + 1 };
        self.needed = match outcome {
            Outcome::Inside => MAX_ROW_INSIDE,
            Outcome::Crowded(pace) => {
                self.trial.begin(pace);
                self.needed
            }
            Outcome::Lost => (self.needed * 4).min(MAX_ROW.max(self.needed)),
            Outcome::Over if paid => MIN_ROW,
            Outcome::Over if self.vain <= FEW_VAIN => self.needed,
            Outcome::Over => (self.needed * 2).min(MAX_ROW.max(self.needed)),
        };
    }
}

/// How soon after each other calls came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// In so long,
    pub time: Duration,
    /// so many.
    pub calls: u64,
}

impl Pace {
    /// True if calls come sooner, by so much that it is no accident.
    fn is_better_than(&self, other: &Pace) -> bool {
        const PERCENT: u128 = 108;
        let (own, others) = (u128::from(self.calls), u128::from(other.calls));
        own * other.time.as_nanos() * 100 > others * self.time.as_nanos() * PERCENT
    }
}

/// What a [`Trial`] has shown to be better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fast,
    Ordinary,
}

/// Whether ordinary calls serve a program better than fast ones, on a machine whose processors are
/// all wanted: those need only one. That depends on what else wants them and how often it sleeps,
/// so it is tried, for as long as fast ones were looked at; longer is waited with the next trial
/// each time that it shows the same.
#[derive(Debug, Default)]
struct Trial {
    /// Of fast calls, while one is on.
    fast: Option<Pace>,
    /// When it began, by the first ordinary call.
    began: Option<Instant>,
    calls: u64,
    last: Option<Verdict>,
    /// How often in succession.
    same: u32,
    /// When fast calls may be doubted again.
    until: Option<Instant>,
}

impl Trial {
    /// After fast calls were the better ones; doubled [`MOST_SAME`](Self::MOST_SAME) times at most.
    const FAST_STAYS: Duration = Duration::from_millis(100);
    const MOST_SAME: u32 = 4;

    fn goes_on(&self) -> bool {
        self.fast.is_some()
    }

    fn minds_crowds(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now > until)
    }

    fn begin(&mut self, fast: Pace) {
        self.fast = Some(fast);
        self.began = None;
        self.calls = 0;
    }

    /// A call came, `soon` after the last one; what has turned out by now.
    fn note(&mut self, now: Instant, soon: bool) -> Option<Verdict> {
        let fast = self.fast?;
        if !soon && self.began.is_some() {
            // Nobody is in a hurry.
            self.fast = None;
            return None;
        }
        let time = now.duration_since(*self.began.get_or_insert(now));
        let ordinary = Pace { time, calls: self.calls };
        self.calls += 1;
        if time < fast.time {
            return None;
        }
        let better = ordinary.is_better_than(&fast);
        let verdict = if better { Verdict::Ordinary } else { Verdict::Fast };
        self.same = if self.last == Some(verdict) { self.same + 1 } else { 0 };
        self.last = Some(verdict);
        self.fast = None;
        if verdict == Verdict::Fast {
            self.until = Some(now + Self::FAST_STAYS * (1 << self.same.min(Self::MOST_SAME)));
        }
        Some(verdict)
    }

    /// The row that is asked for after ordinary calls were the better ones.
    fn row(&self) -> u32 {
        MAX_ROW << self.same.min(Self::MOST_SAME)
    }
}

/// How often a thread that spins by sched_yield(2) may answer itself before it calls again, by
/// which others get its processor: twice as often each time that it has spun all the while, so that
/// whom it waits for is kept from a processor no longer than it has had to wait for anyway; few
/// times again when it has not, for then it found what it waited for, or others want its processor.
#[derive(Debug, Default)]
pub struct Yields {
    /// What it has been given last.
    given: u32,
    at: Option<Instant>,
}

impl Yields {
    /// Its call is answered at `now`; how many of the next it answers itself. `one`: what one
    /// takes.
    fn next(&mut self, now: Instant, one: Duration) -> u32 {
        let most = one * self.given * 3 / 2 + ANSWER;
        let has_spun = self.at.is_some_and(|at| now.duration_since(at) < most);
        self.given = if has_spun { (2 * self.given).min(MAX_YIELDS) } else { MIN_YIELDS };
        self.at = Some(now);
        self.given
    }
}

/// What one takes that a thread answers itself (`quark_stub_fast`): mostly its pauses, which depend
/// on the processor. Measured once.
fn one_yield() -> Duration {
    const TIMES: u32 = 32;
    const TRIES: u32 = 4;
    static ONE: OnceLock<Duration> = OnceLock::new();
    let measured = || {
        let began = Instant::now();
        (0..TIMES * YIELD_PAUSES).for_each(|_| std::hint::spin_loop());
        began.elapsed() / TIMES
    };
    *ONE.get_or_init(|| (0..TRIES).map(|_| measured()).min().unwrap_or_default())
}

/// Why a receiver no longer looks at slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There were no more calls, or they came another way.
    Over,
    /// The processor was taken away meanwhile.
    Lost,
    /// The calls had to wait for other processes of the guest.
    Inside,
    /// The threads, whose calls came at this pace, were kept waiting for a processor, which this
    /// one could have been.
    Crowded(Pace),
}

/// Where a thread is.
#[derive(Clone, Copy)]
pub struct ThreadAt {
    /// Its number in the space.
    pub number: u32,
    /// Its slot.
    pub slot: u32,
    /// The host's thread.
    pub tid: u32,
}

impl Shared {
    /// True if a notification is a system call that would have been fast, had a receiver looked:
    /// its site is patched.
    pub(super) fn could_be_fast(&self, space: &Space, row: &mut Row, event: &Event) -> bool {
        let trap = &event.trap;
        if event.kind != EVENT_TRAP || trap.kind != TRAP_SYSCALL || !may_be_fast(trap.nr) {
            return false;
        }
        // Who yields is not served sooner by one who takes a processor for it.
        if trap.nr == libc::SYS_sched_yield as u64 {
            return false;
        }
        if self.fast_calls == FastCalls::Eager {
            return true;
        }
        let mut state = space.lock();
        let Some(ThreadAt { slot, number, .. }) = state.place_of(trap.token) else { return false };
        if state.thread_mut(number).is_some_and(|t| std::mem::take(&mut t.answered_inside)) {
            // Processes that wait for each other need the processors themselves.
            row.length = 0;
            return false;
        }
        drop(state);
        // The stub's code leaves the number there on its way to the ordinary call.
        let passed = space.area.word(slot, FAST_NR).swap(u32::MAX, Ordering::Relaxed);
        u64::from(passed) == trap.nr
    }
}

impl SpaceState {
    /// Takes the call in a thread's slot, if the thread is in a position to make one.
    pub(super) fn take_fast(&mut self, space: &Space, number: u32) -> Option<Event> {
        if self.is_killed() {
            return None;
        }
        let thread = self.thread_mut(number)?;
        if thread.phase != Phase::User {
            // It lies, or another thread of its process does.
            space.area.word(thread.slot, FAST_STATE).store(0, Ordering::Relaxed);
            return None;
        }
        if thread.stop_wanted {
            // The kick finds it, and it makes the call again later. Else a thread that calls all
            // the time would never be stopped.
            return None;
        }
        let word = space.area.word(thread.slot, FAST_STATE);
        word.compare_exchange(FAST_REQUEST, FAST_TAKEN, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        let nr = u64::from(space.area.word(thread.slot, FAST_NR).load(Ordering::Relaxed));
        let args =
            std::array::from_fn(|i| space.area.read_u64(thread.slot, FAST_ARGS + 8 * i as u64));
        let ip = space.area.read_u64(thread.slot, FAST_IP).wrapping_add(2);
        if !may_be_fast(nr) {
            self.kill(space.id, "a fast call that cannot be one");
            return None;
        }
        thread.phase = Phase::Fast;
        thread.call = Some(GuestCall { nr, args, ip, fast: true });
        trap(thread, Trap { kind: TRAP_SYSCALL, nr, args, ip, unproven: 1, ..Trap::default() })
    }

    /// Takes a call out of any slot.
    pub(super) fn take_any_fast(&mut self, space: &Space) -> Option<Event> {
        let calls = |t: &Thread| {
            t.phase == Phase::User && !t.stop_wanted && is_in_state(space, t.slot, FAST_REQUEST)
        };
        let number = self.find_thread(calls)?;
        self.take_fast(space, number)
    }

    /// Has a thread wait for the answer to its fast call in the host, if there is none yet. Whether
    /// its call, fast or not, has none.
    pub(super) fn put_to_sleep(&mut self, space: &Space, token: u64) -> bool {
        let Some(number) = self.number_of(token) else { return false };
        let Some(thread) = self.thread_mut(number) else { return false };
        if thread.phase == Phase::Fast {
            let word = space.area.word(thread.slot, FAST_STATE);
            let _ =
                word.compare_exchange(FAST_TAKEN, FAST_SLEEP, Ordering::Relaxed, Ordering::Relaxed);
        }
        matches!(thread.phase, Phase::Fast | Phase::Call(_))
    }

    /// True if the thread is still there.
    pub(super) fn is_at(&self, place: ThreadAt) -> bool {
        let thread = self.thread(place.number);
        thread.is_some_and(|t| t.phase != Phase::Gone && t.slot == place.slot)
    }

    pub(super) fn place_of(&self, token: u64) -> Option<ThreadAt> {
        let number = self.number_of(token)?;
        let thread = self.thread(number)?;
        Some(ThreadAt { number, slot: thread.slot, tid: thread.tid })
    }

    /// Lets a thread go on that has made a fast call and looks for the answer.
    pub(super) fn resume_fast(&mut self, space: &Space, shared: &Shared, number: u32, plan: Plan) {
        let Some(thread) = self.thread_mut(number) else { return };
        if thread.clones.is_empty() && plan.is_plain_answer() {
            thread.call = None;
            thread.phase = Phase::User;
            return answer_in_slot(space, thread.slot, plan.value);
        }
        self.kick_out(space, shared, number, Pending::Resume(Box::new(plan)));
    }

    /// A thread has been interrupted. If that was in the code of the fast call, its frame is made
    /// to say what the program must see: the registers before its system-call instruction, or after
    /// it.
    pub(super) fn finish_fast(&self, space: &Space, shared: &Shared, number: u32, frame: FrameAt) {
        let code = &shared.zygote.addresses.fast;
        let Some(thread) = self.thread(number) else { return };
        let mut regs = frame.regs(&space.area);
        if !(code.entry..code.end).contains(&regs.rip) {
            return;
        }
        let slot = |offset| space.area.read_u64(thread.slot, offset);
        let word = space.area.word(thread.slot, FAST_STATE);
        let posted = (code.posted..code.slow).contains(&regs.rip);
        let site = if posted { slot(FAST_IP) } else { regs.r11 };
        let mut after = false;
        // It leaves without having seen what it looked for.
        space.area.word(thread.slot, FAST_SEEN).store(1, Ordering::Relaxed);
        if posted {
            let withdrawn = word
                .compare_exchange(FAST_REQUEST, 0, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
            let called = thread.call.is_some_and(|c| c.fast);
            after = called || !withdrawn && word.load(Ordering::Relaxed) == FAST_DONE;
        }
        if regs.rip > code.takes_flags {
            const ARITHMETIC: u64 = 0x8d5;
            let saved = slot(FAST_FLAGS);
            let overflow = (saved & 1) << 11;
            regs.rflags = regs.rflags & !ARITHMETIC | (saved >> 8) & ARITHMETIC & 0xff | overflow;
        }
        if after {
            regs.rax = slot(FAST_ARGS);
            regs.rip = site.wrapping_add(2);
        } else {
            if regs.rip > code.takes_rax {
                regs.rax = u64::from(space.area.word(thread.slot, FAST_NR).load(Ordering::Relaxed));
            }
            regs.rip = site;
        }
        frame.set_interrupted(&space.area, &regs);
    }
}

/// True if this is a call that makes a thread in the space: it inherits what processors its maker
/// may use, so the maker is not watched then.
pub fn makes_threads(event: &Event) -> bool {
    let shares_space = |flags: u64| flags & libc::CLONE_VM as u64 != 0;
    event.trap.kind == TRAP_SYSCALL
        && match event.trap.nr as i64 {
            libc::SYS_clone => shares_space(event.trap.args[0]),
            // Its flags lie in memory.
            libc::SYS_clone3 | libc::SYS_vfork => true,
            _ => false,
        }
}

/// True if this is a thread's call to wait for the answer to its fast call.
pub fn is_wait(shared: &Shared, nr: u64, ip: u64) -> bool {
    nr == FAST_WAIT_NR && ip == shared.zygote.addresses.fast.wait_ip
}

/// True if the last fast call of a slot has its answer.
pub fn is_answered(space: &Space, slot: u32) -> bool {
    is_in_state(space, slot, FAST_DONE)
}

/// True if the last fast call of a slot stands so (FAST_*).
pub fn is_in_state(space: &Space, slot: u32, state: u32) -> bool {
    space.area.word(slot, FAST_STATE).load(Ordering::Acquire) == state
}

/// What a thread may answer itself; see [`PlatformOps::thread_answers`].
pub fn answer_alone(space: &Space, thread: &mut Thread, tid: u32, pid: u32) {
    let set = |word, value| space.area.word(thread.slot, word).store(value, Ordering::Relaxed);
    set(FAST_TID, tid);
    set(FAST_PID, pid);
    if tid == 0 {
        set(FAST_YIELDS, 0);
        thread.yields = None;
    } else {
        thread.yields.get_or_insert_default();
    }
}

/// A thread's call has been answered. If that was to yield: how often it does so by itself from
/// here on, if it may.
pub fn after_yield(space: &Space, thread: &mut Thread, nr: u64) {
    if nr == libc::SYS_sched_yield as u64
        && let Some(yields) = &mut thread.yields
    {
        let count = yields.next(Instant::now(), one_yield());
        space.area.word(thread.slot, FAST_YIELDS).store(count, Ordering::Relaxed);
    }
}

/// Puts the answer to a fast call where its thread finds it.
pub fn answer_in_slot(space: &Space, slot: u32, value: i64) {
    space.area.write_u64(slot, FAST_ARGS, value as u64);
    space.area.word(slot, FAST_STATE).store(FAST_DONE, Ordering::Release);
}

/// True if a thread looks for an answer that is there, and has not found it: it does not run.
pub fn is_kept_waiting(space: &Space, slot: u32) -> bool {
    is_in_state(space, slot, FAST_DONE)
        && space.area.word(slot, FAST_SEEN).load(Ordering::Relaxed) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_row_of_calls_makes_a_receiver_look() {
        let mut row = Row::new(false);
        let mut now = Instant::now();
        for _ in 0..10 * MIN_ROW {
            now += 2 * ROW;
            assert!(!row.goes_on(now), "calls far apart");
        }
        for i in 1..MIN_ROW {
            now += ROW / 2;
            assert_eq!(row.goes_on(now), i + 1 >= MIN_ROW, "call {i}");
        }
        now += 2 * ROW;
        assert!(!row.goes_on(now), "the row begins anew");
    }

    #[test]
    fn ordinary_calls_are_tried_where_threads_are_kept_waiting() {
        let ms = Duration::from_millis;
        let fast = Pace { time: ms(4), calls: 100 };
        let mut row = Row::new(false);
        let mut now = Instant::now();
        // Calls until the receiver looks again, one in so many µs.
        let mut after = |row: &mut Row, apart: u64| {
            assert!(row.minds_crowds(now));
            row.judge(fast.calls, Outcome::Crowded(fast));
            (1u32..).find(|_| {
                now += Duration::from_micros(apart);
                row.goes_on(now)
            })
        };
        // Twice as fast.
        let first = after(&mut row, 20).expect("a number");
        assert!((MAX_ROW..=2 * MAX_ROW).contains(&first), "{first}");
        assert!(after(&mut row, 20).is_some_and(|second| second > 2 * first - 250));
        // Hardly faster.
        let none = after(&mut row, 39).expect("a number");
        assert!((100..=150).contains(&none), "{none}");
        assert!(!row.minds_crowds(now) && row.minds_crowds(now + ms(101)));
        // One that breaks off tells nothing.
        now += ms(200);
        row.judge(fast.calls, Outcome::Crowded(fast));
        assert!(!row.goes_on(now) && !row.goes_on(now + ms(1)));
        assert!(!row.trial.goes_on() && row.minds_crowds(now));
    }

    #[test]
    fn who_yields_in_vain_does_so_longer_by_itself() {
        let one = Duration::from_nanos(350);
        let mut yields = Yields::default();
        let mut now = Instant::now();
        let mut given = Vec::new();
        for _ in 0..11 {
            given.push(yields.next(now, one));
            now += one * given[given.len() - 1] + ANSWER / 2;
        }
        assert_eq!(given, [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024]);
        // Another one had its processor for as long.
        now += one * MAX_YIELDS;
        assert_eq!(yields.next(now, one), MIN_YIELDS);
    }

    #[test]
    fn looking_in_vain_makes_it_rarer() {
        let mut row = Row::new(false);
        for _ in 0..FEW_VAIN {
            row.judge(0, Outcome::Over);
            assert_eq!(row.needed, MIN_ROW);
        }
        row.judge(0, Outcome::Over);
        assert_eq!(row.needed, 2 * MIN_ROW);
        for _ in 0..40 {
            row.judge(1, Outcome::Lost);
        }
        assert_eq!(row.needed, MAX_ROW);
        row.judge(100_000, Outcome::Inside);
        assert_eq!(row.needed, MAX_ROW_INSIDE);
        row.judge(0, Outcome::Over);
        assert_eq!(row.needed, MAX_ROW_INSIDE);
        row.judge(100_000, Outcome::Over);
        assert_eq!(row.needed, MIN_ROW);
    }
}
