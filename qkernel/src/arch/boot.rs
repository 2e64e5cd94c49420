//! What the kernel was told at boot: where and how large memory is, and what the platform can do.

use qlib::Gpa;
use qlib::phys::PhysMap;
use qlib::platform::{BootInfo, PLATFORM_KVM};

use crate::sync::Once;

pub(super) static BOOT: Once<BootInfo> = Once::new();

/// Remembers it, once.
pub(super) fn set(info: &BootInfo) {
    BOOT.set(*info);
}

/// True if the kernel knows where it runs.
pub(super) fn is_known() -> bool {
    BOOT.try_get().is_some()
}

/// What qvisor told us at boot.
pub fn boot() -> &'static BootInfo {
    BOOT.get()
}

/// Guest physical memory as the kernel sees it.
pub fn phys() -> PhysMap {
    let boot = boot();
    // SAFETY: qvisor maps all of RAM there for the sandbox's life.
    unsafe { PhysMap::new(boot.phys_base as usize, boot.ram_bytes) }
}

/// The guest physical address of kernel memory (text, statics, heap: never a stack, which is the
/// host's).
pub fn gpa_of(pointer: *const u8) -> Gpa {
    Gpa((pointer as u64).wrapping_sub(boot().phys_base))
}

/// True on `kvm`, where what is behind the platform's operations is the kernel's own
/// ([`super::kvm`]); not in unit tests.
pub fn is_kvm() -> bool {
    BOOT.try_get().is_some_and(|boot| boot.platform == PLATFORM_KVM)
}

/// Size of RAM in bytes; in unit tests, which have none, 1 GiB.
pub fn ram_bytes() -> u64 {
    BOOT.try_get().map_or(1 << 30, |boot| boot.ram_bytes)
}
