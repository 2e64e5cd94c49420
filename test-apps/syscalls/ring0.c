// What user code may not do to the kernel below it: privileged instructions, its addresses, its descriptor tables, and registers and flags
// that a careless entry or exit would trip over.
#include "harness.h"

#include <asm/prctl.h>
#include <cpuid.h>
#include <setjmp.h>
#include <ucontext.h>

#define PAGE 4096UL


static sigjmp_buf back;
static volatile sig_atomic_t signo, code, traps;

static void leave(int number, siginfo_t *info, void *context) {
    signo = number;
    code = info->si_code;
    // The flags of the interrupted code do not stay.
    asm volatile("push $2\n popf" ::: "memory", "cc");
    siglongjmp(back, 1);
}

static void catch(void) {
    static char stack[1 << 16];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    OK(sigaltstack(&other, NULL));
    int signals[] = {SIGSEGV, SIGILL, SIGBUS, SIGTRAP, SIGFPE};
    for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction a = {.sa_sigaction = leave, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
        OK(sigaction(signals[i], &a, NULL));
    }
}

// The signal that the statement ended with, or 0.
#define SIGNAL_OF(...)                        \
    ({                                        \
        signo = 0;                            \
        if (!sigsetjmp(back, 0)) __VA_ARGS__; \
        (int)signo;                           \
    })
#define FORBIDDEN(...) EQ(SIGNAL_OF(asm volatile(__VA_ARGS__)), SIGSEGV)

