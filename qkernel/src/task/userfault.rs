//! Waiting for a page that another thread sees to (userfaultfd(2)).
//!
//! A thread that touched such a page waits in its fault; a signal to be handled ends that, and the
//! fault is made again after the handler. A system call that needs one gives ERESTARTNOMEM, as when
//! memory is short, and waits where it would wait for memory: it is made again, or goes on with its
//! next piece. What it writes once it cannot be made again is [owed](super::owed), and written when
//! it is over.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    UFFD_FEATURE_EXACT_ADDRESS, UFFD_FEATURE_THREAD_ID, UFFD_PAGEFAULT_FLAG_WP,
    UFFD_PAGEFAULT_FLAG_WRITE,
};
use qlib::Va;

use super::{Thread, current};
use crate::errno::{Errno, Result};
use crate::mm::userfault::{Event, Message, Telling};
use crate::mm::{Access, AddressSpace};
use crate::wait::{PollMask, Sleeper, block_on, block_until_killed};

/// Who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum In {
    /// User code: until a signal is to be handled, too.
    UserMode,
    /// A system call.
    Kernel,
}

/// Waits until the page at `va` of `mm` is to be looked at again, if it is another thread's to see
/// to. An error: the wait was cut short.
pub async fn wait(
    thread: &Arc<Thread>,
    mm: &AddressSpace,
    va: Va,
    access: Access,
    place: In,
) -> Result {
    let Some((served, is_watched)) = mm.awaits(va, access) else { return Ok(()) };
    let context = served.context;
    let mut flags = 0;
    if access == Access::Write {
        flags |= UFFD_PAGEFAULT_FLAG_WRITE;
    }
    if is_watched {
        flags |= UFFD_PAGEFAULT_FLAG_WP;
    }
    let is_exact = context.has(UFFD_FEATURE_EXACT_ADDRESS);
    let address = if is_exact { va } else { va.page_floor() };
    let has_tid = context.has(UFFD_FEATURE_THREAD_ID);
    let tid = if has_tid { thread.number_of(thread.tid()) } else { 0 };
    let message = Message { flags: u64::from(flags), address, tid };
    let waiting = context.begin(va.page_floor(), message);
    let queues = [waiting.queue()];
    let attempt = || if waiting.is_over() { Ok(()) } else { Err(Errno::EAGAIN) };
    match place {
        In::UserMode => block_on(thread, &queues, PollMask::IN, None, attempt).await,
        In::Kernel => block_until_killed(thread, &queues, PollMask::IN, attempt).await,
    }
}

/// Waits for the page that a copy for a call of `thread` has missed. False if it has missed none.
pub async fn wait_for_missed(thread: &Arc<Thread>) -> bool {
    let missed = thread.missed.lock().take();
    let Some((va, write)) = missed else { return false };
    let access = if write { Access::Write } else { Access::Read };
    // An error: the thread dies, and whoever asks sees that.
    let _ = wait(thread, &thread.mm(), va, access, In::Kernel).await;
    true
}

/// Has the thread tell, when its call is over, what that has just done to `mm`.
pub fn collect(thread: &Thread, mm: &AddressSpace) {
    if mm.has_untold() {
        thread.missed.lock().note_untold(mm.take_untold());
    }
}

/// Has those told, and waits until they have read it, who asked to be told what the call has done
/// to memory; of a child only if there `is_one`.
pub async fn tell(thread: &Arc<Thread>, is_one: bool) {
    let untold = thread.missed.lock().take_untold();
    let wanted = untold.into_iter().filter(|(_, event)| is_one || !matches!(event, Event::Fork(_)));
    let told: Vec<Telling> = wanted.map(|(context, event)| context.tell(event)).collect();
    for event in told {
        let attempt = || if event.is_read() { Ok(()) } else { Err(Errno::EAGAIN) };
        // An error: it dies.
        let _ = block_until_killed(thread, &[event.queue()], PollMask::IN, attempt).await;
    }
}

/// See [`crate::arch::upcalls::Upcalls::page_missed`]. The memory of others is not waited for.
pub fn page_missed(space: usize, va: Va, write: bool) -> bool {
    with_own(space, |thread| thread.missed.lock().note(va, write)).is_some()
}

/// See [`crate::arch::upcalls::Upcalls::owe`].
pub fn owe(space: usize, va: Va, bytes: &[u8]) -> bool {
    with_own(space, |thread| thread.missed.lock().owe(va, bytes)) == Some(true)
}

/// What `f` says of the thread that the kernel works for, if that lives in this space, and may
/// wait: also one that serves a request of io_uring.
fn with_own<T>(space: usize, f: impl FnOnce(&Thread) -> T) -> Option<T> {
    let thread = current::get().filter(|thread| !thread.is_dying())?;
    (Arc::as_ptr(&thread.mm()).addr() == space).then(|| f(&thread))
}
