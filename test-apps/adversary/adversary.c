// A program that tries to get out of the process platform: no attack may make a host system call that the guest kernel has
// not approved, reach another process, or stop the sandbox. At worst the attacking process dies.
//
//   adversary            every attack, each in a process of its own; one PASS or FAIL line each; exit code = failures
//   adversary list       the names
//   adversary NR:SITE    a jump to the SITEth system-call instruction above user memory with number NR; 4 = no such site
//   adversary NAME       one attack in this process: exit code 0 = it came to nothing, 1 = it got through
//
// Not for a host itself: it calls every system-call number. Freestanding, static, below 4 GiB (for the 32-bit code).
typedef unsigned long u64;
typedef long i64;
typedef unsigned char u8;

enum { SYS_WRITE = 1, SYS_MMAP = 9, SYS_MPROTECT = 10, SYS_MUNMAP = 11, SYS_SIGACTION = 13, SYS_MREMAP = 25, SYS_ALARM = 37,
       SYS_GETPID = 39, SYS_CLONE = 56, SYS_FORK = 57, SYS_EXIT = 60, SYS_WAIT4 = 61, SYS_SIGALTSTACK = 131, SYS_EXIT_GROUP = 231 };
#define SLOT 16384UL
#define FRAME_CALL 0x51554b01UL

static i64 sys6(u64 nr, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) {
    register u64 r10 asm("r10") = d, r8 asm("r8") = e, r9 asm("r9") = f;
    i64 ret;
    asm volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return ret;
}
#define sys(nr, ...) sys_pick(nr, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define sys_pick(nr, a, b, c, d, e, f, ...) sys6(nr, (u64)(a), (u64)(b), (u64)(c), (u64)(d), (u64)(e), (u64)(f))

static u64 len(const char *s) { u64 n = 0; while (s[n]) n++; return n; }
static int same(const char *a, const char *b) { while (*a && *a == *b) a++, b++; return *a == *b; }
static void say(const char *s) { sys(SYS_WRITE, 1, s, len(s)); }
static void say_number(i64 n) {
    char b[24]; int i = 24; u64 u = n < 0 ? -(u64)n : (u64)n;
    do b[--i] = '0' + u % 10; while (u /= 10);
    if (n < 0) b[--i] = '-';
    sys(SYS_WRITE, 1, b + i, 24 - i);
}
static void fill(void *p, int c, u64 n) { for (u64 i = 0; i < n; i++) ((volatile u8 *)p)[i] = c; }

// ---- leaving with registers of our choice, and coming back -----------------------------------------------------------
struct regs { u64 rax, rdi, rsi, rdx, r10, r8, r9, rbx, r12, r13, r14, r15, rbp, rsp, target; };
u64 saved_sp;
i64 leave_with(struct regs *r);
void landing(void);
void on_signal(int);
void restorer(void);
asm(".globl leave_with, landing, on_signal, restorer\n"
    "leave_with:\n push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n mov %rsp, saved_sp\n"
    " mov %rdi, %r11\n mov (%r11), %rax\n mov 8(%r11), %rdi\n mov 16(%r11), %rsi\n mov 24(%r11), %rdx\n mov 32(%r11), %r10\n"
    " mov 40(%r11), %r8\n mov 48(%r11), %r9\n mov 56(%r11), %rbx\n mov 64(%r11), %r12\n mov 72(%r11), %r13\n mov 80(%r11), %r14\n"
    " mov 88(%r11), %r15\n mov 96(%r11), %rbp\n mov 104(%r11), %rsp\n jmp *112(%r11)\n"
    "landing:\n cld\n mov saved_sp, %rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n"
    "on_signal:\n mov $-1000, %rax\n jmp landing\n"
    "restorer:\n mov $15, %eax\n syscall\n ud2\n");

// Looks like a thread slot of the stub: order table, stack and signal frame, all ours.
static u8 fake[SLOT] __attribute__((aligned(16384)));
static u8 altstack[16384] __attribute__((aligned(64)));
enum { FAKE_ORDERS = 64, FAKE_STACK = 8192, FAKE_FRAME = 12288 + 8 };