// An address that faults on every page until the kernel has been there.
static char *fresh(size_t pages) {
    return OK(mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

// Whether user code may set segment bases by itself: AT_HWCAP2 says whether the kernel likes that, not whether the CPU forbids it.
static bool has_fsgsbase(void) {
    catch();
    return SIGNAL_OF(asm volatile("rdgsbase %%rax" ::: "rax")) == 0;
}

// ---- addresses -------------------------------------------------------------------------------------------------------------
static const uint64_t places[] = {
    0xffff800000000000, 0xffff800000200000, 0xffff888000000000, 0xffffc90000000000, 0xffffffff81000000,
    0xffffffff80000000, 0xffffffffff5fb000, 0xfffffffffffff000, 0xfffffffffffffff8, 0xfffffe0000000000,
};

CASE(kernel_addresses_are_closed) {
    catch();
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
        volatile char *p = (char *)places[i];
        EQ(SIGNAL_OF((void)*p), SIGSEGV);
        EQ(SIGNAL_OF(*p = 1), SIGSEGV);
        EQ(SIGNAL_OF(((void (*)(void))places[i])()), SIGSEGV);
        int fds[2];
        OK(pipe(fds));
        ERR(syscall(SYS_write, fds[1], places[i], 1), EFAULT);
        EQ(write(fds[1], "x", 1), 1);
        ERR(syscall(SYS_read, fds[0], places[i], 1), EFAULT);
        close(fds[0]), close(fds[1]);
    }
}

CASE(no_gigabyte_of_the_upper_half_is_open) {
    catch();
    // 2 MiB into each: that is where a kernel at a random place that is a multiple of 1 GiB has its code.
    for (uint64_t at = 0xffff800000200000; at < 0xffffc00000000000; at += 1UL << 30)
        if (SIGNAL_OF((void)*(volatile char *)at) != SIGSEGV) FAIL("%#lx can be read", (unsigned long)at);
}

CASE(addresses_that_are_not_canonical_fault) {
    catch();
    uint64_t wild[] = {0x800000000000, 0x800000001000, 0xffff7fffffffffff, 0x8000000000000000, 0x0123456789abcdef};
    for (unsigned i = 0; i < sizeof wild / sizeof *wild; i++) {
        EQ(SIGNAL_OF((void)*(volatile char *)wild[i]), SIGSEGV);
        EQ(code, SI_KERNEL);
        EQ(SIGNAL_OF(((void (*)(void))wild[i])()), SIGSEGV);
        ERR(syscall(SYS_getcwd, wild[i], 100), EFAULT);
        ERR(syscall(SYS_uname, wild[i]), EFAULT);
    }
}

// ---- instructions ----------------------------------------------------------------------------------------------------------
CASE(stopping_the_cpu_is_forbidden) {
    catch();
    FORBIDDEN("hlt");
    EQ(code, SI_KERNEL);
    FORBIDDEN("cli");
    FORBIDDEN("sti");
    // QEMU does not check the privilege of these two when KVM intercepts them, and KVM makes them do nothing.
    int got = SIGNAL_OF(asm volatile("invd"));
    CHECK(got == SIGSEGV || got == 0);
    got = SIGNAL_OF(asm volatile("wbinvd"));
    CHECK(got == SIGSEGV || got == 0);
}

CASE(ports_are_forbidden) {
    catch();
    for (int port = 0; port < 0x10000; port += port < 0x800 ? 1 : 0x3ff) {
        FORBIDDEN("out %%al, %%dx" ::"a"(0), "d"(port));
        FORBIDDEN("in %%dx, %%eax" ::"d"(port) : "eax");
    }
    FORBIDDEN("in $0x60, %%al" ::: "eax");
    FORBIDDEN("out %%eax, $0x80" ::"a"(0));
    static char bytes[16];
    FORBIDDEN("mov %0, %%rdi\n mov $0x60, %%edx\n mov $4, %%ecx\n rep insb" ::"r"(bytes) : "rdi", "rdx", "rcx", "memory");
    FORBIDDEN("mov %0, %%rsi\n mov $0x60, %%edx\n mov $4, %%ecx\n rep outsb" ::"r"(bytes) : "rsi", "rdx", "rcx", "memory");
    ERR(syscall(SYS_write, -1, 0, 0), EBADF);
}

CASE(model_specific_registers_are_forbidden) {
    catch();
    unsigned registers[] = {0x10, 0x1b, 0x174, 0x277, 0x6e0, 0x830, 0xc0000080, 0xc0000081, 0xc0000082, 0xc0000084, 0xc0000100,
                            0xc0000101, 0xc0000102, 0x4b564d00, 0xffffffff};
    for (unsigned i = 0; i < sizeof registers / sizeof *registers; i++) {
        FORBIDDEN("rdmsr" ::"c"(registers[i]) : "eax", "edx");
        FORBIDDEN("wrmsr" ::"c"(registers[i]), "a"(0), "d"(0));
    }
    FORBIDDEN("xsetbv" ::"c"(0), "a"(3), "d"(0));
}

CASE(control_and_debug_registers_are_forbidden) {
    catch();
    FORBIDDEN("mov %%cr0, %%rax" ::: "rax");
    FORBIDDEN("mov %%cr2, %%rax" ::: "rax");
    FORBIDDEN("mov %%cr3, %%rax" ::: "rax");
    FORBIDDEN("mov %%cr4, %%rax" ::: "rax");
    FORBIDDEN("mov %%cr8, %%rax" ::: "rax");
    FORBIDDEN("mov %%rax, %%cr0" ::"a"(0));
    FORBIDDEN("mov %%rax, %%cr3" ::"a"(0));
    FORBIDDEN("mov %%rax, %%cr4" ::"a"(0));
    FORBIDDEN("mov %%rax, %%cr8" ::"a"(0));
    FORBIDDEN("mov %%db0, %%rax" ::: "rax");
    FORBIDDEN("mov %%rax, %%db7" ::"a"(0x400));
    FORBIDDEN("clts");
    FORBIDDEN("lmsw %%ax" ::"a"(0));
    FORBIDDEN("invlpg (%0)" ::"r"(&back));
}

CASE(descriptor_tables_cannot_be_loaded) {
    catch();
    static char bytes[16];
    FORBIDDEN("lgdt (%0)" ::"r"(bytes));
    FORBIDDEN("lidt (%0)" ::"r"(bytes));
    FORBIDDEN("lldt %w0" ::"r"(0));
    FORBIDDEN("ltr %w0" ::"r"(0x28));
    FORBIDDEN("swapgs");
    FORBIDDEN("sysretq" ::"c"(0), "a"(0) : "r11");
}

CASE(descriptor_tables_cannot_be_read_where_the_cpu_can_forbid_it) {
    catch();
    unsigned a, b, c = 0, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(c & 1 << 2)) skip_case("the CPU has no UMIP");
    struct __attribute__((packed)) {
        uint16_t limit;
        uint64_t base;
    } table;
    memset(&table, 0, sizeof table);
    // Linux itself gives these two made-up values.
    int signal_ = SIGNAL_OF(asm volatile("sgdt (%0)" ::"r"(&table) : "memory"));
    if (signal_ != SIGSEGV && (signal_ || table.base != 0xfffffffffffe0000)) FAIL("sgdt: %d %#lx", signal_, (long)table.base);
    memset(&table, 0, sizeof table);
    signal_ = SIGNAL_OF(asm volatile("sidt (%0)" ::"r"(&table) : "memory"));
    if (signal_ != SIGSEGV && (signal_ || table.base != 0xffffffffffff0000)) FAIL("sidt: %d %#lx", signal_, (long)table.base);
}

