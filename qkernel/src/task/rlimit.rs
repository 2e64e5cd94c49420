//! Resource limits (getrlimit(2)).

use linux_raw_sys::general::{
    RLIM_NLIMITS, RLIM64_INFINITY, RLIMIT_CORE, RLIMIT_MEMLOCK, RLIMIT_MSGQUEUE, RLIMIT_NICE,
    RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_RTPRIO, RLIMIT_SIGPENDING, RLIMIT_STACK,
};

/// Soft and hard limits by RLIMIT_* number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rlimits(pub [(u64, u64); RLIM_NLIMITS as usize]);

impl Default for Rlimits {
    fn default() -> Self {
        let infinity = RLIM64_INFINITY as u64;
        let mut limits = [(infinity, infinity); RLIM_NLIMITS as usize];
        let mut set = |which: u32, soft, hard| limits[which as usize] = (soft, hard);
        set(RLIMIT_STACK, 8 << 20, infinity);
        set(RLIMIT_CORE, 0, infinity);
        set(RLIMIT_NPROC, 30_000, 30_000);
        set(RLIMIT_NOFILE, 1024, 1 << 20);
        set(RLIMIT_MEMLOCK, 8 << 20, 8 << 20);
        set(RLIMIT_SIGPENDING, 30_000, 30_000);
        set(RLIMIT_MSGQUEUE, 819_200, 819_200);
        set(RLIMIT_NICE, 0, 0);
        set(RLIMIT_RTPRIO, 0, 0);
        Rlimits(limits)
    }
}

impl Rlimits {
    /// Soft and hard limit of `which`.
    pub fn get(&self, which: u32) -> (u64, u64) {
        let infinity = RLIM64_INFINITY as u64;
        self.0.get(which as usize).copied().unwrap_or((infinity, infinity))
    }

    /// The soft limit of `which`.
    pub fn soft(&self, which: u32) -> u64 {
        self.0.get(which as usize).map_or(RLIM64_INFINITY as u64, |l| l.0)
    }
}
