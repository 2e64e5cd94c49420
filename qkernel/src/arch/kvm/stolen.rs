//! How long the host has kept a vCPU waiting that could have run (KVM's steal time, Linux's
//! Documentation/virt/kvm/x86/msr.rst).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use qlib::Gpa;
use x86_64::registers::model_specific::Msr;

use super::msr;

const STEAL_TIME: Msr = Msr::new(0x4b56_4d03);
const ENABLE: u64 = 1;

/// What KVM writes for one vCPU, before that runs on.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Stolen {
    ns: AtomicU64,
    /// Odd while KVM writes. This vCPU does not run then, and nobody else reads.
    _version: AtomicU32,
    _flags: AtomicU32,
    _preempted: [AtomicU32; 12],
}

impl Stolen {
    /// Nanoseconds since the vCPU began; 0 where KVM does not tell.
    pub fn ns(&self) -> u64 {
        self.ns.load(Ordering::Relaxed)
    }
}

/// Has KVM write this vCPU's [`Stolen`], which lies at `at`.
pub fn init(at: Gpa) {
    // SAFETY: KVM has the register, as the caller knows, and from now on writes to that structure
    // of this vCPU alone.
    unsafe { msr::write(STEAL_TIME, at.0 | ENABLE) }
}
