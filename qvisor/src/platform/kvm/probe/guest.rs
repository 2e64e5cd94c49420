//! The guest that the probe runs: its code, and the memory image around it.
//!
//! One address space of 64 KiB, mapped one to one. The host writes an order and a count into the
//! data page, the guest's ring 0 carries it out, leaves results in the data page and says so with
//! an OUT.

use std::arch::global_asm;

use kvm_bindings::{kvm_dtable, kvm_segment, kvm_sregs};

/// Bytes of guest memory.
pub const MEMORY_BYTES: usize = 0x1_0000;
/// The port of an OUT that says that the last order was carried out.
pub const PORT_DONE: u16 = 0x51;
/// The port of an OUT that tells of an exception that nobody expected.
pub const PORT_TRAP: u16 = 0x52;
/// The interrupt vector of [`ORDER_INTERRUPT`].
pub const IRQ_VECTOR: u8 = 0x30;
/// An address that is not mapped.
pub const UNMAPPED: u64 = 0x7654_3210;
/// What `%rsi` holds in a fault and `%xmm5` in a vector test.
pub const PATTERN: u64 = 0x0123_4567_89ab_cdef;
/// Instructions in one round of [`ORDER_LOOP`].
pub const LOOP_INSTRUCTIONS: u64 = 10;

/// Says that it is done and nothing else: the cost of an exit.
pub const ORDER_NOTHING: u64 = 0;
/// `count` rounds of arithmetic in ring 0; the result is [`loop_result`].
pub const ORDER_LOOP: u64 = 1;
/// Enters ring 3 at address `count` by SYSRET; [`USER_CALLS`] in `arg` says how often it comes
/// back.
pub const ORDER_SYSRET: u64 = 2;
/// Enters ring 3 at address `count` by IRET.
pub const ORDER_IRET: u64 = 3;
/// Saves and restores vector state with XSAVE and XRSTOR.
pub const ORDER_VECTOR: u64 = 4;
/// Halts until an interrupt comes.
pub const ORDER_INTERRUPT: u64 = 5;

const DATA: u64 = 0x1000;
const PML4: u64 = 0x2000;
const PDPT: u64 = 0x3000;
const PD: u64 = 0x4000;
const PT: u64 = 0x5000;
const GDT: u64 = 0x6000;
const TSS: u64 = 0x6100;
const IDT: u64 = 0x7000;
const KERNEL: u64 = 0x8000;
const USER: u64 = 0x9000;
const XSAVE_AREA: u64 = 0xa000;
const STACK_TOP: u64 = 0xd000;
const USER_STACK_TOP: u64 = 0xf000;

const KERNEL_CS: u64 = 0x08;
const KERNEL_SS: u64 = 0x10;
const USER_SS: u64 = 0x18 | 3;
const USER_CS: u64 = 0x20 | 3;
const TASK: u64 = 0x28;

/// The data page's words, as byte addresses.
pub mod word {
    use super::DATA;
    /// To the guest: what to do.
    pub const ORDER: u64 = DATA;
    /// To the guest: see the orders.
    pub const COUNT: u64 = DATA + 8;
    /// To the guest: see the orders.
    pub const ARG: u64 = DATA + 16;
    /// The result of a loop or a vector test.
    pub const RESULT: u64 = DATA + 24;
    /// System calls that ring 0 served.
    pub const CALLS: u64 = DATA + 32;
    /// System calls that ring 3 came back from.
    pub const RETURNS: u64 = DATA + 40;
    /// Of a page fault: error code, address, instruction, code segment, `%rsi`.
    pub const FAULT: [u64; 5] = [DATA + 48, DATA + 56, DATA + 64, DATA + 72, DATA + 80];
    /// Interrupts taken.
    pub const INTERRUPTS: u64 = DATA + 88;
    /// Of an exception that nobody expected: vector, CR2, and the two topmost words of its frame.
    pub const TRAP: [u64; 4] = [DATA + 96, DATA + 104, DATA + 112, DATA + 120];
}

