//! What guest processes cost outside of guest RAM, and how many there may be.
//!
//! On `process` each address space is a stub process of the host, and each thread a thread of it. What these take is charged to the
//! container's cgroup by the host, so it is charged to guest memory here, before the host's out-of-memory killer would take the whole
//! sandbox: user frames leave room for it, it counts as used in /proc/meminfo, and the killer knows what the end of a process gives
//! back. The prices are the platform's (`BootInfo`), zero on `kvm`. The host's own page tables of a stub are no more than the guest's, which
//! are counted a second time for them.
//!
//! No more than half of memory may go to that: the limits on processes and threads follow from it (EAGAIN, as for `pids.max`).

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use qlib::PAGE_SIZE;

use crate::arch::{self, heap};
use crate::errno::{Errno, Result};
use crate::task::table::PID_MAX;

/// Kernel memory of a process and of a thread in the guest, in bytes, page tables included.
const PROCESS_KERNEL_BYTES: u64 = 48 << 10;
const THREAD_KERNEL_BYTES: u64 = 8 << 10;
/// However small memory is, so many processes and threads may be.
const FEWEST: u64 = 16;

/// So many processes and threads that the platform could make are not for clone(2).
const KEPT: u64 = 8;

static SPACES: AtomicU64 = AtomicU64::new(0);
static THREADS: AtomicU64 = AtomicU64::new(0);

/// Bytes outside of RAM for so many spaces and threads (the first thread of a space is in its price).
fn outside_bytes(spaces: u64, threads: u64) -> u64 {
    let boot = arch::boot();
    spaces * boot.host_bytes_per_process + threads.saturating_sub(spaces) * boot.host_bytes_per_thread
}

fn update() {
    heap::charge(outside_bytes(SPACES.load(Relaxed), THREADS.load(Relaxed)));
}

/// An address space has been made on the platform.
pub fn space_made() {
    SPACES.fetch_add(1, Relaxed);
    update();
}

/// The platform has nothing left of an address space.
pub fn space_gone() {
    SPACES.fetch_sub(1, Relaxed);
    update();
}

/// A thread has been made on the platform.
pub fn thread_made() {
    THREADS.fetch_add(1, Relaxed);
    update();
}

/// The platform has forgotten a thread.
pub fn thread_gone() {
    THREADS.fetch_sub(1, Relaxed);
    update();
}

/// Address spaces and threads that the platform has.
pub fn counts() -> (u64, u64) {
    (SPACES.load(Relaxed), THREADS.load(Relaxed))
}

/// What the end of a process with so many threads gives back besides its pages and what it has open, in bytes.
pub fn charge_of(threads: u64) -> u64 {
    outside_bytes(1, threads) + PROCESS_KERNEL_BYTES + threads * THREAD_KERNEL_BYTES
}

/// The most processes and threads that may live together.
pub fn max_tasks() -> u64 {
    tasks_in(arch::ram_bytes() / 2, outside_bytes(1, 1) + PROCESS_KERNEL_BYTES + THREAD_KERNEL_BYTES)
}

fn tasks_in(bytes: u64, each_bytes: u64) -> u64 {
    (bytes / each_bytes).clamp(FEWEST, u64::from(PID_MAX) - 1)
}

/// EAGAIN when there may not be one more thread, or process.
pub fn check_clone(new_space: bool) -> Result {
    let (spaces, threads) = counts();
    let more = outside_bytes(spaces + u64::from(new_space), threads + 1) - outside_bytes(spaces, threads);
    let inside = if new_space { PROCESS_KERNEL_BYTES } else { 0 } + THREAD_KERNEL_BYTES;
    let total = outside_bytes(spaces, threads) + more + spaces * PROCESS_KERNEL_BYTES + threads * THREAD_KERNEL_BYTES;
    let is_full = spaces.max(threads.saturating_sub(spaces) / 8) >= max_tasks() || total > arch::ram_bytes() / 2;
    let boot = arch::boot();
    let is_left =
        leaves_some(spaces + u64::from(new_space), boot.max_processes) && leaves_some(threads + 1, boot.max_threads);
    if threads >= FEWEST && (is_full || !is_left) || !heap::has_room_for(more + inside) {
        return Err(Errno::EAGAIN);
    }
    Ok(())
}

/// Whether a platform that makes at most `most` can make some more than `count`: those are for who comes by `quark exec`.
fn leaves_some(count: u64, most: u32) -> bool {
    count + KEPT <= u64::from(most)
}

/// ENOMEM when so many bytes of kernel memory, which a program asks for at once, would bring memory low. What scales with a program's
/// number asks before it allocates; smaller things are allocated on the way down to the reserve, and the next call waits. So many bytes in one
/// piece can be had afterwards: there may be room, but all in pieces.
pub fn ask(bytes: u64) -> Result {
    /// What is there in one piece if it is there at all.
    const SMALL_BYTES: u64 = 64 << 10;
    if bytes < PAGE_SIZE {
        return Ok(());
    }
    let in_one_piece = || Vec::<u8>::new().try_reserve_exact(bytes as usize).is_ok();
    if heap::has_room_for(bytes) && (bytes <= SMALL_BYTES || in_one_piece()) { Ok(()) } else { Err(Errno::ENOMEM) }
}

/// As [`ask`], for `count` objects of type `T`.
pub fn ask_for<T>(count: usize) -> Result {
    ask((count as u64).saturating_mul(size_of::<T>() as u64))
}

/// One part in this many of memory may be kernel memory for things that outlive processes.
const LASTING_SHARE: u64 = 8;

static LASTING_BYTES: AtomicU64 = AtomicU64::new(0);

/// Kernel memory for something that outlives the process that made it (names of a tmpfs, System V objects): no process's end gives it back, so
/// all of it together is bounded. Given back when dropped.
#[derive(Debug, Default)]
pub struct Lasting(u64);

impl Lasting {
    /// Takes `bytes`. ENOSPC.
    pub fn take(bytes: u64) -> Result<Lasting> {
        let limit = arch::ram_bytes() / LASTING_SHARE;
        let after = LASTING_BYTES.load(Relaxed).saturating_add(bytes);
        if after > limit {
            return Err(Errno::ENOSPC);
        }
        LASTING_BYTES.store(after, Relaxed);
        Ok(Lasting(bytes))
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        LASTING_BYTES.fetch_sub(self.0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_bounded_and_given_back() {
        let most = arch::ram_bytes() / LASTING_SHARE;
        let before = LASTING_BYTES.load(Relaxed);
        assert!(Lasting::take(most + 1).is_err());
        let taken = Lasting::take(1000).expect("there is room");
        assert!(LASTING_BYTES.load(Relaxed) >= 1000);
        assert!(Lasting::take(most).is_err());
        drop(taken);
        assert!(LASTING_BYTES.load(Relaxed) <= before + 1000);
    }

    #[test]
    fn programs_leave_room_for_who_comes_from_outside() {
        assert!(leaves_some(376, 384) && !leaves_some(377, 384));
        assert!(leaves_some(1 << 20, u32::MAX));
    }

    #[test]
    fn limits_follow_from_memory() {
        assert_eq!(tasks_in(1 << 20, 256 << 10), FEWEST);
        assert_eq!(tasks_in(128 << 20, 256 << 10), 512);
        assert_eq!(tasks_in(1 << 40, 256 << 10), 32767);
    }
}
