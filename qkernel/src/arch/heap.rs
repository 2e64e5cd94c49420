//! The kernel heap and the heap of 4 MiB blocks that all frames come from.

use qlib::blocks::BlockHeap;
use qlib::heap::KernelHeap;
use qlib::kvm;
use qlib::platform::{BootInfo, PLATFORM_KVM};

/// All blocks of RAM.
pub static BLOCKS: BlockHeap = BlockHeap::empty();

/// The kernel's own heap.
#[cfg_attr(target_os = "none", global_allocator)]
pub static HEAP: KernelHeap = KernelHeap::empty();

/// Gives them RAM. First thing at boot: nothing can be allocated before.
pub fn init(info: &BootInfo) {
    BLOCKS.init(info.free_start, info.ram_bytes);
    if info.platform == PLATFORM_KVM {
        BLOCKS.exclude(kvm::HOLE);
        BLOCKS.ask_from(info.kvm.ready, super::kvm::host::grow);
    }
    // SAFETY: qvisor maps all of RAM there for the sandbox's life; from `free_start` on it belongs to these allocators.
    let phys = unsafe { qlib::phys::PhysMap::new(info.phys_base as usize, info.ram_bytes) };
    HEAP.init(phys, &BLOCKS);
}