static void catch_signals(void) {
    struct { u64 handler, flags, restorer, mask; } act = { (u64)on_signal, 0x04000000 | 0x08000000 | 0x40000000 | 4, (u64)restorer, 0 };
    struct { u64 sp; int flags, pad; u64 size; } ss = { (u64)altstack, 0, 0, sizeof altstack };
    sys(SYS_SIGALTSTACK, &ss, 0);
    static const int signals[] = { 4, 5, 7, 8, 11, 31 };
    for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++) sys(SYS_SIGACTION, signals[i], &act, 0, 8);
}

// A forged signal frame that goes on at `rip`. The words are those of struct ucontext.
static u64 *forge(u64 rip, u64 mask) {
    fill(fake + FAKE_FRAME, 0, 440);
    u64 *uc = (u64 *)(fake + FAKE_FRAME + 8);
    uc[0] = 6;                       // uc_flags
    uc[2] = (u64)altstack; uc[4] = sizeof altstack;
    uc[5 + 13] = (u64)-2000;         // rax
    uc[5 + 15] = (u64)(fake + FAKE_STACK);
    uc[5 + 16] = rip;
    uc[5 + 17] = 0x202;
    uc[5 + 18] = 0x33 | 0x2bUL << 48;
    uc[5 + 32] = mask;
    return uc;
}

static struct regs with_fake(u64 target) {
    struct regs r = { 0 };
    r.rbx = (u64)(fake + FAKE_FRAME); r.r12 = (u64)fake; r.rsp = (u64)(fake + FAKE_STACK); r.target = target;
    fill(fake, 0, FAKE_FRAME);
    for (u64 i = 0; i < 128; i++) ((u64 *)(fake + FAKE_STACK))[i] = (u64)landing;
    return r;
}
static void fake_order(int i, u64 nr, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) {
    u64 *o = (u64 *)(fake + FAKE_ORDERS + 56 * i);
    o[0] = nr; o[1] = a; o[2] = b; o[3] = c; o[4] = d; o[5] = e; o[6] = f;
}

// ---- what lies above user memory -------------------------------------------------------------------------------------
static u64 vdso;
static u64 stub_base(void) { return vdso & ~0x3ffffUL; }
static int on_quark(void) { return vdso && (stub_base() & 0xfffffffffUL) == 0 && stub_base() + 0x10000 <= vdso; }

static u64 frame_site, order_site, sigreturn_site;
// The stub's three system-call instructions after its handler's entry, by what comes before them.
static void find_sites(void) {
    const u8 *p = (const u8 *)stub_base();
    for (int i = 8; i < 4094; i++) {
        if (p[i] != 0x0f || p[i + 1] != 0x05) continue;
        if (p[i - 5] == 0xb8 && *(const unsigned *)(p + i - 4) == FRAME_CALL) frame_site = (u64)(p + i);
        else if (p[i - 5] == 0xb8 && *(const unsigned *)(p + i - 4) == 15) sigreturn_site = (u64)(p + i);
        else if (p[i - 4] == 0x4d && p[i - 3] == 0x8b && p[i - 2] == 0x4f) order_site = (u64)(p + i);
    }
}

static i64 pid;
static u64 checksum(void) { u64 s = 0; const u64 *p = (const u64 *)stub_base(); for (int i = 0; i < 512; i++) s = s * 31 + p[i]; return s; }

