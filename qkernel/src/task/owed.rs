//! What a system call has yet to write to pages that others see to first ([`super::userfault`]).

use alloc::sync::Arc;

use super::outcome::Outcome;
use super::{Thread, oom};
use crate::errno::Errno;
use crate::mm::fault::Spare;

/// Writes what the call owes: its outcome, EFAULT if that could not be written.
pub async fn settle(thread: &Arc<Thread>, outcome: Outcome) -> Outcome {
    if !thread.missed.lock().owes() {
        return outcome;
    }
    let mut outcome = outcome;
    let mm = thread.mm();
    loop {
        let next = thread.missed.lock().next_owed();
        let Some((va, bytes)) = next else { break };
        let written = loop {
            match mm.write_bytes_with(va, &bytes, Spare::None) {
                Err(Errno::ERESTARTNOMEM) if oom::copy_may_go_on(thread).await => {}
                written => break written,
            }
        };
        if written.is_err() && matches!(outcome, Outcome::Returns(Ok(_))) {
            outcome = Outcome::Returns(Err(Errno::EFAULT));
        }
    }
    thread.user.claim_ops(&mm);
    outcome
}
