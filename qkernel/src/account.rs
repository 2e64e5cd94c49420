//! What guest processes cost outside of guest RAM, and how many there may be.
//!
//! On `process` each address space is a stub process of the host, and each thread a thread of it.
//! What these take is charged to the container's cgroup by the host, so it is charged to guest
//! memory here, before the host's out-of-memory killer would take the whole sandbox: user frames
//! leave room for it, it counts as used in /proc/meminfo, and the killer knows what the end of a
//! process gives back. The prices are the platform's (`BootInfo`), zero on `kvm`. The host's own
//! page tables of a stub are no more than the guest's, which are counted a second time for them.
//!
//! No more than half of memory may go to that: the limits on processes and threads follow from it
//! (EAGAIN, as for `pids.max`).

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use qlib::PAGE_SIZE;
use qlib::control::MemoryLimit;
use qlib::heap::MOST_IN_SLAB_BYTES;

use crate::arch::{self, heap};
use crate::errno::{Errno, Result};
use crate::sync::{Mutex, mutex};
use crate::time;

/// Kernel memory of a process and of a thread in the guest, in bytes, page tables included.
const PROCESS_KERNEL_BYTES: u64 = 48 << 10;
const THREAD_KERNEL_BYTES: u64 = 8 << 10;
/// The highest pid and one more (kernel.pid_max).
pub const PID_MAX: u32 = 32768;
/// However small memory is, so many processes and threads may be.
const FEWEST: u64 = 16;

/// So many processes and threads that the platform could make are not for clone(2).
const KEPT: u64 = 8;
/// So many tasks of the host may be the VMM's own, or kept by it.
const KEPT_AT_HOST: u64 = 48;

/// The container's memory limit. What it is at most if there is none, 0, is RAM.
static LIMIT: Mutex<MemoryLimit> = mutex(MemoryLimit { whole: 0, guest: 0 });

/// How much memory the guest may have, in bytes.
pub fn memory_bytes() -> u64 {
    let ram = arch::ram_bytes();
    match memory_limit().guest {
        0 => ram,
        limit => limit.min(ram),
    }
}

/// The container has this memory limit, or none.
pub fn note_memory_limit(limit: MemoryLimit) {
    *LIMIT.lock() = limit;
    heap::set_budget(limit.guest);
}

/// The limit that was noted last.
pub fn memory_limit() -> MemoryLimit {
    *LIMIT.lock()
}

/// What of the container's limit is used, in bytes, with the VMM's part, which is all set aside.
pub fn charged_bytes() -> u64 {
    let limit = memory_limit();
    used_bytes() + (limit.whole - limit.guest)
}

/// How much of [`memory_bytes`] is used, with what it costs outside of RAM, in bytes.
pub fn used_bytes() -> u64 {
    heap::used_bytes().min(memory_bytes())
}

/// How much of the rest programs can have before one is killed for it, in bytes.
pub fn available_bytes() -> u64 {
    heap::available_bytes().min(memory_bytes() - used_bytes())
}

static SPACES: AtomicU64 = AtomicU64::new(0);
static THREADS: AtomicU64 = AtomicU64::new(0);

/// Bytes outside of RAM for so many spaces and threads (the first thread of a space is in its
/// price).
fn outside_bytes(spaces: u64, threads: u64) -> u64 {
    let boot = arch::boot();
    spaces * boot.host_bytes_per_process
        + threads.saturating_sub(spaces) * boot.host_bytes_per_thread
}

/// How long the host may take to have back what a thread that has ended took: its stack and the
/// like are freed by RCU. Counted in two halves, so between that and half of it.
const LINGER_NS: u64 = 500_000_000;

/// Threads that ended lately: in the half of [`LINGER_NS`] with this number, and in the one before
/// it.
struct Gone {
    half: u64,
    threads: [u64; 2],
}

static GONE: Mutex<Gone> = mutex(Gone { half: 0, threads: [0, 0] });

impl Gone {
    /// Notes that `more` have ended: how many may still cost something.
    fn note(&mut self, now_ns: u64, more: u64) -> u64 {
        let half = now_ns / (LINGER_NS / 2);
        match half.saturating_sub(self.half) {
            0 => {}
            1 => self.threads = [0, self.threads[0]],
            _ => self.threads = [0, 0],
        }
        self.half = half.max(self.half);
        self.threads[0] += more;
        self.threads[0] + self.threads[1]
    }
}

fn note_gone(threads: u64) {
    let lingering = GONE.lock().note(time::monotonic_ns(), threads);
    heap::linger(lingering * arch::boot().host_bytes_per_thread);
}

fn update() {
    heap::charge(outside_bytes(SPACES.load(Relaxed), THREADS.load(Relaxed)));
}

/// True if user frames may have one more block.
pub fn user_may_grow() -> bool {
    if heap::lingers() {
        note_gone(0);
    }
    heap::user_may_grow()
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
    note_gone(1);
    update();
}

/// Address spaces and threads that the platform has.
pub fn counts() -> (u64, u64) {
    (SPACES.load(Relaxed), THREADS.load(Relaxed))
}

