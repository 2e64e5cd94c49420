//! What the kvm platform needs of a host's KVM and CPU, and what each thing is for.

use kvm_bindings::CpuId;
use kvm_ioctls::{Cap, Kvm};
use raw_cpuid::{
    ApmInfo, CpuIdReader, CpuIdResult, ExtendedFeatures, ExtendedProcessorFeatureIdentifiers,
    FeatureInfo,
};
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
    need(
        "KVM_CAP_SPLIT_IRQCHIP",
        Cap::SplitIrqchip,
        0,
        "a local APIC in the host kernel, and no further devices",
    ),
    need(
        "KVM_CAP_X2APIC_API",
        Cap::X2ApicApi,
        3,
        "interrupts between vCPUs by their numbers alone",
    ),
    need("KVM_CAP_SIGNAL_MSI", Cap::SignalMsi, 0, "wakes a halted vCPU"),
    need("KVM_CAP_EXT_CPUID", Cap::ExtCpuid, 0, "the guest sees the host's CPU features"),
    need(
        "KVM_CAP_VCPU_EVENTS",
        Cap::VcpuEvents,
        0,
        "telling the guest of a page that the host cannot supply",
    ),
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

/// What KVM offers to guests (KVM_GET_SUPPORTED_CPUID), for raw-cpuid to read.
#[derive(Clone)]
struct Supported<'a>(&'a CpuId);

impl CpuIdReader for Supported<'_> {
    fn cpuid2(&self, eax: u32, ecx: u32) -> CpuIdResult {
        let entry = self.0.as_slice().iter().find(|e| e.function == eax && e.index == ecx);
        entry.map_or(CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 }, |e| CpuIdResult {
            eax: e.eax,
            ebx: e.ebx,
            ecx: e.ecx,
            edx: e.edx,
        })
    }
}

/// The groups of features that are looked at; `None` where KVM knows the group's leaf no more than
/// its guests will.
pub struct Groups {
    basic: Option<FeatureInfo>,
    structured: Option<ExtendedFeatures>,
    extended: Option<ExtendedProcessorFeatureIdentifiers>,
    power: Option<ApmInfo>,
}

impl Groups {
    fn of(cpuid: &CpuId) -> Groups {
        let leaves = raw_cpuid::CpuId::with_cpuid_reader(Supported(cpuid));
        Groups {
            basic: leaves.get_feature_info(),
            structured: leaves.get_extended_feature_info(),
            extended: leaves.get_extended_processor_and_feature_identifiers(),
            power: leaves.get_advanced_power_mgmt_info(),
        }
    }
}

/// A CPU feature as KVM offers it to guests.
#[derive(Clone, Copy, Debug)]
pub struct Feature {
    /// Short name.
    pub name: &'static str,
    is_in: fn(&Groups) -> bool,
    /// There is no kvm platform without it.
    pub needed: bool,
}

const fn feature(name: &'static str, is_in: fn(&Groups) -> bool, needed: bool) -> Feature {
    Feature { name, is_in, needed }
}

/// Features that are needed or that help.
pub const FEATURES: &[Feature] = &[
    feature("long mode", |g| g.extended.as_ref().is_some_and(|e| e.has_64bit_mode()), true),
    feature("NX", |g| g.extended.as_ref().is_some_and(|e| e.has_execute_disable()), true),
    feature("SYSCALL", |g| g.extended.as_ref().is_some_and(|e| e.has_syscall_sysret()), true),
    feature("XSAVE", |g| g.basic.as_ref().is_some_and(|b| b.has_xsave()), true),
    feature("x2APIC", |g| g.basic.as_ref().is_some_and(|b| b.has_x2apic()), true),
    feature("SMEP", |g| g.structured.as_ref().is_some_and(|s| s.has_smep()), false),
    feature("SMAP", |g| g.structured.as_ref().is_some_and(|s| s.has_smap()), false),
    feature("UMIP", |g| g.structured.as_ref().is_some_and(|s| s.has_umip()), false),
    feature("FSGSBASE", |g| g.structured.as_ref().is_some_and(|s| s.has_fsgsbase()), false),
    feature("1 GiB pages", |g| g.extended.as_ref().is_some_and(|e| e.has_1gib_pages()), false),
    feature("PCID", |g| g.basic.as_ref().is_some_and(|b| b.has_pcid()), false),
    feature("invariant TSC", |g| g.power.as_ref().is_some_and(|p| p.has_invariant_tsc()), false),
];