// ---- the attacks: 0 = it came to nothing, else it got through ---------------------------------------------------------
static int dangerous(u64 nr) { // for ourselves, in any system: they end, block or copy this process
    return nr == 15 || nr == 34 || nr == 56 || nr == 57 || nr == 58 || nr == 60 || nr == 130 || nr == 153 || nr == 231 || nr == 335 || nr == 336 || nr == 435;
}
// uretprobe and uprobe: the host's seccomp lets these two through unfiltered. Anywhere but in the host's own trampolines, which a
// guest never has, they send SIGILL or answer ENXIO; before they existed they were unknown like any other.
static int uprobes(void) {
    catch_signals();
    extern void probe_site(void);
    for (u64 nr = 335; nr <= 336; nr++) {
        struct regs r = with_fake((u64)probe_site); r.rax = nr;
        i64 ret = leave_with(&r);
        if (ret != -1000 && ret != -38 && ret != -6) return 1;
    }
    return sys(SYS_GETPID) != pid;
}
asm("probe_site:\n syscall\n jmp landing\n");
static int numbers(void) {
    for (u64 nr = 0; nr < 1024; nr++) if (!dangerous(nr)) sys(nr, -1, -1, -1, -1, -1, -1);
    return sys(SYS_GETPID) != pid;
}
static int numbers_x32(void) {
    for (u64 nr = 0; nr < 1024; nr++) if (sys(0x40000000 | nr, -1, -1, -1, -1, -1, -1) != -38) return 1;
    return 0;
}
static int numbers_large(void) {
    static const u64 high[] = { 0x7fffffff, 0x80000000, 0x80000027, 0xffffffff, 0x51554b01, 0x100000000UL | 999, ~0UL };
    for (unsigned i = 0; i < sizeof high / sizeof *high; i++) if (sys(high[i], -1, -1, -1, -1, -1, -1) != -38) return 1;
    return 0;
}
void int80_site(void);
asm("int80_site:\n int $0x80\n jmp landing\n");
static int int80(void) { // where there is no such gate (kvm) it is a fault
    catch_signals();
    for (u64 nr = 0; nr < 512; nr++) {
        if (nr == 1 || nr == 2 || nr == 120 || nr == 190 || nr == 252) continue;
        struct regs r = with_fake((u64)int80_site);
        r.rax = nr;
        r.rbx = r.rdx = r.rsi = r.rdi = r.rbp = -1;
        i64 ret = leave_with(&r);
        if (ret != -1000 && (int)ret != -38) return 1;
    }
    return 0;
}
void sysenter_site(void);
asm("sysenter_site:\n sysenter\n jmp landing\n");
static int sysenter(void) {
    catch_signals();
    struct regs r = with_fake((u64)sysenter_site);
    r.rax = 20; r.rbp = r.rsp;
    i64 ret = leave_with(&r);
    return ret != -1000 && (int)ret != -38;
}
// 32-bit code below 4 GiB: far return into it, a system call, far return back.
u64 compat_call(u64 nr);
asm("compat_call:\n push %rbx\n push %rbp\n mov %rsp, saved_sp32\n mov %edi, %r8d\n mov $compat_stack + 4000, %rsp\n"
    " push $0x23\n push $1f\n lretq\n"
    ".code32\n1: mov %edi, %eax\n mov $-1, %ebx\n mov $-1, %ecx\n mov $-1, %edx\n int $0x80\n push $0x33\n push $2f\n lret\n"
    ".code64\n2: mov saved_sp32, %rsp\n mov %eax, %eax\n pop %rbp\n pop %rbx\n ret\n"
    ".globl compat_syscall\ncompat_syscall:\n push $0x23\n push $3f\n lretq\n.code32\n3: mov $20, %eax\n syscall\n push $0x33\n push $landing\n lret\n.code64\n"
    ".globl compat_sysenter\ncompat_sysenter:\n push $0x23\n push $4f\n lretq\n.code32\n4: mov $20, %eax\n mov %esp, %ebp\n sysenter\n push $0x33\n push $landing\n lret\n.code64\n"
    ".globl compat_fault\ncompat_fault:\n push $0x23\n push $5f\n lretq\n.code32\n5: mov 8, %eax\n hlt\n .code64\n");
