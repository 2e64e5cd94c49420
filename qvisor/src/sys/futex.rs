//! futex(2). A wait may return for no reason: its caller looks at the word again.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};
use rustix::time::Timespec;

/// FUTEX_BITSET_MATCH_ANY.
const MATCH_ANY: NonZeroU32 = NonZeroU32::MAX;

/// Waits while `*word == expected`, at most `timeout`. The word may be shared between processes.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let timeout =
        Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    futex::wait(word, Flags::empty(), expected, Some(&timeout)).ok();
}

/// Wakes all who wait in [`futex_wait`].
pub fn futex_wake(word: &AtomicU32) {
    futex::wake(word, Flags::empty(), i32::MAX as u32).ok();
}

/// Stores `value`, then as [`futex_wake`].
pub fn futex_store_wake(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::SeqCst);
    futex_wake(word);
}

/// Waits while `*word == expected`, for threads of this process only.
pub fn futex_wait_private(word: &AtomicU32, expected: u32) {
    futex::wait(word, Flags::PRIVATE, expected, None).ok();
}

/// As [`futex_wait_private`], until `deadline_ns` of CLOCK_MONOTONIC at most: true if that has
/// come.
pub fn futex_wait_private_until(word: &AtomicU32, expected: u32, deadline_ns: u64) -> bool {
    const SECOND_NS: u64 = 1_000_000_000;
    let until = Timespec {
        tv_sec: i64::try_from(deadline_ns / SECOND_NS).unwrap_or(i64::MAX),
        tv_nsec: (deadline_ns % SECOND_NS) as i64,
    };
    let waited = futex::wait_bitset(word, Flags::PRIVATE, expected, Some(&until), MATCH_ANY);
    waited == Err(Errno::TIMEDOUT)
}

/// Wakes one that waits in [`futex_wait_private`] or [`futex_wait_private_until`].
pub fn futex_wake_private(word: &AtomicU32) {
    futex::wake(word, Flags::PRIVATE, 1).ok();
}
