//! The freestanding kernel image: its ELF entry point and its panic handler.
#![no_std]
#![no_main]
#![allow(unsafe_code)]

use core::arch::global_asm;
use core::fmt::Write;
use core::panic::PanicInfo;

use qkernel::arch;
use qkernel::arch::table::Table;
use qkernel::arch::upcalls::Upcalls;
use qlib::platform::{BootInfo, PLATFORM_KVM};

/// The ELF entry point: called once by qvisor on its boot thread; on `kvm` where each vCPU begins.
#[unsafe(no_mangle)]
extern "C" fn _start(info: &'static BootInfo, cpu: u32) {
    if info.platform == PLATFORM_KVM {
        // SAFETY: qvisor says that this is ring 0, and enters once on each vCPU.
        unsafe { arch::kvm::start::enter(info, cpu) }
    }
    arch::heap::init(info);
    arch::start(info);
}

/// The page of entry points: see [`qkernel::arch::table`]. The linker puts it among what is
/// read-only after relocation.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".data.rel.ro.quark_table")]
static QKERNEL_TABLE: Table = Table::new(arch::dispatch, arch::kvm::start::OPERATIONS);

/// What the rooms below the top call in those above them: see [`qkernel::arch::upcalls`].
#[unsafe(no_mangle)]
static QKERNEL_UPCALLS: Upcalls = qkernel::kernel::UPCALLS;

// Where the table of entry points lies: see qlib::platform::NOTE_NAME.
global_asm!(
    ".pushsection .note.quark,\"a\",@note",
    ".balign 4",
    ".long 6, 4, 1",
    ".asciz \"quark\"",
    ".balign 4",
    ".long {table} - .",
    ".popsection",
    table = sym QKERNEL_TABLE,
);

/// A message put together without allocating.
struct Message {
    bytes: [u8; 1024],
    len: usize,
}

impl Write for Message {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for &byte in text.as_bytes() {
            if let Some(slot) = self.bytes.get_mut(self.len) {
                *slot = byte;
                self.len += 1;
            }
        }
        Ok(())
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut message = Message { bytes: [0; 1024], len: 0 };
    let _ = write!(message, "{info}");
    arch::panic(&message.bytes[..message.len])
}