void compat_syscall(void);
void compat_sysenter(void);
void compat_fault(void);
u64 saved_sp32;
u8 compat_stack[4096] __attribute__((aligned(16)));
static int code32_int80(void) {
    for (u64 nr = 3; nr < 512; nr++) if (nr != 120 && nr != 190 && nr != 252 && (int)compat_call(nr) != -38) return 1;
    return 0;
}
static int code32(void (*target)(void)) {
    catch_signals();
    struct regs r = with_fake((u64)target);
    i64 ret = leave_with(&r);
    return ret != -1000 && (int)ret != -38;
}
static int code32_syscall(void) { return code32(compat_syscall); }
static int code32_sysenter(void) { return code32(compat_sysenter); }
static int code32_fault(void) { return code32(compat_fault); }
static int vsyscall(void) {
    catch_signals();
    for (int i = 0; i < 4; i++) {
        struct regs r = with_fake(0xffffffffff600000UL + 0x400 * i);
        r.rdi = (u64)fake; r.rsi = (u64)fake + 64;
        leave_with(&r);
    }
    return sys(SYS_GETPID) != pid;
}
// A jump to the `site`th syscall instruction above user memory with our registers; what follows it then runs on our fake slot,
// too. One jump for each process, as some of these places end it. -1: there is no such site.
static int jump(u64 nr, int site) {
    catch_signals();
    u64 begin[2] = { stub_base(), vdso };
    for (int part = 0; part < 2; part++)
        for (u64 i = 0; i + 1 < 4096; i++) {
            const u8 *p = (const u8 *)begin[part] + i;
            if (p[0] != 0x0f || p[1] != 0x05 || site--) continue;
            struct regs r = with_fake((u64)p);
            forge((u64)landing, 0);
            fake_order(0, SYS_GETPID, 0, 0, 0, 0, 0, 0);
            fake_order(1, 1000, 77, 0, 0, 0, 0, 0);
            for (int j = 2; j < 64; j++) fake_order(j, SYS_GETPID, 0, 0, 0, 0, 0, 0);
            r.rax = nr;
            r.rdi = r.rsi = r.rdx = 1; // for an munmap or a write: nothing good
            r.r13 = 0; r.r14 = 2; r.r15 = (u64)fake + FAKE_ORDERS;
            i64 ret = leave_with(&r);
            // What comes back is from the guest kernel, from our forged frame, or a signal.
            return nr == SYS_GETPID && ret >= 0 && ret != pid;
        }
    return -1;
}
static int jump_every_number(void) { // at the one instruction that may make a call unseen, if it is rt_sigreturn
    catch_signals();
    for (u64 nr = 0; nr < 1024; nr++) {
        if (dangerous(nr)) continue;
        struct regs r = with_fake(sigreturn_site);
        r.rax = nr; r.rdi = r.rsi = r.rdx = r.r10 = r.r8 = r.r9 = -1;
        leave_with(&r);
    }
    struct regs r = with_fake(sigreturn_site); // the x32 number of the same call
    r.rax = 0x40000201;
    leave_with(&r);
    return sys(SYS_GETPID) != pid;
}
// Reports that only stub code may make.
static int false_report(u64 reason, u64 frame) {
    struct regs r = with_fake(frame_site);
    forge((u64)landing, 0);
    r.rax = FRAME_CALL; r.rdi = reason; r.rsi = frame;
    leave_with(&r);
    return sys(SYS_GETPID) != pid;
}
static int report_start(void) { return false_report(0x100, stub_base() + 0x40000 + SLOT - 4096); }
static int report_other_start(void) { return false_report(0x100, stub_base() + 0x40000 + 3 * SLOT - 4096); }
static int report_done(void) { return false_report(0x101, stub_base() + 0x40000 + SLOT - 4096); }
static int report_fail(void) { return false_report(0x102, 0); }
static int report_fault_outside(void) { return false_report(11, (u64)fake + FAKE_FRAME); }
static int report_fault_edge(void) { return false_report(11, stub_base() + 0x40000 + SLOT - 8); }
static int report_fault_overflow(void) { return false_report(11, -8); }
static int report_kick(void) { return false_report(23, stub_base() + 0x40000 + 8192 + 8); }
static int report_unknown(void) { return false_report(1UL << 63 | 64, stub_base() + 0x40000 + 8192 + 8); }
static int handler_from_user(void) { // the handler itself, on a stack of ours
    struct regs r = with_fake(frame_site - 8);
    for (u64 at = frame_site; at > frame_site - 64; at--) {
        r = with_fake(at);
        r.rdi = 11;
        if (*(u8 *)at == 0x48 && ((u8 *)at)[1] == 0x89 && ((u8 *)at)[2] == 0xe3) { leave_with(&r); break; }
    }
    return sys(SYS_GETPID) != pid;
}
static void sigreturn_with(u64 *uc) { (void)uc; struct regs r = with_fake(sigreturn_site); r.rax = 15; r.rsp = (u64)(fake + FAKE_FRAME + 8); leave_with(&r); }
static int block_signals_fault(void) {
    sigreturn_with(forge((u64)landing, ~0UL));
    return *(volatile int *)8; // cannot come back: the host kills who faults with the signal blocked
}
static int block_signals_call(void) {
    sigreturn_with(forge((u64)landing, ~0UL));
    return sys(SYS_GETPID) != pid;
}
static void block_signals_spin(void) { // who cannot be stopped must be ended; only for a kernel that tries to stop it
    sigreturn_with(forge((u64)landing, ~0UL));
    for (;;) asm volatile("pause");
}
static int move_signal_stack(void) {
    u64 *uc = forge((u64)landing, 0);
    uc[2] = (u64)fake; uc[4] = 8192;
    sigreturn_with(uc);
    return *(volatile int *)8;
}
static int no_signal_stack(void) {
    u64 *uc = forge((u64)landing, 0);
    uc[2] = 0; uc[3] = 2; uc[4] = 0;
    sigreturn_with(uc);
    return *(volatile int *)8;
}
static int bad_frames(void) {
    catch_signals();
    u64 *uc = forge(0x8000000000000000UL, 0); sigreturn_with(uc);             // %rip that is no address
    return sys(SYS_GETPID) != pid;
}
static int bad_selectors(void) {
    catch_signals();
    u64 *uc = forge((u64)landing, 0); uc[5 + 18] = 0x10UL | 0x18UL << 48; sigreturn_with(uc);
    return sys(SYS_GETPID) != pid;
}
static int bad_vector_state(void) {
    catch_signals();
    u64 *uc = forge((u64)landing, 0); uc[5 + 23] = stub_base() + 0x40000; sigreturn_with(uc);
    return sys(SYS_GETPID) != pid;
}
static int flags(void) { // all flags a program can set, then calls and faults with them
    catch_signals();
    asm volatile("pushfq\n orq $0x40400, (%%rsp)\n popfq\n" ::: "memory", "cc"); // AC, DF
    i64 a = sys(SYS_GETPID);
    asm volatile("pushfq\n andq $~0x40400, (%%rsp)\n popfq\n" ::: "memory", "cc");
    return a != pid;
}
static int single_step(void) { // a trap after each instruction, one of them a system call
    catch_signals();
    extern void step_site(void);
    struct regs r = with_fake((u64)step_site);
    r.rax = SYS_GETPID;
    leave_with(&r);
    return sys(SYS_GETPID) != pid;
}
asm("step_site:\n pushfq\n orq $0x100, (%rsp)\n popfq\n syscall\n jmp landing\n");
static int segment_bases(void) {
    asm volatile("wrfsbase %0\n wrgsbase %1" :: "r"(0x7fffffffffffUL), "r"(0xffff800000000000UL) : "memory");
    int bad = sys(SYS_GETPID) != pid;
    asm volatile("mov %0, %%fs\n mov %0, %%gs\n mov %0, %%ds\n mov %0, %%es" :: "r"(0x2b) : "memory");
    return bad || sys(SYS_GETPID) != pid;
}
static int write_stub_code(void) {
    catch_signals();
    struct regs r = with_fake((u64)landing);
    u64 before = checksum();
    extern void poke(void);
    r.target = (u64)poke; r.rdi = stub_base() + 256;
    leave_with(&r);
    return checksum() != before;
}
asm("poke:\n movq $-1, (%rdi)\n jmp landing\n");
static int map_over(void) {
    u64 before = checksum(), base = stub_base();
    int got = 0;
    got |= sys(SYS_MMAP, base, 4096, 7, 0x32, -1, 0) == (i64)base;
    got |= sys(SYS_MMAP, base - 4096, 8192, 7, 0x32, -1, 0) == (i64)base - 4096;
    got |= sys(SYS_MMAP, base + 0x40000, SLOT, 3, 0x32, -1, 0) == (i64)base + 0x40000;
    sys(SYS_MUNMAP, base, 4096);
    sys(SYS_MUNMAP, 0x10000, base); // everything below, too: must fail as it reaches beyond user memory
    got |= sys(SYS_MPROTECT, base, 4096, 7) == 0;
    got |= sys(SYS_MREMAP, base, 4096, 4096, 3, 0x20000000) == 0x20000000;
    sys(28, base, 4096, 4); sys(28, base + 0x40000, SLOT, 9); // madvise
    return got || checksum() != before;
}
static int scribble(void) { // all over its thread slot (there is no other), then calls and faults
    catch_signals();
    extern void poke(void);
    for (int round = 0; round < 64; round++) {
        for (u64 i = 0; i < SLOT; i += 8) *(volatile u64 *)(stub_base() + 0x40000 + i) = round % 2 ? ~0UL : i * 0x9e3779b97f4a7c15UL;
        if (sys(SYS_GETPID) != pid) return 1;
        struct regs r = with_fake((u64)poke); r.rdi = 64;
        leave_with(&r);
    }
    return sys(SYS_GETPID) != pid;
}
static int stack_on_slot(void) { // fault with %rsp all over the signal stack
    catch_signals();
    extern void poke(void);
    for (u64 at = 4096; at <= SLOT; at += 256) {
        struct regs r = with_fake((u64)poke); r.rdi = 64; r.rsp = stub_base() + 0x40000 + at;
        leave_with(&r);
    }
    return sys(SYS_GETPID) != pid;
}