// Ring 0 keeps nothing in registers between orders.
global_asm!(
    r#"
    .pushsection .rodata.quark_kvm_probe,"a",@progbits
    .balign 64
    .globl quark_kvm_probe_kernel
quark_kvm_probe_kernel:
    # STAR, LSTAR, SFMASK (all flags off)
    mov $0xc0000081, %ecx
    xor %eax, %eax
    mov ${STAR_HIGH}, %edx
    wrmsr
    inc %ecx
    mov ${KERNEL} + (quark_kvm_probe_call - quark_kvm_probe_kernel), %eax
    xor %edx, %edx
    wrmsr
    mov $0xc0000084, %ecx
    mov $0x3f7fd5, %eax
    wrmsr
    # x2APIC on, and its spurious vector register, which enables it
    mov $0x1b, %ecx
    rdmsr
    or $0xc00, %eax
    wrmsr
    mov $0x80f, %ecx
    mov $0x1ff, %eax
    xor %edx, %edx
    wrmsr
quark_kvm_probe_main:
    mov ${STACK_TOP}, %esp
    out %al, ${PORT_DONE}
    mov {ORDER}, %rax
    mov {COUNT}, %rcx
    cmp $1, %eax
    je 10f
    cmp $2, %eax
    je 20f
    cmp $3, %eax
    je 30f
    cmp $4, %eax
    je 40f
    cmp $5, %eax
    je 50f
    jmp quark_kvm_probe_main

10: xor %eax, %eax
    xor %edx, %edx
11: add $7, %rax
    add %rax, %rdx
    rol $5, %rdx
    xor %rcx, %rdx
    lea 3(%rdx), %rdx
    sub %rax, %rdx
    not %rdx
    inc %rdx
    dec %rcx
    jnz 11b
    mov %rdx, {RESULT}
    jmp quark_kvm_probe_main

20: xor %r14d, %r14d
    mov %r14, {CALLS}
    mov %r14, {RETURNS}
    mov {ARG}, %r15
    mov $2, %r11d
    sysretq

30: push ${USER_SS}
    push ${USER_STACK_TOP}
    push $2
    push ${USER_CS}
    push %rcx
    iretq

40: mov ${PATTERN}, %rax
    movq %rax, %xmm5
    mov $-1, %eax
    mov $-1, %edx
    mov ${XSAVE_AREA}, %edi
    xsave64 (%rdi)
    pxor %xmm5, %xmm5
    xrstor64 (%rdi)
    movq %xmm5, %rax
    mov %rax, {RESULT}
    jmp quark_kvm_probe_main

50: sti
    hlt
    cli
    jmp quark_kvm_probe_main

quark_kvm_probe_call:
    test %eax, %eax
    jnz 1f
    incq {CALLS}
    sysretq
1:  mov %r14, {RETURNS}
    jmp quark_kvm_probe_main

    .globl quark_kvm_probe_fault
quark_kvm_probe_fault:
    pop {FAULT0}
    mov %cr2, %rax
    mov %rax, {FAULT1}
    pop {FAULT2}
    pop {FAULT3}
    mov %rsi, {FAULT4}
    jmp quark_kvm_probe_main

    .globl quark_kvm_probe_interrupt
quark_kvm_probe_interrupt:
    // One that comes although interrupts were off is the same once more, at this handler's first
    // instruction: an emulator's (QEMU's of SVM), and qkernel passes over it in the same way.
    testl ${INTERRUPT_FLAG}, 16(%rsp)
    jz 1f
    incq {INTERRUPTS}
    mov $0x80b, %ecx
    xor %eax, %eax
    xor %edx, %edx
    wrmsr
1:  iretq

    # 32 entries of 16 bytes, one for each exception
    .balign 16
    .globl quark_kvm_probe_traps
quark_kvm_probe_traps:
    .set vector, 0
    .rept 32
    mov $vector, %eax
    jmp 1f
    .balign 16
    .set vector, vector + 1
    .endr
1:  mov %rax, {TRAP0}
    mov %cr2, %rax
    mov %rax, {TRAP1}
    pop {TRAP2}
    pop {TRAP3}
    out %al, ${PORT_TRAP}
    jmp 1b
    .globl quark_kvm_probe_kernel_end
quark_kvm_probe_kernel_end:

    .balign 64
    .globl quark_kvm_probe_user
quark_kvm_probe_user:
1:  xor %eax, %eax
    syscall
    inc %r14
    dec %r15
    jnz 1b
    mov $1, %eax
    syscall
    ud2
    .globl quark_kvm_probe_read
quark_kvm_probe_read:
    mov ${PATTERN}, %rsi
    mov ${UNMAPPED}, %edi
    mov (%rdi), %rax
    ud2
    .globl quark_kvm_probe_write
quark_kvm_probe_write:
    mov ${PATTERN}, %rsi
    mov ${XSAVE_AREA}, %edi
    mov %rsi, (%rdi)
    ud2
    .globl quark_kvm_probe_user_end
quark_kvm_probe_user_end:
    .popsection
    "#,
    KERNEL = const KERNEL,
    STAR_HIGH = const (KERNEL_SS << 16) | KERNEL_CS,
    STACK_TOP = const STACK_TOP,
    USER_STACK_TOP = const USER_STACK_TOP,
    USER_SS = const USER_SS,
    USER_CS = const USER_CS,
    INTERRUPT_FLAG = const 1 << 9,
    XSAVE_AREA = const XSAVE_AREA,
    UNMAPPED = const UNMAPPED,
    PATTERN = const PATTERN,
    PORT_DONE = const PORT_DONE,
    PORT_TRAP = const PORT_TRAP,
    ORDER = const word::ORDER,
    COUNT = const word::COUNT,
    ARG = const word::ARG,
    RESULT = const word::RESULT,
    CALLS = const word::CALLS,
    RETURNS = const word::RETURNS,
    FAULT0 = const word::FAULT[0],
    FAULT1 = const word::FAULT[1],
    FAULT2 = const word::FAULT[2],
    FAULT3 = const word::FAULT[3],
    FAULT4 = const word::FAULT[4],
    INTERRUPTS = const word::INTERRUPTS,
    TRAP0 = const word::TRAP[0],
    TRAP1 = const word::TRAP[1],
    TRAP2 = const word::TRAP[2],
    TRAP3 = const word::TRAP[3],
    options(att_syntax)
);

