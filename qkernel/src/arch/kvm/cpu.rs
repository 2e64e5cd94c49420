//! Per-CPU data, and the descriptor tables in it. The base of GS leads to it in kernel mode.

use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use alloc::sync::Arc;

use qlib::Gpa;
use qlib::kvm::{CPU_DATA_BYTES, CPU_IDLE_OFFSET, CPU_WAKE_OFFSET, KvmInfo};
use x86_64::VirtAddr;
use x86_64::registers::control::{Cr4, Cr4Flags};
use x86_64::registers::model_specific::{GsBase, KernelGsBase, LStar, SFMask, Star};
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;

use super::entry::{self, UserContext};
use super::msr::{self, Features};
use super::stolen::{self, Stolen};
use super::thread::KvmThread;
use super::{apic, fpu};

/// Selectors. SYSRET wants user data eight before user code; SYSCALL kernel data eight behind
/// kernel code. They are those of Linux: signal frames show them, and there are programs that load
/// what they find there (.NET goes back to managed code by IRET).
pub const KERNEL_CODE: u16 = 0x10;
/// See [`KERNEL_CODE`].
pub const KERNEL_DATA: u16 = 0x18;
/// With the requested privilege level 3.
pub const USER_DATA: u16 = 0x28 | 3;
/// With the requested privilege level 3.
pub const USER_CODE: u16 = 0x30 | 3;
const TASK: u16 = 0x38;
/// Of a segment that Linux has for programs of 32 bits, which are none here.
const ABSENT: Descriptor = Descriptor::UserSegment(0);
/// Words of the descriptor table: the null descriptor, six segments, two of the task.
const DESCRIPTORS: usize = 9;

/// Bytes of each stack for what cannot use the one that is in use (double fault, NMI).
const EMERGENCY_STACK_BYTES: usize = 4096;
const EMERGENCY_STACKS: usize = 2;

/// What belongs to one vCPU. It lies at the high end of its area.
#[repr(C, align(4096))]
pub struct PerCpu {
    /// Its own address.
    this: u64,
    /// It idles. Read by other vCPUs, and by qvisor ([`CPU_IDLE_OFFSET`]).
    pub idle: AtomicBool,
    /// Not 0: it shall stop idling. Set by other vCPUs, and by qvisor ([`CPU_WAKE_OFFSET`]).
    pub wake: AtomicU32,
    /// Where the kernel's stack was when it went to user mode.
    pub(super) kernel_rsp: Cell<u64>,
    /// The context that user mode was entered with.
    pub(super) context: Cell<*mut UserContext>,
    /// The user's stack pointer for a moment, at a system call.
    pub(super) scratch: Cell<u64>,
    /// Number of this vCPU.
    pub index: u32,
    /// 1: CLAC has a meaning.
    pub(super) smap: Cell<u32>,
    gdt: GlobalDescriptorTable<DESCRIPTORS>,
    /// Its first stack, of an interrupt that comes in user mode, is the end of the running thread's
    /// [`UserContext`].
    task: UnsafeCell<TaskStateSegment>,
    /// Root of the page table that user mode runs with now (bit 0 set then), or 0. Read by other
    /// vCPUs.
    pub in_user: AtomicU64,
    /// Cached user translations are to be forgotten before user mode runs on.
    pub flush: AtomicBool,
    /// Somebody wants this vCPU to look around before it runs user code on.
    pub kick: AtomicBool,
    /// The timer interrupt has come and was not looked at.
    pub timer_fired: AtomicBool,
    /// Not 0: the interrupt in service needs no end; written by KVM.
    pub no_eoi: AtomicU32,
    /// How long it had to wait for the host; written by KVM.
    pub stolen: Stolen,
    /// The thread whose floating-point state and segment bases are in the registers.
    pub(super) live: UnsafeCell<Option<Arc<KvmThread>>>,
    /// When the timer of this vCPU will fire: CLOCK_MONOTONIC in nanoseconds, `u64::MAX` when it is
    /// off.
    pub armed_ns: Cell<u64>,
    /// When the thread that runs must give way to those that wait; `u64::MAX` when none waits.
    pub slice_ns: Cell<u64>,
    pub(super) features: Cell<Option<Features>>,
    emergency: [[u8; EMERGENCY_STACK_BYTES]; EMERGENCY_STACKS],
}

