//! How long a thread has run, in user mode and in the kernel (getrusage(2), times(2)).
//!
//! What the kernel does in the thread's task is measured. Most system calls are served on the spot
//! as if the thread had not left user mode; of these one in [`SAMPLED`] is measured, and stands for
//! the others: two looks at the clock would be a good part of such a call.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::time;

/// Of so many calls that are served on the spot, one is measured.
const SAMPLED: u64 = 32;

/// The times of a thread, in nanoseconds of CLOCK_MONOTONIC. Each "since" is 0 while nothing of its
/// kind runs.
#[derive(Debug, Default)]
pub struct CpuTime {
    /// In user mode, what was served on the spot included.
    user_ns: AtomicU64,
    user_since_ns: AtomicU64,
    /// In the kernel, for it.
    system_ns: AtomicU64,
    system_since_ns: AtomicU64,
    /// Of `user_ns`, what was served on the spot, about.
    on_the_spot_ns: AtomicU64,
    /// The most user time that has been told of: it never goes back.
    told_ns: AtomicU64,
}

/// Ends what runs since `since`, if something does, and counts it in `sum`.
fn end(since: &AtomicU64, sum: &AtomicU64, now_ns: u64) {
    let since = since.swap(0, Relaxed);
    if since != 0 {
        sum.fetch_add(now_ns.saturating_sub(since), Relaxed);
    }
}

impl CpuTime {
    /// It goes to user mode now.
    pub fn enters_user_mode(&self) {
        let now_ns = time::monotonic_ns();
        end(&self.system_since_ns, &self.system_ns, now_ns);
        self.user_since_ns.store(now_ns, Relaxed);
    }

    /// It came back, and the kernel works for it.
    pub fn left_user_mode(&self) {
        let now_ns = time::monotonic_ns();
        end(&self.user_since_ns, &self.user_ns, now_ns);
        self.system_since_ns.store(now_ns, Relaxed);
    }

    /// The kernel goes on with its task.
    pub fn goes_on(&self) {
        if self.user_since_ns.load(Relaxed) == 0 {
            self.system_since_ns.store(time::monotonic_ns(), Relaxed);
        }
    }

    /// Its task waits.
    pub fn waits(&self) {
        if self.system_since_ns.load(Relaxed) != 0 {
            end(&self.system_since_ns, &self.system_ns, time::monotonic_ns());
        }
    }

    /// Serves its `number`th call on the spot.
    pub fn on_the_spot<R>(&self, number: u64, serve: impl FnOnce() -> R) -> R {
        if !number.is_multiple_of(SAMPLED) {
            return serve();
        }
        let began_ns = time::monotonic_ns();
        let result = serve();
        let took_ns = time::elapsed_ns(began_ns).saturating_mul(SAMPLED);
        self.on_the_spot_ns.fetch_add(took_ns, Relaxed);
        result
    }

    /// Time in user mode and in the kernel until now. Neither is ever less than it was.
    pub fn told(&self) -> (u64, u64) {
        let now_ns = time::monotonic_ns();
        let until_now = |sum: &AtomicU64, since: &AtomicU64| {
            let running_ns = match since.load(Relaxed) {
                0 => 0,
                since => now_ns.saturating_sub(since),
            };
            sum.load(Relaxed) + running_ns
        };
        let user = until_now(&self.user_ns, &self.user_since_ns);
        let system = until_now(&self.system_ns, &self.system_since_ns);
        self.split(user, system)
    }

    fn split(&self, user: u64, system: u64) -> (u64, u64) {
        let in_user_mode = user.saturating_sub(self.on_the_spot_ns.load(Relaxed));
        let told = in_user_mode.max(self.told_ns.fetch_max(in_user_mode, Relaxed));
        (told, (user + system).saturating_sub(told))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn neither_time_goes_back(steps in prop::collection::vec((0u64..1000, 0u64..1000, 0u64..5000), 1..50)) {
            let time = CpuTime::default();
            let (mut user, mut system, mut before) = (0, 0, (0, 0));
            for (more_user, more_system, sampled) in steps {
                user += more_user;
                system += more_system;
                time.on_the_spot_ns.fetch_add(sampled, Relaxed);
                let now = time.split(user, system);
                prop_assert!(now.0 >= before.0 && now.1 >= before.1, "{before:?} {now:?}");
                prop_assert_eq!(now.0 + now.1, user + system);
                before = now;
            }
        }
    }
}