unsafe extern "C" {
    static quark_kvm_probe_kernel: u8;
    static quark_kvm_probe_fault: u8;
    static quark_kvm_probe_interrupt: u8;
    static quark_kvm_probe_traps: u8;
    static quark_kvm_probe_kernel_end: u8;
    static quark_kvm_probe_user: u8;
    static quark_kvm_probe_read: u8;
    static quark_kvm_probe_write: u8;
    static quark_kvm_probe_user_end: u8;
}

/// The bytes from one symbol of the assembly above to another.
fn code(start: *const u8, end: *const u8) -> &'static [u8] {
    // SAFETY: both are labels of one contiguous piece of read-only data above, `end` behind
    // `start`; it lives as long as the program.
    unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) }
}

/// The guest address of a label in ring 0's page.
fn in_kernel(label: *const u8) -> u64 {
    KERNEL + (label.addr() - (&raw const quark_kvm_probe_kernel).addr()) as u64
}

/// The guest address of a label in ring 3's page.
fn in_user(label: *const u8) -> u64 {
    USER + (label.addr() - (&raw const quark_kvm_probe_user).addr()) as u64
}

/// Ring 3: makes `arg` system calls.
pub fn user_calls() -> u64 {
    in_user(&raw const quark_kvm_probe_user)
}

/// Ring 3: reads [`UNMAPPED`]. A page fault with error code 4.
pub fn user_read() -> u64 {
    in_user(&raw const quark_kvm_probe_read)
}

/// Ring 3: writes a page of ring 0, [`FORBIDDEN`]. A page fault with error code 7.
pub fn user_write() -> u64 {
    in_user(&raw const quark_kvm_probe_write)
}

/// What [`user_write`] writes.
pub const FORBIDDEN: u64 = XSAVE_AREA;

/// True if a code segment is that of ring 3.
pub fn is_user(cs: u64) -> bool {
    cs == USER_CS
}

/// What [`ORDER_LOOP`] computes.
pub fn loop_result(rounds: u64) -> u64 {
    let (mut a, mut d) = (0u64, 0u64);
    for left in (1..=rounds).rev() {
        a = a.wrapping_add(7);
        d = d.wrapping_add(a).rotate_left(5) ^ left;
        d = (!d.wrapping_add(3).wrapping_sub(a)).wrapping_add(1);
    }
    d
}