const _: () =
    assert!(offset_of!(PerCpu, this) == 0 && offset_of!(PerCpu, idle) == CPU_IDLE_OFFSET as usize);
const _: () = assert!(offset_of!(PerCpu, wake) == CPU_WAKE_OFFSET as usize);
const _: () = assert!(size_of::<PerCpu>() <= CPU_DATA_BYTES as usize);

/// Offsets for the entry code.
pub(super) mod offset {
    use super::{PerCpu, offset_of};
    pub const KERNEL_RSP: usize = offset_of!(PerCpu, kernel_rsp);
    pub const CONTEXT: usize = offset_of!(PerCpu, context);
    pub const SCRATCH: usize = offset_of!(PerCpu, scratch);
    pub const SMAP: usize = offset_of!(PerCpu, smap);
}

/// Where the data of vCPU `index` lies in kernel memory.
fn address(info: &KvmInfo, phys_base: u64, index: u32) -> u64 {
    phys_base + info.cpu_data(index).0
}

/// The data of any vCPU.
pub fn of(index: u32) -> &'static PerCpu {
    let boot = crate::arch::boot();
    assert!(index < boot.cpus, "vCPU {index} of {}", boot.cpus);
    // SAFETY: qvisor has laid the areas of all vCPUs out, zeroed; zeros are a valid PerCpu. What
    // other vCPUs touch are atomics.
    unsafe { &*(address(&boot.kvm, boot.phys_base, index) as *const PerCpu) }
}

/// The descriptors of the selectors above.
fn descriptors(task: Descriptor) -> GlobalDescriptorTable<DESCRIPTORS> {
    let mut table = GlobalDescriptorTable::empty();
    for (descriptor, selector) in [
        (ABSENT, 0x08),
        (Descriptor::kernel_code_segment(), KERNEL_CODE),
        (Descriptor::kernel_data_segment(), KERNEL_DATA),
        (ABSENT, 0x20),
        (Descriptor::user_data_segment(), USER_DATA),
        (Descriptor::user_code_segment(), USER_CODE),
        (task, TASK),
    ] {
        assert!(table.append(descriptor).0 == selector);
    }
    table
}

/// Sets up this vCPU: descriptor tables, control registers, system calls. Interrupts stay off.
///
/// # Safety
/// Once on each vCPU, first of all, with the boot information that qvisor gave it.
pub unsafe fn init(info: &KvmInfo, phys_base: u64, index: u32) {
    let at = address(info, phys_base, index) as *mut PerCpu;
    let features = Features::detect();
    // SAFETY: the area is this vCPU's own and nobody refers to it yet; qvisor has mapped it,
    // zeroed.
    unsafe {
        (*at).this = at as u64;
        (*at).index = index;
        (*at).armed_ns = Cell::new(u64::MAX);
        (*at).slice_ns = Cell::new(u64::MAX);
        (&raw mut (*at).live).write(UnsafeCell::new(None));
        (*at).features = Cell::new(Some(features));
        (*at).smap = Cell::new(u32::from(features.smap));
        let task = (*at).task.get();
        let stacks = (&raw mut (*at).emergency) as u64;
        let mut state = TaskStateSegment::new();
        for number in 0..EMERGENCY_STACKS {
            let top = stacks + ((number + 1) * EMERGENCY_STACK_BYTES) as u64;
            state.interrupt_stack_table[number] = VirtAddr::new_truncate(top);
        }
        task.write(state);
        (&raw mut (*at).gdt).write(descriptors(Descriptor::tss_segment_unchecked(task)));
        entry::load_tables(&(*at).gdt, TASK);
        msr::write(GsBase::MSR, at as u64);
        msr::write(KernelGsBase::MSR, 0);
        let mut control = Cr4::read_raw();
        for (has, bit) in [
            (true, Cr4Flags::PAGE_GLOBAL),
            (true, Cr4Flags::OSFXSR),
            (true, Cr4Flags::OSXMMEXCPT_ENABLE),
            (true, Cr4Flags::OSXSAVE),
            (features.umip, Cr4Flags::USER_MODE_INSTRUCTION_PREVENTION),
            (features.fsgsbase, Cr4Flags::FSGSBASE),
            (features.smep, Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION),
            (features.smap, Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION),
        ] {
            control |= if has { bit.bits() } else { 0 };
        }
        Cr4::write_raw(control);
        msr::write(Star::MSR, u64::from(USER_DATA - 8) << 48 | u64::from(KERNEL_CODE) << 32);
        msr::write(LStar::MSR, entry::syscall_address());
        msr::write(SFMask::MSR, entry::SYSCALL_CLEARS);
    }
    let guest_address = |offset: usize| Gpa(at as u64 - phys_base + offset as u64);
    apic::init(features.pv_eoi.then(|| guest_address(offset_of!(PerCpu, no_eoi))));
    if features.steal_time {
        stolen::init(guest_address(offset_of!(PerCpu, stolen)));
    }
}

