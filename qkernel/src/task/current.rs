//! The thread whose task is being polled, for the few operations of files that depend on who asks
//! (signalfd(2)).

use alloc::sync::Arc;
use core::future::{Future, poll_fn};
use core::pin::pin;

use super::Thread;
use crate::mm::fault::Growth;
use crate::namespace::INITIAL_IPC;
use crate::sync::{Mutex, mutex};
use crate::user_namespace::UserNs;

static CURRENT: Mutex<Option<Arc<Thread>>> = mutex(None);

fn replace(thread: Option<Arc<Thread>>) {
    // The old value may be the last of its thread: not dropped while the lock is held.
    let old = core::mem::replace(&mut *CURRENT.lock(), thread);
    drop(old);
}

/// The thread on whose behalf the kernel works now; `None` in tasks of the kernel itself.
pub fn get() -> Option<Arc<Thread>> {
    CURRENT.lock().clone()
}

/// Calls `f` on behalf of `thread`, outside of any task.
pub fn call<R>(thread: &Arc<Thread>, f: impl FnOnce() -> R) -> R {
    replace(Some(thread.clone()));
    let result = f();
    replace(None);
    result
}

/// Calls `f` on behalf of `thread`, whoever else the kernel works for.
pub fn within<R>(thread: &Arc<Thread>, f: impl FnOnce() -> R) -> R {
    let before = get();
    replace(Some(thread.clone()));
    let result = f();
    replace(before);
    result
}

/// Runs `future` as the task of `thread`.
pub async fn with<F: Future>(thread: Arc<Thread>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(move |context| {
        replace(Some(thread.clone()));
        thread.cpu_time.goes_on();
        let result = future.as_mut().poll(context);
        thread.cpu_time.waits();
        replace(None);
        result
    })
    .await
}

/// RLIMIT_STACK and RLIMIT_AS of the thread that the kernel works for, in bytes; 0 where it works
/// for none.
pub fn memory_limits() -> (u64, u64) {
    get().map_or((0, 0), |thread| {
        let Growth { stack_bytes, total_bytes } = thread.process.growth();
        (stack_bytes, total_bytes)
    })
}

/// The number of the IPC namespace of the thread that the kernel works for; of the container's own
/// where it works for none.
pub fn ipc_namespace() -> u64 {
    get().map_or(INITIAL_IPC, |thread| thread.namespaces().ipc.number)
}

/// The user namespace to which that belongs.
pub fn ipc_user() -> UserNs {
    get().map_or_else(UserNs::default, |thread| thread.namespaces().ipc.user.clone())
}