/// True if guests can have the feature of [`FEATURES`] with this name.
pub fn has(cpuid: &CpuId, name: &str) -> bool {
    let groups = Groups::of(cpuid);
    FEATURES.iter().any(|f| f.name == name && (f.is_in)(&groups))
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
    let groups = Groups::of(cpuid);
    for feature in FEATURES {
        match ((feature.is_in)(&groups), feature.needed) {
            (true, true) => {}
            (false, true) => inventory
                .missing
                .push(format!("{}: a CPU feature that the guest kernel needs", feature.name)),
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
    fn features_are_read_from_what_kvm_offers() {
        let entry = |function, index, eax, ebx| kvm_cpuid_entry2 {
            function,
            index,
            eax,
            ebx,
            ..kvm_cpuid_entry2::default()
        };
        let highest = entry(0, 0, 7, 0);
        let has_smep =
            |entries: &[kvm_cpuid_entry2]| has(&CpuId::from_entries(entries).unwrap(), "SMEP");
        assert!(has_smep(&[highest, entry(1, 0, 0, 0), entry(7, 0, 0, 1 << 7)]));
        let other_leaves = [entry(1, 0, 0, 1 << 7), entry(7, 0, 0, !(1 << 7)), entry(7, 1, 0, !0)];
        assert!(!has_smep(&[&[highest][..], &other_leaves].concat()));
        assert!(!has_smep(&[entry(7, 0, 0, 1 << 7)]), "a leaf above the highest is none");
        // Register and bit of each (AMD APM volume 3, appendix E; Intel SDM, CPUID).
        let bits: [(&str, u32, usize, u32); 12] = [
            ("long mode", 0x8000_0001, 3, 29),
            ("NX", 0x8000_0001, 3, 20),
            ("SYSCALL", 0x8000_0001, 3, 11),
            ("XSAVE", 1, 2, 26),
            ("x2APIC", 1, 2, 21),
            ("SMEP", 7, 1, 7),
            ("SMAP", 7, 1, 20),
            ("UMIP", 7, 2, 2),
            ("FSGSBASE", 7, 1, 0),
            ("1 GiB pages", 0x8000_0001, 3, 26),
            ("PCID", 1, 2, 17),
            ("invariant TSC", 0x8000_0007, 3, 8),
        ];
        for (name, leaf, register, bit) in bits {
            let one = |r| if r == register { 1u32 << bit } else { 0 };
            let with = kvm_cpuid_entry2 {
                function: leaf,
                ebx: one(1),
                ecx: one(2),
                edx: one(3),
                ..kvm_cpuid_entry2::default()
            };
            let all = [highest, entry(0x8000_0000, 0, 0x8000_0008, 0), with];
            let cpuid = CpuId::from_entries(&all).unwrap();
            let found: Vec<_> =
                FEATURES.iter().filter(|f| has(&cpuid, f.name)).map(|f| f.name).collect();
            assert_eq!(found, [name]);
        }
    }

    #[test]
    fn a_capability_is_an_answer_with_its_bits() {
        let any = need("", Cap::UserMemory, 0, "");
        assert!(any.is_enough(1) && any.is_enough(4096) && !any.is_enough(0) && !any.is_enough(-1));
        let bits = need("", Cap::X2ApicApi, 3, "");
        assert!(
            bits.is_enough(3) && bits.is_enough(15) && !bits.is_enough(1) && !bits.is_enough(0)
        );
    }
}
