//! The kvm platform: the guest kernel runs in ring 0 of a KVM virtual machine, user code in its ring 3.

pub mod door;
pub mod probe;
pub mod stats;

/// Why no sandbox boots on this platform yet.
pub fn not_in_this_build() -> anyhow::Error {
    anyhow::anyhow!("the kvm platform is not in this build; use --platform=process")
}