/// Guest memory as the guest finds it.
pub fn image() -> Vec<u8> {
    const PRESENT: u64 = 1;
    const WRITE: u64 = 2;
    const USER_PAGE: u64 = 4;
    const NO_EXECUTE: u64 = 1 << 63;
    let mut image = vec![0u8; MEMORY_BYTES];
    let mut put = |at: u64, bytes: &[u8]| {
        let at = at as usize;
        image[at..at + bytes.len()].copy_from_slice(bytes);
    };
    let link = PRESENT | WRITE | USER_PAGE;
    for (table, next) in [(PML4, PDPT), (PDPT, PD), (PD, PT)] {
        put(table, &(next | link).to_le_bytes());
    }
    for page in (0x1000..MEMORY_BYTES as u64).step_by(0x1000) {
        let flags = match page {
            KERNEL => PRESENT,
            USER => PRESENT | USER_PAGE,
            0xe000 => PRESENT | WRITE | USER_PAGE | NO_EXECUTE,
            _ => PRESENT | WRITE | NO_EXECUTE,
        };
        put(PT + (page >> 12) * 8, &(page | flags).to_le_bytes());
    }
    // Long-mode code and data descriptors, accessed; the task's one is 16 bytes long, and busy.
    let tss_low = 0x67 | (TSS & 0xff_ffff) << 16 | 0x8b << 40 | (TSS >> 24 & 0xff) << 56;
    let descriptors = [
        0,
        0x00af_9b00_0000_ffff,
        0x00cf_9300_0000_ffff,
        0x00cf_f300_0000_ffff,
        0x00af_fb00_0000_ffff,
        tss_low,
        TSS >> 32,
    ];
    for (i, descriptor) in descriptors.into_iter().enumerate() {
        put(GDT + i as u64 * 8, &u64::to_le_bytes(descriptor));
    }
    put(TSS + 4, &STACK_TOP.to_le_bytes());
    for vector in (0..32).chain([u64::from(IRQ_VECTOR)]) {
        let handler = match vector {
            14 => in_kernel(&raw const quark_kvm_probe_fault),
            v if v == u64::from(IRQ_VECTOR) => in_kernel(&raw const quark_kvm_probe_interrupt),
            v => in_kernel(&raw const quark_kvm_probe_traps) + v * 16,
        };
        // A present interrupt gate of ring 0.
        let low =
            (handler & 0xffff) | KERNEL_CS << 16 | 0x8e00 << 32 | (handler >> 16 & 0xffff) << 48;
        put(IDT + vector * 16, &low.to_le_bytes());
        put(IDT + vector * 16 + 8, &(handler >> 32).to_le_bytes());
    }
    put(KERNEL, code(&raw const quark_kvm_probe_kernel, &raw const quark_kvm_probe_kernel_end));
    put(USER, code(&raw const quark_kvm_probe_user, &raw const quark_kvm_probe_user_end));
    image
}

/// The address at which the guest begins.
pub const ENTRY: u64 = KERNEL;

/// Puts a vCPU into long mode, ring 0, on the image's tables.
pub fn enter_long_mode(sregs: &mut kvm_sregs, has_xsave: bool) {
    let segment = |selector: u64, type_: u8, long: bool| kvm_segment {
        limit: u32::MAX,
        selector: selector as u16,
        type_,
        present: 1,
        s: 1,
        l: long.into(),
        db: (!long).into(),
        g: 1,
        ..kvm_segment::default()
    };
    sregs.cs = segment(KERNEL_CS, 0xb, true);
    let data = segment(KERNEL_SS, 3, false);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.tr = kvm_segment {
        base: TSS,
        limit: 0x67,
        selector: TASK as u16,
        type_: 0xb,
        present: 1,
        ..kvm_segment::default()
    };
    sregs.gdt = kvm_dtable { base: GDT, limit: 7 * 8 - 1, ..kvm_dtable::default() };
    sregs.idt = kvm_dtable { base: IDT, limit: 0x3ff, ..kvm_dtable::default() };
    // PG, WP, NE, ET, MP, PE; OSXMMEXCPT, OSFXSR, PAE, and OSXSAVE; NXE, LMA, LME, SCE
    sregs.cr0 = 0x8001_0033;
    sregs.cr3 = PML4;
    sregs.cr4 = 0x620 | u64::from(has_xsave) << 18;
    sregs.efer = 0xd01;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_holds_the_code_where_its_tables_say() {
        let image = image();
        let word =
            |at: u64| u64::from_le_bytes(image[at as usize..at as usize + 8].try_into().unwrap());
        assert_eq!(word(PT + 8 * 8) & 7, 1, "ring 0's code is read-only and ring 0's");
        assert_eq!(word(PT + 9 * 8) & 7, 5, "ring 3's code is read-only");
        assert_eq!(word(PT), 0, "nothing lies at address 0");
        // Every gate leads into ring 0's page: the instruction `mov $vector, %eax` for exceptions
        // nobody expects.
        for vector in (0..32u64).filter(|v| *v != 14) {
            let gate = word(IDT + vector * 16);
            let handler = (gate & 0xffff) | (gate >> 48) << 16;
            assert_eq!(image[handler as usize], 0xb8);
            assert_eq!(u64::from(image[handler as usize + 1]), vector);
        }
        assert_eq!(&image[user_calls() as usize..][..4], [0x31, 0xc0, 0x0f, 0x05], "xor, syscall");
        let kernel = code(&raw const quark_kvm_probe_kernel, &raw const quark_kvm_probe_kernel_end);
        assert!(kernel.len() <= 0x1000, "{}", kernel.len());
    }

    #[test]
    fn the_loop_is_the_arithmetic_it_says() {
        assert_eq!(loop_result(0), 0);
        // By hand: a = 7, d = 7 rotated by 5 = 224, xor 1 = 225, plus 3 minus 7 = 221, negated.
        assert_eq!(loop_result(1), 221u64.wrapping_neg());
    }
}