static const struct attack { const char *name; int (*run)(void); int needs_stub; } attacks[] = {
    { "numbers", numbers, 0 }, { "numbers_x32", numbers_x32, 0 }, { "numbers_large", numbers_large, 0 },
    { "uprobes", uprobes, 0 }, { "int80", int80, 0 }, { "sysenter", sysenter, 0 }, { "code32_int80", code32_int80, 0 },
    { "code32_syscall", code32_syscall, 0 }, { "code32_sysenter", code32_sysenter, 0 }, { "code32_fault", code32_fault, 0 },
    { "vsyscall", vsyscall, 0 }, { "jump_every_number", jump_every_number, 1 }, { "report_start", report_start, 1 },
    { "report_other_start", report_other_start, 1 }, { "report_done", report_done, 1 }, { "report_fail", report_fail, 1 },
    { "report_fault_outside", report_fault_outside, 1 }, { "report_fault_edge", report_fault_edge, 1 },
    { "report_fault_overflow", report_fault_overflow, 1 }, { "report_kick", report_kick, 1 },
    { "report_unknown", report_unknown, 1 }, { "handler_from_user", handler_from_user, 1 },
    { "block_signals_fault", block_signals_fault, 1 }, { "block_signals_call", block_signals_call, 1 },
    { "move_signal_stack", move_signal_stack, 1 }, { "no_signal_stack", no_signal_stack, 1 }, { "bad_frames", bad_frames, 1 },
    { "bad_selectors", bad_selectors, 1 }, { "bad_vector_state", bad_vector_state, 1 }, { "flags", flags, 0 },
    { "single_step", single_step, 0 }, { "segment_bases", segment_bases, 0 }, { "write_stub_code", write_stub_code, 1 },
    { "map_over", map_over, 1 }, { "scribble", scribble, 1 }, { "stack_on_slot", stack_on_slot, 1 },
};
enum { COUNT = sizeof attacks / sizeof *attacks };

