//! What qvisor and the kernel agree on when the kernel runs in ring 0 of a KVM virtual machine.
//!
//! Every vCPU begins at the image's ELF entry point in long mode: %rdi the address of the boot
//! information, %rsi the number of the vCPU, %rsp the end of its stack, interrupts off, paging on
//! with [`KvmInfo::kernel_root`]. The first one boots; the others are started by it through
//! [`Port::Start`](crate::channel::Port::Start).

use core::ops::Range;

use crate::Gpa;
use crate::channel::ChannelLayout;

/// What ring 0 needs to know.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KvmInfo {
    /// The root page table that maps the kernel: the upper half of every address space.
    pub kernel_root: Gpa,
    /// Thousands of ticks that the vCPUs' time stamp counter makes in a second, or 0.
    pub tsc_khz: u64,
    /// The host-call channel.
    pub channel: ChannelLayout,
    /// Up to where RAM can be used without asking for it
    /// ([`Port::Grow`](crate::channel::Port::Grow)).
    pub ready: Gpa,
    /// The areas of the vCPUs, one after the other, [`CPU_AREA_BYTES`] each.
    pub cpu_areas: Gpa,
}

impl KvmInfo {
    /// Where the per-CPU data of vCPU `index` lies; its stack ends there.
    pub const fn cpu_data(&self, index: u32) -> Gpa {
        Gpa(self.cpu_areas.0 + (index as u64 + 1) * CPU_AREA_BYTES - CPU_DATA_BYTES)
    }
}

/// Guest physical addresses at which there is no RAM, but registers of interrupt controllers would
/// lie: some hosts keep pages of their own there.
pub const HOLE: Range<Gpa> = Gpa(0xfec0_0000)..Gpa(0xff00_0000);

/// Bytes of a vCPU's area: an unmapped guard page, the kernel stack, per-CPU data.
pub const CPU_AREA_BYTES: u64 = 256 << 10;
/// Bytes of the guard page at the low end of an area.
pub const CPU_GUARD_BYTES: u64 = 4 << 10;
/// Bytes at the high end of an area that hold per-CPU data. The stack ends where they begin.
pub const CPU_DATA_BYTES: u64 = 32 << 10;
/// Where in the per-CPU data the byte lies that is 1 while the vCPU idles: a hint, whom to
/// interrupt with an event.
pub const CPU_IDLE_OFFSET: u64 = 8;
/// Where in the per-CPU data the 32-bit word lies that is set to wake an idle vCPU.
pub const CPU_WAKE_OFFSET: u64 = 12;
/// The most vCPUs: as many as have parameter blocks.
pub const MAX_CPUS: u32 = crate::channel::MAX_VCPUS;

/// Interrupt vector of the vCPU's own timer.
pub const VECTOR_TIMER: u8 = 0x20;
/// Interrupt vector of "look around": events of the host, a thread to stop, one to run.
pub const VECTOR_KICK: u8 = 0x21;
/// Interrupt vector of a TLB shootdown.
pub const VECTOR_FLUSH: u8 = 0x22;
