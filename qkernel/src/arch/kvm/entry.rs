//! To user mode and back. [`enter_user`] is called like a function and returns at the next trap,
//! with the user's registers saved in the thread's own [`UserContext`]: neither system calls nor
//! exceptions of user code use a kernel stack to save anything, so no program can exhaust one.

use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;

use qlib::PAGE_SIZE;
use qlib::kvm::{VECTOR_FLUSH, VECTOR_KICK, VECTOR_TIMER};
use qlib::pagetable::USER_END;
use qlib::platform::UserRegs;
use qlib::seccomp::Call;
use x86_64::instructions::segmentation::{CS, DS, ES, FS, GS, SS, Segment};
use x86_64::instructions::tables::{lidt, load_tss};
use x86_64::structures::DescriptorTablePointer;
use x86_64::structures::gdt::{GlobalDescriptorTable, SegmentSelector};
use x86_64::structures::idt::Entry;
use x86_64::{PrivilegeLevel, VirtAddr};

use super::cpu::{self, KERNEL_CODE, USER_CODE, USER_DATA, offset};
use super::{apic, host, msr};

/// Registers of a thread that is not in user mode. The last five words are what the CPU pushes.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct UserContext {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    /// What ended user mode: an exception's or interrupt's number, or [`SYSCALL`].
    pub vector: u64,
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

const _: () = assert!(size_of::<UserContext>() == 22 * 8);

/// [`UserContext::vector`] of a system call.
pub const SYSCALL: u64 = 0x100;
/// Flags that SYSCALL clears: trap, interrupt, direction, nested task, resume, alignment check.
pub const SYSCALL_CLEARS: u64 = 0x100 | 0x200 | 0x400 | 0x4000 | 0x1_0000 | 0x4_0000;
/// Interrupt flag.
const IF: u64 = 0x200;
/// Flags that user code may have: arithmetic, trap, direction, resume, alignment check,
/// identification.
const USER_FLAGS: u64 = 0x0025_0dd5;

impl UserContext {
    /// Takes registers from the kernel, which may have them from a program.
    pub fn set(&mut self, regs: &UserRegs) {
        let UserRegs {
            r15,
            r14,
            r13,
            r12,
            rbp,
            rbx,
            r11,
            r10,
            r9,
            r8,
            rax,
            rcx,
            rdx,
            rsi,
            rdi,
            rip,
            rflags,
            rsp,
            ..
        } = *regs;
        *self = UserContext {
            r15,
            r14,
            r13,
            r12,
            rbp,
            rbx,
            r11,
            r10,
            r9,
            r8,
            rax,
            rcx,
            rdx,
            rsi,
            rdi,
            vector: 0,
            error: 0,
            rip: canonical(rip),
            cs: u64::from(USER_CODE),
            rflags: rflags & USER_FLAGS | IF | 2,
            rsp,
            ss: u64::from(USER_DATA),
        };
    }

    /// The system call that is made.
    pub fn call(&self) -> Call {
        let args = [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9];
        Call { nr: self.rax, ip: self.rip, args }
    }

    /// As the kernel has registers.
    pub fn regs(&self, fs_base: u64, gs_base: u64) -> UserRegs {
        let UserContext {
            r15,
            r14,
            r13,
            r12,
            rbp,
            rbx,
            r11,
            r10,
            r9,
            r8,
            rax,
            rcx,
            rdx,
            rsi,
            rdi,
            rip,
            rflags,
            rsp,
            ..
        } = *self;
        UserRegs {
            r15,
            r14,
            r13,
            r12,
            rbp,
            rbx,
            r11,
            r10,
            r9,
            r8,
            rax,
            rcx,
            rdx,
            rsi,
            rdi,
            rip,
            rflags,
            rsp,
            fs_base,
            gs_base,
        }
    }
}

/// An address that the CPU takes: one that is not canonical becomes one that faults in user mode.
pub fn canonical(va: u64) -> u64 {
    // Nothing is ever mapped in the last page of the user half.
    if (va as i64) << 16 >> 16 == va as i64 { va } else { USER_END.0 - PAGE_SIZE }
}

