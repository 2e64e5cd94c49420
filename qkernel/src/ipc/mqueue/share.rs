//! What message queues count for the user who made them (RLIMIT_MSGQUEUE of getrlimit(2)).

use alloc::collections::BTreeMap;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::errno::{Errno, Result};
use crate::sync::{Mutex, mutex};

/// What the queues of each user (real user id) count, in bytes.
static COUNTED: Mutex<BTreeMap<u32, u64>> = mutex(BTreeMap::new());

/// Queues that there are, with those that have no name any more.
static QUEUES: AtomicU64 = AtomicU64::new(0);

/// How many queues there are.
pub fn queues() -> u64 {
    QUEUES.load(Relaxed)
}

/// What a queue counts for its user.
pub struct Share {
    uid: u32,
    bytes: u64,
}

impl Share {
    /// EMFILE if with that the user had more than `limit`.
    pub fn take(uid: u32, bytes: u64, limit: u64) -> Result<Share> {
        let mut counted = COUNTED.lock();
        let all = counted.get(&uid).copied().unwrap_or(0).checked_add(bytes);
        let all = all.filter(|all| *all <= limit).ok_or(Errno::EMFILE)?;
        counted.insert(uid, all);
        QUEUES.fetch_add(1, Relaxed);
        Ok(Share { uid, bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        QUEUES.fetch_sub(1, Relaxed);
        let mut counted = COUNTED.lock();
        if let Some(all) = counted.get_mut(&self.uid) {
            *all -= self.bytes;
            if *all == 0 {
                counted.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_hold_is_bounded_and_given_back() {
        let first = Share::take(77, 600, 1000).expect("that is within the limit");
        assert_eq!(Share::take(77, 401, 1000).err(), Some(Errno::EMFILE));
        let other = Share::take(78, 1000, 1000).expect("another user has a limit of his own");
        drop(first);
        let second = Share::take(77, 1000, 1000).expect("it was given back");
        assert_eq!(Share::take(77, u64::MAX, u64::MAX).err(), Some(Errno::EMFILE));
        drop((other, second));
        assert!(!COUNTED.lock().contains_key(&77));
    }
}