/// The second half, when there is a heap.
pub fn init_fpu() {
    fpu::init(this().features().xsaveopt);
}

/// The data of this vCPU.
pub fn this() -> &'static PerCpu {
    let at: *const PerCpu;
    // SAFETY: in kernel mode GS leads to the per-CPU data, whose first word is its address.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) at, options(nostack, preserves_flags, readonly));
        &*at
    }
}

impl PerCpu {
    /// What this CPU can do.
    pub fn features(&self) -> Features {
        self.features.get().expect("set at the vCPU's start")
    }

    /// Has interrupts that come in user mode save registers to `context`.
    pub(super) fn point_to(&self, context: *mut UserContext) {
        let end = VirtAddr::new_truncate(context as u64 + size_of::<UserContext>() as u64);
        // SAFETY: the CPU reads it only when it comes from user mode, which this vCPU is not in.
        unsafe { (*self.task.get()).privilege_stack_table[0] = end };
        self.context.set(context);
    }

    /// True if it is `thread`'s state that is in the registers. Only this vCPU asks.
    pub(super) fn is_live(&self, thread: *const KvmThread) -> bool {
        // SAFETY: only this vCPU's own code touches it, and nothing else of that runs during this
        // expression.
        unsafe { &*self.live.get() }
            .as_ref()
            .is_some_and(|live| core::ptr::eq(Arc::as_ptr(live), thread))
    }

    /// Notes whose state is in the registers from now on; whose it was. Only this vCPU does.
    pub(super) fn set_live(&self, thread: Option<Arc<KvmThread>>) -> Option<Arc<KvmThread>> {
        // SAFETY: as above; what was there is dropped by the caller, afterwards.
        core::mem::replace(unsafe { &mut *self.live.get() }, thread)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn descriptors_are_where_system_calls_and_interrupts_look() {
        let state = TaskStateSegment::new();
        // SAFETY: it is not loaded.
        let table = descriptors(unsafe { Descriptor::tss_segment_unchecked(&state) });
        let words: Vec<u64> = table.entries().iter().map(|entry| entry.raw()).collect();
        assert_eq!(words[..4], [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff]);
        assert_eq!(words[4..7], [0, 0x00cf_f300_0000_ffff, 0x00af_fb00_0000_ffff]);
        // Base and limit of the task where the manual has them (Intel SDM volume 3, 8.2.3).
        let at = &raw const state as u64;
        let low = (at & 0xff_ffff) << 16 | 0x89 << 40 | (at >> 24 & 0xff) << 56 | 103;
        assert_eq!(words[7..], [low, at >> 32]);
        assert_eq!(table.limit(), 71);
    }
}