CASE(kernel_segments_cannot_be_loaded) {
    catch();
    for (unsigned selector = 8; selector < 0x60; selector += 8) {
        uint64_t rights;
        bool readable;
        // What user code may load, LAR with this privilege level shows it.
        asm("lar %2, %0\n setz %1" : "=r"(rights), "=q"(readable) : "r"((uint64_t)selector) : "cc");
        if (readable && (rights >> 13 & 3) == 3) continue;
        FORBIDDEN("mov %w0, %%ds" ::"r"(selector));
        FORBIDDEN("mov %w0, %%es" ::"r"(selector));
        FORBIDDEN("mov %w0, %%ss" ::"r"(selector));
        struct __attribute__((packed)) {
            uint32_t offset;
            uint16_t selector;
        } far = {0, (uint16_t)selector};
        FORBIDDEN("ljmp *(%0)" ::"r"(&far) : "memory");
    }
    FORBIDDEN("mov %w0, %%ss" ::"r"(0));
    // Those that are allowed.
    asm volatile("mov %w0, %%ds\n mov %w0, %%es" ::"r"(0));
    EQ(syscall(SYS_getppid), getppid());
    asm volatile("mov %%ss, %0\n mov %w0, %%ds\n mov %w0, %%es" : "=&r"((unsigned){0}));
    EQ(syscall(SYS_getppid), getppid());
    sleep_ms(2);
    EQ(syscall(SYS_getppid), getppid());
}

// A page with "int N; ret" for each N.
static void *gates(void) {
    uint8_t *page = OK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (int n = 0; n < 256; n++) memcpy(page + 4 * n, (uint8_t[]){0xcd, (uint8_t)n, 0xc3, 0xcc}, 4);
    OK(mprotect(page, PAGE, PROT_READ | PROT_EXEC));
    return page;
}

CASE(no_interrupt_can_be_raised) {
    catch();
    char *page = gates();
    for (int n = 0; n < 256; n++) {
        // 0x80 is Linux's system call for 32-bit code.
        if (n == 0x80) continue;
        int expected = n == 3 ? SIGTRAP : SIGSEGV;
        int got = SIGNAL_OF(((void (*)(void))(page + 4 * n))());
        if (got != expected) FAIL("int %d: signal %d", n, got);
    }
    EQ(SIGNAL_OF(asm volatile(".byte 0xf1")), SIGTRAP);
    EQ(SIGNAL_OF(asm volatile("int3")), SIGTRAP);
}

CASE(a_hypercall_does_no_harm) {
    catch();
    // KVM answers in %rax that user code may not, or the CPU knows no such instruction, or KVM tries to write another one here.
    for (int round = 0; round < 100; round++) {
        long result = 1;
        int got = SIGNAL_OF(asm volatile("vmmcall" : "+a"(result)::"rbx", "rcx", "rdx", "rsi", "memory"));
        if (got == 0 && result >= 0) FAIL("vmmcall gave %ld", result);
        CHECK(got == 0 || got == SIGILL || got == SIGSEGV);
        result = 1;
        got = SIGNAL_OF(asm volatile("vmcall" : "+a"(result)::"rbx", "rcx", "rdx", "rsi", "memory"));
        if (got == 0 && result >= 0) FAIL("vmcall gave %ld", result);
        CHECK(got == 0 || got == SIGILL || got == SIGSEGV);
    }
}