unsafe extern "C" {
    /// Runs user code with the registers in `context` until its next trap; all are saved there
    /// then. `fast`: the thread is answered a system call, so SYSRET, which spoils %rcx and %r11,
    /// will do.
    fn quark_enter_user(context: *mut UserContext, fast: u32);
    fn quark_syscall_entry();
    static quark_trap_table: [u64; TRAPS];
}

/// Exceptions, and the three interrupts.
const TRAPS: usize = 0x23;

/// Where SYSCALL goes.
pub fn syscall_address() -> u64 {
    quark_syscall_entry as *const () as u64
}

/// See [`quark_enter_user`].
///
/// # Safety
/// This vCPU's page table is that of the thread, its segment bases and vector state are in the
/// registers, interrupts are off.
pub unsafe fn enter_user(cpu: &cpu::PerCpu, context: *mut UserContext, fast: bool) {
    cpu.point_to(context);
    // SAFETY: as the caller promises; the context stays where it is until this returns.
    unsafe { quark_enter_user(context, u32::from(fast)) }
}

global_asm!(
    ".pushsection .text.quark_entry,\"ax\",@progbits",
    ".balign 16",
    ".hidden quark_enter_user",
    ".globl quark_enter_user",
    ".type quark_enter_user,@function",
    "quark_enter_user:",
    "push rbp",
    "mov rbp, rsp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov gs:[{KERNEL_RSP}], rsp",
    "test esi, esi",
    "jz 2f",
    // SYSRET: %rcx and %r11 are the instruction pointer and the flags.
    "mov r15, [rdi]",
    "mov r14, [rdi + 8]",
    "mov r13, [rdi + 16]",
    "mov r12, [rdi + 24]",
    "mov rbp, [rdi + 32]",
    "mov rbx, [rdi + 40]",
    "mov r10, [rdi + 56]",
    "mov r9, [rdi + 64]",
    "mov r8, [rdi + 72]",
    "mov rax, [rdi + 80]",
    "mov rdx, [rdi + 96]",
    "mov rsi, [rdi + 104]",
    "mov rcx, [rdi + {RIP}]",
    "mov r11, [rdi + {RFLAGS}]",
    "mov rsp, [rdi + {RSP}]",
    "mov rdi, [rdi + 112]",
    "swapgs",
    "sysretq",
    "2:",
    "mov rsp, rdi",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rax",
    "pop rcx",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "add rsp, 16",
    "swapgs",
    "iretq",
    ".size quark_enter_user, . - quark_enter_user",
    // ---- from user mode
    // -------------------------------------------------------------------------------------
    ".balign 16",
    ".hidden quark_syscall_entry",
    ".globl quark_syscall_entry",
    ".type quark_syscall_entry,@function",
    "quark_syscall_entry:",
    "swapgs",
    "mov gs:[{SCRATCH}], rsp",
    "mov rsp, gs:[{CONTEXT}]",
    "mov [rsp], r15",
    "mov [rsp + 8], r14",
    "mov [rsp + 16], r13",
    "mov [rsp + 24], r12",
    "mov [rsp + 32], rbp",
    "mov [rsp + 40], rbx",
    "mov [rsp + 48], r11",
    "mov [rsp + 56], r10",
    "mov [rsp + 64], r9",
    "mov [rsp + 72], r8",
    "mov [rsp + 80], rax",
    "mov [rsp + 88], rcx",
    "mov [rsp + 96], rdx",
    "mov [rsp + 104], rsi",
    "mov [rsp + 112], rdi",
    "mov qword ptr [rsp + {VECTOR}], {SYSCALL}",
    "mov [rsp + {RIP}], rcx",
    "mov qword ptr [rsp + {CS}], {USER_CODE}",
    "mov [rsp + {RFLAGS}], r11",
    "mov rax, gs:[{SCRATCH}]",
    "mov [rsp + {RSP}], rax",
    "mov qword ptr [rsp + {SS}], {USER_DATA}",
    "3:",
    "mov rsp, gs:[{KERNEL_RSP}]",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".size quark_syscall_entry, . - quark_syscall_entry",
    // ---- exceptions and interrupts: the CPU has pushed the last words of a context, a stub the
    // two before ------------
    ".balign 16",
    ".type quark_trap_common,@function",
    "quark_trap_common:",
    "test byte ptr [rsp + 24], 3",
    "jz 4f",
    "swapgs",
    "push rdi",
    "push rsi",
    "push rdx",
    "push rcx",
    "push rax",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "cld",
    "cmp dword ptr gs:[{SMAP}], 0",
    "je 3b",
    "clac",
    "jmp 3b",
    // In kernel mode: on the stack in use, or an emergency one. Some emulators (QEMU's of SVM)
    // deliver an interrupt that they have injected once more, before the next exit and most often
    // at its handler's first instruction, although interrupts are off there: as if it had not come.
    "4:",
    "cmp dword ptr [rsp], {FIRST_INTERRUPT}",
    "jb 5f",
    "test dword ptr [rsp + 32], {IF}",
    "jnz 5f",
    "add rsp, 16",
    "iretq",
    "5:",
    "push rdi",
    "push rsi",
    "push rdx",
    "push rcx",
    "push rax",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "cld",
    "mov rdi, rsp",
    "mov rbp, rsp",
    "and rsp, -16",
    "call {kernel_trap}",
    "mov rsp, rbp",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rax",
    "pop rcx",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "add rsp, 16",
    "iretq",
    ".size quark_trap_common, . - quark_trap_common",
    // ---- a stub for each vector, and their addresses
    // ----------------------------------------------------------------
    ".macro quark_stub vector, has_error",
    ".balign 16",
    "quark_trap_\\vector:",
    ".if \\has_error == 0",
    "push 0",
    ".endif",
    "push \\vector",
    "jmp quark_trap_common",
    ".endm",
    ".altmacro",
    ".set quark_i, 0",
    ".rept {TRAPS}",
    ".if quark_i == 8 || (quark_i >= 10 && quark_i <= 14) || quark_i == 17 || quark_i == 21 || \
    quark_i == 29 || quark_i == 30",
    "quark_stub %quark_i, 1",
    ".else",
    "quark_stub %quark_i, 0",
    ".endif",
    ".set quark_i, quark_i + 1",
    ".endr",
    ".popsection",
    ".pushsection .data.rel.ro.quark_entry,\"aw\",@progbits",
    ".balign 8",
    ".hidden quark_trap_table",
    ".globl quark_trap_table",
    "quark_trap_table:",
    ".macro quark_entry vector",
    ".quad quark_trap_\\vector",
    ".endm",
    ".set quark_i, 0",
    ".rept {TRAPS}",
    "quark_entry %quark_i",
    ".set quark_i, quark_i + 1",
    ".endr",
    ".noaltmacro",
    ".popsection",
    KERNEL_RSP = const offset::KERNEL_RSP,
    CONTEXT = const offset::CONTEXT,
    SCRATCH = const offset::SCRATCH,
    SMAP = const offset::SMAP,
    VECTOR = const offset_of!(UserContext, vector),
    RIP = const offset_of!(UserContext, rip),
    CS = const offset_of!(UserContext, cs),
    RFLAGS = const offset_of!(UserContext, rflags),
    RSP = const offset_of!(UserContext, rsp),
    SS = const offset_of!(UserContext, ss),
    SYSCALL = const SYSCALL,
    USER_CODE = const USER_CODE,
    USER_DATA = const USER_DATA,
    TRAPS = const TRAPS,
    FIRST_INTERRUPT = const VECTOR_TIMER,
    IF = const IF,
    kernel_trap = sym kernel_trap,
);