static volatile u64 canary[512];
static const u64 jump_numbers[] = { SYS_GETPID, 1000, SYS_MUNMAP, FRAME_CALL };

// Runs one attack in a process of its own. 1 = failed, -1 = there is no such site.
static int judge(const char *name, int (*run)(void), u64 nr, int site) {
    i64 self = sys(SYS_GETPID), child = sys(SYS_FORK);
    if (child == 0) {
        pid = sys(SYS_GETPID);
        sys(SYS_ALARM, run ? 20 : 1); // stub code may loop for ever on what it finds
        int code = run ? run() : jump(nr, site);
        sys(SYS_EXIT_GROUP, code < 0 ? 4 : code);
    }
    int status = -1;
    i64 got = child < 0 ? child : sys(SYS_WAIT4, child, &status, 0, 0);
    if (!run && got == child && status == 4 << 8) return -1;
    // Stub code that sets a process up ends it with 1 when it does not like what it finds.
    int ended = status == 0 || (!run && status == 1 << 8) || ((status & 0x7f) != 0 && (!run || (status & 0x7f) != 14));
    int ok = got == child && child > 0 && ended;
    for (int j = 0; j < 512; j++) ok &= canary[j] == j * 77UL;
    ok &= sys(SYS_GETPID) == self;
    say(ok ? "PASS " : "FAIL "); say(name);
    if (!run) { say(" "); say_number(nr); say(" at site "); say_number(site); }
    say(status == 0 ? ": came to nothing" : ": status "); if (status) say_number(status);
    say("\n");
    return !ok;
}

