//! Model-specific registers, control registers and CPUID, with our types of addresses.

use core::arch::x86_64::{__cpuid, __cpuid_count};

use x86_64::instructions::tlb;
use x86_64::registers::control::{Cr2, Cr3};
use x86_64::registers::model_specific::Msr;
use x86_64::structures::paging::PhysFrame;
use x86_64::{PhysAddr, VirtAddr};

/// Reads a register.
///
/// # Safety
/// It must exist.
pub unsafe fn read(msr: Msr) -> u64 {
    // SAFETY: as the caller promises; reading has no effect on memory.
    unsafe { msr.read() }
}

/// Writes a register.
///
/// # Safety
/// It must exist, take the value, and the kernel must be fit to run with it.
pub unsafe fn write(mut msr: Msr, value: u64) {
    // SAFETY: as the caller promises.
    unsafe { msr.write(value) }
}

/// The address that the last page fault was about.
pub fn cr2() -> u64 {
    Cr2::read_raw()
}

/// The root of the page table in use.
pub fn cr3() -> u64 {
    Cr3::read_raw().0.start_address().as_u64()
}

/// Uses another page table, and forgets what is cached of user pages.
///
/// # Safety
/// It must map the kernel as the one in use does.
pub unsafe fn set_cr3(root: u64) {
    let root = PhysFrame::containing_address(PhysAddr::new_truncate(root));
    // SAFETY: as the caller promises.
    unsafe { Cr3::write_raw(root, 0) };
}

/// Forgets what is cached of one page.
pub fn invlpg(va: u64) {
    tlb::flush(VirtAddr::new_truncate(va));
}

/// The time-stamp counter.
pub fn tsc() -> u64 {
    // SAFETY: every x86-64 CPU has it, and CR4.TSD is clear.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The leaf of KVM's own features (Linux's Documentation/virt/kvm/x86/cpuid.rst).
const KVM_FEATURES: u32 = 0x4000_0001;

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
    /// KVM says where the end of an interrupt need not be told.
    pub pv_eoi: bool,
    /// KVM says how long a vCPU had to wait.
    pub steal_time: bool,
}

impl Features {
    /// Asks the CPU.
    pub fn detect() -> Features {
        // Each question is an exit.
        let most = __cpuid(0).eax;
        let leaf7 = (most >= 7).then(|| __cpuid_count(7, 0));
        let (ebx, ecx) = leaf7.map_or((0, 0), |leaf| (leaf.ebx, leaf.ecx));
        let xsave = if most >= 0xd { __cpuid_count(0xd, 1).eax } else { 0 };
        let of_kvm = __cpuid(KVM_FEATURES).eax;
        Features {
            fsgsbase: ebx & 1 != 0,
            smep: ebx >> 7 & 1 != 0,
            smap: ebx >> 20 & 1 != 0,
            umip: ecx >> 2 & 1 != 0,
            xsaveopt: xsave & 1 != 0,
            pv_eoi: of_kvm >> 6 & 1 != 0,
            steal_time: of_kvm >> 5 & 1 != 0,
        }
    }
}