#[repr(C, align(16))]
struct Idt(UnsafeCell<[Entry<()>; TRAPS]>);

// SAFETY: written once, by the first vCPU before others run, and with equal values afterwards.
unsafe impl Sync for Idt {}

static IDT: Idt = Idt(UnsafeCell::new([Entry::missing(); TRAPS]));

/// Vectors that user code may raise by an instruction: breakpoint, overflow.
const FROM_USER: [usize; 2] = [3, 4];
const NMI: usize = 2;
const DOUBLE_FAULT: usize = 8;
/// [`UserContext::vector`] of a page fault.
pub const PAGE_FAULT: u64 = 14;
/// That of qvisor's way to say that the host cannot supply a page.
pub const MACHINE_CHECK: u64 = 18;

/// An interrupt gate: interrupts are off in the handler.
///
/// # Safety
/// `address` is the kernel's entry code for this vector.
unsafe fn gate(vector: usize, address: u64) -> Entry<()> {
    let mut entry = Entry::missing();
    // SAFETY: as the caller promises; that segment is 64-bit code, and the task has both stacks.
    unsafe {
        let options = entry.set_handler_addr(VirtAddr::new_truncate(address));
        options.set_code_selector(SegmentSelector(KERNEL_CODE));
        match vector {
            DOUBLE_FAULT => _ = options.set_stack_index(0),
            NMI => _ = options.set_stack_index(1),
            vector if FROM_USER.contains(&vector) => {
                options.set_privilege_level(PrivilegeLevel::Ring3);
            }
            _ => {}
        }
    }
    entry
}

