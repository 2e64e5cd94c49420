//! The local interrupt controller, in x2APIC mode: the vCPU's timer, and interrupts to other vCPUs.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use qlib::Gpa;
use qlib::kvm::VECTOR_TIMER;
use x86_64::registers::model_specific::Msr;

use super::msr;

const EOI: Msr = Msr::new(0x80b);
const SPURIOUS: Msr = Msr::new(0x80f);
const COMMAND: Msr = Msr::new(0x830);
const LVT_TIMER: Msr = Msr::new(0x832);
const TIMER_INITIAL: Msr = Msr::new(0x838);
const TIMER_DIVIDE: Msr = Msr::new(0x83e);
/// Where KVM says that an interrupt needs no [`EOI`] (MSR_KVM_PV_EOI_EN, Linux's
/// Documentation/virt/kvm/x86/msr.rst): a guest physical address, and that it may.
const PV_EOI: Msr = Msr::new(0x4b56_4d04);
const PV_EOI_ENABLE: u64 = 1;

/// Divide the timer's clock by one.
const DIVIDE_BY_ONE: u64 = 0b1011;
/// Software enable, and the vector of spurious interrupts.
const ENABLE: u64 = 1 << 8 | 0xff;

/// Sets up the controller of this vCPU, which qvisor has put in x2APIC mode. `no_eoi`: where
/// KVM is to say what [`end_of_interrupt`] asks, if it can.
pub fn init(no_eoi: Option<Gpa>) {
    // SAFETY: registers of an x2APIC. No interrupt can come that has no handler: nothing else is
    // unmasked.
    unsafe {
        msr::write(SPURIOUS, ENABLE);
        msr::write(TIMER_DIVIDE, DIVIDE_BY_ONE);
        msr::write(LVT_TIMER, u64::from(VECTOR_TIMER));
    }
    if let Some(at) = no_eoi {
        // SAFETY: KVM has the register, and from now on writes to that word of this vCPU alone.
        unsafe { msr::write(PV_EOI, at.0 | PV_EOI_ENABLE) }
    }
}

/// The interrupt in service has been taken. `no_eoi`: KVM has said whether it has anything to do
/// then; if not, that saves an exit.
pub fn end_of_interrupt(no_eoi: &AtomicU32) {
    if no_eoi.swap(0, Ordering::Relaxed) != 0 {
        return;
    }
    // SAFETY: takes any value.
    unsafe { msr::write(EOI, 0) }
}

/// Interrupts vCPU `cpu`.
pub fn interrupt(cpu: u32, vector: u8) {
    // Fixed delivery, physical destination. What was written before is seen by the interrupted: MSR
    // writes of an x2APIC do not wait for earlier stores by themselves.
    fence(Ordering::SeqCst);
    // SAFETY: a vCPU that runs this kernel has handlers for all vectors.
    unsafe { msr::write(COMMAND, u64::from(cpu) << 32 | u64::from(vector)) }
}

/// Has the timer interrupt come in `ns` nanoseconds (at least 1, at most about four seconds; KVM's
/// bus runs at 1 GHz).
pub fn set_timer(ns: u64) {
    // SAFETY: takes any value of 32 bits; 0 would stop the timer.
    unsafe { msr::write(TIMER_INITIAL, ns.clamp(1, u64::from(u32::MAX))) }
}
