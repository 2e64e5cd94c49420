//! Model-specific registers, control registers and CPUID.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};

/// Extended features: SYSCALL and no-execute.
pub const EFER: u32 = 0xc000_0080;
/// Segment selectors of SYSCALL and SYSRET.
pub const STAR: u32 = 0xc000_0081;
/// Where SYSCALL goes.
pub const LSTAR: u32 = 0xc000_0082;
/// Flags that SYSCALL clears.
pub const SFMASK: u32 = 0xc000_0084;
/// Base of FS.
pub const FS_BASE: u32 = 0xc000_0100;
/// Base of GS.
pub const GS_BASE: u32 = 0xc000_0101;
/// Base of GS that SWAPGS exchanges.
pub const KERNEL_GS_BASE: u32 = 0xc000_0102;

/// Reads a register.
///
/// # Safety
/// It must exist.
pub unsafe fn read(msr: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: as the caller promises; reading has no effect on memory.
    unsafe { asm!("rdmsr", in("ecx") msr, out("eax") low, out("edx") high, options(nostack, preserves_flags)) };
    u64::from(high) << 32 | u64::from(low)
}

/// Writes a register.
///
/// # Safety
/// It must exist, take the value, and the kernel must be fit to run with it.
pub unsafe fn write(msr: u32, value: u64) {
    // SAFETY: as the caller promises.
    unsafe {
        asm!("wrmsr", in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack, preserves_flags))
    };
}

/// CR4 bits.
pub mod cr4 {
    #![allow(missing_docs)]
    pub const PGE: u64 = 1 << 7;
    pub const OSFXSR: u64 = 1 << 9;
    pub const OSXMMEXCPT: u64 = 1 << 10;
    pub const UMIP: u64 = 1 << 11;
    pub const FSGSBASE: u64 = 1 << 16;
    pub const OSXSAVE: u64 = 1 << 18;
    pub const SMEP: u64 = 1 << 20;
    pub const SMAP: u64 = 1 << 21;
}

/// The address that the last page fault was about.
pub fn cr2() -> u64 {
    let value;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr2", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// The root of the page table in use.
pub fn cr3() -> u64 {
    let value;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr3", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Uses another page table, and forgets what is cached of user pages.
///
/// # Safety
/// It must map the kernel as the one in use does.
pub unsafe fn set_cr3(root: u64) {
    // SAFETY: as the caller promises. Memory may look different afterwards: no `nomem`.
    unsafe { asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
}

/// CR4.
pub fn read_cr4() -> u64 {
    let value;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr4", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Sets CR4.
///
/// # Safety
/// The CPU must have the features, and the kernel be fit to run with them.
pub unsafe fn set_cr4(value: u64) {
    // SAFETY: as the caller promises.
    unsafe { asm!("mov cr4, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Forgets what is cached of one page.
pub fn invlpg(va: u64) {
    // SAFETY: can only make the next access walk the page table.
    unsafe { asm!("invlpg [{}]", in(reg) va, options(nostack, preserves_flags)) };
}

/// The time-stamp counter.
pub fn tsc() -> u64 {
    // SAFETY: every x86-64 CPU has it, and CR4.TSD is clear.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// What the kernel uses of the CPU where it is there.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// RDFSBASE and the like.
    pub fsgsbase: bool,
    /// Supervisor mode executes no user page.
    pub smep: bool,
    /// Supervisor mode touches no user page.
    pub smap: bool,
    /// User mode does not learn descriptor tables.
    pub umip: bool,
    /// XSAVE writes only what changed.
    pub xsaveopt: bool,
}

impl Features {
    /// Asks the CPU.
    pub fn detect() -> Features {
        let most = __cpuid(0).eax;
        let (ebx, ecx) = if most >= 7 { (__cpuid_count(7, 0).ebx, __cpuid_count(7, 0).ecx) } else { (0, 0) };
        let xsave = if most >= 0xd { __cpuid_count(0xd, 1).eax } else { 0 };
        Features {
            fsgsbase: ebx & 1 != 0,
            smep: ebx >> 7 & 1 != 0,
            smap: ebx >> 20 & 1 != 0,
            umip: ecx >> 2 & 1 != 0,
            xsaveopt: xsave & 1 != 0,
        }
    }
}