static int run_all(void) {
    int failures = 0;
    for (int i = 0; i < 512; i++) canary[i] = i * 77UL;
    for (int i = 0; i < COUNT; i++) {
        if (attacks[i].needs_stub && !on_quark()) { say("SKIP "); say(attacks[i].name); say("\n"); continue; }
        failures += judge(attacks[i].name, attacks[i].run, 0, 0);
    }
    for (unsigned n = 0; on_quark() && n < sizeof jump_numbers / sizeof *jump_numbers; n++)
        for (int site = 0, r; (r = judge("jump", 0, jump_numbers[n], site)) >= 0; site++) failures += r;
    return failures;
}

static u64 number(const char **s) { u64 n = 0; while (**s >= '0' && **s <= '9') n = n * 10 + *(*s)++ - '0'; if (**s) ++*s; return n; }

void start_c(u64 *sp) {
    u64 argc = sp[0];
    char **argv = (char **)(sp + 1);
    u64 *p = sp + 1 + argc + 1;
    while (*p) p++;
    for (p++; *p; p += 2) if (*p == 33) vdso = p[1]; // AT_SYSINFO_EHDR
    pid = sys(SYS_GETPID);
    if (on_quark()) find_sites();
    int code = 2;
    if (argc < 2) code = run_all();
    else if (same(argv[1], "block_signals_spin")) block_signals_spin();
    else if (argv[1][0] >= '0' && argv[1][0] <= '9') {
        const char *s = argv[1];
        u64 nr = number(&s);
        code = jump(nr, number(&s));
        if (code < 0) code = 4;
    }
    else if (same(argv[1], "list")) { for (int i = 0; i < COUNT; i++) { say(attacks[i].name); say("\n"); } code = 0; }
    else for (int i = 0; i < COUNT; i++) if (same(argv[1], attacks[i].name)) {
        if (attacks[i].needs_stub && !(frame_site && order_site && sigreturn_site)) { say("no stub code found\n"); code = 3; }
        else code = attacks[i].run();
    }
    sys(SYS_EXIT_GROUP, code);
}
asm(".globl _start\n_start:\n mov %rsp, %rdi\n and $-16, %rsp\n call start_c\n ud2\n");