/// Loads GDT, IDT, segment and task registers.
///
/// # Safety
/// `gdt` is a table with this kernel's selectors that stays; on each vCPU once.
pub unsafe fn load_tables<const N: usize>(gdt: &GlobalDescriptorTable<N>, task: u16) {
    // SAFETY: see the table.
    unsafe {
        let table = IDT.0.get();
        for (vector, (entry, address)) in (*table).iter_mut().zip(quark_trap_table).enumerate() {
            *entry = gate(vector, address);
        }
        gdt.load_unsafe();
        lidt(&DescriptorTablePointer {
            limit: size_of::<Idt>() as u16 - 1,
            base: VirtAddr::from_ptr(table),
        });
        DS::set_reg(SegmentSelector::NULL);
        ES::set_reg(SegmentSelector::NULL);
        FS::set_reg(SegmentSelector::NULL);
        GS::set_reg(SegmentSelector::NULL);
        SS::set_reg(SegmentSelector(cpu::KERNEL_DATA));
        CS::set_reg(SegmentSelector(KERNEL_CODE));
        load_tss(SegmentSelector(task));
    }
}

/// An interrupt that came while the vCPU idled, a fault of the copy routine, or a bug of the
/// kernel.
extern "C" fn kernel_trap(context: &mut UserContext) {
    let vector = context.vector;
    if vector >= u64::from(VECTOR_TIMER) {
        note_interrupt(vector);
        return;
    }
    if (vector == MACHINE_CHECK || vector == PAGE_FAULT) && host::fixup_copy(context) {
        return;
    }
    let address = if vector == PAGE_FAULT { msr::cr2() } else { 0 };
    host::report_fault(context, address)
}

/// Takes an interrupt.
pub fn note_interrupt(vector: u64) {
    use core::sync::atomic::Ordering::Release;
    let cpu = cpu::this();
    match vector as u8 {
        VECTOR_TIMER => cpu.timer_fired.store(true, Release),
        VECTOR_KICK => cpu.kick.store(true, Release),
        VECTOR_FLUSH => {}
        _ => {}
    }
    apic::end_of_interrupt(&cpu.no_eoi);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_have_the_levels_and_stacks_of_their_vectors() {
        // As the manual has them (Intel SDM volume 3, 6.14.1).
        let at = 0xffff_8123_4567_89ab_u64;
        for (vector, options) in [(14, 0x8e00), (3, 0xee00), (4, 0xee00), (2, 0x8e02), (8, 0x8e01)]
        {
            // SAFETY: it is not loaded; the type has the size of two words and no padding.
            let words: [u64; 2] = unsafe { core::mem::transmute(gate(vector, at)) };
            let low = 0x4567_0000_0010_89ab | options << 32;
            assert_eq!(words, [low, 0xffff_8123], "vector {vector}");
        }
        // SAFETY: as above.
        let none: [u64; 2] = unsafe { core::mem::transmute(Entry::<()>::missing()) };
        assert_eq!(none[0] >> 47 & 1, 0);
    }
}
