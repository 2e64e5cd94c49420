//! How long a thread has run, in user mode and in the kernel (getrusage(2), times(2)).
//!
//! What the kernel does in the thread's task is measured. Most system calls are served on the spot
//! as if the thread had not left user mode; of these one in [`SAMPLED`] is measured, and stands for
//! the others: two looks at the clock would be a good part of such a call.
//!
//! The host may have others run while a thread is in user mode. On `kvm` it says so of each CPU
//! ([`CpuTime::rests`]); on `process` the share counts that [`crate::mm::given`] finds.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::mm::given::{Share, Wanted};
use crate::{arch, time};

/// Of so many calls that are served on the spot, one is measured.
const SAMPLED: u64 = 32;
/// One that takes longer, in ns, does not stand for others: the host had something else run in its
/// middle, or it is a rare one.
const USUAL_NS: u64 = 200_000;

/// The times of a thread, in nanoseconds of CLOCK_MONOTONIC. Each "since" is 0 while nothing of its
/// kind runs.
#[derive(Debug, Default)]
pub struct CpuTime {
    /// In user mode, what was served on the spot included.
    user_ns: AtomicU64,
    user_since_ns: AtomicU64,
    /// What the host had taken then from the CPU that runs it.
    stolen_ns: AtomicU64,
    /// In the kernel, for it.
    system_ns: AtomicU64,
    system_since_ns: AtomicU64,
    /// Of `user_ns`, what was served on the spot, about.
    on_the_spot_ns: AtomicU64,
    /// `user_ns` and `on_the_spot_ns` at the last look at what the host gave, and what of the
    /// former it had given by then.
    looked_ns: AtomicU64,
    looked_spot_ns: AtomicU64,
    given_ns: AtomicU64,
    /// The most that has been told of, of `user_ns` and of user time: neither ever goes back.
    had_ns: AtomicU64,
    told_ns: AtomicU64,
}

/// Ends what runs since `since`, if something does, and counts it in `sum`.
fn end(since: &AtomicU64, sum: &AtomicU64, now_ns: u64) {
    let since = since.swap(0, Relaxed);
    if since != 0 {
        sum.fetch_add(now_ns.saturating_sub(since), Relaxed);
    }
}

/// What there is in `sum`, and what runs since `since`, if something does.
fn until(now_ns: u64, sum: &AtomicU64, since: &AtomicU64) -> u64 {
    let running_ns = match since.load(Relaxed) {
        0 => 0,
        since => now_ns.saturating_sub(since),
    };
    sum.load(Relaxed) + running_ns
}

impl CpuTime {
    /// It goes to user mode now; on `kvm` as soon as it has a CPU ([`CpuTime::runs`]).
    pub fn enters_user_mode(&self) {
        let now_ns = time::monotonic_ns();
        end(&self.system_since_ns, &self.system_ns, now_ns);
        if !arch::is_kvm() {
            self.user_since_ns.store(now_ns, Relaxed);
        }
    }

    /// A CPU of the virtual machine runs it from now on. `stolen_ns`: how long the host has kept
    /// that waiting in all.
    pub fn runs(&self, stolen_ns: u64) {
        self.stolen_ns.store(stolen_ns, Relaxed);
        self.user_since_ns.store(time::monotonic_ns(), Relaxed);
    }

    /// That CPU does so no more.
    pub fn rests(&self, stolen_ns: u64) {
        let stolen_ns = stolen_ns.saturating_sub(self.stolen_ns.load(Relaxed));
        let until_ns = time::monotonic_ns().saturating_sub(stolen_ns);
        end(&self.user_since_ns, &self.user_ns, until_ns);
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
        let took_ns = time::elapsed_ns(began_ns);
        let stands_for = if took_ns <= USUAL_NS { SAMPLED } else { 1 };
        self.on_the_spot_ns.fetch_add(took_ns.saturating_mul(stands_for), Relaxed);
        result
    }

    /// Time in user mode and in the kernel until now. Neither is ever less than it was. `share`:
    /// of the former since the last look.
    pub fn told(&self, share: Share) -> (u64, u64) {
        let now_ns = time::monotonic_ns();
        let user = until(now_ns, &self.user_ns, &self.user_since_ns);
        let system = until(now_ns, &self.system_ns, &self.system_since_ns);
        self.split(self.had(user, share), system)
    }