// ---- the way back from a system call and from a signal --------------------------------------------------------------------------
static volatile uint64_t next_ip, next_sp;
static volatile int visits;

static void go_on_there(int number, siginfo_t *info, void *context) {
    ucontext_t *u = context;
    if (visits++) {
        signo = number;
        siglongjmp(back, 1);
    }
    if (next_ip) u->uc_mcontext.gregs[REG_RIP] = (greg_t)next_ip;
    if (next_sp) u->uc_mcontext.gregs[REG_RSP] = (greg_t)next_sp;
}

static int signal_after_return_to(uint64_t ip, uint64_t sp, bool by_fault) {
    next_ip = ip;
    next_sp = sp;
    visits = 0;
    return SIGNAL_OF({
        if (by_fault)
            asm volatile("ud2");
        else
            syscall(SYS_tgkill, getpid(), gettid(), SIGUSR1);
        if (sp && !ip) asm volatile("push %rax");
    });
}

CASE(a_signal_handler_cannot_return_to_the_kernel) {
    catch();
    struct sigaction a = {.sa_sigaction = go_on_there, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    for (int i = 0; i < 3; i++) OK(sigaction((int[]){SIGUSR1, SIGILL, SIGSEGV}[i], &a, NULL));
    OK(sigaction(SIGBUS, &a, NULL));
    uint64_t wild[] = {0x800000000000,     0x7fffffffffff,     0xffff800000000000, 0xffffffff81000000,
                       0x8000000000000000, 0xffff7fffffffffff, 0xfffffffffffff000, 0x0000900000000000};
    for (int by_fault = 0; by_fault < 2; by_fault++)
        for (unsigned i = 0; i < sizeof wild / sizeof *wild; i++) {
            EQ(signal_after_return_to(wild[i], 0, by_fault), SIGSEGV);
            EQ(visits, 2);
        }
}

extern char landing[];
asm(".globl landing\n landing: push %rax\n ud2");

CASE(a_signal_handler_may_return_with_any_stack_pointer) {
    catch();
    struct sigaction a = {.sa_sigaction = go_on_there, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    for (int i = 0; i < 4; i++) OK(sigaction((int[]){SIGUSR1, SIGILL, SIGSEGV, SIGBUS}[i], &a, NULL));
    uint64_t wild[] = {8, 0x800000000000, 0xffff800000200000, 0xffffffff81000008, 0x8000000000000000, 0xfffffffffffffff8};
    for (unsigned i = 0; i < sizeof wild / sizeof *wild; i++) {
        int got = signal_after_return_to((uint64_t)landing, wild[i], false);
        // A stack access with an address that is not canonical is a stack fault.
        CHECK(got == SIGSEGV || got == SIGBUS);
        EQ(visits, 2);
    }
}

CASE(interrupts_and_ports_cannot_be_had_by_flags) {
    uint64_t flags;
    asm volatile("pushf\n orl $0x3000, (%%rsp)\n andl $~0x200, (%%rsp)\n popf\n pushf\n pop %0" : "=r"(flags)::"cc", "memory");
    EQ(flags & 0x3200, 0x200);
    EQ(syscall(SYS_getppid), getppid());
}

CASE(a_system_call_at_the_end_of_user_memory) {
    catch();
    // Its return address is the first that user code may not have.
    for (uint64_t end = 0x800000000000; end > 0x700000000000; end -= PAGE) {
        uint8_t *page = mmap((void *)(end - PAGE), PAGE, PROT_READ | PROT_WRITE | PROT_EXEC,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (page == MAP_FAILED) {
            // What lies below is the stack, or the kernel's own.
            if (end < 0x800000000000 - 16 * PAGE) skip_case("the last page cannot be had");
            continue;
        }
        EQ(page, (void *)(end - PAGE));
        memcpy(page + PAGE - 2, "\x0f\x05", 2);
        EQ(SIGNAL_OF({
               asm volatile("jmp *%0" ::"r"(page + PAGE - 2), "a"(SYS_getppid) : "rcx", "r11", "memory");
           }),
           SIGSEGV);
        return;
    }
}

// ---- segment bases -----------------------------------------------------------------------------------------------------------
CASE(arch_prctl_takes_user_addresses_only) {
    unsigned long before = 1, after = 2;
    OK(syscall(SYS_arch_prctl, ARCH_GET_FS, &before));
    uint64_t wild[] = {0xffff800000000000, 0xffffffff81000000, 0x8000000000000000, 0x800000000000};
    for (unsigned i = 0; i < sizeof wild / sizeof *wild; i++) {
        ERR(syscall(SYS_arch_prctl, ARCH_SET_FS, wild[i]), EPERM);
        ERR(syscall(SYS_arch_prctl, ARCH_SET_GS, wild[i]), EPERM);
    }
    OK(syscall(SYS_arch_prctl, ARCH_GET_FS, &after));
    EQ(before, after);
    ERR(syscall(SYS_arch_prctl, ARCH_GET_FS, places[0]), EFAULT);
}

// Runs system calls, a page fault, a wait and a signal without libc, with the FS and GS bases `base`.
static bool with_bases(uint64_t base, char *page, uint64_t *fs, uint64_t *gs, long *parent) {
    struct timespec pause = {.tv_nsec = 2000000};
    uint64_t old_fs, old_gs, new_fs, new_gs;
    long ppid;
    asm volatile(
        "rdfsbase %0\n rdgsbase %1\n"
        "wrfsbase %5\n wrgsbase %5\n"
        "movb $1, (%6)\n"
        "mov $35, %%eax\n mov %7, %%rdi\n xor %%esi, %%esi\n syscall\n"
        "movb $1, 4096(%6)\n"
        "mov $110, %%eax\n syscall\n mov %%rax, %4\n"
        "rdfsbase %2\n rdgsbase %3\n"
        "wrfsbase %0\n wrgsbase %1\n"
        : "=&r"(old_fs), "=&r"(old_gs), "=&r"(new_fs), "=&r"(new_gs), "=&r"(ppid)
        : "r"(base), "r"(page), "r"(&pause)
        : "rax", "rcx", "r11", "rdi", "rsi", "memory");
    *fs = new_fs, *gs = new_gs, *parent = ppid;
    return true;
}

CASE(wild_segment_bases_do_no_harm) {
    if (!has_fsgsbase()) skip_case("no FSGSBASE");
    uint64_t wild[] = {0, 1, 0x7fffffffffff, 0xffff800000000000, 0xffffffff81000000, 0xffffffffffffffff, 0xffff888012345678};
    long parent = getppid();
    for (unsigned i = 0; i < sizeof wild / sizeof *wild; i++) {
        uint64_t fs = 1, gs = 1;
        long seen = 0;
        char *page = fresh(2);
        with_bases(wild[i], page, &fs, &gs, &seen);
        EQ(fs, wild[i]);
        EQ(gs, wild[i]);
        EQ(seen, parent);
        EQ(page[0] + page[PAGE], 2);
    }
}

CASE(a_base_that_is_not_canonical_does_no_harm) {
    if (!has_fsgsbase()) skip_case("no FSGSBASE");
    uint64_t wild[] = {0x8000000000000000, 0x0000800000000000, 0x0123456789abcdef};
    for (unsigned i = 0; i < sizeof wild / sizeof *wild; i++) {
        // The CPU refuses it, but QEMU's does not.
        int got = SIGNAL_OF(asm volatile("wrgsbase %0" ::"r"(wild[i])));
        CHECK(got == SIGSEGV || got == 0);
        sleep_ms(2);
        EQ(syscall(SYS_getppid), getppid());
        pid_t pid = OK(fork());
        if (pid == 0) _exit(7);
        expect_exit(pid, 7);
    }
}

static void note_base(int number) {
    uint64_t gs;
    asm volatile("rdgsbase %0" : "=r"(gs));
    signo = gs == 0xffff800000000000;
}

CASE(a_signal_handler_keeps_a_wild_base) {
    if (!has_fsgsbase()) skip_case("no FSGSBASE");
    struct sigaction a = {.sa_handler = note_base};
    OK(sigaction(SIGUSR1, &a, NULL));
    asm volatile("wrgsbase %0" ::"r"(0xffff800000000000));
    raise(SIGUSR1);
    uint64_t gs;
    asm volatile("rdgsbase %0" : "=r"(gs));
    EQ(gs, 0xffff800000000000);
    EQ(signo, 1);
    pid_t pid = OK(fork());
    if (pid == 0) {
        asm volatile("rdgsbase %0" : "=r"(gs));
        _exit(gs == 0xffff800000000000 ? 7 : 8);
    }
    expect_exit(pid, 7);
}

// ---- stack pointers ----------------------------------------------------------------------------------------------------------
CASE(the_kernel_needs_no_user_stack) {
    uint64_t wild[] = {0, 1, 0x800000000000, 0xffff800000200000, 0xffffffff81000000, 0x8000000000000000, 0xfffffffffffffff8, 123};
    long parent = getppid();
    for (unsigned i = 0; i < sizeof wild / sizeof *wild; i++) {
        char *page = fresh(2);
        long seen;
        struct timespec pause = {.tv_nsec = 2000000};
        // A system call, a fault, a wait, and long enough in user mode for an interrupt.
        asm volatile(
            "mov %%rsp, %%r12\n mov %1, %%rsp\n"
            "movb $1, (%2)\n"
            "mov $35, %%eax\n mov %3, %%rdi\n xor %%esi, %%esi\n syscall\n"
            "mov $10000000, %%ecx\n 1: dec %%ecx\n jnz 1b\n"
            "movb $1, 4096(%2)\n"
            "mov $110, %%eax\n syscall\n mov %%rax, %0\n"
            "cmp %%rsp, %1\n mov %%r12, %%rsp\n je 2f\n ud2\n 2:"
            : "=&r"(seen)
            : "r"(wild[i]), "r"(page), "r"(&pause)
            : "rax", "rcx", "r11", "r12", "rdi", "rsi", "memory", "cc");
        EQ(seen, parent);
        EQ(page[0] + page[PAGE], 2);
    }
}

// ---- flags --------------------------------------------------------------------------------------------------------------------
#define DF 0x400
#define TF 0x100
#define NT 0x4000
#define AC 0x40000
#define RF 0x10000
#define ID 0x200000

// Sets `flags`, makes system calls and faults, takes them away; the flags that were there at the end, and what getppid gave.
static uint64_t with_flags(uint64_t flags, char *page, long *parent) {
    uint64_t seen;
    long ppid;
    struct timespec pause = {.tv_nsec = 1000000};
    asm volatile(
        "push %2\n popf\n"
        "mov $110, %%eax\n syscall\n"
        "movb $1, (%3)\n"
        "mov $35, %%eax\n mov %4, %%rdi\n xor %%esi, %%esi\n syscall\n"
        "movb $1, 4096(%3)\n"
        "mov $110, %%eax\n syscall\n mov %%rax, %1\n"
        "pushf\n pop %0\n"
        "push $2\n popf\n"
        : "=&r"(seen), "=&r"(ppid)
        : "r"(flags | 2), "r"(page), "r"(&pause)
        : "rax", "rcx", "r11", "rdi", "rsi", "memory", "cc");
    *parent = ppid;
    return seen;
}

CASE(flags_do_no_harm_and_stay) {
    uint64_t sets[] = {DF, NT, AC, ID, DF | NT, DF | AC | NT | ID};
    for (unsigned i = 0; i < sizeof sets / sizeof *sets; i++) {
        char *page = fresh(2);
        long parent = 0;
        uint64_t seen = with_flags(sets[i], page, &parent);
        EQ(parent, getppid());
        EQ(page[0] + page[PAGE], 2);
        // NT may be lost.
        EQ(seen & (DF | AC | ID), sets[i] & (DF | AC | ID));
        // Memory that the kernel copies and clears is as it should be.
        int fds[2];
        char out[PAGE], in[PAGE];
        OK(pipe(fds));
        memset(out, 0x5a, sizeof out);
        EQ(write(fds[1], out, sizeof out), sizeof out);
        EQ(read(fds[0], in, sizeof in), sizeof in);
        EQ(memcmp(in, out, sizeof in), 0);
        close(fds[0]), close(fds[1]);
    }
}

// With the direction flag set, the bytes that a copy in the kernel moves.
CASE(the_kernel_copies_upwards_whatever_the_direction_flag_says) {
    int fds[2];
    OK(pipe(fds));
    char *from = fresh(3), *to = fresh(3);
    for (unsigned i = 0; i < 3 * PAGE; i++) from[i] = (char)(i * 7 / 3);
    long wrote, got;
    asm volatile("std\n syscall\n cld" : "=a"(wrote) : "a"(SYS_write), "D"(fds[1]), "S"(from + 100), "d"(2 * PAGE) : "rcx", "r11", "memory");
    asm volatile("std\n syscall\n cld" : "=a"(got) : "a"(SYS_read), "D"(fds[0]), "S"(to + 100), "d"(2 * PAGE) : "rcx", "r11", "memory");
    EQ(wrote, 2 * PAGE);
    EQ(got, 2 * PAGE);
    EQ(memcmp(from + 100, to + 100, 2 * PAGE), 0);
    for (unsigned i = 0; i < 100; i++) EQ(to[i], 0);
    for (unsigned i = 100 + 2 * PAGE; i < 3 * PAGE; i++) EQ(to[i], 0);
}

static volatile uint64_t handler_flags;
static void note_flags(int number) {
    uint64_t flags;
    asm volatile("pushf\n pop %0" : "=r"(flags));
    handler_flags = flags;
}

CASE(a_signal_handler_begins_with_clean_flags) {
    struct sigaction a = {.sa_handler = note_flags};
    OK(sigaction(SIGUSR1, &a, NULL));
    long result;
    uint64_t after;
    asm volatile("push %%rbx\n std\n syscall\n pushf\n pop %1\n cld\n pop %%rbx"
                 : "=a"(result), "=&r"(after)
                 : "a"(SYS_tgkill), "D"(getpid()), "S"(gettid()), "d"(SIGUSR1)
                 : "rcx", "r11", "memory", "cc");
    EQ(result, 0);
    EQ(handler_flags & (DF | TF | RF), 0);
    EQ(after & DF, DF);
}

static void on_trap(int number, siginfo_t *info, void *context) {
    traps++;
    EQ(info->si_code, TRAP_TRACE);
}

CASE(single_steps_go_through_system_calls_and_faults) {
    struct sigaction a = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGTRAP, &a, NULL));
    char *page = fresh(2);
    long parent;
    asm volatile(
        "pushf\n orl $0x100, (%%rsp)\n popf\n"
        "mov $110, %%eax\n syscall\n"
        "movb $1, (%1)\n"
        "mov $110, %%eax\n syscall\n mov %%rax, %0\n"
        "movb $1, 4096(%1)\n"
        "pushf\n andl $~0x100, (%%rsp)\n popf\n"
        : "=&r"(parent)
        : "r"(page)
        : "rax", "rcx", "r11", "memory", "cc");
    EQ(parent, getppid());
    EQ(page[0] + page[PAGE], 2);
    // Eleven instructions or so; some CPUs count a system call's differently.
    if (traps < 8 || traps > 14) FAIL("%d traps", (int)traps);
    traps = 0;
    EQ(syscall(SYS_getppid), getppid());
    EQ(traps, 0);
}

CASE(a_step_behind_a_stack_switch_does_no_harm) {
    struct sigaction a = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGTRAP, &a, NULL));
    for (int i = 0; i < 100; i++) {
        long parent;
        // Loading SS holds debug exceptions up for one instruction, which is the system call.
        asm volatile(
            "mov %%ss, %%edx\n mov $110, %%eax\n"
            "pushf\n orl $0x100, (%%rsp)\n popf\n"
            "mov %%edx, %%ss\n syscall\n"
            "pushf\n andl $~0x100, (%%rsp)\n popf\n"
            : "=a"(parent)::"rcx", "rdx", "r11", "memory", "cc");
        EQ(parent, getppid());
    }
}

