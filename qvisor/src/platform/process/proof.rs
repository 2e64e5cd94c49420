//! Which operations the host has carried out.
//!
//! The kernel uses frames again when the thread that was to unmap them traps, for then the host has
//! done so. That rests on this room alone: **an operation that is let through stays unproven until
//! the host shows that it was carried out, and no trap is delivered before**.
//!
//! A thread's next notification is that proof, for a host thread makes one call at a time, and stub
//! code, which nobody can change, reports failure first ([`REASON_FAIL`]). With two exceptions,
//! open to a program that makes the frame call itself, with signals not blocked:
//! - **A kick** can tear the call before it begins, on hosts where a waiting call can be torn after
//!   its answer was sent; or come after it failed, before stub code can say so. Then the first call
//!   is the kick's report (its handler makes no other). Where the thread was interrupted stands in
//!   memory that its siblings can write, so that proves nothing: it is told to carry the operation
//!   out again, and to report ([`Phase::Repeating`]). Nothing has used its range for other pages
//!   meanwhile: whoever changes mappings waits for threads that have operations out
//!   (`qkernel/src/mm/freeze.rs`).
//! - **The same call again**: any stop or freeze by the host tears a call without a handler, and
//!   makes it anew. It is let through again. Changes of mappings can be made twice; clones and
//!   exits are not repeated, nor do they prove anything.
//!
//! It also counts mappings: the host refuses what would make more than `vm.max_map_count`, and must
//! never come to that.

use std::io;

use qlib::platform::Event;
use tracing::warn;

use super::Shared;
use super::layout::*;
use super::space::{Space, SpaceState};
use super::thread::*;
use crate::sandbox::log_limit::Seldom;
use crate::sys::{self, Notification};

static UNCOUNTED: Seldom = Seldom::new();

impl SpaceState {
    /// Lets an operation through, if the host will not refuse it for the number of mappings.
    pub(super) fn let_through(
        &mut self,
        space: &Space,
        shared: &Shared,
        number: u32,
        id: u64,
        op: HostOp,
    ) {
        if !self.has_room(space, shared, &op) {
            return;
        }
        if let Some(thread) = self.thread_mut(number) {
            if let Some(name) = &op.name {
                space.area.write(thread.slot, SLOT_NAME, name);
            }
            if op.may_be_repeated() {
                thread.unproven = Some(op);
            }
        }
        self.let_continue(id);
    }

    /// True if this is the call that its thread was last told to make, once more: its first try was
    /// torn, or a kick came between.
    pub(super) fn is_repeated(&self, shared: &Shared, number: u32, n: &Notification) -> bool {
        let Some(thread) = self.thread(number) else { return false };
        let [a, b, c, d, e, f] = n.data.args;
        let words = [u64::from(n.data.nr as u32), a, b, c, d, e, f];
        let is_next = matches!(thread.phase, Phase::Ops(1..))
            && thread.ops.front().is_some_and(|o| o.words == words);
        n.data.instruction_pointer == shared.zygote.addresses.op_ip
            && thread.unproven.as_ref().is_some_and(|o| o.words == words)
            && !is_next
    }

    /// Lets that call through again.
    pub(super) fn repeat(&mut self, space: &Space, shared: &Shared, number: u32, id: u64) {
        let Some(thread) = self.thread_mut(number) else { return };
        if let Phase::Repeating { begun } = &mut thread.phase {
            *begun = true;
        }
        if let Some(op) = thread.unproven.clone() {
            self.let_through(space, shared, number, id, op);
        }
    }

    /// A thread is parked by its kick: has it prove first that its last operation is carried out.
    pub(super) fn kick_arrived(
        &mut self,
        space: &Space,
        shared: &Shared,
        number: u32,
    ) -> Option<Event> {
        let thread = self.thread_mut(number)?;
        let (Some(op), Phase::Parked(id)) = (&thread.unproven, thread.phase) else {
            return self.proven_kick(space, shared, number);
        };
        space.put_op(thread.slot, 0, op);
        thread.phase = Phase::Repeating { begun: false };
        self.answer(id, (1u64 | 1 << GO_HOLD_BIT) as i64);
        None
    }

    /// A frame call of a thread that has carried its last operation out again.
    pub(super) fn repeat_reported(
        &mut self,
        space: &Space,
        shared: &Shared,
        number: u32,
        n: &Notification,
    ) -> Option<Event> {
        let [reason, frame, error, ..] = n.data.args;
        let thread = self.thread_mut(number)?;
        if reason == REASON_DONE && frame == space.frame_address(shared, thread.frame) {
            thread.phase = Phase::Parked(n.id);
            return self.proven_kick(space, shared, number);
        }
        match reason {
            REASON_FAIL => self
                .kill(space.id, &format!("a change of its mappings failed: {}", host_error(error))),
            _ => self.kill(space.id, "a false report of its last operation"),
        }
        None
    }

    /// True if the host will carry an operation out, as far as that depends on the number of
    /// mappings: else the space is ended.
    fn has_room(&mut self, space: &Space, shared: &Shared, op: &HostOp) -> bool {
        let more = op.new_mappings();
        self.mappings += more;
        if more == 0 || self.mappings <= shared.most_mappings {
            return true;
        }
        // The bound only grows: now the truth, and what may come on top of it.
        match self.pid.map(sys::count_mappings) {
            Some(Ok(counted)) => self.mappings = counted + more + self.unproven_mappings(),
            Some(Err(e)) if UNCOUNTED.count().is_some() => {
                warn!(space = space.id, "cannot count its mappings: {e}");
            }
            Some(Err(_)) | None => {}
        }
        if self.mappings > shared.most_mappings {
            let most = shared.most_mappings;
            let why = format!(
                "it has {} mappings of the host, and may have {most}: see vm.max_map_count",
                self.mappings
            );
            self.kill(space.id, &why);
        }
        self.mappings <= shared.most_mappings
    }
}

/// The error in a report of [`REASON_FAIL`].
pub(super) fn host_error(word: u64) -> io::Error {
    io::Error::from_raw_os_error((word as i64).wrapping_neg() as i32)
}
