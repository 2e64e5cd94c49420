//! What the kvm platform needs of a host's KVM and CPU, and what each thing is for.

use kvm_bindings::CpuId;
use kvm_ioctls::{Cap, Kvm};
use serde::{Deserialize, Serialize};

/// A capability of KVM (Documentation/virt/kvm/api.rst).
#[derive(Clone, Copy, Debug)]
pub struct Capability {
    /// Its name in linux/kvm.h.
    pub name: &'static str,
    /// Its number.
    pub cap: Cap,
    /// Bits that the answer to KVM_CHECK_EXTENSION must have; 0: any answer but 0 will do.
    pub bits: i32,
    /// What it is for.
    pub purpose: &'static str,
}

/// The capabilities without which there is no kvm platform.
pub const CAPABILITIES: &[Capability] = &[
    need("KVM_CAP_USER_MEMORY", Cap::UserMemory, 0, "guest RAM and file windows are host memory"),
    need("KVM_CAP_SYNC_MMU", Cap::SyncMmu, 0, "memory given back to the host leaves the guest too"),
    need("KVM_CAP_SPLIT_IRQCHIP", Cap::SplitIrqchip, 0, "a local APIC in the host kernel, and no further devices"),
    need("KVM_CAP_X2APIC_API", Cap::X2ApicApi, 3, "interrupts between vCPUs by their numbers alone"),
    need("KVM_CAP_SIGNAL_MSI", Cap::SignalMsi, 0, "wakes a halted vCPU"),
    need("KVM_CAP_EXT_CPUID", Cap::ExtCpuid, 0, "the guest sees the host's CPU features"),
    need("KVM_CAP_VCPU_EVENTS", Cap::VcpuEvents, 0, "telling the guest of a page that the host cannot supply"),
    need("KVM_CAP_XCRS", Cap::Xcrs, 0, "vector state in guests"),
];

const fn need(name: &'static str, cap: Cap, bits: i32, purpose: &'static str) -> Capability {
    Capability { name, cap, bits, purpose }
}

impl Capability {
    fn is_there(&self, kvm: &Kvm) -> bool {
        self.is_enough(kvm.check_extension_int(self.cap))
    }

    fn is_enough(&self, answer: i32) -> bool {
        answer > 0 && answer & self.bits == self.bits
    }
}

/// The register of a CPUID answer.
#[derive(Clone, Copy, Debug)]
enum Reg {
    Ebx,
    Ecx,
    Edx,
}

/// A CPU feature as KVM offers it to guests (KVM_GET_SUPPORTED_CPUID).
#[derive(Clone, Copy, Debug)]
pub struct Feature {
    /// Short name.
    pub name: &'static str,
    leaf: u32,
    reg: Reg,
    bit: u32,
    /// There is no kvm platform without it.
    pub needed: bool,
}

const fn feature(name: &'static str, leaf: u32, reg: Reg, bit: u32, needed: bool) -> Feature {
    Feature { name, leaf, reg, bit, needed }
}

/// Features that are needed or that help (AMD APM volume 3, appendix E; Intel SDM, CPUID).
pub const FEATURES: &[Feature] = &[
    feature("long mode", 0x8000_0001, Reg::Edx, 29, true),
    feature("NX", 0x8000_0001, Reg::Edx, 20, true),
    feature("SYSCALL", 0x8000_0001, Reg::Edx, 11, true),
    feature("XSAVE", 1, Reg::Ecx, 26, true),
    feature("x2APIC", 1, Reg::Ecx, 21, true),
    feature("SMEP", 7, Reg::Ebx, 7, false),
    feature("SMAP", 7, Reg::Ebx, 20, false),
    feature("UMIP", 7, Reg::Ecx, 2, false),
    feature("FSGSBASE", 7, Reg::Ebx, 0, false),
    feature("1 GiB pages", 0x8000_0001, Reg::Edx, 26, false),
    feature("PCID", 1, Reg::Ecx, 17, false),
    feature("invariant TSC", 0x8000_0007, Reg::Edx, 8, false),
];

impl Feature {
    fn is_in(&self, cpuid: &CpuId) -> bool {
        cpuid.as_slice().iter().any(|e| {
            let register = match self.reg {
                Reg::Ebx => e.ebx,
                Reg::Ecx => e.ecx,
                Reg::Edx => e.edx,
            };
            e.function == self.leaf && e.index == 0 && register >> self.bit & 1 == 1
        })
    }
}

/// Whether guests can have the feature of [`FEATURES`] with this name.
pub fn has(cpuid: &CpuId, name: &str) -> bool {
    FEATURES.iter().any(|f| f.name == name && f.is_in(cpuid))
}

/// What of it all is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// What is needed and not there, one line for each.
    pub missing: Vec<String>,
    /// Optional features that are there.
    pub present: Vec<String>,
    /// Optional features that are not there.
    pub absent: Vec<String>,
}

/// Looks at `kvm`, whose guests may have the features `cpuid`.
pub fn inventory(kvm: &Kvm, cpuid: &CpuId) -> Inventory {
    let mut inventory = Inventory::default();
    let missing = CAPABILITIES.iter().filter(|c| !c.is_there(kvm));
    inventory.missing = missing.map(|c| format!("{}: {}", c.name, c.purpose)).collect();
    for feature in FEATURES {
        match (feature.is_in(cpuid), feature.needed) {
            (true, true) => {}
            (false, true) => {
                inventory.missing.push(format!("{}: a CPU feature that the guest kernel needs", feature.name))
            }
            (true, false) => inventory.present.push(feature.name.into()),
            (false, false) => inventory.absent.push(feature.name.into()),
        }
    }
    inventory
}

#[cfg(test)]
mod tests {
    use kvm_bindings::kvm_cpuid_entry2;

    use super::*;

    #[test]
    fn a_feature_is_one_bit_of_one_leaf() {
        let entry = |function, index, ebx| kvm_cpuid_entry2 { function, index, ebx, ..kvm_cpuid_entry2::default() };
        let smep = FEATURES.iter().find(|f| f.name == "SMEP").unwrap();
        let is_in = |entries: &[kvm_cpuid_entry2]| smep.is_in(&CpuId::from_entries(entries).unwrap());
        assert!(is_in(&[entry(1, 0, 0), entry(7, 0, 1 << 7)]));
        assert!(!is_in(&[entry(1, 0, 1 << 7), entry(7, 0, !(1 << 7)), entry(7, 1, 1 << 7)]));
    }

    #[test]
    fn a_capability_is_an_answer_with_its_bits() {
        let any = need("", Cap::UserMemory, 0, "");
        assert!(any.is_enough(1) && any.is_enough(4096) && !any.is_enough(0) && !any.is_enough(-1));
        let bits = need("", Cap::X2ApicApi, 3, "");
        assert!(bits.is_enough(3) && bits.is_enough(15) && !bits.is_enough(1) && !bits.is_enough(0));
    }
}