CASE(alignment_checks_are_the_programs_own) {
    catch();
    char *page = fresh(1);
    // A CPU that is emulated may not check.
    int got = SIGNAL_OF(asm volatile("pushf\n orl $0x40000, (%%rsp)\n popf\n movl $1, 1(%0)\n pushf\n andl $~0x40000, (%%rsp)\n popf" ::"r"(page) : "memory", "cc"));
    CHECK(got == 0 || got == SIGBUS);
    // The kernel accesses what is not aligned, all the same.
    long result;
    asm volatile("pushf\n orl $0x40000, (%%rsp)\n popf\n syscall\n pushf\n andl $~0x40000, (%%rsp)\n popf"
                 : "=a"(result)
                 : "a"(SYS_clock_gettime), "D"(CLOCK_MONOTONIC), "S"(page + 3)
                 : "rcx", "r11", "memory", "cc");
    EQ(result, 0);
}

static volatile unsigned shown_cs, shown_ss;

static void show_selectors(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    uint64_t selectors = ((ucontext_t *)context)->uc_mcontext.gregs[REG_CSGSFS];
    shown_cs = selectors & 0xffff;
    shown_ss = selectors >> 48;
}

// Of Linux: .NET goes back to managed code by IRET, with the selectors of a signal frame.
CASE(selectors_are_what_a_signal_frame_says) {
    struct sigaction a = {.sa_sigaction = show_selectors, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGUSR1, &a, NULL));
    OK(raise(SIGUSR1));
    unsigned cs, ss;
    asm volatile("mov %%cs, %0\n mov %%ss, %1" : "=r"(cs), "=r"(ss));
    EQ(cs, 0x33);
    EQ(ss, 0x2b);
    EQ(shown_cs, cs);
    EQ(shown_ss, ss);
    unsigned long came = 0;
    asm volatile(
        "sub $128, %%rsp\n mov %%rsp, %%rdx\n push %[ss]\n push %%rdx\n pushf\n push %[cs]\n"
        "lea 1f(%%rip), %%rcx\n push %%rcx\n iretq\n mov $2, %[came]\n"
        "1: add $128, %%rsp\n add $1, %[came]"
        : [came] "+r"(came)
        : [cs] "r"((unsigned long)shown_cs), [ss] "r"((unsigned long)shown_ss)
        : "rcx", "rdx", "memory", "cc");
    EQ(came, 1);
}

