//! Taking requests out of a ring, and putting together those that are linked.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;

use super::prepare;
use super::serve::{self, Entry};
use crate::errno::{Errno, Result};
use crate::ipc::uring::Ring;
use crate::ipc::uring::abi::{
    OP_LINK_TIMEOUT, SETUP_SUBMIT_ALL, SQE_ASYNC, SQE_DRAIN, SQE_HARDLINK, SQE_LINK,
};
use crate::ipc::uring::request::Drained;
use crate::task::Thread;
use crate::time::Breath;
use crate::wait::{PollMask, Sleeper, block_until_killed};

/// One thread submits at a time, so that what it links stays together.
struct Turn<'a>(&'a Ring);

impl<'a> Turn<'a> {
    async fn take(thread: &Arc<Thread>, ring: &'a Ring) -> Result<Turn<'a>> {
        let attempt = || match ring.is_submitting.swap(true, Relaxed) {
            false => Ok(Turn(ring)),
            true => Err(Errno::EAGAIN),
        };
        let queues = [ring.answered_queue()];
        block_until_killed(thread, &queues, PollMask::WRITE, attempt).await
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.is_submitting.store(false, Relaxed);
        self.0.show_taken();
    }
}

/// Takes at most `most` requests, and begins to serve them: how many.
pub(super) async fn submit(thread: &Arc<Thread>, ring: &Arc<Ring>, most: u32) -> Result<usize> {
    let _turn = Turn::take(thread, ring).await?;
    let most = most.min(ring.submitted()?);
    let mut breath = Breath::new();
    let (mut taken, mut chain) = (0, VecDeque::new());
    while taken < most && !thread.is_dying() {
        let entry = match next(thread, ring, &chain) {
            Ok(Some(entry)) => entry,
            Err(error) if taken == 0 => return Err(error),
            Ok(None) | Err(_) => break,
        };
        taken += 1;
        let is_bad = entry.prepared.is_err();
        let goes_on = entry.request.sqe.flags & (SQE_LINK | SQE_HARDLINK) != 0;
        chain.push_back(entry);
        if !goes_on {
            start(thread, ring, core::mem::take(&mut chain));
        }
        if is_bad && ring.flags & SETUP_SUBMIT_ALL == 0 {
            break;
        }
        breath.take().await;
    }
    if !chain.is_empty() {
        start(thread, ring, chain);
    }
    Ok(taken as usize)
}

/// Takes the next request of those that are there; `None` if its index led nowhere.
fn next(thread: &Arc<Thread>, ring: &Arc<Ring>, chain: &VecDeque<Entry>) -> Result<Option<Entry>> {
    let Some(sqe) = ring.take()? else { return Ok(None) };
    let creds = prepare::creds(thread, ring, &sqe);
    let worker = Thread::worker(thread, creds.as_ref().map_or_else(|_| thread.creds(), Arc::clone));
    let request = ring.begin(sqe, &worker).inspect_err(|_| ring.untake())?;
    let is_limit = sqe.opcode == OP_LINK_TIMEOUT;
    let may_limit = chain.back().is_some_and(|e| e.request.sqe.opcode != OP_LINK_TIMEOUT);
    let prepared = match creds {
        Err(error) => Err(error),
        Ok(_) if is_limit && !may_limit => Err(Errno::EINVAL),
        Ok(_) => prepare::prepare(&worker, ring, &sqe),
    };
    Ok(Some(Entry { request, worker, prepared }))
}

/// Has requests that are linked, or a single one, begin, now or after others.
fn start(thread: &Arc<Thread>, ring: &Arc<Ring>, chain: VecDeque<Entry>) {
    let Some(first) = chain.front().map(|entry| entry.request.clone()) else { return };
    let any = |flag: u8| chain.iter().any(|entry| entry.request.sqe.flags & flag != 0);
    let (drains, is_async) = (any(SQE_DRAIN), first.sqe.flags & SQE_ASYNC != 0);
    let token = thread.user.token;
    if !drains && !ring.requests.is_draining() {
        return serve::start(token, ring.clone(), chain, is_async);
    }
    let own = ring.clone();
    let start = move || serve::start(token, own, chain, true);
    ring.requests.drain(Drained { first, drains, start: alloc::boxed::Box::new(start) });
}