    /// What it could have run since the last look.
    pub fn since_look(&self, now_ns: u64) -> Wanted {
        let user = until(now_ns, &self.user_ns, &self.user_since_ns);
        let spot = self.on_the_spot_ns.load(Relaxed);
        Wanted {
            user_ns: user.saturating_sub(self.looked_ns.load(Relaxed)),
            spot_ns: spot.saturating_sub(self.looked_spot_ns.load(Relaxed)),
        }
    }

    /// Has been given this share of that.
    pub fn looked_at(&self, now_ns: u64, share: Share) {
        let Wanted { user_ns, spot_ns } = self.since_look(now_ns);
        self.given_ns.fetch_add(share.of(user_ns), Relaxed);
        self.looked_ns.fetch_add(user_ns, Relaxed);
        self.looked_spot_ns.fetch_add(spot_ns, Relaxed);
    }

    /// Of so much in user mode, what the host gave it.
    fn had(&self, user: u64, share: Share) -> u64 {
        let since = user.saturating_sub(self.looked_ns.load(Relaxed));
        let had = self.given_ns.load(Relaxed) + share.of(since);
        had.max(self.had_ns.fetch_max(had, Relaxed))
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
    use crate::mm::given::Given;

    /// Looks at what the host has given to two threads.
    fn look(given: &mut Given, host_ns: Option<u64>, now_ns: u64, threads: [&CpuTime; 2]) {
        let mut wanted = Wanted::default();
        threads.iter().for_each(|time| wanted += time.since_look(now_ns));
        let share = given.look(host_ns, now_ns, wanted);
        threads.iter().for_each(|time| time.looked_at(now_ns, share));
    }

    #[test]
    fn what_the_host_gave_to_others_does_not_count() {
        let (one, other) = (CpuTime::default(), CpuTime::default());
        let had = |time: &CpuTime, share| time.had(time.user_ns.load(Relaxed), share);
        let mut given = Given::default();
        let mut host_ns = 3_000_000_000;
        one.user_ns.store(4_000_000_000, Relaxed);
        other.user_ns.store(2_000_000_000, Relaxed);
        look(&mut given, Some(host_ns), 1, [&one, &other]);
        assert_eq!(
            (had(&one, Share::ALL), had(&other, Share::ALL)),
            (2_000_000_000, 1_000_000_000)
        );
        // What was more than could be used counts later, but only a little of it.
        host_ns += 1_000_000_000;
        look(&mut given, Some(host_ns), 2, [&one, &other]);
        one.user_ns.fetch_add(4_000_000, Relaxed);
        host_ns += 1_000_000;
        look(&mut given, Some(host_ns), 3, [&one, &other]);
        assert_eq!(had(&one, Share::ALL), 2_002_000_000);
        // A copy of the space, made in its middle, has what the copy is given.
        given.goes_on_from(2_000_000);
        one.user_ns.fetch_add(4_000_000, Relaxed);
        look(&mut given, Some(3_000_000), 4, [&one, &other]);
        assert_eq!(had(&one, Share::ALL), 2_003_000_000);
        // A platform that does not tell gives all.
        one.user_ns.fetch_add(4_000_000, Relaxed);
        look(&mut given, None, 5, [&one, &other]);
        assert_eq!(had(&one, Share::ALL), 2_007_000_000);
    }

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

        #[test]
        fn no_more_is_told_than_was_given(steps in prop::collection::vec((1u64..1000, 0u64..1200, any::<bool>()), 1..50)) {
            let (one, other) = (CpuTime::default(), CpuTime::default());
            let mut given = Given::default();
            let (mut now_ns, mut host_ns, mut told) = (1, 0, 0);
            for (wanted, ns, both) in steps {
                now_ns += wanted;
                host_ns += ns;
                one.user_ns.fetch_add(wanted, Relaxed);
                if both {
                    other.user_ns.fetch_add(wanted / 2, Relaxed);
                }
                look(&mut given, Some(host_ns), now_ns, [&one, &other]);
                let had = |time: &CpuTime| time.had(time.user_ns.load(Relaxed), given.share());
                let now = had(&one) + had(&other);
                prop_assert!(now >= told && now <= host_ns, "{told} {now} {host_ns}");
                told = now;
            }
        }
    }
}
