//! What lies where in an address space.

use qlib::{PAGE_SIZE, Va};

/// Gap that a growing stack keeps from what lies below (Linux's stack_guard_gap is 1 MiB).
pub const STACK_GAP_BYTES: u64 = 256 * PAGE_SIZE;
/// Room for pads of patched call sites ([`super::patch`]) above the addresses that mmap(2) hands
/// out.
pub const PADS_BYTES: u64 = 16 * PAGE_SIZE;
/// The page of the vsyscall functions, where nothing is ever mapped.
pub const VSYSCALL: Va = Va(0xffff_ffff_ff60_0000);