/// What the end of a process with so many threads gives back besides its pages and what it has
/// open, in bytes.
pub fn charge_of(threads: u64) -> u64 {
    outside_bytes(1, threads) + PROCESS_KERNEL_BYTES + threads * THREAD_KERNEL_BYTES
}

/// The most processes and threads that may live together.
pub fn max_tasks() -> u64 {
    tasks_in(memory_bytes() / 2, outside_bytes(1, 1) + PROCESS_KERNEL_BYTES + THREAD_KERNEL_BYTES)
}

fn tasks_in(bytes: u64, each_bytes: u64) -> u64 {
    (bytes / each_bytes).clamp(FEWEST, u64::from(PID_MAX) - 1)
}

/// EAGAIN when there may not be one more thread, or process.
pub fn check_clone(new_space: bool) -> Result {
    let (spaces, threads) = counts();
    let more =
        outside_bytes(spaces + u64::from(new_space), threads + 1) - outside_bytes(spaces, threads);
    let inside = if new_space { PROCESS_KERNEL_BYTES } else { 0 } + THREAD_KERNEL_BYTES;
    let total = outside_bytes(spaces, threads)
        + more
        + spaces * PROCESS_KERNEL_BYTES
        + threads * THREAD_KERNEL_BYTES;
    let is_full =
        spaces.max(threads.saturating_sub(spaces) / 8) >= max_tasks() || total > memory_bytes() / 2;
    let boot = arch::boot();
    let is_left = leaves_some(spaces + u64::from(new_space), boot.max_processes)
        && leaves_some(threads + 1, boot.max_threads);
    if threads >= FEWEST && (is_full || !is_left) || !heap::has_room_for(more + inside) {
        return Err(Errno::EAGAIN);
    }
    Ok(())
}

/// True if so many processes and threads live, those that the platform is to make anew included,
/// that new ones could take the places of those before long.
pub fn is_half_full() -> bool {
    let boot = arch::boot();
    let (spaces, threads) = counts();
    // The host has a thread of its own for each space.
    is_half(spaces + threads + KEPT_AT_HOST, boot.max_tasks)
        || is_half(spaces + KEPT, boot.max_processes)
        || is_half(threads + KEPT, boot.max_threads)
}

fn is_half(count: u64, most: u32) -> bool {
    most != u32::MAX && 2 * count >= u64::from(most)
}

/// True if a platform that makes at most `most` can make some more than `count`: those are for who
/// comes by `quark exec`.
fn leaves_some(count: u64, most: u32) -> bool {
    count + KEPT <= u64::from(most)
}

/// ENOMEM when so many bytes of kernel memory, which a program asks for at once, would bring memory
/// low. What scales with a program's number asks before it allocates; smaller things are allocated
/// on the way down to the reserve, and the next call waits. It is a sum: there may be room, but all
/// in pieces ([`vec_for`]).
pub fn ask(bytes: u64) -> Result {
    let may_use_reserve = || heap::is_on_reserve() && heap::has_room_on_reserve(bytes);
    if bytes < PAGE_SIZE || heap::has_room_for(bytes) || may_use_reserve() {
        Ok(())
    } else {
        Err(Errno::ENOMEM)
    }
}

/// True if there is memory for one process more, and for what it asks for on its way
/// ([`ask`]): more than must be there for memory not to be low.
pub fn has_room_for_process() -> bool {
    heap::has_room_for(charge_of(1) + SMALL_BYTES as u64)
}

/// As [`ask`], for `count` objects of type `T` in one piece.
pub fn ask_for<T>(count: usize) -> Result {
    let bytes = count.saturating_mul(size_of::<T>());
    ask(bytes as u64)?;
    let in_one_piece = || Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
    if bytes <= SMALL_BYTES || in_one_piece() { Ok(()) } else { Err(Errno::ENOMEM) }
}

/// What can be had in one piece if there is memory at all, in bytes.
const SMALL_BYTES: usize = 64 << 10;

/// An empty list with room for `count` elements, in one piece. ENOMEM.
pub fn vec_for<T>(count: usize) -> Result<Vec<T>> {
    ask((count as u64).saturating_mul(size_of::<T>() as u64))?;
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
    Ok(list)
}

/// Lists that grow as somebody likes, for [`room_in`].
pub trait Growing {
    /// Room for one more. ENOMEM.
    fn make_room(&mut self) -> Result;
}

macro_rules! growing {
    ($($list:ident),*) => {$(
        impl<T> Growing for $list<T> {
            fn make_room(&mut self) -> Result {
                if self.len() < self.capacity() {
                    return Ok(());
                }
                // As it grows, both places are taken for a moment.
                let bytes = self.len().saturating_mul(2 * size_of::<T>());
                if bytes > SMALL_BYTES {
                    ask(bytes as u64)?;
                }
                self.try_reserve(1).map_err(|_| Errno::ENOMEM)
            }
        }
    )*};
}

growing!(Vec, VecDeque);

