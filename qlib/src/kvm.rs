//! What qvisor and the kernel agree on when the kernel runs in ring 0 of a KVM virtual machine.
//!
//! Every vCPU begins at the image's ELF entry point in long mode: %rdi the address of the boot information, %rsi the number of the
//! vCPU, %rsp the end of its stack, the base of GS its per-CPU data, interrupts off, paging on with [`KvmInfo::kernel_root`]. The first
//! one boots; the others are started by it through [`PORT_START`].

use crate::Gpa;

/// What ring 0 needs to know.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KvmInfo {
    /// The root page table that maps the kernel: the upper half of every address space.
    pub kernel_root: Gpa,
    /// The areas of the vCPUs, one after the other, [`CPU_AREA_BYTES`] each.
    pub cpu_areas: Gpa,
}

/// Bytes of a vCPU's area: an unmapped guard page, the kernel stack, per-CPU data.
pub const CPU_AREA_BYTES: u64 = 256 << 10;
/// Bytes of the guard page at the low end of an area.
pub const CPU_GUARD_BYTES: u64 = 4 << 10;
/// Bytes at the high end of an area that hold per-CPU data. The stack ends where they begin.
pub const CPU_DATA_BYTES: u64 = 32 << 10;
/// The most vCPUs: what a destination of an x2APIC message can name with eight bits.
pub const MAX_CPUS: u32 = 64;

/// Interrupt vector of the vCPU's own timer.
pub const VECTOR_TIMER: u8 = 0x20;
/// Interrupt vector of "look around": events of the host, a thread to stop, one to run.
pub const VECTOR_KICK: u8 = 0x21;
/// Interrupt vector of a TLB shootdown.
pub const VECTOR_FLUSH: u8 = 0x22;

/// Doorbell: a host call; %rdi its address.
pub const PORT_CALL: u16 = 0x510;
/// Doorbell: sleep while the word at %rdi is %rsi.
pub const PORT_LOCK_WAIT: u16 = 0x511;
/// Doorbell: wake one that sleeps for the word at %rdi.
pub const PORT_LOCK_WAKE: u16 = 0x512;
/// Doorbell: start the vCPU with number %rdi.
pub const PORT_START: u16 = 0x513;
/// Doorbell: the kernel panics; message at %rdi, %rsi bytes.
pub const PORT_PANIC: u16 = 0x514;
/// Doorbell: an exception in the kernel; saved registers at %rdi, address that was touched in %rsi.
pub const PORT_FAULT: u16 = 0x515;
