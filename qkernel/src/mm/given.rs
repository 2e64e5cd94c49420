//! How much of the time that threads of an address space could have run the host let them run.
//!
//! What is measured of a thread is how long it was in user mode by the clock on the wall
//! (`task::cpu_time`). On a busy host, or under a quota, others run in a part of that. The platform
//! may know what a space was really given: its threads share that, in proportion to what each could
//! have used since it was last looked at.

/// All of the time, as a share.
const ALL: u32 = 1 << 16;
/// What was given beyond what was used counts later, but no more than this, in ns. The two clocks
/// are not read at the same moment, and the platform itself works in a space too.
const MOST_LEFT_NS: u64 = 1_000_000;
/// How old a look may be for the time of one among several threads, in ns.
const FRESH_NS: u64 = 1_000_000;

/// What threads could have run in user mode since they were last looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// All of it, in ns.
    pub user_ns: u64,
    /// Of that, what the kernel did for them on the spot, about.
    pub spot_ns: u64,
}

impl core::ops::AddAssign for Wanted {
    fn add_assign(&mut self, other: Wanted) {
        self.user_ns = self.user_ns.saturating_add(other.user_ns);
        self.spot_ns = self.spot_ns.saturating_add(other.spot_ns);
    }
}

/// What the host gave to an address space, as far as that has been looked at.
#[derive(Debug, Default)]
pub struct Given {
    /// What the platform said, in ns since the space was made.
    last_ns: u64,
    /// CLOCK_MONOTONIC then.
    at_ns: u64,
    /// Of what was given, not used yet.
    left_ns: u64,
    /// The part of their time in user mode that threads really had.
    share: Share,
}

impl Given {
    /// The share of its time in user mode that a thread is taken to have had since the last look.
    pub fn share(&self) -> Share {
        self.share
    }

    /// True if the share need not be looked at again yet.
    pub fn is_fresh(&self, now_ns: u64) -> bool {
        now_ns < self.at_ns.saturating_add(FRESH_NS)
    }

    /// What the platform says begins at `ns`: there may have been more in another life, from whose
    /// middle this one comes.
    pub fn goes_on_from(&mut self, ns: u64) {
        self.last_ns = self.last_ns.min(ns);
    }

    /// The share of what its threads wanted that the platform says to have given by now; all where
    /// it does not say.
    pub fn look(&mut self, host_ns: Option<u64>, now_ns: u64, wanted: Wanted) -> Share {
        self.at_ns = now_ns;
        self.share = match host_ns {
            None => Share::ALL,
            Some(ns) => {
                let given_ns = ns.saturating_sub(core::mem::replace(&mut self.last_ns, ns));
                // The kernel did some of it elsewhere.
                self.share_of(given_ns.saturating_add(wanted.spot_ns), wanted.user_ns)
            }
        };
        self.share
    }

    /// The share of `wanted_ns` that so much more makes.
    fn share_of(&mut self, given_ns: u64, wanted_ns: u64) -> Share {
        let there_ns = given_ns.saturating_add(self.left_ns);
        self.left_ns = there_ns.saturating_sub(wanted_ns).min(MOST_LEFT_NS);
        if there_ns >= wanted_ns {
            return Share::ALL;
        }
        // Less than all.
        Share((u128::from(there_ns) * u128::from(ALL) / u128::from(wanted_ns)) as u32)
    }
}

/// A part of a thread's time in user mode, of [`ALL`].
#[derive(Clone, Copy, Debug)]
pub struct Share(u32);

impl Share {
    /// All of it.
    pub const ALL: Share = Share(ALL);

    /// That part of `ns`.
    pub fn of(self, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(self.0) / u128::from(ALL)) as u64
    }
}

impl Default for Share {
    fn default() -> Self {
        Share::ALL
    }
}
