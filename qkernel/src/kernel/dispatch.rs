//! The dispatch of events: what the platform enters the kernel for.

use qlib::control::WakeCause;
use qlib::platform::{
    ANY_TOKEN, EVENT_CONTROL, EVENT_PRESSURE, EVENT_READY, EVENT_SPACE_GONE, EVENT_TIMER,
    EVENT_TRAP, Event, TRAP_DEAD, TRAP_FAULT, TRAP_SYSCALL, Trap,
};

use super::{control, thread};
use crate::arch::lock::{self, Wanted, lock, unlock};
use crate::mm::reclaim;
use crate::net::host::HostWatcher;
use crate::wait::PollMask;
use crate::{executor, hibernate, log, mm, net, task, time, urgent};

/// So many who wait for the kernel are a crowd, which the outside world passes.
const CROWD: u32 = 4;

/// Takes one event; see [`qlib::platform::KernelEntry::dispatch`].
pub(super) fn dispatch(event: &Event) {
    let is_urgent = goes_first(event, lock::waiting());
    let wanted = wanted_for(event);
    if is_urgent {
        lock::lock_urgently(wanted);
    } else {
        lock(wanted);
    }
    let begin_ns =
        if is_urgent || log::is_kept(log::Level::Debug) { time::monotonic_ns() } else { 0 };
    // What is served at once sees the timers that are due; a wake lets those go off that rested.
    let is_trap = event.kind == EVENT_TRAP;
    if is_trap {
        time::advance();
    }
    handle(event);
    if !is_trap {
        time::advance();
    }
    run_some_tasks(wanted, is_urgent);
    while net::host::look_at_sent() {
        run_some_tasks(wanted, is_urgent);
    }
    if begin_ns != 0 {
        note_work(event, time::elapsed_ns(begin_ns));
    }
    unlock();
}

/// What an event wants the kernel for.
fn wanted_for(event: &Event) -> Wanted {
    match (event.kind, event.trap.kind) {
        (EVENT_TRAP, TRAP_SYSCALL) => Wanted::Call,
        (EVENT_TRAP, TRAP_FAULT) => Wanted::Fault,
        (EVENT_READY | EVENT_PRESSURE, _) => Wanted::Outside,
        (EVENT_TIMER, _) => Wanted::Timer,
        (EVENT_CONTROL, _) => Wanted::Control,
        (EVENT_SPACE_GONE, _) => Wanted::Space,
        _ => Wanted::Trap,
    }
}

/// True if an event goes first, if `waiting` others wait for the kernel.
fn goes_first(event: &Event, waiting: u32) -> bool {
    match event.kind {
        EVENT_TRAP => urgent::is_urgent(event.trap.token),
        EVENT_CONTROL | EVENT_TIMER => true,
        // The event loop must get on to what comes over the control socket.
        EVENT_READY => waiting >= CROWD,
        // Memory comes back.
        EVENT_SPACE_GONE => reclaim::is_awaited(),
        _ => false,
    }
}

/// Runs tasks that are ready. Of those that are not urgent, an urgent caller leaves to others what
/// others are there for; and everybody lets an urgent one in between.
fn run_some_tasks(wanted: Wanted, is_urgent: bool) {
    let leave = |next_is_urgent: bool| {
        !next_is_urgent && (lock::is_wanted_urgently() || is_urgent && lock::waiting() > 0)
    };
    while executor::run_until(leave) {
        time::rearm();
        if lock::waiting() > 0 {
            // Each of them runs what is ready, once it has the lock.
            return;
        }
        unlock();
        lock(wanted);
    }
    time::rearm();
}

fn note_work(event: &Event, ns: u64) {
    /// Who waits for the kernel notices that.
    const LONG_NS: u64 = 20_000_000;
    if event.kind == EVENT_TRAP {
        urgent::worked(event.trap.token, ns);
    }
    if ns >= LONG_NS {
        let (kind, trap) = (event.kind, &event.trap);
        crate::klog!(
            Debug,
            "busy for {} us with event {kind}, trap {}, call {}",
            ns / 1000,
            trap.kind,
            trap.nr
        );
    }
}

/// Takes one event and runs all tasks that are ready then. Under the kernel lock.
pub(super) fn serve(event: &Event) {
    handle(event);
    run_tasks();
}

fn handle(event: &Event) {
    match event.kind {
        EVENT_TRAP => on_trap(&event.trap),
        EVENT_READY => on_ready(event.a, event.b as u32),
        EVENT_TIMER => {
            time::on_timer();
            hibernate::on_timer();
            if net::answers::is_overdue() {
                hibernate::wake(WakeCause::Socket);
            }
        }
        EVENT_CONTROL => control::on_request(event.a, event.b),
        EVENT_SPACE_GONE => mm::space::on_gone(event.a),
        EVENT_PRESSURE => hibernate::pressure::on_pressure(),
        _ => {}
    }
}

/// A trap of a user thread. The host may take one away while the sandbox sleeps, or goes to sleep:
/// its end frees memory and notifies others, for which the sandbox must be awake.
fn on_trap(trap: &Trap) {
    let lives =
        |token| task::table::thread_by_token(token).is_some_and(|thread| !thread.user.is_dead());
    if trap.kind == TRAP_DEAD && lives(trap.token) {
        hibernate::wake(WakeCause::Sigcont);
    }
    thread::on_trap(trap);
}

/// Something outside (a socket, a pipe) is ready: wakes a sleeping sandbox before anything else is
/// done about it.
fn on_ready(token: u64, mask: u32) {
    let notify = |watcher: &dyn HostWatcher, events| {
        if watcher.is_news(events) {
            if hibernate::may_answer() && watcher.answers_asleep() {
                return;
            }
            let is_input = watcher.is_input();
            hibernate::wake(if is_input { WakeCause::Socket } else { WakeCause::Disk });
        }
        watcher.on_ready(events);
    };
    if token == ANY_TOKEN {
        net::host::take_ready(notify);
    } else if let Some(watcher) = net::host::watcher(token) {
        notify(&*watcher, PollMask::from_bits_truncate(mask));
    }
}

/// Fires what is due and runs all tasks that are ready. Under the kernel lock.
pub(super) fn run_tasks() {
    time::advance();
    executor::run();
    time::rearm();
}
