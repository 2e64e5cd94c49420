//! Threads that wait long, where there are many.
//!
//! Each call without an answer stands in the host's list of the stub's listener, and the host walks
//! through that list with each call that it hands over and with each answer. In a process with
//! thousands of threads, most of which wait, that costs more than all the rest. So beyond
//! [`MANY`] threads, those whose calls have waited for a while are taken out of them by a kick, and
//! told to sleep on a word of their slots instead ([`Phase::Asleep`]). What resumes or stops one
//! wakes it up, and happens when it has reported.
//!
//! A guest can write to that word and wake its threads up for nothing: then they wait in the frame
//! call. And it can undo a wake-up, so [`super::watch`] repeats it until the thread is there.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Shared;
use super::layout::*;
use super::space::{Space, SpaceState, look_after};
use super::thread::*;
use crate::sys::{self, Notification};

/// Threads up to which nothing is done. The host takes some 5 µs for two walks through so many.
const MANY: u32 = 128;
/// How long a call waits before its thread is told to sleep.
const LONG: Duration = Duration::from_millis(10);
/// Threads that are told so after one call, at most.
const AT_ONCE: usize = 2;

/// A space's calls that had no answer at once, in the order in which they came.
#[derive(Default)]
pub(super) struct Waiting(VecDeque<(Instant, u32, u64)>);

impl Waiting {
    /// A call has been delivered: notes it if it has no answer yet, and has those sleep that have
    /// waited long.
    pub(super) fn note(&mut self, space: &Space, shared: &Shared, tid: u32) {
        if space.area.slots() <= MANY || !shared.wait_killable {
            self.0 = VecDeque::new();
            return;
        }
        let now = Instant::now();
        let mut state = space.lock();
        if let Some((number, id)) = state.waiting_call(tid) {
            self.0.push_back((now, number, id));
        }
        for _ in 0..AT_ONCE {
            let long = |(since, ..): &mut (Instant, _, _)| now.duration_since(*since) > LONG;
            let Some((_, number, id)) = self.0.pop_front_if(long) else { return };
            state.have_sleep(space, shared, number, id);
        }
    }
}

impl SpaceState {
    /// Takes a thread out of its call `id`, if it still waits in that, to sleep.
    fn have_sleep(&mut self, space: &Space, shared: &Shared, number: u32, id: u64) {
        let is_there = |t: &Thread| t.phase == Phase::Call(id) && t.call.is_some_and(|c| !c.fast);
        if self.thread(number).is_some_and(is_there) {
            self.kick_out_of_call(space, shared, number, id, Pending::Sleep);
        }
    }

    /// Has a parked thread sleep until [`Self::wake_up`].
    pub(super) fn fall_asleep(&mut self, space: &Space, number: u32) {
        let Some(thread) = self.thread_mut(number) else { return };
        let Phase::Parked(id) = thread.phase else { return };
        thread.phase = Phase::Asleep;
        sleep_word(space, thread).store(0, std::sync::atomic::Ordering::Release);
        self.answer(id, 1 << GO_SLEEP_BIT);
    }

    /// A call of a thread that was told to sleep: the sleep itself, or the report after it.
    pub(super) fn sleep_step(
        &mut self,
        space: &Space,
        shared: &Shared,
        number: u32,
        n: &Notification,
    ) -> Option<qlib::platform::Event> {
        let thread = self.thread_mut(number)?;
        let (nr, ip) = (u64::from(n.data.nr as u32), n.data.instruction_pointer);
        let addresses = &shared.zygote.addresses;
        let word = space.slot_address(shared, thread.slot) + SLOT_SLEEP;
        let sleeps = nr == libc::SYS_futex as u64
            && ip == addresses.sleep_ip
            && n.data.args == [word, libc::FUTEX_WAIT as u64, 0, 0, 0, 0];
        if sleeps {
            // Also the same call again, if a freeze by the host has torn it.
            match thread.pending {
                None => self.let_continue(n.id),
                Some(_) => self.answer(n.id, 0),
            }
            return None;
        }
        let reports = nr == FRAME_NR
            && ip == addresses.frame_ip
            && n.data.args[0] == REASON_DONE
            && n.data.args[1] == space.frame_address(shared, thread.frame);
        if !reports {
            self.kill(space.id, &format!("call {nr:#x} at {ip:#x} instead of its sleep"));
            return None;
        }
        thread.phase = Phase::Parked(n.id);
        thread.parked_unasked = thread.pending.is_none();
        self.run_pending(space, shared, number)
    }
}

/// Wakes a thread up that was told to sleep, for what is pending.
pub(super) fn wake_up(shared: &Shared, space: &Space, number: u32, thread: &mut Thread) {
    sys::futex_store_wake(sleep_word(space, thread), 1);
    look_after(shared, space.id, number, thread);
}

/// As [`wake_up`], once more, if it was told to wake up and has not reported.
pub(super) fn wake_up_again(space: &Space, thread: &Thread) -> bool {
    let is_due = thread.phase == Phase::Asleep && thread.pending.is_some();
    if is_due {
        sys::futex_store_wake(sleep_word(space, thread), 1);
    }
    is_due
}

fn sleep_word<'a>(space: &'a Space, thread: &Thread) -> &'a std::sync::atomic::AtomicU32 {
    space.area.word(thread.slot, SLOT_SLEEP)
}
