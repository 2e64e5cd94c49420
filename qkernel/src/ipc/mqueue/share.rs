//! What message queues count for the user who made them (RLIMIT_MSGQUEUE of getrlimit(2)).

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::errno::{Errno, Result};
use crate::sync::{Mutex, mutex};

/// What the queues of each user (real user id) count, in bytes.
static COUNTED: Mutex<BTreeMap<u32, u64>> = mutex(BTreeMap::new());

/// How many queues a namespace has, with those that have no name any more.
pub type Queues = Arc<AtomicU64>;

/// What a queue counts for its user.
pub struct Share {
    queues: Queues,
    uid: u32,
    bytes: u64,
}

impl Share {
    /// EMFILE if with that the user had more than `limit`.
    pub fn take(queues: &Queues, uid: u32, bytes: u64, limit: u64) -> Result<Share> {
        let mut counted = COUNTED.lock();
        let all = counted.get(&uid).copied().unwrap_or(0).checked_add(bytes);
        let all = all.filter(|all| *all <= limit).ok_or(Errno::EMFILE)?;
        counted.insert(uid, all);
        queues.fetch_add(1, Relaxed);
        Ok(Share { queues: queues.clone(), uid, bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.queues.fetch_sub(1, Relaxed);
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
        let queues = Queues::default();
        let first = Share::take(&queues, 77, 600, 1000).expect("that is within the limit");
        assert_eq!(Share::take(&queues, 77, 401, 1000).err(), Some(Errno::EMFILE));
        let other =
            Share::take(&queues, 78, 1000, 1000).expect("another user has a limit of his own");
        drop(first);
        let second = Share::take(&queues, 77, 1000, 1000).expect("it was given back");
        assert_eq!(Share::take(&queues, 77, u64::MAX, u64::MAX).err(), Some(Errno::EMFILE));
        assert_eq!(queues.load(Relaxed), 2);
        drop((other, second));
        assert_eq!(queues.load(Relaxed), 0);
        assert!(!COUNTED.lock().contains_key(&77));
    }
}