/// Makes room for one more in a list that is in one piece and may become long: afterwards it can be
/// added. ENOMEM.
#[inline]
pub fn room_in(list: &mut impl Growing) -> Result {
    list.make_room()
}

/// Memory that is never for what outlives processes, in bytes: the reserve, what user frames leave
/// for the stubs, the kernel's own and one small program do not become less when memory is small.
const NEVER_LASTING_BYTES: u64 = 12 << 20;
/// Of the rest, eighths that may be kernel memory for things that outlive processes.
const LASTING_EIGHTHS: u64 = 1;
/// And eighths that may be pages of objects that do.
const LASTING_PAGE_EIGHTHS: u64 = 5;

/// So many eighths of what may outlive processes, in bytes.
fn lasting_bytes(ram_bytes: u64, eighths: u64) -> u64 {
    ram_bytes.saturating_sub(NEVER_LASTING_BYTES).max(ram_bytes / 4) / 8 * eighths
}

/// The most pages of memory objects that outlive processes (System V segments, files of tmpfs),
/// whatever the limits of single file systems add up to. What remains is for programs, and for
/// whoever is to clean up.
pub fn max_lasting_pages() -> u64 {
    lasting_bytes(memory_bytes(), LASTING_PAGE_EIGHTHS) / PAGE_SIZE
}

/// Such memory is refused from one part in this many of what is low before memory is that.
const LASTING_LEAVES: u64 = 8;

/// What the heap gives, at most, to who asks for so many bytes.
pub fn on_heap(bytes: usize) -> u64 {
    match bytes as u64 {
        0 => 0,
        few @ ..=MOST_IN_SLAB_BYTES => few.next_power_of_two().max(16),
        many => many.next_multiple_of(PAGE_SIZE),
    }
}

static LASTING_BYTES: AtomicU64 = AtomicU64::new(0);

/// Kernel memory for something that outlives the process that made it (names of a tmpfs, System V
/// objects): no process's end gives it back, so all of it together is bounded. Given back when
/// dropped.
#[derive(Debug, Default)]
pub struct Lasting(u64);

impl Lasting {
    /// Takes `bytes`. ENOSPC, also before memory is low: were this what brings it there, nobody's
    /// end would help.
    pub fn take(bytes: u64) -> Result<Lasting> {
        let limit = lasting_bytes(memory_bytes(), LASTING_EIGHTHS);
        let after = LASTING_BYTES.load(Relaxed).saturating_add(bytes);
        if after > limit || !heap::has_room_for(bytes + heap::low_bytes() / LASTING_LEAVES) {
            return Err(Errno::ENOSPC);
        }
        LASTING_BYTES.store(after, Relaxed);
        Ok(Lasting(bytes))
    }

    /// How much, in bytes.
    pub fn bytes(&self) -> u64 {
        self.0
    }

    /// Gives some of it back, or all of it if it is less.
    pub fn give(&mut self, bytes: u64) {
        let bytes = bytes.min(self.0);
        self.0 -= bytes;
        LASTING_BYTES.fetch_sub(bytes, Relaxed);
    }

    /// Both together.
    pub fn and(self, other: Lasting) -> Lasting {
        let bytes = self.0 + other.0;
        core::mem::forget((self, other));
        Lasting(bytes)
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
        let most = lasting_bytes(arch::ram_bytes(), LASTING_EIGHTHS);
        let before = LASTING_BYTES.load(Relaxed);
        assert!(Lasting::take(most + 1).is_err());
        let taken = Lasting::take(1000).expect("there is room");
        assert!(LASTING_BYTES.load(Relaxed) >= 1000);
        assert!(Lasting::take(most).is_err());
        drop(taken);
        assert!(LASTING_BYTES.load(Relaxed) <= before + 1000);
    }

    #[test]
    fn however_small_memory_is_a_program_finds_some() {
        const MIB: u64 = 1 << 20;
        for ram in [8 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1 << 40] {
            let most = lasting_bytes(ram, LASTING_EIGHTHS + LASTING_PAGE_EIGHTHS);
            assert!(most >= ram / 8 && most <= ram / 4 * 3, "{ram}");
            assert!(ram - most >= (3 * MIB).max(ram.min(64 * MIB) / 8 * 3), "{ram}");
        }
    }

    #[test]
    fn threads_cost_something_for_a_moment_after_their_end() {
        const HALF: u64 = LINGER_NS / 2;
        let mut gone = Gone { half: 0, threads: [0, 0] };
        assert_eq!(gone.note(10 * HALF, 5), 5);
        assert_eq!(gone.note(10 * HALF + 1, 2), 7);
        assert_eq!(gone.note(11 * HALF, 1), 8);
        // A clock that went back changes nothing.
        assert_eq!(gone.note(10 * HALF, 0), 8);
        assert_eq!(gone.note(12 * HALF, 0), 1);
        assert_eq!(gone.note(13 * HALF, 0), 0);
        gone.note(14 * HALF, 9);
        assert_eq!(gone.note(16 * HALF, 0), 0);
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
