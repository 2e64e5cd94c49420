//! What a guest thread does between two stays in user mode besides being served: waiting until it
//! may go on, and looking at signals.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::outcome::Outcome;
use super::signal::{self, Death, Delivery};
use super::{Thread, pause};
use crate::arch::user::Go;
use crate::mm::AddressSpace;
use crate::mm::freeze::{EVERYTHING, Frozen};
use crate::wait::Sleeper;

/// Starts the threads that `thread` has made, if any: it goes on, or ends, and so they are made on
/// the platform too.
pub fn start_newborn(thread: &Thread) {
    for (child, first) in core::mem::take(&mut *thread.newborn.lock()) {
        (thread.process.upcalls.start)(child, first);
    }
}

/// Waits until nothing keeps the thread from user mode: a pause of the container, a freeze of what
/// it would map, somebody who has it carry out operations. A dying thread passes.
pub async fn may_go(thread: &Arc<Thread>) {
    loop {
        may_sync(thread).await;
        thread.mm().lets_go(&thread.user).await;
        let free = !pause::is_paused() && thread.user.is_synced();
        if free || thread.is_dying() {
            return;
        }
    }
}

/// Waits until nothing keeps the thread from having the platform carry out operations in the middle
/// of a system call: a pause of the container, or that it does so for somebody else. A dying thread
/// passes.
pub async fn may_sync(thread: &Arc<Thread>) {
    loop {
        pause::wait_until_over(thread).await;
        thread.user.synced().await;
        if !pause::is_paused() || thread.is_dying() {
            return;
        }
    }
}

/// True if [`may_sync`] need not wait.
fn may_sync_now(thread: &Thread) -> bool {
    thread.is_dying() || !pause::is_paused() && thread.user.is_synced()
}

/// Freezes all of the thread's space, for something that it has the platform carry out in the
/// middle of a system call.
pub async fn freeze_to_sync(thread: &Arc<Thread>) -> Option<Frozen> {
    loop {
        may_sync(thread).await;
        let frozen = thread.mm().freeze(&thread.user, EVERYTHING).await;
        // Whoever waits again may not trust what it has waited for before.
        if may_sync_now(thread) {
            return frozen;
        }
    }
}

/// Halts the space of another process, likewise.
pub async fn halt_to_sync(thread: &Arc<Thread>, mm: &Arc<AddressSpace>) -> Frozen {
    loop {
        may_sync(thread).await;
        let halted = mm.halt(&thread.user).await;
        if may_sync_now(thread) {
            return halted;
        }
    }
}

/// What comes of a thread that was to go on.
pub enum Gone {
    /// It is in user mode.
    On,
    /// It is to end.
    Ends,
    /// Its process is to end, with a core dump if it may have one.
    Dumps(Box<Death>),
}

/// Returns to user mode, if the thread is not to end.
pub async fn go_on(thread: &Arc<Thread>, mut call: Option<(u64, Outcome)>) -> Gone {
    loop {
        if thread.is_dying() {
            return Gone::Ends;
        }
        may_go(thread).await;
        let replaced = matches!(call, Some((_, Outcome::RegistersReplaced)));
        let delivery = if replaced && !thread.is_interrupted() {
            Delivery::None(None)
        } else {
            signal::deliver(thread, call.take()).await
        };
        // A pause may have begun while signals were looked at.
        may_go(thread).await;
        match delivery {
            _ if thread.is_dying() => return Gone::Ends,
            Delivery::Dumps(death) => return Gone::Dumps(death),
            Delivery::Ended => call = None,
            Delivery::None(Some(value)) => {
                thread.user.resume(&thread.mm(), Go::Return(value));
                return Gone::On;
            }
            Delivery::None(None) if replaced => {
                let Ok(regs) = thread.user.registers().await else { return Gone::Ends };
                thread.user.resume(&thread.mm(), Go::Regs(&regs));
                return Gone::On;
            }
            Delivery::None(None) => {
                thread.user.resume(&thread.mm(), Go::Continue);
                return Gone::On;
            }
            Delivery::Registers(regs) => {
                thread.user.resume(&thread.mm(), Go::Regs(&regs));
                return Gone::On;
            }
        }
    }
}