// ---- all at once --------------------------------------------------------------------------------------------------------------
CASE(rubbish_in_all_registers) {
    // Numbers of system calls that do not exist, with every register wild, the stack pointer too.
    for (uint64_t i = 0; i < 200; i++) {
        uint64_t wild = i % 3 == 0 ? 0xffff800000200000 + i : i % 3 == 1 ? 0x8000000000000000 + i : ~i;
        long result;
        asm volatile(
            "push %%rbp\n push %%rbx\n movq %%rsp, %%xmm0\n"
            "mov %%rsi, %%rdi\n mov %%rsi, %%rdx\n mov %%rsi, %%r8\n mov %%rsi, %%r9\n mov %%rsi, %%r10\n mov %%rsi, %%rbx\n"
            "mov %%rsi, %%rbp\n mov %%rsi, %%r12\n mov %%rsi, %%r13\n mov %%rsi, %%r14\n mov %%rsi, %%r15\n mov %%rsi, %%rsp\n std\n syscall\n"
            "cld\n movq %%xmm0, %%rsp\n pop %%rbx\n pop %%rbp"
            : "=a"(result), "+S"(wild)
            : "a"(0x7fff0000UL + i)
            : "rcx", "rdx", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "memory", "cc");
        EQ(result, -ENOSYS);
    }
}
