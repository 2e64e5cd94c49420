//! What user processes and threads cost the host besides guest RAM, and how many of them a memory
//! limit leaves room for.
//!
//! `cargo test -p qvisor --test platform_cost -- --nocapture` (as root, with a memory cgroup)
//! measures the constants.

use super::layout::SLOT_BYTES;

/// Bytes of a stub process with one thread, and of the thread that receives from it: task, address
/// space, slot, filter and listener. Its page tables are no more than the guest's, which are
/// counted there a second time for them.
pub const PROCESS_BYTES: u64 = 128 << 10;
/// Bytes of a further thread of a stub, its slot included, which the guest can fill.
pub const THREAD_BYTES: u64 = 32 << 10 | SLOT_BYTES;

/// However small the limit.
const LEAST_PROCESSES: u64 = 16;
const LEAST_THREADS: u64 = 64;

/// Most processes under a memory limit in bytes (0: none): what they cost is at most half of it.
pub fn max_processes(limit_bytes: u64) -> u32 {
    most(limit_bytes, 2 * PROCESS_BYTES, LEAST_PROCESSES)
}

/// Most threads under a memory limit in bytes (0: none). Slots of threads that have ended can stay
/// between those of others, and count here but not for the guest kernel: so that they are at most a
/// sixteenth of the limit, which the guest kernel leaves to the sandbox.
pub fn max_threads(limit_bytes: u64) -> u32 {
    most(limit_bytes, 16 * SLOT_BYTES, LEAST_THREADS)
}

fn most(limit_bytes: u64, each: u64, least: u64) -> u32 {
    match limit_bytes {
        0 => u32::MAX,
        limit => u32::try_from((limit / each).max(least)).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_memory_is_one_of_processes() {
        assert_eq!((max_processes(0), max_threads(0)), (u32::MAX, u32::MAX));
        assert_eq!((max_processes(256 << 20), max_threads(256 << 20)), (1024, 1024));
        assert_eq!((max_processes(1 << 20), max_threads(1 << 20)), (16, 64));
        assert_eq!((max_processes(u64::MAX), max_threads(u64::MAX)), (u32::MAX, u32::MAX));
    }
}
